"""A file of appended records, each bound to all before it: what a kill tears off is dropped, what was changed is found.

    file   = opening line, record, record, ...
    record = head (length of the payload, kind, check), payload, tail (digest, where the record starts, check)

The digest of a record covers its head, its payload and the digest before it, so that no record can be changed, moved or
left out. The checks make head and tail legible alone. A write that was cut short can only have hurt the last record; the
tail at the end of the file tells a last record, which is dropped, from one with others behind it, which is damage.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

__all__ = ["Damaged", "Journal", "Record"]

_HEAD = struct.Struct("<QQ8s")
_TAIL = struct.Struct("<32sQ8s")
_CHUNK = 2**20


class Damaged(Exception):
    """The file is not a journal of this kind, or was changed; carries how it begins."""

    def __init__(self, beginning: bytes) -> None:
        self.beginning = beginning
        super().__init__("a journal's records do not match their digests")


class Record(NamedTuple):
    """Where a record's payload is."""

    kind: int
    start: int
    length: int


class Journal:
    """An open file of records after an opening line; `Damaged` if it begins with something else.

    The stream is open for reading and writing without a buffer; nothing is written before the first append.
    """

    def __init__(self, stream: io.FileIO, opening: bytes) -> None:
        self._stream, self._opening = stream, opening
        self._chain = hashlib.blake2b(opening, digest_size=32).digest()
        begin = self._read(0, len(opening))
        # a first line that was cut short is written anew
        self.end = len(opening) if begin == opening else 0
        if not opening.startswith(begin):
            raise Damaged(begin)

    def records(self) -> Iterator[Record]:
        """The records not yet read, each checked as a whole before it is given; a last one that is torn is left out.

        `Damaged` if a record that others follow is not what was written.
        """
        size = os.fstat(self._stream.fileno()).st_size
        while self.end and (record := self._checked(size)) is not None:
            yield record

    def read_into(self, record: Record, offset: int, out: memoryview) -> None:
        """Fill `out` with the payload from `offset` on."""
        view, place = out, record.start + offset
        while view:
            self._stream.seek(place)
            count = self._stream.readinto(view)
            if not count:
                raise Damaged(b"")
            view, place = view[count:], place + count

    def append(self, kind: int, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a record through to the disk.

        After an `OSError` the records before it are kept, and the same may be tried again.
        """
        lead = b"" if self.end else self._opening
        start = self.end + len(lead)
        head = _head(self._chain, sum(len(piece) for piece in pieces), kind)
        digest = hashlib.blake2b(self._chain + head, digest_size=32)
        for piece in pieces:
            digest.update(piece)
        tail = _tail(digest.digest(), start)
        try:
            self.trim()
            self._stream.seek(self.end)
            for piece in (lead, head, *pieces, tail):
                self._write(piece)
            os.fsync(self._stream.fileno())
        except OSError:
            # what reached the file may not reach the disk even if a later sync succeeds
            with suppress(OSError):
                self.trim()
            raise
        self.end, self._chain = self._stream.tell(), digest.digest()

    def trim(self) -> None:
        """Cut off what follows the last whole record."""
        if os.fstat(self._stream.fileno()).st_size > self.end:
            self._stream.truncate(self.end)

    def _checked(self, size: int) -> Record | None:
        """The next record, or None at the end or where the last one is torn."""
        head = self._read(self.end, _HEAD.size)
        if len(head) < _HEAD.size:
            return None
        length, kind, _ = _HEAD.unpack(head)
        if head != _head(self._chain, length, kind):
            self._require_last(self._last_start(size) in {None, self.end})
            return None
        start = self.end + _HEAD.size
        stop = start + length + _TAIL.size
        if stop > size:
            return None
        digest = self._digest(head, start, length)
        if self._read(start + length, _TAIL.size) != _tail(digest, self.end):
            self._require_last(stop == size)
            return None
        self.end, self._chain = stop, digest
        return Record(kind, start, length)

    def _require_last(self, last: bool) -> None:
        """Only the last record can have been torn; any other was changed."""
        if not last:
            raise Damaged(self._opening)

    def _last_start(self, size: int) -> int | None:
        """Where the file's last record starts, by its tail; None if that was not written whole."""
        tail = self._read(max(0, size - _TAIL.size), _TAIL.size)
        digest, start, _ = _TAIL.unpack(tail.ljust(_TAIL.size))
        return start if tail == _tail(digest, start) else None

    def _digest(self, head: bytes, start: int, length: int) -> bytes:
        digest, stop = hashlib.blake2b(self._chain + head, digest_size=32), start + length
        while start < stop and (piece := self._read(start, min(_CHUNK, stop - start))):
            digest.update(piece)
            start += len(piece)
        return digest.digest()

    def _read(self, start: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        found = b""
        self._stream.seek(start)
        while len(found) < count and (piece := self._stream.read(count - len(found))):
            found += piece
        return found

    def _write(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view:
            # the system may take a part, and never more than 2 GB at once
            view = view[self._stream.write(view) :]


def _head(chain: bytes, length: int, kind: int) -> bytes:
    return _HEAD.pack(length, kind, _check(chain + struct.pack("<QQ", length, kind)))


def _tail(digest: bytes, start: int) -> bytes:
    return _TAIL.pack(digest, start, _check(digest + struct.pack("<Q", start)))


def _check(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()
