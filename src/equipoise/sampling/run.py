"""Sampling: chains, burn-in, thinning, progress and divergence, whatever the engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.special import chdtri

from equipoise.arrays import Array
from equipoise.checks import is_number, whole
from equipoise.errors import ChainDiverged, InvalidInput
from equipoise.models.linear import LinearProblem
from equipoise.progress import Progress
from equipoise.sampling.checkpoint import Checkpoint, fingerprint
from equipoise.theory.tuning import Tuning

if TYPE_CHECKING:
    from equipoise.models.problem import Model, Problem

__all__ = ["Chains", "guard_radius2", "resolve_burn_in", "resolve_thin", "sample"]


# Tail probability of the guard's ellipsoid: a chain that follows its law leaves it once in a billion steps.
_GUARD_TAIL = 1e-9
# Stored draws per autocorrelation time: enough that thinning costs less than one per cent of the effective draws.
_DRAWS_PER_IACT = 10
# Seconds between two looks at the chains (progress, checkpoint, divergence).
_ROUND_SECONDS = 0.25


class Engine(Protocol):
    """What sampling needs of an engine."""

    def start(self, theta: Array, seed: np.random.SeedSequence) -> Any:
        """A chain at θ."""
        ...

    def advance(
        self, states: list[Any], steps: int, thin: int, outs: list[Array], pool: Executor, threads: int = 1
    ) -> list[int]:
        """Run steps of every chain in place and store θ; rows written to each, or −1 minus that number on divergence."""
        ...

    def identity(self) -> tuple[Any, ...]:
        """The arrays that, with the step and the options, determine a run."""
        ...


@dataclass(frozen=True)
class Chains:
    """Draws of several chains.

    Attributes
    ----------
    draws
        (chains, draws, D), always flat; rows after a divergence are NaN.
    names
        Parameter names.
    thin, burn_in, seed
        Steps per stored draw, steps discarded before the first, and the seed.
    state
        Where each chain stands.
    statistics
        steps (per chain), rows (touched by all chains), seconds, guard_hits and guard_rate.
    variables
        Name and shape of every parameter array, in flat order.
    """

    draws: Array
    names: tuple[str, ...]
    thin: int
    burn_in: int
    seed: int
    state: tuple[Any, ...] = field(repr=False)
    statistics: dict[str, float]
    unflatten: Callable[[Array], Any] = field(repr=False, default=lambda flat: flat)
    variables: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def tree(self) -> Any:
        """The draws in the model's own parameter structure, with leading axes (chains, draws)."""
        return self.unflatten(self.draws)

    def flat(self) -> Array:
        """All chains joined, (chains · draws, D)."""
        return self.draws.reshape(-1, self.draws.shape[-1])


