"""A pass over Parquet files beside pyarrow's own decoding of the same columns, whole runs, and the memory that they take.

Run:  .venv/bin/python benchmarks/scan.py --rows 1e7          (a few minutes; the file is made anew unless it is there)
      .venv/bin/python benchmarks/scan.py --rows 1e6 --peers  (others that fit the same model, as far as they can)
Adds to benchmarks/results/scan.json under the number of rows: seconds of every repeat, in turns, and of all cores together
(which other work on the machine disturbs less), in one process; a run (fit, clustered covariance, 1000 effective draws)
with its peak memory in another. Decoding puts every column into NumPy arrays block by block, on all cores: row groups side
by side, the fastest way of pyarrow's that was found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, BLOCK, CLUSTERS = 10, 95_000, 1000
FORMULA = "y ~ " + " + ".join(f"x{j}" for j in range(COLUMNS))
USED = [*(f"x{j}" for j in range(COLUMNS)), "y"]


def written(folder: Path, rows: int) -> Path:
    """A file of a Poisson response, ten columns of noise and a thousand clusters, a million rows at a time."""
    file = folder / f"clustered-{rows}.parquet"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    rng, size = np.random.default_rng(0), 1 << 20
    effects = 0.2 * rng.normal(size=CLUSTERS)
    writer = None
    for start in range(0, rows, size):
        count = min(size, rows - start)
        x = rng.normal(size=(COLUMNS, count))
        firm = rng.integers(0, CLUSTERS, count)
        y = rng.poisson(np.exp(0.1 * x[0] + 0.2 * x[1] + effects[firm]) * rng.gamma(2.0, 0.5, count)).astype(float)
        table = pa.table({**{f"x{j}": x[j] for j in range(COLUMNS)}, "y": y, "firm": firm})
        writer = writer or pq.ParquetWriter(file, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return file


def decoded(file: Path) -> int:
    """Every column into NumPy arrays, by pyarrow alone."""

    def group(k: int) -> int:
        count = 0
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(BLOCK, [k], columns=USED, use_threads=False):
                count += sum(len(column.to_numpy()) for column in batch.columns)
        return count

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(group, range(pq.ParquetFile(file).metadata.num_row_groups)))


def tasks(file: Path) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    import equipoise as eq
    from equipoise.models.passes import LossPass, MomentPass

    source, model, theta = eq.data.scan(file, FORMULA), eq.glm("poisson"), np.full(COLUMNS + 1, 0.01)
    return {
        "pyarrow decodes": lambda: decoded(file),
        "levels": lambda: eq.data.scan(file, FORMULA),
        "gradient": lambda: source.reduce(LossPass(model, theta, 1)),
        "Hessian": lambda: source.reduce(LossPass(model, theta, 2)),
        "moments": lambda: source.reduce(MomentPass(model, theta)),
    }


def timed(file: Path, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each, in turns: by the clock, and of all cores."""
    every = tasks(file)
    clocks = {"seconds": time.perf_counter, "core seconds": time.process_time}
    found: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in every} for kind in clocks}
    for _ in range(repeats):
        for name, task in every.items():
            start = {kind: clock() for kind, clock in clocks.items()}
            task()
            for kind, clock in clocks.items():
                found[kind][name].append(clock() - start[kind])
    return found


def peak() -> float:
    """The most memory that this process had, in MB; the kernel's page leaves out what the parent held when it started us."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def ran(file: Path) -> dict[str, float]:
    """A Poisson regression with clustered errors and 1000 effective draws, alone in its process, beside decoding there."""
    import equipoise as eq

    start, cores = time.perf_counter(), time.process_time()
    source = eq.data.scan(file, FORMULA, clusters="firm", memory="1GB")
    levels = time.perf_counter() - start
    cal = eq.calibrate(eq.glm("poisson"), source, target="CRV1", ess=1000, progress=False)
    seconds, used = time.perf_counter() - start, time.process_time() - cores
    most = peak()
    assert cal.plan.reads is not None
    start, cores = time.perf_counter(), time.process_time()
    decoded(file)
    once, own = time.perf_counter() - start, time.process_time() - cores
    return {
        "seconds": seconds,
        "core seconds": used,
        "seconds of the first pass": levels,
        "passes": source.passes,
        "passes before the first step": cal.plan.reads.passes,
        "predicted effective draws": cal.plan.ess,
        "observed effective draws": float(np.min(cal.diagnosis.ess)),
        "peak MB": most,
        "decoding": once,
        "core seconds of decoding": own,
        "times decoding": seconds / once,
        "times decoding by core seconds": used / own,
    }


def statsmodels(file: Path) -> None:
    """Newton's method on the whole table, with clustered errors."""
    import pandas as pd
    import statsmodels.api as sm

    frame = pd.read_parquet(file)
    x = sm.add_constant(frame[[f"x{j}" for j in range(COLUMNS)]].to_numpy())
    model = sm.GLM(frame["y"].to_numpy(), x, family=sm.families.Poisson())
    model.fit(cov_type="cluster", cov_kwds={"groups": frame["firm"].to_numpy()})


