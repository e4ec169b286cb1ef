"""The compiled exponential, against forty decimal digits, at its edges, and as machine code."""

from decimal import Decimal, getcontext

import numba
import numpy as np
import pytest

from equipoise.engines.numba.compiling import compile_helper
from equipoise.engines.numba.exponential import exponential, log_one_plus
from equipoise.engines.random import JIT
from equipoise.families import divergence, family
from equipoise.families.family import FAMILIES


@numba.njit(**JIT)
def many(values, result):
    for k in range(values.size):
        result[k] = exponential(values[k])


def evaluate(values):
    result = np.empty(len(values))
    many(np.asarray(values, dtype=np.float64), result)
    return result


def exact(value):
    getcontext().prec = 40
    return Decimal(float(value)).exp()


@pytest.mark.parametrize(("low", "high"), [(-708.3, 709.7), (-40.0, 40.0), (-1.0, 1.0), (-1e-7, 1e-7)])
def test_the_relative_error_is_below_one_unit_in_the_last_place(low, high):
    values = np.random.default_rng(1).uniform(low, high, 4000)
    errors = [abs(Decimal(float(e)) / exact(x) - 1) for x, e in zip(values, evaluate(values), strict=True)]
    assert max(errors) < Decimal("2.2e-16")


def test_the_error_does_not_peak_where_the_reduction_changes_its_integer():
    # Next to n log 2 + ½ log 2 the reduced argument is at its largest, and changes sign.
    middle = (np.arange(-1020, 1022) + 0.5) * np.log(2.0)
    values = np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
    errors = [abs(Decimal(float(e)) / exact(x) - 1) for x, e in zip(values, evaluate(values), strict=True)]
    assert max(errors) < Decimal("2.2e-16")


def test_subnormal_results_are_rounded_to_the_nearest_or_its_neighbour():
    values = np.random.default_rng(2).uniform(-745.2, -708.4, 3000)
    unit = Decimal(np.nextafter(0.0, 1.0))
    errors = [abs(Decimal(float(e)) - exact(x)) / unit for x, e in zip(values, evaluate(values), strict=True)]
    assert max(errors) <= Decimal("1.01")


def test_the_ends_of_the_range_are_those_of_numpy():
    values = np.array([0.0, -0.0, 5e-324, -5e-324, np.inf, -np.inf, 1e308, -1e308, 1000.0, 1000.1, -1000.0, -1000.1])
    edges = np.array([709.782712893384, 709.7827128933841, -745.1332191019411, -745.1332191019412])
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(evaluate(values), np.exp(values))
        np.testing.assert_array_equal(evaluate(edges), np.exp(edges))
    assert np.isnan(evaluate([np.nan, -np.nan])).all()


def test_every_exponential_of_a_family_goes_through_the_one_the_engine_replaces():
    assert compile_helper(family.exp) is exponential
    assert divergence.exp is family.exp
    for name in ("bernoulli", "poisson", "gamma", "negative-binomial"):
        assert "exp" in FAMILIES[name].loss.d1.__code__.co_names
    np.testing.assert_array_equal(family.exp(np.array([0.0, 1.0])), np.exp([0.0, 1.0]))


def test_a_value_does_not_depend_on_its_neighbours():
    # The compiler handles the end of an array one by one and the rest four at a time.
    values = np.random.default_rng(3).normal(0.0, 30.0, 999)
    whole = evaluate(values)
    np.testing.assert_array_equal(np.concatenate([evaluate(values[k : k + 1]) for k in range(999)]), whole)


@numba.njit(**JIT)
def many_logarithms(values, result):
    for k in range(values.size):
        result[k] = log_one_plus(values[k])


def test_the_logarithm_of_one_and_more():
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.uniform(0.0, 1.0, 3000), 10.0 ** rng.uniform(-300, 0, 1000), [0.0, 1e-300, 1.0]])
    found = np.empty(values.size)
    many_logarithms(values, found)
    np.testing.assert_allclose(found, np.log1p(values), rtol=4.5e-16, atol=0.0)
    many_logarithms(np.full(1, np.nan), found[:1])
    assert np.isnan(found[0])
