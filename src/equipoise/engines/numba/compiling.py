"""From a loss to machine code: bind it into the loop, name the result after all it depends on, keep it on disk."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Protocol, cast

import numba
import numpy as np
from numba.core import caching, serialize
from numba.core.registry import cpu_target
from numpy.typing import NDArray

from equipoise.arrays import Array, Words
from equipoise.engines.numba.arguments import Chain, Clock, Ellipsoid, Lift, Recursion, Scratch, Share
from equipoise.engines.numba.exponential import exponential, log_one_plus
from equipoise.engines.numba.foresight import fill, foresee, foretell
from equipoise.engines.numba.kernel import EXACT, Fetch, Pull, fetch_rows, lift_rows, pull_diagonal, run
from equipoise.engines.numba.table import Cells
from equipoise.engines.random import add_normals, compiled, jit
from equipoise.engines.rules import Draw, Shake, Urn, draw_any
from equipoise.errors import warn
from equipoise.families.family import ScalarFunction, exp, log1p

__all__ = [
    "MOST_CONSTANTS",
    "TYPES",
    "bound",
    "bound_loop",
    "compile_helper",
    "filler",
    "foreseer",
    "foreteller",
    "kernel",
    "lifter",
    "on_disk",
    "unchecked",
]

# Up to this many constants of a loss are passed by value: the compiler then knows that no store changes them and
# takes what depends on them alone, such as a logarithm, out of the loop. Longer ones are tables.
MOST_CONSTANTS = 8
# Numba says that it is typed, and is not: any module, any class to derive from.
TYPES: ModuleType = numba.types
_CodeFile: Any = caching.CompileResultCacheImpl
_FolderCache: Any = caching.FunctionCache
_pickled: Callable[[object], bytes] = serialize.dumps
Loop = Callable[
    [Cells, Array, Recursion, Ellipsoid, Chain, Urn, Scratch, Clock, Share, Lift, Array], tuple[int, int, int, bool]
]
# Whether the user knows that the cache cannot be used.
_TOLD: list[str] = []


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def compile_helper(value: object) -> object:
    """Compile a plain Python function with all it calls, which Numba would refuse; leave the rest alone."""
    if value is exp or value is log1p:
        return exponential if value is exp else log_one_plus
    return compiled(bound(value)) if isinstance(value, FunctionType) else value


def bound(function: FunctionType, **names: object) -> FunctionType:
    """A copy of the function in which globals `names` have other values and plain functions are compiled."""
    cells = tuple(CellType(compile_helper(cell.cell_contents)) for cell in function.__closure__ or ())
    scope = {**function.__globals__, **names}
    scope |= {name: compile_helper(scope[name]) for name in function.__code__.co_names if name in scope}
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)


def _feed(digest: _Digest, item: object) -> None:
    """Add to the digest what the compiled form of `item` depends on: code, options, constants, globals it names."""
    for option, value in sorted(getattr(item, "targetoptions", {}).items()):
        digest.update(f"{option} {sorted(value) if isinstance(value, set) else value}".encode())
    # a dispatcher's function, an intrinsic's, or the thing itself
    item = getattr(item, "py_func", getattr(item, "_defn", item))
    if isinstance(item, FunctionType):
        cells = [cell.cell_contents for cell in item.__closure__ or ()]
        for part in [item.__code__, *map(item.__globals__.get, item.__code__.co_names), *cells]:
            _feed(digest, part)
    elif isinstance(item, CodeType):
        digest.update(item.co_code)
        for part in [item.co_names, item.co_varnames, *item.co_consts]:
            _feed(digest, part)
    elif isinstance(item, np.ndarray):
        digest.update(item.tobytes())
    else:
        # of a class of tuples, the order of its fields too
        digest.update(f"{type(item)} {getattr(item, '__name__', item)} {getattr(item, '_fields', '')}".encode())


def _named(kind: type, *fields: object) -> object:
    """The compiler's type of a named tuple."""
    return TYPES.BaseTuple.from_types(fields, kind)


def _lift_type() -> object:
    return _named(Lift, TYPES.float64[::1], TYPES.int64[::1])


def _urn_type() -> object:
    whole, words, numbers = TYPES.int64, TYPES.uint64[::1], TYPES.uint32[::1]
    return _named(Urn, whole, whole, numbers, words, words, words, numbers, whole)


