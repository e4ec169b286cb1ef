"""Text files: what is missing in them, and quotes.

A quote that is never closed makes a single value of all rows behind it, and these would be lost.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["MISSING", "Quotes", "unclosed"]

# What pandas takes for missing in a CSV file, beside what Arrow does.
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
# Rows that are looked through at a time.
_ROWS = 1 << 16


class Quotes:
    """A stream that counts the quotes that are read from it.

    Examples
    --------
    >>> import io
    >>> stream = Quotes(io.BytesIO(b'"a",b'))
    >>> stream.read(2), stream.read(), stream.count
    (b'"a', b'",b', 2)
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self.count = stream, 0

    @property
    def closed(self) -> bool:
        """Whether nothing more can be read."""
        return bool(self._stream.closed)

    def read(self, size: int | None = None) -> bytes:
        """The next bytes."""
        content: bytes = self._stream.read(size)
        self.count += content.count(b'"')
        return content

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def unclosed(stream: Any, separator: str) -> int | None:
    """The line of a text file in which a quoted value begins that does not end; None where all of them do.

    A quote inside of a value that is not quoted is one of its letters, so that an odd number of them tells nothing yet.
    """
    import pandas as pd

    try:
        with pd.read_csv(stream, sep=separator, usecols=[0], dtype=str, chunksize=_ROWS) as tables:
            for _ in tables:
                pass
    except pd.errors.ParserError as error:
        found = re.search(r"EOF inside string starting at row (\d+)", str(error))
        # which counts from zero
        return None if found is None else int(found[1]) + 1
    return None
