"""What rows are clustered and ordered by: blocks, labels and times of any kind, and what robust covariances cannot be."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import equipoise as eq
from equipoise.data.marks import labels_of
from equipoise.models.robust import KINDS, covariance
from tests.models.conftest import CLUSTERS, N, bound, close

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_clusters_and_lags_span_blocks(kind, panel, monkeypatch) -> None:
    problem = bound(panel, "poisson")
    fit, options = eq.fit(problem), CLUSTERS.get(kind, {})
    whole = eq.robust(problem, fit, kind=kind, **options)
    # blocks of 7 rows: shorter than some clusters; of 2, shorter than the lags
    for elements in (21, 6):
        monkeypatch.setattr("equipoise.linalg._BLOCK_ELEMENTS", elements)
        assert len(list(problem.source.blocks())) > 30
        close(eq.robust(problem, fit, kind=kind, **options), whole, 1e-11)


def test_labels_of_any_kind_say_the_same(panel) -> None:
    problem = bound(panel, "poisson")
    fit, firm = eq.fit(problem), panel["firm"]
    expected = eq.robust(problem, fit, kind="CRV1", clusters=firm)
    dates = np.datetime64("2001-01-01") + firm.astype("timedelta64[D]")
    words = np.array([f"firm {k}" for k in firm])
    for labels in (
        firm.astype(np.uint8), firm + 0.5, firm.astype(float), words, words.astype(object), list(words), dates,
        pd.Series(words, dtype="category"), pd.Series(words, name="who"), pd.array(firm, dtype="Int64"), [firm],
        firm[:, None], pd.DataFrame({"firm": words}), {"firm": firm}, -firm,
    ):  # fmt: skip
        np.testing.assert_allclose(eq.robust(problem, fit, kind="CRV1", clusters=labels), expected, rtol=1e-10)


def test_each_word_is_hashed_once_and_none_without_rows(monkeypatch) -> None:
    words = np.array([f"firm {k % 7}" for k in range(100)], dtype=object)
    expected = pd.util.hash_array(words).view(np.int64)
    hashed, made = [], pd.util.hash_array
    monkeypatch.setattr(pd.util, "hash_array", lambda some, **how: hashed.append(len(some)) or made(some, **how))
    levels = pd.CategoricalDtype([f"firm {k}" for k in range(1000)])
    for labels in (words, pd.Series(words, dtype="str"), pd.Series(words).astype(levels)):
        np.testing.assert_array_equal(labels_of(labels, "firm"), expected)
    assert hashed == [7, 7, 7]


def test_tables_keep_columns_as_clusters_and_drop_with_them(panel) -> None:
    frame = pd.DataFrame({"y": panel["poisson"], "a": panel["x"][:, 1], "b": panel["x"][:, 2]})
    frame["firm"], frame["when"] = [f"f{k}" for k in panel["firm"]], np.random.default_rng(2).permutation(N)
    model = eq.glm("poisson")
    problem = eq.bind(model, frame, formula="y ~ a + b", clusters=["firm", "when"], time="when")
    fit = eq.fit(problem)
    expected = eq.robust(model, (panel["x"], frame.y), fit, kind="CRV1", clusters=panel["firm"])
    np.testing.assert_allclose(eq.robust(problem, fit, kind="CRV1", clusters="firm"), expected, rtol=1e-10)
    # rows that are incomplete, also in the clusters, go together
    holes = frame.astype({"a": float, "firm": object})
    holes.loc[3, "a"], holes.loc[[7, 9], "firm"] = np.nan, None
    with pytest.raises(eq.InvalidInput, match=r"missing in columns .'firm'.*7, 9"):
        eq.data.table(holes.fillna({"a": 0.0}), "y ~ a + b", clusters="firm")
    with pytest.warns(eq.EquipoiseWarning, match="3 of 240 rows"):
        short = eq.data.table(holes, "y ~ a + b", clusters="firm", missing="drop")
    kept = np.setdiff1d(np.arange(N), [3, 7, 9])
    np.testing.assert_allclose(
        eq.robust(model, short, fit, kind="CRV1"),
        eq.robust(model, problem.source.take(kept), fit, kind="CRV1", clusters="firm"),
    )
    arrays = eq.data.table(frame, "y ~ a + b", clusters=[panel["firm"], panel["year"]])
    assert arrays.marks.names == ("clusters 1", "clusters 2")
    # rows of no weight go too
    weights = np.where(np.arange(N) < 5, 0.0, 1.0)
    some = eq.data.rows(panel["x"], frame.y, weights=weights, clusters=panel["firm"], time=panel["year"])
    assert some.marks.labels.shape == (N - 5, 1)
    with pytest.raises(eq.InvalidInput, match=r"clusters: must be one value per row that takes part, \(235,\)"):
        eq.robust(model, some, fit, kind="CRV1", clusters=panel["firm"])


def test_rows_are_ordered_by_their_time(panel) -> None:
    rng = np.random.default_rng(3)
    order = rng.permutation(N)
    model, x, y = eq.glm("gaussian"), panel["x"], panel["gaussian"]
    fit = eq.fit(model, (x, y))
    expected = eq.robust(model, (x, y), fit, kind="HAC", lags=6)
    mixed = (x[order], y[order])
    assert np.abs(eq.robust(model, mixed, fit, kind="HAC", lags=6) / expected - 1.0).max() > 0.01
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(order, unit="D")
    for time in (order, order - 7.5, dates, dates.astype(str), dates.tz_localize("Asia/Tokyo")):
        np.testing.assert_allclose(eq.robust(model, mixed, fit, kind="HAC", lags=6, time=time), expected, rtol=1e-10)
    own = eq.Model(lambda p, o: (o["y"] - o["x"] @ p["b"]) ** 2, {"b": np.zeros(3)})
    data = {"x": x[order], "y": y[order]}
    np.testing.assert_allclose(
        eq.robust(own, data, fit.theta, kind="HAC", lags=6, time=order), expected, rtol=1e-6, atol=1e-12
    )
    with pytest.warns(eq.EquipoiseWarning, match="time of the row before"):
        eq.robust(model, (x, y), fit, kind="HAC", time=panel["year"])


def test_a_source_that_cannot_sort_must_be_in_order(panel, monkeypatch) -> None:
    problem = bound(panel, "poisson")
    fit = eq.fit(problem)
    monkeypatch.setattr(type(problem.source), "by_time", lambda self: self)
    with pytest.raises(eq.InvalidInput, match=r"time: .* already in its order.*row \d+, which is earlier than"):
        eq.robust(problem, fit, kind="HAC", time=panel["year"])


def test_few_clusters(panel) -> None:
    model, data = eq.glm("poisson"), (panel["x"], panel["poisson"])
    fit = eq.fit(model, data)
    with pytest.warns(eq.EquipoiseWarning, match=r"CRV1 by cluster \(3 clusters\): with 3 parameters .* singular"):
        eq.robust(model, data, fit, kind="CRV1", clusters=panel["firm"] % 3)
    with pytest.raises(eq.InvalidInput, match="at least two"):
        eq.robust(model, data, fit, kind="CRV1", clusters=np.zeros(N))
    for clusters, kind in ((panel["firm"] % 3, "CRV1"), (panel["firm"] % 3, "CRV3")):
        with pytest.raises(eq.InfeasibleTarget, match=r"along at most 2 of 3 directions.*cal\.vcov\(kind='CRV1'\)"):
            eq.plan(model, data, kind, clusters=clusters, sampler="gaussian")
    # a dummy of one cluster has no variance between clusters
    alone = (panel["firm"] == 4).astype(float)
    wide = (np.column_stack([panel["x"], alone]), panel["poisson"])
    with pytest.raises(eq.InfeasibleTarget, match=r"combination of .*x3.* has no variance between clusters"):
        eq.plan(model, wide, "CRV1", clusters=panel["firm"], sampler="gaussian")
    with pytest.warns(eq.EquipoiseWarning, match="without 1 of the 21 clusters some parameters"):
        eq.robust(model, wide, eq.fit(model, wide), kind="CRV3", clusters=panel["firm"])


def test_two_ways_that_are_not_positive_definite_are_repaired() -> None:
    rng = np.random.default_rng(1)
    n = 60
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 4))])
    y, a, b = rng.normal(size=n), np.arange(n) % 6, np.arange(n) // 10
    model = eq.glm("gaussian", scale=1.0)
    problem = eq.bind(model, (x, y))
    found = eq.moments(problem, eq.fit(problem))
    one, two, both = (
        covariance(problem, found, "CRV1", clusters=[c], small_sample=False).matrix for c in (a, b, 10 * a + b)
    )
    raw = one + two - both
    scale = np.sqrt(np.diag(one + two))
    unit = raw / np.outer(scale, scale)
    values, axes = np.linalg.eigh(unit)
    assert values[0] < -0.05
    with pytest.warns(eq.EquipoiseWarning, match=r"not positive definite .* standard errors rose by up to \d"):
        made = covariance(problem, found, "CRV1", clusters=[a, b], small_sample=False)
    raised = (axes * np.maximum(values, 1e-8)) @ axes.T
    np.testing.assert_allclose(made.matrix, raised * np.outer(scale, scale), rtol=1e-9, atol=1e-14)
    assert np.linalg.eigvalsh(made.matrix / np.outer(scale, scale))[0] > 0.0
    before, after = np.sqrt(np.maximum(np.diag(raw), 0.0)), np.sqrt(np.diag(made.matrix))
    assert made.repaired == pytest.approx(np.max((after - before) / after))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.EquipoiseWarning)
        plan = eq.plan(model, (x, y), "CRV1", clusters=[a, b], small_sample=False, sampler="gaussian")
    np.testing.assert_array_equal(plan.tuning.target, made.matrix)


def test_rows_with_a_column_of_their_own(panel) -> None:
    own = np.zeros(N)
    own[5] = 1.0
    data = (np.column_stack([panel["x"], own]), panel["gaussian"])
    model = eq.glm("gaussian")
    fit = eq.fit(model, data)
    for kind in ("HC2", "HC3"):
        with pytest.raises(eq.InvalidInput, match="1 rows of leverage 1"):
            eq.robust(model, data, fit, kind=kind)
    close(eq.robust(model, data, fit, kind="HC1"), sm.OLS(data[1], data[0]).fit(cov_type="HC1").cov_params())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "HC9"}, "kind: must be one of HC0"),
        ({"kind": "CRV1"}, "clusters: must be given for CRV1"),
        ({"kind": "HC1", "clusters": [1]}, "clusters: must be left out for HC1"),
        ({"kind": "CRV1", "clusters": "firm"}, "clusters: must be given when the data were read"),
        ({"kind": "CRV1", "clusters": [1, 2]}, r"clusters: must be one value per row.*shape \(2,\)"),
        ({"kind": "CRV1", "clusters": [np.nan] * N}, "clusters: must be without missing values|cluster.* missing"),
        ({"kind": "CRV3", "clusters": [np.arange(N), np.arange(N)]}, "clusters: must be at most 1 way for CRV3"),
        ({"kind": "HAC", "lags": -1}, "lags: must be"),
        ({"kind": "HAC", "time": "when"}, "time: must be given when the data were read"),
        ({"kind": "HAC", "time": ["a"] * N}, "time: must be numbers or dates"),
        ({"kind": "HC0", "lags": 3}, "lags: must be left out for HC0"),
        ({"kind": "CRV1", "clusters": np.arange(N), "small_sample": "max"}, "small_sample: must be"),
        ({"kinds": "HC1"}, "did you mean kind"),
    ],
)
def test_bad_calls(options, message, panel) -> None:
    with pytest.raises(eq.InvalidInput, match=message):
        eq.robust(eq.glm("poisson"), (panel["x"], panel["poisson"]), np.zeros(3), **options)


def test_targets_refuse_what_they_would_not_look_at(panel) -> None:
    data = (panel["x"], panel["poisson"])
    for options in ({"clusters": panel["firm"]}, {"time": panel["year"], "target": "HC3"}):
        with pytest.raises(eq.InvalidInput, match="left out for a target that does not look at it"):
            eq.plan(eq.glm("poisson"), data, **options)
    with pytest.raises(eq.InvalidInput, match="did you mean CRV1"):
        eq.plan(eq.glm("poisson"), data, "CRV11")
    counted = eq.data.rows(*data, frequency=np.full(N, 2))
    with pytest.raises(eq.InvalidInput, match="frequency: must be left out for HAC"):
        eq.plan(eq.glm("poisson"), counted, "HAC")
