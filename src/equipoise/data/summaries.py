"""What calls such as `center(x)` learn, from sums over blocks: the same numbers as from all rows at once.

Means and spreads are merged block by block. The polynomials of `poly` depend on moments up to twice their degree, and a
few nodes with weights (of Gauss's quadrature) have exactly those of a block: nodes are merged in place of rows. Splines
need the extremes, and the places of their knots, for which a random sample of the rows stands in.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from equipoise.arrays import Array
from equipoise.data.grammar import steadily

__all__ = ["LEARNERS", "Extremes", "Nodes", "Spread", "Summary", "learnt_by"]

# Nodes that are kept before they are made fewer.
_MOST_NODES = 4096
# Of the squares of the polynomial before, on numbers up to 1: what rounding leaves where there are no more different values.
_NOTHING_LEFT = 1e-28


@dataclass(frozen=True)
class Spread:
    """Count, mean and squared deviations of some numbers: what `center`, `scale` and `standardize` learn from."""

    count: float
    mean: float
    square: float
    center: bool | float
    scale: bool | float
    ddof: float

    @staticmethod
    def of(x: Array, times: Array, center: bool | float, scale: bool | float, ddof: float) -> Spread:
        """Of one block."""
        count = float(times.sum())
        mean = float(times @ x / count)
        return Spread(count, mean, float(times @ (x - mean) ** 2), center, scale, ddof)

    def merged(self, other: Spread) -> Spread:
        """Of both."""
        count = self.count + other.count
        apart = np.float64(other.mean - self.mean)
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused once it is known
            mean = self.mean + apart * other.count / count
            square = self.square + other.square + apart**2 * self.count * other.count / count
        return Spread(count, float(mean), float(square), self.center, self.scale, self.ddof)

    def moved(self, shift: float, unit: float) -> Spread:
        """Of (x − shift)/unit."""
        return replace(self, mean=(self.mean - shift) / unit, square=self.square / unit**2)

    def state(self) -> dict[str, object]:
        """What formulaic keeps."""
        center = (self.mean if self.center else None) if isinstance(self.center, bool) else float(self.center)
        square = self.square + self.count * (self.mean - (center or 0.0)) ** 2
        spread = float(np.sqrt(square / (self.count - self.ddof))) if self.scale is True else None
        scale = spread if isinstance(self.scale, bool) else float(self.scale)
        return {"ddof": self.ddof, "center": center, "scale": scale}


@dataclass(frozen=True)
class Nodes:
    """Numbers with weights that have the moments of some rows up to degree 2·degree + 1: what `poly` learns from.

    They are counted from an origin among the rows: far from zero the moments would be lost in rounding.
    """

    x: Array
    weights: Array
    degree: int
    origin: float

    @staticmethod
    def of(x: Array, times: Array, degree: int) -> Nodes:
        """Of one block."""
        origin = float(x[0])
        return Nodes(x - origin, times, degree, origin).fewer()

    def merged(self, other: Nodes) -> Nodes:
        """Of both."""
        x = np.concatenate([self.x, other.x + (other.origin - self.origin)])
        both = Nodes(x, np.concatenate([self.weights, other.weights]), self.degree, self.origin)
        return both.fewer() if both.x.size > _MOST_NODES else both

    def moved(self, shift: float, unit: float) -> Nodes:
        """Of (x − shift)/unit."""
        return replace(self, x=self.x / unit, origin=(self.origin - shift) / unit)

    def fewer(self) -> Nodes:
        """Gauss's nodes for these: eigenvalues of the Jacobi matrix of the polynomials orthogonal under them."""
        if self.x.size <= self.degree + 1:
            return self
        # a power of two changes no digit, and powers of what it divides neither overflow nor vanish
        unit = 2.0 ** np.frexp(np.abs(self.x).max())[1]
        alpha, norms = replace(self, x=self.x / unit)._recurrence(self.degree + 1)
        kept = int(np.flatnonzero(np.append(norms[1:], 0.0) <= _NOTHING_LEFT * norms)[0]) + 1
        beside = np.sqrt(norms[1:kept] / norms[: kept - 1])
        nodes, vectors = np.linalg.eigh(np.diag(alpha[:kept]) + np.diag(beside, 1) + np.diag(beside, -1))
        return replace(self, x=unit * nodes, weights=norms[0] * vectors[0] ** 2)

    def _recurrence(self, count: int) -> tuple[Array, Array]:
        """α_0 … and ‖p_0‖² … of the monic polynomials orthogonal under the weights."""
        alpha, norms = np.zeros(count), np.zeros(count)
        before, here = np.zeros_like(self.x), np.ones_like(self.x)
        for k in range(count):
            norms[k] = self.weights @ here**2
            if not norms[k] > 0.0:
                break
            alpha[k] = self.weights @ (self.x * here**2) / norms[k]
            shrink = norms[k] / norms[k - 1] if k else 0.0
            before, here = here, (self.x - alpha[k]) * here - shrink * before
        return alpha, norms

    def state(self) -> dict[str, object]:
        """What formulaic keeps."""
        alpha, norms = self._recurrence(self.degree + 1)
        return {"alpha": dict(enumerate(self.origin + alpha[: self.degree])), "norms2": dict(enumerate(norms))}


