"""Measuring: contenders in turn, repeat by repeat, on one pinned thread; the smallest time counts."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "PINNED",
    "NotInstalled",
    "Settings",
    "child_environment",
    "exponent",
    "guarded",
    "interleave",
    "pinned",
    "say",
    "timed",
    "unpinned",
]

# Set before anything is imported: one thread for every library that has threads of its own.
PINNED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",
}

_ROOT = Path(__file__).resolve().parents[2]


class NotInstalled(Exception):
    """A package that a measurement needs is not there."""


@dataclass(frozen=True)
class Settings:
    """How thorough a run is.

    Attributes
    ----------
    smoke
        Tiny sizes, one repeat, nothing said about time.
    repeats
        Rounds over all contenders.
    seconds
        Aim for one repeat of one contender.
    """

    smoke: bool = False
    repeats: int = 9
    seconds: float = 0.1

    @classmethod
    def of(cls, smoke: bool) -> Settings:
        """The settings of a full run, or of a smoke run."""
        return cls(True, 1, 0.0) if smoke else cls()


def child_environment(settings: dict[str, str] | None = None) -> dict[str, str]:
    """Of a process that imports this package: ours with `settings`, and the repository on its path.

    The package is not installed, and only the process that was started in the repository finds it by itself.
    """
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **(settings or {}), "PYTHONPATH": path}


def say(text: str) -> None:
    """A line of progress, with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def timed(work: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleave(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every work in every round: all are met by the same disturbances."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            seconds[name].append(timed(work))
    return seconds


def guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a measurement, or why there is none: a failure never stops the others."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peers; ours are tested elsewhere
            result = work()
    except NotInstalled as missing:
        result = {"not_installed": str(missing)}
    except Exception as error:
        result = {"error": _without_paths(f"{type(error).__name__}: {error}")[:500]}
    result.setdefault("measured_in_seconds", round(time.perf_counter() - began, 2))
    return result


def _without_paths(text: str) -> str:
    return re.sub(r"(?:/[\w.@+-]+)+/([\w.@+-]+)", r"\1", text)


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The slope of log seconds against log sizes."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def pinned() -> AbstractContextManager[None]:
    """The calling thread, and those it starts, on one core where the system can do it."""
    return _on_cores(lambda allowed: {max(allowed)})


def unpinned() -> AbstractContextManager[None]:
    """All cores again, for a measurement of threads inside a pinned run."""
    return _on_cores(lambda _: set(range(os.cpu_count() or 1)))


@contextmanager
def _on_cores(chosen: Callable[[set[int]], set[int]]) -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen(before))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
