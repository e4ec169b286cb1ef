"""Generalised linear models: a family, its fixed constant, and a Gaussian prior (theory §1)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_options, finite_array, one_of, positive, require_semidefinite, shown
from equipoise.data.arrays import Rows
from equipoise.data.observed import as_rows
from equipoise.data.scanned import Scan
from equipoise.errors import InvalidInput
from equipoise.families.family import FAMILIES, Family, ScalarLoss
from equipoise.families.links import LINKS
from equipoise.linalg import symmetric
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Title

__all__ = ["GLM", "Divergence", "glm"]


class Divergence(Protocol):
    """A loss made from a family, in place of its negative log-likelihood."""

    @property
    def convex(self) -> bool:
        """Whether it is convex in the linear predictor."""
        ...

    def loss(self, family: Family, constant: float | None) -> ScalarLoss:
        """The loss of one observation."""
        ...


# Ends of a response of which nothing is known but that it is finite, as every row is read to be.
_ANY = (-np.finfo(float).max, np.finfo(float).max)


@dataclass(frozen=True, eq=False, repr=False)
class GLM(Card):
    """A generalised linear model with a Gaussian prior; make one with `eq.glm`.

    Attributes
    ----------
    family
        The likelihood and its link.
    constant
        The family's constant; None when it has none, or when it is still to be estimated.
    prior_precision, prior_mean
        Of the prior N(mean, precision⁻¹) on the parameters: scalar, vector or (precision only) matrix.
    divergence
        A robust loss in place of the negative log-likelihood; None for the latter.
    estimated
        Whether the constant is one that the data say, also once they did.
    """

    family: Family
    constant: float | None
    prior_precision: Array
    prior_mean: Array
    divergence: Divergence | None = None
    estimated: bool = False

    def _facts(self) -> dict[str, object]:
        facts = {"family": self.family.name, self.family.parameter or "constant": self.constant}
        return facts | {"divergence": self.divergence, "prior_precision": self.prior_precision}

    @property
    def open(self) -> bool:
        """Whether the constant is still to be estimated."""
        return self.constant is None and self.family.parameter is not None

    @cached_property
    def loss(self) -> ScalarLoss:
        """The loss of one row; its constant must be settled."""
        assert not self.open, "the constant is still open"
        if self.divergence is not None:
            return self.divergence.loss(self.family, self.constant)
        return self.family.loss if self.constant is None else replace(self.family.loss, p=(self.constant,))

    @property
    def title(self) -> Title:
        """Its family, with the divergence if there is one."""
        name = self.family.name if self.divergence is None else f"{self.family.name}, {self.divergence}"
        return Title("Family", name, self.constant)

    @property
    def portable(self) -> bool:
        """It is made of numbers and names."""
        return True

    def bind(self, data: object) -> LinearProblem:
        """Check the response and the prior against the data.

        Raises
        ------
        InvalidInput
            If the response is outside the family's range or the prior does not fit the columns.
        """
        source = as_rows(data)
        # every family takes an interval: the rows are looked at one by one only where an end is not in it
        if not self.family.valid(np.array(source.extremes or _ANY)).all():
            self._require_valid(source)
        if source.of_trials and self.family.law != "bernoulli":
            raise InvalidInput(
                "trials", f"left out for the {self.family.name} family", "given", "use eq.glm('bernoulli')"
            )
        dim = len(source.names)
        return LinearProblem(self, source, source.n, self._precision(dim), self._mean(dim))

    def _require_valid(self, source: Rows | Scan[Rows]) -> None:
        """Raise if a response is outside of the family's range, naming the first such row."""
        start, bad, first = 0, 0, ""
        for rows in source.blocks():
            found = np.flatnonzero(~self.family.valid(rows.y))
            if found.size and not bad:
                first = f"{rows.y[found[0]]:g} at {source.row_name(int(start + found[0]))}"
            start, bad = start + rows.height, bad + found.size
        if bad:
            raise InvalidInput(
                source.response,
                f"{self.family.requirement} for the {self.family.name} family",
                f"{first} ({bad} such rows)",
                "recode the response or choose another family",
            )

    def mean_response(self, eta: Array) -> Array:
        """The mean response, which rises with the linear predictor for every family."""
        return self.family.mean(eta)

    def __getstate__(self) -> dict[str, object]:
        # the loss is made anew where it is needed: some are closures
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def _precision(self, dim: int) -> Array:
        given = self.prior_precision
        if given.ndim == 0:
            given = np.full(dim, float(given))
        if given.shape not in {(dim,), (dim, dim)}:
            raise InvalidInput(
                "prior_precision", f"a scalar, a vector ({dim},) or a matrix ({dim}, {dim})", f"shape {given.shape}",
                "give one entry per column of X",
            )  # fmt: skip
        return given if given.ndim == 1 else symmetric(given)

    def _mean(self, dim: int) -> Array:
        if self.prior_mean.shape not in {(), (dim,)}:
            raise InvalidInput(
                "prior_mean",
                f"a scalar or a vector ({dim},)",
                f"shape {self.prior_mean.shape}",
                "match the columns of X",
            )
        return np.broadcast_to(self.prior_mean, dim).astype(np.float64)


