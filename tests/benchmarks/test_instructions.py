"""The guard on instruction counts reads callgrind's dumps, sees a slower kernel, and says what it needs."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks import instructions


def dump(name: str, steps: int, total: int) -> str:
    return f"version: 1\ndesc: Trigger: Client Request: {name}|{steps}\nsummary: 99\ntotals: {total}\n"


def test_instructions_per_step_are_a_difference() -> None:
    name = "poisson, B=200"
    short, long = instructions.lengths(name)
    found = instructions.per_step(
        [
            dump(name, long, 5000 + 15 * long),
            dump(name, short, 5000 + 15 * short),
            "desc: Trigger: Program termination\n",
        ]
    )
    assert found == {name: 15.0}


def test_more_instructions_are_told_and_fewer_are_not() -> None:
    told = instructions.judge({"a": 103.0, "b": 101.0, "c": 50.0, "new": 1.0}, {"a": 100.0, "b": 100.0, "c": 100.0})
    assert told == ["a: 103 instructions a step, 100 before"]


def test_a_missing_valgrind_is_said(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="valgrind is not installed"):
        instructions.count(["gaussian, B=16"])


def test_every_kernel_has_a_figure_and_runs() -> None:
    stored = json.loads(instructions.FIGURES.read_text(encoding="utf-8"))
    assert set(stored["figures"]) == set(instructions.KERNELS)
    assert "numba" in stored["compiler"]
    draws = instructions.kernel("poisson, B=16, control variates")(20)
    assert draws.shape == (2, instructions.COLUMNS)
