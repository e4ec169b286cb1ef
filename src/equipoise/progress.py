"""A progress bar that appears only when a job takes more than two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

__all__ = ["Progress", "quiet", "waiting"]

_PATIENCE = 2.0
_QUIET = ContextVar("quiet", default=False)


@contextmanager
def quiet(asked: bool = True) -> Iterator[None]:
    """Show nothing of what goes on inside, if asked."""
    token = _QUIET.set(asked or _QUIET.get())
    try:
        yield
    finally:
        _QUIET.reset(token)


class Progress:
    """Context manager; call `update` with the amount done so far."""

    def __init__(self, label: str, total: int | None, enabled: bool = True) -> None:
        self._label, self._total, self._enabled = label, total, enabled and not _QUIET.get()
        self._began = time.perf_counter()
        self._shown: tuple[Bar, TaskID] | None = None

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int, label: str | None = None, total: int | None = None) -> None:
        """Show that `done` of the total is done, and what goes on now and another total if these have changed."""
        if not self._enabled or (self._shown is None and time.perf_counter() - self._began < _PATIENCE):
            return
        bar, task = self._shown = self._shown or self._open()
        bar.update(task, completed=done, total=total, description=label or self._label)

    def _open(self) -> tuple[Bar, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn("{task.percentage:3.0f}%"),  # nothing, where the total is not known
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        # into a file or a pipe rich would write an empty line for every bar
        bar = Bar(*columns, console=console, transient=True, disable=not (console.is_terminal or console.is_jupyter))
        bar.start()
        return bar, bar.add_task(self._label, total=self._total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()


@contextmanager
def waiting(label: str, enabled: bool = True) -> Iterator[None]:
    """Say what goes on while something of unknown length takes more than two seconds."""
    with Progress(label, None, enabled) as bar:
        timer = threading.Timer(_PATIENCE, bar.update, (0,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
