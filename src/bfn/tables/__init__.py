"""Tables: columns of numbers, dates, categories and missing values, as variables of one model.

    print(bfn.tables.compare("train.csv", "new.csv", "test.csv", target="income"))

Names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn.tables.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bfn.tables' has no attribute {name!r}")
    value = getattr(importlib.import_module("bfn.tables.comparison"), name)
    globals()[name] = value
    return value
