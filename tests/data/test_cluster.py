"""The same sums on a cluster, to the bit, whoever dies on the way: real worker processes of a local Dask cluster."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data import cluster as cluster_module

dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
N, FORMULA = 6000, "y ~ a + scale(b) + g"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, N))
    frame = pd.DataFrame({"y": rng.poisson(np.exp(0.3 * a - 0.1 * b)), "a": a, "b": b, "g": rng.choice(list("xyz"), N)})
    return frame.assign(firm=rng.integers(0, 40, N))


@pytest.fixture(scope="module")
def folder(frame, tmp_path_factory):
    made = tmp_path_factory.mktemp("cluster")
    for k in range(12):
        frame[k * 500 : (k + 1) * 500].to_parquet(made / f"{k:02}.parquet", index=False)
    return made


def local(workers: int, processes: bool = True):
    """A cluster of workers of one thread each."""
    quiet = {"dashboard_address": ":0", "silence_logs": 50}
    return distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=processes, **quiet)


@pytest.fixture(scope="module")
def client():
    with local(2) as cluster, distributed.Client(cluster) as found:
        yield found


def _loss(p, row):
    eta = p["a"] + row["x"] @ p["b"]
    return jnp.exp(eta) - row["y"] * eta


@pytest.mark.parametrize("where", ["threads", "processes", "cluster"])
def test_losses_of_ones_own_are_summed_in_double_precision_everywhere(where, folder, request) -> None:
    """Also without a name, and compiled once in every process."""
    model = eq.Model(lambda p, row: _loss(p, row), init={"a": 0.0, "b": np.zeros(2)})
    asked = {"columns": {"x": ["a", "b"], "y": "y"}, "clusters": "firm"}
    here = eq.data.scan(folder, **asked)
    expected = eq.fit(model, here)
    with ExitStack() as stack:
        if where == "cluster":
            pool = request.getfixturevalue("client")
        elif where == "threads":
            pool = stack.enter_context(ThreadPoolExecutor(2))
        else:
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        there = eq.data.scan(folder, **asked, executor=pool)
        found = eq.fit(model, there)
        np.testing.assert_array_equal(found.theta, expected.theta)
        assert there.passes == here.passes
        moments = [eq.moments(model, source, expected) for source in (here, there)]
        for name in ("hessian", "score_cov"):
            np.testing.assert_array_equal(*(getattr(each, name) for each in moments))
        np.testing.assert_array_equal(
            *(eq.robust(model, source, expected.theta, kind="CRV1", clusters="firm") for source in (here, there))
        )


def test_a_model_is_unpacked_once_in_a_process() -> None:
    model = eq.Model(_loss, init={"a": 0.0, "b": np.zeros(2)})
    packed = pickle.dumps(model)
    assert pickle.loads(packed) is pickle.loads(packed)
    np.testing.assert_array_equal(pickle.loads(packed).init["b"], model.init["b"])


class Sums(NamedTuple):
    rows: float
    total: np.ndarray


class Slow:
    """A pass that takes its time, so that a worker can die in the middle of it."""

    def __call__(self, rows) -> Sums:
        time.sleep(0.1)
        return Sums(float(rows.height), np.exp(rows.x).sum(axis=0))


@pytest.mark.slow
def test_all_verbs_have_the_bits_of_threads(client, frame, folder) -> None:
    away = eq.data.scan(folder, FORMULA, clusters="firm", executor=client)
    here = eq.data.scan(folder, FORMULA, clusters="firm")
    assert away.fingerprint() == here.fingerprint()
    model = eq.glm("poisson")
    options = {"target": "CRV1", "ess": 50, "chains": 2, "seed": 1, "progress": False}
    one, other = (eq.calibrate(model, source, **options) for source in (away, here))
    np.testing.assert_array_equal(one.fit.theta, other.fit.theta)
    np.testing.assert_array_equal(one.tuning.target, other.tuning.target)
    np.testing.assert_array_equal(one.draws, other.draws)
    assert away.passes == here.passes
    assert pickle.loads(pickle.dumps(away)).executor is None


def test_a_killed_worker_costs_only_its_blocks(client, folder) -> None:
    source, threads = eq.data.scan(folder, FORMULA, executor=client), eq.data.scan(folder, FORMULA)
    expected = threads.reduce(Slow())
    before = set(client.scheduler_info()["workers"])
    pids = list(client.run(os.getpid).values())
    timer = threading.Timer(0.35, os.kill, (pids[0], signal.SIGKILL))
    timer.start()
    found = source.reduce(Slow())
    timer.join()
    assert found.rows == N
    np.testing.assert_array_equal(found.total, expected.total)
    client.wait_for_workers(2, timeout=30)
    assert set(client.scheduler_info()["workers"]) != before


@pytest.mark.slow
def test_workers_that_a_cluster_has_given_up_come_back(folder, monkeypatch) -> None:
    """Dask forgets a worker that is not there 15 seconds after a death of it: if it was killed twice, nobody is left."""
    monkeypatch.setattr(cluster_module, "_LOOK", 0.2)
    with local(1) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        source = eq.data.scan(folder, FORMULA, executor=client)
        cluster.sync(cluster.workers.pop(0).close)
        found, expected = (data.reduce(Slow()) for data in (source, eq.data.scan(folder, FORMULA)))
        np.testing.assert_array_equal(found.total, expected.total)


class Deadly(Slow):
    """A pass that kills whoever makes it."""

    def __call__(self, rows) -> Sums:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_what_dask_gives_up_is_started_anew_and_in_the_end_an_error(folder) -> None:
    """Dask counts the deaths of workers for every task that waits there: with two killed at once twice, it gives them up."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local(2) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        source = eq.data.scan(folder, FORMULA, executor=client)
        timer = threading.Timer(0.35, os.kill, (next(iter(client.run(os.getpid).values())), signal.SIGKILL))
        timer.start()
        found = source.reduce(Slow())
        timer.join()
        np.testing.assert_array_equal(found.total, eq.data.scan(folder, FORMULA).reduce(Slow()).total)
        with pytest.raises(
            eq.ClusterLost, match=r"workers that read .*\.parquet died one after the other.*a smaller memory"
        ):
            source.reduce(Deadly())


