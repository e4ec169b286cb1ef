"""Tables that a function makes one after the other, a fresh run of them at every pass: a part of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equipoise.checks import users_code
from equipoise.data.frames import as_frame, picked
from equipoise.data.wording import placed_in
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FramesPart"]

_REQUIREMENT = "a function that returns a fresh iterator of DataFrames"
# What pandas finds in a column, in words; tables of one source agree in these.
_WORDS = {
    **dict.fromkeys(("floating", "integer", "decimal", "mixed-integer-float"), "numbers"),
    **dict.fromkeys(("datetime64", "datetime", "date"), "dates"),
    **dict.fromkeys(("timedelta64", "timedelta"), "spans of time"),
    "string": "text",
    "boolean": "true and false",
}


@dataclass(frozen=True)
class FramesPart:
    """A function that returns a fresh iterator of DataFrames; what it takes as long as one pass is one part."""

    make: Callable[[], Iterable[Any]]
    label: str = "the frames"
    first: int = 0
    count: None = None
    identity: None = None

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Slices of the columns of each frame."""
        kinds = _Kinds()
        with users_code("source", _REQUIREMENT, "pass for example lambda: pd.read_csv(path, chunksize=100_000)"):
            for number, frame in enumerate(self._made(), 1):
                if hasattr(frame, "__len__") and len(frame) == 0:
                    continue
                with placed_in(f"frame {number} of the function"):
                    chosen = picked(as_frame(frame), columns)
                    kinds.require(chosen)
                for start in range(0, len(chosen), rows):
                    yield chosen.iloc[start : start + rows]

    def _made(self) -> Iterable[Any]:
        made = self.make()
        if hasattr(made, "iloc") or hasattr(made, "to_pandas"):
            raise InvalidInput("source", _REQUIREMENT, f"one {type(made).__name__}", "yield it, or return [frame]")
        return made


class _Kinds:
    """What the columns of the frames so far are made of; only a type that was not met before has to be looked at."""

    def __init__(self) -> None:
        self._met: set[tuple[str, object]] = set()
        self._known: dict[str, str] = {}

    def require(self, chosen: pd.DataFrame) -> None:
        """Raise if a column is made of something else than before."""
        for name in chosen.columns:
            if (name, chosen[name].dtype) in self._met:
                continue
            kind = _kind(chosen[name])
            if kind is None:
                continue
            self._met.add((name, chosen[name].dtype))
            if self._known.setdefault(name, kind) != kind:
                raise InvalidInput(
                    name, f"a column of {self._known[name]}, as in the frames before", f"a column of {kind}",
                    "convert it in those frames that differ",
                )  # fmt: skip


def _kind(column: pd.Series[Any]) -> str | None:
    """What a column is made of; None where that is nothing, or a mixture, which is told otherwise."""
    import pandas as pd

    if column.isna().all():
        return None
    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    return _WORDS.get(pd.api.types.infer_dtype(values, skipna=True))
