"""Tables: columns of numbers, dates, categories and missing values, as variables of one model.

    table = bfn.Table().fit("train.csv")
    print(bfn.tables.compare("train.csv", table.sample(1000), "test.csv", target="income"))

Names that need pyarrow are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bfn.tables.head import TableHead
from bfn.tables.relations import Pair, Relation

if TYPE_CHECKING:
    from bfn.compare.measures import compare
    from bfn.compare.report import Comparison
    from bfn.tables.columns import Columns
    from bfn.tables.table import Table

_HOMES = {
    "Columns": "bfn.tables.columns",
    "Comparison": "bfn.compare.report",
    "Table": "bfn.tables.table",
    "compare": "bfn.compare.measures",
}

__all__ = ["Columns", "Comparison", "Pair", "Relation", "Table", "TableHead", "compare"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bfn.tables' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
