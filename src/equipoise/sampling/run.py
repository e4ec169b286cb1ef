"""Sampling: chains, burn-in, thinning, progress and divergence, whatever the engine."""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import chdtri

from equipoise.arrays import Array
from equipoise.checks import flag, is_number, shown, whole
from equipoise.engines.engine import ChainState, Engine, Guard
from equipoise.errors import ChainDiverged, InvalidInput
from equipoise.files import file_place
from equipoise.models.binding import verb
from equipoise.models.problem import CUSTOM, Problem
from equipoise.progress import Progress, waiting
from equipoise.sampling.budget import predicted_seconds, require_possible
from equipoise.sampling.chains import Chains, group_of
from equipoise.sampling.checkpoint import Checkpoint, fingerprint
from equipoise.sampling.interrupt import interruptible
from equipoise.theory.dynamics import Dynamics, Epochs
from equipoise.theory.mixing import whole_steps
from equipoise.theory.tuning import Tuning

__all__ = ["require_match", "resolve_burn_in", "resolve_guard", "resolve_thin", "sample"]

# Tail probability of the guard's ellipsoid: a chain that follows its law leaves it once in a billion steps.
_GUARD_TAIL = 1e-9
# Stored draws per autocorrelation time: thinning then costs one per cent of the effective draws, and five of those of a
# variance; a draw in parameters costs D² operations, which is more than a step on a small batch.
_DRAWS_PER_IACT = 5
# Seconds between two looks at the chains (progress, checkpoint, divergence).
_ROUND_SECONDS = 0.25


