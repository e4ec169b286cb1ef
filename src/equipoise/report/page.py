"""The report: one HTML file with the tables and plots of a run, readable without a network, on paper and on a phone.

It leads with the effects; how well the sampler did is folded below them. It needs no script: scales are chosen by
buttons that a stylesheet reads, and its content-security policy allows none.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.files import write_atomic
from equipoise.report.effects import coefficients_section, data_section, effects_section, predictions_section
from equipoise.report.html import document
from equipoise.report.sampler import headline, sampler_sections

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["write_report"]


def write_report(calibration: Calibration, path: Path, interval: float) -> Path:
    """Write the report of a run, fresh or loaded, as one self-contained HTML file; returns its path."""
    return write_atomic(path, _page(calibration, interval).encode())


def _page(cal: Calibration, interval: float) -> str:
    title = f"{cal.response}: calibrated {cal.title.name} regression"
    sections = [
        ("effects", "Effects", effects_section(cal, interval)),
        ("coefficients", "Coefficients", coefficients_section(cal, interval)),
        ("data", "Data and fit", data_section(cal)),
        ("predictions", "Predictions", predictions_section(cal)),
    ]
    kept = [(key, name, body) for key, name, body in sections if body]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in kept)
    links += f'<a class="status {cal.diagnosis.status}" href="#sampler">{escape(headline(cal))}</a>'
    origin = "" if cal.plan.reads is None else f" from {cal.plan.reads}"
    lead = f"{cal.plan.moments.n:,} rows{origin}, {len(cal.names)} parameters, target: {cal.plan.target.words}"
    parts = [f'<section id="{key}"><h2>{name}</h2>{body}</section>' for key, name, body in kept]
    status = cal.diagnosis.status
    folded = (
        f'<section id="sampler"><details{" open" if status == "look" else ""}><summary><h2>How well did the sampler do?</h2>'
        f'<span class="status {status}">{escape(headline(cal))}</span></summary>{sampler_sections(cal)}</details></section>'
    )
    return document(title, lead, links, "\n".join([*parts, folded]))
