"""The container of saved results: named arrays and one header of plain values in one file, none of it pickled.

    file = opening line, zlib streams of the arrays, contents, length of the contents (8 bytes), digest of all before it

The contents are JSON: the header, and for every array its name, type, shape and stored bytes. A file may come from anywhere,
so nothing is interpreted before the digest matches, and nothing is allocated or unpacked beyond what the contents declare,
which is held against the limits and the size of the file first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from equipoise.checks import shown
from equipoise.errors import InvalidInput
from equipoise.files import raw_bytes, write_atomic

__all__ = ["JSON", "LIMITS", "Limits", "read_archive", "write_archive"]

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

_OPENING = b"Equipoise archive 2\n"
_DIGEST, _LENGTH = 32, 8
_TYPES = {"bool": "|b1", "float32": "<f4", "float64": "<f8", "int64": "<i8", "uint64": "<u8"}
_NAME = re.compile(r"[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*")
_LONGEST_NAME, _MOST_AXES = 200, 16
# JSON has no words for these; a dict of this one key stands for them
_FLOAT, _NOT_FINITE = "$float", {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# Flushed every so many bytes, no stream is shorter than a 900th of what it holds, so that no file which was written
# meets the limit of a 1000th when it is read.
_PIECE = 2**15
_MOST_RATIO, _FREE = 1000, 10**6
# Draws are noise to a compressor: below this gain they are stored as they are, at thirty times the speed.
_LEAST_GAIN, _PROBE = 0.9, 2**18


@dataclass(frozen=True)
class Limits:
    """What a file may hold at most: bytes of all arrays, bytes of the contents, and the depth of the header."""

    limit_bytes: int = 4 * 2**30
    json_bytes: int = 16 * 2**20
    depth: int = 32


LIMITS = Limits()


class _Entry(NamedTuple):
    name: str
    kind: np.dtype[np.generic]
    shape: tuple[int, ...]
    stored: int

    @property
    def bytes(self) -> int:
        return self.kind.itemsize * math.prod(self.shape)


def write_archive(
    path: str | Path,
    header: Mapping[str, object],
    arrays: Mapping[str, NDArray[np.generic]],
    limits: Limits = LIMITS,
) -> Path:
    """Write a file that `read_archive` reads, as a whole or not at all.

    Parameters
    ----------
    header
        Text, numbers (also infinite and NaN), None, lists or tuples, and dicts with text as keys, in any depth.
    arrays
        Arrays of float64, float32, int64, uint64 or bool, by names of letters, digits, `_`, `.` and `-`.

    Raises
    ------
    InvalidInput
        If the header or an array is of another kind or beyond the limits, or the file cannot be written.
    """
    plain = _plain(dict(header), "header", limits.depth)
    kept = {name: _storable(name, array) for name, array in arrays.items()}
    total = sum(array.nbytes for array in kept.values())
    if total > limits.limit_bytes:
        raise InvalidInput("arrays", f"at most {limits.limit_bytes:,} bytes together", f"{total:,}", "save fewer draws")

    def write(stream: BinaryIO) -> None:
        digest, entries = hashlib.blake2b(digest_size=_DIGEST), []

        def put(piece: bytes) -> int:
            digest.update(piece)
            return stream.write(piece)

        put(_OPENING)
        for name, array in kept.items():
            stored = sum(put(piece) for piece in _packed(array))
            entries.append([name, array.dtype.name, list(array.shape), stored])
        contents = json.dumps({"header": plain, "arrays": entries}, allow_nan=False, ensure_ascii=False).encode()
        if len(contents) > limits.json_bytes:
            raise InvalidInput(
                "header", f"at most {limits.json_bytes:,} bytes", f"{len(contents):,}", "keep less in it"
            )
        put(contents)
        put(len(contents).to_bytes(_LENGTH, "little"))
        stream.write(digest.digest())

    return write_atomic(path, write)


def read_archive(
    path: str | Path,
    limits: Limits = LIMITS,
) -> tuple[dict[str, JSON], dict[str, NDArray[np.generic]]]:
    """The header and arrays of a file by `write_archive`; refused if absent, damaged, of another kind or beyond the limits."""
    try:
        with _opened(path) as stream:
            size = _checked_size(stream, limits)
            header, entries = _contents(stream, size, limits)
            stream.seek(len(_OPENING))
            return header, {entry.name: _unpacked(stream, entry) for entry in entries}
    except (OSError, ValueError, RecursionError, MemoryError, zlib.error) as error:
        given = Path(path).name or str(path) if isinstance(path, str | Path) else shown(path)
        reason, remedy = _reason(error)
        raise InvalidInput("path", "a file written by save()", f"{given!r}, which {reason}", remedy) from error


class _Refused(ValueError):
    """What is wrong with a file, as the end of a sentence about it."""

    def __init__(self, reason: str, remedy: str = "check the path, or save the result again") -> None:
        self.remedy = remedy
        super().__init__(reason)


def _reason(error: Exception) -> tuple[str, str]:
    if not isinstance(error, _Refused):
        text = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
        error = _Refused(f"cannot be read ({text[:100]})")
    return str(error), error.remedy


# writing


def _plain(value: object, where: str, depth: int) -> JSON:
    """A header's value in JSON's own types."""
    if depth < 0:
        raise InvalidInput("header", "less deep", f"{where}", "flatten it")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        name = {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
        return float(value) if math.isfinite(value) else {_FLOAT: name}
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return value
    if isinstance(value, str) and _encodes(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{k}]", depth - 1) for k, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) and _encodes(key) and key != _FLOAT for key in value):
        return {key: _plain(item, f"{where}.{key}", depth - 1) for key, item in value.items()}
    if value is None:
        return None
    raise InvalidInput(
        "header",
        "made of text, numbers, lists and dicts",
        f"{shown(value)} at {where}",
        "convert it to text or numbers",
    )


def _encodes(text: str) -> bool:
    """Whether it is text that any file can hold: a half of a surrogate pair is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _storable(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidInput("arrays", "named by letters, digits, _ . and -", shown(name), "choose other names")
    if not isinstance(array, np.ndarray) or array.dtype.name not in _TYPES or array.ndim > _MOST_AXES:
        given = f"{name}: {getattr(array, 'dtype', type(array).__name__)}"
        raise InvalidInput("arrays", f"of {', '.join(_TYPES)}", given, "convert it")
    return np.asarray(array, dtype=_TYPES[array.dtype.name], order="C")


def _is_name(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def _packed(array: NDArray[np.generic]) -> Iterator[bytes]:
    """A zlib stream of an array's bytes."""
    raw = raw_bytes(array)
    packer = zlib.compressobj(1 if len(zlib.compress(raw[:_PROBE], 1)) < _LEAST_GAIN * len(raw[:_PROBE]) else 0)
    for start in range(0, len(raw), _PIECE):
        yield packer.compress(raw[start : start + _PIECE])
        yield packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


# reading


def _opened(path: str | Path) -> BinaryIO:
    """The file, if it is one: opening a pipe would wait for ever."""
    if not isinstance(path, str | Path):
        raise _Refused("is not a path", "pass a path as text")
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return open(path, "rb")
    raise _Refused("is a folder" if stat.S_ISDIR(mode) else "is not a regular file")


def _checked_size(stream: BinaryIO, limits: Limits) -> int:
    """The size of a file that begins and ends as it should."""
    size = os.fstat(stream.fileno()).st_size
    _require_opening(stream.read(64))
    if size > limits.limit_bytes + limits.limit_bytes // 64 + limits.json_bytes + _FREE:
        raise _Refused(f"has {size:,} bytes, more than is read")
    if size < len(_OPENING) + _LENGTH + _DIGEST:
        raise _Refused("was cut short")
    digest, left = hashlib.blake2b(digest_size=_DIGEST), size - _DIGEST
    stream.seek(0)
    while left > 0 and (piece := stream.read(min(2**20, left))):
        digest.update(piece)
        left -= len(piece)
    if stream.read() != digest.digest():
        raise _Refused("is damaged or was cut short")
    return size


def _require_opening(begin: bytes) -> None:
    if begin.startswith(_OPENING):
        return
    if begin.startswith(b"PK") and b"header.npy" in begin:
        raise _Refused("was written by version 0.1, which this version no longer reads", "run again")
    if begin.startswith(_OPENING.rstrip(b"0123456789\n")):
        raise _Refused("was written by another version of Equipoise", "read it with that version, or run again")
    raise _Refused("was cut short" if _OPENING.startswith(begin) and begin else "is of another kind")


def _contents(stream: BinaryIO, size: int, limits: Limits) -> tuple[dict[str, JSON], list[_Entry]]:
    """The header and the list of arrays, which fill the file to the byte and are within the limits."""
    end = size - _DIGEST - _LENGTH
    stream.seek(end)
    length = int.from_bytes(stream.read(_LENGTH), "little")
    if length > min(limits.json_bytes, end - len(_OPENING)):
        raise _Refused(f"has contents of {length:,} bytes, more than is read")
    stream.seek(end - length)
    found = _parsed(stream.read(length))
    if not isinstance(found, dict) or set(found) != {"header", "arrays"}:
        raise _Refused("has no table of contents")
    header, rows = found["header"], found["arrays"]
    if not isinstance(header, dict) or not isinstance(rows, list):
        raise _Refused("has no table of contents")
    _require_shallow(header, limits.depth)
    entries = [_entry(row) for row in rows]
    if len({entry.name for entry in entries}) < len(entries):
        raise _Refused("names an array twice")
    if sum(entry.stored for entry in entries) != end - length - len(_OPENING):
        raise _Refused("has arrays of another size than it declares")
    most = min(limits.limit_bytes, _MOST_RATIO * size + _FREE)
    if (total := sum(entry.bytes for entry in entries)) > most:
        raise _Refused(f"declares {total:,} bytes of arrays, more than the {most:,} that are read")
    return header, entries


def _entry(row: JSON) -> _Entry:
    """One line of the table of contents."""
    if not isinstance(row, list) or len(row) != 4:
        raise _Refused("has a table of contents with lines of another form")
    name, kind, shape, stored = row
    if not isinstance(name, str) or not _is_name(name):
        raise _Refused("has an array whose name is not one")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _Refused(f"has an array, {name}, of a type that is not read")
    if not isinstance(shape, list) or len(shape) > _MOST_AXES or not _is_count(stored):
        raise _Refused(f"has an array, {name}, of a shape that is not read")
    dtype, sides = np.dtype(_TYPES[kind]), tuple(side for side in shape if _is_count(side))
    # of an empty array the other sides count too, because NumPy multiplies them
    if len(sides) < len(shape) or dtype.itemsize * math.prod(side or 1 for side in sides) >= 2**62:
        raise _Refused(f"has an array, {name}, of a shape that is not read")
    return _Entry(name, dtype, sides, stored)


def _is_count(value: JSON) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parsed(text: bytes) -> JSON:
    """JSON without what is not in it (NaN), means two things (a key twice) or is no number of 64 bits."""
    return json.loads(
        text.decode(), object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite, parse_int=_integer
    )


def _object(pairs: list[tuple[str, JSON]]) -> JSON:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused("has a header with a key twice")
    if _FLOAT not in found:
        return found
    word = found[_FLOAT]
    if len(found) > 1 or not isinstance(word, str) or word not in _NOT_FINITE:
        raise _Refused("has a header with a number that is none")
    return _NOT_FINITE[word]


def _constant(word: str) -> float:
    raise _Refused(f"has a header with {word}, which is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise _Refused("has a header with a number beyond all numbers")
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**64:
        raise _Refused("has a header with a number of more than 64 bits")
    return value


def _require_shallow(value: JSON, depth: int) -> None:
    """Refuse what is deeper than it may be, and text that cannot be printed."""
    if depth < 0:
        raise _Refused("has a header deeper than is read")
    if isinstance(value, str) and not _encodes(value):
        raise _Refused("has a header with text that is none")
    for item in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_shallow(item, depth - 1)


def _unpacked(stream: BinaryIO, entry: _Entry) -> NDArray[np.generic]:
    """One array; a stream that holds more or less than it declares is not followed further than that."""
    array = np.empty(entry.shape, entry.kind)
    out, filled, left, packer = raw_bytes(array), 0, entry.stored, zlib.decompressobj()
    while not packer.eof:
        piece = packer.unconsumed_tail or stream.read(min(_PIECE, left))
        left -= 0 if packer.unconsumed_tail else len(piece)
        # one byte more than there is room for, which shows a stream that is too long; 0 would mean without bound
        block = packer.decompress(piece, min(_PIECE, len(out) - filled + 1))
        if filled + len(block) > len(out) or not (piece or block):
            raise _Refused(f"has an array, {entry.name}, of another size than it declares")
        out[filled : filled + len(block)] = block
        filled += len(block)
    if filled < len(out) or left or packer.unused_data:
        raise _Refused(f"has an array, {entry.name}, of another size than it declares")
    if entry.kind == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise _Refused(f"has an array, {entry.name}, of truth values that are none")
    return array