@dataclass(frozen=True)
class Extremes:
    """The ends of some numbers: what splines learn beside their knots, where those ends are not written."""

    low: float
    high: float
    written: Mapping[str, float]

    def merged(self, other: Extremes) -> Extremes:
        """Of both."""
        return Extremes(min(self.low, other.low), max(self.high, other.high), self.written)

    def moved(self, shift: float, unit: float) -> Extremes:
        """Of (x − shift)/unit."""
        ends = [(end - shift) / unit for end in (self.low, self.high)]
        return Extremes(min(ends), max(ends), self.written)

    def state(self) -> dict[str, object]:
        """What formulaic keeps before it has knots."""
        return {"lower_bound": self.low, "upper_bound": self.high, **self.written}


@dataclass(frozen=True)
class Waiting:
    """Of a call around functions of calls that have not learnt yet: nothing."""

    def merged(self, other: Waiting) -> Waiting:
        """Of both."""
        return other


WAITING = Waiting()
Summary = Spread | Nodes | Extremes | Waiting


def _spread(x: Array, times: Array, center: Any = True, scale: Any = True, ddof: float = 1.0) -> Spread:
    return Spread.of(x, times, center, scale, ddof)


def _standardized(x: Array, times: Array, center: Any = True, rescale: Any = True, ddof: float = 0.0) -> Spread:
    return Spread.of(x, times, center, rescale, ddof)


def _centered(x: Array, times: Array) -> Spread:
    return Spread.of(x, times, True, False, 1.0)


def _nodes(x: Array, times: Array, degree: int = 1, raw: bool = False) -> Nodes:
    del raw  # with which nothing would be learnt
    return Nodes.of(x, times, degree)


def _ends(order: tuple[str, ...], x: Array, times: Array, *arguments: Any, **named: Any) -> Extremes:
    """Of a spline whose further arguments are in this order."""
    del times  # an extreme is one however often it counts
    given = dict(zip(order, arguments, strict=False)) | named
    written = {name: float(given[name]) for name in ("lower_bound", "upper_bound") if given.get(name) is not None}
    return Extremes(float(np.nanmin(x)), float(np.nanmax(x)), written)


_CUBIC = partial(_ends, ("df", "knots", "lower_bound", "upper_bound"))

# what each function that learns makes of a block, given its numbers, how often each counts, and its other arguments
LEARNERS: dict[str, Callable[..., Summary]] = {
    "center": _centered,
    "scale": _spread,
    "standardize": _standardized,
    "poly": _nodes,
    "bs": partial(_ends, ("df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound")),
    "cr": _CUBIC,
    "cs": _CUBIC,
    "cc": _CUBIC,
}


def learnt_by(states: Mapping[str, tuple[str, Summary]]) -> dict[str, dict[str, Any]]:
    """What calls learn, those inside others too, from what all of them were given with no inner one applied yet.

    One around a call that shifts and divides learns from the summary as that moves it. One around another expression of a
    call learns nothing here.
    """
    found, moves = dict[str, dict[str, Any]](), dict[str, list[tuple[float, float]]]()
    for call in sorted(states, key=len):  # what is inside comes first
        _, summary = states[call]
        inside = first_argument(call)
        if isinstance(summary, Waiting):
            continue
        before, moved = moves.get(inside, []), summary
        for move in before:
            moved = moved.moved(*move)
        found[call] = moved.state()
        if isinstance(summary, Spread):
            shift, unit = (found[call][key] for key in ("center", "scale"))
            moves[call] = [*before, (np.float64(shift or 0.0), np.float64(1.0 if unit is None else unit))]
    return found


def first_argument(call: str) -> str:
    """As the text of a call inside a call is kept."""
    from formulaic.utils.code import format_expr

    arguments = steadily(lambda: ast.parse(call, mode="eval")).body.args  # type: ignore[attr-defined]
    return str(format_expr(arguments[0])) if arguments else ""
