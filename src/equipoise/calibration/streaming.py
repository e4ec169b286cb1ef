"""Predictions for files: read block by block, and on request written as they are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from equipoise.checks import shown
from equipoise.data.design import Design
from equipoise.data.files import is_streamed, opened
from equipoise.data.metering import Meter
from equipoise.data.parts import CSVPart, Mistyped, Part, numbered, unreadable
from equipoise.data.passage import CHUNK
from equipoise.data.scanned import Scan
from equipoise.data.wording import placed_in
from equipoise.errors import InvalidInput
from equipoise.files import file_place, require_writable, write_atomic

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["is_stored", "streamed", "written"]

_KINDS = (".parquet", ".csv")


def is_stored(given: object) -> bool:
    """Whether new rows are to be read from where they are: paths, datasets, streams, or a scan."""
    if isinstance(given, (list, tuple)):
        return bool(given) and all(isinstance(item, (str, Path)) for item in given)
    return isinstance(given, (str, Path, Scan)) or hasattr(given, "get_fragments") or is_streamed(given)


def streamed(
    given: object,
    design: Design | None,
    names: Sequence[str],
    make: Callable[[pd.DataFrame], pd.DataFrame],
    nothing: pd.DataFrame,
    to: str | Path | None,
    progress: bool,
) -> Iterator[pd.DataFrame]:
    """What `make` makes of the rows of files, a block at a time, in their order, or `nothing` where there are no rows.

    None of the files may be where it goes `to`.
    """
    columns = list(names) if design is None else design.needed
    if isinstance(given, Scan):
        parts, size = [placed.part for placed in given.parts], given.read_rows
    else:
        try:
            found = opened(given)
        except InvalidInput as error:
            raise _of_caller(error) from error
        parts = [_as_fitted(part, design) if isinstance(part, CSVPart) else part for part in found.parts]
        found.require(columns, "X_new")
        size = found.rows
    if to is not None and os.path.realpath(to) in {os.path.realpath(part.label) for part in parts}:
        raise InvalidInput("to", "another file than those that are read", shown(str(to)), "choose another name")
    done, meter = 0, Meter()
    with meter.watched(size, None, "predicting", progress):
        for part in parts:
            for frame in _frames(part, columns, max(1, CHUNK // (len(columns) + len(names)))):
                with placed_in(part.label):
                    made = make(frame)
                yield made.set_axis(range(done, done + len(made)), axis=0)
                done += len(made)
                meter.add(len(made))
    if not done:
        yield nothing


def _as_fitted(part: CSVPart, design: Design | None) -> CSVPart:
    """A text file whose columns are read as those of the fit, whatever its first rows look like.

    Whole numbers may have fractions further on where numbers are meant, and digits are words where the levels are.
    """
    import pyarrow as pa

    def kind(name: str, guessed: pa.DataType) -> pa.DataType:
        column = None if design is None else design.columns.get(name)
        if column is not None and column.levels and all(isinstance(level, str) for level in column.levels):
            return pa.string()
        number = column is None or column.kind == "number"
        return pa.float64() if number and (pa.types.is_integer(guessed) or pa.types.is_string(guessed)) else guessed

    return replace(part, types=tuple((name, kind(name, guessed)) for name, guessed in part.types))


def _of_caller(error: InvalidInput) -> InvalidInput:
    """The same of the caller's argument."""
    return InvalidInput("X_new", error.requirement, error.given, error.remedy)


def _frames(part: Part, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
    """The tables of a part; a value that a text file's column does not take is named by its row."""
    try:
        yield from numbered(part, columns, rows)
    except InvalidInput as error:
        if error.argument == "source":
            raise _of_caller(error) from error
        raise
    except Mistyped as error:
        assert isinstance(part, CSVPart)
        with part.location.reading():
            part.read_by_one(columns)
        raise unreadable(part.label, error) from error


def written(blocks: Iterator[pd.DataFrame], to: str | Path) -> Path:
    """The blocks in one Parquet or CSV file, which is whole or not there.

    Raises
    ------
    InvalidInput
        If it is of another kind, or cannot be written.
    """
    place = file_place(to, "to")
    if place.suffix.lower() not in _KINDS:
        raise InvalidInput("to", "a file that ends in .parquet or .csv", shown(str(to)), "rename it")
    require_writable(place, "to")
    write = _parquet if place.suffix.lower() == ".parquet" else _text
    return write_atomic(place, lambda stream: write(blocks, stream), "to")


def _parquet(blocks: Iterator[pd.DataFrame], stream: BinaryIO) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    with ExitStack() as open_writer:
        writer = None
        for block in blocks:
            table = pa.Table.from_pandas(block, preserve_index=False).replace_schema_metadata(None)
            writer = writer or open_writer.enter_context(ParquetWriter(stream, table.schema))
            writer.write_table(table)


def _text(blocks: Iterator[pd.DataFrame], stream: BinaryIO) -> None:
    for k, block in enumerate(blocks):
        stream.write(block.to_csv(index=False, header=k == 0).encode())
