"""A run for other programs: its tables as JSON and CSV. Each function is a method of `Calibration`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from equipoise.calibration.answers import TableOptions
from equipoise.checks import checked_options
from equipoise.errors import InvalidInput
from equipoise.files import write_atomic

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["to_csv", "to_json"]


@checked_options
def to_json(
    self: Calibration, path: str | Path | None = None, level: float = 0.95, **options: Unpack[TableOptions]
) -> str:
    """What the summary tells, as JSON: coefficients, fit statistics, diagnosis; numbers that are none become null.

    Parameters
    ----------
    path
        Where to write it as well; folders are made.
    level, **options
        As for `tidy`.

    Returns
    -------
    str
        The JSON text.
    """
    table = self.tidy(level, **options)
    diagnosis, target = self.diagnosis, self.plan.target
    about = {
        "response": self.response,
        "model": self.title.name,
        "constant": self.title.constant,
        "formula": None if self.design is None else self.design.formula,
        "rows": self.plan.moments.n,
        "target": target.words,
        "level": level,
        "intervals": table.attrs["intervals"],
        "exponentiated": bool(options.get("exponentiate", False)),
        "coefficients": table.to_dict("records"),
        "fit_statistics": _statistics(self),
        "draws": {
            "sampler": self.plan.sampler, "chains": self.plan.chains, "per_chain": self.plan.draws,
            "seed": self.chains.seed,
        },
        "diagnosis": {
            "status": diagnosis.status,
            "verdict": diagnosis.verdict,
            "checks": [asdict(check) for check in diagnosis.checks],
        },
    }  # fmt: skip
    text = json.dumps(_plain(about), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    _written(path, text)
    return text


@checked_options
def to_csv(
    self: Calibration, path: str | Path | None = None, level: float = 0.95, **options: Unpack[TableOptions]
) -> str:
    """The coefficient table as CSV, in full precision.

    Parameters
    ----------
    path, level, **options
        As for `to_json`.
    """
    text: str = self.tidy(level, **options).to_csv(index=False, lineterminator="\n")
    _written(path, text)
    return text


def _written(path: str | Path | None, text: str) -> None:
    if path is not None:
        write_atomic(path, text.encode())


def _statistics(cal: Calibration) -> dict[str, object] | None:
    try:
        return asdict(cal.fit_statistics)
    except InvalidInput:  # no rows, or a loss that is no likelihood
        return None


def _plain(value: object) -> object:
    """A value in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
