"""Binding: a model meets its rows once, and every verb takes the problem that comes of it, or the two of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from glob import has_magic
from os.path import getsize, isdir, isfile
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from equipoise.checks import checked_options, shown
from equipoise.data.cluster import is_dask
from equipoise.data.files import is_streamed
from equipoise.data.scanned import Scan
from equipoise.data.scanning import scan
from equipoise.data.table import table
from equipoise.errors import InvalidInput
from equipoise.linalg import in_fixed_order
from equipoise.models.problem import CUSTOM, Model, Problem

__all__ = ["Verb", "bind", "checked", "verb"]

# Bytes of a file that is no longer read at once.
_LARGE = 200_000_000

P = ParamSpec("P")
R = TypeVar("R")
_R = TypeVar("_R", covariant=True)


@checked_options
def bind(
    model: object,
    data: object = None,
    *,
    formula: str | None = None,
    weights: object = None,
    frequency: object = None,
    offset: object = None,
    missing: str = "raise",
    context: Mapping[str, Callable[..., object]] | None = None,
    clusters: object = None,
    time: object = None,
    trials: object = None,
    memory: str | int = "1GB",
    executor: object = None,
) -> Problem:
    """Bind a model to its data, once for all verbs.

    Data are checked here and nowhere else. A constant that is estimated (a gaussian scale, say) is settled by the first
    verb that needs it, and carried by all that is made from it.

    Parameters
    ----------
    model
        From `eq.glm` or `eq.Model`; a problem that is bound already is returned as it is.
    data
        `(X, y)`, a source from `eq.data`, a pytree of arrays for a loss of your own; or together with `formula` a DataFrame,
        a path, or paths, a glob, a folder or a dataset as `eq.data.scan` takes them. What is small is read whole, what is
        large at every pass.
    formula, weights, frequency, offset, trials, missing, context
        How to read a table: see `eq.data.table` and `eq.data.scan`.
    clusters, time
        To which clusters rows belong and when they were observed, for targets that ask: column names of a table, names
        a source keeps, or arrays.
    memory, executor
        What reading files may take, and where they are read: see `eq.data.scan`.

    Returns
    -------
    Problem

    Raises
    ------
    InvalidInput
        If the data do not fit the model.

    Examples
    --------
    >>> import equipoise as eq
    >>> problem = eq.bind(eq.glm("poisson"), ([[1.0], [1.0], [1.0]], [1, 2, 3]))
    >>> problem.n, problem.names
    (3, ('x0',))
    """
    if isinstance(model, Problem):
        if data is not None or formula is not None:
            raise InvalidInput(
                "data", "left out for a problem that is bound already", shown(type(data)), "leave it out"
            )
        return model if clusters is None and time is None else model.marked(clusters, time)
    if isinstance(model, type) or not isinstance(model, Model):
        given = getattr(model, "__name__", None) or shown(model)
        remedy = "make one with eq.glm(...), such as eq.glm('poisson'), or eq.Model(...)"
        raise InvalidInput("model", "a model or a bound problem", given, remedy)
    if data is None:
        raise InvalidInput(
            "data", "given with a model", "None (NoneType)", "pass (X, y), a table, or a problem from eq.bind"
        )
    if formula is not None:
        beside = {"weights": weights, "frequency": frequency, "offset": offset, "trials": trials}
        marks = {"clusters": clusters, "time": time}
        how = {**beside, **marks, "missing": missing, "context": context}
        return _bound(model, data, formula, how, memory, executor)
    own = model.title.name == CUSTOM
    problem = model.bind(_source(data, own, weights, frequency, offset, trials))
    return problem if clusters is None and time is None else problem.marked(clusters, time)


def _bound(
    model: Model, data: object, formula: str, options: Mapping[str, Any], memory: str | int, executor: object
) -> Problem:
    """A model and a table by a formula: rows in memory if it is small, a scan if it is not."""
    if isinstance(data, Scan):
        raise InvalidInput("formula", "left out for a scan, which has its own", shown(formula), "leave it out")
    if executor is None and not _is_large(data):
        return model.bind(table(data, formula, **options))
    source = scan(data, formula, **options, memory=memory, executor=executor)
    # the rows that a formula makes of large files may be small
    if not held_whole(source):
        return model.bind(source)
    try:
        return model.bind(source.marked().whole())
    except InvalidInput:
        model.bind(source)  # names rows by their file
        raise


def held_whole(source: Scan[Any]) -> bool:
    """Whether its rows are few enough beside the memory for reading to be read once for all."""
    return source.executor is None and source.size <= source.memory // 4


def _is_large(data: object) -> bool:
    """Whether a table is read by a scan: several files, a dataset, streams, or a file that is large or of another kind."""
    if isinstance(data, (str, Path)):
        if not isfile(data):
            return isdir(data) or has_magic(str(data))
        return getsize(data) > _LARGE or Path(data).suffix.lower() in {".arrow", ".feather", ".ipc", ".gz"}
    paths = isinstance(data, (list, tuple)) and all(isinstance(item, (str, Path)) for item in data)
    return paths or hasattr(data, "get_fragments") or is_dask(data) or is_streamed(data)


def _source(data: object, own: bool, *beside: object) -> object:
    """Data that need no formula; a loss of the user's own takes tables as they are."""
    table = hasattr(data, "columns") and not own
    if isinstance(data, (str, Path)) or table:
        raise InvalidInput("formula", "given for a table", None, "pass formula='y ~ x', or (X, y) arrays")
    if any(given is not None for given in beside):
        raise InvalidInput(
            "weights, frequency, offset, trials",
            "column names that go with a formula",
            "no formula",
            "use eq.data.observations(data, weights=..., frequency=...)"
            if own
            else "use eq.data.rows(X, y, weights=..., frequency=..., offset=...)",
        )
    return data


class Verb(Protocol[P, _R]):
    """A function of a bound problem that also takes a model and its data in place of it."""

    @overload
    def __call__(self, problem: Problem, /, *args: P.args, **kwargs: P.kwargs) -> _R: ...

    @overload
    def __call__(self, model: Model, data: object, /, *args: P.args, **kwargs: P.kwargs) -> _R: ...


def verb(function: Callable[Concatenate[Problem, P], R]) -> Verb[P, R]:
    """Let a function of a problem take `(model, data)` instead; options are checked, and BLAS held to one thread.

    With a model, it takes the options of `bind` too, such as `formula=`. Of an option that does not exist the nearest is
    named.
    """
    inner: Callable[..., R] = checked(function)
    own = inspect.signature(function)
    _, *others = own.parameters.values()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    pair = [inspect.Parameter("model", kind), inspect.Parameter("data", kind)]
    reading = [name for name in inspect.signature(bind).parameters if name not in own.parameters]

    @wraps(function)
    def called(*args: object, **kwargs: object) -> R:
        given = list(args)
        if not given:
            given.append(kwargs.pop("problem", kwargs.pop("model", None)))
        if isinstance(given[0], Problem):
            return inner(*given, **kwargs)
        data = given.pop(1) if len(given) > 1 else kwargs.pop("data", None)
        how: dict[str, Any] = {name: kwargs.pop(name) for name in reading if name in kwargs}
        return inner(bind(given[0], data, **how), *given[1:], **kwargs)

    called.__signature__ = own.replace(parameters=[*pair, *others])  # type: ignore[attr-defined]
    return cast(Verb[P, R], called)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Name a misspelt option or a missing argument instead of raising a bare TypeError; hold BLAS to one thread."""
    return checked_options(in_fixed_order(function))
