"""Figure 1: covariance error against batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import equipoise as eq
from equipoise.experiments.designs import Study, heteroskedastic
from equipoise.experiments.entry import Curves, Entry, Job, Result, Scale
from equipoise.experiments.measure import compare_rules
from equipoise.experiments.numbers import Claim, Numbers, tell
from equipoise.experiments.plots import COLOURS, floor_line, lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ENTRY"]

RULES = ("ct", "lr-ws", "dq-exact")


def jobs(scale: Scale) -> list[Job]:
    """One batch size at a time, every repetition with new data."""
    sizes = [2**k for k in scale.pick(range(10), range(0, 10, 3))]
    return [{"size": b, "repetition": r} for b in sizes for r in range(scale.repetitions)]


def run(job: Job, scale: Scale) -> Result:
    """Misspecified linear regression, D = 20, N = 1000, chains of 4000 passes."""
    seed = 1000 * scale.seed + job["repetition"]
    x, y = heteroskedastic(20, 1000, seed)
    study = Study("simulated-linear", "log", eq.glm("gaussian", scale=1.0), (x, y), None, scale.pick(4000, 200), 0.02)
    rows = compare_rules(study, RULES, {str(job["size"]): job["size"]}, seed, {"run": ""})
    return {"rows": [r for r in rows if r["metric"] == "covariance_error"]}


def claims(numbers: Numbers, _: list[Curves]) -> list[Claim]:
    """What the figure is said to show."""
    small, large = (numbers.where(batch=b) for b in (numbers.names("batch")[0], numbers.names("batch")[-1]))
    cells = [cell for m in RULES for n in (small, large) if (cell := n.at(method=m)) is not None]
    if len(cells) < 2 * len(RULES):
        return []
    ct_small, ct_large, ws_small, ws_large, exact_small, exact_large = cells
    good = ct_large.mean > 3.0 * exact_large.mean and ct_large.mean > ct_small.mean and ws_large.mean > exact_large.mean
    return [
        Claim(
            "Continuous time loses accuracy as the batch grows, lr-ws is wrong at every size, dq-exact is right at every size.",
            "holds" if good else "holds in part",
            f"From B = {ct_small.batch} to {ct_large.batch}: ct {tell(ct_small)} to {tell(ct_large)}, lr-ws {tell(ws_small)} "
            f"to {tell(ws_large)}, dq-exact {tell(exact_small)} to {tell(exact_large)}, with a Monte Carlo floor of "
            f"{exact_large.floor:.3f}.",
        )
    ]


def draw(figure: Figure, numbers: Numbers, _: list[Curves]) -> None:
    """Error against batch size, with the floor."""
    axis, x = figure.subplots(), [float(b) for b in numbers.names("batch")]
    for rule in RULES:
        lines(axis, x, list(numbers.where(method=rule)), rule, COLOURS[rule])
    floor_line(axis, x, numbers.where(method="dq-exact"))
    axis.set(xscale="log", yscale="log", xlabel="batch size B", ylabel="‖Ŝ − S⋆‖ / ‖S⋆‖")
    axis.set_xscale("log", base=2)
    axis.legend(frameon=False)


ENTRY = Entry(
    name="figure1",
    title="Figure 1: covariance error against batch size",
    caption=(
        "Misspecified linear regression, y ~ N(xᵀθ⋆, 1 + ‖x‖²), D = 20, N = 1000. Chains of 4000 passes for every batch "
        "size, so that the floor is below the differences."
    ),
    jobs=jobs,
    run=run,
    claims=claims,
    draw=draw,
    tabulated=("covariance_error",),
)
