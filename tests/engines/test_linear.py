"""The linear engine, against NumPy loops, against itself split and threaded, against the predicted law."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numba
import numpy as np
import pytest

from equipoise.engines.cost import SPLIT
from equipoise.engines.engine import initial_state
from equipoise.engines.numba.compiling import _signature, bound_loop, kernel
from equipoise.engines.numba.kernel import EXACT
from equipoise.engines.numba.linear import LinearProgram, advance, lifting
from equipoise.engines.numba.table import RowTable, side_columns
from equipoise.engines.random import add_normals, distinct_rows, rows_with_replacement
from equipoise.families.family import FAMILIES, ScalarLoss
from equipoise.theory.dynamics import Dynamics
from tests.known import slopes

CONSTANTS = {"gaussian": (0.7,), "gamma": (2.5,), "negative-binomial": (0.4,)}
SEED = np.random.SeedSequence(11)


def loss_of(family):
    return replace(FAMILIES[family].loss, p=CONSTANTS.get(family, ()))


MOVES = ("batch_size", "replacement", "momentum")


def moves(batch_size=8, replacement=True, momentum=0.0):
    return Dynamics(batch_size, momentum, np.inf, replacement)


def tabled(rows, base, y, weights, storage="float64"):
    table = RowTable.blank(*rows.shape, storage)
    table.put(slice(None), rows)
    table.sides[:] = side_columns(base, y, weights, np.zeros(len(y)))
    return table


def held(program):
    """Rows, predictors, responses and weights of a program."""
    base, y, weights, _ = program.table.sides.T
    return program.table.cells[:, : program.table.dim], base, y, weights


def build(family="gaussian", count=60, dim=3, seed=0, scale=0.3, weighted=False, prior=False, **options):
    rng = np.random.default_rng(seed)
    parts = {
        "rows": scale * rng.normal(size=(count, dim)),
        "base": 0.3 * rng.normal(size=count),
        "y": rng.integers(0, 2, count).astype(float) if family == "bernoulli" else rng.gamma(2.0, 0.7, count),
        "weights": rng.uniform(0.5, 2.0, count) if weighted else np.ones(count),
    }
    parts |= {name: options.pop(name) for name in (*parts, "storage") if name in options}
    fields = {
        "loss": loss_of(family),
        "table": tabled(**parts),
        "prior_gradient": 0.1 * rng.normal(size=dim) if prior else np.zeros(dim),
        "prior_curvature": rng.uniform(0.1, 0.5, dim) if prior else np.zeros(dim),
        "dynamics": moves(**{name: options.pop(name) for name in MOVES if name in options}),
        "guard_radius2": np.inf,
        "guard_metric": np.eye(dim),
        "guard_bound": 1.0,
        "noise": np.full(dim, options.pop("noise_scale", 0.0)),
    }
    return LinearProgram(**(fields | options))


def start_of(program, seed=SEED):
    return initial_state(np.linspace(-0.2, 0.3, program.table.dim), seed)


def run(program, steps, state=None, thin=1):
    state = start_of(program) if state is None else state
    out = np.full((steps // max(thin, 1) + 1, program.table.dim), np.nan)
    return out[: advance(program, state, steps, thin, out).written], state


def slope(loss, eta, y):
    return slopes(loss.name, eta, y, *loss.p)[0]


def reference(program, steps, state):
    """The recursion of the module's docstring in NumPy, fed with the engine's own random numbers."""
    every, base, responses, weights = held(program)
    count, dim = every.shape
    phi, m, rng = state.position.copy(), state.velocity.copy(), state.rng.copy()
    dynamics = program.dynamics
    batch, swaps = np.zeros((2, dynamics.batch_size), dtype=np.uint64)
    path, hits = [], 0
    for _ in range(steps):
        if dynamics.replacement:
            rows_with_replacement(rng, np.uint64(count), batch)
        else:
            distinct_rows(rng, np.arange(count, dtype=np.uint32), swaps, batch)
        noise = np.zeros(dim)
        if program.noise.any():
            add_normals(rng, np.ones(dim), noise, dim)
        x, y, w = every[batch], responses[batch], weights[batch]
        residual = w * slope(program.loss, base[batch] + x @ phi, y)
        g = residual @ x / dynamics.batch_size + program.prior_gradient + program.prior_curvature * phi
        m = dynamics.momentum * m + g
        phi = phi - m + program.noise * noise
        form = phi @ program.guard_metric @ phi
        if form > program.guard_radius2:
            phi, hits = phi * np.sqrt(program.guard_radius2 / form), hits + 1
        path.append(phi)
    return np.array(path), m, hits


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_full_batches_follow_gradient_descent(family, weighted, momentum, prior):
    program = build(family, weighted=weighted, prior=prior, momentum=momentum, batch_size=60, replacement=False)
    start = start_of(program)
    # A full batch in any order is the full gradient: no random number is involved here.
    rows, base, y, weights = held(program)
    phi, m, path = start.position.copy(), np.zeros(3), []
    for _ in range(200):
        residual = weights * slope(program.loss, base + rows @ phi, y)
        gradient = np.mean(residual[:, None] * rows, axis=0)
        m = momentum * m + gradient + program.prior_gradient + program.prior_curvature * phi
        phi = phi - m
        path.append(phi)
    draws, state = run(program, 200)
    np.testing.assert_allclose(draws, path, rtol=0.0, atol=1e-10)
    np.testing.assert_allclose(state.velocity, m, rtol=0.0, atol=1e-10)
    assert np.ptp(draws) > 0.1


@pytest.mark.parametrize("batch_size", [1, 3, 16, 37])
@pytest.mark.parametrize("dim", [1, 3, 8, 13])
def test_minibatches_follow_the_recursion_for_every_shape(dim, batch_size):
    for replacement in (True, False):
        program = build(
            "poisson", dim=dim, prior=True, weighted=True, scale=0.2, momentum=0.5, noise_scale=0.01,
            batch_size=batch_size, replacement=replacement,
        )  # fmt: skip
        expected, m, _ = reference(program, 60, start_of(program))
        draws, state = run(program, 60)
        np.testing.assert_allclose(draws, expected, rtol=0.0, atol=1e-11)
        np.testing.assert_allclose(state.velocity, m, rtol=0.0, atol=1e-11)
        np.testing.assert_array_equal(state.position, draws[-1])


@pytest.mark.parametrize("batch_size", [SPLIT, SPLIT + 1030])
def test_sharing_a_step_between_threads_changes_no_bit(batch_size):
    options = {"momentum": 0.3, "noise_scale": 0.02, "prior": True, "weighted": True, "dim": 5}
    program = build("poisson", batch_size=batch_size, **options)
    expected, m, _ = reference(program, 12, start_of(program))
    whole, end = run(program, 12, thin=5)
    np.testing.assert_allclose(whole, expected[4::5], rtol=0.0, atol=1e-11)
    np.testing.assert_allclose(end.velocity, m, rtol=0.0, atol=1e-11)
    with ThreadPoolExecutor(4) as pool:
        for threads in (2, 3, 4):
            state, out = start_of(program), np.zeros((2, 5))
            assert advance(program, state, 7, 5, out, threads=threads, pool=pool) == (1, False)
            assert advance(program, state, 5, 5, out[1:], threads=threads, pool=pool) == (1, False)
            np.testing.assert_array_equal(out, whole)
            for one, other in zip(vars(state).values(), vars(end).values(), strict=True):
                np.testing.assert_array_equal(one, other)


def test_divergence_of_a_shared_step():
    program = build("poisson", base=np.full(60, 800.0), batch_size=SPLIT)
    state, out = start_of(program), np.zeros((10, 3))
    with ThreadPoolExecutor(2) as pool:
        assert advance(program, state, 10, 1, out, threads=2, pool=pool) == (0, True)
    assert (state.step, state.hits) == (1, 0)


def test_draws_are_stored_at_multiples_of_thin_in_rows_of_any_stride():
    program = build(noise_scale=0.05)
    every, _ = run(program, 23)
    state = start_of(program)
    advance(program, state, 4, None, np.zeros((0, 3)))
    assert state.step == 4
    strided = np.zeros((10, 2, 3))[:, 1]
    assert advance(program, state, 19, 5, strided) == (4, False)
    np.testing.assert_array_equal(strided[:4], every[4::5])
    with pytest.raises(ValueError, match="too few"):
        advance(program, state, 10, 2, np.zeros((4, 3)))
    with pytest.raises(ValueError, match="contiguous"):
        advance(program, state, 1, 1, np.zeros((3, 4)).T)


@pytest.mark.parametrize("dim", [1, 3, 8, 50])
@pytest.mark.parametrize("triangular", [True, False])
def test_draws_are_lifted_without_a_trace_of_how_a_run_is_split(dim, triangular):
    program, rng = build(dim=dim, noise_scale=0.1, scale=0.1), np.random.default_rng(dim)
    root, center = rng.normal(size=(dim, dim)), rng.normal(size=dim)
    root = np.tril(root) if triangular else root
    phi, _ = run(program, 100, thin=3)
    whole, state = np.zeros((33, dim)), start_of(program)
    assert advance(program, state, 100, 3, whole, lifting(root, center)) == (33, False)
    np.testing.assert_allclose(whole, center + phi @ root.T, rtol=0.0, atol=1e-13 * np.sqrt(dim))
    again, pieces = start_of(program), np.zeros((0, dim))
    for steps in (1, 2, 30, 0, 17, 50):
        out = np.zeros((steps, dim))
        pieces = np.vstack([pieces, out[: advance(program, again, steps, 3, out, lifting(root, center)).written]])
    np.testing.assert_array_equal(pieces, whole)
    np.testing.assert_array_equal(again.position, state.position)


def test_the_program_keeps_the_callers_values_and_survives_read_only_arrays():
    rows, metric = np.random.default_rng(1).normal(size=(60, 3)), np.eye(3)
    rows.flags.writeable = metric.flags.writeable = False
    program = build(rows=rows, guard_metric=metric, guard_radius2=1.0)
    np.testing.assert_array_equal(held(program)[0], rows)
    assert advance(program, start_of(program), 5, None, np.zeros((0, 3))) == (0, False)


@pytest.mark.parametrize("batch_size", [1, SPLIT])
def test_one_row_and_numbers_of_any_type_are_taken(batch_size):
    """A table of one row is contiguous, which others are not, and NumPy's numbers are not Python's."""
    program = build(count=1, dim=1, batch_size=batch_size, ahead=np.int32(0), guard_bound=np.float32(1.0))
    expected, _, _ = reference(program, 4, start_of(program))
    state, out = start_of(program), np.zeros((4, 1))
    state.step = np.int32(0)
    with ThreadPoolExecutor(2) as pool:
        done = advance(program, state, np.int16(4), np.int32(1), out, threads=2, pool=pool)
    assert done == (4, False)
    np.testing.assert_allclose(out, expected, rtol=0.0, atol=1e-12)


def test_the_guard_projects_onto_the_ellipsoid_and_counts():
    metric = np.array([[4.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])
    options = {"guard_metric": metric, "guard_bound": np.linalg.eigvalsh(metric)[-1], "noise_scale": 0.3}
    program = build("poisson", guard_radius2=0.8, **options)
    expected, _, hits = reference(program, 300, start_of(program))
    draws, state = run(program, 300)
    np.testing.assert_allclose(draws, expected, rtol=0.0, atol=1e-9)
    assert state.hits == hits
    assert 20 < hits < 280
    forms = np.einsum("ti,ij,tj->t", draws, metric, draws)
    assert np.sum(np.abs(forms - 0.8) < 1e-12) == hits
    assert forms.max() < 0.8 + 1e-12
    # The metric decides, not its bound: an isotropic guard at the bound would act more often.
    tight = replace(program, guard_metric=options["guard_bound"] * np.eye(3))
    assert run(tight, 300)[1].hits > hits


@pytest.mark.parametrize("batch_size", [1, 9, 40, 61])
def test_asking_for_rows_ahead_changes_no_bit(batch_size):
    for dim in (2, 14, 30):
        options = {"dim": dim, "batch_size": batch_size, "noise_scale": 0.02, "weighted": True}
        plain, end = run(build("poisson", ahead=0, **options), 200)
        for ahead in (1, 8, 100):
            draws, state = run(build("poisson", ahead=ahead, **options), 200)
            np.testing.assert_array_equal(draws, plain)
            np.testing.assert_array_equal(state.rng, end.rng)


def test_columns_of_zeros_change_no_bit():
    """What a row is padded with does not enter: a wider row is summed in the same order."""
    program = build("poisson", dim=5, noise_scale=0.0, momentum=0.4)
    state = start_of(program)
    rows, *sides = held(program)
    for extra in (1, 3, 8):
        wide = replace(
            program,
            table=tabled(np.hstack([rows, np.zeros((60, extra))]), *sides),
            prior_gradient=np.zeros(5 + extra),
            prior_curvature=np.zeros(5 + extra),
            guard_metric=np.eye(5 + extra),
            noise=np.zeros(5 + extra),
        )
        start = initial_state(np.append(state.position, np.zeros(extra)), SEED)
        np.testing.assert_array_equal(run(wide, 300, start)[0][:, :5], run(program, 300)[0])


def test_float32_rows_are_summed_in_float64():
    program = build("bernoulli", dim=9, batch_size=60, replacement=False, weighted=True)
    rows, *sides = held(program)
    narrow = replace(program, table=tabled(rows, *sides, "float32"))
    assert narrow.table.cells.dtype == np.float32
    exact = replace(program, table=tabled(rows.astype(np.float32), *sides))
    np.testing.assert_array_equal(run(narrow, 200)[0], run(exact, 200)[0])
    difference = np.abs(run(narrow, 200)[0] - run(program, 200)[0]).max()
    assert 1e-10 < difference < 1e-6


def test_more_constants_than_are_passed_by_value_reach_the_loss():
    def d1(eta, y, p):
        return p[10] * (eta - y) + p[0]

    long = ScalarLoss("long", *4 * (d1,), p=(0.25, *9 * (0.0,), 1.5))
    short = ScalarLoss("short", *4 * (lambda eta, y, p: p[1] * (eta - y) + p[0],), p=(0.25, 1.5))
    np.testing.assert_array_equal(run(build(loss=long), 50)[0], run(build(loss=short), 50)[0])


@pytest.mark.skipif(
    "avx2" not in str(numba.core.registry.cpu_target.target_context.codegen().magic_tuple()), reason="x86"
)
@pytest.mark.parametrize("family", ["bernoulli", "poisson", "gamma", "negative-binomial"])
def test_residuals_are_computed_several_at_a_time(family):
    loop = bound_loop(FAMILIES[family].loss.d1)
    code = next(
        iter(numba.njit(_signature(len(CONSTANTS.get(family, ())), "float64"), **EXACT)(loop).inspect_asm().values())
    )
    # The exponent of a power of two is moved into place: as a vector, and nowhere as a single number.
    assert re.search(r"vpsllq\s+\$52, %[yz]mm", code)
    assert not re.search(r"shlq\s+\$52", code)
    assert "vfmadd231pd" in code


def exploded(phi):
    with np.errstate(over="ignore", invalid="ignore"):
        return not np.isfinite(phi @ phi)


def test_divergence_is_reported_at_its_step_and_earlier_draws_are_kept():
    program = build(scale=30.0, batch_size=60, replacement=False)
    rows, base, y, _ = held(program)
    phi = start_of(program).position
    path = []
    while not exploded(phi):
        residual = slope(program.loss, base + rows @ phi, y)
        phi = phi - residual @ rows / 60
        path.append(phi)
    state, out = start_of(program), np.zeros((1000, 3))
    assert advance(program, state, 1000, 1, out) == (len(path) - 1, True)
    assert state.step == len(path) > 20
    np.testing.assert_allclose(out[: len(path) - 1], path[:-1], rtol=1e-9)
    assert exploded(state.position)


@pytest.mark.parametrize("radius2", [np.inf, 1.0])
def test_overflow_is_a_divergence_with_or_without_a_guard(radius2):
    program = build("poisson", base=np.full(60, 800.0), guard_radius2=radius2)
    state = start_of(program)
    assert advance(program, state, 10, 1, np.zeros((10, 3))) == (0, True)
    assert (state.step, state.hits) == (1, 0)


def doubled(value):
    return 2.0 * value


def scaled_loss(factor):
    """A user's loss: a closure over a constant, calling a plain Python function."""

    def d1(eta, y, p):
        return factor * doubled(eta - y) + p[1]

    return ScalarLoss("custom", d1, d1, d1, d1, p=(0.0, 0.25))


