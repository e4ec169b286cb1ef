"""The stationary law of a chain: from a step matrix to its covariance, stability and mixing (theory §4–§7)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve, eigh

from equipoise.arrays import Array
from equipoise.checks import checked_options, finite_array, flag, instance, is_number, probability, whole
from equipoise.errors import EquipoiseError, InfeasibleTarget, InvalidInput, UnstableStep
from equipoise.linalg import in_fixed_order, symmetric
from equipoise.theory import mixing
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.equation import balance
from equipoise.theory.modes import Modes, step_matrix
from equipoise.theory.moments import Bound, Moments
from equipoise.theory.proxy import Noise, proxy_noise
from equipoise.theory.stability import decay_bound, largest_multiple, mean_radius2, spectral_radius

__all__ = ["Stationary", "max_stable_step", "require_spread", "stationary"]


_ACCEPTED = 1e-8  # the largest relative residual accepted as a solution


@dataclass(frozen=True)
class Stationary:
    """The predicted stationary law of a chain.

    Attributes
    ----------
    cov
        Stationary covariance Σ.
    step
        Step matrix Λ.
    gradient_noise
        C(Σ), the stationary mean of the gradient covariance.
    score_noise
        C(0), the gradient covariance at the minimiser.
    dynamics, proxy
        The dynamics and the proxy the law was computed with.
    moments
        The moments it was computed from.
    bias
        The mean bias where it is already known; it takes a pass over the data, and is else computed when asked for.
    completion
        The covariance of the injected noise, where it is not the dynamics' own (theory §13).
    """

    cov: Array
    step: Array
    gradient_noise: Array
    score_noise: Array
    dynamics: Dynamics
    proxy: str
    moments: Moments = field(repr=False)
    bias: Array | None = field(repr=False, default=None)
    completion: Array | None = field(repr=False, default=None)

    @property
    def hessian(self) -> Array:
        """H."""
        return self.moments.hessian

    @property
    def noise(self) -> Array:
        """M: covariance of the noise injected at every step; zeros for SGD."""
        return 2.0 * self.dynamics.temperature * self.step if self.completion is None else self.completion

    def attach(self, problem: Bound) -> Self:
        """The same law with a reference to the problem it belongs to."""
        return replace(self, moments=self.moments.attach(problem))

    @cached_property
    def mean_bias(self) -> Array:
        """−½ H⁻¹ ∇³L[Σ], the predicted shift of the stationary mean; NaN where third derivatives are unknown."""
        return self._moved() if self.bias is None else self.bias

    @cached_property
    def modes(self) -> Modes:
        """The coordinates in which the mean dynamics is diagonal."""
        return _modes(self.step, self.hessian, self.dynamics, self.completion, discrete=self.proxy != "ct")

    @cached_property
    @in_fixed_order
    def spectral_radius(self) -> float:
        """ρ(T): the factor by which the slowest second moment decays each step."""
        return spectral_radius(self.modes, proxy_noise(self.moments, self.dynamics, self.proxy))

    @property
    def is_stable(self) -> bool:
        """Whether the stationary covariance exists."""
        return self.modes.mean_is_stable and self.spectral_radius < 1.0

    def autocovariance(self, lag: int) -> Array:
        """Ξ_k = Cov(θ_{t+k}, θ_t)."""
        lag = whole("lag", abs(lag) if is_number(lag) else lag, 0, "pass an int") * (-1 if lag < 0 else 1)
        if lag < 0:
            return self.autocovariance(-lag).T
        return self.modes.outward(self._lagged(lag))

    @cached_property
    def long_run_cov(self) -> Array:
        """Σ_∞ = Σ over all lags of Ξ_k = H⁻¹ (C(Σ) + (1−κ)² Λ⁻¹ M Λ⁻¹) H⁻¹, M the injected noise: (2/β) Λ, or completed."""
        source, T = self._lasting_noise, self.dynamics.temperature
        factor, rest = cho_factor(self.step), (1.0 - self.dynamics.momentum) ** 2
        if self.completion is not None:
            source = source + rest * cho_solve(factor, cho_solve(factor, self.completion).T)
        elif T > 0.0:
            source = source + 2.0 * T * rest * cho_solve(factor, np.eye(len(self.step)))
        return _between(self.hessian, source)

    def iact(self, direction: ArrayLike | None = None) -> float:
        """Integrated autocorrelation time in steps: along `direction`, or the largest over all directions."""
        if direction is None:
            require_spread(self.cov)
            return float(eigh(self.long_run_cov, self.cov, eigvals_only=True)[-1])
        v = finite_array("direction", direction, "pass one number per parameter")
        if v.shape != (len(self.cov),) or not np.any(v):
            raise InvalidInput(
                "direction",
                f"a non-zero vector ({len(self.cov)},)",
                f"shape {v.shape}",
                "pass one entry per parameter",
            )
        return float(v @ self.long_run_cov @ v / (v @ self.cov @ v))

    def stride(self, most: int) -> int:
        """The stride up to `most` at which draws are best stored."""
        return most

    def draw_time(self) -> float:
        """Steps per effective draw, in the worst direction and at least 1: how much longer a chain must be."""
        return max(1.0, self.iact())

    def iacts(self) -> Array:
        """Integrated autocorrelation time of each parameter."""
        return np.diag(self.long_run_cov) / np.diag(self.cov)

    def ess(self, steps: int) -> float:
        """Effective draws in `steps` steps, in the slowest direction."""
        return whole("steps", steps, 0, "pass an int") / self.iact()

    def iterate_average_cov(self, k: int) -> Array:
        """Covariance of the average of k successive iterates, k⁻² [kΣ + Σ_j (k−j)(Ξ_j + Ξ_jᵀ)], without a loop."""
        k = whole("k", k, 1, "average at least one iterate")
        return self.modes.outward(self._averaged(k))

    def burn_in(self, start: ArrayLike, tolerance: float = 0.01) -> int:
        """Steps after which a chain started at `start` (deviation from the minimiser) is stationary.

        The relative error of every second moment and the mean in standard deviations are then at most `tolerance`.
        """
        tolerance = probability("tolerance", tolerance)
        e = finite_array("start", start, "pass the deviation from the minimiser")
        if e.shape != (len(self.cov),):
            raise InvalidInput(
                "start",
                f"a vector ({len(self.cov)},)",
                f"shape {e.shape}",
                "pass the deviation from the minimiser",
            )
        distance2 = float(e @ cho_solve(cho_factor(self.cov), e))
        return mixing.burn_in(distance2, self._decay, tolerance)

    def covariance_floor(self, draws: int, thin: int = 1, *, standardised: bool = False) -> float:
        """Relative Monte Carlo error of an empirical covariance.

        sqrt(E‖Σ̂−Σ‖²_F) / ‖Σ‖_F for `draws` stored draws, one every `thin` steps, of a law this close to normal. With
        `standardised`, both in units of the predicted standard deviations, so that the parameters' units do not matter.
        """
        flag("standardised", standardised)
        draws, thin = (whole(name, v, 1, "pass an int") for name, v in (("draws", draws), ("thin", thin)))
        scale = np.sqrt(np.diag(self.cov)) if standardised else np.ones(len(self.cov))
        basis = self.modes.basis / scale[:, None]
        total = self._squares(thin, basis.T @ basis)
        return float(np.sqrt(total / draws) / np.linalg.norm(self.cov / np.outer(scale, scale)))

    @cached_property
    def _spread(self) -> Array:
        return self.modes.inward(self.cov)

    @property
    def _lasting_noise(self) -> Array:
        """The sum of the gradient noise's covariances over all lags."""
        return self.gradient_noise

    def _moved(self) -> Array:
        """The mean bias."""
        return -0.5 * np.linalg.solve(self.hessian, self.moments.third_derivative(self.cov)).astype(np.float64)

    def _lagged(self, lag: int) -> Array:
        """Ξ_k in the modes' coordinates."""
        return mixing.autocovariance(self.modes, self._spread, lag)

    def _averaged(self, k: int) -> Array:
        """The covariance of an average of k iterates in the modes' coordinates."""
        return mixing.iterate_average(self.modes, self._spread, k)

    def _squares(self, thin: int, metric: Array) -> float:
        """T times E‖Σ̂−Σ‖²_F, in a metric."""
        return mixing.covariance_noise(self.modes, self._spread, thin, metric)

    @cached_property
    def _decay(self) -> float:
        """A factor by which second moments decay per step, found without applying the noise operator.

        Without momentum Σ ⪰ T(Σ) + gain·Σ bounds every later deviation by (1 − gain)^t; else a bound on ρ(T).
        """
        if not self.modes.discrete:
            return mean_radius2(self.modes)
        if self.dynamics.momentum == 0.0:
            source = self.modes.force(self.score_noise) + self.modes.injected
            gain = float(eigh(source, self._spread, eigvals_only=True)[0])
            if gain > 1e-8:
                return 1.0 - min(gain, 1.0)
        return decay_bound(self.modes, self._spread, self.modes.force(self.gradient_noise - self.score_noise))


