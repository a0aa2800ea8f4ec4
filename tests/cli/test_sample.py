"""`bfn sample` and `bfn infill`: files, streams and options."""

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
from bfn.runs.folder import RunFolder
from bfn.sampling import batches
from support import tiny_runs, toys
from support.commands import Command


@pytest.fixture
def draw(output: Command) -> Callable[..., np.ndarray]:
    """The levels that a command draws."""

    def run(folder: Path, *arguments: object) -> np.ndarray:
        output("sample", folder, "--out", "x.npy", "--force", *arguments)
        return np.load("x.npy")

    return run


def expected(run: Path, n: int, steps: int, seed: int = 0, **options: Any) -> np.ndarray:
    """What the library draws with the same seeds and the recipe's own solver, as levels."""
    options = {"solver": "sde2", **options}
    model, format = RunFolder(run).load_model(), RunFolder(run).format()
    keys = bfn.noise.Keyed([bfn.noise.seed("sample", seed, i) for i in range(n)])
    x = bfn.generate(model, (n, *format.shape), steps, generator=keys, **options)
    return format.decode(x).numpy()


def test_pictures(runs: Path, output: Command) -> None:
    base = ["sample", runs / "digits", "--n", 5, "--steps", 4, "--seed", 3]
    printed = output(*base, "--out", "x.png")
    assert printed == "x.png: 5 samples in 4 steps (5 network calls)\n"
    output(*base, "--out", "x.npy")
    output(*base, "--separate", "--out", "many")
    levels = np.load("x.npy")
    assert (levels == expected(runs / "digits", 5, 4, seed=3)).all()
    files = sorted(Path("many").iterdir())
    assert [file.name for file in files] == [f"{i:04d}.png" for i in range(5)]
    for file, image in zip(files, levels, strict=True):
        with Image.open(file) as picture:
            assert (np.asarray(picture) == np.round(image[0] * (255 / 16))).all()
    with Image.open("x.png") as sheet:
        assert sheet.size == (28 * 13, 19 * 13)
    output(*base, "--final", "mode", "--out", "x.npy", "--force")
    assert not (np.load("x.npy") == levels).all()


