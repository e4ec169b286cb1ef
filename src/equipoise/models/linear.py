"""A generalised linear model on its rows: the loss, its derivatives and its moments (theory §1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.errors import InvalidInput
from equipoise.families.family import ScalarLoss
from equipoise.linalg import blocks, symmetric, weighted_gram
from equipoise.theory.moments import LinearCurvature, Moments

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = ["LinearProblem"]


@dataclass(frozen=True)
class LinearProblem:
    """A GLM on its rows: L(θ) = (1/N) [Σ w_n ℓ(x_nᵀθ + o_n, y_n) + ½ (θ−m)ᵀ Γ (θ−m)].

    Attributes
    ----------
    model, rows
        What it is made of; `rows` may be a subsample.
    n
        The full number of rows N.
    precision, mean
        Γ and m.
    """

    model: GLM
    rows: Rows
    n: int
    precision: Array
    mean: Array

    @property
    def size(self) -> int:
        """Rows at hand."""
        return self.rows.n

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.rows.names

    @property
    def variables(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Every column is a scalar parameter."""
        return tuple((name, ()) for name in self.names)

    @property
    def convex(self) -> bool:
        """The log loss of every family is convex in the linear predictor; a robust loss need not be."""
        return self.model.divergence is None or self.model.divergence.convex

    @property
    def every_start(self) -> bool:
        """All starts are tried: they are few and cheap."""
        return True

    @property
    def guarded(self) -> bool:
        """Whether chains are kept inside a very large ellipsoid by default: the loss grows exponentially."""
        return self.model.family.exponential_mean

    def subsample(self, rows: int, seed: int) -> LinearProblem:
        """The same problem on random rows."""
        return replace(self, rows=self.rows.subsample(rows, seed))

    def flatten(self, params: Any) -> Array:
        """Check and return a parameter vector."""
        theta = np.asarray(params, dtype=np.float64)
        if theta.shape != (self.rows.dim,) or not np.isfinite(theta).all():
            raise InvalidInput(
                "params", f"a finite vector ({self.rows.dim},)", f"shape {theta.shape}", "pass fit.params"
            )
        return theta

    def unflatten(self, theta: Array) -> Array:
        """Parameters are already flat."""
        return theta

    def predictor(self, theta: Array) -> Array:
        """η = X θ + offset."""
        eta = self.rows.x @ theta
        return eta if self.rows.offset is None else eta + self.rows.offset

    def loss_at(self, theta: Array) -> ScalarLoss:
        """The loss with its constants."""
        family, divergence, constant = self.model.family, self.model.divergence, self.constant_at(theta)
        if divergence is not None:
            return divergence.loss(family, constant)
        return family.loss if constant is None else replace(family.loss, p=(constant,))

    def constant_at(self, theta: Array) -> float | None:
        """The family's constant; None for a family without one.

        An estimated gaussian scale is that of the residuals at `theta`, s² = Σ w r² / (N − D), or with a robust loss the
        normal-consistent weighted median of |r|: one rule serves the fit, the moments and the chain alike.
        """
        if self.model.constant is not None or self.model.family.parameter is None:
            return self.model.constant
        residual = self.rows.y - self.predictor(theta)
        if self.model.divergence is not None:
            scale = _median(np.abs(residual), self.rows.weights) / 0.6744897501960817
        else:
            weights = 1.0 if self.rows.weights is None else self.rows.weights
            scale = float(np.sqrt(np.sum(weights * residual**2) / max(1, self.rows.n - self.rows.dim)))
        if scale == 0.0:
            raise InvalidInput("y", "not fitted exactly by the columns", "zero residuals", "pass scale= explicitly")
        return scale

    def settled(self, theta: Array) -> LinearProblem:
        """The problem with an estimated scale fixed at its value for `theta`."""
        if self.model.constant is not None or self.model.family.parameter is None:
            return self
        return replace(self, model=replace(self.model, constant=self.constant_at(theta)))

    @property
    def relaxed(self) -> LinearProblem | None:
        """The same problem with the convex log loss, where a search for a robust minimum may begin."""
        return None if self.convex else replace(self, model=replace(self.model, divergence=None))

    def trimmed(self, theta: Array, share: float) -> LinearProblem:
        """The problem on the share of rows whose log loss at `theta` is smallest: the others may be outliers."""
        loss = self.model.family.loss
        constant = self.constant_at(theta)
        p = np.array([] if constant is None else [constant])
        surprise = loss.value(self.predictor(theta), self.rows.y, p) - loss.value(self._saturated(), self.rows.y, p)
        keep = np.sort(np.argsort(surprise)[: max(self.rows.dim + 1, int(share * self.rows.n))])
        return replace(self, rows=self.rows.take(keep))

    def _saturated(self) -> Array:
        """The predictor that fits each row by itself, kept off the ends of the link."""
        y, family = self.rows.y, self.model.family
        floor = 1e-3 * max(float(np.mean(np.abs(y))), 1e-3)
        inside = np.clip(y, 1e-3, 1.0 - 1e-3) if family.name == "bernoulli" else np.maximum(y, floor)
        return family.link(inside if family.name != "gaussian" else y)

    def starts(self) -> list[Array]:
        """One weighted least-squares step from predictors matched to the response."""
        rows, family = self.rows, self.model.family
        center = np.average(rows.y, weights=rows.weights)
        with np.errstate(all="ignore"):
            eta = family.link(0.5 * (rows.y + center) if family.name != "bernoulli" else 0.25 + 0.5 * rows.y)
        eta = np.where(np.isfinite(eta), eta, 0.0) - (0.0 if rows.offset is None else rows.offset)
        w = np.ones(rows.n) if rows.weights is None else rows.weights
        gram = rows.n * self.gram(w) + self.precision
        gram[np.diag_indices(rows.dim)] *= 1.0 + 1e-8
        right = (w * eta) @ rows.x + self.precision @ self.mean
        warm = np.linalg.lstsq(gram, right, rcond=None)[0].astype(np.float64)
        return [warm, np.zeros(rows.dim)]

    def value(self, theta: Array) -> float:
        """L(θ)."""
        loss = self.loss_at(theta)
        terms = self._weighted(loss.value(self.predictor(theta), self.rows.y, loss.constants))
        return float(np.mean(terms)) + self._prior(theta)

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """L and ∇L, reading the rows once."""
        return self._derivatives(theta, curved=False)[:2]

    def derivatives(self, theta: Array) -> tuple[float, Array, Array]:
        """L, ∇L and ∇²L, reading the rows once."""
        return self._derivatives(theta, curved=True)

    def _derivatives(self, theta: Array, curved: bool) -> tuple[float, Array, Array]:
        loss, n, dim = self.loss_at(theta), self.rows.n, self.rows.dim
        p, value, gradient, H = loss.constants, 0.0, np.zeros(dim), np.zeros((dim, dim))
        for _, part in self._parts():
            x, y, eta = part.rows.x, part.rows.y, part.predictor(theta)
            value += float(np.sum(part._weighted(loss.value(eta, y, p)))) / n
            gradient += part._weighted(loss.d1(eta, y, p)) @ x / n
            if curved:
                H += weighted_gram(x, part._weighted(loss.d2(eta, y, p)))
        gradient += self.precision @ (theta - self.mean) / self.n
        return value + self._prior(theta), gradient, symmetric(H) / n + self.precision / self.n

    def _parts(self) -> Iterator[tuple[slice, LinearProblem]]:
        """The problem on each block of rows, which stays in cache between its uses."""
        for block in blocks(*self.rows.x.shape):
            yield block, replace(self, rows=self.rows.take(block))

    def explain(self, theta: Array, direction: Array) -> tuple[str, ...] | None:
        """Name the columns along which the loss never rises: separated data."""
        rows = self.rows
        if self.model.divergence is not None:
            return None  # a bounded loss levels off everywhere: that proves nothing
        if np.any(np.abs(self.precision @ direction) > 1e-12 * np.abs(direction).max()):
            return None
        first = replace(self, rows=rows.take(slice(0, 1000)))  # they nearly always tell
        if first._rises(theta, direction) or not np.any(rows.x @ direction) or self._rises(theta, direction):
            return None
        weight = np.abs(direction) * rows.x.std(axis=0)
        # an intercept has no spread of its own: it only balances the others
        weight = weight if weight.any() else np.abs(direction)
        return tuple(name for name, w in zip(rows.names, weight, strict=True) if w > 0.1 * weight.max())

    def _rises(self, theta: Array, direction: Array) -> bool:
        """Whether the loss of any row rises along `direction`."""
        y, slope = self.rows.y, self.rows.x @ direction
        reach = np.abs(slope).max()
        if reach == 0.0:
            return False
        loss, eta = self.loss_at(theta), self.predictor(theta)
        p, unit = loss.constants, slope / reach
        with np.errstate(over="ignore", invalid="ignore"):
            rise = loss.value(eta + 20.0 * unit, y, p) - loss.value(eta, y, p)
            # far out as well: from a bad start every row may first fall on its way to the minimiser
            slant = loss.d1(eta + 500.0 * unit, y, p) * unit
        return bool(np.any(~(np.maximum(rise, slant) <= 1e-6 * (1.0 + np.abs(y)))))

    def moments(self, params: Any, tuning_rows: int | None = None, seed: int = 0) -> Moments:
        """J, V, H and the curvature operator at `params`."""
        if tuning_rows is not None:
            return self.subsample(tuning_rows, seed).moments(params)
        theta = self.flatten(params)
        loss, n, dim = self.loss_at(theta), self.rows.n, self.rows.dim
        p, square = loss.constants, 0.0
        mean, J, V = np.zeros(dim), np.zeros((dim, dim)), np.zeros((dim, dim))
        second, third = np.empty(n), np.empty(n)
        for block, part in self._parts():
            x, y, eta = part.rows.x, part.rows.y, part.predictor(theta)
            g1, second[block], third[block] = (part._weighted(d(eta, y, p)) for d in (loss.d1, loss.d2, loss.d3))
            square += float(g1 @ g1)
            mean += g1 @ x / n
            J += weighted_gram(x, second[block])
            V += weighted_gram(x, g1**2)
        J = symmetric(J) / n
        return Moments(
            n=self.n,
            params=theta,
            loss_hessian=J,
            hessian=J + self.precision / self.n,
            score_cov=symmetric(V) / n - np.outer(mean, mean),
            mean_score=mean,
            noise_ratio=square / float(np.sum(second)),
            curvature=LinearCurvature(self.rows.x, second, third),
            names=self.rows.names,
        )

    def curvature_range(self, theta: Array, radius: float | None) -> tuple[Array, Array, Array, str]:
        """Smallest and largest second, and largest third derivative of each row's loss, and over which set.

        On the ball of the given radius around θ a predictor moves by at most radius · ‖x_n‖; the derivatives of every
        family are monotone or have one peak, so that the ends of that interval, with a global bound where the family
        has one, are extreme. Without a radius: global where the family allows it, else at θ.
        """
        loss, family, y = self.loss_at(theta), self.model.family, self.rows.y
        eta, p = self.predictor(theta), loss.constants
        reach = (radius or 0.0) * np.linalg.norm(self.rows.x, axis=1)
        with np.errstate(over="ignore"):
            second = np.stack([loss.d2(eta + sign * reach, y, p) for sign in (-1.0, 1.0)])
            third = np.stack([np.abs(loss.d3(eta + sign * reach, y, p)) for sign in (-1.0, 1.0)])
        low, high, steep = second.min(axis=0), second.max(axis=0), third.max(axis=0)
        where = "the minimiser (plug-in)" if radius is None else f"the ball of radius {radius:g} around the minimiser"
        scope = f"L, M and μ at {where}"
        robust = self.model.divergence is not None
        if robust and radius is not None:
            raise InvalidInput("radius", "left out for a robust loss", radius, "take the constants at the minimiser")
        if not robust and family.second_bound is not None and family.third_bound is not None:
            high, steep = family.second_bound(y, p), family.third_bound(y, p)
            scope = "global" if not steep.any() else f"L and M global, μ at {where}"
        return self._weighted(low), self._weighted(high), self._weighted(steep), scope

    def gram(self, weight: Array) -> Array:
        """mean weight_n x_n x_nᵀ, blocked over rows."""
        x = self.rows.x
        total = np.zeros((x.shape[1], x.shape[1]))
        for block in blocks(*x.shape):
            total += weighted_gram(x[block], weight[block])
        return symmetric(total) / x.shape[0]

    def _prior(self, theta: Array) -> float:
        e = theta - self.mean
        return float(0.5 * e @ self.precision @ e) / self.n

    def _weighted(self, terms: Array) -> Array:
        return terms if self.rows.weights is None else terms * self.rows.weights


def _median(values: Array, weights: Array | None) -> float:
    """The median of values that count as often as their weights say."""
    if weights is None:
        return float(np.median(values))
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    middle = [np.searchsorted(below, 0.5 * below[-1], side) for side in ("left", "right")]
    return float(np.mean(values[order[middle]]))
