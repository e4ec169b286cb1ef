"""See `benchmarks.evidence`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.evidence import coverage, page, ranks
from benchmarks.evidence.ledger import Ledger, go_on

_ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("what", choices=["coverage", "ranks", "page"])
    parser.add_argument("--replicates", type=int, default=1000, help="data sets per cell in the end")
    parser.add_argument("--minutes", type=float, default=np.inf, help="stop after so many; the next run goes on")
    parser.add_argument("--results", type=Path, default=_ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    if options.what == "page":
        print(*page.write(options.results, _ROOT / "docs"), sep="\n")
        return
    study = {"coverage": coverage, "ranks": ranks}[options.what]
    ledger = Ledger(options.results / f"{options.what}.json", study.SETTINGS)
    go_on(ledger, study.study, study.CELLS, study.BLOCK, options.replicates, options.minutes)


if __name__ == "__main__":
    main()
