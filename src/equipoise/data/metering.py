"""What goes on while files are read: rows counted, a progress bar by passes, and finished passes kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

from equipoise.data.ledger import Ledger
from equipoise.progress import Progress

__all__ = ["Meter", "reading"]


class Meter:
    """Counts the rows that were read, for all copies of a scan."""

    def __init__(self, rows: int = 0) -> None:
        self.rows, self.ledger = rows, None
        self._listener, self._lock = None, threading.Lock()
        self._seen, self._seconds = 0, 0.0

    _listener: Callable[[int], None] | None
    ledger: Ledger | None

    def add(self, rows: int) -> None:
        """Count rows that were read."""
        with self._lock:
            self.rows += rows
            self._seen += rows
            if self._listener is not None:
                self._listener(self.rows)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Take the time of a pass."""
        began, before = time.perf_counter(), self._seen
        yield
        with self._lock:
            # of the last pass: the first ones find files that the system does not hold yet, and decode other columns
            self._seconds = (time.perf_counter() - began) / max(1, self._seen - before)

    def pass_seconds(self, size: int) -> float:
        """What a pass over so many rows takes, by the last one."""
        return self._seconds * size

    @contextmanager
    def watched(self, size: int, passes: float | None, label: str, enabled: bool) -> Iterator[None]:
        """Show passes over `size` rows, of which so many are expected; inside of another such, nothing more is shown.

        Without a number of passes it is a single one, whose size may be unknown, 0.
        """
        if self._listener is not None or not enabled:
            yield
            return
        began, first = time.perf_counter(), self.rows
        with Progress(label, int((passes or 1) * size) or None, enabled) as bar:

            def listen(rows: int) -> None:
                done = rows - first
                speed = done / max(1e-9, time.perf_counter() - began)
                words, total = "" if size else f", {done:,} rows", None
                if passes is not None:
                    turn = max(1, ceil(done / size))
                    words = f", pass {turn} of about {max(turn, round(passes))}"
                    total = int(max(turn, passes) * size)  # there may be more passes than foreseen
                bar.update(done, f"{label}{words}, {speed / 1e6:.3g} million rows/s", total)

            self._listener = listen
            try:
                yield
            finally:
                self._listener = None

    def __reduce__(self) -> tuple[Callable[[], Meter], tuple[()]]:
        # a copy counts for itself
        return Meter, ()


@contextmanager
def reading(
    source: Any, passes: float, label: str, enabled: bool = True, checkpoint: str | Path | None = None
) -> Iterator[None]:
    """Show a stage that reads files so many times, and keep its finished passes; of rows in memory, nothing happens."""
    meter: Meter | None = getattr(source, "meter", None)
    if meter is None:
        yield
        return
    before = meter.ledger
    if checkpoint is not None and before is None:
        meter.ledger = Ledger(Path(f"{checkpoint}.passes"))
    try:
        with meter.watched(source.read_rows, passes, label, enabled):
            yield
    finally:
        meter.ledger = before
