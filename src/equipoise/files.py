"""Files that are whole or not there: atomic writes, a test of a place before work starts, locks that die with their owner."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from equipoise.checks import shown
from equipoise.errors import InvalidInput

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "available_memory",
    "file_place",
    "lock",
    "raw_bytes",
    "require_writable",
    "sync_folder",
    "unwritable",
    "write_atomic",
]

_SUFFIX = ".partial"
# Elsewhere an open file cannot be renamed, so a temporary has no lock there that tells whether its writer lives.
_RENAMES_OPEN_FILES = os.name == "posix"
_SPACE, _RIGHTS = "free some space, or name a file on another disk", "name a file in a folder you may write to"
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.EISDIR: "name a file in this folder",
    errno.ENOTDIR: "name a file in a folder; part of this path is a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_atomic(path: str | Path, content: bytes | Callable[[BinaryIO], object], argument: str = "path") -> Path:
    """Replace a file as a whole: a kill or a power cut at any moment leaves the old one or the new one.

    The content, bytes or a function that writes them to a stream, goes into a temporary file beside it, reaches the disk,
    and takes the name in one step. Folders on the way are made, links are followed, and an existing file keeps its mode.
    Where it cannot be written, the message calls the path as the user does (`argument`), and what was there before is
    whole.
    """
    target = file_place(path, argument)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        with _temporary(target) as raw:
            _fill(raw, content)
            if not _RENAMES_OPEN_FILES:
                raw.close()
            os.replace(raw.name, target)
    except OSError as error:
        raise unwritable(path, argument, error) from error
    sync_folder(target.parent)
    return Path(path)


def require_writable(path: str | Path, argument: str = "path") -> Path:
    """Raise, before hours of work, if a file could not be written at a place; nothing is left there."""
    target = file_place(path, argument)
    folder = next(place for place in target.parents if place.exists())
    try:
        with suppress(FileNotFoundError):
            (folder / target.name).stat()  # a name may be too long, also where its folder is not there yet
        _sweep(folder / target.name)
        with _temporary(folder / target.name) as raw:
            _fill(raw, b"\0")
    except OSError as error:
        raise unwritable(path, argument, error) from error
    return Path(path)


def file_place(path: str | Path, argument: str = "path") -> Path:
    """Where a file is or would be, links followed.

    Refused if a folder, a pipe or a device is there, a file that may not be changed, or nothing could be.
    """
    try:
        target = Path(os.path.realpath(os.fspath(path)))
        with suppress(FileNotFoundError):
            mode = target.stat().st_mode
            if not stat.S_ISREG(mode):
                folder = stat.S_ISDIR(mode)
                reason = "Is a folder" if folder else "Is not a regular file"
                raise OSError(errno.EISDIR if folder else errno.EINVAL, reason)
            if not os.access(target, os.W_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, TypeError, ValueError) as error:
        raise unwritable(path, argument, error) from error
    return target


def unwritable(path: object, argument: str, error: Exception) -> InvalidInput:
    """The error for a place where no file can be written."""
    given = str(path) if isinstance(path, str | Path) else shown(path)
    if not isinstance(error, OSError):
        return InvalidInput(argument, "the path of a file", shown(path), "pass a path as text")
    reason, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0, "name another file")
    return InvalidInput(argument, "a file that can be written", f"{given!r}: {reason}", remedy)


def lock(descriptor: int) -> bool | None:
    """Take an open file for this process alone, until it is closed or its last owner dies.

    Whether it was free; None where the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            # bytes that are locked cannot be read by others either: take one that no file has
            os.lseek(descriptor, 2**62, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in {errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK} else None
    return True


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the disk, where the system can."""
    # the file itself is complete by now, so that a system which refuses changes nothing
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def raw_bytes(array: NDArray[np.generic]) -> memoryview:
    """The bytes behind a contiguous array; not a copy."""
    if not array.flags.c_contiguous:
        raise ValueError("the array must be in one piece of memory, rows first")
    return array.reshape(-1).view(np.uint8).data


def _fill(raw: io.FileIO, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write the content through to the disk; a function may close the stream it is given."""
    with open(raw.fileno(), "wb", closefd=False) as stream:
        if isinstance(content, bytes):
            stream.write(content)
        else:
            content(stream)
    os.fsync(raw.fileno())


@contextmanager
def _temporary(target: Path) -> Iterator[io.FileIO]:
    """A new file beside the target, with the mode it will have, that is gone in the end unless it was renamed."""
    raw = _create(target)
    try:
        yield raw
    finally:
        raw.close()
        Path(raw.name).unlink(missing_ok=True)


def _create(target: Path) -> io.FileIO:
    kept = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    while True:
        partial = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{_SUFFIX}")
        # private from the first moment where the target is: a mode is never wider than it will be
        raw = io.FileIO(
            partial, "xb", opener=lambda name, flags: os.open(name, flags, 0o666 if kept is None else 0o600)
        )
        if kept is not None and sys.platform != "win32":
            with suppress(OSError):  # not every file system has modes
                os.fchmod(raw.fileno(), kept)
        # one that sweeps may have come between the two calls
        if not _RENAMES_OPEN_FILES or (lock(raw.fileno()) is not False and os.fstat(raw.fileno()).st_nlink):
            return raw
        raw.close()
        partial.unlink(missing_ok=True)


def _prefix(target: Path) -> str:
    """What the names of a target's temporaries begin with; of fixed length, as a name may already be the longest."""
    return f".equipoise-{hashlib.blake2b(os.fsencode(target.name), digest_size=6).hexdigest()}-"


def _sweep(target: Path) -> None:
    """Remove what writers of this target left that were killed: their locks are gone."""
    prefix = _prefix(target)
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if _RENAMES_OPEN_FILES and entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX):
                _remove_abandoned(entry.path)


def _remove_abandoned(name: str) -> None:
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if lock(descriptor):
                os.unlink(name)
        finally:
            os.close(descriptor)


def available_memory() -> float:
    """Bytes that can be had without swapping; infinite where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass  # not Linux
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return float("inf")
