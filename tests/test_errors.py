"""Errors come back from other processes as they were raised."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import equipoise as eq


@pytest.mark.parametrize(
    "error",
    [
        eq.InvalidInput("a", "positive", -1, "pass 1"),
        eq.FitFailed("no", ("x",), np.eye(2)),
        eq.InfeasibleTarget("no", 3.0, np.eye(2)),
        eq.UnstableStep(1.2, 0.4),
        eq.ChainDiverged(1, 20, None),
        eq.CheckpointMismatch("other run"),
        eq.EquipoiseError("plain"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_survive_a_process(error) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__.keys() == error.__dict__.keys()
    for name, value in error.__dict__.items():
        assert np.array_equal(getattr(back, name), value)
