"""What a run says of its parameters and of new rows, with intervals: each function is a method of `Calibration`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.calibration.ends import critical, ends_words, method_of, quantile_error
from equipoise.calibration.findings import intervals as intervals_of
from equipoise.calibration.prediction import new_rows, observation_quantiles, quantiles
from equipoise.calibration.streaming import is_stored, streamed, written
from equipoise.checks import checked_options, flag, one_of, probability
from equipoise.data.arrays import Rows
from equipoise.models.glm import GLM

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.calibration.calibration import Calibration

__all__ = ["evaluate", "intervals", "predict"]


def intervals(self: Calibration, level: float = 0.95, recentred: bool = False) -> pd.DataFrame:
    """Intervals from the draws.

    Parameters
    ----------
    level
        Probability of the interval.
    recentred
        Shift it back by the predicted bias of the draws' mean (theory eq. 7.1).

    Returns
    -------
    pandas.DataFrame
        Columns estimate (the minimiser), lower, upper, and the Monte Carlo error of either end, lower_error and
        upper_error; one row per parameter.
    """
    import pandas as pd  # slow to import: only those who ask for a table pay for it

    found = intervals_of(self, probability("level", level), flag("recentred", recentred))
    tail, draws = 0.5 * (1.0 - level), self.draws
    errors = {
        name: [quantile_error(draws[:, :, j], at) for j in range(draws.shape[2])]
        for name, at in (("lower_error", tail), ("upper_error", 1.0 - tail))
    }
    columns = {"estimate": self.tuning.center, "lower": found.lower, "upper": found.upper, **errors}
    made = pd.DataFrame(columns, index=pd.Index(self.names))
    made.attrs["intervals"] = ends_words("draws", level, None)
    return made


@overload
def predict(
    self: Calibration, X_new: object, interval: float = ..., offset: ArrayLike | None = ..., kind: str = ..., *,
    method: str = ..., to: None = None, progress: bool = ...,
) -> pd.DataFrame: ...  # fmt: skip
@overload
def predict(
    self: Calibration, X_new: object, interval: float = ..., offset: ArrayLike | None = ..., kind: str = ..., *,
    method: str = ..., to: str | Path, progress: bool = ...,
) -> Path: ...  # fmt: skip
@checked_options
def predict(
    self: Calibration,
    X_new: object,
    interval: float = 0.95,
    offset: ArrayLike | None = None,
    kind: str = "mean",
    *,
    method: str = "auto",
    to: str | Path | None = None,
    progress: bool = True,
) -> pd.DataFrame | Path:
    """Mean response at new rows with a calibrated interval for it, or for a new observation.

    Parameters
    ----------
    X_new
        A table like the one fitted (a DataFrame or anything with `to_pandas()`), its columns matched by name, or an
        (M, D) design matrix; or files as `eq.data.scan` takes them, which are read block by block.
    interval
        Probability of the interval.
    offset
        (M,) offset, when `X_new` is a matrix or the model was fitted with an array of them.
    kind
        What the interval is for: `"mean"`, the mean response, or `"observation"`, a new response. The latter takes
        the family's law around the mean on trust, with its constant, however robust the target is.
    method
        `"closed"`: the mean response at the ends of the linear predictor's interval, estimate ± z·se; `"draws"`:
        quantiles over the draws; or `"auto"`: see `tidy`. A new observation's is closed for squared loss alone, and
        averages its law over the draws otherwise. `attrs["intervals"]` of the table says which.
    to
        A `.parquet` or `.csv` file to write the table to, a block of rows at a time, in place of returning it.
    progress
        Show a progress bar when reading files takes more than two seconds.

    Returns
    -------
    pandas.DataFrame, or the path with `to`
        Columns estimate (at the minimiser), lower, upper.
    """
    import pandas as pd  # slow to import: only those who predict pay for it

    model = self.require_model()
    by, noise = _way(self, method, kind)
    words = ends_words(by, probability("interval", interval), self.plan.target.df)
    if is_stored(X_new):
        one = partial(predict, self, interval=interval, offset=offset, kind=kind, method=method)
        nothing = pd.DataFrame({name: np.empty(0) for name in ("estimate", "lower", "upper")})
        nothing.attrs["intervals"] = words
        blocks = streamed(X_new, self.design, self.names, one, nothing, to, flag("progress", progress))
        return pd.concat(list(blocks)) if to is None else written(blocks, to)
    if to is not None:
        made = predict(self, X_new, interval, offset, kind, method=method)
        return written(iter([made]), to)
    tail = 0.5 * (1.0 - interval)
    new, index = new_rows(X_new, self.names, self.design, offset)
    shift = 0.0 if new.offset is None else new.offset
    eta = new.x @ self.fit.theta + shift
    if by == "closed":
        reach = critical(interval, self.plan.target.df) * np.sqrt(_variances(new, self.plan.target.matrix) + noise)
        lower, upper = np.sort([model.mean_response(eta - reach), model.mean_response(eta + reach)], axis=0)
    elif kind == "mean":
        lower, upper = quantiles(model, new, self.chains.flat(), (tail, 1.0 - tail))
    else:
        glm = self.require_glm("observation")
        lower, upper = observation_quantiles(glm, new, self.chains.flat(), (tail, 1.0 - tail))
    made = pd.DataFrame({"estimate": model.mean_response(eta), "lower": lower, "upper": upper}, index=index)
    made.attrs["intervals"] = words
    return made


def _way(self: Calibration, method: str, kind: str) -> tuple[str, float]:
    """How ends are found, `"closed"` or by the `"draws"`, and the variance that a closed form adds for a new response."""
    by = method_of(self, method, self.plan.target)
    mean = one_of("kind", kind, ("mean", "observation")) == "mean"
    noise = 0.0 if mean else _noise(self.require_glm("observation"), method)
    return (by, noise) if noise is not None else ("draws", 0.0)


def _noise(model: GLM, method: str) -> float | None:
    """The variance a new response of squared loss adds to that of its mean; None where no closed form has both."""
    if model.family.name == "gaussian" and model.constant is not None:
        return model.constant**2
    one_of("method", method, ("auto", "draws"))
    return None


def _variances(new: Rows, cov: Array) -> Array:
    """Variances of the linear predictor."""
    return np.maximum(np.einsum("ij,ij->i", new.x @ cov, new.x), 0.0)


def evaluate(
    self: Calibration, function: Callable[..., object], data: object, interval: float = 0.95
) -> dict[str, Array]:
    """`function(params, observation)` at new rows, for a loss of your own: its predictions, say.

    Parameters
    ----------
    function
        In JAX; returns a scalar or an array.
    data
        Rows of the same kind as the model was fitted to, as far as `function` looks at them.
    interval
        Probability of the interval.

    Returns
    -------
    dict
        estimate (at the minimiser), lower, upper: each with the rows as leading axis.
    """
    from equipoise.models.general.evaluation import evaluate  # JAX is imported only by those who use it

    tail = 0.5 * (1.0 - probability("interval", interval))
    values = evaluate(self.chains.layout, function, data, self.chains.flat())
    lower, upper = np.quantile(values, [tail, 1.0 - tail], axis=0)
    estimate = evaluate(self.chains.layout, function, data, self.tuning.center[None])[0]
    return {"estimate": estimate, "lower": lower, "upper": upper}
