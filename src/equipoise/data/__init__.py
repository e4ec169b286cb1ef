"""Sources of rows: arrays, tables and formulas, and files larger than memory."""

from equipoise.data.arrays import Rows, rows
from equipoise.data.observed import Observations, as_rows, observations
from equipoise.data.scanned import Scan
from equipoise.data.scanning import scan
from equipoise.data.table import read_table, table

__all__ = ["Observations", "Rows", "Scan", "as_rows", "observations", "read_table", "rows", "scan", "table"]
