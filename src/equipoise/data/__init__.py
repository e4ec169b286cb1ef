"""Sources of rows: arrays, tables and formulas, behind one object (`Rows`)."""

from equipoise.data.arrays import Rows, as_rows, rows
from equipoise.data.table import read_table, table

__all__ = ["Rows", "as_rows", "read_table", "rows", "table"]
