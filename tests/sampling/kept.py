"""Deterministic chains with states of every kind, and what is kept of them: the material of the tests of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from equipoise.sampling.checkpoint import Checkpoint

__all__ = ["CHAINS", "DIM", "DRAWS", "Run", "keeper", "resumed", "same", "saved"]

CHAINS, DRAWS, DIM, LOST = 3, 12, 2, 7
MASK = 2**64 - 1


@dataclass
class State:
    """A state with fields of every kind; the first three and the step are those of the engines."""

    position: np.ndarray
    rng: np.ndarray
    order: np.ndarray
    marks: np.ndarray
    nothing: np.ndarray = field(default_factory=lambda: np.empty(0))
    step: int = 0
    total: float = 0.0
    odd: bool = False


class Run:
    """Three deterministic chains whose next draw depends on every field of their state; the last diverges, if asked."""

    def __init__(self, lost: bool = False) -> None:
        self.states = [
            State(np.arange(DIM) + c / 3, np.full(4, c + 1, np.uint64), np.arange(5), np.zeros((2, 2), bool))
            for c in range(CHAINS)
        ]
        self.draws = np.full((CHAINS, DRAWS, DIM), 7.0)
        self.written, self.diverged, self.lost = [0] * CHAINS, [False] * CHAINS, lost

    def advance(self, steps: int) -> None:
        """Chains run unevenly: chain c stores a draw every c + 1 steps."""
        for c, state in enumerate(self.states):
            for _ in range(steps):
                if self.diverged[c] or self.written[c] == DRAWS:
                    break
                self._step(c, state)

    def _step(self, c: int, state: State) -> None:
        state.step += 1
        state.rng[0] = (int(state.rng[0]) * 6364136223846793005 + 1442695040888963407) & MASK
        state.order[:] = np.roll(state.order, int(state.rng[0] % 3))
        state.marks[0, 1] ^= state.order[0] > 2
        state.odd = not state.odd
        state.total += float(state.position.sum())
        shift = state.order[0] + state.marks[0, 1] + 2 * state.odd + state.total / 100 + state.step
        state.position[:] = np.cos(1.7 * state.position + shift)
        if state.step % (c + 1) == 0:
            self.draws[c, self.written[c]] = state.position
            self.written[c] += 1
        if self.lost and c == CHAINS - 1 and self.written[c] == LOST:
            self.diverged[c] = True
            self.draws[c, LOST:] = np.nan

    def finish(self) -> Run:
        self.advance(10 * DRAWS)
        return self

    def arguments(self):
        return self.states, self.draws, self.written, self.diverged


def keeper(path: Path, key: str = "the key", seconds: float = 0.0) -> Checkpoint:
    return Checkpoint(path, key, seconds)


def saved(path: Path, saves: int = 4, steps: int = 5, lost: bool = False) -> list[int]:
    """A run that is stopped after some saves; the size of its file after each."""
    run, sizes = Run(lost), []
    with keeper(path) as kept:
        kept.restore(*run.arguments())
        sizes.append(path.stat().st_size)
        for _ in range(saves):
            run.advance(steps)
            kept.save(*run.arguments(), force=True)
            sizes.append(path.stat().st_size)
    return sizes


def resumed(path: Path, lost: bool = False) -> tuple[Run, list[int]]:
    """A run brought to where its file left it, and the steps it stood at."""
    run = Run(lost)
    with keeper(path) as kept:
        kept.restore(*run.arguments())
    return run, [state.step for state in run.states]


def same(one: Run, other: Run) -> None:
    np.testing.assert_array_equal(one.draws, other.draws)
    assert (one.written, one.diverged) == (other.written, other.diverged)
    for a, b in zip(one.states, other.states, strict=True):
        for name, value in vars(a).items():
            np.testing.assert_array_equal(value, getattr(b, name))
            assert type(value) is type(getattr(b, name))
