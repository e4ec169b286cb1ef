"""Which variant of a step is the faster: the rules, measured on the benchmark's workloads, in one place.

How many threads share a step and how rows are fetched changes no bit; whether a batch is summed in parts and whether a
general loss is projected does, and depends on the batch size, the loss and the data alone. Widths known to the compiler
are not a variant: now that vectors are written out they make a step 3–10 % slower.
"""

from __future__ import annotations

__all__ = ["SPLIT", "pays_to_project", "row_stride", "rows_ahead", "threads_per_chain"]

# Asking for rows ahead of their use, measured on tables of 1 to 800 MB: it saves 35 % of a step if a row is one cache
# line, 15 % at two, 10 % at three to seven, and then nothing or less than nothing: the processor has several loads of
# wide rows under way by itself, and asking twice costs. A table that the second level of cache holds needs no help.
_WIDEST, _CACHED = 512, 2**20
_ASKED = 1024  # bytes of rows under way: more would push out what is in use

# Rows from which a step is summed in parts that threads can share. Two threads meet in 0.05 ms, a step of 10,000 rows
# takes 0.8 ms on one and 0.57 ms on both: memory serves two only half as fast again as one.
SPLIT = 8192
# A general loss as a regression: its rows A_n may take this many times the memory of the data.
_LARGER = 2


# Bytes that travel together between memory and processor, numbers of a vector, and what lies beside each row.
_LINE, _VECTOR, _SIDES = 64, 4, 4


def row_stride(dim: int, storage: str = "float64") -> int:
    """Bytes of a row with its sides as a step reads it, in whole cache lines."""
    width = -(-dim // _VECTOR) * _VECTOR
    return -(-(width * (4 if storage == "float32" else 8) + _SIDES * 8) // _LINE) * _LINE


def rows_ahead(count: int, stride: int) -> int:
    """How many rows ahead of their use to ask memory for them, in a table of `count` rows of `stride` bytes."""
    if stride > _WIDEST or count * stride <= _CACHED:
        return 0
    return min(max(_ASKED // stride, 8), 16)


def threads_per_chain(batch_size: int, threads: int, chains: int) -> int:
    """How many threads share a step of each chain."""
    return max(1, threads // chains) if batch_size >= SPLIT else 1


def pays_to_project(rank: int, dim: int, numbers: float) -> bool:
    """Whether to run a general loss of `rank` combinations in whitened coordinates, for rows of so many numbers."""
    return rank * dim <= _LARGER * numbers
