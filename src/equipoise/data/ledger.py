"""Finished passes on disk: a stage that was killed goes on with the pass it was in.

A pass is known by a digest of the rows and of all numbers it is made with. What it summed up is kept as arrays, without
pickle; the function itself, applied to a few rows, tells what they are arrays of.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import InvalidInput
from equipoise.files import write_atomic
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
    """The finished passes of a stage, in one file; a path of None keeps nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, NDArray[np.generic]] = {}
        if path.exists():
            try:
                with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
                    self._kept = {name: stored[name] for name in stored.files}
            except (OSError, ValueError, KeyError) as error:
                raise InvalidInput(
                    "checkpoint", "beside a file of finished passes that is whole", f"{path.name}, which is damaged",
                    "delete that file",
                ) from error  # fmt: skip

    def recall(self, key: str, like: Callable[[], Sums]) -> Sums | None:
        """What a pass summed up, if it is known; `like` makes something of the same kind."""
        own = [name for name in self._kept if name.startswith(f"{key}.")]
        mine = sorted(own, key=lambda name: int(name.partition(".")[2]))
        if not mine:
            return None
        return cast(Sums, _filled(like(), iter([self._kept[name] for name in mine])))

    def keep(self, key: str, sums: object) -> None:
        """Write down what a pass summed up."""
        arrays: list[NDArray[np.generic]] = []
        _taken(sums, arrays)
        self._kept |= {f"{key}.{k}": np.array(array) for k, array in enumerate(arrays)}
        content = io.BytesIO()
        np.savez(content, **cast(Any, self._kept))
        write_atomic(self._path, content.getvalue(), "checkpoint")


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
