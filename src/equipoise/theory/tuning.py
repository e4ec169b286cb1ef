"""Tuning: from a target covariance to the step matrix that makes the chain sample it (theory §3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve, eigh

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_options, is_number, one_of, shown
from equipoise.errors import InfeasibleTarget, InvalidInput, warn
from equipoise.linalg import in_fixed_order, symmetric
from equipoise.theory.completion import MARGIN, Completion, largest_fidelity_step
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.epoch_tuning import epoch_step
from equipoise.theory.epochs import Reshuffled, reshuffled
from equipoise.theory.feasibility import not_convex, require_feasible, require_noise_everywhere, unsolved
from equipoise.theory.modes import step_matrix
from equipoise.theory.moments import Bound, Moments
from equipoise.theory.momentum import StepEquation, solve_step
from equipoise.theory.proxy import proxy_noise, require_derived
from equipoise.theory.requirements import require_chain, require_noise, require_spread
from equipoise.theory.stationary import Stationary, law, stationary
from equipoise.theory.structured import best_structured, divergence
from equipoise.theory.tails import HEAVY, smallest_batch
from equipoise.theory.targets import target_matrix

__all__ = ["STRUCTURES", "Tuning", "tune"]

STRUCTURES = ("full", "diagonal", "scalar")

_REMAINDER = 0.3  # share of the covariance that the law of epochs may leave out without a word


@dataclass(frozen=True, repr=False)
class Tuning(Card):
    """A step matrix, what it was tuned to, and the law it is predicted to have.

    Attributes
    ----------
    step
        Step matrix Λ, (D, D).
    dynamics
        The dynamics it was tuned for.
    target
        The covariance it was tuned to.
    residual
        Relative residual of the tuning equation; for a restricted structure, of the predicted covariance's gradient.
    predicted
        The predicted stationary law; its covariance is the target, except for a restricted structure.
    proxy, structure
        How it was tuned.
    distance
        Kullback–Leibler divergence from N(0, target) of N(0, predicted covariance): 0 for a full matrix.
    internal
        The covariance the step was tuned to when a pilot run showed that the target itself would be missed; else None.
    fidelity
        The share of the posterior's skewness the step was chosen for; None when it was not.
    """

    step: Array
    dynamics: Dynamics
    target: Array
    residual: float
    predicted: Stationary
    proxy: str
    structure: str
    distance: float
    internal: Array | None = None
    fidelity: float | None = None

    @classmethod
    @checked_options
    def at(
        cls,
        moments: Moments,
        step: ArrayLike,
        dynamics: Dynamics,
        proxy: str = "dq-exact",
        *,
        noise: ArrayLike | None = None,
    ) -> Tuning:
        """A given step instead of a tuned one: its target is its own predicted covariance.

        Raises
        ------
        UnstableStep
            If the step has no stationary covariance.
        InfeasibleTarget
            If the chain has no noise in some direction.
        """
        predicted = stationary(moments, step, dynamics, proxy, noise=noise)
        require_spread(predicted.cov)
        return cls(predicted.step, dynamics, predicted.cov, 0.0, predicted, proxy, "given", 0.0)

    @property
    def center(self) -> Array:
        """The minimiser θ̂ the chain moves around."""
        return self.predicted.moments.params

    @property
    def constant(self) -> float | None:
        """The constant of the loss it was tuned for."""
        return self.predicted.moments.constant

    @property
    def noise(self) -> Array:
        """Covariance of the noise injected at every step; zeros for SGD."""
        return self.predicted.noise

    @property
    def rows_per_draw(self) -> float:
        """Predicted rows per effective draw, in the worst direction."""
        return self.dynamics.batch_size * self.predicted.draw_time()

    @property
    def expected(self) -> Array:
        """The covariance draws should have: the target where a pilot corrected the step for it, else the predicted."""
        return self.predicted.cov if self.internal is None else self.target

    def attach(self, problem: Bound) -> Tuning:
        """The same tuning with a reference to the problem it was made for."""
        return replace(self, predicted=self.predicted.attach(problem))

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return len(self.center)


@checked_options
@in_fixed_order
def tune(
    moments: Moments,
    target: str | ArrayLike,
    dynamics: Dynamics,
    proxy: str = "dq-exact",
    structure: str = "full",
    *,
    noise: str = "langevin",
    step: ArrayLike | None = None,
    fidelity: float | None = None,
) -> Tuning:
    """The step matrix whose stationary covariance is the target, or what to inject so that a given step has it.

    With Σ = W Wᵀ, Wᵀ H W = diag(s) and κ = 0 (theory eq. 3.2):
    ``Λ = W Y⁻¹ Wᵀ,  Y_ij = (Wᵀ Q(Σ) W)_ij / (s_i + s_j − 2/β)``. With completed noise the step is γH⁻¹ or yours, and what
    it lacks is injected (theory eq. 13.1): ``M = ΛHΣ + ΣHΛ − Λ (C(Σ) + HΣH) Λ``.

    Parameters
    ----------
    moments
        Moments of the model at its minimiser.
    target
        A symmetric positive definite matrix, or `"sandwich"`, `"posterior"`, `"bayesbag"`.
    dynamics
        Batch size, momentum, temperature, replacement.
    proxy
        The proxy to trust; the default is exact for the quadratic model.
    structure
        `"full"`, or `"diagonal"` or `"scalar"`: the step of that form whose predicted law is closest to the target in
        Kullback–Leibler divergence, which does not depend on how the parameters are scaled or mixed. With completed noise
        such a step has the target itself, where that is possible.
    noise
        `"langevin"` injects (2/β) Λ, nothing for SGD; `"completed"` injects what the step lacks to the target.
    step
        With completed noise: a step of your own (scalar, vector or matrix), kept as it is. None takes the Newton step
        γH⁻¹ with γ = min(1, 0.9 · 2/(1 + bρ)), ρ = `moments.curvature_number`.
    fidelity
        With completed noise and control variates: the share of the posterior's skewness the draws are to have, from 0
        to below 1, which asks for a smaller γ (theory eq. 14.2).

    Returns
    -------
    Tuning

    Raises
    ------
    InfeasibleTarget
        If the target is not positive definite, or the injected noise alone exceeds it: then the error names the
        smallest feasible inverse temperature. With completed noise, if the step makes too much noise by itself: the
        error names the largest feasible multiple, or the direction in which there is none.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 2))
    >>> m = Moments.from_arrays(x * rng.normal(size=(200, 1)), x[:, :, None] * x[:, None, :])
    >>> t = tune(m, "sandwich", Dynamics(batch_size=20))
    >>> bool(np.allclose(t.predicted.cov, t.target))
    True
    """
    require_chain(moments, dynamics)
    one_of("structure", structure, STRUCTURES, "use 'full' unless you compare")
    one_of("noise", noise, ("langevin", "completed"))
    matrix = target_matrix(target, moments)
    if proxy == "dq-exact" and dynamics.batches != "epochs":
        moments.expecting(dynamics, matrix if structure == "full" or noise == "completed" else None)
    if noise == "completed":
        return _completed(moments, matrix, dynamics, proxy, structure, step, fidelity)
    for name, given in (("step", step), ("fidelity", fidelity)):
        if given is not None:
            remedy = "leave it out" if dynamics.batches == "epochs" else "use noise='completed'"
            raise InvalidInput(name, "left out with noise='langevin'", shown(given), remedy)
    dynamics = _resolved(moments, matrix, dynamics)
    require_noise(dynamics)
    gradient = proxy_noise(moments, dynamics, proxy)
    if structure != "full":
        return _structured(moments, matrix, dynamics, proxy, structure)
    C = gradient.at(matrix)
    equation = StepEquation.of(matrix, moments.hessian, C, dynamics.momentum, dynamics.temperature, gradient.discrete)
    require_feasible(equation, moments)
    require_noise_everywhere(equation, moments, gradient)
    if dynamics.batches == "epochs":
        tuned, residual = epoch_step(moments, matrix, dynamics)
        reached = reshuffled(moments, tuned, dynamics)
        _warn_of_remainder(reached)
        return Tuning(tuned, dynamics, matrix, residual, reached, proxy, "full", 0.0)
    Y, residual = solve_step(equation)
    if Y is None:
        raise unsolved(residual, equation, dynamics)
    tuned = symmetric(equation.step(Y))
    predicted = law(moments, matrix, tuned, dynamics, proxy, C)
    # without momentum Σ − A Σ Aᵀ ≻ 0 with Σ ≻ 0 already makes A stable
    if dynamics.momentum > 0.0 and not predicted.modes.mean_is_stable:
        raise InfeasibleTarget(
            f"target: the step matrix that solves the equation for momentum {dynamics.momentum:g} is not stable. "
            "To fix: use a smaller momentum."
        )
    return Tuning(tuned, dynamics, matrix, residual, predicted, proxy, "full", 0.0)


def _resolved(moments: Moments, target: Array, dynamics: Dynamics) -> Dynamics:
    """The dynamics with an automatic temperature resolved: β = (1−κ)(1/s_min + 1/s_max), s the eigenvalues of HΣ.

    With bK negligible a direction contracts by 2(1−κ)/(β s) − 1, and this β makes the slowest as fast as can be.
    """
    if dynamics.inverse_temperature != "auto":
        return dynamics
    slopes = eigh(moments.hessian, np.linalg.inv(target), eigvals_only=True)
    if slopes[0] <= 0.0:
        raise not_convex(float(slopes[0]))
    beta = (1.0 - dynamics.momentum) * (1.0 / float(slopes[0]) + 1.0 / float(slopes[-1]))
    return replace(dynamics, inverse_temperature=beta)


def _completed(
    moments: Moments,
    target: Array,
    dynamics: Dynamics,
    proxy: str,
    structure: str,
    step: ArrayLike | None,
    fidelity: float | None,
) -> Tuning:
    _require_completable(dynamics, proxy, step, structure, fidelity)
    gradient = proxy_noise(moments, dynamics, proxy)
    C = gradient.at(target)
    completion = Completion(moments, dynamics, target, C)
    if step is not None:
        matrix, form = step_matrix(step, moments.dim), "given"
    else:
        matrix, form = _chosen(completion, structure, fidelity), structure
    noise = completion.required(matrix)
    predicted = law(moments, target, matrix, dynamics, proxy, C, noise)
    # the equation itself, from what will be run
    left = moments.hessian @ target
    first = matrix @ left
    rest = first + first.T - matrix @ (C + left @ moments.hessian) @ matrix - noise
    residual = float(np.linalg.norm(rest) / np.linalg.norm(first)) if dynamics.momentum == 0.0 else 0.0
    if step is None and not fidelity:
        _warn_of_tails(completion, predicted)
    return Tuning(matrix, dynamics, target, residual, predicted, proxy, form, 0.0, fidelity=fidelity)


def _chosen(completion: Completion, structure: str, fidelity: float | None) -> Array:
    """The Newton step with the best γ, or the largest comfortable step of a form."""
    H = completion.moments.hessian
    if structure == "full":
        try:
            inverse = cho_solve(cho_factor(H), np.eye(len(H)))
        except np.linalg.LinAlgError:
            raise not_convex(float(np.linalg.eigvalsh(H)[0])) from None
        gamma = min(1.0, MARGIN * completion.newton_limit)
        if fidelity:
            gamma = min(gamma, largest_fidelity_step(fidelity))
        return gamma * symmetric(inverse)
    shape = np.eye(len(H)) if structure == "scalar" else np.diag(1.0 / np.diag(H))
    # where no multiple is feasible, the shape itself is refused with the reason
    return (MARGIN * completion.feasible_multiple(shape)[0] or 1.0) * shape


def _warn_of_remainder(predicted: Reshuffled) -> None:
    """Say that the law of epochs does not hold where the rows' different curvatures matter as much as their noise."""
    if predicted.remainder > _REMAINDER:
        warn(
            "batches: the law of epochs leaves out what rows of different curvature add, about "
            f"{predicted.remainder:.0%} of the covariance here (law.remainder): the draws will be wider than the target. "
            "To fix: use batches='independent', a narrower target, or pilot runs (refine=True in eq.calibrate)."
        )


