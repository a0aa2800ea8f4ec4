"""Figures of a run and learning curves: their numbers, and how they are drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bfn import files
from bfn.cli.app import main
from bfn.plots import charts, figures, style
from bfn.plots.figures import flow_through_time, loss_curves, plot_samples, real_and_generated
from bfn.plots.sheets import probabilities, shades
from plots.drawings import check, share
from support import untrained

LN2 = math.log(2)


def test_losses_of_even_chances() -> None:
    """p = 1/2 for 64 pixels: the rate is 64 beta_1 t nats, and L^r is 64 ln 2 at any time.

    Among K letters the rate is (K - 1) beta_1 t nats of each, and L^r is log2 K bits.
    """
    steps: list[tuple[int, int]] = []
    run = untrained.images("binary", progress=lambda *now: steps.append(now))
    found = loss_curves(run, intervals=8, examples=150)
    assert steps[-1] == (len(steps), len(steps))
    middles = (np.arange(8) + 0.5) / 8
    np.testing.assert_allclose(found.rate.numpy(), 64 * 4 * middles, rtol=1e-5)
    edges = np.arange(9) / 8
    np.testing.assert_allclose(found.cumulative.numpy(), 128 * edges**2, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(found.reconstruction.numpy(), 64 * LN2, rtol=1e-6)
    np.testing.assert_allclose(found.total.numpy(), 128 * edges**2 + 64 * LN2, rtol=1e-5)
    assert found.unit == "nats per image"
    found = loss_curves(untrained.text(), intervals=8, examples=12)
    np.testing.assert_allclose(found.rate.numpy(), 26 * 0.75 * middles / LN2, rtol=1e-5)
    np.testing.assert_allclose(found.reconstruction.numpy(), math.log2(27), rtol=1e-6)
    assert found.unit == "bits per character"


def test_losses_do_not_depend_on_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run = untrained.images("continuous")
    before, forward, sizes = loss_curves(run, 2, 20), run.model.net.forward, []

    def tight(features: torch.Tensor, t: torch.Tensor, **cond: object) -> torch.Tensor:
        sizes.append(len(t))
        if len(t) > 9:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(features, t, **cond)

    monkeypatch.setattr(run.model.net, "forward", tight)
    after = loss_curves(run, 2, 20)
    assert sizes[:6] == [20, 10, 5, 5, 5, 5]
    torch.testing.assert_close(after.rate, before.rate)
    torch.testing.assert_close(after.rate_error, before.rate_error)
    torch.testing.assert_close(after.total, before.total)


def test_shades_and_probabilities() -> None:
    form, x = untrained.images().data.format.form, torch.zeros(1, 1, 2, 2)
    means = torch.tensor([-1.0, 0.0, 0.5, 1.5]).reshape(1, 1, 1, 2, 2)
    assert shades(form, means, x).flatten().tolist() == [0.0, 0.5, 0.75, 1.0]
    p = torch.tensor([0.1, 0.5, 0.3, 1.0]).reshape(1, 1, 1, 2, 2)
    assert torch.equal(shades(form, p, x.long()), p)
    torch.testing.assert_close(probabilities(p, x.long()), torch.stack([1 - p, p], -1))
    p = torch.zeros(1, 1, 1, 2, 2, 17)
    p[..., 0], p[..., 16] = 0.25, 0.75
    form = untrained.images("discrete").data.format.form
    assert shades(form, p, x.long()).flatten().tolist() == pytest.approx([0.75] * 4)


def test_binary_flow_through_time() -> None:
    """Inputs start even and approach the picture; outputs stay at what the network knows."""
    found = flow_through_time(untrained.images("binary"), 2, 20, until=1.0)
    assert found.inputs.shape == (20, 2, 1, 8, 8)
    assert found.t.tolist() == pytest.approx([i / 19 for i in range(20)])
    assert bool((found.inputs[0] == 0.5).all())
    assert bool((found.outputs == 0.5).all())
    true = torch.where(found.x == 1, found.inputs[-1], 1 - found.inputs[-1])
    # The chance that p_x > 1/2 is Phi(sqrt(beta)) = Phi(2); 128 pixels are tried.
    assert abs(float((true > 0.5).double().mean()) - 0.977) < 4 * math.sqrt(0.977 * 0.023 / 128)


def test_means_through_time() -> None:
    """mu starts at 0; with no noise predicted, x_hat is mu / gamma, clipped to [-1, 1]."""
    found = flow_through_time(untrained.images("continuous"), 3, 5, until=0.5)
    assert not found.inputs[0].any()
    gamma = (1 - 0.05 ** (2 * found.t[1:])).reshape(-1, 1, 1, 1, 1)
    expected = (found.inputs[1:].double() / gamma).clamp(-1, 1)
    np.testing.assert_allclose(found.outputs[1:].numpy(), expected.numpy(), atol=1e-5)


def test_real_examples_are_spread_over_the_split() -> None:
    run = untrained.text()
    real, generated = real_and_generated(run, 6)
    windows = run.data.examples("test")
    chosen = windows[torch.arange(6) * len(windows) // 6]
    assert torch.equal(real, run.data.batch("test", chosen)[0])
    assert generated.shape == real.shape
    assert run.data.render(real)[0] == "the cat sat "
    assert torch.equal(generated, real_and_generated(run, 6)[1])


RUNS = {
    "images": untrained.images,
    "classes": lambda: untrained.images("discrete"),
    "text": untrained.text,
    "bytes": lambda: untrained.text(None),
    "two letters": lambda: untrained.text("a$", "aa$a$"),
    "pairs": lambda: untrained.arrays(2),
    "arrays": lambda: untrained.arrays(9, split="train"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_samples_and_distributions_are_drawn(kind: str) -> None:
    run = RUNS[kind]()
    check(lambda: plot_samples(run))
    pixels = check(lambda: figures.plot_distributions(run))
    if kind == "text":  # some characters are right at t = 0.75, others not yet
        assert share(pixels, style.BLUE, within=40) > 1e-4
        assert share(pixels, style.RED, within=100) > 1e-4


@pytest.mark.parametrize("form", ["binary", "continuous"])
def test_losses_are_drawn(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "loss_curves", lambda run: loss_curves(run, 6, 6))
    run = untrained.images(form)
    pixels = check(lambda: figures.plot_losses(run))
    assert share(pixels, style.BLUE) > 1e-3
    assert share(pixels, style.RED) > 1e-4


@pytest.mark.parametrize("ending", files.FIGURES)
def test_the_same_bytes_whatever_the_users_settings(ending: str, tmp_path: Path) -> None:
    import matplotlib

    def draw(name: str) -> bytes:
        with style.styled():
            figure = style.new(1.0, 1.0)
            figure.subplots().plot([0, 1], [0, 1], label="$L^r$")
            style.save(figure, tmp_path / f"{name}{ending}", dpi=50)
        return (tmp_path / f"{name}{ending}").read_bytes()

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        other = draw("other")
        assert matplotlib.rcParams["font.size"] == 30  # they are left as they were
    assert draw("plain") == other
    start = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[ending]
    assert other.startswith(start)


# Learning curves.


def write_metrics(folder: Path, unit: str = "nats per image", validated: bool = True) -> Path:
    folder.mkdir()
    lines = []
    for step in range(10, 210, 10):
        line = {"step": step, "loss": 5.0 + 100.0 / step, "unit": unit}
        line["loss_by_time"] = [float(i) if i else None for i in range(10)]
        if validated and step % 50 == 0:
            line["validation_loss"] = 6.0
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 21')
    return folder


def test_smoothing() -> None:
    assert charts.smoothed([4.0] * 5, 3) == pytest.approx([4.0] * 5)
    assert charts.smoothed([1.0, 2.0], 1) == [1.0, 2.0]
    # One line more on either side from the fifth on, two from the ninth; fewer at the end.
    values = [float(i * i) for i in range(12)]
    around = [0] * 4 + [1] * 4 + [2] * 2 + [1, 0]
    expected = [v + (0.0, 2 / 3, 2.0)[half] for v, half in zip(values, around, strict=True)]
    assert charts.smoothed(values, 5) == pytest.approx(expected)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved, instead of their files."""
    found: list[Any] = []
    monkeypatch.setattr(style, "save", lambda figure, path: found.append(figure))
    return found


