"""Do 95 % intervals cover when rows come in 30 clusters? CRV3 and CRV1 with t quantiles, and HC0 as the negative control.

Run:  .venv/bin/python benchmarks/cluster_coverage.py            (about two minutes; --replicates 100 for a quick look)
Writes benchmarks/results/cluster_coverage.json.

Clusters differ in size, share an effect, and one covariate varies between them alone: for its coefficient, rows of a
cluster say nearly the same, and errors that count them as independent are far too small.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import equipoise as eq

ROOT = Path(__file__).resolve().parent.parent
CLUSTERS, ROWS, BETA = 30, 600, np.array([0.5, 0.3, -0.2])
KINDS = ("CRV3", "CRV1", "HC0")
FAMILIES = ("gaussian", "poisson")


def clustered(rng: np.random.Generator, family: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Design matrix, response and cluster of every row; the second column varies between clusters alone."""
    share = rng.dirichlet(np.full(CLUSTERS, 4.0))
    firm = np.concatenate([np.arange(CLUSTERS), rng.choice(CLUSTERS, ROWS - CLUSTERS, p=share)])
    between, within = rng.normal(size=CLUSTERS)[firm], rng.normal(size=ROWS) + 0.5 * rng.normal(size=CLUSTERS)[firm]
    x = np.column_stack([np.ones(ROWS), between, within])
    effect, eta = rng.normal(size=CLUSTERS)[firm], x @ BETA
    if family == "gaussian":
        return x, eta + 0.5 * effect + rng.normal(size=ROWS), firm
    # with E exp(0.3 z) = exp(0.045) the mean stays exp(x β)
    return x, rng.poisson(np.exp(eta + 0.3 * effect - 0.045)).astype(float), firm


def coverage(family: str, replicates: int, seed: int = 0) -> dict[str, list[float]]:
    """The share of intervals with the true coefficient in them, by covariance and coefficient."""
    rng, found = np.random.default_rng(seed), {kind: np.zeros(len(BETA)) for kind in KINDS}
    for _ in range(replicates):
        x, y, firm = clustered(rng, family)
        cal = eq.calibrate(
            eq.glm(family), eq.data.rows(x, y, clusters=firm), "CRV3", sampler="gaussian", draws=2, chains=1
        )
        for kind in KINDS:
            ends = cal.confint(0.95, kind).to_numpy()
            found[kind] += (ends[:, 0] < BETA) & (ends[:, 1] > BETA)
    return {kind: (hits / replicates).tolist() for kind, hits in found.items()}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=2000)
    replicates = parser.parse_args().replicates
    made = {family: coverage(family, replicates) for family in FAMILIES}
    for family, by_kind in made.items():
        for kind, shares in by_kind.items():
            print(f"{family:<9} {kind:<5}", "  ".join(f"{100 * share:5.1f} %" for share in shares))
    out = {"clusters": CLUSTERS, "rows": ROWS, "replicates": replicates, "coverage": made}
    (ROOT / "benchmarks/results/cluster_coverage.json").write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
