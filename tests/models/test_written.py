"""The curvature operator of a loss of one's own written out, beside the sum over its rows."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.models.general.written import Written, halves, turning


@pytest.mark.parametrize("units", [[1.0, 1.0, 1.0, 1.0], [1e9, 1e-9, 1.0, 1e3]])
@pytest.mark.parametrize("indefinite", [False, True])
def test_it_is_the_sum_over_rows_for_any_matrix_and_in_any_units(units, indefinite) -> None:
    rng, scale = np.random.default_rng(3), np.array(units)
    x, weight = rng.normal(size=(300, 4, 2)), rng.uniform(0.5, 2.0, 300)
    J = x @ np.transpose(x, (0, 2, 1))
    if indefinite:
        J -= 0.7 * np.eye(4)
    J = scale[:, None] * J * scale
    turn = turning(J.mean(axis=0))
    v = halves(J, turn)
    assert v.shape == (300, 10)
    written = Written(turn, (v * weight[:, None]).T @ v)
    for _ in range(3):
        A = rng.normal(size=(4, 4)) / scale[:, None]
        # definite or not, in the units of the parameters
        S = (A * rng.normal(size=4)) @ A.T if indefinite else A @ A.T
        expected = np.einsum("n,nij,jk,nkl->il", weight, J, S, J)
        # by rounding, of sums whose terms may cancel
        size = np.einsum("n,nij,jk,nkl->il", weight, np.abs(J), np.abs(S), np.abs(J))
        np.testing.assert_array_less(np.abs(written.quadratic(S) - expected), 1e-12 * size)
