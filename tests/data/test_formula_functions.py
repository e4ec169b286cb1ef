"""Functions of the user's in formulas: their values, what goes into them, and what may not be one."""

from __future__ import annotations

import json
import re

import formulaic
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.data.design import Design
from tests.data.conftest import assert_same, mixed


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return mixed(60, 1)


def squash(column: pd.Series, by: float = 1.0, word: str = "", up: bool = False) -> pd.Series:
    assert isinstance(by, float)
    return np.tanh(column / by) + (1.0 if up else 0.0) + len(word)


def test_functions_of_the_users(frame) -> None:
    formula = "y ~ squash(x) + I(2 * squash(z, by=2.0, word='ab', up=True)) + wave(center(x))"
    made = eq.data.table(frame, formula, context={"squash": squash, "wave": np.sin, "unused": abs})
    centred = frame["x"] - frame["x"].mean()
    expected = [np.tanh(frame["x"]), 2 * (np.tanh(frame["z"] / 2.0) + 3.0), np.sin(centred)]
    np.testing.assert_allclose(made.x[:, 1:], np.column_stack(expected), rtol=1e-14)
    assert set(made.design.context) == {"squash", "wave"}
    new, _ = made.design.encode(frame.iloc[:5])
    np.testing.assert_allclose(np.asarray(new), made.x[:5], rtol=1e-14)


def test_a_design_with_functions_of_the_users_cannot_be_saved(frame) -> None:
    made = eq.data.table(frame, "y ~ squash(x)", context={"squash": squash})
    with pytest.raises(eq.InvalidInput, match=r"context: must be empty for a design to be saved; got .*squash"):
        made.design.to_json()
    # and what was saved cannot ask for one
    record = json.loads(eq.data.table(frame, "y ~ log(x)").design.to_json())
    with pytest.raises(eq.InvalidInput, match="the function squash"):
        Design.from_json(json.dumps({**record, "formula": "y ~ squash(x)"}))


@pytest.mark.parametrize(
    "context",
    [
        {"log": np.log}, {"np": np.log}, {"contr": np.log}, {"_f": np.log}, {"__f__": np.log}, {"f.g": np.log},
        {"lambda": np.log}, {"ｆ": np.log}, {3: np.log}, {"f": 3}, {"f": pd.Series}, {"f": np}, {"f": "log"},
        {"f": formulaic.transforms.scale}, [np.log], "log",
    ],
)  # fmt: skip
def test_only_plain_functions_under_plain_names(frame, context) -> None:
    with pytest.raises(eq.InvalidInput, match=r"^context: must be "):
        eq.data.table(frame, "y ~ x", context=context)


@pytest.mark.parametrize(
    "formula",
    ["y ~ f(x.values)", "y ~ f(**x)", "y ~ f(*x)", "y ~ f(x, _state=z)", "y ~ f", "y ~ f.__globals__(x)", "y ~ f(f)(x)",
     "y ~ f(lambda: x)", "y ~ f(None, x)", "y ~ f(x, [1])", "y ~ I(f)", "y ~ f.g(x)"],
)  # fmt: skip
def test_what_goes_into_them_is_checked_too(frame, formula) -> None:
    with pytest.raises(eq.InvalidInput, match=r"^formula: must be "):
        eq.data.table(frame, formula, context={"f": lambda *a, **k: a[0]})


def test_what_they_return_must_be_numbers(frame) -> None:
    with pytest.raises(eq.InvalidInput, match=r"formula: must be applicable to the table.*no good"):
        eq.data.table(frame, "y ~ f(x)", context={"f": lambda _: _fail()})
    with pytest.raises(eq.InvalidInput, match=r"formula: must be finite in every term.*f\(x\).*undefined"):
        eq.data.table(frame, "y ~ f(x)", context={"f": lambda x: x * np.nan})


