"""A loss of your own on its rows: derivatives and moments, block by block (theory §1).

Everything is computed in float64 inside a local context: the global JAX configuration is never touched. Data travel as
arguments of compiled functions, in blocks of one size, so memory stays O(block · D²), nothing of size N×D×D is made, and
nothing is compiled twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import part_size
from equipoise.data.fields import Columns
from equipoise.data.scanned import Scan
from equipoise.data.source import Source, digest_of
from equipoise.engines.engine import Coupling, Engine, Guard
from equipoise.engines.queue import require_queue
from equipoise.engines.rules import QUEUEINGS
from equipoise.errors import InvalidInput
from equipoise.linalg import FLAT, Sums, curvature_axes, symmetric
from equipoise.models.general.curvature import GeneralCurvature
from equipoise.models.general.factored import FactoredCurvature, factored_curvature
from equipoise.models.general.passes import OfBlock, Padded, PaddedPass, bend, loss, scored, slope, together
from equipoise.models.general.products import diagonal, product
from equipoise.models.general.rowwise import GeneralRowwise
from equipoise.models.general.search import GeneralSearch
from equipoise.models.general.stored import StoredCurvature, subspace_curvature
from equipoise.models.general.structure import Structure
from equipoise.models.general.tracing import only_glm, require_scalar
from equipoise.models.problem import Derivatives
from equipoise.theory.curvature import emphasis
from equipoise.theory.moments import Moments

if TYPE_CHECKING:
    from equipoise.models.general.functions import Functions
    from equipoise.models.general.model import Model
    from equipoise.theory.tuning import Tuning

__all__ = ["GeneralProblem", "Padded"]

_SOME, _FEW = 1000, 16  # rows that stand for all where a loss is looked at, and where it is told from others
_SEVERAL = 8  # times the square root of the number of parameters: what a network keeps of a row
# Rows are read once for all if more than this share of them is touched; and times their size that takes.
_SHARE, _COPIES = 0.5, 4


@dataclass(frozen=True, repr=False)
class GeneralProblem(Card):
    """A model on its rows, or on a subsample of all N; see `equipoise.models.problem.Problem`.

    `tree` is the structure of an observation.
    """

    model: Model
    source: Source[Columns]
    tree: jax.tree_util.PyTreeDef
    n: int

    @property
    def names(self) -> tuple[str, ...]:
        """One name per flat parameter."""
        return self.model.structure.names

    @property
    def layout(self) -> Structure:
        """The user's structure."""
        return self.model.structure

    @property
    def search(self) -> GeneralSearch:
        """The user's start, then perturbations of it."""
        structure = self.model.structure
        return GeneralSearch(structure.flatten(self.model.init), structure.narrow)

    @property
    def guarded(self) -> bool:
        """Chains of general losses run unguarded unless asked."""
        return False

    @property
    def quadratic(self) -> bool:
        """Nothing is known of a general loss."""
        return False

    @property
    def constant(self) -> float | None:
        """A general loss has no constant of its own."""
        return None

    @property
    def functions(self) -> Functions:
        """The model's compiled functions."""
        return self.model.functions

    def settled(self, theta: Array) -> Self:
        """No constant is estimated."""
        return self

    def resettled(self, theta: Array, loss: float) -> Self:
        """No constant is estimated."""
        return self

    def at_constant(self, constant: float | None) -> Self:
        """There is no constant to fix."""
        return self

    def with_precision(self, gamma: float) -> Self:
        """The problem with the prior precision γI in place of its own; the prior mean is kept."""
        return replace(self, model=replace(self.model, prior_precision=gamma, regularizer=None))

    def without_prior(self) -> Self:
        """The mean loss of the rows alone."""
        return replace(self, model=replace(self.model, prior_precision=0.0, prior_mean=0.0, regularizer=None))

    def check(self) -> None:
        """Trace the loss of the first row and the regulariser, evaluate both at the start, and name what is wrong."""
        functions, start = self.functions, self.flatten(self.model.init)
        # a pass over files to look at a start would be one too many
        some = self if self.source.in_memory else self.subsample(min(_SOME, self.source.n), None)
        with jax.enable_x64(True):
            rows = self.padded(next(iter(some.source.blocks())).take(slice(0, 1)), 1).rows
            first = jax.tree.map(lambda a: a[0], rows)
            require_scalar("loss", "(init, one row of the data)", functions.row, start, first)
            require_scalar("regularizer", "init", functions.penalty, start)
        value = some.derivatives(start, 0).value
        if not np.isfinite(value):
            raise InvalidInput("init", "a point where the loss is finite", f"mean loss {value}", "choose another start")

    def subsample(self, rows: int, seed: int | None) -> Self:
        """The same problem on random rows."""
        return replace(self, source=self.source.sample(part_size(rows, self.source.n), seed))

    def marked(self, clusters: object = None, time: object = None) -> Self:
        """The same problem with clusters and times beside its rows."""
        return replace(self, source=self.source.marked(clusters, time))

    def stacked(self, moments: Moments) -> tuple[Moments, None]:
        """No constant is estimated."""
        return moments, None

    def joint(self) -> None:
        """No constant is estimated."""
        return

    def rowwise(self, theta: Array) -> GeneralRowwise:
        """Scores and curvatures of single rows."""
        return GeneralRowwise(self.bare, self.identity, theta)

    def identified(self, theta: Array) -> GeneralProblem:
        """The problem restricted to the directions its loss curves along at a minimiser, which is its new start.

        Along the others (symmetries, dead units, redundant parameters) the data say nothing and no chain is stationary.
        """
        values, axes = curvature_axes(self.derivatives(theta, 2).hessian)
        return self.within(theta, axes[values > FLAT * values[-1]])

    def within(self, theta: Array, axes: Array) -> GeneralProblem:
        """The problem restricted to θ, which is its new start, + the span of the rows of `axes`."""
        return replace(self, model=self.model.within(theta, axes))

    def whole(self) -> GeneralProblem:
        """The problem on all parameters, of a subspace; itself without one."""
        model = self.model
        return self if model.subspace is None else replace(self, model=replace(model, subspace=None))

    def flatten(self, params: object) -> Array:
        """Parameters in the user's structure, or already flat, as a flat vector."""
        return self.model.structure.flatten(params)

    def derivatives(self, theta: Array, order: int) -> Derivatives:
        """L, ∇L and ∇²L up to `order`."""
        functions, n, nothing = self.functions, self.source.n, np.zeros(0)
        with jax.enable_x64(True):
            R = float(functions.penalty(theta)) / self.n
            if order == 0:
                return Derivatives(self.reduce(partial(loss, theta), self.summed).value / n + R, nothing, nothing)
            dR, f = np.asarray(functions.penalty_gradient(theta)) / self.n, partial(slope, theta)
            if order == 1:
                sums, H = self.reduce(f, self.summed), nothing
            else:
                sums, J = self._with_hessian(f, theta, self.summed)
                H = J + self._prior_hessian(theta)
        return Derivatives(sums.value / n + R, sums.gradient / n + dR, H)

    def product(self, theta: Array, v: Array) -> Array:
        """∇²L v, by derivatives of the gradient along v."""
        return product(self, theta, v)

    def diagonal(self, theta: Array) -> Array:
        """About the diagonal of ∇²L, from squared scores."""
        return diagonal(self, theta)

    def moments(self, theta: Array) -> Moments:
        """J, V, H and the curvature operator at θ."""
        with jax.enable_x64(True):
            sums, J = self._with_hessian(partial(scored, theta), theta, self.functions.scored)
            H = symmetric(J + self._prior_hessian(theta))
        mean, n = sums.score / self.source.n, self.source.n
        V = symmetric(sums.scatter / n - np.outer(mean, mean))
        return Moments(
            n=self.n,
            params=theta,
            loss_hessian=J,
            hessian=H,
            score_cov=V,
            mean_score=mean,
            noise_ratio=float(np.trace(np.linalg.lstsq(J, V, rcond=None)[0]) / theta.size),
            names=self.names,
            curvature=self.curvature(theta, H),
        )

    def curvature(
        self, theta: Array, hessian: Array | None = None
    ) -> GeneralCurvature | FactoredCurvature | StoredCurvature:
        """The operator behind K at θ, where H may be known: low-rank factors of every row's Hessian where they exist."""
        exact = GeneralCurvature(self, theta)
        if hessian is not None:
            exact = exact.foreseeing(hessian)
        if self.model.structure.basis is not None:
            return subspace_curvature(exact)
        return factored_curvature(exact) or exact

    def leverages(self, theta: Array, inverse: Array) -> Array:
        """|tr(H⁻¹ J_n)| of every row at θ, (N,): what decides how often it is drawn by leverage (theory §13)."""
        exact = GeneralCurvature(self, theta)
        return (factored_curvature(exact) or exact).leverages(inverse)

    def bound_constants(self, theta: Array, radius: float | None) -> NoReturn:
        """The derivatives of a general loss have no known bounds."""
        raise only_glm("whose derivatives have known bounds")

    def engine(self, tuning: Tuning, guard: Guard, storage: str = "float64", touched: float = np.inf) -> Engine:
        """The compiled loop over the user's loss."""
        from equipoise.engines.jax.autodiff import Task, autodiff_engine

        if storage != "float64":
            raise InvalidInput("storage", "float64 for a loss of your own", repr(storage), "leave it out")
        here, away, some = self, None, self.source
        if isinstance(self.source, Scan):
            if _held(self.source, tuning, touched):
                some = self.source.whole()
                here = replace(self, source=some)
            else:
                away, some = self.source, self.source.sample(min(_SOME, self.source.n), None)
        parts = [part.observed(slice(None)).leaves for part in some.blocks()]
        with jax.enable_x64(True):
            joined = [jnp.asarray(np.concatenate(column)) for column in zip(*parts, strict=True)]
            data = jax.tree.unflatten(self.tree, joined)
        drawn = here.slope_and_emphasis(tuning)
        task = Task(self.functions.loss, data, self.n, self.source.fingerprint(), *drawn, away, touched)
        return autodiff_engine(task, tuning, guard)

    def slope_and_emphasis(self, tuning: Tuning) -> tuple[Array, Array]:
        """∇L at θ̂ for control variates, and 1/(N p_n) of rows drawn by leverage; each empty where it is not used."""
        slope = emphasised = np.empty(0)
        if tuning.dynamics.gradient == "control-variate":
            slope = self._slope(tuning.center, tuning.predicted.moments)
        if tuning.dynamics.rule.weighted:
            inverse = np.linalg.inv(tuning.predicted.moments.hessian).astype(np.float64)
            leverages = self.leverages(tuning.center, inverse)
            emphasised = emphasis(leverages, float(leverages.mean()))
        return slope, emphasised

    def _slope(self, theta: Array, moments: Moments) -> Array:
        """∇L at θ; moments of these very rows at θ have that of files without another pass."""
        found = moments.curvature
        own = isinstance(found, GeneralCurvature) and found.problem.source is self.source
        if self.source.in_memory or not own or not np.array_equal(moments.params, theta):
            return self.derivatives(theta, 1).gradient
        with jax.enable_x64(True):
            return moments.mean_score + np.asarray(self.functions.penalty_gradient(theta)) / self.n

    def coupling(self, tuning: Tuning, guard: Guard) -> Coupling:
        """Only the linear engine runs a chain beside its proxy."""
        raise only_glm("whose chains can run beside their proxy")

    def each(self, width: int) -> Iterator[Padded]:
        """Blocks of rows of one length, `width` numbers to be made of each row; call it in float64."""
        longest = 0
        for block in self.source.blocks(width):
            longest = max(longest, block.height)
            yield self.padded(block, longest)

    def reduce(self, f: OfBlock[Sums], width: int) -> Sums:
        """Σ f over blocks of rows of one length, `width` numbers to be made of each row."""
        longest = next(self.source.blocks(width)).height if self.source.in_memory else None
        return self.source.reduce(PaddedPass(self.bare, self.identity, f, longest), width)

    @property
    def bare(self) -> Self:
        """The same without its rows: what travels to where they are."""
        return replace(self, source=cast(Any, None))

    @property
    def identity(self) -> str:
        """What passes over files are told apart by, where finished ones are kept."""
        away = isinstance(self.source, Scan) and self.source.meter.ledger is not None
        return self._written_out if away else ""

    @cached_property
    def _written_out(self) -> str:
        """A digest of what the loss computes, up to second derivatives, and of its value and slope on a few rows."""
        functions, start = self.functions, self.flatten(self.model.init)
        with jax.enable_x64(True):
            some = self.padded(next(self.source.sample(min(_FEW, self.source.n), None).blocks()), _FEW)
            first = jax.tree.map(lambda a: a[0], some.rows)
            bent = lambda t: jax.jvp(lambda u: jax.grad(functions.row)(u, first), (t,), (jnp.ones_like(t),))  # noqa: E731
            made = jax.make_jaxpr(bent)(start)
            numbers = jax.tree.leaves((functions.gradient(start, some.rows, some.mask), made.consts))
        text = re.sub(r"0x[0-9a-f]+", "", str(made.jaxpr))  # where a function lies in memory
        return digest_of([np.frombuffer(text.encode(), np.uint8), *map(np.asarray, numbers)])

    def padded(self, block: Columns, length: int) -> Padded:
        """A block as JAX takes it, its last row repeated until it has `length`; call it in float64."""
        size, counts = block.height, block.counts
        leaves = block.leaves if length == size else block.take(np.minimum(np.arange(length), size - 1)).leaves
        mask = jnp.asarray(np.append(counts, np.zeros(length - size)))
        return Padded(jax.tree.unflatten(self.tree, [jnp.asarray(leaf) for leaf in leaves]), mask, size, counts)

    def _with_hessian(self, f: OfBlock[Sums], theta: Array, width: int) -> tuple[Sums, Array]:
        """Σ f, which makes `width` numbers of each row, and the mean Hessian; of files, in one pass. Call it in float64."""
        across, bent = self.model.structure.summed(theta.size), partial(bend, theta)
        if self.source.in_memory:
            sums, hessian = self.reduce(f, width), self.reduce(bent, across).total
        else:
            sums, (hessian,) = self.reduce(partial(together, f, bent), max(width, across))
        return sums, symmetric(hessian) / self.source.n

    def _prior_hessian(self, theta: Array) -> Array:
        """∇²R/N; call it in float64."""
        return np.asarray(self.functions.penalty_hessian(theta)) / self.n

    @property
    def summed(self) -> int:
        """Numbers that the loss of a row or its slope takes: the row's own, or what a loss makes of it."""
        own = sum(leaf[:1].size for leaf in self.source.leaves) if isinstance(self.source, Columns) else 1
        return max(own, min(self.model.structure.full, _SEVERAL * self.model.structure.summed()))


def _held(source: Scan[Columns], tuning: Tuning, touched: float) -> bool:
    """Whether the rows of a scan are read once for all: where they fit, and most of them are touched."""
    rule, fits = tuning.dynamics.rule, _COPIES * source.size <= source.memory
    if rule in QUEUEINGS and not rule.weighted and (touched < _SHARE * source.n or not fits):
        return False
    if not fits and rule.weighted:
        raise InvalidInput(
            "batches", "'independent' for a loss of your own on rows that do not fit into memory", "'leverage'",
            "leave it out, or pass a larger memory= to eq.data.scan",
        )  # fmt: skip
    if not fits:
        require_queue(tuning.dynamics, _COPIES * source.size, source.memory)
    return True