def sklearn(file: Path) -> None:
    """Estimates alone, by L-BFGS to its default tolerance."""
    import pandas as pd
    from sklearn.linear_model import PoissonRegressor

    frame = pd.read_parquet(file, columns=USED)
    PoissonRegressor(alpha=0.0, max_iter=1000).fit(
        frame[[f"x{j}" for j in range(COLUMNS)]].to_numpy(), frame["y"].to_numpy()
    )


def pyfixest(file: Path) -> None:
    """Clustered errors, by its own solver."""
    import pandas as pd
    import pyfixest as pf

    pf.fepois(FORMULA, pd.read_parquet(file), vcov={"CRV1": "firm"})


def glum(file: Path) -> None:
    """Its own coordinate descent, with clustered errors."""
    import pandas as pd
    from glum import GeneralizedLinearRegressor

    frame = pd.read_parquet(file)
    x, y = frame[[f"x{j}" for j in range(COLUMNS)]], frame["y"]
    model = GeneralizedLinearRegressor(family="poisson", alpha=0.0)
    model.fit(x, y)
    model.std_errors(x, y, clusters=frame["firm"].to_numpy())


def dask_ml(file: Path) -> None:
    """Estimates alone, by Newton's method on a row group at a time, as its defaults have it but for the penalty."""
    import dask.dataframe as dd
    from dask_ml.linear_model import PoissonRegression

    table = dd.read_parquet(file, columns=USED, split_row_groups=True).to_dask_array(lengths=True)
    PoissonRegression(solver="newton", penalty="l2", C=1e12, max_iter=50).fit(table[:, :-1], table[:, -1])


PEERS: dict[str, Callable[[Path], None]] = {
    "statsmodels": statsmodels,
    "scikit-learn": sklearn,
    "glum": glum,
    "pyfixest": pyfixest,
    "dask-ml": dask_ml,
}


def timed_peer(file: Path, name: str) -> dict[str, float]:
    """Seconds and memory of another package, alone in its process; reading is part of it."""
    start = time.perf_counter()
    PEERS[name](file)
    return {"seconds": time.perf_counter() - start, "peak MB": peak()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "equipoise-scan")
    parser.add_argument("--only", help="print the figures of the run ('run') or of a peer, and write nothing")
    parser.add_argument("--peers", action="store_true", help="time the others too")
    options = parser.parse_args()
    file = written(options.folder, int(options.rows))
    if options.only:
        print(json.dumps(ran(file) if options.only == "run" else timed_peer(file, options.only)))
        return

    def alone(name: str) -> dict[str, float | str]:
        asked = ["--rows", str(options.rows), "--folder", str(options.folder), "--only", name]
        done = subprocess.run([sys.executable, __file__, *asked], capture_output=True, text=True, check=False)
        if done.returncode:
            return {"failed": [*done.stderr.strip().splitlines(), f"exit code {done.returncode}"][-1]}
        return json.loads(done.stdout.splitlines()[-1])

    place = ROOT / "benchmarks" / "results" / "scan.json"
    kept = json.loads(place.read_text()) if place.exists() else {}
    kept = {key: value for key, value in kept.items() if key.isdigit()}
    # what is not measured anew stays as it was
    before = kept.get(str(int(options.rows)), {})
    decoded(file)  # into the page cache
    found: dict[str, object] = {**before, "columns": COLUMNS + 1, "run": alone("run")}
    print("run", found["run"])
    if options.peers:
        found["peers"] = {name: alone(name) for name in PEERS}
        print(found["peers"])
    if options.repeats:
        measured = timed(file, options.repeats)
        best = {kind: {name: min(each) for name, each in every.items()} for kind, every in measured.items()}
        ratios = {
            kind: {name: t / every["pyarrow decodes"] for name, t in every.items()} for kind, every in best.items()
        }
        found |= {**measured, "ratios of the fastest": ratios}
        for name in best["seconds"]:
            line = [f"{best[kind][name]:6.2f} {kind} ({ratios[kind][name]:.2f} times decoding)" for kind in best]
            print(f"{name:16s} {'   '.join(line)}")
    place.write_text(json.dumps({**kept, str(int(options.rows)): found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
