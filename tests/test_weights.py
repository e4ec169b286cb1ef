"""Weights and frequencies: both by name, against the data written out row by row and against statsmodels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import equipoise as eq
from tests.known import DIVERGENCES, misspecified

FAMILIES = ("gaussian", "bernoulli", "poisson", "gamma", "negative-binomial")
PRIORS = {"flat": {}, "prior": {"prior_precision": np.diag([0.5, 2.0, 0.1]) + 0.2, "prior_mean": 0.3}}
MODELS = {
    **{family: (family, None) for family in FAMILIES},
    **{f"gaussian {name}": ("gaussian", divergence) for name, divergence in DIVERGENCES.items()},
    **{f"{family} beta": (family, eq.Beta(1.2)) for family in FAMILIES[1:]},
}


def counted(family: str, weighted: bool, shifted: bool, n: int = 60) -> tuple[eq.data.Rows, eq.data.Rows]:
    """Rows that count several observations each, and the same observations a row each."""
    x, y = misspecified(family, n=n)
    rng = np.random.default_rng(5)
    times = rng.integers(0, 5, n)
    beside = {
        "weights": rng.uniform(0.3, 2.0, n) if weighted else None,
        "offset": 0.2 * rng.normal(size=n) if shifted else None,
    }
    every = np.repeat(np.arange(n), times)
    return eq.data.rows(x, y, frequency=times, **beside), eq.data.rows(
        x[every], y[every], **{name: None if v is None else v[every] for name, v in beside.items()}
    )


def close(found, wanted, tolerance: float = 1e-10) -> None:
    """Equal to rounding, relative to the largest entry."""
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


# --- Against the data written out ---------------------------------------------------------------------


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "offset"])
@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weights"])
@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_of_the_expanded_data(name, weighted, shifted, prior) -> None:
    family, divergence = MODELS[name]
    model = eq.glm(family, divergence=divergence, **PRIORS[prior])
    short, long = (eq.bind(model, data) for data in counted(family, weighted, shifted))
    assert short.n == long.n > short.source.height
    theta = np.array([0.21, -0.1, 0.33])
    here, there = short.settled(theta), long.settled(theta)
    if there.constant is not None:
        close(here.constant, there.constant)
    for found, wanted in zip(here.derivatives(theta, 2), there.derivatives(theta, 2), strict=True):
        close(found, wanted)
    found, wanted = short.moments(theta), long.moments(theta)
    for field in ("n", "hessian", "loss_hessian", "score_cov", "mean_score", "noise_ratio"):
        close(getattr(found, field), getattr(wanted, field))
    S = np.cov(np.random.default_rng(2).normal(size=(3, 9)))
    close(found.curvature.quadratic(S), wanted.curvature.quadratic(S))
    close(found.curvature.third(S), wanted.curvature.third(S))
    if divergence is None:
        for radius in (None, 0.3):
            one, other = (p.bound_constants(theta, radius) for p in (short, long))
            assert one.scope == other.scope
            assert one.convex == other.convex
            numbers = [k for k, v in vars(other).items() if isinstance(v, float)]
            assert len(numbers) >= 7
            close([getattr(one, k) for k in numbers], [getattr(other, k) for k in numbers])


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weights"])
@pytest.mark.parametrize("name", MODELS)
def test_fit_targets_and_tuning_are_those_of_the_expanded_data(name, weighted) -> None:
    family, divergence = MODELS[name]
    model = eq.glm(family, divergence=divergence, prior_precision=0.4)
    short, long = (eq.bind(model, data) for data in counted(family, weighted, shifted=True))
    found, wanted = eq.fit(short), eq.fit(long)
    close(found.theta, wanted.theta, 1e-8)
    close(found.loss, wanted.loss)
    if wanted.constant is not None:
        close(found.constant, wanted.constant, 1e-8)
    at = long.flatten(wanted.theta)
    one, other = (eq.moments(p.at_constant(wanted.constant), at) for p in (short, long))
    for target in ("sandwich", "posterior", "bayesbag"):
        close(eq.target_matrix(target, one), eq.target_matrix(target, other))
    dynamics = eq.Dynamics(10, replacement=False)
    tunings = [eq.tune(m, eq.target_matrix("sandwich", m), dynamics) for m in (one, other)]
    close(tunings[0].step, tunings[1].step, 1e-9)
    close(tunings[0].predicted.cov, tunings[1].predicted.cov, 1e-9)
