"""What a formula may say: the functions it may call, the arguments they take, and how large it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from equipoise.errors import InvalidInput

__all__ = [
    "CONTRASTS",
    "FUNCTIONS",
    "LIMITS",
    "MOMENTS",
    "ROOTS",
    "SHIPPED",
    "Argument",
    "Function",
    "UserFunction",
    "steadily",
    "user_functions",
]

T = TypeVar("T")

UserFunction = Callable[..., object]

# what an argument may be; `data` is an expression over columns, the rest are written out
Argument = Literal[
    "coded", "column", "constraints", "contrast", "count", "data", "degree", "flag", "flag or number", "hashed",
    "literal", "literals", "matrix", "number", "numbers", "shift", "word",
]  # fmt: skip


@dataclass(frozen=True)
class Function:
    """A function that formulas may call.

    Attributes
    ----------
    parameters
        What each takes, in order.
    positional
        How many may be given without their names; None for all.
    required
        How many must be given.
    alone
        Whether it makes several columns, so that nothing can be computed from it.
    learns
        The names of the numbers it learns from the table and keeps for prediction.
    """

    parameters: Mapping[str, Argument]
    positional: int | None = None
    required: int = 1
    alone: bool = False
    learns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Sizes beyond which a formula is refused, so that none can fill the memory or the day."""

    characters: int = 10_000
    brackets: int = 20
    depth: int = 50
    terms: int = 20_000
    columns: int = 20_000
    levels: int = 10_000
    power: int = 10
    exponent: int = 20
    integer: int = 2**63 - 1
    count: int = 1_000
    degree: int = 25


LIMITS = Limits()


def _of_columns(names: str, arguments: int = 1, prefix: str = "") -> dict[str, Function]:
    parameters: dict[str, Argument] = {f"x{i + 1}": "data" for i in range(arguments)}
    return {f"{prefix}{name}": Function(parameters, required=arguments) for name in names.split()}


_BOUNDS = ("lower_bound", "upper_bound")
_CUBIC = Function(
    {
        "x": "data", "df": "count", "knots": "numbers", "lower_bound": "number", "upper_bound": "number",
        "constraints": "constraints", "extrapolation": "word",
    },
    positional=6, alone=True, learns=(*_BOUNDS, "constraints", "cyclic", "knots"),
)  # fmt: skip
_SCALED = ("ddof", "center", "scale")

FUNCTIONS: dict[str, Function] = {
    **_of_columns("I log log10 log2 log1p exp exp2 expm1 sqrt abs"),
    **_of_columns(
        "log log10 log2 log1p exp exp2 expm1 sqrt cbrt square abs sign floor ceil rint reciprocal sin cos tan arcsin "
        "arccos arctan sinh cosh tanh arcsinh arccosh arctanh logical_not",
        prefix="np.",
    ),
    **_of_columns("maximum minimum fmax fmin power hypot arctan2 logical_and logical_or logical_xor", 2, "np."),
    **_of_columns("clip where", 3, "np."),
    "Q": Function({"variable": "column"}),
    "offset": Function({"data": "data"}, alone=True),
    "C": Function(
        {"data": "coded", "contrasts": "contrast", "levels": "literals", "spans_intercept": "flag"},
        positional=2,
        alone=True,
    ),
    "hashed": Function(
        {"data": "hashed", "levels": "count", "contrasts": "contrast", "spans_intercept": "flag"},
        positional=3,
        required=2,
        alone=True,
    ),
    "lag": Function({"data": "data", "k": "shift"}),
    "center": Function({"data": "data"}, learns=_SCALED),
    "scale": Function(
        {"data": "data", "center": "flag or number", "scale": "flag or number", "ddof": "number"}, learns=_SCALED
    ),
    "standardize": Function(
        {"x": "data", "center": "flag or number", "rescale": "flag or number", "ddof": "number"}, learns=_SCALED
    ),
    "poly": Function({"x": "data", "degree": "degree", "raw": "flag"}, alone=True, learns=("alpha", "norms2")),
    "bs": Function(
        {
            "x": "data", "df": "count", "knots": "numbers", "degree": "degree", "include_intercept": "flag",
            "lower_bound": "number", "upper_bound": "number", "extrapolation": "word",
        },
        alone=True, learns=(*_BOUNDS, "knots"),
    ),
    "cr": _CUBIC,
    "cs": _CUBIC,
    "cc": _CUBIC,
}  # fmt: skip

_BASE = Function({"base": "literal"}, required=0)
_HELMERT = Function({"reverse": "flag", "scale": "flag"}, required=0)
_SCORES = Function({"scores": "numbers"}, required=0)
_DIFF = Function({"backward": "flag"}, required=0)
_NOTHING = Function({}, required=0)
CONTRASTS: dict[str, Function] = {
    "contr.treatment": _BASE,
    "contr.SAS": _BASE,
    "contr.sum": _NOTHING,
    "contr.helmert": _HELMERT,
    "contr.poly": _SCORES,
    "contr.diff": _DIFF,
    "contr.custom": Function({"contrasts": "matrix", "names": "literals"}),
    "Treatment": Function({"reference": "literal"}, required=0),
    "Sum": _NOTHING,
    "Helmert": _HELMERT,
    "Poly": _SCORES,
    "Diff": _DIFF,
}

# functions that formulaic does not bring
SHIPPED: dict[str, UserFunction] = {
    "sqrt": np.sqrt, "abs": np.abs, "log1p": np.log1p, "expm1": np.expm1, "offset": lambda x: x,
}  # fmt: skip

# the words a column inside a function may not be named by
ROOTS = frozenset(name.partition(".")[0] for name in (*FUNCTIONS, *CONTRASTS))

# methods that summarise the table at hand: another table would give other numbers
MOMENTS = frozenset(
    {
        "amax", "amin", "average", "count", "cumsum", "max", "mean", "median", "min", "mode", "nanmax", "nanmean",
        "nanmedian", "nanmin", "nanstd", "nanvar", "percentile", "prod", "ptp", "quantile", "rank", "std", "sum", "var",
    }
)  # fmt: skip


def user_functions(context: Mapping[str, UserFunction] | None) -> dict[str, UserFunction]:
    """The functions a user lets formulas call, checked: plain ones, under plain names that are not taken."""
    import inspect
    from keyword import iskeyword

    if context is None:
        return {}
    if not isinstance(context, Mapping):
        raise InvalidInput("context", "a mapping of names to functions", type(context).__name__, "pass {'f': f}")
    for name, function in context.items():
        plain = isinstance(name, str) and name.isidentifier() and name.isascii() and not name.startswith("_")
        if not plain or iskeyword(name) or name in ROOTS:
            raise InvalidInput(
                "context", "keyed by plain names that formulas do not use already", repr(name)[:80], "rename it"
            )
        routine = inspect.isroutine(function) or isinstance(function, np.ufunc)
        if not routine or hasattr(function, "__is_stateful_transform__"):
            raise InvalidInput(
                "context", "made of plain functions", f"{name}, a {type(function).__name__}", "pass a def or a lambda"
            )
    return dict(context)


def steadily(call: Callable[[], T]) -> T:
    """What a call gives that parses an expression, also where another thread parses at the same time.

    Python 3.11 counts the depth of syntax trees for all threads together, and fails now and then (its issue 106905).
    """
    try:
        return call()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SystemError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
    return call()
