"""One epoch of random reshuffling in the coordinates of the modes: everything the law needs, entry by entry (theory §15).

The gradient noises of an epoch's n batches have covariances N/(N−1) V (δ_ij/B_i − 1/N), and epochs are independent: the
noise of independent batches, less ω = 1/(N−1) times that of one vector that stays the same for a whole epoch. With F the
mean dynamics of a mode, (1−d) or a 2×2 matrix with momentum, and g = (−1) or (−1, 1) what a gradient does to it,

    S_r = Σ_{k<r} F^k g,        T_r = Σ_{i≤r} S_i

are all that the constant vector brings. Sums over steps are made by doubling, so that n steps cost log n, and without
differences of nearly equal numbers: what n steps take away of a mode, I − Fⁿ, is a sum too, for a mode may move by less
than the spacing of numbers about one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from equipoise.arrays import Array
from equipoise.theory.modes import Modes

__all__ = ["Epoch", "Sizes"]

# Positions over which squares are averaged. All of them for short epochs; of a long one, along which they change slowly,
# as many evenly spaced ones: the average was then within 0.1 % in every case tried.
_POSITIONS = 16


@dataclass(frozen=True)
class Sizes:
    """What the sizes of an epoch's n batches come to, in units of the score covariance V.

    `each` is η = N/(B(N−1)) of a full batch, `last` what the last batch has more, N/(N−1) (1/r − 1/B) for one of r rows,
    and `common` ω = 1/(N−1). `surplus` is the sum of the noise's covariances over all lags, N/(N−1) (mean 1/B_i − n/N):
    exactly zero when all batches are full and every row is used.
    """

    steps: int
    each: float
    last: float
    common: float
    surplus: float

    @property
    def mean(self) -> float:
        """The average of N/(N−1)/B_i."""
        return self.each + self.last / self.steps

    @classmethod
    def of(cls, sizes: tuple[int, ...], n: int) -> Sizes:
        """Of batches of these sizes out of n rows."""
        steps, rows = len(sizes), Fraction(n, max(1, n - 1))
        extra = Fraction(1, sizes[-1]) - Fraction(1, sizes[0])
        surplus = rows * (Fraction(1, sizes[0]) + extra / steps - Fraction(steps, n))
        return cls(steps, float(rows / sizes[0]), float(rows * extra), float(rows / n), float(surplus))


@dataclass(frozen=True)
class Epoch:
    """The covariances of a reshuffled chain in the modes' coordinates, without the curvature of the rows.

    Arrays over pairs of modes have those two axes last, and the entries of the state (position, momentum) first. Modes by
    themselves, `own`, have one axis in place of the two. `transition` is F of every mode, (D, m, m), where m is 1, or 2
    with momentum; `damping` is I − F, `score` Rᵀ V R, and `injected` R⁻¹ M R⁻ᵀ.
    """

    sizes: Sizes
    transition: Array
    damping: Array
    score: Array
    injected: Array

    @classmethod
    def of(cls, modes: Modes, score_cov: Array, sizes: Sizes) -> Epoch:
        """Of a chain's modes, its V, and the batches of its epoch."""
        m = 2 if modes.momentum > 0.0 else 1
        d, k = modes.rates, np.full(len(modes.rates), modes.momentum)
        damping = np.array([[d, k], [-d, 1.0 - k]]).transpose(2, 0, 1)
        return cls(sizes, modes.transition[:, :m, :m], damping[:, :m, :m], modes.force(score_cov), modes.noise)

    @property
    def own(self) -> Epoch:
        """The modes by themselves: of every covariance the diagonal."""
        return replace(self, score=np.diag(self.score), injected=np.diag(self.injected))

    @property
    def kick(self) -> Array:
        """g: what a gradient does to (position, momentum)."""
        return np.array([-1.0, 1.0][: self.transition.shape[-1]])

    @cached_property
    def augmented(self) -> Array:
        """Q with (S_{r+1}, T_{r+1}, 1) = Q (S_r, T_r, 1)."""
        F, m = self.transition, len(self.kick)
        Q = np.zeros((len(F), 2 * m + 1, 2 * m + 1))
        Q[:, :m, :m] = Q[:, m : 2 * m, :m] = F
        Q[:, m : 2 * m, m : 2 * m] = np.eye(m)
        Q[:, :m, -1] = Q[:, m : 2 * m, -1] = self.kick
        Q[:, -1, -1] = 1.0
        return Q

    def sums(self, count: int) -> Array:
        """(S_r, T_r, 1) at r = count for every mode, (D, 2m + 1)."""
        return np.linalg.matrix_power(self.augmented, count)[:, :, -1]

    @cached_property
    def totals(self) -> Array:
        """Σ_{r<n} (S_r, T_r, 1) for every mode, (D, 2m + 1)."""
        start = self.sums(0).T[:, None, :, None]
        return _pair_sum(self.augmented, np.ones((1, 1, 1)), start, self.sizes.steps)[:, 0, :, 0].T

    @cached_property
    def mean(self) -> Array:
        """P̄, the covariance of the state averaged over the epoch, (m, m, D, D).

        P̄ = F P̄ Fᵀ + V (surplus ggᵀ + ω (tgᵀ + gtᵀ)) + M with t = (I−F) Σ_{r<n} T_r / n: what is left of the epoch-average
        equation when everything that cancels has been cancelled by hand.
        """
        n, m, g = self.sizes.steps, len(self.kick), self._kicks
        t = np.einsum("iab,ib->ia", self.damping, self.totals[:, m : 2 * m] / n)
        crossed = self.sizes.common * (self._outer(t, g) + self._outer(g, t))
        source = (crossed + self.sizes.surplus * self._outer(g, g)) * self.score
        return _balanced(self.damping, self._with_injected(source))

    def at(self, position: int) -> Array:
        """P_j, the covariance of the state after j batches of an epoch, (m, m, D, D)."""
        if position in {0, self.sizes.steps}:
            return self._start
        power = np.linalg.matrix_power(self.transition, position)
        return _carried(power, self._start, power) + self._made(position)

    @cached_property
    def _start(self) -> Array:
        """P_0 = F^n P_0 F^nᵀ + R_n."""
        made = self._made(self.sizes.steps) + self.sizes.last * self._outer(self._kicks, self._kicks) * self.score
        return _balanced(self._damped(self.sizes.steps), made)

    def _damped(self, count: int) -> Array:
        """I − F^count = Σ_{k<count} F^k (I − F)."""
        identity = np.eye(len(self.kick))[None]
        return _pair_sum(self.transition, identity, self.damping.transpose(1, 2, 0), count).transpose(2, 0, 1)

    @property
    def _kicks(self) -> Array:
        return np.tile(self.kick, (len(self.transition), 1))

    def _outer(self, u: Array, v: Array) -> Array:
        """u_i v_jᵀ for every pair of modes, or u_i v_iᵀ."""
        if self.score.ndim == 1:
            return u.T[:, None] * v.T
        return u.T[:, None, :, None] * v.T[:, None, :]

    def _made(self, count: int) -> Array:
        """R_j without what an incomplete last batch adds: η V Σ_{k<j} F^k ggᵀ F^kᵀ − ω V S_j S_jᵀ, and what is injected.

        The sum of squares is that about the mean, by doubling, and j⁻¹ S_j S_jᵀ; the latter always outweighs ω/η.
        """
        S = self.sums(count)[:, : len(self.kick)]
        about = self.sizes.each * self._scatter(count)
        about = about + (self.sizes.each / count - self.sizes.common) * self._outer(S, S)
        noise = self._with_injected(np.zeros_like(about))
        return about * self.score + _pair_sum(self.transition, self.transition, noise, count)

    def _scatter(self, count: int) -> Array:
        """Σ_{k<count} (F^k g − mean)(F^k g − mean)ᵀ over pairs of modes, by doubling."""
        F, g, m = self.transition, self._kicks, len(self.kick)
        total, S, power, done = np.zeros((m, m, *self.score.shape)), g, F, 1
        for bit in bin(count)[3:]:
            later = np.einsum("iab,ib->ia", power, S)
            total = total + _carried(power, total, power) + self._outer(S - later, S - later) / (2.0 * done)
            S, power, done = S + later, power @ power, 2 * done
            if bit == "1":
                new = np.einsum("iab,ib->ia", power, g)
                away = new - S / done
                total = total + done / (done + 1.0) * self._outer(away, away)
                S, power, done = S + new, power @ F, done + 1
        return total

    def _with_injected(self, source: Array) -> Array:
        """The source with the injected noise, which moves positions only."""
        source = source.copy()
        source[0, 0] += self.injected
        return source

    def autocovariance(self, lag: int) -> Array:
        """Cov(z_{t+k}, z_t) averaged over positions t: F^k P̄ − (ω/n) V Σ_{i=1}^{min(k,n)} F^{k−i} g T_{n−i}ᵀ."""
        n, m, within = self.sizes.steps, len(self.kick), min(lag, self.sizes.steps)
        power = np.linalg.matrix_power(self.transition, lag)
        first = np.einsum("iac,cij->aij", power, self.mean[:, 0])[0]
        if within == 0:
            return first
        g = np.einsum("iab,b->ia", np.linalg.matrix_power(self.transition, lag - within), self.kick)
        later = _pair_sum(self.transition, self.augmented, self._outer(g, self.sums(n - within)), within)[0, m]
        return first - self.sizes.common / n * self.score * later

    def iterate_average(self, k: int) -> Array:
        """Covariance of the mean of k successive positions, averaged over where they begin.

        k⁻² [k P̄ + W + Wᵀ], W = Σ_{l<k} (k−l) Ξ_l, whose second part is −(ω/n) V Σ_{i≥1} T_{k−i} T_{n−i}ᵀ.
        """
        n, m, many = self.sizes.steps, len(self.kick), min(k, self.sizes.steps) - 1
        W = np.zeros_like(self.score)
        if k > 1:
            # Σ_{l<k} (k−l) F^l = (Σ_{i<k} Σ_{l≤i} F^l) − k: from T with g replaced by every unit vector
            weights = np.stack([self._weights(k, unit) for unit in np.eye(m)])
            W = np.einsum("ci,cij->ij", weights, self.mean[:, 0])
        if many > 0:
            start = self._outer(self.sums(k - many), self.sums(n - many))
            W -= self.sizes.common / n * self.score * _pair_sum(self.augmented, self.augmented, start, many)[m, m]
        return self.mean[0, 0] / k + (W + W.T) / (float(k) * k)

    def _weights(self, k: int, unit: Array) -> Array:
        """The position's entry of Σ_{0<l<k} (k−l) F^l unit, for every mode."""
        m = len(unit)
        Q = self.augmented.copy()
        Q[:, :m, -1] = Q[:, m : 2 * m, -1] = np.einsum("iab,b->ia", self.transition, unit)
        return np.linalg.matrix_power(Q, k - 1)[:, m, -1]

    def covariance_noise(self, thin: int, metric: Array) -> float:
        """Mean over positions of Σ over lags of ‖Ξ‖²_F + tr(Ξ)², lags at multiples of `thin`; T times E‖Σ̂−Σ‖²_F.

        `metric` is RᵀR, or RᵀD⁻²R for the norm of D⁻¹ΞD⁻¹.
        """
        total, positions = 0.0, self._positions()
        for position in positions:
            Y = self._lagging(position)
            v = np.einsum("ij,aij->ai", metric, Y)
            X = metric * np.einsum("aij,bkj->abik", Y @ metric, Y, optimize=True) + v[:, None, :, None] * v[:, None, :]
            total += float(self._squares(position, thin, X).sum())
        return total / len(positions)

    def square_times(self) -> Array:
        """Σ over lags of the squared autocorrelation of each mode, averaged over positions."""
        own, total, positions = self.own, np.zeros(len(self.score)), self._positions()
        for position in positions:
            y = own._lagging(position)
            total += own._squares(position, 1, y[:, None] * y)
        return total / (len(positions) * own.mean[0, 0] ** 2)

    def _positions(self) -> list[int]:
        n = self.sizes.steps
        return [(2 * k + 1) * n // (2 * min(n, _POSITIONS)) for k in range(min(n, _POSITIONS))]

    def _lagging(self, position: int) -> Array:
        """Cov(state, z) at a position, and below it Cov(a later gradient of this epoch, z): (m + 1, D, D)."""
        later = -self.sizes.common * self.score * self.sums(position)[:, 0]
        return np.concatenate([self.at(position)[:, 0], later[None]])

    def _squares(self, position: int, thin: int, X: Array) -> Array:
        """Σ over lags, multiples of `thin`, of the first entry of Z^k X Z^kᵀ; Z is F with the rest of the epoch, then F.

        For every pair of modes, or for every mode when X has one axis of them.
        """
        F, m = self.transition, len(self.kick)
        Z = np.zeros((len(F), m + 1, m + 1))
        Z[:, :m, :m], Z[:, :m, m], Z[:, m, m] = F, self.kick, 1.0
        left = self.sizes.steps - position
        within = left // thin
        stride, here = np.linalg.matrix_power(Z, thin), X[0, 0].copy()
        if within:
            here += 2.0 * _pair_sum(stride, stride, _carried(stride, X, stride), within)[0, 0]
        end = np.linalg.matrix_power(Z, left)
        rest = np.linalg.matrix_power(F, (within + 1) * thin - left)
        beyond = _carried(rest, _carried(end, X, end)[:m, :m], rest)
        return here + 2.0 * _balanced(self._damped(thin), beyond)[0, 0]

    def shift(self, response: Array) -> Array:
        """μ̄ in the modes' coordinates, averaged over the epoch, given Rᵀ U(r_m r_mᵀ) in column m."""
        n = self.sizes.steps
        held = np.linalg.solve(self.damping, self._kicks[..., None])
        return -self.sizes.common * held[:, 0, 0] * (response @ (self.totals[:, 0] / n))

    def shift_at(self, position: int, response: Array) -> Array:
        """μ_j in the modes' coordinates, after j batches of an epoch: μ_{j+1} = F μ_j − ω g Σ_m U_m S_j(m)."""
        n, F = self.sizes.steps, self.transition
        whole = self._driven(n, response)
        start = np.linalg.solve(self._damped(n), whole[..., None])
        carried = np.einsum("iab,ib->ia", np.linalg.matrix_power(F, position), start[..., 0])
        return (carried + self._driven(position, response))[:, 0]

    def _driven(self, count: int, response: Array) -> Array:
        """What an epoch's first batches have moved the mean by: Σ_{i<j} F^{j−1−i} g S_i, over pairs of modes."""
        m, dim = len(self.kick), len(response)
        Z = np.zeros((dim, dim, 2 * m + 1, 2 * m + 1))
        Z[..., :m, :m] = self.transition[:, None]
        Z[..., :m, m] = self.kick
        Z[..., m : 2 * m, m : 2 * m] = self.transition
        Z[..., m : 2 * m, -1] = self.kick
        Z[..., -1, -1] = 1.0
        moved = np.linalg.matrix_power(Z, count)[..., :m, -1]
        return -self.sizes.common * np.einsum("ik,ika->ia", response, moved)


def _carried(left: Array, X: Array, right: Array) -> Array:
    """L_i X_ij R_jᵀ for every pair of modes, or L_i X_i R_iᵀ when X has one axis of modes."""
    L, R = (np.ascontiguousarray(a.transpose(1, 2, 0)) for a in (left, right))
    if X.ndim == 4:
        L = L[..., None]
    # the state has one to five entries, and there are many pairs: one elementwise operation for each product of entries
    half = [_combined(row, X) for row in L]
    return np.stack([np.stack([_combined(row, entries) for row in R]) for entries in half])


def _combined(weights: Array, terms: Array) -> Array:
    """Σ_c weights_c terms_c."""
    total = weights[0] * terms[0]
    for c in range(1, len(weights)):
        total += weights[c] * terms[c]
    return total


def _pair_sum(left: Array, right: Array, X: Array, count: int) -> Array:
    """Σ_{k<count} L^k X R^kᵀ, by doubling."""
    total, L, R = X, left, right
    for bit in bin(count)[3:]:
        total = total + _carried(L, total, R)
        L, R = L @ L, R @ R
        if bit == "1":
            total = X + _carried(left, total, right)
            L, R = L @ left, R @ right
    return total


def _balanced(E: Array, source: Array) -> Array:
    """X = F_i X F_jᵀ + source, F = I − E, for every pair of modes, or for every mode when the source has one axis of them."""
    m, tail, eye = E.shape[-1], source.shape[2:], np.eye(E.shape[-1])
    left, right = (E, E) if len(tail) == 1 else (E[:, None], E[None])
    if m == 1:
        a, b = left[..., 0, 0], right[..., 0, 0]
        return source / (a + b - a * b)
    # I − F_i ⊗ F_j without the differences of nearly equal numbers that a slow mode would make of it
    parts = (left, eye), (eye, right), (-left, right)
    pair = sum(np.einsum("...ac,...bd->...abcd", a, b) for a, b in parts)
    flat = np.moveaxis(source.reshape(m * m, *tail), 0, -1)
    found = np.linalg.solve(pair.reshape(*tail, m * m, m * m), flat[..., None])[..., 0]
    return np.moveaxis(found, -1, 0).reshape(source.shape)
