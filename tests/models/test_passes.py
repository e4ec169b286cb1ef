"""Passes over the rows: how many a fit from files needs, and the median by counting."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.models import residuals
from equipoise.models.scaled import drifting_with_scale

N = 60_000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(N, 4))
    eta = 0.2 + 0.3 * x.sum(axis=1) / 2.0
    return pa.table(
        {
            **{f"x{j}": x[:, j] for j in range(4)},
            "gaussian": eta + rng.standard_t(5, size=N),
            "bernoulli": (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(float),
            "poisson": rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, N)).astype(float),
            "gamma": rng.gamma(2.0, np.exp(eta) / 2.0) + 1e-6,
            "w": rng.uniform(0.5, 2.0, N),
            "f": rng.integers(1, 4, N),
        }
    )


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "gamma"])
def test_a_fit_from_files_reads_them_four_times_and_finds_the_same(family, table) -> None:
    source = eq.data.scan(table, f"{family} ~ x0 + x1 + x2 + x3", weights="w")
    found = eq.fit(eq.glm(family), source)
    # the first pass, four for the minimiser, and one for the gamma's shape
    assert source.passes <= 1.0 + 4.0 + (family == "gamma")
    expected = eq.fit(eq.glm(family), source.whole())
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-10, atol=1e-13)
    if expected.constant is not None:
        assert found.constant == pytest.approx(expected.constant, rel=1e-12)
    # the certificate holds where the last step was taken unseen
    problem = eq.bind(eq.glm(family), source).at_constant(found.constant)
    _, gradient, H, _ = problem.derivatives(found.theta, 2)
    assert found.converged
    assert np.sqrt(source.n * gradient @ np.linalg.solve(H, gradient)) <= max(2.0 * found.gradient_norm, 1e-11)


def test_the_rest_of_the_offline_stage_reads_once_for_each_matrix(table) -> None:
    source = eq.data.scan(table, "poisson ~ x0 + x1 + x2 + x3")
    problem = eq.bind(eq.glm("poisson"), source)
    fitted = eq.fit(problem)
    before = source.passes
    moments = eq.moments(problem, fitted)
    assert source.passes == before + 1.0
    S = np.eye(5)
    moments.curvature_noise(S)
    moments.third_derivative(S)
    assert source.passes == before + 2.0


ROBUST = {
    "huber": eq.glm("gaussian", divergence=eq.Huber()),
    "student": eq.glm("gaussian", divergence=eq.StudentT()),
    "beta": eq.glm("gaussian", divergence=eq.Beta(1.3)),
    "beta with its scale": eq.glm("gaussian", divergence=eq.Beta(1.3), scale=1.2),
}


@pytest.mark.parametrize("options", [{}, {"weights": "w", "frequency": "f"}], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", ROBUST)
def test_a_robust_scale_is_found_with_the_parameters(name, options, table) -> None:
    # skewed residuals: the scale moves with the intercept
    y = table["gaussian"].to_numpy() + 0.7 * table["gamma"].to_numpy()
    source = eq.data.scan(table.append_column("skewed", pa.array(y)), "skewed ~ x0 + x1 + x2 + x3", **options)
    found = eq.fit(ROBUST[name], source)
    # the first pass, and what leaves four for learning again, moments, curvature and scores over leverages
    assert source.passes <= 1.0 + 3.0
    expected = eq.fit(ROBUST[name], source.whole())
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-10)
    assert found.constant == pytest.approx(expected.constant, rel=1e-10)
    assert found.loss == pytest.approx(expected.loss, rel=1e-10)
    assert found.converged


def brute_median(problem, theta) -> float:
    """Half of the weight on either side, of all values sorted."""
    rows = problem.source.whole()
    size = np.abs(rows.y - rows.x @ theta)
    weight = rows.counts * (1.0 if rows.weights is None else rows.weights)
    order = np.argsort(size)
    upto = np.cumsum(weight[order]) / weight.sum()
    return float(size[order][np.searchsorted(upto, 0.5)])


def test_the_median_moves_as_the_residuals_next_to_it(table, monkeypatch) -> None:
    monkeypatch.setattr(residuals, "_KEPT", 600)
    y = table["gaussian"].to_numpy() + 0.7 * table["gamma"].to_numpy()
    # a column of heavy tails: rows that are far from the median may come to it first
    heavy = np.exp(2.0 * table["x1"].to_numpy())
    made = table.append_column("skewed", pa.array(y)).append_column("heavy", pa.array(heavy))
    source = eq.data.scan(made, "skewed ~ x0 + heavy", weights="w")
    problem = eq.bind(eq.glm("gaussian", divergence=eq.Huber()), source)
    theta = np.array([0.6, 0.1, 0.001])
    constant = problem.settled(theta).constant
    here = problem.at_constant(1.001 * constant)
    inverse = np.linalg.inv(here.derivatives(theta, 2).hessian)
    _, scale, core = drifting_with_scale(here, theta, inverse, with_core=False)
    assert core is None
    assert scale.value == constant
    # of the rows that were kept every corner is known
    assert 300 < scale.close.shape[1] < 1200
    way = np.array([1.0, -0.4, 0.01])
    unit = way / np.sqrt(way @ np.linalg.solve(inverse, way))
    for share in (1e-4, 0.1, -0.9):
        step = share * scale.reach.length * unit
        assert scale.after(step) == pytest.approx(problem.settled(theta + step).constant, rel=1e-14)
    assert abs(scale.after(step) / (constant + scale.slope @ step) - 1.0) > 1e-9
    # further away it moves as residuals do on the average
    far = np.array([0.1, 0.0, 0.0])
    assert not scale.certain(far, scale.after(far))
    assert scale.after(far) == constant + scale.slope @ far
    h = 0.05
    moved = [problem.settled(theta + h * e).constant - problem.settled(theta - h * e).constant for e in np.eye(3)[:2]]
    # a mean of signs over the 2400 rows next to the median, over that of a normal law: four standard errors
    np.testing.assert_allclose(scale.slope[:2], np.array(moved) / (2.0 * h), atol=4.0 / np.sqrt(0.04 * N) / 0.6745)
    assert abs(scale.slope[0]) > 0.2


@pytest.mark.parametrize("name", ["huber", "student", "beta"])
def test_slopes_drift_with_the_scale(name, table) -> None:
    source = eq.data.scan(table, "gaussian ~ x0 + x1", weights="w")
    problem = eq.bind(ROBUST[name], source).at_constant(0.9)
    theta = np.array([0.4, 0.1, 0.3])
    inverse = np.linalg.inv(problem.derivatives(theta, 2).hessian)
    whole, _, core = drifting_with_scale(problem, theta, inverse, with_core=True)
    assert core.source.n == source.n
    memory = eq.bind(ROBUST[name], source.whole())

    def at(log):
        return memory.at_constant(0.9 * np.exp(log)).derivatives(theta, 1)

    # Richardson's extrapolation of differences ten and twenty times as wide
    wide, wider = (
        [(up - down) / (2.0 * h) for up, down in zip(at(h)[:2], at(-h)[:2], strict=True)] for h in (1e-3, 2e-3)
    )
    for found, first, second in zip((whole.fall, whole.drift), wide, wider, strict=True):
        # Huber's slopes have corners, of which a hundred rows or so lie in between
        np.testing.assert_allclose(found, (4.0 * first - second) / 3.0, rtol=1e-6 if name != "huber" else 2e-3)


@pytest.mark.parametrize("options", [{}, {"weights": "w"}, {"frequency": "f"}, {"weights": "w", "frequency": "f"}])
def test_the_median_is_found_by_counting_in_one_pass(options, table) -> None:
    source = eq.data.scan(table, "gaussian ~ x0 + x1 + x2 + x3", **options)
    problem = eq.bind(eq.glm("gaussian", divergence=eq.Huber()), source)
    theta = np.array([0.2, 0.1, 0.15, 0.3, -0.1])
    settled = problem.settled(theta).constant
    assert source.passes == 2.0
    assert settled == pytest.approx(
        brute_median(problem, theta) / 0.6744897501960817, rel=1e-3 if not options else 1e-4
    )
    assert settled == eq.bind(problem.model, source.whole()).settled(theta).constant
    if not options:
        rows = source.whole()
        assert settled * 0.6744897501960817 == pytest.approx(np.median(np.abs(rows.y - rows.x @ theta)), rel=1e-15)


def test_a_median_that_the_sample_misses_is_found_by_a_further_pass(table, monkeypatch) -> None:
    monkeypatch.setattr(residuals, "_AROUND", -0.9)
    source = eq.data.scan(table, "gaussian ~ x0")
    problem = eq.bind(eq.glm("gaussian", divergence=eq.Huber()), source)
    theta = np.array([0.2, 0.1])
    found = problem.settled(theta).constant
    assert source.passes == 3.0
    rows = source.whole()
    assert found * 0.6744897501960817 == pytest.approx(np.median(np.abs(rows.y - rows.x @ theta)), rel=1e-15)


def test_ties_around_the_middle() -> None:
    """An even number of equal rows: the two middle values share it, whatever weights are written."""
    y = np.repeat([1.0, 2.0, 3.0, 10.0], 20_000)
    x = np.ones((len(y), 1))
    for rows in (eq.data.rows(x, y), eq.data.rows(x, y, weights=np.full(len(y), 0.1))):
        problem = eq.bind(eq.glm("gaussian", divergence=eq.Huber()), rows)
        assert problem.settled(np.zeros(1)).constant * 0.6744897501960817 == pytest.approx(2.5, rel=1e-14)


@pytest.mark.parametrize(
    ("family", "response"), [("gamma", "I(gamma * 2)"), ("poisson", "Q('poisson')"), ("gaussian", "scale(gaussian)")]
)
def test_a_response_that_is_computed_is_checked_without_a_pass(family, response, table) -> None:
    source = eq.data.scan(table, f"{response} ~ x0 + x1")
    eq.bind(eq.glm(family), source)
    assert source.passes == 1.0


def test_a_computed_response_outside_of_the_range_is_named(table) -> None:
    y = table["poisson"].to_numpy().copy()
    y[41_000] = -2.0
    source = eq.data.scan(
        table.set_column(table.schema.get_field_index("poisson"), "poisson", [y]), "I(poisson + 1) ~ x0"
    )
    with pytest.raises(eq.InvalidInput, match=r"-1 at .*row 41,?000"):
        eq.bind(eq.glm("poisson"), source)
