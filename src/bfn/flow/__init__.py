"""The Bayesian half of the model: prior, sender, update, flow distribution. Nothing is learned."""

from bfn.flow.base import BayesianFlow, BinaryFlow, CategoricalFlow, GaussianFlow, Theta
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
