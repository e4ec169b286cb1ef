"""The container of saved results, written: to the bit what is read again, within limits, and plain values only."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

import equipoise as eq
from equipoise.calibration import archive
from equipoise.calibration.archive import Limits, read_archive, write_archive
from tests.calibration.test_archive import forge, packed, refused

HEADER = {
    "format": 3,
    "words": ["a", "ü 漢 😀", "", 'quotes " and \\ud800'],
    "numbers": [0, -1, 2**63, 0.1, -0.0, 1e300, 5e-324, True, None],
    "not finite": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf},
    "deep": {"er": [{"est": [[1], {}]}]},
}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "draws": rng.normal(size=(2, 30, 3)),
        "law.cov": np.array([[np.nan, np.inf], [-np.inf, -0.0]]),
        "half": rng.normal(size=7).astype(np.float32),
        "rng": rng.integers(0, 2**64, 4, np.uint64),
        "order": np.arange(-3, 3),
        "mask": rng.random((3, 5)) < 0.5,
        "number": np.array(2.5),
        "empty": np.empty((0, 4)),
        "turned": rng.normal(size=(4, 6)).T[::2],
    }


def same(one: object, other: object) -> None:
    """Equal in type as well, and where they are not finite."""
    assert repr(one) == repr(other)


def test_what_was_written_is_read(tmp_path) -> None:
    path, given = tmp_path / "made" / "run.eqz", arrays()
    assert write_archive(path, HEADER, given) == path
    header, found = read_archive(str(path))
    same(header, HEADER)
    assert list(found) == list(given)
    for name, array in given.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
        assert found[name].flags.writeable
    assert [p.name for p in path.parent.iterdir()] == ["run.eqz"]
    write_archive(path, {}, {})
    assert read_archive(path) == ({}, {})


def test_numbers_of_numpy_and_tuples_become_plain_ones(tmp_path) -> None:
    write_archive(
        tmp_path / "a", {"a": (np.float64(0.5), np.int64(3), np.bool_(True), np.str_("x"), np.float32("inf"))}, {}
    )
    same(read_archive(tmp_path / "a")[0], {"a": [0.5, 3, True, "x", math.inf]})


@pytest.mark.parametrize(
    "value",
    [b"bytes", {1: 2}, 2**64, -(2**63) - 1, object(), np.zeros(2), {"$float": "nan"}, "\ud800", {"\ud800": 1}, {1}],
)
def test_headers_that_have_no_plain_form(tmp_path, value) -> None:
    with pytest.raises(eq.InvalidInput, match=r"^header: must be .* at header\.a\.b\[1\]\. To fix"):
        write_archive(tmp_path / "a", {"a": {"b": [0, value]}}, {})
    assert list(tmp_path.iterdir()) == []


def test_limits_hold_for_the_writer_too(tmp_path) -> None:
    deep: object = 1
    for _ in range(40):
        deep = [deep]
    for header, given, limits, reason in (
        ({"deep": deep}, {}, Limits(), "header: must be less deep"),
        ({"long": "x" * 1000}, {}, Limits(json_bytes=900), "header: must be at most 900 bytes"),
        ({}, {"a": np.zeros(200)}, Limits(limit_bytes=1599), "arrays: must be at most 1,599 bytes together; got 1,600"),
    ):
        with pytest.raises(eq.InvalidInput, match=reason):
            write_archive(tmp_path / "a", header, given, limits)
    assert list(tmp_path.iterdir()) == []
    # and at the limit both agree
    level: object = 1
    for _ in range(30):
        level = [level]
    write_archive(tmp_path / "a", {"a": level}, {"a": np.zeros(200)}, Limits(1600, 900, 31))
    same(read_archive(tmp_path / "a", Limits(1600, 900, 31))[0], {"a": level})
    refused(tmp_path / "a", "a header deeper than is read", Limits(1600, 900, 30))
    refused(tmp_path / "a", "declares 1,600 bytes of arrays, more than the 1,599", Limits(limit_bytes=1599))
    refused(tmp_path / "a", "contents of [0-9]+ bytes, more than is read", Limits(json_bytes=50))


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a..b", ".a", "a b", "a\\b", "ä", "x" * 201, "a\n", 3])
def test_names_that_are_none(tmp_path, name) -> None:
    with pytest.raises(eq.InvalidInput, match=r"^arrays: must be named by letters"):
        write_archive(tmp_path / "a", {}, {name: np.zeros(1)})
    forge(tmp_path / "a", [[name, "float64", [1], packed(np.zeros(1))]])
    refused(tmp_path / "a", "an array whose name is not one")


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.array(["text"]), np.array([1j]), np.zeros(1, np.int32), np.zeros(1, "M8[s]"), [1.0],
     np.zeros(2, np.float16), np.zeros(1, [("a", "f8")]), np.zeros((1,) * 17)],
)  # fmt: skip
def test_arrays_of_other_types(tmp_path, array) -> None:
    with pytest.raises(eq.InvalidInput, match=r"^arrays: must be of bool, float32, float64, int64, uint64; got a: "):
        write_archive(tmp_path / "a", {}, {"a": array})


def test_an_array_of_zeros_is_read_again_whatever_its_size(tmp_path) -> None:
    """The best that the packing can do stays within what a reader accepts from a stranger."""
    large = np.zeros(6_000_000)
    write_archive(tmp_path / "a", {}, {"a": large, "b": large[:3] + 1})
    size = (tmp_path / "a").stat().st_size
    assert 100 < large.nbytes / size < archive._MOST_RATIO
    np.testing.assert_array_equal(read_archive(tmp_path / "a")[1]["a"], 0.0)
    # a compressor that does better than level 1 is held back too
    best = sum(len(piece) for piece in at_level_nine(large))
    assert large.nbytes / best < 0.95 * archive._MOST_RATIO


def at_level_nine(array: np.ndarray):
    make = zlib.compressobj
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive.zlib, "compressobj", lambda level: make(9))
        yield from archive._packed(array)


def test_noise_is_stored_as_it_is(tmp_path) -> None:
    noise = np.random.default_rng(1).normal(size=2_000_000)
    write_archive(tmp_path / "a", {}, {"a": noise})
    # compressed, they would take thirty times as long and be a twentieth smaller
    assert noise.nbytes < (tmp_path / "a").stat().st_size < 1.002 * noise.nbytes + 1000
    np.testing.assert_array_equal(read_archive(tmp_path / "a")[1]["a"], noise)
