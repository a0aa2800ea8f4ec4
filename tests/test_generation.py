"""Generation as a function: callbacks, modes, seeds, ranges, refusals.

Its values are compared with the paper in tests/paper, its distributions in tests/oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bfn
from bfn import noise
from bfn.flow import Theta
from bfn.output import Output
from bfn.sampling import solvers
from support.toys import KINDS, K, Toy, data, generator, model

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 5), (2, 1, 4, 4)])
@pytest.mark.parametrize("final", ["sample", "mode"])
def test_data_of_the_asked_shape_and_kind(kind: str, shape: tuple[int, ...], final: Any) -> None:
    bfn_model = model(kind)
    x = bfn.generate(bfn_model, shape, 4, final=final, generator=generator(1))
    assert x.shape == shape
    assert x.dtype == (torch.int64 if kind in ("discrete", "binary") else torch.float32)
    assert not x.requires_grad
    bfn_model.check(x)  # in range, and bin centres where they should be


@every_kind
def test_type_follows_the_network(kind: str) -> None:
    bfn_model = model(kind).double()
    types = set()

    def look(i: int, t: torch.Tensor, theta: Theta, output: Output) -> None:
        types.update({t.dtype, theta.V.dtype, theta.beta.dtype, output.m.dtype})

    x = bfn.generate(bfn_model, (2, 3), 3, generator=generator(1), callback=look)
    assert types == {torch.float64}
    assert x.dtype == (torch.int64 if kind in ("discrete", "binary") else torch.float64)


@every_kind
def test_equal_seeds_give_equal_samples(kind: str) -> None:
    bfn_model = model(kind)
    a, b, c = (bfn.generate(bfn_model, (16, 4), 3, generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    torch.manual_seed(5)
    first = bfn.generate(bfn_model, (16, 4), 3)
    torch.manual_seed(5)
    assert torch.equal(first, bfn.generate(bfn_model, (16, 4), 3))


@every_kind
def test_keyed_samples_do_not_depend_on_the_batch(kind: str) -> None:
    bfn_model, seeds = model(kind).double(), [noise.seed(2, i) for i in range(5)]
    together = bfn.generate(bfn_model, (5, 4), 3, generator=noise.Keyed(seeds))
    for batch in ([0], [4, 2], [1, 3, 0]):
        apart = bfn.generate(
            bfn_model, (len(batch), 4), 3, generator=noise.Keyed([seeds[i] for i in batch])
        )
        torch.testing.assert_close(apart, together[batch], rtol=1e-9, atol=1e-9)


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


@every_kind
def test_looking_changes_nothing(kind: str) -> None:
    bfn_model = model(kind)
    quiet = bfn.generate(bfn_model, (4, 3), 3, generator=generator(1))
    seen = bfn.generate(bfn_model, (4, 3), 3, generator=generator(1), callback=lambda *_: None)
    assert torch.equal(quiet, seen)


def test_network_calls() -> None:
    for steps in (1, 5):
        calls = []

        class Counting(Toy):
            def forward(self, features: torch.Tensor, t: torch.Tensor, calls=calls, **cond: Any):
                calls.append(t)
                return super().forward(features, t, **cond)

        bfn.generate(bfn.continuous(Counting(), 0.1), (2, 3), steps)
        assert len(calls) == steps + 1


@every_kind
def test_dropout_is_off_and_modes_come_back(kind: str) -> None:
    bfn_model = model(kind, dropout=0.9).double()
    bfn_model.train()
    noisy = bfn.generate(bfn_model, (8, 4), 5, generator=generator(1))
    assert all(module.training for module in bfn_model.modules())
    quiet = bfn.generate(model(kind).double(), (8, 4), 5, generator=generator(1))
    assert torch.equal(noisy, quiet)
    bfn_model.eval()
    bfn.generate(bfn_model, (2, 3), 2)
    assert not any(module.training for module in bfn_model.modules())


def test_modes_come_back_after_an_error() -> None:
    bfn_model = model("binary", dropout=0.5)
    bfn_model.net.dropout.eval()
    before = [module.training for module in bfn_model.modules()]

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bfn.generate(bfn_model, (2, 3), 2, callback=stop)
    assert [module.training for module in bfn_model.modules()] == before
    assert torch.is_grad_enabled()


@every_kind
def test_conditions_reach_the_network(kind: str) -> None:
    bfn_model = model(kind)
    a, b, c = (
        bfn.generate(bfn_model, (32, 4), 4, generator=generator(1), label=torch.full((32,), label))
        for label in (0, 0, 7)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@every_kind
def test_final_mode_is_the_mode_of_the_last_output(kind: str) -> None:
    """The same state, then a draw or its most probable value."""
    # With little accuracy the last output is still a wide one.
    wide = {"beta_1": 0.5} if kind in ("discrete", "binary") else {"sigma_1": 0.6}
    bfn_model, last = model(kind, **wide), {}

    def keep(i: int, t: torch.Tensor, theta: Theta, output: Output) -> None:
        last["V"], last["output"] = theta.V, output

    mode = bfn.generate(bfn_model, (64,), 3, final="mode", generator=generator(1), callback=keep)
    V, output = last["V"], last["output"]
    sample = bfn.generate(bfn_model, (64,), 3, generator=generator(1), callback=keep)
    assert torch.equal(V, last["V"])
    if kind == "continuous":
        assert torch.equal(sample, mode)
    else:
        assert not torch.equal(sample, mode)
        log_p = [output.log_prob(torch.full_like(mode, value)) for value in data_values(kind)]
        torch.testing.assert_close(torch.stack(log_p).max(0).values, output.log_prob(mode))


def data_values(kind: str) -> list[Any]:
    values = range(K[kind])
    return [(2 * k + 1 - K[kind]) / K[kind] if kind == "discretised" else k for k in values]


@pytest.mark.parametrize(
    ("arguments", "value", "expectation"),
    [
        ({"steps": 0}, "steps = 0", "at least 1"),
        ({"steps": -2}, "steps = -2", "at least 1"),
        ({"steps": 2.5}, "steps = 2.5", "whole number"),
        ({"shape": ()}, "shape = ()", "positive sizes"),
        ({"shape": (0, 3)}, "shape = (0, 3)", "positive sizes"),
        ({"shape": (2, -3)}, "shape = (2, -3)", "positive sizes"),
        ({"final": "mean"}, "'mean'", '"sample" or "mode"'),
        ({"final": None}, "None", '"sample" or "mode"'),
        ({"solver": "euler"}, "'euler'", "ancestral"),
        ({"solver": "ancestrl"}, "'ancestrl'", "did you mean 'ancestral'"),
        ({"solver": None}, "unknown solver None", "ancestral"),
        ({"solver": solvers.ode}, "unknown solver <function ode", "ancestral"),
        ({"generator": noise.Keyed([1, 2, 3])}, "3 generators", "batch of 2"),
        ({"calls": 1}, "calls = 1", "at least 2"),
        ({"calls": 0}, "calls = 0", "at least 2"),
        ({"grid": "powr"}, "'powr'", "did you mean 'power'"),
        ({"first": -0.1}, "first = -0.1", "at least 0"),
        ({"first": 1.0}, "first = 1.0", "below 1"),
        ({"first": float("nan")}, "first = nan", "at least 0"),
        # Numbers as they come from a form, a command line or a file.
        ({"steps": "20"}, "steps = '20'", "whole number, at least 1"),
        ({"steps": None}, "steps = None", "whole number, at least 1"),
        ({"steps": True}, "steps = True", "whole number"),
        ({"steps": [5]}, "steps = [5]", "whole number"),
        ({"steps": float("inf")}, "steps = inf", "whole number"),
        ({"calls": "20"}, "calls = '20'", "whole number, at least 2"),
        ({"calls": 2.5}, "calls = 2.5", "whole number, at least 2"),
        ({"first": "0.1"}, "first = '0.1'", "below 1"),
        ({"shape": 3}, "shape = 3", "positive sizes, the batch first"),
        ({"shape": None}, "shape = None", "positive sizes"),
        ({"shape": "23"}, "shape = '23'", "positive sizes"),
        ({"shape": ("2", "3")}, "shape = ('2', '3')", "positive sizes"),
        ({"shape": (2.5, 3)}, "shape = (2.5, 3)", "positive sizes"),
        ({"solver": ["ode"]}, "unknown solver ['ode']", "ancestral"),
        ({"dtype": "float32"}, "dtype = 'float32'", "such as torch.float64"),
        ({"dtype": torch.int64}, "dtype = torch.int64", "a type of floats"),
        ({"scale": "2"}, "scale = '2'", "a finite number"),
        ({"guidance": "2"}, "guidance = '2'", "a number of 0 or more"),
        ({"solvr": "ode"}, "'solvr' is no argument of generate", "did you mean 'solver'?"),
        ({"labels": 3}, "'labels' is no argument of generate", "did you mean 'label'?"),
        ({"temperature": 0.5}, "'temperature' is no argument", "Toy, does not take it"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: dict[str, Any], value: str, expectation: str
) -> None:
    for kind in KINDS:
        bfn_model = model(kind)
        with pytest.raises(bfn.BFNError) as caught:
            bfn.generate(bfn_model, **({"shape": (2, 3), "steps": 2} | arguments))
        assert value in str(caught.value)
        assert expectation in str(caught.value)
        assert all(module.training for module in bfn_model.modules())


def test_what_is_no_model_gets_a_sentence() -> None:
    wrong: Any
    net = model("continuous").net
    for wrong, what in (("digits", "'digits'"), (net, "a Toy"), (None, "a NoneType")):
        for use in (
            lambda wrong=wrong: bfn.generate(wrong, (2, 3), 2),
            lambda wrong=wrong: bfn.infill(wrong, torch.zeros(2, 3), torch.ones(3).bool(), 2),
            lambda wrong=wrong: bfn.guidance.Guided(wrong, lambda x: x.sum(1)),
            lambda wrong=wrong: bfn.guidance.ClassifierFree(wrong, 2.0),
        ):
            with pytest.raises(bfn.BFNError, match=f"the model is {what}; expected a bfn.BFN"):
                use()


def test_numbers_and_shapes_of_any_make() -> None:
    """Numpy's, and sizes as an array or a tensor has them."""
    bfn_model = model("continuous")
    expected = bfn.generate(bfn_model, (2, 3), 4, generator=generator(1))
    x = torch.zeros(2, 3)
    for shape in ([2, 3], x.shape, np.array([2, 3]), torch.tensor([2, 3])):
        for steps in (4.0, np.int64(4), torch.tensor(4)):
            found = bfn.generate(bfn_model, shape, steps, generator=generator(1))  # pyright: ignore
            assert torch.equal(found, expected)


