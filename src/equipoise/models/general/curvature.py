"""Per-observation curvature of a general loss: exact Hessians, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.data.fields import Columns
from equipoise.linalg import Sums, Total, fixed_order, symmetric
from equipoise.models.core import ALIKE, Chances, height_of, standing
from equipoise.models.general.blockwise import (
    DIRECTIONS_OF_LEVERAGE,
    MANY,
    FileSums,
    Leverage,
    bends_along,
    bends_of,
    cross_of,
    emphasised,
    from_file,
    hessians_of,
    images_of,
    leverage_of,
    products,
    scatter_of,
    total_leverage,
    turned,
)
from equipoise.models.general.functions import DIRECTIONS
from equipoise.models.general.written import Written, turning
from equipoise.theory.expansion import FullExpansion, expanded_rows

if TYPE_CHECKING:
    from equipoise.models.general.passes import OfBlock
    from equipoise.models.general.problem import GeneralProblem
    from equipoise.theory.curvature import ImagePass

__all__ = ["GeneralCurvature"]

_LOT = 1 << 12  # rows that tell how large tr(J_n S) is
_HELD = 32  # times the operator, written out, would fit into the memory for reading
_SEVERAL = 8  # times what is between parameters and loss, that third derivatives keep of it


@dataclass
class _Known:
    """What passes over files found: against the last matrix, against any, and Σ leverages.

    `several` is whether more than one matrix has been, or will be asked for.
    """

    last: dict[bytes, FileSums] = field(default_factory=dict)
    several: bool = False
    written: Written | None = None
    leverage: float | None = None


@dataclass(frozen=True)
class GeneralCurvature:
    """Exact Hessians of each block of rows, recomputed at every call: O(block · D²) memory.

    Of rows in files, the second matrix that is asked for brings what all others need. `drawn` is how rows are drawn, None for
    all alike; `other` a rule by leverages whose mean is found in the same passes.
    """

    problem: GeneralProblem
    theta: Array
    drawn: Leverage | None = None
    other: Leverage | None = None
    _known: _Known = field(default_factory=_Known, repr=False, compare=False)

    @property
    def travels(self) -> bool:
        """Rows in memory stay where they are."""
        return False

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        if not self.problem.source.in_memory:
            known = self._known
            written = None if S.tobytes() in known.last else known.written
            total = symmetric(self._from_files(S).quadratic) if written is None else written.quadratic(S)
            return total / self.problem.source.n
        with jax.enable_x64(True):
            f = partial(products, self.theta, self.drawn, S)
            return symmetric(self.problem.reduce(f, self._written).total) / self.problem.source.n

    def _bends(self, S: Array) -> OfBlock[Total]:
        return partial(bends_of, self.theta, *np.linalg.eigh(symmetric(S)))

    def _from_files(self, S: Array) -> FileSums:
        """What `quadratic` and `third` sum up, and rows that stand for all, from one reading; the last ones are kept."""
        key, known = S.tobytes(), self._known
        if key not in known.last:
            chances = Chances.of(self.sampled(_LOT)._every_size(S), height_of(self.problem.source))
            turn = self._turn if known.several else None
            f = partial(from_file, self.theta, (self.drawn, self.other), S, chances, turn, self._bends(S))
            with jax.enable_x64(True):
                found = self.problem.reduce(f, max(self._written, self._bent))
            self._keep(turn, found.squares)
            known.last, known.several = {key: found}, True
            if self.other is not None:
                known.leverage = found.leverage
        return known.last[key]

    def expecting(self, S: Array | None) -> None:
        """Averages against S will be asked for, or against many matrices if it is None."""
        self._known.several |= S is None

    @property
    def _turn(self) -> Array | None:
        """The coordinates to write the operator out in; None where it is, or would not fit into memory."""
        pairs, source = self.theta.size * (self.theta.size + 1) // 2, self.problem.source
        if source.in_memory or self._known.written or 8 * _HELD * pairs**2 > getattr(source, "memory", np.inf):
            return None
        return turning(self.sampled(_LOT).problem.derivatives(self.theta, 2).hessian)

    def _keep(self, turn: Array | None, squares: Array) -> None:
        if turn is not None:
            self._known.written = Written(turn, squares)

    def _every_size(self, S: Array) -> Array:
        """|tr(J_n S)| of all rows, which are few, as they are drawn."""
        problem, found = self.problem, list[Array]()
        with jax.enable_x64(True):
            for block in problem.source.blocks(self._written):
                padded = problem.padded(block, block.height)
                J = hessians_of(self.theta, problem.functions, padded)
                found.append(emphasised(self.theta, self.drawn, S, J, problem.functions, padded))
        return np.concatenate(found)

    def scatter(self) -> Array:
        """mean g_n g_nᵀ."""
        turn = self._turn
        with jax.enable_x64(True):
            width = self.problem.functions.scored if self.drawn is None else self._width
            f = partial(scatter_of, self.theta, self.drawn, turn)
            sums = self.problem.reduce(f, width if turn is None else max(width, self._written))
        self._keep(turn, sums.squares)
        return symmetric(sums.total) / self.problem.source.n

    def leverages(self, inverse: Array) -> Array:
        """|tr(H⁻¹ J_n)| of every observation: exact, or with many parameters an estimate, the same at every call."""
        drawn = self._lottery(inverse)
        with jax.enable_x64(True), fixed_order():
            found = (
                (leverage_of(self.theta, drawn, self.problem.functions, b), b) for b in self.problem.each(self._width)
            )
            return np.concatenate([np.repeat(each, b.counts.astype(np.int64)) for each, b in found])

    def leveraged(self, inverse: Array, hessian: Array) -> GeneralCurvature:
        """The same for rows drawn by leverage."""
        del hessian  # second derivatives of a general loss may be negative, so that J does not have the mean
        drawn, total = self._lottery(inverse), self._known.leverage
        if self.problem.source.in_memory:
            total = float(self.leverages(inverse).sum())
        elif total is None or self.other is None or not np.array_equal(inverse, self.other.inverse):
            with jax.enable_x64(True):
                total = float(self.problem.reduce(partial(total_leverage, self.theta, drawn), self._width).total)
        return GeneralCurvature(self.problem, self.theta, drawn._replace(mean=total / self.problem.source.n))

    def foreseeing(self, hessian: Array) -> GeneralCurvature:
        """The same, with rows drawn by leverage in mind where a pass for them would cost, given H."""
        if self.problem.source.in_memory:
            return self
        try:
            return replace(self, other=self._lottery(np.linalg.inv(hessian).astype(np.float64)))
        except np.linalg.LinAlgError:
            return self

    def _lottery(self, inverse: Array) -> Leverage:
        return Leverage.of(inverse, self.problem.model.structure.full)

    @property
    def _width(self) -> int:
        """Numbers a leverage takes of each row."""
        few = self.problem.model.structure.full > MANY
        return self.problem.model.structure.apart(DIRECTIONS_OF_LEVERAGE) if few else self._written

    @property
    def _written(self) -> int:
        """Numbers that its Hessian takes."""
        return self.problem.functions.written

    @property
    def _bent(self) -> int:
        """Numbers that third derivatives along several directions take of it, where rows are added up."""
        return self.problem.model.structure.summed(DIRECTIONS) * _SEVERAL

    def third(self, S: Array) -> Array:
        """∇³L[S], the regulariser's share included: the gradient of tr(∇²L S)."""
        with jax.enable_x64(True):
            if self.problem.source.in_memory:
                total = self.problem.reduce(self._bends(S), self._bent).total
            else:
                total = self._from_files(S).third
            values, vectors = np.linalg.eigh(symmetric(S))
            penalty = values @ self.problem.functions.penalty_bends(self.theta, vectors.T)
        return total / self.problem.source.n + penalty / self.problem.n

    def third_along(self, vectors: Array) -> Array:
        """∇³L[v, v, ·], the regulariser's share included."""
        with jax.enable_x64(True):
            total = self.problem.reduce(partial(bends_along, self.theta, vectors), self._bent).total
            penalty = self.problem.functions.penalty_bends(self.theta, vectors)
        return total / self.problem.source.n + penalty / self.problem.n

    def expansion(self, basis: Array) -> FullExpansion:
        """The derivatives of the rows, written out."""
        some = self.sampled(expanded_rows(self.problem.source.n, len(basis))).problem
        functions, parts = some.functions, []
        with jax.enable_x64(True):
            for b in some.each(some.model.structure.apart(basis.size)):
                of_rows = (functions.scores, functions.hessians, functions.thirds)
                g, J, T = (np.asarray(f(self.theta, b.rows))[: b.size] for f in of_rows)
                weights = (
                    np.ones(b.size)
                    if self.drawn is None
                    else self.drawn.emphasis(leverage_of(self.theta, self.drawn, functions, b, J))
                )
                parts.append((g @ basis, basis.T @ J @ basis, turned(T, basis), weights, b.counts / some.source.n))
            prior = turned(functions.penalty_third(self.theta), basis) / some.n
        g, J, T, weights, share = (np.concatenate(column) for column in zip(*parts, strict=True))
        return FullExpansion(g, J, T, weights, share, prior)

    def images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Sums:
        """Σ f(Rᵀ J_n v)."""
        with jax.enable_x64(True):
            width = self.problem.model.structure.apart(len(vectors))
            made = partial(images_of, self.theta, self.drawn, vectors, root, f)
            return self.problem.reduce(made, width if self.drawn is None else max(width, self._width))

    def sampled(self, count: int) -> GeneralCurvature:
        """The same of so many rows at most."""
        if count >= self.problem.source.n:
            return self
        return GeneralCurvature(self.problem.subsample(count, seed=None), self.theta, self.drawn)

    def representative(self, count: int, S: Array) -> GeneralCurvature:
        """All rows in memory; of files those that stand for all, where they have the mean tr(J_n S)⁴ of all."""
        source = self.problem.source
        if source.in_memory:
            return self
        found = self._from_files(S)
        *leaves, counts, chance = (np.concatenate(column) for column in zip(*found.kept, strict=True))
        times = standing(counts, chance, source.n)
        some = Columns(tuple(leaves), source.names, frequency=times)
        core = GeneralCurvature(replace(self.problem, source=some), self.theta, self.drawn)
        fourth = float(times @ core._every_size(S) ** 4)
        return core if abs(fourth - found.fourth) <= ALIKE * found.fourth else self

    def cross(self, basis: Array) -> Array:
        """mean J_n r rᵀ g_n for every column r of a basis, by Hessian-vector products."""
        with jax.enable_x64(True):
            width = self.problem.model.structure.apart(basis.shape[1])
            return self.problem.reduce(partial(cross_of, self.theta, basis), width).total / self.problem.source.n
