"""Files at the door: what paths, folders, datasets, tables and streams are made of, and whether their columns agree."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from glob import glob, has_magic
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from equipoise.checks import shown
from equipoise.data.agreement import Found, kind_of
from equipoise.data.arrow import with_fields
from equipoise.data.batches import batch_rows
from equipoise.data.framed import FramesPart
from equipoise.data.parts import (
    ArrowPart,
    FragmentPart,
    Location,
    ParquetPart,
    Part,
    StreamPart,
    TablePart,
    naming,
)
from equipoise.data.text_files import of_text
from equipoise.data.wording import located
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset, Fragment
    from pyarrow.parquet import FileMetaData

    # a column that a path tells, and its value
    Constant = tuple[str, pa.Scalar]

__all__ = ["is_streamed", "opened", "paths_of"]

# Row groups smaller than this are read together: opening a file costs as much as decoding some thousand rows.
_PART_ROWS = 1 << 18
# What a missing value is called in a path.
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_FORMATS = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc", ".csv": "csv", ".tsv": "csv",
    ".txt": "csv",
}  # fmt: skip


# --- What was given -----------------------------------------------------------------------------------


def opened(source: object) -> Found:
    """Find the parts of anything that `scan` takes.

    Raises
    ------
    InvalidInput
        If it is nothing of the kind, matches no file, or a file cannot be read.
    """
    import pyarrow as pa
    from pyarrow import dataset

    parts = source if isinstance(source, (list, tuple)) else (source,)
    if parts and all(isinstance(part, Part) for part in parts):
        return Found(tuple(parts), ())
    if isinstance(source, (str, Path)) or (isinstance(source, (list, tuple)) and source):
        return _of_paths(source)
    if isinstance(source, pa.RecordBatchReader):
        raise InvalidInput(
            "source", "one that can be read several times", "a RecordBatchReader, which is gone after one pass",
            "pass a function that returns a fresh one, or the table itself",
        )  # fmt: skip
    if isinstance(source, pa.Table):
        return _of_table(source)
    if isinstance(source, dataset.Dataset):
        return _of_dataset(source)
    if hasattr(source, "__arrow_c_stream__"):
        return _of_stream(source)
    if _is_lazy(source):
        return Found((FramesPart(source.collect_batches),), ())  # type: ignore[attr-defined]
    if callable(source):
        return Found((FramesPart(source),), ())
    raise InvalidInput(
        "source", "paths, a dataset, a table, an Arrow stream, or a function that returns an iterator of DataFrames",
        shown(source), "pass for example 'trips/*.parquet'",
    )  # fmt: skip


def is_streamed(source: object) -> bool:
    """Whether tables are made only as they are asked for: by a function, or by Arrow streams of what is no table itself."""
    tabular = hasattr(source, "to_pandas") or hasattr(source, "iloc")
    return not tabular and (callable(source) or hasattr(source, "__arrow_c_stream__") or _is_lazy(source))


def _is_lazy(source: object) -> bool:
    """Whether it is a query that makes tables one after the other, as Polars' LazyFrames do."""
    return callable(getattr(source, "collect_batches", None))


def paths_of(source: object) -> list[str]:
    """The files behind paths, globs and folders: those of a glob or folder sorted, those of a list as they are listed.

    Raises
    ------
    InvalidInput
        If there are none.
    """
    if isinstance(source, (list, tuple)):
        return [path for item in source for path in paths_of(item)]
    if not isinstance(source, (str, Path)):
        raise InvalidInput("source", "a path, or a list of paths", shown(source), "pass them as text")
    path = os.path.expanduser(source)
    if os.path.isdir(path):
        found = sorted(str(file) for file in _files_below(Path(path)))
        remedy = f"put files into it that end in {', '.join(_FORMATS)}"
    elif os.path.isfile(path):
        return [path]
    else:
        matched = list(glob(path, recursive=True)) if has_magic(path) else []
        below = (str(file) for folder in matched if os.path.isdir(folder) for file in _files_below(Path(folder)))
        found = sorted(_unlooped({*matched, *below}))
        remedy = "check the path"
    if not found:
        raise InvalidInput("source", "files that exist", f"{shown(str(source))}, where there are none", remedy)
    return found