@verb
def sample(
    problem: Problem,
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
    problem
        A bound problem, or a model and its data.
    tuning
        The step matrix for it; the chains run with the constant of the loss it was tuned for.
    draws, chains
        Stored draws per chain, and number of chains.
    seed
        The same seed gives the same bits on any number of threads.
    thin
        Steps per stored draw; `"auto"` stores five draws per predicted autocorrelation time.
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
    require_match(problem, tuning)
    flag("progress", progress)
    if not (is_number(checkpoint_seconds) and checkpoint_seconds >= 0.0):
        remedy = "10 loses little and costs nothing"
        raise InvalidInput("checkpoint_seconds", "zero or positive", shown(checkpoint_seconds), remedy)
    if checkpoint is not None:
        file_place(checkpoint, "checkpoint")
    every, discard = resolve_thin(thin, tuning), resolve_burn_in(burn_in, tuning)
    seconds = predicted_seconds(chains, discard + draws * every, tuning.dynamics.batch_size, tuning.dim)
    require_possible(chains, draws, tuning.dim, seconds)
    ellipsoid = resolve_guard(problem, tuning, guard)
    rows = chains * (discard + draws * every) * tuning.dynamics.batch_size
    engine = problem.engine(tuning, ellipsoid, storage, rows)
    run = Run(engine, draws, every, discard, _starts(engine, tuning, chains, seed))
    if checkpoint is None:
        seconds = run.execute(workers, progress)
    else:
        options: dict[str, object] = {"draws": draws, "chains": chains, "seed": seed, "thin": every, "burn_in": discard}
        options |= {"guard": ellipsoid.radius2, "engine": engine.identity, "dynamics": repr(tuning.dynamics)}
        key = fingerprint(options, tuning.step, tuning.noise, tuning.center, tuning.expected)
        with Checkpoint(Path(checkpoint), key, checkpoint_seconds) as keeper:
            keeper.restore(run.states, run.draws, run.written, run.diverged)
            seconds = run.execute(workers, progress, keeper)
    result = _collect(run, problem, tuning, seed, seconds)
    for index, lost in enumerate(run.diverged):
        if lost:
            raise ChainDiverged(index, run.states[index].step, result)
    return result


def resolve_thin(thin: int | str, tuning: Tuning) -> int:
    """Steps per stored draw."""
    if isinstance(thin, str) and thin == "auto":
        law = tuning.predicted
        return law.stride(max(1, round(law.draw_time() / _DRAWS_PER_IACT)))
    return whole("thin", thin, 1, "use 'auto'", "'auto' or ")


def resolve_burn_in(burn_in: int | str, tuning: Tuning) -> int:
    """Steps discarded: until a chain started at the minimiser would have the predicted second moments to one per cent.

    Chains start from the predicted law itself, so five autocorrelation times are enough where that bound is loose.
    """
    if isinstance(burn_in, str) and burn_in == "auto":
        law = tuning.predicted
        return min(law.burn_in(np.zeros(tuning.dim), 0.01), whole_steps(5.0 * law.draw_time()))
    return whole("burn_in", burn_in, 0, "use 'auto'", "'auto' or ")


def resolve_guard(problem: Problem, tuning: Tuning, guard: float | str | None) -> Guard:
    """The guard's ellipsoid, its radius in standard deviations; infinite when it is off."""
    if guard is None:
        radius2 = np.inf
    elif isinstance(guard, str) and guard == "auto":
        radius2 = float(chdtri(tuning.dim, _GUARD_TAIL)) if problem.guarded else np.inf
    elif is_number(guard) and guard > 0:
        radius2 = float(guard) ** 2
    else:
        raise InvalidInput(
            "guard", "'auto', None, or a positive radius in standard deviations", repr(guard), "use 'auto'"
        )
    return Guard(radius2, tuning.expected)


@dataclass
class Run:
    """A run in progress: every chain's state and its stored draws, of which those not yet written are undefined."""

    engine: Engine
    count: int
    thin: int
    burn_in: int
    states: list[ChainState]
    draws: Array = field(init=False)
    written: list[int] = field(init=False)
    diverged: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        dim = self.states[0].position.size
        self.draws = np.empty((len(self.states), self.count, dim))
        self.written = [0] * len(self.states)
        self.diverged = [False] * len(self.states)

    @property
    def steps(self) -> int:
        """Steps of each chain."""
        return self.burn_in + self.count * self.thin

    def execute(self, threads: int, progress: bool, keeper: Checkpoint | None = None) -> float:
        """Advance all chains to the end, a fraction of a second at a time; returns the time taken without compiling."""
        with (
            ThreadPoolExecutor(threads) as pool,
            interruptible() as interrupt,
            Progress("sampling", len(self.states) * self.steps, progress) as bar,
        ):
            with waiting("compiling…", progress):
                self._compile(pool, threads)
            began, chunk = time.perf_counter(), 256
            while self._live() and not interrupt.asked:
                tick = time.perf_counter()
                self._advance(chunk, pool, threads)
                elapsed = time.perf_counter() - tick
                # the first round may still be slow: let chunks grow by a bounded factor
                chunk = max(1, int(chunk * min(8.0, _ROUND_SECONDS / max(elapsed, 1e-6))))
                bar.update(sum(state.step for state in self.states))
                if keeper is not None:
                    keeper.save(self.states, self.draws, self.written, self.diverged)
        if keeper is not None:
            keeper.save(self.states, self.draws, self.written, self.diverged, force=True)
        if interrupt.asked and self._live():
            step = max(state.step for state in self.states)
            advice = "give a checkpoint to go on from there next time" if keeper is None else "run again to go on"
            raise KeyboardInterrupt(f"stopped at step {step:,} of {self.steps:,}; {advice}")
        for c, lost in enumerate(self.diverged):
            if lost:
                self.draws[c, self.written[c] :] = np.nan
        return time.perf_counter() - began

    def _compile(self, pool: Executor, threads: int) -> None:
        """Let copies of the chains take a step, so that what is compiled is so before time counts."""
        copies = [deepcopy(self.states[c]) for c in self._live()]
        if copies:
            self.engine.advance(copies, 1, None, [self.draws[0, :0]] * len(copies), pool, threads)

    def _live(self) -> list[int]:
        """Chains that are neither lost nor finished; they are always at the same step."""
        return [c for c, state in enumerate(self.states) if not self.diverged[c] and state.step < self.steps]

    def _advance(self, size: int, pool: Executor, threads: int) -> None:
        while size > 0 and (live := self._live()):
            step = self.states[live[0]].step
            burning = self.burn_in - step
            steps = min(size, burning if burning > 0 else self.steps - step)
            outs = [self.draws[c, self.written[c] :] for c in live]
            thin = None if burning > 0 else self.thin
            done = self.engine.advance([self.states[c] for c in live], steps, thin, outs, pool, threads)
            for c, (written, diverged) in zip(live, done, strict=True):
                self.written[c] += written
                self.diverged[c] = diverged
            size -= steps


def _starts(engine: Engine, tuning: Tuning, chains: int, seed: int) -> list[ChainState]:
    """Chains started from the law expected of them, each with its own stream."""
    root = np.linalg.cholesky(tuning.expected)
    states = []
    for child in np.random.SeedSequence(seed).spawn(chains):
        place, stream = child.spawn(2)
        z = np.random.default_rng(place).standard_normal(tuning.dim)
        states.append(engine.start(tuning.center + root @ z, stream))
    return states


def require_match(problem: Problem, tuning: Tuning) -> None:
    """Refuse a tuning of another problem, as far as that can be told."""
    if not isinstance(tuning, Tuning):
        raise InvalidInput("tuning", "a Tuning", shown(tuning), "make one with eq.tune")
    if len(problem.names) != tuning.dim:
        raise InvalidInput(
            "tuning",
            f"made for this model's {len(problem.names)} parameters",
            f"{tuning.dim} parameters",
            "tune on this data",
        )
    tuned, own = tuning.predicted.moments.loss, problem.model.title
    # losses of one's own have no name, and may well be a family written out
    if own.kind == "Family" and tuned not in ("", CUSTOM, own.name):
        raise InvalidInput("tuning", f"made for this model's loss, {own.name}", tuned, "tune on this model's moments")
    tuning.dynamics.require_batch_within(problem.n)


def _rows(dynamics: Dynamics, n: int, steps: int) -> int:
    """Rows that so many steps touch; the last batch of an epoch may be incomplete."""
    rule = dynamics.rule
    if not isinstance(rule, Epochs):
        return steps * dynamics.batch_size
    sizes = rule.sizes(dynamics.batch_size, n)
    epochs, rest = divmod(steps, len(sizes))
    return epochs * sum(sizes) + sum(sizes[:rest])


def _collect(run: Run, problem: Problem, tuning: Tuning, seed: int, seconds: float) -> Chains:
    taken = sum(state.step for state in run.states)
    hits = sum(state.hits for state in run.states)
    statistics = {
        "steps": float(run.steps),
        "rows": float(sum(_rows(tuning.dynamics, problem.n, state.step) for state in run.states)),
        "seconds": seconds,
        "guard_hits": float(hits),
        "guard_rate": hits / max(1, taken),
    }
    return Chains(
        run.draws, problem.names, run.thin, run.burn_in, seed, problem.layout, statistics, tuple(run.states),
        group=group_of(tuning),
    )  # fmt: skip
