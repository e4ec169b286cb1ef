"""Record batches of Arrow files, the large ones piece by piece.

Arrow reads a record batch as a whole, and a table that was written at once is a single one, however many rows it has. The
file says where each buffer of it lies (Flatbuffers, of which a few fields are read here); buffers are read side by side
from their beginnings, and decompressed as they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data.arrow import is_text, rows_at_once

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["batch_rows", "read_batches"]

_MAGIC = b"ARROW1"
# What files of the same endings begin with that are something else.
_OTHERS = {
    b"FEA1": "Feather of version 1; write it anew as version 2",
    b"\xff\xff\xff\xff": "an Arrow stream, not an Arrow file; write it anew with pyarrow.ipc.new_file",
}
_CODECS = ("lz4", "zstd")
# Times the rows of a piece that are read at once.
_AT_ONCE = 2
# What the tables of the format have at which place.
_FOOTER_SCHEMA, _FOOTER_BATCHES, _SCHEMA_ENDIAN, _MESSAGE_HEADER = 1, 3, 0, 2
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_CODEC, _BATCH_VARIADIC = range(5)


@dataclass(frozen=True)
class _Flat:
    """A table of a Flatbuffer: some bytes, and where among them it is."""

    data: bytes
    place: int

    @staticmethod
    def root(data: bytes) -> _Flat:
        return _Flat(data, struct.unpack_from("<I", data)[0])

    def _at(self, number: int) -> int | None:
        fields = self.place - struct.unpack_from("<i", self.data, self.place)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", self.data, fields)[0]:
            return None
        offset = struct.unpack_from("<H", self.data, fields + 4 + 2 * number)[0]
        return self.place + offset if offset else None

    def number(self, field: int, form: str) -> int:
        """A number; zero, where it is not written down."""
        at = self._at(field)
        return 0 if at is None else int(struct.unpack_from(form, self.data, at)[0])

    def table(self, field: int) -> _Flat | None:
        """A table inside of this one."""
        at = self._at(field)
        return None if at is None else _Flat(self.data, at + struct.unpack_from("<I", self.data, at)[0])

    def vector(self, field: int, form: str) -> list[tuple[int, ...]]:
        """Groups of numbers."""
        found = self.table(field)
        if found is None:
            return []
        start = found.place + 4
        stop = start + struct.calcsize(form) * struct.unpack_from("<I", self.data, found.place)[0]
        if stop > len(self.data):
            raise struct.error("a vector that is longer than what it is in")
        return list(struct.iter_unpack(form, self.data[start:stop]))


@dataclass(frozen=True)
class _Batch:
    """Where a record batch is: its rows, the places and lengths of its buffers, and how they are compressed."""

    rows: int
    empty: tuple[bool, ...]
    buffers: tuple[tuple[int, int], ...]
    codec: str | None
    variadic: tuple[int, ...]


def _footer(stream: Any) -> _Flat:
    import pyarrow as pa

    size = stream.size()
    length, magic = struct.unpack("<i6s", stream.read_at(10, max(0, size - 10))) if size > 10 else (0, b"")
    if magic != _MAGIC or not 0 < length < size:
        raise pa.ArrowInvalid(_OTHERS.get(stream.read_at(min(4, size), 0), "Not an Arrow file"))
    return _Flat.root(stream.read_at(length, size - 10 - length))


def _batch(stream: Any, offset: int, length: int) -> _Batch:
    data = stream.read_at(length, offset)
    # since 2019 a marker comes before the length
    message = _Flat.root(data[8 if data[:4] == b"\xff\xff\xff\xff" else 4 :])
    header = message.table(_MESSAGE_HEADER)
    if header is None:
        raise struct.error("a message that says nothing")
    compression = header.table(_BATCH_CODEC)
    return _Batch(
        header.number(_BATCH_LENGTH, "<q"),
        tuple(nulls == 0 for _, nulls in header.vector(_BATCH_NODES, "<qq")),
        tuple((offset + length + start, size) for start, size in header.vector(_BATCH_BUFFERS, "<qq")),
        None if compression is None else _CODECS[compression.number(0, "<b")],
        tuple(count for (count,) in header.vector(_BATCH_VARIADIC, "<q")),
    )


def _batches(stream: Any, numbers: Sequence[int] | None = None) -> tuple[list[_Batch], bool]:
    """Some of the record batches of a file or all, and whether its numbers are stored as most machines have them."""
    import pyarrow as pa

    try:
        footer = _footer(stream)
        schema = footer.table(_FOOTER_SCHEMA)
        little = schema is not None and schema.number(_SCHEMA_ENDIAN, "<h") == 0
        blocks = footer.vector(_FOOTER_BATCHES, "<qi4xq")
        chosen = range(len(blocks)) if numbers is None else numbers
        return [_batch(stream, *blocks[k][:2]) for k in chosen], little
    except (struct.error, IndexError, OverflowError) as error:
        raise pa.ArrowInvalid(f"its notes on what is where are damaged ({error})") from error


def batch_rows(stream: Any) -> list[int]:
    """How many rows each record batch of an Arrow file has.

    Examples
    --------
    >>> import pyarrow as pa
    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_file(sink, pa.schema([("a", pa.int64())])) as file:
    ...     file.write_table(pa.table({"a": range(5)}), max_chunksize=3)
    >>> batch_rows(pa.BufferReader(sink.getvalue()))
    [3, 2]
    """
    return [batch.rows for batch in _batches(stream)[0]]


def read_batches(stream: Any, numbers: Sequence[int], columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some record batches of an Arrow file, those columns of them that it has; of large ones about so many rows at a time.

    Columns stored by their levels, and other than numbers and text, are read as a whole all the same.
    """
    from pyarrow import ipc

    schema = ipc.open_file(stream).schema
    fields = [schema.names.index(name) for name in columns if name in schema.names] or [0]
    found, little = _batches(stream, numbers)
    rows = rows_at_once([schema.field(k) for k in fields], rows)
    for k, batch in zip(numbers, found, strict=True):
        places = _places(schema, batch) if little and batch.rows > _AT_ONCE * rows else None
        if places is None:
            yield _whole(stream, fields, k)
        else:
            yield from _pieces(stream, schema, fields, (k, batch), places, max(8, rows - rows % 8))


