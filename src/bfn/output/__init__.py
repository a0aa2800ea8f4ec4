"""Output distributions p_O(. | theta; t): what the network's numbers mean."""

from bfn.output.base import Head, Output
from bfn.output.beliefs import Belief
from bfn.output.binned import BinnedHead, BinnedOutput, FreeBinnedHead, FreeBinnedOutput
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
from bfn.output.smooth import SmoothBinnedHead

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
