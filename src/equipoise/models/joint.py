"""Parameters together with an estimated shape or dispersion, as one problem: where a pass costs much, both are found at once.

A profile likelihood takes a fit for every constant and several passes for every fit. Near the minimum, which a sample gives,
Newton's method in (θ, log c) takes as few passes as one in θ alone. A dispersion that may as well be none has no
logarithm to speak of: then it is found in (θ, c), and in θ alone where c is at the end of its range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import gammaln

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.errors import FitFailed
from equipoise.linalg import added_form, form_times, symmetric
from equipoise.models.linear_curvature import LinearCurvature
from equipoise.models.problem import Derivatives, Yardstick
from equipoise.models.profile import LEAST, NARROW, constant_terms, narrow, rising_factorial
from equipoise.models.rowwise import LinearRowwise
from equipoise.models.sums import counted, gram, predictor, weighted

if TYPE_CHECKING:
    from equipoise.data.source import Source
    from equipoise.models.glm import GLM
    from equipoise.models.linear import LinearProblem

__all__ = ["Beyond", "JointProblem", "joint_sums"]


class JointSums(NamedTuple):
    """Σ −log f (up to what depends on y alone), its derivatives by (θ, log c), and of the loss its value and slope by log c.

    `information` is what leverages are shares of.
    """

    value: float
    gradient: Array
    hessian: Array
    loss: float
    slope: float
    information: Array


def joint_sums(model: GLM, theta: Array, rows: Rows) -> JointSums:
    """The negative log-likelihood at (θ, log c), over one block."""
    loss, eta, family = model.loss, predictor(rows, theta), model.family.name
    constant, y = float(model.constant or 0.0), rows.y
    terms = constant_terms(family, constant, rows, theta)

    def total(each: Array) -> Array:
        return counted(rows, weighted(rows, each))

    plain, d1, d2 = (d(eta, y, loss.constants) for d in (loss.value, loss.d1, loss.d2))
    if family == "gamma":
        rest = gammaln(constant) - constant * (np.log(y) + np.log(constant))
        each, along = narrow(y, eta, constant) if constant > NARROW else plain + rest, plain
    else:
        r = 1.0 / constant
        each = plain - rising_factorial(y, r)
        along = d1 - np.logaddexp(0.0, eta + np.log(constant)) * r
    cross = total(terms.cross) @ rows.x
    corner = float(total(terms.bend).sum())
    hessian = np.block([[gram(rows.x, total(d2)), cross[:, None]], [cross, np.array([[corner]])]])
    return JointSums(
        float(total(each).sum()), np.append(total(d1) @ rows.x, total(terms.score).sum()), hessian,
        float(total(plain).sum()), float(total(along).sum()), LinearRowwise(model, theta).information(rows),
    )  # fmt: skip


class Beyond(FitFailed):
    """A step leads beyond the end of a dispersion's range."""

    def __init__(self) -> None:
        super().__init__("the counts vary no more than Poisson's. To fix: use eq.glm('poisson'), or pass dispersion=.")


@dataclass(frozen=True)
class JointSearch:
    """What Newton's method asks for besides derivatives."""

    problem: JointProblem

    def yardstick(self, theta: Array) -> Yardstick:
        """That of the parameters alone."""
        here = self.problem.at(theta)
        return here.search.yardstick(theta[:-1])

    def metric(self) -> None:
        """None is needed so close to the minimum."""
        return

    def explain(self, candidates: Sequence[Array], theta: Array, norm: float) -> FitFailed | None:
        """A loss that never rises along parameters alone."""
        here = self.problem.at(theta)
        return here.search.explain([direction[:-1] for direction in candidates], theta[:-1], norm)


