"""Checkpoints: the state of every chain and its draws, in one file replaced atomically; no pickle."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import CheckpointMismatch

if TYPE_CHECKING:
    from equipoise.theory.tuning import Tuning

__all__ = ["Checkpoint", "fingerprint"]


_FORMAT = 2


def fingerprint(identity: str, tuning: Tuning, options: dict[str, Any]) -> str:
    """A digest of everything that determines a run's draws: data, loss, step, dynamics, seed and options."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(
        json.dumps(
            {"format": _FORMAT, "engine": identity, "dynamics": repr(tuning.dynamics), **options}, sort_keys=True
        ).encode()
    )
    for array in (tuning.step, tuning.center, tuning.expected):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass
class Checkpoint:
    """One run's checkpoint file."""

    path: Path
    key: str
    seconds: float
    _last: float = field(default_factory=time.perf_counter)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def restore(self, states: list[Any], draws: Array, written: list[int], diverged: list[bool]) -> None:
        """Bring a run to where its file left it; does nothing when there is no file.

        Raises
        ------
        CheckpointMismatch
            If the file is not a checkpoint, or of another run.
        """
        if not self.path.exists():
            return
        try:
            # opened here because np.load leaves a file it cannot read open
            with self.path.open("rb") as stream, np.load(stream, allow_pickle=False) as saved:
                stored = {name: saved[name] for name in saved.files}
            key = str(stored["key"])
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            EOFError,
            RuntimeError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise CheckpointMismatch(
                f"checkpoint: must be a file written by Equipoise; {self.path.name} is not readable as one. To fix: delete it "
                "or name another file."
            ) from error
        if key != self.key:
            raise CheckpointMismatch(
                f"checkpoint: {self.path.name} belongs to another run (other data, model, tuning, seed or options). To fix: "
                "delete it or name another file."
            )
        for c, state in enumerate(states):
            state.position[:], state.velocity[:], state.rng[:] = (stored[k][c] for k in ("position", "velocity", "rng"))
            state.step, state.hits, written[c] = (int(stored[k][c]) for k in ("step", "hits", "written"))
            diverged[c] = bool(stored["diverged"][c])
            draws[c, : written[c]] = stored["draws"][c, : written[c]]

    def save(
        self, states: list[Any], draws: Array, written: list[int], diverged: list[bool], force: bool = False
    ) -> None:
        """Write the file when it is due; a kill at any moment leaves the previous one whole."""
        if not force and time.perf_counter() - self._last < self.seconds:
            return
        longest = max(written)
        fields: dict[str, Any] = {
            name: np.stack([getattr(state, name) for state in states])
            for name in ("position", "velocity", "rng", "step", "hits")
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        with partial.open("wb") as stream:
            np.savez(
                stream,
                key=self.key,
                written=np.array(written),
                diverged=np.array(diverged),
                draws=draws[:, :longest],
                **fields,
            )
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self.path)
        self._last = time.perf_counter()
