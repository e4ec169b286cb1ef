"""Chains on rows from files: the chains of the same rows in memory, whatever waits in memory at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.engines.random import rows_with_replacement
from tests.known import jax_loss

N = 20_000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(2, N))
    o, w, f = 0.1 * rng.normal(size=N), rng.uniform(0.5, 2.0, N), rng.integers(1, 3, N)
    return pd.DataFrame({"y": rng.poisson(np.exp(0.3 + 0.4 * a - 0.2 * b + o)), "a": a, "b": b, "o": o, "w": w, "f": f})


@pytest.fixture(scope="module")
def folder(frame, tmp_path_factory):
    made = tmp_path_factory.mktemp("rows")
    for k, cut in enumerate([slice(0, 9_000), slice(9_000, 9_001), slice(9_001, N)]):
        frame[cut].to_parquet(made / f"{k}.parquet", row_group_size=2_500)
    return made


BESIDE = {"offset": "o", "weights": "w", "frequency": "f"}
MODEL = eq.glm("poisson", prior_precision=2.0)


def tuned(data, **options):
    problem = eq.bind(MODEL, data)
    moments = eq.moments(problem, eq.fit(problem))
    step = 0.5 * np.linalg.inv(moments.hessian)
    dynamics = eq.Dynamics(**{"batch_size": 40, "gradient": "control-variate"} | options)
    return problem, eq.tune(moments, "sandwich", dynamics, noise="completed", step=step)


RUN = {"chains": 3, "thin": 2, "burn_in": 5, "progress": False}


@pytest.fixture(scope="module")
def known(frame):
    return tuned(eq.data.table(frame, "y ~ a + b", **BESIDE))


@pytest.mark.parametrize(
    ("memory", "disk", "passes"), [("1GB", 10**12, 1.0), ("1MB", 10**12, 1.0), ("1MB", 1_056_000, 3.0)]
)
def test_a_chain_on_files_is_the_chain_in_memory(memory, disk, passes, folder, known, monkeypatch) -> None:
    problem, tuning = known
    monkeypatch.setattr("equipoise.engines.pooling.free_disk", lambda: disk)
    source = eq.data.scan(folder, "y ~ a + b", memory=memory, **BESIDE)
    before = source.passes
    found = eq.sample(eq.bind(MODEL, source), tuning, 60, seed=4, **RUN)
    expected = eq.sample(problem, tuning, 60, seed=4, **RUN)
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-9)
    # 3 · 125 · 40 rows in one pass, also where 1,920 wait in memory and the others on the disk; three where 6,000 fit there;
    # and the slope at the minimum, which the tuning does not know of these
    assert source.passes - before == pytest.approx(passes + 1.0, abs=0.01)
    assert found.statistics["rows"] == 15_000


def test_a_disk_that_is_full_is_an_error_that_names_the_folder(folder, known, monkeypatch) -> None:
    _, tuning = known
    source = eq.data.scan(folder, "y ~ a + b", memory="1MB", **BESIDE)

    class Full:
        def __init__(self, *_: object) -> None: ...

        def seek(self, *_: int) -> int:
            return 0

        def write(self, _: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr("equipoise.data.spill.SpooledTemporaryFile", Full)
    with pytest.raises(InvalidInput, match=r"temporary files, .*No space left on device; .* GB are free there.*TMPDIR"):
        eq.sample(eq.bind(MODEL, source), tuning, 60, seed=4, **RUN)


@pytest.mark.parametrize("batches", ["independent", "leverage"])
def test_a_chain_that_diverges_leaves_the_rows_of_the_others_as_they_are(batches, folder) -> None:
    source = eq.data.scan(folder, "y ~ a + b", memory="1MB", **BESIDE)
    problem, tuning = tuned(source, batches=batches)
    engine = problem.engine(tuning, eq.sampling.run.resolve_guard(problem, tuning, None), touched=9000.0)
    states = [engine.start(tuning.center, np.random.SeedSequence(c)) for c in range(3)]
    every, rows = engine.queue, engine.program.table.sides
    turn = every.turn(states, 75)
    assert turn.steps < 75
    foretold = {}
    while states[0].step < 60:
        turn = every.turn(states, 75)
        for state, first in zip(states, turn.queues, strict=True):
            here = first + state.step * 40
            foretold[state.step, tuple(map(int, state.rng))] = rows[here : here + 40].copy()
        at = every._words[:, states[0].step + 1 - every._first]
        for state, words in zip(states, at, strict=True):
            state.rng, state.step = words.copy(), state.step + 1
    # the first chain is gone, and the others begin again
    again = problem.engine(tuning, eq.sampling.run.resolve_guard(problem, tuning, None), touched=9000.0)
    states = [again.start(tuning.center, np.random.SeedSequence(c)) for c in range(3)]
    again.queue.turn(states, 75)
    states, rows = states[1:], again.program.table.sides
    passes = source.passes
    while states[0].step < 60:
        turn = again.queue.turn(states, 75)
        for state, first in zip(states, turn.queues, strict=True):
            here = first + state.step * 40
            np.testing.assert_array_equal(rows[here : here + 40], foretold[state.step, tuple(map(int, state.rng))])
            slot = (first + again.queue._first * 40) // ((again.queue._words.shape[1] - 1) * 40)
            state.rng = again.queue._words[slot, state.step + 1 - again.queue._first].copy()
            state.step += 1
    assert source.passes == passes


def test_plain_gradients_and_rows_read_whole(frame, folder) -> None:
    problem, _ = tuned(frame := eq.data.table(frame, "y ~ a + b"))
    moments = eq.moments(problem, eq.fit(problem))
    for batches in ("independent", "epochs"):
        tuning = eq.tune(moments, "sandwich", eq.Dynamics(batch_size=300, batches=batches))
        expected = eq.sample(MODEL, frame, tuning, 30, seed=1, **RUN)
        source = eq.data.scan(folder, "y ~ a + b")
        before = source.passes
        np.testing.assert_allclose(eq.sample(MODEL, source, tuning, 30, seed=1, **RUN).draws, expected.draws, rtol=1e-9)
        assert source.passes - before == pytest.approx(1.0, abs=0.01)
        little = eq.data.scan(folder, "y ~ a + b", memory="1MB")
        if batches == "independent":
            np.testing.assert_array_equal(
                eq.sample(MODEL, little, tuning, 5, seed=1, **RUN).draws,
                eq.sample(MODEL, source, tuning, 5, seed=1, **RUN).draws,
            )
        else:
            with pytest.raises(InvalidInput, match="batches='epochs': must be left out for rows that do not fit"):
                eq.sample(MODEL, little, tuning, 5, **RUN)
    whole = eq.tune(moments, "sandwich", eq.Dynamics(batch_size=300, replacement=False))
    with pytest.raises(InvalidInput, match="replacement=False: must be left out for rows that do not fit"):
        eq.sample(MODEL, little, whole, 5, **RUN)
    large = eq.tune(moments, "sandwich", eq.Dynamics(batch_size=3000))
    with pytest.raises(InvalidInput, match=r"batch_size: .* 3 x 3,000 rows.*memory="):
        eq.sample(MODEL, little, large, 5, **RUN)


@pytest.mark.parametrize("batches", ["independent", "leverage"])
def test_a_killed_run_resumes_bit_for_bit(batches, folder, tmp_path, monkeypatch) -> None:
    source = eq.data.scan(folder, "y ~ a + b", memory="1MB", **BESIDE)
    problem, tuning = tuned(source, batches=batches)
    expected = eq.sample(problem, tuning, 200, seed=2, **RUN)
    path = tmp_path / "run.checkpoint"
    fetch, calls = type(source).fetch, []

    def killed(self, *given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fetch(self, *given)

    monkeypatch.setattr(type(source), "fetch", killed)
    with pytest.raises(KeyboardInterrupt):
        eq.sample(problem, tuning, 200, seed=2, checkpoint=path, checkpoint_seconds=0.0, **RUN)
    monkeypatch.undo()
    resumed = eq.sample(problem, tuning, 200, seed=2, checkpoint=path, threads=1, **RUN)
    np.testing.assert_array_equal(resumed.draws, expected.draws)
    other = eq.data.scan(folder, "y ~ a + b", memory="2MB", **BESIDE)
    np.testing.assert_allclose(
        eq.sample(eq.bind(MODEL, other), tuning, 200, seed=2, **RUN).draws, expected.draws, rtol=1e-9
    )


def test_rows_by_leverage_have_the_law_of_those_in_memory(frame, folder) -> None:
    source = eq.data.scan(folder, "y ~ a + b", frequency="f", memory="1MB")
    problem, tuning = tuned(source, batches="leverage", batch_size=8)
    run = eq.sample(problem, tuning, 3000, chains=4, seed=3, thin=1, progress=False)
    diagnosis = eq.diagnose(run, tuning)
    assert diagnosis.ok, str(diagnosis)
    # the gradient estimator is unbiased: each row's term over N p_n, averaged over draws
    engine = problem.engine(tuning, eq.sampling.run.resolve_guard(problem, tuning, None), touched=4000.0)
    states = [engine.start(tuning.center, np.random.SeedSequence(c)) for c in range(4)]
    turn = engine.queue.turn(states, 100)
    weights = engine.program.table.sides[: 4 * turn.steps * 8, 2]
    assert abs(weights.mean() - 1.0) < 5.0 * weights.std() / np.sqrt(weights.size)
    assert weights.std() > 0.1


def test_numbers_of_more_than_32_bits_are_uniform() -> None:
    state, size = np.arange(1, 5, dtype=np.uint64), 3 * 2**33 + 5
    drawn = np.empty(20_000, np.uint64)
    rows_with_replacement(state, np.uint64(size), drawn)
    assert drawn.max() < size
    counts = np.bincount((drawn // np.uint64(size // 16 + 1)).astype(int), minlength=16)
    assert ((counts - 1250.0) ** 2 / 1250.0).sum() < 15.0 + 5.0 * np.sqrt(30.0)
    assert 9500 < np.sum(drawn % np.uint64(2)) < 10_500


@pytest.mark.slow
def test_a_loss_of_ones_own_on_files(frame, folder) -> None:
    model = eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)}, prior_precision=0.5)
    arrays = {"x": frame[["a", "b"]].to_numpy(), "y": frame["y"].to_numpy()}
    problem = eq.bind(model, arrays)
    moments = eq.moments(problem, eq.fit(problem))
    dynamics = eq.Dynamics(batch_size=20, gradient="control-variate")
    tuning = eq.tune(moments, "sandwich", dynamics, noise="completed", step=0.4 * np.linalg.inv(moments.hessian))
    expected = eq.sample(problem, tuning, 60, seed=4, **RUN)
    source = eq.data.scan(folder, columns={"x": ["a", "b"], "y": "y"}, memory="1MB")
    found = eq.sample(model, source, tuning, 60, seed=4, **RUN)
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-9)
    dynamics = eq.Dynamics(batch_size=20, gradient="control-variate", batches="leverage")
    leverage = eq.tune(moments, "sandwich", dynamics, noise="completed", step=tuning.step)
    with pytest.raises(InvalidInput, match="batches: must be 'independent' for a loss of your own"):
        eq.sample(model, source, leverage, 5, **RUN)
