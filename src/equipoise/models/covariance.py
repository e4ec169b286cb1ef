"""A covariance of an estimate, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.linalg import cho_factor

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.errors import InvalidInput
from equipoise.linalg import between
from equipoise.theory.moments import Moments

__all__ = ["Covariance", "folded", "left", "pulled"]


@dataclass(frozen=True, repr=False)
class Covariance(Card):
    """A covariance of the estimate and where it comes from.

    Attributes
    ----------
    matrix
        (D, D).
    kind
        One of `KINDS` or of the targets made from moments alone; or what else it is called.
    by
        The ways of clustering.
    groups
        The number of clusters of each.
    lags
        Of HAC; otherwise None.
    repaired
        The largest relative change of a standard error by which the matrix was made positive definite.
    df
        Degrees of freedom of t and F: clusters less one, of the way with fewest; for squared loss N − D; None for a
        normal law.
    """

    matrix: Array
    kind: str
    by: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    lags: int | None = None
    repaired: float = 0.0
    df: float | None = None

    @property
    def rank(self) -> int:
        """How many directions it has variance along at most: centred scores of G clusters span G − 1."""
        return sum(count - 1 for count in self.groups) if self.groups else len(self.matrix)

    @property
    def words(self) -> str:
        """What it is called, in full."""
        if self.groups:
            parts = (f"{name} ({count:,} clusters)" for name, count in zip(self.by, self.groups, strict=True))
            return f"{self.kind} by {' and '.join(parts)}"
        return self.kind if self.lags is None else f"{self.kind} with {self.lags} lags"


def left(n: int, dim: int) -> int:
    """N − D, where there is any."""
    if n <= dim:
        raise InvalidInput(
            "kind", "one without N − D in it for as few rows as parameters", f"N = {n}, D = {dim}", "use HC0"
        )
    return n - dim


def pulled(moments: Moments, middle: Array) -> Array:
    """(NH)⁻¹ M (NH)⁻¹."""
    return between(cho_factor(moments.n * moments.hessian), middle)


def folded(scores: Array, along: Array | None) -> Array:
    """Scores of θ̂ with an estimated constant free, g − u H_θc / H_cc: the stacked equations, solved for θ.

    `along` is H_θc / H_cc, and u the last column; there is none where no constant is free.
    """
    return scores if along is None else scores[..., :-1] - scores[..., -1:] * along
