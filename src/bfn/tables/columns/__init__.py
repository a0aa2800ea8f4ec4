"""How the columns of a table become the variables of a model, and come back.

column.py has one column of each kind, grid.py and bins.py those of numbers, recognise.py tells of
which kind a column is, and columns.py has all of a table.
"""

from bfn.tables.columns.columns import Columns

__all__ = ["Columns"]
