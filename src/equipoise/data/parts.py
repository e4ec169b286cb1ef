"""Parts of a data set in files: each says where some rows are, travels to whoever reads them, and reads them in order.

A part is a reference (a file and some of its row groups, say) and holds no rows. Reading one gives tables of a fixed
number of rows, decoded one after the other, so that a part may be larger than memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from equipoise.data.arrow import as_pandas, regular, rows_at_once, with_constants
from equipoise.data.batches import read_batches
from equipoise.data.texts import BLOCK, MISSING, Quotes, unclosed
from equipoise.data.wording import brief, located
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import fs

__all__ = [
    "ArrowPart",
    "CSVPart",
    "FragmentPart",
    "Location",
    "Mistyped",
    "ParquetPart",
    "Part",
    "StreamPart",
    "TablePart",
    "naming",
    "numbered",
    "unreadable",
]

# Bytes read at a time from each column of a file: the whole of a column in a row group may be larger than memory.
_BUFFER = 1 << 20
# Bytes of text that are parsed at a time.
_TEXT = BLOCK


@runtime_checkable
class Part(Protocol):
    """Some of the rows, in order: what a new kind of files needs. `eq.data.scan` takes a list of them."""

    @property
    def label(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def first(self) -> int:
        """The number of its first row in its file."""
        ...

    @property
    def count(self) -> int | None:
        """How many rows it has, where that is known before it is read."""
        ...

    @property
    def identity(self) -> str | None:
        """What its rows are, as far as the file says without being read; None where it does not."""
        ...

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Its rows as tables of the columns, each of so many rows but for the last; fewer where text is long."""
        ...


def numbered(where: Part, columns: Sequence[str], chunk: int) -> Iterator[pd.DataFrame]:
    """The tables of a part, with the rows' numbers in their file as index."""
    import pandas as pd

    start = where.first
    for frame in where.frames(columns, chunk):
        yield frame.set_axis(pd.RangeIndex(start, start + len(frame)), axis=0)
        start += len(frame)


