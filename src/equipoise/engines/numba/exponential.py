"""The exponential and a logarithm for compiled loops: no branch and no call, so that the compiler computes four at a time.

    x = n log 2 + r,  |r| ≤ ½ log 2;     exp(x) = 2^⌊n/2⌉ · 2^(n − ⌊n/2⌉) · p(r)

with p Taylor's polynomial of degree 13, whose remainder r¹⁴/14! is below 5e-18. log 2 is the sum of two numbers, the
first short enough for n times it to be exact (Cody and Waite). 2^n in two factors lets results be subnormal, and
infinite, as they should be. The relative error is below 2.5e-16 for normal results: one unit in the last place.

    log(1 + x) = 2 s (1 + s²/3 + s⁴/5 + …),  s = x / (2 + x)

for x from 0 to 1, where s ≤ 1/3 and the first term that is left out, s³⁴/35, is below 2e-18.

References
----------
Cody and Waite, Software Manual for the Elementary Functions (1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from equipoise.engines.numba.vector import Context, Signature, Typed, Values, operation
from equipoise.engines.random import jit

__all__ = ["exponential", "log_one_plus"]

_PER_LOG2 = 1.0 / math.log(2.0)
_LOG2_HIGH = 0.693147180369123816490  # log 2 cut off after 32 bits, and the rest of it
_LOG2_LOW = 1.90821492927058770002e-10
# Added to a number below 2⁵¹, it leaves the nearest integer in the low bits.
_ROUND = 1.5 * 2.0**52
# Beyond, the result is 0 or infinite anyway; up to there each factor of 2^n is a normal number.
_LARGEST = 1000.0
_ODD = tuple(1.0 / k for k in range(3, 35, 2))
_2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13 = (1.0 / math.factorial(k) for k in range(2, 14))


def _compiled(function: Callable[[float], float]) -> Callable[[float], float]:
    """Compile without the engine's flags: reassociation would turn (x + _ROUND) − _ROUND into x."""
    return jit(function, {"fastmath": {"contract"}, "forceinline": True, "no_cfunc_wrapper": True})


@operation
def _power_of_two(typing: object, rounded: object) -> Typed:  # noqa: ARG001
    """2^n from n + `_ROUND`: the low bits are moved to the exponent's place and its bias is added."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:  # noqa: ARG001
        word = ir.IntType(64)
        bits = builder.bitcast(arguments[0], word)
        exponent = builder.add(builder.shl(bits, ir.Constant(word, 52)), ir.Constant(word, 1023 << 52))
        return builder.bitcast(exponent, ir.DoubleType())

    return types.float64(types.float64), generate


@_compiled
def exponential(value: float) -> float:
    """exp(value) to one unit in the last place, for every float64; NaN stays NaN."""
    # comparisons that are false for NaN, which so passes through
    x = _LARGEST if value > _LARGEST else value
    x = -_LARGEST if x < -_LARGEST else x
    n = (x * _PER_LOG2 + _ROUND) - _ROUND
    r = (x - n * _LOG2_HIGH) - n * _LOG2_LOW
    p = _13 * r + _12
    p = p * r + _11
    p = p * r + _10
    p = p * r + _9
    p = p * r + _8
    p = p * r + _7
    p = p * r + _6
    p = p * r + _5
    p = p * r + _4
    p = p * r + _3
    p = p * r + _2
    p = (p * r + 1.0) * r + 1.0
    half = n * 0.5 + _ROUND
    rest = (n - (half - _ROUND)) + _ROUND
    scaled: float = p * _power_of_two(half) * _power_of_two(rest)
    return scaled


@_compiled
def log_one_plus(x: float) -> float:
    """log(1 + x) to two units in the last place, for normal x from 0 to 1; NaN stays NaN."""
    s = x / (2.0 + x)
    z = s * s
    p = _ODD[15] * z + _ODD[14]
    p = p * z + _ODD[13]
    p = p * z + _ODD[12]
    p = p * z + _ODD[11]
    p = p * z + _ODD[10]
    p = p * z + _ODD[9]
    p = p * z + _ODD[8]
    p = p * z + _ODD[7]
    p = p * z + _ODD[6]
    p = p * z + _ODD[5]
    p = p * z + _ODD[4]
    p = p * z + _ODD[3]
    p = p * z + _ODD[2]
    p = p * z + _ODD[1]
    p = p * z + _ODD[0]
    twice: float = s + s
    return twice + twice * (z * p)
