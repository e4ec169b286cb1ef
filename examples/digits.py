"""A network of 107,000 parameters on scikit-learn's digits: one set of weights against draws of a posterior.

The network is trained as usual, by Adam with weight decay ("one network"). Then

- its last layer becomes a model of its own, the layers before it held fixed: it is fitted to the end ("last layer, fitted"),
  its posterior is sampled by a calibrated chain ("last layer, chain"), and, to compare, drawn as the normal law that has the
  posterior's curvature at its minimum ("last layer, normal");
- all weights move in a subspace of a few directions ("subspace of a trajectory"; `--subspaces` has others), sampled likewise.

Predicted probabilities are averaged over the draws and compared on images that were not seen: accuracy, log loss, calibration
error, and how well the entropy of a prediction tells strange images (rotated, noisy) from usual ones.

Run it with `python examples/digits.py`: two minutes on two cores. `--splits 3 --figure digits.svg` repeats it on other splits
of the images, with standard errors, and makes the figure of the documentation.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits_common import digits, draw, keep, shown, table

import equipoise as eq

WIDTHS = (64, 1100, 32, 10)
PRECISION = 1.0  # of the Gaussian prior on every weight: weight decay of PRECISION / N
HEAD = {"layer0": False, "layer1": False, "layer2": True}
SUBSPACES = {
    "subspace of curvature": "curvature",
    "subspace of scores": "scores",
    "subspace of a trajectory": "trajectory",
}
ROWS = 300  # on which directions are found and steps are tuned, in a subspace
DRAWS = 100  # whose predictions are averaged


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


def train(x: Any, y: Any, epochs: int, seed: int) -> Any:
    """The usual way: Adam on shuffled batches, weight decay."""
    params = single(network(seed))
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
    for key in jax.random.split(jax.random.key(seed), epochs):
        params, state = epoch(params, state, key)
    return jax.tree.map(lambda a: np.asarray(a, np.float64), params)


def single(params: Any) -> Any:
    """Parameters in single precision, which is enough to predict."""
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params)


@jax.jit
def probabilities(params: Any, images: Any) -> Any:
    """What one set of weights predicts."""
    return jax.nn.softmax(jax.vmap(logits, (None, 0))(params, images))


def averaged(many: list[Any], images: dict[str, Any]) -> dict[str, Any]:
    """Predicted probabilities of each kind of images, averaged over sets of weights."""
    every = [single(params) for params in many]
    return {
        kind: np.mean([np.asarray(probabilities(p, jnp.asarray(some, jnp.float32)), np.float64) for p in every], axis=0)
        for kind, some in images.items()
    }


def draws(cal: eq.Calibration) -> list[Any]:
    """Draws of a chain, as weights, evenly spread."""
    flat = cal.chains.flat()
    return [cal.chains.layout.unflatten(theta) for theta in flat[:: max(1, len(flat) // DRAWS)]]


def tell(name: str, cal: eq.Calibration) -> None:
    """How a chain compares with what was predicted of it."""
    ratio = cal.diagnosis.sd_ratio
    print(
        f"{name}: {len(cal.names)} coordinates, {cal.plan.rows:,} rows; standard deviations {np.median(ratio):.2f} of those "
        f"predicted ({ratio.min():.2f} to {ratio.max():.2f})",
        flush=True,
    )


def compare(found: Any, seed: int, options: argparse.Namespace) -> None:
    """Train on one split, sample, and keep what each way to predict is worth."""
    x, x_test, y, y_test = digits(seed)
    data, images = {"x": x, "y": y}, shown(x_test, seed)
    params = train(x, y, options.epochs, seed)
    print(f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters, trained by Adam on split {seed}")
    keep(found, "one network", averaged([params], images), y_test)

    asked = {"target": "posterior", "ess": options.ess, "seed": seed, "progress": False}
    head = eq.Model(loss, init=params, trainable=HEAD, prior_precision=PRECISION)
    cal = eq.calibrate(head, data, **asked)
    tell("last layer", cal)
    keep(found, "last layer, fitted", averaged([cal.fit.params], images), y_test)
    away = (
        np.random.default_rng(seed).normal(size=(DRAWS, len(cal.names))) @ np.linalg.cholesky(cal.plan.target.matrix).T
    )
    normal = [cal.chains.layout.unflatten(cal.fit.theta + one) for one in away]
    keep(found, "last layer, normal", averaged(normal, images), y_test)
    keep(found, "last layer, chain", averaged(draws(cal), images), y_test)

    every = eq.Model(loss, init=params, prior_precision=PRECISION)
    for name in options.subspaces:
        small = eq.subspace(every, data, params, rank=options.rank, of=SUBSPACES[name], tuning_rows=ROWS, seed=seed)
        cal = eq.calibrate(small, data, tuning_rows=ROWS, **asked)
        tell(name, cal)
        keep(found, name, averaged(draws(cal), images), y_test)


def main() -> None:
    """Every split, then the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ess", type=float, default=100, help="effective draws")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of training")
    parser.add_argument("--rank", type=int, default=5, help="directions of a subspace")
    parser.add_argument("--subspaces", nargs="*", choices=SUBSPACES, default=["subspace of a trajectory"])
    parser.add_argument(
        "--splits", type=int, default=1, help="splits of the images into those learnt from and those tested on"
    )
    parser.add_argument("--figure", help="file for the figure")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for seed in range(options.splits):
        compare(found, seed, options)
    print(f"\n{table(found)}")
    if options.splits > 1:
        print(f"\nagainst one network, on the same splits\n{table(found, 'one network')}")
    if options.figure:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
