"""`scan`: from paths and a formula to a source of rows, by one pass that learns what the encoding needs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Any

from equipoise.checks import checked_options, flag, is_number, one_of, shown
from equipoise.data.agreement import Found
from equipoise.data.arrays import Rows
from equipoise.data.asked import Asked
from equipoise.data.cluster import as_executor, client_of, is_dask, partitions, require_table, slots_of
from equipoise.data.column_encoding import column_encoder
from equipoise.data.columns import Level
from equipoise.data.encoding import row_encoder
from equipoise.data.fields import Columns
from equipoise.data.files import opened
from equipoise.data.grammar import UserFunction, user_functions
from equipoise.data.kept import Cells, Far
from equipoise.data.learning import KEPT, Learner, Lessons, enough_of, settled
from equipoise.data.metering import Meter
from equipoise.data.nesting import Aside, require_shallow, rounds, set_aside
from equipoise.data.parts import ArrowPart, CSVPart, Mistyped, ParquetPart
from equipoise.data.passage import CHUNK, workers_for
from equipoise.data.reading import Placed, require_same
from equipoise.data.sameness import Seen, notices_changes
from equipoise.data.scanned import ENOUGH, Scan
from equipoise.data.source import Executor, in_order
from equipoise.data.stored import Learnt
from equipoise.data.taking import every_row_missing, weightless
from equipoise.data.text_files import as_floats, retyped
from equipoise.errors import InvalidInput, warn
from equipoise.progress import quiet

__all__ = ["bytes_in", "scan"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
# The least that reading any file takes.
_LEAST_MEMORY = 10**6
# Rows that are kept at either end of a column.
_AT_ENDS = 64


@checked_options
def scan(
    source: object,
    formula: str | None = None,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    weights: str | None = None,
    frequency: str | None = None,
    offset: str | None = None,
    trials: str | None = None,
    clusters: str | Sequence[str] | None = None,
    time: str | None = None,
    missing: str = "raise",
    memory: str | int = "1GB",
    context: Mapping[str, UserFunction] | None = None,
    executor: object = None,
    progress: bool = True,
) -> Scan[Rows] | Scan[Columns]:
    """Rows from files larger than memory, by a formula or as columns.

    The data are read once at the start: levels, the numbers that `center`, `scale`, `poly` and the like learn, the number
    of rows, a random sample and the rows at the ends of columns are collected, and the encoding is frozen. It is the one
    that `eq.data.table` would find in memory; only the knots of splines (`bs`, `cr`, `cs`, `cc` with `df=`) come from a
    random sample of up to 100,000 rows. What a call learns from a function of another, as in `poly(exp(scale(x)), 2)`,
    takes one further pass.

    Parameters
    ----------
    source
        - Parquet (`.parquet`, `.pq`), Arrow (`.arrow`, `.feather`, `.ipc`) or text files (`.csv`, `.tsv`, `.txt`): a path,
          a glob, a folder, or a list of these. Folders and globs are read in the order of their sorted paths. Steps of a
          path like `year=2024` are columns: whole numbers where all of them are, otherwise text;
        - a pyarrow Dataset or Table, a Polars LazyFrame, or anything else that gives Arrow streams, a fresh one each time;
        - a function that returns a fresh iterator of DataFrames;
        - a Dask DataFrame, whose partitions are made on the workers of the client that is active.
    formula
        As in `eq.data.table`, but for `lag()`, which looks at other rows.
    columns
        In place of a formula, for a loss of your own: `{"x": ["a", "b"], "y": "y"}` makes observations with a vector `x`
        and a number `y`. `weights` and `frequency` go with it, as in `eq.data.observations`.
    weights, frequency, offset, trials
        Names of columns; see `eq.data.table`. A formula may have terms `offset(...)` too.
    clusters, time
        The columns that say which rows belong together, and when they were observed, for covariances that allow for what
        such rows share. They are read only where these are computed.
    missing
        `"raise"` (default) names file, row and column of a missing value; `"drop"` leaves those rows out.
    memory
        What reading and summing may take, such as `"500MB"`. Fewer threads are used where it is little.
    context
        Functions of your own that the formula may call, each of which maps columns to a column, row by row.
    executor
        Where parts of the data are read, instead of on threads of this process: a `dask.distributed.Client`, or anything
        else with `submit`, such as a process pool. It needs access to the files.
    progress
        Show a progress bar when reading takes more than two seconds.

    Returns
    -------
    Scan
        A source of rows for every verb.

    Raises
    ------
    InvalidInput
        If nothing is found, a file cannot be read or changes, columns are absent or differ between files, or a value is
        missing.

    Examples
    --------
    >>> import pyarrow as pa
    >>> source = scan(pa.table({"y": [1.0, 2.0, 4.0], "g": ["a", "b", "b"]}), "y ~ g")
    >>> source.n, source.names
    (3, ('Intercept', 'g[T.b]'))
    """
    one_of("missing", missing, ("raise", "drop"))
    flag("progress", progress)
    room = bytes_in(memory)
    shape = _shape(formula, columns)
    beside = {"weights": weights, "frequency": frequency, "offset": offset, "trials": trials}
    asked = Asked(
        formula=formula,
        columns=tuple(c for part in shape.values() for c in ([part] if isinstance(part, str) else part)),
        beside={name: _text(name, value) for name, value in beside.items() if value is not None},
        clusters=_columns("clusters", clusters),
        clock=None if time is None else _text("time", time),
        missing=missing,
        context=user_functions(context),
    )
    unused = [name for name in asked.beside if shape and name not in {"weights", "frequency"}]
    if unused:
        raise InvalidInput(
            ", ".join(unused), "left out with columns=", "given", "add it to columns=, for the loss to use"
        )
    if formula is not None and asked.parsed[1].lags:
        raise InvalidInput(
            "formula", "one whose terms look at one row at a time, on a scan", f"lag() in {shown(formula)}",
            "compute that column before",
        )  # fmt: skip
    where = client_of(source, as_executor(executor))
    found = _found(source, asked)
    _require(found, asked)
    with quiet(not progress):
        found, lessons, transforms, readings = _taught(found, asked, room, where)
    _require_rows(lessons, asked)
    told = all(part.identity is not None for part in found.parts)
    encoder: Any = column_encoder(asked, lessons, shape) if shape else row_encoder(asked, lessons, transforms, told)
    if lessons.dropped:
        warn(f"{lessons.dropped} of {sum(lessons.rows)} rows with missing values were left out.")
    made: Any = Scan(
        parts=_placed(found, lessons),
        encoder=encoder,
        lot=lessons.lot,
        far=lessons.far,
        identity=_identity(found, asked, shape, lessons),
        clusters=asked.clusters,
        clock=asked.clock,
        extremes=(0.0, 1.0) if trials or (not shape and encoder.design.response_levels) else lessons.ends,
        memory=room,
        executor=where,
    )
    made.meter.add(sum(lessons.rows) * readings)
    return made


def _found(source: object, asked: Asked) -> Found:
    """What the source is made of; of a Dask DataFrame, only the columns that are needed."""
    if not is_dask(source):
        return as_floats(opened(source), asked.bare)
    import pyarrow as pa

    require_table(source)
    frame: Any = source
    schema = pa.Schema.from_pandas(frame._meta, preserve_index=False)
    _require(Found((), (("the Dask DataFrame", schema),)), asked)
    return Found(partitions(frame, asked.needed), (("the Dask DataFrame", schema),))


def bytes_in(memory: object) -> int:
    """A size such as `"1GB"`, `"500 MB"` or a number of bytes.

    Raises
    ------
    InvalidInput
        If it is none, or less than a megabyte.

    Examples
    --------
    >>> bytes_in("1.5GB"), bytes_in("64MiB")
    (1500000000, 67108864)
    """
    size = float(memory) if is_number(memory) else 0.0
    if isinstance(memory, str):
        match = re.fullmatch(r"(\d+\.?\d*)\s*([kmgt]?)(i?)b?", memory.strip().lower())
        if match:
            size = float(match[1]) * (_UNITS[match[2]] if not match[3] else 1024 ** list(_UNITS).index(match[2]))
    if not _LEAST_MEMORY <= size < 2**62:
        raise InvalidInput("memory", "a size of at least 1 MB", shown(memory), "pass for example '1GB'")
    return int(size)


def _shape(formula: object, columns: object) -> dict[str, str | tuple[str, ...]]:
    """Names and columns as asked for; nothing with a formula."""
    if (formula is None) == (columns is None):
        given = "neither" if formula is None else "both"
        raise InvalidInput("formula, columns", "one of the two", given, "pass a formula such as 'y ~ x'")
    if columns is None:
        return {}
    remedy = "pass for example {'x': ['a', 'b'], 'y': 'y'}"
    if not isinstance(columns, Mapping) or not columns or not all(isinstance(name, str) for name in columns):
        raise InvalidInput("columns", "names with their columns", shown(columns), remedy)
    return {
        name: value if isinstance(value, str) else _columns(f"columns {name}", value, remedy)
        for name, value in columns.items()
    }


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(
            name,
            "the name of a column, on a scan",
            shown(value),
            "write it into the files as a column",
        )
    return value


def _columns(name: str, value: object, remedy: str = "pass column names") -> tuple[str, ...]:
    given = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence) or not all(isinstance(column, str) for column in given):
        raise InvalidInput(name, "names of columns", shown(value), remedy)
    if value is not None and not given:
        raise InvalidInput(name, "names of columns", "none", remedy)
    return tuple(given)


def _require(found: Found, asked: Asked) -> None:
    found.require(asked.roles, "formula" if asked.formula is not None else "columns")
    for name, column in asked.beside.items():
        found.require([column], name)
    found.require(asked.clusters, "clusters")
    found.require([] if asked.clock is None else [asked.clock], "time")


def _taught(
    found: Found, asked: Asked, room: int, executor: Executor | None
) -> tuple[Found, Lessons, Mapping[str, dict[str, Learnt]], int]:
    """What the data tell, read until nothing is open: once, but for calls of functions of calls and misleading first rows."""
    known: dict[str, dict[str, Learnt]] = {}
    readings, lessons, turn = 0, None, 0
    while True:
        readings, turn = readings + 1, turn + 1
        # on a cluster rows stay where they are
        aside = set_aside(asked, found.rows) if lessons is None and executor is None else None
        if lessons is None and aside is None:
            require_shallow(asked, executor is not None)
        foreseen = max(turn, min(2, rounds(asked)) if executor is None else rounds(asked))
        words, size = f"learning from the data, pass {turn} of {foreseen}", sum(lessons.rows) if lessons else found.rows
        meter = Meter()
        try:
            with meter.watched(size, None, words, enabled=True):
                lessons = _lessons(found, asked, known, room, executor, lessons, aside, meter)
        except Mistyped as error:
            readings += 1
            found = retyped(found, str(error), asked.needed)
            _require(found, asked)
            continue
        known, done = settled(asked, lessons, known)
        if done:
            return found, lessons, known, readings
        if aside is not None:
            if aside.held is None:
                require_shallow(asked, elsewhere=False)
            for _ in range(rounds(asked) - 2):
                known, _ = settled(asked, replace(lessons, states=aside.states(known)), known)


def _lessons(
    found: Found,
    asked: Asked,
    known: Mapping[str, Mapping[str, Learnt]],
    room: int,
    executor: Executor | None,
    before: Lessons | None,
    aside: Aside | None,
    meter: Meter,
) -> Lessons:
    """What one pass over the data tells; if there was one before, also all rows of levels that its sample has few of."""
    width = len(asked.needed) + 1
    most = max(ENOUGH, min(KEPT, room // (16 * 8 * width)))
    columns = tuple(
        dict.fromkeys([*asked.roles, *(asked.beside[name] for name in ("offset",) if name in asked.beside)])
    )
    rare = None if before is None else _rare(before, asked, most)
    coded = tuple(name for name in asked.clusters if name not in asked.entering and name != asked.clock)
    far = Far(columns, min(_AT_ENDS, most // (8 * max(1, len(columns)))), rare=rare, coded=coded)
    # what is read elsewhere counts when it is there
    here, share = meter if executor is None else Meter(), enough_of(most, found.rows)
    seen = (Seen(),) * len(found.parts) if before is None else before.seen
    learner = Learner(asked, known, max(1, min(CHUNK, room // 64) // width), most, share, far, seen, aside, here)
    if not found.parts:
        raise _no_rows()
    jobs, workers = list(enumerate(found.parts)), workers_for(room)
    with ThreadPoolExecutor(workers) as pool:
        waiting = workers if executor is None else slots_of(executor, workers)
        results = in_order(executor or pool, jobs, learner, waiting)
        if executor is not None:
            results = _counted(results, meter)
        lessons = reduce(lambda first, second: first.merged(second, most), results)
    if before is not None:
        for part, first, now in zip(found.parts, before.seen, lessons.seen, strict=True):
            require_same(part.label, first, now)
    return replace(lessons, lot=lessons.lot.fewer(most))


def _counted(results: Iterable[Lessons], meter: Meter) -> Iterator[Lessons]:
    for lessons in results:
        meter.add(sum(lessons.rows))
        yield lessons


def _rare(before: Lessons, asked: Asked, most: int) -> tuple[Cells, ...]:
    """Levels, alone and together, that a sample has few rows of, where it is not all of them and those are not many."""
    levels: dict[str, Iterable[Level]]
    share = sum(before.kept) / max(1, before.lot.size)
    sample = before.lot.frame
    # numbers of two values are as levels
    levels = {name: sample[name].unique() for name in sample.columns if sample[name].nunique() == 2}
    levels |= {name: known for name, known in before.levels.items() if name in sample.columns}
    together = [tuple(name for name in term if name in levels) for term in asked.terms]
    every = dict.fromkeys([*((name,) for name in levels), *(names for names in together if names)])
    return before.lot.rare(levels, every, 0.25 * most / share) if share > 1.0 else ()


def _no_rows() -> InvalidInput:
    return InvalidInput("data", "a table with at least one row", "no rows", "check where they come from")


def _require_rows(lessons: Lessons, asked: Asked) -> None:
    """Raise unless some rows take part."""
    if not sum(lessons.rows):
        raise _no_rows()
    if not sum(lessons.kept):
        names = [name for name in ("weights", "frequency") if name in asked.beside]
        raise every_row_missing() if lessons.dropped else weightless(names)


def _placed(found: Found, lessons: Lessons) -> tuple[Placed, ...]:
    """The parts with rows that take part, each with its place; what was just read is sound."""
    stored = (ParquetPart, ArrowPart, CSVPart)
    parts = [replace(part, verify=False) if isinstance(part, stored) else part for part in found.parts]
    rows, observations = ([0, *accumulate(counts)] for counts in (lessons.kept, lessons.observations))
    seen = (None if notices_changes(part) else sums for part, sums in zip(parts, lessons.seen, strict=True))
    every = zip(parts, lessons.rows, lessons.kept, lessons.observations, rows, observations, seen, strict=False)
    return tuple(Placed(*about) for about in every if about[2])


def _identity(found: Found, asked: Asked, shape: Mapping[str, str | tuple[str, ...]], lessons: Lessons) -> str:
    """A digest of the rows and of what is made of them."""
    told = [part.identity for part in found.parts]
    made = (asked.formula, sorted(shape.items()), sorted(asked.beside.items()), asked.marks, asked.missing)
    return hashlib.blake2b(repr((told, lessons.rows, lessons.check % 2**64, made)).encode(), digest_size=16).hexdigest()
