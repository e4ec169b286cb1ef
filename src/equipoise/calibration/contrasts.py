"""What a model says of its response: contrasts of predictions between two tables, and average marginal effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration.answers import CovarianceOptions, covariance_of, table_of
from equipoise.calibration.ends import critical
from equipoise.calibration.prediction import as_table, new_rows
from equipoise.checks import checked_options, flag, nearest, one_of, probability, shown
from equipoise.data.arrays import Rows
from equipoise.data.columns import Level
from equipoise.data.source import Source
from equipoise.errors import InvalidInput
from equipoise.models.sums import predictor

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.calibration.calibration import Calibration
    from equipoise.models.glm import GLM

__all__ = ["compare", "effects"]

_BLOCK = 1 << 20  # predictions of one block of rows, for all draws
_STEP = 1e-5  # of a column's standard deviation (or of a predictor) to either side, for derivatives


@checked_options
def compare(
    self: Calibration,
    frame_a: object,
    frame_b: object,
    function: str = "difference",
    *,
    level: float = 0.95,
    average: bool = False,
    offset: tuple[object, object] = (None, None),
    kind: str | None = None,
    **options: Unpack[CovarianceOptions],
) -> pd.DataFrame:
    """Contrasts of the mean response between two tables, row by row or on average.

    Parameters
    ----------
    frame_a, frame_b
        Tables like the one fitted, or design matrices: see `predict`. The first row of one is held against the first
        row of the other.
    function
        `"difference"`, a − b, or `"ratio"`, a / b.
    level
        Probability of the intervals.
    average
        Contrast the means of all predictions of each table; they may then differ in length.
    offset
        A pair of offsets, where `predict` would need one.
    kind, **options
        Another covariance than the target for the delta method: see `vcov`.

    Returns
    -------
    pandas.DataFrame
        estimate; lower, upper from the draws; std_error, conf_low, conf_high by the delta method.
    """
    import pandas as pd

    one_of("function", function, ("difference", "ratio"))
    flag("average", average)
    tail, model = 0.5 * (1.0 - probability("level", level)), self.require_glm()
    if not isinstance(offset, (tuple, list)) or len(offset) != 2:
        raise InvalidInput("offset", "a pair, one for each table", shown(offset), "pass (offset_a, offset_b)")
    (a, index), (b, _) = (
        new_rows(x, self.names, self.design, o) for x, o in zip((frame_a, frame_b), offset, strict=True)
    )
    if a.n != b.n and not average:
        raise InvalidInput(
            "frame_b", f"as many rows as frame_a, {a.n}", f"{b.n} rows", "match them, or pass average=True"
        )
    cov = covariance_of(self, kind, **options)
    parts = [
        _contrast(model, *pair, function, average, self.fit.theta, self.chains.flat(), tail)
        for pair in _pairs(a, b, len(self.chains.flat()), average)
    ]
    estimate, gradient, lower, upper = (np.concatenate(part) for part in zip(*parts, strict=True))
    error = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", gradient, cov.matrix, gradient), 0.0))
    reach = critical(level, cov.df) * error
    return pd.DataFrame(
        {
            "estimate": estimate, "lower": lower, "upper": upper, "std_error": error, "conf_low": estimate - reach,
            "conf_high": estimate + reach,
        },
        index=None if average else index,
    )  # fmt: skip


def _pairs(a: Rows, b: Rows, draws: int, average: bool) -> Iterator[tuple[list[Rows], list[Rows]]]:
    """Blocks of both tables that are contrasted together: each alone, or all at once for an average."""
    size = max(1, _BLOCK // draws)
    cut = [[rows.take(slice(k, k + size)) for k in range(0, rows.n, size)] for rows in (a, b)]
    if average:
        yield cut[0], cut[1]
    else:
        yield from (([one], [two]) for one, two in zip(*cut, strict=True))


class _Means(NamedTuple):
    """Mean responses: (rows,) at the estimate, their gradients (rows, D), and (rows, draws)."""

    value: Array
    gradient: Array
    drawn: Array


def _contrast(
    model: GLM, a: list[Rows], b: list[Rows], function: str, average: bool, theta: Array, draws: Array, tail: float
) -> tuple[Array, Array, Array, Array]:
    """Estimate, gradient and ends of the draws' interval."""
    one, two = (_means(model, rows, theta, draws, average) for rows in (a, b))
    if function == "difference":
        value, gradient, drawn = one.value - two.value, one.gradient - two.gradient, one.drawn - two.drawn
    else:
        value, drawn = one.value / two.value, one.drawn / two.drawn
        gradient = (one.gradient - value[:, None] * two.gradient) / two.value[:, None]
    lower, upper = np.quantile(drawn, [tail, 1.0 - tail], axis=1)
    return value, gradient, lower, upper


