"""Arrow tables on their way to pandas: in pieces of one length, with the columns of a path, each value as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["as_pandas", "regular", "with_constants"]


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
            table = table.set_column(k, name, _with_proper_levels(table.column(k)))
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
    """The same rows in tables of one length: what a file was written in must not show in the order of a sum."""
    import pyarrow as pa

    held: list[pa.Table] = []
    room = rows
    for table in tables:
        start = 0
        while start < table.num_rows:
            held.append(table.slice(start, room))
            start, room = start + held[-1].num_rows, room - held[-1].num_rows
            if room == 0:
                yield pa.concat_tables(held) if len(held) > 1 else held[0]
                held, room = [], rows
    if held:
        yield pa.concat_tables(held) if len(held) > 1 else held[0]


def with_constants(table: pa.Table, constants: Sequence[tuple[str, Any]], columns: Sequence[str]) -> pa.Table:
    """The columns in the order asked for, those that the file's path tells among them."""
    import pyarrow as pa

    for name, value in constants:
        if name in columns and name not in table.schema.names:
            table = table.append_column(name, pa.repeat(value, table.num_rows))
    return table.select(list(columns))
