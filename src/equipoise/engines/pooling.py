"""How many rows of files wait for their step, in memory and on the disk, and how often the files are read for all steps."""

from __future__ import annotations

from math import ceil
from typing import Any

from equipoise.data.scanned import Scan
from equipoise.data.spill import free_disk
from equipoise.engines.cost import row_stride

__all__ = ["pool_bytes", "pool_rows", "pools_needed", "reach"]

# Of `memory`, what rows that wait for their step take, and at most where fewer would not make a step of all chains; and
# what rows take that were read and are still to be written to the disk.
_SHARE, _MOST, _READ = 8, 2, 4
# Chains for which a step is to fit.
_CHAINS = 16
# Bytes for each row that waits besides: its number, and where it goes.
_BESIDE = 48
# Of the disk that is free, what rows may take that wait there.
_DISK = 2


def pool_rows(memory: int, row_bytes: int, batch_size: int) -> int:
    """How many rows may wait in memory at a time."""
    room = memory // (row_bytes + _BESIDE)
    return min(room // _MOST, max(room // _SHARE, _CHAINS * batch_size))


def pool_bytes(source: Scan[Any], dim: int) -> int:
    """Bytes of a row that waits."""
    return row_stride(dim) if source.design is not None else 2 * 8 * source.encoder.width


def reach(source: Scan[Any]) -> int:
    """How many rows one reading of the files brings: those that wait on the disk, and pass through memory on their way."""
    size = 8 * source.encoder.width + _BESIDE
    return int(min(free_disk() / _DISK, source.memory / _READ / source.at_once) / size)


def pools_needed(source: Scan[Any], rows: float, row_bytes: int, batch_size: int) -> float:
    """How many times the files are read for so many rows of all chains."""
    return float(ceil(rows / max(1, reach(source), pool_rows(source.memory, row_bytes, batch_size))))
