"""Predictions: the mean response at new rows with an interval from the draws, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.checks import nearest, shown
from equipoise.data.arrays import Rows, rows
from equipoise.errors import InvalidInput
from equipoise.families.response import Law, law_of
from equipoise.linalg import cores, fixed_order
from equipoise.models.glm import GLM
from equipoise.models.problem import Model

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.data.table import Design

__all__ = ["as_table", "new_rows", "observation_quantiles", "quantiles"]

# Linear predictors of one block: 16 MB on each thread.
_BLOCK = 1 << 21


def new_rows(
    given: object, names: tuple[str, ...], design: Design | None, offset: object
) -> tuple[Rows, pd.Index | None]:
    """New rows in the fitted columns, which must all be there, and the index of the table they came in (None for arrays)."""
    frame = as_table(given)
    index = None if frame is None else frame.index
    matrix = given
    if frame is not None and design is not None:
        if design.array_offset or offset is None:
            matrix, offset = design.encode(frame, offset)
        else:
            raise InvalidInput("offset", "left out for a table", "an offset", "put it in the table's offset column")
    elif frame is not None:
        matrix = _by_name(frame, names)
    found = rows(matrix, np.zeros(_count(matrix)), offset=offset)
    if found.dim != len(names):
        raise InvalidInput("X_new", f"with {len(names)} columns", f"{found.dim} columns", "match the fitted columns")
    return found, index


def as_table(given: object) -> pd.DataFrame | None:
    """A table as a DataFrame; None for what is no table."""
    import pandas as pd  # slow to import: only those who predict pay for it

    if isinstance(given, pd.DataFrame) or not callable(getattr(given, "to_pandas", None)):
        return given if isinstance(given, pd.DataFrame) else None

    from equipoise.data.frames import as_frame

    return as_frame(given)


def _count(matrix: object) -> int:
    """Rows, as far as that is known; what is no array is refused by its own check."""
    shape = getattr(matrix, "shape", None)
    if shape is None:
        return len(matrix) if isinstance(matrix, (list, tuple)) else 1
    return int(shape[0]) if shape else 1


def _by_name(frame: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    labels = [str(column) for column in frame.columns]
    absent = [name for name in names if name not in labels]
    if absent:
        raise InvalidInput(
            "X_new", "a table with the fitted columns", f"none named {shown(absent)}",
            nearest(absent[0], labels) or "rename its columns, or pass X_new.to_numpy() to match them by position",
        )  # fmt: skip
    if any(labels.count(name) > 1 for name in names):
        raise InvalidInput("X_new", "a table of distinct columns", "two columns of one name", "rename them")
    return frame.iloc[:, [labels.index(name) for name in names]]


def quantiles(model: Model, new: Rows, draws: Array, probabilities: tuple[float, float]) -> Array:
    """Quantiles of the mean response at every row, (2, M): those of `np.quantile`, with linear interpolation.

    The mean response rises with the linear predictor, so order statistics of the one are those of the other: only the
    few that are interpolated between are transformed.
    """
    ranks = np.array(probabilities) * (len(draws) - 1)
    below = np.floor(ranks).astype(int)

    def one(block: Rows) -> Array:
        eta = block.x @ draws.T  # each row's predictors in one piece of memory
        shift = 0.0 if block.offset is None else block.offset
        found = []
        for rank, k in zip(ranks, below, strict=True):
            low, high = (model.mean_response(part + shift) for part in _neighbours(eta, int(k)))
            found.append(low + (rank - k) * (high - low))
        return np.stack(found)

    return _by_blocks(one, new, len(draws))


def _by_blocks(one: Callable[[Rows], Array], new: Rows, draws: int) -> Array:
    """What is made of each block of rows and all draws, on all cores."""
    size = max(1, _BLOCK // draws)
    parts = [new.take(slice(start, start + size)) for start in range(0, new.n, size)]
    with fixed_order(), ThreadPoolExecutor(cores()) as pool:
        return np.concatenate(list(pool.map(one, parts)), axis=1)


def _neighbours(eta: Array, k: int) -> tuple[Array, Array]:
    """The k-th and the next smallest number of every row, which is reordered.

    One partition and a maximum: NumPy partitions at several places at a fourth of the speed.
    """
    if k + 1 == eta.shape[1]:
        return eta.max(axis=1), eta.max(axis=1)
    eta.partition(k + 1, axis=1)
    return eta[:, : k + 1].max(axis=1), eta[:, k + 1].copy()


# Draws that the law of a new observation is an average over: the response's own spread hides what more would add.
_MIXED = 1000
_HALVINGS = 60  # of an interval of numbers, until it is one of them


def observation_quantiles(model: GLM, new: Rows, draws: Array, probabilities: tuple[float, float]) -> Array:
    """Quantiles of a new response at every row, (2, M): of its law by the model, averaged over the draws."""
    law, p = law_of(model.family), np.array([model.constant or 0.0])
    some = draws[:: -(-len(draws) // _MIXED)]

    def one(block: Rows) -> Array:
        eta = block.x @ some.T
        mu = model.family.mean(eta if block.offset is None else eta + block.offset[:, None])

        def below(y: Array) -> Array:
            return np.asarray(law.cdf(y[:, None], mu, p).mean(axis=1))

        find = _whole_quantile if law.quantile is None else _quantile
        return np.stack([find(law, q, mu, p, below) for q in probabilities])

    return _by_blocks(one, new, len(some))


def _quantile(law: Law, q: float, mu: Array, p: Array, below: Callable[[Array], Array]) -> Array:
    """Between the quantiles of the draws with the smallest and the largest mean."""
    assert law.quantile is not None
    low, high = (law.quantile(q, end, p) for end in (mu.min(axis=1), mu.max(axis=1)))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        short = below(middle) < q
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return 0.5 * (low + high)


def _whole_quantile(law: Law, q: float, mu: Array, p: Array, below: Callable[[Array], Array]) -> Array:  # noqa: ARG001
    """The smallest count with at least that probability."""
    low, high = np.full(len(mu), -1.0), np.maximum(1.0, np.ceil(mu.max(axis=1)))
    while (short := below(high) < q).any():
        low, high = np.where(short, high, low), np.where(short, 2.0 * high, high)
    while (apart := high - low > 1.0).any():
        middle = np.where(apart, np.floor(0.5 * (low + high)), high)
        short = apart & (below(middle) < q)
        low, high = np.where(short, middle, low), np.where(short | ~apart, high, middle)
    return high
