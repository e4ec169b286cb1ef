"""Splitting a loss at what is affine in its parameters: how many combinations are found, and that nothing is lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.engines.jax.projection import find_projection

ROW = {"x": np.array([0.5, -1.2, 0.3]), "y": np.array(1.4)}


def softmax(p, o):
    return -jax.nn.log_softmax(o["x"] @ p[:6].reshape(3, 2))[1]


def network(p, o):
    return (o["y"] - jnp.tanh(o["x"] @ p[:6].reshape(3, 2)) @ p[6:8]) ** 2


def poisson(p, o):
    eta = o["x"] @ p[1:4] / 2.0 + p[0]
    return jnp.exp(eta) - o["y"] * eta


LOSSES = {
    "squared": (lambda p, o: 0.5 * (o["y"] - o["x"] @ p[1:4] - p[0]) ** 2, 1),
    "sum of products": (lambda p, o: jnp.sum(o["x"] * p[:3]) ** 2, 1),
    # of η and y η, only η
    "poisson": (poisson, 1),
    "two classes": (softmax, 2),
    # two hidden units, and the weights that multiply them
    "network": (network, 4),
    "linear": (lambda p, o: o["x"] @ p[:3], 1),
    "constant": (lambda p, o: o["y"] ** 2, 0),
    # the scale is read twice, and counted twice
    "location and scale": (lambda p, o: (o["y"] - o["x"] @ p[:3]) ** 2 * jnp.exp(-p[3]) + p[3], 3),
    "branches": (lambda p, o: jax.lax.cond(o["y"] > 0, lambda e: e**2, lambda e: e, o["x"] @ p[:3]), 1),
    "product of two": (lambda p, o: (o["x"] @ p[:3]) * p[4], 2),
    "quotient": (lambda p, o: o["y"] / (2.0 + o["x"] @ p[:3]), 1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_halves_make_the_loss_and_the_first_is_affine(name):
    loss, rank = LOSSES[name]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        one, other = (jnp.asarray(0.3 * rng.normal(size=8)) for _ in range(2))
        found = find_projection(lambda theta, frame, row: loss(theta, row), one, (), ROW)
        if rank == 0:
            assert found is None
            return
        assert found.rank == rank
        for theta in (one, other):
            np.testing.assert_allclose(
                found.outer(found.combine(theta, (), ROW), (), ROW), loss(theta, ROW), rtol=1e-14
            )
        middle = found.combine(0.3 * one + 0.7 * other, (), ROW)
        expected = 0.3 * found.combine(one, (), ROW) + 0.7 * found.combine(other, (), ROW)
        np.testing.assert_allclose(middle, expected, rtol=1e-13, atol=1e-15)
