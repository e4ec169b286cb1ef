"""Results that grow: a study adds what a block of data sets showed, and a later run goes on from there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.files import write_atomic

__all__ = ["Ledger", "added", "cell_name", "go_on"]

# Totals of some data sets of a family and size, which can be added.
Study = Callable[[str, int, range], dict[str, Any]]


class Ledger:
    """Totals by cell in one JSON file, rewritten whole after every block.

    Parameters
    ----------
    path
        The file; what it has is gone on from.
    settings
        What the numbers depend on. A file that was made with others is refused: its totals would be of two studies.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        before = found.get("settings", settings)
        if before != settings:
            raise SystemExit(f"{path.name} was made with {before}, not {settings}: move it away to begin anew")
        self.settings, self.cells = settings, found.get("cells", {})

    def done(self, cell: str) -> int:
        """Data sets that a cell has."""
        return int(self.cells.get(cell, {}).get("data sets", 0))

    def add(self, cell: str, block: dict[str, Any]) -> None:
        """Add the totals of a block of data sets, and write."""
        self.cells[cell] = added(self.cells[cell], block) if cell in self.cells else block
        text = json.dumps({"settings": self.settings, "cells": self.cells}, indent=1) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, text.encode())


def cell_name(family: str, rows: int) -> str:
    """What a cell is called in the file."""
    return f"{family}, {rows}"


def go_on(
    ledger: Ledger, study: Study, cells: list[tuple[str, int]], block: int, replicates: int, minutes: float = np.inf
) -> None:
    """Bring every cell to so many data sets, block by block over all cells, or until the time is up."""
    end = time.monotonic() + 60.0 * minutes
    while time.monotonic() < end:
        family, rows = min(cells, key=lambda cell: ledger.done(cell_name(*cell)))
        name = cell_name(family, rows)
        first = ledger.done(name)
        if first >= replicates:
            return
        ledger.add(name, study(family, rows, range(first, min(first + block, replicates))))
        print(f"{name} rows: {first + block} data sets", flush=True)


def added(one: Any, other: Any) -> Any:
    """Numbers added, lists entry by entry, dictionaries key by key; what only one has is kept."""
    if isinstance(one, dict):
        keys = [*one, *(key for key in other if key not in one)]
        return {k: added(one[k], other[k]) if k in one and k in other else one.get(k, other.get(k)) for k in keys}
    if isinstance(one, list):
        return [added(a, b) for a, b in zip(one, other, strict=True)]
    return one + other
