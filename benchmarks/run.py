"""Our engines beside other libraries, on this machine: see benchmarks/README.md. The work is in `benchmarks.suite`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, only this folder is on the path

from benchmarks.suite import NAMES, run, write_pages

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, correctness only")
    parser.add_argument("--only", nargs="*", choices=NAMES, help="sections to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "benchmarks.json")
    parser.add_argument("--write-docs", action="store_true", help="also into README.md and docs/benchmarks.md")
    options = parser.parse_args()
    made = run(options.smoke, options.out, options.only)
    print(made)
    if options.write_docs:
        for page in write_pages(made, ROOT):
            print(page)


if __name__ == "__main__":
    main()
