"""Samples, pools and passes of a scan: who draws the rows, where they are read, and what they are read for."""

from __future__ import annotations

import pickle
import tracemalloc
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data import scanned as scan_module
from tests.data.conftest import N, assert_same


def test_the_sample_that_is_kept_is_uniform(frame, folder, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 40)
    frame["row"] = np.arange(N, dtype=float)
    frame[:300].to_parquet(folder / "part-0.parquet", row_group_size=30)
    frame[300:].to_parquet(folder / "part-1.parquet")
    for part in (2, 3):
        (folder / f"part-{part}.parquet").unlink()
    counts, made = np.zeros(N), np.random.default_rng
    for seed in range(100):
        # another seed for every part
        monkeypatch.setattr(np.random, "default_rng", lambda key, seed=seed: made([seed, *key]))
        source = eq.data.scan(folder, columns={"row": "row"})
        rows = source.sample(40, seed=None).leaves[0].astype(int)
        assert len(set(rows)) == 40
        counts[rows] += 1.0
    expected, share = 100 * 40 / N, 40 / N
    square = float(((counts - expected) ** 2 / (expected * (1.0 - share))).sum())
    assert abs(square - N) < 5.0 * np.sqrt(2.0 * N)


def test_the_kept_sample_counts_frequencies(frame, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 2000)
    frame["f"] = np.where(np.arange(N) < 50, 100, 1)
    frame["row"] = np.arange(N, dtype=float)
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=100)
    source = eq.data.scan(tmp_path, "y ~ row", frequency="f")
    assert source.n == 50 * 100 + N - 50
    sample = source.sample(1500, seed=None)
    assert sample.frequency is None
    assert sample.n == 1500
    share = 5000 / source.n
    found = float(np.mean(sample.x[:, 1] < 50))
    assert abs(found - share) < 5.0 * np.sqrt(share * (1.0 - share) / 1500)


def test_frequencies_of_any_size_take_no_room(frame, tmp_path, monkeypatch) -> None:
    """4·10¹¹ observations, of which half the sample is of the first 50 rows; and rows that stand for them all are found."""
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 2000)
    monkeypatch.setattr("equipoise.data.scanned.ENOUGH", 2000)
    frame["f"] = np.where(np.arange(N) < 50, 4 * 10**9, 2 * 10**11 // (N - 50))
    frame["row"] = np.arange(N, dtype=float)
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=100)
    source = eq.data.scan(tmp_path, "y ~ a + row", frequency="f")
    assert source.n == frame["f"].sum()
    assert source.lot.size == 2048
    sample = source.sample(2000, seed=None)
    assert sample.n == 2000
    share = 50 * 4 * 10**9 / source.n
    assert abs(float(np.mean(sample.x[:, 2] < 50)) - share) < 5.0 * np.sqrt(share * (1.0 - share) / 2000)
    expected = eq.fit(eq.glm("poisson"), eq.data.table(frame, "y ~ a + row", frequency="f")).theta
    np.testing.assert_allclose(eq.fit(eq.glm("poisson"), source).theta, expected, rtol=1e-8)


def test_knots_come_from_the_sample_and_bounds_from_all_rows(frame, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 200)
    frame.to_parquet(tmp_path / "all.parquet")
    learnt = eq.data.scan(tmp_path, "y ~ bs(a, df=5)").design.transforms["bs(a, df=5)"]
    assert (learnt["lower_bound"], learnt["upper_bound"]) == (frame["a"].min(), frame["a"].max())
    inner = [knot for knot in learnt["knots"] if learnt["lower_bound"] < knot < learnt["upper_bound"]]
    places = [float(np.mean(frame["a"] < knot)) for knot in inner]
    # thirds, up to five standard errors of a quantile of 200 values
    np.testing.assert_allclose(places, [1 / 3, 2 / 3], atol=5.0 * np.sqrt(2.0 / 9.0 / 200))


def test_a_pool_must_fit_into_memory(folder) -> None:
    source = eq.data.scan(folder, "y ~ a + b", memory="1MB")
    with pytest.raises(
        InvalidInput, match=r"count: must be so that the rows fit into memory, 0.001 GB; got 100,000 rows"
    ):
        source.pool(100_000, seed=0)


# --- Where it runs ------------------------------------------------------------------------------------


def test_another_process_reads_the_same_bits(folder) -> None:
    formula = "y ~ a + g + scale(b)"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        away = eq.data.scan(folder, formula, executor=pool)
        here = eq.data.scan(folder, formula)
        model, theta = eq.glm("poisson"), np.full(5, 0.05)
        one, other = eq.moments(model, away, theta), eq.moments(model, here, theta)
        np.testing.assert_array_equal(one.hessian, other.hessian)
        np.testing.assert_array_equal(one.score_cov, other.score_cov)
        assert away.passes == here.passes == 2.0
        assert_same(away.sample(100, seed=2), here.sample(100, seed=2))


