"""Training: `fit` for a network and data of your own, `run` for recipes.

    result = bfn.train.fit(model, x, steps=2000, batch=128, out="runs/mine")

Names are loaded when first used: reading a recipe needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn.errors import Diverged, Interrupted
    from bfn.recipe import read
    from bfn.train.training import Fit, fit, run

_HOMES = {
    "Diverged": "bfn.errors",
    "Fit": "bfn.train.training",
    "Interrupted": "bfn.errors",
    "fit": "bfn.train.training",
    "read": "bfn.recipe",
    "run": "bfn.train.training",
}

__all__ = ["Diverged", "Fit", "Interrupted", "fit", "read", "run"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bfn.train' has no attribute {name!r}")
