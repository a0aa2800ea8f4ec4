"""Mixed models beside models of one kind: the same numbers from the same noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.guidance import Guided
from bfn.schedule import Windowed
from oracle.exact.quadrature import prescribed
from support.toys import Toy, data, generator

pytestmark = pytest.mark.usefixtures("double")

VARIABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "continuous": ("continuous", {"sigma_1": 0.05, "reconstruction": bfn.Bins(16, 0.05)}),
    "discretised": ("discretised", {"K": 5, "sigma_1": 0.05}),
    "free bins": ("discretised", {"K": 5, "sigma_1": 0.05, "head": "posterior"}),
    "discrete": ("discrete", {"K": 4, "beta_1": 3.0}),
    "posterior": ("discrete", {"K": 4, "beta_1": 3.0, "head": "posterior"}),
    "binary": ("discrete", {"K": 2, "beta_1": 3.0}),
    "two classes": ("discrete", {"K": 2, "beta_1": 3.0, "head": "posterior"}),
    "windowed": ("continuous", {"schedule": Windowed(bfn.Exponential(0.1), 0.3, 0.8)}),
    "bins in a window": (
        "discretised",
        {"K": 5, "schedule": Windowed(bfn.Exponential(0.05), 0.3, 0.8)},
    ),
    "classes in a window": (
        "discrete",
        {"K": 4, "schedule": Windowed(bfn.Quadratic(3.0), 0.3, 0.8)},
    ),
}
FAR_APART: dict[str, tuple[str, dict[str, Any]]] = {
    "sharp": ("discrete", {"K": 2, "beta_1": 60.0}),
    "faint": ("discrete", {"K": 4, "beta_1": 0.01}),
}
"""A divergence computed for steps as small as the other's would be wrong."""
SHAPE, B = (2, 3), 4


