"""Figure of the neural network: predicted against observed covariance for five step sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

import equipoise as eq
from equipoise.arrays import Array
from equipoise.experiments.designs import diabetes
from equipoise.experiments.entry import Curves, Entry, Job, Result, Scale
from equipoise.experiments.measure import row
from equipoise.experiments.numbers import Claim, Numbers, Row, short, tell
from equipoise.experiments.plots import COLOURS, floor_line, lines

if TYPE_CHECKING:
    import jax
    from matplotlib.figure import Figure

__all__ = ["ENTRY", "fitted", "loss", "network", "predict"]

Layers = dict[str, dict[str, Array]]

WIDTHS = (10, 2, 3, 1)
BATCH = 32
STEPS = (0.01, 0.05, 0.1, 0.2, 0.4)
PRIORS = (20.0, 5.0)


def start(seed: int) -> Layers:
    """Weights of a size that keeps activations in range."""
    rng = np.random.default_rng([seed, 7])
    return {
        f"layer{i}": {"weights": rng.normal(size=(a, b)) / np.sqrt(a), "bias": np.zeros(b)}
        for i, (a, b) in enumerate(pairwise(WIDTHS))
    }


def predict(params: dict[str, dict[str, jax.Array]], row: dict[str, jax.Array]) -> jax.Array:
    """The network's output for one patient."""
    import jax.numpy as jnp

    hidden = row["x"]
    for name in ("layer0", "layer1"):
        hidden = jnp.tanh(hidden @ params[name]["weights"] + params[name]["bias"])
    return (hidden @ params["layer2"]["weights"] + params["layer2"]["bias"])[0]


def loss(params: dict[str, dict[str, jax.Array]], row: dict[str, jax.Array]) -> jax.Array:
    """Half the squared error of one patient."""
    return 0.5 * (row["y"] - predict(params, row)) ** 2


def network(prior: float, seed: int = 0) -> eq.Model:
    """The tanh network with hidden widths (2, 3): 35 parameters."""
    return eq.Model(loss, init=start(seed), prior_precision=prior)


@cache
def fitted(prior: float, restarts: int) -> tuple[eq.Model, eq.Moments]:
    """The network at its minimiser, restricted to the directions in which its gradient has noise.

    Hidden units that have become copies of one another get the same gradient from every row: a chain that starts with
    copies keeps them, and no theory gives it a spread in the directions that tell them apart.
    """
    data, model = diabetes(), network(prior)
    fit = eq.fit(model, data, restarts=restarts)
    moments = eq.moments(model, data, fit.params)
    values, vectors = np.linalg.eigh(moments.score_cov)
    noisy = values > 1e-10 * values[-1]
    restricted = replace(model, init=fit.params, subspace=(moments.params, vectors[:, noisy].T))
    return restricted, eq.moments(restricted, data, fit.params)


