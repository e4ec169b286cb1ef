"""What `DataLoader(shuffle=True)` really samples: chains that reshuffle, their law, and the independent-batch formula.

Run:  .venv/bin/python benchmarks/epochs.py            (about half a minute; --chains 40 for a quick look)
Writes benchmarks/results/epochs.json and docs/figures/epochs.svg.

Squared loss on rows whose noise grows with the covariates, 2000 rows in batches of 20, steps hH⁻¹ with nh from 0.25 to 8.
Variances are averages over the six parameters, in units of the sandwich's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import equipoise as eq
from equipoise.report.palette import BLACK, BLUE, GREY, VERMILION

plt.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
ROOT = Path(__file__).resolve().parent.parent
N, D, B = 2000, 6, 20
STEPS = (0.25, 0.5, 1.0, 2.0, 3.379, 5.0, 8.0)  # nh; the fifth is the one tuned to the sandwich


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, D - 1))])
    return x, x @ np.ones(D) + rng.normal(size=N) * (0.5 + 0.5 * np.abs(x[:, 1]))


def shuffled(x: np.ndarray, y: np.ndarray, theta: np.ndarray, step: np.ndarray, epochs: int, chains: int) -> np.ndarray:
    """Deviations of SGD chains from θ̂ at every position of the later epochs, (positions, draws, D)."""
    rng, e, kept = np.random.default_rng(1), np.zeros((chains, D)), []
    residual = y - x @ theta
    for epoch in range(epochs):
        order, seen = rng.permuted(np.tile(np.arange(N), (chains, 1)), axis=1), []
        for start in range(0, N, B):
            batch = order[:, start : start + B]
            xb = x[batch]
            off = np.einsum("cbd,cd->cb", xb, e) - residual[batch]
            e = e - np.einsum("cbd,cb->cd", xb, off) @ step / B
            seen.append(e)
        if epoch >= epochs // 4:
            kept.append(seen)
    return np.array(kept).transpose(1, 0, 2, 3).reshape(N // B, -1, D)


def study(epochs: int, chains: int) -> list[dict[str, object]]:
    x, y = rows()
    problem = eq.bind(eq.glm("gaussian", scale=1.0), (x, y))
    fit = eq.fit(problem)
    moments = eq.moments(problem, fit)
    unit, inverse = np.diag(eq.sandwich(moments)), np.linalg.inv(moments.hessian)
    found = []
    for nh in STEPS:
        step = nh * B / N * inverse
        law = eq.stationary(moments, step, eq.Dynamics(B, batches="epochs"))
        # slow chains need longer to forget their start at the minimiser
        draws = shuffled(x, y, fit.theta, step, int(epochs * max(1.0, 2.0 / nh)), chains)
        variances = np.array([np.var(part, axis=0) for part in draws]) / unit
        found.append(
            {
                "nh": nh,
                "simulated": float(variances.mean()),
                "reshuffled": float(np.mean(np.diag(law.cov) / unit)),
                "independent": float(np.mean(np.diag(eq.stationary(moments, step, eq.Dynamics(B)).cov) / unit)),
                "simulated by position": variances.mean(axis=1).tolist(),
                "by position": [float(np.mean(np.diag(law.cov_at(j)) / unit)) for j in range(1, law.epoch + 1)],
                "remainder": law.remainder,
            }
        )
    return found


def plot(results: list[dict], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2), layout="constrained")
    nh = [r["nh"] for r in results]
    left.plot(nh, [r["independent"] for r in results], color=VERMILION, label="independent-batch formula")
    left.plot(nh, [r["reshuffled"] for r in results], color=BLUE, label="law of reshuffling")
    left.plot(nh, [r["simulated"] for r in results], "o", color=BLACK, label="reshuffled chains")
    left.axhline(1.0, color=GREY, lw=0.8, ls=":")
    left.set(xscale="log", yscale="log", xlabel="step × batches per epoch, nh", ylabel="variance / sandwich variance")
    left.set_xticks([0.25, 0.5, 1.0, 2.0, 4.0, 8.0], ["¼", "½", "1", "2", "4", "8"])
    left.set_yticks([0.01, 0.1, 1.0], ["0.01", "0.1", "1"])
    left.minorticks_off()
    left.legend(fontsize=8, frameon=False)
    tuned = results[STEPS.index(3.379)]
    position = np.arange(1, N // B + 1)
    right.plot(position, tuned["by position"], color=BLUE)
    right.plot(position[4::5], tuned["simulated by position"][4::5], "o", color=BLACK, ms=4)
    right.axhline(tuned["independent"], color=VERMILION)
    right.axhline(tuned["reshuffled"], color=BLUE, lw=0.8, ls="--")
    right.set(
        xlabel="batches since the epoch began (tuned step)", ylabel="variance / sandwich variance", ylim=(0, None)
    )
    for axis in (left, right):
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--chains", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "epochs.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "figures" / "epochs.svg")
    options = parser.parse_args()
    results = study(options.epochs, options.chains)
    for r in results:
        print(
            f"nh {r['nh']:5.2f}: simulated {r['simulated']:.4f}, reshuffled {r['reshuffled']:.4f}, independent "
            f"{r['independent']:.4f}, {r['independent'] / r['simulated']:.2f} times too large"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "rows": N,
        "batch_size": B,
        "chains": options.chains,
        "epochs": options.epochs,
        "version": eq.__version__,
    }
    options.out.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")
    plot(results, options.figure)


if __name__ == "__main__":
    main()
