"""The Bayesian half of the model: prior, sender, update, flow distribution. Nothing is learned."""

from bfn.flow.base import BayesianFlow, Theta
from bfn.flow.categorical import BinaryFlow, CategoricalFlow
from bfn.flow.gaussian import GaussianFlow
from bfn.flow.mixed import Layout, MixedFlow

__all__ = [
    "BayesianFlow",
    "BinaryFlow",
    "CategoricalFlow",
    "GaussianFlow",
    "Layout",
    "MixedFlow",
    "Theta",
]