def _unlooped(paths: Iterable[str]) -> Iterator[str]:
    """The files among paths, but for those that a link to a folder around itself shows once more."""

    @cache
    def looped(folder: str) -> bool:
        around = os.path.dirname(folder)
        if os.path.islink(folder):
            inside, target = os.path.realpath(around or os.curdir), os.path.realpath(folder)
            if os.path.commonpath([inside, target]) == target:
                return True
        return around != folder and bool(around) and looped(around)

    return (path for path in paths if os.path.isfile(path) and not looped(os.path.dirname(path)))


def _files_below(folder: Path) -> Iterator[Path]:
    """Files of known kinds, but for those that are hidden or a writer's own notes."""
    for file in folder.rglob("*"):
        apart = any(step.startswith(("_", ".")) and "=" not in step for step in file.relative_to(folder).parts)
        if not apart and file.is_file() and _format(str(file)) is not None:
            yield file


def _format(path: str) -> str | None:
    """How a file is stored, by the end of its name; text may be compressed."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if len(suffixes) > 1 and suffixes[-1] in {".gz", ".bz2", ".zst"} and _FORMATS.get(suffixes[-2]) == "csv":
        return "csv"
    return _FORMATS.get(suffixes[-1]) if suffixes else None


def _of_paths(source: object) -> Found:
    from pyarrow.fs import LocalFileSystem

    system, paths = LocalFileSystem(), paths_of(source)
    for path in paths:
        if _format(path) is None:
            raise InvalidInput(
                "source", f"files that end in {', '.join(_FORMATS)}", located(path), "convert or rename that file"
            )
    constants = _hive(paths)
    return _joined(_of_file(Location.of(path, system), known) for path, known in zip(paths, constants, strict=True))


def _hive(paths: Sequence[str]) -> list[tuple[Constant, ...]]:
    """The columns that each path tells, as in `year=2024/part.parquet`: whole numbers where all are, otherwise text."""
    import pyarrow as pa

    told = [dict(step.split("=", 1) for step in Path(path).parts[:-1] if "=" in step) for path in paths]
    whole = {name for known in told for name in known}
    for known in told:
        whole -= {name for name, value in known.items() if value != _NOTHING and not re.fullmatch(r"-?\d{1,18}", value)}

    def scalar(name: str, value: str) -> pa.Scalar:
        kind = pa.int64() if name in whole else pa.string()
        text = None if value == _NOTHING else unquote(value)
        return pa.scalar(int(text) if text is not None and name in whole else text, kind)

    return [tuple((name, scalar(name, value)) for name, value in known.items()) for known in told]


def _of_file(location: Location, constants: tuple[Constant, ...]) -> Found:
    read = {"parquet": _of_parquet, "ipc": _of_arrow, "csv": of_text}[_format(location.path) or "parquet"]
    return read(location, constants)


def _of_parquet(location: Location, constants: tuple[Constant, ...], chosen: Collection[int] | None = None) -> Found:
    """A Parquet file: row groups, the small ones together."""
    from pyarrow.parquet import ParquetFile

    with location.reading(), ParquetFile(location.path, filesystem=location.system) as file:
        about, schema = file.metadata, with_fields(file.schema_arrow, constants)
        counts = [about.row_group(k).num_rows for k in range(about.num_row_groups)]
        starts = [0, *accumulate(counts)]
        runs: list[list[int]] = []
        for k in range(len(counts)) if chosen is None else sorted(chosen):
            first, last = (runs[-1][0], runs[-1][-1]) if runs else (k, k)
            if counts[k] and runs and starts[k] == starts[last + 1] and starts[k] - starts[first] < _PART_ROWS:
                runs[-1].append(k)
            elif counts[k]:
                runs.append([k])
        told = [_told(about, groups, schema, constants) for groups in runs]
    parts = tuple(
        ParquetPart(location, tuple(run), starts[run[0]], starts[run[-1] + 1] - starts[run[0]], digest, constants)
        for run, digest in zip(runs, told, strict=True)
    )
    return Found(parts, ((location.path, schema if parts else _of_nothing(schema)),))


def _told(about: FileMetaData, groups: Sequence[int], schema: pa.Schema, constants: Iterable[Constant]) -> str:
    """A digest of what a Parquet file says of some row groups: sizes, extremes and missing values of each column."""
    digest = hashlib.blake2b(f"{schema.remove_metadata()}{constants!r}".encode(), digest_size=16)
    for k in groups:
        group = about.row_group(k)
        for j in range(group.num_columns):
            column = group.column(j)
            stats = column.statistics
            told = None if stats is None else (stats.has_min_max and (stats.min_raw, stats.max_raw), stats.null_count)
            sizes = (group.num_rows, column.total_compressed_size, column.total_uncompressed_size)
            digest.update(repr((column.path_in_schema, sizes, told)).encode())
    return digest.hexdigest()


def _of_nothing(schema: pa.Schema) -> pa.Schema:
    """The columns of a file without rows: of no type, which none can disagree with."""
    import pyarrow as pa

    return pa.schema([(name, pa.null()) for name in schema.names])


def _of_arrow(location: Location, constants: tuple[Constant, ...]) -> Found:
    """An Arrow file: record batches, the small ones together."""
    from pyarrow import ipc

    with location.reading(), location.system.open_input_file(location.path) as stream:
        counts = batch_rows(stream)
        schema = with_fields(ipc.open_file(stream).schema, constants)
    parts: list[Part] = []
    batches: list[int] = []
    first, rows = 0, 0
    for k, count in enumerate(counts):
        batches.append(k)
        rows += count
        if rows >= _PART_ROWS or k == len(counts) - 1:
            parts.append(ArrowPart(location, tuple(batches), first, rows, constants))
            first, batches, rows = first + rows, [], 0
    return Found(tuple(parts), ((location.path, schema if sum(counts) else _of_nothing(schema)),))


def _of_table(table: pa.Table) -> Found:
    cuts = range(0, table.num_rows, _PART_ROWS)
    parts = tuple(TablePart(table.slice(start, _PART_ROWS), start) for start in cuts)
    return Found(parts, (("the table", table.schema),))


def _of_stream(source: pa.RecordBatchReader) -> Found:
    import pyarrow as pa

    part = StreamPart(source)
    with naming(part.label), pa.RecordBatchReader.from_stream(source) as reader:
        return Found((part,), ((part.label, reader.schema),))


def _of_dataset(source: Dataset) -> Found:
    """A dataset: Parquet fragments by their row groups, others as they are."""
    try:
        fragments = list(source.get_fragments())
    except ValueError:  # one with a filter has none of its own
        part = FragmentPart(source, "the dataset after its filter", source.schema, _locations(source))
        return Found((part,), ((part.label, source.schema),))
    return _joined(_of_fragment(fragment, source) for fragment in fragments)


def _locations(source: Dataset) -> tuple[Location, ...]:
    """The files that a dataset is made of, or the datasets that it is made of are."""
    children = (location for child in getattr(source, "children", ()) for location in _locations(child))
    return (*(Location.of(path, source.filesystem) for path in getattr(source, "files", ())), *children)


def _of_fragment(fragment: Fragment, source: Dataset) -> Found:
    import pyarrow as pa
    from pyarrow import dataset

    schema = source.schema
    if not getattr(fragment, "path", None):
        return _of_table(fragment.to_table(schema=schema))
    location = Location.of(fragment.path, fragment.filesystem)
    with location.reading():
        stored = fragment.physical_schema
    alike = all(kind_of(stored.field(f.name).type) == kind_of(f.type) for f in schema if f.name in stored.names)
    if isinstance(fragment, dataset.ParquetFileFragment) and alike:
        keys = dataset.get_partition_keys(fragment.partition_expression)
        constants = tuple((name, pa.scalar(value, schema.field(name).type)) for name, value in keys.items())
        return _of_parquet(location, constants, {group.id for group in fragment.row_groups})
    return Found((FragmentPart(fragment, location.path, schema, (location,)),), ((location.path, schema),))


def _joined(found: Iterable[Found]) -> Found:
    parts: list[Part] = []
    schemas: list[tuple[str, pa.Schema]] = []
    for each in found:
        parts.extend(each.parts)
        schemas.extend(each.schemas)
    return Found(tuple(parts), tuple(schemas))
