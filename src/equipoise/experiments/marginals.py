"""Figure of marginal variances: those of the chain against the target's, for every tuning rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import equipoise as eq
from equipoise.experiments.designs import Study, boston, german, linear, poisson
from equipoise.experiments.entry import Curves, Entry, Job, Result, Scale
from equipoise.experiments.measure import passes_for, row, run_chain
from equipoise.experiments.numbers import Claim, Numbers, tell
from equipoise.experiments.plots import COLOURS
from equipoise.experiments.rules import tuned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ENTRY"]

RULES = {"linear": ("ct", "lr-ws", "dq-exact"), "poisson": ("ct", "dq-const", "dq-const-literal", "dq-exact")}
DATASETS = {
    "simulated-linear": "linear",
    "boston": "linear",
    "simulated-poisson": "poisson",
    "german-credit": "poisson",
}


def jobs(scale: Scale) -> list[Job]:
    """Every data set and batch size; the released settings, at which the paper's figures were made."""
    repetitions = range(min(scale.repetitions, scale.pick(10, 2)))
    return [{"dataset": d, "batch": b, "repetition": r} for d in DATASETS for b in ("16", "0.1N") for r in repetitions]


def run(job: Job, scale: Scale) -> Result:
    """Variances of one chain for every rule, over the target's."""
    seed, setting = 1000 * scale.seed + job["repetition"], scale.settings[0]
    study = _study(job["dataset"], setting, seed, scale)
    size = 16 if job["batch"] == "16" else study.rows // 10
    moments = eq.moments(study.model, study.data, eq.fit(study.model, study.data).params)
    target = eq.sandwich(moments)
    wanted = np.diag(target)
    passes = passes_for(study, moments, target, size, scale.pick(0.04, 0.2))
    rows, variances = [], {"target": wanted.tolist()}
    for rule in RULES[DATASETS[study.dataset]]:
        chain = run_chain(study, moments, tuned(rule, moments, target, size), target, seed, passes, 0.0)
        found = np.full(study.dim, np.inf) if chain.draws is None else chain.draws.var(axis=0)
        variances[rule] = found.tolist()
        reason = "" if chain.law is None else f"Theory predicts {np.median(np.diag(chain.law.cov) / wanted):.3g}."
        cell = {"setting": setting, "dataset": study.dataset, "loss": "log", "batch": job["batch"]}
        value = float(np.median(found / wanted))
        rows.append(row(value, metric="variance_ratio", method=rule, radius=chain.radius, reason=reason, **cell))
    return {"rows": rows, "curves": {"dataset": study.dataset, "batch": job["batch"], "variances": variances}}


def _study(dataset: str, setting: str, seed: int, scale: Scale) -> Study:
    if dataset == "simulated-linear":
        return linear(setting, "log", seed, rows=scale.pick(5000, 1000))
    if dataset == "simulated-poisson":
        return poisson(setting, seed, rows=scale.pick(5000, 1000), dim=scale.pick(50, 10))
    return boston("log") if dataset == "boston" else german(scale.german, seed)


def claims(numbers: Numbers, _: list[Curves]) -> list[Claim]:
    """What the figure is said to show."""
    found = []
    for dataset in numbers.names("dataset"):
        here = numbers.where(dataset=dataset)
        exact, ct = (here.at(batch="0.1N", method=m) for m in ("dq-exact", "ct"))
        small = here.at(batch="16", method="ct")
        if exact is None or ct is None or small is None:
            continue
        good = abs(exact.mean - 1.0) < 0.1 and ct.mean > exact.mean
        others = ", ".join(
            f"{c.method} {tell(c)}" for c in here.where(batch="0.1N") if c.method not in {"ct", "dq-exact"} and c.values
        )
        found.append(
            Claim(
                f"Marginal variances are right with dq-exact and too large with ct for large batches ({dataset}).",
                "holds" if good else "holds in part",
                f"Median ratio to the target at B = 0.1 N: dq-exact {tell(exact)}, ct {tell(ct)} (at B = 16 {tell(small)}), "
                f"{others}.",
            )
        )
    return found


def draw(figure: Figure, _: Numbers, curves: list[Curves]) -> None:
    """Variances of the chain over those of the target, one line per rule, panels by data set and batch size."""
    first = {(c["dataset"], c["batch"]): c["variances"] for c in reversed(curves)}
    datasets = list(dict.fromkeys(d for d, _ in first))
    figure.set_size_inches(9.0, 2.4 * len(datasets))
    axes = figure.subplots(len(datasets), 2, squeeze=False)
    for line, dataset in zip(axes, datasets, strict=True):
        for axis, batch in zip(line, ("16", "0.1N"), strict=True):
            variances = first.get((dataset, batch), {})
            target = np.array(variances.get("target", []))
            order = np.argsort(target)
            for rule, values in variances.items():
                if rule != "target":
                    axis.plot(
                        target[order],
                        np.array(values)[order],
                        "o",
                        markersize=3.5,
                        color=COLOURS[rule],
                        label=rule,
                        alpha=0.8,
                    )
            axis.plot(target[order], target[order], "-", color=COLOURS["target"], linewidth=0.8)
            axis.set(
                xscale="log", yscale="log", title=f"{dataset}, B = {batch}", xlabel="target variance", ylabel="variance"
            )
            axis.legend(frameon=False, fontsize=7)


ENTRY = Entry(
    name="figure-marginals",
    title="Marginal variances against the target",
    caption="Variance of every parameter in the chain against the sandwich, for every tuning rule; the line is equality.",
    jobs=jobs,
    run=run,
    claims=claims,
    draw=draw,
    tabulated=("variance_ratio",),
)
