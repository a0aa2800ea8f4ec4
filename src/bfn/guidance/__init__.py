"""Models seen through a wish: wrappers that change what is predicted, and nothing else.

A wrapper is called as a model is, (theta, t, **cond) -> Output, and `bfn.generate` takes it in a
model's place, with any solver. Wrappers may wrap wrappers.

    ClassifierFree    what a label adds to the network's prediction, multiplied
    Guided            a pull towards data that a differentiable function likes
"""

from __future__ import annotations

from bfn.guidance.base import Wrapper
from bfn.guidance.classifier_free import ClassifierFree
from bfn.guidance.gradient import Guided

__all__ = ["ClassifierFree", "Guided", "Wrapper"]
