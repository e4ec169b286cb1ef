"""Losses that see the parameters through a few linear combinations of each row's own: ℓ(θ, o) = h(A(o) θ + b(o), o).

Regressions of every kind are such losses, however they are written. The split is read off the traced loss: the last
values that are affine in θ are the combinations z, and h is what is computed from them. A step then needs the rows A(o)
and h alone, and can run in coordinates in which the step matrix is the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

__all__ = ["Projection", "find_projection"]

# Affine results of affine arguments, whichever they are.
_LINEAR = {
    "add", "add_any", "broadcast_in_dim", "concatenate", "copy", "neg", "reduce_sum", "reshape", "slice", "squeeze",
    "sub", "transpose",
}  # fmt: skip
# Affine in either argument alone, or in the first.
_BILINEAR, _RATIO = {"mul", "dot_general"}, {"div"}


@dataclass(frozen=True, eq=False)
class Projection:
    """The two halves of a loss.

    Attributes
    ----------
    combine
        (θ, observation) → z, affine in θ.
    outer
        (z, observation) → the loss.
    rank
        Length of z.
    """

    combine: Callable[[Any, Any], Any]
    outer: Callable[[Any, Any], Any]
    rank: int


def find_projection(row: Callable[[Any, Any], Any], theta: Any, observation: Any) -> Projection | None:
    """Split a loss at what is affine in θ, or None if there is no such thing in float64; call it in float64."""
    closed = jax.make_jaxpr(row)(theta, observation)
    jaxpr, (start, *others) = closed.jaxpr, closed.jaxpr.invars
    first, second, cut = _halves(jaxpr, start)
    shapes = [v.aval.shape for v in cut]
    if not cut or any(v.aval.dtype != np.float64 for v in cut):
        return None
    ends = np.cumsum([prod(shape) for shape in shapes])
    # the names of arguments, for messages, are those of the whole
    bare = {"debug_info": jaxpr.debug_info.with_unknown_names()}
    before, after = (
        jaxpr_as_fun(ClosedJaxpr(part, closed.consts))
        for part in (
            jaxpr.replace(eqns=first, outvars=cut, **bare),
            jaxpr.replace(eqns=second, invars=[*cut, *others], **bare),
        )
    )

    def combine(theta: Any, observation: Any) -> Any:
        return jnp.concatenate([jnp.ravel(v) for v in before(theta, *jax.tree.leaves(observation))])

    def outer(z: Any, observation: Any) -> Any:
        parts = [v.reshape(shape) for v, shape in zip(jnp.split(z, ends[:-1]), shapes, strict=True)]
        return after(*parts, *jax.tree.leaves(observation))[0]

    return Projection(combine, outer, int(ends[-1]))


def _halves(jaxpr: Any, theta: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Operations up to what is affine in θ, the others (those without θ are in both), and the values between them."""
    affine, curved, first, cut = {theta}, set(), [], []
    for equation in jaxpr.eqns:
        sloped = [v for v in _variables(equation) if v in affine]
        bent = any(v in curved for v in _variables(equation))
        if bent or (sloped and not _is_affine(equation, affine)):
            curved.update(equation.outvars)
            cut += sloped
        else:
            first.append(equation)
            affine.update(equation.outvars if sloped else ())
    cut = list(dict.fromkeys(cut + [v for v in jaxpr.outvars if v in affine]))
    # what follows from values between the halves need not be one of them: of η and y η, only η
    derived: set[Any] = set()
    for equation in first:
        sloped = [v for v in _variables(equation) if v in affine]
        if all(v in cut or v in derived for v in sloped):
            derived.update(equation.outvars)
    second = [e for e in jaxpr.eqns if all(v in curved or v in derived for v in e.outvars)]
    return first, second, [v for v in cut if v not in derived]


def _variables(equation: Any) -> list[Any]:
    """The arguments of an operation that are not literal numbers."""
    return [v for v in equation.invars if not isinstance(v, Literal)]


def _is_affine(equation: Any, affine: set[Any]) -> bool:
    """Whether an operation of affine and constant arguments is affine in the former."""
    name = equation.primitive.name
    sloped = [not isinstance(v, Literal) and v in affine for v in equation.invars]
    if name in _BILINEAR:
        return sum(sloped) == 1
    return name in _LINEAR or (name in _RATIO and not sloped[1])