def jobs(scale: Scale) -> list[Job]:
    """The network without a prior once; with one, every step size, a few chains at a time; and a few that reshuffle."""
    steps, priors = scale.pick(STEPS, (0.2,)), scale.pick(PRIORS, PRIORS[:1])
    groups = range(max(1, min(scale.repetitions, 30) // _CHAINS)) if not scale.smoke else range(1)
    found: list[Job] = [
        {"prior": p, "step": s, "repetition": g}
        for p in priors
        for s in steps
        for g in (groups if p == PRIORS[0] else range(1))
    ]
    reshuffled: list[Job] = [{"prior": PRIORS[0], "step": s, "kind": "epochs"} for s in steps]
    return [{"prior": 0.0}, *found, *reshuffled]


_CHAINS = 5  # per job: repetitions of one cell that share the fit


def run(job: Job, scale: Scale) -> Result:
    """Relative distance of every prediction from the covariance of the chain."""
    if job["prior"] == 0.0:
        return {"rows": _without_prior(scale)}
    model, moments = fitted(job["prior"], restarts=scale.pick(4, 0))
    if job.get("kind") == "epochs":
        return {"rows": _reshuffled(model, moments, job, scale)}
    tuning = eq.Tuning.at(moments, job["step"], eq.Dynamics(BATCH))
    law, cell = tuning.predicted, _cell(job, "")
    made = _long_run(model, tuning, law, scale.pick(400_000, 8000), scale, job["repetition"])
    names = ("dq-exact", "ct", "dq-const", "ct-hessian")
    rows = _gaps(made, law, {name: _predicted(moments, job["step"], name) for name in names}, cell)
    # the largest move of the mean, in predicted standard deviations, of all chains together
    shift = (made.flat().mean(axis=0) - tuning.center) / np.sqrt(np.diag(law.cov))
    worst = int(np.abs(shift).argmax())
    predicted = float(law.mean_bias[worst] / np.sqrt(law.cov[worst, worst]))
    rows += [
        row(float(abs(shift[worst])), metric="shift_of_the_mean", method="observed", **cell),
        row(abs(predicted), metric="shift_of_the_mean", method="predicted", **cell),
    ]
    gap = _at_the_mean(model, made.flat(), job["step"])
    return {"rows": [*rows, row(gap, metric="relative_error", method="dq-exact-at-the-mean", **cell)]}


def _long_run(
    model: eq.Model, tuning: eq.Tuning, usual: eq.Stationary, steps: int, scale: Scale, repetition: int
) -> eq.Chains:
    """Chains of so many steps, stored and discarded by the autocorrelation time of independent batches."""
    thin = tuning.predicted.stride(max(1, int(usual.iact() // 20)))
    burn_in = min(int(3 * usual.iact()), steps // 4)
    return eq.sample(
        model, diabetes(), tuning, draws=(steps - burn_in) // thin, chains=scale.pick(_CHAINS, 2),
        seed=1000 * scale.seed + repetition, thin=thin, burn_in=burn_in, threads=1, progress=False,
    )  # fmt: skip


def _gaps(made: eq.Chains, law: eq.Stationary, predictions: dict[str, Array], cell: dict[str, str]) -> list[Row]:
    """Relative distance of every prediction from the covariance of every chain, with the floor of a chain with this law."""
    floor = law.covariance_floor(made.draws.shape[1], made.thin)
    return [
        row(_distance(cov, np.cov(chain, rowvar=False)), metric="relative_error", method=name, floor=floor, **cell)
        for chain in made.draws
        for name, cov in predictions.items()
    ]


def _distance(predicted: Array, observed: Array) -> float:
    return float(np.linalg.norm(predicted - observed) / np.linalg.norm(observed))


def _cell(job: Job, run: str) -> dict[str, str]:
    """The names of a cell: `run` is "epochs" for chains that reshuffle."""
    return {"run": run, "dataset": f"prior={job['prior']:g}", "batch": f"lambda={job['step']}"}


def _reshuffled(model: eq.Model, moments: eq.Moments, job: Job, scale: Scale) -> list[Row]:
    """A chain that goes through the rows in epochs, as the released script has it, against its law and the usual one.

    Of both predictions: relative distance of the covariance, and total variance over the observed one.
    """
    tuning = eq.Tuning.at(moments, job["step"], eq.Dynamics(BATCH, batches="epochs"))
    law, usual = tuning.predicted, eq.stationary(moments, job["step"], eq.Dynamics(BATCH))
    made = _long_run(model, tuning, usual, scale.pick(200_000, 8000), scale, 0)
    cell, predictions = _cell(job, "epochs"), {"dq-exact-epochs": law.cov, "dq-exact": usual.cov}
    return _gaps(made, law, predictions, cell) + [
        row(np.trace(cov) / np.cov(chain, rowvar=False).trace(), metric="variance_ratio", method=name, **cell)
        for chain in made.draws
        for name, cov in predictions.items()
    ]


def _predicted(moments: eq.Moments, step: float, name: str) -> Array:
    """The covariance a theory predicts.

    Where a theory puts the Hessian for the noise, it is that of the whole loss: without the prior's part it is not
    positive semidefinite here, and no noise has it for its covariance.
    """
    H = moments.hessian
    if name == "ct-hessian":
        return eq.stationary(replace(moments, score_cov=H), step, eq.Dynamics(BATCH), proxy="ct").cov
    return eq.stationary(replace(moments, loss_hessian=H), step, eq.Dynamics(BATCH), proxy=name).cov


def _at_the_mean(model: eq.Model, draws: Array, step: float) -> float:
    """The prediction with moments taken where the chains really are; infinite where no law is stationary there."""
    try:
        cov = eq.stationary(eq.moments(model, diabetes(), draws.mean(axis=0)), step, eq.Dynamics(BATCH)).cov
    except eq.EquipoiseError:
        return np.inf
    return _distance(cov, np.cov(draws, rowvar=False))


def _without_prior(scale: Scale) -> list[Row]:
    """Where trust-region steps lead without weight decay, and what the theory says there."""
    rows = []
    for seed in range(scale.pick(3, 1)):
        cell = {"dataset": "prior=0", "batch": f"start {seed}", "method": "fit"}
        try:
            fit = eq.fit(network(0.0, seed), diabetes(), max_iterations=scale.pick(100, 5), restarts=1)
        except eq.EquipoiseError as error:
            rows.append(row(np.inf, metric="largest_parameter", reason=" ".join(str(error).split())[:160], **cell))
            continue
        largest = max(float(np.abs(leaf).max()) for layer in fit.params.values() for leaf in layer.values())
        reason = (
            f"Condition number {fit.condition:.1e} after {fit.iterations} steps: a search that ran away, not a minimum."
        )
        rows.append(row(largest, metric="largest_parameter", reason=reason, **cell))
    return rows


def claims(numbers: Numbers, _: list[Curves]) -> list[Claim]:
    """What the figure is said to show."""
    found = []
    ran = [c for c in numbers.where(metric="largest_parameter") if c.values]
    if ran:
        found.append(
            Claim(
                "The experiment can be run without weight decay.",
                "does not hold",
                "There is no finite minimiser: " + "; ".join(f"{c.batch}: {c.because}" for c in ran),
            )
        )
    found += claim_epochs(numbers.where(run="epochs"))
    here = numbers.where(run="", dataset=f"prior={PRIORS[0]:g}", metric="relative_error")
    steps = here.names("batch")
    pairs = [(s, here.at(batch=s, method="dq-exact"), here.at(batch=s, method="ct")) for s in steps]
    told = [(s, a, b) for s, a, b in pairs if a is not None and b is not None]
    if told:
        better = [a.mean < b.mean for _, a, b in told]
        text = "; ".join(f"{s.replace('lambda', 'λ')}: {tell(a)} against {tell(b)}" for s, a, b in told)
        found.append(
            Claim(
                "As the step grows, continuous time becomes inaccurate while dq-exact stays accurate (prior precision 20).",
                "holds in part" if better[-1] else "does not hold",
                f"Relative errors of dq-exact against ct with the true score covariance, {text}. Both grow: what is left are "
                "the loss's third and fourth derivatives, which no quadratic proxy sees.",
            )
        )
        baseline, seen, predicted = (
            here.at(batch=steps[-1], method="ct-hessian"),
            *(
                numbers.at(dataset=f"prior={PRIORS[0]:g}", batch=steps[-1], metric="shift_of_the_mean", method=m)
                for m in ("observed", "predicted")
            ),
        )
        if baseline is not None and seen is not None and predicted is not None:
            found.append(
                Claim(
                    "The continuous-time baseline is far off.",
                    "holds in part",
                    f"With the Hessian over B for the noise, as in the paper's figure, its error is {tell(baseline)}; with the "
                    f"score covariance, which continuous time calls for, {tell(told[-1][2])}. The mean moves by up to "
                    f"{short(seen.mean)} predicted standard deviations; third derivatives predict {short(predicted.mean)}.",
                )
            )
    return found


def claim_epochs(here: Numbers) -> list[Claim]:
    """How wrong the formula for independent batches is for a chain that reshuffles."""
    told, ratios, right = [], [], []
    for step in here.names("batch"):
        law, usual = (here.at(batch=step, metric="relative_error", method=m) for m in ("dq-exact-epochs", "dq-exact"))
        times = here.at(batch=step, metric="variance_ratio", method="dq-exact")
        if law is None or usual is None or times is None:
            continue
        ratios.append(times.mean)
        right.append(usual.mean < 2.0 * law.mean)
        told.append(
            f"{step.replace('lambda', 'λ')}: {tell(law)} with the law of epochs (floor {short(law.floor)}), {tell(usual)} "
            f"with the formula, whose total variance is {times.mean:.1f} times the chain's"
        )
    if not told:
        return []
    return [
        Claim(
            "The stationary covariance of independent batches describes the network's chain, which reshuffles once per epoch.",
            "holds" if all(right) else "does not hold",
            f"It is {min(ratios):.1f} to {max(ratios):.1f} times too large. Relative errors for reshuffled chains, "
            + "; ".join(told)
            + ".",
        )
    ]


def draw(figure: Figure, numbers: Numbers, _: list[Curves]) -> None:
    """Relative error against the step, for each prior, and for chains that reshuffle."""
    errors = numbers.where(metric="relative_error")
    panels = {d.replace("=", " precision "): errors.where(run="", dataset=d) for d in errors.names("dataset")}
    panels["reshuffled, prior precision 20"] = errors.where(run="epochs")
    shown = {title: here for title, here in panels.items() if here.cells}
    axes = np.atleast_1d(figure.subplots(1, len(shown)))
    for axis, (title, here) in zip(axes, shown.items(), strict=True):
        x = [float(b.split("=")[1]) for b in here.names("batch")]
        for name in ("dq-exact", "ct", "dq-const", "ct-hessian", "dq-exact-epochs"):
            cells = list(here.where(method=name))
            if cells:
                lines(axis, x, cells, name, COLOURS[name])
        floor_line(axis, x, here.where(method="dq-exact"))
        axis.set(xscale="log", yscale="log", xlabel="step λ", ylabel="relative covariance error", title=title)
        axis.legend(frameon=False, fontsize=8)


ENTRY = Entry(
    name="figure-nn",
    title="Neural network on the Diabetes data",
    caption=(
        "tanh network with hidden widths (2, 3), 35 parameters, B = 32, chains of 400,000 steps from the minimiser. Without "
        "weight decay there is no finite minimiser, so a Gaussian prior of precision 20 (and 5) is added; directions without "
        "gradient noise are left out. `ct-hessian` and `dq-const` put the Hessian of the whole loss over B for the noise. "
        "The released script reshuffles once per epoch: chains of 200,000 steps that do so are compared with their own law and "
        "with the one for independent batches."
    ),
    jobs=jobs,
    run=run,
    claims=claims,
    draw=draw,
    tabulated=("relative_error", "variance_ratio", "shift_of_the_mean"),
)
