"""From a loss to machine code: bind it into the loop, name the result after all it depends on, keep it on disk."""

from __future__ import annotations

import hashlib
import pickle
import re
import warnings
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any, cast

import numba
import numpy as np
from numba.core import caching, serialize
from numba.core.registry import cpu_target

from equipoise.engines.numba.exponential import exponential
from equipoise.engines.numba.kernel import (
    EXACT,
    add_nothing,
    draw_any,
    draw_distinct,
    fetch_nothing,
    fetch_rows,
    lift_rows,
    run,
)
from equipoise.engines.random import add_normals, compiled
from equipoise.errors import EquipoiseWarning
from equipoise.families.family import ScalarFunction, exp

__all__ = ["MOST_CONSTANTS", "bound_loop", "compile_helper", "kernel", "lifter"]

# Up to this many constants of a loss are passed by value: the compiler then knows that no store changes them and
# takes what depends on them alone, such as a logarithm, out of the loop. Longer ones are tables.
MOST_CONSTANTS = 8
# Numba is not typed.
_CodeFile: Any = caching.CompileResultCacheImpl
_FolderCache: Any = caching.FunctionCache
_pickled: Any = serialize.dumps
# Whether the user knows that the cache cannot be used.
_TOLD: list[str] = []
_LIFT = cast(Any, numba.types).Tuple((numba.types.float64[::1], numba.types.int64[::1]))


def compile_helper(value: Any) -> Any:
    """Compile a plain Python function with all it calls, which Numba would refuse; leave the rest alone."""
    if value is exp:
        return exponential
    return compiled(cast(Any, _bind(value))) if isinstance(value, FunctionType) else value


def _bind(function: Any, **names: Any) -> FunctionType:
    """A copy of the function in which globals `names` have other values and plain functions are compiled."""
    cells = tuple(CellType(compile_helper(cell.cell_contents)) for cell in function.__closure__ or ())
    scope = {**function.__globals__, **names}
    scope |= {name: compile_helper(scope[name]) for name in function.__code__.co_names if name in scope}
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)


def _feed(digest: Any, item: Any) -> None:
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
        digest.update(f"{type(item)} {getattr(item, '__name__', item)}".encode())


def _signature(constants: int, storage: str) -> Any:
    """Argument types of `run`, fixed so that a loss is compiled once whatever the layout of the caller's arrays."""
    types = cast(Any, numba.types)
    real, whole, word = types.float64, types.int64, types.uint64
    cells = types.Array(types.float32 if storage == "float32" else real, 2, "A")
    few = types.UniTuple(real, constants) if constants else types.Tuple(())
    held = few if constants <= MOST_CONSTANTS else real[::1]
    model = types.Tuple((cells, real[:, :], held, real[:, ::1]))
    guard = types.Tuple((real, real[:, ::1], real))
    scratch = types.Tuple((word[::1], types.uint32[::1], word[::1], *3 * (real[::1],)))
    arguments = model, guard, types.UniTuple(real, 2), real[::1], real[::1], word[::1], scratch
    result = types.Tuple((whole, whole, whole, types.boolean))
    return result(*arguments, types.UniTuple(whole, 4), types.UniTuple(whole, 3), _LIFT, real[:, :])


@lru_cache(maxsize=64)
def kernel(
    name: str,
    derivative: ScalarFunction,
    constants: int,
    storage: str = "float64",
    replacement: bool = True,
    noisy: bool = True,
    ahead: bool = True,
) -> Any:
    """Compile `run` for one loss, or load it from Numba's cache on disk.

    Numba names a cache file after the function and numbers the versions inside: two processes that compile
    different losses at once can take one number and later load each other's code, and a change in a function
    that is called goes unnoticed. So the name holds a digest of all that the machine code depends on.

    Parameters
    ----------
    name, derivative
        The loss's name, for the file, and its first derivative.
    constants
        How many constants it takes; of more than `MOST_CONSTANTS` the number does not matter.
    storage
        The type rows are held in.
    replacement, noisy, ahead
        How rows are drawn, whether noise is injected and rows are asked for ahead of their use: what a chain does not
        use is not compiled.
    """
    loop = bound_loop(derivative, replacement, noisy, ahead)
    return _on_disk(loop, f"run_{re.sub('[^a-z]', '_', name)}", _signature(constants, storage))


def bound_loop(derivative: ScalarFunction, replacement: bool = True, noisy: bool = True, ahead: bool = True) -> Any:
    """`run` with everything it leaves open, still to be compiled."""
    draw, shake = draw_any if replacement else draw_distinct, add_normals if noisy else add_nothing
    fetch_ahead = fetch_rows if ahead else fetch_nothing
    return _bind(run, derivative=derivative, draw=draw, shake=shake, fetch_ahead=fetch_ahead)


@lru_cache(maxsize=1)
def lifter() -> Any:
    """Compile `lift_rows`, or load it."""
    types = cast(Any, numba.types)
    positions = types.Array(types.float64, 2, "A", readonly=True)
    return _on_disk(_bind(lift_rows), "lift", types.void(positions, _LIFT, types.float64[:, :]))


def _on_disk(function: Any, name: str, signature: Any) -> Any:
    """Compile, or load what was compiled; without a cache that can be used, compile in memory and say so."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.sha256(f"{numba.__version__} {processor} {signature} {sorted(EXACT.items())} sealed".encode())
    _feed(digest, function)
    function.__name__ = function.__qualname__ = f"{name}_{digest.hexdigest()[:20]}"
    dispatcher = numba.njit(**EXACT)(function)
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

    def reduce(self, cres: Any) -> tuple[bytes, bytes]:
        code = _pickled(super().reduce(cres))
        return self._seal(code), code

    def rebuild(self, target_context: Any, payload: tuple[bytes, bytes]) -> Any:
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

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever unpickling meets in a damaged file
            _tell(f"a file in {self.cache_path} cannot be read: {_first_line(error)}")
            return self._forget()

    def save_overload(self, sig: Any, data: Any) -> None:
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
        warnings.warn(
            f"NUMBA_CACHE_DIR: the compiled loop cannot be kept on disk or taken from there ({reason}). It was compiled in "
            "memory, which takes seconds in each process. To fix: empty that folder, make room on its disk, or set "
            "NUMBA_CACHE_DIR to another.",
            EquipoiseWarning,
            stacklevel=2,
        )
