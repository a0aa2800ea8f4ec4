"""Recipes: what they hold, how they are read, and what is built from them.

recipe = bfn.recipe.read("digits", {"train.steps": 500})
"""

from bfn.recipe.recipe import FREE, PLACES, Recipe, read, resolve
from bfn.recipe.sections import Eval, Published, Sample, Train

__all__ = [
    "FREE",
    "PLACES",
    "Eval",
    "Published",
    "Recipe",
    "Sample",
    "Train",
    "read",
    "resolve",
]
