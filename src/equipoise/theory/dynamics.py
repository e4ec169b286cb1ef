"""The dynamics of a chain: gradient estimator, batch rule, injected noise and momentum (theory §1).

The first three are small values, each with one place here, for the law it gives, and one in the engines, for the loop
that does it. A new one is a new value, its law, and a branch of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_fields, flag, is_number, one_of, shown, whole
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.theory.moments import Moments

__all__ = [
    "BATCHES",
    "GRADIENTS",
    "BatchCumulants",
    "BatchRule",
    "ControlVariate",
    "Dynamics",
    "Epochs",
    "Gradient",
    "Independent",
    "Leverage",
    "Plain",
]


class Gradient(Protocol):
    """A gradient estimator: the part of its noise that does not vanish at the minimiser."""

    @property
    def name(self) -> str:
        """What `Dynamics` calls it."""
        ...

    def score_cov(self, moments: Moments, rule: BatchRule) -> Array:
        """Covariance of one drawn row's term at the minimiser; K(S) comes on top of it (theory §2)."""
        ...


@dataclass(frozen=True)
class Plain:
    """The mean gradient of a batch."""

    name: str = "plain"

    def score_cov(self, moments: Moments, rule: BatchRule) -> Array:
        """V: at the minimiser every row still pulls its own way."""
        return moments.drawn_score_cov(rule)


@dataclass(frozen=True)
class ControlVariate:
    """The mean of ∇ℓ_n(θ) − ∇ℓ_n(θ̂) over a batch, plus the mean of ∇ℓ_n(θ̂) over all rows (theory §12)."""

    name: str = "control-variate"

    def score_cov(self, moments: Moments, rule: BatchRule) -> Array:
        """Nothing: at the minimiser every row says the same."""
        return np.zeros_like(moments.score_cov)


GRADIENTS: dict[str, Gradient] = {"plain": Plain(), "control-variate": ControlVariate()}


class BatchCumulants(NamedTuple):
    """Cumulants of a batch's mean over what they are made of: moments m_k of one row about the mean of all.

    They are second·m₂, third·m₃ and fourth·m₄ + pairs·m₂².
    """

    second: float
    third: float
    fourth: float
    pairs: float

    @classmethod
    def with_replacement(cls, b: float) -> BatchCumulants:
        """Of 1/b rows drawn with replacement."""
        return cls(b, b**2, b**3, -3.0 * b**3)

    @classmethod
    def without_replacement(cls, batch_size: int, n: int) -> BatchCumulants:
        """Of rows drawn without: terms that sum to zero over all rows, weighed by how often rows are drawn together."""
        B = batch_size
        # (n/B)^k times the probability that k given rows are all drawn
        p = np.cumprod([(B - k) / (n - k) * n / B if n > k else 0.0 for k in range(4)])
        fourth = (p[0] - 7.0 * p[1] * B / n + 12.0 * p[2] * (B / n) ** 2 - 6.0 * p[3] * (B / n) ** 3) / B**3
        pairs = 3.0 * (p[1] - 2.0 * p[2] * B / n + p[3] * (B / n) ** 2) / B**2
        b = _without_replacement(B, n)
        third = (n - B) * (n - 2 * B) / (B * B * (n - 1.0) * (n - 2.0)) if n > 2 else 0.0
        return cls(b, third, float(fourth), float(pairs) - 3.0 * b * b)


class BatchRule(Protocol):
    """How the rows of a batch are drawn."""

    @property
    def name(self) -> str:
        """What `Dynamics` calls it."""
        ...

    @property
    def weighted(self) -> bool:
        """Whether rows are drawn by leverage, and weighed for it."""
        ...

    def cumulants(self, batch_size: int, n: int) -> BatchCumulants:
        """How the cumulants of a batch's mean follow from the moments of a row; the second's factor is b."""
        ...


@dataclass(frozen=True)
class Independent:
    """A new batch at every step, whatever was drawn before; its rows with or without replacement."""

    replacement: bool
    name: str = "independent"
    weighted: bool = False

    def cumulants(self, batch_size: int, n: int) -> BatchCumulants:
        """Powers of 1/B with replacement; what sampling from a finite population leaves without."""
        if self.replacement:
            return BatchCumulants.with_replacement(1.0 / batch_size)
        return BatchCumulants.without_replacement(batch_size, n)


@dataclass(frozen=True)
class Leverage:
    """Rows drawn with replacement, in proportion to what they bend the loss by, and weighed by the inverse (theory §13)."""

    name: str = "leverage"
    weighted: bool = True

    def cumulants(self, batch_size: int, n: int) -> BatchCumulants:
        """Powers of 1/B."""
        return BatchCumulants.with_replacement(1.0 / batch_size)


