"""Linear algebra that is ours: symmetric parts, blocked products, sums in a fixed order, BLAS held to one thread.

Bits that reach a chain must not depend on how many threads the machine has. A product inside BLAS is therefore made on
one thread (`fixed_order`), and parallelism comes from blocks of rows, whose sums are added in a tree of fixed shape.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from scipy.linalg import cho_solve
from scipy.linalg.blas import dtrmm

from equipoise.arrays import Array

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

__all__ = [
    "FAINT",
    "FLAT",
    "Room",
    "Sums",
    "Total",
    "added_form",
    "between",
    "blocks",
    "by_columns",
    "congruent",
    "cores",
    "curvature_axes",
    "fixed_order",
    "form_times",
    "in_fixed_order",
    "is_positive",
    "quadratic_forms",
    "signed_axes",
    "split_range",
    "symmetric",
    "times_lower",
    "tree_sum",
    "weighted_gram",
]

P = ParamSpec("P")
R = TypeVar("R")
# a NamedTuple of arrays and floats: what a pass over the rows adds up
Sums = TypeVar("Sums", bound=tuple[object, ...])

# Elements per block of rows: 2 MB of float64, so that a block stays in cache between its uses. A product of few rows with
# many columns is slow, so that blocks of wide rows may grow to 64 MB.
_BLOCK_ELEMENTS = 1 << 18
_LARGEST_BLOCK = 1 << 23
# Rows of a strip of a product, and rows from which it is made in strips.
_STRIP, _STRIPS = 128, 512

# Eigenvalue of a Hessian scaled to unit diagonal, in units of the largest, below which a direction counts as flat: of exactly
# collinear columns and redundant parameters it is rounding, and an eigenvalue ten times as large is known to a few percent.
FLAT = 1e-13
# And below which it may be what a slope that is left makes of a flat direction: that fades as the slope does.
FAINT = 1e-9


def symmetric(a: Array) -> Array:
    """The symmetric part of a square matrix."""
    return 0.5 * (a + a.T)


def is_positive(a: Array) -> bool:
    """Whether a symmetric matrix is positive definite; a Cholesky factor tells at a tenth of the cost of the eigenvalues."""
    try:
        np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return False
    return True


def signed_axes(a: Array) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and eigenvectors as columns, whose signs make (1, 1/√2, 1/√3, …) a positive product with each.

    They have no signs of their own, and libraries of linear algebra differ: a chain that moves along them must not.
    """
    values, axes = np.linalg.eigh(a)
    against = (1.0 / np.sqrt(np.arange(1.0, len(a) + 1.0))) @ axes < 0.0
    return values, np.where(against, -axes, axes)


def between(factor: tuple[Array, bool], middle: Array) -> Array:
    """A⁻¹ M A⁻¹ of a symmetric M, A by its factor from `cho_factor`."""
    return symmetric(cho_solve(factor, cho_solve(factor, middle).T))


def form_times(form: Array, vectors: Array) -> Array:
    """G v, for vectors along the first axis, of a symmetric matrix that may be given by its diagonal alone."""
    if form.ndim == 2:
        return form @ vectors
    return form * vectors if vectors.ndim == 1 else form[:, None] * vectors


def added_form(matrix: Array, form: Array) -> Array:
    """M + G, which is written into M."""
    if form.ndim == 2:
        matrix += form
    else:
        matrix[np.diag_indices(len(matrix))] += form
    return matrix


def congruent(A: Array, S: Array) -> Array:
    """A S Aᵀ, for many rows on all cores: in strips of a fixed height, so that no bit depends on how many there are."""
    if len(A) < _STRIPS:
        return A @ S @ A.T
    made = np.empty((len(A), len(A)))

    def strip(first: int) -> None:
        here = slice(first, first + _STRIP)
        np.matmul(A[here] @ S, A.T, out=made[here])

    with fixed_order(), ThreadPoolExecutor(cores()) as pool:
        list(pool.map(strip, range(0, len(A), _STRIP)))
    return made


