"""Rows: what arrays become, and what is turned away at the door."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import equipoise as eq

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])


def test_arrays_become_contiguous_floats() -> None:
    made = eq.data.rows(np.asfortranarray(X.astype(np.float32)), Y.astype(int), weights=np.ones(6, int), offset=[0] * 6)
    for array in (made.x, made.y, made.weights, made.offset):
        assert array.dtype == np.float64
        assert array.flags["C_CONTIGUOUS"]
    assert (made.n, made.dim, made.names, made.response) == (6, 2, ("x0", "x1"), "y")


def test_booleans_and_numeric_objects_are_numbers() -> None:
    made = eq.data.rows(X.astype(object), Y > 2)
    np.testing.assert_array_equal(made.x, X)
    np.testing.assert_array_equal(made.y, [0, 0, 0, 1, 1, 1])


def test_pandas_gives_names() -> None:
    made = eq.data.rows(pd.DataFrame(X, columns=["dose", 7]), pd.Series(Y, name="count"))
    assert made.names == ("dose", "7")
    assert made.response == "count"
    assert eq.data.rows(pd.DataFrame(X, columns=["a", "b"]), Y, names=["c", "d"]).names == ("c", "d")


def test_a_column_vector_is_a_response() -> None:
    np.testing.assert_array_equal(eq.data.rows(X, Y[:, None]).y, Y)


def test_as_rows_accepts_pairs_mappings_and_rows() -> None:
    made = eq.data.as_rows({"x": X, "y": Y, "weights": Y + 1.0, "offset": -Y, "frequency": Y + 2.0})
    np.testing.assert_array_equal(made.frequency, Y + 2.0)
    np.testing.assert_array_equal(made.weights, Y + 1.0)
    np.testing.assert_array_equal(made.offset, -Y)
    assert eq.data.as_rows(made) is made
    for pair in ((X, Y), [X, Y]):
        np.testing.assert_array_equal(eq.data.as_rows(pair).x, X)


@pytest.mark.parametrize("data", [X, (X, Y, Y), {"x": X}, {"x": X, "y": Y, "w": Y}, None, "file.csv", 3])
def test_as_rows_refuses_the_rest(data) -> None:
    with pytest.raises(eq.InvalidInput, match=rf"data: must be an \(X, y\) pair.*got {type(data).__name__}"):
        eq.data.as_rows(data)


def test_subsample_is_uniform() -> None:
    data = eq.data.rows(X, Y)
    counts = np.bincount(np.concatenate([data.sample(2, s).y.astype(int) for s in range(3000)]), minlength=6)
    # each row is in a third of the subsamples: 1000 ± 5 standard deviations of a binomial
    assert np.abs(counts - 1000).max() < 5.0 * np.sqrt(3000 * (1 / 3) * (2 / 3))


def bad(array, index, value):
    array = np.array(array, dtype=float)
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X[:, 0]}, r"X: must be a two-dimensional.*shape \(6,\).*reshape"),
        ({"x": X[:0]}, r"X: must be .*at least one row.*shape \(0, 2\)"),
        ({"x": X[:, :0]}, r"X: must be .*one column.*shape \(6, 0\)"),
        ({"x": [[1.0, 2.0], [3.0]]}, "X: must be a rectangular array; got rows of unequal length"),
        ({"x": [["a", "b"]] * 6}, "X: must be numeric; got dtype .*To fix: encode text"),
        ({"x": X + 1j}, "X: must be numeric; got dtype complex128"),
        ({"x": X.astype("M8[D]")}, "X: must be numeric; got dtype datetime64"),
        ({"x": bad(X, (2, 1), np.nan)}, r"X: must be finite; got NaN or infinity at \(2, 1\)\. To fix: drop or impute"),
        ({"x": bad(X, (slice(None), 0), np.inf)}, r"at \(0, 0\), \(1, 0\), \(2, 0\) and 3 more"),
        ({"y": Y[:5]}, r"y: must be a vector with one entry per row of X, \(6,\); got shape \(5,\)"),
        ({"y": bad(Y, 3, -np.inf)}, "y: must be finite; got NaN or infinity at 3"),
        ({"y": ["a"] * 6}, "y: must be numeric"),
        ({"weights": 0 * Y}, "weights: must be positive for some row; got zero for every row"),
        ({"weights": Y - 3.0}, r"weights: must be positive or zero; got -3 at row 0 \(3 such rows\)"),
        ({"frequency": 0 * Y}, "frequency: must be positive for some row"),
        ({"frequency": bad(Y, 4, 2.5)}, r"frequency: must be whole numbers.*got 2.5 at row 4.*weights= takes"),
        ({"frequency": bad(Y, 2, -1.0)}, "frequency: must be whole numbers, zero or more; got -1 at row 2"),
        ({"frequency": bad(Y, 2, np.nan)}, "frequency: must be finite; got NaN or infinity at 2"),
        ({"frequency": Y[:2]}, r"frequency: must be a vector.*shape \(2,\)"),
        ({"frequency": Y * 2.0**51}, "frequency: must be less than 2⁵³ in all"),
        ({"frequency": Y > 2, "weights": Y < 3}, "weights, frequency: must be positive for some row"),
        ({"weights": bad(Y + 1.0, 0, np.nan)}, "weights: must be finite"),
        ({"weights": Y[:2] + 1.0}, r"weights: must be a vector.*shape \(2,\)"),
        ({"offset": Y[:2]}, r"offset: must be a vector.*shape \(2,\)"),
        ({"offset": bad(Y, 1, np.inf)}, "offset: must be finite; got NaN or infinity at 1"),
        ({"names": ["a"]}, r"names: must be 2 distinct names.*got \['a'\]"),
        ({"names": ["a", "a"]}, "names: must be 2 distinct names"),
    ],
)
def test_bad_arrays(arguments, message) -> None:
    with pytest.raises(eq.InvalidInput, match=message) as caught:
        eq.data.rows(**{"x": X, "y": Y, **arguments})
    assert "To fix: " in str(caught.value)
