"""Training: `fit` for a network and data of your own, `run` for recipes.

result = bfn.train.fit(model, x, steps=2000, batch=128, out="runs/mine")
"""

from bfn.errors import Diverged, Interrupted
from bfn.recipe import read
from bfn.train.training import Fit, fit, run

__all__ = ["Diverged", "Fit", "Interrupted", "fit", "read", "run"]
