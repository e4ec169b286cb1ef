"""Tables: CSV, Parquet and DataFrames turned into rows by a formula, with named parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Index
from equipoise.checks import checked_options, shown
from equipoise.data.arrays import Rows, rows
from equipoise.data.columns import Column, Level, column_values, learnt
from equipoise.data.design import Design, learnt_encoding, vector, without_offset
from equipoise.data.evaluation import as_numbers, evaluated
from equipoise.data.formula import Reading, parsed, require_room
from equipoise.data.frames import as_frame, picked, require_finite, without_lagged
from equipoise.data.grammar import FUNCTIONS, UserFunction, user_functions
from equipoise.data.marks import named_columns
from equipoise.data.spelling import spellings
from equipoise.data.taking import Taking, every_row_missing, taking_part, weightless
from equipoise.data.wording import brief, listed, placed_in
from equipoise.errors import InvalidInput, warn

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import Formula, ModelSpec

__all__ = ["Design", "read_table", "require_single", "table", "typed"]

_TEXT, _PARQUET = {".csv", ".tsv", ".txt"}, {".parquet", ".pq"}


@checked_options
def read_table(path: str | Path) -> pd.DataFrame:
    """Read a CSV (any usual separator) or Parquet file.

    Raises
    ------
    InvalidInput
        If the file does not exist, has another suffix, or cannot be parsed.
    """
    if not isinstance(path, str | Path):
        raise InvalidInput("path", "the path of a file", shown(path), "pass it as text")
    file = Path(path)
    if not isfile(file):  # unlike Path's own, false for names no file can have
        raise InvalidInput("data", "an existing CSV or Parquet file", shown(str(path)), "check the path")
    suffix = file.suffix.lower()
    if suffix not in _TEXT | _PARQUET:
        raise InvalidInput(
            "data", "a file ending in .csv, .tsv, .txt, .parquet or .pq", brief(file.name), "convert the file"
        )
    try:
        return _parsed_file(file)
    except Exception as error:  # a damaged file makes the readers raise almost anything
        raise InvalidInput(
            "data", "a readable table", f"{brief(file.name)}: {brief(error, 200)}", "check the file's format"
        ) from error


def _parsed_file(file: Path) -> pd.DataFrame:
    import pandas as pd  # slow to import: only those who read tables pay for it

    if file.suffix.lower() in _PARQUET:
        return pd.read_parquet(file)
    # in one piece, so that a column has one type throughout
    frame = pd.read_csv(file, sep=_separator(file), low_memory=False)
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError("the rows have more fields than the header")
    return frame


def _separator(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as stream:
        header = stream.readline()
    return max(",;\t|", key=header.count)


@checked_options
def table(
    data: object,
    formula: str,
    *,
    weights: object = None,
    frequency: object = None,
    offset: object = None,
    missing: str = "raise",
    context: Mapping[str, UserFunction] | None = None,
    clusters: object = None,
    time: object = None,
    trials: object = None,
) -> Rows:
    """Turn a table into rows by a formula.

    A formula is made of columns (those whose names are not plain words in backticks, or as `Q('my column')`),
    `+ - : * / ** %in%` and brackets between them, and calls of

    - `C(x)`, also with contrasts, as in `C(x, contr.sum)` or `C(x, contr.treatment('a'))`, and `hashed(x, levels=k)`;
    - `I(...)` for arithmetic and comparisons, as in `I(x**2)` or `I(region == 'west')`;
    - `log log10 log2 log1p exp exp2 expm1 sqrt abs` and NumPy's elementwise functions, as in `np.tanh(x)`;
    - `center scale standardize poly bs cr cs cc`, which learn from the table and keep what they learnt;
    - `lag(x, k)`, whose first rows have no value and need `missing="drop"`;
    - `offset(...)`, as in `offset(log(exposure))`: a known part of the predictor, beside `offset=` if that is given.

    Nothing else is run: a formula is checked before it is evaluated. Text and category columns become one column per
    level, in sorted order or their own; dates count as days since 1970 began (in UTC) unless they are inside `C()`;
    a response of two levels or of truth values becomes 0 and 1, the second level being 1.

    Parameters
    ----------
    data
        A DataFrame, anything with `to_pandas()`, or the path of a CSV or Parquet file.
    formula
        For example `"count ~ age + C(region)"`; an intercept is included unless `- 1` is written.
    weights, frequency, offset
        Each the name of a column, or one number per row of the table. Precision weights multiply the loss of a row;
        a frequency is how many equal observations a row stands for, and every result, also what `center` and the like
        learn, is that of the table with each row written so many times. Rows of weight or frequency zero are left out.
    missing
        `"raise"` (default) names the rows and columns with missing values; `"drop"` leaves those rows out.
    context
        Functions of your own that the formula may call, by name; each maps columns to a column, row by row. They are
        kept with the design in memory; a run whose formula calls any cannot be saved.
    clusters
        To which cluster each row belongs: the name of a column, several names, or one label per row of the table (or
        several such arrays). See `eq.data.rows`.
    time
        When each row was observed: the name of a column, or one number or date per row of the table.
    trials
        Of how many trials the response counts the successes: the name of a column, or one number per row. See
        `eq.data.rows`.

    Returns
    -------
    Rows

    Raises
    ------
    InvalidInput
        If a column is absent, a value is missing, or the formula cannot be parsed or has anything else in it.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"y": [1.0, 2.0, 4.0], "g": ["a", "b", "b"]})
    >>> table(frame, "y ~ g").names
    ('Intercept', 'g[T.b]')
    """
    if missing not in ("raise", "drop"):
        raise InvalidInput("missing", "'raise' or 'drop'", shown(missing), "choose one of the two")
    functions = user_functions(context)
    sides, reading = parsed(formula, functions)
    frame = as_frame(read_table(data) if isinstance(data, (str, Path)) else data)
    given = {"weights": weights, "frequency": frequency, "offset": offset, "trials": trials}
    marks = _marks(frame, clusters, time)
    part = _taking_part(picked(frame, reading.columns), _beside(frame, given), marks, missing, given, reading)
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() in _TEXT:
        with placed_in(str(data)):
            spellings(part.chosen, reading.roles, str(data))
    values, known, response_levels = typed(part.chosen, reading)
    require_room(sides, reading, functions, known, len(part.chosen))
    left, right, spec = _matrices(sides, values, reading, functions, part.times)
    encoding = learnt_encoding(reading, spec)
    left, right, part = _finite_sides(left, right, part, missing, reading)
    if part.dropped:
        warn(f"{part.dropped} of {len(frame)} rows with missing values were left out.")
    right, shift = without_offset(right, reading.offsets)
    beside_rows: dict[str, Any] = {**part.numbers, **part.marked}
    if shift is not None:
        beside_rows["offset"] = shift + beside_rows.get("offset", 0.0)
    made = rows(right, left.iloc[:, 0], **beside_rows)
    design = Design(
        formula=formula,
        columns=known,
        **encoding,
        offset=offset if isinstance(offset, str) else None,
        array_offset=offset is not None and not isinstance(offset, str),
        dropped=part.dropped,
        response_levels=response_levels,
        context={name: function for name, function in functions.items() if name in reading.functions},
    )
    return replace(made, design=design)


def _beside(frame: pd.DataFrame, options: Mapping[str, object]) -> pd.DataFrame:
    """Weights, frequency and offset, as far as given, one value per row of the table."""
    import pandas as pd

    given = {name: value for name, value in options.items() if value is not None}
    columns = {
        name: picked(frame, [value], name)[value] if isinstance(value, str) else vector(name, value, len(frame))
        for name, value in given.items()
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))


def _marks(frame: pd.DataFrame, clusters: Any, time: Any) -> dict[str, pd.DataFrame]:
    """Clusters and times, as far as given, one row for each of the table."""
    import pandas as pd

    made = {}
    for name, given in (("clusters", clusters), ("time", time)):
        if given is None:
            continue
        if named_columns(given, len(frame)):
            made[name] = picked(frame, [given] if isinstance(given, str) else list(given), name)
        elif hasattr(given, "columns"):
            made[name] = given.reset_index(drop=True)
        else:
            several = isinstance(given, (list, tuple)) and all(np.ndim(way) == 1 for way in given)
            ways = list(given) if several else [given]
            names = [str(getattr(way, "name", None) or f"{name} {k + 1}") for k, way in enumerate(ways)]
            made[name] = pd.DataFrame(
                {label: vector(name, way, len(frame)) for label, way in zip(names, ways, strict=True)}
            )
    return made


def _taking_part(
    chosen: pd.DataFrame,
    beside: pd.DataFrame,
    marks: dict[str, pd.DataFrame],
    missing: str,
    called: Mapping[str, object],
    reading: Reading,
) -> Taking:
    """The rows that take part, at least one."""
    part = taking_part(chosen, beside, marks, missing, called)
    if len(part.chosen) == 0:
        raise every_row_missing() if part.dropped else weightless([n for n in ("weights", "frequency") if n in beside])
    if reading.lags and len(part.chosen) < len(chosen):
        raise InvalidInput(
            "formula", "without lag() where rows in between are left out", shown(reading.text),
            "fill the missing values, or compute the lagged column before",
        )  # fmt: skip
    return part


def typed(chosen: pd.DataFrame, reading: Reading) -> tuple[pd.DataFrame, dict[str, Column], tuple[Level, Level] | None]:
    """The columns as formulas take them, what those on the right are, and the names of a response's two levels."""
    import pandas as pd

    known = {name: learnt(name, chosen[name], roles) for name, roles in reading.predictors.items()}
    values = {name: column_values(name, chosen[name], column) for name, column in known.items()}
    names = None
    for name, roles in reading.response.items():
        column = known.get(name) or learnt(name, chosen[name], roles)
        values[name] = column_values(name, chosen[name], column)
        if column.kind == "category" and roles == {"term"}:
            names = _two_levels(name, column, reading)
            values[name] = values[name].cat.codes.astype(np.float64)
    return pd.DataFrame(values, index=chosen.index), known, names