def _whole(stream: Any, fields: list[int], number: int) -> pa.RecordBatch:
    from pyarrow import ipc

    return ipc.open_file(stream, options=ipc.IpcReadOptions(included_fields=fields)).get_batch(number)


def _pieces(
    stream: Any,
    schema: pa.Schema,
    fields: list[int],
    numbered: tuple[int, _Batch],
    places: list[tuple[int, int]],
    rows: int,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    number, batch = numbered
    chosen = pa.schema([schema.field(k) for k in fields], metadata=schema.metadata)

    def reader(k: int) -> Callable[[int, int], pa.Array]:
        kind, (node, first) = schema.field(k).type, places[k]
        if not _in_pieces(kind):
            whole = _whole(stream, [k], number).column(0)
            return whole.slice
        count = 3 if is_text(kind) else 2
        valid, *others = (_Bytes.of(stream, batch.codec, *at) for at in batch.buffers[first : first + count])
        return _Column(kind, None if batch.empty[node] else valid, *others)

    readers = [reader(k) for k in fields]
    for start in range(0, batch.rows, rows):
        count = min(rows, batch.rows - start)
        yield pa.RecordBatch.from_arrays([read(start, count) for read in readers], schema=chosen)


def _in_pieces(kind: pa.DataType) -> bool:
    """Whether the buffers of a column are in the order of its rows: numbers, dates, truth values and text."""
    from pyarrow import types

    return is_text(kind) or types.is_primitive(kind) or types.is_decimal(kind)


def _places(schema: pa.Schema, batch: _Batch) -> list[tuple[int, int]] | None:
    """The first node and buffer of every column; None where the format of a column is not known here."""
    node, buffer, variadic, places = 0, 0, 0, []
    for field in schema:
        places.append((node, buffer))
        waiting = [field.type]
        while waiting:
            kind = waiting.pop(0)
            own = _own_buffers(kind)
            if own is None:
                return None
            node, buffer = node + 1, buffer + own
            if "view" in str(kind):
                if variadic == len(batch.variadic):
                    return None
                buffer, variadic = buffer + batch.variadic[variadic], variadic + 1
            inside = [] if str(kind).startswith("dictionary") else [kind.field(j).type for j in range(kind.num_fields)]
            waiting = inside + waiting
    whole = node == len(batch.empty) and buffer == len(batch.buffers)
    return places if whole else None


def _own_buffers(kind: pa.DataType) -> int | None:
    """Buffers of a type without those of what it is made of."""
    from pyarrow import types

    if types.is_null(kind):
        return 0
    if is_text(kind):
        return 3
    plain = types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
    if plain or types.is_dictionary(kind) or str(kind) in {"string_view", "binary_view"}:
        return 2
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    return 2 if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) else None


