"""How the columns of a table become the variables of a model, and come back.

column.py has the kinds of columns, grid.py and bins.py the details of numeric ones, recognise.py
detects the kind of a column, and columns.py has the columns of a table.
"""

from bfn.tables.columns.columns import Columns

__all__ = ["Columns"]
