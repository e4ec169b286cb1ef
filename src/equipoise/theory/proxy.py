"""The four proxies as one: the gradient noise each assumes, affine in the stationary covariance (theory §2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.theory.dynamics import Dynamics
    from equipoise.theory.moments import Moments

__all__ = ["PROXIES", "Noise", "proxy_noise", "require_derived"]


MOST_MOMENTUM = 0.9  # with epochs: with more, and few batches, tuning overflowed
PROXIES = ("dq-exact", "ct", "dq-const", "lr-ws")


@dataclass(frozen=True)
class Noise:
    """Gradient noise C(S) = constant + linear(S): at the minimiser, and as it grows with the spread S of the iterates.

    `linear` is None when it does not grow. Time that is not `discrete` drops every term of second order in the step.
    `turned` leads from R and R⁻¹ to S ↦ Rᵀ linear(R S Rᵀ) R, and `peak` from R and a relative error to its largest
    eigenvalue, where these are known more cheaply; else to None.
    """

    constant: Array
    linear: Callable[[Array], Array] | None
    discrete: bool = True
    turned: Callable[[Array, Array], Callable[[Array], Array] | None] = lambda basis, dual: None  # noqa: ARG005
    peak: Callable[[Array, float], float | None] = lambda basis, error: None  # noqa: ARG005

    def at(self, S: Array) -> Array:
        """C(S)."""
        return self.constant if self.linear is None else self.constant + self.linear(S)


def proxy_noise(moments: Moments, dynamics: Dynamics, proxy: str = "dq-exact") -> Noise:
    """The noise of a proxy, in the table of theory §2; b is that of the dynamics.

    `"dq-exact"`: b (V + K(S)), with epochs b V, of one batch by itself; `"dq-const"`: b J; `"ct"`: b V in continuous
    time; `"lr-ws"`: b (J S J + tr(J S) J + r J) with r the noise ratio σ²/s².
    """
    b, J = dynamics.noise_factor(moments.n), moments.loss_hessian
    if proxy == "dq-exact" and dynamics.batches == "epochs":
        require_derived(dynamics)
        return Noise(b * moments.score_cov, None)
    if proxy == "dq-exact":
        still = dynamics.estimator.score_cov(moments, dynamics.rule)

        def turned(basis: Array, dual: Array) -> Callable[[Array], Array] | None:
            found = moments.turned_noise(basis, dual, dynamics)
            return None if found is None else lambda S: b * found(S)

        def peak(basis: Array, error: float) -> float | None:
            found = moments.noise_peak(basis, dynamics, error)
            return None if found is None else b * found

        return Noise(b * still, lambda S: b * moments.curvature_noise(S, dynamics), turned=turned, peak=peak)
    if proxy in PROXIES:
        _require_plain(proxy, dynamics)
    if proxy == "ct":
        return Noise(b * moments.score_cov, None, discrete=False)
    if proxy == "dq-const":
        return Noise(b * J, None)
    if proxy == "lr-ws":
        return Noise(b * moments.noise_ratio * J, lambda S: b * (J @ S @ J + float(np.sum(J * S)) * J))
    raise InvalidInput(
        "proxy", f"one of {', '.join(PROXIES)}", repr(proxy), "use 'dq-exact' unless you compare proxies"
    )


def require_derived(dynamics: Dynamics) -> None:
    """Refuse what the law of epochs is not derived for."""
    if dynamics.gradient != "plain":
        raise InvalidInput(
            "gradient",
            "'plain' with batches='epochs', for which no other is derived",
            repr(dynamics.gradient),
            "leave it out, or use batches='independent' or 'leverage'",
        )
    if dynamics.momentum > MOST_MOMENTUM:
        raise InvalidInput(
            "momentum",
            f"at most {MOST_MOMENTUM:g} with batches='epochs': above it the law is not derived",
            f"{dynamics.momentum:g}",
            "use a smaller momentum, or batches='independent'",
        )


def _require_plain(proxy: str, dynamics: Dynamics) -> None:
    """The other proxies model the noise of plain gradients of independent batches, and have no other counterpart."""
    for name, given, plain in (("gradient", dynamics.gradient, "plain"), ("batches", dynamics.batches, "independent")):
        if given != plain:
            raise InvalidInput("proxy", f"'dq-exact' with {name}={given!r}", repr(proxy), "leave proxy out")
