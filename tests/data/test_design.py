"""Designs: saved as JSON without loss, read strictly, and the same for every table they meet."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data.columns import Column
from equipoise.data.design import Design
from tests.data.conftest import mixed

N = 80


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    made = mixed(N, 5)
    return made.assign(z=1e-3 * made["z"], cut=pd.cut(made["2nd"], [-9.0, -0.5, 0.5, 9.0]))


FORMULAS = [
    "y ~ 1",
    "y ~ x",
    "y ~ center(x)",
    "y ~ scale(x)",
    "y ~ scale(z, ddof=0)",
    "y ~ scale(x, center=False)",
    "y ~ scale(x, scale=False)",
    "y ~ scale(x, 2, 0.5)",
    "y ~ standardize(z)",
    "y ~ poly(x, 1)",
    "y ~ poly(x, 4)",
    "y ~ poly(x, 3, raw=True)",
    "y ~ bs(x, df=6)",
    "y ~ bs(x, knots=[1, 2.5])",
    "y ~ bs(x, df=5, degree=2, include_intercept=True) - 1",
    "y ~ bs(x, df=4, lower_bound=0, upper_bound=7)",
    "y ~ cr(x, df=4) - 1",
    "y ~ cr(x, df=3, constraints='center')",
    "y ~ cs(x, knots=[1, 2, 3]) - 1",
    "y ~ cc(x, df=4) - 1",
    "y ~ cc(x, df=4, constraints='center')",
    "y ~ Q('my col') + Q('a.b')",
    "y ~ C(Q('k')) + center(`my col`) + scale(`a.b`)",
    "y ~ center(log(x)) + I(scale(x) * center(z))",
    "y ~ g",
    "y ~ h",
    "y ~ b + C(b)",
    "y ~ C(k) + k",
    "y ~ C(k, contr.sum) + C(g, contr.helmert) + C(h, contr.poly)",
    "y ~ C(g, contr.treatment('b')):x",
    "y ~ C(g, levels=['c', 'a', 'b'])",
    "y ~ C(t)",
    "y ~ t",
    "y ~ center(t)",
    "y ~ cut",
    "y ~ C(np.floor(x)) + C(x > 2)",
    "y ~ hashed(g, levels=4) + hashed(k, levels=3)",
    "y ~ g*h + C(t):x - 1",
    "y ~ bs(x, df=4):g + poly(z, 2)*h + scale(x):C(k)",
    "y ~ (center(x) + scale(z) + g)**2 + cr(x, df=3, constraints='center'):C(t)",
    "center(y) ~ center(x)",
    "y ~ x + center(z) + C(k) - center(z) - scale(x) - C(k)",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_loaded_designs_encode_to_the_last_bit(frame, formula) -> None:
    made = eq.data.table(frame, formula)
    design = made.design
    loaded = Design.from_json(design.to_json())
    assert loaded == design
    assert loaded.to_json() == design.to_json()
    # other rows in other numbers, so that nothing can be learnt anew unnoticed
    for rows in ([17], [3, 3, 70], slice(None, None, -1), slice(0, 40)):
        new = frame.drop(columns="y").iloc[rows]
        before, after = design.encode(new)[0], loaded.encode(new)[0]
        pd.testing.assert_frame_equal(before, after, check_exact=True)
        assert tuple(before.columns) == made.names
        np.testing.assert_allclose(np.asarray(before), made.x[rows], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("formula", ["y ~ bs(x, df=4):g + poly(z, 2) + scale(x)", "y ~ C(t) + cut"])
def test_designs_pickle_and_copy(frame, formula) -> None:
    design = eq.data.table(frame, formula).design
    expected = design.encode(frame)[0]
    for twin in (pickle.loads(pickle.dumps(design)), copy.deepcopy(design), copy.copy(design)):
        assert twin == design
        pd.testing.assert_frame_equal(twin.encode(frame)[0], expected, check_exact=True)


def test_designs_with_functions_of_the_users_pickle_and_copy(frame) -> None:
    design = eq.data.table(frame, "y ~ wave(x)", context={"wave": np.sin}).design
    for twin in (pickle.loads(pickle.dumps(design)), copy.deepcopy(design)):
        pd.testing.assert_frame_equal(twin.encode(frame)[0], design.encode(frame)[0], check_exact=True)


def test_columns_of_terms_taken_away_are_not_asked_for(frame) -> None:
    design = eq.data.table(frame, "y ~ x*g - g - x:g").design
    assert list(design.columns) == ["x"]
    assert design.encode(frame[["x"]])[0].shape == (N, 2)
    assert eq.data.table(frame.drop(columns="z"), "y ~ x - z").dim == 2


def test_designs_hold_numbers_and_no_rows(frame) -> None:
    big = pd.concat([frame] * 20, ignore_index=True)
    formula = "y ~ bs(x, df=4) + scale(z) + g + C(k)"
    small, large = (eq.data.table(table, formula).design for table in (frame, big))
    assert len(pickle.dumps(large)) < 1.1 * len(pickle.dumps(small)) < 5000
    assert set(small.transforms) == {"bs(x, df=4)", "scale(z)"}
    assert small.transforms["scale(z)"] == {
        "ddof": 1.0, "center": frame["z"].mean(), "scale": pytest.approx(frame["z"].std(), rel=1e-14)
    }  # fmt: skip
    assert small.categories == {"g": ("a", "b", "c"), "C(k)": (1, 2, 3, 4)}


def test_every_field_is_kept(frame) -> None:
    holes = frame.assign(x=frame["x"].where(frame.index != 2), g=np.where(frame["g"] == "a", "no", "yes"))
    with pytest.warns(eq.errors.EquipoiseWarning):
        made = eq.data.table(holes, "g ~ x + C(t)", offset="z", missing="drop")
    loaded = Design.from_json(made.design.to_json())
    assert (loaded.offset, loaded.dropped, loaded.response_levels) == ("z", 1, ("no", "yes"))
    assert Design.from_json(eq.data.table(frame, "y ~ x", offset=np.zeros(N)).design.to_json()).array_offset
    assert loaded.columns["t"].levels == made.design.columns["t"].levels
    assert all(isinstance(level, pd.Timestamp) for level in loaded.columns["t"].levels)


def test_levels_that_cannot_be_saved(frame) -> None:
    design = Design("y ~ g", {"g": Column("category", (("a", 1), ("b", 2)))}, ("Intercept", "g[T.b]"))
    with pytest.raises(eq.InvalidInput, match=r"a level of type tuple.*convert the column to text"):
        design.to_json()


# --- Read strictly ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(frame) -> dict:
    """What is spoilt below; as it is, it encodes as the design it is of."""
    formula = "y ~ g + C(t) + cut + scale(x) + poly(z, 2) + bs(x, df=4) + cc(x, df=3, constraints='center')"
    made = eq.data.table(frame, formula, offset="z")
    again = Design.from_json(made.design.to_json())
    np.testing.assert_array_equal(again.encode(frame)[0], made.design.encode(frame)[0])
    return json.loads(made.design.to_json())


BS, CC = "bs(x, df=4)", "cc(x, df=3, constraints='center')"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2), (("format",), True), (("format",), "1"), (("format",), None),
        (("formula",), 3), (("formula",), None), (("formula",), "y ~ g"), (("formula",), "y ~ I(__import__('os'))"),
        (("columns",), []), (("columns",), {}), (("columns", "g"), None), (("columns", "g"), {"kind": "category"}),
        (("columns", "g", "kind"), "object"), (("columns", "g", "kind"), ["category"]), (("columns", "g", "levels"), None),
        (("columns", "g", "levels"), []), (("columns", "g", "levels"), "abc"), (("columns", "g", "levels"), ["a", "a"]),
        (("columns", "g", "levels"), [["a"], "b"]), (("columns", "g", "levels"), [None]),
        (("columns", "g", "levels"), [1e400]), (("columns", "g", "levels"), list(range(20_000))),
        (("columns", "g", "levels"), ["a" * 30_000]), (("columns", "g", "levels"), [10**30]),
        (("columns", "g", "more"), 1), (("columns", "w"), {"kind": "number", "levels": None}),
        (("columns", "t", "levels"), [{"date": "yesterday"}]), (("columns", "t", "levels"), [{"date": 3}]),
        (("columns", "t", "levels"), [{"date": "NaT"}]), (("columns", "t", "levels"), [{"date": "2020-01-01", "x": 1}]),
        (("columns", "t", "levels"), [{"date": "2020-01-01T00:00:00+09:00"}]), (("columns", "t", "levels"), [{"code": "1"}]),
        (("columns", "cut", "levels"), [{"interval": [0, 1]}]), (("columns", "cut", "levels"), [{"interval": [1, 0, "left"]}]),
        (("columns", "cut", "levels"), [{"interval": [0, 1, "open"]}]),
        (("columns", "cut", "levels"), [{"interval": ["a", 1, "left"]}]),
        (("columns", "cut", "levels"), [{"interval": [{"interval": [0, 1, "left"]}, 2, "left"]}]),
        (("columns", "x", "levels"), [1, 1.0]), (("columns", "x", "kind"), "dates"),
        (("names",), []), (("names",), "abc"), (("names",), [1]), (("names",), ["a", "a"]), (("names",), ["a" * 30_000]),
        (("transforms",), []), (("transforms",), {}), (("transforms", "center(x)"), {}), (("transforms", BS), None),
        (("transforms", BS, "knots"), None), (("transforms", BS, "knots"), []), (("transforms", BS, "knots"), ["1"]),
        (("transforms", BS, "knots"), [[1.0]]), (("transforms", BS, "knots"), [1.0] * 20_000),
        (("transforms", BS, "lower_bound"), None), (("transforms", BS, "lower_bound"), "0"),
        (("transforms", BS, "lower_bound"), True), (("transforms", BS, "upper_bound"), 1e400),
        (("transforms", BS, "upper_bound"), 10**400), (("transforms", BS, "code"), 1.0),
        (("transforms", CC, "cyclic"), 1), (("transforms", CC, "constraints"), [1.0]),
        (("transforms", CC, "constraints"), [[1.0], [1.0, 2.0]]), (("transforms", CC, "constraints"), "center"),
        (("transforms", "scale(x)", "center"), [1.0]), (("transforms", "scale(x)", "scale"), "1"),
        (("transforms", "poly(z, 2)", "alpha"), {"0": 1.0}), (("transforms", "poly(z, 2)", "norms2"), 1.0),
        (("categories",), []), (("categories", "h"), ["a"]), (("categories", "g"), []), (("categories", "g"), None),
        (("offset",), 3), (("offset",), ["z"]), (("array_offset",), 1), (("array_offset",), True), (("array_offset",), None),
        (("dropped",), -1), (("dropped",), 1.5), (("dropped",), True), (("dropped",), "3"), (("dropped",), 10**30),
        (("response_levels",), ["a"]), (("response_levels",), ["a", "b", "c"]), (("response_levels",), "ab"),
        (("response_levels",), ["a", "a"]), (("response_levels",), {}), (("extra",), 1),
    ],
)  # fmt: skip
def test_changed_records_are_refused(record, path, value) -> None:
    changed = copy.deepcopy(record)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(eq.InvalidInput, match=r"^(design|formula): must be ") as caught:
        Design.from_json(json.dumps(changed))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("key", ["format", "formula", "columns", "names", "transforms", "dropped", "response_levels"])
def test_records_without_a_key_are_refused(record, key) -> None:
    with pytest.raises(eq.InvalidInput, match="design: must be a saved one"):
        Design.from_json(json.dumps({k: v for k, v in record.items() if k != key}))


@pytest.mark.parametrize(
    "text",
    [
        None, 3, b"{}", "", "{", "[]", "3", "null", '"text"', "{}", '{"format": NaN}', '{"format": 1, "format": 1}',
        "[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, " " * 20_000_001, "cposix\nsystem\n(S'true'\ntR.",
        '{"format": ' + "9" * 5000 + "}",
    ],
    ids=range(17),
)  # fmt: skip
def test_other_texts_are_refused(text) -> None:
    with pytest.raises(eq.InvalidInput, match="design: must be a saved one") as caught:
        Design.from_json(text)
    assert len(str(caught.value)) < 1000


def test_numbers_that_do_not_belong_together_are_found_when_encoding(record, frame) -> None:
    for path, value in (
        ((BS, "knots"), [0.0, 1.0]),
        ((CC, "constraints"), [[1.0]]),
        (("poly(z, 2)", "alpha"), [1.0]),
    ):
        changed = copy.deepcopy(record)
        changed["transforms"][path[0]][path[1]] = value
        with pytest.raises(eq.InvalidInput, match=r"^(design|formula): must be "):
            Design.from_json(json.dumps(changed)).encode(frame)
    changed = {**record, "names": record["names"][::-1]}
    with pytest.raises(eq.InvalidInput, match="one that makes the columns it was fitted with"):
        Design.from_json(json.dumps(changed)).encode(frame)


def test_designs_made_by_hand_are_checked(frame) -> None:
    design = Design("y ~ x + open", {"x": Column("number")}, ("Intercept", "x", "open"))
    with pytest.raises(eq.InvalidInput, match="whose columns is those of its formula"):
        design.encode(frame)
