"""From a problem to a program: what is whitened, what is copied, what identifies a run."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import equipoise as eq
from equipoise.engines.engine import Guard, initial_state
from equipoise.engines.numba.linear import advance
from equipoise.engines.numba.whiten import linear_engine
from equipoise.errors import InvalidInput
from equipoise.models.passes import predictor


@pytest.fixture
def parts(poisson_run):
    model, data, tuning = poisson_run
    return model.bind(data), tuning


def engine_of(problem, tuning, storage="float64"):
    return problem.engine(tuning, Guard(np.inf, tuning.expected), storage)


def run(engine, steps=400):
    out = np.zeros((steps, len(engine.center)))
    state = initial_state(np.zeros(len(engine.center)), np.random.SeedSequence(3))
    assert advance(engine.program, state, steps, 1, out) == (steps, False)
    return engine.parameters(out)


def test_predictors_are_the_same_in_both_coordinates(parts):
    problem, tuning = parts
    engine = engine_of(problem, tuning)
    phi = np.array([0.3, -0.2, 0.5])
    np.testing.assert_allclose(engine.root @ engine.root.T, tuning.step, rtol=1e-12)
    found = engine.program.base + engine.program.rows @ phi
    np.testing.assert_allclose(found, predictor(problem.source, engine.parameters(phi)), rtol=1e-12)


def test_the_root_is_triangular_without_a_prior(poisson_run, parts):
    problem, tuning = parts
    np.testing.assert_array_equal(engine_of(problem, tuning).root, np.linalg.cholesky(tuning.step))
    _, data, _ = poisson_run
    held = eq.glm("poisson", prior_precision=np.diag([1.0, 2.0, 3.0])).bind(data)
    root = engine_of(held, tuning).root
    np.testing.assert_allclose(root @ root.T, tuning.step, rtol=1e-12)
    form = root.T @ held.precision @ root
    np.testing.assert_allclose(form, np.diag(np.diag(form)), rtol=0.0, atol=1e-12)


def test_float32_rows_change_the_chain_by_their_rounding_and_halve_its_memory(parts):
    problem, tuning = parts
    full, half = (engine_of(problem, tuning, kind) for kind in ("float64", "float32"))
    assert full.program.rows.dtype == np.float64
    assert half.program.rows.dtype == np.float32
    np.testing.assert_allclose(half.program.rows, full.program.rows, rtol=6e-8)
    one, other = run(full), run(half)
    deviation = np.abs(one - other).max() / one.std()
    assert 0.0 < deviation < 1e-5
    assert full.identity != half.identity


def test_another_storage_is_refused(parts):
    with pytest.raises(InvalidInput, match="one of float64, float32"):
        engine_of(*parts, "float16")


def test_the_identity_knows_every_row_and_not_how_rows_are_fetched(parts):
    problem, tuning = parts
    engine = engine_of(problem, tuning)
    ahead = linear_engine(engine.regression, tuning, Guard(np.inf, tuning.expected), ahead=8)
    assert engine.identity == ahead.identity
    assert engine.identity != engine_of(problem, tuning, "float32").identity
    rows = problem.source
    for name in ("x", "y"):
        changed = getattr(rows, name).copy()
        changed.flat[-1] *= 1.0 + 1e-15
        other = replace(problem, source=replace(rows, **{name: changed}))
        assert engine_of(other, tuning).identity != engine.identity
    held = eq.glm("poisson", prior_precision=0.5).bind(rows)
    assert engine_of(held, tuning).identity != engine.identity


def test_whitening_copies_the_rows_once():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200_000, 20)), rng.normal(size=200_000)
    model = eq.glm("gaussian", scale=1.0)
    few = (x[:2000], y[:2000])
    tuning = eq.tune(eq.moments(model, few, eq.fit(model, few).params), "sandwich", eq.Dynamics(batch_size=100))
    problem = model.bind((x, y))
    tracemalloc.start()
    engine = engine_of(problem, tuning)
    assert engine.identity
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    table = len(x) * engine.program.table.cells.strides[0]
    # beside the table: predictors and sides, ten numbers per row at the worst moment, and blocks of bounded size
    assert table < peak < table + 12 * 8 * len(x) + 40e6
    assert peak < 2.0 * x.nbytes + 40e6
