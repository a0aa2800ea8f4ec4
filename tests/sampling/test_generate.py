"""Generation as a function: callbacks, modes, seeds, ranges, refusals.

Its values are compared with the paper in tests/paper, its distributions in tests/oracle.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bfn
from bfn import noise
from bfn.flow import Theta
from bfn.output import Output
from bfn.sampling import solvers
from support.mistakes import assert_refused
from support.toys import KINDS, Toy, data, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_of_the_right_shape_and_type(kind: str, dtype: torch.dtype) -> None:
    bfn_model, types = model(kind).to(dtype), set()

    def look(i: int, t: torch.Tensor, theta: Theta, output: Output) -> None:
        types.update({t.dtype, theta.V.dtype, theta.beta.dtype, output.m.dtype})

    x = bfn.generate(bfn_model, (2, 1, 4, 4), 4, generator=generator(1), callback=look)
    assert types == {dtype}
    assert x.shape == (2, 1, 4, 4)
    assert x.dtype == (torch.int64 if kind in ("discrete", "binary") else dtype)
    assert not x.requires_grad
    bfn_model.check(x)  # in range, and bin centres where they should be
    torch.manual_seed(1)
    assert torch.equal(bfn.generate(bfn_model, (2, 1, 4, 4), 4), x)  # the global generator
    other = bfn.generate(bfn_model, (2, 1, 4, 4), 4, generator=generator(2))
    assert not torch.equal(other, x)


@every_kind
@pytest.mark.parametrize("steps", [1, 3])
def test_the_callback_sees_every_step(kind: str, steps: int) -> None:
    bfn_model, seen = model(kind).double(), []
    x = bfn.generate(
        bfn_model,
        (2, 3),
        steps,
        final="mode",
        callback=lambda *arguments: seen.append(arguments),
        generator=generator(1),
    )
    assert [i for i, *_ in seen] == list(range(steps + 1))
    schedule = bfn_model.flow.schedule
    for i, t, theta, output in seen:
        assert t.shape == (2,)
        torch.testing.assert_close(t, torch.full((2,), i / steps, dtype=torch.float64))
        assert isinstance(theta, Theta)
        assert isinstance(output, Output)
        # What was sent by then, and what the network makes of it.
        torch.testing.assert_close(theta.beta.flatten(), schedule.beta(t), rtol=1e-12, atol=0)
        with torch.no_grad():
            torch.testing.assert_close(output.m, bfn_model(theta, t).m)
    assert not seen[0][2].V.any()
    assert torch.equal(seen[-1][3].mode(), x)
    drawn = bfn.generate(bfn_model, (2, 3), steps, final="sample", generator=generator(1))
    again = bfn.generate(bfn_model, (2, 3), calls=steps + 1, generator=generator(1))
    assert torch.equal(drawn, again)


def test_dropout_is_off_and_modes_come_back() -> None:
    """After an error as well."""
    bfn_model = model("binary", dropout=0.9).double()
    noisy = bfn.generate(bfn_model, (8, 4), 5, generator=generator(1))
    assert all(module.training for module in bfn_model.modules())
    quiet = bfn.generate(model("binary").double(), (8, 4), 5, generator=generator(1))
    assert torch.equal(noisy, quiet)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bfn.generate(bfn_model, (2, 3), 2, callback=stop)
    assert all(module.training for module in bfn_model.modules())
    assert torch.is_grad_enabled()


SEEN = torch.tensor([True, False, True])


@pytest.mark.parametrize("kind", KINDS)
def test_known_values_come_back(kind: str) -> None:
    """One example for all, or one for each; the same as learned infilling; in seeded noise too."""
    bfn_model, x = model(kind), data(kind, (4, 3))
    for options in ({}, {"solver": "ode2"}, {"final": "mode"}):
        one = bfn.generate(bfn_model, (4, 3), 4, known=(x[0], SEEN), seed=1, **options)
        assert torch.equal(one[:, SEEN], x[0, SEEN].expand(4, 2))
        each = bfn.generate(bfn_model, (4, 3), 4, known=(x, SEEN.expand(4, 3)), seed=1, **options)
        assert torch.equal(each[:, SEEN], x[:, SEEN])
        filled = bfn.infill(bfn_model, x, SEEN, 4, observed="learned", seed=1, **options)
        assert torch.equal(each, filled)
        assert torch.equal(one[0], each[0])


def test_conditions_reach_the_network() -> None:
    """Any that its forward takes, through wrappers too; the others are refused."""
    seen = []

    class Open(Toy):
        def forward(self, features: torch.Tensor, t: torch.Tensor, label=None, **cond: Any):
            seen.append(cond)
            return super().forward(features, t, label)

    for net in (Open(), Toy()):
        plain = bfn.continuous(net, 0.1)
        guided = bfn.guidance.Guided(plain, lambda x: x.sum(1))
        for each in (plain, guided):
            a, b = (bfn.generate(each, (2, 3), 2, solver="ode", label=c) for c in (0, 7))
            assert not torch.equal(a, b)
            if isinstance(net, Open):
                bfn.generate(each, (2, 3), 1, speaker=4)
                assert seen[-2:] == [{"speaker": 4}] * 2
            else:
                assert_refused(
                    lambda each=each: bfn.generate(each, (2, 3), 2, speaker=4),
                    "'speaker' is not an argument of generate",
                )


@every_kind
@pytest.mark.parametrize("solver", solvers.SOLVERS)
@pytest.mark.parametrize("grid", [None, *solvers.GRIDS])
def test_every_solver_on_every_grid(kind: str, solver: str, grid: str | None) -> None:
    """Data of the right kind from the first step on, reproducibly, and example by example.

    Theta's beta is the schedule's at the time the network sees.
    """
    bfn_model, keys = model(kind).double(), [noise.seed(3, i) for i in range(4)]
    schedule, times = bfn_model.flow.schedule, []

    def look(i: int, t: torch.Tensor, theta: Theta, output: Output) -> None:
        times.append(float(t[0]))
        expected = schedule.beta(t)
        torch.testing.assert_close(theta.beta.flatten(), expected, rtol=1e-10, atol=1e-12)

    for steps in (1, 3):
        options: dict[str, Any] = {"solver": solver, "grid": grid, "final": "mode"}
        a, b = (
            bfn.generate(bfn_model, (4, 3), steps, generator=noise.Keyed(keys), **options)
            for _ in range(2)
        )
        bfn_model.check(a)
        assert torch.equal(a, b)
        last = noise.Keyed(keys[-1:])
        alone = bfn.generate(bfn_model, (1, 3), steps, generator=last, callback=look, **options)
        assert times[0] == solvers.SOLVERS[solver].first
        assert times == sorted(set(times))
        assert times.pop() == pytest.approx(1.0, abs=1e-12)
        times.clear()
        torch.testing.assert_close(alone, a[-1:], rtol=1e-9, atol=1e-9)


def test_steps_of_a_users_solver_add_up_to_the_schedule() -> None:
    """From float32 times a step of 1,000 would have an accuracy off by 5e-5."""
    bfn_model, sizes = model("continuous", sigma_1=1e-3), []

    def spy(flow, theta, output, step) -> Theta:
        sizes.append(float(step.alpha_i))
        return theta

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "SOLVERS", dict(solvers.SOLVERS))
        solvers.register("spy")(spy)
        bfn.generate(bfn_model, (1, 1), 1000, solver="spy", grid="time")
    exact = bfn_model.flow.schedule.step_sizes(1000)
    torch.testing.assert_close(torch.tensor(sizes).double(), exact, rtol=2e-7, atol=0)


def test_non_contiguous_outputs_are_accepted() -> None:
    """A network that works with classes second returns a permuted view."""

    class Permuted(Toy):
        def forward(self, features: torch.Tensor, t: torch.Tensor, **cond: Any) -> torch.Tensor:
            out = super().forward(features, t, **cond)
            return out.movedim(-1, 1).contiguous().movedim(1, -1)

    straight, permuted = (bfn.discrete(net(4, 4), 4, 3.0).double() for net in (Toy, Permuted))
    a, b = (bfn.generate(m, (8, 3, 2), 4, generator=generator(1)) for m in (straight, permuted))
    assert torch.equal(a, b)
    x = data("discrete", (8, 3, 2))
    for name in ("continuous_time", "reconstruction"):
        a, b = (getattr(bfn.loss, name)(m, x, generator=generator(2)) for m in (straight, permuted))
        torch.testing.assert_close(a, b)


# Generating keeps no more tensors alive after many steps than after a few.


STEPS = 20
SHAPE = (2, 3)


def score(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1)


def generate(kind: str, **options: Any) -> None:
    bfn.generate(model(kind), SHAPE, STEPS, **options)


def guided(kind: str, **options: Any) -> None:
    wrapped = bfn.guidance.Guided(model(kind), score, 0.1, through=options.pop("through"))
    bfn.generate(wrapped, SHAPE, STEPS, **options)


def infill(kind: str, **options: Any) -> None:
    mask = torch.tensor([True, False, False])
    bfn.infill(model(kind), data(kind, SHAPE), mask, STEPS, **options)


WAYS: list[tuple[Callable[..., None], dict[str, Any]]] = [
    *((generate, {"solver": solver}) for solver in solvers.SOLVERS),
    (generate, {"label": 3, "guidance": 2.0}),
    (guided, {"through": True}),
    (guided, {"through": True, "solver": "sde2"}),
    (guided, {"through": False}),
    *((infill, {"solver": solver}) for solver in solvers.SOLVERS),
    (infill, {"observed": "known"}),
    (infill, {"resample": 2, "jump": 3, "solver": "sde2"}),
    (infill, {"particles": 3}),
    (infill, {"guide": score, "scale": 0.1}),
]


def alive(way: Callable[..., None], kind: str, options: dict[str, Any]) -> list[tuple[int, int]]:
    """Tensors and their bytes at an early, a middle and a late step."""
    found, gradients = [], []

    def look(i: int, t: Tensor, theta: bfn.Theta, output: Any) -> None:
        # Tensors that only a graph of gradients holds are not seen; so there must be none.
        gradients.append(theta.V.requires_grad or output.m.requires_grad)
        if i in (2, STEPS // 2, STEPS - 1):
            gc.collect()
            tensors = [each for each in gc.get_objects() if type(each) is Tensor]
            stores = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
            found.append((len(tensors), sum(store.nbytes() for store in stores.values())))

    gc.collect()
    gc.freeze()  # so that what was there before is not counted each time
    try:
        way(kind, callback=look, **options)
    finally:
        gc.unfreeze()
    assert not any(gradients)
    return found


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_nothing_grows_with_the_steps(way: int) -> None:
    call, options = WAYS[way]
    for kind in KINDS if way == 0 else [KINDS[way % len(KINDS)]]:
        first, *later = alive(call, kind, options)
        assert len(later) >= 2
        assert max(later) <= first


def test_growth_is_detected() -> None:
    """Check the test itself with a rule that keeps everything it has seen."""

    def keeping(flow: Any, theta: bfn.Theta, output: Any, step: solvers.Step) -> bfn.Theta:
        step.memory[str(step.index)] = output.m
        return solvers.sde(flow, theta, output, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(solvers.SOLVERS, "keeping", solvers.Solver(keeping))
        for way in (generate, infill):
            found = alive(way, "discrete", {"solver": "keeping"})
            assert found[-1][0] >= found[0][0] + STEPS // 2
            assert found[-1][1] > found[0][1]
