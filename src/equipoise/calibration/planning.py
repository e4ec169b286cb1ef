"""The plan of a run: fit, tuning and budget, all known before the first step."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from equipoise.checks import is_number, whole
from equipoise.data.table import table
from equipoise.errors import EquipoiseWarning, InvalidInput
from equipoise.fitting.fit import Fit, fit
from equipoise.sampling.run import resolve_burn_in, resolve_thin
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.moments import Moments, moments
from equipoise.theory.targets import target_matrix
from equipoise.theory.tuning import Tuning, tune

__all__ = ["Plan", "plan", "resolve_batch_size", "table_source"]


@dataclass(frozen=True)
class Plan:
    """A run before its first step: fit, tuning, and budget.

    Attributes
    ----------
    model
        The model in use: with its estimated constant, and restricted to the directions the data identify.
    fit, moments, tuning
        The minimiser, the moments there, and the step matrix.
    target_name
        What the target is called.
    chains, draws, thin, burn_in
        The sampling options, per chain.
    ess
        Predicted effective draws of all chains together.
    seconds
        Predicted time of the sampling on this machine's cores: an estimate, good to a factor of two or so.
    """

    model: Any
    fit: Fit
    moments: Moments
    tuning: Tuning
    target_name: str
    chains: int
    draws: int
    thin: int
    burn_in: int
    ess: float
    seconds: float

    @property
    def steps(self) -> int:
        """Steps per chain."""
        return self.burn_in + self.draws * self.thin

    @property
    def rows(self) -> int:
        """Rows touched by all chains."""
        return self.chains * self.steps * self.tuning.dynamics.batch_size

    @property
    def passes(self) -> float:
        """Passes over the data, by all chains."""
        return self.rows / self.moments.n

    def __str__(self) -> str:
        dynamics = self.tuning.dynamics
        lines = [
            f"data              {self.moments.n:,} rows, {self.moments.dim} parameters",
            f"target            {self.target_name}",
            f"batch size        {dynamics.batch_size:,} ({'with' if dynamics.replacement else 'without'} replacement)",
            f"dynamics          momentum {dynamics.momentum:g}, inverse temperature {dynamics.inverse_temperature:g}",
            f"autocorrelation   {self.tuning.predicted.iact():.1f} steps, worst direction",
            f"chains            {self.chains} of {self.steps:,} steps (burn-in {self.burn_in:,}, one draw every {self.thin})"
            if self.thin
            else f"draws             {self.chains} x {self.draws:,}, independent, from N(estimate, target)",
            f"cost              {self.rows:,} rows, {self.passes:,.1f} passes over the data",
            f"effective draws   {self.ess:,.0f} predicted",
            f"time              about {self.seconds:.2g} s of sampling",
        ]
        return "\n".join(lines)


def plan(
    model: Any,
    data: Any,
    target: str | ArrayLike = "sandwich",
    ess: float = 1000,
    chains: int = 4,
    seed: int = 0,
    *,
    formula: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    missing: str = "raise",
    batch_size: int | str = "auto",
    momentum: float = 0.0,
    inverse_temperature: float = np.inf,
    replacement: bool = True,
    proxy: str = "dq-exact",
    structure: str = "full",
    tuning_rows: int | None = None,
    draws: int | None = None,
    thin: int | str = "auto",
    burn_in: int | str = "auto",
) -> Plan:
    """Fit, tune and budget a run without sampling.

    Parameters
    ----------
    model
        From `eq.glm`.
    data
        `(X, y)`, a source from `eq.data`, or a DataFrame or file path together with `formula`.
    target
        `"sandwich"`, `"posterior"`, `"bayesbag"`, or a matrix.
    ess, chains
        Effective draws wanted from all chains together.
    seed
        Chooses the tuning rows.
    formula, weights, offset, missing
        How to read a table: see `eq.data.table`.
    batch_size
        Rows per step; `"auto"` takes a twentieth of the data, between 8 and 1000 rows. The cost of an effective draw
        does not depend on it (theory §6).
    momentum, inverse_temperature, replacement, proxy, structure
        See `eq.Dynamics` and `eq.tune`.
    tuning_rows
        Fit and tune on this many random rows.
    draws, thin, burn_in
        Override what `ess` and the predicted law would give.

    Returns
    -------
    Plan
    """
    source = table_source(data, formula, weights, offset, missing)
    chains = whole("chains", chains, 1, "pass a positive int")
    if not (is_number(ess) and 1 <= ess < np.inf):
        raise InvalidInput("ess", "a finite number, at least 1", repr(ess), "ask for a positive number")
    fitted = fit(model, source, tuning_rows=tuning_rows, seed=seed)
    # a scale estimated on the tuning rows is the scale of everything that follows
    model = model.at_constant(fitted.constant)
    if fitted.flat is not None:
        model, fitted = _identified(model, source, fitted, tuning_rows, seed)
    found = moments(model, source, fitted.params, tuning_rows=tuning_rows, seed=seed)
    size = resolve_batch_size(batch_size, found.n)
    dynamics = Dynamics(size, momentum, inverse_temperature, replacement)
    tuning = tune(found, target_matrix(target, found), dynamics, proxy, structure)
    every, discard = resolve_thin(thin, tuning), resolve_burn_in(burn_in, tuning)
    iact = max(1.0, tuning.predicted.iact())
    stored = (
        max(2, int(np.ceil(ess * iact / chains / every)))
        if draws is None
        else whole("draws", draws, 1, "leave it out", "None or ")
    )
    return Plan(
        model=model,
        fit=fitted,
        moments=found,
        tuning=tuning,
        target_name=target if isinstance(target, str) else "given matrix",
        chains=chains,
        draws=stored,
        thin=every,
        burn_in=discard,
        ess=chains * stored * every / iact,
        seconds=_predicted_seconds(chains, discard + stored * every, size, found.dim),
    )


def resolve_batch_size(batch_size: int | str, n: int) -> int:
    """Rows per step: as given, or for `"auto"` a twentieth of the data, between 8 and 1000 rows."""
    if batch_size == "auto":
        return min(n, max(8, min(n // 20, 1000)))
    if isinstance(batch_size, str):
        raise InvalidInput("batch_size", "'auto' or a whole number", repr(batch_size), "use 'auto'")
    return batch_size


def table_source(data: Any, formula: str | None, weights: str | None, offset: str | None, missing: str) -> Any:
    """The data as rows when a formula says how; as they are otherwise."""
    if formula is not None:
        return table(data, formula, weights=weights, offset=offset, missing=missing)
    if isinstance(data, (str, Path)) or hasattr(data, "columns"):
        raise InvalidInput("formula", "given for a table", None, "pass formula='y ~ x', or (X, y) arrays")
    if weights is not None or offset is not None:
        raise InvalidInput(
            "weights, offset",
            "column names that go with a formula",
            "no formula",
            "use eq.data.rows(X, y, weights=...)",
        )
    return data


def _predicted_seconds(chains: int, steps: int, batch: int, dim: int) -> float:
    """Per step about 0.4 µs, and per row 10 ns plus 0.4 ns per column, on one core of a current machine."""
    rounds = -(-chains // min(chains, os.cpu_count() or 1))
    return rounds * steps * (4e-7 + batch * (1e-8 + 4e-10 * dim))


def _identified(model: Any, source: Any, fitted: Fit, tuning_rows: int | None, seed: int) -> tuple[Any, Fit]:
    """Leave out the directions along which the loss is flat, and say so."""
    assert fitted.flat is not None
    restricted = model.identified(source, fitted.params, tuning_rows, seed)
    warnings.warn(
        f"the loss is flat along {len(fitted.flat)} of {len(fitted.flat) + restricted.structure.dim} directions at its "
        "minimiser (symmetries or redundant parameters): the run is restricted to the others, and draws are coordinates "
        "along them; chains.tree() has the parameters. Use prior_precision=... to identify all of them instead.",
        EquipoiseWarning,
        stacklevel=3,
    )
    return restricted, replace(fitted, flat=None)
