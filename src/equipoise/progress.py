"""A progress bar that appears only when a job takes more than two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

__all__ = ["Progress", "waiting"]

_PATIENCE = 2.0


class Progress:
    """Context manager; call `update` with the amount done so far."""

    def __init__(self, label: str, total: int | None, enabled: bool = True) -> None:
        self._label, self._total, self._enabled = label, total, enabled
        self._began = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int) -> None:
        """Show that `done` of the total is done."""
        if not self._enabled or (self._bar is None and time.perf_counter() - self._began < _PATIENCE):
            return
        if self._bar is None:
            self._open()
        self._bar.update(self._task, completed=done)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            TimeRemainingColumn(),
        )
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._label, total=self._total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


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
