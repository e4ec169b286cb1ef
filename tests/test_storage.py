"""Saved runs: every field exactly, no pickle, useful after loading, and clear about files that are not runs."""

from __future__ import annotations

import dataclasses
import json
import zipfile

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.families.family import FAMILIES


def same(one, other, path="run") -> None:
    """Equal in every field, to the last bit; what is known to be left behind is named here."""
    if path.endswith((".curvature", ".problem", ".design.spec", ".model")):  # references, compared elsewhere
        return
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, path
        np.testing.assert_array_equal(one, other, err_msg=path)
    elif dataclasses.is_dataclass(one):
        assert type(one) is type(other), path
        for field in dataclasses.fields(one):
            # how the mean bias is computed is left behind, what it is is kept
            name = "mean_bias" if field.name == "bias" else field.name
            same(getattr(one, name), getattr(other, name), f"{path}.{name}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), path
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{path}.{k}")
    else:
        assert one == other, path
        assert type(one) is type(other), path


@pytest.fixture(scope="module")
def frame(make_data) -> pd.DataFrame:
    x, y = make_data("poisson", n=200, dim=3)
    group = np.random.default_rng(0).choice(["a", "b", "c"], 200)
    return pd.DataFrame({"visits": y, "x": x[:, 1], "group": group, "o": 0.1 * x[:, 2]})


@pytest.mark.parametrize("family", list(FAMILIES))
def test_round_trip_of_every_family(family, make_data, make_model, tmp_path) -> None:
    precision = np.diag([1.0, 2.0, 3.0]) + 0.1
    model = make_model(family, prior_precision=precision, prior_mean=[0.1, 0.0, -0.2])
    cal = eq.calibrate(
        model, make_data(family, n=120, dim=3), ess=30, chains=2, seed=8, momentum=0.3, inverse_temperature=5000.0,
        replacement=False, progress=False,
    )  # fmt: skip
    same(cal, eq.load(cal.save(tmp_path / "run.eqz")))


def test_round_trip_of_a_table(frame, tmp_path) -> None:
    cal = eq.calibrate(
        eq.glm("poisson"), frame, "bayesbag", formula="visits ~ x + C(group)", offset="o", ess=30, progress=False
    )
    loaded = eq.load(str(cal.save(str(tmp_path / "new" / "folder" / "run.eqz"))))
    same(cal, loaded)
    assert loaded.response == "visits"


def test_round_trip_of_an_estimated_scale_and_independent_draws(make_data, tmp_path) -> None:
    cal = eq.calibrate(eq.glm("gaussian"), make_data("gaussian"), sampler="gaussian", ess=50, target=np.eye(4))
    assert cal.model.constant == cal.fit.constant  # the scale in use is part of the run
    same(cal, eq.load(cal.save(tmp_path / "run.eqz")))


def test_numpy_numbers_are_saved(make_data, tmp_path) -> None:
    cal = eq.calibrate(
        eq.glm("poisson"), make_data("poisson"), ess=np.float64(50), chains=np.int64(2), seed=np.int64(3),
        batch_size=np.int64(20), replacement=np.bool_(True), thin=np.int32(2), burn_in=np.int64(5), progress=False,
    )  # fmt: skip
    np.testing.assert_array_equal(eq.load(cal.save(tmp_path / "run.eqz")).draws, cal.draws)


@pytest.fixture(scope="module")
def saved(frame, tmp_path_factory):
    cal = eq.calibrate(eq.glm("poisson"), frame, formula="visits ~ x + C(group)", ess=100, progress=False)
    return cal, cal.save(tmp_path_factory.mktemp("saved") / "run.eqz")


def test_no_pickle(saved) -> None:
    _, path = saved
    with np.load(path, allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)
        assert json.loads(str(stored["header"]))["format"] == 1
    # a pickle stream starts with the protocol opcode; no member of the archive does
    with zipfile.ZipFile(path) as archive:
        assert all(archive.read(name)[:6] == b"\x93NUMPY" for name in archive.namelist())


def test_rows_of_the_data_are_not_kept(saved, frame) -> None:
    _, path = saved
    with np.load(path, allow_pickle=False) as stored:
        sizes = {name: stored[name].shape for name in stored.files if name != "draws"}
    assert all(len(frame) not in shape for shape in sizes.values())


def test_a_loaded_run_summarises_predicts_and_diagnoses(saved, frame) -> None:
    cal, path = saved
    loaded = eq.load(path)
    assert str(loaded.summary()) == str(cal.summary())
    assert str(loaded.plan) == str(cal.plan)
    assert str(loaded.diagnosis) == str(cal.diagnosis)
    pd.testing.assert_frame_equal(loaded.predict(frame.iloc[:9]), cal.predict(frame.iloc[:9]))
    law = loaded.tuning.predicted
    np.testing.assert_array_equal(law.long_run_cov, cal.tuning.predicted.long_run_cov)
    assert law.covariance_floor(100, 3) == cal.tuning.predicted.covariance_floor(100, 3)


def test_a_loaded_run_reports(saved, tmp_path) -> None:
    pytest.importorskip("equipoise.report.page")
    _, path = saved
    page = eq.load(path).report(tmp_path / "out.html").read_text()
    assert "visits" in page
    assert "C(group)[T.b]" in page


def test_a_loaded_run_can_be_saved_again(saved, tmp_path) -> None:
    _, path = saved
    loaded = eq.load(path)
    same(loaded, eq.load(loaded.save(tmp_path / "again.eqz")))


def test_a_loaded_run_says_what_needs_the_data(saved) -> None:
    _, path = saved
    loaded = eq.load(path)
    with pytest.raises(eq.InvalidInput, match=r"which keep no rows.*call attach\(eq\.bind"):
        loaded.plan.moments.curvature_noise(np.eye(4))
    with pytest.raises(eq.InvalidInput, match=r"call attach\(eq\.bind"):
        _ = loaded.tuning.predicted.spectral_radius


def header_of(path) -> tuple[dict, dict]:
    with np.load(path, allow_pickle=False) as stored:
        return json.loads(str(stored["header"])), {k: stored[k] for k in stored.files if k != "header"}


def test_files_that_are_not_runs(saved, tmp_path) -> None:
    _, path = saved
    whole = path.read_bytes()
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    np.savez(tmp_path / "list.npz", header=np.array("[1, 2]"))
    np.savez(tmp_path / "text.npz", header=np.array("not json"))
    header, arrays = header_of(path)
    np.savez(tmp_path / "future.npz", header=np.array(json.dumps({**header, "format": 99})), **arrays)
    np.savez(tmp_path / "less.npz", header=np.array(json.dumps(header)), **{k: arrays[k] for k in list(arrays)[:-3]})
    np.savez(tmp_path / "more.npz", header=np.array(json.dumps({**header, "dynamics": {"speed": 3}})), **arrays)
    (tmp_path / "empty.eqz").write_bytes(b"")
    (tmp_path / "text.eqz").write_text("hello")
    (tmp_path / "half.eqz").write_bytes(whole[: len(whole) // 2])
    names = ["array.npy", "other.npz", "list.npz", "text.npz", "future.npz", "less.npz", "more.npz"]
    for name in [*names, "empty.eqz", "text.eqz", "half.eqz", "nothing.eqz", "."]:
        with pytest.raises(eq.InvalidInput, match=r"path: must be a file written by save\(\).*To fix: check the path"):
            eq.load(tmp_path / name)


def test_damage_anywhere_in_the_draws_is_noticed(saved, tmp_path) -> None:
    _, path = saved
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("draws.npy")
    first = member.header_offset + 100
    for place in np.linspace(first, first + member.compress_size - 120, 40).astype(int):
        damaged = bytearray(whole)
        damaged[place : place + 8] = bytes(255 - b for b in damaged[place : place + 8])
        (tmp_path / "damaged.eqz").write_bytes(bytes(damaged))
        with pytest.raises(eq.InvalidInput, match="path: must be a file written by save"):
            eq.load(tmp_path / "damaged.eqz")
