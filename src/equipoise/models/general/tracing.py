"""What a loss of your own must be, and where only a built-in family will do: found out before anything runs."""

from __future__ import annotations

from collections.abc import Callable

import jax

from equipoise.checks import users_code
from equipoise.errors import InvalidInput

__all__ = ["only_glm", "require_array", "require_scalar"]


_REMEDY = "use jax.numpy throughout and check both pytrees"


def require_array(function: Callable[..., object], *at: object) -> jax.ShapeDtypeStruct:
    """What a function of the user's, of parameters and rows, makes; `InvalidInput` unless it is one array."""
    with users_code("function", "a JAX function of (params, one row of the data)", _REMEDY):
        found = jax.eval_shape(function, *at)
    if isinstance(found, jax.ShapeDtypeStruct):
        return found
    raise InvalidInput(
        "function", "one that returns a number or an array", type(found).__name__, "return one of its parts"
    )


def only_glm(why: str) -> InvalidInput:
    """The error of what a general loss cannot do."""
    return InvalidInput(
        "model", f"one from eq.glm, {why}", "a loss of your own", "compare eq.diagnose(chains, tuning) instead"
    )


def require_scalar(name: str, arguments: str, function: Callable[..., object], *at: object) -> None:
    """Raise `InvalidInput` unless the user's function can be traced, gives a real scalar, and has a derivative."""
    with users_code(name, f"a differentiable JAX function of {arguments}", _REMEDY):
        found = jax.eval_shape(function, *at)
        if isinstance(found, jax.ShapeDtypeStruct) and found.shape == () and found.dtype.kind == "f":
            jax.eval_shape(jax.grad(function), *at)
            return
    given = jax.tree.map(lambda leaf: f"{leaf.dtype}, shape {leaf.shape}", found)
    raise InvalidInput(name, "a floating-point scalar", given, "sum or index the result")
