"""Loaders whose batches are drawn as a tuning's dynamics say, and a look at loaders that may not be."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from equipoise.checks import flag, one_of, whole
from equipoise.errors import InvalidInput
from equipoise.theory.dynamics import Dynamics

__all__ = ["loader", "require_matching"]


class _Batches:
    """Row numbers of the batches of one pass; a new pass has new ones."""

    def __init__(self, n: int, size: int, batches: str, replacement: bool, drop_last: bool, seed: int) -> None:
        self.n, self.size, self.batches, self.replacement = n, size, batches, replacement
        self.drop_last, self.seed, self.passes = drop_last, seed, 0

    def __len__(self) -> int:
        if self.batches == "epochs" and not self.drop_last:
            return -(-self.n // self.size)
        return self.n // self.size

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng([self.seed, self.passes])
        self.passes += 1
        if self.batches == "epochs":
            order = rng.permutation(self.n)
            for k in range(len(self)):
                yield order[k * self.size : (k + 1) * self.size].tolist()
            return
        for _ in range(len(self)):
            yield rng.choice(self.n, size=self.size, replace=self.replacement).tolist()


def loader(
    dataset: Dataset[Any],
    batch_size: int,
    batches: str = "independent",
    drop_last: bool = False,
    seed: int = 0,
    *,
    replacement: bool = True,
    **options: Any,
) -> DataLoader[Any]:
    """A `DataLoader` whose batches match `eq.Dynamics(batch_size, batches=..., replacement=..., drop_last=...)`.

    Parameters
    ----------
    dataset
        A map-style dataset.
    batch_size
        Rows per step.
    batches
        `"independent"`: every batch is drawn from all rows, whatever was drawn before; one pass has N // batch_size of
        them. `"epochs"`: one permutation per pass, as with `shuffle=True`.
    drop_last
        Whether epochs leave out an incomplete last batch.
    seed
        Of the batches; each pass draws anew.
    replacement
        Whether the rows of an independent batch are drawn with replacement.
    **options
        Others of `DataLoader`, such as `num_workers`.
    """
    n, size = len(cast(Sized, dataset)), whole("batch_size", batch_size, 1, "pass an int such as 100")
    one_of("batches", batches, ("independent", "epochs"))
    if size > n:
        raise InvalidInput("batch_size", f"at most the number of rows, {n}", size, "choose a smaller batch")
    sampler = _Batches(
        n,
        size,
        batches,
        flag("replacement", replacement),
        flag("drop_last", drop_last),
        whole("seed", seed, 0, "pass an int"),
    )
    return DataLoader(dataset, batch_sampler=sampler, **options)


def require_matching(given: object, dynamics: Dynamics) -> None:
    """Refuse a loader whose batches have another law than the one that was tuned for, as far as that can be seen."""
    sampler, size = getattr(given, "batch_sampler", None), None
    kind = drop_last = replacement = None
    ragged = False
    if isinstance(sampler, _Batches):
        size, kind, drop_last, replacement = sampler.size, sampler.batches, sampler.drop_last, sampler.replacement
    elif isinstance(sampler, BatchSampler):
        size, drop_last = sampler.batch_size, sampler.drop_last
        if isinstance(sampler.sampler, SequentialSampler):
            kind = "fixed"
        elif isinstance(sampler.sampler, RandomSampler):
            replacement = sampler.sampler.replacement
            kind = "independent" if replacement else "epochs"
            ragged = not drop_last and len(sampler.sampler) % size > 0
    if kind == "fixed":
        raise InvalidInput(
            "loader", "one that draws its batches", "rows in their own order, again and again", "use eqt.loader(...)"
        )
    if kind is not None and kind != dynamics.batches:
        words = {
            "epochs": "shuffle=True, one permutation per pass, whose batches make up for one another",
            "independent": "independent batches",
        }
        remedy = (
            f"tune for eq.Dynamics(..., batches='epochs'), or use eqt.loader(dataset, {dynamics.batch_size})"
            if kind == "epochs"
            else f"use eqt.loader(dataset, {dynamics.batch_size}, batches='epochs'), or tune for independent batches"
        )
        raise InvalidInput("loader", f"of the tuning's batches={dynamics.batches!r}", words[kind], remedy)
    if size is not None and size != dynamics.batch_size:
        raise InvalidInput("loader", f"of the tuning's {dynamics.batch_size} rows a batch", f"{size}", "match the two")
    if kind == "independent" and (ragged or replacement != dynamics.replacement):
        raise InvalidInput(
            "loader", f"of the tuning's {dynamics.batch_size} rows a batch, drawn with replacement={dynamics.replacement}",
            "a smaller last batch" if ragged else f"replacement={replacement}",
            f"use eqt.loader(dataset, {dynamics.batch_size}, replacement={dynamics.replacement})",
        )  # fmt: skip
    if kind == "epochs" and bool(drop_last) != dynamics.drop_last:
        raise InvalidInput("loader", f"of the tuning's drop_last={dynamics.drop_last}", drop_last, "match the two")
