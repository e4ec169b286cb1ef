"""Finished passes on disk: a stage that was killed goes on with the pass it was in.

A pass is known by a digest of the rows and of all numbers it is made with. What it summed up is kept as arrays, without
pickle; the function itself, applied to a few rows, tells what they are arrays of.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import InvalidInput, warn
from equipoise.files import require_writable, write_atomic
from equipoise.linalg import Sums

__all__ = ["Ledger", "pass_key"]


class _Unknown(Exception):
    """Something that has no digest: a function made on the spot."""


def pass_key(fingerprint: str, f: object, *others: object) -> str | None:
    """A digest of a pass over some rows; None for one that cannot be told from another."""
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=16)
    try:
        _feed(digest, f)
        _feed(digest, others)
    except _Unknown:
        return None
    return digest.hexdigest()


def _feed(digest: hashlib.blake2b, item: object) -> None:
    """Add all that an object is made of."""
    if isinstance(item, np.ndarray):
        digest.update(f"{item.dtype} {item.shape}".encode())
        digest.update(np.ascontiguousarray(item).data)
    elif item is None or isinstance(item, (bool, int, float, str, bytes, np.generic)):
        digest.update(f"{type(item).__name__} {item!r};".encode())
    elif is_dataclass(item) and not isinstance(item, type):
        digest.update(f"{type(item).__qualname__}(".encode())
        for part in fields(item):
            if part.compare:
                _feed(digest, getattr(item, part.name))
    elif isinstance(item, (tuple, list)):
        digest.update(f"{type(item).__name__} {len(item)}".encode())
        for part in item:
            _feed(digest, part)
    elif isinstance(item, Mapping):
        _feed(digest, list(item.items()))
    elif isinstance(item, functools.partial):
        _feed(digest, (item.func, item.args, item.keywords))
    elif callable(item) and getattr(item, "__closure__", None) is None and hasattr(item, "__qualname__"):
        # a function with a name and nothing of its own
        digest.update(f"{item.__module__}.{item.__qualname__};".encode())
    else:
        raise _Unknown(type(item).__name__)


class Ledger:
    """The finished passes of a stage, in one file."""

    def __init__(self, path: Path) -> None:
        self._path, self._warned = path, False
        self._kept: dict[str, NDArray[np.generic]] = {}
        require_writable(path, "checkpoint")
        if path.exists():
            try:
                with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                    self._kept = {name: stored[name] for name in stored.files}
            except Exception as error:  # whatever bytes that are no archive lead to
                raise self._damaged() from error

    def recall(self, key: str, like: Callable[[], Sums]) -> Sums | None:
        """What a pass summed up, if it is known; `like` makes something of the same kind."""
        mine = [name for name in self._kept if name.startswith(f"{key}.")]
        if not mine:
            return None
        kind = like()
        try:
            arrays = [self._kept[f"{key}.{k}"] for k in range(len(mine))]
            rest = iter(arrays)
            found = cast(Sums, _filled(kind, rest))
            complete = next(rest, None) is None
        except Exception as error:  # where arrays are missing, or are others
            raise self._damaged() from error
        if not complete:
            raise self._damaged()
        return found

    def keep(self, key: str, sums: object) -> None:
        """Write down what a pass summed up; where that fails, warn once, and try again with the next."""
        arrays: list[NDArray[np.generic]] = []
        _taken(sums, arrays)
        self._kept |= {f"{key}.{k}": np.array(array) for k, array in enumerate(arrays)}
        try:
            # straight to the disk: sums of many clusters are large
            write_atomic(self._path, lambda stream: np.savez(stream, **cast(Any, self._kept)), "checkpoint")
        except InvalidInput as error:
            if not self._warned:
                self._warned = True
                reason = getattr(error.__cause__, "strerror", None) or error
                warn(
                    f"checkpoint: {self._path.name} could not be written ({reason}). The run goes on, and repeats this pass if "
                    "it is stopped; later passes try again."
                )

    def _damaged(self) -> InvalidInput:
        return InvalidInput(
            "checkpoint", "beside a file of finished passes that is whole", f"{self._path.name}, which is damaged",
            "delete that file",
        )  # fmt: skip


def _taken(item: object, arrays: list[NDArray[np.generic]]) -> None:
    """The numbers of sums, one array after the other; of a plain tuple, of which there may be any number, first how many."""
    if hasattr(item, "_fields"):
        for part in cast(tuple[object, ...], item):
            _taken(part, arrays)
    elif isinstance(item, tuple):
        arrays.append(np.array(len(item)))
        for part in item:
            _taken(part, arrays)
    elif hasattr(item, "arrays"):
        arrays.extend(cast(Any, item).arrays)
    else:
        arrays.append(np.asarray(item))


def _filled(like: object, arrays: Iterator[NDArray[np.generic]]) -> object:
    """Undo `_taken`."""
    if hasattr(like, "_fields"):
        parts = [_filled(part, arrays) for part in cast(tuple[object, ...], like)]
        return cast(Any, type(like))(*parts)
    if isinstance(like, tuple):
        return tuple(_filled(like[0] if like else None, arrays) for _ in range(int(next(arrays))))
    if hasattr(like, "arrays"):
        made = cast(Any, like)
        return type(made)(*(next(arrays) for _ in made.arrays))
    found = next(arrays)
    return float(found) if isinstance(like, float) else found