def test_the_picture_shows_what_was_logged(tmp_path: Path, saved: list[Any]) -> None:
    names = [f"run-{i}" for i in range(8)]
    found = [
        charts.read_curve(write_metrics(tmp_path / name, validated=name == "run-1"))
        for name in names
    ]
    charts.plot_curves(tmp_path / "c.png", found)
    left, right = saved[0].axes
    lines = [line for line in left.lines if line.get_label() in names]
    for line in lines:
        assert [*line.get_xdata()] == [*range(10, 210, 10)]
        assert [*line.get_ydata()] == [5.0 + 100.0 / step for step in range(10, 210, 10)]
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == 8, "no two runs look the same"
    (validated,) = [
        line for line in left.lines if line.get_label() == "run-1, validation without L^r"
    ]
    shown = [*zip(validated.get_xdata(), validated.get_ydata(), strict=True)]
    assert shown == [(50, 6.0), (100, 6.0), (150, 6.0), (200, 6.0)]
    assert validated.get_color() == lines[1].get_color()
    assert left.get_ylabel() == "loss, nats per image"
    assert len(right.patches) == 8
    values, edges, _ = right.patches[0].get_data()
    assert [*values[1:]] == [*range(1, 10)]
    assert math.isnan(values[0])
    assert [*edges] == pytest.approx([i / 10 for i in range(11)])


def test_any_run_name_is_in_the_legend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No part becomes a formula or is hidden; scripts that the font lacks give no warning."""
    names = {"r$_$x": r"r\$_\$x", "_under": " _under", "学習": "学習", "a\udcffb": "a?b"}
    runs = [str(write_metrics(tmp_path / name)) for name in names]
    saved: list[Any] = []
    original = style.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", lambda *given: (saved.append(given[0]), original(*given)))
        assert main(["plot", *runs, "-o", str(tmp_path / "c.png")]) == 0
    assert (tmp_path / "c.png").stat().st_size > 5000
    assert "wrote " in capsys.readouterr().out
    texts = [text.get_text() for text in saved[0].axes[0].get_legend().get_texts()]
    assert texts[::2] == [*names.values()]
    assert texts[1::2] == [f"{text}, validation without L^r" for text in names.values()]
