"""What arguments must be: whole numbers, probabilities, finite arrays. Bad input is named here, once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from typing import TypeGuard

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import InvalidInput

__all__ = ["finite_array", "is_number", "nearest", "one_of", "positive", "probability", "whole"]


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(name: str, value: object, least: int, remedy: str, otherwise: str = "") -> int:
    """A count as an int, whatever number type it came in; `otherwise` words what else the argument may be.

    Raises
    ------
    InvalidInput
        If it is not a whole number, or below `least`.
    """
    if is_number(value) and math.isfinite(value) and int(value) == value and value >= least:
        return int(value)
    raise InvalidInput(name, f"{otherwise}a whole number, at least {least}", shown(value), remedy)


def positive(name: str, value: object, remedy: str = "pass a positive number") -> float:
    """A finite number above zero."""
    if is_number(value) and 0.0 < value < math.inf:
        return float(value)
    raise InvalidInput(name, "positive and finite", shown(value), remedy)


def probability(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    if is_number(value) and 0.0 < value < 1.0:
        return float(value)
    raise InvalidInput(name, "between 0 and 1", shown(value), "0.95 is a common choice")


def one_of(name: str, value: object, choices: Iterable[str], remedy: str = "choose one of them") -> str:
    """One of a few words."""
    known = tuple(choices)
    if isinstance(value, str) and value in known:
        return value
    raise InvalidInput(name, f"one of {', '.join(known)}", shown(value), nearest(value, known) or remedy)


def nearest(word: object, known: Iterable[str]) -> str:
    """What to say of a word that may have been misspelt; nothing when no known one is close."""
    close = get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def finite_array(name: str, value: object, remedy: str = "pass finite numbers") -> Array:
    """Numbers of any shape, as float64."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(name, "numeric", shown(value), remedy) from error
    if not array.size or not np.isfinite(array).all():
        raise InvalidInput(name, "finite", "NaN or infinity" if array.size else "no numbers", remedy)
    return array


def shown(value: object) -> str:
    """A value in a message: as it would be typed, and never long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
