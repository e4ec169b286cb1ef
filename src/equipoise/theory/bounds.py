"""Wasserstein bounds: how far the chain can be from its proxy (theory §8).

Pure functions of the constants in `BoundConstants`. A bound carries the assumptions it rests on, each checked with
its numbers; when one fails the bound has no value and says which. All are for a scalar step `Λ = λI`. Constants that
the paper leaves generic (`C`, `c_1…c_4` of its momentum corollary) are not invented.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.errors import InvalidInput

__all__ = [
    "Assumption",
    "Bound",
    "BoundConstants",
    "WassersteinBound",
    "collect_bounds",
    "covariance_error",
    "finite_time_bound",
    "fourth_moment_bound",
    "fourth_moment_path",
    "gelbrich",
    "momentum_bound",
    "stationary_bound",
    "std_error",
]

Array = NDArray[np.float64]

# Slack for comparing constants that were computed in floating point.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class BoundConstants:
    """The constants the Wasserstein bounds are made of (theory §8).

    They belong to `ℓ_n + R/N`, each loss with its share of the regulariser: then `mean g_n = 0` and `mean J_n = H` at
    the minimiser, which the proofs use.

    Attributes
    ----------
    smoothness, strong_convexity
        `L = max L_n` of the losses, `μ` of their mean.
    third_mean, third_mean_square
        Means of `M_n` and of `M_n²`, where `M_n² ≥ sup_θ Σ_d ‖∇²∂_dℓ_n‖²`.
    score_fourth
        `τ_4⁴ = mean ‖g_n‖⁴`.
    hessian_min, hessian_max
        `μ̂` and `L̂`, the extreme eigenvalues of `H`.
    dim, convex
        `D`, and whether every loss is convex.
    scope
        `"global"`, or where the constants hold ("plug-in at the minimiser", "on the ball …").
    """

    smoothness: float
    strong_convexity: float
    third_mean: float
    third_mean_square: float
    score_fourth: float
    hessian_min: float
    hessian_max: float
    dim: int
    convex: bool
    scope: str = "global"


@dataclass(frozen=True)
class Assumption:
    """One condition of a bound: whether it holds, and why, in words with numbers."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True)
class Bound:
    """An upper bound with everything it rests on.

    `terms` add up to the value of the fourth-moment bound and to the *square* of a distance's. Both `value` and
    `terms` are empty as soon as one assumption fails.
    """

    name: str
    value: float | None
    terms: dict[str, float]
    constants: dict[str, float]
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


@dataclass(frozen=True)
class WassersteinBound:
    """The bound that fits the question (`headline`) and every part it was made of.

    `std` bounds `|σ_θ,d − σ_ψ,d|` for every `d`; `cov` bounds `‖Σ_θ − Σ_ψ‖`.
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
    def terms(self) -> dict[str, float]:
        """The summands of the headline bound."""
        return self.headline.terms

    @property
    def constants(self) -> dict[str, float]:
        """The constants of the headline bound."""
        return self.headline.constants

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The checked assumptions of the headline bound."""
        return self.headline.assumptions

    def __str__(self) -> str:
        return str(self.headline)


