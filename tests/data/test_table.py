"""Tables: files, formulas, categories, missing values, and the same encoding for new tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data.table import Design

N = 120


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "count": rng.poisson(2.0, N).astype(float),
            "age": rng.uniform(20.0, 60.0, N),
            "a": rng.normal(size=N),
            "level": rng.integers(1, 11, N),
            "region": rng.choice(["north", "east", "south"], N),
            "size": pd.Categorical(rng.choice(["low", "mid", "high"], N), categories=["low", "mid", "high"]),
            "flag": rng.random(N) < 0.5,
            "my col": rng.normal(size=N),
            "exposure": rng.uniform(0.5, 2.0, N),
        }
    )


def dummies(column, levels) -> np.ndarray:
    return np.column_stack([(column == level).to_numpy(float) for level in levels])


def test_intercept_numbers_and_text(frame) -> None:
    made = eq.data.table(frame, "count ~ age + region")
    assert made.names == ("Intercept", "age", "region[T.north]", "region[T.south]")
    assert made.response == "count"
    expected = np.column_stack([np.ones(N), frame["age"], dummies(frame["region"], ["north", "south"])])
    np.testing.assert_array_equal(made.x, expected)
    np.testing.assert_array_equal(made.y, frame["count"])


def test_only_mentioned_columns_count_as_missing(frame) -> None:
    holes = frame.assign(df=np.nan, np=np.nan, north=np.nan)
    made = eq.data.table(holes, "count ~ bs(age, df=4) + C(region, contr.treatment('north'))")
    assert made.n == N


def test_missing_values_are_named(frame) -> None:
    holes = frame.assign(age=frame["age"].where(frame.index != 3), region=frame["region"].where(frame.index != 7))
    with pytest.raises(eq.InvalidInput, match=r"missing in columns \['age', 'region'\], rows 3, 7.*missing='drop'"):
        eq.data.table(holes, "count ~ age + region")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_csv_with_any_separator(frame, separator, tmp_path) -> None:
    path = tmp_path / ("data.tsv" if separator == "\t" else "data.csv")
    frame.to_csv(path, sep=separator, index=False)
    for source in (path, str(path)):
        made = eq.data.table(source, "count ~ age + C(region) + flag")
        np.testing.assert_allclose(made.x, eq.data.table(frame, "count ~ age + C(region) + flag").x, rtol=1e-15)


@pytest.mark.parametrize("suffix", [".parquet", ".pq"])
def test_parquet(frame, suffix, tmp_path) -> None:
    path = tmp_path / f"data{suffix}"
    frame.to_parquet(path)
    made = eq.data.table(path, "count ~ size + age")
    np.testing.assert_array_equal(made.x, eq.data.table(frame, "count ~ size + age").x)


def test_files_that_are_not_tables(tmp_path) -> None:
    with pytest.raises(eq.InvalidInput, match="data: must be an existing CSV or Parquet file"):
        eq.data.table(tmp_path / "nothing.csv", "y ~ x")
    (tmp_path / "data.xlsx").write_text("y")
    with pytest.raises(eq.InvalidInput, match=r"ending in \.csv.*got data.xlsx"):
        eq.data.table(tmp_path / "data.xlsx", "y ~ x")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("count ~ center(nothing)", r"formula: must be made of columns of the table.*got \['nothing'\]"),
        ("count ~ reggion", r"got \['reggion'\].*did you mean region\?"),
        ("count + age ~ a", "single numeric response"),
        ("count ~ age +", "a valid formula such as"),
        ("count age", "one with a response"),
        ("count ~ my age", "names with a space in backticks"),
        ("count ~ age | region", r"write \+ C\(group\) for \| group"),
        ("count ~ factor(region)", r"mark a category with C\(x\)"),
        ("count ~ log(region)", "formula: must be applicable to the table"),
        ("count ~ region + Intercept", r"terms have different names; got \['Intercept'\] twice"),
        ("count ~ `log(age)` + log(age)", r"the column 'log\(age\)', which reads like another term"),
        ("count ~ `1`", "the column '1', which reads like another term"),
    ],
)
def test_formulas_that_do_not_fit(frame, formula, message) -> None:
    table = frame.assign(Intercept=1.0, **{"1": 1.0, "log(age)": 1.0})
    with pytest.raises(eq.InvalidInput, match=message) as caught:
        eq.data.table(table, formula)
    # one readable line, without terminal colours
    assert str(caught.value).isprintable()


def fitted(frame, formula, **options):
    # independent draws suffice: what is tested is the encoding
    return eq.calibrate(
        eq.glm("poisson", prior_precision=0.01),
        frame,
        formula=formula,
        sampler="gaussian",
        ess=200,
        chains=2,
        **options,
    )


def reloaded(cal):
    return replace(cal, design=Design.from_json(cal.design.to_json()))


def test_predictions_for_new_tables_before_and_after_loading(frame) -> None:
    formula = "count ~ a + C(level) + size:age + `my col`"
    cal = fitted(frame, formula)
    # a few rows, in another order, with only some of the levels
    new = frame.iloc[[70, 3, 4]].drop(columns="count")
    expected = np.exp(eq.data.table(frame, formula).x[[70, 3, 4]] @ cal.fit.params)
    for run in (cal, reloaded(cal)):
        found = run.predict(new)
        np.testing.assert_allclose(found["estimate"], expected, rtol=1e-12)
        assert list(found.index) == [70, 3, 4]
        assert (found["lower"] < found["upper"]).all()
    pd.testing.assert_frame_equal(cal.predict(new), reloaded(cal).predict(new), check_exact=True)


def test_numeric_columns_take_new_values_beside_a_coded_column_that_starts_alike(frame) -> None:
    # "a" is the beginning of "age" in C(age)
    cal = fitted(frame.assign(age=frame["level"]), "count ~ a + C(age)")
    params = dict(zip(cal.names, cal.fit.theta, strict=True))
    expected = np.exp(params["Intercept"] + 2.5 * params["a"] + params["C(age)[T.3]"])
    found = cal.predict(pd.DataFrame({"a": [2.5], "age": [3]}))
    np.testing.assert_allclose(found["estimate"], [expected], rtol=1e-12)


@pytest.mark.parametrize("loaded", [False, True])
def test_unseen_levels_and_bad_new_tables(frame, loaded) -> None:
    cal = fitted(frame, "count ~ age + region")
    if loaded:
        cal = reloaded(cal)
    new = frame.iloc[:3]
    capital = new.rename(columns={"age": "Age", "region": "Region"})
    for table, message in (
        (new.assign(region="west"), r"region: must be one of the levels .*got \['west'\]"),
        (new.drop(columns="age"), r"columns of the table.*\['age'\]"),
        (new.assign(age=[30.0, np.nan, 40.0]), r"missing in columns \['age'\], rows 1"),
        (new.assign(age="old"), r"age: must be a column of numbers, as when fitting; got .* text"),
        (capital, r"\['age', 'region'\], which .*for 'age' did you mean Age\?; for 'region'"),
        (new.iloc[:0], "at least one row"),
    ):
        with pytest.raises(eq.InvalidInput, match=message):
            cal.predict(table)
    with pytest.raises(eq.InvalidInput, match="offset: must be left out for a table"):
        cal.predict(new, offset=[1.0, 2.0, 3.0])
