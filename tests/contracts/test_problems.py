"""Every kind of problem through one suite: derivatives, moments, constants, sampling by its engine, travel."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import equipoise as eq
from equipoise.engines.engine import Guard
from equipoise.models.problem import Problem
from tests.known import brute_moments, problems

PROBLEMS = problems()
every_problem = pytest.mark.parametrize("name", list(PROBLEMS))
SMOOTH = [name for name in PROBLEMS if name not in {"pinball"}]  # smoothed so narrowly that differences miss it
smooth_problem = pytest.mark.parametrize("name", SMOOTH)


@every_problem
def test_it_is_a_problem_of_its_protocol(name) -> None:
    case = PROBLEMS[name]
    assert isinstance(case.problem, Problem)
    assert len(case.problem.names) == case.theta.size
    sizes = [int(np.prod(shape)) for _, shape in case.problem.layout.variables]
    assert sum(sizes) == case.theta.size


@smooth_problem
def test_derivatives_are_those_of_the_value(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    found = problem.derivatives(theta, 2)
    gradient, hessian = brute_moments(problem, theta)
    # fourth-order differences with h = 1e-3: rounding 1e-16/1e-3 and truncation 1e-12 times the fifth derivative;
    # robust losses are twice differentiable only piece by piece, so that a kink crossed by h costs h over N
    loose = {"rtol": 1e-6, "atol": 1e-7 if "huber" not in name else 1e-4}
    np.testing.assert_allclose(found.gradient, gradient, **loose)
    np.testing.assert_allclose(found.hessian, hessian, **loose)


@every_problem
def test_lower_orders_are_the_same_numbers(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    all_of_it = problem.derivatives(theta, 2)
    assert problem.derivatives(theta, 0).value == pytest.approx(all_of_it.value, rel=1e-14)
    np.testing.assert_allclose(problem.derivatives(theta, 1).gradient, all_of_it.gradient, rtol=1e-13)
    assert problem.derivatives(theta, 1).hessian.size == 0
    assert problem.derivatives(theta, 0).gradient.size == 0


@every_problem
def test_moments_belong_to_the_derivatives(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    m = problem.moments(theta)
    np.testing.assert_allclose(m.hessian, problem.derivatives(theta, 2).hessian, rtol=1e-11, atol=1e-14)
    bare = problem.without_prior()
    np.testing.assert_allclose(m.mean_score, bare.derivatives(theta, 1).gradient, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(m.loss_hessian, bare.derivatives(theta, 2).hessian, rtol=1e-11, atol=1e-14)
    assert (m.n, m.names, m.constant) == (problem.n, problem.names, problem.constant)
    assert np.linalg.eigvalsh(m.score_cov)[0] >= -1e-12


@smooth_problem
def test_third_derivative_is_that_of_the_hessian(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    S = np.eye(theta.size) + 0.2
    bend = lambda t: float(np.sum(problem.derivatives(t, 2).hessian * S))  # noqa: E731
    h = 1e-3
    numeric = [(bend(theta + h * e) - bend(theta - h * e)) / (2 * h) for e in np.eye(theta.size)]
    loose = {"rtol": 1e-4, "atol": 1e-5} if "huber" not in name else {"rtol": 1.0, "atol": 5.0}
    np.testing.assert_allclose(problem.moments(theta).third_derivative(S), numeric, **loose)


@every_problem
def test_constants_are_settled_once(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    assert problem.settled(theta + 0.5).constant == problem.constant
    assert problem.at_constant(None) is problem
    if problem.constant is not None:
        assert problem.at_constant(2.5).constant == 2.5
        assert problem.at_constant(2.5).settled(theta).constant == 2.5


@every_problem
def test_its_search_has_starts_where_the_loss_is_finite(name) -> None:
    problem = PROBLEMS[name].problem
    for start in problem.search.starts()[:2]:
        assert np.isfinite(problem.settled(start).derivatives(start, 0).value)


@every_problem
def test_flatten_and_layout_are_inverse(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    np.testing.assert_array_equal(problem.flatten(problem.layout.unflatten(theta)), theta)
    with pytest.raises(eq.InvalidInput, match="params"):
        problem.flatten(np.full(theta.size + 1, 0.1))


@every_problem
def test_its_engine_runs_and_says_who_it_is(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    m = problem.moments(theta)
    H = m.hessian + 2.0 * abs(min(0.0, np.linalg.eigvalsh(m.hessian)[0])) * np.eye(theta.size)
    # a small step and a tight guard: what is asked here is the protocol, not the law
    step, cov = 0.01 * np.linalg.inv(H), 0.01 * np.linalg.inv(H)
    law = eq.Stationary(cov, step, cov, cov, eq.Dynamics(8), "dq-exact", m)
    tuning = eq.Tuning(step, eq.Dynamics(8), cov, 0.0, law, "dq-exact", "given", 0.0)
    engine = problem.engine(tuning, Guard(25.0, cov))
    assert engine.identity == problem.engine(tuning, Guard(25.0, cov)).identity
    states = [engine.start(theta, np.random.SeedSequence(k)) for k in range(2)]
    draws = np.full((2, 6, theta.size), np.nan)
    with ThreadPoolExecutor(2) as pool:
        silent = engine.advance(states, 4, None, list(draws), pool)
        done = engine.advance(states, 12, 2, list(draws), pool)
    assert silent == [(0, False)] * 2
    assert done == [(6, False)] * 2
    assert [state.step for state in states] == [16, 16]
    assert np.isfinite(draws).all()
    assert not np.array_equal(draws[0], draws[1])


@every_problem
def test_moments_travel_without_their_rows(name) -> None:
    problem, theta = PROBLEMS[name].problem, PROBLEMS[name].theta
    m = problem.moments(theta)
    sent = pickle.loads(pickle.dumps(m))
    assert sent.curvature is None
    np.testing.assert_array_equal(sent.hessian, m.hessian)
    with pytest.raises(eq.InvalidInput, match=r"attach\(eq\.bind"):
        sent.curvature_noise(np.eye(theta.size))
    S = np.eye(theta.size)
    np.testing.assert_allclose(sent.attach(problem).curvature_noise(S), m.curvature_noise(S), rtol=1e-12, atol=1e-15)


def test_what_a_problem_cannot_do_is_an_input_error() -> None:
    own = PROBLEMS["own loss"]
    with pytest.raises(eq.InvalidInput, match=r"model: must be one from eq\.glm"):
        own.problem.bound_constants(own.theta, None)
    with pytest.raises(eq.InvalidInput, match=r"model: must be one from eq\.glm"):
        own.problem.model.mean_response(np.eye(3))
    beta = PROBLEMS["beta"]
    with pytest.raises(eq.InvalidInput, match="not known for robust losses"):
        beta.problem.bound_constants(beta.theta, None)