def test_a_result_that_dies_with_the_worker_that_holds_it_is_awaited_again() -> None:
    class Late:
        """A future that is done and whose result is late; and a client that gives it."""

        asked, status = 0, "finished"

        def submit(self, *args, **named):
            return self

        def nthreads(self):
            return {"one": 1}

        def result(self, timeout):
            self.asked += 1
            if self.asked == 1:
                raise TimeoutError
            return 3

        def release(self) -> None:
            """Nobody needs it."""

    assert cluster_module.ClusterExecutor(Late()).submit(max, 3).result() == 3


def test_a_cluster_without_workers_is_a_clear_error(folder, monkeypatch) -> None:
    monkeypatch.setattr(cluster_module, "_LOOK", 0.2)
    monkeypatch.setattr(cluster_module, "_PATIENCE", 1.0)
    with (
        local(0, processes=False) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(eq.ClusterLost, match=r"has no worker, and had none for 1 seconds.*start workers"),
    ):
        eq.data.scan(folder, FORMULA, executor=client)


def test_errors_come_back_as_they_are(client, frame, tmp_path) -> None:
    frame.assign(a=np.where(np.arange(N) == 4321, np.nan, frame["a"])).to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(InvalidInput, match=r"missing in columns \['a'\], rows 4321, in .*bad.parquet"):
        eq.data.scan(tmp_path, FORMULA, executor=client)
    with pytest.raises(InvalidInput, match=r"executor: must be a dask.distributed.Client"):
        eq.data.scan(tmp_path, FORMULA, executor=3)


@pytest.mark.slow
def test_a_dask_frame_is_read_partition_by_partition(client, frame, folder) -> None:
    dd = pytest.importorskip("dask.dataframe")
    source = eq.data.scan(dd.read_parquet(folder), FORMULA, clusters="firm")
    assert source.executor.client is client
    assert len(source.parts) == 12
    assert len(pickle.dumps(source.parts[0])) < 10_000
    expected = eq.data.table(frame, FORMULA)
    np.testing.assert_allclose(source.whole().x, expected.x, rtol=1e-12)
    model = eq.glm("poisson")
    np.testing.assert_allclose(eq.fit(model, source).theta, eq.fit(model, expected).theta, rtol=1e-9)
    derived = dd.read_parquet(folder).query("a > 0").assign(c=lambda d: d["a"] ** 2)
    part = eq.data.scan(derived, "y ~ c")
    assert part.n == int((frame["a"] > 0).sum())
    categories = eq.data.scan(dd.read_parquet(folder).categorize(["g"]), FORMULA)
    np.testing.assert_allclose(categories.whole().x, expected.x, rtol=1e-12)
    with pytest.raises(InvalidInput, match=r"\['nothing'\], which the Dask DataFrame does not have"):
        eq.data.scan(dd.read_parquet(folder), "y ~ nothing")
    with pytest.raises(InvalidInput, match="one that was persisted"):
        eq.data.scan(dd.read_parquet(folder).persist(), FORMULA)


@pytest.fixture
def near():
    """A client of threads of this process."""
    with local(1, processes=False) as cluster, distributed.Client(cluster) as found:
        yield found