def _means(model: GLM, blocks: list[Rows], theta: Array, draws: Array, average: bool) -> _Means:
    parts = []
    for rows in blocks:
        shift = 0.0 if rows.offset is None else rows.offset[:, None]
        part = _Means(*_row_means(model, rows, theta), model.family.mean(rows.x @ draws.T + shift))
        parts.append(_Means(*(np.sum(x, axis=0, keepdims=True) for x in part)) if average else part)
    if not average:
        return parts[0]
    n = sum(rows.n for rows in blocks)
    return _Means(*(np.sum([part[k] for part in parts], axis=0) / n for k in range(3)))


# --- Average marginal effects ----------------------------------------------------------------------------


@checked_options
def effects(
    self: Calibration,
    data: object = None,
    variables: Sequence[str] | None = None,
    level: float = 0.95,
    kind: str | None = None,
    **options: Unpack[CovarianceOptions],
) -> pd.DataFrame:
    """Average marginal effects: how much the mean response changes with a variable, averaged over rows.

    Parameters
    ----------
    data
        The table to average over: needed for a model with a formula, whose variables may enter in several terms. For
        arrays, a design matrix, or None for the rows of the fit.
    variables
        Which; all by default.
    level, kind, **options
        As for `tidy`.

    Returns
    -------
    pandas.DataFrame
        Like that of `tidy`, with a column `contrast`: `dy/dx` for numbers, and for levels the level and that it is
        held against, the first. Errors are by the delta method.
    """
    model = self.require_glm()
    found = _by_column if self.design is None else _by_formula
    made = list(found(self, model, data, variables))
    if not made:
        raise InvalidInput(
            "variables", "columns of which at least one varies", "none", "leave it out, or give more rows"
        )
    terms, words, values, gradients = zip(*made, strict=True)
    table = table_of(terms, np.array(values), np.array(gradients), covariance_of(self, kind, **options), level)
    table.insert(1, "contrast", list(words))
    return table


class _Effect(NamedTuple):
    term: str
    contrast: str
    value: float
    gradient: Array