def fourth_moment_bound(
    constants: BoundConstants, step: ArrayLike, batch_size: int, inverse_temperature: float, *, replacement: bool = True
) -> Bound:
    """Stationary fourth moment of the proxy, `E‖ψ−θ̂‖⁴`.

    `96 λ²τ_4⁴/(μ̂²B²) + 24 λτ_4²D/(μ̂²Bβ) + 12 D²/(μ̂²β²) + 48 λD(D+2)/(μ̂β²)`
    for `λ ≤ min{1/(4μ̂), Bμ̂/(200L²), 2/(μ̂+L̂)}`.

    Parameters
    ----------
    constants, step, batch_size, inverse_temperature
        `step` is a scalar, a vector or a matrix; only a multiple of the identity is covered.
    replacement
        How batches are drawn; the bound covers both ways.
    """
    c, beta = constants, inverse_temperature
    lam, scalar = _scalar_step(step)
    tau2, mu = math.sqrt(c.score_fourth), c.hessian_min
    # The lemma needs ‖I − λH‖ = 1 − λμ̂, that is λ ≤ 2/(μ̂+L̂). The paper's two limits do not imply it for large B.
    limits = {
        "1/(4μ̂)": _ratio(1.0, 4 * mu),
        "Bμ̂/(200L²)": _ratio(batch_size * mu, 200 * c.smoothness**2),
        "2/(μ̂+L̂)": _ratio(2.0, mu + c.hessian_max),
    }
    terms = {
        "gradient": 96 * _ratio(lam * tau2, mu * batch_size) ** 2,
        "cross": 24 * _ratio(lam * tau2 * c.dim, mu**2 * batch_size * beta),
        "injected": 12 * _ratio(c.dim, mu * beta) ** 2,
        "injected_step": 48 * _ratio(lam * c.dim * (c.dim + 2), mu * beta**2),
    }
    assumptions = (scalar, _batches(replacement), _smooth(c), _curved(c), _step_range(lam, limits))
    used = {"step": lam, "score_second": tau2, "hessian_min": mu, "smoothness": c.smoothness}
    return _bound("stationary fourth moment of the proxy", sum(terms.values()), terms, used, assumptions, c.scope)


def stationary_bound(
    constants: BoundConstants, step: ArrayLike, batch_size: int, inverse_temperature: float, *, replacement: bool = True
) -> Bound:
    """Distance of the stationary laws, `W₂(π_θ, π_ψ)`.

    `(A₀ λ²/B² + 2A₁ λ/(Bβ) + A₂/β²)^{1/2}` for `λ < min{Bμ̂/(200L²), 1/(4L)}`, with
    `C₀ = (2/μ){mean M²/(8L) + M̄²/(4μ)}`, `A₀ = 96C₀τ_4⁴/μ̂²`, `A₁ = 12C₀τ_4²D/μ̂²`,
    `A₂ = (12D² + 48D(D+2))C₀/μ̂²`. `constants["simple"]` is the coarser `A(λ/B + 1/β)`, `A² = max A_i`.
    """
    c, beta = constants, inverse_temperature
    lam, scalar = _scalar_step(step)
    tau2, mu, L, mu_hat = math.sqrt(c.score_fourth), c.strong_convexity, c.smoothness, c.hessian_min
    C0 = _ratio(2.0, mu) * (_ratio(c.third_mean_square, 8 * L) + _ratio(c.third_mean**2, 4 * mu))
    unit = _ratio(C0, mu_hat**2)
    # A₂ replaces λ by 1/μ̂ in the lemma's last term: allowed since λ < 1/(4L) ≤ 1/(4μ̂), and generous by a factor 4.
    A0, A1, A2 = 96 * unit * tau2**2, 12 * unit * tau2 * c.dim, unit * (12 * c.dim**2 + 48 * c.dim * (c.dim + 2))
    per_batch = lam / batch_size
    terms = {"gradient": A0 * per_batch**2, "cross": 2 * A1 * per_batch / beta, "injected": A2 / beta**2}
    limits = {"Bμ̂/(200L²)": _ratio(batch_size * mu_hat, 200 * L**2), "1/(4L)": _ratio(1.0, 4 * L)}
    assumptions = (
        *_common(c, scalar, replacement),
        _curved(c),
        _step_range(lam, limits, strict=True),
    )
    A = math.sqrt(max(A0, A1, A2))
    used = {"C0": C0, "A0": A0, "A1": A1, "A2": A2, "A": A, "simple": A * (per_batch + 1 / beta), "step": lam}
    value = math.sqrt(sum(terms.values()))
    return _bound("stationary Wasserstein distance", value, terms, used, assumptions, c.scope)


