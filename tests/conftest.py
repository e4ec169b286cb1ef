"""Seeded data for every family. All of it is misspecified: noise, dispersion and mean are not those of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.families.family import FAMILIES
from equipoise.families.links import LINKS
from equipoise.families.response import LAWS

# The constants at which families are tested: away from their defaults.
CONSTANTS = {"gaussian": {"scale": 1.3}, "gamma": {"shape": 1.7}, "negative-binomial": {"dispersion": 0.6}}


def _response(family: str, eta: Any, rng: np.random.Generator) -> Any:
    # a curved mean and noise that grows with the predictor: neither is in any model
    eta = eta + 0.15 * (eta - eta.mean()) ** 2
    spread = rng.gamma(2.0, 0.5, size=eta.size)
    if family == "gaussian":
        return eta + (0.5 + np.abs(eta)) * rng.standard_t(6, size=eta.size)
    if family == "bernoulli":
        odds = 1.0 / (1.0 + np.exp(-1.5 * eta))
        return (rng.random(eta.size) < 0.1 + 0.8 * odds).astype(np.float64)
    if family == "gamma":
        return np.exp(eta + 0.6 * rng.normal(size=eta.size) * (1.0 + 0.3 * np.abs(eta)))
    return rng.poisson(np.exp(eta) * spread).astype(np.float64)


@pytest.fixture(autouse=True)
def _own_families() -> Iterator[None]:
    """Families that a test or a page registers are gone after it."""
    kept = [(known, dict(known)) for known in (FAMILIES, LINKS, LAWS)]
    yield
    for known, before in kept:
        for name in set(known) - set(before):
            del known[name]


@pytest.fixture(scope="session")
def make_data() -> Callable[..., tuple[Any, Any]]:
    """`make_data(family, n=..., dim=..., seed=...)` gives (X, y) with an intercept and correlated covariates."""

    def make(family: str, n: int = 300, dim: int = 4, seed: int = 0, signal: float = 0.35) -> tuple[Any, Any]:
        rng = np.random.default_rng([seed, n, dim])
        mix = np.eye(dim - 1) + 0.4 * rng.normal(size=(dim - 1, dim - 1))
        x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1)) @ mix / np.sqrt(dim)])
        theta = signal * np.where(np.arange(dim) % 2, -1.0, 1.0)
        return x, _response(family, x @ theta, rng)

    return make


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """`make_model(family, **options)` gives a model with its constant away from the default."""

    def make(family: str, **options: Any) -> Any:
        return eq.glm(family, **{**CONSTANTS.get(family, {}), **options})

    return make


@pytest.fixture(scope="session")
def poisson_run(make_data: Any) -> tuple[Any, Any, Any]:
    """A model, its data and a tuning, for tests that only need some chain."""
    model, data = eq.glm("poisson"), make_data("poisson", n=200, dim=3)
    fitted = eq.fit(model, data)
    tuning = eq.tune(eq.moments(model, data, fitted.params), "sandwich", eq.Dynamics(batch_size=20))
    return model, data, tuning
