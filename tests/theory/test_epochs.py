"""The law of random reshuffling against all permutations, stacked noises and simulation, and tuning to it."""

from __future__ import annotations

import functools
import itertools
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.theory.epochs import Reshuffled
from equipoise.theory.structured import divergence

sys.path.insert(0, str(Path(__file__).parent))
import brute
import reshuffled

# Both sides are float64 algebra on small well-conditioned matrices.
EXACT = 1e-10


def epochs(batch: int, **options) -> eq.Dynamics:
    return eq.Dynamics(batch, batches="epochs", **options)


def stacked(m: eq.Moments, law: Reshuffled) -> reshuffled.Stacked:
    """The law of the same chain by its stacked noises."""
    d = law.dynamics
    sizes = reshuffled.batches(m.n, d.batch_size, d.drop_last)
    return reshuffled.Stacked(m.hessian, m.score_cov, law.step, d.momentum, d.temperature, sizes, m.n)


def one_curvature(n: int, dim: int, seed: int = 0) -> tuple[eq.Moments, np.ndarray]:
    """Rows that all have the same Hessian: the law is then exact."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(50, dim)) @ (np.eye(dim) + 0.5 * rng.normal(size=(dim, dim)))
    H, scores = x.T @ x / 50 + 0.1 * np.eye(dim), rng.gamma(1.0, size=(n, dim)) @ rng.normal(size=(dim, dim))
    return eq.Moments.from_arrays(scores, np.tile(H, (n, 1, 1))), scores


def direction(moments: eq.Moments, momentum: float, share: float) -> np.ndarray:
    """A step matrix that commutes with nothing, at a share of the limit of stability."""
    shape = brute.step_direction(moments.dim)
    return share * 2.0 * (1.0 + momentum) / np.linalg.eigvals(shape @ moments.hessian).real.max() * shape


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize(("n", "batch", "drop_last"), [(6, 2, False), (5, 2, False), (5, 2, True), (7, 3, False)])
def test_covariances_by_position_are_the_means_over_all_permutations(n, batch, drop_last, momentum):
    m, scores = one_curvature(n, 2)
    dynamics, step = epochs(batch, momentum=momentum, drop_last=drop_last), direction(m, momentum, 0.4)
    sizes = reshuffled.batches(n, batch, drop_last)
    expected = reshuffled.all_permutations(m.hessian, scores, step, momentum, sizes)[:, :2, :2]
    law = eq.stationary(m, step, dynamics)
    assert isinstance(law, Reshuffled)
    assert law.epoch == len(sizes)
    for j in range(law.epoch + 1):
        assert brute.relative(law.cov_at(j), expected[j]) < EXACT
    assert brute.relative(law.cov, expected[:-1].mean(axis=0)) < EXACT


CASES = [
    (momentum, beta, batch, drop_last, share)
    for momentum, beta in itertools.product([0.0, 0.6], [np.inf, 30.0])
    for batch, drop_last, share in [(4, False, 0.5), (4, True, 0.1), (1, False, 0.3), (12, True, 0.6), (8, False, 0.02)]
]


@pytest.mark.parametrize(("momentum", "beta", "batch", "drop_last", "share"), CASES)
def test_the_law_agrees_with_the_stacked_noises_of_an_epoch(momentum, beta, batch, drop_last, share):
    p = brute.problem(3, n=23, seed=3)
    m, step = p.moments, direction(p.moments, momentum, share)
    law = eq.stationary(m, step, epochs(batch, momentum=momentum, inverse_temperature=beta, drop_last=drop_last))
    n, dense = law.epoch, stacked(m, law)
    mean = dense.P[:-1, :3, :3].mean(axis=0)
    assert brute.relative(law.cov, mean) < EXACT
    assert max(brute.relative(law.cov_at(j), dense.P[j, :3, :3]) for j in range(n + 1)) < EXACT
    size = np.abs(mean).max()
    for lag in (0, 1, 2, n - 1, n, n + 1, 2 * n + 3):
        assert np.abs(law.autocovariance(lag) - dense.mean_lag(lag)).max() < EXACT * size
    np.testing.assert_allclose(law.autocovariance(-2), law.autocovariance(2).T)
    for k in (1, 2, n, 2 * n + 1):
        lags = [dense.mean_lag(lag) for lag in range(k)]
        both = sum(((k - lag) * (lags[lag] + lags[lag].T) for lag in range(1, k)), k * lags[0])
        assert np.abs(law.iterate_average_cov(k) - both / k**2).max() < EXACT * size
    # an average of very many iterates has the long-run covariance over their number
    assert np.abs(10**7 * law.iterate_average_cov(10**7) - law.long_run_cov).max() < 1e-3 * max(
        size, np.abs(law.long_run_cov).max()
    )
    assert law.is_stable
    assert law.spectral_radius == pytest.approx(np.abs(np.linalg.eigvals(dense.A)).max() ** 2)


@pytest.mark.parametrize(
    ("momentum", "beta", "thin"), [(0.0, np.inf, 1), (0.0, 40.0, 3), (0.6, np.inf, 8), (0.6, 40.0, 1)]
)
def test_squares_of_lags_are_summed_over_lags_and_positions(momentum, beta, thin):
    p = brute.problem(3, n=23, seed=3)
    m, step = p.moments, direction(p.moments, momentum, 0.5)
    law = eq.stationary(m, step, epochs(4, momentum=momentum, inverse_temperature=beta))
    dense = stacked(m, law)
    # the slowest mode contracts by 0.98 a step: 800 steps leave 1e-7 of it
    lags = np.array([[dense.lag(j, k * thin) for k in range(800 // thin)] for j in range(law.epoch)])
    twice = np.array([1.0] + [2.0] * (lags.shape[1] - 1))
    sd = np.sqrt(np.diag(law.cov))
    for scale, standardised in ((np.ones(3), False), (sd, True)):
        unit = lags / np.outer(scale, scale)
        squares = np.sum(unit**2, axis=(2, 3)) + np.trace(unit, axis1=2, axis2=3) ** 2
        floor = np.sqrt((squares @ twice).mean() / 50) / np.linalg.norm(law.cov / np.outer(scale, scale))
        assert law.covariance_floor(50, thin, standardised=standardised) == pytest.approx(floor, rel=1e-5)
    if thin == 1:
        own = np.einsum("ia,jkab,ib->ijk", law.modes.dual, lags, law.modes.dual)
        times = (own**2 @ twice).mean(axis=1) / own[:, :, 0].mean(axis=1) ** 2
        assert law.draw_time() == pytest.approx(max(times.max(), law.iact()), rel=1e-5)
        assert law.ess(1000) == pytest.approx(1000 / law.draw_time())


def test_full_batches_leave_no_long_run_covariance():
    m = brute.problem(3, n=60).moments
    step = direction(m, 0.0, 0.2)
    law = eq.stationary(m, step, epochs(12))
    assert not law.long_run_cov.any()
    assert law.iact() == 0.0
    assert law.draw_time() >= 1.0
    uneven = eq.stationary(m, step, epochs(13))
    share = 60 / 59 * ((4 / 13 + 1 / 8) / 5 - 5 / 60)
    expected = share * np.linalg.inv(m.hessian) @ m.score_cov @ np.linalg.inv(m.hessian)
    np.testing.assert_allclose(uneven.long_run_cov, expected, rtol=1e-9)


@pytest.mark.parametrize("rate", [1e-20, 1e-7, 1e-4, 0.3, 1.2])
def test_a_long_epoch_of_short_steps_loses_no_digits(rate):
    n = 1000
    rng = np.random.default_rng(0)
    m = eq.Moments.from_arrays(rng.normal(size=(2 * n, 1)), np.ones((2 * n, 1, 1)))
    law = eq.stationary(m, rate, epochs(2))
    with localcontext(prec=100):
        p = 1 - Decimal(rate)
        powers = p ** np.array([Decimal(k) for k in range(n)])
        sums, squares = (np.concatenate([[Decimal(0)], np.cumsum(part)]) for part in (powers, powers**2))
        made = (n * squares - sums**2) / (2 * n - 1)
        start = made[-1] / (1 - p ** (2 * n))
        P = start * p ** np.array([Decimal(2 * k) for k in range(n + 1)]) + made
        unit = float(Decimal(rate) ** 2) * m.score_cov[0, 0]
    for j in (0, 1, n // 3, n - 1):
        assert law.cov_at(j)[0, 0] == pytest.approx(float(P[j]) * unit, rel=1e-12)
    assert law.cov[0, 0] == pytest.approx(float(P[:-1].mean()) * unit, rel=1e-12)


def test_a_chain_that_hardly_moves_has_the_law_of_the_limit():
    """An epoch is then a sum of j of n batches without replacement, from a start that hardly varies: a bridge."""
    m = brute.problem(3, n=60).moments
    step = direction(m, 0.0, 0.4)
    short, shorter = (eq.stationary(m, rate * step, epochs(5)) for rate in (1e-9, 1e-20))
    moved = 1e-40 * step @ m.score_cov @ step / (60 - 1)
    np.testing.assert_allclose(shorter.cov_at(5), 5 * (12 - 5) * moved, rtol=1e-12)
    np.testing.assert_allclose(shorter.cov, (12**2 - 1) / 6 * moved, rtol=1e-12)
    np.testing.assert_allclose(shorter.shift * 1e11, short.shift, rtol=1e-6)
    np.testing.assert_allclose(shorter.shift_at(5) * 1e11, short.shift_at(5), rtol=1e-6)


def regression(n: int, dim: int, seed: int, prior: float = 0.0):
    """Squared loss, a curved mean, skewed noise: arrays, the minimiser, and moments."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.7, 1.7, size=(n, dim)) @ (np.eye(dim) + 0.2 * rng.normal(size=(dim, dim)))
    x[:, 0] = 1.0
    y = x @ rng.normal(size=dim) + 0.6 * x[:, 1] ** 3 + 0.5 * (rng.gamma(1.0, size=n) - 1.0)
    theta = np.linalg.solve(x.T @ x + prior * np.eye(dim), x.T @ y)
    scores, rows = (x @ theta - y)[:, None] * x, x[:, :, None] * x[:, None, :]
    return x, y, theta, eq.Moments.from_arrays(scores, rows, prior * np.eye(dim), thirds=np.zeros((dim,) * 3))