def finite_time_bound(
    constants: BoundConstants,
    step: ArrayLike,
    batch_size: int,
    inverse_temperature: float,
    t: int,
    initial_distance2: float = 0.0,
    fourth_moments: ArrayLike | None = None,
    *,
    replacement: bool = True,
) -> Bound:
    """Distance after `t` steps, `W₂(π_θ,t, π_ψ,t)`, for `λ < 1/(2L)`.

    `W₂² ≤ β̄ᵗ W₂²(θ₀,ψ₀) + λ{λ mean M²/2 + M̄²/(4μ)} Σ_{s=1}^{t} β̄^{t−s} C_{s−1}`, `β̄ = 1 − λμ(1 − 2λL)`.

    Parameters
    ----------
    constants, step, batch_size, inverse_temperature, t
        `t` is at least 1.
    initial_distance2
        `W₂²(θ₀, ψ₀)`.
    fourth_moments
        `C_s = E‖ψ_s−θ̂‖⁴` for `s = 0…t−1`, or one number above them all. By default `fourth_moment_path`, for a
        proxy that starts at the minimiser.
    replacement
        How batches are drawn; the bound covers both ways.
    """
    c, (lam, scalar) = constants, _scalar_step(step)
    mu, L = c.strong_convexity, c.smoothness
    gap = lam * mu * (1 - 2 * lam * L)
    source = lam * (lam * c.third_mean_square / 2 + _ratio(c.third_mean**2, 4 * mu))
    if fourth_moments is None:
        fourth_moments = fourth_moment_path(c, lam, batch_size, inverse_temperature, t)
    moments = _as_path(fourth_moments, t)
    terms = _accumulate(1 - gap, source, moments, initial_distance2)
    limits = {"1/(2L)": _ratio(1.0, 2 * L)}
    assumptions = (*_common(c, scalar, replacement), _step_range(lam, limits, strict=True), _finite(moments))
    used = {"contraction": 1 - gap, "source": source, "step": lam, "t": float(t)}
    value = math.sqrt(sum(terms.values()))
    return _bound(f"Wasserstein distance after {t} steps", value, terms, used, assumptions, c.scope)


def momentum_bound(
    constants: BoundConstants,
    step: ArrayLike,
    batch_size: int,
    momentum: float,
    t: int | None = None,
    fourth_moments: ArrayLike | None = None,
    *,
    inverse_temperature: float = math.inf,
    initial_distance2: float = 0.0,
    replacement: bool = True,
) -> Bound:
    """Distance with momentum `κ`, after `t` steps from equal momenta or (`t=None`) in the stationary regime.

    `W₂² ≤ β̄ᵗ W₂²(θ₀,ψ₀) + 𝒫 Σ_{s=1}^{t} β̄^{t−s} C_{s−1}`, or `𝒫 C_∞/(1 − β̄)`, with `β̄` the spectral radius of
    `[[1−λμ+λκ+2λ²L²/(1−κ), λκ(1+λ)], [2L²/(1−κ), κ]]` and, with `X`, `Y` from its entries,
    `𝒫 = λ² mean M²/(2(1−κ)) + λM̄²/(4μ) + mean M² ((X²+Y)^{1/2} − X)/(8L²)`.

    For `λ < (1−κ)/(4L)` and `2λL²/(1−κ) + 2L²κ(1+λ)/(1−κ)² + κ < μ`. The stationary value needs a fourth moment in
    `fourth_moments`: the paper bounds it only up to unnamed constants. For finite `t` the default is
    `fourth_moment_path`.
    """
    c, kappa, (lam, scalar) = constants, momentum, _scalar_step(step)
    L, mu = c.smoothness, c.strong_convexity
    in_range = Assumption("momentum range", 0 <= kappa < 1, f"κ = {kappa:.6g} must be in [0, 1)")
    rest = max(1 - kappa, 0.0)
    left = _ratio(2 * lam * L**2, rest) + _ratio(2 * L**2 * kappa * (1 + lam), rest**2) + kappa
    contracts = Assumption(
        "contraction", left < mu, f"2λL²/(1−κ) + 2L²κ(1+λ)/(1−κ)² + κ = {left:.6g} must be below μ = {mu:.6g}"
    )
    limits = {"(1−κ)/(4L)": _ratio(rest, 4 * L)}
    assumptions = [*_common(c, scalar, replacement), in_range, _step_range(lam, limits, strict=True), contracts]
    if fourth_moments is None and t is None:
        detail = "the paper's fourth-moment bound with momentum has unnamed constants; supply fourth_moments or t"
        assumptions.append(Assumption("fourth moment supplied", False, detail))
    name = "stationary Wasserstein distance" if t is None else f"Wasserstein distance after {t} steps"
    name += f" with momentum {kappa:g}"
    if not all(a.holds for a in assumptions):
        return _bound(name, math.nan, {}, {"step": lam, "momentum": kappa}, tuple(assumptions), c.scope)
    gap, source = _momentum_recursion(c, lam, kappa)
    if t is None:
        moments = _as_path(np.asarray(fourth_moments, dtype=np.float64), 1)
        terms = {"accumulated": source / gap * float(moments[0])}
    else:
        if fourth_moments is None:
            fourth_moments = fourth_moment_path(c, lam, batch_size, inverse_temperature, t, kappa)
        moments = _as_path(fourth_moments, t)
        terms = _accumulate(1 - gap, source, moments, initial_distance2)
    used = {"contraction": 1 - gap, "source": source, "step": lam, "momentum": kappa}
    value = math.sqrt(sum(terms.values()))
    return _bound(name, value, terms, used, (*assumptions, _finite(moments)), c.scope)


