"""Saved runs: every field exactly, no pickle, useful after loading, and clear about files that are not runs."""

from __future__ import annotations

import dataclasses
from operator import attrgetter

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.calibration.archive import read_archive, write_archive
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
            # how the mean bias is computed is left behind, and so are the rows: what they show is kept
            name = {"bias": "mean_bias", "kept": "row_facts"}.get(field.name, field.name)
            same(getattr(one, name), getattr(other, name), f"{path}.{name}")
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for key, value in one.items():
            same(value, other[key], f"{path}.{key}")
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


# family, rows, options, and what such a run alone has
RUNS = {
    "independent draws": ("gaussian", 300, {"sampler": "gaussian", "target": np.eye(4)}, "fit.constant"),
    "epochs": ("poisson", 300, {"sampler": "sgmcmc", "batches": "epochs", "batch_size": 30}, "tuning.predicted.shift"),
    "a fidelity": ("poisson", 400, {"target": "posterior"}, "half_step"),
    "pilots": ("bernoulli", 60, {"refine": True, "batch_size": 18, "ess": 60_000}, "tuning.internal"),
}


@pytest.mark.parametrize("name", RUNS)
def test_round_trip_of_every_kind_of_run(name, make_data, tmp_path) -> None:
    family, rows, options, own = RUNS[name]
    cal = eq.calibrate(eq.glm(family), make_data(family, n=rows), **{"ess": 50, "progress": False, **options})
    assert attrgetter(own)(cal) is not None
    loaded = eq.load(cal.save(tmp_path / "run.eqz"))
    same(cal, loaded)
    assert str(loaded.summary()) == str(cal.summary())
    assert str(loaded.diagnosis) == str(cal.diagnosis)


@pytest.fixture(scope="module")
def saved(frame, tmp_path_factory):
    cal = eq.calibrate(eq.glm("poisson"), frame, formula="visits ~ x + C(group)", ess=100, progress=False)
    return cal, cal.save(tmp_path_factory.mktemp("saved") / "run.eqz")


def test_predicted_tails_and_shape_are_kept(saved, tmp_path) -> None:
    cal, path = saved
    law, loaded = cal.tuning.predicted, eq.load(path)
    assert np.isfinite(law.skewness).all()
    np.testing.assert_array_equal(loaded.tuning.predicted.skewness, law.skewness)
    np.testing.assert_equal(loaded.tuning.predicted.worst_kurtosis, law.worst_kurtosis)
    # that of every parameter only where it was asked for
    assert "kurtosis" not in loaded.tuning.predicted.results
    _ = law.kurtosis
    again = eq.load(cal.save(tmp_path / "again.eqz"))
    np.testing.assert_array_equal(again.tuning.predicted.kurtosis, law.kurtosis)


def test_no_pickle(saved) -> None:
    _, path = saved
    header, arrays = read_archive(path)
    assert header["format"] == 3
    assert all(array.dtype != object for array in arrays.values())
    # a pickle stream starts with the protocol opcode, and names the modules it imports
    assert b"\x80\x04\x95" not in path.read_bytes()
    assert b"numpy.core" not in path.read_bytes()


def test_rows_of_the_data_are_not_kept(saved, frame) -> None:
    _, path = saved
    assert all(len(frame) not in array.shape for name, array in read_archive(path)[1].items() if name != "draws")


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


def edited(path, place, **changes):
    """The file with members of its header or arrays replaced, under a digest that is right."""
    header, arrays = read_archive(path)
    return write_archive(place, {**header, **changes.get("header", {})}, {**arrays, **changes.get("arrays", {})})


def hostile(arrays):
    """Changes that leave a well-formed file that is no run."""
    dim = arrays["theta"].size
    lopsided = arrays["step"].copy()
    lopsided[0, 1] *= 2.0
    return {
        "a later format": {"header": {"format": 99}},
        "no dynamics of ours": {"header": {"dynamics": {"speed": 3}}},
        "a batch of nothing": {"header": {"dynamics": {"batch_size": 0}}},
        "a list for a dictionary": {"header": {"plan": [1, 2]}},
        "a chain too many": {"header": {"plan": {**_plan(arrays), "chains": 10**9}}},
        "draws of another size": {"arrays": {"draws": np.zeros((2, 3, dim + 1))}},
        "a NaN in the step": {"arrays": {"step": np.full((dim, dim), np.nan)}},
        "a step that is not symmetric": {"arrays": {"step": lopsided}},
        "a target that is not positive": {"arrays": {"target": -np.eye(dim)}},
        "integers for numbers": {"arrays": {"theta": np.zeros(dim, dtype=np.int64)}},
        "a huge vector": {"arrays": {"moments.params": np.zeros(10**6)}},
        "an unknown family": {"header": {"model": {"family": "os.system", "constant": None, "divergence": None}}},
        "an unknown divergence": {
            "header": {"model": {"family": "poisson", "constant": None, "divergence": {"kind": "eval", "b": 2}}}
        },
        "an odd layout": {"header": {"layout": {"frame": {"leaf": 3, "dict": {}}, "trained": [], "constants": []}}},
    }


def _plan(arrays):
    names = {"draws": arrays["draws"].shape[1], "thin": 1, "burn_in": 0}
    return {**names, "ess": 1.0, "seconds": 0.0, "sampler": "sgmcmc"}


def test_well_formed_files_that_are_not_runs(saved, tmp_path) -> None:
    _, path = saved
    for words, changes in hostile(read_archive(path)[1]).items():
        made = edited(path, tmp_path / "hostile.eqz", **changes)
        with pytest.raises(eq.EquipoiseError) as caught:
            eq.load(made)
        assert len(str(caught.value)) < 1000, words
        assert str(caught.value).count("\n") < 10, words


def test_files_of_another_kind(saved, tmp_path) -> None:
    """What the archive refuses is refused by `eq.load`; all kinds are in test_archive."""
    _, path = saved
    (tmp_path / "half.eqz").write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(eq.InvalidInput, match=r"path: must be a file written by save\(\)"):
        eq.load(tmp_path / "half.eqz")


def test_attaching_brings_the_problem_back(saved, frame) -> None:
    cal, path = saved
    loaded = eq.load(path)
    with pytest.raises(eq.InvalidInput, match="attach"):
        eq.tune(loaded.plan.moments, "posterior", eq.Dynamics(20))
    with pytest.raises(eq.InvalidInput, match=r"problem: must be that of this run.*standard deviations away"):
        loaded.attach(eq.glm("poisson"), frame, formula="visits ~ x + C(group)", offset="o")
    with pytest.raises(eq.InvalidInput, match="problem: must be that of this run: 200 rows"):
        loaded.attach(eq.glm("poisson"), frame, formula="visits ~ x")
    again = loaded.attach(eq.glm("poisson"), frame, formula="visits ~ x + C(group)")
    S = cal.tuning.target
    np.testing.assert_allclose(again.plan.moments.curvature_noise(S), cal.plan.moments.curvature_noise(S), rtol=1e-12)
    assert again.tuning.predicted.spectral_radius == pytest.approx(cal.tuning.predicted.spectral_radius, rel=1e-12)
    tuned = eq.tune(again.plan.moments, "posterior", eq.Dynamics(20))
    np.testing.assert_allclose(tuned.step, eq.tune(cal.plan.moments, "posterior", eq.Dynamics(20)).step, rtol=1e-12)
