"""From the figures of a run to Markdown, and into the pages that show it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["machine_words", "number", "render", "sampler_rates", "table", "write_block"]

_AWAY = 100.0  # times the posterior's standard deviation: a chain that is on its way to infinity


def render(data: dict[str, Any]) -> str:
    """All tables of a run."""
    pages = (
        _jobs, _second_law, _tuned, _speed, _rows, _columns, _cores, _cluster, _steps, _effective, _roofline, _growth, _offline,
        _checks,
    )  # fmt: skip
    parts = [machine_words(data), *(page(data["sections"]) for page in pages), _missing(data)]
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


def machine_words(data: dict[str, Any]) -> str:
    """The machine and how was measured, in a sentence."""
    machine = data["machine"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    settings = data["settings"]
    what = "A smoke run: its times mean nothing. " if settings["smoke"] else ""
    return (
        f"{what}{machine['processor']}, {machine['cores']} cores, {caches}; one pinned thread unless stated, fastest of "
        f"{settings['repeats']} interleaved repeats in one process; load {_load(data)} when sections began."
    )


def _load(data: dict[str, Any]) -> str:
    seen = [s["load_at_start"] for s in data["sections"].values() if s.get("load_at_start") is not None]
    return f"{min(seen):g} to {max(seen):g}" if seen else "unknown"


def sampler_rates(found: dict[str, Any]) -> dict[str, float]:
    """Effective draws per second of every sampler that was measured."""
    return {k: r["ess_per_second"] for k, r in found.items() if isinstance(r, dict) and "ess_per_second" in r}


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
    return "\n\n".join(["### Steps per second", *parts]) if parts else ""


def _bold(name: str) -> str:
    return f"**{name}**" if name.startswith("equipoise") else name


def _rate(result: dict[str, Any] | None) -> str:
    if result is None:
        return "–"
    if "rate" in result:
        return f"{number(result['rate'] / 1e3)} (+{100 * result['spread']:.0f} %)"
    return "not installed" if "not_installed" in result else "failed" if "offers no" not in result["error"] else "–"


def _jobs(sections: dict[str, Any]) -> str:
    """Seconds of whole jobs, one column per workload."""
    found = {name: job for name, job in sections.get("jobs", {}).items() if isinstance(job, dict) and "jobs" in job}
    names = list(dict.fromkeys(name for job in found.values() for name in job["jobs"]))
    if not names:
        return ""
    rows = [[_bold(name), *(_seconds(job["jobs"].get(name)) for job in found.values())] for name in names]
    passes = ", ".join(f"{number(job['passes'])} times at {name}" for name, job in found.items())
    draws = next(iter(found.values()))["ess"]
    return (
        "### Whole jobs\n\n"
        + table(["seconds, one thread", *found], rows)
        + f"\n\n`eq.calibrate` with {draws} effective draws and its printed summary takes as long as computing `X v` and "
        f"`Xᵀ r` {passes}."
    )


def _seconds(result: dict[str, Any] | None) -> str:
    if result is None:
        return "–"
    return (
        number(result["seconds"]) if "seconds" in result else "not installed" if "not_installed" in result else "failed"
    )


def _tuned(sections: dict[str, Any]) -> str:
    """The grid of BlackJAX's SGLD: every setting's rate and spread, the best in bold."""
    parts = []
    for workload, found in sections.get("tuned", {}).items():
        if not isinstance(found, dict) or "grid" not in found:
            continue
        cells = {(g["gradient"], g["batch_size"], g["step"]): g for g in found["grid"]}
        shares = sorted({step for _, _, step in cells})
        rows = [
            [f"{workload} {kind}, B={batch}", *(_setting(cells[kind, batch, s], found["best"][kind]) for s in shares)]
            for kind, batch in dict.fromkeys((kind, batch) for kind, batch, _ in cells)
        ]
        parts.append(table(["BlackJAX SGLD, step over its limit", *(f"{s:g}" for s in shares)], rows))
    if not parts:
        return ""
    words = (
        "### SGLD tuned by hand\n\nEffective draws per second, and in brackets the average standard deviation of the draws "
        "over the posterior's; the limit is the largest stable step with all rows. In bold the fastest within 10 % of 1."
    )
    return "\n\n".join([words, *parts])


def _setting(cell: dict[str, Any], best: dict[str, Any]) -> str:
    if cell.get("diverged") or cell.get("sd_ratio", 0.0) > _AWAY:
        return "diverged"
    if "ess_per_second" not in cell:
        return "not installed" if "not_installed" in cell else "failed"
    text = f"{number(cell['ess_per_second'])} ({cell['sd_ratio']:.2f})"
    return f"**{text}**" if cell == best else text


def _rows(sections: dict[str, Any]) -> str:
    """Whole runs from Parquet files, by their rows."""
    runs = sections.get("rows", {}).get("runs", {})
    rows = [
        [f"{int(n):,}" + (" (an earlier run)" if run.get("stored") else ""), number(run["seconds"]),
         f"{run['passes']:.0f}", f"{run['peak MB']:,.0f}"]
        for n, run in runs.items()
        if "seconds" in run
    ]  # fmt: skip
    head = ["rows in a Parquet file, 11 columns, 1000 clusters", "seconds", "passes", "peak MB of the process"]
    return "### Rows\n\n" + table(head, rows) if rows else ""


def _columns(sections: dict[str, Any]) -> str:
    """Whole runs from arrays, by their columns."""
    found = sections.get("columns", {})
    rows = [
        [n, number(run["seconds"]), number(run["data MB"]), f"{run['peak MB']:,.0f}"]
        for n, run in found.get("runs", {}).items()
        if "seconds" in run
    ]
    head = [f"columns of {found.get('rows', 0):,} rows, one core", "seconds", "MB of data", "peak MB of the process"]
    return "### Columns\n\n" + table(head, rows) if rows else ""


def _cores(sections: dict[str, Any]) -> str:
    """Whole runs from arrays, by cores."""
    found = sections.get("cores", {})
    runs = {n: run["seconds"] for n, run in found.get("runs", {}).items() if "seconds" in run}
    if "1" not in runs:
        return ""
    rows = [[n, number(seconds), f"{runs['1'] / seconds:.2f}×"] for n, seconds in runs.items()]
    head = [f"cores, {found['rows']:,} × {found['columns']}", "seconds", "speed-up"]
    return "### Cores\n\n" + table(head, rows)


def _cluster(sections: dict[str, Any]) -> str:
    """What a cluster adds to a pass."""
    found = sections.get("cluster", {})
    if "overhead_seconds" not in found:
        return ""
    each = found["seconds_per_pass"]
    return (
        f"### Dask\n\nThe pass that takes the moments of {found['rows']:,} rows of a Parquet file takes "
        f"{number(each['threads'])} s on threads of one process and {number(each['cluster'])} s with {found['workers']} "
        f"workers of a Dask cluster on the same machine: {number(1e3 * found['overhead_seconds'])} ms more per pass."
    )


def _second_law(sections: dict[str, Any]) -> str:
    """Rates of all samplers, each with its multiple of plain SGD, NUTS and independent draws, and its rows beside ρ."""
    rows = []
    for workload, found in sections.get("second_law", {}).items():
        if not isinstance(found, dict):
            continue
        rates = sampler_rates(found)
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
    return "### Effective draws, sampling only\n\n" + table(head, rows)


_LAW_PEERS = ("plain SGD", "NumPyro NUTS", "independent Gaussian draws")


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
    parts = (
        ["### Effective draws, with all that comes before", table(["minimum bulk ess", "per second", "seconds"], rows)]
        if rows
        else []
    )
    cases = sections.get("passes", {}).get("cases", {})
    rows = [
        [name, f"{c['observed']:.3f} ± {c['standard_error']:.3f}", f"{c['predicted']:.3f}", f"{c['theory']:.1f}"]
        for name, c in cases.items()
        if "observed" in c
    ]
    if rows:
        parts.append(table(["effective draws per data pass", "observed", "predicted, worst direction", "theory"], rows))
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
