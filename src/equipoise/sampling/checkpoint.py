"""Checkpoints: a run's draws and where its chains stand, appended to one file as the run goes; no pickle.

The first record of the file holds the run's key and the layout of all that follows; each further one holds the states of
the chains, how many draws each has, and the draws that are new. A run resumes from the last.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.errors import CheckpointMismatch, warn
from equipoise.files import file_place, lock, raw_bytes, require_writable, sync_folder, unwritable
from equipoise.sampling.journal import Damaged, Journal, Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Checkpoint", "fingerprint"]

_OPENING = b"Equipoise checkpoint 3\n"
_HEADER, _SAVE = 1, 2
# States are in every save, and those of a chain that goes through millions of rows in a drawn order are large. What is
# above the first number of bytes is saved less often, so that a file takes at most the second number a second of it.
_SMALL_STATES, _STATE_BYTES_PER_SECOND = 2**20, 100_000.0
_REMEDY = "To fix: delete it or name another file."


def fingerprint(options: Mapping[str, object], *arrays: NDArray[np.generic]) -> str:
    """A digest of all that determines a run's draws: named options, as JSON writes them, and arrays in their order.

    Examples
    --------
    >>> fingerprint({"seed": 1, "thin": 2}) == fingerprint({"thin": 2, "seed": 1})
    True
    >>> fingerprint({"seed": 1}, np.zeros(4)) == fingerprint({"seed": 1}, np.zeros((2, 2)))
    False
    """
    digest = hashlib.blake2b(json.dumps(options, sort_keys=True).encode(), digest_size=16)
    for array in arrays:
        digest.update(f"\n{array.dtype.str} {array.shape}\n".encode())
        digest.update(raw_bytes(np.ascontiguousarray(array)))
    return digest.hexdigest()


@dataclass
class Checkpoint:
    """One run's checkpoint file, made if it is not there and held by this run alone from entering to leaving.

    `key` is the run's `fingerprint`, `seconds` the least time between two saves that are not forced.
    """

    path: Path
    key: str
    seconds: float
    _stream: io.FileIO = field(init=False, repr=False)
    _journal: Journal = field(init=False, repr=False)
    _snapshot: bytes = field(init=False, repr=False, default=b"")
    _written: list[int] = field(init=False, repr=False, default_factory=list)
    _last: float = field(init=False, repr=False, default=0.0)
    _warned: bool = field(init=False, repr=False, default=False)

    def __enter__(self) -> Self:
        """Open the file, and take it.

        `InvalidInput` if no file can be written there; `CheckpointMismatch` if another process is using it, or it is no
        checkpoint.
        """
        place = file_place(self.path, "checkpoint")
        if not place.exists():
            require_writable(place, "checkpoint")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._stream = io.FileIO(place, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666))
        except OSError as error:
            raise unwritable(self.path, "checkpoint", error) from error
        try:
            self._claim()
        except BaseException:
            self._stream.close()
            raise
        self._last = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the file go."""
        with suppress(OSError):
            self._stream.close()

    def restore(
        self, states: Sequence[DataclassInstance], draws: Array, written: list[int], diverged: list[bool]
    ) -> None:
        """Bring a run to where its file left it, in place; a new file is begun, and changes nothing.

        Draws of a chain that diverged are NaN from there on. `CheckpointMismatch` if the file is of another run, or
        damaged.
        """
        header = self._header(states, draws)
        self._snapshot, self._written = _snapshot(states, written, diverged), [0] * len(states)
        try:
            records = self._journal.records()
            first = next(records, None)
            if first is None:
                self._begin(header)
                return
            self._require(first, header)
            for record in records:
                self._read_save(record, draws)
            self._journal.trim()
        except (Damaged, OSError) as error:
            self._refuse(error)
        _apply(self._snapshot, states, written, diverged)
        for c, count in enumerate(written):
            if diverged[c]:
                draws[c, count:] = np.nan

    def save(
        self,
        states: Sequence[DataclassInstance],
        draws: Array,
        written: Sequence[int],
        diverged: Sequence[bool],
        force: bool = False,
    ) -> None:
        """Append what is new since the last save, when it is due; a kill at any moment leaves what was saved before.

        Warns
        -----
        EquipoiseWarning
            Once, if the file cannot be written; the run may go on, and later saves try again.
        """
        pause = max(self.seconds, (len(self._snapshot) - _SMALL_STATES) / _STATE_BYTES_PER_SECOND)
        if not force and time.perf_counter() - self._last < pause:
            return
        snapshot = _snapshot(states, written, diverged)
        if snapshot != self._snapshot:
            new = [raw_bytes(draws[c, a:b]) for c, (a, b) in enumerate(zip(self._written, written, strict=True))]
            try:
                if not os.fstat(self._stream.fileno()).st_nlink:
                    raise OSError(errno.ENOENT, "the file was removed")
                self._journal.append(_SAVE, [snapshot, *new])
                self._snapshot, self._written = snapshot, list(written)
            except OSError as error:
                self._warn(error)
        self._last = time.perf_counter()

    def _claim(self) -> None:
        if lock(self._stream.fileno()) is False:
            raise CheckpointMismatch(
                f"checkpoint: {self.path.name} is being used by another process. To fix: wait until it ends, or name another "
                "file."
            )
        try:
            self._journal = Journal(self._stream, _OPENING)
        except (Damaged, OSError) as error:
            self._refuse(error)

    def _begin(self, header: bytes) -> None:
        try:
            self._journal.append(_HEADER, [header])
        except OSError as error:
            raise unwritable(self.path, "checkpoint", error) from error
        sync_folder(file_place(self.path).parent)

    def _header(self, states: Sequence[DataclassInstance], draws: Array) -> bytes:
        """The run's key and, so that no size is ever taken from a file, what a save of this run looks like."""
        layout = [[(name, a.dtype.str, a.shape) for name, a in _arrays(state)] for state in states]
        return f"{self.key}\n{json.dumps([draws.dtype.str, draws.shape, layout])}".encode()

    def _require(self, first: Record, header: bytes) -> None:
        stored = self._payload(first, min(first.length, len(header)))
        if first.kind == _HEADER and first.length == len(header) and stored == header:
            return
        if not stored.startswith(f"{self.key}\n".encode()):
            raise CheckpointMismatch(
                f"checkpoint: {self.path.name} belongs to another run (other data, model, tuning, seed or options). {_REMEDY}"
            )
        raise CheckpointMismatch(
            f"checkpoint: {self.path.name} was written by a version of Equipoise whose chains hold other things. {_REMEDY}"
        )

    def _read_save(self, record: Record, draws: Array) -> None:
        """Take the states, and the new draws into their place."""
        chains, most, size = len(self._written), draws.shape[1], len(self._snapshot)
        if record.kind != _SAVE or record.length < size:
            raise Damaged(_OPENING)
        snapshot = self._payload(record, size)
        written = np.frombuffer(snapshot, np.int64, chains).tolist()
        grown = all(a <= b <= most for a, b in zip(self._written, written, strict=True))
        row = draws[0, :1].nbytes
        if not grown or record.length != size + row * (sum(written) - sum(self._written)):
            raise Damaged(_OPENING)
        for c, (a, b) in enumerate(zip(self._written, written, strict=True)):
            self._journal.read_into(record, size, raw_bytes(draws[c, a:b]))
            size += row * (b - a)
        self._snapshot, self._written = snapshot, written

    def _payload(self, record: Record, count: int) -> bytes:
        out = np.empty(count, np.uint8)
        self._journal.read_into(record, 0, out.data)
        return out.tobytes()

    def _refuse(self, error: Damaged | OSError) -> NoReturn:
        name = self.path.name
        if isinstance(error, OSError):
            text = f"{name} cannot be read ({error.strerror}). {_REMEDY}"
        elif error.beginning == _OPENING:
            text = f"must be a file written by Equipoise, as it was written; {name} is damaged. {_REMEDY}"
        elif error.beginning.startswith(b"PK"):
            text = f"{name} is a checkpoint of version 0.1, which this version cannot resume. {_REMEDY}"
        elif error.beginning.startswith(_OPENING.rstrip(b"0123456789\n")):
            text = f"{name} is a checkpoint of another version of Equipoise. {_REMEDY}"
        else:
            text = f"must be a file written by Equipoise; {name} is not readable as one. {_REMEDY}"
        raise CheckpointMismatch(f"checkpoint: {text}") from error

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warn(
                f"checkpoint: {self.path.name} could not be written ({error.strerror}). The run goes on, and resumes from the "
                "save before if it is stopped; later saves try again."
            )


