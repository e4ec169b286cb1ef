"""How whole runs grow: with the rows of a file, with columns, with cores; and what a cluster adds to a pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import equipoise as eq
from benchmarks.suite.measure import PINNED, Settings, child_environment, guarded, interleave, say, unpinned
from benchmarks.suite.peers import require

__all__ = ["cluster_passes", "in_columns", "in_cores", "in_rows"]

_ROOT = Path(__file__).resolve().parents[2]
_ROWS, _ROWS_SMOKE = (10_000, 100_000, 1_000_000, 10_000_000), (2000,)
_STORED = "100000000"  # too long for a run of everything: from benchmarks/scan.py, when it was last run
_COLUMNS, _COLUMNS_SMOKE = (10, 30, 100, 300, 1000), (4,)
_PASS_ROWS, _PASS_ROWS_SMOKE = 5_000_000, 20_000


def in_rows(settings: Settings) -> dict[str, Any]:
    """A clustered regression with 1000 effective draws from a Parquet file: seconds, passes and peak memory."""
    found = {str(n): guarded(lambda n=n: _from_file(n)) for n in (_ROWS_SMOKE if settings.smoke else _ROWS)}  # type: ignore[misc]
    stored = _ROOT / "benchmarks" / "results" / "scan.json"
    if not settings.smoke and stored.exists():
        kept = json.loads(stored.read_text(encoding="utf-8"))
        if _STORED in kept:
            found[_STORED] = {**kept[_STORED]["run"], "stored": True}
    return {"runs": found}


def _from_file(rows: int) -> dict[str, Any]:
    with unpinned():
        made = _child([str(_ROOT / "benchmarks" / "scan.py"), "--rows", str(rows), "--only", "run"], threads=True)
    say(f"rows {rows:,}: {made['seconds']:.2f} s, {made['peak MB']:.0f} MB")
    return made


def in_columns(settings: Settings) -> dict[str, Any]:
    """A logistic regression of 20,000 rows from arrays to the summary, by the number of columns."""
    rows = 400 if settings.smoke else 20_000
    found = {}
    for dim in _COLUMNS_SMOKE if settings.smoke else _COLUMNS:
        found[str(dim)] = guarded(lambda d=dim: _job(rows, d, 1))  # type: ignore[misc]
        say(f"columns {dim}: {found[str(dim)]}")
    return {"rows": rows, "runs": found}


def in_cores(settings: Settings) -> dict[str, Any]:
    """A logistic regression of a million rows and 20 columns from arrays to the summary, by the number of cores."""
    rows, most = (2000 if settings.smoke else 1_000_000), (os.cpu_count() or 1)
    counts = [1] if settings.smoke else sorted({1, most} | {2**k for k in range(1, 8) if 2**k <= most})
    found = {}
    for cores in counts:
        with unpinned():
            found[str(cores)] = guarded(lambda c=cores: _job(rows, 20, c))  # type: ignore[misc]
        say(f"cores {cores}: {found[str(cores)]}")
    return {"rows": rows, "columns": 20, "runs": found}


def _job(rows: int, dim: int, cores: int) -> dict[str, Any]:
    return _child(["-m", "benchmarks.suite.job", "bernoulli", str(rows), str(dim), str(cores)], threads=cores > 1)


def _child(command: list[str], threads: bool) -> dict[str, Any]:
    """What a process of its own prints last, as JSON; with `threads`, every library may use its own."""
    environment = child_environment(PINNED)
    if threads:
        environment = {key: value for key, value in environment.items() if key not in PINNED}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=_ROOT)
    if done.returncode:
        raise RuntimeError([*done.stderr.strip().splitlines(), f"exit code {done.returncode}"][-1])
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def cluster_passes(settings: Settings) -> dict[str, Any]:
    """A Newton pass over a Parquet file on threads of this process, and by workers of a Dask cluster on this machine."""
    distributed = require("distributed")
    from benchmarks.scan import FORMULA, written

    rows = _PASS_ROWS_SMOKE if settings.smoke else _PASS_ROWS
    folder = Path(tempfile.gettempdir()) / "equipoise-scan"
    file, model = written(folder, rows), eq.glm("poisson")
    workers = 1 if settings.smoke else os.cpu_count() or 1
    with (
        unpinned(),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=not settings.smoke, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        sources = {
            "threads": eq.data.scan(file, FORMULA),
            "cluster": eq.data.scan(file, FORMULA, executor=client),
        }
        theta = np.full(len(sources["threads"].names), 0.01)
        works = {name: (lambda s=source: eq.moments(model, s, theta)) for name, source in sources.items()}  # type: ignore[misc]
        before = {name: source.passes for name, source in sources.items()}
        for work in works.values():
            work()
        passes = {name: source.passes - before[name] for name, source in sources.items()}
        seconds = interleave(works, 1 if settings.smoke else 5)
    each = {name: min(times) / max(passes[name], 1) for name, times in seconds.items()}
    say(f"a pass over {rows:,} rows: {each}")
    overhead = each["cluster"] - each["threads"]
    return {"rows": rows, "workers": workers, "passes": passes, "seconds_per_pass": each, "overhead_seconds": overhead}
