"""How many rows of files wait in memory for their step, and how often the files are read for all steps."""

from __future__ import annotations

from math import ceil
from typing import Any

from equipoise.data.scanned import Scan
from equipoise.engines.cost import row_stride

__all__ = ["pool_bytes", "pool_rows", "pools_needed"]

# Of `memory`, what rows that wait for their step may take; the rest is for reading them.
_SHARE = 2
# Bytes for each of them besides: its number, and where it goes.
_BESIDE = 48


def pool_rows(memory: int, row_bytes: int) -> int:
    """How many rows may wait at a time."""
    return memory // (_SHARE * (row_bytes + _BESIDE))


def pool_bytes(source: Scan[Any], dim: int) -> int:
    """Bytes of a row that waits."""
    return row_stride(dim) if source.design is not None else 2 * 8 * source.encoder.width


def pools_needed(rows: float, memory: int, row_bytes: int) -> float:
    """How many times the data are read for so many rows of all chains."""
    return float(ceil(rows / max(1, pool_rows(memory, row_bytes))))
