"""Wasserstein bounds (theory §8): outside the range of a theorem there is no number, and the assumption that fails is named."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from equipoise.errors import InvalidInput
from equipoise.theory.bounds import (
    finite_time_bound,
    fourth_moment_bound,
    fourth_moment_path,
    momentum_bound,
    stationary_bound,
)
from tests.theory.test_bounds import BATCH, BETA, STEP, C, failing


def test_step_ranges():
    edge = BATCH * 0.7 / (200 * 1.3**2)
    assert failing(stationary_bound(C, edge * 0.999, BATCH, BETA)) == set()
    assert failing(stationary_bound(C, edge, BATCH, BETA)) == {"step range"}
    assert failing(fourth_moment_bound(C, edge, BATCH, BETA)) == set()
    assert failing(fourth_moment_bound(C, edge * 1.001, BATCH, BETA)) == {"step range"}
    assert failing(stationary_bound(C, 1 / (4 * 1.3), 10_000, BETA)) == {"step range"}
    assert failing(finite_time_bound(C, 0.38, BATCH, BETA, 10)) == set()
    assert failing(finite_time_bound(C, 1 / 2.6, BATCH, BETA, 10)) == {"step range"}
    assert failing(stationary_bound(C, 0.0, BATCH, BETA)) == {"step range"}
    assert "Bμ̂/(200L²)" in str(stationary_bound(C, 0.1, BATCH, BETA))


def test_the_condition_missing_from_the_lemma():
    # λ = 0.3 is below 1/(4μ̂) = 2.5 and, with this batch, below Bμ̂/(200L²); but ‖I − λH‖ = 2 for L̂ = 10.
    stiff = dataclasses.replace(C, smoothness=10.0, hessian_max=10.0, hessian_min=0.1, strong_convexity=0.1)
    bound = fourth_moment_bound(stiff, 0.3, 100_000, math.inf)
    assert failing(bound) == {"step range"}
    assert "2/(μ̂+L̂)" in str(bound)
    assert fourth_moment_path(stiff, 0.3, 100_000, math.inf, 200)[-1] > 1e20  # rightly so: the proxy diverges


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"convex": False}, "convex losses"),
        ({"smoothness": math.inf}, "smooth losses"),
        ({"smoothness": 1.0}, "smooth losses"),
        ({"third_mean": math.inf, "third_mean_square": math.inf}, "bounded third derivatives"),
        ({"third_mean": 0.3}, "bounded third derivatives"),
        ({"strong_convexity": 0.0}, "strong convexity"),
        ({"strong_convexity": 0.8}, "strong convexity"),
        ({"hessian_min": 0.0}, "positive Hessian"),
    ],
)
def test_failing_assumptions_are_named(change, name):
    constants = dataclasses.replace(C, **change)
    for bound in (
        stationary_bound(constants, STEP, BATCH, BETA),
        finite_time_bound(constants, STEP, BATCH, BETA, 10),
        momentum_bound(constants, STEP, BATCH, 0.01, 10),
    ):
        assert name in failing(bound)
        assert name in str(bound)


def test_only_a_multiple_of_the_identity_is_a_scalar_step():
    value = stationary_bound(C, STEP, BATCH, BETA).value
    assert stationary_bound(C, STEP * np.eye(3), BATCH, BETA).value == pytest.approx(value)
    assert stationary_bound(C, np.full(3, STEP), BATCH, BETA).value == pytest.approx(value)
    crooked = STEP * np.eye(3) + 1e-4 * np.ones((3, 3))
    for step in (crooked, STEP * np.array([1.0, 1.0, 1.01])):
        for bound in (
            fourth_moment_bound(C, step, BATCH, BETA),
            stationary_bound(C, step, BATCH, BETA),
            finite_time_bound(C, step, BATCH, BETA, 10),
            momentum_bound(C, step, BATCH, 0.01, 10),
        ):
            assert failing(bound) == {"scalar step"}


def test_momentum_has_no_stationary_value_of_its_own():
    bound = momentum_bound(C, 0.02, BATCH, 0.03)
    assert failing(bound) == {"fourth moment supplied"}
    assert "unnamed constants" in str(bound)
    assert failing(momentum_bound(C, 0.02, BATCH, 0.3, 10)) == {"contraction"}
    assert failing(momentum_bound(C, 0.2, BATCH, 0.0, 10)) == {"step range", "contraction"}
    assert {"momentum range", "contraction"} <= failing(momentum_bound(C, 0.02, BATCH, 1.0, 10))
    assert "momentum range" in failing(momentum_bound(C, 0.02, BATCH, -0.1, 10))


def test_diverging_moments_give_no_number():
    noisy = dataclasses.replace(C, smoothness=60.0, strong_convexity=0.01)
    bound = finite_time_bound(noisy, 0.008, 1, BETA, 100_000)
    assert failing(bound) == {"finite fourth moments"}
    assert np.isinf(fourth_moment_path(noisy, 0.008, 1, BETA, 100_000, 0.1)[-1])


def test_wrong_lengths_are_refused():
    with pytest.raises(InvalidInput, match="fourth_moments"):
        finite_time_bound(C, STEP, BATCH, BETA, 5, fourth_moments=np.ones(4))
    with pytest.raises(InvalidInput, match="t: must be at least 1"):
        finite_time_bound(C, STEP, BATCH, BETA, 0)