@checked_options
@in_fixed_order
def stationary(
    moments: Moments,
    step: ArrayLike,
    dynamics: Dynamics,
    proxy: str = "dq-exact",
    *,
    noise: ArrayLike | None = None,
) -> Stationary:
    """The stationary law of a chain with a given step.

    Solves ``Σ = A Σ Aᵀ + Λ C(Σ) Λ + (2/β) Λ`` (theory eq. 4.1; with momentum eq. 4.3) without forming a D²×D² matrix.

    Parameters
    ----------
    moments
        Moments of the model at its minimiser.
    step
        Scalar, vector (diagonal) or symmetric positive definite matrix.
    dynamics
        Batch size, momentum, temperature, replacement. With `batches="epochs"` the law is a
        `equipoise.theory.epochs.Reshuffled` (theory §15).
    proxy
        `"dq-exact"` (default), `"dq-const"`, `"lr-ws"` or `"ct"`.
    noise
        Covariance (D, D) of the noise injected at every step, in place of the dynamics' (2/β) Λ (theory §13).

    Returns
    -------
    Stationary

    Raises
    ------
    UnstableStep
        If no stationary covariance exists; the error carries the largest stable multiple of the step.
    InvalidInput
        If the proxy puts a matrix for the noise that is no covariance: an indefinite Hessian. And for a control-variate
        chain into which no noise is injected: it stops at the minimiser.
    """
    require_chain(moments, dynamics)
    Lam = step_matrix(step, moments.dim)
    completion = None if noise is None else _injected(noise, moments.dim, dynamics)
    if completion is None:
        require_noise(dynamics)
    gradient = proxy_noise(moments, dynamics, proxy)
    if dynamics.batches == "epochs":
        from equipoise.theory.epochs import reshuffled  # its law is one of these

        return reshuffled(moments, Lam, dynamics, completion)
    modes = _modes(Lam, moments.hessian, dynamics, completion, gradient.discrete)
    S = _solve(modes, gradient) if modes.mean_is_stable else None
    if S is None:
        radius = spectral_radius(modes, gradient)
        if modes.mean_is_stable and radius < 1.0:
            raise InvalidInput(
                "proxy",
                "one whose gradient noise is a covariance here",
                f"{proxy!r}, whose noise has the eigenvalue {float(np.linalg.eigvalsh(gradient.constant)[0]):.2g}",
                "use 'dq-exact', or take moments where the loss is convex",
            )
        raise UnstableStep(radius, largest_multiple(modes, gradient))
    return law(moments, modes.outward(S), Lam, dynamics, proxy, completion=completion)


