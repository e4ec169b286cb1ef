"""Tables laid out like a regression summary: the coefficients of a run, and the stationary law of a chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from equipoise.calibration.calibration import Calibration
    from equipoise.calibration.diagnostics import Diagnosis
    from equipoise.calibration.preview import Preview

__all__ = ["Summary", "summarise", "summarise_law"]

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
    """

    frame: pd.DataFrame
    header: tuple[tuple[str, str], ...]
    footer: tuple[str, ...]
    title: str = "Calibrated regression"

    def cells(self) -> pd.DataFrame:
        """The frame as text: numbers in the parameter's unit end where its standard error stops being informative."""
        error = next(c for c in self.frame.columns if str(c).endswith((" se", " sd")) or c == "se")
        decimals = _decimals(self.frame[error].to_numpy(dtype=np.float64))
        columns = {}
        for name, column in self.frame.items():
            form = _FORMATS.get(str(name))
            columns[name] = (
                [form(value) for value in column]
                if form is not None
                else [_fixed(value, places) for value, places in zip(column, decimals, strict=True)]
            )
        return pd.DataFrame(columns, index=self.frame.index, dtype=object)

    def __str__(self) -> str:
        table = _aligned(self.cells())
        pairs = [f"{name + ':':<18}{value}" for name, value in self.header]
        half = (len(pairs) + 1) // 2
        column = max(len(table[0]) // 2, *(len(p) + 2 for p in pairs[:half]))
        top = [left.ljust(column) + right for left, right in zip(pairs[:half], [*pairs[half:], ""], strict=False)]
        width = max(len(table[0]), *(len(line) for line in top))
        heavy, light = "=" * width, "-" * width
        lines = [self.title.center(width), heavy, *top, light, *table, heavy, *self.footer]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def summarise(calibration: Calibration, interval: float) -> Summary:
    """The coefficient table of a calibration, with quantile intervals from its draws."""
    plan, diagnosis, tuning = calibration.plan, calibration.diagnosis, calibration.tuning
    tail = 0.5 * (1.0 - interval)
    lower, upper = np.quantile(calibration.chains.flat(), [tail, 1.0 - tail], axis=0)
    frame = pd.DataFrame(
        {
            "estimate": tuning.center,
            "robust se" if plan.target_name == "sandwich" else "se": np.sqrt(np.diag(tuning.target)),
            f"[{tail:.4g}": lower,
            f"{1.0 - tail:.4g}]": upper,
            "ess predicted": diagnosis.predicted_ess,
            "ess observed": diagnosis.ess,
            "flags": [_flags(diagnosis, j) for j in range(len(calibration.names))],
        },
        index=pd.Index(calibration.names),
    )
    dynamics = tuning.dynamics
    chain = f"SG{'' if dynamics.temperature == 0 else 'L'}D"
    header = (
        *((("Response", calibration.response),) if calibration.title.kind == "Family" else ()),
        (calibration.title.kind, calibration.title.name),
        ("Rows", f"{plan.moments.n:,}"),
        ("Target", plan.target_name),
        ("Sampler", "N(estimate, target)" if calibration.chains.independent else chain),
        ("Batch size", f"{dynamics.batch_size:,}"),
        ("Chains x draws", f"{plan.chains} x {plan.draws:,}"),
        ("Passes over data", f"{plan.passes:,.1f}"),
    )
    width = max(len(check.name) for check in diagnosis.checks)
    checks = tuple(f"{'ok  ' if c.ok else 'LOOK'} {c.name:<{width}}  {c.words}" for c in diagnosis.checks)
    notes = () if calibration.refinement is None else (f"Refinement: {calibration.refinement.words}.",)
    return Summary(frame, header, (*checks, *notes, diagnosis.verdict))


def summarise_law(preview: Preview) -> Summary:
    """What the theory says of a chain before it runs: spread, bias and mixing by parameter; stability as a whole.

    Parameters
    ----------
    preview
        The law of the chain, and the target to compare it with.

    Returns
    -------
    Summary
        Columns estimate, target sd, predicted sd, sd ratio, bias in standard deviations, autocorrelation time in
        steps, and effective draws in 1000 steps.
    """
    moments, law, dynamics = preview.moments, preview.law, preview.law.dynamics
    sd, wanted, iacts = np.sqrt(np.diag(law.cov)), np.sqrt(np.diag(preview.target)), law.iacts()
    frame = pd.DataFrame(
        {
            "estimate": moments.params,
            "target sd": wanted,
            "predicted sd": sd,
            "sd ratio": sd / wanted,
            "bias / sd": law.mean_bias / sd,
            "iact": iacts,
            "ess/1000": 1000.0 / iacts,
        },
        index=pd.Index(moments.names or [f"x{j}" for j in range(moments.dim)]),
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
    return Summary(frame, header, footer, "Predicted stationary law")


def _flags(d: Diagnosis, j: int) -> str:
    """Short words for what stands out in one parameter."""
    words = []
    if abs(d.shift[j]) > 0.1 and abs(d.shift[j]) > 3.0 * d.shift_error[j]:
        words.append("bias")
    if abs(d.sd_ratio[j] - 1.0) > 0.02 + 3.0 / np.sqrt(2.0 * d.ess[j]):
        words.append("spread")
    if abs(d.skewness[j]) > 0.2 + 3.0 * np.sqrt(6.0 / d.ess[j]):
        words.append("skew")
    if d.rhat[j] >= d.rhat_limit:
        words.append("chains")
    return ", ".join(words)


def _decimals(errors: NDArray[np.float64]) -> list[int]:
    """Decimals that show three digits of each standard error; one number for all where they are of similar size."""
    needed = [int(_DIGITS - 1 - np.floor(np.log10(e))) if np.isfinite(e) and e > 0 else 4 for e in errors]
    return [max(needed)] * len(needed) if max(needed) - min(needed) <= 2 else needed


def _fixed(value: float, places: int) -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:.{max(places, 0)}f}" if -3 <= places <= 9 else f"{value:.{_DIGITS + 1}g}"


def _number(form: str) -> Callable[[Any], str]:
    return lambda value: format(value, form) if np.isfinite(value) else "-"


_FORMATS: dict[str, Callable[[Any], str]] = {
    "ess predicted": _number(",.0f"),
    "ess observed": _number(",.0f"),
    "flags": str,
    "sd ratio": _number(".3f"),
    "bias / sd": _number("+.3f"),
    "iact": _number(",.1f"),
    "ess/1000": _number(",.2f"),
}


def _aligned(cells: pd.DataFrame) -> list[str]:
    """Rows of text with the names to the left and the numbers to the right."""
    columns = [["", *map(str, cells.index)]]
    columns += [[str(name), *cells[name]] for name in cells.columns]
    widths = [max(len(cell) for cell in column) for column in columns]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in zip(*columns, strict=True)
    ]
