"""Solvers on exact networks: quality against steps, orders of convergence, convergence."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bfn
from support.example_scripts import load

from .sources import Source, Toy

N = 6_000


def chain(K: int, D: int, stay: float, skew: float) -> Source:
    """A Markov chain of D variables that stays where it is with probability `stay`."""
    step = torch.full((K, K), (1 - stay) / (K - 1), dtype=torch.float64).fill_diagonal_(stay)
    P = torch.softmax(skew * torch.arange(K, dtype=torch.float64), 0)
    for _ in range(1, D):
        P = P.unsqueeze(-1) * step
    return Source(P / P.sum())


def ridge(K: int, skew: float) -> Source:
    """Two numbers close to each other, in K bins, with several modes."""
    c = (2 * torch.arange(K, dtype=torch.float64) + 1 - K) / K
    close = torch.exp(-((c[:, None] - c) ** 2) / (2 * 0.15**2))
    P = close * (torch.exp(skew * c) * (1 + 0.8 * torch.sin(6 * c)))[:, None]
    return Source(P / P.sum())


@functools.cache
def toy(kind: str, skew: float) -> Toy:
    if kind == "binary":
        return chain(2, 6, 0.85, skew).binary(6.0)
    if kind == "discrete":
        return chain(4, 4, 0.8, 0.5 * skew).discrete(4.0)
    # The paper's rule t_min stays on: the solvers' first call must get round it.
    source = ridge(12, 2 * skew)
    if kind == "discretised":
        return source.discretised(0.02, t_min=1e-6)
    return source.continuous(0.02, t_min=1e-6)


KINDS = ["binary", "discrete", "discretised", "continuous"]
SKEWS = [0.0, 1.2]


def distance(toy: Toy, solver: str, steps: int, n: int = N, seed: int | None = None) -> float:
    """Total variation from the source; about the sampling floor at best."""
    generator = torch.Generator().manual_seed(steps if seed is None else seed)
    x = bfn.generate(toy.model, (n, toy.source.D), steps, solver=solver, generator=generator)
    return toy.source.total_variation(toy.classes(x))


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_ode2_needs_few_steps(kind: str, skew: float) -> None:
    source = toy(kind, skew)
    floor, scatter = source.source.sampling_floor(N)
    share = 1 / 3 if kind in ("binary", "discrete") else 1 / 2
    for steps in (5, 10):
        ancestral = distance(source, "ancestral", steps) - floor
        assert ancestral > 5 * scatter, "the comparison has no teeth"
        assert distance(source, "ode2", steps) - floor < share * ancestral + 2 * scatter


@pytest.mark.parametrize("solver", ["ancestral", "sde", "sde2", "ode", "ode2"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_solver_converges(kind: str, solver: str) -> None:
    """Skewed sources; steps enough to bring each down to the sampling floor of 3,000 draws."""
    source = toy(kind, 1.2)
    floor, scatter = source.source.sampling_floor(3_000)
    steps = 40 if solver in ("sde2", "ode2") else 160
    assert distance(source, solver, steps, n=3_000) < 1.15 * floor + 3 * scatter


def test_the_first_point_leaves_no_error_behind() -> None:
    """Many draws show what a first point fixed at 0.4 would leave for ever: another 0.01."""
    source = toy("continuous", 0.0)
    floor, scatter = source.source.sampling_floor(50_000)
    assert scatter < 0.002
    assert distance(source, "ode2", 60, n=50_000) < floor + 3 * scatter


def end(toy: Toy, solver: str, steps: int, grid: str) -> Tensor:
    """U at t = 1 from the same U(0): the noise of the first step is the first that is drawn."""
    states: list[Tensor] = []
    bfn.generate(
        toy.model,
        (64, toy.source.D),
        steps,
        solver=solver,
        grid=grid,
        first=1e-6,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
        callback=lambda i, t, theta, output: states.append(theta.V / theta.beta.sqrt()),
    )
    return states[-1]


@pytest.mark.parametrize(("solver", "order"), [("ode", 1.0), ("ode2", 2.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_order_of_convergence(kind: str, solver: str, order: float) -> None:
    """The mean error of U(1) against 1,280 steps, from 40 to 160 steps."""
    source, few, many = toy(kind, 0.0), 40, 160
    grid = source.model.flow.grid
    exact = end(source, "ode2", 1_280, grid)
    errors = [float((end(source, solver, n, grid) - exact).abs().mean()) for n in (few, many)]
    # On the geometric grid, whose first point moves, a step shrinks a little less than fourfold.
    c = [bfn.sampling.solvers.grid(grid, source.model.flow.schedule, n)[1] for n in (few, many)]
    shrink = float(c[0][-1] - c[0][-2]) / float(c[1][-1] - c[1][-2])
    assert math.log(errors[0] / errors[1], shrink) == pytest.approx(order, abs=0.25)


def test_first_call_asks_the_network() -> None:
    """With first = 0 the paper's rule puts out 0; with first > 0 the source's own mean."""
    source = toy("discretised", 1.2)
    c = (2 * torch.arange(12, dtype=torch.float64) + 1 - 12) / 12
    mean = source.source.marginals @ c
    seen: dict[float, Tensor] = {}
    for first in (0.0, 1e-3):

        def look(i: int, t: Tensor, theta: bfn.Theta, output, first: float = first) -> None:
            if i == 0:
                seen[first] = output.m[0]

        bfn.generate(source.model, (1, 2), 1, solver="ode2", first=first, callback=look)
    torch.testing.assert_close(seen[0.0], torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(seen[1e-3].double(), mean, atol=1e-2, rtol=0)


@pytest.mark.parametrize("solver", ["ancestral", "sde", "sde2", "ode", "ode2"])
@pytest.mark.parametrize("calls", [2, 3, 20])
def test_calls_are_counted_to_the_last(solver: str, calls: int) -> None:
    source = toy("binary", 0.0)
    count = 0

    def counted(module: torch.nn.Module, inputs: object) -> None:
        nonlocal count
        count += 1

    handle = source.model.net.register_forward_pre_hook(counted)
    try:
        bfn.generate(source.model, (2, 6), calls=calls, solver=solver)
    finally:
        handle.remove()
    assert count == calls


@pytest.mark.parametrize("grid", ["time", "power", "geometric"])
@pytest.mark.parametrize("n", [1, 2, 7, 400])
def test_grids(grid: str, n: int) -> None:
    for schedule in (bfn.Exponential(0.02), bfn.Quadratic(4.0)):
        r, c = bfn.sampling.solvers.grid(grid, schedule, n)
        last = math.sqrt(float(schedule.beta(torch.ones((), dtype=torch.float64))))
        assert r.shape == c.shape == (n + 1,)
        assert float(r[0]) == 0
        assert float(r[-1]) == pytest.approx(last, rel=1e-12)
        assert (r.diff() > 0).all()
        assert (c.diff() > 0).all()
    if grid == "geometric" and n == 400:
        assert float(r[1]) == pytest.approx(0.01)


def test_the_table_of_the_documentation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means over seeds, for solvers of one's own, too; and sentences for mistakes."""
    monkeypatch.setattr(bfn.sampling.solvers, "SOLVERS", dict(bfn.sampling.solvers.SOLVERS))
    monkeypatch.setattr("sys.path", list(sys.path))
    script = load("solver_table", Path(__file__).parents[2] / "docs")
    rules = tmp_path / "rules.py"
    rules.write_text(
        "import bfn\n"
        "@bfn.sampling.solvers.register('mine', grid='time')\n"
        "def mine(*step): return bfn.sampling.solvers.sde(*step)\n"
    )
    options = ["--data", "binary", "--calls", "3,5", "--repeats", "2", "--rules", str(rules)]
    script.main([*options, "--solver", "sde,mine"])
    lines = capsys.readouterr().out.splitlines()
    values = [
        [distance(toy("binary", 1.2), "sde", calls - 1, seed=i) for i in (0, 1)] for calls in (3, 5)
    ]
    means = " | ".join(f"{sum(pair) / 2:.3f}" for pair in values)
    error = max(abs(a - b) / 2 for a, b in values)
    assert lines[0] == "| data | solver | 3 calls | 5 calls | s.e. |"
    assert lines[2] == f"| binary | `sde` | {means} | {error:.3f} |"
    assert lines[3] == f"| binary | `mine` | {means} | {error:.3f} |"
    floor, _ = toy("binary", 1.2).source.sampling_floor(N)
    assert lines[4].startswith(f"| binary | true draws | {floor:.3f} | {floor:.3f} |")
    for wrong, sentence in (
        (["--data", "bnary"], "did you mean 'binary'?"),
        (["--calls", "1"], "--calls 1 is too few"),
        (["--solver", "od2"], "did you mean 'ode2'?"),
        (["--repeats", "0"], "repeats = 0"),
    ):
        with pytest.raises(SystemExit):
            script.main(wrong)
        assert sentence in capsys.readouterr().err
