"""`bfn sample`: calls, grids, labels, guidance, films and batches, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import bfn
from bfn.cli import main
from bfn.guidance import ClassifierFree
from bfn.recipe.sections import Sample
from bfn.runs.folder import RunFolder
from bfn.sampling.draw import draw as draw_section
from bfn.sampling.infill import infill
from support import tiny_runs, toys

Trained = Callable[..., Path]


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run on labelled digits."""
    folder = tmp_path_factory.mktemp("labelled")
    recipe = tiny_runs.read(
        folder, train__steps=4, data__labels=True, net__labels=10, train__label_dropout=0.5
    )
    bfn.train.run(recipe, folder / "run", display=False)
    return folder / "run"


def draw(run: Path, out: Path, *arguments: Any) -> np.ndarray:
    command = ["sample", run, "--out", out, "--force", *arguments]
    assert main([str(each) for each in command]) == 0
    return np.load(out)


def expected(run: Path, n: int, steps: int, **options: Any) -> np.ndarray:
    """What the library draws with the same seeds and a recipe's own solver, as levels."""
    options = {"solver": "sde2", **options}
    model, format = RunFolder(run).load_model(), RunFolder(run).format()
    keys = bfn.noise.Keyed([bfn.noise.seed("sample", 0, i) for i in range(n)])
    x = bfn.generate(model, (n, *format.shape), steps, generator=keys, **options)
    return format.decode(x).numpy()


def test_calls_solver_and_grid(trained: Trained, tmp_path: Path) -> None:
    run, out = trained(), tmp_path / "x.npy"
    found = draw(run, out, "--n", 3, "--calls", 6, "--solver", "sde2", "--grid", "power")
    assert (found == expected(run, 3, 5, solver="sde2", grid="power")).all()
    auto = draw(run, out, "--n", 3, "--calls", 6, "--solver", "sde2", "--grid", "auto")
    assert (auto == expected(run, 3, 5, solver="sde2")).all()
    assert (auto != found).any()