def test_a_network_may_take_any_condition() -> None:
    """One with **cond is given whatever there is; one in a wrapper is asked itself."""

    class Open(Toy):
        def forward(self, features: torch.Tensor, t: torch.Tensor, label=None, **cond: Any):
            assert set(cond) == {"speaker"}
            return super().forward(features, t, label)

    open_model = bfn.continuous(Open(), 0.1)
    guided = bfn.guidance.Guided(open_model, lambda x: x.sum(1))
    assert bfn.generate(open_model, (2, 3), 2, speaker=4).shape == (2, 3)
    assert bfn.generate(guided, (2, 3), 2, speaker=4).shape == (2, 3)
    closed = bfn.guidance.Guided(model("continuous"), lambda x: x.sum(1))
    with pytest.raises(bfn.BFNError, match="'speaker' is no argument of generate"):
        bfn.generate(closed, (2, 3), 2, speaker=4)


@every_kind
@pytest.mark.parametrize("solver", solvers.SOLVERS)
@pytest.mark.parametrize("grid", [None, *solvers.GRIDS])
def test_every_solver_on_every_grid(kind: str, solver: str, grid: str | None) -> None:
    """Data of the right kind from the first step on, reproducibly, and example by example."""
    bfn_model, keys = model(kind).double(), [noise.seed(3, i) for i in range(4)]
    for steps in (1, 2, 5):
        options: dict[str, Any] = {"solver": solver, "grid": grid, "final": "mode"}
        a, b = (
            bfn.generate(bfn_model, (4, 3), steps, generator=noise.Keyed(keys), **options)
            for _ in range(2)
        )
        bfn_model.check(a)
        assert torch.equal(a, b)
        last = noise.Keyed(keys[-1:])
        alone = bfn.generate(bfn_model, (1, 3), steps, generator=last, **options)
        torch.testing.assert_close(alone, a[-1:], rtol=1e-9, atol=1e-9)


