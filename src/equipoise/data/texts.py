"""Text files: what is missing in them, what their values are, and quotes.

A quote that is never closed makes a single value of all rows behind it, and these would be lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BLOCK", "MISSING", "Quotes", "doubtful", "fits", "unclosed"]

# Bytes that are parsed at a time; from the first of them types are guessed.
BLOCK = 1 << 22
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


def doubtful(block: pa.RecordBatch, text: bytes) -> list[str]:
    """The columns of a block that Arrow may have read otherwise than pandas does: hexadecimal and long whole numbers."""
    from pyarrow import compute, types

    def far(column: pa.Array) -> bool:
        return bool(compute.any(compute.greater_equal(compute.abs(column), 2.0**63)).as_py())

    hexadecimal = b"0x" in text or b"0X" in text
    kinds = zip(block.schema, block.columns, strict=True)
    return [
        field.name
        for field, column in kinds
        if (types.is_integer(field.type) and hexadecimal) or (types.is_floating(field.type) and far(column))
    ]


def fits(column: pa.Array, kind: pa.DataType) -> bool:
    """Whether text is of a type; hexadecimal numbers are none, as in pandas, and whole ones of any length no floats.

    Examples
    --------
    >>> import pyarrow as pa
    >>> fits(pa.array(["0x10"]), pa.int64()), fits(pa.array(["10"]), pa.int64())
    (False, True)
    """
    import pyarrow as pa
    from pyarrow import compute

    def like(pattern: str) -> pa.Array:
        return compute.match_substring_regex(column, pattern)

    if pa.types.is_decimal(kind):
        return bool(compute.all(like(r"^[-+]?\d{1,38}$"), min_count=0).as_py())
    if compute.any(like("[xX]" if pa.types.is_integer(kind) else r"^[-+]?\d{39,}$")).as_py():
        return pa.types.is_string(kind)
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


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