def test_any_loss_runs_and_losses_of_one_name_are_not_confused():
    for factor in (0.5, 1.5):
        program = build(loss=scaled_loss(factor), batch_size=60, replacement=False)
        phi = start_of(program).position
        rows, base, y, _ = held(program)
        residual = 2.0 * factor * (base + rows @ phi - y) + 0.25
        draws, _ = run(program, 1)
        np.testing.assert_allclose(draws[0], phi - residual @ rows / 60, atol=1e-14)
    names = {kernel("custom", scaled_loss(factor).d1, 2).py_func.__name__ for factor in (0.5, 1.5, 0.5)}
    assert len(names) == 2


def test_another_process_finds_the_compiled_loop_on_disk():
    """Its name must be the same under another hash seed, or every process would compile anew."""
    name = kernel("poisson", FAMILIES["poisson"].loss.d1, 0).py_func.__name__
    code = (
        "from equipoise.engines.numba.compiling import kernel\nfrom equipoise.families.family import FAMILIES\n"
        "loop = kernel('poisson', FAMILIES['poisson'].loss.d1, 0)\n"
        "print(loop.py_func.__name__, sum(loop.stats.cache_hits.values()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "17"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [name, "1"]


def test_a_state_starts_from_copies_and_the_seeds_words():
    position = np.zeros(3)
    state = initial_state(position, SEED)
    np.testing.assert_array_equal(state.rng, SEED.generate_state(4, np.uint64))
    run(build(noise_scale=0.1), 5, state)
    np.testing.assert_array_equal(position, 0.0)
    assert (state.step, state.rng.dtype) == (5, np.uint64)
