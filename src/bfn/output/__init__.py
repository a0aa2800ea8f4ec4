"""Output distributions p_O(. | theta; t): what the network's numbers mean."""

from bfn.output.base import Belief, Head, Output
from bfn.output.binned import (
    BinnedHead,
    BinnedOutput,
    FreeBinnedHead,
    FreeBinnedOutput,
    SmoothBinnedHead,
)
from bfn.output.categorical import (
    BernoulliHead,
    BernoulliOutput,
    CategoricalHead,
    CategoricalOutput,
)
from bfn.output.lengths import Lengths
from bfn.output.marginals import Marginals
from bfn.output.mixed import MixedHead, MixedOutput
from bfn.output.point import Bins, MeasurementNoise, PointHead, PointOutput

__all__ = [
    "Belief",
    "BernoulliHead",
    "BernoulliOutput",
    "BinnedHead",
    "BinnedOutput",
    "Bins",
    "CategoricalHead",
    "CategoricalOutput",
    "FreeBinnedHead",
    "FreeBinnedOutput",
    "Head",
    "Lengths",
    "Marginals",
    "MeasurementNoise",
    "MixedHead",
    "MixedOutput",
    "Output",
    "PointHead",
    "PointOutput",
    "SmoothBinnedHead",
]
