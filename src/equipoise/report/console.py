"""Summaries on a terminal, and draws as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.files import write_atomic

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration
    from equipoise.report.summary import Summary

__all__ = ["show", "write_draws"]

_PIPE_WIDTH = 200  # columns of a table that is not printed on a terminal


def show(summary: Summary) -> None:
    """Print a summary: header, table, footer."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(Text(summary.title, style="bold"))
    head = Table.grid(padding=(0, 3))
    for name, value in summary.header:
        head.add_row(Text(name, style="dim"), Text(value))
    console.print(head)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    cells = summary.cells()
    table.add_column("", no_wrap=True)
    for name in cells.columns:
        table.add_column(Text(str(name)), justify="right", no_wrap=True)
    for name, row in zip(cells.index, cells.to_numpy(), strict=True):
        table.add_row(*(Text(str(cell)) for cell in (name, *row)))
    console.print(table)
    for line in summary.footer:
        console.print(Text(line, style="yellow" if line.startswith("LOOK") else "cyan" if line.startswith("?") else ""))


def write_draws(made: Calibration, path: Path) -> Path:
    """One row per draw: chain, draw, and one column per parameter; CSV, or Parquet."""
    import numpy as np
    import pandas as pd

    count, length, _ = made.draws.shape
    frame = pd.DataFrame(made.chains.flat(), columns=list(made.names))
    frame.insert(0, "draw", np.tile(np.arange(length), count), allow_duplicates=True)
    frame.insert(0, "chain", np.repeat(np.arange(count), length), allow_duplicates=True)
    csv = path.suffix.lower() == ".csv"
    return write_atomic(
        path, lambda stream: frame.to_csv(stream, index=False) if csv else frame.to_parquet(stream, index=False)
    )
