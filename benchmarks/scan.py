"""A pass over Parquet files beside pyarrow's own decoding of the same columns, and the memory that it takes.

Run:  .venv/bin/python benchmarks/scan.py --rows 1e7          (a minute; the file is made anew unless it is there)
Writes benchmarks/results/scan.json: seconds of every repeat, in turns, and of all cores together (which other work on the
machine disturbs less), in one process; and a fit with its peak memory in another. Decoding puts every column into NumPy
arrays block by block, on all cores: row groups side by side, the fastest way of pyarrow's that was found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, BLOCK = 10, 95_000


def written(folder: Path, rows: int) -> Path:
    """A file of a Poisson response and ten columns of noise, a million rows at a time."""
    file = folder / f"scan-{rows}.parquet"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    rng, size = np.random.default_rng(0), 1 << 20
    writer = None
    for start in range(0, rows, size):
        count = min(size, rows - start)
        x = rng.normal(size=(COLUMNS, count))
        y = rng.poisson(np.exp(0.1 * x[0] + 0.2 * x[1]) * rng.gamma(2.0, 0.5, count)).astype(float)
        table = pa.table({**{f"x{j}": x[j] for j in range(COLUMNS)}, "y": y})
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
            for batch in parquet.iter_batches(BLOCK, [k], use_threads=False):
                count += sum(len(column.to_numpy()) for column in batch.columns)
        return count

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(group, range(pq.ParquetFile(file).metadata.num_row_groups)))


def tasks(file: Path) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    import equipoise as eq
    from equipoise.models.passes import LossPass, MomentPass

    formula = "y ~ " + " + ".join(f"x{j}" for j in range(COLUMNS))
    source, model, theta = eq.data.scan(file, formula), eq.glm("poisson"), np.full(COLUMNS + 1, 0.01)
    return {
        "pyarrow decodes": lambda: decoded(file),
        "levels": lambda: eq.data.scan(file, formula),
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


def fitted(file: Path) -> dict[str, float]:
    """A fit with moments, alone in its process: seconds, passes, and the most memory it had."""
    import equipoise as eq

    start = time.perf_counter()
    source = eq.data.scan(file, "y ~ " + " + ".join(f"x{j}" for j in range(COLUMNS)))
    problem = eq.bind(eq.glm("poisson"), source)
    result = eq.fit(problem)
    fit_passes = source.passes
    eq.moments(problem, result)
    return {
        "seconds": time.perf_counter() - start,
        "passes of levels and fit": fit_passes,
        "passes": source.passes,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/equipoise-scan"))
    parser.add_argument("--only-fit", action="store_true", help="print the fit's figures and write nothing")
    options = parser.parse_args()
    file = written(options.folder, int(options.rows))
    if options.only_fit:
        print(json.dumps(fitted(file)))
        return
    measured = timed(file, options.repeats)
    command = [sys.executable, __file__, "--rows", str(options.rows), "--folder", str(options.folder), "--only-fit"]
    fit = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    best = {kind: {name: min(each) for name, each in every.items()} for kind, every in measured.items()}
    ratios = {kind: {name: t / every["pyarrow decodes"] for name, t in every.items()} for kind, every in best.items()}
    found = {"rows": int(options.rows), "columns": COLUMNS + 1, **measured, "ratios of the fastest": ratios, "fit": fit}
    (ROOT / "benchmarks" / "results" / "scan.json").write_text(json.dumps(found, indent=1) + "\n")
    for name in best["seconds"]:
        line = [f"{best[kind][name]:6.2f} {kind} ({ratios[kind][name]:.2f} times decoding)" for kind in best]
        print(f"{name:16s} {'   '.join(line)}")
    print(fit)


if __name__ == "__main__":
    main()