def cores() -> int:
    """Cores that this process may use: of a process bound to one, threads would only be in each other's way."""
    bound = getattr(os, "sched_getaffinity", None)
    return len(bound(0)) if bound else os.cpu_count() or 1


def curvature_axes(H: Array) -> tuple[Array, Array]:
    """Eigenvalues of H scaled to unit diagonal, ascending, and the directions (rows) in parameters they belong to."""
    diagonal = np.abs(np.diag(H))
    # of the whole matrix: at a saddle point the diagonal may be zero; parameters in units 10¹⁰ apart are no such case
    scale = np.sqrt(np.maximum(diagonal, 1e-20 * max(np.abs(H).max(), 1e-200)))
    values, vectors = np.linalg.eigh(H / np.outer(scale, scale))
    return values, vectors.T / scale


def split_range(M: Array, square: Array) -> tuple[Array, Array]:
    """Vectors (rows) that span the range of a covariance, and those along which it has no variance.

    Both by the threshold of `FLAT`, in units of √square: the mean squares M was made from, of which its zeros are rounding.
    """
    scale = np.sqrt(np.where(square > 0.0, square, 1.0))
    values, vectors = np.linalg.eigh(M / np.outer(scale, scale))
    varies = values > FLAT * max(float(values[-1]), 1e-200)
    return (vectors[:, varies] * scale[:, None]).T, (vectors[:, ~varies] / scale[:, None]).T


