"""Random numbers for the compiled engines: xoshiro256++, batches of rows, normals (theory §1).

Every function advances a generator held in a `uint64[4]` array and has no other memory, so those four words
are the whole state: a chain resumes from them bit for bit. One generator per chain; threads share nothing.

References
----------
Blackman and Vigna, Scrambled linear pseudorandom number generators (2021): xoshiro256++.
Lemire, Fast random integer generation in an interval (2019).
Walker, An efficient method for generating discrete random variables with general distributions (1977): aliases.
Marsaglia and Tsang, The ziggurat method for generating random variables (2000).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "JIT",
    "Function",
    "Permutation",
    "add_normals",
    "bounded",
    "compiled",
    "distinct_rows",
    "inlined",
    "internal",
    "jit",
    "next_word",
    "permute",
    "rows_by_lottery",
    "rows_with_replacement",
]

State = NDArray[np.uint64]
Permutation = NDArray[np.uint32]
Words = tuple[np.uint64, np.uint64, np.uint64, np.uint64]
Function = TypeVar("Function", bound=Callable[..., object])

# The full fastmath set assumes that no value is NaN or infinite, which would remove the divergence checks.
# The NumPy error model turns 1/0 into inf, as the families expect, instead of raising inside a thread.
JIT: Mapping[str, object] = {
    "nogil": True,
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}


def jit(function: Function, options: Mapping[str, object]) -> Function:
    """Compile with these options, of which Numba's own annotations do not know all."""
    make = cast(Callable[..., Callable[[Function], object]], njit)
    return cast(Function, make(**options)(function))


def compiled(function: Function) -> Function:
    """Compile with the options that every engine function shares; LLVM inlines the small ones."""
    return jit(function, JIT)


def internal(function: Function) -> Function:
    """The same for what only compiled code calls, without the part that Python would call: it takes as long to make."""
    return jit(function, {**JIT, "no_cpython_wrapper": True})


def inlined(function: Function) -> Function:
    """The same for what is to be part of its caller: of an urn, the parts that are used are then all that is passed on."""
    return jit(function, {**JIT, "no_cpython_wrapper": True, "forceinline": True})


# Mixed with a signed integer, Numba's uint64 becomes float64: every constant below is unsigned.
_1, _11, _17, _19, _23, _32, _41, _45 = (np.uint64(k) for k in (1, 11, 17, 19, 23, 32, 41, 45))
_LAYER = np.uint64(255)
_LOW = np.uint64(2**32 - 1)
_RANGE = np.uint64(2**32)
_HIGHEST = np.uint64(2**63)


