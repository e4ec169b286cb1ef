"""Passes over the rows: how many a fit from files needs, and the median by counting."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
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


# --- Curvature against many matrices --------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(table, tmp_path_factory):
    """Three files of some thousand rows, with a column far from zero and a rare level."""
    made, few = tmp_path_factory.mktemp("parts"), table.slice(0, 6000)
    year = 2000.0 + np.round(4.0 * few["x3"].to_numpy())
    kind = np.where(np.arange(6000) % 997 == 3, "rare", "common")
    few = few.append_column("year", pa.array(year)).append_column("kind", pa.array(kind))
    for k in range(3):
        parquet.write_table(few.slice(2000 * k, 2000), made / f"{k}.parquet", row_group_size=700)
    return made


def known(family, parts, columns="x0 + x1 + x2 + x3", **options):
    """Moments of files and of the same rows in memory at one θ, and the files."""
    source = eq.data.scan(parts, f"{family} ~ {columns}", weights="w", frequency="f", **options)
    model = eq.glm(family)
    here = eq.bind(model, source.whole())
    theta = eq.fit(here).theta
    return eq.bind(model, source).moments(theta), here.moments(theta), source


@pytest.mark.parametrize("batches", ["independent", "leverage"])
@pytest.mark.parametrize(
    ("family", "columns", "tolerance"),
    [
        ("poisson", "x0 + x1 + x2 + x3", 1e-12),
        ("gamma", "x0 + x1 + x2 + x3", 1e-12),
        # 500 standard deviations from zero: their square times a rounding, which products of columns as they are would square
        ("poisson", "x0 + x1 + year + kind", 1e-9),
    ],
)
def test_curvature_against_any_matrix_takes_two_passes(family, columns, tolerance, batches, parts) -> None:
    found, expected, source = known(family, parts, columns)
    rule = eq.Dynamics(batch_size=16, batches=batches).rule
    root = np.linalg.cholesky(np.linalg.inv(expected.hessian))
    rng, before = np.random.default_rng(3), source.passes
    for _ in range(6):
        A = rng.normal(size=(5, 5))
        S = root @ (A + A.T) @ root.T  # indefinite
        for asked in (lambda m, S=S: m.drawn(rule).quadratic(S) @ root, lambda m, S=S: m.third_derivative(S)):
            one, other = (root.T @ asked(m) for m in (found, expected))
            np.testing.assert_allclose(one, other, rtol=0.0, atol=tolerance * np.abs(other).max())
    assert source.passes - before == 2.0
    # a rule of its own is another operator
    assert np.abs(found.curvature_noise(S) - found.curvature_noise(S, eq.Dynamics(16, batches="leverage"))).max() > 0.0


def test_many_columns_are_written_out_when_passes_have_cost_as_much(parts, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.models.linear_curvature._FLOPS", 15.0)  # 15² / (15 · 5): three passes
    found, _, source = known("poisson", parts)
    before = source.passes
    for k in range(1, 8):
        found.curvature_noise(k * np.eye(5))
    assert source.passes - before == 4.0
    # and not at all where it would take more than a share of the memory for reading
    found, _, source = known("poisson", parts, memory="1MB")
    monkeypatch.setattr("equipoise.models.linear_curvature._HELD", 1000)
    before = source.passes
    for k in range(1, 8):
        found.curvature_noise(k * np.eye(5))
    assert source.passes - before == 7.0


LAWS = {
    "plain": eq.Dynamics(batch_size=64),
    "without replacement": eq.Dynamics(batch_size=64, replacement=False),
    "momentum": eq.Dynamics(batch_size=64, momentum=0.5),
    "leverage": eq.Dynamics(batch_size=64, batches="leverage"),
    "control variates": eq.Dynamics(batch_size=64, gradient="control-variate"),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_law_and_its_limits_take_two_passes(name, parts) -> None:
    found, expected, source = known("poisson", parts)
    dynamics, before, steps = LAWS[name], source.passes, np.linalg.inv(expected.hessian)
    noise = "completed" if name == "control variates" else "langevin"

    def numbers(moments):
        tuned = eq.tune(moments, eq.sandwich(moments), dynamics, noise=noise)
        law = eq.stationary(moments, 0.05 * steps, dynamics, noise=tuned.predicted.noise)
        start = np.sqrt(np.diag(law.cov))
        for given in (tuned.predicted, law):
            yield from (given.is_stable, given.spectral_radius, given.iact(), given.burn_in(start))
            yield from (given.covariance_floor(100), *(given.mean_bias / start), *(given.cov / np.outer(start, start)))
        yield eq.max_stable_step(moments, dynamics)
        with pytest.raises(eq.UnstableStep) as caught:
            eq.stationary(moments, 50.0 * steps, dynamics, noise=tuned.predicted.noise)
        yield from (caught.value.spectral_radius, caught.value.largest_multiple)

    ours, theirs = (np.hstack([np.ravel(v) for v in numbers(m)]).astype(float) for m in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    # that of the tuning, where also the scatter of scores of rows drawn by leverage is found, and one for all other matrices
    assert source.passes - before == 2.0


def test_the_best_batch_and_decay_of_files_are_found_in_few_passes(parts) -> None:
    source = eq.data.scan(parts, "bernoulli ~ x0 + x1 + x2", weights="w", frequency="f")
    model, dynamics, rows = eq.glm("bernoulli", prior_precision=1.0), eq.Dynamics(batch_size=64), source.whole()
    before = source.passes
    batch = eq.optimal_batch_size(model, source, source, 0.5, dynamics)
    # the fit, moments, two for all laws, and the test loss
    assert source.passes - before <= 6.0
    assert batch.best == eq.optimal_batch_size(model, rows, rows, 0.5, dynamics).best
    before = source.passes
    decay = eq.optimal_weight_decay(model, source, source, 0.05, dynamics, low=1.0, high=100.0)
    # rows of training and of test data, which fit into memory
    assert source.passes - before == 2.0
    assert decay.loss == eq.optimal_weight_decay(model, rows, rows, 0.05, dynamics, low=1.0, high=100.0).loss
