"""A process that measures its own peak memory: `python -m benchmarks.suite.memory FAMILY ROWS COLUMNS`."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import equipoise as eq
from benchmarks.suite.workloads import make_data

__all__ = ["main", "peak"]


def peak() -> float:
    """Peak resident memory in bytes, of this program alone.

    On Linux from the kernel's own page: `getrusage` there also counts what the parent held when it started us.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024.0 * next(float(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1.0 if sys.platform == "darwin" else 1024.0)


def main(family: str, rows: int, dim: int) -> None:
    """Fit, take moments, tune and sample; print the peaks after each as JSON."""
    imports = peak()
    data = make_data(family, rows, dim)
    size = data[0].nbytes + data[1].nbytes
    peaks = {"imports": imports, "data": peak()}
    model = eq.glm(family)
    fitted = eq.fit(model, data)
    peaks["fit"] = peak()
    moments = eq.moments(model, data, fitted.params)
    peaks["moments"] = peak()
    tuning = eq.tune(moments, "sandwich", eq.Dynamics(min(1000, rows // 10)))
    peaks["tune"] = peak()
    eq.sample(model, data, tuning, draws=100, chains=2, thin=10, burn_in=0, progress=False)
    peaks["sample"] = peak()
    ratios = {stage: peak / size for stage, peak in peaks.items()}
    print(json.dumps({"data_bytes": size, "peak_bytes": peaks, "ratios": ratios, "ratio": ratios["sample"]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
