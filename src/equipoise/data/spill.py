"""What waits for its turn and may not fit into memory: in a temporary file without a name, once there is more than a little.

The file is this process's own and is gone with it, however the process ends.
"""

from __future__ import annotations

import pickle
import shutil
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

from equipoise.errors import InvalidInput

__all__ = ["Spill", "free_disk"]

# Bytes that are kept in memory before a file is begun.
_HELD = 1 << 24


class Spill:
    """Things set aside under numbers; those of one number are given back in the order in which they came, once.

    Examples
    --------
    >>> spill = Spill()
    >>> for number in (3, 1, 3):
    ...     spill.add(number, f"for {number}")
    >>> spill.numbers, list(spill.take(3)), spill.numbers
    ([1, 3], ['for 3', 'for 3'], [1])
    """

    def __init__(self, held: int = _HELD) -> None:
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(held)  # noqa: SIM115 (as long as this object)
        weakref.finalize(self, self._file.close)
        self._places: dict[int, list[int]] = {}

    @property
    def numbers(self) -> list[int]:
        """Under which something waits, ascending."""
        return sorted(self._places)

    def add(self, number: int, thing: object) -> None:
        """Set a thing aside; refused if there is no room on the disk."""
        with _named():
            self._places.setdefault(number, []).append(self._file.seek(0, 2))
            pickle.dump(thing, self._file, protocol=pickle.HIGHEST_PROTOCOL)

    def take(self, number: int) -> Iterator[Any]:
        """What waits under a number, which is then free again."""
        return self._read(self._places.pop(number, ()))

    def look(self, number: int) -> Iterator[Any]:
        """What waits under a number, and goes on waiting."""
        return self._read(self._places.get(number, ()))

    def _read(self, places: Iterable[int]) -> Iterator[Any]:
        for place in places:
            with _named():
                self._file.seek(place)
                thing = pickle.load(self._file)  # what this object wrote, and nobody else can
            yield thing


def free_disk() -> int:
    """Bytes that are free where temporary files go."""
    return shutil.disk_usage(gettempdir()).free


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            "data", f"rows that fit into the folder of temporary files, {gettempdir()}",
            f"{error.strerror or error}; {free_disk() / 1e9:.3g} GB are free there", "free some space, set TMPDIR to a folder "
            "on a larger disk, or pass a larger memory= to eq.data.scan",
        ) from error  # fmt: skip
