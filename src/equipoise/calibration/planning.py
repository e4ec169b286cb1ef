"""The plan of a run: fit, tuning and budget, all known before the first step."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Unpack

import numpy as np

from equipoise.calibration.aims import Target, aimed, require_aim, require_marks_used
from equipoise.calibration.candidates import Candidate, cheapest, consider
from equipoise.calibration.haste import faster
from equipoise.calibration.options import Aim, Length, Moves, PlanOptions, Reading, Tuned, options_of, takes
from equipoise.calibration.reads import Reads, expected_passes, reads_of, with_reading
from equipoise.cards import Card, html_table
from equipoise.checks import shown, whole
from equipoise.data.metering import reading
from equipoise.errors import InvalidInput, warn
from equipoise.fitting.ending import ended
from equipoise.fitting.fit import Fit, fit_unseen
from equipoise.linalg import split_range, symmetric
from equipoise.models.binding import bind, checked
from equipoise.models.covariance import Covariance
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Model, Problem
from equipoise.models.robust import KINDS, Known, moments_for
from equipoise.models.verbs import moments
from equipoise.sampling.budget import predicted_seconds, require_possible
from equipoise.sampling.run import resolve_burn_in, resolve_thin
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.mixing import whole_steps
from equipoise.theory.moments import Moments
from equipoise.theory.targets import require_scores
from equipoise.theory.tuning import Tuning, tune

__all__ = ["Plan", "make_plan", "plan", "require_feasible"]

_OF_CHAINS = ("batches", "dynamics", "autocorrelation", "cost", "time")  # lines of a plan that only a chain has
_OWN = 1e-3  # standard deviations a problem's minimum may be away from the estimate of a plan that is attached to it


@dataclass(frozen=True, repr=False)
class Plan(Card):
    """A run before its first step: fit, tuning, and budget.

    Attributes
    ----------
    model
        The model in use: with its estimated constant, and restricted to the directions the data identify. None for a
        loss of your own once the plan was saved or sent: it cannot be kept.
    fit, moments, tuning
        The minimiser, the moments there, and the step matrix.
    target
        The covariance the draws are to have, and where it comes from.
    chains, draws, thin, burn_in
        The sampling options, per chain.
    ess
        Predicted effective draws of all chains together.
    sampler
        What makes the draws: `"control-variate"`, `"sgmcmc"`, or `"gaussian"` for independent ones without a chain.
    candidates
        The chains that were considered, with their predicted costs; none where the options describe the chain.
    reads
        Where rows come from that are read from files, and how often; None for rows in memory.
    problem
        The problem it was made for: a reference, neither saved nor pickled. `attach` brings it back.
    seconds
        Predicted time of the sampling on this machine's cores: an estimate, good to a factor of two or so.
    """

    model: Model | None
    fit: Fit
    moments: Moments
    tuning: Tuning
    target: Covariance
    chains: int
    draws: int
    thin: int
    burn_in: int
    ess: float
    seconds: float
    sampler: str = "sgmcmc"
    candidates: tuple[Candidate, ...] = ()
    reads: Reads | None = None
    problem: Problem | None = field(default=None, repr=False, compare=False)

    @property
    def target_name(self) -> str:
        """What the target is called."""
        return self.target.kind

    @property
    def steps(self) -> int:
        """Steps per chain."""
        return 0 if self.sampler == "gaussian" else self.burn_in + self.draws * self.thin

    @property
    def rows(self) -> int:
        """Rows touched by all chains."""
        return self.chains * self.steps * self.tuning.dynamics.batch_size

    @property
    def passes(self) -> float:
        """Passes over the data, by all chains."""
        return self.rows / self.moments.n

    def attach(self, problem: Problem) -> Plan:
        """The same plan with a reference to its problem.

        Raises
        ------
        InvalidInput
            If the plan's estimate does not minimise the problem's loss: then it is another problem.
        """
        if not isinstance(problem, Problem):
            raise InvalidInput("problem", "a bound problem", shown(problem), "make one with eq.bind(model, data)")
        here = problem.at_constant(self.fit.constant)
        self._require_own(here)
        tuning, moments = self.tuning.attach(here), self.moments.attach(here)
        return replace(self, model=here.model, moments=moments, tuning=tuning, problem=here)

    def _require_own(self, problem: Problem) -> None:
        names, N, H = self.moments.names, self.moments.n, self.moments.hessian
        if problem.names != names or problem.n != N:
            given = f"{problem.n:,} rows of {', '.join(problem.names[:5])}"
            raise InvalidInput(
                "problem", f"that of this run: {N:,} rows of {', '.join(names[:5])}", given, "bind its data"
            )
        slope = problem.derivatives(self.moments.params, 1).gradient
        distance = float(np.sqrt(N * slope @ np.linalg.solve(H, slope)))
        if not distance <= _OWN:
            raise InvalidInput(
                "problem",
                "that of this run, whose estimate minimises its loss",
                f"one whose minimum is {distance:.2g} standard deviations away",
                "bind the model and the data the run was made with",
            )

    def __repr__(self) -> str:
        return (
            f"Plan({self.moments.n:,} rows, {self.moments.dim} parameters, target={self.target.words}, "
            f"sampler={self.sampler}, ess={self.ess:,.0f}, passes={self.passes:,.1f}, seconds={self.seconds:.2g})"
        )

    def _repr_html_(self) -> str:
        considered = [[f"considered {k + 1}", str(c)] for k, c in enumerate(self.candidates)]
        return html_table((), [*([name, words] for name, words in self._facts().items()), *considered], "Plan")

    def __getstate__(self) -> dict[str, object]:
        model = self.model if self.model is not None and self.model.portable else None
        return {**vars(self), "problem": None, "model": model}

    def __deepcopy__(self, memo: dict[int, object]) -> Plan:
        # a copy in the same process still knows its problem
        kept = ("model", "problem")
        return replace(
            self, **{f.name: deepcopy(getattr(self, f.name), memo) for f in fields(self) if f.name not in kept}
        )

    def _facts(self) -> dict[str, str]:
        """The lines of the printed plan."""
        law, dynamics = self.tuning.predicted, self.tuning.dynamics
        chain = self.sampler != "gaussian"
        lines = {
            "data": f"{self.moments.n:,} rows, {self.moments.dim} parameters",
            **({} if self.reads is None else {"files": str(self.reads), "reading": self.reads.words}),
            "target": self.target.words,
            "sampler": self.sampler,
            "batches": f"{dynamics.batch_size:,} rows, {_drawn(dynamics)}",
            "dynamics": _moved(self.tuning),
            "autocorrelation": f"{law.iact():.1f} steps, worst direction",
            "chains": f"{self.chains} of {self.steps:,} steps (burn-in {self.burn_in:,}, one draw every {self.thin})"
            if chain
            else f"none: {self.chains} x {self.draws:,} independent draws from N(estimate, target)",
            "cost": f"{self.rows:,} rows, {self.passes:,.1f} passes over the data",
            "effective draws": f"{self.ess:,.0f} predicted",
            "time": f"about {self.seconds:.2g} s of sampling{', reading included' if self.reads else ''}",
            **faster(self.target, self.seconds, self.ess),
        }
        return lines if chain else {name: words for name, words in lines.items() if name not in _OF_CHAINS}

    def __str__(self) -> str:
        table = [f"{name:<17} {words}" for name, words in self._facts().items()]
        return "\n".join([*table, *(["considered"] if self.candidates else []), *(f"  {c}" for c in self.candidates)])


def _drawn(dynamics: Dynamics) -> str:
    """How the rows of a batch are drawn, in words."""
    if dynamics.batches == "epochs":
        return "one permutation per pass"
    how = "with" if dynamics.replacement else "without"
    return "by leverage" if dynamics.batches == "leverage" else f"{how} replacement"


def _moved(tuning: Tuning) -> str:
    """How the chain moves, in words."""
    dynamics, completed = tuning.dynamics, tuning.predicted.completion is not None
    if not completed:
        return f"{dynamics.gradient} gradients, momentum {dynamics.momentum:g}, inverse temperature {dynamics.beta:g}"
    rates = tuning.predicted.modes.rates
    size = f"{rates[0]:.2g}" if rates[-1] - rates[0] < 1e-6 * rates[-1] else f"{rates[0]:.2g} to {rates[-1]:.2g}"
    fidelity = f", fidelity {tuning.fidelity:g}" if tuning.fidelity else ""
    momentum = f", momentum {dynamics.momentum:g}" if dynamics.momentum else ""
    return f"{dynamics.gradient} gradients, step x Hessian {size}{momentum}, noise completed to the target{fidelity}"


@takes(Reading, Aim, Moves, Length, Tuned)
@checked
def plan(
    model: Model | Problem,
    data: object = None,
    target: Target = "sandwich",
    ess: float = 1000,
    chains: int = 4,
    seed: int = 0,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Fit, tune and budget a run without sampling.

    Parameters
    ----------
    model
        From `eq.glm` or `eq.Model`, or a problem from `eq.bind`.
    data
        `(X, y)`, a source from `eq.data`, or a DataFrame or file path together with `formula`.
    target
        `"sandwich"`, `"posterior"`, `"bayesbag"`; `"HC0"` (the sandwich), `"HC1"`, `"HC2"`, `"HC3"`, `"CRV1"`,
        `"CRV3"` or `"HAC"`: see `eq.robust`; a matrix; or a function of the problem and its moments that makes one.
    clusters, time, lags, small_sample
        Of those targets that look at them: see `eq.robust`. For a table, clusters and time are columns.
    ess, chains
        Effective draws (how many independent ones the draws are worth) of all chains together, and the number of chains.
    seed
        Chooses the tuning rows.
    formula, weights, frequency, offset, trials, missing, context, memory, executor
        How to read a table: see `eq.data.table`; what reading files may take, and where: see `eq.data.scan`.
    sampler
        `"auto"` takes the chain that is predicted to be fastest for the asked draws, and shows all: `"control-variate"`
        (batches drawn uniformly or by leverage, noise completed to the target: theory §13), or `"sgmcmc"` (the chain
        that the options below describe; without any, plain SGD tuned as in the paper's Algorithm 1). `"gaussian"`
        draws from N(estimate, target) without a chain, and is never taken by itself.
    fidelity
        The share of the posterior's skewness the draws are to have (theory §14): `"auto"` is 0.9 for the posterior as
        target and a loss that is not quadratic, else none; 0 asks for none.
    batch_size
        Rows per step. `"auto"` takes for control variates the smallest with light tails; else a twentieth of the data,
        between 8 and 1000 rows, and the cost of an effective draw does not depend on it (theory §6).
    momentum, inverse_temperature, replacement, proxy, structure, gradient, batches, noise
        See `eq.Dynamics` and `eq.tune`. A momentum, a temperature, a proxy other than dq-exact, a structure, plain
        gradients, epochs or Langevin noise describe a chain, and take `sampler="sgmcmc"`.
    tuning_rows
        Tune the step matrix on this many random rows; the estimate is that of all rows.
    draws, thin, burn_in
        Override what `ess` and the predicted law would give.

    Returns
    -------
    Plan

    Raises
    ------
    InvalidInput
        Also for a run that this machine cannot carry out: draws that do not fit into memory, or more than six weeks.
    """
    read = options_of(Reading, options, PlanOptions)
    problem = bind(model, data, **vars(read))
    moves = options_of(Moves, options, PlanOptions)
    length = options_of(Length, options, PlanOptions, ess=ess, chains=chains)
    require_marks_used(target, read)
    aim = options_of(Aim, options, PlanOptions)
    with reading(problem.source, expected_passes(problem, target, moves), "planning"):
        made = make_plan(problem, target, aim, moves, length, seed, options.get("tuning_rows"))
    require_feasible(made)
    return made