def fourth_moment_path(
    constants: BoundConstants,
    step: float,
    batch_size: int,
    inverse_temperature: float,
    steps: int,
    momentum: float = 0.0,
) -> Array:
    """Upper bounds on `C_s = E‖ψ_s−θ̂‖⁴`, `s = 0…steps−1`, for a proxy that starts at the minimiser at rest.

    With `e = u + w`, `u` known and `w` centred: `E‖e‖⁴ ≤ E‖u‖⁴ + 8E‖u‖²‖w‖² + 3E‖w‖⁴`, where
    `E‖w‖² ≤ λ²(2τ_4² + 8L²‖e‖²)/B + 2λD/β` and `E‖w‖⁴ ≤ 8λ⁴(24τ_4⁴ + 384L⁴‖e‖⁴)/B² + 32λ²D(D+2)/β²`.
    Without momentum this is the paper's recursion. With momentum the paper's has unnamed constants; here the norms of
    `u` and of the momentum are bounded by Minkowski's inequality instead, which needs none.
    """
    c, lam = constants, step
    tau2, rho = math.sqrt(c.score_fourth), max(abs(1 - lam * c.hessian_min), abs(1 - lam * c.hessian_max))
    noise = (2 * tau2 / batch_size, 8 * c.smoothness**2 / batch_size)
    noise4 = (24 * tau2**2 / batch_size**2, 384 * c.smoothness**4 / batch_size**2)
    injected = 2 * lam * c.dim / inverse_temperature
    injected4 = 32 * lam**2 * c.dim * (c.dim + 2) / inverse_temperature**2
    base, base4 = lam**2 * noise[0] + injected, 8 * lam**4 * noise4[0] + injected4
    if momentum == 0.0:
        rate2 = rho**2 + lam**2 * noise[1]
        rate4 = rho**4 + 8 * rho**2 * lam**2 * noise[1] + 24 * lam**4 * noise4[1]
        with np.errstate(over="ignore"):  # a diverging recursion ends at infinity, which `_finite` reports
            second = _linear_recursion(rate2, np.full(max(steps - 1, 0), base))
            return _linear_recursion(rate4, 8 * rho**2 * base * second[:-1] + 3 * base4)
    path = np.zeros(steps)
    e2 = v2 = e4 = v4 = 0.0
    root = math.sqrt
    for s in range(1, steps):
        u2, b2 = rho * root(e2) + lam * momentum * root(v2), momentum * root(v2) + c.hessian_max * root(e2)
        u4, b4 = rho * e4**0.25 + lam * momentum * v4**0.25, momentum * v4**0.25 + c.hessian_max * e4**0.25
        u2, b2, u4, b4 = u2 * u2, b2 * b2, u4 * u4, b4 * b4  # u4, b4: still the square roots of fourth moments
        last = (e2, v2, e4, v4)
        eta2, eta4, size = noise[0] + noise[1] * e2, noise4[0] + noise4[1] * e4, root(e4)
        e2, v2 = u2 + lam**2 * eta2 + injected, b2 + eta2
        e4 = u4 * u4 + 8 * (base * u2 + lam**2 * noise[1] * u4 * size) + 3 * (8 * lam**4 * eta4 + injected4)
        v4 = b4 * b4 + 8 * (noise[0] * b2 + noise[1] * b4 * size) + 3 * eta4
        path[s] = e4
        if (e2, v2, e4, v4) == last or not math.isfinite(e4):
            path[s:] = e4
            break
    return path


