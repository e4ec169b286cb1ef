"""Text files at the door: which types their columns have, by the first rows, and by all where these mislead."""

from __future__ import annotations

import os
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from equipoise.data.agreement import Found
from equipoise.data.arrow import with_fields
from equipoise.data.parts import CSVPart, Location, Part, unreadable
from equipoise.data.texts import BLOCK, doubtful, fits

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["as_floats", "of_text", "retyped"]


def of_text(location: Location, constants: tuple[tuple[str, Any], ...]) -> Found:
    """A text file, its types guessed from its first rows; a file without even a header has no columns to disagree."""
    import pyarrow as pa

    with location.reading():
        with location.system.open_input_stream(location.path) as stream:
            start = stream.read(BLOCK)
        if start.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise UnicodeError("UTF-16")
        if not start.strip():
            return Found((), ())
        header, ended, _ = start.partition(b"\n")
        names = header.decode("utf-8", errors="replace")
        part = CSVPart(location, max(",;\t|", key=names.count), (), constants)
        # without its end, a header alone is no table to Arrow
        with part.reader(None, {}, threads=False, stream=None if ended else pa.BufferReader(start + b"\n")) as reader:
            schema, blocks = reader.schema, list(islice(reader, 1))
        # pandas leaves dates in a text file as they are written; bytes are text that is not UTF-8, which reading will tell
        words = [pa.types.is_temporal(f.type) or pa.types.is_binary(f.type) for f in schema]
        written = [(f.name, pa.string() if word else f.type) for f, word in zip(schema, words, strict=True)]
        part = replace(part, types=tuple(written))
        if doubted := [name for block in blocks for name in doubtful(block, start)]:
            part = _with_types(part, _fitting(part, doubted, 1))
    return Found((part,) if ended else (), ((location.path, with_fields(pa.schema(part.types), constants)),))


def _with_types(part: CSVPart, known: Mapping[str, pa.DataType]) -> CSVPart:
    return replace(part, types=tuple((name, known.get(name, kind)) for name, kind in part.types))


def _fitting(part: CSVPart, columns: Collection[str], blocks: int | None = None) -> dict[str, pa.DataType]:
    """The first of some types that fits all values of a column, if it has any, in the first blocks of a text file or in all."""
    import pyarrow as pa

    kinds = {name: [pa.int64(), pa.decimal128(38, 0), pa.float64(), pa.bool_(), pa.string()] for name in columns}
    texts, some = {name: pa.string() for name, _ in part.types}, set[str]()
    with part.location.reading(), part.reader(list(kinds), texts, threads=False) as reader:
        for batch in islice(reader, blocks):
            for name, fitting in kinds.items():
                some |= {name} if batch.column(name).null_count < batch.num_rows else set()
                while not fits(batch.column(name), fitting[0]):
                    fitting.pop(0)
    return {name: kinds[name][0] for name in some}


def as_floats(found: Found, columns: Collection[str]) -> Found:
    """The same with whole numbers in these columns of text files read as numbers that may have fractions further on."""
    from pyarrow import float64, types

    def kind(name: str, guessed: pa.DataType) -> pa.DataType:
        whole = types.is_integer(guessed) or types.is_decimal(guessed)
        return float64() if name in columns and whole else guessed

    parts = (
        replace(part, types=tuple((name, kind(name, guessed)) for name, guessed in part.types))
        if isinstance(part, CSVPart)
        else part
        for part in found.parts
    )
    return Found(tuple(parts), found.schemas)


def retyped(found: Found, label: str, columns: Collection[str]) -> Found:
    """The same with the types of text files' columns looked for in all of their rows, one of which has others than it seemed.

    Where one file has fractions, others may.
    """
    import pyarrow as pa

    def looked(part: Part) -> Part:
        if not isinstance(part, CSVPart):
            return part
        return _with_types(part, _fitting(part, [name for name, _ in part.types if name in columns]))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        parts = tuple(pool.map(looked, found.parts))
    schemas, fractions = dict(found.schemas), set[str]()
    for part, before in zip(parts, found.parts, strict=True):
        if isinstance(part, CSVPart) and isinstance(before, CSVPart):
            if part.label == label and part.types == before.types:
                raise unreadable(label, ValueError("values that its own columns do not take"))
            schemas[part.label] = with_fields(pa.schema(list(part.types)), part.constants)
            fractions |= {name for name, kind in part.types if pa.types.is_floating(kind)}
    return as_floats(Found(parts, tuple(schemas.items())), fractions)
