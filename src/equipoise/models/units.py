"""The response in the data's own unit: a loss that knows units (a density does) is then free of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.data.marks import Marks
from equipoise.data.source import Source
from equipoise.data.table import Design
from equipoise.linalg import Sums
from equipoise.models.problem import Scaled

if TYPE_CHECKING:
    from equipoise.models.glm import GLM
    from equipoise.models.linear import LinearProblem

__all__ = ["Changed", "in_unit"]


@dataclass(frozen=True)
class _Change:
    """A block of rows with the response, and its predictor, in units of `unit`."""

    unit: float
    logarithmic: bool

    def __call__(self, rows: Rows) -> Rows:
        """The same rows: with a log link the unit leaves the predictor as a constant, otherwise as a factor."""
        offset = rows.offset
        if self.logarithmic:
            offset = (np.zeros(rows.height) if offset is None else offset) - np.log(self.unit)
        elif offset is not None:
            offset = offset / self.unit
        return replace(rows, y=rows.y / self.unit, offset=offset)


@dataclass(frozen=True)
class _Then(Generic[Sums]):
    """f of the changed rows; it travels to where they are."""

    f: Callable[[Rows], Sums]
    change: Callable[[Rows], Rows]

    def __call__(self, rows: Rows) -> Sums:
        """What f makes of one block."""
        return self.f(self.change(rows))


@dataclass(frozen=True)
class Changed:
    """The rows of another source, changed block by block; `columns` are their names where those change too."""

    source: Source[Rows]
    change: Callable[[Rows], Rows]
    columns: tuple[str, ...] | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.source.n

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.source.names if self.columns is None else self.columns

    @property
    def response(self) -> str:
        """What the response is called."""
        return self.source.response

    @property
    def design(self) -> Design | None:
        """How a table became columns."""
        return self.source.design

    @property
    def marks(self) -> Marks | None:
        """As the other source."""
        return self.source.marks

    @property
    def in_memory(self) -> bool:
        """As the other source."""
        return self.source.in_memory

    def blocks(self, width: int | None = None) -> Iterator[Rows]:
        """The changed rows in blocks."""
        return map(self.change, self.source.blocks(width))

    def reduce(self, f: Callable[[Rows], Sums], width: int | None = None) -> Sums:
        """The sum of f over the changed blocks."""
        return self.source.reduce(_Then(f, self.change), width)

    def sample(self, count: int, seed: int | None) -> Changed:
        """The same rows as of the other source, changed."""
        return replace(self, source=self.source.sample(count, seed))

    def pool(self, count: int, seed: int, weight: Callable[[Rows], Array] | None = None) -> Changed:
        """The same rows as of the other source, changed."""
        return replace(self, source=self.source.pool(count, seed, weight))

    def marked(self, clusters: object = None, time: object = None) -> Changed:
        """The same rows with clusters and times beside them."""
        return replace(self, source=self.source.marked(clusters, time))

    def by_time(self) -> Changed:
        """The same rows in the order of their times."""
        return replace(self, source=self.source.by_time())

    def fingerprint(self) -> str:
        """A digest that changes with any row."""
        return f"{self.source.fingerprint()}/{self.change!r}"


def in_unit(problem: LinearProblem, unit: float) -> Scaled:
    """The same problem with y/u in place of y: θ/u for a gaussian response, the same θ for a log link.

    A density of y is 1/u times one of y/u, and a loss made of its powers has a power of u as a factor. The prior keeps its
    weight beside the loss.
    """
    model, logarithmic = problem.model, problem.model.family.parameter != "scale"
    params = 1.0 if logarithmic else unit
    constant = None if model.constant is None else model.constant / params
    # read off the curvature where y is fitted perfectly; any scale will do for one that is still open
    before = _bend(replace(model, constant=model.constant or params), unit if logarithmic else 0.0)
    after = _bend(replace(model, constant=constant or 1.0), 1.0 if logarithmic else 0.0)
    factor = before * params * params / after
    moved = replace(
        problem,
        model=replace(model, constant=constant),
        source=Changed(problem.source, _Change(unit, logarithmic)),
        precision=problem.precision * (params * params / (factor or 1.0)),
        mean=problem.mean / params,
    )
    return Scaled(moved, params, factor)


def _bend(model: GLM, y: float) -> float:
    """ℓ'' of a row with response y, fitted perfectly."""
    at = np.array([y])
    return float(model.loss.d2(model.family.link(at), at, model.loss.constants)[0])
