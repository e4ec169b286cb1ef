"""Where fits end: as close to the minimum as rounding allows, in memory and from files."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext
from itertools import product

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.fitting.ending import ended
from equipoise.fitting.fit import fit_unseen
from equipoise.models.profile import _by_large_size, _log_over_digamma, constant_terms, narrow, rising_factorial

N = 30_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, N))
    mean = np.exp(0.3 * a - 0.2 * b)
    few = np.where(np.arange(N) % 4000 == 7, "rare", rng.choice(["x", "y"], N))
    return pa.table(
        {
            "a": a,
            "b": b,
            "few": few,
            "w": rng.uniform(0.5, 2.0, N),
            "count": rng.negative_binomial(2.0, 2.0 / (2.0 + mean)).astype(float),
            "size": rng.gamma(2.0, 0.5 * mean),
            "level": 0.3 * a + rng.standard_t(3, N),
        }
    )


MODELS = {
    "squared with a prior": ("size", eq.glm("gaussian", prior_precision=3.0)),
    "huber": ("level", eq.glm("gaussian", divergence=eq.Huber(0.8), prior_precision=3.0)),
    "student": ("size", eq.glm("gaussian", divergence=eq.StudentT())),
    "gamma": ("size", eq.glm("gamma")),
    "counts": ("count", eq.glm("negative-binomial", prior_precision=1.0)),
    "poisson": ("count", eq.glm("poisson")),
}


def _distance(problem, found) -> float:
    """In posterior standard deviations, by one Newton step."""
    here = problem.at_constant(found.constant).derivatives(found.theta, 2)
    return float(np.sqrt(problem.n * here.gradient @ np.linalg.solve(here.hessian, here.gradient)))


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_that_knows_little_of_a_level_ends_no_search(name, table, monkeypatch) -> None:
    """The sample's Hessian makes distances look small beside those by the rows' own, which is no sign of rounding."""
    monkeypatch.setattr("equipoise.fitting.fit._SAMPLE", 300)
    response, model = MODELS[name]
    problem = eq.bind(model, eq.data.table(table.to_pandas(), f"{response} ~ a + b + few", weights="w"))
    found = eq.fit(problem)
    assert _distance(problem, found) < 1e-11
    if found.constant is not None:
        # the constant belongs to the parameters
        again = replace(problem, model=replace(problem.model, constant=None)).settled(found.theta)
        assert again.constant == pytest.approx(found.constant, rel=1e-12)


@pytest.mark.parametrize("name", ["poisson", "gamma", "counts", "squared with a prior"])
def test_moments_tell_the_last_step_of_a_fit_from_files(name, table) -> None:
    response, model = MODELS[name]
    source = eq.data.scan(table, f"{response} ~ a + b")
    problem = eq.bind(model, source)
    expected = eq.fit(model, source.whole())
    fitted, rng = fit_unseen(problem), np.random.default_rng(0)
    free = name in {"gamma", "counts"}
    # a step away, as if the last one taken unseen had been wrong
    away = np.linalg.cholesky(eq.posterior(eq.moments(problem, expected))) @ rng.normal(size=3)
    constant = None if fitted.constant is None else fitted.constant * (1.0 + 1e-7 * free)
    moved = replace(fitted, theta=fitted.theta + 1e-6 * away, params=fitted.theta + 1e-6 * away, constant=constant)
    assert np.abs(moved.theta - expected.theta).max() > 1e-9
    here, found, moments = ended(problem.at_constant(constant), moved, eq.moments(problem, moved))
    # Newton's method squares the distance
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(moments.params, found.theta)
    if free:
        assert found.constant == here.constant == moments.constant == pytest.approx(expected.constant, rel=1e-11)
    at = here.moments(found.theta)
    np.testing.assert_allclose(moments.mean_score, at.mean_score, atol=1e-12)
    np.testing.assert_array_equal(moments.curvature.third(np.eye(3)), at.curvature.third(np.eye(3)))


def test_a_fit_that_is_not_where_it_was_foreseen_is_refused(table) -> None:
    problem = eq.bind(eq.glm("poisson"), eq.data.scan(table, "count ~ a"))
    fitted = fit_unseen(problem)
    wrong = replace(fitted, params=fitted.theta + 1e-3)
    with pytest.raises(eq.FitFailed, match="did not converge"):
        ended(problem, wrong, eq.moments(problem, wrong))


def test_a_level_that_a_robust_loss_gives_up_is_named(table) -> None:
    frame = table.to_pandas()
    # counts that no mean explains: as outliers they have no say, and their level no estimate
    frame.loc[[10, 20, 30], "few"] = "alone"
    frame.loc[[10, 20, 30], "count"] = [5.0, 60.0, 600.0]
    model = eq.glm("poisson", divergence=eq.Beta(1.3))
    for data in (eq.data.table(frame, "count ~ a + few"), eq.data.scan(pa.Table.from_pandas(frame), "count ~ a + few")):
        with pytest.raises(eq.FitFailed, match=r"level along Intercept, few.* have no more say") as error:
            eq.fit(model, data)
        assert error.value.columns == ("Intercept", "few[T.rare]", "few[T.x]", "few[T.y]")


@pytest.mark.parametrize(("seed", "chance"), [(0, 0.72), (2, 0.74)])
def test_counts_of_which_half_are_fitted_exactly_have_a_robust_scale_all_the_same(seed, chance) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=6000)
    y = rng.negative_binomial(2.0, chance, 6000).astype(float)
    assert 0.5 < np.mean(y == 0.0) < 0.55
    model = eq.glm("gaussian", divergence=eq.StudentT(), prior_precision=1e-3)
    found = eq.fit(model, (np.column_stack([np.ones(6000), x]), y))
    away = np.abs(y - found.params[0] - x * found.params[1])
    assert found.constant == pytest.approx(np.median(away) / 0.6744897501960817, rel=1e-9)
    assert found.constant > 0.5


def test_a_network_on_files_follows_a_part_of_its_rows() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(N, 2))
    y = 0.3 + 1.2 * np.tanh(x @ [1.0, -0.5]) + 0.5 * rng.normal(size=N)

    def loss(p, row):
        return 0.5 * (row["y"] - p["c"] - p["v"] * jnp.tanh(row["x"] @ p["w"])) ** 2

    model = eq.Model(loss, {"c": 0.0, "v": 1.0, "w": np.array([0.5, -0.2])}, prior_precision=1.0)
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "y": y})
    source = eq.data.scan(table, columns={"x": ["a", "b"], "y": "y"}, memory="10MB")
    found = eq.fit(model, source)
    assert source.lot.size < N  # a part is not all
    assert source.passes <= 1 + 3
    expected = eq.fit(model, {"x": x, "y": y})
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-10)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    assert _distance(eq.bind(model, {"x": x, "y": y}), found) < 1e-10


@pytest.mark.parametrize("r", [30.0, 31.7, 500.0, 1e4, 1e7])
def test_likelihoods_of_next_to_no_dispersion_keep_their_digits(r) -> None:
    for count, mean in product([0, 1, 3, 17, 2000], [1e-3, 0.7, 3.0, 20.0, 1500.0]):
        with localcontext(prec=50):
            size, mu = Decimal(r), Decimal(mean)
            steps = [size + k for k in range(count)]  # the recurrence, for whole numbers
            rise = sum((step.ln() for step in steps), Decimal(0))
            slope = sum((1 / step for step in steps), Decimal(0)) - (1 + mu / size).ln() + (mu - count) / (size + mu)
            bend = mu / (size * (size + mu)) - (mu - count) / (size + mu) ** 2 - sum(step**-2 for step in steps)
        y = np.array([float(count)])
        found = _by_large_size(y, np.array([mean]), r)
        # what is left of a variance beside Poisson's: both parts of that count
        part = 0.5 * ((count - mean) / (r + mean)) ** 2 + 0.5 * count / (r * (r + count))
        assert found[0][0] == pytest.approx(float(slope), abs=1e-14 * part)
        assert found[1][0] == pytest.approx(float(bend), abs=2e-14 * part / (r + count))
        assert rising_factorial(y, r)[0] == pytest.approx(float(rise), rel=1e-15)


@pytest.mark.parametrize("k", [1.1e3, 1e6, 1e10])
def test_what_tells_a_large_shape_keeps_its_digits(k) -> None:
    y, x = 1.0 + np.array([-2.0, -0.3, 0.1, 1.4]) / np.sqrt(k), np.ones((4, 1))
    with localcontext(prec=50):
        shape = Decimal(k)
        expected = 1 / (2 * shape) + 1 / (12 * shape**2) - 1 / (120 * shape**4)  # log k − ψ(k)
        excess = [Decimal(each) - 1 - Decimal(each).ln() for each in y.tolist()]
        score = [float(shape * (each - expected)) for each in excess]
        stirling = float(1 / (12 * shape) - 1 / (360 * shape**3)) - 0.5 * np.log(k / (2.0 * np.pi))
        values = [float(shape * each) + stirling for each in excess]
    assert _log_over_digamma(k) == pytest.approx(float(expected), rel=1e-15)
    terms = constant_terms("gamma", k, eq.bind(eq.glm("gamma"), (x, y)).source, np.zeros(1))
    # rounding of log y beside the spread of y
    np.testing.assert_allclose(terms.score, score, rtol=0.0, atol=1e-15 * np.sqrt(k))
    np.testing.assert_allclose(narrow(y, np.zeros(4), k), values, rtol=0.0, atol=1e-14 + 1e-15 * np.sqrt(k))
    np.testing.assert_allclose(terms.bend - terms.score, 0.5 + 1 / (6 * k) - 1 / (30 * k**3), rtol=1e-12)


def test_counts_that_are_next_to_poisson_have_a_dispersion_in_memory_and_on_files() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=50_000)
    mean = np.exp(0.3 * x)
    table = pa.table({"x": x, "y": rng.poisson(mean * rng.gamma(50.0, 1 / 50.0, 50_000)).astype(float)})
    source = eq.data.scan(table, "y ~ x")
    found, expected = eq.plan(eq.glm("negative-binomial"), source), eq.plan(eq.glm("negative-binomial"), source.whole())
    assert 0.01 < expected.fit.constant < 0.03
    assert found.fit.constant == pytest.approx(expected.fit.constant, rel=1e-11)
    np.testing.assert_allclose(found.fit.theta, expected.fit.theta, rtol=1e-10, atol=1e-13)
