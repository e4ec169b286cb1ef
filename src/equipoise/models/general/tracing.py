"""What a loss of your own must be, and where only a built-in family will do: found out before anything runs."""

from __future__ import annotations

from collections.abc import Callable

import jax

from equipoise.errors import InvalidInput

__all__ = ["only_glm", "require_scalar"]


def only_glm(why: str) -> InvalidInput:
    """The error of what a general loss cannot do."""
    return InvalidInput(
        "model", f"one from eq.glm, {why}", "a loss of your own", "compare eq.diagnose(chains, tuning) instead"
    )


def require_scalar(name: str, arguments: str, function: Callable[..., object], *at: object) -> None:
    """Raise `InvalidInput` unless the user's function can be traced, gives a real scalar, and has a derivative."""
    try:
        found = jax.eval_shape(function, *at)
        if isinstance(found, jax.ShapeDtypeStruct) and found.shape == () and found.dtype.kind == "f":
            jax.eval_shape(jax.grad(function), *at)
            return
    except Exception as error:  # whatever the user's code raises
        raise InvalidInput(
            name,
            f"a differentiable JAX function of {arguments}",
            f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}",
            "use jax.numpy throughout and check both pytrees",
        ) from error
    given = jax.tree.map(lambda leaf: f"{leaf.dtype}, shape {leaf.shape}", found)
    raise InvalidInput(name, "a floating-point scalar", given, "sum or index the result")