def test_what_is_said(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained()
    draw(run, tmp_path / "x.npy", "--n", 3, "--calls", 6)
    assert "x.npy: 3 samples in 5 steps (6 network calls)" in capsys.readouterr().out
    draw(run, tmp_path / "x.npy", "--n", 1, "--calls", 2)
    assert "x.npy: 1 sample in 1 step (2 network calls)" in capsys.readouterr().out


def test_batches_change_nothing(trained: Trained, tmp_path: Path) -> None:
    run, out = trained(), tmp_path / "x.npy"
    whole = draw(run, out, "--n", 7, "--steps", 3)
    assert (draw(run, out, "--n", 7, "--steps", 3, "--batch", 2) == whole).all()
    assert (draw(run, out, "--n", 3, "--steps", 3) == whole[:3]).all()


def test_labels_and_guidance(labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    base = ("--n", 4, "--steps", 3, "--final", "mode")
    seven = draw(labelled, out, *base, "--label", 7)
    assert (seven == expected(labelled, 4, 3, final="mode", label=7)).all()
    two = draw(labelled, out, *base, "--label", "3,7")
    assert (two == expected(labelled, 4, 3, final="mode", label=[3, 7, 3, 7])).all()
    for w in ("2", "0", "0.5"):
        guided = draw(labelled, out, *base, "--label", 7, "--guidance", w)
        given = expected(labelled, 4, 3, final="mode", label=7, guidance=float(w))
        assert (guided == given).all()
    plain = draw(labelled, out, *base)
    assert (plain == expected(labelled, 4, 3, final="mode")).all()
    assert (draw(labelled, out, *base, "--label", "-1") == plain).all()


def test_guidance_of_a_run_that_always_saw_labels(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(labelled, tmp_path / "always")
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace("label_dropout = 0.5", "label_dropout = 0.0"))
    out, base = tmp_path / "x.npy", ("--n", 2, "--steps", 2, "--label", 7)
    draw(labelled, out, *base, "--guidance", 2)
    draw(run, out, *base)
    assert capsys.readouterr().err == ""
    draw(run, out, *base, "--guidance", 2)
    assert "which this run never learned (train.label_dropout was 0)" in capsys.readouterr().err


def test_each_label_has_its_column(labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    each = draw(labelled, out, "--label", "each", "--n", 20, "--steps", 2)
    labels = [i % 10 for i in range(20)]
    assert (each == expected(labelled, 20, 2, label=labels)).all()
    # Without --n, as many rows as hold the recipe's number (4 here): one of ten.
    assert draw(labelled, out, "--label", "each", "--steps", 2).shape[0] == 10
    assert draw(labelled, out, "--label", "1,2,3", "--steps", 2).shape[0] == 6
    picture = tmp_path / "x.png"
    command = ["sample", labelled, "--label", "each", "--n", 20, "--steps", 2, "--out", picture]
    assert main([str(part) for part in command]) == 0
    with Image.open(picture) as sheet:
        assert sheet.size == (6 * 91, 6 * 19)  # ten columns and two rows of 8 pixels, six times


def test_prefix(trained: Trained, tmp_path: Path) -> None:
    """Every text begins with it; the rest is what infilling makes of it."""
    run, out = trained("text"), tmp_path / "x.txt"
    command = ["sample", run, "--n", 5, "--steps", 4, "--prefix", "of ", "--out", out]
    assert main([str(part) for part in command]) == 0
    lines = out.read_text().splitlines()
    assert all(line.startswith("of ") and len(line) == 8 for line in lines)
    assert len({line[3:] for line in lines}) > 1
    model, format = RunFolder(run).load_model(), RunFolder(run).format()
    x = format.encode(["of aaaaa"] * 5)
    keys = bfn.noise.Keyed([bfn.noise.seed("sample", 0, i) for i in range(5)])
    filled = infill(
        model, x, torch.arange(8) < 3, 4, solver="sde2", observed="known", generator=keys
    )
    assert format.render(filled) == lines


def test_prefix_with_labels_and_guidance() -> None:
    """Through the section of a recipe: the guided model is infilled."""
    model = toys.model("continuous").double()
    x, mask = torch.tensor([0.5, 0.0, 0.0]).double(), torch.tensor([True, False, False])
    settings = Sample(n=4, steps=3, label="3,1", guidance=2.0, solver="ode2", batch=3)
    found = draw_section(model, (3,), settings, known=(x, mask))
    keys = bfn.noise.Keyed([bfn.noise.seed("sample", 0, i) for i in range(4)])
    guided = ClassifierFree(model, 2.0)
    options: dict[str, Any] = {"solver": "ode2", "observed": "known", "label": [3, 1, 3, 1]}
    expected = infill(guided, x.expand(4, 3), mask, 3, generator=keys, **options)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[:, 0], torch.full((4,), 0.5).double(), atol=0.05, rtol=0)


def test_film_of_pictures(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = trained(), tmp_path / "x.npy"
    plain = draw(run, out, "--n", 3, "--steps", 6)
    assert (draw(run, out, "--n", 3, "--steps", 6, "--film") == plain).all()
    assert "x.gif: 7 frames" in capsys.readouterr().out
    with Image.open(tmp_path / "x.gif") as film:
        assert film.n_frames == 7
        assert film.info["loop"] == 0


def test_film_of_text(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "x.txt"
    command = ["sample", trained("text"), "--n", 3, "--steps", 4, "--film", "--out", out]
    assert main([str(part) for part in command]) == 0
    with Image.open(tmp_path / "x.gif") as film:
        assert film.n_frames == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--calls", "1"], "calls = 1; one step and the last look need a whole number, at least 2"),
        (["--calls", "5", "--steps", "5"], "give one of them"),
        (["--calls", "x"], "'x' is not a whole number"),
        (["--solver", "od2"], "unknown solver 'od2'; expected one of"),
        (["--solver", "od2"], "did you mean 'ode2'?"),
        (["--grid", "geometri"], "did you mean 'geometric'?"),
        (["--batch", "0"], "sample.batch = 0 on the command line is too small"),
        (["--label", "3"], "a label was given to a model without labels"),
        (["--label", "each"], "a label was given to a model without labels"),
        (["--guidance", "2"], "guidance = 2 multiplies what a label adds, but no label was given"),
        (["--guidance", "-1"], "sample.guidance = -1.0 on the command line is too small"),
        (["--compile", "--device", "cpu"], "--compile pays off only on a GPU"),
    ],
)
def test_refusals(
    refused: Callable[..., str], trained: Trained, arguments: list[str], sentence: str
) -> None:
    assert sentence in refused("sample", trained(), "--out", "x.npy", *arguments)


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        ("10", "label = 10 is out of range; the model has the labels 0 to 9"),
        ("-3", "label = -3 is out of range"),
        ("3,12", "label = 12 is out of range"),
        ("seven", "label = 'seven' is no label; expected a whole number, several as in 3,7"),
        ("7.5", "label = '7.5' is no label"),
    ],
)
def test_refused_labels(
    refused: Callable[..., str], labelled: Path, label: str, sentence: str
) -> None:
    assert sentence in refused("sample", labelled, "--out", "x.npy", f"--label={label}")


@pytest.mark.parametrize(
    ("prefix", "sentence"),
    [
        ("The ", "the prefix holds 'T' at position 0, which is not in the alphabet"),
        ("a long prefix", "the prefix has 13 characters, but this run's texts have 8"),
    ],
)
def test_refused_prefixes(
    refused: Callable[..., str], trained: Trained, prefix: str, sentence: str
) -> None:
    assert sentence in refused("sample", trained("text"), "--out", "x.txt", "--prefix", prefix)


def test_a_prefix_of_pictures(refused: Callable[..., str], trained: Trained) -> None:
    sentence = refused("sample", trained(), "--out", "x.npy", "--prefix", "the")
    assert "this run's data are not text" in sentence


def test_films_are_not_written_over(
    refused: Callable[..., str], trained: Trained, tmp_path: Path
) -> None:
    (tmp_path / "x.gif").write_text("mine")
    assert "'x.gif' exists" in refused("sample", trained(), "--film", "--out", "x.npy")