def require_feasible(plan: Plan) -> None:
    """Refuse a plan whose draws do not fit into memory, or that would take more than six weeks."""
    require_possible(plan.chains, plan.draws, plan.moments.dim, plan.seconds)


def make_plan(
    problem: Problem, target: Target, aim: Aim, moves: Moves, length: Length, seed: int, tuning_rows: int | None
) -> Plan:
    """The plan of a bound problem."""
    seed = whole("seed", seed, 0, "pass an int")
    require_aim(problem, target, aim, moves)
    fitted = fit_unseen(problem, tuning_rows, seed)
    # a constant estimated by the fit is that of everything that follows
    problem = problem.at_constant(fitted.constant)
    if fitted.flat is not None:
        problem, fitted = _identified(problem, fitted)
    found, known = _moments(problem, fitted, target, aim, tuning_rows, seed)
    if isinstance(target, str) and target in ("sandwich", *KINDS) and len(found.quiet):
        problem, fitted = _varied(problem, fitted, found, target)
        found, known = _moments(problem, fitted, target, aim, tuning_rows, seed)
    if tuning_rows is None:
        problem, fitted, found = ended(problem, fitted, found)
    wanted = aimed(problem, None if tuning_rows else found, found, target, aim, known)
    sampler, tuning, considered = _choose(problem, found, wanted, moves, length)
    every, discard = resolve_thin(length.thin, tuning), resolve_burn_in(length.burn_in, tuning)
    iact = tuning.predicted.draw_time(every)
    stored = length.draws or max(2, whole_steps(length.ess * iact / length.chains / every))
    steps, batch, ess = discard + stored * every, tuning.dynamics.batch_size, length.chains * stored * every / iact
    reads = reads_of(problem, float(length.chains) * steps * batch, ess, tuning, sampler)
    return Plan(
        model=problem.model,
        fit=fitted,
        moments=found,
        tuning=tuning,
        target=wanted,
        chains=length.chains,
        draws=stored,
        thin=every,
        burn_in=discard,
        ess=ess,
        seconds=predicted_seconds(length.chains, steps, batch, found.dim)
        + (0.0 if reads is None else reads.pools * reads.seconds),
        sampler=sampler,
        candidates=considered,
        problem=problem,
        reads=reads,
    )


