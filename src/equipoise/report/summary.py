"""Tables laid out like a regression summary: the coefficients of a run, and the stationary law of a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from equipoise.calibration.findings import coefficients, ratio_name, sampler_name
from equipoise.cards import html_table

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration
    from equipoise.calibration.preview import Preview

__all__ = ["STARS", "Summary", "aligned", "decimals", "fixed", "shown_p", "star", "summarise", "summarise_law"]

_LIMITS = (0.05, 0.01, 0.001)
STARS = "Stars: * p < 0.05, ** p < 0.01, *** p < 0.001."
_SMALL = 0.001  # p-values below it are not told apart
_DIGITS = 3  # significant digits shown of a standard error; the estimate ends at the same decimal


@dataclass(frozen=True)
class Summary:
    """A table with a header and a footer that prints itself.

    Attributes
    ----------
    frame
        One row per parameter, in full precision.
    header, footer
        What the run was, and what to know about it.
    title
        What the table shows.
    error
        The column whose size says how many digits are worth showing.
    """

    frame: pd.DataFrame
    header: tuple[tuple[str, str], ...]
    footer: tuple[str, ...]
    title: str = "Calibrated regression"
    error: str = "se"

    def cells(self) -> pd.DataFrame:
        """The frame as text: numbers in the parameter's unit end where its standard error stops being informative."""
        places_of = decimals(self.frame[self.error].to_numpy(dtype=np.float64))
        columns = {}
        for name, column in self.frame.items():
            form = _FORMATS.get(str(name))
            columns[name] = (
                [form(value) for value in column]
                if form is not None
                else [fixed(value, places) for value, places in zip(column, places_of, strict=True)]
            )
        return pd.DataFrame(columns, index=self.frame.index, dtype=object)

    def __str__(self) -> str:
        cells = self.cells()
        rows = zip(cells.index, cells.to_numpy(), strict=True)
        table = aligned([["", *map(str, cells.columns)], *([str(name), *row] for name, row in rows)])
        pairs = [f"{name + ':':<18}{value}" for name, value in self.header]
        half = (len(pairs) + 1) // 2
        column = max(len(table[0]) // 2, *(len(p) + 2 for p in pairs[:half]))
        top = [left.ljust(column) + right for left, right in zip(pairs[:half], [*pairs[half:], ""], strict=False)]
        width = max(len(table[0]), *(len(line) for line in top))
        heavy, light = "=" * width, "-" * width
        lines = [self.title.center(width), heavy, *top, light, *table, heavy, *self.footer]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = self.cells()
        rows = [[str(name), *map(str, row)] for name, row in zip(cells.index, cells.to_numpy(), strict=True)]
        facts = " · ".join(f"{escape(name)}: {escape(value)}" for name, value in self.header)
        notes = "".join(f"<li>{escape(line)}</li>" for line in self.footer)
        return f"{html_table(('', *map(str, cells.columns)), rows, self.title)}<p>{facts}</p><ul>{notes}</ul>"


def summarise(calibration: Calibration, interval: float, method: str, exponentiate: bool, stars: bool) -> Summary:
    """The coefficient table of a calibration; see `Calibration.summary`."""
    plan, diagnosis = calibration.plan, calibration.diagnosis
    found = coefficients(calibration, interval, method, exponentiate)
    error = "robust se" if found.robust else "se"
    lower, upper = f"[{found.tail:.4g}", f"{1.0 - found.tail:.4g}]"
    ratio = (ratio_name(calibration) or "exp(estimate)") if exponentiate else "estimate"
    marks = {"": [star(p) for p in found.p_value]} if stars else {}
    frame = pd.DataFrame(
        {
            ratio: found.estimate,
            **marks,
            error: found.se,
            "t" if found.student else "z": found.statistic,
            "p": found.p_value,
            lower: found.interval.lower,
            upper: found.interval.upper,
            "ess predicted": found.predicted_ess,
            "ess observed": found.ess,
            "flags": [", ".join(words) for words in found.flags],
        },
        index=pd.Index(calibration.names),
    )
    dynamics, reads = calibration.tuning.dynamics, plan.reads
    passes = f"{plan.passes:,.1f}" if reads is None else f"{reads.passes:,.0f} + {reads.pools:,.0f} for the steps"
    header = (
        *((("Response", calibration.response),) if calibration.title.kind == "Family" else ()),
        (calibration.title.kind, calibration.title.name),
        ("Rows", f"{plan.moments.n:,}"),
        *((("Files", str(reads)),) if reads is not None else ()),
        ("Target", plan.target.words),
        ("Sampler", sampler_name(calibration)),
        ("Batch size", f"{dynamics.batch_size:,}"),
        ("Chains x draws", f"{plan.chains} x {plan.draws:,}"),
        ("Passes over data", passes),
    )
    width = max(len(check.name) for check in diagnosis.checks)
    checks = tuple(f"{c.mark:<4} {c.name:<{width}}  {c.words}" for c in diagnosis.checks)
    notes = () if calibration.refinement is None else (f"Refinement: {calibration.refinement.words}.",)
    about = (f"{found.words}.", *((STARS,) if stars else ()))
    return Summary(frame, header, (*about, *checks, *notes, diagnosis.verdict), error=error)


def star(p_value: float) -> str:
    """One to three stars for p-values below 0.05, 0.01 and 0.001."""
    return "*" * sum(p_value < limit for limit in _LIMITS)


def shown_p(value: float) -> str:
    """A p-value with three decimals."""
    if not np.isfinite(value):
        return "-"
    return f"{value:.3f}" if value >= _SMALL else f"<{_SMALL:.3f}"


def summarise_law(preview: Preview) -> Summary:
    """What the theory says of a chain before it runs: spread, bias and mixing by parameter; stability as a whole.

    Columns estimate, target sd, predicted sd, sd ratio, bias in standard deviations, autocorrelation time in steps, and
    effective draws in 1000 steps.
    """
    moments, law, dynamics = preview.moments, preview.law, preview.law.dynamics
    frame = pd.DataFrame(
        {
            "estimate": moments.params,
            "target sd": preview.target_sd,
            "predicted sd": preview.sd,
            "sd ratio": preview.sd_ratio,
            "bias / sd": preview.shift,
            "iact": law.iacts(),
            "ess/1000": preview.ess_per_thousand,
        },
        index=pd.Index(preview.names),
    )
    size, largest = preview.scalar, f"{preview.largest_stable:.4g}"
    header = (
        ("Rows", f"{moments.n:,}"),
        ("Step", f"matrix tuned to {preview.target_name}" if size is None else f"{size:.4g} (scalar)"),
        ("Batch size", f"{dynamics.batch_size:,} ({'with' if dynamics.replacement else 'without'} replacement)"),
        ("Momentum", f"{dynamics.momentum:g}"),
        ("Inverse temp.", f"{dynamics.inverse_temperature:g}"),
        ("Spectral radius", f"{law.spectral_radius:.6g} (stable)" if law.is_stable else "unstable"),
        ("Largest stable", f"{largest} times this step" if size is None else largest),
        ("Worst iact", f"{law.iact():,.1f} steps"),
        ("Effective draws", f"{law.ess(1000):,.3g} per 1,000 steps, worst direction"),
        ("Burn-in", f"{preview.burn_in:,} steps, started at the estimate"),
    )
    footer = (
        f"covariance is {preview.distance:.1%} from the {preview.target_name} target (relative Frobenius distance)",
    )
    return Summary(frame, header, footer, "Predicted stationary law", error="target sd")


def decimals(errors: Iterable[float]) -> list[int]:
    """Decimals that show three digits of each standard error; one number for all where they are of similar size."""
    needed = [int(_DIGITS - 1 - np.floor(np.log10(e))) if np.isfinite(e) and e > 0 else 4 for e in errors]
    return [max(needed)] * len(needed) if max(needed) - min(needed) <= 2 else needed


def fixed(value: float, places: int) -> str:
    """A number with so many decimals, or with few digits where those would be too many."""
    if not np.isfinite(value):
        return "-"
    return f"{value:.{max(places, 0)}f}" if -3 <= places <= 9 else f"{value:.{_DIGITS + 1}g}"


def _number(form: str) -> Callable[[float], str]:
    return lambda value: format(value, form) if np.isfinite(value) else "-"


_FORMATS: dict[str, Callable[[float], str]] = {
    "": str,
    "z": _number(".2f"),
    "t": _number(".2f"),
    "p": shown_p,
    "ess predicted": _number(",.0f"),
    "ess observed": _number(",.0f"),
    "flags": str,
    "sd ratio": _number(".3f"),
    "bias / sd": _number("+.3f"),
    "iact": _number(",.1f"),
    "ess/1000": _number(",.2f"),
}


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows of text with the names to the left and the numbers to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    right = [(name, zip(cells, others, strict=True)) for name, *cells in rows]
    return ["  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in cells)]) for name, cells in right]
