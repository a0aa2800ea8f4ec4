"""Formats: JSON, text and bytes, and examples read for completion."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bfn import data
from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat
from bfn.data.forms import Alphabet, Discretised, Real
from support.mistakes import assert_refused

WORDS = TextFormat(Alphabet(" abc"), 6)
PIXELS = ImageFormat((3, 5, 4), Discretised(256, 256))
NUMBERS = ArrayFormat((2,), Real())


@pytest.mark.parametrize(
    "format",
    [
        ImageFormat((3, 8, 8), Discretised(16, 256)),
        ArrayFormat((5,), Real(0.0, 2.0)),
        TextFormat(Alphabet("xyz é\n"), 12),
        TextFormat(Alphabet(None), 12),
    ],
)
def test_formats_survive_json(format: Format) -> None:
    assert data.read_format(json.loads(json.dumps(format.describe()))) == format


def test_bytes_and_characters_come_back_exactly() -> None:
    raw = bytes(range(256))
    format = TextFormat(Alphabet(None), 256)
    x = format.encode([raw, raw[::-1]])
    assert torch.equal(x[0], torch.arange(256))
    assert format.decode(x) == [raw, raw[::-1]]
    assert format.render(x)[0][65] == "A"
    assert format.unit == "bits per byte"
    wide = TextFormat(Alphabet("aé漢😀"), 4)
    assert wide.encode(["é😀a漢"]).tolist() == [[1, 3, 0, 2]]
    assert wide.decode(torch.tensor([[1, 3, 0, 2]])) == ["é😀a漢"]
    many = Alphabet("".join(chr(0x4E00 + i) for i in range(300)))
    assert many.text(many.classes(chr(0x4E00 + 299) + chr(0x4E00))) == chr(0x4E00 + 299) + "一"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """x.npy and rgb.png, and masks of the same and of other sizes."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.array([0.5, np.nan], np.float32))
    np.save("hole.npy", np.array([False, True]))
    np.save("three.npy", np.zeros(3))
    np.save("none.npy", np.zeros(2))
    colours = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    Image.fromarray(colours).save("rgb.png")
    Image.fromarray(np.eye(5, 4).astype(np.uint8) * 255).save("diagonal.png")
    Image.fromarray(np.zeros((5, 4), np.uint8)).save("black.png")
    Image.fromarray(np.zeros((7, 9), np.uint8)).save("large.png")
    Path("broken.png").write_bytes(b"no picture")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_read_a_picture_or_an_array_to_complete() -> None:
    x, known = NUMBERS.read_example("x.npy", Path("hole.npy"))
    assert known.tolist() == [True, False]
    assert float(x[0, 0]) == 0.5
    x, known = PIXELS.read_example("rgb.png", Path("diagonal.png"))
    assert torch.equal(known, ~torch.eye(5, 4).bool().expand(3, 5, 4))
    levels = torch.as_tensor(np.array(Image.open("rgb.png"))).movedim(-1, 0)
    assert torch.equal(PIXELS.decode(x)[0][known], levels[known])
    # Cropped around the centre, and the mask brought to the same size.
    Image.fromarray(np.tile(np.array(Image.open("rgb.png")), (1, 3, 1))).save("wide.png")
    Image.open("diagonal.png").resize((40, 50), Image.Resampling.NEAREST).save("mask.png")
    x, known = PIXELS.read_example("wide.png", Path("mask.png"), resize=True)
    assert torch.equal(known, ~torch.eye(5, 4).bool().expand(3, 5, 4))
    assert torch.equal(PIXELS.decode(x)[0][known], levels[known])


def test_read_a_text_to_complete() -> None:
    x, known = WORDS.read_example("a b_")
    assert WORDS.render(x)[0][:3] == "a b"
    assert known.tolist() == [True, True, True, False, False, False]
    x, known = TextFormat(Alphabet(None), 4).read_example("a?c", blank="?")
    assert x[0, [0, 2]].tolist() == [97, 99]
    assert known.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("format", "what", "mask", "words"),
    [
        (WORDS, "abc", None, ["no blank '_'"]),
        (WORDS, "a_b", "mask.png", ["a model of text data"]),
        (WORDS, "_" * 9, None, ["9 characters", "windows have 6"]),
        (WORDS, "a_x", None, ["'x' at position 2"]),
        (TextFormat(Alphabet(None), 6), "é_", None, ["plain ASCII"]),
        (NUMBERS, "x.npy", None, ["nothing says what to fill in"]),
        (NUMBERS, "x.npy", "three.npy", ["'three.npy' has shape (3,)", "(2,)"]),
        (NUMBERS, "x.npy", "none.npy", ["none.npy", "marks nothing"]),
        (PIXELS, "rgb.png", "black.png", ["black.png", "brightest pixel is 0"]),
        (PIXELS, "rgb.png", "large.png", ["large.png", "9 x 7 pixels", "4 x 5"]),
        (PIXELS, "broken.png", "black.png", ["broken.png", "as a picture"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_in_examples(
    format: Format, what: str, mask: str | None, words: list[str]
) -> None:
    assert_refused(lambda: format.read_example(what, None if mask is None else Path(mask)), *words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Alphabet("aba"), ["'a'", "twice"]),
        (lambda: Alphabet("a"), ["'a'", "too short"]),
        (lambda: Alphabet("ab").classes("abxa", "poem.txt"), ["poem.txt", "'x'", "position 2"]),
        (lambda: data.load("digits").encode(torch.zeros(2, 8, 8)), ["(2, 8, 8)", "(1, 8, 8)"]),
        (lambda: WORDS.encode(["abc"]), ["text 0", "3 characters", "6"]),
        (lambda: data.read_format({"medium": "text"}), ["damaged"]),
    ],
)
def test_mistakes(call, words: list[str]) -> None:
    assert_refused(call, *words)
