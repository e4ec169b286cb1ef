"""The coefficient table, laid out like a regression summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from equipoise.calibration import Calibration

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True)
class Summary:
    """A coefficient table that prints itself.

    Attributes
    ----------
    frame
        One row per parameter: estimate, se, lower, upper, ess predicted and observed, flags.
    header, footer
        What the run was, and what to know about it.
    """

    frame: pd.DataFrame
    header: tuple[tuple[str, str], ...]
    footer: tuple[str, ...]

    def __str__(self) -> str:
        table = self.frame.to_string(float_format=lambda v: f"{v:.4f}", formatters=_FORMATS, justify="right")
        width = max(len(line) for line in table.splitlines())
        pairs = [f"{name + ':':<18}{value}" for name, value in self.header]
        half = (len(pairs) + 1) // 2
        column = max(width // 2, max(len(p) for p in pairs[:half]) + 2)
        top = [
            (left + (pairs[half + i].rjust(0) if half + i < len(pairs) else "")).rstrip()
            for i, left in enumerate(p.ljust(column) for p in pairs[:half])
        ]
        rule, thin = "=" * max(width, 78), "-" * max(width, 78)
        title = "Calibrated regression".center(len(rule)).rstrip()
        return "\n".join([title, rule, *top, thin, table, rule, *self.footer])

    __repr__ = __str__


_FORMATS = {
    "ess predicted": lambda v: f"{v:,.0f}",
    "ess observed": lambda v: f"{v:,.0f}",
    "flags": str,
}


def summarise(calibration: Calibration, interval: float) -> Summary:
    """The coefficient table of a calibration, with quantile intervals from its draws."""
    plan, diagnosis, tuning = calibration.plan, calibration.diagnosis, calibration.tuning
    tail = 0.5 * (1.0 - interval)
    flat = calibration.chains.flat()
    lower, upper = np.quantile(flat, [tail, 1.0 - tail], axis=0)
    frame = pd.DataFrame(
        {
            "estimate": tuning.center,
            "robust se" if plan.target_name == "sandwich" else "se": np.sqrt(np.diag(tuning.target)),
            f"[{tail:.4g}": lower,
            f"{1.0 - tail:.4g}]": upper,
            "ess predicted": diagnosis.predicted_ess,
            "ess observed": diagnosis.ess,
            "flags": [_flags(calibration, j) for j in range(len(calibration.names))],
        },
        index=pd.Index(calibration.names),
    )
    dynamics = tuning.dynamics
    sampler = (
        "N(estimate, target)" if calibration.chains.thin == 0 else f"SG{'' if dynamics.temperature == 0 else 'L'}D"
    )
    header = (
        ("Response", calibration.response),
        ("Family", calibration.model.family.name),
        ("Rows", f"{plan.moments.n:,}"),
        ("Target", plan.target_name),
        ("Sampler", sampler),
        ("Batch size", f"{dynamics.batch_size:,}"),
        ("Chains x draws", f"{plan.chains} x {plan.draws:,}"),
        ("Passes over data", f"{plan.passes:,.1f}"),
    )
    checks = tuple(f"{'!' if not c.ok else ' '} {c.name}: {c.words}." for c in diagnosis.checks)
    return Summary(frame, header, (*checks, diagnosis.verdict))


def _flags(calibration: Calibration, j: int) -> str:
    """Short words for what stands out in one parameter."""
    d = calibration.diagnosis
    words = []
    if abs(d.shift[j]) > 0.1 and abs(d.shift[j]) > 3.0 * d.shift_error[j]:
        words.append("bias")
    if abs(d.sd_ratio[j] - 1.0) > 0.02 + 3.0 / np.sqrt(2.0 * d.ess[j]):
        words.append("spread")
    if abs(d.skewness[j]) > 0.2 + 3.0 * np.sqrt(6.0 / d.ess[j]):
        words.append("skew")
    if d.rhat[j] >= 1.02:
        words.append("chains")
    return ", ".join(words)
