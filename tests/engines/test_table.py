"""The table: where rows and what belongs to them lie in memory."""

import numpy as np
import pytest

from equipoise.engines.numba.table import RowTable, padded, side_columns


@pytest.mark.parametrize("storage", ["float64", "float32"])
@pytest.mark.parametrize("dim", [1, 4, 5, 50, 100])
def test_a_row_and_its_sides_share_whole_cache_lines(dim, storage):
    rows = np.random.default_rng(dim).normal(size=(7, dim))
    table = RowTable.blank(7, dim, storage)
    table.put(slice(None), rows)
    size, stride = np.dtype(storage).itemsize, table.cells.strides[0]
    assert table.cells.shape == (7, padded(dim))
    assert padded(dim) % 4 == 0
    assert dim <= padded(dim) < dim + 4
    assert stride % 64 == table.cells.ctypes.data % 64 == 0
    assert table.sides.ctypes.data == table.cells.ctypes.data + padded(dim) * size
    assert table.sides.strides[0] == stride
    # no line more than rows and sides need
    assert stride - 64 < padded(dim) * size + 32 <= stride
    np.testing.assert_array_equal(table.cells[:, :dim], rows.astype(storage))
    table.sides[:] = np.nan
    np.testing.assert_array_equal(table.cells[:, dim:], 0.0)
    np.testing.assert_array_equal(table.cells[:, :dim], rows.astype(storage))


def test_sides_are_base_response_weight_and_shift():
    columns = [np.arange(k, k + 3.0) for k in range(4)]
    np.testing.assert_array_equal(side_columns(*columns), np.transpose(columns))
