"""Vectors of four float64 inside compiled code: arithmetic whose order is written down, and so are its bits.

A compiler that vectorises a sum picks an order that depends on the length it knows, the processor and its version.
The engine's sums are spelled out in these operations instead, each rounded once: a chain is then the same, bit for
bit, whether the width of a row was known to the compiler or not, and however rows are blocked and fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = [
    "LANES",
    "Context",
    "Signature",
    "Typed",
    "Values",
    "Vector",
    "add",
    "entry",
    "fetch",
    "fma",
    "load",
    "load_row",
    "operation",
    "spread",
    "store",
    "store_row",
    "sum1",
    "sums4",
    "transpose4",
    "zeros",
]

# Numba says that it is typed, and is not: any module, any class to derive from.
types: ModuleType = numba.types
_Type: Any = numba.types.Type
_Model: Any = models.PrimitiveModel
_declare: Callable[[ir.Module, ir.FunctionType, str], ir.Function] = cgutils.get_or_insert_function

# One 256-bit register; a processor with wider ones loses little, since a step waits for memory.
LANES = 4

_DOUBLE, _INT64, _INT32, _BYTE = ir.DoubleType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
_VECTOR = ir.VectorType(_DOUBLE, LANES)


class Vector:
    """Four float64 as annotations know them: there are none outside of compiled code."""


class _Vector(_Type):  # type: ignore[misc]
    """The Numba type of four float64."""

    def __init__(self) -> None:
        super().__init__(name="Vector4")


_TYPE = _Vector()
_FOUR = types.UniTuple(_TYPE, 4)


@register_model(_Vector)
class _VectorModel(_Model):  # type: ignore[misc]
    """Held as one LLVM vector."""

    def __init__(self, manager: object, numba_type: object) -> None:
        super().__init__(manager, numba_type, _VECTOR)


class Kind(Protocol):
    """What is used of Numba's types: calling the type of a result with those of the arguments gives a signature."""

    dtype: Kind
    bitwidth: int

    def __call__(self, *arguments: object) -> object: ...


class Signature(Protocol):
    """The types a call was compiled for."""

    return_type: Kind
    args: tuple[Kind, ...]


class Context(Protocol):
    """What is used of Numba's target context."""

    def make_array(self, kind: Kind) -> Callable[..., ir.Value]:
        """What takes an array of that type apart."""
        ...

    def make_tuple(self, builder: ir.IRBuilder, kind: Kind, values: Sequence[ir.Value]) -> ir.Value:
        """The values as a tuple."""
        ...

    def get_data_type(self, kind: Kind) -> ir.Type:
        """How the type lies in memory."""
        ...

    def get_dummy_value(self) -> ir.Value:
        """What an operation without a result returns."""
        ...


Values = Sequence[ir.Value]
# A signature, and what generates the code of a call.
Typed = tuple[object, Callable[[Context, ir.IRBuilder, Signature, Values], ir.Value]]


def operation(function: Callable[..., Typed]) -> Callable[..., Any]:
    """Make a typing function an operation that compiled code may call, without its first argument.

    What it returns exists in compiled code alone, where no checker looks.
    """
    return cast(Callable[..., Any], intrinsic(function))


def _address(
    context: Context, builder: ir.IRBuilder, array_type: Kind, array: ir.Value, offset: ir.Value, pointer: ir.Type
) -> ir.Value:
    """The place `offset` bytes into an array, as a pointer of the given type."""
    data = builder.bitcast(context.make_array(array_type)(context, builder, array).data, _BYTE.as_pointer())
    return builder.bitcast(builder.gep(data, [offset]), pointer.as_pointer())


def _row_offset(
    context: Context, builder: ir.IRBuilder, array_type: Kind, array: ir.Value, row: ir.Value, column: ir.Value
) -> ir.Value:
    """Bytes from the start of a matrix with contiguous rows, of any stride, to an entry."""
    stride = builder.extract_value(context.make_array(array_type)(context, builder, array).strides, 0)
    size = ir.Constant(_INT64, array_type.dtype.bitwidth // 8)
    return builder.add(builder.mul(row, stride), builder.mul(column, size))


def _shuffle(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, lanes: tuple[int, ...]) -> ir.Value:
    """Lanes of one (0–3) and the other (4–7)."""
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_INT32, 4), list(lanes)))


@operation
def zeros(typing: object) -> Typed:  # noqa: ARG001
    """Four zeros."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:  # noqa: ARG001
        return ir.Constant(_VECTOR, [0.0] * LANES)

    return _TYPE(), generate


@operation
def spread(typing: object, value: Kind) -> Typed:  # noqa: ARG001
    """One float64, four times."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:  # noqa: ARG001
        first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), arguments[0], ir.Constant(_INT32, 0))
        return _shuffle(builder, first, first, (0, 0, 0, 0))

    return _TYPE(types.float64), generate


@operation
def entry(typing: object, array: Kind, at: Kind) -> Typed:  # noqa: ARG001
    """`array[at]` of a contiguous array for at ≥ 0: without Numba's detour for places counted from the end."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        held = context.get_data_type(signature.return_type)
        offset = builder.mul(arguments[1], ir.Constant(_INT64, signature.return_type.bitwidth // 8))
        return builder.load(_address(context, builder, signature.args[0], arguments[0], offset, held), align=8)

    return array.dtype(array, types.int64), generate


@operation
def load(typing: object, array: Kind, at: Kind) -> Typed:  # noqa: ARG001
    """`array[at:at + 4]` of a contiguous float64 array."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        offset = builder.mul(arguments[1], ir.Constant(_INT64, 8))
        place = _address(context, builder, signature.args[0], arguments[0], offset, _VECTOR)
        return builder.load(place, align=8)

    return _TYPE(array, types.int64), generate


