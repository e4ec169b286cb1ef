"""One call from data to calibrated draws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration import answers, contrasts, exports, familiar, fitstats, forecast, rowfacts
from equipoise.calibration.aims import Target, require_marks_used
from equipoise.calibration.diagnostics import Diagnosis, diagnose
from equipoise.calibration.fitstats import FitStatistics
from equipoise.calibration.haste import faster
from equipoise.calibration.options import (
    Aim,
    CalibrateOptions,
    Length,
    Moves,
    Reading,
    Running,
    Tuned,
    options_of,
    takes,
)
from equipoise.calibration.planning import Plan, make_plan, require_feasible
from equipoise.calibration.reads import expected_passes
from equipoise.calibration.rowfacts import RowFacts
from equipoise.cards import Card
from equipoise.checks import flag, probability, shown
from equipoise.data.metering import reading
from equipoise.data.table import Design
from equipoise.errors import InvalidInput
from equipoise.families.divergence import Beta
from equipoise.files import file_place
from equipoise.fitting.certificate import Fit
from equipoise.models.binding import bind, checked
from equipoise.models.glm import GLM
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import CUSTOM, Model, Problem, Title
from equipoise.models.verbs import moments
from equipoise.progress import quiet
from equipoise.sampling.budget import announce, require_possible
from equipoise.sampling.chains import Chains
from equipoise.sampling.halving import HalfStep, halved
from equipoise.sampling.refinement import Refinement
from equipoise.sampling.refinement import refine as refine_tuning
from equipoise.sampling.run import sample
from equipoise.theory.moments import Moments
from equipoise.theory.tuning import Tuning

if TYPE_CHECKING:
    from equipoise.report.summary import Summary

__all__ = ["Calibration", "calibrate"]


@dataclass(frozen=True, repr=False)
class Calibration(Card):
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
    half_step
        What a run at half the step showed, where the draws are to have a posterior's shape.
    kept
        What a saved run keeps of its rows.
    """

    plan: Plan
    chains: Chains
    response: str = "y"
    design: Design | None = None
    refinement: Refinement | None = None
    half_step: HalfStep | None = None
    kept: RowFacts | None = None

    def _facts(self) -> dict[str, object]:
        count, length, dim = self.draws.shape
        return {
            "response": self.response, "model": self.title.name, "rows": self.plan.moments.n, "parameters": dim,
            "target": self.plan.target.words, "sampler": self.plan.sampler, "draws": f"{count} x {length:,}",
        }  # fmt: skip

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def draws(self) -> Array:
        """(chains, draws, D)."""
        return self.chains.draws

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names."""
        return self.chains.names

    @property
    def model(self) -> Model | None:
        """The model in use; None for a loaded run of a loss of your own, which cannot be stored."""
        return self.plan.model

    @property
    def title(self) -> Title:
        """What the model is called."""
        return Title("Loss", CUSTOM, None) if self.model is None else self.model.title

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
        return diagnose(self.chains, self.plan.tuning, half_step=self.half_step)

    def summary(
        self, interval: float = 0.95, *, method: str = "auto", exponentiate: bool = False, stars: bool = False
    ) -> Summary:
        """Coefficient table: estimate, standard error, z or t, p-value, interval, effective draws, flags.

        Parameters
        ----------
        interval
            Probability of the intervals.
        method, exponentiate
            See `tidy`.
        stars
            Mark small p-values.
        """
        from equipoise.report.summary import summarise

        flag("exponentiate", exponentiate), flag("stars", stars)
        return summarise(self, probability("interval", interval), method, exponentiate, stars)

    def to_arviz(self, log_likelihood: bool = False) -> Any:
        """The draws as ArviZ data (InferenceData in 0.x, a DataTree in 1.x), one variable per parameter.

        Their group is called `posterior` if that is the target, and else `draws`; `log_likelihood` adds that of every row,
        for leave-one-out criteria.
        """
        from equipoise.interop.arviz import calibration_to_arviz

        return calibration_to_arviz(self, flag("log_likelihood", log_likelihood))

    def attach(self, model: Model | Problem, data: object = None, **reading: object) -> Calibration:
        """The same run with a reference to its problem, after it was loaded or sent.

        Parameters
        ----------
        model, data
            What the run was made with: see `eq.bind`.
        """
        return replace(self, plan=self.plan.attach(bind(model, data, **reading)))  # type: ignore[arg-type]

    intervals, predict, evaluate = forecast.intervals, forecast.predict, forecast.evaluate
    tidy, confint, vcov, test = answers.tidy, answers.confint, answers.vcov, answers.wald
    to_json, to_csv = exports.to_json, exports.to_csv
    combine, compare, effects = answers.combine, contrasts.compare, contrasts.effects
    params, bse, pvalues = property(familiar.params), property(familiar.bse), property(familiar.pvalues)
    resid, fittedvalues = property(familiar.resid), property(familiar.fittedvalues)
    cov_params, conf_int = familiar.cov_params, familiar.conf_int

    @cached_property
    def fit_statistics(self) -> FitStatistics:
        """Log-likelihood, deviance, AIC, BIC, R² and dispersion of the fit; the rows are read for it once."""
        if self.kept is not None and self.kept.statistics is not None:
            return self.kept.statistics
        return fitstats.statistics_of(self)

    @cached_property
    def row_facts(self) -> RowFacts | None:
        """What the rows show beside the parameters: mean response, other standard errors, predictions beside responses.

        None for a run without rows, or for a loss of your own.
        """
        return rowfacts.row_facts(self)

    llf, aic, bic = property(fitstats.llf), property(fitstats.aic), property(fitstats.bic)

    @cached_property
    def moments_of_all(self) -> Moments:
        """The moments of all rows at the estimate; those of the plan may be of some."""
        return moments(self.require_problem(), self.fit)

    def require_problem(self) -> Problem:
        """The problem, or an error that says how to bring it back."""
        if self.plan.problem is None:
            raise InvalidInput(
                "rows", "at hand for this", "a loaded or sent run, which keeps none", "call attach(model, data) first"
            )
        return self.plan.problem

    def require_linear(self) -> LinearProblem:
        """The same for what only a model from `eq.glm` has."""
        self.require_glm()
        problem = self.require_problem()
        assert isinstance(problem, LinearProblem)
        return problem

    def require_glm(self, kind: str = "mean") -> GLM:
        """The model, where it is one that has a mean response (and, for `"observation"`, a law around it)."""
        model = self.require_model()
        if not isinstance(model, GLM):
            raise InvalidInput(
                "model", "one from eq.glm, which has a mean response", "a loss of your own",
                "use evaluate(function, data), or cal.draws",
            )  # fmt: skip
        if kind == "observation" and not isinstance(model.divergence, (Beta, type(None))):
            raise InvalidInput(
                "kind", "'mean' for a loss that is no law of the response", repr(model.divergence), "leave it out"
            )
        return model

    def require_model(self) -> Model:
        """The model, or an error that says how to bring it back."""
        if self.model is None:
            raise InvalidInput(
                "model",
                "at hand for this",
                "a loaded or sent run of a loss of your own, which cannot be kept",
                "call attach(eq.bind(model, data)), or use cal.draws",
            )
        return self.model

    def report(self, path: str | Path, interval: float = 0.95) -> Path:
        """Write a self-contained HTML page with the tables and plots; returns its path."""
        from equipoise.report.page import write_report

        file_place(path)
        return write_report(self, Path(path), probability("interval", interval))

    def save(self, path: str | Path) -> Path:
        """Write the run to one file (arrays and text, no pickle); `eq.load` reads it back."""
        from equipoise.calibration.storage import save

        file_place(path)
        return save(self, Path(path))


@takes(Reading, Aim, Moves, Length, Tuned, Running)
@checked
def calibrate(
    model: Model | Problem,
    data: object = None,
    target: Target = "sandwich",
    ess: float = 1000,
    chains: int = 4,
    seed: int = 0,
    *,
    refine: bool = False,
    **options: Unpack[CalibrateOptions],
) -> Calibration:
    """Calibrated draws in one call.

    Parameters
    ----------
    model, data, target, ess, chains, seed
        See `eq.plan`; a problem from `eq.bind` takes the place of model and data.
    refine
        First run pilots and, where their covariance misses the target beyond Monte Carlo error, correct the step for it
        (theory §11): for losses that are far from quadratic at the scale of the target.
    guard, progress, checkpoint, threads, storage
        See `eq.sample`.
    **options
        Every other option of `eq.plan`: `sampler` and `fidelity` among them.

    Returns
    -------
    Calibration

    Raises
    ------
    InvalidInput
        Also, before the first step, for a run whose draws do not fit into memory or that would take more than six weeks.
        One of more than ten minutes is announced by an `EquipoiseWarning` with the predicted time.

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
    flag("refine", refine)
    running = options_of(Running, options, CalibrateOptions)
    moves = options_of(Moves, options, CalibrateOptions)
    if moves.sampler == "gaussian":
        _require_chain(refine, running)
    if refine:
        moves = _aiming(moves)
    read = options_of(Reading, options, CalibrateOptions)
    require_marks_used(target, read)
    with quiet(not running.progress):
        problem = bind(model, data, **vars(read))
    length = options_of(Length, options, CalibrateOptions, ess=ess, chains=chains)
    aim = options_of(Aim, options, CalibrateOptions)
    passes = expected_passes(problem, target, moves)
    shown = reading(problem.source, passes, "fitting and tuning", running.progress, running.checkpoint)
    with quiet(not running.progress), shown:
        budget = make_plan(problem, target, aim, moves, length, seed, options.get("tuning_rows"))
    found, half = None, None
    if moves.sampler == "gaussian":
        budget, drawn = _gaussian(budget, length, seed)
    else:
        budget, drawn, found, half = _sampled(budget, refine, running, seed)
    return Calibration(budget, drawn, problem.source.response, problem.source.design, found, half)


