"""Seeded runs have the same bits in another process, and what differs between interpreters is told."""

from __future__ import annotations

import platform
import runpy
import sys
from pathlib import Path

import pytest

BITS = runpy.run_path(str(Path(__file__).with_name("bits.py")))


def test_another_process_has_the_same_bits(capsys) -> None:
    assert BITS["compare"]([sys.executable, sys.executable]) == []
    assert capsys.readouterr().out.count("9 digests") == 2


def test_differences_are_told(monkeypatch) -> None:
    told = {
        "one": {"python": "3.11", "packages": "numpy 2", "digests": {"a: draws": "1", "a: step": "2"}},
        "other": {"python": "3.12", "packages": "numpy 3", "digests": {"a: draws": "9", "a: step": "2"}},
    }
    monkeypatch.setitem(BITS["compare"].__globals__, "_run", told.__getitem__)
    assert BITS["compare"](["one", "other"]) == [
        "other: other packages (numpy 3, not numpy 2)",
        "other: a: draws differs",
    ]


def test_interpreters_are_found_by_version() -> None:
    own = ".".join(platform.python_version_tuple()[:2])
    found = BITS["find"](own)
    if found is None:
        pytest.skip(f"python{own} is not on the path")
    assert Path(found).exists()
    assert BITS["find"]("2.99") is None
