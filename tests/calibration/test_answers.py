"""Tables, tests and combinations of coefficients of a run against statsmodels, and hypotheses written in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats as st
import statsmodels.formula.api as smf

import equipoise as eq
from equipoise.calibration.hypotheses import restrictions

N = 300
FORMULA = "y ~ a + C(zone) + a:b"
NAMES = ("Intercept", "C(zone)[T.2]", "C(zone)[T.3]", "a", "a:b")


def table(family="gaussian", n=N, seed=0):
    rng = np.random.default_rng(seed)
    f = pd.DataFrame({"a": rng.normal(size=n), "b": rng.uniform(size=n), "zone": rng.integers(1, 4, n)})
    f["firm"], f["year"] = rng.integers(0, 25, n), rng.integers(0, 14, n)
    eta = 0.3 + 0.4 * f.a - 0.2 * (f.zone == 2) + 0.3 * rng.normal(size=25)[f.firm]
    mean = np.exp(eta)
    f["y"] = {
        "gaussian": eta + (0.5 + np.abs(f.a)) * rng.normal(size=n),
        "bernoulli": (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(mean).astype(float),
        "gamma": mean * rng.gamma(2.0, 0.5, size=n),
        "negative-binomial": rng.poisson(mean * rng.gamma(2.0, 0.5, size=n)).astype(float),
    }[family]
    return f


def run(frame, family="gaussian", target="sandwich", ess=400, formula=FORMULA, **options):
    rows = eq.data.table(frame, formula, clusters=["firm", "year"])
    return eq.calibrate(eq.glm(family), rows, target, sampler="gaussian", ess=ess, seed=1, **options)


@pytest.fixture(scope="module")
def frame():
    return table()


@pytest.fixture(scope="module")
def cal(frame):
    return run(frame)


@pytest.fixture(scope="module")
def theirs(frame):
    return smf.ols(FORMULA, frame).fit()


def same_order(cal, results, values):
    """Values of statsmodels' in our order of the parameters."""
    return pd.Series(np.asarray(values), index=results.params.index)[list(cal.names)].to_numpy()


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_the_table_with_another_covariance(kind, cal, theirs) -> None:
    other = theirs.get_robustcov_results(kind, use_t=kind != "HC0")
    found = cal.tidy(level=0.9, kind=kind)
    assert list(found.columns) == ["term", "estimate", "std_error", "statistic", "p_value", "conf_low", "conf_high"]
    assert tuple(found.term) == cal.names
    low, high = other.conf_int(alpha=0.1).T
    for name, expected in {
        "estimate": other.params, "std_error": other.bse, "statistic": other.tvalues, "p_value": other.pvalues,
        "conf_low": low, "conf_high": high,
    }.items():  # fmt: skip
        np.testing.assert_allclose(found[name], same_order(cal, theirs, expected), rtol=1e-8)


def test_clusters_bring_their_degrees_of_freedom(cal, theirs, frame) -> None:
    other = theirs.get_robustcov_results("cluster", groups=frame.firm, use_t=True)
    assert other.df_resid_inference == 24
    for found in (cal.tidy(kind="CRV1", clusters="firm"), cal.tidy(clusters="firm"), cal.tidy(clusters=frame.firm)):
        np.testing.assert_allclose(found.p_value, same_order(cal, theirs, other.pvalues), rtol=1e-8)
        np.testing.assert_allclose(found.conf_low, same_order(cal, theirs, other.conf_int()[:, 0]), rtol=1e-8)
    interval = cal.confint(0.8, clusters="firm")
    np.testing.assert_allclose(interval.upper, same_order(cal, theirs, other.conf_int(0.2)[:, 1]), rtol=1e-8)
    assert tuple(interval.index) == cal.names
    # two ways: the fewest clusters count
    two = cal.tidy(clusters=["firm", "year"])
    reach = (two.conf_high - two.estimate) / two.std_error
    np.testing.assert_allclose(reach, st.t(13).ppf(0.975), rtol=1e-10)


