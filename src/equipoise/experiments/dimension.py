"""Figure of the remark on dimension: the distance between chain and proxy against D, and against s on a subspace.

The paper bounds it by C·D·(λ/B + 1/β), and by C·s·(λ/B + 1/β) for chains that stay on a subspace of s coordinates. A regression
restricted to the coordinates S is one on the columns of S, with what the others say as its offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit

import equipoise as eq
from equipoise.arrays import Array
from equipoise.experiments.entry import Curves, Entry, Job, Result, Scale
from equipoise.experiments.measure import row
from equipoise.experiments.numbers import Claim, Numbers
from equipoise.experiments.plots import lines
from equipoise.experiments.wasserstein import slope
from equipoise.report import palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from equipoise.data.arrays import Rows

__all__ = ["ENTRY"]

SIZES = (10, 20, 40, 80, 160)
# Steps per unit of autocorrelation time, and the least number of them: the distance is an average of squares.
LENGTH, LEAST = 40, 50_000
WHOLE, PART = "all parameters", "a subspace"
SYMBOLS = {WHOLE: "D", PART: "s"}


class Kind(NamedTuple):
    """One law of chains: what it is called, its step, batch size (None: as many rows as parameters) and temperature."""

    name: str
    step: float
    batch: int | None
    beta: float
    grows: float  # the power of D that the remark allows
    colour: str


KINDS = (
    Kind("SGD, λ/B = 0.0001", 3.2e-3, 32, np.inf, 1.0, palette.BLUE),
    Kind("SGD, λ/B = 0.001", 3.2e-2, 32, np.inf, 1.0, palette.NAVY),
    Kind("SGLD, λ/B = 0.0001, 1/β = 0.001", 3.2e-3, 32, 1000.0, 1.0, palette.VERMILION),
    Kind("SGD, λ = 0.016, one row a parameter", 1.6e-2, None, np.inf, 0.0, palette.GREEN),
)


def data(seed: int, rows: int, dim: int, active: int) -> tuple[Array, Array]:
    """Independent normal covariates; only the first `active` matter, all alike, with a predictor of variance one."""
    rng = np.random.default_rng([seed, 15])
    x = rng.standard_normal((rows, dim))
    theta = np.where(np.arange(dim) < active, rng.choice([-1.0, 1.0], size=dim), 0.0) / np.sqrt(active)
    return x, (rng.random(rows) < expit(x @ theta)).astype(np.float64)


def restricted(rows: tuple[Array, Array], size: int) -> Rows:
    """The rows of θ̂ + the span of the first `size` coordinates: the rest of θ̂ stays, as an offset."""
    x, y = rows
    rest = eq.fit(eq.glm("bernoulli"), rows).params[size:]
    return eq.data.rows(x[:, :size], y, offset=x[:, size:] @ rest)


def jobs(scale: Scale) -> list[Job]:
    """Every law, number of parameters and repetition; then the same on coordinates of the largest problem."""
    sizes = scale.pick(SIZES, (5, 10, 20))
    parts = {WHOLE: sizes, PART: sizes[:-1]}
    return [
        {"panel": panel, "kind": kind.name, "size": size, "dim": size if panel == WHOLE else sizes[-1], "repetition": r}
        for panel, some in parts.items()
        for kind in KINDS
        for size in some
        for r in range(scale.pick(3, 2))
    ]


def run(job: Job, scale: Scale) -> Result:
    """Distance from below, from above, and the theorem's constant."""
    size, seed = job["size"], 1000 * scale.seed + job["repetition"]
    kind = next(k for k in KINDS if k.name == job["kind"])
    every = data(seed, scale.pick(20_000, 2000), job["dim"], size)
    problem = eq.bind(eq.glm("bernoulli"), restricted(every, size) if size < job["dim"] else every)
    fit = eq.fit(problem)
    dynamics = eq.Dynamics(kind.batch or size, inverse_temperature=kind.beta)
    tuning = eq.Tuning.at(eq.moments(problem, fit), kind.step, dynamics)
    steps = max(scale.pick(LEAST, 5000), int(scale.pick(LENGTH, 10) * tuning.predicted.iact()))
    found = eq.coupled_distance(problem, tuning, steps=steps, seed=seed)
    # the theorem's A, which no step enters: W₂ ≤ A (λ/B + 1/β)
    constant = eq.wasserstein_bound(problem, fit, kind.step, dynamics).headline.constants["A"]
    key = {"dataset": job["panel"], "batch": kind.name, "method": str(size)}
    values = {"gelbrich": found.gelbrich, "coupling": found.coupling, "theorem_constant": constant}
    return {"rows": [row(v, metric=k, **key) for k, v in values.items()]}


def growth(numbers: Numbers, panel: str, kind: str, metric: str = "coupling") -> tuple[float, float]:
    """Power of the number of parameters with which a metric grows, and its standard error."""
    cells = numbers.where(dataset=panel, batch=kind, metric=metric)
    return slope(*np.array([(float(c.method), v) for c in cells for v in c.values]).T)


