"""Roles: a model says what a loss is, a problem is a model bound to its rows, a search says where a minimum may be.

A problem is the pivot of the library: model × source, bound once, with every constant that is estimated from the data
(a gaussian or a robust scale) settled once and carried by all that is made from it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from equipoise.arrays import Array
from equipoise.data.source import Source
from equipoise.engines.engine import Coupling, Engine, Guard
from equipoise.errors import FitFailed
from equipoise.theory.bounds import BoundConstants
from equipoise.theory.curvature import Curvature
from equipoise.theory.moments import Moments
from equipoise.theory.tuning import Tuning

__all__ = [
    "CUSTOM",
    "Block",
    "Cored",
    "Derivatives",
    "Joint",
    "Layout",
    "Measure",
    "Minimised",
    "Model",
    "Problem",
    "Relaxation",
    "Rowwise",
    "Scaled",
    "Search",
    "Title",
    "Yardstick",
]


class Derivatives(NamedTuple):
    """L(θ), ∇L(θ) and ∇²L(θ), as far as they were asked for; the others are empty.

    And with ∇²L what leverages are shares of, where that comes with it: see `Rowwise.information`.
    """

    value: float
    gradient: Array
    hessian: Array
    information: Array | None = None


# a block of rows of the problem's own source: only problems of one kind look inside
Block = Any
CUSTOM = "custom loss"  # what a loss of the user's own is called


class Title(NamedTuple):
    """What a model is called: `kind` is Family or Loss, `name` says which, `constant` is its scale or shape."""

    kind: str
    name: str
    constant: float | None


class Layout(Protocol):
    """How flat vectors become parameters in the user's own structure."""

    @property
    def variables(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of every parameter array, in flat order."""
        ...

    def unflatten(self, theta: Array) -> object:
        """Flat vectors, with any leading axes, in the user's structure."""
        ...

    def skeleton(self) -> Layout:
        """The same, in containers that can be kept."""
        ...


class Rowwise(Protocol):
    """Scores and curvatures of the rows of a block at one θ; it travels to where the rows are."""

    def scores(self, block: Block) -> Array:
        """(rows, D): gradient of each row's loss, its weight included, its frequency not; with one by a free constant last."""
        ...

    def counts(self, block: Block) -> Array:
        """(rows,): how many observations each stands for."""
        ...

    def curvatures(self, block: Block) -> Array:
        """(rows, D, D): Hessian of each row's loss, its weight included, its frequency not."""
        ...

    @property
    def observed(self) -> bool:
        """Whether what leverages are shares of is the sum of the curvatures, so that no pass is needed for it."""
        ...

    def information(self, block: Block) -> Array:
        """(D, D): what leverages are shares of, summed over the observations of the block, without the prior."""
        ...

    def inflated(self, block: Block, vectors: Array, root: Array, power: float) -> Array:
        """v_n (1 − l_n)^−power for every row's vector, l_n its leverage against the information (R Rᵀ)⁻¹, R the root."""
        ...


class Yardstick(NamedTuple):
    """What a distance to the minimiser is compared with, both in the units of a row's root curvature.

    `spread` is √(Σ g² / Σ h) of the rows' scalar derivatives: standard errors of the sandwich per posterior standard
    deviation. `rounding` is the same ratio for the rounding errors of g.
    """

    spread: float
    rounding: float


class Scaled(NamedTuple):
    """A problem in the data's own unit: θ and a scale are `params` times, the loss up to a constant `loss` times its."""

    problem: Problem
    params: float
    loss: float


class Relaxation(Protocol):
    """Convex problems to be solved one after the other, each from the minimum of the one before."""

    def __call__(self, start: Array) -> Generator[Problem, Array, None]:
        """Yield a problem, be sent its minimum, and so on; `start` is the minimum of the first relaxation, or a start."""
        ...


class Measure(Protocol):
    """What distances to a minimum are measured by, and why there may be none."""

    def yardstick(self, theta: Array) -> Yardstick:
        """What a distance from θ to the minimiser is compared with."""
        ...

    def metric(self) -> Array | None:
        """M such that dᵀMd measures steps d by what they do to the rows; None for the parameters' own units."""
        ...

    def explain(self, candidates: Sequence[Array], theta: Array, norm: float) -> FitFailed | None:
        """What to say when the loss never rises along a direction close to θ or a candidate: it has no minimiser.

        `norm` is how far θ seems to be from one, in posterior standard deviations.
        """
        ...


class Search(Measure, Protocol):
    """Where a minimum may be, and why there may be none; nothing of it is part of the loss."""

    @property
    def convex(self) -> bool:
        """Whether any minimum is the minimum."""
        ...

    @property
    def dear(self) -> bool:
        """Whether a Hessian costs so much that steps are found by products with vectors, however few parameters there are."""
        ...

    @property
    def exhaustive(self) -> bool:
        """Whether all starts are worth trying, or only the first that works."""
        ...

    @property
    def proportional(self) -> float | None:
        """p where an estimated constant c only multiplies the loss, by cᵖ, so that the minimiser does not depend on it."""
        ...

    def starts(self) -> list[Array]:
        """Points to start from, the best first; raises `FitFailed` where the rows cannot have a minimiser."""
        ...

    def relaxations(self) -> Sequence[Relaxation]:
        """Convex problems whose minima are starts too."""
        ...

    def scaled(self) -> Scaled | None:
        """The problem in the data's own unit; None when the loss has no unit."""
        ...

    def require_constant(self, constant: float) -> None:
        """Raise `FitFailed`, or warn, of an estimated constant that the rows do not determine."""
        ...


class Minimised(Protocol):
    """What Newton's method looks at: a loss with its rows."""

    @property
    def source(self) -> Source[Block]:
        """Where the rows are."""
        ...

    @property
    def n(self) -> int:
        """Number of observations N the loss is an average over; a subsample has fewer rows, and the same N."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """One name per parameter."""
        ...

    @property
    def quadratic(self) -> bool:
        """Whether the loss is its own second-order expansion, so that the predicted law is exact."""
        ...

    @property
    def search(self) -> Measure:
        """What distances are measured by."""
        ...

    def derivatives(self, theta: Array, order: int) -> Derivatives:
        """L, with order 1 also ∇L, with order 2 also ∇²L, from one pass over the rows."""
        ...


@runtime_checkable
class Cored(Minimised, Protocol):
    """A loss of many rows, some of which stand for all."""

    def core(self, theta: Array) -> tuple[Derivatives, Cored]:
        """All derivatives at θ and, from the same reading, the loss of some rows that stand for all."""
        ...

    def information(self, theta: Array) -> Array:
        """What leverages are shares of, summed over the observations."""
        ...


class Joint(Minimised, Protocol):
    """Parameters and the logarithm of an estimated constant as one problem."""

    def loss(self, theta: Array) -> float:
        """The loss of the parameters alone, close to where derivatives were taken last."""
        ...


@runtime_checkable
class Problem(Minimised, Protocol):
    """A model together with its rows: L(θ) = (1/N) [Σ ℓ_n(θ) + R(θ)] and its derivatives, in flat θ."""

    @property
    def model(self) -> Model:
        """What the loss is; with its constant, once that is settled."""
        ...

    @property
    def layout(self) -> Layout:
        """How flat vectors become the user's parameters."""
        ...

    @property
    def search(self) -> Search:
        """Where its minimum may be."""
        ...

    @property
    def guarded(self) -> bool:
        """Whether chains are kept inside a very large ellipsoid by default (theory §10)."""
        ...

    @property
    def constant(self) -> float | None:
        """The loss's constant (a scale, a shape); None when it has none, or it is not settled yet."""
        ...

    def settled(self, theta: Array) -> Self:
        """The problem with a constant that is still open estimated at θ; itself when none is."""
        ...

    def resettled(self, theta: Array, loss: float) -> Self:
        """The problem with an estimated constant estimated anew at θ, where its loss with the present one is known."""
        ...

    def at_constant(self, constant: float | None) -> Self:
        """The problem with its constant fixed to one found before; itself for None."""
        ...

    def joint(self) -> Joint | None:
        """The same with its constant among the parameters, where that is estimated by likelihood; None elsewhere."""
        ...

    def with_precision(self, gamma: float) -> Self:
        """The problem with the prior precision γI in place of its own; the prior mean is kept."""
        ...

    def without_prior(self) -> Self:
        """The mean loss of the rows alone."""
        ...

    def subsample(self, rows: int, seed: int | None) -> Self:
        """The same problem on a random subset of rows, still weighing the regulariser by the full N."""
        ...

    def marked(self, clusters: object = None, time: object = None) -> Self:
        """The same problem with clusters and times beside its rows; those that its source keeps, when neither is given."""
        ...

    def stacked(self, moments: Moments) -> tuple[Moments, Array | None]:
        """The moments with what an estimated constant adds to the uncertainty of θ̂; themselves where it adds nothing.

        And how it moves the scores of rows, for `covariance.folded`.
        """
        ...

    def rowwise(self, theta: Array) -> Rowwise:
        """Scores and curvatures of single rows at θ; a constant that is open is settled there."""
        ...

    def identified(self, theta: Array) -> Problem:
        """The problem restricted to the directions its loss curves along at a minimiser θ."""
        ...

    def within(self, theta: Array, axes: Array) -> Problem | None:
        """The problem restricted to θ + the span of the rows of `axes`; None where parameters cannot be combined."""
        ...

    def flatten(self, params: object) -> Array:
        """Parameters in the user's structure, checked, as a flat vector."""
        ...

    def product(self, theta: Array, v: Array) -> Array:
        """∇²L v, from one pass over the rows, without the matrix."""
        ...

    def diagonal(self, theta: Array) -> Array:
        """About the diagonal of ∇²L, all of it positive: what parameters are measured by where there is no matrix."""
        ...

    def moments(self, theta: Array) -> Moments:
        """J, V, H and the curvature operator at θ, from one pass over the rows."""
        ...

    def curvature(self, theta: Array) -> Curvature:
        """The operator behind K at θ."""
        ...

    def bound_constants(self, theta: Array, radius: float | None) -> BoundConstants:
        """The constants of the Wasserstein bounds at a minimiser; `InvalidInput` where they are not known."""
        ...

    def engine(self, tuning: Tuning, guard: Guard, storage: str = "float64", touched: float = inf) -> Engine:
        """What runs its chains; `touched` is how many rows they are expected to draw, which changes no bit."""
        ...

    def coupling(self, tuning: Tuning, guard: Guard) -> Coupling:
        """What runs a chain beside its quadratic proxy; `InvalidInput` where that is not possible."""
        ...


@runtime_checkable
class Model(Protocol):
    """What a loss is, apart from any rows."""

    @property
    def title(self) -> Title:
        """What people call it."""
        ...

    @property
    def portable(self) -> bool:
        """Whether it can be pickled and saved with the results it led to."""
        ...

    def bind(self, data: object) -> Problem:
        """The problem this model poses on `data`; bad input is caught here."""
        ...

    def mean_response(self, eta: Array) -> Array:
        """The mean response, rising in the linear predictor η; `InvalidInput` where a model has none."""
        ...
