"""Solvers on exact networks: quality against steps, orders of convergence, laws of samples."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import bfn
from bfn.flow import BinaryFlow
from bfn.schedule import Quadratic, Schedule, Windowed
from support.known import KINDS, SKEW, N, at_floor, distance, toy
from support.scripts import load
from support.sources import Source, Toy, chain
from support.toys import Linear

from .exact import reference, rows
from .exact.monte_carlo import seed
from .exact.rows import Row

SOLVERS = ["ancestral", "sde", "sde2", "ode", "ode2"]


@pytest.mark.parametrize("skew", [0.0, SKEW])
@pytest.mark.parametrize("kind", KINDS)
def test_ode2_needs_few_steps(kind: str, skew: float) -> None:
    known = toy(kind, skew)
    floor, scatter = known.source.sampling_floor(N)
    share = 1 / 3 if kind in ("binary", "discrete") else 1 / 2
    for steps in (5, 10):
        ancestral = distance(known, "ancestral", steps) - floor
        assert ancestral > 5 * scatter, "the comparison has no teeth"
        assert distance(known, "ode2", steps) - floor < share * ancestral + 2 * scatter


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_solver_converges(kind: str, solver: str) -> None:
    """Skewed sources; steps enough to bring each down to the sampling floor of the draws."""
    known, n = toy(kind, SKEW), 2_000
    floor, scatter = known.source.sampling_floor(n)
    steps = 30 if solver in ("sde2", "ode2") else 120
    assert distance(known, solver, steps, n) < 1.15 * floor + 3 * scatter


def test_the_first_point_leaves_no_error_behind() -> None:
    """Many draws would show the error that a first point fixed at 0.4 leaves: another 0.01."""
    known = toy("continuous", 0.0)
    floor, scatter = known.source.sampling_floor(30_000)
    assert scatter < 0.002
    assert distance(known, "ode2", 40, n=30_000) < floor + 3 * scatter


def end(known: Toy, solver: str, steps: int, grid: str) -> Tensor:
    """U at t = 1 from the same U(0): the noise of the first step is the first that is drawn."""
    states: list[Tensor] = []
    bfn.generate(
        *(known.model, (64, known.source.D), steps),
        solver=solver,
        grid=grid,
        first=1e-6,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
        callback=lambda i, t, theta, output: states.append(theta.V / theta.beta.sqrt()),
    )
    return states[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_convergence(kind: str) -> None:
    """The mean error of U(1) against many steps, from 40 to 160 steps."""
    known, few, many = toy(kind, 0.0), 40, 160
    grid = known.model.flow.grid
    exact = end(known, "ode2", 1_280, grid)
    # On the geometric grid, whose first point moves, a step shrinks a little less than fourfold.
    c = [bfn.solvers.grid(grid, known.model.flow, n)[2] for n in (few, many)]
    shrink = float(c[0][-1] - c[0][-2]) / float(c[1][-1] - c[1][-2])
    for solver, order in (("ode", 1.0), ("ode2", 2.0)):
        errors = [float((end(known, solver, n, grid) - exact).abs().mean()) for n in (few, many)]
        assert math.log(errors[0] / errors[1], shrink) == pytest.approx(order, abs=0.25)


@pytest.mark.parametrize("kind", ["binary", "discrete"])
def test_orders_of_solvers_with_noise(kind: str) -> None:
    """Errors of `ancestral` and `sde` fall like 1 / n; those of `sde2` faster, far below."""
    known = {
        "binary": lambda: chain([0.7, 0.3], 0.9, 2).binary(6.0),
        "discrete": lambda: chain([0.5, 0.3, 0.2], 0.85, 2).discrete(4.0),
    }[kind]()
    few, many, error = 4, 16, {}
    for solver in ("ancestral", "sde", "sde2"):
        error[solver] = [distance(known, solver, steps, 50_000) for steps in (few, many)]
    order = {name: math.log(a / b, many / few) for name, (a, b) in error.items()}
    assert order["ancestral"] == pytest.approx(1.0, abs=0.2)
    assert order["sde"] == pytest.approx(1.0, abs=0.2)
    assert order["sde2"] > 1.05  # what is left is nearly sampling noise
    assert error["sde2"][0] < 0.55 * error["sde"][0]
    assert error["sde2"][1] < 0.4 * error["sde"][1]


@pytest.mark.parametrize("grid", ["time", "power", "geometric"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_any_schedule_on_any_grid(solver: str, grid: str) -> None:
    """A schedule of a user's own, beta(t) = 6 t, which starts at full rate."""
    known, n = chain([0.7, 0.3], 0.85, 4).binary(6.0), 3_000
    model = bfn.BFN(known.model.net, BinaryFlow(Linear(6.0)), known.model.head)
    known = dataclasses.replace(known, model=model)
    few, many = (distance(known, solver, steps, n, grid=grid) for steps in (1, 60))
    assert few > at_floor(known.source, n), "the comparison has no teeth"
    assert many < at_floor(known.source, n)


