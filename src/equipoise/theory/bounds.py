"""Wasserstein bounds: how far the chain can be from its proxy (theory §8).

Pure functions of `BoundConstants`. A bound carries the assumptions it rests on, each checked with its
numbers; when one fails the bound has no value and says which. All are for a scalar step `Λ = λI`, given as a
scalar, a vector or a matrix. Constants that the paper leaves generic (`C`, `c_1…c_4`) are not invented.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.errors import InvalidInput
from equipoise.linalg import symmetric

__all__ = [
    "Assumption",
    "Bound",
    "BoundConstants",
    "WassersteinBound",
    "covariance_error",
    "finite_time_bound",
    "fourth_moment_bound",
    "fourth_moment_path",
    "gelbrich",
    "momentum_bound",
    "stationary_bound",
]

Numbers = dict[str, float]


@dataclass(frozen=True)
class BoundConstants:
    """The constants the Wasserstein bounds are made of (theory §8).

    They belong to `ℓ_n + R/N`, each loss with its share of the regulariser: then `mean g_n = 0` and
    `mean J_n = H` at the minimiser, which the proofs use.
    """

    smoothness: float  # L = max L_n
    strong_convexity: float  # μ of the full loss
    third_mean: float  # M̄ = mean M_n, where M_n² ≥ sup_θ Σ_d ‖∇²∂_dℓ_n‖²
    third_mean_square: float  # mean of M_n²
    score_fourth: float  # τ_4⁴ = mean ‖g_n‖⁴
    hessian_min: float  # μ̂, smallest eigenvalue of H
    hessian_max: float  # L̂, largest eigenvalue of H
    dim: int
    convex: bool  # every ℓ_n is convex
    scope: str = "global"  # or where they hold: "plug-in at the minimiser", "on the ball …"


@dataclass(frozen=True)
class Assumption:
    """One condition of a bound: whether it holds, and why, in words with numbers."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, repr=False)
class Bound(Card):
    """An upper bound with everything it rests on.

    `terms` add up to `value` for the fourth moment and to its *square* for a distance. As soon as one
    assumption fails, `value` is None and `terms` is empty.
    """

    name: str
    value: float | None
    terms: Numbers
    constants: Numbers
    assumptions: tuple[Assumption, ...]
    scope: str

    @property
    def applies(self) -> bool:
        """Whether every assumption holds."""
        return all(assumption.holds for assumption in self.assumptions)

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.name}: at most {self.value:.4g} (constants: {self.scope})"
        reasons = "; ".join(f"{a.name} ({a.detail})" for a in self.assumptions if not a.holds)
        return f"{self.name}: no value, because this fails: {reasons}"


