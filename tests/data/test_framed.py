"""Tables that a function makes, and functions of the user's where they cannot go."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pytest

import equipoise as eq
from equipoise import InvalidInput


def test_frames_that_differ_from_those_before_are_named_by_number(frame) -> None:
    first, last = frame[:200], frame[200:]

    def scanned(other, **options):
        return eq.data.scan(lambda: iter([first, first[:0], other]), "y ~ a + g", **options)

    with pytest.raises(InvalidInput, match=r"\['a'\], which it does not have, in frame 3 of the function"):
        scanned(last.drop(columns="a"))
    with pytest.raises(
        InvalidInput, match=r"^a: must be a column of numbers, .* got a column of text, in frame 3 of the func"
    ):
        scanned(last.assign(a="b"))
    assert scanned(last.assign(a=1, g=last.g.astype("category"))).n == len(frame)
    with pytest.warns(eq.EquipoiseWarning, match="300 of 500 rows"):
        assert scanned(last.assign(a=None), missing="drop").n == 200
    for made in (frame, pa.table(frame)):
        with pytest.raises(
            InvalidInput, match=r"source: must be a function that returns .*; got one .*return \[frame\]"
        ):
            eq.data.scan(lambda made=made: made, "y ~ a")


def test_functions_that_cannot_be_sent_to_other_processes(frame) -> None:
    table, square = pa.table(frame), {"square": lambda v: v**2}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for source, formula in ((lambda: iter([frame]), "y ~ a"), (table, "y ~ square(a)")):
            with pytest.raises(InvalidInput, match=r"^executor: .*pickle.*in a module, with def in place of lambda"):
                eq.data.scan(source, formula, context=square, executor=pool)
    with ThreadPoolExecutor(1) as pool:
        assert eq.data.scan(table, "y ~ square(a)", context=square, executor=pool).n == len(frame)
