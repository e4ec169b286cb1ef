"""Compiled sums over blocks of columns against NumPy's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data.arrays import Rows, rows
from equipoise.engines.numba import sums as compiled
from equipoise.families.family import FAMILIES
from equipoise.linalg import weighted_gram
from equipoise.models import sums
from equipoise.models.glm import GLM

MODELS: dict[str, GLM] = {name: eq.glm(name) for name in FAMILIES} | {
    "huber": eq.glm("gaussian", divergence=eq.Huber()),
    "beta poisson": eq.glm("poisson", divergence=eq.Beta(1.3)),
}


def settled(model: GLM) -> GLM:
    return replace(model, constant=1.3) if model.family.parameter else model


def made(height: int, dim: int, rng: np.random.Generator, beside: bool) -> Rows:
    x = rng.normal(size=(height, dim))
    y = rng.integers(0, 2, height).astype(float)
    extra = (
        {
            "weights": rng.uniform(0.5, 2.0, height),
            "offset": rng.normal(size=height),
            "frequency": rng.integers(1, 4, height),
        }
        if beside
        else {}
    )
    return rows(x, y, **extra)


def apart(block: Rows) -> Rows:
    """The same rows, columns one after the other."""
    return replace(block, x=np.asfortranarray(block.x))


@pytest.mark.parametrize("name", MODELS)
def test_derivatives(name) -> None:
    rng = np.random.default_rng(5)
    model = settled(MODELS[name])
    for beside in (False, True):
        assert_same_derivatives(model, made(1003, 3, rng, beside))


def assert_same_derivatives(model: GLM, block: Rows) -> None:
    theta = np.array([0.3, -0.2, 0.5])
    for orders in ((0,), (0, 1), (0, 1, 2), (1, 2), (1, 2, 3), (2, 3), (3,)):
        found = sums.derivatives(model.loss, apart(block), theta, *orders)
        expected = sums.derivatives(model.loss, block, theta, *orders)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("height", [1, 3, 4, 127, 128, 129, 1001])
@pytest.mark.parametrize("dim", [2, 3, 4, 7, 8, 11, 12, 25, 40])
def test_products(height, dim) -> None:
    rng = np.random.default_rng([height, dim])
    x, score, weight = (
        np.asfortranarray(rng.normal(size=(height, dim))),
        rng.normal(size=height),
        rng.normal(size=height),
    )
    gram, total = compiled.gram_and_sum(x.T, weight, score)
    np.testing.assert_allclose(gram, np.einsum("n,ni,nj->ij", weight, x, x), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(total, score @ x, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(gram, weighted_gram(np.ascontiguousarray(x), weight), rtol=1e-11, atol=1e-11)
    root = np.tril(rng.normal(size=(dim, dim)))
    S = root @ root.T
    expected = np.einsum("ni,ij,nj->n", x, S, x)
    for given in (root, None):
        lower = np.tril(S, -1) + np.diag(0.5 * np.diag(S)) if given is None else given
        np.testing.assert_allclose(compiled.forms(x.T, lower, given is not None), expected, rtol=1e-10, atol=1e-10)
    which, count = rng.integers(0, 5, height), rng.integers(1, 4, height).astype(float)
    by_group = compiled.add_by_group(x.T, score, count, which, 6)
    every = pd.DataFrame(np.column_stack([count, score[:, None] * x])).groupby(which).sum()
    np.testing.assert_allclose(by_group[every.index], every.to_numpy(), rtol=1e-11, atol=1e-12)
    assert not by_group[5].any()


def test_a_value_that_is_not_finite_shows_in_the_sums() -> None:
    x = np.asfortranarray(np.random.default_rng(0).normal(size=(200, 3)))
    for bad in (np.nan, np.inf):
        x[77, 1] = bad
        gram, total = compiled.gram_and_sum(x.T, np.ones(200), np.ones(200))
        assert not np.isfinite(gram[1]).any()
        assert not np.isfinite(total[1])
        assert np.isfinite(gram[[0, 2]][:, [0, 2]]).all()


def test_numbers_that_may_not_be_written_to_and_have_gaps() -> None:
    rng = np.random.default_rng(0)
    block = apart(made(300, 4, rng, beside=False))
    theta = np.full(4, 0.1)
    expected = sums.derivatives(MODELS["poisson"].loss, block, theta, 1)
    y = np.repeat(block.y, 2)[::2]
    y.flags.writeable = False
    np.testing.assert_array_equal(sums.derivatives(MODELS["poisson"].loss, replace(block, y=y), theta, 1), expected)


def test_a_loss_that_cannot_be_compiled_is_summed_all_the_same() -> None:
    plain = MODELS["poisson"].loss
    table = {"factor": 2.0}

    def strange(eta, y, p):
        # a dictionary is nothing that the compiler takes from outside
        return table["factor"] * plain.d1(eta, y, p)

    block = apart(made(300, 4, np.random.default_rng(0), beside=True))
    theta = np.full(4, 0.1)
    (found,) = sums.derivatives(replace(plain, d1=strange), block, theta, 1)
    (once,) = sums.derivatives(plain, block, theta, 1)
    np.testing.assert_allclose(found, 2.0 * once, rtol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_a_loss_is_compiled_once(name) -> None:
    model = settled(MODELS[name])
    block = apart(made(64, 2, np.random.default_rng(0), beside=False))
    sums.derivatives(model.loss, block, np.zeros(2), 1, 2)
    before = compiled._derived_loop.cache_info().misses
    for _ in range(3):
        sums.derivatives(settled(MODELS[name]).loss, block, np.zeros(2), 1, 2)
    assert compiled._derived_loop.cache_info().misses == before
