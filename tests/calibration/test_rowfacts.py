"""What is kept of the rows of a fit, and where effects are drawn: against sums by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.calibration import findings
from equipoise.calibration.forest import forest


def table(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    f = pd.DataFrame({"a": 1e4 + rng.normal(size=n), "b": rng.normal(size=n), "firm": rng.integers(0, 25, n)})
    f["times"], f["w"] = rng.integers(1, 4, n), rng.uniform(0.5, 2.0, n)
    f["y"] = rng.poisson(np.exp(0.3 * (f.a - 1e4) - 0.2 * f.b))
    return f


def made(frame, **options) -> eq.Calibration:
    rows = eq.data.table(frame, "y ~ center(a) + b", **options)
    return eq.calibrate(eq.glm("poisson"), rows, sampler="gaussian", ess=50)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_frequencies_count_as_often_as_they_say(where, tmp_path) -> None:
    frame = table()
    frame.to_parquet(tmp_path / "rows.parquet")
    rows = (
        eq.data.table(frame, "y ~ b", frequency="times", weights="w", clusters=["firm"])
        if where == "memory"
        else eq.data.scan(tmp_path / "rows.parquet", "y ~ b", frequency="times", weights="w", clusters=["firm"])
    )
    facts = eq.calibrate(eq.glm("poisson"), rows, sampler="gaussian", ess=50).row_facts
    every = frame.loc[frame.index.repeat(frame.times)]
    assert facts.rows == 400
    np.testing.assert_allclose([facts.response_mean, facts.response_sd], [every.y.mean(), every.y.std(ddof=0)])
    np.testing.assert_allclose(facts.column_sd, [0.0, every.b.std(ddof=0)])
    assert facts.side.size.sum() == len(every)
    assert facts.side.observed @ facts.side.size / len(every) == pytest.approx(every.y.mean())


def test_other_standard_errors_are_those_of_vcov() -> None:
    cal = made(table(), clusters=["firm"])
    errors = cal.row_facts.errors
    assert list(errors) == ["posterior", "CRV1 by firm (25 clusters)"]
    for found, kind in zip(errors.values(), ("posterior", "CRV1"), strict=True):
        np.testing.assert_allclose(found, np.sqrt(np.diag(cal.vcov(kind))))


def test_groups_are_of_similar_predictions() -> None:
    cal = made(table())
    side, mean = cal.row_facts.side, cal.fittedvalues
    order = np.argsort(mean)
    parts = np.split(order, 10)
    y = cal.fittedvalues + cal.resid
    np.testing.assert_allclose(side.predicted, [mean[part].mean() for part in parts])
    np.testing.assert_allclose(side.observed, [y[part].mean() for part in parts])
    np.testing.assert_allclose(side.observed_error, [y[part].std() / np.sqrt(40) for part in parts])
    x = np.concatenate([rows.x for rows in cal.plan.problem.source.blocks()])
    gradient = np.mean(mean[parts[3], None] * x[parts[3]], axis=0)
    assert side.predicted_error[3] == pytest.approx(np.sqrt(gradient @ cal.vcov() @ gradient))


def test_few_different_predictions_make_as_many_groups() -> None:
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(90), np.arange(90) % 3 == 1])
    facts = eq.calibrate(eq.glm("bernoulli"), (x, (rng.random(90) < 0.4) * 1.0), sampler="gaussian", ess=50).row_facts
    assert facts.side.size.tolist() in ([60.0, 30.0], [30.0, 60.0])
    np.testing.assert_allclose(facts.side.predicted, facts.side.observed)


def test_positions_of_effects_follow_their_numbers() -> None:
    cal = made(table())
    found = forest(cal, findings.coefficients(cal, 0.95), 30)
    assert [cal.names[j] for j in found.at] == ["center(a)", "b"]
    assert [cal.names[j] for j in found.aside] == ["Intercept"]
    for axis in found.axes:
        positions, values = np.array(axis.ticks).T
        shown = np.log(values) if axis.ratio else values
        ends = [np.log(v) if axis.ratio else v for v in (axis.lower, axis.estimate, axis.upper)]
        # one straight line through ticks, intervals and the place of no effect
        slope = (positions[-1] - positions[0]) / (shown[-1] - shown[0])
        for at, value in zip((axis.start, axis.middle, axis.end), ends, strict=True):
            np.testing.assert_allclose(at, positions[0] + slope * (value - shown[0]), rtol=1e-9)
        assert axis.reference == pytest.approx(positions[0] - slope * shown[0])
        assert 2 <= len(values) <= 10
        assert 0.0 <= min(axis.start) < max(axis.end) <= 100.0


def test_small_effects_begin_on_a_scale_that_shows_them() -> None:
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(300), rng.normal(size=300), 1e5 * rng.normal(size=300)])
    cal = eq.calibrate(eq.glm("gaussian"), (x, x[:, 1] + rng.normal(size=300)), sampler="gaussian", ess=50)
    assert forest(cal, findings.coefficients(cal, 0.95), 30).first == "sd"
    assert not any(axis.ratio for axis in forest(cal, findings.coefficients(cal, 0.95), 30).axes)