@pytest.mark.parametrize("grid", ["time", "power", "geometric"])
@pytest.mark.parametrize("n", [1, 2, 400])
def test_grids(grid: str, n: int) -> None:
    for schedule in (bfn.Exponential(0.02), bfn.Quadratic(4.0)):
        t, r, c = bfn.solvers.grid(grid, bfn.flow.GaussianFlow(schedule), n)
        torch.testing.assert_close(schedule.beta(t).sqrt(), r)
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
    """Means over seeds, also for a user's own solvers; and messages about mistakes."""
    monkeypatch.setattr(bfn.solvers, "SOLVERS", dict(bfn.solvers.SOLVERS))
    monkeypatch.setattr("sys.path", list(sys.path))
    script = load("docs/solver_table")
    rules = tmp_path / "rules.py"
    rules.write_text(
        "import bfn\n"
        "@bfn.solvers.register('mine', grid='time')\n"
        "def mine(*step): return bfn.solvers.sde(*step)\n"
    )
    options = ["--data", "binary", "--calls", "3,5", "--repeats", "2", "--rules", str(rules)]
    script.main([*options, "--solver", "sde,mine"])
    lines = capsys.readouterr().out.splitlines()
    known = toy("binary", SKEW)
    values = [[distance(known, "sde", calls - 1, seed=i) for i in (0, 1)] for calls in (3, 5)]
    means = " | ".join(f"{sum(pair) / 2:.3f}" for pair in values)
    error = max(abs(a - b) / 2 for a, b in values)
    assert lines[0] == "| data | solver | 3 calls | 5 calls | s.e. |"
    assert lines[2] == f"| binary | `sde` | {means} | {error:.3f} |"
    assert lines[3] == f"| binary | `mine` | {means} | {error:.3f} |"
    floor, _ = known.source.sampling_floor(N)
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


# Samples of exact models follow the source: at the sampling floor where theory says so.


SKEWED = [0.62, 0.20, 0.10, 0.05, 0.03]
ONE_VARIABLE = {
    "bit": lambda: Source([0.3, 0.7]).binary(4.0),
    "skewed bit": lambda: Source([0.96, 0.04]).binary(0.5),
    "five classes": lambda: Source([0.1, 0.3, 0.2, 0.25, 0.15]).discrete(2.0),
    "skewed classes": lambda: Source(SKEWED).discrete(0.4),
    "four bins": lambda: Source([0.1, 0.2, 0.3, 0.4]).discretised(0.2),
    "skewed bins": lambda: Source(SKEWED[:4] + [0.0] * 11 + [0.03]).discretised(0.02),
}


def draw(toy: Toy, N: int, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """N generated samples as values of the source."""
    generator = torch.Generator().manual_seed(seed(N, n, toy.source.entropy))
    x = bfn.generate(toy.model, (N, toy.source.D), n, generator=generator, dtype=dtype)
    return toy.classes(x)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ONE_VARIABLE)