@dataclass(frozen=True)
class Location:
    """A file as it was found: where, how large, and when it was last written.

    Attributes
    ----------
    path, system
        Where it is.
    size, time
        Bytes, and nanoseconds since 1970; a file that has others has changed.
    """

    path: str
    system: fs.FileSystem
    size: int
    time: int

    @staticmethod
    def of(path: str, system: fs.FileSystem) -> Location:
        """A file that is there.

        Raises
        ------
        InvalidInput
            If it is not.
        """
        from pyarrow.fs import FileType

        info = system.get_file_info(path)
        if info.type != FileType.File:
            raise InvalidInput("data", "files that exist", located(path), "check the path")
        return Location(path, system, info.size or 0, info.mtime_ns or 0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise, naming the file, if it has changed since it was found or cannot be read."""
        self.require_same()
        with naming(self.path):
            yield

    def require_same(self) -> None:
        """Raise if the file has changed since it was found."""
        from pyarrow.fs import FileType

        with naming(self.path):
            info = self.system.get_file_info(self.path)
        if info.type == FileType.NotFound:
            raise InvalidInput(
                "data", "files that are there at every pass", f"{located(self.path)}, which is not found",
                "put it back; workers of an executor need the files under the same path",
            )  # fmt: skip
        if (info.size, info.mtime_ns or 0) != (self.size, self.time):
            raise InvalidInput(
                "data", "the same files at every pass", f"{located(self.path)}, which changed since it was opened",
                "wait until nobody writes to it, and scan it again",
            )  # fmt: skip


@contextmanager
def naming(label: str) -> Iterator[None]:
    """Raise, naming what is read, if it cannot be."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise unreadable(label, error) from error


def unreadable(label: str, error: Exception) -> InvalidInput:
    """The error for a file that cannot be read."""
    remedy = "save that file as UTF-8" if isinstance(error, UnicodeError) else "check that file"
    return InvalidInput("data", "made of readable files", f"{located(label)}: {brief(error, 200)}", remedy)


@dataclass(frozen=True)
class ParquetPart:
    """Some consecutive row groups of a Parquet file; `constants` are the columns that its path tells.

    `verify` looks at the checksums of pages, as far as the file has them: once is enough, since it takes as long as a sum.
    """

    location: Location
    groups: tuple[int, ...]
    first: int
    count: int
    identity: str
    constants: tuple[tuple[str, Any], ...] = ()
    verify: bool = True

    @property
    def label(self) -> str:
        """The path."""
        return self.location.path

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Tables of the columns, a batch of pages at a time."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        given = {name for name, _ in self.constants}
        with (
            self.location.reading(),
            ParquetFile(
                self.location.path,
                filesystem=self.location.system,
                buffer_size=_BUFFER,
                pre_buffer=False,
                page_checksum_verification=self.verify,
            ) as file,  # fmt: skip
        ):
            names = file.schema_arrow.names
            # of no column at all Arrow does not tell how many rows there are
            stored = [name for name in columns if name not in given or name in names] or names[:1]
            size = sum(file.metadata.row_group(k).total_byte_size for k in self.groups) / self.count
            few = rows_at_once((field for field in file.schema_arrow if field.name in stored), rows, size)
            batches = file.iter_batches(few, list(self.groups), stored, use_threads=False)
            for table in regular((pa.Table.from_batches([batch]) for batch in batches), rows):
                yield as_pandas(with_constants(table, self.constants, columns))


@dataclass(frozen=True)
class ArrowPart:
    """Some consecutive record batches of an Arrow (Feather) file; `verify` looks whether they are what they say."""

    location: Location
    batches: tuple[int, ...]
    first: int
    count: int
    constants: tuple[tuple[str, Any], ...] = ()
    identity: None = None
    verify: bool = True

    @property
    def label(self) -> str:
        """The path."""
        return self.location.path

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Tables of the columns, a record batch or some rows of one at a time."""
        import pyarrow as pa

        with self.location.reading(), self.location.system.open_input_file(self.location.path) as stream:
            batches = read_batches(stream, self.batches, columns, rows)
            tables = (pa.Table.from_batches([_sound(batch) if self.verify else batch]) for batch in batches)
            for table in regular(tables, rows):
                yield as_pandas(with_constants(table, self.constants, columns))


def _sound(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same, unless lengths or codes in it point outside of it: to read where they do would end the process."""
    batch.validate(full=True)
    return batch


class Mistyped(Exception):
    """A text file has other values further on than the types that its first rows suggest."""


@dataclass(frozen=True)
class CSVPart:
    """A text file of columns; `types` are those that were found in it; `verify` looks whether all quotes are closed."""

    location: Location
    separator: str
    types: tuple[tuple[str, pa.DataType], ...]
    constants: tuple[tuple[str, Any], ...] = ()
    first: int = 0
    count: None = None
    identity: None = None
    verify: bool = True

    @property
    def label(self) -> str:
        """The path."""
        return self.location.path

    def stream(self) -> Any:
        """Its bytes, no longer compressed."""
        return self.location.system.open_input_stream(self.location.path)

    def reader(
        self, columns: Sequence[str] | None, types: dict[str, pa.DataType], threads: bool = True, stream: Any = None
    ) -> Any:
        """A reader of the columns (all, if None), as these types; others are guessed from the first rows.

        Its errors name rows only without threads.
        """
        from pyarrow import csv

        chosen = None if columns is None else [name for name in columns if name in dict(self.types)]
        return csv.open_csv(
            stream or self.stream(),
            read_options=csv.ReadOptions(block_size=_TEXT, use_threads=threads),
            parse_options=csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=chosen, null_values=list(MISSING), strings_can_be_null=True
            ),
        )

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Tables of the columns, some text at a time."""
        import pyarrow as pa

        with self.location.reading():
            quotes = Quotes(self.stream()) if self.verify else None
            try:
                stream = None if quotes is None else pa.PythonFile(quotes, "r")
                with self.reader(columns, dict(self.types), stream=stream) as reader:
                    for table in regular((pa.Table.from_batches([batch]) for batch in reader), rows):
                        yield as_pandas(with_constants(table, self.constants, columns))
            except pa.ArrowInvalid as error:
                # any text is a string, but for what is no text
                if re.search("conversion error(?! to string)|[dD]ecimal", str(error)):
                    raise Mistyped(self.label) from error
                if "straddling" in str(error):
                    self._require_closed()
                self.read_by_one(columns)
                raise
            if quotes is not None and quotes.count % 2:
                self._require_closed()

    def _require_closed(self) -> None:
        """Raise where a quoted value has no end."""
        with self.stream() as stream:
            line = unclosed(stream, self.separator)
        if line is not None:
            raise unreadable(self.label, ValueError(f"the quote in line {line} is not closed"))

    def read_by_one(self, columns: Sequence[str]) -> None:
        """Read it once more, for an error that names the row."""
        with self.reader(columns, dict(self.types), threads=False) as reader:
            for _ in reader:
                pass


@dataclass(frozen=True)
class TablePart:
    """Some rows of a table in memory."""

    table: pa.Table
    first: int
    label: str = "the table"
    identity: None = None

    @property
    def count(self) -> int:
        """Its rows."""
        return int(self.table.num_rows)

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Slices of the columns."""
        table = self.table.select(list(columns))
        with naming(self.label):
            for some in regular([table], rows):
                yield as_pandas(some)


@dataclass(frozen=True)
class FragmentPart:
    """A fragment of a dataset that is not read by its row groups, or a whole dataset with a filter of its own.

    `schema` is the dataset's, which may be another than that of its files.
    """

    fragment: Any
    label: str
    schema: pa.Schema
    locations: tuple[Location, ...]
    first: int = 0
    count: None = None
    identity: None = None

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Tables of the columns, few of them read ahead."""
        import pyarrow as pa
        from pyarrow.dataset import Fragment

        for location in self.locations:
            location.require_same()
        typed = {"schema": self.schema} if isinstance(self.fragment, Fragment) else {}
        with naming(self.label):
            batches = self.fragment.to_batches(
                columns=list(columns),
                batch_size=rows_at_once((field for field in self.schema if field.name in columns), rows),
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
                **typed,
            )
            for table in regular((pa.Table.from_batches([_sound(batch)]) for batch in batches), rows):
                yield as_pandas(table)


@dataclass(frozen=True)
class StreamPart:
    """Anything that gives Arrow streams, a fresh one at every pass."""

    source: Any
    label: str = "the stream"
    first: int = 0
    count: None = None
    identity: None = None

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Tables of the columns, a batch at a time."""
        import pyarrow as pa

        with naming(self.label), pa.RecordBatchReader.from_stream(self.source) as reader:
            tables = (pa.Table.from_batches([batch]).select(list(columns)) for batch in reader)
            for table in regular(tables, rows):
                yield as_pandas(table)
