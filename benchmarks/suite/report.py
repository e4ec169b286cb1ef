"""From the figures of a run to Markdown, and into the pages that show it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.suite.verdicts import Verdict, verdicts

__all__ = ["render", "write_block"]


def render(data: dict[str, Any], full: bool = True) -> str:
    """The tables of a run: speed, and with `full` claims and everything else."""
    sections = data["sections"]
    parts = [_machine(data), _second_law(sections), _speed(sections)]
    if full:
        # the times of a smoke run mean nothing, so nothing is held against them
        parts.append("" if data["settings"]["smoke"] else _claims(verdicts(data)))
        pages = (_steps, _effective, _roofline, _growth, _offline, _checks)
        parts += [page(sections) for page in pages]
        parts.append(_missing(data))
    return "\n\n".join(part for part in parts if part) + "\n"


def write_block(page: Path, text: str, name: str = "bench") -> bool:
    """Put text between the marks of a page; False if the page or its marks are not there."""
    if not page.is_file():
        return False
    before = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    after, count = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}{end}", before, flags=re.S)
    if count:
        page.write_text(after, encoding="utf-8")
    return count > 0


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, with separators from a thousand."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def _machine(data: dict[str, Any]) -> str:
    machine = data["machine"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    settings = data["settings"]
    what = "A smoke run: its times mean nothing. " if settings["smoke"] else ""
    return (
        f"{what}{machine['processor']}, {machine['cores']} cores, {caches}; one pinned thread unless stated, fastest of "
        f"{settings['repeats']} interleaved repeats in one process; load {machine['load_at_start']} at the start."
    )


def _cells(sections: dict[str, Any], dtype: str) -> dict[str, dict[str, Any]]:
    return {
        label: cell
        for name in ("W1", "W2", "W3")
        for label, cell in sections.get(name, {}).get("cells", {}).items()
        if ("float32" in label) == (dtype == "float32")
    }


def _speed(sections: dict[str, Any]) -> str:
    parts = []
    for dtype in ("float64", "float32"):
        cells = _cells(sections, dtype)
        names = list(dict.fromkeys(name for cell in cells.values() for name in cell))
        if not names:
            continue
        head = [f"thousand steps per second, {dtype}", *(label.removesuffix(" float32") for label in cells)]
        rows = [[_bold(name), *(_rate(cell.get(name)) for cell in cells.values())] for name in names]
        parts.append(table(head, rows))
    return "\n\n".join(parts)


def _bold(name: str) -> str:
    return f"**{name}**" if name.startswith("equipoise") else name


def _rate(result: dict[str, Any] | None) -> str:
    if result is None:
        return "–"
    if "rate" in result:
        return f"{number(result['rate'] / 1e3)} (+{100 * result['spread']:.0f} %)"
    return "not installed" if "not_installed" in result else "failed" if "offers no" not in result["error"] else "–"


def _claims(found: list[Verdict]) -> str:
    rows = []
    for v in found:
        measured = v.note if v.measured is None else f"{number(v.measured)}{v.unit}"
        mark = {True: "yes", False: "**no**", None: "not measured"}[v.passed]
        rows.append([v.what, v.against, measured, v.wanted, mark])
    return table(["claim", "against", "measured", "wanted", "holds"], rows) if rows else ""


def _second_law(sections: dict[str, Any]) -> str:
    """Rates of all samplers, each with its multiple of plain SGD, NUTS and independent draws, and its rows beside ρ."""
    rows = []
    for workload, found in sections.get("second_law", {}).items():
        if not isinstance(found, dict):
            continue
        rates = {k: r["ess_per_second"] for k, r in found.items() if isinstance(r, dict) and "ess_per_second" in r}
        for name, rate in rates.items():
            result = found[name]
            multiples = [f"{number(rate / rates[peer])}×" if peer in rates else "–" for peer in _LAW_PEERS]
            cost = ["–", "–", "–"]
            if "curvature_number" in result:
                keys = ("batch_size", "rows_per_draw", "curvature_number")
                cost = [number(result[key]) for key in keys]
            label = f"**{workload} {name}**" if name.startswith("control") else f"{workload} {name}"
            rows.append([label, number(rate), *multiples, *cost])
    if not rows:
        return ""
    head = [
        "effective draws, sampling only", "per second", "of plain SGD", "of NUTS", "of independent draws", "batch",
        "rows per effective draw", "ρ",
    ]  # fmt: skip
    return "\n\n".join(part for part in (table(head, rows), _whole_job(sections)) if part)


_LAW_PEERS = ("plain SGD", "NumPyro NUTS", "independent Gaussian draws")


def _whole_job(sections: dict[str, Any]) -> str:
    job = sections.get("whole_job", {})
    if "passes" not in job:
        return ""
    seconds = min(job["seconds"]["calibrate"])
    text = (
        f"The whole job at W3, from arrays to the printed summary with {job['ess']} effective draws: {number(seconds)} s, "
        f"{number(job['passes'])} times a pass over the data"
    )
    if "share" not in job:
        return text + "."
    theirs = job["statsmodels"]["seconds"]
    return f'{text}; statsmodels\' `GLM.fit(cov_type="HC0")` alone takes {number(theirs)} s.'


def _steps(sections: dict[str, Any]) -> str:
    cases = sections.get("steps", {}).get("cases", {})
    rows = [
        [name, *(f"{number(1e6 / rate['rate'])}" for rate in case["rates"].values()),
         *(f"{number(ratio)}×" for ratio in case["ratios"].values())]
        for name, case in cases.items()
        if "ratios" in case
    ]  # fmt: skip
    head = ["µs per step", "SGLD", "control variates", "by leverage", "control variates / SGLD", "leverage / uniform"]
    return "### Steps at the same batch size\n\n" + table(head, rows) if rows else ""


def _effective(sections: dict[str, Any]) -> str:
    rows = []
    for workload, pair in sections.get("ess", {}).items():
        for name, result in pair.items() if isinstance(pair, dict) else ():
            if isinstance(result, dict) and "ess_per_second" in result:
                rows.append([f"{workload} {name}", number(result["ess_per_second"]), number(min(result["seconds"]))])
    parts = ["### Effective draws", table(["minimum bulk ess", "per second", "seconds"], rows)] if rows else []
    cases = sections.get("passes", {}).get("cases", {})
    rows = [
        [name, f"{c['observed']:.3f} ± {c['standard_error']:.3f}", f"{c['predicted']:.3f}", f"{c['theory']:.1f}"]
        for name, c in cases.items()
        if "observed" in c
    ]
    if rows:
        parts.append(table(["effective draws per data pass", "observed", "predicted, worst direction", "theory"], rows))
    job = sections.get("intervals", {})
    if "ratio" in job:
        ours, plain, theirs = (min(job["seconds"][k]) for k in ("equipoise", "plain SGD", "bootstrap"))
        parts.append(
            f"Intervals for W2: `eq.calibrate` {number(ours)} s ({number(plain)} s with plain SGD), {job['replicates']} "
            f"refits {number(theirs)} s."
        )
    return "\n\n".join(parts)


def _roofline(sections: dict[str, Any]) -> str:
    found = sections.get("roofline", {})
    if "share" not in found:
        return ""
    shares = ", ".join(f"{100 * share:.0f} % at {name}" for name, share in found["share"].items())
    return (
        f"### Roofline\n\nReading rows in order {found['sequential_gb_per_second']:.1f} GB/s, at random "
        f"{found['random_gb_per_second']:.1f} GB/s with prefetching ({found['random_plain_gb_per_second']:.1f} without). "
        f"The engine reaches {shares} of the random-row bound."
    )


def _growth(sections: dict[str, Any]) -> str:
    rows = []
    for axis, series in sections.get("growth", {}).items():
        if isinstance(series, dict) and "exponent" in series:
            sizes = f"{series[axis][0]:,.0f} … {series[axis][-1]:,.0f}"
            times = f"{1e6 * series['seconds_per_step'][0]:.3g} … {1e6 * series['seconds_per_step'][-1]:.3g}"
            rows.append([axis, sizes, times, f"{series['exponent']:.2f}"])
    found = sections.get("step_matrix", {})
    if "exponent" in found:
        sizes = f"{found['D'][0]} … {found['D'][-1]}"
        times = f"{1e6 * found['seconds'][0]:.3g} … {1e6 * found['seconds'][-1]:.3g}"
        rows.append(
            ["D, step matrix", sizes, times, f"{found['exponent']:.2f} (from 200: {found['exponent_large']:.2f})"]
        )
    head = ["growth with", "from … to", "µs", "exponent"]
    return "### Growth\n\n" + table(head, rows) if rows else ""


def _offline(sections: dict[str, Any]) -> str:
    parts = []
    found = sections.get("offline", {})
    if "passes" in found:
        each = ", ".join(f"{stage} {passes:.1f}" for stage, passes in found["passes"].items())
        parts.append(f"Passes over the data before the first step of W3: {each} ({found['iterations']} Newton steps).")
    memory = sections.get("memory", {})
    if "ratios" in memory:
        each = ", ".join(f"{stage} {ratio:.2f}" for stage, ratio in memory["ratios"].items())
        parts.append(f"Peak memory as a multiple of the data, up to and with each stage: {each}.")
    return "### Before the chain\n\n" + "\n\n".join(parts) if parts else ""


def _checks(sections: dict[str, Any]) -> str:
    checks = sections.get("checks", {}).get("checks", {})
    failed = [name for name, c in checks.items() if not c.get("passed", "not_installed" in c)]
    if not checks:
        return ""
    measured = [c["variance_ratio"] for c in checks.values() if "variance_ratio" in c]
    if not measured:
        return "### The same chain\n\nNo contender could be checked."
    text = (
        f"### The same chain\n\nOn small problems the variance of each contender's draws is {min(measured):.2f} to "
        f"{max(measured):.2f} times the target's ({len(measured)} chains)."
    )
    return text + (f" Outside their tolerance: {', '.join(failed)}." if failed else "")


def _missing(data: dict[str, Any]) -> str:
    versions = data["machine"]["versions"]
    there = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    gone = ", ".join(name for name, version in versions.items() if not version)
    text = f"### Versions\n\nPython {data['machine']['python']}, {there}."
    return text + (f" Not installed, hence not measured: {gone}." if gone else "")
