"""Tuning: from a target covariance to the step matrix that makes the chain sample it (theory §3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.checks import checked_options, instance, one_of
from equipoise.errors import FitFailed, InfeasibleTarget
from equipoise.linalg import in_fixed_order, symmetric
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.moments import Bound, Moments
from equipoise.theory.momentum import StepEquation, solve_step
from equipoise.theory.proxy import proxy_noise
from equipoise.theory.stationary import Stationary, law, require_spread, stationary
from equipoise.theory.structured import best_structured, divergence
from equipoise.theory.targets import target_matrix

__all__ = ["Tuning", "tune"]


@dataclass(frozen=True)
class Tuning:
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

    @classmethod
    @checked_options
    def at(cls, moments: Moments, step: ArrayLike, dynamics: Dynamics, proxy: str = "dq-exact") -> Tuning:
        """A given step instead of a tuned one: its target is its own predicted covariance.

        Raises
        ------
        UnstableStep
            If the step has no stationary covariance.
        InfeasibleTarget
            If the chain has no noise in some direction.
        """
        predicted = stationary(moments, step, dynamics, proxy)
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
        return self.dynamics.injected.covariance(self.step)

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
) -> Tuning:
    """The step matrix whose stationary covariance is the target.

    With Σ = W Wᵀ, Wᵀ H W = diag(s) and κ = 0 (theory eq. 3.2):
    ``Λ = W Y⁻¹ Wᵀ,  Y_ij = (Wᵀ Q(Σ) W)_ij / (s_i + s_j − 2/β)``.

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
        Kullback–Leibler divergence, which does not depend on how the parameters are scaled or mixed.

    Returns
    -------
    Tuning

    Raises
    ------
    InfeasibleTarget
        If the target is not positive definite, or the injected noise alone exceeds it: then the error names the
        smallest feasible inverse temperature.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 2))
    >>> m = Moments.from_arrays(x * rng.normal(size=(200, 1)), x[:, :, None] * x[:, None, :])
    >>> t = tune(m, "sandwich", Dynamics(batch_size=20))
    >>> bool(np.allclose(t.predicted.cov, t.target))
    True
    """
    instance("moments", moments, Moments, "make them with eq.moments")
    instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")
    one_of("structure", structure, ("full", "diagonal", "scalar"), "use 'full' unless you compare")
    matrix = target_matrix(target, moments)
    if structure != "full":
        return _structured(moments, matrix, dynamics, proxy, structure)
    noise = proxy_noise(moments, dynamics, proxy)
    C = noise.at(matrix)
    equation = StepEquation.of(matrix, moments.hessian, C, dynamics.momentum, dynamics.temperature, noise.discrete)
    _require_feasible(equation, moments)
    Y, residual = solve_step(equation)
    if Y is None:
        raise _unsolved(residual, equation, dynamics)
    step = symmetric(equation.step(Y))
    predicted = law(moments, matrix, step, dynamics, proxy, C)
    # without momentum Σ − A Σ Aᵀ ≻ 0 with Σ ≻ 0 already makes A stable
    if dynamics.momentum > 0.0 and not predicted.modes.mean_is_stable:
        raise InfeasibleTarget(
            f"target: the step matrix that solves the equation for momentum {dynamics.momentum:g} is not stable. "
            "To fix: use a smaller momentum."
        )
    return Tuning(step, dynamics, matrix, residual, predicted, proxy, "full", 0.0)


def _structured(moments: Moments, target: Array, dynamics: Dynamics, proxy: str, structure: str) -> Tuning:
    step, residual = best_structured(moments, target, dynamics, proxy, structure)
    predicted = stationary(moments, step, dynamics, proxy)
    distance = divergence(predicted.cov, target)
    return Tuning(step, dynamics, target, residual, predicted, proxy, structure, distance)


def _require_feasible(equation: StepEquation, moments: Moments) -> None:
    if equation.temperature == 0.0 and not equation.noise.any():
        raise InfeasibleTarget(
            "target: a chain without gradient noise (the whole data in every batch) and without injected noise has no "
            "spread. To fix: use a smaller batch_size, or a finite inverse_temperature."
        )
    if equation.slopes[0] <= 0.0:
        raise FitFailed(
            f"the Hessian is not positive definite (smallest eigenvalue of H·target {equation.slopes[0]:.2g}), so no step "
            "matrix samples the target. To fix: check that the fit converged, or add a prior."
        )
    smallest = equation.min_inverse_temperature
    if equation.temperature * smallest < 1.0:
        return
    beta = 1.0 / equation.temperature
    tight = equation.slopes * beta <= (1.0 - equation.momentum)
    # H w = s Σ⁻¹ w: the directions in which injected noise alone already gives the target variance
    directions = equation.basis[:, tight].T
    names = moments.names or tuple(f"parameter {j}" for j in range(moments.dim))
    shown = ", ".join(names[int(np.abs(v).argmax())] for v in directions[:3])
    raise InfeasibleTarget(
        f"inverse_temperature: must be above {smallest:.6g} for this target (the injected noise alone already exceeds it "
        f"in {tight.sum()} direction(s), mainly {shown}); got {beta:.6g}. To fix: raise inverse_temperature above "
        f"{smallest:.6g}, use numpy.inf (SGD), or a wider target.",
        min_inverse_temperature=smallest,
        directions=directions,
    )


def _unsolved(residual: float, equation: StepEquation, dynamics: Dynamics) -> InfeasibleTarget:
    if not np.isfinite(residual):
        return InfeasibleTarget(
            "target: the gradient noise leaves some directions without any noise, so no positive definite step matrix "
            "samples it (smallest noise eigenvalue "
            f"{np.linalg.eigvalsh(equation.noise)[0]:.2g}). To fix: use a smaller batch, or a finite inverse_temperature."
        )
    return InfeasibleTarget(
        f"target: no step matrix was found for momentum {dynamics.momentum:g}; the iteration stopped at a relative "
        f"residual of {residual:.1e}. To fix: use a smaller momentum or a larger inverse_temperature."
    )
