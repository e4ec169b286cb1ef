"""How well the sampler did: what was predicted of the draws beside what they show. The folded part of a report."""

from __future__ import annotations

from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from equipoise.calibration import findings
from equipoise.report import plots
from equipoise.report.html import described, figures, head, minus, table, tiles

if TYPE_CHECKING:
    from equipoise.arrays import Index
    from equipoise.calibration.calibration import Calibration
    from equipoise.calibration.findings import Choice
    from equipoise.calibration.judgement import Check

__all__ = ["headline", "sampler_sections"]

_SHOWN = 12  # parameters per plot
_TRACED = 6
_CURVES = 4
_LEAST = 16  # draws of a chain whose autocorrelation is worth a plot

_FLAGS = (
    "<b>bias</b>, the mean of the draws is away from the estimate; <b>spread</b>, their standard deviation is away from "
    "the predicted one; <b>target</b>, the predicted one is away from the target's; <b>skew</b>, their distribution leans "
    "to one side; <b>chains</b>, the chains disagree"
)
_PILLS = {"ok": "ok", "look": "look", "unknown": "cannot tell"}


def headline(cal: Calibration) -> str:
    """What the diagnosis comes to, in one sentence."""
    d = cal.diagnosis
    looks, open_ = ([c for c in d.checks if c.status == status] for status in ("look", "unknown"))
    if looks:
        return f"Look at: {_names(looks)}."
    if open_:
        return f"Nothing is off as far as this run can tell. Not told: {_names(open_)}."
    return f"All {len(d.checks)} checks passed."


def sampler_sections(cal: Calibration) -> str:
    """The verdict, its numbers, and every comparison of a prediction with the draws."""
    chosen = findings.choose(cal, _SHOWN, _TRACED, _CURVES)
    sections = [
        ("checks", "Predicted against observed", _checks(cal)),
        ("parameters", "Parameter by parameter", _parameters(cal)),
        ("covariance", "Covariance", _covariance(cal, chosen)),
        ("mean", "Mean and shape", _mean(cal, chosen)),
        ("mixing", "Mixing", _mixing(cal, chosen)),
        ("draws", "Draws", _draws(cal, chosen)),
        ("budget", "Budget", _budget(cal)),
        ("warnings", "Warnings", _warnings(cal)),
        ("settings", "How it was made", _settings(cal)),
    ]
    parts = [f'<section id="{key}"><h3>{name}</h3>{body}</section>' for key, name, body in sections if body]
    return f"{_verdict(cal)}{_tiles(cal)}\n" + "\n".join(parts)


def _parameters(cal: Calibration) -> str:
    d = cal.diagnosis
    rows = []
    for place, name in enumerate(cal.names):
        flag = f'<span class="pill look">{escape(", ".join(d.flags[place]))}</span>' if d.flags[place] else "–"
        numbers = (f"{d.predicted_ess[place]:,.0f}", f"{d.ess[place]:,.0f}", _short(d.rhat[place]))
        rows.append([head(name), *(f"<td>{number}</td>" for number in numbers), f"<td>{flag}</td>"])
    heads = ["parameter", "effective draws predicted", "observed", "R-hat", "flags"]
    return table(heads, rows, "slim", "Effective draws by parameter") + f'<p class="note">Flags: {_FLAGS}.</p>'


def _verdict(cal: Calibration) -> str:
    d = cal.diagnosis
    items = _list([_sentence(words) for words in (*d.warnings, *d.undecided)])
    kind = "" if d.ok else f" {d.status}"
    return (
        f'<section class="verdict{kind}" id="verdict"><strong>{escape(headline(cal))}</strong>'
        f"{items}<p>{escape(d.verdict)}</p></section>"
    )


def _tiles(cal: Calibration) -> str:
    worst, covariance = findings.headline(cal), cal.diagnosis.check("covariance")
    shown = [
        (f"{worst.ess:,.0f}", f"effective draws at least, {worst.predicted_ess:,.0f} predicted"),
        (f"{covariance.observed:.1%}", f"covariance error; {covariance.error:.1%} is the Monte Carlo floor"),
        (f"{worst.shift:.2f} sd", "largest shift of a mean from its estimate"),
        (_short(worst.rhat), "largest split R-hat; 1 when chains agree"),
    ]
    if not cal.chains.independent:
        seconds = cal.chains.statistics["seconds"]
        shown.append((f"{seconds:.2f} s", f"sampling, {cal.plan.passes:,.0f} passes over the data"))
    return tiles(shown)


def _checks(cal: Calibration) -> str:
    heads = ["check", "", "predicted", "observed", "Monte Carlo error or tolerance", "in words"]
    rows = []
    for c in cal.diagnosis.checks:
        numbers = zip(heads[2:5], (c.predicted, c.observed, c.error), strict=True)
        rows.append([
            head(c.name),
            f'<td><span class="pill {c.status}">{_PILLS[c.status]}</span></td>',
            *(f'<td data-label="{name}">{_short(value)}</td>' for name, value in numbers),
            f'<td class="words">{escape(_sentence(c.words))}</td>',
        ])  # fmt: skip
    intro = "<p>The theory predicts what the chain does before it runs; each line compares one prediction with the draws.</p>"
    return intro + table(heads, rows, "told", "Checks of the run")