def _choose(
    problem: Problem, found: Moments, target: Covariance, moves: Moves, length: Length
) -> tuple[str, Tuning, tuple[Candidate, ...]]:
    """The sampler, its tuning, and what was considered."""
    matrix, sampler = target.matrix, moves.chosen
    if sampler in ("sgmcmc", "gaussian"):
        dynamics = moves.dynamics(found.n)
        noise = "completed" if moves.completed else "langevin"
        given = None if moves.fidelity == "auto" or not moves.fidelity else float(moves.fidelity)
        if sampler == "gaussian" and len(found.quiet):  # no chain is run, and SGD could not be
            dynamics, noise = moves.control_variate(found.n, "independent"), "completed"
        tuning = tune(found, matrix, dynamics, moves.proxy, moves.structure, noise=noise, fidelity=given)
        return sampler, tuning, ()
    fidelity = moves.wanted_fidelity(target.kind, problem.quadratic)
    if moves.batches == "auto" and not problem.source.in_memory and not isinstance(problem, LinearProblem):
        moves = replace(moves, batches="independent")  # leverages of a loss of one's own are two passes over files
    considered = with_reading(problem, consider(found, matrix, moves, length, fidelity, problem.quadratic))
    best = cheapest(considered)
    shown = tuple(replace(c, chosen=c is best) for c in considered)
    if best.sampler == "sgmcmc":
        return best.sampler, tune(found, matrix, moves.dynamics(found.n)), shown
    dynamics = moves.control_variate(best.batch_size, best.batches)
    step = best.gamma * symmetric(np.linalg.inv(found.hessian).astype(np.float64))
    tuning = tune(found, matrix, dynamics, noise="completed", step=step)
    return best.sampler, replace(tuning, structure="full", fidelity=fidelity or None), shown