@checked_options
def glm(
    family: str,
    link: str | None = None,
    *,
    scale: float | None = None,
    shape: float | None = None,
    dispersion: float | None = None,
    divergence: Divergence | None = None,
    prior_precision: ArrayLike = 0.0,
    prior_mean: ArrayLike = 0.0,
) -> GLM:
    """A generalised linear model.

    Parameters
    ----------
    family
        `"gaussian"` (identity link), `"bernoulli"` (logit), `"poisson"`, `"gamma"`, `"negative-binomial"` (log).
    link
        Another link for bernoulli: `"probit"` or `"cloglog"`; its divergences have the logit alone.
    scale
        Working standard deviation of the gaussian family; estimated from the residuals when left out.
    shape
        Shape of the gamma family; that of largest likelihood when left out (1 with a divergence).
    dispersion
        a in the negative binomial's variance μ + a μ²; that of largest likelihood when left out (1 with a divergence).
    divergence
        A robust loss: `eq.Beta(b)` for every family; `eq.Huber`, `eq.StudentT` or `eq.Pinball` for gaussian. A scale left
        out is then estimated by the median absolute residual.
    prior_precision
        Precision of a Gaussian prior, R(θ) = ½ (θ−m)ᵀ Γ (θ−m): scalar, vector (diagonal) or matrix. 0 is no prior.
    prior_mean
        m, scalar or vector.

    Returns
    -------
    GLM

    Raises
    ------
    InvalidInput
        If the family is unknown, or a constant is not its own or not positive.

    Examples
    --------
    >>> glm("gamma", shape=2.0).constant
    2.0
    """
    links = LINKS[one_of("family", family, FAMILIES)]
    chosen = links[one_of("link", next(iter(links)) if link is None else link, links)]
    given = {"scale": scale, "shape": shape, "dispersion": dispersion}
    for name, value in given.items():
        if value is not None and name != chosen.parameter:
            raise InvalidInput(name, f"left out for the {family} family", shown(value), f"remove {name}=")
        if value is not None:
            positive(name, value)
    constant = given[chosen.parameter] if chosen.parameter else None
    if constant is None and divergence is not None and chosen.parameter in {"shape", "dispersion"}:
        constant = 1.0  # a likelihood would estimate it, and that is what a robust loss takes the place of
    precision = finite_array("prior_precision", prior_precision)
    require_semidefinite("prior_precision", precision)
    if divergence is not None:
        if isinstance(divergence, type) or not hasattr(divergence, "loss"):
            raise InvalidInput(
                "divergence", "a robust loss such as eq.Beta(1.5)", shown(divergence), "wrap the number in eq.Beta"
            )
        # refused at the door, if at all
        divergence.loss(chosen, 1.0 if constant is None and chosen.parameter else constant)
    number = None if constant is None else float(constant)
    estimated = number is None and chosen.parameter is not None
    return GLM(chosen, number, precision, _used_mean(prior_mean, precision), divergence, estimated)


def _used_mean(given: ArrayLike, precision: Array) -> Array:
    """The prior mean; one that no precision gives any weight is a mistake."""
    mean = finite_array("prior_mean", given)
    if mean.any() and not precision.any():
        raise InvalidInput(
            "prior_mean", "given with a prior_precision, without which it has no weight", shown(given),
            "add prior_precision=..., or remove prior_mean=",
        )  # fmt: skip
    return mean