def _signature(constants: int, storage: str) -> object:
    """Argument types of `run`, fixed so that a loss is compiled once whatever the layout of the caller's arrays."""
    real, whole, word = TYPES.float64, TYPES.int64, TYPES.uint64
    reals, words = real[::1], word[::1]
    cells = TYPES.Array(TYPES.float32 if storage == "float32" else real, 2, "A")
    few = TYPES.UniTuple(real, constants) if constants else TYPES.Tuple(())
    arguments = (
        cells,
        real[:, :],
        _named(Recursion, few if constants <= MOST_CONSTANTS else reals, real[:, ::1], real, reals),
        _named(Ellipsoid, real, real[:, ::1], real),
        _named(Chain, reals, reals, words),
        _urn_type(),
        _named(Scratch, words, whole[::1], reals, reals, reals),
        _named(Clock, whole, whole, whole, whole),
        _named(Share, whole, whole, whole),
        _lift_type(),
        real[:, :],
    )
    result = TYPES.Tuple((whole, whole, whole, TYPES.boolean))
    return result(*arguments)


@lru_cache(maxsize=64)
def kernel(
    name: str,
    derivative: ScalarFunction,
    constants: int,
    storage: str = "float64",
    draw: Draw = draw_any,
    shake: Shake = add_normals,
    fetch: Fetch = fetch_rows,
    pull: Pull = pull_diagonal,
) -> Loop:
    """Compile `run` for one loss, or load it from Numba's cache on disk.

    Numba names a cache file after the function and numbers the versions inside: two processes that compile different
    losses at once can take one number and later load each other's code, and a change in a function that is called goes
    unnoticed. So the name holds a digest of all that the machine code depends on.

    The loss has a name, for the file, its first derivative and a number of constants, which does not matter beyond
    `MOST_CONSTANTS`; `storage` is the type rows are held in. How rows are drawn, which noise is injected, whether rows
    are asked for ahead of their use and what the prior is like: see `equipoise.engines.rules`. What a chain does not use
    is not compiled.
    """
    loop = bound_loop(derivative, draw, shake, fetch, pull)
    made = on_disk(loop, f"run_{re.sub('[^a-z]', '_', name)}", _signature(constants, storage))
    return cast(Loop, made)


@lru_cache(maxsize=64)
def unchecked(loop: Loop) -> Loop:
    """The machine code of a loop, without Numba's look at the types of its arguments, which takes 7 µs in Python.

    For arguments of types with which the loop was called before, and no others.
    """
    (made,) = cast(_Dispatcher, loop).overloads.values()
    return made.entry_point


def bound_loop(
    derivative: ScalarFunction,
    draw: Draw = draw_any,
    shake: Shake = add_normals,
    fetch: Fetch = fetch_rows,
    pull: Pull = pull_diagonal,
) -> FunctionType:
    """`run` with everything it leaves open, still to be compiled."""
    return bound(cast(FunctionType, run), derivative=derivative, draw=draw, shake=shake, fetch_ahead=fetch, pull=pull)


@lru_cache(maxsize=1)
def lifter() -> Callable[[Array, Lift, Array], None]:
    """Compile `lift_rows`, or load it."""
    positions = TYPES.Array(TYPES.float64, 2, "A", readonly=True)
    signature = TYPES.void(positions, _lift_type(), TYPES.float64[:, :])
    made = on_disk(bound(cast(FunctionType, lift_rows)), "lift", signature)
    return cast(Callable[[Array, Lift, Array], None], made)


@lru_cache(maxsize=8)
def foreseer(draw: Draw, shake: Shake) -> Callable[[Words, int, int, Urn, Words, Array, Words, int], int]:
    """Compile `foresee` for a way to draw and a noise, or load it."""
    real, whole, words = TYPES.float64[::1], TYPES.int64, TYPES.uint64[::1]
    signature = whole(words, whole, whole, _urn_type(), words, real, words, whole)
    made = on_disk(bound(cast(FunctionType, foresee), draw=draw, shake=shake), "foresee", signature)
    return cast(Callable[[Words, int, int, Urn, Words, Array, Words, int], int], made)


