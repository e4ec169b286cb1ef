"""A network of a million parameters on a subspace: seconds and peak memory of every stage.

python benchmarks/subspace.py [--width 990] [--rows 1000] [--rank 50] [--of curvature]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq


def network(p, row):
    """Two hidden layers."""
    return jnp.tanh(jnp.tanh(row["x"] @ p["a"] + p["b"]) @ p["c"] + p["d"]) @ p["e"]


def peak() -> float:
    """The largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1e-9 if sys.platform == "darwin" else 1e-6)


def main() -> None:
    """Find directions, fit, tune, sample, and evaluate."""
    asked = argparse.ArgumentParser(description=__doc__)
    for name, default in {"width": 990, "rows": 1000, "rank": 50, "draws": 50}.items():
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--of", default="curvature")
    given = asked.parse_args()
    rng, width = np.random.default_rng(0), given.width
    x = rng.normal(size=(given.rows, 20))
    data = {"x": x, "y": np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.3 * rng.normal(size=given.rows)}
    init = {
        "a": rng.normal(size=(20, width)) / np.sqrt(20), "b": np.zeros(width),
        "c": rng.normal(size=(width, width)) / np.sqrt(width), "d": np.zeros(width),
        "e": rng.normal(size=width) / np.sqrt(width),
    }  # fmt: skip
    model = eq.Model(lambda p, row: (row["y"] - network(p, row)) ** 2 / 0.18, init=init, prior_precision=1.0)
    print(f"parameters: {sum(leaf.size for leaf in init.values())}")
    began, used = time.perf_counter(), time.process_time()

    def tell(stage: str) -> None:
        nonlocal began, used
        seconds, cpu = time.perf_counter() - began, time.process_time() - used
        print(f"{stage:9s} {seconds:7.1f} s ({cpu:.1f} s of processors), peak {peak():.2f} GB", flush=True)
        began, used = time.perf_counter(), time.process_time()

    small = eq.subspace(model, data, init, rank=given.rank, of=given.of)
    tell("subspace")
    fit = eq.fit(small, data)
    tell("fit")
    print(f"steps: {fit.iterations}")
    moments = eq.moments(small, data, fit)
    tell("moments")
    tuning = eq.tune(moments, "sandwich", eq.Dynamics(batch_size=32))
    tell("tune")
    chains = eq.sample(small, data, tuning, draws=given.draws, chains=2, seed=0, thin=1, burn_in=5, progress=False)
    tell("sample")
    predict = jax.jit(jax.vmap(jax.vmap(network, (None, 0)), (0, None)))
    new = {"x": rng.normal(size=(100, 20))}
    found = np.concatenate([np.asarray(predict(part, new)) for part in chains.trees()])
    tell("predict")
    print(f"peak GB: {peak():.2f}")
    print(f"predictions: {found.shape[0]} draws of {found.shape[1]} rows, spread {found.std(axis=0).mean():.3g}")


if __name__ == "__main__":
    main()
