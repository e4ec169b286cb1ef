"""Squared loss by its sums at one point: what it is elsewhere, and with another scale, needs no further pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from equipoise.arrays import Array
from equipoise.models.passes import LossPass, LossSums

if TYPE_CHECKING:
    from equipoise.models.linear import LinearProblem
    from equipoise.models.problem import Derivatives

__all__ = ["Parabola"]


@dataclass(frozen=True)
class Parabola:
    """A regression of squared loss: L(θ) = L(o) + gᵀ(θ−o) + ½ (θ−o)ᵀ H (θ−o) of its rows, and the prior.

    The problem has its scale; `origin` is o, `sums` are those over the rows there, and `unit` is the scale they were made
    with.
    """

    problem: LinearProblem
    origin: Array
    sums: LossSums
    unit: float

    @staticmethod
    def of(problem: LinearProblem, origin: Array) -> Parabola:
        """From one pass; the scale is settled."""
        assert problem.constant is not None
        return Parabola(problem, origin, problem.source.reduce(LossPass(problem.model, origin, 2)), problem.constant)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def at_constant(self, constant: float) -> Self:
        """With another scale."""
        return replace(self, problem=self.problem.at_constant(constant))

    def derivatives(self, theta: Array, order: int) -> Derivatives:
        """L, ∇L and ∇²L."""
        value, gradient, hessian = self.sums
        away = theta - self.origin
        pull, times = hessian @ away, (self.unit / float(self.problem.constant or self.unit)) ** 2
        value += float(gradient @ away) + 0.5 * float(away @ pull)
        sums = LossSums(times * value, times * (gradient + pull), times * hessian)
        return self.problem.averaged(sums, theta, order)
