"""From a problem to a program: what is whitened, what is copied, what identifies a run."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import equipoise as eq
from equipoise.data import as_rows
from equipoise.engines.engine import Guard, initial_state
from equipoise.engines.numba.linear import advance
from equipoise.engines.numba.supply import Whitener
from equipoise.engines.numba.table import RowTable
from equipoise.engines.numba.whiten import linear_engine
from equipoise.engines.rules import NOWHERE
from equipoise.models.sums import predictor
from equipoise.theory.dynamics import Plain


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
    table = engine.program.table
    found = table.sides[:, 0] + table.cells[:, :3] @ phi
    np.testing.assert_allclose(found, predictor(problem.source, engine.parameters(phi)), rtol=1e-12)


def test_the_root_is_triangular_without_a_prior(poisson_run, parts):
    problem, tuning = parts
    root = engine_of(problem, tuning).root
    np.testing.assert_array_equal(root, np.tril(root))
    assert np.diag(root).min() > 0.0
    _, data, _ = poisson_run
    held = eq.glm("poisson", prior_precision=np.diag([1.0, 2.0, 3.0])).bind(data)
    root = engine_of(held, tuning).root
    np.testing.assert_allclose(root @ root.T, tuning.step, rtol=1e-12)
    form = root.T @ held.precision @ root
    np.testing.assert_allclose(form, np.diag(np.diag(form)), rtol=0.0, atol=1e-12)


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


@pytest.fixture
def large(monkeypatch, make_data):
    """A problem of many rows, with weights, an offset and a prior, and what makes it count as large."""
    monkeypatch.setattr("equipoise.engines.numba.whiten._LARGE", 0)
    rng, (x, y) = np.random.default_rng(2), make_data("poisson", n=3001, dim=5)
    data = eq.data.rows(x, y, weights=rng.uniform(0.5, 2.0, 3001), offset=0.1 * rng.normal(size=3001))
    problem = eq.glm("poisson", prior_precision=2.0).bind(data)
    return problem, eq.moments(problem, eq.fit(problem))


@pytest.mark.parametrize("storage", ["float64", "float32"])
@pytest.mark.parametrize(
    "options",
    [{}, {"replacement": False}, {"batches": "leverage"}, {"batches": "epochs"}],
    ids=["independent", "distinct", "leverage", "epochs"],
)
def test_whitening_only_the_rows_of_a_run_changes_no_bit(large, options, storage):
    problem, moments = large
    dynamics = eq.Dynamics(7, 0.3, gradient="control-variate", **options)
    base = replace(dynamics, batches="independent") if options.get("batches") == "epochs" else dynamics
    step = 0.2 * np.linalg.inv(moments.hessian)
    tuning = replace(eq.Tuning.at(moments, step, base, noise=1e-4 * np.eye(5)), dynamics=dynamics)
    guard = Guard(np.inf, tuning.expected)
    whole, some = problem.engine(tuning, guard, storage), problem.engine(tuning, guard, storage, touched=600.0)
    assert whole.supply is None
    assert whole.identity == some.identity
    paths, touched = [], set()
    with ThreadPoolExecutor(2) as pool:
        for engine, splits in ((whole, (40,)), (some, (1, 12, 27))):
            states = [engine.start(tuning.center, seed) for seed in np.random.SeedSequence(5).spawn(2)]
            outs, at = np.zeros((2, 40, 5)), 0
            for steps in splits:
                engine.advance(states, steps, 1, list(outs[:, at : at + steps]), pool)
                at += steps
            paths.append((outs, states))
    (expected, ends), (found, states) = paths
    np.testing.assert_array_equal(found, expected)
    for one, other in zip(states, ends, strict=True):
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True):
            np.testing.assert_array_equal(a, b)
    # no row but those drawn has a place, and each place has the row that a whole table has
    placed = np.flatnonzero(some.program.places != NOWHERE)
    assert 450 < len(placed) <= 560
    touched = some.program.places[placed]
    np.testing.assert_array_equal(np.sort(touched), np.arange(len(placed)))
    np.testing.assert_array_equal(some.program.table.cells[touched], whole.program.table.cells[placed])
    np.testing.assert_array_equal(some.program.table.sides[touched], whole.program.table.sides[placed])


def test_a_run_whitens_what_it_needs_and_no_more(large, monkeypatch):
    problem, moments = large
    tuning = eq.tune(moments, "sandwich", eq.Dynamics(10))
    written, put = [], Whitener.put

    def counted(self, start, rows, index):
        written.append(rows.height)
        put(self, start, rows, index)

    monkeypatch.setattr(Whitener, "put", counted)
    options = {"chains": 2, "thin": 1, "burn_in": 0, "progress": False}
    few = eq.sample(problem, tuning, draws=50, **options)
    assert 800 < sum(written) <= 1000
    written.clear()
    # as many draws as half of the rows: all of them are whitened, at once
    many = eq.sample(problem, tuning, draws=80, **options)
    assert sum(written) == 3001
    np.testing.assert_array_equal(many.draws[:, :50], few.draws)


def test_rows_that_count_several_times_are_whitened_at_once(large, make_data):
    x, y = make_data("poisson", n=300, dim=3)
    problem = eq.glm("poisson").bind(eq.data.rows(x, y, frequency=np.full(300, 7)))
    tuning = eq.tune(eq.moments(problem, eq.fit(problem)), "sandwich", eq.Dynamics(10))
    assert problem.engine(tuning, Guard(np.inf, tuning.expected), touched=20.0).supply is None


def test_a_row_is_whitened_alike_in_any_company():
    """Products have one shape, whatever they are of: neither the rows beside a row nor its place change its bits."""
    rng = np.random.default_rng(1)
    for dim in (1, 7, 50, 130):
        x, y = rng.normal(size=(1501, dim)), rng.normal(size=1501)
        root, center = np.tril(rng.normal(size=(dim, dim))), rng.normal(size=dim)
        loss, order = eq.glm("gaussian", scale=1.0).bind((x, y)).model.loss, rng.permutation(1501)
        tables = []
        for rows, pieces in ((x, (1501,)), (x[order], (3, 700, 1501)), (np.asfortranarray(x[order]), (1, 2, 1501))):
            table = RowTable.blank(1501, dim)
            room = np.zeros((2, max(64, 2**15 // dim // 64 * 64), dim))
            whitener = Whitener(loss, Plain(), root, center, np.empty(0), table, room)
            source, first = as_rows((rows, y[order] if rows is not x else y)), 0
            for last in pieces:
                whitener.put(slice(first, last), source.take(slice(first, last)), np.empty(0))
                first = last
            tables.append(table)
        for table in tables[1:]:
            np.testing.assert_array_equal(table.cells, tables[0].cells[order])
            np.testing.assert_array_equal(table.sides, tables[0].sides[order])
        np.testing.assert_allclose(tables[0].cells[:, :dim], x @ root, rtol=0, atol=1e-12)


def test_moments_have_the_slope_of_their_own_rows_and_of_no_others():
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(300), rng.normal(size=300)])
    extra = {
        "weights": rng.uniform(0.5, 2.0, 300),
        "frequency": rng.integers(1, 4, 300),
        "offset": rng.normal(size=300),
    }
    data = eq.data.rows(x, rng.poisson(1.5, 300), **extra)
    problem = eq.glm("poisson", prior_precision=np.diag([1.0, 5.0]), prior_mean=[0.3, -0.2]).bind(data)
    theta = np.array([0.1, 0.2])
    wanted = problem.derivatives(theta, 1).gradient
    assert np.array_equal(problem._slope(theta, problem.moments(theta)), wanted)
    others = problem.subsample(100, 0).moments(theta)
    for moments in (others, problem.moments(theta + 0.1), replace(problem.moments(theta), curvature=None)):
        wrong = replace(moments, mean_score=moments.mean_score + 1.0)
        assert np.array_equal(problem._slope(theta, wrong), wanted)
