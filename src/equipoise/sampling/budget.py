"""What a run takes of this machine: memory for its draws and time for its steps, known before the first one."""

from __future__ import annotations

import os

from equipoise.errors import InvalidInput, warn
from equipoise.files import available_memory

__all__ = ["announce", "is_long", "leverage_seconds", "predicted_seconds", "require_possible"]

_MOST_CHAINS = 10_000  # each has a state and a stream of its own; beyond this more draws per chain say more
_MOST_SECONDS = 1000 * 3600.0  # six weeks
_LONG = 600.0  # seconds from which a run is announced


def predicted_seconds(chains: int, steps: int, batch: int, dim: int) -> float:
    """Per step about 0.4 µs, and per row 10 ns plus 0.4 ns per column, on one core of a current machine."""
    rounds = -(-chains // min(chains, os.cpu_count() or 1))
    return float(rounds) * float(steps) * (4e-7 + batch * (1e-8 + 4e-10 * dim))


def leverage_seconds(n: int, dim: int) -> float:
    """What leverages, their curvature number and their table take: three passes over the rows and a sort of them."""
    return n * (1.5e-10 * dim * dim + 1e-7)


def require_possible(chains: int, draws: int, dim: int, seconds: float) -> None:
    """Refuse absurdly many chains, draws that do not fit into memory, and a run of more than six weeks."""
    if chains > _MOST_CHAINS:
        raise InvalidInput(
            "chains", f"at most {_MOST_CHAINS:,}", f"{chains:,}", "a few are enough: raise draws instead"
        )
    needed, free = 8.0 * chains * draws * dim, available_memory()
    if needed > free:
        raise InvalidInput(
            "ess, draws", f"as many as fit into the {free / 1e9:.3g} GB of memory available",
            f"{chains:,} x {float(draws):,.3g} draws of {dim} parameters: {needed / 1e9:,.3g} GB",
            f"ask for {free / needed / 2:.2g} times as many, or store fewer of them with a larger thin",
        )  # fmt: skip
    if seconds > _MOST_SECONDS:
        raise InvalidInput(
            "ess, draws, thin, burn_in", f"a run of at most {_MOST_SECONDS / 3600:,.0f} hours",
            f"about {seconds / 3600:,.3g} hours of sampling", "ask for fewer effective draws, or for fewer steps",
        )  # fmt: skip


def is_long(seconds: float) -> bool:
    """Whether a run takes more than ten minutes."""
    return seconds > _LONG


def announce(seconds: float, resumable: bool, faster: str) -> None:
    """Warn, before the first step, of a run that is predicted to take long; `faster` says what would take less."""
    if is_long(seconds):
        length = f"{seconds / 3600:.1f} hours" if seconds > 7200 else f"{seconds / 60:.0f} minutes"
        advice = "" if resumable else "; give a checkpoint file to be able to stop and resume"
        quicker = f" To be faster: {faster}." if faster else ""
        warn(f"sampling will take about {length}{advice}.{quicker}")
