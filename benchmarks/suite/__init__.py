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
    "checks", "W1", "W2", "W3", "roofline", "offline", "jobs", "memory", "second_law", "steps", "tuned",
    "ess", "passes", "growth", "step_matrix", "columns", "cores", "rows", "cluster",
)  # fmt: skip

# What the figures show, and how to read them.
_SHOWN = {
    "benchmarks": ("Steps per second of every contender", "The same chain in every library; ours are blue."),
    "benchmarks-scaling": (
        "Effective draws per second, and whole runs by rows and by columns",
        "Left: ours are blue; no chain has more effective draws than independent ones (green). Middle and right: whole runs.",
    ),
}


def run(smoke: bool, out: Path, only: list[str] | None = None) -> Path:
    """Measure, and write a JSON file with a Markdown table and plots beside it.

    A file that is there, of a run as thorough on the same machine, keeps its other sections: a run can be made in parts.

    Parameters
    ----------
    smoke
        Tiny sizes and one repeat: whether everything works, not how fast.
    out
        The JSON file; the table and the plots have its name with `.md` and `.svg`.
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
    """Put the tables of a run between the marks in README.md and docs/benchmarks.md, and its plots beside the docs.

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
    from benchmarks.suite.plot import plots
    from benchmarks.suite.report import render, write_block
    from benchmarks.suite.short import short

    data = json.loads(out.read_text(encoding="utf-8"))
    figures = plots(data, root / "docs" / "figures" / "benchmarks.svg")
    shown = "".join(f"![{_SHOWN[f.stem][0]}](figures/{f.name})\n\n*{_SHOWN[f.stem][1]}*\n\n" for f in figures)
    pages = {root / "README.md": short(data), root / "docs" / "benchmarks.md": shown + render(data)}
    return [page for page, text in pages.items() if write_block(page, text)] + figures
