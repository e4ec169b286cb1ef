"""The report: one HTML file with the tables and plots of a run, readable without a network, on paper and on a phone."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.files import write_atomic
from equipoise.report import plots
from equipoise.report.html import document, head, table
from equipoise.report.summary import Summary, summarise
from equipoise.theory.targets import posterior, sandwich

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["write_report"]


_SHOWN = 12  # parameters per plot
_TRACED = 6
_CURVES = 4

_FLAGS = (
    "<b>bias</b>, the mean of the draws is away from the estimate; <b>spread</b>, their standard deviation is away from "
    "the predicted one; <b>skew</b>, their distribution leans to one side; <b>chains</b>, the chains disagree"
)


def write_report(calibration: Calibration, path: Path, interval: float = 0.95) -> Path:
    """Write the report of a run as one self-contained HTML file.

    Parameters
    ----------
    calibration
        The run, fresh or loaded.
    path
        Where to write; folders are made.
    interval
        Probability of the intervals.

    Returns
    -------
    Path
        The path written.

    Raises
    ------
    InvalidInput
        If the file cannot be written.
    """
    text = _page(calibration, summarise(calibration, interval), interval)
    return write_atomic(path, text.encode())


def _page(cal: Calibration, summary: Summary, interval: float) -> str:
    title = f"{cal.response}: calibrated {cal.title.name} regression"
    sections = [
        ("coefficients", "Coefficients", _coefficients(cal, summary, interval)),
        ("intervals", "Intervals", _intervals(cal, summary, interval)),
        ("checks", "Predicted against observed", _checks(cal)),
        ("covariance", "Covariance", _covariance(cal)),
        ("mean", "Mean and shape", _mean(cal)),
        ("mixing", "Mixing", _mixing(cal)),
        ("draws", "Draws", _draws(cal)),
        ("budget", "Budget", _budget(cal)),
        ("warnings", "Warnings", _warnings(cal)),
        ("settings", "How it was made", _settings(cal)),
    ]
    kept = [(key, name, body) for key, name, body in sections if body]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in kept)
    lead = f"{cal.plan.moments.n:,} rows, {len(cal.names)} parameters, target: {cal.plan.target_name}"
    parts = [f'<section id="{key}"><h2>{name}</h2>{body}</section>' for key, name, body in kept]
    body = f"{_verdict(cal)}{_tiles(cal)}\n" + "\n".join(parts)
    return document(title, lead, links, body)


def _verdict(cal: Calibration) -> str:
    d = cal.diagnosis
    failed = [check for check in d.checks if not check.ok]
    head = f"Look at: {', '.join(c.name for c in failed)}." if failed else f"All {len(d.checks)} checks passed."
    items = _list([_sentence(check.words) for check in failed])
    return (
        f'<section class="verdict{"" if d.ok else " look"}" id="verdict"><strong>{escape(head)}</strong>'
        f"{items}<p>{escape(d.verdict)}</p></section>"
    )


def _tiles(cal: Calibration) -> str:
    d, covariance = cal.diagnosis, cal.diagnosis.checks[0]
    tiles = [
        (f"{d.ess.min():,.0f}", f"effective draws at least, {d.predicted_ess.min():,.0f} predicted"),
        (f"{covariance.observed:.1%}", f"covariance error; {covariance.error:.1%} is the Monte Carlo floor"),
        (f"{np.abs(d.shift).max():.2f} sd", "largest shift of a mean from its estimate"),
        (f"{d.rhat.max():.3f}", "largest split R-hat; 1 when chains agree"),
    ]
    if not cal.chains.independent:
        seconds = cal.chains.statistics["seconds"]
        tiles.append((f"{seconds:.2f} s", f"sampling, {cal.plan.passes:,.0f} passes over the data"))
    inner = "".join(f'<div class="tile"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in tiles)
    return f'<div class="tiles">{inner}</div>'


def _coefficients(cal: Calibration, summary: Summary, interval: float) -> str:
    cells, frame = summary.cells(), summary.frame
    heads = ["parameter", *map(str, cells.columns)]
    heads[3], heads[4] = f"{_percent(interval)} from", "to"
    rows = []
    for name, row, raw in zip(cells.index, cells.to_numpy(), frame.to_numpy(), strict=True):
        numbers = [
            # the full number for whoever reads the page by program
            f'<td data-value="{float(value)!r}">{escape(_minus(text))}</td>'
            for text, value in zip(row[:-1], raw[:-1], strict=True)
        ]
        flag = f'<span class="pill look">{escape(row[-1])}</span>' if row[-1] else ""
        rows.append([head(str(name)), *numbers, f"<td>{flag}</td>"])
    error, target = escape(heads[2]), escape(cal.plan.target_name)
    intro = (
        f"<p>The estimate minimises the loss; the {error} is the standard deviation of the {target} target; "
        "the interval holds the middle of the draws.</p>"
    )
    note = f'<p class="note">Flags: {_FLAGS}. None means nothing stands out.</p>'
    return intro + table(heads, rows, "coefficients") + note


def _intervals(cal: Calibration, summary: Summary, interval: float) -> str:
    lower, upper = (summary.frame.iloc[:, k].to_numpy(dtype=np.float64) for k in (2, 3))
    model, robust = (np.sqrt(np.diag(made(cal.plan.moments))) for made in (posterior, sandwich))
    is_posterior = cal.plan.target_name == "posterior"
    name, other = ("sandwich (robust)", robust) if is_posterior else ("posterior (model-based)", model)
    target, se = escape(cal.plan.target_name), np.sqrt(np.diag(cal.tuning.target))
    at = plots.furthest(np.abs(cal.tuning.center) / se, _SHOWN)
    words = (
        f"<p>Beside each interval stands the one the {name} covariance would give. Its standard errors are "
        f"{(other / se).min():.2f} to {(other / se).max():.2f} times those of the {target} target. "
        f"{_meaning(model / robust)}</p>"
    )
    labels = (f"{_percent(interval)} interval of the draws", f"with {name} errors")
    forest = plots.forest(cal, lower, upper, other, labels, at)
    return words + _plots(
        (_counted("Estimates and intervals", cal, at, "the largest in standard errors"), forest),
        (f"<b>Standard errors compared</b>, {name} over {target}", plots.standard_errors(cal, other, at)),
    )


def _meaning(ratio: Array) -> str:
    """What model-based over robust standard errors say about the model."""
    typical = float(np.median(ratio))
    if typical < 0.9:
        return "The data vary more than the model says: posterior intervals are too narrow."
    return "The data vary less than the model says: posterior intervals are too wide." if typical > 1.1 else ""


def _checks(cal: Calibration) -> str:
    heads = ["check", "", "predicted", "observed", "Monte Carlo error or tolerance", "in words"]
    rows = []
    for c in cal.diagnosis.checks:
        word = "ok" if c.ok else "look"
        numbers = zip(heads[2:5], (c.predicted, c.observed, c.error), strict=True)
        rows.append([
            head(c.name),
            f'<td><span class="pill {word}">{word}</span></td>',
            *(f'<td data-label="{name}">{_short(value)}</td>' for name, value in numbers),
            f'<td class="words">{escape(_sentence(c.words))}</td>',
        ])  # fmt: skip
    intro = "<p>The theory predicts what the chain does before it runs; each line compares one prediction with the draws.</p>"
    return intro + table(heads, rows, "told")


def _covariance(cal: Calibration) -> str:
    check = cal.diagnosis.checks[0]
    words = (
        f"<p>The covariance of the draws is <b>{check.observed:.2%}</b> from the predicted one in relative Frobenius distance; "
        f"Monte Carlo error alone would make it about <b>{check.error:.2%}</b>.</p>"
    )
    away = np.abs(cal.diagnosis.sd_ratio - 1.0) / plots.spread_error(cal)
    at = plots.furthest(away, _SHOWN)
    return words + _plots(
        (_counted("Standard deviations", cal, at, "the furthest from their prediction"), plots.spread(cal, at)),
        ("<b>Covariances</b>, divided by predicted standard deviations", plots.covariance_entries(cal)),
    )


def _mean(cal: Calibration) -> str:
    d = cal.diagnosis
    away = np.abs(d.shift - np.nan_to_num(d.predicted_shift)) / d.shift_error
    at, leaning = plots.furthest(away, _SHOWN), plots.furthest(np.abs(d.skewness) * np.sqrt(d.ess), _SHOWN)
    if cal.chains.independent:
        words = "<p>Draws from a normal law: what shows here is Monte Carlo error.</p>"
    else:
        words = (
            "<p>Where the loss is not quadratic, the mean of a chain moves away from the estimate, by about as much as the "
            "third derivatives of the loss predict, and its draws lean to one side.</p>"
        )
    return words + _plots(
        (_counted("Shift of the mean", cal, at, "the furthest from their prediction"), plots.mean_shift(cal, at)),
        (_counted("Skewness", cal, leaning, "the furthest from zero"), plots.skewness(cal, leaning)),
    )


def _mixing(cal: Calibration) -> str:
    if cal.chains.independent or cal.draws.shape[1] < 16:
        return ""
    words = (
        "<p>How long the chain remembers: the autocorrelation of the slowest parameters. The integrated autocorrelation time "
        f"is {cal.tuning.predicted.iact():,.1f} steps in the worst direction.</p>"
    )
    chosen = plots.slowest(cal, _CURVES)
    return words + _plots(*((_name(cal, j), plots.autocorrelation(cal, int(j))) for j in chosen))


def _draws(cal: Calibration) -> str:
    d = cal.diagnosis
    score = np.abs(d.shift) / d.shift_error + np.abs(d.sd_ratio - 1.0) / plots.spread_error(cal)
    chosen = plots.furthest(score, _TRACED)
    which = "" if len(cal.names) <= _TRACED else f" The {_TRACED} parameters furthest from their prediction are shown."
    if cal.chains.independent:
        words = f"<p>Independent draws (blue) and the density they were drawn from, N(estimate, target) (orange).{which}</p>"
        return words + _plots(*((_name(cal, j), plots.density(cal, int(j))) for j in chosen))
    words = (
        "<p>Paths of the chains, one colour each, and to the right the draws of all chains (blue) beside "
        f"N(estimate, target) (orange).{which}</p>"
    )
    return words + _plots(*((_name(cal, j), plots.trace(cal, int(j))) for j in chosen))


def _budget(cal: Calibration) -> str:
    plan, stats = cal.plan, cal.chains.statistics
    rows = [["effective draws, worst case", f"{plan.ess:,.0f}", f"{cal.diagnosis.ess.min():,.0f}"]]
    if not cal.chains.independent:
        done = stats["rows"] / plan.moments.n
        rows = [
            ["steps per chain", f"{plan.steps:,}", f"{stats['steps']:,.0f}"],
            ["rows touched", f"{plan.rows:,}", f"{stats['rows']:,.0f}"],
            ["passes over the data", f"{plan.passes:,.1f}", f"{done:,.1f}"],
            *rows,
            ["seconds of sampling", f"{plan.seconds:.2f}", f"{stats['seconds']:.2f}"],
        ]
    how = f"one every {plan.thin} steps after {plan.burn_in:,} of burn-in"
    how = "independent" if cal.chains.independent else how
    intro = f"<p>Known before the first step: {plan.chains} chains of {plan.draws:,} stored draws, {how}.</p>"
    body = [[head(row[0]), *(f"<td>{cell}</td>" for cell in row[1:])] for row in rows]
    return intro + table(["", "planned", "spent or observed"], body, "slim")


def _warnings(cal: Calibration) -> str:
    words = [_sentence(w) for w in cal.diagnosis.warnings]
    if cal.tuning.structure != "full":
        words.append(
            f"The step was restricted to a {cal.tuning.structure} form, so the predicted covariance is not the target: "
            f"Kullback–Leibler divergence {cal.tuning.distance:.3g}."
        )
    return _list(words) or "<p>None.</p>"


def _settings(cal: Calibration) -> str:
    tuning, dynamics, fit = cal.tuning, cal.tuning.dynamics, cal.fit
    step, rates = np.linalg.eigvalsh(tuning.step), tuning.predicted.modes.rates
    constant = cal.title.constant
    temperature = "infinite (SGD)" if dynamics.temperature == 0.0 else f"{dynamics.inverse_temperature:,.6g} (SGLD)"
    pairs = [
        ("Model", cal.title.name + ("" if constant is None else f", constant {constant:g}")),
        ("Formula", cal.design.formula if cal.design is not None else "none: arrays were given"),
        ("Sampler", "N(estimate, target), no chain" if cal.chains.independent else "stochastic-gradient chains"),
        ("Target", cal.plan.target_name),
        ("Batch", f"{dynamics.batch_size:,} rows, {'with' if dynamics.replacement else 'without'} replacement"),
        ("Momentum", f"{dynamics.momentum:g}"),
        ("Inverse temperature", temperature),
        (
            "Step matrix",
            f"{tuning.dim} × {tuning.dim}, {tuning.structure}; eigenvalues {step[0]:.3g} to {step[-1]:.3g}",
        ),
        ("Contraction per step", f"{rates[0]:.3g} to {rates[-1]:.3g} (eigenvalues of step × Hessian)"),
        ("Tuning", f"proxy {tuning.proxy}, relative residual {tuning.residual:.1e}"),
        ("Fit", f"{fit.iterations} Newton steps, {fit.gradient_norm:.1e} posterior sd from the minimum"),
        ("Condition number", f"{fit.condition:,.3g} (Hessian scaled to unit diagonal)"),
        ("Chains", f"{cal.plan.chains}, seed {cal.chains.seed}"),
    ]
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs) + "</dl>"


def _plots(*pairs: tuple[str, str]) -> str:
    """Figures side by side; each is a caption (markup) and an SVG, left out when empty."""
    shown = "".join(f"<figure><figcaption>{caption}</figcaption>{svg}</figure>" for caption, svg in pairs if svg)
    return f'<div class="plots">{shown}</div>'


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""


def _counted(title: str, cal: Calibration, at: NDArray[np.intp], rule: str) -> str:
    total = len(cal.names)
    return f"<b>{title}</b>" + ("" if len(at) == total else f": {len(at)} of {total} parameters, {rule}")


def _name(cal: Calibration, j: int) -> str:
    return f"<b>{escape(cal.names[j])}</b>"


def _percent(share: float) -> str:
    return f"{100.0 * share:.6g}%"


def _short(value: float) -> str:
    return _minus(f"{value:.4g}") if np.isfinite(value) else "unknown"


def _minus(number: str) -> str:
    """A number with a true minus sign."""
    return f"−{number[1:]}" if number.startswith("-") and len(number) > 1 else number


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."
