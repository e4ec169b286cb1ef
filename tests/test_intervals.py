"""Intervals in small samples: the mean of a chain is shifted where it was predicted."""

from __future__ import annotations

import numpy as np

import equipoise as eq


def test_the_shift_is_where_it_was_predicted() -> None:
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(60), rng.normal(size=(60, 2))])
    y = (rng.random(60) < 1.0 / (1.0 + np.exp(-x @ [0.5, 1.0, -1.0]))).astype(float)
    cal = eq.calibrate(eq.glm("bernoulli"), (x, y), ess=20_000, progress=False)
    sd = np.sqrt(np.diag(cal.tuning.target))
    assert np.abs(cal.diagnosis.predicted_shift).max() > 0.15
    before, after = (
        np.abs((0.5 * (found["lower"] + found["upper"]) - found["estimate"]) / sd).max()
        for found in (cal.intervals(0.5), cal.intervals(0.5, recentred=True))
    )
    # the median of a skewed law is not its mean: what remains is a third of the shift at most
    assert after < 0.34 * before
