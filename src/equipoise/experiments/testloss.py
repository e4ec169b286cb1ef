"""Figure of test loss: ridge regression against weight decay and against batch size, predicted and observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import equipoise as eq
from equipoise.experiments.designs import heteroskedastic
from equipoise.experiments.entry import Curves, Entry, Job, Result, Scale
from equipoise.experiments.measure import row
from equipoise.experiments.numbers import Claim, Numbers, tell
from equipoise.experiments.plots import COLOURS, lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ENTRY"]

STEP, BATCH, ROWS, DIM = 0.1, 32, 2000, 20
DECAYS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BATCHES = (4, 8, 16, 32, 64, 128, 256)
PROXIES = ("ct", "lr-ws", "dq-exact")


def jobs(scale: Scale) -> list[Job]:
    """Weight decay at B = 32, batch size without decay."""
    repetitions = range(scale.repetitions)
    decays: list[Job] = [{"panel": "decay", "decay": d, "size": BATCH} for d in DECAYS]
    sizes: list[Job] = [{"panel": "batch", "decay": 0.0, "size": b} for b in BATCHES]
    return [{**cell, "repetition": r} for cell in decays + sizes for r in repetitions]


def run(job: Job, scale: Scale) -> Result:
    """Mean squared error on new data: predicted by every theory, and of the chain itself."""
    seed = 1000 * scale.seed + job["repetition"]
    x, y = heteroskedastic(DIM, 2 * ROWS, seed)
    data, test = (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])
    model = eq.glm("gaussian", scale=1.0, prior_precision=job["decay"] * ROWS)
    fit, dynamics = eq.fit(model, data), eq.Dynamics(job["size"])
    moments = eq.moments(model, data, fit.params)
    label = f"decay={job['decay']}" if job["panel"] == "decay" else f"B={job['size']}"
    cell = {"dataset": job["panel"], "batch": label, "metric": "test_loss"}
    rows = []
    for proxy in PROXIES:
        law = eq.stationary(moments, STEP, dynamics, proxy=proxy)
        # the loss is half the squared error
        rows.append(row(2.0 * float(eq.expected_test_loss(model, test, fit, law)), method=proxy, **cell))
    tuning = eq.Tuning.at(moments, STEP, dynamics)
    thin, draws = max(1, int(tuning.predicted.iact() / 5)), scale.pick(20_000, 2000)
    chain = eq.sample(
        model, data, tuning, draws=draws, chains=1, seed=seed, thin=thin, burn_in=20 * thin, threads=1, progress=False
    )
    gaps = test[1][:, None] - test[0] @ chain.flat().T
    return {"rows": [*rows, row(float(np.mean(gaps**2)), method="observed", **cell)]}


def claims(numbers: Numbers, _: list[Curves]) -> list[Claim]:
    """What the figure is said to show."""
    found = []
    for panel, words in (("decay", "across weight decays"), ("batch", "across batch sizes")):
        here = numbers.where(dataset=panel)
        worst = dict.fromkeys(PROXIES, 0.0)
        for label in here.names("batch"):
            seen = here.at(batch=label, method="observed")
            for proxy in PROXIES:
                cell = here.at(batch=label, method=proxy)
                if seen is not None and cell is not None:
                    gaps = np.array(cell.values) / np.array(seen.values) - 1.0
                    worst[proxy] = max(worst[proxy], float(abs(gaps.mean())))
        ends = [here.at(batch=label, method="observed") for label in (here.names("batch")[0], here.names("batch")[-1])]
        best = worst["dq-exact"] <= min(worst.values())
        text = ", ".join(f"{p} {100 * v:.2g} %" for p, v in worst.items())
        found.append(
            Claim(
                f"The exact proxy predicts the test loss best {words}.",
                "holds" if best else "does not hold",
                f"Largest relative error of the prediction: {text}; the loss goes from {tell(ends[0])} to {tell(ends[1])}.",
            )
        )
    return found


def draw(figure: Figure, numbers: Numbers, _: list[Curves]) -> None:
    """Predicted and observed test loss."""
    axes = figure.subplots(1, 2)
    for axis, (panel, title) in zip(axes, (("decay", "weight decay γ/N"), ("batch", "batch size B")), strict=True):
        here = numbers.where(dataset=panel)
        x = [float(label.split("=")[1]) for label in here.names("batch")]
        for name in (*PROXIES, "observed"):
            marker = "s" if name == "observed" else "o"
            lines(axis, x, list(here.where(method=name)), name, COLOURS[name], marker)
        axis.set(xlabel=title, ylabel="mean squared error on new data")
        if panel == "batch":
            axis.set_xscale("log", base=2)
        axis.legend(frameon=False)


ENTRY = Entry(
    name="figure-testloss",
    title="Test loss of ridge regression",
    caption=(
        "Misspecified linear regression, D = 20, N = 2000, λ = 0.1. Left: against weight decay at B = 32, in units in which "
        "the penalty is (γ/N)‖θ‖²/2 beside the mean loss. Right: against batch size without decay."
    ),
    jobs=jobs,
    run=run,
    claims=claims,
    draw=draw,
    tabulated=("test_loss",),
)
