"""Intervals from a step matrix that was tuned on few rows cover: estimate and centre are those of all rows."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq

N, THETA, SETS = 8000, np.array([0.4, 0.3, -0.2]), 200


def counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Overdispersed counts with the mean of a Poisson model."""
    rng = np.random.default_rng([7, seed])
    x = np.column_stack([np.ones(N), rng.normal(size=(N, 2))])
    return x, rng.poisson(np.exp(x @ THETA) * rng.gamma(2.0, 0.5, size=N)).astype(float)


def share_covered(share: float, sets: int, **options) -> float:
    hits = []
    for seed in range(sets):
        cal = eq.calibrate(
            eq.glm("poisson"), counts(seed), tuning_rows=int(share * N), seed=seed, progress=False, **options
        )
        lower, upper = np.quantile(cal.chains.flat(), [0.025, 0.975], axis=0)
        hits.append((lower <= THETA) & (upper >= THETA))
    return float(np.mean(hits))


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_independent_draws_cover(share) -> None:
    # three intervals a set, nearly independent: standard error 0.9 %, and a sandwich from 160 rows costs one per cent
    assert 0.915 < share_covered(share, SETS, sampler="gaussian", ess=2000) < 0.98


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_chains_cover(share) -> None:
    # 60 sets: standard error 1.6 %; quantiles of 300 effective draws cost up to one per cent more
    assert 0.89 < share_covered(share, 60, ess=300, chains=2, batch_size=400) <= 1.0


def test_the_rows_themselves_would_not() -> None:
    """A control: centred at the minimiser of the tuning rows, intervals of all rows' width miss."""
    hits = []
    for seed in range(60):
        problem = eq.bind(eq.glm("poisson"), counts(seed))
        centre = eq.fit(problem.subsample(int(0.02 * N), seed)).params
        se = np.sqrt(np.diag(eq.sandwich(eq.moments(problem, eq.fit(problem)))))
        hits.append(np.abs(centre - THETA) <= 1.96 * se)
    assert np.mean(hits) < 0.5
