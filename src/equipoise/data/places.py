"""Where rows are, in words."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.data.parts import Location
from equipoise.data.reading import Placed
from equipoise.data.wording import located

__all__ = ["files_of", "row_name", "where"]


def files_of(parts: Sequence[Placed]) -> dict[str, int]:
    """The files that parts are of, with their sizes."""
    told = (getattr(placed.part, "locations", (getattr(placed.part, "location", None),)) for placed in parts)
    return {location.path: location.size for every in told for location in every if isinstance(location, Location)}


def where(parts: Sequence[Placed]) -> str:
    """What is read."""
    files = files_of(parts)
    if not files:
        return parts[0].part.label if len(parts) == 1 else f"{len(parts)} parts"
    first = min(files)
    return located(first) if len(files) == 1 else f"{len(files)} files, {located(first)} and others"


def row_name(parts: Sequence[Placed], number: int) -> str:
    """What a row that takes part is called: its number in its file, where none before it was left out."""
    placed = next(p for p in reversed(parts) if p.first_row <= number)
    row = f"row {placed.part.first + number - placed.first_row}" if placed.kept == placed.rows else "a row"
    return f"{row}, in {located(placed.part.label)}"
