"""The examples run as anyone would run them, and say what they are there to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
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


@pytest.mark.slow
def test_network(tmp_path) -> None:
    pytest.importorskip("jax")
    out = run(tmp_path, "network.py", "--smoke")
    assert "InfeasibleTarget" in out  # for copies
    assert "27 directions carry gradient noise" in out
    assert "calibrated: True" in out


@pytest.mark.study
def test_digits(tmp_path) -> None:
    pytest.importorskip("jax")
    out = run(tmp_path, "digits.py", "--ess", "50", "--epochs", "20", "--subspaces", "--figure", "digits.svg")
    assert "107,062 parameters" in out
    assert "last layer: 330 coordinates" in out
    found = {line[:22].strip(): [float(word) for word in line[22:].split()] for line in out.splitlines()[-4:]}
    # the chain carries the posterior's shape, which the normal law at its minimum has not
    assert found["last layer, chain"][1] < 0.8 * found["last layer, normal"][1]
    assert (tmp_path / "digits.svg").exists()


def test_what_is_measured_of_predictions(monkeypatch) -> None:
    """Scores of probabilities that can be worked out by hand."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import digits_common as common

    y = np.array([0, 0, 1, 1])
    sure = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    even = np.full((4, 2), 0.5)
    assert common.log_loss(even, y) == pytest.approx(np.log(2.0))
    assert common.calibration_error(sure, y) == pytest.approx(0.25)  # sure of all, right in three of four
    assert common.calibration_error(even, y) == pytest.approx(0.0)
    assert common.detection(sure, even) == 1.0
    found: dict = {}
    for p in (even, sure):
        common.keep(found, "one", {"usual": p, "rotated": even, "noisy": sure}, y)
    assert found["one"]["accuracy"] == [0.5, 0.75]
    assert "0.6250 ± 0.1250" in common.table(found)
    images = np.linspace(0.0, 1.0, 64)[None]
    turned = common.shown(images)["rotated"].reshape(8, 8)
    np.testing.assert_allclose(turned, np.rot90(images.reshape(8, 8)), atol=1e-12)


@pytest.mark.torch
def test_digits_in_torch(tmp_path) -> None:
    pytest.importorskip("torch")
    out = run(tmp_path, "digits_torch.py", "--steps", "400", "--epochs", "5", "--rank", "0")
    assert "330 of them, the last layer, sampled" in out
    assert "last layer, own loop" in out.splitlines()[-1]
    assert "LOOK" not in out


@pytest.mark.slow
def test_sgld_step(tmp_path) -> None:
    """A guess is off by what was predicted, the matrix is not."""
    out = run(tmp_path, "sgld_step.py", "figure.svg")
    assert (tmp_path / "figure.svg").exists()
    found = [
        [float(word.strip(",();")) for word in line.split() if word.strip(",();").replace(".", "").isdigit()]
        for line in out.splitlines()
    ]
    for first, second, *predicted in (line[-5:-1] for line in found):
        assert abs(first / predicted[0] - 1.0) < 0.1
        assert abs(second / predicted[1] - 1.0) < 0.1
    assert max(abs(ratio - 1.0) for ratio in found[2][-5:-3]) < 0.05


def test_demo(tmp_path) -> None:
    """Errors by clinic are larger where they should be, and the draws have them; every stage is timed."""
    out = run(tmp_path, "demo.py", "--rows", "40000")
    assert "Reminders do nothing in these data" in out
    assert "LOOK" not in out
    ratio = {
        line.split("│")[1].strip(): float(line.split("│")[-2].strip(" ×")) for line in out.splitlines() if "×" in line
    }
    assert ratio["reminder"] > 1.2
    assert 0.8 < ratio["age"] < 1.2
    for stage in ("simulate", "scan", "plan", "calibrate", "report"):
        assert f"│ {stage}" in out
    assert (tmp_path / "out" / "demo.html").exists()
    again = run(tmp_path, "demo.py", "--rows", "40000")  # from the files of the first run
    same = [text.partition("Calibrated")[2].partition("What it took")[0] for text in (out, again)]
    assert same[0] == same[1]
