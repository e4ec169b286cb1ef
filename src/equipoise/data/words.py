"""Words as numbers: a hash of 64 bits for each, the same in every block, file and process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["word_codes"]

# Words that are looked at together, and their bytes: each is an object then, of several times its size.
_PIECE, _BYTES = 1 << 14, 1 << 22


def word_codes(column: pd.Series[Any], missing: int = 0) -> NDArray[np.uint64]:
    """The code of every word of a column, and that of a missing one.

    Examples
    --------
    >>> import pandas as pd
    >>> a, nothing, other, again = word_codes(pd.Series(["a", None, "b", "a"]), missing=7)
    >>> a == again, a == other, int(nothing)
    (np.True_, np.False_, 7)
    """
    import pandas as pd

    codes = np.empty(len(column), dtype=np.uint64)
    piece = max(1, min(_PIECE, _BYTES * len(column) // max(1, column.array.nbytes)))
    for start in range(0, len(column), piece):
        places, words = pd.factorize(column.iloc[start : start + piece])
        known = pd.util.hash_array(np.asarray(words, dtype=object), categorize=False)
        codes[start : start + piece] = np.append(known, np.uint64(missing))[places]
    return codes
