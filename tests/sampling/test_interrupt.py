"""Ctrl-C ends a run between two rounds, keeps what was done, and says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from equipoise.sampling.interrupt import interruptible

SCRIPT = """
    import sys, numpy as np, equipoise as eq
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(400), rng.normal(size=(400, 2))])
    y = rng.poisson(np.exp(0.2 * x.sum(axis=1))).astype(float)
    m = eq.moments(eq.glm("poisson"), (x, y), eq.fit(eq.glm("poisson"), (x, y)))
    tuning = eq.tune(m, "sandwich", eq.Dynamics(40))
    print("ready", flush=True)
    run = eq.sample(eq.glm("poisson"), (x, y), tuning, draws=int(sys.argv[1]), chains=2, thin=300, burn_in=0,
                    progress=False, checkpoint=sys.argv[2], checkpoint_seconds=1000.0)
    np.save(sys.argv[3], run.draws)
"""


@pytest.fixture(autouse=True)
def _listening():
    """A job that a shell runs in the background ignores Ctrl-C, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(tmp_path, draws, checkpoint):
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, script, str(draws), checkpoint, tmp_path / f"{checkpoint.name}.npy"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_draws(tmp_path) -> None:
    draws = 20_000
    run = start(tmp_path, draws, tmp_path / "stopped.ckpt")
    assert run.stdout.readline() == "ready\n"
    time.sleep(1.5)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "stopped at step" in errors
    assert "run again to go on" in errors
    assert sorted(os.listdir(tmp_path)) == ["run.py", "stopped.ckpt"]  # no leftovers
    for name in ("stopped.ckpt", "whole.ckpt"):
        run = start(tmp_path, draws, tmp_path / name)
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    np.testing.assert_array_equal(np.load(tmp_path / "stopped.ckpt.npy"), np.load(tmp_path / "whole.ckpt.npy"))


def test_a_second_one_is_for_those_in_a_hurry() -> None:
    with interruptible() as found:
        signal.raise_signal(signal.SIGINT)
        assert found.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