def test_standard_output(
    runs: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes that a file would hold, and nothing else."""
    monkeypatch.chdir(tmp_path)
    for name, ending in (("text", ".txt"), ("digits", ".png")):
        base = ["sample", str(runs / name), "--n", "3", "--steps", "2"]
        assert bfn.cli.app.main([*base, "--out", f"x{ending}"]) == 0
        capfdbinary.readouterr()
        assert bfn.cli.app.main([*base, "--out", "-"]) == 0
        found = capfdbinary.readouterr()
        assert found.out == Path(f"x{ending}").read_bytes()
        assert b"3 samples in 2 steps" in found.err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for name, code in (("text", 0), ("digits", 2)):
        assert bfn.cli.app.main(["sample", str(runs / name), "--steps", "2", "--out", "-"]) == code
    refused = capfdbinary.readouterr().err
    assert b"bytes of a .png file to the terminal; add > FILE.png" in refused


def test_calls_solvers_and_batches(runs: Path, draw: Callable[..., np.ndarray]) -> None:
    run, base = runs / "digits", ("--n", 3, "--calls", 6, "--solver", "ode2")
    power = draw(run, *base, "--grid", "power")
    assert (power == expected(run, 3, 5, solver="ode2", grid="power")).all()
    auto = draw(run, *base, "--grid", "auto")
    assert (auto == expected(run, 3, 5, solver="ode2")).all()
    assert (auto != power).any()
    assert (draw(run, *base, "--batch", 2) == auto).all()
    assert (draw(run, *base[2:], "--n", 1) == auto[:1]).all()


def test_labels_and_guidance(runs: Path, draw: Callable[..., np.ndarray]) -> None:
    run, base = runs / "labelled", ("--n", 4, "--steps", 3, "--final", "mode")
    for label, given in (("7", 7), ("3,7", [3, 7, 3, 7]), ("-1", None)):
        found = draw(run, *base, f"--label={label}")
        options = {} if given is None else {"label": given}
        assert (found == expected(run, 4, 3, final="mode", **options)).all()
    for w in (2.0, 0.0, 0.5):
        guided = draw(run, *base, "--label", 7, "--guidance", w)
        assert (guided == expected(run, 4, 3, final="mode", label=7, guidance=w)).all()


def test_each_label_has_its_column(
    runs: Path, output: Command, draw: Callable[..., np.ndarray]
) -> None:
    run, base = runs / "labelled", ("--label", "each", "--n", 20, "--steps", 2)
    assert (draw(run, *base) == expected(run, 20, 2, label=[i % 10 for i in range(20)])).all()
    # Without --n, as many rows as the recipe's number needs (4 here).
    assert len(draw(run, "--label", "each", "--steps", 2)) == 10
    assert len(draw(run, "--label", "1,2,3", "--steps", 2)) == 6
    output("sample", run, *base, "--out", "x.png")
    with Image.open("x.png") as sheet:
        assert sheet.size == (6 * 91, 6 * 19)  # ten columns and two rows of 8 pixels, six times


def test_guidance_without_learned_labels(
    runs: Path, tmp_path: Path, output: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs / "labelled", tmp_path / "always")
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace("label_dropout = 0.5", "label_dropout = 0.0"))
    options = ["--n", "2", "--steps", "2", "--out", "x.npy", "--force"]
    for labels, what in (
        (["--label", "7", "--guidance", "2"], "guidance relies on"),
        ([], "samples without --label rely on"),
        (["--label", "7"], None),
    ):
        for folder, never in ((runs / "labelled", False), (run, True)):
            assert bfn.cli.app.main(["sample", str(folder), *options, *labels]) == 0
            err = capsys.readouterr().err
            assert (
                "for which this run was not trained (train.label_dropout was 0)" in err
            ) == bool(never and what)
            assert not never or (what or "") in err


def test_prefix(runs: Path, output: Command) -> None:
    """Every text begins with it; infilling generates the rest."""
    run = runs / "text"
    output("sample", run, "--n", 5, "--steps", 4, "--prefix", "of ", "--out", "x.txt")
    lines = Path("x.txt").read_text().splitlines()
    assert all(line.startswith("of ") and len(line) == 8 for line in lines)
    assert len({line[3:] for line in lines}) > 1
    model, format = RunFolder(run).load_model(), RunFolder(run).format()
    keys = bfn.noise.Keyed([bfn.noise.seed("sample", 0, i) for i in range(5)])
    x, mask = format.encode(["of aaaaa"] * 5), torch.arange(8) < 3
    filled = bfn.infill(model, x, mask, 4, solver="sde2", observed="known", generator=keys)
    assert format.render(filled) == lines


def test_a_prefix_with_labels_and_guidance() -> None:
    """Through a recipe's section: the guided model is infilled."""
    model = toys.model("continuous").double()
    x, mask = torch.tensor([0.5, 0.0, 0.0]).double(), torch.tensor([True, False, False])
    settings = bfn.recipe.Sample(n=4, steps=3, label="3,1", guidance=2.0, solver="ode2", batch=3)
    found = bfn.sampling.batches.sample_as(model, (3,), settings, known=(x, mask))
    keys = bfn.noise.Keyed([bfn.noise.seed("sample", 0, i) for i in range(4)])
    guided = bfn.guidance.ClassifierFree(model, 2.0)
    options: dict[str, Any] = {"solver": "ode2", "observed": "known", "label": [3, 1, 3, 1]}
    filled = bfn.infill(guided, x.expand(4, 3), mask, 3, generator=keys, **options)
    torch.testing.assert_close(found, filled, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[:, 0], torch.full((4,), 0.5).double(), atol=0.05, rtol=0)


def test_films(runs: Path, output: Command, draw: Callable[..., np.ndarray]) -> None:
    plain = draw(runs / "digits", "--n", 3, "--steps", 6)
    assert (draw(runs / "digits", "--n", 3, "--steps", 6, "--film") == plain).all()
    with Image.open("x.gif") as film:
        assert film.n_frames == 7
        assert film.info["loop"] == 0
    text = ["sample", runs / "text", "--n", 3, "--steps", 4, "--out"]
    printed = output(*text, "y.txt", "--film")
    assert "y.gif: 5 frames" in printed
    with Image.open("y.gif") as film:
        assert film.n_frames == 5
    output(*text, "plain.txt")
    assert Path("y.txt").read_text() == Path("plain.txt").read_text()


# Infilling.


@pytest.fixture
def picture(tmp_path: Path) -> np.ndarray:
    """eight.png, the first digit of the test set, and lower.png, a mask of its lower half."""
    digits = bfn.data.load("digits")
    x, _ = digits.batch("test", torch.tensor([0]))
    image = digits.render(x)[0, ..., 0]
    Image.fromarray(image).save(tmp_path / "eight.png")
    lower = np.zeros((8, 8), np.uint8)
    lower[4:] = 255
    Image.fromarray(lower).save(tmp_path / "lower.png")
    return image


@pytest.fixture
def infill_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `bfn.infill` was called with, which then returns what it was given."""
    calls: list[dict[str, Any]] = []

    def spy(model: bfn.BFN, x: torch.Tensor, mask: torch.Tensor, steps: int, **options: Any):
        del options["generator"], options["callback"]
        if "label" in options:
            options["label"] = options["label"].tolist()
        calls.append({"steps": steps, **options})
        return x

    monkeypatch.setattr(batches, "infill", spy)
    return calls


def test_text(runs: Path, output: Command) -> None:
    for options in ([], ["--observed", "schedule"], ["--particles", "3"]):
        lines = output("infill", runs / "text", "a__ of", "--n", "3", *options).splitlines()
        assert len(lines) == 3
        assert {(line[0], line[3:]) for line in lines} == {("a", " of")}
        assert not any("_" in line for line in lines)
    command = ("infill", runs / "text", "?o?", "--blank", "?", "--n", "2", "--out", "x.txt")
    assert "2 completions in 3 steps (4 network calls)" in output(*command, "--whole")
    lines = Path("x.txt").read_text().splitlines()
    assert [(len(line), line[1]) for line in lines] == [(8, "o"), (8, "o")]
    output(*command, "--force")
    assert [len(line) for line in Path("x.txt").read_text().splitlines()] == [3, 3]


def test_picture(runs: Path, picture: np.ndarray, output: Command) -> None:
    command = ("infill", runs / "digits", "eight.png", "--mask", "lower.png")
    output(*command, "--n", 3, "--out", "filled.npy")
    levels = np.load("filled.npy")
    assert levels.shape == (3, 1, 8, 8)
    assert (levels[:, 0, :4] == np.round(picture[:4] / 255 * 16)).all()
    output(*command, "--n", 3, "--particles", "2")
    with Image.open("digits-infilled.png") as sheet:
        assert sheet.size == (19 * 19, 19 * 19)  # two columns and rows of 8 pixels, nineteen times
    output(*command, "--n", 1, "--out", "one.png")
    with Image.open("one.png") as one:
        assert (np.asarray(one)[:4] == picture[:4]).all()


@pytest.mark.usefixtures("picture")
def test_options_reach_the_library(output: Command, infill_calls: list[dict[str, Any]]) -> None:
    command = ("infill", "digits-labelled", "eight.png", "--mask", "lower.png", "--n", "2")
    options = (
        "--final sample --solver sde --grid power --observed known --resample 2 --jump 3 "
        "--since 0.25 --label 3,7 --guidance 2 --calls 10"
    )
    output(*command, "--out", "x.npy", *options.split())
    output(*command, "--out", "y.npy", "--particles", "4")
    assert infill_calls[0] == {
        "steps": 3,
        "final": "sample",
        "solver": "sde",
        "grid": "power",
        "observed": "known",
        "resample": 2,
        "jump": 3,
        "particles": 1,
        "since": 0.25,
        "label": [3, 7],
        "guidance": 2.0,
    }
    # The recipe's own labels, "each", are for its sheet: an eight must not become a zero.
    assert infill_calls[1] == {
        "steps": 50,
        "final": "mode",
        "solver": "ancestral",
        "grid": None,
        "observed": "schedule",
        "resample": 0,
        "jump": 1,
        "particles": 4,
        "since": 0.0,
    }


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (0.0, ["known", "schedule", "known", "schedule", "known", "known"]),
        (0.5, ["learned", "schedule", "known", "schedule", "known", "learned"]),
    ],
)
def test_how_a_network_sees_what_a_text_gives(
    known: float,
    expected: list[str],
    tmp_path: Path,
    output: Command,
    infill_calls: list[dict[str, Any]],
) -> None:
    """As it has learned, else from the start; particles need messages, resampling no learning."""
    tiny_runs.run(tiny_runs.read(tmp_path, "text", train__known=known, train__steps=1), Path("run"))
    for options in ("", "--observed schedule", "--observed known", "--particles 2", "--resample 1"):
        output("infill", "run", "a__ of", *options.split())
    output("sample", "run", "--prefix", "ab")
    assert [call["observed"] for call in infill_calls] == expected
