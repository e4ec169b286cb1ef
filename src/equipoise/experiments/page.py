"""The pages of a reproduction: JSON, Markdown and picture of every entry, and the index that shows them all."""

from __future__ import annotations

import io
import json
import platform
import re
from collections.abc import Iterable
from html import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equipoise.experiments.designs import SETTINGS
from equipoise.experiments.entry import Scale
from equipoise.experiments.numbers import Claim, Number, Numbers, collect, short
from equipoise.experiments.rules import RULES
from equipoise.experiments.runner import Outcome
from equipoise.report.html import described, document, head, table, tiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_entry", "write_index"]

_PACKAGES = ("equipoise", "numpy", "scipy", "numba", "jax", "numpyro", "scikit-learn", "mlxtend")
_RUNS = {
    "printed": "chains as long as the paper's",
    "long": "long chains, which show the true bias",
    "epochs": "chains that reshuffle once per epoch",
    "": "",
}
_METRICS = {
    "covariance_error": "covariance error",
    "calibration_error": "calibration error",
    "parameter_error": "parameter error",
}
_PILLS = {"agrees": "ok", "better": "ok", "holds": "ok", "new": "quiet", "skipped": "quiet"}
_STYLE = """<style>.pill{white-space:nowrap} .pill.quiet{color:var(--muted)}
td small{color:var(--muted);display:block;font-size:.8rem}
details{margin-top:.8rem} summary{cursor:pointer;color:var(--observed)} .sheet{background:#fff;border-radius:8px;padding:.6rem}
.sheet svg{max-width:none} .claims td{white-space:normal} .claims .words{min-width:18rem}
.claims th:last-child,.details th:last-child{text-align:left}
h3{font-size:1rem;margin:1.1rem 0 .2rem}
</style>"""


def write_entry(outcome: Outcome, scale: Scale, out: Path) -> None:
    """The files of one entry; an entry without results still says why."""
    numbers, claims = _read(outcome)
    entry = outcome.entry
    data = {
        "name": entry.name,
        "title": entry.title,
        "caption": entry.caption,
        "settings": {
            "smoke": scale.smoke, "repetitions": scale.repetitions, "settings": scale.settings, "seed": scale.seed,
            "jobs": outcome.jobs,
        },
        "versions": _versions(),
        "missing": outcome.missing,
        "failed": outcome.failed,
        "seconds": outcome.seconds,
        "claims": [vars(c) for c in claims],
        "numbers": [c.as_dict() for c in numbers],
        "curves": [r["curves"] for r in outcome.results if "curves" in r],
    }  # fmt: skip
    (out / f"{entry.name}.json").write_text(json.dumps(_plain(data), indent=1, allow_nan=False), encoding="utf-8")
    (out / f"{entry.name}.md").write_text(_markdown(outcome, numbers, claims), encoding="utf-8")
    if entry.draw is not None and outcome.results:
        figure = _figure(outcome, numbers)
        for ending in ("svg", "png"):
            figure.savefig(
                out / f"{entry.name}.{ending}", dpi=150, metadata={"Date": None} if ending == "svg" else None
            )


def write_index(outcomes: list[Outcome], scale: Scale, out: Path) -> Path:
    """The page that shows all entries."""
    read = [(o, *_read(o)) for o in outcomes]
    cells = [c for _, numbers, _ in read for c in numbers if c.paper is not None]
    counts = {word: sum(c.verdict == word for c in cells) for word in ("agrees", "better", "differs")}
    shown = [
        (f"{len(cells)}", "numbers beside a number of the paper"),
        (f"{counts['agrees']}", "agree"),
        (f"{counts['better']}", "are better: a smaller error than printed"),
        (f"{counts['differs']}", "differ"),
        (f"{sum(c.at_floor for c in cells)}", "of them show the length of the chain, not the method"),
    ]
    parts = [_STYLE, tiles(shown), _how_to_read()]
    parts += [_section(o, numbers, claims, out) for o, numbers, claims in read]
    parts.append(_settings(scale, outcomes))
    links = "".join(f'<a href="#{o.entry.name}">{o.entry.name}</a>' for o in outcomes)
    lead = "Every table and figure of the paper, regenerated: its number, ours, the Monte Carlo floor, and a verdict."
    if scale.smoke:
        lead = "A smoke run: small sizes, to see that everything works. " + lead
    path = out / "index.html"
    path.write_text(document("The paper, reproduced", lead, links, "\n".join(parts)), encoding="utf-8")
    return path