@dataclass(frozen=True, repr=False)
class WassersteinBound(Card):
    """The bound that answers the question (`headline`) and every part it was made of.

    `std` bounds `|σ_θ,d − σ_ψ,d|` for every `d`, and `cov` bounds `‖Σ_θ − Σ_ψ‖`.
    """

    headline: Bound
    fourth_moment: Bound
    stationary: Bound
    finite_time: Bound | None = None
    momentum: Bound | None = None
    std: float | None = None
    cov: float | None = None

    @property
    def value(self) -> float | None:
        """The bound on the 2-Wasserstein distance, or None when it does not apply."""
        return self.headline.value

    @property
    def terms(self) -> Numbers:
        """The summands of the headline bound's square."""
        return self.headline.terms

    @property
    def constants(self) -> Numbers:
        """The constants of the headline bound."""
        return self.headline.constants

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The checked assumptions of the headline bound."""
        return self.headline.assumptions

    def __str__(self) -> str:
        return str(self.headline)


def fourth_moment_bound(
    constants: BoundConstants, step: ArrayLike, batch_size: int, inverse_temperature: float
) -> Bound:
    """Stationary fourth moment of the proxy, `E‖ψ−θ̂‖⁴`.

    `96 λ²τ_4⁴/(μ̂²B²) + 24 λτ_4²D/(μ̂²Bβ) + 12 D²/(μ̂²β²) + 48 λD(D+2)/(μ̂β²)`
    for `λ ≤ min{1/(4μ̂), Bμ̂/(200L²), 2/(μ̂+L̂)}`.
    """
    c, B, beta, (lam, scalar) = constants, batch_size, inverse_temperature, _scalar_step(step)
    D, mu, tau2 = c.dim, c.hessian_min, math.sqrt(c.score_fourth)
    limits = {"1/(4μ̂)": _ratio(1, 4 * mu), "Bμ̂/(200L²)": _ratio(B * mu, 200 * c.smoothness**2)}
    # The proof needs ‖I − λH‖ = 1 − λμ̂ besides, which the paper's two limits do not imply for large B.
    limits["2/(μ̂+L̂)"] = _ratio(2, mu + c.hessian_max)
    terms = {
        "gradient": 96 * _ratio(lam * tau2, mu * B) ** 2,
        "cross": 24 * _ratio(lam * tau2 * D, mu**2 * B * beta),
        "injected": 12 * _ratio(D, mu * beta) ** 2,
        "injected_step": 48 * _ratio(lam * D * (D + 2), mu * beta**2),
    }
    used = {"step": lam, "score_second": tau2, "hessian_min": mu, "smoothness": c.smoothness}
    assumptions = (*_assumptions(c, scalar, distance=False), _step_range(lam, limits, strict=False))
    return _bound("fourth moment of the proxy", c, terms, used, *assumptions, power=1)


def stationary_bound(constants: BoundConstants, step: ArrayLike, batch_size: int, inverse_temperature: float) -> Bound:
    """Distance of the stationary laws, `W₂(π_θ, π_ψ)`.

    `(A₀ λ²/B² + 2A₁ λ/(Bβ) + A₂/β²)^{1/2}` for `λ < min{Bμ̂/(200L²), 1/(4L)}`, with
    `C₀ = (2/μ){mean M²/(8L) + M̄²/(4μ)}`, `A₀ = 96C₀τ_4⁴/μ̂²`, `A₁ = 12C₀τ_4²D/μ̂²`,
    `A₂ = (12D² + 48D(D+2))C₀/μ̂²`. `constants["simple"]` is the coarser `A(λ/B + 1/β)`, `A² = max A_i`.
    """
    c, beta, (lam, scalar) = constants, inverse_temperature, _scalar_step(step)
    D, mu, L, tau2 = c.dim, c.strong_convexity, c.smoothness, math.sqrt(c.score_fourth)
    C0 = _ratio(2, mu) * (_ratio(c.third_mean_square, 8 * L) + _ratio(c.third_mean**2, 4 * mu))
    unit = _ratio(C0, c.hessian_min**2)
    # A₂ has 1/μ̂ for λ in the lemma's last term: valid, and generous by 4, since λ < 1/(4L) ≤ 1/(4μ̂).
    A0, A1, A2 = 96 * unit * tau2**2, 12 * unit * tau2 * D, unit * (12 * D**2 + 48 * D * (D + 2))
    A, rate = math.sqrt(max(A0, A1, A2)), lam / batch_size
    terms = {"gradient": A0 * rate**2, "cross": 2 * A1 * rate / beta, "injected": A2 / beta**2}
    used = {"C0": C0, "A0": A0, "A1": A1, "A2": A2, "A": A, "simple": A * (rate + 1 / beta), "step": lam}
    limits = {"Bμ̂/(200L²)": _ratio(batch_size * c.hessian_min, 200 * L**2), "1/(4L)": _ratio(1, 4 * L)}
    assumptions = (*_assumptions(c, scalar), _step_range(lam, limits))
    return _bound("Wasserstein distance, stationary", c, terms, used, *assumptions)


def finite_time_bound(
    constants: BoundConstants,
    step: ArrayLike,
    batch_size: int,
    inverse_temperature: float,
    t: int,
    initial_distance2: float = 0.0,
    fourth_moments: ArrayLike | None = None,
) -> Bound:
    """Distance after `t` steps, `W₂(π_θ,t, π_ψ,t)`, for `λ < 1/(2L)`.

    `W₂² ≤ β̄ᵗ W₂²(θ₀,ψ₀) + λ{λ mean M²/2 + M̄²/(4μ)} Σ_{s=1}^{t} β̄^{t−s} C_{s−1}`, `β̄ = 1 − λμ(1 − 2λL)`.
    `fourth_moments` holds `C_s = E‖ψ_s−θ̂‖⁴` for `s = 0…t−1`, or one number above them all; by default
    `fourth_moment_path`, for a proxy that starts at the minimiser. `initial_distance2` is `W₂²(θ₀,ψ₀)`.
    """
    c, (lam, scalar) = constants, _scalar_step(step)
    mu, gap = c.strong_convexity, lam * c.strong_convexity * (1 - 2 * lam * c.smoothness)
    source = lam * (lam * c.third_mean_square / 2 + _ratio(c.third_mean**2, 4 * mu))
    used = {"contraction": 1 - gap, "source": source, "step": lam}
    assumptions = (*_assumptions(c, scalar), _step_range(lam, {"1/(2L)": _ratio(1, 2 * c.smoothness)}))
    name = f"Wasserstein distance, after {t} steps"
    if not all(a.holds for a in assumptions):
        return _bound(name, c, {}, used, *assumptions)
    if fourth_moments is None:
        fourth_moments = fourth_moment_path(c, lam, batch_size, inverse_temperature, t)
    terms, finite = _accumulate(gap, source, fourth_moments, t, initial_distance2)
    return _bound(name, c, terms, used, *assumptions, finite)


def momentum_bound(
    constants: BoundConstants,
    step: ArrayLike,
    batch_size: int,
    momentum: float,
    t: int | None = None,
    initial_distance2: float = 0.0,
    fourth_moments: ArrayLike | None = None,
    inverse_temperature: float = math.inf,
) -> Bound:
    """Distance with momentum `κ`, after `t` steps from equal momenta or (`t=None`) of the stationary laws.

    `W₂² ≤ β̄ᵗ W₂²(θ₀,ψ₀) + 𝒫 Σ_{s=1}^{t} β̄^{t−s} C_{s−1}`, or `𝒫 C_∞/(1 − β̄)` (see `_momentum_rates`), for
    `λ < (1−κ)/(4L)` and `2λL²/(1−κ) + 2L²κ(1+λ)/(1−κ)² + κ < μ`, which is `β̄ < 1` exactly. Without `t`,
    `fourth_moments` is a number `C_∞ ≥ E‖ψ−θ̂‖⁴`, which the paper bounds only up to unnamed constants.
    """
    c, kappa, (lam, scalar) = constants, momentum, _scalar_step(step)
    L, mu, rest = c.smoothness, c.strong_convexity, 1 - kappa
    left = _ratio(2 * lam * L**2, rest) + _ratio(2 * L**2 * kappa * (1 + lam), rest**2) + kappa
    condition = f"2λL²/(1−κ) + 2L²κ(1+λ)/(1−κ)² + κ = {left:.6g} must be below μ = {mu:.6g}"
    supplied = "the paper bounds the stationary one only up to unnamed constants: supply fourth_moments, or t"
    assumptions = (
        *_assumptions(c, scalar),
        Assumption("momentum range", 0 <= kappa < 1, f"κ = {kappa:.6g} must be in [0, 1)"),
        _step_range(lam, {"(1−κ)/(4L)": _ratio(rest, 4 * L)}),
        Assumption("contraction", left < mu, condition),
        Assumption("fourth moment supplied", t is not None or fourth_moments is not None, supplied),
    )
    when, used = "stationary" if t is None else f"after {t} steps", {"step": lam, "momentum": kappa}
    name = f"Wasserstein distance with momentum {kappa:g}, {when}"
    if not all(a.holds for a in assumptions):
        return _bound(name, c, {}, used, *assumptions)
    gap, source = _momentum_rates(c, lam, kappa)
    if fourth_moments is None:
        fourth_moments = fourth_moment_path(c, lam, batch_size, inverse_temperature, t or 1, kappa)
    terms, finite = _accumulate(gap, source, fourth_moments, t, initial_distance2)
    return _bound(name, c, terms, used | {"contraction": 1 - gap, "source": source}, *assumptions, finite)


def fourth_moment_path(
    constants: BoundConstants,
    step: float,
    batch_size: int,
    inverse_temperature: float,
    steps: int,
    momentum: float = 0.0,
) -> Array:
    """Upper bounds on `C_s = E‖ψ_s−θ̂‖⁴`, `s = 0…steps−1`, for a proxy that starts at the minimiser at rest.

    From `E‖u+w‖⁴ ≤ E‖u‖⁴ + 8E‖u‖²‖w‖² + 3E‖w‖⁴` for `u` known and `w = −λη + (2λ/β)^{1/2}ξ` centred, with
    `E‖η‖² ≤ (2τ_4² + 8L²‖e‖²)/B` and `E‖η‖⁴ ≤ (24τ_4⁴ + 384L⁴‖e‖⁴)/B²`. Without momentum it is the paper's
    recursion. With momentum the paper's has unnamed constants; Minkowski's inequality for
    `u = (I−λH)e − λκν` and for `κν + He` needs none.
    """
    c, lam, B, D, tau2 = constants, step, batch_size, constants.dim, math.sqrt(constants.score_fourth)
    rho = max(abs(1 - lam * c.hessian_min), abs(1 - lam * c.hessian_max))
    n0, n2 = 2 * tau2 / B, 8 * c.smoothness**2 / B  # E‖η‖² ≤ n0 + n2 ‖e‖²
    f0, f4 = 24 * (tau2 / B) ** 2, 384 * (c.smoothness**2 / B) ** 2  # E‖η‖⁴ ≤ f0 + f4 ‖e‖⁴
    xi2, xi4 = 2 * lam * D / inverse_temperature, 32 * D * (D + 2) * (lam / inverse_temperature) ** 2
    if momentum == 0:
        from scipy.signal import lfilter  # here, because importing scipy.signal is slow

        w0, w2 = lam**2 * n0 + xi2, lam**2 * n2
        source = np.where(np.arange(steps) > 0, w0, 0.0)
        second = lfilter([1.0], [1.0, -(rho**2) - w2], source)
        source[1:] = 8 * rho**2 * w0 * second[:-1] + 24 * lam**4 * f0 + 3 * xi4
        rate = rho**4 + 8 * rho**2 * w2 + 24 * lam**4 * f4
        return np.asarray(lfilter([1.0], [1.0, -rate], source))
    # Row 0 is ψ − θ̂, row 1 its momentum ν; each is a known part, bounded through `known`, plus noise.
    known = np.array([[rho, lam * momentum], [c.hessian_max, momentum]])
    gain2, gain4 = np.array([lam**2, 1.0]), np.array([24 * lam**4, 3.0])
    path, moments, injected = np.zeros(steps), np.zeros((2, 2)), np.array([[xi2, 0.0], [3 * xi4, 0.0]])
    for s in range(1, steps):
        e2, e4 = moments[:, 0]
        u2, u4 = (known @ np.sqrt(moments[0])) ** 2, (known @ moments[1] ** 0.25) ** 2  # u4: root of E‖u‖⁴
        mixed = (gain2 * n0 + injected[0]) * u2 + gain2 * n2 * u4 * math.sqrt(e4)
        new = np.array([u2 + gain2 * (n0 + n2 * e2), u4**2 + 8 * mixed + gain4 * (f0 + f4 * e4)]) + injected
        if np.array_equal(new, moments) or new.max() > 1e200:  # at its limit, or diverging
            path[s:] = new[1, 0] if new.max() < 1e200 else math.inf
            break
        moments, path[s] = new, new[1, 0]
    return path


def covariance_error(distance: float, proxy_cov_norm: float) -> float:
    """`‖Σ_θ − Σ_ψ‖ ≤ 2ε(‖Σ_ψ‖^{1/2} + ε)` in spectral norm when `W₂ ≤ ε`; standard deviations: `ε`."""
    return 2 * distance * (math.sqrt(proxy_cov_norm) + distance)


def gelbrich(mean1: ArrayLike, cov1: ArrayLike, mean2: ArrayLike, cov2: ArrayLike) -> float:
    """`W₂` of two Gaussians: a lower bound on `W₂` of any two laws with these moments.

    `(‖m₁−m₂‖² + min_Q ‖Σ₁^{1/2} − Σ₂^{1/2}Q‖_F²)^{1/2}`; `Q` is the polar factor of `Σ₂^{1/2}Σ₁^{1/2}`.
    """
    # The usual tr(Σ₁ + Σ₂ − 2(Σ₁^{1/2}Σ₂Σ₁^{1/2})^{1/2}) loses half of the digits for close matrices.
    # The norm of a difference loses none, and an inexact Q enters only to second order.
    root1, root2 = _symmetric_root(cov1), _symmetric_root(cov2)
    left, _, right = np.linalg.svd(root2 @ root1)
    shift = np.ravel(np.asarray(mean1, dtype=np.float64) - np.asarray(mean2, dtype=np.float64))
    return math.hypot(float(np.linalg.norm(shift)), float(np.linalg.norm(root1 - root2 @ (left @ right))))


def _symmetric_root(cov: ArrayLike) -> Array:
    matrix = np.atleast_2d(np.asarray(cov, dtype=np.float64))
    values, vectors = np.linalg.eigh(symmetric(matrix))
    return np.asarray((vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T)


def _momentum_rates(c: BoundConstants, lam: float, kappa: float) -> tuple[float, float]:
    """`1 − β̄` and `𝒫`, where `β̄` is the spectral radius of the recursion of `(E‖θ−ψ‖², E‖m−ν‖²)`.

    `a = [[1−λμ+λκ+2λ²L²/(1−κ), λκ(1+λ)], [2L²/(1−κ), κ]]` is its matrix; with `X = a₁₁−a₂₂`, `Y = 4a₁₂a₂₁`,
    `𝒫 = λ² mean M²/(2(1−κ)) + λM̄²/(4μ) + mean M² ((X²+Y)^{1/2} − X)/(8L²)`. The paper's theorem points to
    another matrix, that of the proxy's second moments; this one is from the theorem's proof.
    """
    L2, mu, rest, M2 = c.smoothness**2, c.strong_convexity, 1 - kappa, c.third_mean_square
    decay = lam * (mu - kappa - 2 * lam * L2 / rest)  # 1 − a₁₁
    X, product = rest - decay, 2 * L2 * lam * kappa * (1 + lam) / rest  # product = a₁₂a₂₁
    root = math.sqrt(X**2 + 4 * product)
    difference = 4 * product / (root + X) if X > 0 else root - X  # root − X without cancellation
    # det(I − a) = (1 − β̄)(1 − β₂), β₂ the smaller eigenvalue: no cancellation when β̄ is near 1.
    gap = 2 * (decay * rest - product) / (decay + rest + root)
    return gap, lam**2 * M2 / (2 * rest) + lam * c.third_mean**2 / (4 * mu) + M2 * difference / (8 * L2)


def _accumulate(
    gap: float, source: float, moments: ArrayLike, t: int | None, initial: float
) -> tuple[Numbers, Assumption]:
    """The terms at time `t` (None: in the limit), and whether the fourth moments are finite."""
    path = np.asarray(moments, dtype=np.float64)
    if t is not None and t < 1:
        raise InvalidInput("t", "at least 1", t, "count the steps from 1")
    if path.ndim and path.shape != (t,):
        raise InvalidInput("fourth_moments", f"one number, or one for each s < {t}", path.shape, "supply them so")
    finite = Assumption("finite fourth moments", bool(np.isfinite(path).all()), f"largest {path.max():.6g}")
    if not finite.holds:
        return {}, finite
    decay = 0.0 if t is None else (1 - gap) ** t
    weights = (1 - gap) ** np.arange(path.size)[::-1] if path.ndim else (1 - decay) / gap
    return {"initial": decay * initial, "accumulated": source * float(np.sum(weights * path))}, finite


def _ratio(numerator: float, denominator: float) -> float:
    """A quotient that is infinite, not an error, when a constant degenerates; an assumption reports it."""
    return numerator / denominator if denominator > 0 else math.inf


def _scalar_step(step: ArrayLike) -> tuple[float, Assumption]:
    """`λ` of `Λ = λI` (else the largest eigenvalue, for the report), and whether the step has that form."""
    array = np.asarray(step, dtype=np.float64)
    matrix = np.diag(array) if array.ndim == 1 else np.atleast_2d(array)
    lam = float(np.linalg.eigvalsh(matrix)[-1])
    scalar = np.allclose(matrix, lam * np.eye(len(matrix)), rtol=1e-9, atol=1e-12 * abs(lam))
    detail = f"Λ = {lam:.6g} I" if scalar else f"Λ is not a multiple of I; largest eigenvalue {lam:.6g}"
    return lam, Assumption("scalar step", scalar, detail)


def _step_range(lam: float, limits: Numbers, strict: bool = True) -> Assumption:
    name, limit = min(limits.items(), key=lambda item: item[1])
    holds = 0 < lam < limit or (not strict and lam == limit)
    return Assumption("step range", holds, f"λ = {lam:.6g} must be positive and below {name} = {limit:.6g}")


def _assumptions(c: BoundConstants, scalar: Assumption, distance: bool = True) -> tuple[Assumption, ...]:
    """What the proxy's moments rest on and, for a distance, the paper's A, B and C besides."""
    # Without replacement: Jensen covers the expansion of E‖θ−ψ‖²; for the noise, Hoeffding's comparison says
    # that convex functions of the sample's mean, here powers 2 and 4 of its norm, have no larger expectation.
    batches = "uniform, independent from step to step; with replacement, or without: the noise is no larger"
    L, mu, mu_hat, M2, slack = c.smoothness, c.strong_convexity, c.hessian_min, c.third_mean_square, 1 + 1e-9
    smooth = f"L = {L:.6g} must be finite and at least L̂ = {c.hessian_max:.6g}"
    third = f"M̄ = {c.third_mean:.6g} and mean M² = {M2:.6g} must be finite"
    curved = f"μ = {mu:.6g} must be positive and at most μ̂ = {mu_hat:.6g}"
    every = (
        scalar,
        Assumption("batches", True, batches),
        Assumption("smooth losses", c.hessian_max <= L * slack < math.inf, smooth),
        Assumption("positive Hessian", mu_hat > 0, f"μ̂ = {mu_hat:.6g} must be positive"),
        Assumption("convex losses", c.convex, f"every loss must be convex: {c.convex}"),
        Assumption("bounded third derivatives", c.third_mean**2 <= M2 * slack < math.inf, third),
        Assumption("strong convexity", 0 < mu <= mu_hat * slack, curved),
    )
    return every if distance else every[:4]


def _bound(
    name: str, c: BoundConstants, terms: Numbers, used: Numbers, *assumptions: Assumption, power: float = 0.5
) -> Bound:
    """`(Σ terms)^power`, or neither terms nor value when an assumption fails."""
    if all(a.holds for a in assumptions):
        return Bound(name, sum(terms.values()) ** power, terms, used, assumptions, c.scope)
    return Bound(name, None, {}, used, assumptions, c.scope)