def test_a_scan_travels(folder) -> None:
    source = eq.data.scan(folder, "y ~ np.log(b) + g", clusters="k")
    other = pickle.loads(pickle.dumps(source))
    assert_same(other.whole(), source.whole())
    assert (other.passes, source.passes) == (1.0, 2.0)


def test_little_memory_reads_a_large_row_group_in_pieces(frame, tmp_path) -> None:
    many = pd.concat([frame] * 200, ignore_index=True)
    many.to_parquet(tmp_path / "all.parquet", row_group_size=len(many))
    little = eq.data.scan(tmp_path, "y ~ a + b", memory="1MB")
    assert len(little.parts) == 1
    assert little._reader.chunk < len(many) / 10
    much = eq.data.scan(tmp_path, "y ~ a + b")
    theta = np.array([0.3, 0.02, 0.1])
    one, other = (eq.moments(eq.glm("poisson"), source, theta) for source in (little, much))
    np.testing.assert_allclose(one.hessian, other.hessian, rtol=1e-12)


def test_the_fingerprint_is_that_of_the_rows_not_of_their_place(frame, tmp_path) -> None:
    def print_of(name: str, table: pd.DataFrame, formula: str = "y ~ a", **options: str) -> str:
        (tmp_path / name).mkdir(exist_ok=True)
        table.to_parquet(tmp_path / name / "some.parquet", row_group_size=100)
        return eq.data.scan(tmp_path / name, formula, **options).fingerprint()

    key = print_of("one", frame)
    assert key == print_of("two", frame)
    others = [
        print_of("three", frame[:-1]),
        print_of("four", frame.assign(a=np.where(np.arange(N) == 77, 99.0, frame["a"]))),
        print_of("five", frame, "y ~ a + b"),
        print_of("six", frame, weights="w"),
    ]
    assert len({key, *others}) == 5
    plain = {"compression": None, "use_dictionary": False, "index": False}
    prints = set()
    for swapped in ([0, 1], [1, 0]):  # sizes, extremes and sums are the same
        frame.assign(a=frame["a"].iloc[[*swapped, *range(2, N)]].to_numpy()).to_parquet(
            tmp_path / "all.parquet", **plain
        )
        read = {eq.data.scan(tmp_path / "all.parquet", "y ~ a", memory=m).fingerprint() for m in ("1MB", "1GB")}
        assert len(read) == 1
        prints |= read
    assert len(prints) == 2
    frame.to_csv(tmp_path / "a.csv")
    first = eq.data.scan(tmp_path / "a.csv", "y ~ a").fingerprint()
    frame.iloc[[1, 0, *range(2, N)]].to_csv(tmp_path / "a.csv")
    assert eq.data.scan(tmp_path / "a.csv", "y ~ a").fingerprint() != first


def test_reading_stops_with_who_reads(folder) -> None:
    source = eq.data.scan(folder, "y ~ a")
    next(iter(source.blocks()))
    assert source.passes < 1.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError):
            source.reduce(lambda block: 1 / 0)


# --- Verbs --------------------------------------------------------------------------------------------


def test_paths_globs_and_folders_are_bound_with_a_formula(frame, folder, monkeypatch) -> None:
    formula, model = "y ~ a + g", eq.glm("poisson")
    expected = eq.bind(model, frame, formula=formula, weights="w")
    theta = np.array([0.1, 0.05, 0.2, -0.1])
    given = [folder, str(folder / "*.parquet"), [folder / f"part-{k}.parquet" for k in range(4)], ds.dataset(folder)]
    for data in given:
        problem = eq.bind(model, data, formula=formula, weights="w")
        # what is small is read whole
        assert problem.source.in_memory
        np.testing.assert_allclose(
            problem.derivatives(theta, 1).gradient, expected.derivatives(theta, 1).gradient, rtol=1e-12
        )
    monkeypatch.setattr("equipoise.models.binding._LARGE", 1000)
    monkeypatch.setattr(scan_module.Scan, "size", 10**10)
    for data in [*given, folder / "part-3.parquet"]:
        assert not eq.bind(model, data, formula=formula, weights="w").source.in_memory
    with pytest.raises(InvalidInput, match="formula: must be left out for a scan"):
        eq.bind(model, eq.data.scan(folder, formula), formula=formula)
    with pytest.raises(InvalidInput, match="an existing CSV or Parquet file"):
        eq.bind(model, str(folder / "nothing.csv"), formula=formula)
    with pytest.raises(InvalidInput, match="weights: must be the name of a column"):
        eq.bind(model, folder, formula=formula, weights=np.ones(N))


