"""One call from data to calibrated draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.calibration.diagnostics import Diagnosis, diagnose
from equipoise.calibration.planning import Plan, plan, table_source
from equipoise.checks import is_number, whole
from equipoise.data.arrays import Rows, rows
from equipoise.data.table import Design
from equipoise.errors import InvalidInput
from equipoise.fitting.fit import Fit
from equipoise.sampling.refinement import Refinement
from equipoise.sampling.refinement import refine as refine_tuning
from equipoise.sampling.run import Chains, sample
from equipoise.theory.tuning import Tuning

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.report.summary import Summary

__all__ = ["Calibration", "calibrate"]


_SAMPLERS = ("sgmcmc", "gaussian")


@dataclass(frozen=True)
class Calibration:
    """Calibrated draws with everything that led to them.

    Attributes
    ----------
    plan
        Model, fit, moments, tuning and budget.
    chains
        The draws and how they were made.
    response
        Name of the response.
    design
        How a table became columns; None for arrays.
    refinement
        What pilot runs found, when asked for.
    """

    plan: Plan
    chains: Chains
    response: str = "y"
    design: Design | None = None
    refinement: Refinement | None = None

    @property
    def draws(self) -> Array:
        """(chains, draws, D)."""
        return self.chains.draws

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names."""
        return self.chains.names

    @property
    def model(self) -> Any:
        """The model in use; None for a loaded run of a loss of your own, which cannot be stored."""
        return self.plan.model

    @property
    def fit(self) -> Fit:
        """The minimiser."""
        return self.plan.fit

    @property
    def tuning(self) -> Tuning:
        """The step matrix and its predicted law."""
        return self.plan.tuning

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Predicted against observed."""
        return diagnose(self.chains, self.plan.tuning)

    def summary(self, interval: float = 0.95) -> Summary:
        """Coefficient table: estimate, standard error, interval from the draws, effective draws, flags."""
        from equipoise.report.summary import summarise

        return summarise(self, _probability(interval))

    def predict(self, X_new: Any, interval: float = 0.9, offset: ArrayLike | None = None) -> pd.DataFrame:
        """Mean response at new rows with a calibrated interval for it.

        Parameters
        ----------
        X_new
            A table like the one fitted (when a formula was used), or an (M, D) design matrix.
        interval
            Probability of the interval.
        offset
            (M,) offset, when `X_new` is a matrix.

        Returns
        -------
        pandas.DataFrame
            Columns estimate (at the minimiser), lower, upper.
        """
        import pandas as pd  # slow to import: only those who predict pay for it

        if not hasattr(self.model, "mean_response"):
            raise InvalidInput(
                "model",
                "one from eq.glm to have a mean response",
                "a loss of your own",
                "use evaluate(function, data) in the session that made the run, or cal.draws",
            )
        tail = 0.5 * (1.0 - _probability(interval))
        index = X_new.index if isinstance(X_new, pd.DataFrame) else None
        if isinstance(X_new, pd.DataFrame) and self.design is not None:
            if offset is not None:
                raise InvalidInput("offset", "left out for a table", "an offset", "put it in the table's offset column")
            X_new, offset = self.design.encode(X_new)
        elif isinstance(X_new, pd.DataFrame) and set(self.names) <= set(X_new.columns):
            X_new = X_new[list(self.names)]
        checked = rows(X_new, np.zeros(np.shape(X_new)[:1]), offset=offset)
        x, shift = checked.x, checked.offset
        if x.shape[1] != len(self.names):
            raise InvalidInput(
                "X_new",
                f"with {len(self.names)} columns",
                f"{x.shape[1]} columns",
                "match the fitted columns",
            )
        mean = self.model.mean_response(x, shift, self.chains.flat())
        estimate = self.model.mean_response(x, shift, np.atleast_2d(self.fit.params))[0]
        lower, upper = np.quantile(mean, [tail, 1.0 - tail], axis=0)
        return pd.DataFrame({"estimate": estimate, "lower": lower, "upper": upper}, index=index)

    def evaluate(self, function: Callable[[Any, Any], Any], data: Any, interval: float = 0.9) -> dict[str, Array]:
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
        if not hasattr(self.model, "evaluate"):
            loaded = self.model is None
            raise InvalidInput(
                "model",
                "a loss of your own, in the session that made the run",
                "a loaded run, which keeps no loss" if loaded else type(self.model).__name__,
                "use cal.draws" if loaded else "for eq.glm use predict(); a loss of your own is not stored",
            )
        tail = 0.5 * (1.0 - _probability(interval))
        values = self.model.evaluate(function, data, self.chains.flat())
        lower, upper = np.quantile(values, [tail, 1.0 - tail], axis=0)
        estimate = self.model.evaluate(function, data, self.tuning.center[None])[0]
        return {"estimate": estimate, "lower": lower, "upper": upper}

    def to_arviz(self) -> Any:
        """The draws as ArviZ data (InferenceData in 0.x, a DataTree in 1.x), one variable per parameter."""
        from equipoise.interop.arviz import to_arviz

        return to_arviz(self)

    def report(self, path: str | Path, interval: float = 0.95) -> Path:
        """Write a self-contained HTML page with the tables and plots; returns its path."""
        from equipoise.report.page import write_report

        return write_report(self, Path(path), _probability(interval))

    def save(self, path: str | Path) -> Path:
        """Write the run to one file (arrays and text, no pickle); `eq.load` reads it back."""
        from equipoise.calibration.storage import save

        return save(self, Path(path))


def calibrate(
    model: Any,
    data: Any,
    target: str | ArrayLike = "sandwich",
    ess: float = 1000,
    chains: int = 4,
    seed: int = 0,
    *,
    sampler: str = "sgmcmc",
    refine: bool = False,
    formula: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    missing: str = "raise",
    guard: float | str | None = "auto",
    progress: bool = True,
    checkpoint: str | Path | None = None,
    threads: int | None = None,
    storage: str = "float64",
    **options: Any,
) -> Calibration:
    """Calibrated draws in one call.

    Parameters
    ----------
    model, data, target, ess, chains, seed, formula, weights, offset, missing
        See `eq.plan`.
    sampler
        `"sgmcmc"` runs the tuned chains; `"gaussian"` draws from N(θ̂, target) at no sampling cost.
    refine
        First run pilots and, where their covariance misses the target beyond Monte Carlo error, correct the step for it
        (theory §11): for losses that are far from quadratic at the scale of the target.
    guard, progress, checkpoint, threads, storage
        See `eq.sample`.
    **options
        Every other option of `eq.plan`.

    Returns
    -------
    Calibration

    Examples
    --------
    >>> import equipoise as eq
    >>> rng = np.random.default_rng(0)
    >>> x = np.column_stack([np.ones(300), rng.normal(size=300)])
    >>> y = rng.poisson(np.exp(x @ [0.5, 0.3]))
    >>> cal = eq.calibrate(eq.glm("poisson"), (x, y), ess=400, chains=2)
    >>> cal.draws.shape[2]
    2
    """
    if sampler not in _SAMPLERS:
        raise InvalidInput("sampler", f"one of {', '.join(_SAMPLERS)}", repr(sampler), "use 'sgmcmc'")
    source = table_source(data, formula, weights, offset, missing)
    budget = plan(model, source, target, ess, chains, seed, **options)
    found = None
    if sampler == "gaussian":
        given = options.get("draws")
        length = max(2, int(np.ceil(ess / budget.chains))) if given is None else budget.draws
        budget, drawn = _gaussian(budget, source, whole("seed", seed, 0, "pass an int"), length)
    else:
        if refine:
            tuning, found = refine_tuning(
                budget.model, source, budget.moments, budget.tuning, seed=whole("seed", seed, 0, "pass an int"),
                rows=budget.rows, guard=guard, progress=progress,
            )  # fmt: skip
            budget = replace(budget, tuning=tuning)
        drawn = sample(
            budget.model, source, budget.tuning, draws=budget.draws, chains=chains, seed=seed, thin=budget.thin,
            burn_in=budget.burn_in, progress=progress, checkpoint=checkpoint, guard=guard, threads=threads,
            storage=storage,
        )  # fmt: skip
    response, design = (source.response, source.design) if isinstance(source, Rows) else ("y", None)
    return Calibration(budget, drawn, response, design, found)


def _gaussian(budget: Plan, source: Any, seed: int, length: int) -> tuple[Plan, Chains]:
    """Independent draws from N(θ̂, target)."""
    center, root = budget.tuning.center, np.linalg.cholesky(budget.tuning.target)
    z = np.random.default_rng(seed).standard_normal((budget.chains, length, len(center)))
    statistics = {"steps": 0.0, "rows": 0.0, "seconds": 0.0, "guard_hits": 0.0, "guard_rate": 0.0}
    problem = budget.model.bind(source)
    changed = replace(budget, draws=length, thin=0, burn_in=0, ess=float(budget.chains * length), seconds=0.0)
    draws = center + z @ root.T
    return changed, Chains(draws, problem.names, 0, 0, seed, (), statistics, problem.unflatten, problem.variables)


def _probability(interval: float) -> float:
    if not (is_number(interval) and 0.0 < interval < 1.0):
        raise InvalidInput("interval", "between 0 and 1", interval, "0.95 is a common choice")
    return interval