def std_error(distance: float) -> float:
    """`|σ_θ,d − σ_ψ,d| ≤ ε` for every `d` when `W₂ ≤ ε`."""
    return distance


def covariance_error(distance: float, proxy_cov_norm: float) -> float:
    """`‖Σ_θ − Σ_ψ‖ ≤ 2ε(‖Σ_ψ‖^{1/2} + ε)` when `W₂ ≤ ε`; the norm is the spectral one."""
    return 2 * distance * (math.sqrt(proxy_cov_norm) + distance)


def collect_bounds(
    constants: BoundConstants,
    step: ArrayLike,
    batch_size: int,
    inverse_temperature: float,
    *,
    momentum: float = 0.0,
    t: int | None = None,
    fourth_moments: ArrayLike | None = None,
    proxy_cov_norm: float | None = None,
    replacement: bool = True,
) -> WassersteinBound:
    """Every bound for one algorithm; the headline is the one with momentum, else at time `t`, else stationary."""
    head = (constants, step, batch_size)
    fourth = fourth_moment_bound(*head, inverse_temperature, replacement=replacement)
    stationary = stationary_bound(*head, inverse_temperature, replacement=replacement)
    finite: Bound | None = None
    heavy: Bound | None = None
    if momentum:
        plain = Assumption("no momentum", False, f"this bound is for κ = 0; κ = {momentum:.6g}")
        fourth, stationary = _withdraw(fourth, plain), _withdraw(stationary, plain)
        heavy = momentum_bound(
            *head,
            momentum,
            t,
            fourth_moments,
            inverse_temperature=inverse_temperature,
            replacement=replacement,
        )
    elif t is not None:
        finite = finite_time_bound(
            *head, inverse_temperature, t, fourth_moments=fourth_moments, replacement=replacement
        )
    headline = heavy or finite or stationary
    std = None if headline.value is None else std_error(headline.value)
    cov = None if std is None or proxy_cov_norm is None else covariance_error(std, proxy_cov_norm)
    return WassersteinBound(headline, fourth, stationary, finite, heavy, std, cov)


def gelbrich(mean1: ArrayLike, cov1: ArrayLike, mean2: ArrayLike, cov2: ArrayLike) -> float:
    """`W₂` of two Gaussians, a lower bound on `W₂` of any two laws with these moments.

    `(‖m₁−m₂‖² + min_Q ‖Σ₁^{1/2} − Σ₂^{1/2}Q‖_F²)^{1/2}`, `Q` orthogonal: the polar factor of `Σ₂^{1/2}Σ₁^{1/2}`.

    Examples
    --------
    >>> gelbrich([0.0], [[4.0]], [3.0], [[64.0]])
    6.708203932499369
    """
    # The usual tr(Σ₁ + Σ₂ − 2(Σ₁^{1/2}Σ₂Σ₁^{1/2})^{1/2}) cancels: near-equal covariances cost it half of the digits.
    # A norm of a difference does not, and an inexact Q enters only to second order.
    root1, root2 = _symmetric_root(cov1), _symmetric_root(cov2)
    left, _, right = np.linalg.svd(root2 @ root1)
    shift = np.atleast_1d(np.asarray(mean1, dtype=np.float64) - np.asarray(mean2, dtype=np.float64))
    return math.hypot(float(np.linalg.norm(shift)), float(np.linalg.norm(root1 - root2 @ (left @ right))))