def law(
    moments: Moments,
    cov: Array,
    step: Array,
    dynamics: Dynamics,
    proxy: str,
    gradient_noise: Array | None = None,
    completion: Array | None = None,
) -> Stationary:
    """The law whose covariance, and perhaps C(Σ), are already known: no equation is solved."""
    noise = proxy_noise(moments, dynamics, proxy)
    cov = symmetric(cov)
    C = noise.at(cov) if gradient_noise is None else gradient_noise
    return Stationary(cov, step, C, noise.constant, dynamics, proxy, moments, completion=completion)


def require_noise(dynamics: Dynamics) -> None:
    """Refuse a control-variate chain without injected noise."""
    if dynamics.gradient == "control-variate" and dynamics.temperature == 0.0:
        raise InvalidInput(
            "inverse_temperature",
            "finite with gradient='control-variate': without injected noise the chain stops at the minimiser",
            "infinity",
            "use inverse_temperature='auto' or noise='completed' in eq.tune, or give a number",
        )


def _injected(noise: ArrayLike, dim: int, dynamics: Dynamics) -> Array:
    """A covariance to inject; singular ones are fine."""
    matrix = finite_array("noise", noise, "pass a covariance matrix, such as tuning.noise")
    if dynamics.inverse_temperature != np.inf:
        raise InvalidInput(
            "noise", "left out with a finite inverse_temperature", "a matrix", "give one of the two: both inject noise"
        )
    if matrix.shape != (dim, dim):
        raise InvalidInput("noise", f"of shape ({dim}, {dim})", f"shape {matrix.shape}", "match the parameters")
    scale = float(np.abs(matrix).max())
    if np.abs(matrix - matrix.T).max() > 1e-8 * scale or np.linalg.eigvalsh(symmetric(matrix))[0] < -1e-10 * scale:
        raise InvalidInput("noise", "a covariance: symmetric, no negative eigenvalue", "another matrix", "check it")
    return symmetric(matrix)


