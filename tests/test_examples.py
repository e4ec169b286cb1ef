"""The examples run as anyone would run them, and say what they are there to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(tmp_path: Path, name: str, *options: str) -> str:
    """What an example prints; warnings are errors there as here, and files it writes go elsewhere."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *options]
    # one BLAS thread: threads that wait for a busy core are slower than none
    settings = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, env=settings, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_softmax(tmp_path) -> None:
    pytest.importorskip("jax")
    out = run(tmp_path, "softmax.py")
    assert "97% of 36 held-out wines" in out
    assert "ok    covariance" in out


def test_network(tmp_path) -> None:
    pytest.importorskip("jax")
    out = run(tmp_path, "network.py", "--smoke")
    assert "FitFailed" in out  # without a prior
    assert "27 directions carry gradient noise" in out
    assert "calibrated: True" in out


def test_demo(tmp_path) -> None:
    out = run(tmp_path, "demo.py")
    assert "The posterior's intervals are 2.7 times too narrow" in out
    assert (tmp_path / "out" / "demo.html").exists()
