"""Forms and formats: stored values <-> model values, exactly, for every level and every K."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bfn import data
from bfn.data import forms
from bfn.data.formats import ArrayFormat, Format, ImageFormat, TextFormat
from bfn.data.forms import Alphabet, Discretised, Real
from bfn.output import bins
from support.mistakes import assert_refused


@pytest.mark.parametrize("levels", [17, 256])
def test_every_number_of_bins_comes_back(levels: int) -> None:
    for K in range(2, levels + 1):
        k = torch.arange(K)
        discretised = forms.Discretised(K, levels)
        x = bins.bin_centre(k, K)
        level = discretised.decode(x)
        assert torch.equal(discretised.encode(level), x), K
        # a bin's level is one of those it was made of: floor(v K / L) = k
        assert torch.equal(level.long() * K // levels, k), K
        assert level.dtype == torch.uint8
        discrete = forms.Discrete(K, levels)
        assert torch.equal(discrete.encode(discrete.decode(k)), k), K


@pytest.mark.parametrize("K", [16, 256])
def test_photographs_follow_the_published_bins(K: int) -> None:
    # published preprocessing: u = v / 255 * 2 - 1, bin floor((u + 1) K / 2), clamped
    v = torch.arange(256)
    u = v.double() / 255 * 2 - 1
    k = ((u + 1) * K / 2).floor().clamp(max=K - 1).long()
    assert torch.equal(forms.Discretised(K, 256).encode(v.to(torch.uint8)), bins.bin_centre(k, K))


def test_continuous_spreads_levels_over_the_range() -> None:
    x = forms.Continuous(17).encode(torch.arange(17, dtype=torch.uint8))
    assert x.tolist() == [v / 8 - 1 for v in range(17)]
    wild = torch.tensor([-3.0, -1.02, 0.06, 0.07, 1.2])
    assert forms.Continuous(17).decode(wild).tolist() == [0, 0, 8, 9, 16]


def test_binarisation_frequency_is_the_level() -> None:
    form = forms.Binary(17)
    n = 20_000
    v = torch.arange(17, dtype=torch.uint8).expand(n, 17)
    x = form.encode(v, torch.Generator().manual_seed(5))
    assert x.dtype == torch.int64
    assert x[:, 0].sum() == 0
    assert x[:, 16].sum() == n
    for level in range(1, 16):
        p = level / 16
        error = math.sqrt(p * (1 - p) / n)
        assert abs(x[:, level].double().mean().item() - p) < 4 * error, level
    assert torch.equal(form.encode(form.decode(x)), x)


def test_real_numbers() -> None:
    values = torch.linspace(-1, 1, 101)
    assert torch.equal(forms.Real().encode(values), values)
    assert torch.equal(forms.Real().decode(values), values)
    wide = forms.Real(low=-5.0, high=15.0)
    raw = torch.tensor([-5.0, 0.0, 5.0, 15.0])
    assert wide.encode(raw).tolist() == pytest.approx([-1, -0.5, 0, 1])
    assert torch.allclose(wide.decode(wide.encode(raw)), raw, atol=1e-5)
    binned = forms.Real(K=8)
    assert torch.equal(binned.encode(values), bins.discretise(values, 8))
    assert torch.equal(binned.encode(binned.decode(binned.encode(values))), binned.encode(values))


def test_every_column_has_its_own_range() -> None:
    form = forms.Real((0.0, 5.0, -1e6), (10.0, 5.0, 1e6))
    values = torch.tensor([[2.5, 5.0, 0.0], [-3.0, 7.0, 2e6]])
    x = torch.tensor([[-0.5, 0.0, 0.0], [-1.0, 0.0, 1.0]])
    assert torch.equal(form.encode(values), x)
    assert torch.equal(form.decode(x), torch.tensor([[2.5, 5.0, 0.0], [0.0, 5.0, 1e6]]))
    assert forms.read(form.describe()) == form


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: forms.choose("discretized", None, 17), ["'discretized'", "'discretised'"]),
        (lambda: forms.choose("discretised", 18, 17), ["18", "2 to 17"]),
        (lambda: forms.choose("discrete", 2.5, 17), ["2.5", "whole number"]),  # pyright: ignore
        (lambda: forms.choose("binary", 4, 17), ["4", "binary"]),
        (lambda: forms.Real(1.0, 1.0), ["low", "high"]),
        (lambda: forms.read({"name": "discrete"}), ["damaged"]),
        (lambda: forms.read({"name": "collections:Counter"}, trust=True), ["is not a form"]),
        (
            lambda: forms.Discrete(17, 17).check(torch.tensor([3, 17]), "the test split"),
            ["test split", "17", "0 to 16"],
        ),
        (lambda: forms.Binary(17).check(torch.ones(3), "x"), ["float32", "uint8"]),
        (lambda: forms.Real().check(torch.tensor([0.0, math.nan]), "x"), ["NaN"]),
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


# Formats: JSON, text and bytes, and examples read for completion.


WORDS = TextFormat(Alphabet(" abc"), 6)
PIXELS = ImageFormat((3, 5, 4), Discretised(256, 256))
NUMBERS = ArrayFormat((2,), Real())
TIMES = ArrayFormat((2,), Real((1.7e9, 0.0), (1.7e9 + 1000.0, 1.0)))


@pytest.mark.parametrize(
    "format",
    [
        ImageFormat((3, 8, 8), Discretised(16, 256)),
        ArrayFormat((5,), Real(-2.0, 3.0, 5)),
        ArrayFormat((5,), forms.Continuous(256)),
        ArrayFormat((5,), forms.Discrete(17, 17)),
        ArrayFormat((5,), forms.Binary(256)),
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
def folder(tmp_path: Path, empty_folder: None) -> Path:
    """x.npy and rgb.png, and masks of the same and of other sizes."""
    np.save("x.npy", np.array([0.5, np.nan], np.float32))
    np.save("hole.npy", np.array([False, True]))
    np.save("far.npy", np.array([50.0, 0.0]))
    np.save("late.npy", np.array([1_700_002_500.0, 0.0]))
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
        (NUMBERS, "x.npy", None, ["nothing says which parts of", "that is true there"]),
        (PIXELS, "rgb.png", None, ["nothing says which parts of", "that is white there"]),
        (NUMBERS, "x.npy", "three.npy", ["'three.npy' has shape (3,)", "(2,)"]),
        (NUMBERS, "x.npy", "none.npy", ["none.npy", "marks nothing"]),
        (NUMBERS, "far.npy", "hole.npy", ["'far.npy' holds 50,", "outside the range"]),
        (TIMES, "late.npy", "hole.npy", ["'late.npy' holds 1700002500,", "outside the range"]),
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
