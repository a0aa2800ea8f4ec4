"""Tables: columns of numbers, dates, categories and missing values, as variables of one model.

    table = bfn.Table().fit("train.csv")
    print(bfn.tables.compare("train.csv", table.sample(1000), "test.csv", target="income"))

Names that need pyarrow are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bfn.errors import lazy
from bfn.tables.head import TableHead
from bfn.tables.relations import Pair, Relation

if TYPE_CHECKING:
    from bfn.compare.measures import compare
    from bfn.compare.report import Comparison
    from bfn.tables.columns import Columns
    from bfn.tables.table import Table

__all__ = ["Columns", "Comparison", "Pair", "Relation", "Table", "TableHead", "compare"]
__getattr__ = lazy(
    __name__,
    {
        "Columns": "bfn.tables.columns:Columns",
        "Comparison": "bfn.compare.report:Comparison",
        "Table": "bfn.tables.table:Table",
        "compare": "bfn.compare.measures:compare",
    },
)