def _sampled(
    budget: Plan, refine: bool, running: Running, seed: int
) -> tuple[Plan, Chains, Refinement | None, HalfStep | None]:
    """Chains of a plan, after pilots where they were asked for; and some at half the step where their shape matters."""
    require_feasible(budget)
    quicker = "; ".join(faster(budget.target, budget.seconds, budget.ess).values())
    announce(budget.seconds, running.checkpoint is not None, quicker)
    found, half, problem = None, None, budget.problem
    assert problem is not None  # it was just planned
    if refine:
        tuning, found = refine_tuning(
            problem, budget.moments, budget.tuning, seed=seed, rows=budget.rows, guard=running.guard,
            progress=running.progress,
        )  # fmt: skip
        budget = replace(budget, tuning=tuning)
    drawn = sample(
        problem, budget.tuning, draws=budget.draws, chains=budget.chains, seed=seed, thin=budget.thin,
        burn_in=budget.burn_in, **vars(running),
    )  # fmt: skip
    if budget.tuning.fidelity:
        half = halved(
            problem, budget.tuning, ess=budget.ess, seed=seed, guard=running.guard,
            progress=running.progress,
        )  # fmt: skip
    return budget, drawn, found, half


def _aiming(moves: Moves) -> Moves:
    """Refinement aims at the target's covariance, which a full step reaches, and not at a posterior's shape beyond it."""
    if moves.structure != "full":
        raise InvalidInput(
            "refine", "left out for a scalar or diagonal step, which cannot reach the target", True,
            "use structure='full'",
        )  # fmt: skip
    if moves.fidelity == "auto":
        return replace(moves, fidelity=0.0)
    if moves.fidelity:
        raise InvalidInput(
            "refine", "left out with a fidelity, whose draws are not held to the target", True, "remove one of the two"
        )
    return moves


def _require_chain(refine: bool, running: Running) -> None:
    """Refuse options of a chain where none is run."""
    options = {"refine": refine} | {name: getattr(running, name) for name in ("storage", "checkpoint", "guard")}
    for name, given in options.items():
        if given != getattr(Running, name, False):
            raise InvalidInput(
                name, "left out when no chain is run (sampler='gaussian')", shown(given), f"remove {name}="
            )


def _gaussian(budget: Plan, length: Length, seed: int) -> tuple[Plan, Chains]:
    """Independent draws from N(θ̂, target)."""
    stored = length.draws or max(2, int(np.ceil(length.ess / length.chains)))
    center, root = budget.tuning.center, np.linalg.cholesky(budget.tuning.target)
    require_possible(budget.chains, stored, len(center), 0.0)
    z = np.random.default_rng(seed).standard_normal((budget.chains, stored, len(center)))
    ess = float(budget.chains * stored)
    changed = replace(budget, draws=stored, thin=1, burn_in=0, ess=ess, seconds=0.0, sampler="gaussian")
    assert budget.problem is not None
    names, layout = budget.problem.names, budget.problem.layout
    return changed, Chains(center + z @ root.T, names, 1, 0, seed, layout, independent=True)
