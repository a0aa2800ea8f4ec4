"""Files of samples: what is in them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn.data.formats import TextFormat
from bfn.data.forms import Alphabet
from bfn.errors import BFNError
from bfn.plots import sheets, style
from support.mistakes import assert_refused


@pytest.fixture
def digits():
    data = bfn.data.load("digits")
    x, _ = data.batch("train", torch.arange(5))
    return data.format, x


def test_grid_holds_every_picture() -> None:
    images = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3, 1)
    sheet = sheets.grid(images, columns=3)
    scale = 28  # the sheet of 13 pixels has at least 360 of them
    assert sheet.shape == ((2 * 3 + 1) * scale, (3 * 4 + 1) * scale, 1)
    small = sheet[::scale, ::scale]
    for i, image in enumerate(images):
        top, left = 1 + 3 * (i // 3), 1 + 4 * (i % 3)
        assert (small[top : top + 2, left : left + 3] == image).all()
    assert (small[0] == 96).all()
    assert (small[4:6, 9:12] == 96).all()  # the sixth place is empty


def test_files_of_images(digits, tmp_path: Path) -> None:
    format, x = digits
    sheets.write_sheet(tmp_path / "x.png", format, x, columns=2)
    with Image.open(tmp_path / "x.png") as image:
        assert (np.asarray(image)[..., None] == sheets.grid(format.render(x), 2)).all()
    sheets.write_separately(tmp_path / "many", format, x)
    paths = sorted((tmp_path / "many").iterdir())
    assert [path.name for path in paths] == [f"{i:04d}.png" for i in range(5)]
    for path, rendered in zip(paths, format.render(x), strict=True):
        with Image.open(path) as image:
            assert (np.asarray(image) == rendered[..., 0]).all()
    sheets.write_sheet(tmp_path / "x.npy", format, x)
    levels = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert (levels == bfn.data.load("digits").split("train")[:5].numpy()).all()


def test_samples_show_themselves_in_a_notebook(digits, tmp_path: Path) -> None:
    format, x = digits
    sheets.write_sheet(tmp_path / "sheet.png", format, x)
    picture = bfn.show(bfn.data.load("digits"), x)
    assert picture._repr_png_() == (tmp_path / "sheet.png").read_bytes()
    net = bfn.nn.UNet(outputs=2, width=8, multipliers=(1,), blocks=1, groups=4, image_size=8)
    model = bfn.discretised(net, K=17, sigma_1=0.1)
    assert_refused(lambda: bfn.show(model, x), "has not been trained on any data", "the data set")
    model.data_format = format.describe()
    assert bfn.show(model, x)._repr_png_() == picture._repr_png_()
    text = bfn.data.load("manual", length=8)
    x, _ = text.batch("test", text.examples("test")[:2])
    assert repr(bfn.show(text, x)) == "\n".join(text.render(x))
    assert bfn.show(text, x)._repr_png_() is None


def test_text(tmp_path: Path) -> None:
    data = bfn.data.load("manual", length=12)
    x = data.encode(["hello world ", " abc def ghi"])
    sheets.write_sheet(tmp_path / "x.txt", data.format, x)
    assert (tmp_path / "x.txt").read_text() == "hello world \n abc def ghi\n"
    sheets.write_sheet(tmp_path / "x.npy", data.format, x)
    assert np.load(tmp_path / "x.npy").tolist() == ["hello world ", " abc def ghi"]
    assert sheets.suffix(data.format) == ".txt"
    with pytest.raises(BFNError, match=r"x\.png' cannot hold samples .* \.txt or \.npy"):
        sheets.check_sheet(tmp_path / "x.png", data.format)


def test_texts_of_several_lines_stay_apart(tmp_path: Path) -> None:
    lines = TextFormat(Alphabet("ab\n"), 4)
    x = lines.encode(["a\nbb", "abab", "\n\na\n"])
    sheets.write_sheet(tmp_path / "x.txt", lines, x)
    expected = "--- 1 of 3 ---\na\nbb\n--- 2 of 3 ---\nabab\n--- 3 of 3 ---\n\n\na\n\n"
    assert (tmp_path / "x.txt").read_text() == expected
    sheets.write_separately(tmp_path / "many", lines, x)
    assert (tmp_path / "many" / "0000.txt").read_text() == "a\nbb\n"
    sheets.write_sheet(tmp_path / "y.txt", lines, x[1:2].expand(2, 4))
    assert (tmp_path / "y.txt").read_text() == "abab\nabab\n"


@pytest.mark.parametrize("module", ["PIL.Image", "matplotlib"])
def test_missing_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BFNError, match=r"not installed; add it with: pip install 'bfn\[plot\]'"):
        style.load(module)
