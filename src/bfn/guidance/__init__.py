"""Guidance: wrappers that change what a model predicts, and nothing else.

A wrapper is called like a model, (theta, t, **cond) -> Output, and `bfn.generate` takes it in place
of a model, with any solver. Wrappers may wrap wrappers.

    ClassifierFree    multiplies what a label adds to the network's prediction
    Guided            pulls generation towards data that a differentiable function scores high
"""

from __future__ import annotations

from bfn.guidance.base import Wrapper
from bfn.guidance.classifier_free import ClassifierFree
from bfn.guidance.gradient import Guided

__all__ = ["ClassifierFree", "Guided", "Wrapper"]