@dataclass(frozen=True)
class JointProblem:
    """A problem whose constant is the last parameter, by its logarithm.

    If it is `straight`, the constant itself is; and if it is `held`, nothing moves it.
    """

    problem: LinearProblem
    straight: bool = False
    held: bool = False
    _kept: list[Rows] = field(default_factory=list, repr=False, compare=False)
    _last: dict[bytes, JointSums] = field(default_factory=dict, repr=False, compare=False)

    @property
    def source(self) -> Source[Rows]:
        """Where the rows are."""
        return self.problem.source

    @property
    def n(self) -> int:
        """Number of observations."""
        return self.problem.n

    @property
    def names(self) -> tuple[str, ...]:
        """One name per parameter."""
        return (*self.problem.names, self.problem.model.family.parameter or "constant")

    @property
    def quadratic(self) -> bool:
        """No such likelihood is."""
        return False

    @property
    def search(self) -> JointSearch:
        """Where its minimum may be."""
        return JointSearch(self)

    def constant(self, theta: Array) -> float:
        """The constant that the last parameter tells."""
        return float(theta[-1] if self.straight else np.exp(theta[-1]))

    def at(self, theta: Array) -> LinearProblem:
        """The problem of the other parameters, with the constant fixed there."""
        return self.problem.at_constant(self.constant(theta))

    def derivatives(self, theta: Array, order: int) -> Derivatives:
        """Value, gradient and Hessian, all from one pass whatever is asked for.

        Raises
        ------
        Beyond
            If a dispersion is below the end of its range.
        """
        if self.straight and theta[-1] < LEAST:
            raise Beyond
        sums, n = self._sums(theta), self.source.n
        away = theta[:-1] - self.problem.mean
        pull = form_times(self.problem.precision, away)
        gradient, hessian = sums.gradient / n, symmetric(sums.hessian) / n
        gradient[:-1] += pull / self.n
        added_form(hessian[:-1, :-1], self.problem.precision / self.n)
        value = sums.value / n + 0.5 * float(away @ pull) / self.n
        if self.straight:
            c = self.constant(theta)
            hessian[-1, -1] -= gradient[-1]
            gradient[-1] /= c
            hessian[-1] /= c
            hessian[:, -1] /= c
        if self.held:
            gradient[-1] = hessian[-1, :-1] = hessian[:-1, -1] = 0.0
            hessian[-1, -1] = 1.0
        return Derivatives(value, gradient, hessian, symmetric(sums.information))

    def core(self, theta: Array) -> tuple[Derivatives, JointProblem]:
        """Value, gradient and Hessian and, from the same reading or one close by, the problem on rows that stand for all."""
        key = theta.tobytes()
        if key not in self._last or not self._kept:
            here = self.at(theta)
            sums, rows = LinearCurvature(here, theta[:-1]).with_core(partial(joint_sums, here.model, theta[:-1]))
            self._last.clear()
            self._last[key], self._kept[:] = sums, [rows]
        some = replace(self.problem, source=self._kept[0])
        return self.derivatives(theta, 2), JointProblem(some, self.straight, self.held)

    def information(self, theta: Array) -> Array:
        """What leverages are shares of, summed over the observations."""
        return symmetric(self._sums(theta).information)

    def loss(self, theta: Array) -> float:
        """The loss of the parameters alone; of a point close to the last one it is extrapolated from there."""
        last, sums = self.last
        n, prior = self.source.n, self.problem.precision
        moved, away = theta - last, last[:-1] - self.problem.mean
        moved[-1] = np.log(self.constant(theta) / self.constant(last))
        pull = form_times(prior, away)
        slope = np.append(sums.gradient[:-1] / n + pull / self.n, sums.slope / n)
        bend = added_form(symmetric(sums.hessian[:-1, :-1]) / n, prior / self.n)
        here = sums.loss / n + 0.5 * float(away @ pull) / self.n
        return here + float(slope @ moved) + 0.5 * float(moved[:-1] @ (bend @ moved[:-1]))

    @property
    def last(self) -> tuple[Array, JointSums]:
        """Where the rows were read for last, and their sums there."""
        ((key, sums),) = self._last.items()
        return np.frombuffer(key), sums

    def rises(self, theta: Array) -> bool:
        """Whether −log f rises with the constant, at a point that differs from the last one by its parameters alone."""
        last, sums = self.last
        moved = (theta - last)[:-1]
        return float(sums.gradient[-1] + sums.hessian[-1, :-1] @ moved) >= 0.0

    def _sums(self, theta: Array) -> JointSums:
        key = theta.tobytes()
        if key not in self._last:
            here = self.at(theta)
            found = self.source.reduce(partial(joint_sums, here.model, theta[:-1]))
            self._last.clear()
            self._last[key] = found
        return self._last[key]
