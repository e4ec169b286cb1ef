"""A small neural network: what the quadratic theory predicts about its chains, and what they really do.

The loss of a network is not convex, its parameters are not identified, and its minimiser may not exist. This study
shows how far the theory carries all the same, on a tanh network with hidden widths (2, 3) and the diabetes data:

1. Without a prior there is no finite minimiser, and the library says so.
2. With one there is, but three hidden units become copies of one another. Directions that tell them apart then carry no
   gradient noise: no chain moves along them, and no step matrix gives it a spread there.
3. In the other directions the predicted covariance is compared with that of long chains, for five step sizes.
4. With the hidden layers held fixed the problem is a convex one, and its draws are calibrated.

Run it with `python examples/network.py`: about a minute and a half on two cores; `--steps 400000` is the full study.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

import equipoise as eq

WIDTHS = (10, 2, 3, 1)
DYNAMICS = eq.Dynamics(batch_size=32)
STEP_SIZES = (0.01, 0.05, 0.1, 0.2, 0.4)
CHAINS = 8


def diabetes() -> dict[str, Any]:
    """442 patients: ten measurements, and how far the disease progressed in a year; all standardised."""
    raw = load_diabetes()
    x, y = ((a - a.mean(axis=0)) / a.std(axis=0) for a in (raw.data, raw.target))
    return {"x": x, "y": y}


def random_start(seed: int) -> dict[str, Any]:
    """Weights of the size that keeps activations in range; the structure of every result below."""
    rng = np.random.default_rng(seed)
    return {
        f"layer{i}": {"weights": rng.normal(size=(a, b)) / np.sqrt(a), "bias": np.zeros(b)}
        for i, (a, b) in enumerate(pairwise(WIDTHS))
    }


def predict(params: Any, row: Any) -> Any:
    """The network's output for one patient."""
    hidden = row["x"]
    for name in ("layer0", "layer1"):
        hidden = jnp.tanh(hidden @ params[name]["weights"] + params[name]["bias"])
    return (hidden @ params["layer2"]["weights"] + params["layer2"]["bias"])[0]


def loss(params: Any, row: Any) -> Any:
    """Squared error of one patient."""
    return 0.5 * (row["y"] - predict(params, row)) ** 2


def network(seed: int, prior_precision: float) -> eq.Model:
    """The network with a Gaussian prior, that is, with weight decay."""
    return eq.Model(loss, init=random_start(seed), prior_precision=prior_precision)


def without_prior(data: Any, starts: tuple[int, ...], max_iterations: int) -> None:
    """Look for a minimum that is not there."""
    for seed in starts:
        model = network(seed, prior_precision=0.0)
        try:
            fit = eq.fit(model, data, max_iterations=max_iterations, restarts=1)
        except eq.FitFailed as error:
            print(f"start {seed}: FitFailed: {error}\n")
            continue
        flat = 0 if fit.flat is None else len(fit.flat)
        largest = max(np.abs(leaf).max() for layer in fit.params.values() for leaf in layer.values())
        print(
            f"start {seed}: loss {fit.loss:.4f} after {fit.iterations} steps, largest parameter {largest:,.0f}, {flat} flat "
            f"directions, condition number {fit.condition:.1e}: a search that ran away, not a minimum. What follows:"
        )
        moments = eq.moments(model, data, fit.params)
        for step in (0.1, 0.01):
            try:
                eq.stationary(moments, step, DYNAMICS)
            except eq.EquipoiseError as error:
                print(f"  step {step}: {type(error).__name__}: {error}")
        print()


def noisy_directions(model: eq.Model, fit: eq.Fit, moments: eq.Moments) -> eq.Model:
    """The network restricted to the directions in which its gradient has noise.

    Units that are copies of one another get the same gradient from every row, so a chain that starts with copies keeps
    them: the restriction leaves nothing out.
    """
    values, vectors = np.linalg.eigh(moments.score_cov)
    noisy = values > 1e-10 * values[-1]
    return replace(model, init=fit.params, subspace=(moments.params, vectors[:, noisy].T))


