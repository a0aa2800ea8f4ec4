"""Recipes: what they hold, how they are read, and what is built from them.

recipe = bfn.recipe.read("digits", {"train.steps": 500})
"""

from bfn.recipe.recipe import (
    FREE,
    PLACES,
    Eval,
    Published,
    Recipe,
    Sample,
    Train,
    find,
    names,
    read,
    resolve,
)

__all__ = [
    "FREE",
    "PLACES",
    "Eval",
    "Published",
    "Recipe",
    "Sample",
    "Train",
    "find",
    "names",
    "read",
    "resolve",
]
