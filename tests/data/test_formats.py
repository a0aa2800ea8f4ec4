"""Formats: examples read for completion; a format survives JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bfn.data.alphabet import Alphabet
from bfn.data.formats import ArrayFormat, ImageFormat, TextFormat
from bfn.data.forms import Discretised, Real


def test_read_a_picture_or_an_array_to_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.array([0.5, np.nan], np.float32))
    np.save("hole.npy", np.array([False, True]))
    x, known = ArrayFormat((2,), Real()).read_example("x.npy", Path("hole.npy"))
    assert known.tolist() == [True, False]
    assert float(x[0, 0]) == 0.5
    colours = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    Image.fromarray(colours).save("rgb.png")
    Image.fromarray(np.eye(5, 4).astype(np.uint8) * 255).save("diagonal.png")
    format = ImageFormat((3, 5, 4), Discretised(256, 256))
    x, known = format.read_example("rgb.png", Path("diagonal.png"))
    assert torch.equal(known, ~torch.eye(5, 4).bool().expand(3, 5, 4))
    levels = torch.as_tensor(colours).movedim(-1, 0)
    assert torch.equal(format.decode(x)[0][known], levels[known])


def test_read_a_text_to_complete() -> None:
    format = TextFormat(Alphabet(" abc"), 6)
    x, known = format.read_example("a b_")
    assert format.render(x)[0][:3] == "a b"
    assert known.tolist() == [True, True, True, False, False, False]
    x, known = TextFormat(Alphabet(None), 4).read_example("a_c")
    assert x[0, [0, 2]].tolist() == [97, 99]
    assert known.tolist() == [True, False, True, False]
