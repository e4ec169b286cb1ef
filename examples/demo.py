"""Five million doctor's visits in a thousand clinics, read from files: what the model's own errors say, and what is true.

Half of the clinics send reminders, which do nothing: these data are simulated, so that is known. Patients of one clinic have
much in common, which a Poisson model does not know; its standard errors find an effect of reminders all the same. The same
model is calibrated to the covariance clustered by clinic, from Parquet files that are read block by block, with a
stochastic-gradient chain whose step and noise are computed, not tuned by hand.

Run it with `make demo`; `--rows 100000` takes fewer rows. Files and report go to the folder `out/`; the files are kept for
the next run.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import equipoise as eq

FORMULA = "visits ~ age + conditions + C(region) + reminder"
REGIONS = ["east", "north", "south", "west"]
CLINICS, PART, MEMORY = 1000, 500_000, "200MB"
T = TypeVar("T")


class Stages:
    """Runs one stage after another, and keeps what each took."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.table = Table("stage", title="What it took", title_justify="left")
        for column in ("seconds", "core seconds", "peak memory", "passes over files"):
            self.table.add_column(column, justify="right")

    def run(self, name: str, stage: Callable[[], T], source: eq.data.Source | None = None) -> T:
        """What a stage returns; its passes are counted where it is given a source."""
        clock, cores, passes = time.perf_counter(), time.process_time(), getattr(source, "passes", 0.0)
        found = stage()
        took = time.perf_counter() - clock, time.process_time() - cores
        read = f"{getattr(source, 'passes', 0.0) - passes:.0f}" if source is not None else ""
        self.table.add_row(name, f"{took[0]:.1f}", f"{took[1]:.1f}", f"{peak():,.0f} MB", read)
        return found

    @property
    def seconds(self) -> float:
        """What all of it took, by the clock."""
        return time.perf_counter() - self._began


def peak() -> float:
    """The most memory this process had so far, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most / 1e3


def simulate(folder: Path, rows: int) -> Path:
    """Patients of a thousand clinics in Parquet files, one for every half million; made once and kept."""
    place = folder / f"visits-{rows}"
    if (place / "complete").exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    habit = rng.normal(scale=0.2, size=CLINICS)  # what the patients of a clinic have in common
    reminded = rng.permutation(CLINICS) % 2
    for part, start in enumerate(range(0, rows, PART)):
        n = min(PART, rows - start)
        clinic, age = rng.integers(0, CLINICS, n), rng.integers(18, 90, n)
        conditions = rng.binomial(4, 0.15, n)
        region = clinic % 4
        rate = np.exp(-1.5 + 0.01 * age + 0.3 * conditions + 0.1 * region + habit[clinic])
        columns = {
            "visits": rng.poisson(rate).astype("int16"),
            "age": age.astype("int16"),
            "conditions": conditions.astype("int8"),
            "reminder": reminded[clinic].astype("int8"),
            "region": pa.DictionaryArray.from_arrays(region.astype("int8"), REGIONS),
            "clinic": clinic.astype("int16"),
        }
        pq.write_table(pa.table(columns), place / f"part-{part:02d}.parquet")
    (place / "complete").touch()
    return place


def errors(cal: eq.Calibration) -> Table:
    """Standard errors of the model, of independent rows, and of clusters, beside the spread of the draws."""
    kinds = {
        "model": np.sqrt(np.diag(eq.posterior(cal.plan.moments))),
        "independent rows": np.sqrt(np.diag(eq.sandwich(cal.plan.moments))),
        "by clinic": cal.bse.to_numpy(),
    }
    table = Table("parameter", title="Standard errors", title_justify="left")
    for column in (*kinds, "sd of the draws", "by clinic / model"):
        table.add_column(column, justify="right")
    found = zip(cal.names, *kinds.values(), cal.chains.flat().std(axis=0), strict=True)
    for name, *values in found:
        table.add_row(name.replace("[", r"\["), *(f"{value:.2g}" for value in values), f"{values[2] / values[0]:.1f}×")
    return table


def reminders(cal: eq.Calibration) -> str:
    """What the two kinds of errors say of an effect that is not there."""
    k = cal.names.index("reminder")
    estimate, own = cal.fit.params[k], np.sqrt(eq.posterior(cal.plan.moments)[k, k])
    clustered = float(cal.bse.iloc[k])
    return (
        f"Reminders do nothing in these data. The estimate is {estimate:+.4f}: {abs(estimate) / own:.1f} standard errors of "
        f"the model from zero, and {abs(estimate) / clustered:.1f} of those by clinic (p = {cal.pvalues.iloc[k]:.2f})."
    )


def costs(plan: eq.Plan) -> str:
    """Rows read for an effective draw, as planned, by the chain that was taken and by plain SGD."""
    plain = next(c for c in plan.candidates if c.sampler == "sgmcmc")
    return (
        f"Rows read for one effective draw: {plan.tuning.rows_per_draw:,.0f} with control variates, "
        f"{plain.rows_per_draw:,.0f} with plain SGD, which is about one pass over all {plan.moments.n:,}."
    )


def main() -> None:
    """Simulate, plan, draw, compare, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    console, stages, model = Console(highlight=False, width=110), Stages(), eq.glm("poisson")

    folder = stages.run(f"simulate {options.rows:,} rows into Parquet", lambda: simulate(options.out, options.rows))
    scan = lambda: eq.data.scan(f"{folder}/*.parquet", FORMULA, clusters="clinic", memory=MEMORY)  # noqa: E731
    source = stages.run("scan: levels, and a sample of rows", scan)
    plan = stages.run("plan: fit, covariance, step, budget", lambda: eq.plan(model, source, target="CRV1"), source)
    print(f"What the run will cost, known before the first step:\n\n{plan}\n")

    cal = stages.run(
        "calibrate: all of it, and 1,000 draws", lambda: eq.calibrate(model, source, target="CRV1"), source
    )
    print(f"{cal.summary()}\n")
    page = stages.run("report: one HTML page", lambda: cal.report(options.out / "demo.html"), source)

    console.print(errors(cal))
    print(f"{reminders(cal)}\n{costs(plan)}\n")
    console.print(stages.table)
    print(f"{stages.seconds:.0f} s in all. Reading was held to {MEMORY}; the rest is Python and its libraries.\n")
    print(f"report: {page}   (open it in a browser)")
    print(f"run:    {cal.save(options.out / 'demo.eqz')}    (equipoise.load reads it back)")


if __name__ == "__main__":
    main()