def test_covariances_without_another_fit(cal, frame) -> None:
    problem = eq.bind(eq.glm("gaussian"), frame, formula=FORMULA)
    np.testing.assert_array_equal(cal.vcov(), cal.tuning.target)
    np.testing.assert_allclose(cal.vcov("posterior"), eq.posterior(cal.plan.moments))
    for kind, options in (
        ("HC2", {}),
        ("HAC", {"lags": 3}),
        ("HAC", {"time": frame.a}),
        ("CRV3", {"clusters": "year"}),
    ):
        marks = {"clusters": frame.year} if "clusters" in options else options
        expected = eq.robust(problem, cal.fit, kind=kind, **marks)
        np.testing.assert_allclose(cal.vcov(kind, **options), expected, rtol=1e-10)
    with pytest.warns(eq.EquipoiseWarning, match="not positive definite"):
        cal.vcov(clusters=[np.arange(N) % 6, np.arange(N) // 60])
    with pytest.raises(eq.InvalidInput, match="did you mean HC1"):
        cal.vcov("HC11")
    with pytest.raises(eq.InvalidInput, match="clusters: must be one of firm, year"):
        cal.vcov("CRV1", clusters="zone")


def test_a_fit_to_some_rows_has_covariances_of_all(frame) -> None:
    some = run(frame, tuning_rows=100)
    every = run(frame)
    for kind in ("HC3", "CRV1"):
        options = {"clusters": "firm"} if kind == "CRV1" else {}
        np.testing.assert_allclose(some.vcov(kind, **options), every.vcov(kind, **options), rtol=1e-5)


# --- Hypotheses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "a = 0",
        "a = 0, C(zone)[T.2] = C(zone)[T.3]",
        "2*a - a:b = 1",
        "(a + C(zone)[T.2]) / 3 - 2*(a:b - 0.5) = -1e-1*Intercept, a = 0.2",
    ],
)
@pytest.mark.parametrize("use_f", [False, True])
@pytest.mark.parametrize("clustered", [False, True])
def test_walds_test(words, use_f, clustered, cal, theirs, frame) -> None:
    rows = restrictions(words, cal.names)
    if clustered:
        other = theirs.get_robustcov_results("cluster", groups=frame.firm, use_t=True)
    else:
        other = theirs.get_robustcov_results("HC3", use_t=True)
    order = [list(theirs.params.index).index(name) for name in cal.names]
    matrix = np.zeros((len(rows.matrix), len(cal.names)))
    matrix[:, order] = rows.matrix
    expected = other.wald_test((matrix, rows.value), use_f=use_f, scalar=True)
    options = {"kind": "CRV1", "clusters": "firm"} if clustered else {"kind": "HC3"}
    found = cal.test(words, use_f, **options)
    assert found.statistic == pytest.approx(float(expected.statistic), rel=1e-8)
    assert found.p_value == pytest.approx(float(expected.pvalue), rel=1e-7)
    assert found.df == len(rows.matrix)
    if use_f:
        assert found.df_denominator == (24 if clustered else N - 5) == expected.df_denom
    # the same from the matrix
    again = cal.test((rows.matrix, rows.value), use_f, **options)
    assert (again.statistic, again.p_value) == (found.statistic, found.p_value)


def test_words_become_rows() -> None:
    names = ("x", "x1", "x10", "C(g, contr.treatment('a'))[T.b]", "x:x1", "log(x + 1)", "a-b", "3")
    eye = np.eye(len(names))

    def row(words):
        made = restrictions(words, names)
        return made.matrix.tolist(), made.value.tolist()

    assert row("x10 = 2") == ([eye[2].tolist()], [2.0])
    assert row("x1=x") == ([(eye[1] - eye[0]).tolist()], [0.0])
    assert row("C(g, contr.treatment('a'))[T.b] = 0, x:x1 = .5") == ([eye[3].tolist(), eye[4].tolist()], [0.0, 0.5])
    assert row("log(x + 1) - a-b = 3*x - 1") == ([(eye[5] - eye[6] - 3 * eye[0]).tolist()], [-1.0])
    assert row("x = x1 = 4") == ([(eye[0] - eye[1]).tolist(), eye[1].tolist()], [0.0, 4.0])
    assert row("-(-x) * 2 / 4 + 1") == ([(0.5 * eye[0]).tolist()], [-1.0])
    assert row("(" * 50 + "x10" + ")" * 50) == ([eye[2].tolist()], [0.0])
    assert row(["x = 1", "x1"]) == ([eye[0].tolist(), eye[1].tolist()], [1.0, 0.0])
    # a number is a number, unless it is written as a name
    assert row("`3` = 3") == ([eye[7].tolist()], [3.0])
    assert restrictions("x = x1 = 4,  2*x10", names).words == ("x = x1", "x1 = 4", "2*x10")
    assert restrictions(eye[0] - 2 * eye[1], names).words == ("x - 2*x1",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("x2 = 0", "'x2'"),
        ("ab = 0", "'ab'"),
        ("a_1 = 0", "'a_1'"),
        ("a:c = 1", "a:c|:c"),
        ("zone = 1", "did you mean"),
        ("a * b = 1", "product"),
        ("a / b", "product or quotient"),
        ("a / 0 = 1", "division by zero"),
        ("a = ", "nothing where a parameter"),
        ("(a = 0", "not closed"),
        ("a b", "where a comma or the end"),
        ("a = a", "no parameter is left"),
        ("2 = 1", "no parameter is left"),
        ("", "nothing where"),
        ("a ** 2", r"'\*' there"),
        ("(" * 60 + "a" + ")" * 60, "brackets too deep"),
        ("-" * 4000 + "a", "brackets too deep"),
        ("a $ b", "'\\$'"),
    ],
)
def test_words_that_are_no_hypotheses(words, message) -> None:
    with pytest.raises(eq.InvalidInput, match=f"hypothesis: must be .*{message}"):
        restrictions(words, ("a", "b", "zones"))


