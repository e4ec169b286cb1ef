"""The roofline: how fast this machine reads rows in order and at random, and what share of that the engine reaches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.suite.contenders import linear_run
from benchmarks.suite.measure import Settings, interleave, say
from benchmarks.suite.peers import require
from benchmarks.suite.workloads import Array, Prepared, make_cell

__all__ = ["roofline"]

_LINE = 8  # float64 in a cache line
# Rows ahead to prefetch; the fastest counts as the bound.
_AHEAD = (0, 4, 8, 16, 32)


def roofline(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Read bandwidth of an array like the data, and the engine's rows per second as a share of the random-row bound."""
    count, dim = prepared.x.shape
    width = -(-dim // _LINE) * _LINE
    table = _aligned(count, width)
    table[:, :dim] = prepared.x
    touched = min(count, 200_000)
    batch = np.random.default_rng(0).integers(0, count, touched)
    read, gather = _kernels()
    works: dict[str, Callable[[], Any]] = {"sequential": lambda: read(table.ravel())}
    for ahead in _AHEAD:
        works[f"random, {ahead} rows ahead"] = partial(gather, table, batch, ahead)
    steps = {}
    for size in prepared.workload.batches:
        run = linear_run(make_cell(prepared, size))
        steps[size] = max(2 * prepared.workload.thin, touched // size)
        works[f"equipoise B={size}"] = partial(run, steps[size], 1)
    for work in works.values():
        work()  # compiles
    seconds = interleave(works, settings.repeats)
    best = {name: min(times) for name, times in seconds.items()}
    bound = touched / min(best[f"random, {ahead} rows ahead"] for ahead in _AHEAD)
    rates = {f"B={size}": n * size / best[f"equipoise B={size}"] for size, n in steps.items()}
    shares = {name: rate / bound for name, rate in rates.items()}
    say(f"roofline: {bound:,.0f} rows/s at random, shares {shares}")
    return {
        "seconds": seconds,
        "sequential_gb_per_second": table.nbytes / best["sequential"] / 1e9,
        "random_gb_per_second": bound * dim * 8 / 1e9,
        "random_plain_gb_per_second": touched / best["random, 0 rows ahead"] * dim * 8 / 1e9,
        "bound_rows_per_second": bound,
        "equipoise_rows_per_second": rates,
        "share": shares,
    }


def _aligned(count: int, width: int) -> Array:
    buffer = np.zeros(count * width + _LINE)
    first = -(buffer.ctypes.data // 8) % _LINE
    return buffer[first : first + count * width].reshape(count, width)


def _kernels() -> tuple[Any, Any]:
    """Compiled sums: over an array in order, and over given rows with a prefetch of those that follow."""
    # by name: the types of the compiler's inside are of no use here
    numba, ir, tools = require("numba"), require("llvmlite.ir"), require("numba.core.cgutils")

    def prefetch(_context: Any, array: Any, row: Any, column: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            held = context.make_array(signature.args[0])(context, builder, arguments[0])
            strides = tools.unpack_tuple(builder, held.strides)
            offset = builder.add(builder.mul(arguments[1], strides[0]), builder.mul(arguments[2], strides[1]))
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            place = builder.gep(builder.bitcast(held.data, byte), [offset])
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            function = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            builder.call(function, [place, word(0), word(3), word(1)])
            return context.get_dummy_value()

        return numba.types.void(array, row, column), generate

    ask = numba.extending.intrinsic(prefetch)
    options = {"nogil": True, "fastmath": True}

    def read(values: Any) -> Any:
        total = 0.0
        for k in range(values.size):
            total += values[k]
        return total

    def gather(table: Any, batch: Any, ahead: Any) -> Any:
        total = 0.0
        for k in range(batch.size):
            if ahead > 0 and k + ahead < batch.size:
                for j in range(0, table.shape[1], 8):
                    ask(table, batch[k + ahead], j)
            i = batch[k]
            for j in range(table.shape[1]):
                total += table[i, j]
        return total

    return numba.njit(**options)(read), numba.njit(**options)(gather)