def _covariance(cal: Calibration, chosen: Choice) -> str:
    check = cal.diagnosis.check("covariance")
    words = (
        f"<p>The covariance of the draws is <b>{check.observed:.2%}</b> from the predicted one in relative Frobenius distance; "
        f"Monte Carlo error alone would make it about <b>{check.error:.2%}</b>.</p>"
    )
    caption = _counted("Standard deviations", cal, chosen.spread, "the furthest from their prediction")
    return words + figures(
        (caption, plots.spread(cal, chosen.spread)),
        ("<b>Covariances</b>, divided by predicted standard deviations", plots.covariance_entries(cal)),
    )


def _mean(cal: Calibration, chosen: Choice) -> str:
    if cal.chains.independent:
        words = "<p>Draws from a normal law: what shows here is Monte Carlo error.</p>"
    else:
        words = (
            "<p>Where the loss is not quadratic, the mean of a chain moves away from the estimate, by about as much as the "
            "third derivatives of the loss predict, and its draws lean to one side. How a chain of plain gradients leans is "
            "its own: neither a posterior nor the estimate need lean the same way.</p>"
        )
    shift, skewness = chosen.shift, chosen.skewness
    return words + figures(
        (_counted("Shift of the mean", cal, shift, "the furthest from their prediction"), plots.mean_shift(cal, shift)),
        (_counted("Skewness", cal, skewness, "the furthest from zero"), plots.skewness(cal, skewness)),
    )


def _mixing(cal: Calibration, chosen: Choice) -> str:
    if cal.chains.independent or cal.draws.shape[1] < _LEAST:
        return ""
    words = (
        "<p>How long the chain remembers: the autocorrelation of the slowest parameters. The integrated autocorrelation time "
        f"is {cal.tuning.predicted.iact():,.1f} steps in the worst direction.</p>"
    )
    return words + figures(*((_name(cal, int(j)), plots.autocorrelation(cal, int(j))) for j in chosen.slowest))


def _draws(cal: Calibration, chosen: Choice) -> str:
    which = "" if len(cal.names) <= _TRACED else f" The {_TRACED} parameters furthest from their prediction are shown."
    at = [int(j) for j in chosen.drawn]
    if cal.chains.independent:
        words = f"<p>Independent draws (blue) and the density they were drawn from, N(estimate, target) (orange).{which}</p>"
        return words + figures(*((_name(cal, j), plots.density(cal, j)) for j in at))
    words = (
        "<p>Paths of the chains, one colour each, and to the right the draws of all chains (blue) beside "
        f"N(estimate, target) (orange).{which}</p>"
    )
    return words + figures(*((_name(cal, j), plots.trace(cal, j)) for j in at))


def _budget(cal: Calibration) -> str:
    plan, cost = cal.plan, cal.chains.statistics
    rows = [["effective draws, worst case", f"{plan.ess:,.0f}", f"{findings.headline(cal).ess:,.0f}"]]
    if not cal.chains.independent:
        rows = [
            ["steps per chain", f"{plan.steps:,}", f"{cost['steps']:,.0f}"],
            ["rows touched", f"{plan.rows:,}", f"{cost['rows']:,.0f}"],
            ["passes over the data", f"{plan.passes:,.1f}", f"{findings.passes_spent(cal):,.1f}"],
            *rows,
            ["seconds of sampling", f"{plan.seconds:.2f}", f"{cost['seconds']:.2f}"],
        ]
    how = f"one every {plan.thin} steps after {plan.burn_in:,} of burn-in"
    how = "independent" if cal.chains.independent else how
    intro = f"<p>Known before the first step: {plan.chains} chains of {plan.draws:,} stored draws, {how}.</p>"
    body = [[head(name), f"<td>{planned}</td>", f"<td>{found}</td>"] for name, planned, found in rows]
    return intro + table(["", "planned", "spent or observed"], body, "slim", "Budget of the run")


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
    step, rates = (f"{found[0]:.3g} to {found[-1]:.3g}" for found in findings.step_found(cal))
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
        ("Step matrix", f"{tuning.dim} × {tuning.dim}, {tuning.structure}; eigenvalues {step}"),
        ("Contraction per step", f"{rates} (eigenvalues of step × Hessian)"),
        ("Tuning", f"proxy {tuning.proxy}, relative residual {tuning.residual:.1e}"),
        ("Fit", f"{fit.iterations} Newton steps, {fit.gradient_norm:.1e} posterior sd from the minimum"),
        ("Condition number", f"{fit.condition:,.3g} (Hessian scaled to unit diagonal)"),
        ("Chains", f"{cal.plan.chains}, seed {cal.chains.seed}"),
    ]
    return described(pairs)


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""


def _names(checks: list[Check]) -> str:
    return ", ".join(check.name for check in checks)


def _counted(title: str, cal: Calibration, at: Index, rule: str) -> str:
    total = len(cal.names)
    return f"<b>{title}</b>" + ("" if len(at) == total else f": {len(at)} of {total} parameters, {rule}")


def _name(cal: Calibration, j: int) -> str:
    return f"<b>{escape(cal.names[j])}</b>"


def _short(value: float) -> str:
    return minus(f"{value:.4g}") if isfinite(value) else "unknown"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."
