"""The lowest point of a quadratic function in a ball: conditions that no other point fulfils, and points that it is below."""

import numpy as np
import pytest

from equipoise.fitting.region import lowest


@pytest.mark.parametrize("radius", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("lift", [-2.0, 0.0, 1e-9, 5.0])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_no_point_of_the_ball_is_lower(radius, lift, orthogonal):
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    H = axes @ np.diag([lift, lift + 1.0, 3.0 + lift, 1e3]) @ axes.T
    slope = rng.normal(size=4)
    if orthogonal:  # no slope along the lowest curvature: no multiplier makes a step that is long enough
        slope[0] = 0.0
    g = axes @ slope
    p, gain = lowest(g, H, radius)
    assert np.linalg.norm(p) <= radius * 1.002
    assert gain == pytest.approx(-(g @ p + 0.5 * p @ H @ p), rel=1e-6)
    points = rng.normal(size=(100_000, 4))
    points *= radius * rng.random((100_000, 1)) ** 0.25 / np.linalg.norm(points, axis=1, keepdims=True)
    assert gain >= -(points @ g + 0.5 * np.einsum("ij,jk,ik->i", points, H, points)).min() * 0.995
    # stationary in the ball, with the lowest curvature made up for
    force = max(0.0, -float((g + H @ p) @ p) / float(p @ p))
    assert force >= -lift * 0.995
    np.testing.assert_allclose(H @ p + force * p, -g, atol=0.003 * (np.linalg.norm(g) + force * radius))


def test_a_flat_direction_is_not_followed():
    columns = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    H, g = columns.T @ columns, np.array([0.3, 0.3, -0.1])
    p, gain = lowest(g, H, 100.0)
    np.testing.assert_allclose(columns @ p, [-0.3, 0.1], rtol=1e-3)
    assert np.linalg.norm(p) < 1.0
    assert gain == pytest.approx(0.5 * (0.3**2 + 0.1**2), rel=1e-3)