def _identified(problem: Problem, fitted: Fit) -> tuple[Problem, Fit]:
    """Leave out the directions along which the loss is flat, and say so."""
    assert fitted.flat is not None
    restricted = problem.identified(fitted.theta)
    flat, curved = len(fitted.flat), len(restricted.names)
    warn(
        f"the loss is flat along {flat} of {flat + curved} directions at its minimiser (symmetries or redundant "
        "parameters): the run is restricted to the others, and draws are coordinates along them; chains.tree() has the "
        "parameters. Use prior_precision=... with target='posterior' to sample all of them instead."
    )
    return restricted, replace(fitted, flat=None, theta=restricted.flatten(fitted.params))


def _moments(
    problem: Problem, fitted: Fit, target: Target, aim: Aim, tuning_rows: int | None, seed: int
) -> tuple[Moments, Known | None]:
    """Moments at a fit, and what was added up beside them for the target, if anything was."""
    if tuning_rows is None:
        return moments_for(problem, fitted, target, aim.lags, fitted.information)
    return moments(problem, fitted, tuning_rows=tuning_rows, seed=seed), None


def _varied(problem: Problem, fitted: Fit, found: Moments, kind: str) -> tuple[Problem, Fit]:
    """Leave out the directions along which a robust covariance has no variance, H⁻¹ of those the scores do not vary along.

    With V = U W Uᵀ, restricting the problem to the columns of P = H⁻¹U gives (PᵀHP)⁻¹ PᵀVP (PᵀHP)⁻¹ = W, so that what is left
    has H⁻¹VH⁻¹ as its covariance in all parameters: nothing is lost.
    """
    varies, quiet = split_range(found.score_cov, np.diag(found.score_cov) + found.mean_score**2)
    axes = np.linalg.solve(found.hessian, varies.T).T
    size = np.sqrt(np.einsum("ij,jk,ik->i", axes, found.hessian, axes))
    restricted = problem.within(fitted.theta, axes / size[:, None])
    if restricted is None:
        require_scores(found, kind)
    assert restricted is not None
    warn(
        f"the scores do not vary along {len(quiet)} of {found.dim} directions at the minimiser, mainly "
        f"{found.mainly(quiet)}, which the prior alone decides: the {kind} covariance is zero there. The run is restricted to "
        "the others, and draws are coordinates along them; chains.tree() has the parameters, with that covariance. Use "
        "target='posterior' to sample all directions."
    )
    return restricted, replace(fitted, theta=restricted.flatten(fitted.params))