def sample(
    model: Model,
    data: Any,
    tuning: Tuning,
    draws: int = 2000,
    chains: int = 4,
    seed: int = 0,
    thin: int | str = "auto",
    burn_in: int | str = "auto",
    progress: bool = True,
    checkpoint: str | Path | None = None,
    *,
    guard: float | str | None = "auto",
    threads: int | None = None,
    checkpoint_seconds: float = 10.0,
    storage: str = "float64",
) -> Chains:
    """Run tuned chains.

    Parameters
    ----------
    model, data, tuning
        The model, its data, and the step matrix for it.
    draws, chains
        Stored draws per chain, and number of chains.
    seed
        The same seed gives the same bits on any number of threads.
    thin
        Steps per stored draw; `"auto"` stores ten draws per predicted autocorrelation time.
    burn_in
        Steps discarded first; `"auto"` takes them from the predicted transient.
    progress
        Show a progress bar when the run takes more than two seconds.
    checkpoint
        A file to save the run's state in, and to resume from when it exists. A resumed run gives identical draws.
    guard
        `"auto"` projects iterates back onto a very large ellipsoid for losses with an exponential mean (theory §10);
        a number sets its radius in standard deviations; None turns it off.
    threads
        Threads to use, all cores by default: one per chain, or several when batches are large and chains are few.
    checkpoint_seconds
        Time between two writes of the checkpoint.
    storage
        `"float32"` holds the rows of a linear-predictor model in half the memory, for large data; sums are float64
        either way.

    Returns
    -------
    Chains

    Raises
    ------
    ChainDiverged
        If an iterate is not finite; the draws made before are kept in the error.
    CheckpointMismatch
        If the checkpoint belongs to another run.
    """
    draws, chains = (whole(k, v, 1, "pass a positive int") for k, v in (("draws", draws), ("chains", chains)))
    seed = whole("seed", seed, 0, "pass an int")
    workers = (os.cpu_count() or 1) if threads is None else whole("threads", threads, 1, "leave it out", "None or ")
    problem = model.bind(data)
    _require_match(problem, tuning)
    every = resolve_thin(thin, tuning)
    discard = resolve_burn_in(burn_in, tuning)
    radius2 = guard_radius2(problem, tuning, guard)
    engine = _engine(problem, tuning, radius2, storage)
    run = _Run(engine, draws, every, discard, _starts(engine, tuning, chains, seed))
    with ExitStack() as stack:
        keeper = None
        if checkpoint is not None:
            options = {
                "dynamics": repr(tuning.dynamics),
                "draws": draws,
                "chains": chains,
                "seed": seed,
                "thin": every,
                "burn_in": discard,
                "guard": radius2,
            }
            arrays = (tuning.step, tuning.center, tuning.predicted.cov, *engine.identity())
            keeper = stack.enter_context(
                Checkpoint(Path(checkpoint), fingerprint(options, *arrays), checkpoint_seconds)
            )
            counts, lost = run.progress()
            keeper.restore(run.states, run.draws, counts, lost)
            run.written = [-1 - k if gone else k for k, gone in zip(counts, lost, strict=True)]
        seconds = run.execute(workers, progress, keeper)
    result = _collect(run, problem, tuning, seed, seconds)
    for index, written in enumerate(run.written):
        if written < 0:
            raise ChainDiverged(index, run.states[index].step, result)
    return result


