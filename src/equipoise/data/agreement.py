"""Whether the files of one source agree: every column is in each of them, once, and of one kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise.checks import nearest
from equipoise.data.parts import CSVPart, Mistyped, Part, numbered
from equipoise.data.spelling import first_word
from equipoise.data.wording import listed, located
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Found", "kind_of"]

# Rows of a text file that are looked through at a time.
_ROWS = 1 << 16


@dataclass(frozen=True)
class Found:
    """What a scan reads: its parts in order, and the columns of each file; none are known of frames yet to be made."""

    parts: tuple[Part, ...]
    schemas: tuple[tuple[str, pa.Schema], ...]

    @property
    def rows(self) -> int:
        """How many rows there are; 0 where the parts do not tell before they are read."""
        counts = [part.count for part in self.parts]
        return 0 if None in counts else sum(count or 0 for count in counts)

    def require(self, columns: Collection[str], argument: str = "formula") -> None:
        """Raise, naming file and column, unless every file has the columns, once, and of one kind throughout."""
        for label, schema in self.schemas:
            _require_columns(label, schema.names, columns, argument)
        for name in columns:
            known = [(label, schema.field(name).type) for label, schema in self.schemas]
            kinds = [(label, kind, kind_of(kind)) for label, kind in known if kind_of(kind) != "nothing"]
            for label, kind, word in kinds:
                if word != kinds[0][2]:
                    raise InvalidInput(
                        "data", "files whose columns agree",
                        f"{name}, which is {kinds[0][1]} in {located(kinds[0][0])} and {kind} in {located(label)}"
                        f"{self._word(name, kinds[0][0], label)}",
                        "convert that column in one of them",
                    )  # fmt: skip

    def _word(self, name: str, *labels: str) -> str:
        """Where a text file that is one of the two has the first value that is no number."""
        texts = (part for part in self.parts if part.label in labels and isinstance(part, CSVPart))
        frames = (frame for part in texts for frame in numbered(part, [name], _ROWS))
        try:
            word = next((word for frame in frames if (word := first_word(frame[name])) is not None), None)
        except Mistyped:  # further on there is something else than its first rows suggest, too
            return ""
        return f" ({word})" if word else ""


def _require_columns(label: str, names: Sequence[str], columns: Collection[str], argument: str) -> None:
    absent = [name for name in columns if name not in names]
    if absent:
        hint = nearest(absent[0], names)
        raise InvalidInput(
            argument, f"made of columns of the files, {listed(names)}",
            f"[{listed(absent, 5)}], which {located(label)} does not have",
            f"correct the names, or add the columns{'; ' + hint if hint else ''}",
        )  # fmt: skip
    doubled = sorted({name for name in columns if list(names).count(name) > 1})
    if doubled:
        raise InvalidInput(
            "data", "made of columns of different names", f"several named [{listed(doubled)}] in {located(label)}",
            "rename them",
        )  # fmt: skip


def kind_of(given: pa.DataType) -> str:
    """What a type is used as: numbers of any width are alike, and text is, whether stored by its levels or not."""
    from pyarrow import types

    if types.is_dictionary(given):
        return kind_of(given.value_type)
    if types.is_integer(given) or types.is_floating(given) or types.is_decimal(given):
        return "number"
    if types.is_date(given) or types.is_timestamp(given):
        return "date" if getattr(given, "tz", None) is None else "date of a time zone"
    if types.is_null(given):
        return "nothing"
    return "text" if "string" in str(given) else str(given)
