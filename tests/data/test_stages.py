"""Stages that read files: killed and carried on, and what people see of them."""

from __future__ import annotations

import errno
import io
import re
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.data.metering import Meter
from equipoise.data.passage import Passage
from equipoise.engines.pooling import reach
from equipoise.files import unwritable
from tests.data.conftest import MANY as N


@pytest.mark.parametrize("target", ["CRV1", "HC3"])
def test_a_killed_stage_goes_on_with_the_pass_it_was_in(target, many, readings, tmp_path, monkeypatch) -> None:
    options = {"target": target, "draws": 20, "chains": 2, "progress": False, "checkpoint": tmp_path / "run"}

    def scanned():
        return eq.data.scan(many, "count ~ a + b + g", clusters="firm")

    whole = scanned()
    expected = eq.calibrate(eq.glm("poisson"), whole, **{**options, "checkpoint": None})
    # what is there of an earlier run with other data is no hindrance
    other = eq.data.scan(many / "0.parquet", "count ~ a", clusters="firm")
    eq.calibrate(eq.glm("poisson"), other, **{**options, "draws": 5, "checkpoint": tmp_path / "other"})
    (tmp_path / "other.passes").rename(tmp_path / "run.passes")
    summed, calls = Passage.summed, []

    def killed(self, f, width):
        calls.append(f)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return summed(self, f, width)

    monkeypatch.setattr(Passage, "summed", killed)
    with pytest.raises(KeyboardInterrupt):
        eq.calibrate(eq.glm("poisson"), scanned(), **options)
    calls[:] = [None] * 10
    source = scanned()
    readings.clear()
    found = eq.calibrate(eq.glm("poisson"), source, **options)
    np.testing.assert_array_equal(found.draws, expected.draws)
    # two were finished, and are not repeated
    assert source.passes == whole.passes - 2.0
    assert readings.total() / N == source.passes - 1.0
    assert len(calls) - 10 >= 1