def test_a_calibration_on_a_scan_is_that_on_the_table(frame, folder) -> None:
    options = {"draws": 20, "chains": 1, "sampler": "sgmcmc", "batch_size": 50, "seed": 3, "progress": False}
    one = eq.calibrate(eq.glm("poisson"), eq.data.scan(folder, "y ~ a + g", offset="o"), **options)
    other = eq.calibrate(eq.glm("poisson"), frame, formula="y ~ a + g", offset="o", **options)
    np.testing.assert_allclose(one.plan.tuning.step, other.plan.tuning.step, rtol=1e-9)
    np.testing.assert_allclose(one.draws, other.draws, rtol=1e-7)
    new = frame[:5]
    np.testing.assert_allclose(one.predict(new).to_numpy(), other.predict(new).to_numpy(), rtol=1e-7)


def test_sums_of_too_many_clusters_are_refused_with_their_size(tmp_path) -> None:
    rng = np.random.default_rng(0)
    many = pd.DataFrame({"y": rng.normal(size=(20_000)), "a": rng.normal(size=20_000), "firm": np.arange(20_000) // 2})
    many.to_parquet(tmp_path / "all.parquet", row_group_size=1000)
    source = eq.data.scan(tmp_path, "y ~ a", clusters="firm", memory="1MB")
    model, theta = eq.glm("gaussian", scale=1.0), np.zeros(2)
    found = eq.robust(model, source, theta, kind="CRV1")
    table = eq.data.table(many, "y ~ a", clusters="firm")
    np.testing.assert_allclose(found, eq.robust(model, table, theta, kind="CRV1"), rtol=1e-10)
    with pytest.raises(InvalidInput, match=r"7 numbers for each of .* or more; got 0.001 GB, where they take 0.001"):
        eq.robust(model, source, theta, kind="CRV3")


def test_a_bad_file_among_good_ones_is_named(frame, tmp_path) -> None:
    for k in range(9):
        frame[k * 50 : (k + 1) * 50].to_parquet(tmp_path / f"{k}.parquet", index=False)
    source = eq.data.scan(tmp_path, "y ~ a")
    bad = frame[350:400].reset_index(drop=True)
    bad.assign(a=bad["a"].where(bad.index != 25)).to_parquet(tmp_path / "7.parquet", index=False)
    with pytest.raises(InvalidInput, match=r"missing in columns \['a'\], rows 25, in .*7.parquet"):
        eq.data.scan(tmp_path, "y ~ a")
    with pytest.warns(eq.EquipoiseWarning, match="1 of 450 rows"):
        assert eq.data.scan(tmp_path, "y ~ a", missing="drop").n == 449
    with pytest.raises(InvalidInput, match=r"7.parquet, which changed since it was opened"):
        source.whole()
    bad.assign(y=-1.0).to_parquet(tmp_path / "7.parquet", index=False)
    with pytest.raises(InvalidInput, match=r"y: must be .* for the poisson family; got -1 at row 0, in .*7.parquet"):
        eq.bind(eq.glm("poisson"), eq.data.scan(tmp_path, "y ~ a"))
    with pytest.raises(InvalidInput, match="did you mean when"):
        eq.data.scan(tmp_path, "y ~ whem")


@pytest.mark.parametrize("file", ["made.parquet", "made.csv"])
def test_predictions_for_files_are_written_as_they_are_made(file, frame, folder, tmp_path_factory, monkeypatch) -> None:
    cal = eq.calibrate(eq.glm("poisson"), frame, formula="y ~ a + g", offset="o", draws=50, chains=2, progress=False)
    expected = cal.predict(frame)
    monkeypatch.setattr("equipoise.calibration.streaming.CHUNK", 300)
    out = tmp_path_factory.mktemp("out")
    place = out / file
    assert cal.predict(folder, to=place) == place
    found = pd.read_parquet(place) if file.endswith("parquet") else pd.read_csv(place)
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-12)
    pd.testing.assert_frame_equal(cal.predict(eq.data.scan(folder, "y ~ a")), expected, check_exact=False)
    pd.testing.assert_frame_equal(pd.read_csv(cal.predict(frame[:9], to=out / "few.csv")), expected[:9])
    with pytest.raises(InvalidInput, match=r"to: must be a file that ends in .parquet or .csv"):
        cal.predict(folder, to=out / "made.xlsx")
    before = (folder / "part-3.parquet").read_bytes()
    for read in (folder, eq.data.scan(folder, "y ~ a")):
        with pytest.raises(InvalidInput, match="to: must be another file than those that are read"):
            cal.predict(read, to=folder / ".." / folder.name / "part-3.parquet")
    assert (folder / "part-3.parquet").read_bytes() == before
    frame.drop(columns="g").to_parquet(out / "less.parquet")
    with pytest.raises(InvalidInput, match=r"X_new: .*'g'.*less.parquet"):
        cal.predict(out / "less.parquet", to=place)


def test_files_without_rows_are_predicted_as_no_rows(frame, tmp_path) -> None:
    cal = eq.calibrate(eq.glm("poisson"), frame, formula="y ~ a + g", draws=50, chains=2, progress=False)
    frame[:0].to_parquet(tmp_path / "new.parquet")
    expected = cal.predict(frame)[:0]
    found = cal.predict(tmp_path / "new.parquet")
    pd.testing.assert_frame_equal(found, expected)
    assert found.attrs == expected.attrs
    for made, read in (("made.parquet", pd.read_parquet), ("made.csv", pd.read_csv)):
        assert list(read(cal.predict(tmp_path / "new.parquet", to=tmp_path / made)).columns) == list(expected.columns)
    with pytest.raises(InvalidInput, match="method: must be one of"):
        cal.predict(tmp_path / "new.parquet", method="exact")


def test_text_files_are_predicted_for_as_the_fit_read_its_columns(frame, tmp_path, monkeypatch) -> None:
    """Not as their first rows look: fractions come later, and digits are levels."""
    monkeypatch.setattr("equipoise.data.parts._TEXT", 200)
    frame = frame.assign(a=np.where(np.arange(len(frame)) < 300, np.round(frame["a"]), frame["a"]))
    frame["g"] = np.where(np.arange(len(frame)) % 2, "1", "2")
    frame.loc[400:450, "g"] = "B"
    cal = eq.calibrate(eq.glm("poisson"), frame, formula="y ~ a + g", draws=50, chains=2, progress=False)
    rows = [
        f"{a:.0f},{g}" if k < 300 else f"{a!r},{g}"
        for k, (a, g) in enumerate(zip(frame.a.tolist(), frame.g, strict=True))
    ]
    (tmp_path / "new.csv").write_text("a,g\n" + "\n".join(rows) + "\n")
    pd.testing.assert_frame_equal(cal.predict(tmp_path / "new.csv"), cal.predict(frame), check_exact=False)
    for row in (3, 350):
        wrong = [*rows[:row], "oops,1", *rows[row:]]
        (tmp_path / "new.csv").write_text("a,g\n" + "\n".join(wrong) + "\n")
        with pytest.raises(InvalidInput, match=rf"new.csv: .*Row #{row + 2}: .*'oops'"):
            cal.predict(tmp_path / "new.csv", to=tmp_path / "predicted.parquet")
    assert not (tmp_path / "predicted.parquet").exists()


def test_a_pool_with_clusters_has_each_row_with_its_own(frame, folder) -> None:
    source = eq.data.scan(folder, "y ~ a", clusters="k").marked()
    expected = eq.data.table(frame, "y ~ a", clusters="k").pool(2000, seed=4)
    found = source.pool(2000, seed=4)
    assert_same(found, expected)
    np.testing.assert_array_equal(found.marks.labels, expected.marks.labels)


def test_sums_of_many_clusters_are_joined_in_place_and_all_that_are_held_count(tmp_path) -> None:
    rng = np.random.default_rng(0)
    columns = {f"x{k}": rng.normal(size=10_000) for k in range(12)}
    frame = pd.DataFrame(columns).assign(y=rng.normal(size=10_000), firm=rng.integers(0, 3000, 10_000))
    frame.to_parquet(tmp_path / "0.parquet")
    model, formula = eq.glm("gaussian"), f"y ~ {' + '.join(columns)}"
    source = eq.data.scan(tmp_path, formula, clusters="firm", memory="200MB")
    fit, size = eq.fit(model, source), 3000 * (1 + 13 + 13**2) * 8
    tracemalloc.start()
    try:
        found = eq.robust(model, source, fit, kind="CRV3")
        # those of all rows, and of halves, quarters and so on, which are of fewer clusters, but none while two are joined
        assert tracemalloc.get_traced_memory()[1] < 3.4 * size
    finally:
        tracemalloc.stop()
    expected = eq.robust(model, eq.data.table(frame, formula), fit, kind="CRV3", clusters=frame["firm"])
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    little = eq.data.scan(tmp_path, formula, clusters="firm", memory=int(3.5 * size))
    with pytest.raises(
        InvalidInput, match=r"enough for the sums of all clusters: 183 numbers.*; got 0.0154 GB, where they"
    ):
        eq.robust(model, little, fit, kind="CRV3")