def distance(a: Any, b: Any) -> float:
    """Of a prediction from an observed covariance, relative to the latter, in the Frobenius norm."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def predicted_at(model: eq.Model, data: Any, place: Any, step: float) -> Any:
    """The covariance predicted with moments taken elsewhere than at the minimiser; NaN where none is stationary."""
    try:
        return eq.stationary(eq.moments(model, data, place), step, DYNAMICS).cov
    except eq.UnstableStep:
        return np.full((place.size, place.size), np.nan)


def compare(model: eq.Model, data: Any, moments: eq.Moments, step: float, steps: int) -> dict[str, float]:
    """Predicted against observed covariance and mean for one step size."""
    tuning = eq.Tuning.at(moments, step, DYNAMICS)
    law = tuning.predicted
    thin = max(1, int(law.iact() // 20))
    # chains start from the predicted law: what is left to forget is its error
    burn_in = min(int(3 * law.iact()), steps // 4)
    draws = max(2, (steps - burn_in) // thin)
    chains = eq.sample(
        model, data, tuning, draws=draws, chains=CHAINS, seed=1, thin=thin, burn_in=burn_in, progress=False
    )
    flat = chains.flat()
    observed = np.cov(flat, rowvar=False)
    # from the directions to the 35 parameters, in predicted standard deviations
    basis = model.subspace[1]
    sd = np.sqrt(np.diag(basis.T @ law.cov @ basis))
    shift, predicted = ((move @ basis) / sd for move in (flat.mean(axis=0) - tuning.center, law.mean_bias))
    error = np.sqrt(np.diag(basis.T @ law.long_run_cov @ basis) / (CHAINS * draws * thin)) / sd
    worst = int(np.abs(shift).argmax())
    return {
        "step": step,
        "floor": law.covariance_floor(CHAINS * draws, thin),
        "dq-exact": distance(law.cov, observed),
        "ct": distance(eq.stationary(moments, step, DYNAMICS, proxy="ct").cov, observed),
        "at the mean": distance(predicted_at(model, data, flat.mean(axis=0), step), observed),
        "shift": float(shift[worst]),
        "±": float(error[worst]),
        "predicted shift": float(predicted[worst]),
    }


def last_layer(data: Any, prior_precision: float = 0.5, ess: float = 2000, restarts: int = 4) -> eq.Calibration:
    """Calibrated draws of the output layer, with the hidden layers where the fit left them."""
    whole = network(2, prior_precision)
    fit = eq.fit(whole, data, restarts=restarts)
    frozen = {"layer0": False, "layer1": False, "layer2": True}
    head = eq.Model(loss, init=fit.params, trainable=frozen, prior_precision=prior_precision)
    return eq.calibrate(head, data, target="sandwich", ess=ess, progress=False)


def main() -> None:
    """The four parts, in order."""
    parser = argparse.ArgumentParser(description="Predicted and observed covariance of a network's chains.")
    parser.add_argument("--steps", type=int, default=200_000, help=f"steps of each of {CHAINS} chains, per step size")
    parser.add_argument("--smoke", action="store_true", help="everything, but too short to conclude anything from")
    options = parser.parse_args()
    steps, sizes = (8_000, (0.1, 0.4)) if options.smoke else (options.steps, STEP_SIZES)
    data, began = diabetes(), time.perf_counter()

    print("1. Without a prior\n")
    without_prior(data, starts=(2,) if options.smoke else (0, 1), max_iterations=10 if options.smoke else 100)

    print("2. With a Gaussian prior of precision 20\n")
    model = network(0, prior_precision=20.0)
    fit = eq.fit(model, data, restarts=0 if options.smoke else 4)
    moments = eq.moments(model, data, fit.params)
    print(f"loss {fit.loss:.6f}, {moments.dim} parameters, {fit.gradient_norm:.0e} standard deviations from stationary")
    print(f"weights into the three units of the second layer:\n{np.round(fit.params['layer1']['weights'], 4)}")
    try:
        eq.tune(moments, "sandwich", DYNAMICS)
    except eq.InfeasibleTarget as error:
        print(f"InfeasibleTarget: {error}")
    model = noisy_directions(model, fit, moments)
    moments = eq.moments(model, data, fit.params)
    limit = eq.max_stable_step(moments, DYNAMICS)
    print(f"the units are copies; {moments.dim} directions carry gradient noise; steps up to {limit:.2f} are stable\n")

    print(f"3. Covariance and mean of {CHAINS} chains of {steps:,} steps, batches of {DYNAMICS.batch_size}\n")
    table = pd.DataFrame([compare(model, data, moments, step, steps) for step in sizes]).set_index("step")
    print(table.round(3).to_string(), "\n")
    print(
        "floor: the Monte Carlo error of the chains' covariance alone. dq-exact, ct: relative error of the prediction.\n"
        "at the mean: dq-exact with moments taken where the chains really are; NaN where no law is stationary there.\n"
        "shift: of the mean of the parameter that moves furthest, in predicted standard deviations.\n"
        "Errors above the floor grow with the step: they are the loss's third and fourth derivatives, which no\n"
        "quadratic proxy sees.\n"
    )

    print("4. Last-layer calibration: hidden layers fixed after a fit with prior precision 0.5\n")
    cal = last_layer(data, ess=1000 if options.smoke else 2000, restarts=0 if options.smoke else 4)
    print(cal.summary(), "\n")
    raw = load_diabetes().target
    patients = {"x": data["x"][:5]}
    found = cal.evaluate(predict, patients, interval=0.9)
    expected = pd.DataFrame(found) * raw.std() + raw.mean()
    expected["observed"] = raw[:5]
    print("Expected progression of five patients, with 90 % intervals for the expectation:\n")
    print(expected.round(1).to_string(), "\n")
    print(f"calibrated: {cal.diagnosis.ok}   ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
