"""What a report leads with: effects as a forest of intervals, coefficients as a table, the data, and predictions."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from equipoise.calibration import findings
from equipoise.calibration.forest import Axis, Forest, forest
from equipoise.calibration.rowfacts import standard_errors
from equipoise.report import plots
from equipoise.report.html import figures, head, minus, table
from equipoise.report.summary import decimals, fixed, shown_p

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration
    from equipoise.calibration.findings import Coefficients

__all__ = ["coefficients_section", "data_section", "effects_section", "predictions_section"]

_MOST = 40  # effects that are drawn
_SCALES = {"unit": "In units of the data", "sd": "Standardised", "se": "In standard errors"}
_ROW, _CELL = 'role="row"', 'role="cell"'


def effects_section(cal: Calibration, interval: float) -> str:
    """A forest of intervals, on scales to choose from."""
    found = findings.coefficients(cal, interval)
    made = forest(cal, found, _MOST)
    if not len(made.at):
        return ""
    scales = [name for name in _SCALES if any(axis.name == name for axis in made.axes)]
    ratio = any(axis.ratio for axis in made.axes)
    radios = "".join(
        f'<input type="radio" class="pick" name="scale" id="scale-{s}"{" checked" if s == made.first else ""}>'
        for s in scales
    )
    labels = "".join(f'<label for="scale-{s}">{_SCALES[s]}</label>' for s in scales)
    box = '<input type="checkbox" class="pick" id="exponentiate">' if ratio else ""
    name = findings.ratio_name(cal)
    ticked = f'<label for="exponentiate" class="tick">Exponentiated ({escape(name or "")})</label>' if ratio else ""
    panels = "".join(_panel(cal, made, axis, interval) for axis in made.axes)
    left = len(cal.names) - len(made.aside) - len(made.at)
    some = (
        f" The {len(made.at)} largest in standard errors of {len(made.at) + left} are drawn; the table below has all."
        if left
        else ""
    )
    return (
        f"<p>{_percent(interval)} i{escape(found.words[1:])}.{some}</p>"
        f'{radios}{box}<div class="picks" role="group" aria-label="Scale of the effects">{labels}{ticked}</div>{panels}'
        f"{_aside(cal, made, found)}"
    )


def _panel(cal: Calibration, made: Forest, axis: Axis, interval: float) -> str:
    """The intervals on one scale: numbers for readers, lines for eyes."""
    lines = "".join(f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>' for at, _ in axis.ticks)
    lines += f'<line class="none" x1="{axis.reference:.2f}%" x2="{axis.reference:.2f}%" y1="0" y2="100%"/>'
    # two digits of about a standard error
    places = [
        max(p - 1, 0) for p in decimals((high - low) / 4.0 for low, high in zip(axis.lower, axis.upper, strict=True))
    ]
    rows = []
    for k, j in enumerate(made.at):
        low, middle, high = (minus(fixed(v[k], places[k])) for v in (axis.lower, axis.estimate, axis.upper))
        clear = "" if axis.start[k] <= axis.reference <= axis.end[k] else " clear"
        drawn = (
            f'<svg class="strip{clear}" aria-hidden="true" focusable="false">{lines}'
            f'<line x1="{axis.start[k]:.2f}%" x2="{axis.end[k]:.2f}%" y1="50%" y2="50%"/>'
            f'<circle cx="{axis.middle[k]:.2f}%" cy="50%" r="4"/></svg>'
        )
        rows.append(
            f'<tr {_ROW}>{head(cal.names[j])}<td class="drawn" {_CELL}>{drawn}</td>'
            f'<td class="read" {_CELL}><b data-value="{float(axis.estimate[k])!r}">{middle}</b> '
            f'<span class="ends">{low} to {high}</span></td></tr>'
        )
    ticks = "".join(f'<text x="{place:.2f}%" y="13">{minus(f"{value:.6g}")}</text>' for place, value in axis.ticks)
    grid = f'<svg class="strip axis" aria-hidden="true" focusable="false">{ticks}</svg>'
    nothing = "a ratio of 1" if axis.ratio else "zero"
    return (
        f'<table class="forest" id="forest-{axis.name}" role="table"><caption>{escape(axis.words.capitalize())}; the dashed '
        f'line is {nothing}</caption><thead role="rowgroup"><tr {_ROW}><th scope="col" role="columnheader">term</th>'
        f'<th scope="col" role="columnheader" class="drawn"><span class="quiet">interval, drawn</span></th>'
        f'<th scope="col" role="columnheader" class="read">estimate, {_percent(interval)} interval</th></tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody>'
        f'<tfoot aria-hidden="true"><tr><td></td><td class="drawn">{grid}</td><td></td></tr></tfoot></table>'
    )


def _aside(cal: Calibration, made: Forest, found: Coefficients) -> str:
    """Constants in words: their size is no effect."""
    places = decimals(found.se)
    words = [
        f"{escape(cal.names[j])} {minus(fixed(found.estimate[j], places[j]))} "
        f"({minus(fixed(found.interval.lower[j], places[j]))} to {minus(fixed(found.interval.upper[j], places[j]))})"
        for j in made.aside
    ]
    return f'<p class="note">Not drawn: {", ".join(words)}.</p>' if words else ""


def coefficients_section(cal: Calibration, interval: float) -> str:
    """The coefficient table, with the standard errors of other covariances as columns."""
    found, facts = findings.coefficients(cal, interval), cal.row_facts
    others = standard_errors(cal) if facts is None else facts.errors
    own = cal.plan.target.words
    law = "t" if found.student else "z"
    names = {"posterior": "model"}
    heads = ["term", "estimate", f"se, {own}", law, "p", f"{_percent(interval)} interval"]
    heads += [f"se, {names.get(name, name)}" for name in others]
    places = decimals(found.se)
    rows = []
    for j, name in enumerate(cal.names):

        def cell(value: float, text: str, label: str) -> str:
            return f'<td {_CELL} data-label="{escape(label)}" data-value="{float(value)!r}">{minus(text)}</td>'

        low, high = found.interval.lower[j], found.interval.upper[j]
        ends = " to ".join(f'<span data-value="{float(v)!r}">{minus(fixed(v, places[j]))}</span>' for v in (low, high))
        rows.append(
            [
                head(name),
                cell(found.estimate[j], fixed(found.estimate[j], places[j]), heads[1]),
                cell(found.se[j], fixed(found.se[j], places[j]), heads[2]),
                cell(found.statistic[j], f"{found.statistic[j]:.2f}", heads[3]),
                cell(found.p_value[j], shown_p(found.p_value[j]), heads[4]),
                f'<td {_CELL} class="ends" data-label="{heads[5]}">{ends}</td>',
                *(cell(v[j], fixed(v[j], places[j]), h) for v, h in zip(others.values(), heads[6:], strict=True)),
            ]
        )
    compared = findings.compare_errors(cal)
    words = (
        f"<p>The estimate minimises the loss; {law} and p test it against zero with the standard errors of the "
        f"{escape(own)} target. The {compared.name} ones are {compared.smallest:.2f} to {compared.largest:.2f} times "
        f"as large. {compared.meaning}</p>"
    )
    return words + table(heads, rows, "coefficients", "Coefficients")


def data_section(cal: Calibration) -> str:
    """Rows, response, and how well the model fits them."""
    facts, design = cal.row_facts, cal.design
    n = f"{cal.plan.moments.n:,}"
    pairs = [
        ("Observations", n if facts is None or facts.rows == cal.plan.moments.n else f"{n} in {facts.rows:,} rows")
    ]
    if facts is not None:
        pairs += [
            ("Rows left out", f"{facts.dropped:,}, with missing values" if facts.dropped else "none"),
            (f"Mean of {cal.response}", f"{facts.response_mean:,.5g} (standard deviation {facts.response_sd:,.5g})"),
        ]
    pairs += [
        ("Model", cal.title.name + ("" if cal.title.constant is None else f", constant {cal.title.constant:,.5g}")),
        ("Formula", "none: arrays were given" if design is None else design.formula),
    ]
    told = None if facts is None else facts.statistics
    if told is not None:
        pairs += [
            ("Log-likelihood", f"{told.log_likelihood:,.2f}, {told.null_log_likelihood:,.2f} with an intercept alone"),
            ("AIC, BIC", f"{told.aic:,.2f}, {told.bic:,.2f}"),
            (told.r_squared_kind, f"{told.r_squared:.4f}"),
            ("Dispersion", f"{told.dispersion:,.4g} (Pearson's χ² over {told.df_resid:,} degrees of freedom)"),
        ]
    words = f"<p>{escape(told.words)}</p>" if told is not None and told.words else ""
    body = "".join(f"<dt>{escape(name)}</dt><dd>{_signed(escape(value))}</dd>" for name, value in pairs)
    return f"<dl>{body}</dl>{words}"


def predictions_section(cal: Calibration) -> str:
    """Mean predictions beside mean responses, in groups of rows."""
    side = None if cal.row_facts is None else cal.row_facts.side
    if side is None:
        return ""
    heads = ["group", "responses", "mean prediction", "its standard error", "mean response", "its standard error"]
    rows = []
    for k, numbers in enumerate(zip(*side, strict=True)):
        size, predicted, observed, predicted_error, observed_error = numbers
        cells = (predicted, predicted_error, observed, observed_error)
        rows.append(
            [head(str(k + 1)), f"<td>{size:,.0f}</td>", *(f"<td>{minus(f'{value:,.4g}')}</td>" for value in cells)]
        )
    words = (
        "<p>Rows in groups of similar predictions, from small to large. Where the model is right the dots lie on the line, "
        "but for noise.</p>"
    )
    folded = table(heads, rows, "slim", "Predictions beside responses, by group")
    picture = figures(
        (
            f"<b>Mean of {escape(cal.response)}</b> in groups of similar predictions, ± 2 standard errors",
            plots.side(side),
        )
    )
    return f"{words}{picture}<details><summary>The same as a table</summary>{folded}</details>"


def _signed(text: str) -> str:
    """Text with true minus signs in front of numbers."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def _percent(share: float) -> str:
    return f"{100.0 * share:.6g}%"