def test_the_shift_and_the_remainder_are_those_of_the_recursion_with_curvature():
    for n, dim, batch in ((200, 6, 40), (400, 3, 20), (1000, 6, 50)):
        x, y, theta, m = regression(n, dim, seed=n)
        tuning = eq.tune(m, "sandwich", epochs(batch))
        law = tuning.predicted
        S, mu = reshuffled.with_curvature(x, x @ theta - y, m.hessian, tuning.step, batch)
        for j in (0, 1, 3, law.epoch):
            np.testing.assert_allclose(law.shift_at(j), mu[j], rtol=1e-9)
        np.testing.assert_allclose(law.shift, mu[:-1].mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(law.mean_bias, law.shift)
        root = np.linalg.inv(np.linalg.cholesky(law.cov))
        more = np.linalg.norm(root @ (S - law.cov) @ root.T) / np.sqrt(dim)
        assert 0.5 < more / law.remainder < 2.5


@pytest.mark.parametrize(("batch", "momentum", "temperature"), [(20, 0.0, 0.0), (15, 0.5, 0.0), (30, 0.0, 1.0)])
def test_simulated_chains_have_the_law(batch, momentum, temperature):
    x, y, theta, m = regression(400, 3, seed=7, prior=4.0)
    # the injected noise gives a fifth of the posterior's variance
    beta = 5.0 * m.n if temperature else np.inf
    dynamics = epochs(batch, momentum=momentum, inverse_temperature=beta)
    step = (1.0 - momentum) * eq.tune(m, "sandwich", epochs(batch)).step
    law = eq.stationary(m, step, dynamics)
    sizes = reshuffled.batches(400, batch, False)
    draws = reshuffled.simulate(x, y, theta, m.hessian, step, momentum, 1 / beta, sizes, epochs=100, chains=120, seed=1)
    sd = np.sqrt(np.diag(law.cov))
    # 9600 nearly independent epochs: an error of 1.5 % for a variance at a position, 0.6 % for the mean over the epoch
    independent = eq.stationary(m, step, eq.Dynamics(batch, momentum, beta))
    by_position = np.array([np.diag(np.cov(part, rowvar=False)) for part in draws])
    for j in (1, law.epoch // 2, law.epoch):
        np.testing.assert_allclose(by_position[j - 1], np.diag(law.cov_at(j)), rtol=0.06 + 2.0 * law.remainder)
    found = by_position.mean(axis=0)
    np.testing.assert_allclose(found, sd**2, rtol=0.02 + 2.0 * law.remainder)
    assert np.all(found < 0.85 * np.diag(independent.cov))
    # means are nearly free: an error of 1e-3 sd, four times that with injected noise
    shift = draws.mean(axis=(0, 1))
    assert np.abs(law.shift / sd).max() > 0.02
    np.testing.assert_allclose(shift / sd, law.shift / sd, atol=0.012 if temperature else 0.004)
    joined = draws.transpose(1, 0, 2) - shift
    lag = 3
    lagged = np.mean(np.einsum("ctd,cte->cde", joined[:, lag:], joined[:, :-lag]), axis=0) / (joined.shape[1] - lag)
    dense = stacked(m, law)
    inside = np.mean([dense.lag(j, lag) for j in range(1, law.epoch - lag + 1)], axis=0)
    np.testing.assert_allclose(lagged / np.outer(sd, sd), inside / np.outer(sd, sd), atol=0.03 + 2.0 * law.remainder)


# theory §15: the roots nh for the sandwich, and for very many batches that of x/2 − 1 + (1 − e^{−x})/x = 1
ROOTS = {2: 2.0000, 5: 2.6002, 20: 3.1688, 100: 3.3789, 10_000: 3.4362}


def many_rows(n: int) -> eq.Moments:
    p = brute.problem(3, n=60)
    return eq.Moments.from_arrays(p.scores, p.hessians, n=n)


@pytest.mark.parametrize(("n", "root"), ROOTS.items())
def test_the_sandwich_takes_one_scalar_root(n, root):
    rows = 10**7
    m = many_rows(rows)
    tuning = eq.tune(m, "sandwich", epochs(rows // n))
    np.testing.assert_allclose(tuning.step * n, root * np.linalg.inv(m.hessian), rtol=3e-5)
    np.testing.assert_allclose(tuning.predicted.cov, eq.sandwich(m), rtol=1e-10)
    independent = eq.stationary(m, tuning.step, eq.Dynamics(rows // n), "dq-exact")
    share = np.trace(tuning.predicted.cov) / np.trace(independent.cov)
    assert n < 20 or share == pytest.approx(0.58, abs=0.005)


def test_a_variance_takes_a_quarter_of_a_pass_and_a_mean_nothing():
    m = many_rows(20_000)
    tuned = eq.tune(m, "sandwich", epochs(1000))
    assert tuned.rows_per_draw / m.n == pytest.approx(0.23, abs=0.005)
    assert tuned.predicted.iact() == 0.0
    # independent batches, sampled with replacement
    assert eq.tune(m, "sandwich", eq.Dynamics(1000)).rows_per_draw / m.n == pytest.approx(1.0, abs=0.01)


@pytest.mark.filterwarnings("ignore:batches. the law of epochs")  # the equation, not whether its law holds
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(
    ("dim", "batch", "beta"), [(1, 9, np.inf), (4, 30, np.inf), (4, 9, 2.0), (6, 20, 10.0), (2, 50, 1.2)]
)
def test_any_target_is_reached(dim, batch, beta, drop_last, momentum):
    rng = np.random.default_rng(dim + batch)
    m = brute.problem(dim, n=100, seed=batch).moments
    # eigenvalues of H·target from 1/N to 30/N or so, along axes of their own
    L, q = np.linalg.cholesky(np.linalg.inv(m.hessian)), rng.normal(size=(dim, dim))
    target = L @ (q @ q.T + np.eye(dim)) @ L.T / m.n
    smallest = (1.0 - momentum) / np.linalg.eigvals(m.hessian @ target).real.min()
    dynamics = epochs(batch, momentum=momentum, inverse_temperature=beta * smallest, drop_last=drop_last)
    tuning = eq.tune(m, target, dynamics)
    assert tuning.residual < 1e-9
    assert tuning.predicted.is_stable
    assert brute.relative(stacked(m, tuning.predicted).P[:-1, :dim, :dim].mean(axis=0), target) < 1e-8


def test_targets_by_name_and_an_automatic_temperature():
    m = brute.problem(3, n=90).moments
    for target in ("posterior", "bayesbag"):
        tuning = eq.tune(m, target, epochs(9))
        np.testing.assert_allclose(tuning.predicted.cov, tuning.target, rtol=1e-8)
    tuning = eq.tune(m, "sandwich", epochs(9, inverse_temperature="auto"))
    assert np.isfinite(tuning.dynamics.inverse_temperature)
    assert tuning.residual < 1e-9


def test_a_scalar_step_is_the_closest_there_is():
    m = brute.problem(3, n=90).moments
    tuning = eq.tune(m, "sandwich", epochs(9), structure="scalar")
    assert tuning.residual < 1e-4
    steps = tuning.step[0, 0] * np.exp(np.linspace(-0.5, 0.5, 21))
    distances = [divergence(eq.stationary(m, step, epochs(9)).cov, tuning.target) for step in steps]
    assert np.argmin(distances) == 10
    assert distances[10] == pytest.approx(tuning.distance)


def test_newton_takes_over_where_mixing_stalls(monkeypatch):
    m = brute.problem(4, n=90).moments
    expected = eq.tune(m, "posterior", epochs(9))
    monkeypatch.setattr("equipoise.theory.epoch_tuning._mixed", lambda history: history[-1].inner)
    found = eq.tune(m, "posterior", epochs(9))
    assert found.residual < 1e-9
    np.testing.assert_allclose(found.step, expected.step, rtol=1e-7)


def test_what_is_not_derived_is_refused_by_name():
    m = brute.problem(3, n=60).moments
    law, step = functools.partial(eq.stationary, m, 0.01), functools.partial(eq.tune, m, "sandwich")
    refused = [
        ("gradient", epochs(6, gradient="control-variate", inverse_temperature=100.0), {}, (law, step)),
        ("momentum", epochs(6, momentum=0.95), {}, (law, step)),
        ("proxy", epochs(6), {"proxy": "ct"}, (law, step)),
        ("proxy", epochs(6), {"proxy": "lr-ws"}, (law, step)),
        ("structure", epochs(6), {"structure": "diagonal"}, (step,)),
        ("noise", epochs(6), {"noise": "completed"}, (step,)),
    ]
    for name, dynamics, options, verbs in refused:
        for verb in verbs:
            with pytest.raises(eq.InvalidInput, match=rf"^{name}: .*epochs"):
                verb(dynamics, **options)
    with pytest.raises(eq.InfeasibleTarget, match="whole data in every batch"):
        eq.tune(m, "sandwich", epochs(60))
    with pytest.raises(eq.InfeasibleTarget, match="inverse_temperature: must be above"):
        eq.tune(m, "posterior", epochs(6, inverse_temperature=30.0))
    found = law(epochs(6))
    for at, wrong in itertools.product((found.cov_at, found.shift_at), (-1, 11, 2.5)):
        with pytest.raises(eq.InvalidInput, match=r"^position: "):
            at(wrong)


def test_stability_is_that_of_the_mean():
    m = brute.problem(3, n=60).moments
    limit = eq.max_stable_step(m, epochs(6, momentum=0.5))
    assert limit == pytest.approx(3.0 / np.linalg.eigvalsh(m.hessian)[-1])
    assert eq.stationary(m, 0.99 * limit, epochs(6, momentum=0.5)).is_stable
    with pytest.raises(eq.UnstableStep) as caught:
        eq.stationary(m, 2.0 * limit, epochs(6, momentum=0.5))
    assert caught.value.largest_multiple == pytest.approx(0.5)


def test_burn_in_brings_second_moments_to_their_values():
    p = brute.problem(3, n=60)
    m, step = p.moments, direction(p.moments, 0.0, 0.2)
    law = eq.stationary(m, step, epochs(12))
    e = np.array([1.0, -0.5, 2.0])
    steps = law.burn_in(e, 0.01)
    A = np.eye(3) - step @ m.hessian
    power = np.linalg.matrix_power(A, steps)
    off = power @ (np.outer(e, e) - law.cov_at(0)) @ power.T
    root = np.linalg.inv(np.linalg.cholesky(law.cov))
    assert np.abs(np.linalg.eigvalsh(root @ off @ root.T)).max() < 0.02
    assert np.linalg.norm(root @ power @ e) < 0.01


def test_a_stride_has_no_divisor_in_common_with_the_epoch():
    m = brute.problem(2, n=60).moments
    law = eq.stationary(m, 0.01, epochs(5))
    assert [law.stride(most) for most in (1, 4, 6, 7, 12)] == [1, 1, 5, 7, 11]
    assert eq.stationary(m, 0.01, eq.Dynamics(5)).stride(12) == 12


def test_a_tuning_says_when_the_law_does_not_hold_and_advice_on_epochs_can_be_followed() -> None:
    x = np.random.default_rng(0).standard_t(3, size=(200, 3))
    problem = eq.bind(eq.glm("gaussian", scale=1.0), (x, x.sum(axis=1) + np.random.default_rng(1).normal(size=200)))
    found = eq.moments(problem, eq.fit(problem))
    wide, dynamics = 20.0 * np.asarray(eq.posterior(found)), eq.Dynamics(20, batches="epochs")
    with pytest.warns(eq.EquipoiseWarning, match="law of epochs leaves out .*batches='independent'"):
        assert eq.tune(found, wide, dynamics).predicted.remainder > 0.3
    with pytest.raises(eq.InvalidInput, match="gradient: must be 'plain' with batches='epochs'"):
        eq.plan(problem, gradient="control-variate", batches="epochs")
    with pytest.raises(eq.InvalidInput, match=r"fidelity: .* To fix: leave it out"):
        eq.plan(problem, fidelity=0.9, batches="epochs")
