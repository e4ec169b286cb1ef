"""Vectors in compiled code, operation by operation."""

import numba
import numpy as np

from equipoise.engines.numba import vector as v

RNG = np.random.default_rng(0)


def test_rows_are_loaded_from_any_stride_and_type_and_summed_in_pairs():
    @numba.njit
    def sums(matrix, out):
        rows = (v.load_row(matrix, 0, 4), v.load_row(matrix, 1, 4), v.load_row(matrix, 2, 4), v.load_row(matrix, 3, 4))
        v.store(out, 2, v.sums4(rows[0], rows[1], rows[2], rows[3]))
        return v.sum1(rows[3])

    for kind in (np.float64, np.float32):
        matrix = RNG.normal(size=(4, 12)).astype(kind)[:, :9]
        out = np.full(7, np.nan)
        last = sums(matrix, out)
        x = matrix[:, 4:8].astype(np.float64)
        np.testing.assert_array_equal(out[2:6], (x[:, 0] + x[:, 1]) + (x[:, 2] + x[:, 3]))
        assert last == out[5]
        assert np.isnan(out[[0, 1, 6]]).all()


def test_a_product_is_added_with_one_rounding():
    @numba.njit
    def combine(a, b, out):
        v.store(out, 0, v.fma(v.load(a, 0), v.load(b, 0), v.spread(-1.0)))
        v.store(out, 4, v.add(v.load(a, 0), v.load(b, 0)))
        v.store(out, 8, v.zeros())

    tiny, out = 2.0**-30, np.full(12, np.nan)
    a, b = np.array([1.0 + tiny, 2.0, 3.0, 0.5]), np.array([1.0 - tiny, 4.0, -1.0, 8.0])
    combine(a, b, out)
    # (1 + ε)(1 − ε) − 1 = −ε², which a rounded product loses; a processor without the instruction gives zero
    assert out[0] in (-(tiny**2), 0.0)
    np.testing.assert_array_equal(out[1:4], a[1:] * b[1:] - 1.0)
    np.testing.assert_array_equal(out[4:8], a + b)
    np.testing.assert_array_equal(out[8:], 0.0)
