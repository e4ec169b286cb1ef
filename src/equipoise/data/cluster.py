"""Rows on a cluster: the client of a Dask scheduler as an executor, and the partitions of a Dask DataFrame as parts.

Parts travel to workers as references (a file and row groups, a partition's recipe), sums or chosen rows come back. Results
are taken in the order of the parts, so that no bit depends on which worker made them, or on how often one had to start anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from equipoise.data.parts import Part
from equipoise.data.wording import brief
from equipoise.errors import ClusterLost, InvalidInput

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.data.source import Executor

__all__ = [
    "ClusterExecutor",
    "PartitionPart",
    "as_executor",
    "client_of",
    "connected",
    "is_dask",
    "partitions",
    "require_table",
    "slots_of",
]

# Tasks under way for every thread of the cluster: the next one is there when a worker is done.
_AHEAD = 2
# Seconds after which to look whether anybody is at work, and how long a cluster may be without workers.
_LOOK, _PATIENCE = 10.0, 300.0
# How often to start anew what Dask gives up: it does where four workers died, whoever killed them.
_ANEW = 2


def as_executor(given: object) -> Executor | None:
    """Anything with `submit`, and nothing else; the client of a Dask cluster in a coat that says what went wrong."""
    if given is None or isinstance(given, ClusterExecutor):
        return given
    if not callable(getattr(given, "submit", None)):
        raise InvalidInput(
            "executor", "a dask.distributed.Client, or anything with submit", type(given).__name__,
            "pass Client(address), or leave it out for threads",
        )  # fmt: skip
    if not hasattr(given, "scheduler_info"):
        return given  # type: ignore[return-value]
    client: Any = given
    if getattr(client, "asynchronous", False):
        given, remedy = "one with asynchronous=True", "make one without, outside of an event loop"
    elif getattr(client, "status", "running") == "closed":
        given, remedy = "one that was closed", "make a new one"
    else:
        return ClusterExecutor(client)
    raise InvalidInput("executor", "a client that waits for its results, and is connected", given, remedy)


def slots_of(executor: Executor, otherwise: int) -> int:
    """How many tasks to have under way."""
    return executor.slots if isinstance(executor, ClusterExecutor) else otherwise


@dataclass(frozen=True)
class ClusterExecutor:
    """A Dask client; a scan that is pickled leaves it behind."""

    client: Any

    @property
    def threads(self) -> int:
        """Threads of all workers that are there."""
        try:
            return sum(self.client.nthreads().values())
        except Exception as error:  # whatever a connection that is gone raises
            raise _lost(error) from error

    @property
    def slots(self) -> int:
        """Tasks that the cluster has use for at a time."""
        return _AHEAD * max(1, self.threads)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> _Pending:
        """Start fn(*args) on some worker."""
        try:
            return _Pending(self.client, fn, args)
        except Exception as error:  # whatever a connection that is gone raises
            raise _lost(error) from error

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()


def _nothing() -> None:
    return


class _Pending:
    """A result to come from a worker."""

    def __init__(self, client: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._client, self._args = client, args
        self._start = partial(client.submit, fn, *args, pure=False)
        self._future = self._start()

    def result(self) -> Any:
        """What was made; what the function raised, as it is; `ClusterLost` for what the cluster did."""
        from asyncio import CancelledError
        from concurrent.futures import CancelledError as Cancelled

        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        try:
            found = self._awaited()
        except KilledWorker as error:
            raise ClusterLost(
                f"executor: the workers that read {_label(self._args)} died one after the other. To fix: look into their "
                "logs; if they ran out of memory, pass a smaller memory= or give them more."
            ) from error
        except (CancelledError, Cancelled, CommClosedError, TimeoutError) as error:
            raise _lost(error) from error
        # a worker need not keep what has arrived
        self._future.release()
        return found

    def _awaited(self) -> Any:
        """The result, for as long as somebody can be at work on it."""
        from distributed.scheduler import KilledWorker

        anew = 0
        while True:
            failed = self._future.status == "error"
            try:
                return self._future.result(timeout=_LOOK)
            except KilledWorker:
                if anew == _ANEW:
                    raise
                anew += 1
                self._future = self._start()
            except TimeoutError:
                # a task that is done may have to be done again: its result dies with the worker that holds it
                if failed:  # it is what the task raised, not what waiting for it did
                    raise
                _require_workers(self._client)

    def cancel(self) -> None:
        """It is not needed."""
        with suppress(Exception):
            self._future.cancel()


def _label(args: tuple[Any, ...]) -> str:
    """What is read in a task: a part, or one with its place, its number or marks of rows."""
    items = [item for job in args for item in (job if isinstance(job, tuple) else (job,))]
    parts = (getattr(item, "part", item) for item in items)
    return next((part.label for part in parts if isinstance(part, Part)), "a part of the data")


def _require_workers(client: Any) -> None:
    """Wait until there is a worker; one that starts them itself is asked for those it has given up."""
    if ClusterExecutor(client).threads:
        return
    cluster: Any = getattr(client, "cluster", None)
    if hasattr(cluster, "worker_spec"):
        # after 15 seconds without a worker Dask forgets it, also one that came back and died anew
        cluster.scale(len(cluster.worker_spec))
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError as error:
        raise ClusterLost(
            f"executor: the Dask cluster has no worker, and had none for {_PATIENCE:g} seconds. To fix: start workers, and "
            "run the same again; with checkpoint=, finished passes are not repeated."
        ) from error


def _lost(error: BaseException) -> ClusterLost:
    return ClusterLost(
        f"executor: the connection to the Dask scheduler was lost ({_first_line(error) or type(error).__name__}). To fix: "
        "start the cluster again, and run the same with a new client; with checkpoint=, finished passes are not repeated."
    )


def _first_line(error: BaseException) -> str:
    """What happened, without the name of the task that it happened to."""
    return str(error).partition("\n")[0].rpartition("cancelled for reason: ")[2][:120]


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The client of a scheduler that answers, or of processes that are started here for `"local"` and end with it."""
    try:
        import distributed
    except ImportError as error:
        raise InvalidInput("dask", "installed for this", "no module", "run pip install 'equipoise[dask]'") from error
    tools: Any = distributed
    try:
        if address == "local":
            client = tools.Client(dashboard_address=":0", threads_per_worker=1)
        else:
            client = tools.Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InvalidInput(
            "dask", "'local', or the address of a scheduler that answers", f"{address} ({_first_line(error)})",
            "check that it runs, for example tcp://10.0.0.1:8786",
        ) from error  # fmt: skip
    with client:
        yield client


