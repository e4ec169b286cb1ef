"""Names for the arrays that pass between the rooms."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Index", "Mask", "PyTree", "Words"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
# the state of a random number generator, and the row numbers it draws
Words = NDArray[np.uint64]
# parameters or observations in containers of the user's own, nested as they please: no type says more of them
PyTree: TypeAlias = Any
