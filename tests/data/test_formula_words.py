"""What is said of formulas that are refused, and of columns that would be taken for each other."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data.formula import read
from equipoise.data.grammar import LIMITS
from tests.data.conftest import mixed


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return mixed(60, 1)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ I(x - x.mean())", r"the new data's mean when predicting; use center\(x\) or scale\(x\)"),
        ("y ~ I((x + z).std())", r"the new data's std when predicting; use center\(x\) or scale\(x\)"),
        ("y ~ I(x - np.mean(x))", r"the new data's mean when predicting; use center\(x\) or scale\(x\)"),
        ("y ~ x.max()", r"the new data's max when predicting"),
        ("y ~ I(a.b)", "whose name has a dot in backticks, as in `a.b`"),
        ("y ~ np.load(x)", r"the function np.load in .*context=\{'f': f\}"),
        ("y ~ f(x)", r"the function f in .*context=\{'f': f\}"),
        ("y ~ C(g, contr.other)", r"the contrasts contr.other.*use one of contr.treatment, contr.SAS"),
        ("y ~ bs(x, df=10**9)", r"10 \*\* 9 as an argument in .*a whole number up to 1000"),
        ("y ~ I(x**99)", r"the power x \*\* 99 in .*a number up to 20 as exponent"),
        ("y ~ .", "write the columns out"),
        ("y ~ x | z", "single right-hand side"),
        ("y ~ log(bs(x, df=4))", r"let bs\(...\) stand alone"),
        ("y ~ center(Q('my col'))", r"Q\(...\) inside center\(...\).*in backticks"),
        ("y ~ {x}", "rename columns that contain it"),
        ("y ~ " + "x+" * 9000, f"at most {LIMITS.characters} characters"),
        (3, "formula: must be text"),
        ("y ~ ", "write y ~ 1 for an intercept only"),
        ("y ~", "write y ~ 1 for an intercept only"),
        ("y ~ 0", "write y ~ 1 for an intercept only"),
        ("y ~ -1", "write y ~ 1 for an intercept only"),
        ("y ~ x - x - 1", "write y ~ 1 for an intercept only"),
        ("y ~ 0 + 0", "write y ~ 1 for an intercept only"),
        (" ~ x", "write the response before a ~"),
        ("x", "write the response before a ~"),
        ("", "write the response before a ~"),
        ("1 ~ x", "write the response before a ~"),
        ("y - y ~ x", "write the response before a ~"),
    ],
)
def test_refusals_say_what_to_do(frame, formula, message) -> None:
    with pytest.raises(eq.InvalidInput, match=message) as caught:
        eq.data.table(frame, formula)
    assert len(str(caught.value)) < 1000


def test_large_formulas_of_the_usual_kind_are_read_quickly() -> None:
    wide = "y ~ " + " + ".join(f"column_{i}" for i in range(500))
    crossed = "y ~ (" + " + ".join(f"c{i}" for i in range(40)) + ")**2"
    start = time.perf_counter()
    assert len(read(wide, {}).predictors) == 500
    assert len(read(crossed, {}).predictors) == 40
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ center(`my col`) + my_col",
        "y ~ I(`my col` + my_col)",
        "y ~ I(`a b c` + `a b`)",
        "y ~ I(`a b` + `a.b`)",
        "y ~ center(`a b`) + center(`a.b`)",
        "log(`a b`) ~ center(`a.b`)",
    ],
)
def test_columns_that_formulaic_would_confuse(frame, formula) -> None:
    table = frame.assign(my_col=1.0, **{"a b": frame["x"], "a b c": frame["z"]})
    with pytest.raises(eq.InvalidInput, match=r"columns too alike inside a function.*rename one of them"):
        eq.data.table(table, formula)


def test_columns_named_like_functions(frame) -> None:
    table = frame.assign(my_col=1.0, log=frame["x"], C=frame["z"], **{"a b": frame["x"]})
    with pytest.raises(eq.InvalidInput, match="'log' as a column and as a function"):
        eq.data.table(table, "y ~ log + log(x)")
    # on their own they are told apart
    made = eq.data.table(table, "y ~ `my col` + my_col + log + `a b` + a.b + C - 1")
    assert made.dim == 6


def test_what_is_learnt_under_a_drawn_name_is_refused(frame) -> None:
    with pytest.raises(eq.InvalidInput, match="`my col` twice in a function that learns"):
        eq.data.table(frame, "y ~ center(`my col` + `my col`)")
    with pytest.raises(eq.InvalidInput, match="`my col` twice in a function that learns"):
        eq.data.table(frame, "y ~ center(`my col`) + I(`my col` * center(`my col`))")
    assert eq.data.table(frame, "y ~ center(`my col`) + scale(`my col`)").dim == 3


@pytest.mark.parametrize("name", ["open", "print", "os", "exit", "NotImplemented", "frame"])
def test_only_columns_are_in_sight(frame, name) -> None:
    # neither Python's own names nor those of the caller
    for formula in (f"y ~ {name}", f"y ~ I({name} * x)", f"y ~ center({name})", f"{name} ~ x"):
        with pytest.raises(eq.InvalidInput, match=rf"made of columns of the table.*\['{name}'\]"):
            eq.data.table(frame, formula)
    made = eq.data.table(frame.assign(**{name: frame["z"]}), f"y ~ I({name} * x)")
    np.testing.assert_array_equal(made.x[:, 1], frame["z"] * frame["x"])
