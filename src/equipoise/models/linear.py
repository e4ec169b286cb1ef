"""A generalised linear model on its rows: the loss, its derivatives and its moments, one pass each (theory §1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import finite_array, part_size
from equipoise.data.arrays import Rows
from equipoise.data.scanned import Scan
from equipoise.data.source import Source
from equipoise.engines.engine import Coupling, Engine, Guard
from equipoise.errors import InvalidInput
from equipoise.linalg import added_form, form_times, in_fixed_order, symmetric
from equipoise.models.bounding import BoundPass
from equipoise.models.joint import JointProblem
from equipoise.models.layout import FlatLayout
from equipoise.models.linear_curvature import LinearCurvature, leveraging
from equipoise.models.linear_search import LinearSearch
from equipoise.models.passes import (
    Beside,
    Both,
    BothSums,
    DiagonalPass,
    LeverageWeight,
    LossPass,
    LossSums,
    MomentPass,
    MomentSums,
    ProductPass,
)
from equipoise.models.problem import Derivatives
from equipoise.models.profile import profiled
from equipoise.models.rare import with_rare
from equipoise.models.residuals import ResidualPass, robust_scale
from equipoise.models.rowwise import InformationPass, LinearRowwise, StackedPass, StackedSums
from equipoise.theory.bounds import BoundConstants
from equipoise.theory.moments import Moments

if TYPE_CHECKING:
    from equipoise.engines.numba.whiten import Regression
    from equipoise.models.glm import GLM
    from equipoise.theory.tuning import Tuning

__all__ = ["LinearProblem"]


@dataclass(frozen=True, repr=False)
class LinearProblem(Card):
    """A GLM on its rows, or on a subsample of all N: L(θ) = (1/N) [Σ w_n ℓ(x_nᵀθ + o_n, y_n) + ½ (θ−m)ᵀ Γ (θ−m)].

    `precision` is Γ, by its diagonal (D,) where it has no other entries, and `mean` is m.
    """

    model: GLM
    source: Source[Rows]
    n: int
    precision: Array
    mean: Array

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.mean)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.source.names

    @property
    def layout(self) -> FlatLayout:
        """Every column is a scalar parameter."""
        return FlatLayout(self.names)

    @property
    def search(self) -> LinearSearch:
        """Starts matched to the response; for a robust loss also the log loss's minima."""
        return LinearSearch(self)

    @property
    def guarded(self) -> bool:
        """Whether chains are kept inside a very large ellipsoid by default: the loss grows exponentially."""
        return self.model.family.exponential_mean

    @property
    def quadratic(self) -> bool:
        """Squared loss is; no other family's is."""
        return self.model.family.name == "gaussian" and self.model.divergence is None

    @property
    def constant(self) -> float | None:
        """The family's constant, once it is settled."""
        return self.model.constant

    def settled(self, theta: Array) -> Self:
        """The problem with an estimated constant fixed at its value for θ.

        Over the observations it is s² = Σ w r² / (N − D), or with a robust loss the normal-consistent weighted median
        of |r|: the same rule wherever a scale is still open. A shape or dispersion is that of largest likelihood.
        """
        if not self.model.open:
            return self
        if self.model.family.parameter != "scale":
            return self.at_constant(profiled(self.model.family.name, self.source, theta))
        if self.model.divergence is not None:
            scale = robust_scale(self.source, theta)
        else:
            square = self.source.reduce(ResidualPass(theta)).square
            scale = float(np.sqrt(square / max(1, self.source.n - self.dim)))
        return self._at_scale(scale)

    def resettled(self, theta: Array, loss: float) -> Self:
        """The same with a constant estimated anew: of squared loss, its value tells the residuals without a pass."""
        model, constant = self.model, self.model.constant
        if constant is not None and model.family.parameter != "scale":
            return self.at_constant(profiled(model.family.name, self.source, theta, constant))
        if constant is None or not self.quadratic:
            return replace(self, model=replace(model, constant=None)).settled(theta)
        away = theta - self.mean
        share = max(0.0, loss - 0.5 * float(away @ form_times(self.precision, away)) / self.n)
        ratio = float(np.sqrt(2.0 * share * self.source.n / max(1, self.source.n - self.dim)))
        return self._at_scale(constant * ratio)

    def _at_scale(self, scale: float) -> Self:
        if scale == 0.0:
            raise InvalidInput("y", "not fitted exactly by the columns", "zero residuals", "pass scale= explicitly")
        return self.at_constant(scale)

    def at_constant(self, constant: float | None) -> Self:
        """The problem with its constant fixed."""
        return self if constant is None else replace(self, model=replace(self.model, constant=constant))

    def with_precision(self, gamma: float) -> Self:
        """The problem with the prior precision γI in place of its own; the prior mean is kept."""
        model = replace(self.model, prior_precision=np.asarray(gamma, dtype=np.float64))
        return replace(self, model=model, precision=np.full(self.dim, float(gamma)))

    def without_prior(self) -> Self:
        """The mean loss of the rows alone."""
        return self.with_precision(0.0)

    def subsample(self, rows: int, seed: int | None) -> Self:
        """The same problem on random rows."""
        return replace(self, source=self.source.sample(part_size(rows, self.source.n), seed))

    def standing(self, rows: int) -> Self:
        """The same problem on about so many rows that stand for all; of files with those that can matter most."""
        if isinstance(self.source, Scan) and self.source.n > max(rows, self.source.lot.size):
            # no few rows separate a response on a scale, and those of rare levels were brought if they were looked for
            searched = self.source.far.searched
            few = searched and self.model.family.parameter in {"scale", "shape"}
            return replace(self, source=with_rare(*self.source.standing(rows), self.source, few, searched))
        return self.subsample(min(rows, self.source.n), seed=None)

    def marked(self, clusters: object = None, time: object = None) -> Self:
        """The same problem with clusters and times beside its rows."""
        return replace(self, source=self.source.marked(clusters, time))

    def rowwise(self, theta: Array) -> LinearRowwise:
        """Scores and curvatures of single rows; an estimated shape or dispersion is free."""
        return LinearRowwise(self.settled(theta).model, theta, self.free)

    def joint(self) -> JointProblem | None:
        """With the shape of a gamma or the dispersion of counts among the parameters."""
        return JointProblem(self) if self.free and self.model.open else None

    @property
    def free(self) -> bool:
        """Whether an estimated shape or dispersion moves with θ̂: it enters the loss beside it."""
        return self.model.estimated and self.model.divergence is None and self.model.family.parameter != "scale"

    def stacked(self, moments: Moments) -> tuple[Moments, Array | None]:
        """The moments with what an estimated constant adds to the uncertainty of θ̂: zero where the means are right."""
        if not self.free:
            return moments, None
        operator = self._own_curvature(moments)
        sums = None if operator is None else operator.stacked
        if sums is None:
            sums = self.source.reduce(StackedPass(LinearRowwise(self.settled(moments.params).model, moments.params)))
        n, along = self.source.n, sums.cross / sums.bend
        mean = (sums.score - along * sums.constant) / n
        mixed = np.outer(along, sums.mixed)
        scatter = sums.scatter - mixed - mixed.T + np.outer(along, along) * sums.square
        changed = replace(
            moments,
            hessian=moments.hessian - np.outer(along, along) * (sums.bend / n),
            score_cov=symmetric(scatter) / n - np.outer(mean, mean),
            mean_score=mean,
        )
        return changed, along

    def identified(self, theta: Array) -> LinearProblem:
        """A regression whose Hessian is singular is not fitted at all, so that nothing is left out."""
        del theta
        return self

    def within(self, theta: Array, axes: Array) -> None:
        """A regression has one parameter for each column, and none for combinations of them."""
        del theta, axes

    def flatten(self, params: object) -> Array:
        """Check and return a parameter vector."""
        theta = finite_array("params", params, "pass the fit, or fit.params")
        if theta.shape != (self.dim,):
            given = f"shape {theta.shape}"
            raise InvalidInput("params", f"a finite vector ({self.dim},)", given, "pass the fit, or fit.params")
        return theta

    def derivatives(self, theta: Array, order: int) -> Derivatives:
        """L, ∇L and ∇²L up to `order`, reading the rows once."""
        f = self._loss_pass(theta, order)
        return self._derived(self.source.reduce(f), theta, order)

    def core(self, theta: Array) -> tuple[Derivatives, LinearProblem]:
        """L, ∇L and ∇²L at θ and, from the same reading, the problem on some rows that stand for all."""
        sums, rows = LinearCurvature(self, theta).with_core(self._loss_pass(theta, 2))
        return self._derived(sums, theta, 2), replace(self, source=rows)

    def information(self, theta: Array) -> Array:
        """What leverages are shares of, summed over the observations."""
        return symmetric(self.source.reduce(InformationPass(LinearRowwise(self.model, theta))).total)

    def _loss_pass(self, theta: Array, order: int) -> Callable[[Rows], Any]:
        """The pass for derivatives; of rows in files with what leverages are shares of, if that is not the Hessian."""
        f, rowwise = LossPass(self.model, theta, order), LinearRowwise(self.model, theta)
        beside = order > 1 and not self.source.in_memory and not rowwise.observed
        return Both(f, InformationPass(rowwise)) if beside else f

    def _derived(self, sums: LossSums | BothSums, theta: Array, order: int) -> Derivatives:
        """L, ∇L and ∇²L by the sums of such a pass."""
        if isinstance(sums, LossSums):
            return self.averaged(sums, theta, order)
        return self.averaged(sums.first, theta, order)._replace(information=symmetric(sums.second.total))

    def averaged(self, sums: LossSums, theta: Array, order: int) -> Derivatives:
        """L, ∇L and ∇²L up to `order` at θ, by the sums of a pass."""
        n, away = self.source.n, theta - self.mean
        pull = form_times(self.precision, away)
        own = order > 1 and LinearRowwise(self.model, theta).observed
        return Derivatives(
            sums.value / n + 0.5 * float(away @ pull) / self.n,
            sums.gradient / n + pull / self.n if order > 0 else sums.gradient,
            added_form(symmetric(sums.hessian) / n, self.precision / self.n) if order > 1 else sums.hessian,
            symmetric(sums.hessian) if own else None,
        )

    def product(self, theta: Array, v: Array) -> Array:
        """∇²L v, reading the rows once."""
        total = self.source.reduce(ProductPass(self.model, theta, v)).total / self.source.n
        return total + form_times(self.precision, v) / self.n

    def diagonal(self, theta: Array) -> Array:
        """The diagonal of ∇²L; ones where it is not positive."""
        found = self.source.reduce(DiagonalPass(self.model, theta)).total / self.source.n
        found = found + (np.diag(self.precision) if self.precision.ndim == 2 else self.precision) / self.n
        return np.where(found > 0.0, found, 1.0)

    def moments(self, theta: Array) -> Moments:
        """J, V, H and the curvature operator at θ."""
        return self.moments_beside(theta)[0]

    def moments_beside(self, theta: Array, beside: Beside | None = None) -> tuple[Moments, Any]:
        """The same, and in the same reading of the rows what another pass sums up."""
        here = self.settled(theta)
        sums, stacked, others = self._moment_sums(here.model, theta, beside)
        n = self.source.n
        J, mean = symmetric(sums.hessian) / n, sums.score / n
        found = Moments(
            n=self.n,
            params=theta,
            loss_hessian=J,
            hessian=added_form(J.copy(), self.precision / self.n),
            score_cov=symmetric(sums.scatter) / n - np.outer(mean, mean),
            mean_score=mean,
            noise_ratio=sums.square / sums.second,
            names=self.names,
            constant=here.constant,
        )
        absolute = sums.absolute if sums.absolute.size else None
        curvature = LinearCurvature(here, theta, stacked=stacked, absolute=absolute)
        return replace(found, curvature=curvature.foreseeing(found.hessian, J)), others

    def _moment_sums(
        self, model: GLM, theta: Array, beside: Beside | None
    ) -> tuple[MomentSums, StackedSums | None, Any]:
        """Those of the moments, and in the same pass what an estimated constant adds to them and what is asked for beside."""
        f: Callable[[Rows], Any] = MomentPass(model, theta)
        if self.free:
            f = Both(f, StackedPass(LinearRowwise(model, theta)))
        source, width = self.source, None
        if beside is not None:
            f, source, width = Both(f, beside.f), beside.source, beside.width
        found, others = source.reduce(f, width), None
        if beside is not None:
            found, others = found
        sums, stacked = found if self.free else (found, None)
        return sums, stacked, others

    def curvature(self, theta: Array) -> LinearCurvature:
        """The operator behind K at θ."""
        return LinearCurvature(self.settled(theta), theta)

    def bound_constants(self, theta: Array, radius: float | None) -> BoundConstants:
        """The constants of theory §8 for the losses ℓ_n + R/N, so that their scores average to zero at the minimiser."""
        if self.model.divergence is not None:
            raise InvalidInput(
                "model",
                "one with a log loss: the bounds' constants are not known for robust losses",
                repr(self.model.divergence),
                "use eq.coupled_distance, which measures the distance",
            )
        here = self.settled(theta)
        prior, n = self.precision / self.n, self.source.n
        rows = BoundPass(here.model, theta, prior, self.mean, radius)
        sums = self.source.reduce(rows)
        spectrum = np.linalg.eigvalsh(added_form(symmetric(sums.hessian) / n, prior))
        tightest = float(np.linalg.eigvalsh(prior)[-1] if prior.ndim == 2 else prior.max())
        return BoundConstants(
            smoothness=max(map(rows.largest, self.source.blocks())) + tightest,
            strong_convexity=float(np.linalg.eigvalsh(added_form(symmetric(sums.lowest) / n, prior))[0]),
            third_mean=sums.third / n,
            third_mean_square=sums.third_square / n,
            score_fourth=sums.score_fourth / n,
            hessian_min=float(spectrum[0]),
            hessian_max=float(spectrum[-1]),
            dim=self.dim,
            convex=sums.bent == 0.0,
            scope=self._scope(radius),
        )

    def engine(self, tuning: Tuning, guard: Guard, storage: str = "float64", touched: float = np.inf) -> Engine:
        """The compiled loop over whitened rows."""
        # the compiler is imported only by those who sample
        from equipoise.engines.numba.whiten import linear_engine

        return linear_engine(self._regression(tuning), tuning, guard, storage, touched=touched)

    def coupling(self, tuning: Tuning, guard: Guard) -> Coupling:
        """The same loop beside its quadratic proxy."""
        from equipoise.engines.numba.whiten import linear_coupling

        return linear_coupling(self._regression(tuning), tuning, guard)

    def _regression(self, tuning: Tuning) -> Regression:
        from equipoise.engines.numba.whiten import Regression

        here, nothing = self.at_constant(tuning.constant).settled(tuning.center), np.empty(0)
        dynamics, center = tuning.dynamics, tuning.center
        leverage = here._leverage(center, tuning.predicted.moments) if dynamics.rule.weighted else None
        away = leverage is not None and not self.source.in_memory
        return Regression(
            here.model.loss,
            self.source,
            self.precision,
            self.mean,
            self.n,
            here._slope(center, tuning.predicted.moments) if dynamics.gradient == "control-variate" else nothing,
            nothing if leverage is None or away else here._emphasis(leverage),
            leverage if away else None,
        )

    def _slope(self, theta: Array, moments: Moments) -> Array:
        """∇L at θ; moments of these very rows at θ have it, bit for bit, without another pass."""
        if np.array_equal(moments.params, theta) and self._own_curvature(moments) is not None:
            return moments.mean_score + form_times(self.precision, theta - self.mean) / self.n
        return self.derivatives(theta, 1).gradient

    def _leverage(self, theta: Array, moments: Moments) -> LeverageWeight:
        """How its rows are drawn by leverage around θ, as the moments of a tuning have it."""
        operator = self._own_curvature(moments)
        absolute = None if operator is None else operator.absolute
        inverse = np.linalg.inv(moments.hessian).astype(np.float64)
        return LeverageWeight(self.model, theta, leveraging(self, theta, inverse, moments.loss_hessian, absolute))

    def _own_curvature(self, moments: Moments) -> LinearCurvature | None:
        """The curvature behind moments, where it is that of these very rows."""
        found = moments.curvature
        return found if isinstance(found, LinearCurvature) and found.problem.source is self.source else None

    @in_fixed_order
    def _emphasis(self, weight: LeverageWeight) -> Array:
        """1/(N p_n) of every observation drawn by leverage."""
        found = [np.repeat(weight.emphasis(rows), rows.counts.astype(np.int64)) for rows in self.source.blocks()]
        return np.concatenate(found)

    def _scope(self, radius: float | None) -> str:
        where = "the minimiser (plug-in)" if radius is None else f"the ball of radius {radius:g} around the minimiser"
        if self.model.family.third_bound is None:
            return f"L, M and μ at {where}"
        return "global" if self.quadratic else f"L and M global, μ at {where}"
