"""Derivatives of a module's loss by `torch.func`: flat float64 parameters in, NumPy arrays out.

The names are those of the functions of a loss in JAX, so that whatever is made of those is made of these.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from copy import deepcopy
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jvp, vmap

from equipoise.arrays import Array
from equipoise.models.general.functions import DIRECTIONS
from equipoise.models.general.observing import Weighted, bare

if TYPE_CHECKING:
    from equipoise.interop.torch.model import Model

__all__ = ["Functions", "mapped"]

with warnings.catch_warnings():
    # the first forward derivative makes torch load what it warns of as deprecated itself
    warnings.simplefilter("ignore", DeprecationWarning)
    jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))


class Functions:
    """Derivatives of a model's loss over a masked block of rows."""

    def __init__(self, model: Model) -> None:
        self.model, structure = model, model.structure
        self.shapes = tuple((name, shape, prod(shape)) for name, shape in structure.trained)
        self.basis = None if structure.basis is None else _tensor(structure.basis)
        self.origin = None if structure.origin is None else _tensor(structure.origin)
        self._threads = threading.local()
        self.prior, self.together = model.prior, structure.together
        self.scored, self.written = structure.apart(1), structure.apart(structure.dim)

    @property
    def twin(self) -> Any:
        """The module in float64 and evaluation mode; one for each thread, since a call puts parameters into it."""
        if not hasattr(self._threads, "twin"):
            self._threads.twin = deepcopy(self.model.module).double().eval().requires_grad_(False)
        return self._threads.twin

    def _at(self, theta: Array) -> Any:
        """Parameters as a tensor; the twin is made here, since a module cannot be copied while it is differentiated."""
        assert self.twin is not None
        return _tensor(theta)

    def each(self, theta: Any, rows: Any) -> Any:
        """The loss of every row of a block, (rows,)."""
        some = bare(rows)
        inputs = some["x"] if isinstance(some["x"], tuple) else (some["x"],)
        found = self.model.loss(functional_call(self.twin, self._named(theta), inputs), some["y"])
        return rows.weight * found if isinstance(rows, Weighted) else found

    def row(self, theta: Any, row: Any) -> Any:
        """The loss of one row."""
        return self.each(theta, mapped(lambda a: a[None], row)).reshape(())

    def total(self, theta: Any, rows: Any, mask: Any) -> Any:
        """Σ over the rows that count."""
        return (torch.as_tensor(mask) * self.each(theta, rows)).sum()

    def losses(self, draws: Array, rows: Any) -> Array:
        """The loss of every row at every draw, (draws, rows)."""
        with torch.no_grad():
            return np.stack([_array(self.each(self._at(theta), rows)) for theta in draws])

    def value(self, theta: Array, rows: Any, mask: Any) -> float:
        """The sum of losses."""
        with torch.no_grad():
            return float(self.total(self._at(theta), rows, mask))

    def gradient(self, theta: Array, rows: Any, mask: Any) -> tuple[float, Array]:
        """The sum of losses and its gradient."""
        slope, value = grad_and_value(self.total)(self._at(theta), rows, mask)
        return float(value), _array(slope)

    def hessian(self, theta: Array, rows: Any, mask: Any) -> Array:
        """The Hessian of the sum."""
        at = self._at(theta)
        along = lambda v: self._product(at, rows, mask, v)  # noqa: E731
        return _array(vmap(along, chunk_size=self.together)(torch.eye(at.numel(), dtype=at.dtype)))

    def product(self, theta: Array, rows: Any, mask: Any, v: Array) -> Array:
        """The Hessian of the sum times a vector."""
        return _array(self._product(self._at(theta), rows, mask, _tensor(v)))

    def _product(self, at: Any, rows: Any, mask: Any, v: Any) -> Any:
        return jvp(lambda t: grad(self.total)(t, rows, mask), (at,), (v,))[1]

    def slopes(self, theta: Array, rows: Any, v: Array) -> Array:
        """Derivatives of every row's loss along a vector, (rows,)."""
        return _array(jvp(lambda t: self.each(t, rows), (self._at(theta),), (_tensor(v),))[1])

    def scores(self, theta: Array, rows: Any) -> Array:
        """Gradients by row, (rows, D)."""
        return _array(vmap(grad(self.row), (None, 0))(self._at(theta), rows))

    def hessians(self, theta: Array, rows: Any) -> Array:
        """Hessians by row, (rows, D, D)."""
        return _array(vmap(hessian(self.row), (None, 0))(self._at(theta), rows))

    def thirds(self, theta: Array, rows: Any) -> Array:
        """Third derivatives by row, (rows, D, D, D)."""
        return _array(vmap(jacfwd(hessian(self.row)), (None, 0))(self._at(theta), rows))

    def products(self, theta: Array, rows: Any, vectors: Array) -> Array:
        """Hessians by row times vectors, (rows, vectors, D)."""

        def along(t: Any, row: Any, v: Any) -> Any:
            return jvp(lambda u: grad(self.row)(u, row), (t,), (v,))[1]

        each = vmap(vmap(along, (None, None, 0)), (None, 0, None))
        return _array(each(self._at(theta), rows, _tensor(vectors)))

    def bends(self, theta: Array, rows: Any, mask: Any, vectors: Array) -> Array:
        """Σ over rows of ∇³ℓ[v, v, ·] for each v, (vectors, D)."""

        def along(t: Any, v: Any) -> Any:
            return jvp(lambda u: self._product(u, rows, mask, v), (t,), (v,))[1]

        return _array(
            vmap(along, (None, 0), chunk_size=min(DIRECTIONS, self.together))(self._at(theta), _tensor(vectors))
        )

    def bend_gradient(self, theta: Array, rows: Any, mask: Any, values: Array, vectors: Array) -> Array:
        """Σ over rows of ∇ tr(∇²ℓ S), S = Σ_i s_i v_i v_iᵀ."""
        return np.asarray(values) @ self.bends(theta, rows, mask, vectors)

    def penalty(self, theta: Any) -> Any:
        """R(θ)."""
        if self.model.regularizer is None:
            away = self._away(theta)
            return 0.5 * float(away @ self.prior.times(away))
        with torch.no_grad():
            return float(self._regularizer(self._at(theta)))

    def penalty_gradient(self, theta: Array) -> Array:
        """∇R."""
        if self.model.regularizer is None:
            return self._inward(self.prior.times(self._away(theta)))
        return _array(grad(self._regularizer)(self._at(theta)))

    def penalty_hessian(self, theta: Array) -> Array:
        """∇²R."""
        if self.model.regularizer is not None:
            return _array(hessian(self._regularizer)(self._at(theta)))
        if self.basis is None:
            return self.prior.hessian(theta.size)
        return self._inward(self.prior.times(self.basis.numpy()))

    def penalty_product(self, theta: Array, v: Array) -> Array:
        """∇²R v."""
        if self.model.regularizer is not None:
            return _array(jvp(grad(self._regularizer), (self._at(theta),), (_tensor(v),))[1])
        return self._inward(self.prior.times(v if self.basis is None else v @ self.basis.numpy()))

    def penalty_third(self, theta: Array) -> Array:
        """∇³R, which a Gaussian prior does not have."""
        if self.model.regularizer is None:
            return np.zeros((theta.size,) * 3)
        return _array(jacfwd(hessian(self._regularizer))(self._at(theta)))

    def penalty_bends(self, theta: Array, vectors: Array) -> Array:
        """∇³R[v, v, ·] for each v."""
        if self.model.regularizer is None:
            return np.zeros_like(vectors)
        return np.einsum("ijk,mj,mk->mi", self.penalty_third(theta), vectors, vectors, optimize=True)

    def _away(self, theta: Array) -> Array:
        """θ less the prior's mean, in all trainable scalars."""
        return np.asarray(self.model.structure.embed(np.asarray(theta)) - self.prior.mean)

    def _inward(self, vectors: Array) -> Array:
        """Gradients in all trainable scalars, as those in coordinates."""
        return vectors if self.basis is None else np.asarray(vectors @ self.basis.numpy().T)

    def _regularizer(self, theta: Any) -> Any:
        assert self.model.regularizer is not None
        return self.model.regularizer(self._named(theta))

    def _named(self, theta: Any) -> dict[str, Any]:
        """Parameters by name."""
        whole = theta if self.basis is None else self.origin + theta @ self.basis
        params, start = {}, 0
        for name, shape, size in self.shapes:
            params[name] = whole[start : start + size].reshape(shape)
            start += size
        return params


def mapped(f: Callable[[Any], Any], rows: Any) -> Any:
    """A block's tensors one by one."""
    if isinstance(rows, Weighted):
        return Weighted(mapped(f, rows.observation), f(rows.weight))
    x = tuple(f(a) for a in rows["x"]) if isinstance(rows["x"], tuple) else f(rows["x"])
    return {"x": x, "y": f(rows["y"])}


def _tensor(array: Any) -> Any:
    return torch.from_numpy(np.array(array, dtype=np.float64))


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.detach().numpy(), dtype=np.float64)