@pytest.mark.parametrize(
    "given", [np.ones(3), np.ones((2, 2, 5)), (np.ones((2, 5)), np.ones(3)), None, 3, [["a"]], np.nan]
)
def test_matrices_that_are_no_hypotheses(given, cal) -> None:
    with pytest.raises(eq.InvalidInput, match="hypothesis: must be"):
        cal.test(given)


def test_tests_that_cannot_be(cal) -> None:
    with pytest.raises(eq.InvalidInput, match="do not repeat each other; got 2, of which 1 count"):
        cal.test("a = 0, 2*a = 0")
    with pytest.raises(eq.InvalidInput, match="has variance for"):
        cal.test(np.eye(5)[:3], clusters=np.arange(N) % 3)
    assert str(cal.test("a = 0")).startswith("chi2(1) = ")
    assert "covariance: sandwich" in repr(cal.test("a = 0"))


def test_linear_combinations(cal, theirs) -> None:
    found = cal.combine("a + 2*C(zone)[T.2], a - 0.5", level=0.9, kind="HC3")
    other = theirs.get_robustcov_results("HC3", use_t=True)
    index = list(theirs.params.index)
    rows = np.zeros((2, 5))
    rows[0, index.index("a")], rows[0, index.index("C(zone)[T.2]")], rows[1, index.index("a")] = 1, 2, 1
    expected = other.t_test((rows, np.array([0.0, 0.5])))
    np.testing.assert_allclose(found.estimate, expected.effect - [0.0, 0.5], rtol=1e-9)
    np.testing.assert_allclose(found.std_error, expected.sd.ravel()[:2], rtol=1e-8)
    np.testing.assert_allclose(found.statistic, expected.tvalue.ravel(), rtol=1e-8)
    np.testing.assert_allclose(found.conf_high - found.estimate, expected.conf_int(0.1)[:, 1] - expected.effect)
    assert list(found.term) == ["a + 2*C(zone)[T.2]", "a - 0.5"]


# --- Under other names -----------------------------------------------------------------------------------


def test_the_names_of_statsmodels(cal, theirs, frame) -> None:
    order = list(cal.names)
    other = smf.ols(FORMULA, frame).fit(cov_type="HC0")
    np.testing.assert_allclose(cal.params, other.params[order], rtol=1e-9)
    np.testing.assert_allclose(cal.bse, other.bse[order], rtol=1e-8)
    np.testing.assert_allclose(cal.pvalues, other.pvalues[order], rtol=1e-7)
    np.testing.assert_allclose(cal.cov_params(), other.cov_params().loc[order, order], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(cal.conf_int(0.2), other.conf_int(0.2).loc[order], rtol=1e-8)
    np.testing.assert_allclose(cal.resid, other.resid, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(cal.fittedvalues, other.fittedvalues, rtol=1e-9)
    assert list(cal.params.index) == list(cal.bse.index) == list(cal.conf_int().index) == order
    with pytest.raises(eq.InvalidInput, match="alpha"):
        cal.conf_int(5)


def test_a_loaded_run_answers_what_needs_no_rows(cal, frame, tmp_path) -> None:
    cal.save(tmp_path / "run.eqz")
    back = eq.load(tmp_path / "run.eqz")
    for call in (lambda c: c.tidy(kind="HC1"), lambda c: c.compare(frame[:5], frame[5:10]), lambda c: c.effects(frame)):
        pd.testing.assert_frame_equal(call(back), call(cal))
    assert back.test("a = 0").p_value == cal.test("a = 0").p_value
    for call in (lambda: back.vcov("HC3"), lambda: back.resid, lambda: back.vcov(clusters="firm")):
        with pytest.raises(eq.InvalidInput, match="attach"):
            call()
    rows = eq.data.table(frame, FORMULA, clusters="firm")
    np.testing.assert_allclose(back.attach(eq.glm("gaussian"), rows).vcov(clusters="firm"), cal.vcov(clusters="firm"))


def test_a_loss_of_ones_own(frame) -> None:
    import jax.numpy as jnp

    data = {"x": np.column_stack([np.ones(N), frame.a]), "y": frame.y.to_numpy(), "s": np.ones(N)}
    model = eq.Model(lambda p, o: 0.5 * (o["y"] - jnp.dot(o["x"], p["b"])) ** 2, {"b": np.zeros(2)})
    own = eq.calibrate(model, data, "CRV1", clusters=frame.firm, sampler="gaussian", ess=100)
    glm = eq.calibrate(
        eq.glm("gaussian"), (data["x"], frame.y), "CRV1", clusters=frame.firm, sampler="gaussian", ess=100
    )
    np.testing.assert_allclose(own.tidy().iloc[:, 1:], glm.tidy().iloc[:, 1:], rtol=1e-6)
    assert own.test("b[0] = b[1]").p_value == pytest.approx(glm.test("x0 = x1").p_value, rel=1e-6)
    with pytest.raises(eq.InvalidInput, match=r"one from eq\.glm"):
        own.effects()