# --- Dask DataFrames ----------------------------------------------------------------------------------


def is_dask(source: object) -> bool:
    """Whether it is a Dask DataFrame."""
    return type(source).__module__.startswith("dask.dataframe") and hasattr(source, "npartitions")


def client_of(source: object, executor: Executor | None) -> Executor | None:
    """Where to read it: as asked for, or by the client that is active where a Dask DataFrame is given."""
    if executor is not None or not is_dask(source):
        return executor
    try:
        import distributed

        here: Any = distributed
        return ClusterExecutor(here.default_client())
    except (ImportError, ValueError):
        return None


def require_table(source: object) -> None:
    """Raise if a Dask collection is a column, and not a table."""
    if not hasattr(source, "columns") or getattr(source, "ndim", 2) != 2:
        raise InvalidInput(
            "source", "a Dask DataFrame", f"a Dask {type(source).__name__}", "pass a DataFrame with all columns"
        )


def partitions(source: Any, columns: Sequence[str]) -> tuple[PartitionPart, ...]:
    """The partitions of a Dask DataFrame, of the columns that are needed.

    Those in the memory of a cluster are refused: they have no recipe to be made by again.
    """
    from dask import config, optimization

    tools: Any = optimization
    present = [name for name in columns if name in source.columns]
    # rows that are exchanged between workers as a whole could not be made by one of them
    with config.set({"dataframe.shuffle.method": "tasks"}):
        try:
            every = source[present].to_delayed(optimize_graph=True)
        except Exception:
            # Dask cannot take columns of every frame: of one after .categorize() it stumbles over its own index
            every = source.to_delayed(optimize_graph=True)
    parts = []
    for k, delayed in enumerate(every):
        recipe, _ = tools.cull(dict(delayed.__dask_graph__()), delayed.key)
        if any(type(task).__name__ == "Future" for task in recipe.values()):
            raise InvalidInput(
                "source", "a Dask DataFrame that says how its partitions are made", "one that was persisted",
                "pass the frame that was read, before .persist()",
            )  # fmt: skip
        if any("shuffle-barrier" in str(key) for key in recipe):
            # chosen when the frame was made
            raise InvalidInput(
                "source", "a Dask DataFrame of which one worker can make a partition", "one whose rows workers exchange (p2p)",
                'make it inside of with dask.config.set({"dataframe.shuffle.method": "tasks"})',
            )  # fmt: skip
        parts.append(PartitionPart(recipe, delayed.key, f"partition {k}"))
    return tuple(parts)


@dataclass(frozen=True)
class PartitionPart:
    """One partition of a Dask DataFrame: the recipe it is made by, on whichever worker reads it."""

    recipe: Mapping[Any, Any]
    key: Any
    label: str
    first: int = 0
    count: None = None
    identity: None = None

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
        """Slices of the columns."""
        from dask.local import get_sync

        from equipoise.data.frames import as_frame, picked

        try:
            frame = get_sync(self.recipe, self.key)
        except InvalidInput:
            raise
        except Exception as error:  # whatever the recipe does
            given = f"{self.label} raised {type(error).__name__}: {brief(error, 200)}"
            raise InvalidInput(
                "source", "a Dask DataFrame that can be computed", given, "compute() it, and see why"
            ) from error
        if not hasattr(frame, "columns"):
            given = f"{self.label}, which is {type(frame).__name__}"
            raise InvalidInput("source", "made of partitions that are DataFrames", given, "check how they are made")
        if len(frame) == 0:
            return
        chosen = picked(as_frame(frame), columns).reset_index(drop=True)
        for start in range(0, len(chosen), rows):
            yield chosen.iloc[start : start + rows]