def require_chain(moments: object, dynamics: object) -> None:
    """Refuse what are not moments and dynamics, in this order."""
    instance("moments", moments, Moments, "make them with eq.moments")
    instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")


def require_spread(cov: Array) -> None:
    """Refuse a singular stationary covariance: a chain without noise in some direction.

    Raises
    ------
    InfeasibleTarget
        Its `directions` are those without noise.
    """
    sd = np.sqrt(np.maximum(np.diag(cov), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(cov / np.outer(sd, sd))
    still = values <= 1e-13
    if still.any():
        raise InfeasibleTarget(
            f"step: the chain has no noise in {still.sum()} of {len(cov)} directions, so it has no law of full rank there. To "
            "fix: leave those directions out (model.identified, or drop the columns), or use a finite inverse_temperature.",
            directions=(vectors[:, still] * sd[:, None]).T,
        )


@checked_options
@in_fixed_order
def max_stable_step(
    moments: Moments, dynamics: Dynamics, direction: ArrayLike | None = None, *, proxy: str = "dq-exact"
) -> float:
    """The largest c such that every step below c·direction has a finite stationary covariance.

    Parameters
    ----------
    moments, dynamics
        The model's moments and the chain's dynamics.
    direction
        Scalar, vector or matrix Λ₀; the identity by default, so that the result is a scalar step size.
    proxy
        The proxy whose stability is asked for.

    Returns
    -------
    float
        Infinite for the continuous-time proxy, zero when the Hessian is not positive definite.
    """
    require_chain(moments, dynamics)
    Lam = step_matrix(1.0 if direction is None else direction, moments.dim, "direction")
    noise = proxy_noise(moments, dynamics, proxy)
    # what is injected does not matter for stability
    return largest_multiple(Modes.of(Lam, moments.hessian, dynamics.momentum, 0.0, noise.discrete), noise)


def _modes(step: Array, hessian: Array, dynamics: Dynamics, completion: Array | None, discrete: bool) -> Modes:
    injected = dynamics.temperature if completion is None else completion
    return Modes.of(step, hessian, dynamics.momentum, injected, discrete)


def _solve(modes: Modes, noise: Noise) -> Array | None:
    """The stationary covariance in the modes' coordinates; None when there is none."""
    source = modes.force(noise.constant) + modes.injected
    S, residual = balance(modes, noise, source)
    # A positive solution of S = T(S) + source certifies ρ(T) < 1; an indefinite operator gives none.
    if not np.isfinite(S).all() or np.linalg.eigvalsh(S)[0] < -1e-9 * np.abs(S).max():
        return None
    if residual > _ACCEPTED:
        if largest_multiple(modes, noise) <= 1.0:
            return None
        raise EquipoiseError(
            f"the stationary equation was solved only to a relative residual of {residual:.1e}: the step is too close to "
            "the stability limit. To fix: reduce the step slightly."
        )
    return S


def _between(hessian: Array, middle: Array) -> Array:
    """H⁻¹ M H⁻¹."""
    factor = cho_factor(hessian)
    half = cho_solve(factor, middle)
    full = cho_solve(factor, half.T)
    return symmetric(full)
