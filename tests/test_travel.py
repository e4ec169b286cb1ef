"""Results hold no rows: they pickle, copy and travel to other processes; one constant goes through all verbs."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import joblib
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines.engine import Guard
from tests.known import jax_loss, misspecified

N = 2000


@pytest.fixture(scope="module")
def runs():
    """A calibration of a GLM with an estimated scale, and one of a loss of one's own."""
    x, y = misspecified("gaussian", n=N)
    glm = eq.calibrate(eq.glm("gaussian"), (x, y), ess=60, chains=2, progress=False)
    x, y = misspecified("poisson", n=N)
    own = eq.Model(lambda p, o: jax_loss(p, o), {"a": 0.0, "b": np.zeros(2)}, prior_precision=0.1)
    return {"glm": glm, "own": eq.calibrate(own, {"x": x[:, 1:], "y": y}, ess=60, chains=2, progress=False)}


def parts(cal):
    law = cal.tuning.predicted
    return {"moments": cal.plan.moments, "law": law, "tuning": cal.tuning, "plan": cal.plan, "chains": cal.chains,
            "fit": cal.fit, "diagnosis": cal.diagnosis, "calibration": cal}  # fmt: skip


def largest_array(value) -> int:
    """Rows of the largest array that pickling reaches."""
    found = []

    class Probe(pickle.Pickler):
        def persistent_id(self, thing):
            if isinstance(thing, np.ndarray):
                found.append(max(thing.shape, default=0))

    import io

    Probe(io.BytesIO()).dump(value)
    return max(found, default=0)


@pytest.mark.parametrize("kind", ["glm", "own"])
@pytest.mark.parametrize("name", ["moments", "law", "tuning", "plan", "chains", "fit", "diagnosis", "calibration"])
def test_every_result_pickles_without_a_row(runs, kind, name) -> None:
    thing = parts(runs[kind])[name]
    assert largest_array(thing) < N
    sent = pickle.loads(pickle.dumps(thing))
    assert type(sent) is type(thing)
    assert len(pickle.dumps(sent)) < 2_000_000
    copied = copy.deepcopy(thing)
    assert type(copied) is type(thing)


@pytest.mark.parametrize("kind", ["glm", "own"])
def test_what_was_computed_works_after_the_journey(runs, kind) -> None:
    cal = runs[kind]
    expected = str(cal.summary())
    sent = pickle.loads(pickle.dumps(cal))
    assert str(sent.summary()) == expected
    np.testing.assert_array_equal(sent.draws, cal.draws)
    np.testing.assert_array_equal(sent.tuning.predicted.mean_bias, cal.tuning.predicted.mean_bias)
    with pytest.raises(eq.InvalidInput, match=r"attach\(eq\.bind"):
        eq.stationary(sent.plan.moments, 0.001, eq.Dynamics(10))
    eq.stationary(sent.plan.moments, 1e-4, eq.Dynamics(10), proxy="ct")  # needs no curvature


def test_copies_in_the_same_process_still_know_their_problem(runs) -> None:
    cal = copy.deepcopy(runs["glm"])
    assert cal.plan.problem is runs["glm"].plan.problem
    assert eq.stationary(cal.plan.moments, 1e-4, eq.Dynamics(10)).cov.shape == (3, 3)
    assert cal.draws is not runs["glm"].draws


def test_the_tree_of_a_sent_run_is_in_plain_containers(runs) -> None:
    cal = runs["own"]
    sent = pickle.loads(pickle.dumps(cal.chains))
    for key in ("a", "b"):
        np.testing.assert_array_equal(sent.tree()[key], cal.chains.tree()[key])


def worst(tuning) -> float:
    return float(tuning.predicted.iact())


def sampled(tuning, model, data) -> np.ndarray:
    return eq.sample(model, data, tuning, draws=20, chains=2, thin=1, progress=False).draws


def test_results_and_models_travel_to_a_process_pool(runs, tmp_path) -> None:
    cal = runs["glm"]
    data = misspecified("gaussian", n=N)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(worst, cal.tuning).result() == cal.tuning.predicted.iact()
        far = pool.submit(sampled, cal.tuning, cal.model, data).result()
    np.testing.assert_array_equal(far, sampled(cal.tuning, cal.model, data))
    joblib.dump(cal, tmp_path / "cal.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "cal.joblib").draws, cal.draws)


@pytest.mark.parametrize("divergence", [None, *(eq.Beta(1.3), eq.Huber(), eq.StudentT(), eq.Pinball(0.4))])
def test_models_pickle(divergence) -> None:
    model = eq.glm("gaussian", divergence=divergence, prior_precision=0.5)
    data = misspecified("gaussian")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(eq.fit(again, data).params, eq.fit(model, data).params)
    # and after their loss was used
    bound = eq.bind(model.__class__(model.family, 1.3, model.prior_precision, model.prior_mean, divergence), data)
    bound.derivatives(np.zeros(3), 1)
    pickle.loads(pickle.dumps(bound))


def test_a_loss_of_ones_own_pickles_if_its_function_does() -> None:
    model = eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)})
    x, y = misspecified("poisson")
    fitted = eq.fit(model, {"x": x[:, 1:], "y": y})
    again = eq.fit(pickle.loads(pickle.dumps(model)), {"x": x[:, 1:], "y": y})
    np.testing.assert_array_equal(again.theta, fitted.theta)


@pytest.mark.parametrize("divergence", [None, eq.Huber(), eq.StudentT(), eq.Beta(1.3)])
@pytest.mark.parametrize("rows", [None, 300])
def test_one_scale_goes_through_all_verbs(divergence, rows) -> None:
    x, y = misspecified("gaussian", n=N)
    problem = eq.bind(eq.glm("gaussian", divergence=divergence), (x, y))
    fitted = eq.fit(problem, tuning_rows=rows)
    m = eq.moments(problem, fitted, tuning_rows=rows)
    tuning = eq.tune(m, "sandwich", eq.Dynamics(50))
    assert fitted.constant == m.constant == tuning.constant is not None
    engine = problem.engine(tuning, Guard(np.inf, tuning.expected))
    assert engine.program.loss.p[0] == fitted.constant
    cal = eq.calibrate(problem, ess=20, chains=2, batch_size=50, tuning_rows=rows, progress=False)
    assert cal.fit.constant == cal.plan.moments.constant == cal.tuning.constant == cal.model.constant == fitted.constant


BITS = """
    import sys, hashlib, numpy as np
    import equipoise as eq
    rng = np.random.default_rng(0)
    n, dim = 20_000, 20
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    y = rng.poisson(np.exp(0.05 * x.sum(axis=1))).astype(float)
    cal = eq.calibrate(eq.glm("poisson", prior_precision=0.3), (x, y), ess=20, chains=2, momentum=0.2, progress=False,
                       checkpoint=sys.argv[1])
    for array in (cal.fit.theta, cal.plan.moments.hessian, cal.tuning.step, cal.draws):
        print(hashlib.sha256(np.ascontiguousarray(array)).hexdigest())
"""


def test_no_bit_depends_on_the_threads_of_blas(tmp_path) -> None:
    """Also a run that is resumed under another number of them is the same run."""
    script = tmp_path / "bits.py"
    script.write_text(textwrap.dedent(BITS))
    found = {}
    for threads in ("1", "2"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
        env = {**__import__("os").environ, **dict.fromkeys(names, threads)}
        done = subprocess.run(
            [sys.executable, script, tmp_path / "run.ckpt"], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found[threads] = done.stdout
    assert found["1"] == found["2"]
