"""Rows in memory as a step reads them: whole cache lines, with what belongs to a row beside it (theory §10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.engines.cost import row_stride
from equipoise.engines.numba.vector import LANES
from equipoise.families.family import ScalarLoss
from equipoise.theory.dynamics import ControlVariate, Gradient, Plain

__all__ = ["SIDES", "Cells", "RowTable", "padded", "side_columns"]

# Rows as they are held.
Cells = NDArray[np.float64] | NDArray[np.float32]

# Bytes that travel together between memory and processor.
_LINE = 64
# base, y, weight and shift: a row's residual is shift + weight ℓ'(base + x̃ᵀφ, y).
_SIDES = 4


def padded(dim: int) -> int:
    """`dim` rounded up to whole vectors: their loops then have no remainder."""
    return -(-dim // LANES) * LANES


def side_columns(base: Array, y: Array, weights: Array, shift: Array) -> Array:
    """What a row's residual needs besides the row, (N, 4)."""
    return np.stack([base, y, weights, shift], axis=1).astype(np.float64, order="C")


def _plain_sides(loss: ScalarLoss, base: Array, y: Array, weights: Array) -> Array:  # noqa: ARG001
    """The gradient of the batch's rows as it is: no shift."""
    return side_columns(base, y, weights, np.zeros(len(y)))


def _varied_sides(loss: ScalarLoss, base: Array, y: Array, weights: Array) -> Array:
    """What the residual is more than at the minimiser: nothing there, by any row (theory §12)."""
    return side_columns(base, y, weights, -weights * loss.d1(base, y, loss.constants))


# What each gradient estimator makes of a row's residual, from the loss and o, y and w of every row.
SIDES: dict[Gradient, Callable[[ScalarLoss, Array, Array, Array], Array]] = {
    Plain(): _plain_sides,
    ControlVariate(): _varied_sides,
}


@dataclass(frozen=True, eq=False)
class RowTable:
    """N rows of D numbers. A random row is read in one go: each starts on a cache line and ends with its sides.

    `cells` are (N, D padded with zeros to whole vectors), float64 or float32; `sides` are (N, 4), float64, in the same
    memory: base, response, weight and shift.
    """

    cells: Cells
    sides: Array
    dim: int

    @staticmethod
    def blank(count: int, dim: int, storage: str = "float64") -> RowTable:
        """A table whose rows and sides the caller fills in; memory that is not written is not used."""
        kind, width = np.dtype(storage), padded(dim)
        used, stride = width * kind.itemsize, row_stride(dim, storage)
        # empty, not zeros: NumPy asks for huge pages for it, without which a random row costs a walk of the page table
        buffer = np.empty(count * stride + _LINE, dtype=np.uint8)
        first = -buffer.ctypes.data % _LINE
        lines = buffer[first : first + count * stride].reshape(count, stride)
        cells, sides = lines[:, :used].view(kind), lines[:, used : used + _SIDES * 8].view(np.float64)
        return RowTable(cells, sides, dim)

    def room(self, here: slice) -> Cells:
        """Where rows are to be written, with what they are padded with in its place."""
        self.cells[here, self.dim :] = 0.0
        return self.cells[here, : self.dim]

    def put(self, here: slice | Index, rows: Cells) -> None:
        """Write rows, and what they are padded with."""
        self.cells[here, : self.dim] = rows
        self.cells[here, self.dim :] = 0.0