@operation
def load_row(typing: object, matrix: Kind, row: Kind, column: Kind) -> Typed:  # noqa: ARG001
    """`matrix[row, column:column + 4]`, rows contiguous, float64 or float32."""
    wide = matrix.dtype == types.float64
    held = _VECTOR if wide else ir.VectorType(ir.FloatType(), LANES)

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        offset = _row_offset(context, builder, signature.args[0], *arguments)
        place = _address(context, builder, signature.args[0], arguments[0], offset, held)
        value = builder.load(place, align=4)
        return value if wide else builder.fpext(value, _VECTOR)

    return _TYPE(matrix, types.int64, types.int64), generate


@operation
def store(typing: object, array: Kind, at: Kind, vector: Kind) -> Typed:  # noqa: ARG001
    """Set `array[at:at + 4]` of a contiguous float64 array."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        offset = builder.mul(arguments[1], ir.Constant(_INT64, 8))
        place = _address(context, builder, signature.args[0], arguments[0], offset, _VECTOR)
        builder.store(arguments[2], place, align=8)
        return context.get_dummy_value()

    return types.void(array, types.int64, _TYPE), generate


@operation
def store_row(typing: object, matrix: Kind, row: Kind, column: Kind, vector: Kind) -> Typed:  # noqa: ARG001
    """Set `matrix[row, column:column + 4]`, rows contiguous, float64."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        offset = _row_offset(context, builder, signature.args[0], *arguments[:3])
        place = _address(context, builder, signature.args[0], arguments[0], offset, _VECTOR)
        builder.store(arguments[3], place, align=8)
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64, _TYPE), generate


@operation
def add(typing: object, one: Kind, other: Kind) -> Typed:  # noqa: ARG001
    """The sum, lane by lane."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:  # noqa: ARG001
        return builder.fadd(*arguments)

    return _TYPE(_TYPE, _TYPE), generate


@operation
def fma(typing: object, one: Kind, other: Kind, term: Kind) -> Typed:  # noqa: ARG001
    """one · other + term, rounded once, lane by lane."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:  # noqa: ARG001
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        # fmuladd, not fma: a processor without the instruction multiplies and adds instead of calling a library
        multiply_add = _declare(builder.module, kind, "llvm.fmuladd.v4f64")
        return builder.call(multiply_add, arguments)

    return _TYPE(_TYPE, _TYPE, _TYPE), generate


def _four_sums(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value) -> ir.Value:
    """(a0 + a1) + (a2 + a3), and the same of b, c, d, in the lanes of one vector."""
    ab = builder.fadd(_shuffle(builder, a, b, (0, 4, 2, 6)), _shuffle(builder, a, b, (1, 5, 3, 7)))
    cd = builder.fadd(_shuffle(builder, c, d, (0, 4, 2, 6)), _shuffle(builder, c, d, (1, 5, 3, 7)))
    return builder.fadd(_shuffle(builder, ab, cd, (0, 1, 4, 5)), _shuffle(builder, ab, cd, (2, 3, 6, 7)))


@operation
def sums4(typing: object, a: Kind, b: Kind, c: Kind, d: Kind) -> Typed:  # noqa: ARG001
    """The sums of four vectors' lanes, as a vector."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:  # noqa: ARG001
        return _four_sums(builder, *arguments)

    return _TYPE(_TYPE, _TYPE, _TYPE, _TYPE), generate


@operation
def sum1(typing: object, vector: Kind) -> Typed:  # noqa: ARG001
    """The sum of the lanes, in the order of `sums4`."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:  # noqa: ARG001
        four = _four_sums(builder, *arguments, *arguments, *arguments, *arguments)
        return builder.extract_element(four, ir.Constant(_INT32, 0))

    return types.float64(_TYPE), generate


@operation
def transpose4(typing: object, a: Kind, b: Kind, c: Kind, d: Kind) -> Typed:  # noqa: ARG001
    """The four columns of the matrix whose rows are a, b, c, d."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        one, two, three, four = arguments
        pairs = (0, 4, 2, 6), (1, 5, 3, 7)
        (low, high), (left, right) = (
            [_shuffle(builder, x, y, lanes) for lanes in pairs] for x, y in ((one, two), (three, four))
        )
        columns = [
            _shuffle(builder, low, left, (0, 1, 4, 5)),
            _shuffle(builder, high, right, (0, 1, 4, 5)),
            _shuffle(builder, low, left, (2, 3, 6, 7)),
            _shuffle(builder, high, right, (2, 3, 6, 7)),
        ]
        return context.make_tuple(builder, signature.return_type, columns)

    return _FOUR(_TYPE, _TYPE, _TYPE, _TYPE), generate


@operation
def fetch(typing: object, matrix: Kind, row: Kind, offset: Kind) -> Typed:  # noqa: ARG001
    """Ask for the cache line `offset` bytes into a row; the values are not waited for, nor changed."""

    def generate(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        array, at, byte = arguments
        start = _row_offset(context, builder, signature.args[0], array, at, ir.Constant(_INT64, 0))
        place = _address(context, builder, signature.args[0], array, builder.add(start, byte), _BYTE)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT32, _INT32, _INT32])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE.as_pointer()], kind)
        # to read, into every level, data rather than instructions
        builder.call(prefetch, [place, *(ir.Constant(_INT32, k) for k in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), generate
