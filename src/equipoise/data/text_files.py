"""Text files at the door: which types their columns have, by the first rows, and by all where these mislead."""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from equipoise.data.agreement import Found
from equipoise.data.arrow import with_fields
from equipoise.data.parts import CSVPart, Location, unreadable
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
    """The first of some types that fits the values of each column, in the first blocks of a text file or in all."""
    import pyarrow as pa

    kinds = {name: [pa.int64(), pa.decimal128(38, 0), pa.float64(), pa.bool_(), pa.string()] for name in columns}
    texts = {name: pa.string() for name, _ in part.types}
    with part.location.reading(), part.reader(list(kinds), texts, threads=False) as reader:
        for batch in islice(reader, blocks):
            for name, fitting in kinds.items():
                while not fits(batch.column(name), fitting[0]):
                    fitting.pop(0)
    return {name: fitting[0] for name, fitting in kinds.items()}


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
    """The same with the types of a text file's columns looked for in all of its rows; where it has fractions, others may."""
    import pyarrow as pa

    parts = list(found.parts)
    k = next(i for i, part in enumerate(parts) if part.label == label)
    part = parts[k]
    assert isinstance(part, CSVPart)
    parts[k] = made = _with_types(part, _fitting(part, [name for name, _ in part.types if name in columns]))
    types = made.types
    if types == part.types:
        raise unreadable(label, ValueError("values that its own columns do not take"))
    schema = with_fields(pa.schema(list(types)), part.constants)
    found = Found(tuple(parts), tuple((name, schema if name == label else s) for name, s in found.schemas))
    return as_floats(found, [name for name, kind in types if pa.types.is_floating(kind)])
