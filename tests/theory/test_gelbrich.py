"""Gelbrich's distance: its formula, that it is a distance, its digits, and the errors a distance leaves room for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import sqrtm

from equipoise.theory.bounds import covariance_error, gelbrich


def test_implied_errors_hold_for_gaussians():
    rng = np.random.default_rng(5)
    for _ in range(50):
        first, second = (a @ a.T for a in rng.normal(size=(2, 4, 4)))
        distance = gelbrich(np.zeros(4), first, np.zeros(4), second)
        assert np.abs(np.sqrt(np.diag(first)) - np.sqrt(np.diag(second))).max() <= distance
        assert np.linalg.norm(first - second, 2) <= covariance_error(distance, np.linalg.norm(second, 2))
    assert covariance_error(0.1, 4.0) == pytest.approx(2 * 0.1 * 2.1)


def test_gelbrich_formulas():
    rng = np.random.default_rng(0)
    assert gelbrich([0.0], [[4.0]], [8.0], [[64.0]]) == pytest.approx(10.0, rel=1e-15)
    assert gelbrich(1.0, 4.0, 3.0, 9.0) == pytest.approx(math.hypot(2, 1))
    for _ in range(10):
        a, b = rng.normal(size=(2, 5, 5))
        first, second, shift = a @ a.T, b @ b.T, rng.normal(size=5)
        root = sqrtm(first)
        cross = np.real(sqrtm(root @ second @ root))
        expected = math.sqrt(shift @ shift + np.trace(first + second - 2 * cross))
        assert gelbrich(shift, first, np.zeros(5), second) == pytest.approx(expected, rel=1e-9)


def test_gelbrich_is_a_distance():
    rng = np.random.default_rng(1)
    for _ in range(20):
        points = [(rng.normal(size=3), a @ a.T) for a in rng.normal(size=(3, 3, 2))]  # singular covariances too
        ab, bc, ac = (gelbrich(*points[i], *points[j]) for i, j in ((0, 1), (1, 2), (0, 2)))
        assert ac <= ab + bc + 1e-12
        assert ab == pytest.approx(gelbrich(*points[1], *points[0]), rel=1e-7)


def test_gelbrich_keeps_its_digits_when_the_covariances_are_close():
    rng = np.random.default_rng(2)
    a = rng.normal(size=(6, 6))
    cov, zero = 1e3 * a @ a.T, np.zeros(6)
    scale = math.sqrt(np.trace(cov))
    assert gelbrich(zero, cov, zero, cov) < 1e-12 * scale
    singular = a[:, :2] @ a[:, :2].T
    assert gelbrich(zero, singular, zero, singular) < 1e-7 * math.sqrt(np.trace(singular))
    # Commuting covariances: the distance is ‖Σ₁^{1/2} − Σ₂^{1/2}‖; the trace formula has no digit left here.
    tiny = 1e-9
    expected = scale * (math.sqrt(1 + tiny) - 1)
    assert gelbrich(zero, cov, zero, cov * (1 + tiny)) == pytest.approx(expected, rel=1e-4)
