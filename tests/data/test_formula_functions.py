"""Functions of the user's in formulas: their values, what goes into them, and what may not be one."""

from __future__ import annotations

import json

import formulaic
import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data.design import Design
from tests.data.conftest import mixed


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


def _fail() -> None:
    raise ValueError("no good")