def require_single(left: pd.DataFrame, reading: Reading) -> None:
    """Raise unless the response is one column."""
    if left.shape[1] != 1:
        raise InvalidInput(
            "formula", "one with a single numeric response",
            f"{shown(reading.text)} with response columns [{listed(left.columns)}]",
            "code the response as numbers (0 and 1 for bernoulli)",
        )  # fmt: skip


def _two_levels(name: str, column: Column, reading: Reading) -> tuple[Level, Level]:
    levels = column.levels or ()
    if len(levels) != 2 or name in reading.predictors:
        raise InvalidInput(
            "formula", "one with a single numeric response",
            f"{shown(reading.text)} with a response of {len(levels)} levels, [{listed(levels)}]",
            "code the response as numbers (0 and 1 for bernoulli)",
        )  # fmt: skip
    return levels[0], levels[1]


def _matrices(
    sides: Formula, values: pd.DataFrame, reading: Reading, functions: Mapping[str, UserFunction], times: Index | None
) -> tuple[pd.DataFrame, pd.DataFrame, ModelSpec]:
    """Response and design matrix as numbers, and their encoder, which counts each row as often as it stands there."""
    learning = any(FUNCTIONS[name].learns for name in reading.functions if name in FUNCTIONS)
    if times is None or not (learning or reading.lags) or (times == 1).all():
        made = evaluated(sides, values, reading.text, functions)
        return as_numbers(made.lhs, reading.text), as_numbers(made.rhs, reading.text), made.rhs.model_spec
    if reading.lags:
        raise InvalidInput(
            "formula", "without lag() where a row stands for several observations", shown(reading.text),
            "compute the lagged column before",
        )  # fmt: skip
    every, first = np.repeat(np.arange(len(values)), times), np.cumsum(times) - times
    made = evaluated(sides, values.iloc[every].reset_index(drop=True), reading.text, functions)
    left, right = (as_numbers(side.iloc[first].set_axis(values.index), reading.text) for side in (made.lhs, made.rhs))
    return left, right, made.rhs.model_spec


def _finite_sides(
    left: pd.DataFrame, right: pd.DataFrame, part: Taking, missing: str, reading: Reading
) -> tuple[pd.DataFrame, pd.DataFrame, Taking]:
    """Response and design matrix, without the rows that `lag()` has no value for if those may go."""
    require_single(left, reading)
    if reading.lags and missing == "drop":
        kept = without_lagged(left, right)
        left, right, part = left[kept], right[kept], part.at(kept)
    for matrix in (left, right):
        require_finite(matrix)
    return left, right, part
