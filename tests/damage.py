"""What may befall a file, for tests of those that must survive it: bits that flip, writers killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["flipped", "killed", "put"]


def put(path: Path, content: bytes) -> None:
    """Write a new file: some systems bring one that is written over to the disk at once, which takes long."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def flipped(whole: bytes, *bits: int) -> bytes:
    """The same bytes but for some bits."""
    changed = bytearray(whole)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def killed(write: Callable[[Callable[[], object]], None], times: int, most: int, pause: float, seed: int) -> Iterator:
    """Fork a process that calls `write(told)` for ever; kill it once it `told` up to `most` times, and after a moment."""
    rng = random.Random(seed)
    for kill in range(times):
        heard, told = os.pipe()
        child = os.fork()
        while not child:
            write(lambda told=told: os.write(told, b"."))
        os.close(told)
        for _ in range(rng.randrange(1, most + 1)):
            assert os.read(heard, 1), "the writer failed"
        time.sleep(rng.uniform(0.0, pause))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(heard)
        yield kill
