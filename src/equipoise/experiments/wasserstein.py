"""Figure of the Wasserstein distance between a chain and its proxy, against λ/B."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import equipoise as eq
from equipoise.arrays import Array
from equipoise.experiments.entry import Curves, Entry, Job, Result, Scale
from equipoise.experiments.measure import row
from equipoise.experiments.numbers import Claim, Numbers, short
from equipoise.report import palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from equipoise.models.glm import GLM

__all__ = ["ENTRY", "slope"]


RATIOS = (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)
BATCHES = (8, 32, 128)
COLOURS = {8: palette.SKY, 32: palette.BLUE, 128: palette.NAVY}
# Steps per unit of autocorrelation time, and the least number of them: the distance is an average of squares.
LENGTH, LEAST = 400, 100_000
# The range in which the distance is of first order in λ/B.
SMALL = 4e-4


def data(kind: str, seed: int, rows: int, dim: int) -> tuple[Array, Array]:
    """Counts that are Poisson, or negative binomial with as large an excess variance as mean squared over two."""
    rng = np.random.default_rng([seed, 6])
    x = rng.standard_normal((rows, dim))
    mean = np.exp(x @ rng.standard_normal(dim) / np.sqrt(dim))
    y = rng.poisson(mean) if kind == "poisson" else rng.negative_binomial(2.0, 2.0 / (2.0 + mean))
    return x, y.astype(np.float64)


def jobs(scale: Scale) -> list[Job]:
    """Every kind of data, batch size and ratio."""
    ratios = scale.pick(RATIOS, (1e-4, 2e-4, 4e-4))
    return [
        {"dataset": kind, "size": b, "ratio": q, "repetition": r}
        for kind in ("poisson", "negative-binomial")
        for b in BATCHES
        for q in ratios
        for r in range(scale.pick(3, 2))
    ]


def run(job: Job, scale: Scale) -> Result:
    """Distance from below, from above, and the theorem's bound where it applies."""
    seed, dynamics = 1000 * scale.seed + job["repetition"], eq.Dynamics(job["size"])
    rows = data(job["dataset"], seed, 2000, scale.pick(50, 10))
    model = eq.glm("poisson")
    fit = eq.fit(model, rows)
    moments = eq.moments(model, rows, fit.params)
    step = job["ratio"] * job["size"]
    tuning = eq.Tuning.at(moments, step, dynamics)
    steps = max(scale.pick(LEAST, 5000), int(scale.pick(LENGTH, 40) * tuning.predicted.iact()))
    found = eq.coupled_distance(model, rows, tuning, steps=steps, seed=seed)
    allowed = _largest_step(model, rows, fit, dynamics)
    bound = eq.wasserstein_bound(model, rows, fit, allowed, dynamics).value or np.nan
    cell = {"dataset": job["dataset"], "batch": f"B={job['size']}"}
    key = {**cell, "method": f"{job['ratio']:g}"}
    values = {
        "gelbrich": found.gelbrich, "coupling": found.coupling, "largest_step_of_the_theorem": allowed,
        # of first order in λ/B, so one value in its range gives the line
        "theorem_per_ratio": bound / (allowed / job["size"]),
    }  # fmt: skip
    return {"rows": [row(v, metric=k, **key) for k, v in values.items()]}


def _largest_step(model: GLM, rows: tuple[Array, Array], fit: eq.Fit, dynamics: eq.Dynamics) -> float:
    """The largest power of two times 10⁻¹² for which the theorem says anything."""
    step = 1e-12
    while eq.wasserstein_bound(model, rows, fit, 2.0 * step, dynamics).value is not None and step < 1.0:
        step *= 2.0
    return step


def slope(ratios: Array, distances: Array) -> tuple[float, float]:
    """Slope of log distance on log λ/B, and its standard error."""
    x, y = np.log(ratios), np.log(distances)
    x = x - x.mean()
    b = float(x @ y / (x @ x))
    rest = y - y.mean() - b * x
    return b, float(np.sqrt(rest @ rest / max(len(x) - 2, 1) / (x @ x)))


def claims(numbers: Numbers, _: list[Curves]) -> list[Claim]:
    """What the figure is said to show."""
    found = []
    for dataset in numbers.names("dataset"):
        here = numbers.where(dataset=dataset)
        cells = [c for c in here.where(metric="coupling") if float(c.method) <= SMALL]
        points = np.array([(float(c.method), v) for c in cells for v in c.values])
        b, error = slope(*points.T)
        whole = np.array([(float(c.method), v) for c in here.where(metric="coupling") for v in c.values])
        wide = slope(*whole.T)[0]
        tail = f" Over the whole range it is {wide:.2f}: higher orders set in." if wide > b + 0.03 else ""
        found.append(
            Claim(
                f"The distance is of first order in λ/B, the same for all batch sizes ({dataset}).",
                "holds" if abs(b - 1.0) < 0.15 else "holds in part",
                f"Slope of the coupling distance {b:.2f} ± {error:.2f} for λ/B ≤ {SMALL:g}, all batch sizes together.{tail}",
            )
        )
        line, allowed = here.at(metric="theorem_per_ratio"), here.at(metric="largest_step_of_the_theorem", batch="B=32")
        if line is not None and allowed is not None and cells:
            factor = line.mean * float(cells[-1].method) / cells[-1].mean
            found.append(
                Claim(
                    f"The theorem's bound lies above the measured distance ({dataset}).",
                    "holds in part",
                    f"At B = 32 the theorem's own condition allows steps up to {short(allowed.mean)} only, orders of magnitude "
                    f"below those of the figure. Continued beyond, its line lies a factor {factor:,.0f} above the distance.",
                )
            )
    return found


def draw(figure: Figure, numbers: Numbers, _: list[Curves]) -> None:
    """Coupling and Gelbrich distances with the theorem's line."""
    names = numbers.names("dataset")
    axes = np.atleast_1d(figure.subplots(1, len(names)))
    for axis, dataset in zip(axes, names, strict=True):
        here = numbers.where(dataset=dataset)
        for batch in BATCHES:
            for metric, style in (("coupling", "o-"), ("gelbrich", "v:")):
                cells = here.where(metric=metric, batch=f"B={batch}")
                label = f"{metric}, B = {batch}"
                axis.plot(
                    [float(c.method) for c in cells],
                    [c.mean for c in cells],
                    style,
                    color=COLOURS[batch],
                    markersize=3.5,
                    label=label,
                )
        line = here.at(metric="theorem_per_ratio")
        if line is not None:
            x = np.array([float(m) for m in here.names("method")])
            axis.plot(x, line.mean * x, "--", color=palette.VERMILION, label="theorem, continued outside its range")
        axis.set(xscale="log", yscale="log", xlabel="λ / B", ylabel="distance between chain and proxy", title=dataset)
        axis.legend(frameon=False, fontsize=7)


ENTRY = Entry(
    name="figure-w2",
    title="Wasserstein distance between chain and proxy",
    caption=(
        "Poisson regression, N = 2000, D = 50, on counts that are Poisson and on negative binomial ones. The distance lies "
        "between Gelbrich's lower bound and the coupling's upper bound, both measured on chains that share their batches."
    ),
    jobs=jobs,
    run=run,
    claims=claims,
    draw=draw,
    tabulated=(),
)
