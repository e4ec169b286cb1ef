"""Shape: the third cumulant of a chain, from third derivatives and the noise of its batches (theory §14).

In the coordinates of the modes (Λ the identity, A = diag(p), S the covariance, μ the mean's shift) and with rows as they
are drawn, P = J_n − J, Q = ½(T_n − T), g̃ = g_n − ḡ, the third cumulant solves

    κ = p³κ − Σ₃ T[·; pS, pS] + b Σ₃ p_i S_i ∂C − b₃ mean g̃g̃g̃
        + b Σ₃ p_i mean{ P (κ_i + S_i μᵀ + μ S_iᵀ) P + E e_i [(Pe) Q[e,e]ᵀ + its transpose] } − b Σ₃ mean P S T S P
        − b₃ mean{ P P P (κ + Σ₃ μ S) + Σ₃ E (Pe)(Pe) Q[e,e] },

Σ₃ a sum over the places of the index that stands apart. Plain gradients have the first line, to leading order; control
variates have no g̃, and the other two lines where batches are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.theory.completion import fidelity_of
from equipoise.theory.targets import posterior

if TYPE_CHECKING:
    from equipoise.theory.dynamics import BatchCumulants
    from equipoise.theory.expansion import Expansion
    from equipoise.theory.moments import Moments
    from equipoise.theory.stationary import Stationary

__all__ = ["Cumulant", "posterior_skewness", "skewness"]

_LARGEST = 50  # parameters up to which tensors D×D×D are made
_NEGLIGIBLE = 0.05  # γbρ up to which small batches change the shape too little to look at rows again
_SETTLED = 1e-10  # relative change at which the iteration for small batches stops
_AGREED = 1e-2  # and one that will do where it would take too long: the equation is one to leading order itself
_LEAST, _ITERATIONS = 4, 200
_WORK = 1e9  # operations of all iterations
_FULL = 1e-12  # |1 − γ| up to which a step is a full one


@dataclass(frozen=True)
class Cumulant:
    """The equation for the third cumulant, in the coordinates of the modes.

    `rates` are p, the eigenvalues of A; `spread` and `shift` are S and μ; `hessian` is J, with the mean and the mean
    square of a drawn row's score (zeros with control variates). `rows` are some rows' derivatives, `batch` what a batch
    makes of a row's moments: b and b₃. `plain` says whether gradients are.
    """

    rates: Array
    spread: Array
    shift: Array
    hessian: Array
    mean_score: Array
    score_scatter: Array
    rows: Expansion
    batch: BatchCumulants
    plain: bool

    @classmethod
    def of(cls, law: Stationary) -> Cumulant:
        """That of a chain without momentum."""
        modes, moments, rule = law.modes, law.moments, law.dynamics.rule
        plain = law.dynamics.gradient == "plain"
        mean = modes.basis.T @ moments.mean_score if plain else np.zeros(len(law.cov))
        score_cov = modes.force(law.dynamics.estimator.score_cov(moments, rule))
        return cls(
            rates=1.0 - modes.rates,
            spread=modes.inward(law.cov),
            shift=modes.dual @ law.mean_bias,
            hessian=modes.force(moments.loss_hessian),
            mean_score=mean,
            score_scatter=score_cov + np.outer(mean, mean),
            rows=moments.drawn(rule).expansion(modes.basis),
            batch=law.dynamics.cumulants(moments.n),
            plain=plain,
        )

    def leading(self) -> Array:
        """The solution for large batches; with plain gradients, to leading order in the noise."""
        return self._source / self._resistance

    def solved(self) -> Array:
        """The solution; with plain gradients the leading order. NaN where the iteration finds none."""
        if self.plain or self.batch.second == 0.0:
            return self.leading()
        fixed, change, most = self._source + self._batches, np.inf, _WORK / self.rows.cost
        enough, found = _SETTLED if most >= _LEAST else _AGREED, fixed / self._resistance
        for _ in range(int(np.clip(most, _LEAST, _ITERATIONS))):
            before, found = found, (fixed + self._carried(found)) / self._resistance
            change = float(np.abs(found - before).max() / max(np.abs(found).max(), np.finfo(float).tiny))
            if change <= enough:
                break
        return found if change <= _AGREED else np.full_like(found, np.nan)

    @property
    def _resistance(self) -> Array:
        p = self.rates
        return 1.0 - p[:, None, None] * p[:, None] * p

    @cached_property
    def _third(self) -> Array:
        return self.rows.third()

    @cached_property
    def _source(self) -> Array:
        """The first line, without κ."""
        p, S = self.rates, self.spread
        slowed = S * p
        total = -_placed(np.einsum("iab,aj,bk->ijk", self._third + self.rows.prior, slowed, slowed, optimize=True))
        if not self.plain:
            return total
        g = self.mean_score
        slope = self.rows.slope() - self.hessian[:, :, None] * g
        noise = np.einsum("im,jmk->ijk", slowed.T, slope, optimize=True)
        total += self.batch.second * _placed(noise + noise.transpose(0, 2, 1))
        cube = (
            self.rows.cube() - _placed(g[:, None, None] * self.score_scatter) + 2.0 * g[:, None, None] * np.outer(g, g)
        )
        return total - self.batch.third * cube

    @cached_property
    def _batches(self) -> Array:
        """The other lines, without κ and μ."""
        p, S, J, T = self.rates[:, None, None], self.spread, self.hessian, self._third
        mixed, bent = self.rows.mixed(S), np.einsum("iab,ab->i", T, S)
        between = S @ T @ S
        images = self.rows.quadratics(between)
        # E e_i (Pe)_j Q[e,e]_k
        JS = J @ S
        coupled = np.einsum("jak,ai->ijk", mixed, S, optimize=True)
        coupled -= 0.5 * JS.T[:, :, None] * bent + np.einsum("ja,kai->ijk", J, between, optimize=True)
        total = self.batch.second * _placed(p * (coupled + coupled.transpose(0, 2, 1)))
        scatter = images - J @ between @ J
        if self.rows.prior.any():
            scatter += self._scatter(S @ self.rows.prior @ S)
        total -= self.batch.second * _placed(scatter)
        # E (Pe)_j (Pe)_k Q[e,e]_i
        crossed = np.einsum("jai,ak->ijk", mixed, S @ J, optimize=True)
        square = self.rows.squares(S) - images - (crossed + crossed.transpose(0, 2, 1))
        square += 2.0 * (J @ between @ J) + bent[:, None, None] * (JS @ J - 0.5 * self.rows.quadratics(S[None])[0])
        return total - self.batch.third * _placed(square)

    def _carried(self, cumulant: Array) -> Array:
        """What P makes of third moments about θ̂: the other lines with κ and μ."""
        p, S, J, m = self.rates[:, None, None], self.spread, self.hessian, self.shift
        apart = m[:, None, None] * S
        moments = cumulant + _placed(apart)
        # a full step carries nothing over
        kept = _placed(p * self._scatter(moments - apart)) if np.abs(p).max() > _FULL else 0.0
        bent = np.einsum("ia,abc->ibc", J, moments, optimize=True)
        all_bent = np.einsum("abc,jb,kc->ajk", bent, J, J, optimize=True)
        cubic = self.rows.cubics(moments) - _placed(self.rows.quadratics(bent)) + 2.0 * all_bent
        return self.batch.second * kept - self.batch.third * cubic

    def _scatter(self, X: Array) -> Array:
        """mean P X_i P."""
        return self.rows.quadratics(X) - self.hessian @ X @ self.hessian


def posterior_skewness(moments: Moments) -> Array:
    """−N T[Σ, Σ, Σ] of each parameter over Σ_ii^(3/2), with Σ = H⁻¹/N."""
    cov = posterior(moments)
    third = moments.third_along(cov)
    return -moments.n * np.einsum("ij,ij->i", third, cov) / np.diag(cov) ** 1.5


def skewness(law: Stationary) -> Array:
    """The skewness of each parameter, NaN where it is not known; see `Stationary.skewness`."""
    dim, dynamics = len(law.cov), law.dynamics
    unknown = np.full(dim, np.nan)
    if dynamics.momentum > 0.0 or dynamics.batches == "epochs" or not law.modes.discrete:
        return unknown
    if dynamics.gradient != "control-variate" or law.newton is None:
        known = dim <= _LARGEST and not np.isnan(law.mean_bias).any()  # as third derivatives are
        return _standardised(law, Cumulant.of(law).solved()) if known else unknown
    gamma, inverse = law.newton, np.linalg.inv(law.hessian)
    bent = law.moments.third_along(law.cov)
    leading = -fidelity_of(gamma) * np.einsum("ij,ij->i", bent, inverse) / np.diag(law.cov) ** 1.5
    small = gamma * law.moments.relative_noise(law.gradient_noise, law.cov) <= _NEGLIGIBLE
    if small or dim > _LARGEST or np.isnan(leading).any():
        return leading
    cumulant = Cumulant.of(law)
    return leading + _standardised(law, cumulant.solved() - cumulant.leading())


def _standardised(law: Stationary, cumulant: Array) -> Array:
    """Each parameter's own third cumulant, from that of the modes, over its standard deviation cubed."""
    R = law.modes.basis
    own = np.einsum("ijk,ai,aj,ak->a", cumulant, R, R, R, optimize=True)
    return own / np.diag(law.cov) ** 1.5


def _placed(X: Array) -> Array:
    """Σ₃: X_i;jk over the three places of the index that stands apart, X symmetric in the other two."""
    return X + X.transpose(1, 0, 2) + X.transpose(1, 2, 0)
