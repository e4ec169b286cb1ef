"""One run: every section in turn, written as it grows. Started by `benchmarks.suite.run` in a process of its own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.suite.bandwidth import roofline
from benchmarks.suite.effective import against_nuts, per_data_pass
from benchmarks.suite.jobs import whole_jobs
from benchmarks.suite.machine import describe, load
from benchmarks.suite.measure import Settings, guarded, pinned, say
from benchmarks.suite.offline import offline_passes, peak_memory, step_matrix
from benchmarks.suite.plot import plots
from benchmarks.suite.report import render
from benchmarks.suite.scaling import growth
from benchmarks.suite.second_law import second_law, step_costs
from benchmarks.suite.sizes import cluster_passes, in_columns, in_cores, in_rows
from benchmarks.suite.throughput import check_contenders, measure_workload
from benchmarks.suite.tuned import tuned_sgld
from benchmarks.suite.workloads import WORKLOADS, Prepared, prepare, smaller

__all__ = ["SECTIONS", "execute", "main"]


@lru_cache(maxsize=3)
def _prepared(index: int, smoke: bool) -> Prepared:
    workload = smaller(WORKLOADS[index]) if smoke else WORKLOADS[index]
    say(f"{workload.name}: data, fit and moments ({workload.rows:,} × {workload.dim})")
    return prepare(workload)


# In the order of the report; sections on the largest data stand together.
SECTIONS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "checks": check_contenders,
    "W1": lambda s: measure_workload(_prepared(0, s.smoke), s),
    "W2": lambda s: measure_workload(_prepared(1, s.smoke), s),
    "W3": lambda s: measure_workload(_prepared(2, s.smoke), s),
    "roofline": lambda s: roofline(_prepared(2, s.smoke), s),
    "offline": lambda s: offline_passes(_prepared(2, s.smoke), s),
    "jobs": lambda s: whole_jobs([_prepared(k, s.smoke) for k in (1, 2)], s),
    "memory": lambda s: peak_memory(_prepared(2, s.smoke), s),
    "second_law": lambda s: second_law([_prepared(k, s.smoke) for k in range(3)], s),
    "steps": lambda s: step_costs([_prepared(k, s.smoke) for k in range(3)], s),
    "tuned": lambda s: tuned_sgld([_prepared(k, s.smoke) for k in ((0,) if s.smoke else (0, 1))], s),
    "ess": against_nuts,
    "passes": per_data_pass,
    "growth": growth,
    "step_matrix": step_matrix,
    "columns": in_columns,
    "cores": in_cores,
    "rows": in_rows,
    "cluster": cluster_passes,
}


def execute(smoke: bool, out: Path, only: list[str] | None) -> dict[str, Any]:
    """Measure the sections asked for; the JSON is complete after each, so that an interrupted run leaves its results."""
    settings = Settings.of(smoke)
    data: dict[str, Any] = {
        "settings": {"smoke": smoke, "repeats": settings.repeats, "seconds_per_repeat": settings.seconds},
        "machine": describe(),
        "sections": {},
    }
    data["sections"] = kept_sections(out, data)
    out.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if smoke else pinned():
        for name in only or SECTIONS:
            say(f"section {name}")
            before = load()
            data["sections"][name] = result = guarded(lambda n=name: SECTIONS[n](settings))  # type: ignore[misc]
            result["load_at_start"] = before
            if "error" in result:
                say(f"section {name} failed: {result['error']}")
            data["sections"] = {key: data["sections"][key] for key in SECTIONS if key in data["sections"]}
            out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return data


def kept_sections(out: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Sections of an earlier run that are still there: of one as thorough, on the same machine with the same versions."""
    before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    facts = ("processor", "cores", "python", "versions")
    same = before.get("settings") == data["settings"] and all(
        before["machine"].get(fact) == data["machine"][fact] for fact in facts
    )
    return {name: before["sections"][name] for name in SECTIONS if name in before["sections"]} if same else {}


def main() -> None:
    """Parse what `benchmarks.suite.run` passes, measure, and write the JSON, the table and the plot."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS))
    options = parser.parse_args()
    data = execute(options.smoke, options.out, options.only)
    text = render(data)
    options.out.with_suffix(".md").write_text(text, encoding="utf-8")
    plots(data, options.out.with_suffix(".svg"))
    print(text)


if __name__ == "__main__":
    main()