def resolve_thin(thin: int | str, tuning: Tuning) -> int:
    """Steps per stored draw."""
    if thin == "auto":
        return max(1, int(tuning.predicted.iact() // _DRAWS_PER_IACT))
    return whole("thin", thin, 1, "use 'auto'", "'auto' or ")


def resolve_burn_in(burn_in: int | str, tuning: Tuning) -> int:
    """Steps discarded: until a chain started at the minimiser would have the predicted second moments to one per cent.

    Chains start from the predicted law itself, so five autocorrelation times are enough where that bound is loose.
    """
    if burn_in == "auto":
        law = tuning.predicted
        return min(law.burn_in(np.zeros(tuning.dim), 0.01), int(np.ceil(5.0 * max(1.0, law.iact()))))
    return whole("burn_in", burn_in, 0, "use 'auto'", "'auto' or ")


def guard_radius2(problem: Any, tuning: Tuning, guard: float | str | None) -> float:
    """R², the squared radius of the guard's ellipsoid in standard deviations; infinite when it is off."""
    if guard is None:
        return np.inf
    if guard == "auto":
        return float(chdtri(tuning.dim, _GUARD_TAIL)) if problem.guarded else np.inf
    if isinstance(guard, str) or not (is_number(guard) and guard > 0):
        raise InvalidInput(
            "guard", "'auto', None, or a positive radius in standard deviations", repr(guard), "use 'auto'"
        )
    return float(guard) ** 2


@dataclass
class _Run:
    """A run in progress: every chain's state and its stored draws, of which those not yet written are undefined."""

    engine: Engine
    count: int
    thin: int
    burn_in: int
    states: list[Any]
    draws: Array = field(init=False)
    written: list[int] = field(init=False)

    def __post_init__(self) -> None:
        dim = self.states[0].position.size
        self.draws = np.empty((len(self.states), self.count, dim))
        self.written = [0] * len(self.states)

    @property
    def steps(self) -> int:
        return self.burn_in + self.count * self.thin

    def execute(self, threads: int, progress: bool, keeper: Checkpoint | None) -> float:
        """Advance all chains to the end, a fraction of a second at a time; returns the time taken."""
        began, chunk = time.perf_counter(), 256
        with (
            ThreadPoolExecutor(threads) as pool,
            Progress("sampling", len(self.states) * self.steps, progress) as bar,
        ):
            while self._live():
                tick = time.perf_counter()
                self._advance(chunk, pool, threads)
                elapsed = time.perf_counter() - tick
                # the first round also compiles: let chunks grow by a bounded factor
                chunk = max(1, int(chunk * min(8.0, _ROUND_SECONDS / max(elapsed, 1e-6))))
                bar.update(sum(state.step for state in self.states))
                if keeper is not None:
                    keeper.save(self.states, self.draws, *self.progress())
        if keeper is not None:
            keeper.save(self.states, self.draws, *self.progress(), force=True)
        return time.perf_counter() - began

    def progress(self) -> tuple[list[int], list[bool]]:
        """Draws written by each chain, and whether it diverged."""
        return [max(k, -1 - k) for k in self.written], [k < 0 for k in self.written]

    def _live(self) -> list[int]:
        """Chains that are neither lost nor finished; they are always at the same step."""
        return [c for c, state in enumerate(self.states) if self.written[c] >= 0 and state.step < self.steps]

    def _advance(self, size: int, pool: Executor, threads: int) -> None:
        while size > 0 and (live := self._live()):
            step = self.states[live[0]].step
            burning = self.burn_in - step
            steps = min(size, burning if burning > 0 else self.steps - step)
            outs = [self.draws[c, self.written[c] :] for c in live]
            thin = 0 if burning > 0 else self.thin
            counts = self.engine.advance([self.states[c] for c in live], steps, thin, outs, pool, threads)
            for c, count in zip(live, counts, strict=True):
                done = self.written[c]
                self.written[c] = done + count if count >= 0 else -1 - (done - count - 1)
                if count < 0:
                    self.draws[c, done - count - 1 :] = np.nan
            size -= steps


def _starts(engine: Engine, tuning: Tuning, chains: int, seed: int) -> list[Any]:
    """Chains started from the predicted law, each with its own stream."""
    states = []
    for child in np.random.SeedSequence(seed).spawn(chains):
        place, stream = child.spawn(2)
        z = np.random.default_rng(place).standard_normal(tuning.dim)
        theta = tuning.center + np.linalg.cholesky(tuning.predicted.cov) @ z
        states.append(engine.start(theta, stream))
    return states


def _engine(problem: Any, tuning: Tuning, radius2: float, storage: str) -> Engine:
    # the engines' compilers are imported only by those who sample
    if isinstance(problem, LinearProblem):
        from equipoise.engines.numba.whiten import linear_engine

        return linear_engine(problem, tuning, radius2, storage)
    if storage != "float64":
        raise InvalidInput("storage", "float64 for a loss of your own", repr(storage), "leave it out")
    from equipoise.engines.jax.autodiff import autodiff_engine

    return autodiff_engine(problem, tuning, radius2)


def _require_match(problem: Problem, tuning: Tuning) -> None:
    if len(problem.names) != tuning.dim:
        raise InvalidInput(
            "tuning",
            f"made for this model's {len(problem.names)} parameters",
            f"{tuning.dim} parameters",
            "tune on this data",
        )
    tuning.dynamics.require_batch_within(problem.n)


def _collect(run: _Run, problem: Problem, tuning: Tuning, seed: int, seconds: float) -> Chains:
    taken = sum(state.step for state in run.states)
    hits = sum(state.hits for state in run.states)
    statistics = {
        "steps": float(run.steps),
        "rows": float(taken * tuning.dynamics.batch_size),
        "seconds": seconds,
        "guard_hits": float(hits),
        "guard_rate": hits / max(1, taken),
    }
    return Chains(
        run.draws,
        problem.names,
        run.thin,
        run.burn_in,
        seed,
        tuple(run.states),
        statistics,
        problem.unflatten,
        problem.variables,
    )
