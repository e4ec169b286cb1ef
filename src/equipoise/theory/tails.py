"""Tails: how much heavier than normal a chain is whose batches see different curvatures (theory §13).

With w_n = (J_n − J) H⁻¹u of a drawn row (weighed by 1/(N p_n) where it is drawn by leverage), s_n = w_nᵀΣw_n and
Q = mean w_n w_nᵀ, the fourth cumulant along u of a chain with control variates and the step γH⁻¹ is, with a = 1 − γ and
b = 1/B (rows drawn with replacement), in a Gaussian closure

    (1−a⁴) κ₄ = 12a²γ²b uᵀΣQΣu − 12aγ³b² mean[(uᵀΣw_n) s_n] + 6γ⁴b² tr((QΣ)²)
                + 3γ⁴b³ [mean s_n² − (tr QΣ)² − 2 tr((QΣ)²)].

One pass gives the means, whatever γ and b; other batch rules have other powers of b (`BatchCumulants`). It is made in
coordinates in which Σ is the identity, so that units do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from equipoise.arrays import Array
from equipoise.linalg import symmetric, weighted_gram
from equipoise.theory.dynamics import BatchCumulants

if TYPE_CHECKING:
    from equipoise.theory.curvature import Curvature
    from equipoise.theory.dynamics import BatchRule
    from equipoise.theory.moments import Moments
    from equipoise.theory.stationary import Stationary

__all__ = ["HEAVY", "Tails", "kurtosis", "smallest_batch", "tails_along", "worst_kurtosis", "worst_tails"]

HEAVY = 0.3  # the largest excess kurtosis in the worst direction that is called close to normal
_SAMPLED = 2048  # rows on which directions with heavy tails are looked for
_COMPARED = 8192  # and rows on which those found are compared: where they were looked for they seem worse than they are
_CLIMBS = 10  # steps of that search
_STARTS = 4  # leading directions of the curvature noise it starts from
_MEASURED = 1 << 15  # rows that the tails are taken from, where there are more and they stand for all
_WORTH = 1.05  # factor by which a direction must be worse than others to be looked at in all rows too
_AT_ONCE = 1 << 22  # numbers in the matrices Q of the directions of one pass


@dataclass(frozen=True)
class Tails:
    """What the tails of a chain depend on besides γ and the batch size, for each of m directions.

    `directions` are u, (m, D), each with uᵀΣu = 1; `along` is uᵀΣQΣu, (m,) like the rest: `mixed`, mean[(uᵀΣw_n) s_n];
    `spread`, tr((QΣ)²); `mean` and `square`, mean s_n = tr(QΣ) and mean s_n².
    """

    directions: Array
    along: Array
    mixed: Array
    spread: Array
    mean: Array
    square: Array

    def each(self, gamma: float, batch: float | BatchCumulants) -> Array:
        """Predicted excess kurtosis along each direction, for the step γH⁻¹.

        `batch` is 1/B for rows drawn with replacement, or the cumulants of another rule's batches.
        """
        k = batch if isinstance(batch, BatchCumulants) else BatchCumulants.with_replacement(batch)
        a, g = 1.0 - gamma, gamma
        fourth = 3.0 * k.fourth * self.square + k.pairs * (self.mean**2 + 2.0 * self.spread)
        # a factor γ is taken out of both sides, so that small steps lose no digits in 1−a⁴
        return (
            12.0 * a * a * g * k.second * self.along
            - 12.0 * a * g * g * k.third * self.mixed
            + g**3 * (6.0 * k.second**2 * self.spread + fourth)
        ) / ((1.0 + a) * (1.0 + a * a))

    def kurtosis(self, gamma: float, batch: float | BatchCumulants) -> float:
        """The largest of them."""
        return float(np.max(self.each(gamma, batch)))


def smallest_batch(light: Callable[[int], bool], smallest: int, largest: int) -> int | None:
    """The smallest batch that is `light`, taken to hold from some size on; None if not even the largest is."""
    low, high = smallest, smallest
    while not light(high):
        if high >= largest:
            return None
        low, high = high, min(2 * high, largest)
    # bisection: `low` is too small, or the first
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if light(middle) else (middle, high)
    return high


class _TailSums(NamedTuple):
    """How many rows there were, and the sums behind the means of `Tails`."""

    rows: float
    along: Array
    mixed: Array
    square: Array
    gram: Array


@dataclass(frozen=True)
class _TailPass:
    """Sums over rows, given what their Hessians make of each direction, in coordinates in which Σ is the identity.

    `axes` are the directions there, and `centre` is what the mean Hessian makes of them.
    """

    axes: Array
    centre: Array

    def __call__(self, images: Array, emphasis: Array | None, counts: Array) -> _TailSums:
        """Sums over one block; `images` (m, rows, D)."""
        share, w = _drawn(images, self.centre, emphasis, counts)
        along, s = np.einsum("mnd,md->mn", w, self.axes), np.einsum("mnd,mnd->mn", w, w)
        gram = np.stack([weighted_gram(part, share) for part in w])
        return _TailSums(float(counts.sum()), along**2 @ share, (along * s) @ share, s**2 @ share, gram)

    def rank_one(self, scale: Array, x: Array, emphasis: Array | None, counts: Array) -> _TailSums:
        """The same where w_n is a multiple of x_n minus the centre: no image is written out."""
        share = counts if emphasis is None else counts / emphasis
        c = self.centre
        scale = scale if emphasis is None else scale * emphasis
        along = scale * (self.axes @ x.T) - np.einsum("md,md->m", c, self.axes)[:, None]
        square, length = np.einsum("nd,nd->n", x, x), np.einsum("md,md->m", c, c)[:, None]
        s = scale**2 * square - 2.0 * scale * (c @ x.T) + length
        cross = ((scale * share) @ x)[:, :, None] * c[:, None, :]
        gram = np.stack([weighted_gram(x, row) for row in scale**2 * share]) - (cross + cross.transpose(0, 2, 1))
        gram += share.sum() * c[:, :, None] * c[:, None, :]
        return _TailSums(float(counts.sum()), along**2 @ share, (along * s) @ share, s**2 @ share, gram)


class _ClimbSums(NamedTuple):
    """Σ (uᵀΣw_n)² and half its gradient along each direction."""

    value: Array
    gradient: Array


@dataclass(frozen=True)
class _ClimbPass:
    """The same rows for the search; the second half of the images are those of Σu, the transposed of the first."""

    axes: Array
    centre: Array
    transposed: Array

    def __call__(self, images: Array, emphasis: Array | None, counts: Array) -> _ClimbSums:
        """Sums over one block; `images` (2m, rows, D)."""
        share, w = _drawn(images, self.centre, emphasis, counts)
        m = len(self.axes)
        along = np.einsum("mnd,md->mn", w[:m], self.axes)
        slope = np.einsum("mnd,mn->md", w[:m], along * share)
        back = np.einsum("mnd,mn->md", w[m:], along * share) @ self.transposed.T
        return _ClimbSums(along**2 @ share, slope + back)

    def rank_one(self, scale: Array, x: Array, emphasis: Array | None, counts: Array) -> _ClimbSums:
        """The same where w_n is a multiple of x_n minus the centre: no image is written out."""
        share = counts if emphasis is None else counts / emphasis
        scale = scale if emphasis is None else scale * emphasis
        m, c = len(self.axes), self.centre
        along = scale[:m] * (self.axes @ x.T) - np.einsum("md,md->m", c[:m], self.axes)[:, None]
        pull = along * share
        total = pull.sum(axis=1)[:, None]
        slope, back = (pull * scale[:m]) @ x - total * c[:m], (pull * scale[m:]) @ x - total * c[m:]
        return _ClimbSums(along**2 @ share, slope + back @ self.transposed.T)


def _drawn(images: Array, centre: Array, emphasis: Array | None, counts: Array) -> tuple[Array, Array]:
    """How often each row counts, and w_n as it is drawn."""
    if emphasis is None:
        return counts, images - centre[:, None, :]
    return counts / emphasis, images * emphasis[:, None] - centre[:, None, :]


@dataclass(frozen=True)
class _Coordinates:
    """Where Σ = L Lᵀ is the identity: L, L⁻¹, H⁻¹ and J."""

    root: Array
    unroot: Array
    inverse: Array
    hessian: Array

    @classmethod
    def of(cls, moments: Moments, cov: Array) -> _Coordinates:
        root = cholesky(cov, lower=True)
        unroot = solve_triangular(root, np.eye(len(cov)), lower=True)
        return cls(root, unroot, np.linalg.inv(moments.hessian).astype(np.float64), moments.loss_hessian)

    def measured(self, operator: Curvature, axes: Array) -> Tails:
        """The tails along some directions, in one pass."""
        directions = axes @ self.unroot
        vectors = directions @ self.inverse
        sums = operator.images(vectors, self.root, _TailPass(axes, vectors @ self.hessian @ self.root))
        n, Q = sums.rows, sums.gram / sums.rows
        spread, mean = np.einsum("mij,mij->m", Q, Q), np.einsum("mii->m", Q)
        return Tails(directions, sums.along / n, sums.mixed / n, spread, mean, sums.square / n)

    def climbed(self, operator: Curvature, axes: Array) -> Array:
        """Directions of large mean (uᵀΣw_n)², by power iterations from each of `axes`, the largest first."""
        back = self.unroot @ self.inverse @ self.unroot.T
        best, highest = axes, np.full(len(axes), -np.inf)
        for _ in range(_CLIMBS):
            directions = axes @ self.unroot
            vectors = np.concatenate([directions @ self.inverse, axes @ self.root.T])
            centre = vectors @ self.hessian @ self.root
            sums = operator.images(vectors, self.root, _ClimbPass(axes, centre, back))
            better = sums.value > highest
            best, highest = np.where(better[:, None], axes, best), np.where(better, sums.value, highest)
            length = np.linalg.norm(sums.gradient, axis=1, keepdims=True)
            if not np.all(length > 0.0):
                break
            axes = sums.gradient / length
        return best[np.argsort(-highest)]


def tails_along(moments: Moments, cov: Array, rule: BatchRule, directions: Array) -> Tails:
    """The tails along given directions (m, D), in as few passes as memory allows."""
    here, operator = _Coordinates.of(moments, cov), moments.drawn(rule)
    axes = directions @ here.root
    axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    size = max(1, _AT_ONCE // cov.size)
    parts = [here.measured(operator, axes[k : k + size]) for k in range(0, len(axes), size)]
    return Tails(*(np.concatenate([getattr(part, name) for part in parts]) for name in Tails.__dataclass_fields__))


def worst_tails(moments: Moments, cov: Array, rule: BatchRule, noise: Array) -> Tails:
    """The tails along the directions where they may be heaviest, in one pass, of 32,768 rows if they will do, and a search.

    For γ = 1 that is close to the top of H⁻¹KH⁻¹ relative to Σ, for small γ where mean (uᵀΣw_n)² is largest; between the
    two one of these is the worst, or close to it. `noise` is K(Σ) of rows drawn by the rule, up to a factor.
    """
    here, operator = _Coordinates.of(moments, cov), moments.drawn(rule)
    pulled = here.unroot @ here.inverse @ noise @ here.inverse @ here.unroot.T
    top = eigh(symmetric(pulled))[1].T[::-1][:_STARTS]
    axes = np.concatenate([top, here.climbed(operator.sampled(_SAMPLED), top)])
    found = here.measured(operator.sampled(_COMPARED), axes)
    # the top itself, whatever the sample says, what is worst there for γ = 1 at about the largest b, and for small γ
    kept = {0, int(np.argmax(found.each(1.0, 1.0 / max(1.0, found.mean.max()))))}
    longest = int(np.argmax(found.along))
    if found.along[longest] > _WORTH * found.along[sorted(kept)].max():
        kept.add(longest)
    return here.measured(operator.representative(_MEASURED, cov), axes[sorted(kept)])


def kurtosis(law: Stationary) -> Array:
    """The excess kurtosis of each parameter; NaN where it is not known."""
    gamma, dim = _tailed(law), len(law.cov)
    if gamma is None:
        return np.full(dim, np.nan)
    tails = tails_along(law.moments, law.cov, law.dynamics.rule, np.eye(dim))
    return tails.each(gamma, law.dynamics.cumulants(law.moments.n))


def worst_kurtosis(law: Stationary) -> float:
    """The largest excess kurtosis over all directions; NaN where it is not known."""
    gamma = _tailed(law)
    if gamma is None:
        return np.nan
    tails = law.moments.worst_tails(law.cov, law.dynamics)
    return tails.kurtosis(gamma, law.dynamics.cumulants(law.moments.n))


def _tailed(law: Stationary) -> float | None:
    """γ of a chain whose tails are known; None for others."""
    known = law.dynamics.gradient == "control-variate" and law.dynamics.batches != "epochs"
    return law.newton if known else None