def _arrays(state: DataclassInstance) -> list[tuple[str, NDArray[np.generic]]]:
    """A state's fields by name, numbers as arrays without axes."""
    found = []
    for part in fields(state):
        value = getattr(state, part.name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        array = np.asarray(value, np.int64 if whole else None)
        if array.dtype.hasobject:
            raise TypeError(f"a chain's state is saved only if it is numbers and arrays of them; {part.name} is not")
        found.append((part.name, array))
    return found


def _snapshot(states: Sequence[DataclassInstance], written: Sequence[int], diverged: Sequence[bool]) -> bytes:
    """Draws written, whether a chain diverged, and every field of every state: always of the same length in a run."""
    parts = [np.array(written, np.int64), np.array(diverged, np.bool_)]
    parts += [array for state in states for _, array in _arrays(state)]
    return b"".join(part.tobytes() for part in parts)


def _apply(snapshot: bytes, states: Sequence[DataclassInstance], written: list[int], diverged: list[bool]) -> None:
    """Undo `_snapshot`: arrays are filled in place, numbers are set."""
    chains, place = len(states), 9 * len(states)
    written[:] = np.frombuffer(snapshot, np.int64, chains).tolist()
    diverged[:] = (np.frombuffer(snapshot, np.uint8, chains, 8 * chains) != 0).tolist()
    for state in states:
        for name, array in _arrays(state):
            stored = np.frombuffer(snapshot, array.dtype, array.size, place).reshape(array.shape)
            place += array.nbytes
            value = getattr(state, name)
            if isinstance(value, np.ndarray):
                value[...] = stored
            else:
                setattr(state, name, type(value)(stored.item()))
