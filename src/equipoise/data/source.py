"""Where rows are: the protocol every source of rows fulfils, and the sums over its blocks.

A source hands out its rows in blocks of bounded memory and fixed order, adds up what a function makes of each block,
and draws samples. Nothing else touches whole arrays, so that rows in memory, in files or on a cluster are one thing.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.checks import whole
from equipoise.errors import ClusterLost, InvalidInput
from equipoise.linalg import Sums, cores, fixed_order, tree_sum

if TYPE_CHECKING:
    from equipoise.data.marks import Marks
    from equipoise.data.table import Design

__all__ = [
    "Executor",
    "Source",
    "chosen_rows",
    "cores",
    "digest_of",
    "drawn_rows",
    "drawn_shares",
    "in_order",
    "ordered_reduce",
]

Block = TypeVar("Block")
Result = TypeVar("Result")
# Blocks below which starting threads costs more than it saves.
_WORTH_THREADS = 4
# Branches of the tree of sums that a thread is given, one after the other: enough that the last ones end together.
_BRANCHES = 8


class Source(Protocol[Block]):
    """Rows of one data set, in a fixed order."""

    @property
    def n(self) -> int:
        """Number of observations: of rows, each as often as it counts."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        ...

    @property
    def response(self) -> str:
        """What the response is called."""
        ...

    @property
    def design(self) -> Design | None:
        """How a table became columns; None for arrays."""
        ...

    @property
    def marks(self) -> Marks | None:
        """Clusters and times beside the rows, if any; of rows that are elsewhere, what they are called."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether a pass over the rows reads them from memory, and costs little."""
        ...

    def blocks(self, width: int | None = None) -> Iterator[Block]:
        """The rows in order, in blocks; `width` is how many numbers a pass makes of each row, if more than it has."""
        ...

    def reduce(self, f: Callable[[Block], Sums], width: int | None = None) -> Sums:
        """The sum of f over the blocks, in a tree of fixed shape: no bit depends on threads. f is picklable."""
        ...

    def sample(self, count: int, seed: int | None) -> Source[Block]:
        """So many observations drawn without replacement, in their original order, in memory.

        Without a seed, those that cost least to get at, which are random too.
        """
        ...

    def pool(self, count: int, seed: int, weight: Callable[[Block], Array] | None = None) -> Source[Block]:
        """So many observations drawn with replacement, in the order in which they are drawn, in memory.

        All are as likely, or each in proportion to the weight that a function gives it, block by block.
        """
        ...

    def fingerprint(self) -> str:
        """A digest that changes with any row."""
        ...

    def marked(self, clusters: object = None, time: object = None) -> Source[Block]:
        """The same rows with clusters and times beside them (`Marks` of every block), by name or as arrays."""
        ...

    def by_time(self) -> Source[Block]:
        """The same rows in the order of their times; where they cannot be sorted, as they are."""
        ...


def ordered_reduce(parts: Sequence[Block], f: Callable[[Block], Sums], threads: int | None = None) -> Sums:
    """Σ f(part), on threads when there are parts enough; the order of the sums is that of the parts.

    BLAS is held to one thread meanwhile: a product's order of summation would depend on its number. `f` makes a named
    tuple of arrays and floats of a block, all of them new. By default there is a thread for every core that this process
    may use.
    """
    workers = threads or cores()
    with fixed_order():
        if len(parts) < _WORTH_THREADS or workers == 1:
            return tree_sum(map(f, parts))
        # whole branches of the tree, since a thread that is given every block by itself waits as long as it works
        run = 1 << max(0, (len(parts) // (_BRANCHES * workers)).bit_length() - 1)
        branches = [parts[start : start + run] for start in range(0, len(parts), run)]
        with ThreadPoolExecutor(workers) as pool:
            return tree_sum(in_order(pool, branches, lambda branch: tree_sum(map(f, branch)), len(branches)))


class Executor(Protocol):
    """Whatever runs a function elsewhere: threads, processes, the client of a cluster."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Start fn(*args); what is returned has a method `result`."""
        ...


@dataclass(frozen=True)
class _Made(Generic[Block, Result]):
    """f with its caller's settings about overflow, which threads and processes do not inherit."""

    f: Callable[[Block], Result]
    settings: Mapping[str, Any]

    def __call__(self, part: Block) -> Result:
        """What f makes of a part."""
        with np.errstate(**self.settings):
            return self.f(part)


def in_order(pool: Executor, parts: Iterable[Block], f: Callable[[Block], Result], waiting: int) -> Iterator[Result]:
    """Results in the order of the parts, at most so many of them under way; no more are started after a failure."""
    ahead: deque[Any] = deque()
    made = _Made(f, np.geterr())
    try:
        for part in parts:
            ahead.append(pool.submit(made, part))
            if len(ahead) >= waiting:
                yield _arrived(ahead.popleft())
        while ahead:
            yield _arrived(ahead.popleft())
    except BrokenExecutor as error:
        raise ClusterLost(
            "executor: a process of the pool ended before its work was done, or could not start. To fix: make a new pool, and "
            "run the same again, with a smaller memory= if processes ran out of it; with checkpoint=, finished passes are not "
            "repeated."
        ) from error
    finally:
        for future in ahead:
            future.cancel()


def _arrived(future: Any) -> Any:
    """A result; where what makes it could not be sent to another process, what to do."""
    try:
        return future.result()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise InvalidInput(
            "executor", "threads, or one that all functions and data can be sent to", str(error).partition("\n")[0][:200],
            "write the functions of source= and context= in a module, with def in place of lambda, or leave executor= out",
        ) from error  # fmt: skip


def chosen_rows(n: int, count: int, seed: int) -> Index:
    """Numbers of `count` rows of n drawn without replacement, ascending."""
    count = whole("count", count, 1, "pass an int such as 10_000")
    if count > n:
        raise InvalidInput("count", f"between 1 and the number of rows, {n}", count, "choose a size in that range")
    return np.sort(np.random.default_rng(seed).choice(n, size=count, replace=False))


def drawn_rows(n: int, count: int, seed: int) -> Index:
    """Numbers of `count` rows of n drawn with replacement, in the order in which they are drawn."""
    count = whole("count", count, 1, "pass an int such as 10_000")
    return np.random.default_rng(seed).integers(0, n, size=count)


def drawn_shares(count: int, seed: int) -> Array:
    """Random numbers between 0 and 1, for draws by weight."""
    return np.random.default_rng(seed).random(whole("count", count, 1, "pass an int such as 10_000"))


def digest_of(arrays: Iterable[NDArray[np.generic] | None]) -> str:
    """A digest of types, shapes and every number."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(b"none" if array is None else f"{array.dtype} {array.shape}".encode())
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
