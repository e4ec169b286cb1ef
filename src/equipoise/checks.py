"""What arguments must be: whole numbers, probabilities, finite arrays. Bad input is named here, once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from typing import ParamSpec, TypeGuard, TypeVar

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import EquipoiseError, InvalidInput

__all__ = [
    "checked_fields",
    "checked_options",
    "finite_array",
    "flag",
    "instance",
    "is_number",
    "nearest",
    "numeric_array",
    "one_of",
    "part_size",
    "positive",
    "probability",
    "require_semidefinite",
    "shown",
    "users_code",
    "whole",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
# what statsmodels and others call an option; the nearest spelling would name another
_ELSEWHERE = {
    "freq_weights": "frequency", "groups": "clusters", "cov_type": "target", "maxlags": "lags",
    "binomial": "bernoulli", "logistic": "bernoulli", "logit": "bernoulli", "normal": "gaussian", "ols": "gaussian",
    "negbin": "negative-binomial", "robust": "sandwich", "hetero": "HC1", "cluster": "CRV1", "clustered": "CRV1",
}  # fmt: skip


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(name: str, value: object, least: int, remedy: str, otherwise: str = "") -> int:
    """A count of at least `least` as an int, whatever number type it came in; `otherwise` words what else it may be."""
    if is_number(value) and math.isfinite(value) and int(value) == value and value >= least:
        return int(value)
    raise InvalidInput(name, f"{otherwise}a whole number, at least {least}", shown(value), remedy)


def part_size(rows: object, n: int) -> int:
    """A number of rows to tune with, of n that there are."""
    count = whole("tuning_rows", rows, 1, "pass an int such as 10_000")
    if count > n:
        raise InvalidInput("tuning_rows", f"between 1 and the number of rows, {n}", rows, "choose a size in that range")
    return count


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


def flag(name: str, value: object) -> bool:
    """True or False; words are refused, since all of them are true."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InvalidInput(name, "True or False", shown(value), "pass one of the two")


def instance(name: str, value: object, kind: type[T], remedy: str) -> T:
    """An object of the library's own."""
    if isinstance(value, kind):
        return value
    raise InvalidInput(name, f"a {kind.__name__}", shown(value), remedy)


def one_of(name: str, value: object, choices: Iterable[str], remedy: str = "choose one of them") -> str:
    """One of a few words."""
    known = tuple(choices)
    if isinstance(value, str) and value in known:
        return value
    raise InvalidInput(name, f"one of {', '.join(known)}", shown(value), nearest(value, known) or remedy)


def nearest(word: object, known: Iterable[str]) -> str:
    """What to say of a word that may have been misspelt; nothing when no known one is close."""
    names = list(known)
    alike = [name for name in names if name.lower() == str(word).lower() or name == _ELSEWHERE.get(str(word))]
    close = alike or get_close_matches(str(word), names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def numeric_array(name: str, value: object, remedy: str = "pass numbers") -> Array:
    """Numbers of any shape, as float64; they need not be finite."""
    try:
        given = np.asarray(value)
        # complex numbers, dates and digits in text would convert, and lose their meaning
        if given.dtype.kind in "cmMSU":
            raise TypeError(f"dtype {given.dtype}")
        return given.astype(np.float64, copy=False)
    except Exception as error:  # objects may raise anything when they are asked for numbers
        raise InvalidInput(name, "numeric", shown(value), remedy) from error


def finite_array(name: str, value: object, remedy: str = "pass finite numbers") -> Array:
    """Finite numbers of any shape, as float64."""
    array = numeric_array(name, value, remedy)
    if not array.size or not np.isfinite(array).all():
        raise InvalidInput(name, "finite", "NaN or infinity" if array.size else "no numbers", remedy)
    return array


def require_semidefinite(name: str, array: Array) -> None:
    """Refuse what is neither a scalar, a diagonal nor a symmetric matrix, and what is negative along some direction."""
    matrix = array.ndim == 2
    if array.ndim > 2 or (matrix and array.shape[0] != array.shape[1]):
        raise InvalidInput(name, "a scalar, a vector or a square matrix", f"shape {array.shape}", "use zero for none")
    if matrix and np.abs(array - array.T).max() > 1e-8 * np.abs(array).max():
        raise InvalidInput(name, "a symmetric matrix", f"an unsymmetric {array.shape}", "pass (P + P.T) / 2")
    lowest = np.linalg.eigvalsh(array)[0] if matrix else array.min()
    if lowest < -1e-10 * max(1.0, float(np.abs(array).max())):
        raise InvalidInput(name, "positive semi-definite", f"smallest value {lowest:g}", "use zero for none")


@contextmanager
def users_code(name: str, requirement: str, remedy: str) -> Iterator[None]:
    """Say in one line what code of the user's raises; what the library says itself passes."""
    try:
        yield
    except EquipoiseError:
        raise
    except Exception as error:  # whatever it raises
        first = str(error).partition("\n")[0].rstrip(".")
        raise InvalidInput(name, requirement, f"{type(error).__name__}: {first[:200]}", remedy) from error


def shown(value: object) -> str:
    """A value in a message: as it would be typed, and never long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def checked_options(function: Callable[P, R]) -> Callable[P, R]:
    """Name a misspelt option or a missing argument instead of raising a bare TypeError."""
    signature = inspect.signature(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        _require_bound(function.__name__, signature, args, kwargs)
        return function(*args, **kwargs)

    return called


def checked_fields(kind: type[T]) -> type[T]:
    """The same for a dataclass whose fields are options."""
    made, signature = kind.__init__, inspect.signature(kind)

    @wraps(made)
    def called(self: T, *args: object, **kwargs: object) -> None:
        _require_bound(kind.__name__, signature, args, kwargs)
        made(self, *args, **kwargs)

    kind.__init__ = called  # type: ignore[method-assign, assignment]
    return kind


def _require_bound(
    owner: str, signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    try:
        signature.bind(*args, **kwargs)
        return
    except TypeError as error:
        reason = error
    names = tuple(signature.parameters)
    # a function that sorts its own options names the unknown ones itself
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    unknown = [] if open_ended else [name for name in kwargs if name not in names]
    listed = ", ".join(names)
    if unknown:
        remedy = nearest(unknown[0], names) or f"choose from {listed}"
        raise InvalidInput(unknown[0], f"an option of {owner}", "no such option", remedy) from reason
    argument = reason.args[0].split("'")[1] if "'" in str(reason) else "arguments"
    raise InvalidInput(argument, f"given as {owner} takes it: {listed}", str(reason), "see its documentation")
