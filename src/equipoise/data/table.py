"""Tables: CSV, Parquet and DataFrames turned into rows by a formula, with named parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data.arrays import Rows, rows
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Design", "read_table", "table"]


@dataclass(frozen=True)
class Design:
    """How a table became a design matrix, so that new tables are encoded the same way.

    Attributes
    ----------
    formula
        The formula as given.
    spec
        The right-hand side's encoder (a formulaic `ModelSpec`), or None once the run was loaded from disk.
    template
        The distinct levels of each categorical variable; None for a numeric one.
    offset
        The name of the offset column, or None.
    stateful
        Whether the formula learnt numbers from the training table (a spline, a centring).
    """

    formula: str
    spec: Any
    template: dict[str, list[Any] | None]
    offset: str | None = None
    stateful: bool = False

    def encode(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series[Any] | None]:
        """Design matrix and offset (or None) of a new table."""
        names = [*self.template, *([self.offset] if self.offset else [])]
        _require_columns(frame, names)
        frame = _without_missing(frame[names], "raise")
        for name, levels in self.template.items():
            unseen = [] if levels is None else sorted(set(frame[name]) - set(levels), key=str)
            if unseen:
                raise InvalidInput(
                    name,
                    f"one of the levels seen when fitting, {levels}",
                    unseen,
                    "recode or drop those rows",
                )
        spec = self.spec if self.spec is not None else self._rebuilt()
        return _encoded(spec, frame, self.formula), None if self.offset is None else frame[self.offset]

    def _rebuilt(self) -> Any:
        """The encoder made anew from the stored levels; possible when it learnt nothing else from the data."""
        if self.stateful:
            raise InvalidInput(
                "X_new",
                "a design matrix, because the formula of this loaded run has transforms that learn from the data",
                "a table",
                "pass the encoded columns as an array",
            )
        import pandas as pd

        height = max([2, *(len(levels) for levels in self.template.values() if levels is not None)])
        columns: dict[str, Any] = {}
        for name, levels in self.template.items():
            values = (
                np.linspace(1.0, 2.0, height) if levels is None else [levels[i % len(levels)] for i in range(height)]
            )
            # numbers inside C() may be used as numbers elsewhere; otherwise the order of the levels sets the baseline
            plain = levels is None or (_inside_c(name, self.formula) and _are_sorted_numbers(levels))
            columns[name] = values if plain else pd.Categorical(values, categories=levels)
        frame = pd.DataFrame(columns)
        return _encoded(_formula(self.formula).rhs, frame, self.formula).model_spec


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a CSV (any usual separator) or Parquet file.

    Raises
    ------
    InvalidInput
        If the file does not exist, has another suffix, or cannot be parsed.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput("data", "an existing CSV or Parquet file", str(path), "check the path")
    import pandas as pd  # slow to import: only those who read tables pay for it

    suffix = file.suffix.lower()
    try:
        if suffix in {".parquet", ".pq"}:
            return pd.read_parquet(file)
        if suffix in {".csv", ".tsv", ".txt"}:
            return pd.read_csv(file, sep=_separator(file))
    except (ValueError, OSError, pd.errors.ParserError) as error:
        raise InvalidInput("data", "a readable table", f"{file.name}: {error}", "check the file's format") from error
    raise InvalidInput("data", "a file ending in .csv, .tsv, .txt, .parquet or .pq", file.name, "convert the file")


def _separator(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as stream:
        header = stream.readline()
    return max(",;\t|", key=header.count)


def table(
    data: pd.DataFrame | str | Path,
    formula: str,
    *,
    weights: str | None = None,
    offset: str | None = None,
    missing: str = "raise",
) -> Rows:
    """Turn a table into rows by a formula.

    Parameters
    ----------
    data
        A DataFrame, or the path of a CSV or Parquet file.
    formula
        For example `"count ~ age + C(region)"`; an intercept is included unless `- 1` is written.
    weights, offset
        Names of columns.
    missing
        `"raise"` (default) names the rows and columns with missing values; `"drop"` leaves those rows out.

    Returns
    -------
    Rows

    Raises
    ------
    InvalidInput
        If a column is absent, a value is missing, or the formula cannot be parsed.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"y": [1.0, 2.0, 4.0], "g": ["a", "b", "b"]})
    >>> table(frame, "y ~ g").names
    ('Intercept', 'g[T.b]')
    """
    if missing not in {"raise", "drop"}:
        raise InvalidInput("missing", "'raise' or 'drop'", repr(missing), "choose one of the two")
    frame = read_table(data) if isinstance(data, (str, Path)) else data
    if not hasattr(frame, "columns"):
        raise InvalidInput("data", "a DataFrame or a file path", type(data).__name__, "pass formula= only with a table")
    parsed = _formula(formula)
    extra = [name for name in (weights, offset) if name is not None]
    # formulaic does not list the variables inside center(), scale(), bs() and the like: look for them by name
    mentioned = _mentioned(formula)
    names = sorted({*map(str, parsed.required_variables), *(c for c in frame.columns if c in mentioned)})
    _require_columns(frame, [*names, *extra])
    frame = _without_missing(frame[[*dict.fromkeys([*names, *extra])]], missing)
    matrices = _encoded(parsed, frame, formula)
    left = matrices.lhs
    if left.shape[1] != 1:
        raise InvalidInput(
            "formula", "one with a single numeric response", f"{formula!r} with response columns {list(left.columns)}",
            "code the response as numbers (0 and 1 for bernoulli)",
        )  # fmt: skip
    made = rows(
        matrices.rhs,
        left.iloc[:, 0],
        weights=None if weights is None else frame[weights],
        offset=None if offset is None else frame[offset],
    )
    return replace(made, design=_design(formula, matrices.rhs.model_spec, frame, offset))


def _design(formula: str, spec: Any, frame: pd.DataFrame, offset: str | None) -> Design:
    variables = sorted(str(v) for v in spec.required_variables if v in frame.columns)
    coded = [v for v in variables if _is_categorical(frame[v]) or _inside_c(v, formula)]
    template = {v: _levels(frame[v]) if v in coded else None for v in variables}
    return Design(formula, spec, template, offset, stateful=bool(spec.transform_state))


def _inside_c(name: str, formula: str) -> bool:
    return re.search(rf"\bC\(\s*`?{re.escape(name)}`?\s*[,)]", formula) is not None


def _levels(column: pd.Series[Any]) -> list[Any]:
    """The levels in the order in which they are coded: their own, or sorted."""
    if hasattr(column, "cat"):
        return list(column.cat.categories.tolist())
    levels = column.unique().tolist()
    try:
        return sorted(levels)
    except TypeError:  # of mixed types
        return sorted(levels, key=str)


def _are_sorted_numbers(levels: list[Any]) -> bool:
    return all(isinstance(level, (bool, int, float)) for level in levels) and levels == sorted(levels)


def _is_categorical(column: pd.Series[Any]) -> bool:
    from pandas.api.types import is_numeric_dtype

    return not is_numeric_dtype(column)


def _mentioned(formula: str) -> set[str]:
    """Names in a formula, quoted or bare, that are neither called nor keywords; some may not be columns."""
    bare = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", " ", formula)
    return {*re.findall(r"`([^`]+)`", formula), *re.findall(r"(?<![\w.])[^\W\d]\w*(?!\w|\s*\(|\s*=(?!=))", bare)}


def _encoded(spec: Any, frame: pd.DataFrame, formula: str) -> Any:
    """Apply a formula or an encoder; missing values that a transform makes are kept, for `rows` to find."""
    try:
        return spec.get_model_matrix(frame, na_action="ignore")
    except Exception as error:
        raise InvalidInput(
            "formula", "applicable to the table", f"{formula!r}: {error}", "correct the formula or the table"
        ) from error


def _formula(text: str) -> Any:
    # formulaic takes half a second to import: only tables pay for it
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        parsed = Formula(text)
    except (FormulaicError, SyntaxError, ValueError) as error:
        # formulaic marks the place in colour on the lines that follow
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else "correct the formula"
        raise InvalidInput("formula", "a valid formula such as 'y ~ x + C(group)'", repr(text), reason) from error
    if not hasattr(parsed, "lhs"):
        raise InvalidInput(
            "formula", "one with a response, such as 'y ~ x'", repr(text), "write the response before a ~"
        )
    if isinstance(parsed.rhs, tuple):
        raise InvalidInput("formula", "one with a single right-hand side", repr(text), "write + where there is a |")
    return parsed


def _require_columns(frame: pd.DataFrame, names: list[str]) -> None:
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise InvalidInput(
            "formula",
            f"made of columns of the table, {list(frame.columns)}",
            f"{absent}",
            "correct the names",
        )


def _without_missing(frame: pd.DataFrame, missing: str) -> pd.DataFrame:
    holes = frame.isna()
    if not holes.to_numpy().any():
        return frame
    if missing == "drop":
        return frame[~holes.any(axis=1)]
    columns = [str(c) for c in frame.columns[holes.any(axis=0)]]
    index = [int(i) for i in np.flatnonzero(holes.any(axis=1))]
    shown = ", ".join(map(str, index[:5])) + ("" if len(index) <= 5 else f" and {len(index) - 5} more")
    raise InvalidInput(
        "data",
        "without missing values",
        f"missing in columns {columns}, rows {shown}",
        "drop or fill those rows, or fit with missing='drop'",
    )