def _chosen(variables: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    given: Any = known if variables is None else variables
    wanted: list[str] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for name in wanted:
        if name not in known:
            raise InvalidInput(
                "variables", "columns of the model", shown(name), nearest(name, known) or f"choose from {list(known)}"
            )
    return wanted


class _SlopeSums(NamedTuple):
    """Σ μ', Σ μ'' x, the number of observations, and Σ x, Σ x² to tell a constant."""

    slope: float
    bend: Array
    rows: float
    first: Array
    second: Array


def _slope_sums(model: GLM, theta: Array, rows: Rows) -> _SlopeSums:
    """Slopes of the mean response at θ, over one block."""
    eta, slope, times = predictor(rows, theta), model.family.slope, rows.counts
    bend = (slope(eta + _STEP) - slope(eta - _STEP)) / (2.0 * _STEP)
    return _SlopeSums(
        float(slope(eta) @ times), (bend * times) @ rows.x, float(times.sum()), times @ rows.x, times @ rows.x**2
    )


def _by_column(cal: Calibration, model: GLM, data: object, variables: Sequence[str] | None) -> Iterator[_Effect]:
    """Every column of the design matrix but constants: θ_j times the mean slope."""
    if data is not None:
        source: Source[Rows] = new_rows(data, cal.names, None, None)[0]
    else:
        source = cal.require_linear().source
    theta = cal.fit.theta
    sums = source.reduce(partial(_slope_sums, model, theta))
    slope, bend = sums.slope / sums.rows, sums.bend / sums.rows
    spread = sums.second / sums.rows - (sums.first / sums.rows) ** 2
    varying = [name for name, v, s in zip(cal.names, spread, sums.second, strict=True) if v > 1e-12 * s / sums.rows]
    for name in _chosen(variables, varying):
        j = cal.names.index(name)
        yield _Effect(name, "dy/dx", slope * theta[j], theta[j] * bend + slope * np.eye(len(theta))[j])


def _by_formula(cal: Calibration, model: GLM, data: object, variables: Sequence[str] | None) -> Iterator[_Effect]:
    """Every variable of the formula, wherever it enters: numbers a little up and down, levels one after the other."""
    if data is None:
        raise InvalidInput(
            "data", "given for a model with a formula", "None", "pass the table it was fitted to, or another"
        )
    frame, design = as_table(data), cal.design
    assert design is not None
    if frame is None or not len(frame):
        raise InvalidInput("data", "a table with rows", shown(type(data).__name__), "pass a DataFrame")

    def at(**columns: pd.Series | Array) -> Rows:
        return new_rows(frame.assign(**columns), cal.names, design, None)[0]

    at()  # names what is wrong with the table as it is
    for name in _chosen(variables, list(design.columns)):
        column = design.columns[name]
        if column.levels is not None and column.kind != "number":
            first, *others = column.levels
            base = _mean_with_gradient(model, at(**{name: _filled(frame, name, first)}), cal.fit.theta)
            for level in others:
                other = _mean_with_gradient(model, at(**{name: _filled(frame, name, level)}), cal.fit.theta)
                yield _Effect(name, f"{level} - {first}", other[0] - base[0], other[1] - base[1])
        elif column.kind == "number":
            yield _slope_of(model, at, name, frame[name].to_numpy(dtype=np.float64), cal.fit.theta)


def _filled(frame: pd.DataFrame, name: str, level: Level) -> pd.Series:
    """A column of one level, of the kind the table has it in."""
    import pandas as pd

    values = pd.Series([level] * len(frame), index=frame.index)
    return values.astype(frame[name].dtype)


def _slope_of(model: GLM, at: Callable[..., Rows], name: str, values: Array, theta: Array) -> _Effect:
    """Central differences; where a term has no value beyond the table's range, ends that stay inside it."""
    step = _STEP * (float(values.std()) or 1.0)
    low, high = values - step, values + step
    try:
        below, above = at(**{name: low}), at(**{name: high})
    except InvalidInput:
        low, high = np.maximum(low, values.min()), np.minimum(high, values.max())
        below, above = at(**{name: low}), at(**{name: high})
    width = high - low
    parts = [_row_means(model, rows, theta) for rows in (below, above)]
    value = float(np.mean((parts[1][0] - parts[0][0]) / width))
    return _Effect(name, "dy/dx", value, np.mean((parts[1][1] - parts[0][1]) / width[:, None], axis=0))


def _row_means(model: GLM, rows: Rows, theta: Array) -> tuple[Array, Array]:
    eta = predictor(rows, theta)
    return model.family.mean(eta), model.family.slope(eta)[:, None] * rows.x


def _mean_with_gradient(model: GLM, rows: Rows, theta: Array) -> tuple[float, Array]:
    value, gradient = _row_means(model, rows, theta)
    return float(value.mean()), gradient.mean(axis=0)