def test_one_variable_is_exact_for_every_n(name: str, n: int) -> None:
    toy, N = ONE_VARIABLE[name](), 80_000
    k = draw(toy, N, n)
    assert toy.source.total_variation(k) < at_floor(toy.source, N)
    possible = toy.source.joint.numpy() > 0
    share = toy.source.frequencies(k).numpy()
    assert share[~possible].sum() == 0.0
    test = scipy.stats.chisquare(N * share[possible], N * toy.source.joint.numpy()[possible])
    assert test.pvalue > 1e-3


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("row", [rows.TWO_BITS, rows.EQUAL_BITS, rows.TWO_BINS], ids=str)
def test_law_of_n_steps(row: Row, n: int) -> None:
    """Samples of n steps have a known law, further from the source for smaller n."""
    toy, N = row.make(), 80_000
    law = reference.generated_law(toy.source.joint.numpy(), row.points, row.accuracies(n))
    share = toy.source.frequencies(draw(toy, N, n)).numpy()
    assert scipy.stats.chisquare(N * share.ravel(), N * law.ravel()).pvalue > 1e-3
    assert law.sum() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_law_of_the_mode(n: int) -> None:
    """One bit: its mode is 1 where V > ln(p_0 / p_1), and V ~ N(+-2 beta, 4 beta)."""
    p, beta_1, N = 0.35, 0.5, 80_000
    toy = Source([1.0 - p, p]).binary(beta_1)
    generator = torch.Generator().manual_seed(n)
    x = bfn.generate(toy.model, (N, 1), n, final="mode", generator=generator)
    threshold = math.log((1.0 - p) / p)

    def above(mean: float) -> float:
        return 0.5 * math.erfc((threshold - mean) / math.sqrt(8.0 * beta_1))

    expected = (1.0 - p) * above(-2.0 * beta_1) + p * above(2.0 * beta_1)
    error = math.sqrt(expected * (1.0 - expected) / N)
    assert abs(expected - p) > 20.0 * error  # a drawn sample has another law
    assert float(x.double().mean()) == pytest.approx(expected, abs=4.0 * error)


# Which variable comes first: schedules of mixed variables change a wrong network's bound.


AGREE, BETA_1, PAIRS = 0.9, 20.0, 2**16
FIRST, LAST = (0.0, 0.5), (0.5, 1.0)
ONE = math.log(2.0)
BOTH = ONE - AGREE * math.log(AGREE) - (1 - AGREE) * math.log(1 - AGREE)


class TwoBits(nn.Module):
    """The exact posterior of b, and that of a with or without the evidence about b."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.backwards = backwards

    def forward(self, features: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        a, b = (2.0 * torch.atanh(features[name].clamp(-1 + 1e-15, 1 - 1e-15)) for name in "ab")
        return {"a": a + _evidence_of(b) if self.backwards else a, "b": b + _evidence_of(a)}


def _evidence_of(V: Tensor) -> Tensor:
    """The evidence about one bit in the logit V of the other."""
    same, other = math.log(AGREE), math.log(1 - AGREE)
    return torch.logaddexp(V + same, V.new_tensor(other)) - torch.logaddexp(
        V + other, V.new_tensor(same)
    )


def L_inf(backwards: bool, a: Schedule, b: Schedule) -> tuple[float, float]:
    """The mean and its standard error."""
    variables = {
        "a": bfn.Variable("discrete", K=2, schedule=a),
        "b": bfn.Variable("discrete", K=2, schedule=b),
    }
    model = bfn.mixed(TwoBits(backwards), variables)
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(2, (PAIRS,), generator=generator)
    agree = torch.rand(PAIRS, generator=generator) < AGREE
    x = {"a": first, "b": torch.where(agree, first, 1 - first)}
    cost = bfn.loss.continuous_time(model, x, bfn.loss.independent, generator)
    return float(cost.mean()), float(cost.std()) / PAIRS**0.5


@pytest.mark.parametrize(
    ("backwards", "a", "b", "expected"),
    [
        (True, FIRST, LAST, BOTH),
        (True, LAST, FIRST, BOTH),
        (False, FIRST, LAST, BOTH),
        (False, LAST, FIRST, 2 * ONE),
    ],
)
def test_one_after_the_other(
    backwards: bool, a: tuple[float, float], b: tuple[float, float], expected: float
) -> None:
    quadratic = Quadratic(BETA_1)
    mean, error = L_inf(backwards, Windowed(quadratic, *a), Windowed(quadratic, *b))
    assert error < 0.025
    assert mean == pytest.approx(expected, abs=4.0 * error)


def test_both_at_once() -> None:
    mean, error = L_inf(True, Quadratic(BETA_1), Quadratic(BETA_1))
    assert mean == pytest.approx(BOTH, abs=4.0 * error)
    mean, error = L_inf(False, Quadratic(BETA_1), Quadratic(BETA_1))
    assert BOTH + 6.0 * error < mean < 2 * ONE - 6.0 * error
