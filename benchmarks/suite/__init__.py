"""The benchmark: our engines beside other libraries on the same chains, in one run on this machine.

`run` measures in a process of its own, because libraries must be told to use one thread before they are imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import equipoise as eq
from benchmarks.suite.measure import PINNED, child_environment

__all__ = ["NAMES", "run", "write_pages"]

# The sections, in the order in which they are measured.
NAMES = (
    "checks", "W1", "W2", "W3", "roofline", "threads", "offline", "whole_job", "memory", "second_law", "steps",
    "ess", "intervals", "passes", "growth", "step_matrix", "start_up",
)  # fmt: skip


def run(smoke: bool, out: Path, only: list[str] | None = None) -> Path:
    """Measure, and write a JSON file with a Markdown table and a plot beside it.

    Parameters
    ----------
    smoke
        Tiny sizes and one repeat: whether everything works, not how fast.
    out
        The JSON file; the table and the plot have its name with `.md` and `.svg`.
    only
        Names of sections (see `NAMES`); all by default.

    Returns
    -------
    Path
        The JSON file.

    Raises
    ------
    InvalidInput
        If a section is unknown.
    EquipoiseError
        If the process that measures ends before its time; what it measured until then is in the JSON file.
    """
    unknown = sorted(set(only or ()) - set(NAMES))
    if unknown:
        raise eq.InvalidInput("only", f"among {', '.join(NAMES)}", ", ".join(unknown), "choose from these")
    command = [sys.executable, "-m", "benchmarks.suite.runner", "--out", str(out), *(["--smoke"] if smoke else [])]
    done = subprocess.run([*command, *(["--only", *only] if only else [])], env=child_environment(PINNED))
    if done.returncode:
        raise eq.EquipoiseError(f"the benchmark stopped with code {done.returncode}; see its output above.")
    return out


def write_pages(out: Path, root: Path) -> list[Path]:
    """Put the tables of a run between the marks in README.md and docs/benchmarks.md, and its plot beside the docs.

    Parameters
    ----------
    out
        A JSON file that `run` wrote.
    root
        The repository.

    Returns
    -------
    list of Path
        The files written.
    """
    from benchmarks.suite.plot import plot
    from benchmarks.suite.report import render, write_block

    data = json.loads(out.read_text(encoding="utf-8"))
    pages = {root / "README.md": render(data, full=False), root / "docs" / "benchmarks.md": render(data)}
    written = [page for page, text in pages.items() if write_block(page, text)]
    figure = root / "docs" / "figures" / "benchmarks.svg"
    return [*written, figure] if plot(data, figure) else written