def _read(outcome: Outcome) -> tuple[Numbers, list[Claim]]:
    numbers = collect(outcome.entry.name, [r for found in outcome.results for r in found.get("rows", [])])
    curves = [found["curves"] for found in outcome.results if "curves" in found]
    return numbers, outcome.entry.claims(numbers, curves) if outcome.results else []


def _figure(outcome: Outcome, numbers: Numbers) -> Figure:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    curves = [found["curves"] for found in outcome.results if "curves" in found]
    with mpl.rc_context(
        {"svg.hashsalt": "equipoise", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        assert outcome.entry.draw is not None
        outcome.entry.draw(figure, numbers, curves)
        # laid out now, while the settings above hold
        figure.savefig(io.BytesIO(), format="svg")
    return figure


def _section(outcome: Outcome, numbers: Numbers, claims: list[Claim], out: Path) -> str:
    entry = outcome.entry
    caption = re.sub("`([^`]+)`", r"<code>\1</code>", escape(entry.caption))
    parts = [f"<h2>{escape(entry.title)}</h2><p>{caption}</p>"]
    if outcome.failed:
        parts.append(f'<p><span class="pill look">failed</span> {escape(outcome.failed)}</p>')
    parts += [f'<p><span class="pill quiet">skipped</span> {escape(why)}</p>' for why in outcome.missing.values()]
    picture = out / f"{entry.name}.svg"
    if entry.draw is not None and outcome.results and picture.exists():
        svg = picture.read_text(encoding="utf-8")
        parts.append(f'<div class="sheet">{svg[svg.index("<svg") :]}</div>')
    if claims:
        rows = [
            [
                f'<td class="words">{escape(c.text)}</td>',
                f"<td>{_pill(c.verdict)}</td>",
                f'<td class="words">{escape(c.evidence)}</td>',
            ]
            for c in claims
        ]
        parts.append("<h3>Claims</h3>" + table(["claim", "verdict", "evidence"], rows, "claims", "Claims"))
    for label, cells in _groups(numbers):
        shown = [c for c in cells if c.metric in entry.tabulated]
        if shown:
            parts.append(f"<h3>{escape(label)}</h3>{_pivot(shown)}")
        parts.append(f"<details><summary>every number of: {escape(label)}</summary>{_details(cells)}</details>")
    files = "".join(f' <a href="{entry.name}.{e}">{e}</a>' for e in ("json", "md", "png") if e != "png" or entry.draw)
    parts.append(f'<p class="note">{outcome.seconds:,.0f} s of work. Files:{files}</p>')
    return f'<section id="{entry.name}">{"".join(parts)}</section>'


def _groups(numbers: Numbers) -> list[tuple[str, list[Number]]]:
    ordered = sorted(numbers, key=lambda c: (c.run != "printed", c.setting != SETTINGS[0]))
    found = []
    for (setting, run), cells in groupby(ordered, key=lambda c: (c.setting, c.run)):
        words = [f"settings as {setting}" if setting else "", _RUNS.get(run, run)]
        found.append((", ".join(w for w in words if w) or "results", list(cells)))
    return found


def _pivot(cells: list[Number]) -> str:
    """Methods across, everything else down; the paper's number in small print below ours."""
    methods = list(dict.fromkeys(c.method for c in cells))
    several = len({c.dataset for c in cells}) > 1
    lines: dict[tuple[str, ...], dict[str, Number]] = {}
    for c in cells:
        lines.setdefault((c.dataset if several else "", c.loss, _METRICS.get(c.metric, c.metric), c.batch), {})[
            c.method
        ] = c
    rows = []
    for key, found in lines.items():
        body = [head(_label(*key)), *(_cell(found.get(m)) for m in methods)]
        floors = [c.floor for c in found.values() if c.floor is not None]
        exact = found.get("dq-exact")
        floor = exact.floor if exact is not None and exact.floor is not None else min(floors, default=None)
        rows.append([*body, f"<td>{short(floor)}</td>"])
    return table(["", *methods, "floor"], rows, "pivot", "Errors by method")


def _label(dataset: str, loss: str, metric: str, batch: str) -> str:
    size = f"B = {batch}" if batch[:1].isdigit() else batch
    return ", ".join(w for w in (dataset, f"{loss} loss" if loss else "", metric.replace("_", " "), size) if w)


def _cell(cell: Number | None) -> str:
    if cell is None:
        return "<td></td>"
    if not cell.values:
        return "<td>–</td>"
    paper = "" if cell.paper is None else f"<small>paper {short(cell.paper.value)}</small>"
    return f"<td>{_number(cell)}{paper}</td>"


def _number(cell: Number) -> str:
    low, high = cell.interval
    return short(cell.mean) if low == high else f"{short(cell.mean)} <small>{short(low)} to {short(high)}</small>"


def _details(cells: list[Number]) -> str:
    heads = ["", "method", "paper", "ours, 95 %", "floor", "bias", "verdict", "because"]
    rows = []
    for c in cells:
        interval = (
            "" if c.paper is None or c.paper.low == c.paper.high else f"{short(c.paper.low)} to {short(c.paper.high)}"
        )
        rows.append([
            head(_label(c.dataset, c.loss, _METRICS.get(c.metric, c.metric), c.batch)),
            f'<td title="{escape(RULES.get(c.method, ""))}">{escape(c.method)}</td>',
            f"<td>{'' if c.paper is None else short(c.paper.value)}<small>{interval}</small></td>",
            f'<td data-value="{c.mean!r}">{_number(c)}</td>',
            f"<td>{short(c.floor)}</td>",
            f"<td>{short(c.bias)}</td>",
            f"<td>{_pill(c.verdict)}</td>",
            f'<td class="words">{escape(c.because)}</td>',
        ])  # fmt: skip
    return table(heads, rows, "details", "Numbers in detail")


def _pill(word: str) -> str:
    return f'<span class="pill {_PILLS.get(word, "look")}">{escape(word)}</span>'


def _how_to_read() -> str:
    return (
        "<section><h2>How to read it</h2><p>The <b>floor</b> is what a perfect method scores with a chain of that length, "
        "predicted by the theory; the <b>bias</b> is what the method itself would score with an endless chain. A number "
        "<b>agrees</b> when its 95 % interval over the repetitions meets the paper's, each widened by 3 %; it is "
        "<b>better</b> when the error is smaller than printed. A cell at the floor shows the length of the chain, whatever "
        f"the method.</p><details><summary>the methods</summary>{described(RULES.items())}</details></section>"
    )


def _settings(scale: Scale, outcomes: list[Outcome]) -> str:
    pairs = {
        "Repetitions": str(scale.repetitions),
        "Settings": ", ".join(scale.settings),
        "Seed": str(scale.seed),
        "Work": f"{sum(o.seconds for o in outcomes):,.0f} s, all processes together",
        "Machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "Versions": ", ".join(f"{k} {v}" for k, v in _versions().items()),
    }
    return f'<section id="settings"><h2>How it was made</h2>{described(pairs.items())}</section>'


def _markdown(outcome: Outcome, numbers: Numbers, claims: list[Claim]) -> str:
    lines = [f"# {outcome.entry.title}", "", outcome.entry.caption, ""]
    lines += [f"Failed: {outcome.failed}", ""] if outcome.failed else []
    lines += [f"Skipped: {why}\n" for why in outcome.missing.values()]
    if claims:
        lines += _grid(["claim", "verdict", "evidence"], ([c.text, f"**{c.verdict}**", c.evidence] for c in claims))
    for label, cells in _groups(numbers):
        heads = ["cell", "method", "paper", "ours", "95 %", "floor", "bias", "verdict", "because"]
        lines += [f"## {label[:1].upper()}{label[1:]}", ""]
        lines += _grid(heads, (_line(c) for c in cells))
    return "\n".join(lines)


def _line(c: Number) -> list[str]:
    low, high = c.interval
    interval = "" if low == high else f"{short(low)} to {short(high)}"
    paper = "" if c.paper is None else short(c.paper.value)
    label = _label(c.dataset, c.loss, _METRICS.get(c.metric, c.metric), c.batch)
    return [label, c.method, paper, short(c.mean), interval, short(c.floor), short(c.bias), c.verdict, c.because]


def _grid(heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(r)} |" for r in rows), ""]


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _plain(value: object) -> object:
    """Values that JSON has: infinite numbers as words, the rest as they are."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None if np.isnan(value) else "inf"
    return value
