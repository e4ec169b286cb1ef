"""Ctrl-C between two rounds of a run instead of in the middle of one, so that all chains stand at the same step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["Interrupt", "interruptible"]


@dataclass
class Interrupt:
    """Whether somebody asked to stop."""

    asked: bool = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Note the first Ctrl-C instead of raising; a second one is for those in a hurry, and raises at once.

    Only the main thread is told of signals; elsewhere, and where somebody else handles them, nothing changes.
    """
    found = Interrupt()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield found
        return

    def note(number: int, frame: FrameType | None) -> None:
        if found.asked:
            signal.default_int_handler(number, frame)
        found.asked = True

    signal.signal(signal.SIGINT, note)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