@dataclass(frozen=True)
class _Bytes:
    """A buffer in a file, from its beginning."""

    stream: Any

    @staticmethod
    def of(stream: Any, codec: str | None, place: int, length: int) -> _Bytes:
        import pyarrow as pa

        if place < 0 or length < 0 or place + length > stream.size():
            raise pa.ArrowInvalid("a buffer that is not inside of the file")
        if codec is None or not length:
            return _Bytes(stream.get_stream(place, length))
        (size,) = struct.unpack("<q", stream.read_at(8, place))
        inside = stream.get_stream(place + 8, length - 8)
        # those that would not become smaller are stored as they are
        return _Bytes(inside if size == -1 else pa.CompressedInputStream(inside, codec))

    def take(self, count: int) -> bytes:
        """The next bytes."""
        import pyarrow as pa

        found: bytes = self.stream.read(count)
        if len(found) != count:
            raise pa.ArrowInvalid("a buffer that ends too early")
        return found


class _Column:
    """A column of numbers or text, one piece after the other."""

    def __init__(self, kind: pa.DataType, valid: _Bytes | None, first: _Bytes, text: _Bytes | None = None) -> None:
        self._kind, self._valid, self._first, self._text = kind, valid, first, text
        self._offset: int | None = None

    def __call__(self, start: int, count: int) -> pa.Array:
        """The next rows, a multiple of eight but for the last."""
        import pyarrow as pa

        del start
        valid = None if self._valid is None else pa.py_buffer(self._valid.take(-(-count // 8)))
        if self._text is None:
            values = [pa.py_buffer(self._first.take(-(-count * self._kind.bit_width // 8)))]
        else:
            values = self._words(count, self._text)
        return pa.Array.from_buffers(self._kind, count, [valid, *values], -1 if valid else 0)

    def _words(self, count: int, text: _Bytes) -> list[pa.Buffer]:
        """Where words begin and end, and their letters."""
        import pyarrow as pa

        width = np.dtype(np.int64 if "large" in str(self._kind) else np.int32)
        if self._offset is None:
            self._offset = int(np.frombuffer(self._first.take(width.itemsize), width)[0])
            text.take(self._offset)
        ends = np.frombuffer(self._first.take(count * width.itemsize), width)
        bounds = np.concatenate([np.array([self._offset], width), ends])
        if np.any(np.diff(bounds) < 0):
            raise pa.ArrowInvalid("words that end before they begin")
        letters, self._offset = text.take(int(bounds[-1] - bounds[0])), int(bounds[-1])
        return [pa.py_buffer(bounds - bounds[0]), pa.py_buffer(letters)]