def test_a_damaged_file_of_finished_passes_is_one_error(many, tmp_path) -> None:
    options = {"draws": 5, "chains": 2, "progress": False, "checkpoint": tmp_path / "run"}
    source, kept = eq.data.scan(many, "count ~ a"), tmp_path / "run.passes"
    eq.calibrate(eq.glm("poisson"), source, **options)
    whole = kept.read_bytes()
    with np.load(kept) as stored:
        arrays = dict(stored)
    names = [name for name in arrays if name.partition(".")[0] == next(iter(arrays)).partition(".")[0]]
    cuts = [
        b"",
        b"PK nothing",
        whole[: len(whole) // 2],
        whole[:-10],
        bytes(len(whole)),
        whole[:200] + b"x" + whole[201:],
    ]
    for lost in (names[0], names[-1]):
        content = io.BytesIO()
        np.savez(content, **{name: array for name, array in arrays.items() if name != lost})
        cuts.append(content.getvalue())
    for damaged in cuts:
        kept.write_bytes(damaged)
        with pytest.raises(eq.InvalidInput, match=r"run.passes, which is damaged.*delete that file"):
            eq.calibrate(eq.glm("poisson"), source, **options)


def test_a_checkpoint_that_cannot_be_written_is_refused_before_a_pass(many, tmp_path, readings) -> None:
    (tmp_path / "folder.passes").mkdir()
    for name in ("x" * 250, "new/" + "x" * 260, "folder"):
        source = eq.data.scan(many, "count ~ a")
        readings.clear()
        with pytest.raises(eq.InvalidInput, match="checkpoint: must be a file that can be written"):
            eq.calibrate(eq.glm("poisson"), source, draws=5, checkpoint=tmp_path / name)
        assert not readings.total()
    with pytest.raises(eq.InvalidInput, match="checkpoint: must be a file that can be written"):
        eq.calibrate(eq.glm("poisson"), many, formula="count ~ a", draws=5, checkpoint="/proc/run")
    assert not readings.total()


def test_a_full_disk_costs_only_the_finished_passes(many, tmp_path, monkeypatch) -> None:
    def full(path, content, argument):
        raise unwritable(path, argument, OSError(errno.ENOSPC, "No space left")) from OSError(
            errno.ENOSPC, "No space left"
        )

    monkeypatch.setattr("equipoise.data.ledger.write_atomic", full)
    options = {"draws": 5, "chains": 2, "progress": False}
    with pytest.warns(eq.EquipoiseWarning, match=r"run.passes could not be written \(No space left\)") as told:
        found = eq.calibrate(eq.glm("poisson"), eq.data.scan(many, "count ~ a"), **options, checkpoint=tmp_path / "run")
    assert len(told) == 1
    expected = eq.calibrate(eq.glm("poisson"), eq.data.scan(many, "count ~ a"), **options)
    np.testing.assert_array_equal(found.draws, expected.draws)


def _loss(p, row):
    eta = p["a"] + row["x"] @ p["b"]
    return jnp.exp(eta) - row["y"] * eta


def test_a_loss_of_ones_own_is_carried_on_too_unless_it_was_edited(many, tmp_path, monkeypatch) -> None:
    options = {"target": "CRV1", "draws": 20, "chains": 2, "progress": False, "checkpoint": tmp_path / "run"}
    summed, made = Passage.summed, []

    def killed(self, f, width):
        made.append(f)
        if len(made) == 4:
            raise KeyboardInterrupt
        return summed(self, f, width)

    def run(model, **others):
        source = eq.data.scan(many, columns={"x": ["a", "b"], "y": "count"}, clusters="firm")
        return eq.calibrate(model, source, **{**options, **others}), source

    losses = (lambda p, row: _loss(p, row) + 1e-3 * p["a"] ** 2, _loss)
    edited, model = (eq.Model(loss, init={"a": 0.0, "b": np.zeros(2)}) for loss in losses)

    monkeypatch.setattr(Passage, "summed", killed)
    with pytest.raises(KeyboardInterrupt):
        run(model)
    monkeypatch.setattr(Passage, "summed", summed)
    for given, fewer in ((edited, 0), (model, 3)):
        (expected, whole), path = run(given, checkpoint=None), tmp_path / f"again-{fewer}"
        path.with_name(f"{path.name}.passes").write_bytes((tmp_path / "run.passes").read_bytes())
        found, source = run(given, checkpoint=path)
        np.testing.assert_array_equal(found.draws, expected.draws)
        assert source.passes == pytest.approx(whole.passes - fewer)


def test_what_a_plan_and_a_summary_say_of_files(many, tmp_path) -> None:
    source = eq.data.scan(many, "count ~ a + b", memory="3MB")
    plan = eq.plan(eq.glm("poisson"), source, sampler="sgmcmc", batch_size=50)
    assert plan.reads.passes == source.passes
    # what one reading brings passes through a quarter of the memory, a share of all rows at a time
    assert plan.reads.pools == np.ceil(plan.rows / reach(source))
    assert reach(source) * source.at_once * (8 * source.encoder.width + 48) == pytest.approx(0.75e6, rel=0.01)
    assert plan.reads.bytes == sum(file.stat().st_size for file in many.iterdir())
    text = str(plan)
    assert "3 files, " in text
    assert f"{source.passes:.0f} passes until here, {plan.reads.pools:,.0f} more for the rows of all steps" in text
    assert "at most 0.003 GB of memory" in text
    auto = eq.plan(eq.glm("poisson"), source)
    assert auto.sampler == "control-variate"
    assert auto.reads.pools < 0.01 * plan.reads.pools
    assert any("passes over the files" in str(c) for c in auto.candidates if c.sampler == "sgmcmc")
    fresh = eq.data.scan(many, "count ~ a + b", memory="3MB")
    cal = eq.calibrate(eq.glm("poisson"), fresh, draws=20, chains=2, progress=False)
    before, steps = re.search(r"Passes over data: (\d+) \+ (\d+) for the steps", str(cal.summary())).groups()
    assert "3 files, " in str(cal.summary())
    assert int(before) + int(steps) == pytest.approx(
        fresh.passes, abs=0.5
    )  # the rows of few steps are in a part of them
    assert "3 files, " in cal.report(tmp_path / "page.html").read_text()
    assert eq.load(cal.save(tmp_path / "run.eqz")).plan.reads == cal.plan.reads


def test_small_files_that_are_read_whole_keep_their_clusters_and_times(tmp_path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "firm": np.arange(60) % 7, "day": np.arange(60)})
    frame["y"] = rng.poisson(np.exp(0.3 * frame.x))
    for k in range(3):
        frame[20 * k : 20 * (k + 1)].to_parquet(tmp_path / f"{k}.parquet")
    for kind, options in {"CRV1": {"clusters": "firm"}, "HAC": {"time": "day", "lags": 2}}.items():
        found, expected = (
            eq.plan(eq.glm("poisson"), data, formula="y ~ x", target=kind, **options).tuning.target
            for data in (tmp_path, frame)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_sample_smaller_than_asked_for_takes_the_place_of_a_pass() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=30_000)
    table = pa.table({"x": x, "y": rng.poisson(np.exp(0.3 * x))})
    source = eq.data.scan(table, "y ~ x", memory="2MB")
    assert 2048 < source.sample(20_000, None).n == source.lot.size < 20_000
    assert source.passes == 1.0
    assert source.sample(20_000, 0).n == 20_000
    assert source.passes > 1.5


