"""Summaries on a terminal, and draws and predictions as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.calibration.calibration import Calibration
    from equipoise.report.summary import Summary

__all__ = ["show", "write_draws", "write_table"]

_BOLD, _YELLOW, _CYAN, _PLAIN = "\x1b[1m", "\x1b[33m", "\x1b[36m", "\x1b[0m"


def show(summary: Summary) -> None:
    """Print a summary; on a terminal the title is bold, and what asks for a look stands out."""
    first, *lines = str(summary).splitlines()
    if not sys.stdout.isatty():
        print("\n".join([first, *lines]))
        return
    print(f"{_BOLD}{first}{_PLAIN}")
    for line in lines:
        colour = _YELLOW if line.startswith("LOOK") else _CYAN if line.startswith("?") else ""
        print(f"{colour}{line}{_PLAIN}" if colour else line)


def write_draws(made: Calibration, path: Path) -> Path:
    """One row per draw: chain, draw, and one column per parameter; CSV, or Parquet."""
    import numpy as np
    import pandas as pd

    count, length, _ = made.draws.shape
    frame = pd.DataFrame(made.chains.flat(), columns=list(made.names))
    frame.insert(0, "draw", np.tile(np.arange(length), count), allow_duplicates=True)
    frame.insert(0, "chain", np.repeat(np.arange(count), length), allow_duplicates=True)
    return write_table(frame, path)


def write_table(frame: pd.DataFrame, path: Path) -> Path:
    """A table without its index, whole or not at all: CSV, or Parquet."""
    csv = path.suffix.lower() == ".csv"
    return write_atomic(
        path, lambda stream: frame.to_csv(stream, index=False) if csv else frame.to_parquet(stream, index=False)
    )