class Named(nn.Module):
    """A network of its own for each variable."""

    def __init__(self, nets: dict[str, nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleDict(nets)

    def forward(self, features: dict[str, Tensor], t: Tensor, **cond: Tensor) -> dict[str, Tensor]:
        return {name: net(features[name], t, **cond) for name, net in self.nets.items()}


class Labelled(Named):
    arguments: Any = {"labels": 3}  # noqa: RUF012

    def forward(
        self, features: dict[str, Tensor], t: Tensor, label: Tensor | None = None
    ) -> dict[str, Tensor]:
        return super().forward(features, t, label=label)


def kind_of(name: str) -> str:
    kind, arguments = (VARIABLES | FAR_APART)[name]
    return "binary" if arguments.get("K") == 2 else kind


def variable(name: str) -> bfn.Variable:
    kind, arguments = (VARIABLES | FAR_APART)[name]
    return bfn.Variable(kind, SHAPE, **arguments)


def network(name: str, own: bfn.Variable) -> nn.Module:
    inputs = 4 if kind_of(name) == "discrete" else 1
    return Toy(own.outputs[-1] if len(own.outputs) > len(SHAPE) else 1, inputs)


def pair(name: str) -> tuple[bfn.BFN, bfn.BFN]:
    """A model of one kind, and the same as a mixed one of one variable, x."""
    own = variable(name)
    net = network(name, own)
    return bfn.BFN(net, own.flow, own.head), bfn.mixed(Labelled({"x": net}), {"x": own})


def example(name: str, seed: int = 0) -> Tensor:
    return data(kind_of(name), (B, *SHAPE), seed)


Ways = dict[str, Callable[[bfn.BFN, Any, Callable[[Any], Any]], Any]]
LOSSES: Ways = {
    **{
        f"L^{n}": lambda model, x, _, n=n: bfn.loss.n_step(model, x, n, generator=generator())
        for n in (1, 3, "inf")
    },
    "all steps": lambda model, x, _: bfn.loss.discrete_time(
        model, x, 4, "all", 2, generator=generator()
    ),
    "given steps": lambda model, x, _: bfn.loss.discrete_time(
        model, x, 4, torch.tensor([1, 2, 3, 4]), generator=generator()
    ),
    "L^inf": lambda model, x, _: bfn.loss.continuous_time(model, x, generator=generator()),
    "L^r": lambda model, x, _: bfn.loss.reconstruction(model, x, generator=generator()),
    "early L^r": lambda model, x, _: bfn.loss.reconstruction(model, x, 0.4, generator()),
    **{
        f"{kind}, n = {n}": lambda model, x, _, kind=kind, n=n: (
            bfn.loss.objective(model, x, kind, n, generator=generator()).value
        )
        for kind in ("auto", *bfn.loss.OBJECTIVES)
        for n in (3, "inf")
    },
}
MASK = torch.tensor([[1, 0, 0], [0, 1, 1]]).bool()


def generated(**options: Any) -> Callable[[bfn.BFN, Any, Callable[[Any], Any]], Any]:
    def way(model: bfn.BFN, x: Any, named: Callable[[Any], Any]) -> Any:
        shape = (B, *SHAPE) if isinstance(x, Tensor) else B
        return bfn.generate(model, shape, 4, generator=generator(), **options)

    return way


def filled(**options: Any) -> Callable[[bfn.BFN, Any, Callable[[Any], Any]], Any]:
    def way(model: bfn.BFN, x: Any, named: Callable[[Any], Any]) -> Any:
        return bfn.infill(model, x, named(MASK), 4, generator=generator(), **options)

    return way


def guided(of: str, through: bool) -> Callable[[bfn.BFN, Any, Callable[[Any], Any]], Any]:
    def score(given: Any) -> Tensor:
        given = given["x"] if isinstance(given, dict) else given
        given = given.V if of == "theta" else given
        return -given.square().flatten(1).mean(1) + given.flatten(1)[:, 0]

    def way(model: bfn.BFN, x: Any, named: Callable[[Any], Any]) -> Any:
        return generated()(Guided(model, score, 2.0, of=of, through=through), x, named)  # type: ignore[arg-type]

    return way


SAMPLES: Ways = {
    **{solver: generated(solver=solver) for solver in bfn.solvers.SOLVERS},
    **{grid: generated(solver="ode2", grid=grid) for grid in bfn.solvers.GRIDS},
    "the mode": generated(final="mode"),
    "a label": generated(label=2),
    "guidance": generated(label=1, guidance=2.0),
    **{f"infilled by {solver}": filled(solver=solver) for solver in bfn.solvers.SOLVERS},
    "infilled with what is known": filled(observed="known"),
    "infilled twice": filled(resample=1, jump=2),
    "infilled by particles": filled(particles=3),
    "guided through the network": guided("data", True),
    "guided past the network": guided("data", False),
    "guided by theta": guided("theta", True),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_one_variable_is_a_model_of_one_kind(name: str) -> None:
    plain, mixed = pair(name)
    x = example(name)
    for what, way in (LOSSES | SAMPLES).items():
        expected = way(plain, x, lambda given: given)
        found = way(mixed, {"x": x}, lambda given: {"x": given})
        found = found["x"] if isinstance(found, dict) else found
        torch.testing.assert_close(found, expected, msg=lambda text, what=what: f"{what}: {text}")
        assert found.shape == expected.shape


@pytest.mark.parametrize("n", [3, "inf", None])
def test_independent_variables_cost_what_they_cost_alone(n: int | str | None) -> None:
    """The networks are independent of each other, and each part has its own noise."""
    names = ["sharp", *VARIABLES, "faint"]
    variables = {name: variable(name) for name in names}
    nets = {name: network(name, variables[name]) for name in names}
    mixed = bfn.mixed(Named(nets), variables)
    alone = [bfn.BFN(nets[name], own.flow, own.head) for name, own in variables.items()]
    x, t = {name: example(name) for name in names}, torch.tensor([0.35, 0.4, 0.6, 0.75])

    def messages(name: str) -> list[Tensor]:
        """What the divergences of classes and bins draw."""
        if not isinstance(n, int) or kind_of(name) in ("continuous", "binary"):
            return []
        shape = (B, 6, 4) if kind_of(name) == "discrete" else (B, *SHAPE)
        return [torch.randn(shape, generator=generator(7))]

    states = {
        name: torch.randn(own.flow.state_shape((B, *SHAPE)), generator=generator(len(name)))
        for name, own in variables.items()
    }
    row = torch.cat([state.flatten(1) for state in states.values()], 1)
    noise = [row, *(drawn for name in names for drawn in messages(name))]

    def both(cost: Callable[[bfn.BFN, Any], Tensor]) -> tuple[Tensor, list[Tensor]]:
        with prescribed(*noise):
            together = cost(mixed, x)
        parts = []
        for name, model in zip(names, alone, strict=True):
            with prescribed(states[name], *messages(name)):
                parts.append(cost(model, x[name]))
        return together, parts

    def breakdown(model: bfn.BFN, x: Any) -> Tensor:
        if n is None:
            return bfn.loss.reconstruction(model, x, by_variable=True)
        return bfn.loss.n_step(model, x, n, t, by_variable=True)

    together, parts = both(breakdown)
    torch.testing.assert_close(together, torch.cat(parts, 1))
    assert (together > 0).all()
    if n is not None:  # every head has an objective of its own
        together, parts = both(lambda model, x: bfn.loss.objective(model, x, "auto", n, t).value)
        torch.testing.assert_close(together, torch.stack(parts).sum(0))
    assert mixed.flow.decisive_accuracy == tuple(model.flow.decisive_accuracy for model in alone)
