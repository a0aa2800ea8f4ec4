"""Reference values in nats, of sources whose exact posterior takes the network's place.

Each was computed by deterministic quadrature in two independent ways; `test_losses` repeats the
second. For one variable L^n + L^r is the entropy for every n. For two variables it is larger, for
the output is a product of marginals, and falls towards L^inf + L^r like 1 / n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.sources import Source, Toy

from .reference import Array, bin_points, class_points, exponential, quadratic

COUPLED = [
    [0.20, 0.03, 0.01, 0.01],
    [0.03, 0.20, 0.03, 0.01],
    [0.01, 0.03, 0.15, 0.03],
    [0.01, 0.01, 0.04, 0.20],
]


@dataclass(frozen=True)
class Row:
    """One source seen through one flow; `total` is L^n + L^r by n.

    `points` and `accuracies` are those of `reference`.
    """

    name: str
    make: Callable[[], Toy]
    points: Array
    accuracies: Callable[[int], Array]
    H: float
    L_r: float
    L_inf: float
    total: dict[int, float] = field(repr=False)
    digits: float = 9.0
    """Digits asked of the quadrature: fewer where they are dear."""

    def __str__(self) -> str:
        return self.name


def _entropy(H: float) -> dict[int, float]:
    return dict.fromkeys((1, 2, 10), H)


def _bits(name: str, P: list[Any], *values: Any) -> Row:
    return Row(
        *(name, lambda: Source(P).binary(4.0), class_points(2), lambda n: quadratic(4.0, n)),
        *values,
    )


def _classes(name: str, P: list[Any], beta_1: float, *values: Any, **options: float) -> Row:
    made = class_points(len(P)), lambda n: quadratic(beta_1, n)
    return Row(name, lambda: Source(P).discrete(beta_1), *made, *values, **options)


def _bins(name: str, P: list[Any], *values: Any, **options: float) -> Row:
    made = bin_points(len(P)), lambda n: exponential(0.2, n)
    return Row(name, lambda: Source(P).discretised(0.2), *made, *values, **options)


BIT = _bits(*("a bit", [0.3, 0.7]), *(0.61086430, 0.05471462, 0.55614968), _entropy(0.61086430))
TWO_BITS = _bits(
    *("two bits", [[0.4, 0.1], [0.15, 0.35]]),
    *(1.248781, 0.103220, 1.146220),
    {1: 1.363996, 2: 1.308535, 5: 1.275532, 10: 1.262811, 50: 1.252136},
)
EQUAL_BITS = _bits(
    *("equal bits", [[0.5, 0.0], [0.0, 0.5]]),
    *(0.693147, 0.013223, 0.686536),
    {1: 1.278663, 10: 0.769565},
)
CLASS = _classes(
    *("three classes", [0.5, 0.3, 0.2], 2.0),
    *(1.02965301, 0.18460774, 0.84504527),
    _entropy(1.02965301),
)
SKEWED_CLASS = _classes(
    *("five skewed classes", [0.55, 0.25, 0.10, 0.07, 0.03], 1.0),
    *(1.196987, 0.324489, 0.872498),
    _entropy(1.196987),
    digits=5.0,
)
TWO_CLASSES = _classes(
    "two variables of three classes",
    *([[0.25, 0.05, 0.02], [0.03, 0.20, 0.05], [0.02, 0.08, 0.30]], 1.0),
    *(1.792962, 0.721079, 1.130616),
    {1: 1.997242, 2: 1.929952, 5: 1.884672, 10: 1.868309},
    digits=4.0,
)
BIN = _bins(
    *("four bins", [0.1, 0.2, 0.3, 0.4]),
    *(1.27985423, 0.38169802, 0.89815621),
    _entropy(1.27985423),
)
TWO_BINS = _bins(
    *("two variables in four bins", COUPLED),
    *(2.181280, 0.610131, 1.611482),
    {1: 2.597389, 2: 2.440125, 5: 2.313423, 10: 2.267857},
    digits=8.0,
)

BINARY = (BIT, TWO_BITS, EQUAL_BITS)
MIXTURES = (CLASS, SKEWED_CLASS, TWO_CLASSES, BIN, TWO_BINS)
ROWS = BINARY + MIXTURES

# The law of TWO_BINS as real numbers: a point estimate costs more for each n, and the same L^inf.
NUMBERS_L_N = {1: 7.558500, 5: 2.131065, 20: 1.724959}
NUMBERS_L_INF = 1.611482

# BIN when the output is N(0, 1) cut into bins below t_min, whatever the network returns.
BIN_WITH_T_MIN = {1: 1.3942, 2: 1.3435, 5: 1.3029}
