"""Robust covariances against statsmodels, against refits without a cluster, and against sums written out row by row."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from statsmodels.stats.sandwich_covariance import cov_cluster, cov_hac

import equipoise as eq
from equipoise.models.robust import KINDS, covariance
from tests.known import DIVERGENCES, jax_loss

N = 240
CLUSTERS = {"CRV1": {"clusters": "firm"}, "CRV3": {"clusters": "firm"}, "HAC": {"lags": 4}}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def panel():
    """Rows of 21 firms in 8 years, with shocks of both; neither is in any model."""
    rng = np.random.default_rng(4)
    firm, year = rng.integers(0, 21, N), rng.integers(0, 8, N)
    x = np.column_stack([np.ones(N), rng.normal(size=N) + 0.5 * (firm % 3), rng.normal(size=N)])
    shock = 0.5 * rng.normal(size=21)[firm] + 0.3 * rng.normal(size=8)[year]
    eta = 0.4 + x @ [0.0, 0.3, -0.2] + shock
    return {
        "x": x, "firm": firm, "year": year, "weights": rng.uniform(0.5, 2.0, N), "offset": 0.2 * rng.normal(size=N),
        "gaussian": eta + (0.4 + np.abs(x[:, 1])) * rng.normal(size=N),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "bernoulli": (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(float),
        "gamma": np.exp(eta) * rng.gamma(1.5, size=N),
        "negative-binomial": rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, size=N)).astype(float),
    }  # fmt: skip


def bound(panel, family, *, beside=True, model=None, **options):
    extra = {"weights": panel["weights"], "offset": panel["offset"]} if beside else {}
    marks = {"firm": panel["firm"], "year": panel["year"]}
    rows = eq.data.rows(panel["x"], panel[family], **extra, clusters=marks)
    return eq.bind(model or eq.glm(family, **options), rows)


def close(found, expected, rtol=1e-8):
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=rtol)


@pytest.fixture(scope="module")
def weighted_least_squares(panel):
    problem = bound(panel, "gaussian")
    y = panel["gaussian"] - panel["offset"]
    return problem, eq.fit(problem), sm.WLS(y, panel["x"], weights=panel["weights"]).fit()


@pytest.mark.parametrize("correction", [True, False])
def test_clustered_least_squares(correction, panel, weighted_least_squares) -> None:
    problem, fit, theirs = weighted_least_squares
    one = cov_cluster(theirs, panel["firm"], use_correction=correction)
    close(eq.robust(problem, fit, kind="CRV1", clusters="firm", small_sample=correction), one)
    three = cov_cluster(theirs, panel["firm"], use_correction=correction, crv_type="cluster-crv3")
    close(eq.robust(problem, fit, kind="CRV3", clusters="firm", small_sample=correction), three)
    both = np.column_stack([panel["firm"], panel["year"]])
    two = theirs.get_robustcov_results("cluster", groups=both, use_correction=correction).cov_params()
    found = eq.robust(problem, fit, kind="CRV1", clusters=["firm", "year"], small_sample=correction)
    close(found, two)
    assert np.abs(found / one - 1.0).max() > 0.05


def test_the_smallest_number_of_clusters_for_all_ways(weighted_least_squares) -> None:
    problem, fit, _ = weighted_least_squares
    plain, found = (
        eq.robust(problem, fit, kind="CRV1", clusters=["firm", "year"], small_sample=way) for way in (False, "min")
    )
    np.testing.assert_allclose(found, plain * (8 / 7) * (N - 1) / (N - 3), rtol=1e-10)


@pytest.mark.parametrize("lags", [None, 0, 1, 7])
def test_autocorrelated_least_squares(lags, weighted_least_squares) -> None:
    problem, fit, theirs = weighted_least_squares
    close(eq.robust(problem, fit, kind="HAC", lags=lags), cov_hac(theirs, nlags=lags, use_correction=False))


@pytest.mark.parametrize(("family", "theirs"), [("poisson", sm.families.Poisson), ("bernoulli", sm.families.Binomial)])
def test_generalised_linear_models(family, theirs, panel) -> None:
    """With a canonical link the observed information is the expected one, and the definitions coincide."""
    rows = eq.data.rows(panel["x"], panel[family], offset=panel["offset"], clusters={"firm": panel["firm"]})
    problem = eq.bind(eq.glm(family), rows)
    fit = eq.fit(problem)
    other = sm.GLM(panel[family], panel["x"], theirs(), offset=panel["offset"])
    for kind, words, options in [
        ("HC0", "HC0", {}),
        ("CRV1", "cluster", {"groups": panel["firm"]}),
        ("HAC", "HAC", {"maxlags": 3}),
    ]:
        expected = other.fit(tol=1e-13, cov_type=words, cov_kwds=options).cov_params()
        mine = {"CRV1": {"clusters": "firm"}, "HAC": {"lags": 3}}.get(kind, {})
        close(eq.robust(problem, fit, kind=kind, **mine), expected, 1e-7)


# --- Definitions written out ---------------------------------------------------------------------------


def row_by_row(problem, theta):
    """Scores and Hessians of every row, from problems of one row each."""
    found = []
    for k in range(problem.source.height):
        one = problem.source.take(slice(k, k + 1))
        alone = type(problem)(problem.model, one, 1, np.zeros((3, 3)), np.zeros(3))
        made = alone.derivatives(theta, 2)
        found.append((made.gradient, made.hessian))
    return np.array([g for g, _ in found]), np.array([h for _, h in found])


def written_out(kind, scores, hessians, information, prior, firm):
    """The definition of each kind, dense; `information` is what leverages are shares of, one matrix per row."""
    n, dim = scores.shape
    H, g = hessians.sum(axis=0) + prior, scores - scores.mean(axis=0)
    bread = np.linalg.inv(H)
    if kind in ("HC0", "HC1"):
        return bread @ g.T @ g @ bread * (n / (n - dim) if kind == "HC1" else 1.0)
    if kind in ("HC2", "HC3"):
        total = np.linalg.inv(information.sum(axis=0) + prior)
        leverage = np.einsum("nij,ji->n", information, total)
        g = scores / (1.0 - leverage[:, None]) ** (0.5 if kind == "HC2" else 1.0) - scores.mean(axis=0)
        return bread @ g.T @ g @ bread
    if kind == "HAC":
        middle = g.T @ g
        for lag in range(1, 5):
            across = g[lag:].T @ g[:-lag]
            middle += (1.0 - lag / 5.0) * (across + across.T)
        return bread @ middle @ bread
    groups = np.unique(firm)
    G, total = len(groups), np.zeros((dim, dim))
    for name in groups:
        inside = firm == name
        s = g[inside].sum(axis=0)
        left = H - hessians[inside].sum(axis=0) - prior * inside.mean()
        step = bread @ s if kind == "CRV1" else np.linalg.solve(left, s)
        total += np.outer(step, step)
    return total * (G / (G - 1) * (n - 1) / (n - dim) if kind == "CRV1" else (G - 1) / G)


@every_kind
@pytest.mark.parametrize("family", ["gaussian", "gamma", "negative-binomial", "poisson", "bernoulli"])
def test_every_kind_is_its_definition(kind, family, panel, make_model) -> None:
    prior = np.array([[3.0, 0.5, 0.0], [0.5, 2.0, 0.0], [0.0, 0.0, 9.0]])
    problem = bound(panel, family, model=make_model(family, prior_precision=prior, prior_mean=0.3))
    fit = eq.fit(problem)
    scores, hessians = row_by_row(problem, fit.theta)
    assert np.abs(scores.mean(axis=0)).max() > 1e-3  # the prior pulls
    mean = problem.model.family.mean(panel["x"] @ fit.theta + panel["offset"])
    expected = panel["weights"][:, None, None] * panel["x"][:, :, None] * panel["x"][:, None, :]
    constant = problem.constant or 1.0
    working = {
        "gaussian": np.full(N, constant**-2), "gamma": np.full(N, constant), "poisson": mean,
        "bernoulli": mean * (1.0 - mean), "negative-binomial": mean / (1.0 + constant * mean),
    }[family]  # fmt: skip
    dense = written_out(kind, scores, hessians, expected * working[:, None, None], prior, panel["firm"])
    close(eq.robust(problem, fit, kind=kind, **CLUSTERS.get(kind, {})), dense, 1e-9)


@every_kind
@pytest.mark.parametrize("name", ["beta", "huber", "student"])
def test_robust_losses_are_measured_by_their_own_curvature(kind, name, panel) -> None:
    problem = bound(panel, "gaussian", divergence=DIVERGENCES[name], prior_precision=0.4)
    fit = eq.fit(problem)
    here = problem.at_constant(fit.constant)
    scores, hessians = row_by_row(here, fit.theta)
    dense = written_out(kind, scores, hessians, hessians, 0.4 * np.eye(3), panel["firm"])
    close(eq.robust(problem, fit, kind=kind, **CLUSTERS.get(kind, {})), dense, 1e-9)


@every_kind
def test_a_loss_of_ones_own_has_that_of_its_family(kind, panel) -> None:
    glm = bound(panel, "poisson", beside=False, prior_precision=0.8)
    own = eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)}, prior_precision=0.8)
    data = {"x": panel["x"][:, 1:], "y": panel["poisson"]}
    marks = {"clusters": {"firm": panel["firm"]}} if kind in ("CRV1", "CRV3") else {}
    options = {"lags": 4} if kind == "HAC" else {}
    expected = eq.robust(glm, eq.fit(glm), kind=kind, **CLUSTERS.get(kind, {}))
    close(eq.robust(own, data, eq.fit(own, data), kind=kind, **marks, **options), expected, 1e-6)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "HAC"])
def test_a_frequency_is_that_of_the_rows_written_out(kind, panel) -> None:
    times = np.random.default_rng(0).integers(1, 4, N)
    x, y, firm = panel["x"], panel["poisson"], panel["firm"]
    short = eq.data.rows(x, y, weights=panel["weights"], frequency=times, clusters=firm)
    every = np.repeat(np.arange(N), times)
    long = eq.data.rows(x[every], y[every], weights=panel["weights"][every], clusters=firm[every])
    model = eq.glm("poisson", prior_precision=0.5)
    close(*(eq.robust(model, data, eq.fit(model, data), kind=kind) for data in (short, long)), 1e-9)


def test_the_jackknife_of_squared_loss_is_that_of_refits(panel) -> None:
    prior, firm = np.array([5.0, 2.0, 8.0]), panel["firm"]
    problem = bound(panel, "gaussian", scale=1.3, prior_precision=prior)
    fit, groups = eq.fit(problem), np.unique(firm)
    moved = []
    for name in groups:
        kept = np.flatnonzero(firm != name)
        # every observation carries its share of the prior
        model = eq.glm("gaussian", scale=1.3, prior_precision=prior * len(kept) / N)
        moved.append(eq.fit(model, problem.source.take(kept)).theta - fit.theta)
    G = len(groups)
    close(eq.robust(problem, fit, kind="CRV3", clusters="firm"), (G - 1) / G * np.transpose(moved) @ np.array(moved))


# --- Blocks, labels, times -----------------------------------------------------------------------------


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
    for time in (order, order - 7.5, dates, dates.astype(str)):
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


# --- What cannot be -------------------------------------------------------------------------------------


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
    assert np.isfinite(eq.robust(model, data, fit, kind="HC1")).all()


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


# --- Chains ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["HC3", "CRV1", "CRV3", "HAC", "two-way", "function"])
def test_a_chain_has_its_target_as_covariance(kind, panel) -> None:
    options = {**CLUSTERS, "two-way": {"clusters": ["firm", "year"]}}.get(kind, {})
    problem = bound(panel, "gaussian")
    target = {"two-way": "CRV1", "function": lambda p, m: 1.7 * eq.robust(p, m.params, kind="HC2")}.get(kind, kind)
    cal = eq.calibrate(problem, target=target, sampler="sgmcmc", ess=4000, seed=3, progress=False, **options)
    expected = eq.robust(problem, cal.fit, kind={"two-way": "CRV1", "function": "HC2"}.get(kind, kind), **options)
    expected = expected * (1.7 if kind == "function" else 1.0)
    np.testing.assert_allclose(cal.tuning.target, expected, rtol=1e-10)
    np.testing.assert_allclose(cal.tuning.predicted.cov, expected, rtol=1e-10)
    root = np.linalg.inv(np.linalg.cholesky(expected))
    seen = root @ np.cov(cal.chains.flat().T) @ root.T
    # variances of 4000 effective draws have standard errors of √(2/4000) = 2.2 %
    np.testing.assert_allclose(seen, np.eye(3), atol=4 * 0.0224)
    # the sandwich is far away
    assert np.abs(root @ eq.sandwich(cal.plan.moments) @ root.T - np.eye(3)).max() > (0.02 if kind == "HC3" else 0.1)


def test_the_run_says_what_it_aimed_at_and_keeps_it(panel, tmp_path) -> None:
    problem = bound(panel, "poisson")
    cal = eq.calibrate(problem, target="CRV1", clusters=["firm", "year"], sampler="gaussian", ess=200)
    assert (cal.plan.target_name, cal.plan.target.df) == ("CRV1", 7.0)
    assert "CRV1 by firm (21 clusters) and year (8 clusters)" in str(cal.plan)
    assert "CRV1 by firm" in str(cal.summary())
    cal.save(tmp_path / "run.eqz")
    back = eq.load(tmp_path / "run.eqz").plan.target
    assert (back.words, back.df, back.groups) == (cal.plan.target.words, 7.0, (21, 8))
    np.testing.assert_array_equal(back.matrix, cal.plan.target.matrix)
    # tuned on some rows, the target is still that of all
    some = eq.plan(problem, target="CRV3", clusters="firm", sampler="gaussian", tuning_rows=100)
    np.testing.assert_allclose(some.tuning.target, eq.robust(problem, cal.fit, kind="CRV3", clusters="firm"), rtol=1e-6)
