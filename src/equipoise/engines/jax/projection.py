"""Losses that see the parameters through a few linear combinations of each row's own: ℓ(θ, o) = h(A(o) θ + b(o), o).

Regressions of every kind are such losses, however they are written. The split is read off the traced loss: the last
values that are affine in θ are the combinations z, and h is what is computed from them. A step then needs the rows A(o)
and h alone, and can run in coordinates in which the step matrix is the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from equipoise.arrays import Array

__all__ = ["Projection", "Traced", "Tree", "find_projection"]

# A tree of arrays, traced or not: only JAX looks inside.
Tree = object
Traced = jax.Array

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

    `combine` is (θ, frame, observation) → z, affine in θ and of length `rank`; `outer` is (z, frame, observation) → the
    loss.
    """

    combine: Callable[[Traced, Tree, Tree], Traced]
    outer: Callable[[Traced, Tree, Tree], Traced]
    rank: int


def find_projection(
    row: Callable[[Traced, Tree, Tree], Traced], theta: Array, frame: Tree, observation: Tree
) -> Projection | None:
    """Split a loss at what is affine in θ, or None if there is no such thing in float64; call it in float64.

    `frame` is what the loss reads besides the observation, or what has its shapes.
    """
    closed = jax.make_jaxpr(row)(theta, frame, observation)
    jaxpr, (start, *others) = closed.jaxpr, closed.jaxpr.invars
    first, second, cut = _halves(jaxpr, start)
    kinds = [cast(ShapedArray, v.aval) for v in cut]
    if not cut or any(kind.dtype != np.float64 for kind in kinds):
        return None
    shapes = [kind.shape for kind in kinds]
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

    def combine(theta: Traced, frame: Tree, observation: Tree) -> Traced:
        return jnp.concatenate([jnp.ravel(v) for v in before(theta, *jax.tree.leaves((frame, observation)))])

    def outer(z: Traced, frame: Tree, observation: Tree) -> Traced:
        parts = [v.reshape(shape) for v, shape in zip(jnp.split(z, ends[:-1]), shapes, strict=True)]
        return after(*parts, *jax.tree.leaves((frame, observation)))[0]

    return Projection(combine, outer, int(ends[-1]))


def _halves(jaxpr: Jaxpr, theta: Var) -> tuple[list[JaxprEqn], list[JaxprEqn], list[Var]]:
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
    derived: set[Var] = set()
    for equation in first:
        sloped = [v for v in _variables(equation) if v in affine]
        if all(v in cut or v in derived for v in sloped):
            derived.update(equation.outvars)
    second = [e for e in jaxpr.eqns if all(v in curved or v in derived for v in e.outvars)]
    return first, second, [v for v in cut if v not in derived]


def _variables(equation: JaxprEqn) -> list[Var]:
    """The arguments of an operation that are not literal numbers."""
    return [v for v in equation.invars if not isinstance(v, Literal)]


def _is_affine(equation: JaxprEqn, affine: set[Var]) -> bool:
    """Whether an operation of affine and constant arguments is affine in the former."""
    name = equation.primitive.name
    sloped = [not isinstance(v, Literal) and v in affine for v in equation.invars]
    if name in _BILINEAR:
        return sum(sloped) == 1
    return name in _LINEAR or (name in _RATIO and not sloped[1])