def blocks(n: int, dim: int) -> Iterator[slice]:
    """Slices that cover `range(n)` in blocks of bounded memory."""
    size = max(1, _BLOCK_ELEMENTS // dim, min(dim // 2, _LARGEST_BLOCK // dim))
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def by_columns(x: Array) -> bool:
    """Whether the columns of a matrix lie one after the other in memory, and not its rows."""
    return x.flags.f_contiguous and not x.flags.c_contiguous


class Room(threading.local):
    """Memory for the matrix of one block in each thread: fresh memory would cost as much as to fill it."""

    def __init__(self) -> None:
        self.buffer = np.empty(0)

    def shaped(self, shape: tuple[int, ...], apart: bool) -> Array:
        """A matrix, whose columns lie one after the other if they are to lie apart."""
        height, width = shape
        if self.buffer.size < height * width:
            self.buffer = np.empty(height * width)
        held = self.buffer[: height * width]
        return held.reshape(width, height).T if apart else held.reshape(height, width)


_ROOM = Room()  # that rows are scaled in


def weighted_gram(x: Array, weight: Array) -> Array:
    """Σ weight_n x_n x_nᵀ, at half the cost of a product: NumPy sees a matrix times its own transpose.

    Rows of negative weight are summed apart.
    """
    below, room = weight < 0.0, _ROOM.shaped(x.shape, by_columns(x))
    if not below.any():
        np.multiply(x, np.sqrt(weight)[:, None], out=room)
        return room.T @ room
    if by_columns(x):
        return np.multiply(x, weight[:, None], out=room).T @ x
    count = int(np.count_nonzero(below))
    under, over = room[:count], room[count:]
    for part, rows in ((under, below), (over, ~below)):
        np.compress(rows, x, axis=0, out=part)
        part *= np.sqrt(np.abs(weight[rows]))[:, None]
    return over.T @ over - under.T @ under


def quadratic_forms(x: Array, S: Array, root: Array | None) -> Array:
    """x_nᵀ S x_n for every row of a symmetric S, at half the cost of a product.

    With a lower triangular root S = L Lᵀ, which is read in its place, ‖Lᵀ x_n‖², else 2 x_nᵀ L x_n, L the lower half of S.
    """
    room = _ROOM.shaped(x.shape, by_columns(x))
    lower = np.tril(S, -1) + np.diag(0.5 * np.diag(S)) if root is None else root
    room[:] = x
    if by_columns(x):
        dtrmm(1.0, lower, room, side=1, lower=1, overwrite_b=1)
    else:
        dtrmm(1.0, lower, room.T, trans_a=1, lower=1, overwrite_b=1)
    return 2.0 * np.linalg.vecdot(room, x) if root is None else np.linalg.vecdot(room, room)


def times_lower(x: Array, root: Array) -> Array:
    """X L for a lower triangular L, at half the cost of a product."""
    made = np.array(x, order="C")
    dtrmm(1.0, root, made.T, trans_a=1, lower=1, overwrite_b=1)
    return made


class Total(NamedTuple):
    """What is added up, where that is one array."""

    total: Array


def tree_sum(parts: Iterable[Sums]) -> Sums:
    """The sum of named tuples, term by term, in a binary tree whose shape depends on their number alone.

    Parts are consumed in order and at most log₂ of them are held. The left one of two is overwritten: parts are the
    caller's to give away.

    Examples
    --------
    >>> class Pair(NamedTuple):
    ...     count: float
    ...     total: Array
    >>> tree_sum(Pair(1.0, np.full(2, float(k))) for k in range(5))
    Pair(count=5.0, total=array([10., 10.]))
    """
    held: list[tuple[int, Sums]] = []
    for part in parts:
        level = 0
        while held and held[-1][0] == level:
            part, level = _added(held.pop()[1], part), level + 1
        held.append((level, part))
    total = held.pop()[1]
    while held:
        total = _added(held.pop()[1], total)
    return total


def _added(left: Sums, right: Sums) -> Sums:
    make = cast(Callable[..., Sums], type(left))
    return make(*map(_plus, left, right))


def _plus(a: object, b: object) -> object:
    if isinstance(a, np.ndarray):
        a += cast(Array, b)
        return a
    if hasattr(a, "_fields"):
        # named tuples inside of one another; others are joined
        return _added(cast(Any, a), cast(Any, b))
    return cast(float, a) + cast(float, b)


class _Hold(NamedTuple):
    """Those who asked for one thread, and what will end it when the last of them leaves."""

    lock: threading.Lock
    users: list[Callable[[], None]]


_HOLD = _Hold(threading.Lock(), [])


@contextmanager
def fixed_order() -> Iterator[None]:
    """Hold BLAS to one thread: its sums are then made in one order, whatever the machine's settings.

    The setting is the process's own, so that of overlapping users the first makes it and the last takes it back.
    """
    with _HOLD.lock:
        if not _HOLD.users:
            libraries = [library for library in _controller().lib_controllers if library.user_api == "blas"]
            before = [library.num_threads for library in libraries]
            _set_threads(libraries, [1] * len(libraries))
            _HOLD.users.append(partial(_set_threads, libraries, before))
        else:
            _HOLD.users.append(_HOLD.users[0])
    try:
        yield
    finally:
        with _HOLD.lock:
            restore = _HOLD.users.pop()
            if not _HOLD.users:
                restore()


def _set_threads(libraries: list[Any], numbers: list[int]) -> None:
    """Set how many threads each library has, from any thread: who leaves a hold last need not be who made it."""
    for library, number in zip(libraries, numbers, strict=True):
        # from threadpoolctl 3.8 on the first thread to set them is the only one that may, and others are silently ignored
        freed = getattr(library, "clear_controlling_thread", None)
        if freed is not None:
            freed(force=True)
        library.set_num_threads(number)
        if freed is not None:
            freed(force=True)


def in_fixed_order(function: Callable[P, R]) -> Callable[P, R]:
    """The function with BLAS held to one thread."""

    @wraps(function)
    def held(*args: P.args, **kwargs: P.kwargs) -> R:
        with fixed_order():
            return function(*args, **kwargs)

    return held


@cache
def _controller() -> ThreadpoolController:
    # found once: looking through the loaded libraries takes longer than many a product
    import scipy.linalg  # noqa: F401  (its BLAS is another one than NumPy's, and must be loaded to be found)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
