"""The machine a run was made on: processor, caches, memory and versions; no names, no paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import equipoise as eq
from benchmarks.suite.peers import installed

__all__ = ["describe", "load"]


def describe() -> dict[str, Any]:
    """What a reader needs to place the figures."""
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "memory_gb": _memory_gb(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_at_start": load(),
        "versions": {"equipoise": eq.__version__, **installed()},
    }


def load() -> float | None:
    """Processes that ran or waited in the last minute, on average."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []


def _processor() -> str:
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _caches() -> dict[str, str]:
    """Such as L3: 32768K, of the first core."""
    found = {}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        level, kind, size = (_lines(f"{folder}/{name}") for name in ("level", "type", "size"))
        if level and kind and size and kind[0] != "Instruction":
            found[f"L{level[0]}"] = size[0]
    return found


def _memory_gb() -> float | None:
    totals = [line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return round(int(totals[0]) / 2**20, 1) if totals else None
