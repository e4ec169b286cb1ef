"""What does the chain's own bias cost in small samples? Coverage of 95 % intervals, well-specified logit and Poisson models.

Run:  .venv/bin/python benchmarks/recentred_coverage.py            (a quarter of an hour; --replicates 50 for a quick look)
Writes benchmarks/results/recentred.json.

Three intervals from the same run, so that their differences are paired: quantiles of the draws, the same shifted back by
the predicted bias of the draws' mean (`cal.intervals(recentred=True)`), and estimate ± z·se with the target's standard
errors. The chains are those of plain SGD, `sampler="sgmcmc"`, the published figures with them. The mean of a chain is off
in the direction in which a maximum likelihood estimate is off itself, so that the two biases add up in the first.

And what no chain can mend: coverage of estimate ± z·se with the sandwich's standard errors, by themselves, for counts that
are overdispersed, with covariates that are normal or skewed (`sandwich_alone`).
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from scipy.special import ndtri

import equipoise as eq

ROOT = Path(__file__).resolve().parent.parent
SIZES = (40, 60, 100, 200)
TARGETS = ("sandwich", "posterior")
KINDS = ("draws", "recentred", "normal")
LEVEL = 0.95
TRUTH = {"bernoulli": np.array([-1.0, 0.8, -0.5]), "poisson": np.array([0.0, 0.5, -0.4])}


def simulate(family: str, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Data from the model that is fitted to them."""
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 2))])
    eta = x @ TRUTH[family]
    if family == "bernoulli":
        return x, (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return x, rng.poisson(np.exp(eta)).astype(float)


def ends(cal: eq.Calibration, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The interval's lower and upper ends."""
    if kind == "normal":
        half = -ndtri(0.5 * (1.0 - LEVEL)) * np.sqrt(np.diag(cal.tuning.target))
        return cal.tuning.center - half, cal.tuning.center + half
    frame = cal.intervals(LEVEL, recentred=kind == "recentred")
    return frame["lower"].to_numpy(), frame["upper"].to_numpy()


def one(family: str, rows: int, target: str, replicate: int, ess: float) -> dict[str, object] | None:
    """Misses below and above of each interval, and the predicted bias; None where the data have no minimiser."""
    data = simulate(family, rows, np.random.default_rng([replicate, rows]))
    try:
        cal = eq.calibrate(
            eq.glm(family), data, target=target, ess=ess, seed=replicate, sampler="sgmcmc", progress=False
        )
    except (eq.FitFailed, eq.InfeasibleTarget):
        return None
    truth = TRUTH[family]
    missed: dict[str, object] = {}
    for kind in KINDS:
        lower, upper = ends(cal, kind)
        missed[kind] = np.stack([truth < lower, truth > upper])
    return {**missed, "bias": cal.diagnosis.predicted_shift}


def study(family: str, rows: int, target: str, replicates: int, ess: float) -> dict[str, object]:
    """Coverage with its error, misses on the side the bias points to, and paired differences from the draws' intervals."""
    found = [r for r in (one(family, rows, target, k, ess) for k in range(replicates)) if r is not None]
    bias = np.array([r["bias"] for r in found])
    hit = {kind: ~np.array([r[kind].any(axis=0) for r in found]) for kind in KINDS}
    result: dict[str, object] = {"data sets": len(found), "bias": float(np.abs(bias).max(axis=1).mean())}
    for kind in KINDS:
        below, above = np.moveaxis(np.array([r[kind] for r in found]), 1, 0)
        # draws that are shifted upwards leave the truth below their interval: the side the shift comes from
        behind = np.where(bias > 0.0, below, above)
        result[kind] = {
            **_mean(hit[kind]),
            "missed behind": float(behind.mean()),
            "missed": float((below | above).mean()),
        }
        if kind != "draws":
            result[f"{kind} - draws"] = _mean(hit[kind].astype(float) - hit["draws"])
    return result


def sandwich_alone(rows: int, covariates: str, replicates: int) -> dict[str, float]:
    """Coverage of estimate ± z·se with the sandwich's errors, Poisson model, negative binomial counts; no chain is run."""
    model, truth, hits = eq.glm("poisson"), np.array([0.5, 0.4, -0.3, 0.2]), []
    for k in range(replicates):
        rng = np.random.default_rng([k, rows, 1])
        z = rng.normal(size=(rows, 3)) if covariates == "normal" else rng.exponential(size=(rows, 3)) - 1.0
        x = np.column_stack([np.ones(rows), z])
        data = (x, rng.poisson(np.exp(x @ truth) * rng.gamma(1.0, 1.0, rows)).astype(float))
        fit = eq.fit(model, data)
        se = np.sqrt(np.diag(eq.sandwich(eq.moments(model, data, fit))))
        hits.append(np.abs(fit.params - truth) <= -ndtri(0.5 * (1.0 - LEVEL)) * se)
    return _mean(np.array(hits))


def _mean(values: np.ndarray) -> dict[str, float]:
    """Mean over data sets and parameters; parameters of one data set are dependent, so the error is between data sets."""
    each = values.mean(axis=1)
    return {"mean": float(each.mean()), "error": float(each.std(ddof=1) / np.sqrt(len(each)))}


def tell(name: str, result: dict[str, object]) -> str:
    """One line of the table."""
    cells = [
        f"{100 * r['mean']:.1f} ± {100 * r['error']:.1f} ({100 * r['missed behind']:.1f}:"
        f"{100 * (r['missed'] - r['missed behind']):.1f})"
        for r in (result[k] for k in KINDS)
    ]
    paired = [
        f"{100 * result[k]['mean']:+.2f} ± {100 * result[k]['error']:.2f}" for k in result if k.endswith("- draws")
    ]
    return f"| {name} | {result['bias']:.2f} | " + " | ".join([*cells, *paired]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=1500)
    parser.add_argument("--ess", type=float, default=2000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "recentred.json")
    options = parser.parse_args()
    results: dict[str, object] = {}
    print("| model, rows, target | bias | draws | recentred | normal | recentred − draws | normal − draws |")
    print("|---|---|---|---|---|---|---|")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in TRUTH:
            for target in TARGETS:
                for rows in SIZES:
                    name = f"{family}, {rows}, {target}"
                    results[name] = found = study(family, rows, target, options.replicates, options.ess)
                    print(tell(name, found), flush=True)
        for covariates in ("normal", "skewed"):
            for rows in (200, 800, 3200):
                name = f"sandwich alone, {rows}, {covariates} covariates"
                results[name] = alone = sandwich_alone(rows, covariates, options.replicates)
                print(f"{name}: {100 * alone['mean']:.1f} ± {100 * alone['error']:.1f}", flush=True)
    settings = {"replicates": options.replicates, "ess": options.ess, "level": LEVEL, "version": eq.__version__}
    settings["sampler"] = "sgmcmc"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
