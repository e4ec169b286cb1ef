"""Arrow tables on their way to pandas: in pieces of one length, with the columns of a path, each value as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data.grammar import LIMITS

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["as_pandas", "is_text", "plain_decimals", "regular", "rows_at_once", "with_constants", "with_fields"]

# Digits that a decimal may have for the nearest float to be that of no other decimal of so few.
_DIGITS = 15
# Levels that a column may have of other rows, which take room.
_LEVELS = 10 * LIMITS.levels
# Bytes of text for each row that is asked for: most text is shorter, and decided by its number of rows alone.
_LETTERS = 16
# Rows with text that are decoded at a time, and how many fewer they are if these have more bytes.
_DECODED, _FEWEST, _BYTES = 1 << 13, 1 << 6, 1 << 24


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as pandas has it, numbers without a copy; decimals become floats, but for those that floats would round."""
    import pandas as pd
    import pyarrow as pa

    given = table.schema
    table = table.replace_schema_metadata()  # which says nothing of the values, and may be damaged
    for k, name in enumerate(table.schema.names):
        if pa.types.is_run_end_encoded(table.field(k).type):
            table = table.set_column(k, name, _run_by_run(table.column(k)))
        if pa.types.is_decimal(table.field(k).type):
            table = table.set_column(k, name, plain_decimals(table.column(k)))
        elif pa.types.is_dictionary(table.field(k).type):
            column = _without_others(table.column(k))
            levels = pa.types.is_dictionary(column.type)
            table = table.set_column(k, name, _with_proper_levels(_of_one_piece(column)) if levels else column)
    frame = table.to_pandas(
        split_blocks=True,
        date_as_object=False,
        ignore_metadata=True,
        types_mapper=lambda kind: pd.ArrowDtype(kind) if pa.types.is_decimal(kind) else None,
    )
    for name in _no_floats(table, given):
        column = table.column(name)
        frame[name] = pd.arrays.IntegerArray(column.fill_null(0).to_numpy().copy(), column.is_null().to_numpy().copy())
    return frame


