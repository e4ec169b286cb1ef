"""Words in messages about tables: short, on one line, whatever the table holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from equipoise.errors import InvalidInput

__all__ = ["brief", "listed", "located", "named", "placed_in"]


def brief(words: object, most: int = 80) -> str:
    """A text on one line, cut where it is too long."""
    line = " ".join(str(words).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def located(place: object) -> str:
    """A path, or a place in a file, on one line; cut at its beginning where it is too long: its end says which."""
    line = " ".join(str(place).split())
    return line if len(line) <= 80 else f"...{line[-77:]}"


def named(columns: Sequence[str], most: int = 6) -> str:
    """Columns in a message, as they are called: the first few, and how many there are beside."""
    return ", ".join(columns[:most]) + (f" and {len(columns) - most:,} more" if len(columns) > most else "")


def listed(values: Iterable[object], most: int = 6) -> str:
    """A few values, and how many there are beside."""
    words = [str(v) if isinstance(v, (int, np.integer)) else brief(repr(v), 40) for v in values]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


@contextmanager
def placed_in(place: str) -> Iterator[None]:
    """Let errors about a table say where the table is from."""
    try:
        yield
    except InvalidInput as error:
        raise error.at(located(place)) from error
