"""Clustered covariances beside pyfixest and linearmodels, in memory and from files; and options that go together."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import equipoise as eq

FORMULA = "y ~ a + b"
TIGHT = 1e-8


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 500
    f = pd.DataFrame({"firm": rng.integers(0, 23, n), "year": rng.integers(0, 17, n)})
    # columns and errors that firms and years share: both ways of clustering then matter
    f["a"] = rng.normal(size=n) + rng.normal(size=23)[f.firm] + rng.normal(size=17)[f.year]
    f["b"] = rng.uniform(size=n) + rng.uniform(size=23)[f.firm] + rng.uniform(size=17)[f.year]
    f["w"], f["times"], f["o"] = rng.uniform(0.5, 2.0, n), rng.integers(1, 4, n), 0.2 * rng.normal(size=n)
    effect = 0.7 * rng.normal(size=23)[f.firm] + 0.7 * rng.normal(size=17)[f.year]
    f["y"] = 0.3 + 0.4 * f.a - 0.2 * f.b + effect + rng.normal(size=n) * (0.5 + f.b)
    f["count"] = rng.poisson(np.exp(0.8 + 0.2 * f.a - 0.2 * f.b + effect)).astype(float)
    return f


@pytest.fixture(scope="module", params=["memory", "files"])
def source(request, frame, tmp_path_factory):
    """How rows are read: a table in memory, or two Parquet files."""
    if request.param == "memory":
        return lambda formula, **options: eq.data.table(frame, formula, **options)
    folder = tmp_path_factory.mktemp("rows")
    for k, part in enumerate((frame.iloc[:180], frame.iloc[180:])):
        part.to_parquet(folder / f"{k}.parquet")
    return lambda formula, **options: eq.data.scan(folder, formula, **options)


def made(rows, family: str = "gaussian", **options) -> eq.Calibration:
    return eq.calibrate(eq.glm(family, **options), rows, sampler="gaussian", draws=2, chains=1)


def theirs(frame, vcov, ssc=None, family: str = "gaussian", weights: str | None = None) -> np.ndarray:
    pf = pytest.importorskip("pyfixest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if family == "poisson":
            fit = pf.fepois("count ~ a + b", frame, vcov=vcov, ssc=ssc, iwls_tol=1e-14)
        else:
            fit = pf.feols(FORMULA, frame, vcov=vcov, ssc=ssc, weights=weights)
    return np.asarray(fit._vcov)


def test_pyfixest_clusters_one_and_two_ways(frame, source) -> None:
    pf = pytest.importorskip("pyfixest")
    cal = made(source(FORMULA, clusters=["firm", "year"], weights="w"))
    np.testing.assert_allclose(
        cal.vcov("CRV1", clusters="firm"), theirs(frame, {"CRV1": "firm"}, weights="w"), rtol=TIGHT
    )
    for cluster_df, small_sample in (("min", "min"), ("conventional", True)):
        ssc = pf.ssc(k_adj=True, G_adj=True, G_df=cluster_df)
        expected = theirs(frame, {"CRV1": "firm + year"}, ssc, weights="w")
        np.testing.assert_allclose(cal.vcov("CRV1", small_sample=small_sample), expected, rtol=TIGHT)


def test_pyfixest_jackknife(frame, source) -> None:
    pf = pytest.importorskip("pyfixest")
    cal = made(source(FORMULA, clusters=["firm"]))
    expected = theirs(frame, {"CRV3": "firm"}, pf.ssc(k_adj=False, G_adj=False))
    np.testing.assert_allclose(cal.vcov("CRV3", small_sample=False), expected, rtol=TIGHT)
    # the jackknife's own factor; theirs by default is that of CRV1
    np.testing.assert_allclose(cal.vcov("CRV3"), expected * 22 / 23, rtol=TIGHT)


def test_pyfixest_poisson(frame, source) -> None:
    cal = made(source("count ~ a + b", clusters=["firm"]), "poisson")
    np.testing.assert_allclose(cal.vcov("CRV1"), theirs(frame, {"CRV1": "firm"}, family="poisson"), rtol=1e-6)


def test_linearmodels_clusters(frame, source) -> None:
    iv = pytest.importorskip("linearmodels.iv")
    cal = made(source(FORMULA, clusters=["firm", "year"]))
    x = sm.add_constant(frame[["a", "b"]])
    for names, small in ((["firm"], True), (["firm", "year"], True), (["firm", "year"], False)):
        fit = iv.IV2SLS(frame.y, x, None, None).fit(cov_type="clustered", clusters=frame[names], debiased=small)
        np.testing.assert_allclose(cal.vcov("CRV1", clusters=names, small_sample=small), fit.cov, rtol=TIGHT)


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_statsmodels_heteroskedastic(kind, frame, source) -> None:
    expected = sm.WLS(frame.y, sm.add_constant(frame[["a", "b"]]), weights=frame.w).fit(cov_type=kind).cov_params()
    np.testing.assert_allclose(made(source(FORMULA, weights="w")).vcov(kind), expected, rtol=TIGHT)


@pytest.mark.parametrize(
    ("weights", "offset", "frequency", "prior", "robust"),
    # every pair of options with and without each other
    [
        pytest.param(None, None, None, 0.0, None, marks=pytest.mark.slow),
        ("w", "o", "times", 0.0, None),
        ("w", None, None, 3.0, eq.Beta(1.3)),
        pytest.param(None, "o", None, 3.0, None, marks=pytest.mark.slow),
        pytest.param(None, None, "times", 3.0, eq.Beta(1.3), marks=pytest.mark.slow),
        ("w", "o", "times", 3.0, eq.Beta(1.3)),
        pytest.param(None, "o", "times", 0.0, eq.Beta(1.3), marks=pytest.mark.slow),
        pytest.param("w", None, "times", 3.0, None, marks=pytest.mark.slow),
    ],
)
def test_options_go_together(weights, offset, frequency, prior, robust, frame, source) -> None:
    rows = source("count ~ a + b", weights=weights, offset=offset, frequency=frequency, clusters=["firm", "year"])
    cal = made(rows, "poisson", prior_precision=prior, divergence=robust)
    every = frame if frequency is None else frame.loc[frame.index.repeat(frame[frequency])]
    x = np.column_stack([np.ones(len(every)), every.a, every.b])
    w = np.ones(len(every)) if weights is None else every[weights].to_numpy()
    eta = x @ cal.fit.params + (0.0 if offset is None else every[offset].to_numpy())
    loss, p = cal.model.loss, cal.model.loss.constants
    y = every["count"].to_numpy()
    # each observation has its share of the prior, and scores are centred
    scores = (w * loss.d1(eta, y, p))[:, None] * x
    scores = scores - scores.mean(axis=0)
    bread = np.linalg.inv((x * (w * loss.d2(eta, y, p))[:, None]).T @ x + prior * np.eye(3))
    np.testing.assert_allclose(cal.vcov("HC0"), bread @ scores.T @ scores @ bread, rtol=1e-7)

    def summed(labels) -> np.ndarray:
        sums = pd.DataFrame(scores).groupby(np.asarray(labels)).sum().to_numpy()
        return bread @ sums.T @ sums @ bread

    both = list(zip(every.firm, every.year, strict=True))
    one, two, cut = (summed(pd.factorize(pd.Series(labels))[0]) for labels in (every.firm, every.year, both))
    np.testing.assert_allclose(cal.vcov("CRV1", clusters="firm", small_sample=False), one, rtol=1e-7)
    np.testing.assert_allclose(
        cal.vcov("CRV1", clusters=["firm", "year"], small_sample=False), one + two - cut, rtol=1e-6, atol=1e-12
    )
