"""Arrow tables on their way to pandas: in pieces of one length, with the columns of a path, each value as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["as_pandas", "is_text", "regular", "rows_at_once", "with_constants"]

# Bytes of text for each row that is asked for: most text is shorter, and decided by its number of rows alone.
_LETTERS = 64
# Rows with text that are decoded at a time, and how many fewer they are if these have more bytes.
_DECODED, _FEWEST, _BYTES = 1 << 13, 1 << 6, 1 << 24


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as pandas has it, numbers without a copy; decimals become floats."""
    import pandas as pd
    import pyarrow as pa

    table = table.replace_schema_metadata()  # which says nothing of the values, and may be damaged
    for k, name in enumerate(table.schema.names):
        if pa.types.is_run_end_encoded(table.field(k).type):
            table = table.set_column(k, name, _run_by_run(table.column(k)))
        if pa.types.is_decimal(table.field(k).type):
            table = table.set_column(k, name, table.column(k).cast(pa.float64()))
        elif pa.types.is_dictionary(table.field(k).type):
            table = table.set_column(k, name, _with_proper_levels(_of_one_piece(table.column(k))))
    frame = table.to_pandas(split_blocks=True, date_as_object=False, ignore_metadata=True)
    for name in _too_long_for_floats(table):
        column = table.column(name)
        frame[name] = pd.array(column.to_pylist(), dtype="UInt64" if "u" in str(column.type) else "Int64")
    return frame


def _run_by_run(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column stored by runs of equal values, value by value."""
    import pyarrow as pa
    from pyarrow import compute

    return pa.chunked_array([compute.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type)


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


def _too_long_for_floats(table: pa.Table) -> list[str]:
    """The columns of whole numbers, some missing, that floats would round: two clusters would become one."""
    import pyarrow as pa
    from pyarrow import compute

    wide = [f.name for f in table.schema if f.type in (pa.int64(), pa.uint64()) and table.column(f.name).null_count]
    ends = {name: compute.min_max(table.column(name)).as_py() for name in wide}
    return [name for name, end in ends.items() if end["min"] is not None and max(-end["min"], end["max"]) > 2**53]


def regular(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of one length: what a file was written in must not show in the order of a sum.

    Tables of long text have fewer rows, as many as have 64 bytes of it for each that was asked for.
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