def _ziggurat(tail: float, layers: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Right edges and heights of strips of equal area under exp(−x²/2); the lowest has all beyond `tail`."""
    foot = math.exp(-0.5 * tail * tail)
    area = tail * foot + math.sqrt(0.5 * math.pi) * math.erfc(tail / math.sqrt(2.0))
    # The lowest strip is drawn as a rectangle of the same area, hence wider than `tail`.
    edges = [area / foot, tail]
    for _ in range(layers - 2):
        edges.append(math.sqrt(-2.0 * math.log(area / edges[-1] + math.exp(-0.5 * edges[-1] ** 2))))
    edges.append(0.0)
    return np.array(edges), np.exp(-0.5 * np.array(edges) ** 2)


_TAIL = 3.6541528853610088  # the edge for which 256 strips of equal area end exactly at the mode
_EDGE, _HEIGHT = _ziggurat(_TAIL, 256)


# The loops below hold the four words in registers (a normal takes 2.5 ns, against 8 through the array) and go
# through the array only where they call one of the rare paths.


@internal
def _load(state: State) -> Words:
    """The generator's words."""
    return state[0], state[1], state[2], state[3]


@internal
def _store(state: State, words: Words) -> None:
    """Put the words back."""
    state[0], state[1], state[2], state[3] = words


@internal
def _scramble(words: Words) -> tuple[np.uint64, Words]:
    """64 uniform bits and the words that follow: one step of xoshiro256++."""
    s0, s1, s2, s3 = words
    total = s0 + s3
    word = ((total << _23) | (total >> _41)) + s0
    shifted = s1 << _17
    s2 ^= s0
    s3 ^= s1
    s1 ^= s2
    s0 ^= s3
    s2 ^= shifted
    s3 = (s3 << _45) | (s3 >> _19)
    return word, (s0, s1, s2, s3)


@compiled
def next_word(state: State) -> np.uint64:
    """64 uniform bits."""
    word, words = _scramble(_load(state))
    _store(state, words)
    return word


@internal
def _retry(state: State, product: np.uint64, size: np.uint64) -> np.uint64:
    """Lemire's rejection: a product below `size` may be in the zone that would bias the result."""
    excess = (_RANGE - size) % size
    while (product & _LOW) < excess:
        product = (next_word(state) >> _32) * size
    return product


@compiled
def bounded(state: State, size: np.uint64) -> np.uint64:
    """A uniform integer below `size` < 2³², exactly uniform: the high half of a 32-bit product."""
    product = (next_word(state) >> _32) * size
    if (product & _LOW) < size:
        product = _retry(state, product, size)
    return product >> _32


@internal
def _wide_rows(state: State, size: np.uint64, batch: NDArray[np.uint64]) -> None:
    """The same for numbers of more than 32 bits: words of as many bits as are needed, until one is below `size`."""
    shift = np.uint64(0)
    while (size - _1) << shift < _HIGHEST:
        shift += _1
    for k in range(batch.size):
        number = next_word(state) >> shift
        while number >= size:
            number = next_word(state) >> shift
        batch[k] = number


@compiled
def rows_with_replacement(state: State, size: np.uint64, batch: NDArray[np.uint64]) -> None:
    """Fill `batch` with independent uniform row numbers below `size`: `bounded`, many times."""
    if size > _LOW:
        _wide_rows(state, size, batch)
        return
    words = _load(state)
    for k in range(batch.size):
        word, words = _scramble(words)
        product = (word >> _32) * size
        if (product & _LOW) < size:
            _store(state, words)
            product = _retry(state, product, size)
            words = _load(state)
        batch[k] = product >> _32
    _store(state, words)


@compiled
def distinct_rows(state: State, order: Permutation, swaps: NDArray[np.uint64], batch: NDArray[np.uint64]) -> None:
    """Fill `batch` with distinct uniform row numbers: a partial Fisher–Yates shuffle, undone at the end.

    `order` is scratch: 0, 1, …, N − 1 on entry and on return, so that no permutation is part of a chain's state; `swaps`
    is scratch of the batch's length.
    """
    for k in range(batch.size):
        here = np.uint64(k)
        other = here + bounded(state, np.uint64(order.size) - here)
        swaps[here] = other
        batch[here] = order[other]
        # Entry k is not read again: the swap needs only its other half.
        order[other] = order[here]
    for k in range(batch.size):
        order[swaps[k]] = swaps[k]


@compiled
def permute(state: State, order: Permutation) -> None:
    """Set `order` to a uniform permutation of 0, 1, …, N − 1: a Fisher–Yates shuffle of the identity."""
    size = np.uint64(order.size)
    for k in range(order.size):
        order[k] = k
    words = _load(state)
    for k in range(order.size - 1):
        here = np.uint64(k)
        left = size - here
        word, words = _scramble(words)
        product = (word >> _32) * left
        if (product & _LOW) < left:
            _store(state, words)
            product = _retry(state, product, left)
            words = _load(state)
        other = here + (product >> _32)
        order[here], order[other] = order[other], order[here]
    _store(state, words)


@compiled
def rows_by_lottery(
    state: State, columns: NDArray[np.uint64], halves: NDArray[np.uint64], batch: NDArray[np.uint64]
) -> None:
    """Fill `batch` with independent row numbers of unequal probabilities: a row, or from its limit on its alias.

    The high half of a word chooses the row, the low half is held against the limit. `columns` has of each row the limit,
    in the high half, and the alias; `halves` is scratch of the batch's length.
    """
    size = np.uint64(columns.size)
    words = _load(state)
    for k in range(batch.size):
        word, words = _scramble(words)
        product = (word >> _32) * size
        if (product & _LOW) < size:
            _store(state, words)
            product = _retry(state, product, size)
            words = _load(state)
        batch[k], halves[k] = product >> _32, word & _LOW
    _store(state, words)
    # apart from the generator, memory has many columns under way at once
    for k in range(batch.size):
        row, column = batch[k], columns[batch[k]]
        alias = column & _LOW
        # no branch, which would be guessed wrongly half of the time
        batch[k] = alias + (row - alias) * np.uint64(halves[k] < (column >> _32))


@internal
def _unit(state: State) -> float:
    """A uniform in (0, 1], so that its logarithm is finite."""
    return float(np.int64((next_word(state) >> _11) + _1)) * 2.0**-53


@internal
def _tail(state: State) -> float:
    """A normal conditioned to exceed the last edge: exponential proposals, Marsaglia's acceptance."""
    while True:
        excess = -math.log(_unit(state)) / _TAIL
        if -2.0 * math.log(_unit(state)) >= excess * excess:
            return _TAIL + excess


@internal
def _propose(word: np.uint64, layer: np.uint64) -> float:
    """A point of the strip: the high 53 bits, signed, which the choice of the strip does not use."""
    return float(np.int64(word) >> 11) * 2.0**-52 * float(_EDGE[layer])


@internal
def _outside(state: State, word: np.uint64) -> float:
    """A normal from a word whose point is not in the part of its strip that lies wholly under the curve."""
    while True:
        layer = word & _LAYER
        x = _propose(word, layer)
        if abs(x) < _EDGE[layer + _1]:
            return x
        if layer == 0:
            return math.copysign(_tail(state), x)
        top, bottom = _HEIGHT[layer + _1], _HEIGHT[layer]
        if bottom + _unit(state) * (top - bottom) < math.exp(-0.5 * x * x):
            return x
        word = next_word(state)


@compiled
def add_normals(state: State, scales: NDArray[np.float64], values: NDArray[np.float64], count: int) -> None:
    """Add a normal of its own scale to each of the first `count` values: the ziggurat of 256 strips."""
    words = _load(state)
    for k in range(count):
        word, words = _scramble(words)
        layer = word & _LAYER
        x = _propose(word, layer)
        if abs(x) >= _EDGE[layer + _1]:  # 1.5 % of the words
            _store(state, words)
            x = _outside(state, word)
            words = _load(state)
        values[k] += scales[k] * x
    _store(state, words)
