"""What stands beside columns: offsets inside formulas, trials of counted successes, and room for wide factors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

import equipoise as eq
from equipoise.data.design import Design
from tests.data.conftest import assert_same

N = 200


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(6)
    f = pd.DataFrame(
        {"a": rng.normal(size=N), "exposure": rng.uniform(1, 5, N), "g": rng.integers(0, 3, N).astype(str)}
    )
    f["y"] = rng.poisson(f.exposure * np.exp(0.3 * f.a)).astype(float)
    f["trials"] = rng.integers(1, 12, N)
    f["hits"] = rng.binomial(f.trials, 1 / (1 + np.exp(-0.5 * f.a)))
    return f


def test_an_offset_in_a_formula(frame) -> None:
    formula = "y ~ a + offset(log(exposure)) + C(g)"
    made = eq.data.table(frame, formula)
    assert made.names == ("Intercept", "a", "C(g)[T.1]", "C(g)[T.2]")
    np.testing.assert_allclose(made.offset, np.log(frame.exposure))
    cal = eq.calibrate(eq.glm("poisson"), made, sampler="gaussian", ess=50)
    other = smf.glm("y ~ a + C(g)", frame, family=sm.families.Poisson(), offset=np.log(frame.exposure)).fit(tol=1e-13)
    np.testing.assert_allclose(cal.params, other.params[list(made.names)], rtol=1e-8)
    new = frame.head(5)
    expected = other.predict(new, offset=np.log(new.exposure))
    np.testing.assert_allclose(cal.predict(new).estimate, expected, rtol=1e-8)
    again = Design.from_json(cal.design.to_json())
    np.testing.assert_array_equal(again.encode(new)[1], cal.design.encode(new)[1])


def test_offsets_add_up(frame) -> None:
    made = eq.data.table(frame, "y ~ a + offset(exposure) + offset(log(exposure))", offset="trials")
    np.testing.assert_allclose(made.offset, frame.exposure + np.log(frame.exposure) + frame.trials)
    _, shift = made.design.encode(frame.head(3))
    np.testing.assert_allclose(shift, made.offset[:3])
    # a column of that name is still a column
    named = frame.rename(columns={"exposure": "offset"})
    assert eq.data.table(named, "y ~ offset + log(offset)").names == ("Intercept", "offset", "log(offset)")


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ a:offset(exposure)",
        "offset(y) ~ a",
        "y ~ I(offset(exposure))",
        "y ~ a + offset(C(g))",
        "y ~ offset(a, exposure)",
    ],
)
def test_offsets_where_none_belongs(formula, frame) -> None:
    with pytest.raises(eq.InvalidInput, match="formula: must be"):
        eq.data.table(frame, formula)
    with pytest.raises(eq.InvalidInput, match="something on the right"):
        eq.data.table(frame, "y ~ offset(exposure) - 1")


@pytest.mark.parametrize("read", [eq.data.table, lambda frame, formula: eq.data.scan(pa.table(frame), formula)])
def test_an_offset_is_a_column_of_numbers(read, frame) -> None:
    words = (
        r"formula: must be one whose offsets are each a column of numbers; got offset\(g\) in 'y ~ a \+ offset\(g\)'"
    )
    with pytest.raises(eq.InvalidInput, match=words):
        read(frame, "y ~ a + offset(g)")


def test_counts_of_successes(frame) -> None:
    made = eq.data.table(frame, "hits ~ a", trials="trials")
    np.testing.assert_allclose(made.y, frame.hits / frame.trials)
    np.testing.assert_array_equal(made.weights, frame.trials)
    cal = eq.calibrate(eq.glm("bernoulli"), frame, formula="hits ~ a", trials="trials", sampler="gaussian", ess=50)
    both = np.column_stack([frame.hits, frame.trials - frame.hits])
    other = sm.GLM(both, sm.add_constant(frame.a), sm.families.Binomial()).fit(tol=1e-13, cov_type="HC0")
    np.testing.assert_allclose(cal.params, other.params, rtol=1e-8)
    np.testing.assert_allclose(cal.bse, other.bse, rtol=1e-7)
    assert cal.llf == pytest.approx(other.llf, rel=1e-11)
    assert cal.fit_statistics.null_deviance == pytest.approx(other.null_deviance, rel=1e-9)
    assert "varies about as much" in cal.fit_statistics.words
    # weights beside them multiply
    x = np.column_stack([np.ones(N), frame.a])
    rows = eq.data.rows(x, frame.hits, trials=frame.trials, weights=np.where(np.arange(N) < 3, 0.0, 2.0))
    np.testing.assert_array_equal(rows.weights, 2.0 * frame.trials[3:])
    joined = eq.data.Rows.joined([rows.take(slice(0, 10)), rows.take(slice(10, 197))])
    np.testing.assert_array_equal(joined.trials, rows.trials)


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        (np.zeros(N), "trials: must be positive"),
        (np.full(N, 0.5), "hits: must be a number of successes between 0 and trials"),
        (np.ones(3), "trials: must be a vector"),
        (np.full(N, np.nan), "trials: must be finite"),
    ],
)
def test_trials_that_cannot_be(trials, message, frame) -> None:
    with pytest.raises(eq.InvalidInput, match=message):
        eq.data.rows(np.ones((N, 1)), frame.hits, trials=trials)
    with pytest.raises(eq.InvalidInput, match="trials: must be left out for the poisson family"):
        eq.fit(eq.glm("poisson"), eq.data.rows(np.ones((N, 1)), frame.hits, trials=frame.trials))


def test_a_factor_too_wide_for_memory_says_how_much(frame, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.formula.available_memory", lambda: 3e5)
    wide = frame.assign(k=[f"k{i}" for i in range(N)])
    with pytest.raises(eq.InvalidInput, match=r"fit into the 0\.0 GB .* makes 201 columns of 200 rows, 0\.0 GB"):
        eq.data.table(wide, "y ~ C(k)")
    assert eq.data.table(wide, "y ~ a").dim == 2
    monkeypatch.setattr("equipoise.data.formula.available_memory", lambda: 1e6)
    assert eq.data.table(wide, "y ~ C(k)").dim == 200


@pytest.mark.parametrize("option", ["offset", "weights", "frequency", "trials"])
def test_spans_of_time_count_as_days_on_a_scan_too(option, frame) -> None:
    days = frame["trials"] + 12 if option == "trials" else frame["trials"] - 1
    frame = frame.assign(span=pd.to_timedelta(days, unit="D"))
    found = eq.data.scan(pa.table(frame), "hits ~ a", **{option: "span"})
    expected = eq.data.table(frame, "hits ~ a", **{option: "span"})
    assert (found.n, found.height) == (expected.n, expected.height)
    assert_same(found.whole(), expected)


def test_columns_beside_a_formula_are_named_as_they_are_called(frame) -> None:
    holed = frame.assign(w=np.where(np.arange(N) == 7, np.nan, 1.0), few=0.5)
    for read in (eq.data.table, lambda data, *args, **options: eq.data.scan(pa.table(data), *args, **options)):
        with pytest.raises(eq.InvalidInput, match=r"missing in columns \['w'\], rows 7"):
            read(holed, "y ~ a", weights="w", frequency="trials")
        with pytest.raises(eq.InvalidInput, match=r"^hits: must be a number of successes between 0 and trials"):
            read(holed, "hits ~ a", trials="few").sample(N, 0)
    with pytest.raises(eq.InvalidInput, match=r"missing in columns \['weights'\]"):
        eq.data.table(holed, "y ~ a", weights=holed.w)
