"""Chain and proxy on the same batches: the proxy is the Taylor chain, and the chain is as if it ran alone."""

from dataclasses import replace

import numpy as np

from equipoise.engines.numba.linear import advance_coupled
from equipoise.families.family import ScalarLoss
from tests.engines.test_linear import build, exploded, held, run, slope, start_of, tabled


def coupled(program, steps, curvature, thin=1):
    state, out = start_of(program), np.zeros((steps, 2, program.table.dim))
    proxy = np.array([state.position, state.velocity])
    _, base, y, weights = held(program)
    score = weights * slope(program.loss, base, y)
    count = advance_coupled(program, state, proxy, score, weights * curvature, steps, thin, out)
    return count, state, proxy, out


def test_the_proxy_of_a_curved_loss_is_its_taylor_chain_and_leaves_the_chain_alone():
    program = build("poisson", noise_scale=0.1, guard_radius2=0.5, prior=True)
    rows, base, y, _ = held(program)
    curvature = np.exp(base)
    count, state, proxy, out = coupled(program, 300, curvature)
    alone, end = run(program, 300)
    np.testing.assert_array_equal(out[:, 0], alone)
    np.testing.assert_array_equal(state.rng, end.rng)
    assert (count, state.step, state.hits) == ((300, False), 300, end.hits)
    assert end.hits > 0
    # The Taylor loss is a weighted squared loss around −ℓ'/ℓ'': the engine can run that as a chain.
    squared = ScalarLoss("squared", *4 * (lambda eta, y, p: eta - y,))
    table = tabled(rows, np.zeros(60), (y - curvature) / curvature, curvature)
    taylor = replace(program, loss=squared, table=table, guard_radius2=np.inf)
    np.testing.assert_allclose(out[:, 1], run(taylor, 300)[0], rtol=0.0, atol=1e-12)
    np.testing.assert_array_equal(proxy[0], out[-1, 1])
    assert 1e-3 < np.abs(out[:, 0] - out[:, 1]).max() < 2.0


def test_a_coupled_run_is_split_without_a_trace():
    program = build("poisson", noise_scale=0.05, momentum=0.5)
    _, base, y, _ = held(program)
    curvature = np.exp(base)
    _, end, final, whole = coupled(program, 50, curvature)
    state = start_of(program)
    proxy = np.array([state.position, state.velocity])
    out = np.zeros((50, 2, 3))
    for first, last in [(0, 7), (7, 50)]:
        advance_coupled(program, state, proxy, curvature - y, curvature, last - first, 1, out[first:last])
    np.testing.assert_array_equal(out, whole)
    np.testing.assert_array_equal(proxy, final)
    np.testing.assert_array_equal(state.rng, end.rng)


def test_a_coupled_run_ends_with_the_first_divergence():
    program = build("bernoulli", batch_size=60, replacement=False)
    # A curvature this large makes the proxy explode while the logistic chain, with bounded steps, cannot.
    count, state, proxy, out = coupled(program, 1000, np.full(60, 1e3))
    assert count == (state.step - 1, True)
    assert state.step > 20
    assert exploded(proxy[0])
    alone, end = run(program, state.step)
    np.testing.assert_array_equal(out[: state.step - 1, 0], alone[:-1])
    np.testing.assert_array_equal(state.position, end.position)
    # The other way round: the chain overflows at once, the proxy does not.
    program = build("poisson", base=np.full(60, 400.0), y=np.zeros(60))
    count, state, proxy, _ = coupled(program, 10, np.ones(60))
    assert (count, state.step) == ((0, True), 1)
