"""Second and third derivatives of a generalised linear model, averaged over its rows against matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.files import available_memory
from equipoise.linalg import Sums, Total, added_form, symmetric
from equipoise.models.core import ALIKE, CORE, Chances, height_of
from equipoise.models.passes import (
    AbsolutePass,
    Both,
    CorePass,
    CrossPass,
    CurvaturePass,
    CurvatureSums,
    ImagesPass,
    Leveraging,
    ScatterPass,
    ThirdPass,
    standing_rows,
)
from equipoise.models.rowwise import StackedSums
from equipoise.models.sums import derivatives, gram, weighted
from equipoise.models.written import Written, WrittenPass
from equipoise.theory.curvature import ImagePass
from equipoise.theory.expansion import RankOneExpansion, expanded_rows

if TYPE_CHECKING:
    from equipoise.models.linear import LinearProblem

__all__ = ["LinearCurvature", "leveraging"]

_TURNED = 512  # columns from which on rows are brought into other coordinates
_ROWS_TURNED = 20  # rows a column up to which they are
_ROWS_PAIRED = 6  # rows a column up to which all pairs of rows cost less than many passes over them
_SHARE = 0.25  # of the memory at hand that their copy may take
_LOT = 1 << 15  # rows that tell how large v is
_MOST = 1 << 17  # rows that stand for all in a fit
_LEAST = 0.1  # of the mean second derivative, which rows count as having at least
_HELD = 32  # times they, or the sums of the operator, would fit into the memory for reading
_FLOPS = 1000.0  # of a product that take as long as a pass over local files takes for each number it reads


@dataclass
class _Known:
    """What was summed up at one θ: against the last matrices, in how many passes so far, and by each rule against any.

    `expected` is the matrix to be asked for next, `many` whether many will be.
    """

    last: dict[bytes, CurvatureSums] = field(default_factory=dict)
    passes: int = 0
    written: dict[int, Written] = field(default_factory=dict)
    expected: Array | None = None
    many: bool = False


@dataclass(frozen=True)
class LinearCurvature:
    """Curvature of a linear-predictor loss: J_n = h_n x_n x_nᵀ, third derivative t_n x_n ⊗ x_n ⊗ x_n.

    One pass gives both averages against a matrix, and the last ones are kept: a law asks for one after the other. Of rows in
    files, once passes for other matrices have taken as long as that does, one pass more gives the averages against any.
    `leverage` is how rows are drawn, None for all alike; `other` a rule by leverages whose sums are made in the same
    passes, where these are what costs. `stacked` and `absolute` are sums that the pass of the moments made besides: those
    of an estimated constant, and Σ |h| x xᵀ.
    """

    problem: LinearProblem
    theta: Array
    leverage: Leveraging | None = None
    stacked: StackedSums | None = None
    absolute: Array | None = None
    other: Leveraging | None = None
    _known: _Known = field(default_factory=_Known, repr=False, compare=False)

    @property
    def travels(self) -> bool:
        """Rows in memory stay where they are."""
        return False

    def quadratic(self, S: Array) -> Array:
        """mean h_n² (x_nᵀ S x_n) x_n x_nᵀ."""
        written = self._written(S, (self._rule,))
        total = self._sums(S).quadratic[self._rule] if written is None else written.quadratic(S)
        return symmetric(total) / self.problem.source.n

    def third(self, S: Array) -> Array:
        """mean t_n (x_nᵀ S x_n) x_n."""
        written = self._written(S, self._known.written)
        return (self._sums(S).third if written is None else written.third(S)) / self.problem.source.n

    def third_along(self, vectors: Array) -> Array:
        """mean t_n (x_nᵀv)² x_n."""
        sums = self.problem.source.reduce(ThirdPass(self.problem.model, self.theta, vectors), vectors.size)
        return sums.total / self.problem.source.n

    def expansion(self, basis: Array) -> RankOneExpansion:
        """The rows' columns in θ = basis · z, and their scalar derivatives."""
        some = self.sampled(expanded_rows(self.problem.source.n, len(basis), written_out=False)).problem.source
        loss, parts = self.problem.model.loss, []
        for rows in some.blocks():
            g, h, t = derivatives(loss, rows, self.theta, 1, 2, 3)
            emphasis = np.ones_like(h) if self.leverage is None else self.leverage.emphasis(rows.x, h)
            parts.append((rows.x @ basis, g, h, t, emphasis, rows.counts / some.n))
        return RankOneExpansion(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Sums:
        """Σ f(h_n (x_nᵀv) Rᵀx_n)."""
        part = ImagesPass(self.problem.model, self.theta, vectors, root, self.leverage, f)
        return self.problem.source.reduce(part)

    def sampled(self, count: int) -> LinearCurvature:
        """The same of so many rows at most."""
        source = self.problem.source
        if count >= source.n and source.in_memory:
            return self
        return LinearCurvature(self.problem.subsample(min(count, source.n), seed=None), self.theta, self.leverage)

    def representative(self, count: int, S: Array) -> LinearCurvature:
        """The same of so many rows, where they have the mean (h_n x_nᵀSx_n)⁴ of all: then no other stands out.

        If those drawn alike do not have it, those of large h_n x_nᵀSx_n and some of the others may.
        """
        some, whole = self.sampled(count), self._fourth(S)
        if some is not self and abs(some._fourth(S) - whole) > ALIKE * whole:
            source = self.problem.source
            core = standing_rows(self._sums(S).kept or source.reduce(self._core_pass(*_rooted(S))).kept, source)
            some = LinearCurvature(replace(self.problem, source=core), self.theta, self.leverage)
        return some if abs(some._fourth(S) - whole) <= ALIKE * whole else self

    def _fourth(self, S: Array) -> float:
        return float(self._sums(S).fourth[self._rule]) / self.problem.source.n

    def with_core(self, f: Callable[[Rows], Sums]) -> tuple[Sums, Rows]:
        """What a pass sums up, and rows that stand for all, from the same reading."""
        source = self.problem.source
        both = source.reduce(Both(f, self.standing_pass()))
        return both.first, standing_rows(both.second.kept, source)

    def standing_pass(self) -> CorePass:
        """The pass that keeps rows which stand for all by their leverages: more than elsewhere, for they save a fit passes."""
        source = self.problem.source
        hessian = self.sampled(_LOT).problem.derivatives(self.theta, 2).hessian
        inverse = symmetric(np.linalg.inv(_filled(hessian, source.n)).astype(np.float64))
        room = getattr(source, "memory", np.inf) // (_HELD * 8 * (self.theta.size + 5))
        # a robust loss bends for other rows after a step, its log loss for all that may matter
        plain = replace(self, problem=replace(self.problem, model=replace(self.problem.model, divergence=None)))
        return plain._core_pass(*_rooted(inverse), int(max(CORE, min(_MOST, source.n // 4, room))), _LEAST)

    def _core_pass(self, matrix: Array, root: Array | None, most: int = CORE, least: float = 0.0) -> CorePass:
        """The pass that keeps about so many rows, by what a sample tells of their sizes.

        `least` is the share of the mean second derivative that a row's counts as at least.
        """
        model, some = self.problem.model, self.sampled(_LOT).problem.source
        every = CorePass(model, self.theta, matrix, root, Chances(1.0, 0.0))
        if least:
            bend = sum(float(np.sum(np.abs(derivatives(model.loss, rows, self.theta, 2)[0]))) for rows in some.blocks())
            weight = sum(float(np.sum(weighted(rows, np.ones(rows.height)))) for rows in some.blocks())
            every = replace(every, least=least * bend / weight)
        v = np.concatenate([every.sizes(rows) for rows in some.blocks()])
        return replace(every, chances=Chances.of(v, height_of(self.problem.source), most))

    def scatter(self) -> Array:
        """mean g_n² x_n x_nᵀ; of files, what is expected to be asked for next is found in the same pass."""
        source, S = self.problem.source, self._known.expected
        f = ScatterPass(self.problem.model, self.theta, self.leverage)
        if source.in_memory or S is None or S.tobytes() in self._known.last or self._rule in self._known.written:
            total = (self._reduced(f) if self._known.many else source.reduce(f)).total
        else:
            both = self._reduced(Both(f, self._curving(S)))
            self._remember(S, both.second)
            total = both.first.total
        return symmetric(total) / source.n

    def expecting(self, S: Array | None) -> None:
        """Averages against S will be asked for, or against many matrices if it is None."""
        self._known.expected, self._known.many = S, S is None

    def cross(self, basis: Array) -> Array:
        """mean g_n h_n (x_nᵀ r)² x_n for every column r of a basis."""
        sums = self.problem.source.reduce(CrossPass(self.problem.model, self.theta, basis))
        return sums.total / self.problem.source.n

    def leveraged(self, inverse: Array, hessian: Array) -> LinearCurvature:
        """The same for rows drawn by leverage."""
        leverage = leveraging(self.problem, self.theta, inverse, hessian, self.absolute)
        if self.other is not None and np.array_equal(leverage.root, self.other.root):
            return replace(self, leverage=self.other)
        return LinearCurvature(self.problem, self.theta, leverage)

    def foreseeing(self, hessian: Array, loss_hessian: Array) -> LinearCurvature:
        """The same, with rows drawn by leverage in mind where a further pass for them would cost as much, given H and J."""
        if self.problem.source.in_memory:
            return self
        try:
            inverse = np.linalg.inv(hessian).astype(np.float64)
            return replace(self, other=leveraging(self.problem, self.theta, inverse, loss_hessian, self.absolute))
        except np.linalg.LinAlgError:
            return self

    def turned(self, basis: Array, dual: Array) -> LinearCurvature | None:
        """The same in z, θ = basis · z: of many columns in memory, and not too many rows, which are copied."""
        source, dim = self.problem.source, self.theta.size
        if self.leverage is not None or dim < _TURNED or source.n > _ROWS_TURNED * dim or not isinstance(source, Rows):
            return None
        if 8.0 * source.x.size > _SHARE * available_memory():
            return None
        rows = replace(source, x=source.x @ basis)
        return LinearCurvature(replace(self.problem, source=rows), dual @ self.theta)

    def factors(self, basis: Array) -> Array | None:
        """√(|h_n| √(e_n c_n / N)) Rᵀ x_n, c_n the row's frequency and e_n its emphasis; of few rows in memory."""
        rows = self.problem.source
        if not isinstance(rows, Rows) or len(rows.y) > _ROWS_PAIRED * self.theta.size:
            return None
        # two matrices of all pairs, what is made of them, and the rows themselves
        if 8.0 * (4.0 * len(rows.y) ** 2 + 2.0 * rows.x.size) > _SHARE * available_memory():
            return None
        (h,) = derivatives(self.problem.model.loss, rows, self.theta, 2)
        share = rows.counts / rows.n
        if self.leverage is not None:
            share = share * self.leverage.emphasis(rows.x, h)
        return np.sqrt(np.abs(h) * np.sqrt(share))[:, None] * (rows.x @ basis)

    @property
    def _rule(self) -> int:
        """Which of the rules that passes are made for is its own."""
        return int(self.leverage is not None and self.other is not None)

    def _written(self, S: Array, rules: Iterable[int]) -> Written | None:
        """The operator written out by one of some rules, if there is one; None for an S whose sums are kept."""
        kept = self._known.written
        return None if S.tobytes() in self._known.last else next((kept[k] for k in rules if k in kept), None)

    def _sums(self, S: Array) -> CurvatureSums:
        """The sums against S, and rows that stand for all where a further pass would cost as much; the last two are kept."""
        if S.tobytes() not in self._known.last:
            self._remember(S, self._reduced(self._curving(S)))
        return self._known.last[S.tobytes()]

    def _curving(self, S: Array) -> CurvaturePass:
        """The pass that finds the sums against S."""
        source, (matrix, root) = self.problem.source, _rooted(S)
        rules = (self.leverage,) if self.other is None else (None, self.other)
        f = CurvaturePass(self.problem.model, self.theta, matrix, root, rules)
        if source.in_memory or source.n <= _LOT:
            return f
        return f.keeping(self.sampled(_LOT).problem.source, height_of(source))

    def _remember(self, S: Array, found: CurvatureSums) -> None:
        known = self._known
        known.last = dict(list(known.last.items())[-1:]) | {S.tobytes(): found}
        known.passes += 1

    def _reduced(self, f: Callable[[Rows], Sums]) -> Sums:
        """What a pass sums up; the operator is written out besides, where it is time to."""
        return self._with_written(f) if self._worth_writing else self.problem.source.reduce(f)

    @property
    def _worth_writing(self) -> bool:
        """Whether to write the operator out: it fits into memory, and takes no longer than passes made or many to come."""
        source, numbers = self.problem.source, self._pairs**2
        if source.in_memory or self._rule in self._known.written:
            return False
        fits = 8 * _HELD * numbers <= getattr(source, "memory", np.inf)
        enough = max(1.0, numbers / (_FLOPS * self.theta.size))
        return fits and (self._known.many or self._known.passes >= enough)

    @property
    def _pairs(self) -> int:
        return self.theta.size * (self.theta.size + 1) // 2

    def _with_written(self, f: Callable[[Rows], Sums]) -> Sums:
        """What a pass sums up, and from the same reading the operator written out, which is kept."""
        source, some = self.problem.source, self.sampled(_LOT).problem.source
        squares = some.reduce(lambda rows: Total(gram(rows.x, rows.counts))).total / some.n
        root = np.linalg.cholesky(_filled(squares, source.n)).astype(np.float64)
        write = WrittenPass(self.problem.model, self.theta, np.linalg.inv(root).astype(np.float64), self.leverage)
        both = source.reduce(Both(f, write), self._pairs)
        self._known.written[self._rule] = Written(root, both.second)
        return both.first


def leveraging(
    problem: LinearProblem, theta: Array, inverse: Array, hessian: Array, absolute: Array | None
) -> Leveraging:
    """How rows are drawn by leverage around θ, given H⁻¹ and J; and Σ |h| x xᵀ, if that is known."""
    root = np.linalg.cholesky(symmetric(inverse)).astype(np.float64)
    if problem.model.divergence is None:
        # no second derivative is negative, so that the mean leverage is tr(H⁻¹J)
        return Leveraging(root, float(np.sum(inverse * hessian)))
    if absolute is None:
        absolute = problem.source.reduce(AbsolutePass(problem.settled(theta).model, theta)).total
    return Leveraging(root, float(np.sum(inverse * symmetric(absolute))) / problem.source.n)


def _filled(matrix: Array, n: int) -> Array:
    """The mean squares of a sample's columns, which is written into, with what makes them positive as those of n rows.

    Columns and combinations of levels that a sample does not have are of few rows: as if they were one of average size.
    """
    size = np.diag(matrix)
    size = np.where(size > 0.0, size, np.mean(size))
    return added_form(matrix, size / n)


def _rooted(S: Array) -> tuple[Array, Array | None]:
    """S and its Cholesky root, where there is one: with it no form is negative by rounding."""
    S = symmetric(S)
    try:
        return S, np.linalg.cholesky(S).astype(np.float64)
    except np.linalg.LinAlgError:
        return S, None
