"""The stationary law of a chain: from a step matrix to its covariance, stability and mixing (theory §4–§7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve, eigh

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_options, finite_array, flag, is_number, probability, whole
from equipoise.errors import EquipoiseError, InvalidInput, UnstableStep
from equipoise.linalg import between, in_fixed_order, symmetric
from equipoise.theory import mixing
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.equation import Balanced, balance
from equipoise.theory.mixing import thinned
from equipoise.theory.modes import Modes, step_matrix
from equipoise.theory.moments import Bound, Moments
from equipoise.theory.proxy import Noise, proxy_noise
from equipoise.theory.requirements import injected_covariance, require_chain, require_noise, require_spread
from equipoise.theory.shape import skewness
from equipoise.theory.stability import decay_bound, largest_multiple, mean_radius2, spectral_radius
from equipoise.theory.tails import kurtosis, worst_kurtosis

__all__ = ["Stationary", "law", "modes_of", "stationary"]


_ACCEPTED = 1e-8  # the largest relative residual accepted as a solution


@dataclass(frozen=True, repr=False)
class Stationary(Card):
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
        return replace(self, moments=self.moments.attach(problem)).with_results(self.results)

    @cached_property
    def mean_bias(self) -> Array:
        """−½ H⁻¹ ∇³L[Σ], the predicted shift of the stationary mean; NaN where third derivatives are unknown."""
        return self._moved() if self.bias is None else self.bias

    @property
    def newton(self) -> float | None:
        """γ where the step is γH⁻¹, which contracts every direction alike; None elsewhere, and with momentum."""
        alike = self.modes.alike and self.modes.discrete and self.dynamics.momentum == 0.0
        return float(self.modes.rates.mean()) if alike else None

    @cached_property
    def worst_kurtosis(self) -> float:
        """The largest predicted excess kurtosis over all directions (theory §13); it takes a pass over the data.

        In a Gaussian closure, for control variates and a step γH⁻¹ without momentum; NaN elsewhere. Usually a little low
        while it is small, and far too low where the fourth moment is about to be infinite.
        """
        return worst_kurtosis(self)

    @cached_property
    def kurtosis(self) -> Array:
        """The predicted excess kurtosis of each parameter (D,), known where `worst_kurtosis` is; O(N D³)."""
        return kurtosis(self)

    @cached_property
    def skewness(self) -> Array:
        """The predicted skewness of each parameter (D,), to leading order (theory §14); it takes a pass over the data.

        With control variates and a step γH⁻¹ it is −γa²/(1−a³) Σ₃ (H⁻¹T)[·; Σ, Σ] in units of the standard deviations,
        a = 1 − γ; where γbρ > 0.05, up to 50 parameters, with what small batches add to it. Other steps and plain
        gradients: the general equation, up to 50 parameters. All look at 20,000 rows at most, the general equation at fewer
        where there are many parameters, always the same ones. NaN with momentum, with epochs, for more parameters, and where
        third derivatives are unknown.
        """
        return skewness(self)

    @property
    def results(self) -> dict[str, Array | float]:
        """What was computed of tails and shape, which takes passes over the data."""
        return {name: vars(self)[name] for name in ("worst_kurtosis", "kurtosis", "skewness") if name in vars(self)}

    def with_results(self, results: Mapping[str, Array | float]) -> Self:
        """The same law with `results` computed before."""
        made = replace(self)
        vars(made).update(results)
        return made

    @cached_property
    def modes(self) -> Modes:
        """The coordinates in which the mean dynamics is diagonal."""
        return modes_of(self.step, self.hessian, self.dynamics, self.completion, discrete=self.proxy != "ct")

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
        return between(cho_factor(self.hessian), source)

    @in_fixed_order
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

    def draw_time(self, thin: int = 1) -> float:
        """Steps per effective draw, in the worst direction and at least 1, if one draw in `thin` is stored."""
        return float(thinned(max(1.0, self.iact()), thin))

    def draw_times(self, thin: int = 1) -> Array:
        """Steps per effective draw of each parameter, if one draw in `thin` is stored."""
        return thinned(self.iacts(), thin)

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
    completion = None if noise is None else injected_covariance(noise, moments.dim, dynamics)
    if completion is None:
        require_noise(dynamics)
    gradient = proxy_noise(moments, dynamics, proxy)
    if dynamics.batches == "epochs":
        from equipoise.theory.epochs import reshuffled  # its law is one of these

        return reshuffled(moments, Lam, dynamics, completion)
    modes = modes_of(Lam, moments.hessian, dynamics, completion, gradient.discrete)
    found = _solve(modes, gradient) if modes.mean_is_stable else None
    if found is None:
        radius = spectral_radius(modes, gradient)
        if modes.mean_is_stable and radius < 1.0:
            raise InvalidInput(
                "proxy",
                "one whose gradient noise is a covariance here",
                f"{proxy!r}, whose noise has the eigenvalue {float(np.linalg.eigvalsh(gradient.constant)[0]):.2g}",
                "use 'dq-exact', or take moments where the loss is convex",
            )
        raise UnstableStep(radius, largest_multiple(modes, gradient))
    return law(moments, found.cov, Lam, dynamics, proxy, found.noise, completion)


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


def modes_of(step: Array, hessian: Array, dynamics: Dynamics, completion: Array | None, discrete: bool) -> Modes:
    """The modes of a step; what is injected is the dynamics' own, or a completion."""
    injected = dynamics.temperature if completion is None else completion
    return Modes.of(step, hessian, dynamics.momentum, injected, discrete)


def _solve(modes: Modes, noise: Noise) -> Balanced | None:
    """The stationary covariance; None when there is none."""
    source = modes.force(noise.constant) + modes.injected
    found = balance(modes, noise, source)
    S = found.spread
    # A positive solution of S = T(S) + source certifies ρ(T) < 1; an indefinite operator gives none.
    if not np.isfinite(S).all() or np.linalg.eigvalsh(S)[0] < -1e-9 * np.abs(S).max():
        return None
    if found.residual > _ACCEPTED:
        if largest_multiple(modes, noise) <= 1.0:
            return None
        raise EquipoiseError(
            f"the stationary equation was solved only to a relative residual of {found.residual:.1e}: the step is too close to "
            "the stability limit. To fix: reduce the step slightly."
        )
    return found