def plain_decimals(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals of few digits as the floats nearest to them; others as whole numbers of 64 bits, or as they are."""
    import pyarrow as pa
    from pyarrow import compute

    if column.type.bit_width < 128:  # of which Arrow computes nothing
        column = column.cast(pa.decimal128(38, column.type.scale))
    ends = compute.min_max(column).as_py()
    if ends["min"] is None:
        return column.cast(pa.float64())
    behind = _DIGITS - 1 - max(0, max(ends.values(), key=abs).adjusted())
    for kind in (
        (pa.int64(), pa.uint64()) if behind < 0 else (pa.decimal128(38, max(0, min(column.type.scale, behind))),)
    ):
        try:
            exact = column.cast(kind)
        except pa.ArrowInvalid:
            continue
        return exact if behind < 0 else _nearest(exact)
    return column


def _nearest(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals of few digits as floats: their digits and a power of ten are some, and one division rounds once."""
    import pyarrow as pa
    from pyarrow import compute

    def digits(chunk: pa.Array) -> pa.Array:
        return pa.Array.from_buffers(pa.decimal128(38, 0), len(chunk), chunk.buffers(), offset=chunk.offset)

    whole = pa.chunked_array([digits(chunk) for chunk in column.chunks], pa.decimal128(38, 0))
    return compute.divide(whole.cast(pa.int64()).cast(pa.float64()), 10.0**column.type.scale)


def _run_by_run(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column stored by runs of equal values, value by value."""
    import pyarrow as pa
    from pyarrow import compute

    return pa.chunked_array([compute.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type)


def _without_others(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column stored by its levels without those of other rows, if they are many; as text where no formula has so many."""
    import pyarrow as pa
    from pyarrow import compute

    given, rows = column.chunks, len(column)
    if all(len(chunk.dictionary) <= max(_LEVELS, rows) for chunk in given):
        return column
    made = []
    for chunk in given:
        used = compute.unique(chunk.indices).drop_null()
        used = used.take(compute.sort_indices(used))  # their order stays
        places = compute.index_in(chunk.indices, used)
        made.append(pa.DictionaryArray.from_arrays(places, chunk.dictionary.take(used), ordered=column.type.ordered))
    small = pa.chunked_array(made)
    return (
        small if max(len(chunk.dictionary) for chunk in made) <= LIMITS.levels else small.cast(column.type.value_type)
    )


def _of_one_piece(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column stored by its levels in one piece where all pieces have the same levels: these are looked at once."""
    import pyarrow as pa

    pieces = column.chunks
    if len(pieces) < 2 or not all(piece.dictionary.equals(pieces[0].dictionary) for piece in pieces[1:]):
        return column
    codes = pa.chunked_array([piece.indices for piece in pieces]).combine_chunks()
    one = pa.DictionaryArray.from_arrays(codes, pieces[0].dictionary, ordered=column.type.ordered)
    return pa.chunked_array([one], column.type)


def _with_proper_levels(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column stored by its levels, each of which is there once: Arrow allows for a missing one, and for two alike."""
    import pyarrow as pa
    from pyarrow import compute

    def proper(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
        levels = chunk.dictionary.unique().drop_null()
        if len(levels) == len(chunk.dictionary):
            return chunk
        places = compute.index_in(chunk.dictionary, levels).take(chunk.indices)
        return pa.DictionaryArray.from_arrays(places, levels, ordered=column.type.ordered)

    given = column.chunks
    made = [proper(chunk) for chunk in given]
    if all(new is old for new, old in zip(made, given, strict=True)):
        return column
    kind = pa.dictionary(pa.int32(), column.type.value_type, column.type.ordered)  # codes of one width
    return pa.chunked_array([chunk.cast(kind) for chunk in made], kind)


def _no_floats(table: pa.Table, given: pa.Schema) -> list[str]:
    """The columns of whole numbers, some missing, that pandas wrote as whole, or that floats would round."""
    import pyarrow as pa
    from pyarrow import compute

    holed = [f.name for f in table.schema if pa.types.is_integer(f.type) and table.column(f.name).null_count]
    if not holed:
        return []
    written = _written_whole(given)
    ends = {name: compute.min_max(table.column(name)).as_py() for name in holed}
    long = [name for name, end in ends.items() if end["min"] is not None and max(-end["min"], end["max"]) > 2**53]
    return [name for name in holed if name in written or name in long]


def _written_whole(schema: pa.Schema) -> set[str]:
    """The columns that were of pandas' whole numbers, some of which may be missing, as far as its notes can be read."""
    try:
        return {about["name"] for about in schema.pandas_metadata["columns"] if "Int" in about["numpy_type"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return set()


def regular(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of one length: what a file was written in must not show in the order of a sum.

    Tables of long text have fewer rows, as many as have 16 bytes of it for each that was asked for.
    """
    import pyarrow as pa

    held: list[pa.Table] = []
    room, letters = rows, _LETTERS * rows
    for table in tables:
        start = 0
        while start < table.num_rows:
            piece, used = _fitting(table.slice(start, room), letters, not held)
            held.append(piece)
            start, room, letters = start + piece.num_rows, room - piece.num_rows, letters - used
            if room == 0 or start < table.num_rows:
                yield pa.concat_tables(held) if len(held) > 1 else held[0]
                held, room, letters = [], rows, _LETTERS * rows
    if held:
        yield pa.concat_tables(held) if len(held) > 1 else held[0]


def _fitting(table: pa.Table, letters: int, some: bool) -> tuple[pa.Table, int]:
    """The first rows, with no more text than so many bytes, at least one if there must be `some`; and the bytes they have."""
    from pyarrow import compute

    lengths = [compute.binary_length(table.column(k)) for k, field in enumerate(table.schema) if is_text(field.type)]
    used = sum(compute.sum(length).as_py() or 0 for length in lengths)
    if used <= letters:
        return table, used
    upto = np.cumsum(np.sum([length.fill_null(0).to_numpy() for length in lengths], axis=0, dtype=np.int64))
    count = max(int(some), int(np.searchsorted(upto, letters, side="right")))
    return table.slice(0, count), int(upto[count - 1]) if count else 0


def is_text(kind: pa.DataType) -> bool:
    """Whether values are text or bytes, each of a length of its own."""
    import pyarrow as pa

    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def rows_at_once(schema: Iterable[pa.Field], rows: int, size: float = 0.0) -> int:
    """How many rows to decode at a time where so many are asked for: few of text, whose length files hardly tell.

    `size` are the bytes of a row, as far as they are known.
    """
    if not any(is_text(field.type) for field in schema):
        return rows
    return min(rows, max(_FEWEST, min(_DECODED, int(_BYTES / max(size, 1.0)))))


def with_constants(table: pa.Table, constants: Sequence[tuple[str, Any]], columns: Sequence[str]) -> pa.Table:
    """The columns in the order asked for, those that the file's path tells among them."""
    import pyarrow as pa

    for name, value in constants:
        if name in columns and name not in table.schema.names:
            table = table.append_column(name, pa.repeat(value, table.num_rows))
    return table.select(list(columns))


def with_fields(schema: pa.Schema, constants: Iterable[tuple[str, Any]]) -> pa.Schema:
    """The fields of a file and of its path."""
    import pyarrow as pa

    for name, value in constants:
        if name not in schema.names:
            schema = schema.append(pa.field(name, value.type))
    return schema
