"""The container of saved results, read: a refusal in one line, whatever the file holds or befell it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import random
import re
import time
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.calibration import archive
from equipoise.calibration.archive import LIMITS, Limits, read_archive, write_archive
from tests.damage import flipped, put


def refused(path: Path, reason: str = "", limits: Limits = LIMITS) -> str:
    """A refusal in one readable line."""
    with pytest.raises(eq.InvalidInput, match=f"^path: must be a file written by save.*{reason}.* To fix: ") as caught:
        read_archive(path, limits)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


# damage


def small(path: Path) -> bytes:
    write_archive(path, {"a": [1, math.nan]}, {"draws": np.arange(40.0).reshape(2, 20), "mask": np.ones(9, bool)})
    return path.read_bytes()


def test_a_file_cut_at_any_length_is_refused(tmp_path) -> None:
    path = tmp_path / "run.eqz"
    whole = small(path)
    for length in range(len(whole)):
        put(path, whole[:length])
        refused(path)
    path.write_bytes(whole + b"\0")
    refused(path, "is damaged or was cut short")


def test_a_flipped_bit_anywhere_is_refused(tmp_path) -> None:
    path = tmp_path / "run.eqz"
    whole = small(path)
    assert 8 * len(whole) > 2000
    for bit in range(8 * len(whole)):
        put(path, flipped(whole, bit))
        refused(path)


def test_flipped_bits_under_a_true_digest_raise_nothing_else(tmp_path) -> None:
    """What a stranger changes comes with its digest: refused, or read as something within the limits."""
    path = tmp_path / "run.eqz"
    whole = small(path)[: -archive._DIGEST]
    rng, read = random.Random(6), 0
    for _ in range(2500):
        changed = flipped(whole, *rng.sample(range(8 * len(whole)), rng.choice([1, 1, 3])))
        put(path, changed + digest(changed))
        try:
            _, found = read_archive(path)
        except eq.InvalidInput:
            continue
        read += 1
        assert sum(array.nbytes for array in found.values()) < 10_000
    assert 0 < read < 1000


# hostile files


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=archive._DIGEST).digest()


def packed(array: np.ndarray, level: int = 6) -> bytes:
    return zlib.compress(array.tobytes(), level)


def seal(path: Path, streams: bytes, contents: bytes, length: int | None = None) -> None:
    """A file with any contents and a true digest."""
    size = len(contents) if length is None else length
    body = archive._OPENING + streams + contents + size.to_bytes(8, "little")
    path.write_bytes(body + digest(body))


def forge(path: Path, rows: list, header: object = None, **more: object) -> None:
    """A file with any table of contents; the last item of a row is its stream."""
    table = [[*row[:-1], len(row[-1])] for row in rows]
    contents = {"header": {} if header is None else header, "arrays": table, **more}
    seal(path, b"".join(row[-1] for row in rows), json.dumps(contents).encode())


def test_the_forger_can_write_a_good_file(tmp_path) -> None:
    forge(tmp_path / "a", [["a", "int64", [2, 1], packed(np.array([1, 2]))]], {"b": 1})
    header, found = read_archive(tmp_path / "a")
    assert header == {"b": 1}
    np.testing.assert_array_equal(found["a"], [[1], [2]])


ONE = packed(np.ones(1))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (["a", "float64", [2], ONE], "of another size than it declares"),
        (["a", "float64", [], packed(np.ones(2))], "of another size than it declares"),
        (["a", "float64", [0], ONE], "of another size than it declares"),
        (["a", "float64", [1], ONE + b"more"], "of another size than it declares"),
        (["a", "float64", [1], ONE[:-1]], "of another size than it declares"),
        (["a", "float64", [1], b""], "of another size than it declares"),
        (["a", "float64", [1], b"garbage!"], "cannot be read .Error -3"),
        (["a", "float64", [1], ONE[:-2] + b"xx"], "cannot be read .Error -3"),
        (["a", "object", [1], pickle.dumps(object())], "a type that is not read"),
        (["a", "O", [1], ONE], "a type that is not read"),
        (["a", "<f8", [1], ONE], "a type that is not read"),
        (["a", "float128", [1], ONE], "a type that is not read"),
        (["a", "complex128", [1], ONE], "a type that is not read"),
        (["a", None, [1], ONE], "a type that is not read"),
        (["a", ["float64"], [1], ONE], "a type that is not read"),
        (["a", "bool", [2], packed(np.array([1, 2], np.uint8))], "truth values that are none"),
        (["a", "float64", [-1], ONE], "a shape that is not read"),
        (["a", "float64", [-1, -1], ONE], "a shape that is not read"),
        (["a", "float64", [True], ONE], "a shape that is not read"),
        (["a", "float64", [1.0], ONE], "a shape that is not read"),
        (["a", "float64", ["1"], ONE], "a shape that is not read"),
        (["a", "float64", "1", ONE], "a shape that is not read"),
        (["a", "float64", None, ONE], "a shape that is not read"),
        (["a", "float64", {"0": 1}, ONE], "a shape that is not read"),
        (["a", "float64", [1] * 17, ONE], "a shape that is not read"),
        (["a", "float64", [2**63], ONE], "a shape that is not read"),
        (["a", "float64", [2**32, 2**32], ONE], "a shape that is not read"),
        (["a", "float64", [0, 2**62, 2**62], ONE], "a shape that is not read"),
        (["a", "float64", [2**64], ONE], "a number of more than 64 bits"),
        (["a", "float64", [10**6], ONE], "declares 8,000,000 bytes of arrays, more than the 1,1"),
        (["a", "float64", ONE], "lines of another form"),
        (["a", "float64", [1], 0, ONE], "lines of another form"),
    ],
)
def test_arrays_that_are_not_what_they_declare(tmp_path, row, reason) -> None:
    forge(tmp_path / "a", [row])
    refused(tmp_path / "a", reason)


@pytest.mark.parametrize("bad", [None, -1, 1.5, "8", True, [8], 10**15])
def test_stored_sizes_that_are_none(tmp_path, bad) -> None:
    seal(tmp_path / "a", ONE, json.dumps({"header": {}, "arrays": [["a", "float64", [1], bad]]}).encode())
    refused(tmp_path / "a", "(a shape that is not read|arrays of another size than it declares)")


@pytest.mark.parametrize("stored", [(len(ONE) + 4, len(ONE) - 4), (2 * len(ONE), 0)])
def test_streams_that_reach_into_each_other(tmp_path, stored) -> None:
    table = [[name, "float64", [1], count] for name, count in zip("ab", stored, strict=True)]
    seal(tmp_path / "a", ONE + ONE, json.dumps({"header": {}, "arrays": table}).encode())
    refused(tmp_path / "a", "of another size than it declares")


def test_a_name_twice(tmp_path) -> None:
    forge(tmp_path / "a", [["a", "float64", [1], ONE], ["a", "float64", [1], ONE]])
    refused(tmp_path / "a", "names an array twice")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a": NaN}', "NaN, which is not JSON"),
        (b'{"a": -Infinity}', "-Infinity, which is not JSON"),
        (b'{"a": 1e999}', "a number beyond all numbers"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of more than 64 bits"),
        (b'{"a": 18446744073709551616}', "a number of more than 64 bits"),
        (b'{"a": 1, "a": 2}', "a key twice"),
        (b'{"a": {"$float": "nan", "b": 1}}', "a number that is none"),
        (b'{"a": {"$float": "NaN"}}', "a number that is none"),
        (b'{"a": {"$float": ["nan"]}}', "a number that is none"),
        (b'{"$float": "nan"}', "no table of contents"),
        (b'{"a": "\\ud800"}', "text that is none"),
        (b'{"\\udfff": 1}', "text that is none"),
        (b'{"a": "\xff"}', "cannot be read"),
        (b'{"a": "\x00"}', "cannot be read"),
        (b"[" * 33 + b"]" * 33, "no table of contents"),
        (b'{"a":' + b"[" * 33 + b"]" * 33 + b"}", "deeper than is read"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "cannot be read"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "cannot be read"),
        (b"[" * 1_000_000, "cannot be read"),
        (b"null", "no table of contents"),
        (b'"text"', "no table of contents"),
        (b"{", "cannot be read"),
        (b"", "cannot be read"),
        (b"{'a': 1}", "cannot be read"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_headers_that_are_not_plain(tmp_path, text, reason) -> None:
    seal(tmp_path / "a", b"", b'{"arrays": [], "header": ' + text + b"}")
    refused(tmp_path / "a", reason)


@pytest.mark.parametrize(
    "contents",
    [b"", b"[]", b"null", b"{}", b'{"header": {}}', b'{"header": {}, "arrays": {}}', b'{"header": [], "arrays": []}',
     b'{"header": {}, "arrays": [1]}', b'{"header": {}, "arrays": [], "more": 1}', b"\xef\xbb\xbf{}", b"\x80\x04}\x94."],
)  # fmt: skip
def test_tables_of_contents_that_are_none(tmp_path, contents) -> None:
    seal(tmp_path / "a", b"", contents)
    refused(tmp_path / "a")


@pytest.mark.parametrize("length", [30, 2**31, 2**63, 2**64 - 1])
def test_contents_longer_than_the_file(tmp_path, length) -> None:
    seal(tmp_path / "a", b"", b'{"header": {}, "arrays": []}', length)
    refused(tmp_path / "a", "contents of [0-9,]+ bytes, more than is read")


def test_a_file_that_would_unpack_to_gigabytes_is_refused_in_no_memory(tmp_path) -> None:
    zeros = zlib.compress(bytes(200_000_000), 9)  # 200 kB
    cases = {
        # says what it is: more than a thousand times the file
        "honest": ([["a", "float64", [5 * 10**8], zeros[: len(zeros) // 2]]], "declares 4,000,000,000 bytes"),
        # says less than it is
        "liar": ([["a", "float64", [10], zeros]], "of another size than it declares"),
        # many of the first, none too large alone
        "many": ([[f"a{k}", "float64", [10**8], b""] for k in range(5)], "declares 4,000,000,000 bytes"),
        "padded": ([["a", "float64", [10**9], bytes(10**7)]], "declares 8,000,000,000 bytes"),
    }
    for name, (rows, reason) in cases.items():
        path = tmp_path / name
        forge(path, rows)
        tracemalloc.start()
        began = time.perf_counter()
        refused(path, reason)
        assert time.perf_counter() - began < 10.0
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()


def test_a_sparse_file_of_terabytes_is_not_read(tmp_path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as stream:
        stream.write(archive._OPENING)
        try:
            stream.truncate(2**42)
        except OSError:
            pytest.skip("the file system has no holes")
    refused(path, "has 4,398,046,511,104 bytes, more than is read")


# files of other kinds


def test_a_file_of_version_0_1_is_named(tmp_path) -> None:
    path = tmp_path / "old.eqz"
    with path.open("wb") as stream:
        np.savez_compressed(stream, header=np.array(json.dumps({"format": 1})), draws=np.ones((2, 3, 4)))
    text = refused(path)
    assert text == (
        "path: must be a file written by save(); got 'old.eqz', which was written by version 0.1, which this version no "
        "longer reads. To fix: run again."
    )


def zip_bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("draws.npy", bytes(50_000_000))
    return stream.getvalue()


class Trap:
    """Unpickled, it would say so."""

    def __reduce__(self):
        return os.putenv, ("EQUIPOISE_TRAP", "1")


def test_files_of_other_kinds(tmp_path) -> None:
    path = tmp_path / "a"
    npy, objects = io.BytesIO(), io.BytesIO()
    np.save(npy, np.ones(3))
    np.save(objects, np.array([Trap()], dtype=object), allow_pickle=True)
    contents = [zip_bomb(), zlib.compress(bytes(10**7)), pickle.dumps(Trap()), npy.getvalue(), objects.getvalue(), b"",
                b"text\n", bytes(100), b"PK\x03\x04", b"PK\x05\x06" + bytes(18)]  # fmt: skip
    for content in contents:
        path.write_bytes(content)
        assert "which is of another kind" in refused(path)
    path.write_bytes(re.sub(rb"\d", b"7", archive._OPENING) + bytes(200))
    refused(path, "was written by another version of Equipoise")


def test_things_that_are_no_files(tmp_path) -> None:
    refused(tmp_path, "is a folder")
    refused(tmp_path / "missing", "No such file or directory")
    refused(tmp_path / "missing" / "deeper", "No such file or directory")
    refused(Path("x\0y"), "cannot be read")
    refused(Path("/dev/zero"), "is not a regular file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    began = time.perf_counter()
    for name in ("pipe", "link"):
        refused(tmp_path / name, "is not a regular file")
    assert time.perf_counter() - began < 5.0
    for bad in (None, 3, b"bytes"):
        with pytest.raises(eq.InvalidInput, match=r"^path: .*is not a path"):
            read_archive(bad)  # type: ignore[arg-type]


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch) -> None:
    small(tmp_path / "a")
    check = archive._checked_size

    def shrinking(stream, limits) -> int:
        size = check(stream, limits)
        os.truncate(tmp_path / "a", len(archive._OPENING) + 10)
        return size

    monkeypatch.setattr(archive, "_checked_size", shrinking)
    refused(tmp_path / "a")


def test_a_machine_without_the_memory(tmp_path, monkeypatch) -> None:
    small(tmp_path / "a")

    def out_of_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(archive.np, "empty", out_of_memory)
    refused(tmp_path / "a", "cannot be read .MemoryError")