def claims(numbers: Numbers, _: list[Curves]) -> list[Claim]:
    """What the remark says, and what it takes for granted."""
    texts = {1.0: "The distance grows no faster than {}", 0.0: "With B in proportion to {} it does not grow"}
    found = [
        claim_bounded(f"{text.format(symbol)} ({panel}).", power, [(k, growth(numbers, panel, k.name)) for k in KINDS])
        for panel, symbol in SYMBOLS.items()
        for power, text in texts.items()
    ]
    return [*found, claim_same(numbers), claim_constant(numbers)]


def claim_bounded(text: str, most: float, found: list[tuple[Kind, tuple[float, float]]]) -> Claim:
    """Whether fitted powers are at most the remark's, up to two standard errors and the bend of a finite range."""
    here = [(kind.name, power, error) for kind, (power, error) in found if kind.grows == most]
    evidence = "; ".join(f"{name}: {power:.2f} ± {error:.2f}" for name, power, error in here)
    holds = all(power < most + 0.1 + 2.0 * error for _, power, error in here)
    return Claim(text, "holds" if holds else "does not hold", f"Fitted power of the coupling distance, {evidence}.")


def claim_same(numbers: Numbers) -> Claim:
    """The distance on s coordinates beside that of a problem with s parameters."""
    ratios = np.array(
        [
            part.mean
            / numbers.where(dataset=WHOLE, metric="coupling", batch=part.batch, method=part.method).cells[0].mean
            for part in numbers.where(dataset=PART, metric="coupling")
        ]
    )
    return Claim(
        "On a subspace the constant does not depend on the number of all parameters.",
        "holds" if ratios.min() > 0.8 and ratios.max() < 1.25 else "holds in part",
        f"Distance on s of the parameters over that of a problem with s parameters: {ratios.min():.2f} to {ratios.max():.2f} "
        f"in {len(ratios)} cells.",
    )


def claim_constant(numbers: Numbers) -> Claim:
    """The power with which the theorem's own constant grows."""
    power, error = growth(numbers, WHOLE, KINDS[0].name, "theorem_constant")
    return Claim(
        "The theorem's own constant A is at most C·D, for generalised linear models with sub-Gaussian covariates.",
        "holds" if power < 1.1 + 2.0 * error else "does not hold",
        f"It grows with the power {power:.2f} ± {error:.2f} of D (plug-in constants): the remark takes the constants of "
        "curvature to be bounded, and leaves out that of the third derivative, M. A row's third derivative has the size "
        "‖x‖³, so that M grows as D^1.5 and A as D^2.5. The measured distance does not follow it.",
    )


def draw(figure: Figure, numbers: Numbers, _: list[Curves]) -> None:
    """Coupling distances against the number of parameters, with the fitted slopes."""
    for axis, panel in zip(figure.subplots(1, 2, sharey=True), SYMBOLS, strict=True):
        for kind in KINDS:
            cells = numbers.where(dataset=panel, batch=kind.name, metric="coupling").cells
            power, error = growth(numbers, panel, kind.name)
            x = [float(c.method) for c in cells]
            lines(axis, x, cells, f"{kind.name}: slope {power:.2f} ± {error:.2f}", kind.colour)
            low = [
                numbers.where(dataset=panel, batch=c.batch, metric="gelbrich", method=c.method).cells[0] for c in cells
            ]
            axis.plot(x, [c.mean for c in low], "v:", markersize=3, color=kind.colour)
        # a line of slope one, to compare with
        first = numbers.where(dataset=panel, batch=KINDS[0].name, metric="coupling").cells
        ends = np.array([float(first[0].method), float(first[-1].method)])
        axis.plot(ends, 0.5 * first[0].mean * ends / ends[0], "--", color=palette.GREY, label="slope one")
        axis.set(xscale="log", yscale="log", xlabel=SYMBOLS[panel], title=panel)
        axis.set_xticks(x, [c.method for c in first], minor=False)
        axis.set_xticks([], minor=True)
        axis.legend(frameon=False, fontsize=7, loc="upper left")
    bottom, top = figure.axes[0].get_ylim()
    figure.axes[0].set_ylim(bottom, 20.0 * top)  # room for the legends
    figure.axes[0].set_ylabel("distance between chain and proxy")


ENTRY = Entry(
    name="figure-dimension",
    title="Distance between chain and proxy against the number of parameters",
    caption=(
        "Logistic regression with independent normal covariates and a predictor of variance one, N = 20,000. Left: all "
        "D parameters move. Right: s coordinates of the largest D move, those that matter, and the others "
        "stay at the minimiser. Circles are the coupling's upper bound, triangles Gelbrich's lower bound."
    ),
    jobs=jobs,
    run=run,
    claims=claims,
    draw=draw,
    tabulated=(),
)