ACROSS = {
    "less": lambda v: v - v.mean(),
    "running": lambda v: v.cumsum(),
    "ranked": lambda v: v.rank(),
    "sorted_": lambda v: np.sort(v),
    "share": lambda v: v / v.max(),
    "above": lambda v: v - v.min(),
    "mean": lambda v: v.mean(),
    "place": lambda v: np.arange(len(v)),
    "groups": lambda v, by: v.groupby(by).transform("mean"),
    "noise": lambda v: v + np.random.default_rng().normal(size=len(v)),
    "number": lambda v: np.asarray(v.index, float),
    "few": lambda v: np.unique(v),
    "half": lambda v: np.where(v > v.median(), "a", "b"),
    "both": lambda v: {"one": v, "other": v - v.mean()},
    "inside": lambda v: v.__isub__(v.mean()),
}


@pytest.mark.parametrize(
    "term",
    [*(f"{name}(x)" for name in ACROSS if name != "groups"), "groups(x, b)", "share(k)", "above(b)", "I(x + less(z))",
     "poly(less(x), 2)", "C(ranked(k))", "less(scale(x))"],
)  # fmt: skip
@pytest.mark.parametrize("rows", [60, 3000])
def test_functions_that_look_across_rows_are_refused_by_name_on_a_scan(term, rows, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.encoding._COMPARED", 500)
    name = next(name for name in ACROSS if f"{name}(" in term)
    words = rf"context: must be functions that map rows one by one, on a scan; got {name}\(\) in .*compute that column before"
    with pytest.raises(eq.InvalidInput, match=words):
        eq.data.scan(pa.table(mixed(rows, 2)), f"y ~ z + {term}", context=ACROSS)


def test_functions_of_single_rows_are_as_in_memory_on_a_scan(frame) -> None:
    context = {
        "squash": squash,
        "wave": np.sin,
        "soft": lambda v: np.log1p(np.exp(v)) - v,
        "band": lambda v: pd.cut(v, [0, 1, 3, 9]),
        "word": lambda g: g.map({"a": 1.0, "b": 2.0, "c": 4.0}).astype(float),
        "pair": lambda v: np.column_stack([v, v**3]),
        "one": lambda v: 1.5 * (len(v) > 0),
        "twice": lambda v: [2.0 * each for each in v],
        "changed": lambda v: v.__imul__(1.5),
        "weighted": lambda u, v: np.column_stack([u, v]) @ np.array([0.3, 0.7]),
    }
    formula = (
        "squash(y) ~ squash(z, by=2.0, word='ab') + wave(center(x)) + soft(z) + band(x) + word(g) + pair(x) + I(x * one(z))"
        " + twice(z) + weighted(x, z) + changed(k)"
    )
    found = eq.data.scan(pa.table(frame), formula, context=context).whole()
    assert_same(found, eq.data.table(frame, formula, context=context), 1e-14)


@pytest.mark.parametrize(
    "term", ["scale(g)", "center(h)", "poly(g, 2)", "bs(g, df=4)", "cr(g, df=4)", "C(scale(g) > 0)"]
)
def test_what_cannot_be_computed_is_told_with_its_file_on_a_scan(term, frame, tmp_path) -> None:
    frame.to_parquet(tmp_path / "a.parquet")
    words = rf"formula: must be applicable to the table; got .*evaluate factor `{re.escape(term)}`\. \[\w+Error: "
    with pytest.raises(eq.InvalidInput, match=words):
        eq.data.table(frame, f"y ~ {term}")
    with pytest.raises(eq.InvalidInput, match=words + r".*\], in .*a\.parquet"):
        eq.data.scan(tmp_path, f"y ~ {term}")
    with pytest.raises(eq.InvalidInput, match=r"evaluate factor `f\(x\)`\. \[ValueError: no good\], in .*a\.parquet"):
        eq.data.scan(tmp_path, "y ~ f(x)", context={"f": lambda _: _fail()})


def _fail() -> None:
    raise ValueError("no good")
