"""A panel of firms and years, for what is clustered by either."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq

N = 240
CLUSTERS = {"CRV1": {"clusters": "firm"}, "CRV3": {"clusters": "firm"}, "HAC": {"lags": 4}}


@pytest.fixture(scope="module")
def panel():
    """Rows of 21 firms in 8 years, with shocks of both; neither is in any model."""
    rng = np.random.default_rng(4)
    firm, year = rng.integers(0, 21, N), rng.integers(0, 8, N)
    x = np.column_stack([np.ones(N), rng.normal(size=N) + 0.5 * (firm % 3), rng.normal(size=N)])
    shock = 0.5 * rng.normal(size=21)[firm] + 0.3 * rng.normal(size=8)[year]
    eta = 0.4 + x @ [0.0, 0.3, -0.2] + shock
    return {
        "x": x, "firm": firm, "year": year, "weights": rng.uniform(0.5, 2.0, N), "offset": 0.2 * rng.normal(size=N),
        "gaussian": eta + (0.4 + np.abs(x[:, 1])) * rng.normal(size=N),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "bernoulli": (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(float),
        "gamma": np.exp(eta) * rng.gamma(1.5, size=N),
        "negative-binomial": rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, size=N)).astype(float),
    }  # fmt: skip


def bound(panel, family, *, beside=True, model=None, **options):
    extra = {"weights": panel["weights"], "offset": panel["offset"]} if beside else {}
    marks = {"firm": panel["firm"], "year": panel["year"]}
    rows = eq.data.rows(panel["x"], panel[family], **extra, clusters=marks)
    return eq.bind(model or eq.glm(family, **options), rows)


def close(found, expected, rtol=1e-8):
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=rtol)