def test_infinity_is_named_by_file_row_and_column_where_the_sample_meets_it_first(tmp_path) -> None:
    frame = pd.DataFrame({"x": np.r_[np.arange(40.0), np.inf], "z": 1.0, "y": 1})
    frame[:30].to_parquet(tmp_path / "a.parquet")
    frame[30:].to_parquet(tmp_path / "b.parquet")
    with pytest.raises(eq.InvalidInput, match=r"^x: must be finite; got NaN or infinity at 10, in .*b\.parquet"):
        eq.fit(eq.glm("poisson"), eq.data.scan(tmp_path, "y ~ x"))


def test_passes_for_rows_drawn_by_leverage_are_foretold_though_all_rows_would_fit(many) -> None:
    source = eq.data.scan(many, "count ~ a + b", memory="3MB")
    cal = eq.calibrate(
        eq.glm("poisson"), source, sampler="control-variate", batches="leverage", draws=2000, progress=False
    )
    assert cal.plan.reads.pools > 2.0
    assert source.passes == cal.plan.reads.passes + cal.plan.reads.pools


@pytest.fixture
def told(monkeypatch):
    """What bars are told that are shown: how much is done, what goes on, and of how much."""
    found = []

    def update(self, done, label=None, total=None):
        if self._enabled:
            found.append((done, label, total or self._total))

    monkeypatch.setattr("equipoise.progress.Progress.update", update)
    return found


def test_a_bar_for_every_stage_says_which_pass_it_is(many, told) -> None:
    source = eq.data.scan(many, "count ~ a + b")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][0] == told[-1][2] == N
    assert {label.rpartition(", ")[0] for _, label, _ in told} == {"learning from the data, pass 1 of 1"}
    told.clear()
    eq.plan(eq.glm("poisson"), source)
    labels = [label.partition(", ") for _, label, _ in told]
    assert {first for first, _, _ in labels} == {"planning"}
    assert labels[0][2].startswith("pass 1 of about 3")
    assert labels[-1][2].startswith("pass 3 of about 3")
    assert all(label.endswith("million rows/s") for _, label, _ in told)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_bars_follow_where_there_are_more_passes_than_foreseen(told) -> None:
    meter = Meter()
    with meter.watched(100, 2.0, "fitting", enabled=True):
        for _ in range(8):
            meter.add(50)
    words = [
        "1 of about 2",
        "1 of about 2",
        "2 of about 2",
        "2 of about 2",
        "3 of about 3",
        "3 of about 3",
        "4 of about 4",
    ]
    assert [label.split(", ")[1] for _, label, _ in told] == [f"pass {each}" for each in [*words, "4 of about 4"]]
    assert [total for _, _, total in told] == [200] * 4 + [300] * 2 + [400] * 2


def test_bars_of_the_first_reading_and_of_predictions(many, told, tmp_path, monkeypatch) -> None:
    frame = pd.read_parquet(many)
    eq.data.scan(many, "count ~ poly(exp(scale(a)), 2)")
    words = [f"learning from the data, pass {k} of 2" for k in (1, 2)]
    assert list(dict.fromkeys(label.rpartition(", ")[0] for _, label, _ in told)) == words
    told.clear()
    eq.data.scan(lambda: iter([frame[:100], frame[100:300]]), "count ~ a")
    assert [label.rpartition(", ")[0].partition("1 of 1, ")[2] for _, label, _ in told] == ["100 rows", "300 rows"]
    assert {total for _, _, total in told} == {None}
    with ThreadPoolExecutor(1) as pool:
        told.clear()
        eq.data.scan(many, "count ~ a", executor=pool)
    assert told[-1][0] == told[-1][2] == N
    told.clear()
    eq.data.scan(many, "count ~ a", progress=False)
    cal = eq.calibrate(eq.glm("poisson"), many, formula="count ~ a", draws=20, chains=2, progress=False)
    cal.predict(many, progress=False)
    assert told == []
    monkeypatch.setattr("equipoise.calibration.streaming.CHUNK", 30_000)
    for options in ({}, {"to": tmp_path / "made.parquet"}):
        told.clear()
        cal.predict(many, **options)
        assert [done for done, _, _ in told] == list(range(10_000, N + 1, 10_000))
        assert {(label.partition(", ")[0], total) for _, label, total in told} == {("predicting", N)}
    for ask in (lambda: eq.data.scan(many, "count ~ a", progress="no"), lambda: cal.predict(many, progress="no")):
        with pytest.raises(eq.InvalidInput, match="progress: must be True or False"):
            ask()
