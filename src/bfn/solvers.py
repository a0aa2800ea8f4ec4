"""Step rules: how theta moves from one time to the next, given the output there."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from torch import Tensor

from bfn.errors import BFNError
from bfn.flow import BayesianFlow, Theta
from bfn.noise import Source
from bfn.output import Output

Step = Callable[[BayesianFlow, Theta, Output, Tensor, Source], Theta]
_SOLVERS: dict[str, Step] = {}


def register(name: str) -> Callable[[Step], Step]:
    """Decorator that makes a step rule available by name."""

    def add(step: Step) -> Step:
        _SOLVERS[name] = step
        return step

    return add


def find(name: str) -> Step:
    if name not in _SOLVERS:
        near = difflib.get_close_matches(name, _SOLVERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BFNError(f"unknown solver {name!r}; expected one of {', '.join(_SOLVERS)}{hint}")
    return _SOLVERS[name]


@register("ancestral")
def ancestral(
    flow: BayesianFlow, theta: Theta, output: Output, alpha_i: Tensor, generator: Source
) -> Theta:
    """The paper's rule: draw x' from the output, send a message about it, update."""
    x = output.sample(generator)
    return flow.update(theta, flow.send(x, alpha_i, generator), alpha_i)