@dataclass(frozen=True)
class Epochs:
    """One permutation of the rows per pass, cut into batches: what `DataLoader(shuffle=True)` does (theory §15).

    An incomplete last batch is left out with `drop_last`.
    """

    drop_last: bool
    name: str = "epochs"
    weighted: bool = False

    def cumulants(self, batch_size: int, n: int) -> BatchCumulants:
        """Those of a batch alone, which is one drawn without replacement."""
        return BatchCumulants.without_replacement(batch_size, n)

    def sizes(self, batch_size: int, n: int) -> tuple[int, ...]:
        """The sizes of the batches of an epoch."""
        whole_batches, rest = divmod(n, batch_size)
        return (batch_size,) * whole_batches + ((rest,) if rest and not self.drop_last else ())


BATCHES = ("independent", "leverage", "epochs")


def _without_replacement(batch_size: int, n: int) -> float:
    return (n - batch_size) / (batch_size * (n - 1)) if n > 1 else 0.0


@checked_fields
@dataclass(frozen=True)
class Dynamics(Card):
    """How a chain moves, apart from its step matrix.

    Attributes
    ----------
    batch_size
        Rows per step, B.
    momentum
        Heavy-ball coefficient κ in [0, 1).
    inverse_temperature
        β; infinity is SGD, the number of rows is canonical SGLD. `"auto"` lets `eq.tune` choose the one with which the
        slowest direction of a control-variate chain mixes fastest (theory §12).
    replacement
        Whether the rows of one batch are drawn with replacement; epochs never do, leverage always does.
    gradient
        The gradient estimator: `"plain"`, or `"control-variate"`, which subtracts each row's gradient at the minimiser.
    batches
        The batch rule: `"independent"`, `"leverage"` (rows drawn in proportion to their leverage), or `"epochs"` (one
        permutation per pass over the data).
    drop_last
        Whether epochs leave out an incomplete last batch.

    Examples
    --------
    >>> Dynamics(batch_size=50).noise_factor(1000)
    0.02
    >>> Dynamics(batch_size=1000, replacement=False).noise_factor(1000)
    0.0
    """

    batch_size: int
    momentum: float = 0.0
    inverse_temperature: float | str = np.inf
    replacement: bool = True
    gradient: str = "plain"
    batches: str = "independent"
    drop_last: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole("batch_size", self.batch_size, 1, "pass an int such as 100"))
        object.__setattr__(self, "replacement", flag("replacement", self.replacement))
        if not (is_number(self.momentum) and 0.0 <= self.momentum < 1.0):
            raise InvalidInput(
                "momentum", "at least 0 and below 1", shown(self.momentum), "use 0 for none, 0.9 for a common choice"
            )
        object.__setattr__(self, "drop_last", flag("drop_last", self.drop_last))
        beta = self.inverse_temperature
        if beta != "auto" and not (is_number(beta) and beta > 0.0):
            raise InvalidInput(
                "inverse_temperature",
                "positive, or 'auto'",
                shown(self.inverse_temperature),
                "use numpy.inf for SGD, the number of rows for SGLD",
            )
        one_of("gradient", self.gradient, GRADIENTS)
        one_of("batches", self.batches, BATCHES)
        if self.batches == "leverage" and not self.replacement:
            raise InvalidInput(
                "replacement",
                "True with batches='leverage'",
                False,
                "leave it out: those rows are drawn with replacement",
            )

    @property
    def estimator(self) -> Gradient:
        """The gradient estimator."""
        return GRADIENTS[self.gradient]

    @property
    def rule(self) -> BatchRule:
        """The batch rule."""
        if self.batches == "epochs":
            return Epochs(self.drop_last)
        return Leverage() if self.batches == "leverage" else Independent(self.replacement)

    @property
    def beta(self) -> float:
        """β as a number."""
        if isinstance(self.inverse_temperature, str):
            raise InvalidInput(
                "inverse_temperature", "a number for this", "'auto'", "let eq.tune resolve it: see tuning.dynamics"
            )
        return self.inverse_temperature

    @property
    def temperature(self) -> float:
        """1/β, zero for SGD."""
        return 1.0 / self.beta

    def noise_factor(self, n: int) -> float:
        """The factor b of the gradient noise: 1/B with replacement, (N−B)/(B(N−1)) without."""
        return self.cumulants(n).second

    def cumulants(self, n: int) -> BatchCumulants:
        """How the cumulants of a batch's mean follow from the moments of a row."""
        self.require_batch_within(n)
        return self.rule.cumulants(self.batch_size, n)

    def require_batch_within(self, n: int) -> None:
        """Raise `InvalidInput` when a batch would hold more rows than the data."""
        if self.batch_size > n:
            raise InvalidInput(
                "batch_size", f"at most the number of rows, {n}", self.batch_size, "choose a smaller batch"
            )
