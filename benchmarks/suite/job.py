"""One whole job in a process of its own: `python -m benchmarks.suite.job FAMILY ROWS COLUMNS CORES` prints JSON."""

from __future__ import annotations

import json
import os
import sys
import time

__all__ = ["main"]


def main(family: str, rows: int, dim: int, cores: int) -> None:
    """From arrays to the printed summary, after a small run that compiles; seconds, and the peak memory of the process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-cores:]))
    # after that, so that libraries count the cores that are left
    import equipoise as eq
    from benchmarks.suite.memory import peak
    from benchmarks.suite.workloads import make_data

    def job(data: tuple[object, object]) -> None:
        str(eq.calibrate(eq.glm(family), data, ess=1000, progress=False).summary())

    job(make_data(family, 2000, 5))
    data = make_data(family, rows, dim)
    before = peak()
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        job(data)
        seconds.append(time.perf_counter() - began)
        if sum(seconds) > 20.0:
            break
    size = data[0].nbytes + data[1].nbytes
    print(
        json.dumps({"seconds": min(seconds), "peak MB": peak() / 1e6, "before MB": before / 1e6, "data MB": size / 1e6})
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
