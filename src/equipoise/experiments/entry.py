"""What an experiment is: a caption, jobs that can run anywhere, and what to make of their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

from equipoise.experiments.designs import SETTINGS
from equipoise.experiments.numbers import Claim, Numbers, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Curves", "Entry", "Job", "Result", "Scale"]

T = TypeVar("T")


class Job(TypedDict, total=False):
    """One piece of work, in plain values; which there are depends on the entry."""

    setting: str
    run: str
    kind: str
    panel: str
    dataset: str
    loss: str
    batch: str
    size: int
    dim: int
    step: float
    ratio: float
    decay: float
    prior: float
    repetition: int


class Curves(TypedDict, total=False):
    """What a figure needs of one job besides numbers, in plain values."""

    dataset: str
    batch: str
    step: float
    center: list[float]
    ellipses: dict[str, list[list[float]]]
    variances: dict[str, list[float]]


class Result(TypedDict, total=False):
    """What came of a job: rows and curves with the time they took and the job's number, or why there are none."""

    rows: list[Row]
    curves: Curves
    seconds: float
    index: int
    missing: str
    failed: str


@dataclass(frozen=True)
class Scale:
    """How much to run: repetitions of every cell, by which settings, with the German credit file and a seed of it all.

    `smoke` asks for small sizes: whether everything works and the orderings of the theory show.
    """

    smoke: bool = False
    repetitions: int = 30
    settings: tuple[str, ...] = SETTINGS
    german: Path | None = None
    seed: int = 0

    def pick(self, full: T, smoke: T) -> T:
        """The value for this scale."""
        return smoke if self.smoke else full


@dataclass(frozen=True)
class Entry:
    """One table or figure.

    Attributes
    ----------
    name, title, caption
        What it is called and what it shows.
    jobs
        The independent pieces of work at a scale, as plain values.
    run
        Does one: `rows` (see `measure.row`) and, for some figures, `curves`.
    claims
        What the numbers say about the paper's claims.
    draw
        Draws the figure into a matplotlib figure, from the numbers and the curves of all jobs.
    alone
        Whether it measures time, and so must not share the machine with other jobs.
    tabulated
        Metrics shown in the summary tables.
    """

    name: str
    title: str
    caption: str
    jobs: Callable[[Scale], list[Job]]
    run: Callable[[Job, Scale], Result]
    claims: Callable[[Numbers, list[Curves]], list[Claim]]
    draw: Callable[[Figure, Numbers, list[Curves]], None] | None = None
    alone: bool = False
    tabulated: tuple[str, ...] = field(default=("covariance_error", "calibration_error"))