def _warn_of_tails(completion: Completion, predicted: Stationary) -> None:
    """Say with which batch size the draws of a chain whose tails are predicted would be close to normal."""
    if not predicted.worst_kurtosis > HEAVY:
        return
    moments, dynamics = completion.moments, completion.dynamics
    tails, rho = moments.worst_tails(predicted.cov, dynamics), moments.curvature_number(predicted.cov, dynamics)

    def light(size: int) -> bool:
        other = replace(dynamics, batch_size=size)
        gamma = min(1.0, MARGIN * 2.0 / (1.0 + other.noise_factor(moments.n) * rho))
        return tails.kurtosis(gamma, other.cumulants(moments.n)) <= HEAVY

    size = smallest_batch(light, dynamics.batch_size, moments.n)
    remedies = [] if size is None else [f"batch_size={size} or more"]
    remedies += [] if dynamics.rule.weighted else ["batches='leverage'"]
    warn(
        f"batch_size: with {dynamics.batch_size} rows the draws have the target covariance but heavier tails than a normal "
        f"law (predicted excess kurtosis {predicted.worst_kurtosis:.2g} in the worst direction). To fix: use "
        f"{', or '.join(remedies) or 'a smaller step, by fidelity=0.9'}."
    )


def _require_completable(
    dynamics: Dynamics, proxy: str, step: ArrayLike | None, structure: str, fidelity: float | None
) -> None:
    """Refuse what completed noise does not go together with."""
    if proxy != "dq-exact":
        raise InvalidInput("proxy", "'dq-exact' with noise='completed'", repr(proxy), "leave proxy out")
    if dynamics.batches == "epochs":
        require_derived(dynamics)  # noise is completed by default with other gradients, and leaving it out is no way
        raise InvalidInput(
            "noise", "'langevin' with batches='epochs', for which no other is derived", "'completed'", "leave it out"
        )
    if dynamics.inverse_temperature != np.inf:
        raise InvalidInput(
            "inverse_temperature", "left out with noise='completed', which injects what is needed",
            shown(dynamics.inverse_temperature), "leave it out, or use noise='langevin'",
        )  # fmt: skip
    if step is not None and structure != "full":
        raise InvalidInput("structure", "left out for a step of your own", repr(structure), "leave it out")
    if fidelity is None:
        return
    if not (is_number(fidelity) and 0.0 <= fidelity < 1.0):
        raise InvalidInput("fidelity", "from 0 to below 1", shown(fidelity), "0.9 is a common choice, 0 asks for none")
    others = {
        "gradient='control-variate'": dynamics.gradient == "control-variate",
        "momentum=0": dynamics.momentum == 0.0,
        "step=None": step is None,
        "structure='full'": structure == "full",
    }
    for name, holds in others.items():
        if fidelity > 0.0 and not holds:
            raise InvalidInput("fidelity", f"given together with {name}", shown(fidelity), "leave fidelity out")


def _structured(moments: Moments, target: Array, dynamics: Dynamics, proxy: str, structure: str) -> Tuning:
    step, residual = best_structured(moments, target, dynamics, proxy, structure)
    predicted = stationary(moments, step, dynamics, proxy)
    distance = divergence(predicted.cov, target)
    return Tuning(step, dynamics, target, residual, predicted, proxy, structure, distance)
