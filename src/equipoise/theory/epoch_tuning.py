"""The step matrix with which a reshuffled chain has a target covariance on average over the epoch (theory §15).

For a target c H⁻¹VH⁻¹ and no injected noise it is hH⁻¹, and h the root of one scalar equation. For others the tuner of
independent batches is given an internal target Γ, moved by what the law of epochs says is missing,

    Γ ← Γ + target − Σ̄(Λ(Γ)),

with Anderson mixing, and Newton's method where that stalls. Without momentum any Γ gives a stable step, so that the
iteration cannot leave what it is defined on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
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
_LEAST, _MOST = 0.2, 10.0  # what one round may leave of an eigenvalue of the internal target, and make of it


def epoch_step(moments: Moments, target: Array, dynamics: Dynamics) -> tuple[Array, float]:
    """The step matrix, and the relative residual of its covariance.

    Raises
    ------
    InfeasibleTarget
        If none was found.
    """
    H, root = moments.hessian, np.linalg.cholesky(target).astype(np.float64)
    if dynamics.temperature == 0.0:
        seen = H @ target @ H
        multiple = float(np.sum(seen * moments.score_cov) / np.sum(moments.score_cov**2))
        if np.linalg.norm(seen - multiple * moments.score_cov) <= _PARALLEL * np.linalg.norm(seen):
            inverse = symmetric(cho_solve(cho_factor(H), np.eye(len(H))))
            step = _scalar_root(moments.n, dynamics, multiple) * inverse
            missing = _missing(reshuffled(moments, step, dynamics).cov, root)
            return step, float(np.linalg.norm(missing) / np.sqrt(len(H)))
    smallest = np.inf
    # with momentum the independent tuner of discrete time is an iteration itself
    for discrete in (True,) if dynamics.momentum == 0.0 else (False, True):
        best = _Search(moments, dynamics, root, discrete).best()
        if best is not None and best.size <= _ACCEPTED:
            return best.step, best.size
        smallest = smallest if best is None else min(smallest, best.size)
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
    """An internal target, in the coordinates in which the target is the identity; its step, and what its law misses."""

    inner: Array
    step: Array
    missing: Array

    @property
    def size(self) -> float:
        """What is missing, per dimension."""
        return float(np.linalg.norm(self.missing) / np.sqrt(len(self.missing)))

    def along(self, change: Array) -> Array:
        """R exp(change) Rᵀ with inner = R Rᵀ: positive whatever the change."""
        values, axes = np.linalg.eigh(self.inner)
        logs, turned = np.linalg.eigh(change)
        half = (axes * np.sqrt(values)) @ (turned * np.exp(0.5 * logs))
        return symmetric(half @ half.T)


@dataclass(frozen=True)
class _Search:
    """The search for the internal target.

    Attributes
    ----------
    moments, dynamics
        The model's moments and the chain's dynamics.
    root
        A Cholesky factor of the target.
    discrete
        Whether the tuner of independent batches is that of discrete time.
    """

    moments: Moments
    dynamics: Dynamics
    root: Array
    discrete: bool

    def best(self) -> _Guess | None:
        """The internal target with the least that is missing; None when not even the target itself can be tried."""
        mixed = self._anderson()
        return mixed if mixed is None or mixed.size <= _ACCEPTED else self._newton(mixed)

    def guess(self, inner: Array) -> _Guess | None:
        """What comes of an internal target; None when independent batches cannot have it."""
        # as noisy as the epoch's are on average: a permutation only takes variance away, so that `inner` is at least I
        noise = batch_sizes(self.moments.n, self.dynamics).mean * self.moments.score_cov
        about = self.moments.hessian, noise, self.dynamics.momentum, self.dynamics.temperature
        try:
            equation = StepEquation.of(symmetric(self.root @ inner @ self.root.T), *about, discrete=self.discrete)
            Y, _ = solve_step(equation) if equation.resistance.min() > 0.0 else (None, np.inf)
            if Y is None:
                return None
            step = symmetric(equation.step(Y))
            return _Guess(inner, step, _missing(reshuffled(self.moments, step, self.dynamics).cov, self.root))
        except (UnstableStep, np.linalg.LinAlgError):
            return None

    def _anderson(self) -> _Guess | None:
        """The best of some rounds of Γ ← Γ + what is missing, mixed with earlier ones."""
        inner = last = np.eye(len(self.root))
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
            if found.size <= _SOLVED:
                break
            history, last = [*history, found][-_MEMORY:], inner
            try:
                inner = _kept_positive(inner, _mixed(history) - inner)
            except np.linalg.LinAlgError:
                break  # mixing has led astray
        return best

    def _newton(self, best: _Guess) -> _Guess:
        """Newton's method from there, its linear equations solved by GMRES, its steps shortened until they help."""
        for _ in range(_ROUNDS // 2):
            if best.size <= _SOLVED:
                break
            found = self._shortened(best, self._newton_change(best))
            if found is None:
                break
            best = found
        return best

    def _newton_change(self, at: _Guess) -> Array:
        dim = len(self.root)

        def slope(v: Array) -> Array:
            change = symmetric(v.reshape(dim, dim))
            length = _NEARBY / max(float(np.linalg.norm(change)), np.finfo(float).tiny)
            ends = [self.guess(at.along(sign * length * change)) for sign in (1.0, -1.0)]
            if ends[0] is None or ends[1] is None:
                return np.zeros(dim * dim)
            return (ends[0].missing - ends[1].missing).ravel() / (2.0 * length)

        operator = LinearOperator((dim * dim, dim * dim), matvec=slope, dtype=np.float64)
        v, _ = gmres(operator, -at.missing.ravel(), rtol=1e-3, restart=50, maxiter=2)
        return symmetric(v.reshape(dim, dim))

    def _shortened(self, at: _Guess, change: Array) -> _Guess | None:
        length = min(1.0, 1.5 / max(float(np.abs(np.linalg.eigvalsh(change)).max()), np.finfo(float).tiny))
        while length > 1e-3:
            found = self.guess(at.along(length * change))
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


def _missing(cov: Array, root: Array) -> Array:
    """I − L⁻¹ Σ̄ L⁻ᵀ."""
    half = solve_triangular(root, cov, lower=True)
    return np.eye(len(root)) - symmetric(solve_triangular(root, half.T, lower=True))


def _mixed(history: list[_Guess]) -> Array:
    """Anderson's next point: the combination of earlier ones whose residuals cancel best, and its residual."""
    points, residuals = (np.stack([getattr(g, part) for g in history]) for part in ("inner", "missing"))
    point = points[-1] + residuals[-1]
    if len(history) == 1:
        return point
    steps, changes = np.diff(points, axis=0), np.diff(residuals, axis=0)
    weights = np.linalg.lstsq(changes.reshape(len(changes), -1).T, residuals[-1].ravel(), rcond=1e-12)[0]
    return point - np.tensordot(weights, steps + changes, axes=1)


def _kept_positive(inner: Array, change: Array) -> Array:
    """inner + change, shortened so that no eigenvalue shrinks or grows too much."""
    L = np.linalg.cholesky(inner)
    half = solve_triangular(L, symmetric(change), lower=True)
    relative = np.linalg.eigvalsh(symmetric(solve_triangular(L, half.T, lower=True)))
    limits = np.where(relative < 0.0, _LEAST - 1.0, _MOST - 1.0) / np.where(relative == 0.0, 1.0, relative)
    return symmetric(inner + min(1.0, float(limits[relative != 0.0].min(initial=1.0))) * change)
