"""The step matrix with which a reshuffled chain has a target covariance on average over the epoch (theory §15).

For a target c H⁻¹VH⁻¹ and no injected noise it is hH⁻¹, and h the root of one scalar equation. For others the tuner of
independent batches is given an internal target Γ, moved by what the law of epochs says is missing. With the covariances
less the least that injected noise leaves, (1−κ)/β H⁻¹, in coordinates in which the target is then the identity,

    log Γ ← log Γ − ½ log Σ̄(Λ(Γ)),

with Anderson mixing, and Newton's method where that stalls. The half is right where steps are short, for variances then
grow like their square; elsewhere it is on the safe side. Any symmetric matrix is the logarithm of a Γ, and without momentum
any Γ gives a stable step: the iteration cannot leave what it is defined on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh, solve_triangular
from scipy.optimize import brentq
from scipy.sparse.linalg import LinearOperator, gmres

from equipoise.arrays import Array
from equipoise.errors import InfeasibleTarget, UnstableStep
from equipoise.linalg import symmetric
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.epochs import batch_sizes, epoch_of, reshuffled
from equipoise.theory.modes import Modes
from equipoise.theory.momentum import StepEquation, solve_step

if TYPE_CHECKING:
    from equipoise.theory.moments import Moments

__all__ = ["epoch_step"]

_SOLVED = 1e-12  # residual at which the iteration stops
_ACCEPTED = 1e-9  # and the largest that is accepted as a solution
_ROUNDS = 80
_MEMORY = 8  # earlier rounds that Anderson mixing looks back to
_NEARBY = 1e-6  # how far to look for the slope of what is missing
_PARALLEL = 1e-10  # how closely HΣH must be a multiple of V for the scalar root
_SHARE = 0.5  # of what is missing, added in a round
_FURTHEST = np.log(10.0)  # what one round may change of the logarithm of an eigenvalue of the internal target


def epoch_step(moments: Moments, target: Array, dynamics: Dynamics) -> tuple[Array, float]:
    """The step matrix, and the relative residual of its covariance; `InfeasibleTarget` if none was found."""
    H = moments.hessian
    inverse = symmetric(cho_solve(cho_factor(H), np.eye(len(H))))
    if dynamics.temperature == 0.0:
        seen = H @ target @ H
        multiple = float(np.sum(seen * moments.score_cov) / np.sum(moments.score_cov**2))
        if np.linalg.norm(seen - multiple * moments.score_cov) <= _PARALLEL * np.linalg.norm(seen):
            step = _scalar_root(moments.n, dynamics, multiple) * inverse
            return step, _relative(reshuffled(moments, step, dynamics).cov, target)
    least, smallest = (1.0 - dynamics.momentum) * dynamics.temperature * inverse, np.inf
    # with momentum the independent tuner of discrete time is an iteration itself
    for discrete in (True,) if dynamics.momentum == 0.0 else (False, True):
        best = _Search(moments, dynamics, target, least, discrete).best()
        if best is not None and best.residual <= _ACCEPTED:
            return best.step, best.residual
        smallest = smallest if best is None else min(smallest, best.residual)
    raise _unsolved(dynamics, smallest)


def _scalar_root(n: int, dynamics: Dynamics, variance: float) -> float:
    """The h at which a chain in one dimension with H = V = 1 and n rows has this variance."""

    def excess(log_step: float) -> float:
        h = np.exp(log_step)
        modes = Modes(np.array([[np.sqrt(h)]]), np.array([[1 / np.sqrt(h)]]), np.array([h]), dynamics.momentum,
                      np.zeros((1, 1)), discrete=True)  # fmt: skip
        found = h * float(epoch_of(n, np.eye(1), dynamics, modes).mean[0, 0, 0, 0])
        return float(np.log(found / variance))

    # the variance grows from nothing without a step to infinity at the limit of stability
    limit = np.log(2.0 * (1.0 + dynamics.momentum))
    low, high = limit - 2.0, limit - 1e-3
    while excess(low) > 0.0 and low > limit - 26.0:
        low -= 2.0
    while excess(high) < 0.0 and high < limit - 1e-10:
        high = 0.1 * high + 0.9 * limit
    if excess(low) > 0.0 or excess(high) < 0.0:
        raise _unsolved(dynamics, np.inf)
    return float(np.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-15)))


@dataclass(frozen=True)
class _Guess:
    """The logarithm of an internal target; its step; what its law misses, as a logarithm and relative to the target."""

    inner: Array
    step: Array
    missing: Array
    residual: float

    @property
    def size(self) -> float:
        """What is missing, per dimension."""
        return float(np.linalg.norm(self.missing) / np.sqrt(len(self.missing)))


@dataclass(frozen=True)
class _Search:
    """The search for the internal target of a chain.

    `least` is the least that injected noise leaves; `discrete` says whether the tuner of independent batches is that of
    discrete time.
    """

    moments: Moments
    dynamics: Dynamics
    target: Array
    least: Array
    discrete: bool

    @cached_property
    def root(self) -> Array:
        """A Cholesky factor of what is left of the target for the gradients' noise."""
        return np.linalg.cholesky(self.target - self.least).astype(np.float64)

    def best(self) -> _Guess | None:
        """The internal target with the least that is missing; None when not even the target itself can be tried."""
        mixed = self._anderson()
        return mixed if mixed is None or mixed.residual <= _ACCEPTED else self._newton(mixed)

    def guess(self, inner: Array) -> _Guess | None:
        """What comes of the logarithm of an internal target; None when independent batches cannot have it."""
        # as noisy as the epoch's are on average: a permutation only takes variance away, so that `inner` is at least 0
        noise = batch_sizes(self.moments.n, self.dynamics).mean * self.moments.score_cov
        about = self.moments.hessian, noise, self.dynamics.momentum, self.dynamics.temperature
        try:
            logs, axes = np.linalg.eigh(inner)
            half = self.root @ (axes * np.exp(0.5 * logs))
            equation = StepEquation.of(symmetric(self.least + half @ half.T), *about, discrete=self.discrete)
            Y, _ = solve_step(equation) if equation.resistance.min() > 0.0 else (None, np.inf)
            if Y is None:
                return None
            step = symmetric(equation.step(Y))
            cov = reshuffled(self.moments, step, self.dynamics).cov
            return _Guess(inner, step, _missing(cov - self.least, self.root), _relative(cov, self.target))
        except (UnstableStep, np.linalg.LinAlgError):
            return None

    def _anderson(self) -> _Guess | None:
        """The best of some rounds of adding most of what is missing, mixed with earlier ones."""
        inner = last = np.zeros_like(self.root)
        history: list[_Guess] = []
        best: _Guess | None = None
        for _ in range(_ROUNDS):
            found = self.guess(inner)
            if found is None:
                # half way back to the last one that was possible
                inner = 0.5 * (inner + last)
                continue
            if best is None or found.size < best.size:
                best = found
            if found.residual <= _SOLVED:
                break
            history, last = [*history, found][-_MEMORY:], inner
            inner = inner + _shortened(_mixed(history) - inner, _FURTHEST)
        return best

    def _newton(self, best: _Guess) -> _Guess:
        """Newton's method from there, its linear equations solved by GMRES, its steps shortened until they help."""
        for _ in range(_ROUNDS // 2):
            if best.residual <= _SOLVED:
                break
            found = self._downhill(best, self._newton_change(best))
            if found is None:
                break
            best = found
        return best

    def _newton_change(self, at: _Guess) -> Array:
        dim = len(self.root)

        def slope(v: Array) -> Array:
            change = symmetric(v.reshape(dim, dim))
            length = _NEARBY / max(float(np.linalg.norm(change)), np.finfo(float).tiny)
            ends = [self.guess(at.inner + sign * length * change) for sign in (1.0, -1.0)]
            if ends[0] is None or ends[1] is None:
                return np.zeros(dim * dim)
            return (ends[0].missing - ends[1].missing).ravel() / (2.0 * length)

        operator = LinearOperator((dim * dim, dim * dim), matvec=slope, dtype=np.float64)
        v, _ = gmres(operator, -at.missing.ravel(), rtol=1e-3, restart=50, maxiter=2)
        return symmetric(v.reshape(dim, dim))

    def _downhill(self, at: _Guess, change: Array) -> _Guess | None:
        change, length = _shortened(change, 1.5), 1.0
        while length > 1e-3:
            found = self.guess(at.inner + length * change)
            if found is not None and found.size < (1.0 - 0.1 * length) * at.size:
                return found
            length *= 0.5
        return None


def _unsolved(dynamics: Dynamics, error: float) -> InfeasibleTarget:
    return InfeasibleTarget(
        f"target: no step matrix was found for epochs of batches of {dynamics.batch_size} rows; the iteration stopped at a "
        f"relative error of {error:.1e}. To fix: use a smaller batch_size, a smaller momentum, a larger inverse_temperature, "
        "or batches='independent'."
    )


def _relative(cov: Array, target: Array) -> float:
    """How far a covariance is from the target, ‖I − L⁻¹ Σ̄ L⁻ᵀ‖ per dimension."""
    return float(np.sqrt(np.mean((eigh(cov, target, eigvals_only=True) - 1.0) ** 2)))


def _missing(cov: Array, root: Array) -> Array:
    """−log L⁻¹ Σ̄ L⁻ᵀ."""
    half = solve_triangular(root, cov, lower=True)
    values, axes = np.linalg.eigh(symmetric(solve_triangular(root, half.T, lower=True)))
    if values[0] <= 0.0:
        raise np.linalg.LinAlgError("a covariance that rounding made indefinite")
    return symmetric(axes * -np.log(values) @ axes.T)


def _mixed(history: list[_Guess]) -> Array:
    """Anderson's next point: the combination of earlier ones whose residuals cancel best, and a share of its residual."""
    points, residuals = (np.stack([getattr(g, part) for g in history]) for part in ("inner", "missing"))
    point = points[-1] + _SHARE * residuals[-1]
    if len(history) == 1:
        return point
    steps, changes = np.diff(points, axis=0), np.diff(residuals, axis=0)
    weights = np.linalg.lstsq(changes.reshape(len(changes), -1).T, residuals[-1].ravel(), rcond=1e-12)[0]
    return point - np.tensordot(weights, steps + _SHARE * changes, axes=1)


def _shortened(change: Array, most: float) -> Array:
    """A change whose largest eigenvalue is at most this."""
    change = symmetric(change)
    return change * min(1.0, most / max(float(np.linalg.norm(change, 2)), np.finfo(float).tiny))
