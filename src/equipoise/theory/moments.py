"""Moments of the loss at its minimiser: J, V, H and the operator K, the only thing the theory ever sees (theory §1)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_options, finite_array, instance, numeric_array, shown, whole
from equipoise.errors import InvalidInput
from equipoise.linalg import congruent, split_range, symmetric
from equipoise.theory.curvature import Curvature, DenseCurvature, Foreseeing, RankOne, Turnable
from equipoise.theory.dynamics import BatchRule, Dynamics
from equipoise.theory.newton import noise_peak

if TYPE_CHECKING:
    from equipoise.theory.tails import Tails

__all__ = ["Bound", "Moments"]


_DIAGONAL = 20.0  # times D roundings of the largest entry: no more beside a diagonal is rounding
_THIRD_ROWS = 20_000  # rows whose third derivatives are averaged, at most: a law of so many draws is all but normal
# Parameters of a direction that are named, and the least share of the largest part they must have.
_NAMED, _SHARE = 4, 0.1


class Bound(Protocol):
    """What can be attached to moments: a problem."""

    def at_constant(self, constant: float | None) -> Self:
        """The problem with its constant fixed."""
        ...

    def curvature(self, theta: Array) -> Curvature:
        """The operator behind K at θ."""
        ...


@dataclass(frozen=True, repr=False)
class Moments(Card):
    """What the theory knows of a model and its data, at the minimiser. It holds no rows.

    Attributes
    ----------
    n
        Number of observations N the chain runs on (also when the moments come from a subsample of them).
    params
        The point θ̂ at which they were taken, flat.
    loss_hessian, hessian
        J = mean ∇²ℓ_n and H = J + ∇²R/N.
    score_cov, mean_score
        V, the centred covariance of the scores, and ḡ, their mean.
    noise_ratio
        Residual variance over working variance: what the well-specified linear proxy takes for σ²/s².
    names
        Parameter names.
    constant
        The loss's constant (a scale, a shape) they were taken with; every later verb uses the same.
    loss
        What the loss is called, so that a chain of another one is refused; empty for anyone's own numbers.
    curvature
        The per-observation curvature behind K: a reference to the problem, neither saved nor pickled. Without it what
        was computed before still works; `attach` brings it back.
    """

    n: int
    params: Array
    loss_hessian: Array
    hessian: Array
    score_cov: Array
    mean_score: Array
    noise_ratio: float
    names: tuple[str, ...] = ()
    constant: float | None = None
    loss: str = ""
    curvature: Curvature | None = field(default=None, repr=False, compare=False)

    @property
    def dim(self) -> int:
        """Number of parameters D."""
        return self.hessian.shape[0]

    def curvature_noise(self, S: ArrayLike, dynamics: Dynamics | None = None) -> Array:
        """K(S) = mean J_n S J_n − J S J; with batches by leverage that of the weighted rows (theory §13)."""
        S = self._matrix(S)
        operator = self._operator() if dynamics is None else self.drawn(dynamics.rule)
        return symmetric(operator.quadratic(S) - congruent(self.loss_hessian, S))

    def expecting(self, dynamics: Dynamics, S: Array | None) -> None:
        """Say that K(S) will be asked for, or K of many matrices if it is None, before anything else is that takes a pass."""
        if self.curvature is None:
            return
        operator = self.drawn(dynamics.rule)
        if isinstance(operator, Foreseeing):
            operator.expecting(S)

    def turned_noise(self, basis: Array, dual: Array, dynamics: Dynamics) -> Callable[[Array], Array] | None:
        """S ↦ Rᵀ K(R S Rᵀ) R by curvature in these coordinates, R = basis and R⁻¹ = dual; None where it is not to be had."""
        operator = self.drawn(dynamics.rule)
        curvature = operator.turned(basis, dual) if isinstance(operator, Turnable) else None
        if curvature is None:
            return None
        J = congruent(basis.T, self.loss_hessian)
        d = np.diag(J)
        # often they are the Hessian's own: then nothing is left of a product of matrices
        own = np.abs(J - np.diag(d)).max() <= _DIAGONAL * len(d) * np.finfo(float).eps * np.abs(d).max()
        return lambda S: symmetric(curvature.quadratic(S) - (np.outer(d, d) * S if own else congruent(J, S)))

    def noise_peak(self, basis: Array, dynamics: Dynamics, error: float) -> float | None:
        """The largest eigenvalue of S ↦ Rᵀ K(R S Rᵀ) R where rows are few, R = basis; None elsewhere."""
        operator = self.drawn(dynamics.rule)
        factors = operator.factors(basis) if isinstance(operator, RankOne) else None
        return None if factors is None else noise_peak(factors, congruent(basis.T, self.loss_hessian), error)

    @checked_options
    def curvature_number(self, target: str | ArrayLike, dynamics: Dynamics | None = None) -> float:
        """ρ = λ_max(Σ⁻¹ H⁻¹ K(Σ) H⁻¹): about how many rows an effective draw costs with control variates (theory §13).

        Parameters
        ----------
        target
            Σ, as a matrix or by name.
        dynamics
            With `batches="leverage"`, ρ is that of the weighted rows.
        """
        matrix, dynamics = self._asked(target, dynamics)
        return self.relative_noise(self.curvature_noise(matrix, dynamics), matrix)

    @checked_options
    def tails(self, target: str | ArrayLike, dynamics: Dynamics | None = None) -> Tails:
        """What the tails of a chain with control variates and a Newton step depend on besides γ and B (theory §13).

        One pass over the rows, after which ``tails.kurtosis(gamma, 1 / batch_size)`` costs nothing.

        Parameters
        ----------
        target
            Σ, as a matrix or by name.
        dynamics
            With `batches="leverage"`, the tails are those of the weighted rows; the batch size does not matter.
        """
        return self.worst_tails(*self._asked(target, dynamics))

    def worst_tails(self, cov: Array, dynamics: Dynamics) -> Tails:
        """The same for a covariance; the last ones are kept: a plan asks for them, and then the law of its chain."""
        from equipoise.theory.tails import worst_tails  # tails are made from moments

        key, kept = (cov.tobytes(), dynamics.rule.weighted), self._tails
        if key not in kept:
            found = worst_tails(self, cov, dynamics.rule, self.curvature_noise(cov, dynamics))
            while len(kept) > 1:
                del kept[next(iter(kept))]
            kept[key] = found
        return kept[key]

    @cached_property
    def _tails(self) -> dict[tuple[bytes, bool], Tails]:
        return {}

    def relative_noise(self, noise: Array, cov: Array) -> float:
        """λ_max(Σ⁻¹ H⁻¹ C H⁻¹)."""
        pulled = np.linalg.solve(self.hessian, np.linalg.solve(self.hessian, noise).T)
        return float(eigh(symmetric(pulled), cov, eigvals_only=True)[-1])

    @cached_property
    def quiet(self) -> Array:
        """Directions (rows) along which no score varies: there no gradient has noise, and the sandwich no variance.

        Redundant parameters and collinear columns, which a prior alone decides.
        """
        return split_range(self.score_cov, np.diag(self.score_cov) + self.mean_score**2)[1]

    def mainly(self, directions: Array) -> str:
        """The parameters that have most to do with some directions (rows), for people."""
        names = self.names or tuple(f"parameter {j}" for j in range(self.dim))
        part = np.linalg.norm(directions, axis=0) * np.sqrt(np.abs(np.diag(self.hessian)))
        part = np.round(part / (part.max() or 1.0), 6)  # rounding errors do not order what is alike
        order = [int(j) for j in np.argsort(-part, kind="stable")[:_NAMED] if part[j] > _SHARE]
        return ", ".join(names[j] for j in order)

    def drawn(self, rule: BatchRule) -> Curvature:
        """The curvature of rows as a batch rule draws them."""
        return self._leveraged if rule.weighted else self._operator()

    def drawn_score_cov(self, rule: BatchRule) -> Array:
        """The covariance of a drawn row's score: V, or that of the weighted rows."""
        if not rule.weighted:
            return self.score_cov
        return symmetric(self._leveraged_scatter - np.outer(self.mean_score, self.mean_score))

    @cached_property
    def _leveraged(self) -> Curvature:
        return self._operator().leveraged(np.linalg.inv(self.hessian).astype(np.float64), self.loss_hessian)

    @cached_property
    def _leveraged_scatter(self) -> Array:
        """Kept: every law of rows drawn by leverage asks for it, and it takes a pass over the data."""
        return self._leveraged.scatter()

    def score_curvature(self, basis: Array) -> Array:
        """mean (J_n − J) r rᵀ (g_n − ḡ) for every column r of a basis, as columns (theory §15)."""
        return self._operator().cross(basis) - self.loss_hessian @ (basis * (self.mean_score @ basis))

    def third_derivative(self, S: ArrayLike) -> Array:
        """∇³L(θ̂)[S], a vector."""
        return self._operator().third(self._matrix(S))

    def third_along(self, vectors: Array) -> Array:
        """∇³L(θ̂)[v, v, ·] for each of some vectors (m, D); of 20,000 rows at most, always the same ones."""
        return self._operator().sampled(_THIRD_ROWS).third_along(vectors)

    def posterior_skewness(self) -> Array:
        """The posterior's own skewness of each parameter, to leading order: −N ∇³L[Σ, Σ, Σ], Σ = H⁻¹/N (theory §14)."""
        from equipoise.theory.shape import posterior_skewness  # shapes are made from moments

        return posterior_skewness(self)

    def gradient_noise(self, S: ArrayLike, dynamics: Dynamics) -> Array:
        """C(S) = b (V + K(S)), the stationary mean of the gradient covariance; b K(S) with control variates."""
        instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")
        still = dynamics.estimator.score_cov(self, dynamics.rule)
        return dynamics.noise_factor(self.n) * (still + self.curvature_noise(S, dynamics))

    def attach(self, problem: Bound) -> Moments:
        """The same moments with a reference to the problem they were taken of."""
        if not callable(getattr(problem, "curvature", None)):
            raise InvalidInput("problem", "a bound problem", shown(problem), "make one with eq.bind(model, data)")
        return replace(self, curvature=problem.at_constant(self.constant).curvature(self.params))

    def _asked(self, target: str | ArrayLike, dynamics: Dynamics | None) -> tuple[Array, Dynamics]:
        """A target as a matrix, and dynamics: rows drawn alike by default."""
        from equipoise.theory.targets import target_matrix  # targets are made from moments

        if dynamics is not None:
            instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")
        return target_matrix(target, self), Dynamics(batch_size=1) if dynamics is None else dynamics

    def _matrix(self, S: ArrayLike) -> Array:
        matrix = finite_array("S", S)
        if matrix.shape != (self.dim, self.dim):
            raise InvalidInput(
                "S", f"of shape ({self.dim}, {self.dim})", f"shape {matrix.shape}", "match the parameters"
            )
        return matrix

    def _operator(self) -> Curvature:
        if self.curvature is None:
            raise InvalidInput(
                "moments",
                "attached to their problem for this",
                "moments that were loaded or sent, which keep no rows",
                "call attach(eq.bind(model, data)), or eq.moments on the data again",
            )
        return self.curvature

    def __getstate__(self) -> dict[str, object]:
        kept = self.curvature if self.curvature is not None and self.curvature.travels else None
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"curvature": kept}

    def __deepcopy__(self, memo: dict[int, object]) -> Moments:
        # a copy in the same process still knows its problem
        copied = {f.name: deepcopy(getattr(self, f.name), memo) for f in fields(self) if f.name != "curvature"}
        return replace(self, **copied)

    @classmethod
    @checked_options
    def from_arrays(
        cls,
        scores: ArrayLike,
        hessians: ArrayLike,
        prior_hessian: ArrayLike | None = None,
        *,
        thirds: ArrayLike | None = None,
        params: ArrayLike | None = None,
        n: int | None = None,
    ) -> Moments:
        """Moments from per-observation scores (N, D) and Hessians (N, D, D).

        Parameters
        ----------
        scores, hessians
            ∇ℓ_n and ∇²ℓ_n at the minimiser.
        prior_hessian
            ∇²R (D, D), not divided by N; None means no regulariser.
        thirds
            ∇³L (D, D, D), optional; without it the mean bias is unknown.
        params
            The minimiser; zeros by default, so that draws are deviations from it.
        n
            The full number of observations, when the arrays are a subsample.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(50, 2))
        >>> m = Moments.from_arrays(x, x[:, :, None] * x[:, None, :])
        >>> m.n, m.dim
        (50, 2)
        """
        g, J_n = _checked_arrays(scores, hessians)
        rows, dim = g.shape
        n = rows if n is None else whole("n", n, rows, "leave it out unless the arrays are a subsample", "None or ")
        J = symmetric(J_n.mean(axis=0))
        prior = _shaped("prior_hessian", prior_hessian, (dim, dim))
        third = None if thirds is None else _shaped("thirds", thirds, (dim, dim, dim))
        V = np.atleast_2d(np.cov(g, rowvar=False, bias=True))
        return cls(
            n=n,
            params=_shaped("params", params, (dim,)),
            loss_hessian=J,
            hessian=J + symmetric(prior) / n,
            score_cov=V,
            mean_score=g.mean(axis=0),
            # tr(J⁻¹V)/D: equals σ²/s² for a well-specified linear model with any covariates
            noise_ratio=float(np.trace(np.linalg.lstsq(J, V, rcond=None)[0]) / dim),
            curvature=DenseCurvature(J_n, g, third),
        )


def _shaped(name: str, value: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    """Finite numbers of a shape; zeros when left out."""
    array = np.zeros(shape) if value is None else finite_array(name, value)
    if array.shape != shape:
        raise InvalidInput(name, f"of shape {shape}", f"shape {array.shape}", "match the parameters of the scores")
    return array


def _checked_arrays(scores: ArrayLike, hessians: ArrayLike) -> tuple[Array, Array]:
    g, J_n = numeric_array("scores", scores), numeric_array("hessians", hessians)
    if g.ndim != 2 or not g.size:
        raise InvalidInput("scores", "of shape (N, D)", f"shape {g.shape}", "stack one score per row")
    if J_n.shape != (*g.shape, g.shape[1]):
        raise InvalidInput(
            "hessians",
            f"of shape {(*g.shape, g.shape[1])}",
            f"shape {J_n.shape}",
            "stack one Hessian per score",
        )
    for name, array in (("scores", g), ("hessians", J_n)):
        if not np.isfinite(array).all():
            raise InvalidInput(name, "finite", "NaN or infinity", "drop those observations")
    return g, J_n
