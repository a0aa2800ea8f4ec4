"""`bfn sample` draws what the library draws with the same options and seeds."""

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
from support import toys

Output = Callable[..., str]


@pytest.fixture
def draw(output: Output) -> Callable[..., np.ndarray]:
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


def test_pictures(runs: Path, output: Output) -> None:
    base = ["sample", runs / "digits", "--n", 5, "--steps", 4, "--seed", 3]
    said = output(*base, "--out", "x.png")
    assert said == "x.png: 5 samples in 4 steps (5 network calls)\n"
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
        assert bfn.cli.main([*base, "--out", f"x{ending}"]) == 0
        capfdbinary.readouterr()
        assert bfn.cli.main([*base, "--out", "-"]) == 0
        found = capfdbinary.readouterr()
        assert found.out == Path(f"x{ending}").read_bytes()
        assert b"3 samples in 2 steps" in found.err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for name, code in (("text", 0), ("digits", 2)):
        assert bfn.cli.main(["sample", str(runs / name), "--steps", "2", "--out", "-"]) == code
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
    runs: Path, output: Output, draw: Callable[..., np.ndarray]
) -> None:
    run, base = runs / "labelled", ("--label", "each", "--n", 20, "--steps", 2)
    assert (draw(run, *base) == expected(run, 20, 2, label=[i % 10 for i in range(20)])).all()
    # Without --n, as many rows as the recipe's number needs (4 here).
    assert len(draw(run, "--label", "each", "--steps", 2)) == 10
    assert len(draw(run, "--label", "1,2,3", "--steps", 2)) == 6
    output("sample", run, *base, "--out", "x.png")
    with Image.open("x.png") as sheet:
        assert sheet.size == (6 * 91, 6 * 19)  # ten columns and two rows of 8 pixels, six times


def test_guidance_by_what_was_never_learned(
    runs: Path, tmp_path: Path, output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs / "labelled", tmp_path / "always")
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace("label_dropout = 0.5", "label_dropout = 0.0"))
    options = ["--n", "2", "--steps", "2", "--out", "x.npy", "--force"]
    for labels, what in (
        (["--label", "7", "--guidance", "2"], "guidance compares with"),
        ([], "samples without --label follow"),
        (["--label", "7"], None),
    ):
        for folder, never in ((runs / "labelled", False), (run, True)):
            assert bfn.cli.main(["sample", str(folder), *options, *labels]) == 0
            err = capsys.readouterr().err
            assert ("which this run never learned (train.label_dropout was 0)" in err) == bool(
                never and what
            )
            assert not never or (what or "") in err


def test_prefix(runs: Path, output: Output) -> None:
    """Every text begins with it; the rest is what infilling makes of it."""
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
    found = bfn.sampling.batches.draw(model, (3,), settings, known=(x, mask))
    keys = bfn.noise.Keyed([bfn.noise.seed("sample", 0, i) for i in range(4)])
    guided = bfn.guidance.ClassifierFree(model, 2.0)
    options: dict[str, Any] = {"solver": "ode2", "observed": "known", "label": [3, 1, 3, 1]}
    filled = bfn.infill(guided, x.expand(4, 3), mask, 3, generator=keys, **options)
    torch.testing.assert_close(found, filled, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[:, 0], torch.full((4,), 0.5).double(), atol=0.05, rtol=0)


def test_films(runs: Path, output: Output, draw: Callable[..., np.ndarray]) -> None:
    plain = draw(runs / "digits", "--n", 3, "--steps", 6)
    assert (draw(runs / "digits", "--n", 3, "--steps", 6, "--film") == plain).all()
    with Image.open("x.gif") as film:
        assert film.n_frames == 7
        assert film.info["loop"] == 0
    said = output("sample", runs / "text", "--n", 3, "--steps", 4, "--film", "--out", "y.txt")
    assert "y.gif: 5 frames" in said
    with Image.open("y.gif") as film:
        assert film.n_frames == 5
    lines = Path("y.txt").read_text().splitlines()
    assert all(len(line) == 8 and set(line) <= set(" abcdefghijklmnopqrstuvwxyz") for line in lines)
