"""A network of 107,000 parameters on scikit-learn's digits: one set of weights against draws of its last layer.

The network is trained as usual, by Adam with weight decay. Then its last layer becomes a model of its own, the layers before
it held fixed: it is fitted to the end ("its minimum" below), its posterior is sampled by a calibrated chain, and predictions
are averaged over the draws ("last layer"). All are compared on images that were not seen: accuracy, log loss, calibration
error, and how well the entropy of a prediction tells strange images (rotated, noisy) from usual ones.

Run it with `python examples/digits.py`: about a minute on two cores.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits_common import digits, strange, table

import equipoise as eq

WIDTHS = (64, 1100, 32, 10)
PRECISION = 1.0  # of the Gaussian prior on every weight: weight decay of PRECISION / N


def network(seed: int) -> dict[str, Any]:
    """Weights of the size that keeps activations in range."""
    rng = np.random.default_rng(seed)
    return {
        f"layer{k}": {"weights": rng.normal(size=(a, b)) * np.sqrt(2.0 / a), "bias": np.zeros(b)}
        for k, (a, b) in enumerate(pairwise(WIDTHS))
    }


def logits(params: Any, image: Any) -> Any:
    """What the network says of one image."""
    hidden = image
    for name in ("layer0", "layer1"):
        hidden = jnp.tanh(hidden @ params[name]["weights"] + params[name]["bias"])
    return hidden @ params["layer2"]["weights"] + params["layer2"]["bias"]


def loss(params: Any, row: Any) -> Any:
    """Cross entropy of one image."""
    out = logits(params, row["x"])
    return jax.nn.logsumexp(out) - out[row["y"]]


def train(x: Any, y: Any, epochs: int) -> Any:
    """The usual way: Adam on shuffled batches, weight decay."""
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), network(0))
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, epochs * (len(y) // 100)))

    def objective(params: Any, batch: Any) -> Any:
        penalty = 0.5 * PRECISION * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return jnp.mean(jax.vmap(loss, (None, 0))(params, batch)) + penalty / len(y)

    @jax.jit
    def epoch(params: Any, state: Any, key: Any) -> Any:
        def step(carry: Any, index: Any) -> Any:
            params, state = carry
            slope = jax.grad(objective)(params, {"x": jnp.asarray(x, jnp.float32)[index], "y": jnp.asarray(y)[index]})
            updates, state = optimizer.update(slope, state)
            return (optax.apply_updates(params, updates), state), None

        order = jax.random.permutation(key, len(y)).reshape(-1, 100)
        return jax.lax.scan(step, (params, state), order)[0]

    state = optimizer.init(params)
    for key in jax.random.split(jax.random.key(0), epochs):
        params, state = epoch(params, state, key)
    return jax.tree.map(lambda a: np.asarray(a, np.float64), params)


def probabilities(cal: eq.Calibration | None, params: Any, images: Any) -> Any:
    """Predicted probabilities: of one set of weights, or averaged over the draws."""
    each = jax.jit(lambda p: jax.nn.softmax(jax.vmap(logits, (None, 0))(p, jnp.asarray(images))))
    if cal is None:
        return np.asarray(each(params), np.float64)
    draws = cal.chains.flat()[:: max(1, len(cal.chains.flat()) // 500)]
    return np.mean([np.asarray(each(cal.chains.layout.unflatten(theta)), np.float64) for theta in draws], axis=0)


def main() -> None:
    """Train, sample the last layer, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ess", type=float, default=200, help="effective draws of the last layer")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of training")
    options = parser.parse_args()
    x, x_test, y, y_test = digits()
    params = train(x, y, options.epochs)
    print(f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters, trained by Adam")

    head = {"layer0": False, "layer1": False, "layer2": True}
    model = eq.Model(loss, init=params, trainable=head, prior_precision=PRECISION)
    cal = eq.calibrate(model, {"x": x, "y": y}, target="posterior", ess=options.ess, progress=False)
    print(
        f"{len(cal.names)} of them, the last layer, sampled: {cal.plan.rows:,} rows in {cal.chains.statistics['seconds']:.0f} s"
    )
    ratio = cal.diagnosis.sd_ratio
    print(
        f"their standard deviations: {np.median(ratio):.2f} of what was predicted ({ratio.min():.2f} to {ratio.max():.2f})\n"
    )

    images = {"usual": x_test, **strange(x_test)}
    found = {
        "one network": {kind: probabilities(None, params, some) for kind, some in images.items()},
        "its minimum": {kind: probabilities(None, cal.fit.params, some) for kind, some in images.items()},
        "last layer": {kind: probabilities(cal, params, some) for kind, some in images.items()},
    }
    print(table(found, y_test))


if __name__ == "__main__":
    main()