def test_partitions_may_be_empty(frame) -> None:
    dd = pytest.importorskip("dask.dataframe")
    few = eq.data.scan(dd.from_pandas(frame, npartitions=4).loc[2000:2500], "y ~ a")
    filtered = dd.from_pandas(frame.assign(t=range(N)), npartitions=4).query("t < 1000")
    assert eq.data.scan(filtered, "y ~ a").n == 1000
    assert few.n == 501
    with pytest.raises(InvalidInput, match="a table with at least one row"):
        eq.data.scan(filtered.query("t < 0"), "y ~ a")


def test_shuffled_frames_are_made_by_tasks(near, frame) -> None:
    dd = pytest.importorskip("dask.dataframe")
    made, other = dd.from_pandas(frame, npartitions=3), pd.DataFrame({"firm": np.arange(40), "size": np.arange(40.0)})
    theta = eq.fit(eq.glm("poisson"), eq.data.table(frame, "y ~ a")).theta
    merged = made.merge(dd.from_pandas(other, npartitions=3), on="firm", broadcast=False)
    for shuffled in (made.shuffle("firm"), made.set_index("firm"), merged):
        found = eq.fit(eq.glm("poisson"), eq.data.scan(shuffled, "y ~ a")).theta
        np.testing.assert_allclose(found, theta, rtol=1e-9)
    with pytest.raises(InvalidInput, match=r"one whose rows workers exchange.*shuffle.method"):
        eq.data.scan(made.drop_duplicates(split_out=2, shuffle_method="p2p"), "y ~ a")


def _raises():
    raise ZeroDivisionError("by zero")


def test_what_is_wrong_with_a_dask_frame_is_said(frame) -> None:
    dd = pytest.importorskip("dask.dataframe")
    for last, text in ((_raises, "partition 1 raised ZeroDivisionError: by zero"), (int, "partition 1, which is int")):
        parts, meta = [dask.delayed(frame[["y", "a"]]), dask.delayed(last)()], frame[["y", "a"]].iloc[:0]
        made = dd.from_delayed(parts, meta=meta, verify_meta=False)
        with pytest.raises(InvalidInput, match=text) as told:
            eq.data.scan(made, "y ~ a")
        assert "that file" not in str(told.value)
    with pytest.raises(InvalidInput, match="must be a Dask DataFrame; got a Dask Series"):
        eq.data.scan(dd.from_pandas(frame, npartitions=2)["y"], "y ~ a")


def test_clients_that_cannot_be_waited_for_are_refused(folder) -> None:
    async def scanned() -> None:
        async with distributed.Client(
            n_workers=1, processes=False, asynchronous=True, dashboard_address=":0", set_as_default=False
        ) as client:
            eq.data.scan(folder, FORMULA, executor=client)

    with pytest.raises(InvalidInput, match="got one with asynchronous=True"):
        asyncio.run(scanned())
    with local(1, processes=False) as cluster:
        client = distributed.Client(cluster, set_as_default=False)
        client.close()
        with pytest.raises(InvalidInput, match="got one that was closed"):
            eq.data.scan(folder, FORMULA, executor=client)


def test_a_process_pool_that_breaks_is_a_clear_error(folder) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        source = eq.data.scan(folder, FORMULA, executor=pool)
        for _ in range(2):  # while it works, and after that
            with pytest.raises(eq.ClusterLost, match=r"a process of the pool ended.*make a new pool"):
                source.reduce(Deadly())


def test_a_file_that_a_worker_does_not_see_is_named(frame, tmp_path) -> None:
    frame.to_parquet(tmp_path / "0.parquet")
    source = eq.data.scan(tmp_path, FORMULA)
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(InvalidInput, match=r"0.parquet, which is not found.*need the files under the same path"):
        source.reduce(Slow())


def test_a_lost_scheduler_is_a_clear_error(folder) -> None:
    cluster = local(1, processes=False)
    client = distributed.Client(cluster, set_as_default=False)
    source = eq.data.scan(folder, FORMULA, executor=client)
    timer = threading.Timer(0.3, cluster.close)
    timer.start()
    with pytest.raises(eq.ClusterLost, match=r"connection to the Dask scheduler was lost.*start the cluster again"):
        source.reduce(Slow())
    timer.join()
    with pytest.raises(eq.ClusterLost):
        source.reduce(Slow())
    client.close()


@pytest.mark.slow
def test_the_command_line_starts_a_cluster(folder, capsys) -> None:
    from typer.testing import CliRunner

    from equipoise.cli import app

    arguments = ["plan", str(folder), "y ~ a + b", "--family", "poisson"]
    runner = CliRunner()
    found, expected = (runner.invoke(app, [*arguments, *more]) for more in (["--dask", "local"], []))
    assert found.exit_code == expected.exit_code == 0, found.output
    assert "12 files" in found.output
    wrong = runner.invoke(app, [*arguments, "--dask", "nowhere:1"])
    assert wrong.exit_code == 2
    assert "the address of a scheduler that answers" in wrong.output
