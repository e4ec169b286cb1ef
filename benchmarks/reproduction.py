"""The paper's tables and figures, and what they say about its claims, into docs/appendix/reproduction.md.

`equipoise reproduce all` does the work, in half an hour on two cores; a folder that holds a finished run is used as it is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, only this folder is on the path

from benchmarks.suite.report import write_block
from equipoise.experiments import NAMES, reproduce

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ("figure1", "figure-nn", "figure-w2", "figure-dimension")


def claims(out: Path) -> str:
    """Every claim with its verdict and its evidence, as a Markdown table per entry."""
    parts = []
    for name in NAMES:
        data = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        lines = [f"| {c['text']} | **{c['verdict']}** | {c['evidence']} |" for c in data["claims"]]
        skipped = [f"Skipped: {why}" for why in data["missing"].values()]
        parts.append(
            "\n".join(
                [f"### {data['title']}\n", "| statement | verdict | evidence |", "|---|---|---|", *lines, *skipped]
            )
        )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "reproduce")
    parser.add_argument("--german-csv", type=Path)
    options = parser.parse_args()
    print(reproduce(out=options.out, german_csv=options.german_csv))
    page = ROOT / "docs" / "appendix" / "reproduction.md"
    if write_block(page, "\n" + claims(options.out) + "\n", "reproduce"):
        print(page)
    for name in PICTURES:
        print(shutil.copy(options.out / f"{name}.svg", ROOT / "docs" / "figures" / f"{name}.svg"))


if __name__ == "__main__":
    main()