@every_kind
@pytest.mark.parametrize("grid", solvers.GRIDS)
def test_times_accuracies_and_coordinates_of_a_run_agree(kind: str, grid: str) -> None:
    """Theta's beta is the schedule's at the time the network is told, whatever the grid."""
    bfn_model, seen = model(kind).double(), []
    for solver in ("sde", "ode"):
        bfn.generate(
            bfn_model,
            (2, 3),
            6,
            solver=solver,
            grid=grid,
            first=1e-3,
            callback=lambda i, t, theta, output: seen.append((t, theta.beta.flatten())),
        )
        for t, beta in seen:
            expected = bfn_model.flow.schedule.beta(t)
            torch.testing.assert_close(beta, expected, rtol=1e-10, atol=1e-12)
        times = torch.stack([t[0] for t, _ in seen])
        assert float(times[0]) == 1e-3
        assert bool((times.diff() > 0).all())
        assert float(times[-1]) == pytest.approx(1.0, abs=1e-12)
        seen.clear()


def test_a_solver_is_found_by_name() -> None:
    def still(flow, theta, output, step) -> Theta:
        """Receives nothing at all."""
        alpha_i = theta.V.new_full(theta.V.shape[:1], step.alpha_i)
        return flow.update(theta, torch.zeros_like(theta.V), alpha_i)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "SOLVERS", dict(solvers.SOLVERS))
        solvers.register("still")(still)
        seen = []
        bfn.generate(
            model("continuous"),
            (2, 3),
            3,
            solver="still",
            callback=lambda i, t, theta, output: seen.append(theta.V),
        )
        assert not torch.stack(seen).any()
    with pytest.raises(bfn.BFNError, match="unknown solver 'still'"):
        bfn.generate(model("continuous"), (2, 3), 3, solver="still")


def test_float32_steps_add_up_to_the_schedule() -> None:
    """From float32 times a step of 1,000 would have an accuracy off by 5e-5."""
    bfn_model, sizes = model("continuous", sigma_1=1e-3), []

    def spy(flow, theta, output, step) -> Theta:
        sizes.append(step.alpha_i)
        return theta

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "SOLVERS", {"spy": solvers.Solver(spy, "time")})
        bfn.generate(bfn_model, (1, 1), 1000, solver="spy")
    exact = bfn_model.flow.schedule.step_sizes(1000)
    torch.testing.assert_close(torch.tensor(sizes).double(), exact, rtol=2e-7, atol=0)


def test_non_contiguous_outputs_are_welcome() -> None:
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