@lru_cache(maxsize=8)
def foreteller(
    draw: Draw, shake: Shake
) -> Callable[[Words, int, Urn, NDArray[np.uint64], Array, NDArray[np.uint64]], None]:
    """Compile `foretell` for a way to draw and a noise, or load it."""
    real, whole, word = TYPES.float64[::1], TYPES.int64, TYPES.uint64
    signature = TYPES.void(word[::1], whole, _urn_type(), word[:, ::1], real, word[:, ::1])
    made = on_disk(bound(cast(FunctionType, foretell), draw=draw, shake=shake), "foretell", signature)
    return cast(Callable[[Words, int, Urn, NDArray[np.uint64], Array, NDArray[np.uint64]], None], made)


@lru_cache(maxsize=8)
def filler(draw: Draw, shake: Shake) -> Callable[[Words, int, Urn, NDArray[np.int32], NDArray[np.int32], Array], None]:
    """Compile `fill` for a way to draw and a noise, or load it."""
    small = TYPES.int32
    arguments = TYPES.uint64[::1], TYPES.int64, _urn_type(), small[:, ::1], small[::1], TYPES.float64[:, ::1]
    made = on_disk(bound(cast(FunctionType, fill), draw=draw, shake=shake), "fill", TYPES.void(*arguments))
    return cast(Callable[[Words, int, Urn, NDArray[np.int32], NDArray[np.int32], Array], None], made)


class _Overload(Protocol):
    entry_point: Loop


class _Dispatcher(Protocol):
    """What is used of Numba's dispatchers."""

    _cache: object
    overloads: Mapping[object, _Overload]

    def compile(self, sig: object) -> object: ...

    def disable_compile(self) -> None: ...


def on_disk(function: FunctionType, name: str, signature: object) -> _Dispatcher:
    """Compile, or load what was compiled; without a cache that can be used, compile in memory and say so."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    fields = [getattr(kind, "fields", ()) for kind in getattr(signature, "args", ())]
    text = f"{numba.__version__} {processor} {signature} {fields} {sorted(EXACT.items())} sealed"
    digest = hashlib.sha256(text.encode())
    _feed(digest, function)
    function.__name__ = function.__qualname__ = f"{name}_{digest.hexdigest()[:20]}"
    dispatcher = cast(_Dispatcher, jit(function, EXACT))
    try:
        # what njit(cache=True) does, with a cache that takes no fault for granted
        dispatcher._cache = _Cache(function)
    except (RuntimeError, OSError):
        _tell("there is no folder it may be kept in")
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


class _Sealed(_CodeFile):  # type: ignore[misc]
    """Compiled code in a file, with a digest: changed code would run all the same."""

    def reduce(self, cres: object) -> tuple[bytes, bytes]:
        code = _pickled(super().reduce(cres))
        return self._seal(code), code

    def rebuild(self, target_context: object, payload: tuple[bytes, bytes]) -> object:
        seal, code = payload
        if seal != self._seal(code):
            raise ValueError("a file was changed")
        return super().rebuild(target_context, pickle.loads(code))

    def _seal(self, code: bytes) -> bytes:
        # the name is in it, so that no other function's code is taken for this one's
        return hashlib.blake2b(self.filename_base.encode() + b"\n" + code, digest_size=32).digest()


class _Cache(_FolderCache):  # type: ignore[misc]
    """Numba's cache on disk, of which no fault stops a run."""

    _impl_class = _Sealed

    def load_overload(self, sig: object, target_context: object) -> object:
        try:
            return super().load_overload(sig, target_context)
        except ModuleNotFoundError:  # code with a family of someone's own in it, which was not imported from a file
            return None
        except Exception as error:  # whatever unpickling meets in a damaged file
            _tell(f"a file in {self.cache_path} cannot be read: {_first_line(error)}")
            self._forget()
            return None

    def save_overload(self, sig: object, data: object) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, a folder that was taken away
            _tell(f"a file in {self.cache_path} cannot be written: {_first_line(error)}")

    def _forget(self) -> None:
        """Empty the index, so that what is compiled now takes the place of what is damaged."""
        try:
            self.flush()
        except OSError:
            self.disable()


def _first_line(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return text.splitlines()[0][:100]


def _tell(reason: str) -> None:
    """Say once in a process why there is no cache: each loop would meet the same."""
    if not _TOLD:
        _TOLD.append(reason)
        warn(
            f"NUMBA_CACHE_DIR: the compiled loop cannot be kept on disk or taken from there ({reason}). It was compiled in "
            "memory, which takes seconds in each process. To fix: empty that folder, make room on its disk, or set "
            "NUMBA_CACHE_DIR to another."
        )
