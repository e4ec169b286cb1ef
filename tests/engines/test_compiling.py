"""The cache of compiled loops: whatever happens to it, the same code runs, with one warning, and the cache mends itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

# Every case in one process, which pays once for the imports; what is compiled is tiny, and goes the way of the loops.
PREAMBLE = """
import json, os, random, resource, sys, warnings
from pathlib import Path
import numba, numpy as np
from equipoise.engines.numba import compiling
from equipoise.engines.numba.arguments import Lift
from equipoise.errors import EquipoiseWarning

folder, results = Path(os.environ["NUMBA_CACHE_DIR"]), {}

def tiny(x):
    return 2.0 * x + 1.0

def other(x):
    return -x

def make(function=tiny):
    return compiling.on_disk(compiling.bound(function), "tiny", numba.types.float64(numba.types.float64))

def files(kind):
    return sorted(folder.rglob(f"*.{kind}"))

def attempt(function=tiny):
    compiling._TOLD.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = [make(function) for _ in range(2)][0]
    assert {w.category for w in caught} <= {EquipoiseWarning}, [str(w.message) for w in caught]
    return made(3.0), [str(w.message) for w in caught], sum(made.stats.cache_hits.values())
"""

DAMAGE = """
import shutil

def case(name, damage, function=tiny):
    shutil.rmtree(folder, ignore_errors=True)
    assert make(function)(3.0) == function(3.0)
    damage()
    results[name] = [attempt(), attempt()]

def change(kind, by):
    def damage():
        (path,) = files(kind)
        path.write_bytes(by(path.read_bytes()))
    return damage

def garbage(content):
    return random.Random(len(content)).randbytes(len(content))

def flip(place):
    def by(content):
        changed = bytearray(content)
        changed[int(place * len(content))] ^= 1
        return bytes(changed)
    return by

def swap():
    # the code of another function under this one's name, as a clash of names would leave it
    (mine,), _ = files("nbc"), make(other)
    (theirs,) = [path for path in files("nbc") if path != mine]
    mine.write_bytes(theirs.read_bytes())

def unlink():
    (path,) = files("nbc")
    path.unlink()

for kind in ("nbc", "nbi"):
    case(f"empty {kind}", change(kind, lambda content: b""))
    case(f"half {kind}", change(kind, lambda content: content[: len(content) // 2]))
    case(f"short {kind}", change(kind, lambda content: content[:-1]))
    case(f"garbage {kind}", change(kind, garbage))
    case(f"text {kind}", change(kind, lambda content: b"not a cache\\n"))
for place in (0.1, 0.3, 0.5, 0.7, 0.9):
    case(f"flip {place}", change("nbc", flip(place)))
case("swapped", swap)
case("no file", unlink)
case("none", lambda: None)
print(json.dumps(results))
"""


def outcome(folder: Path, code: str, **environment: str) -> dict[str, list]:
    script = folder / "script.py"
    script.write_text(PREAMBLE + textwrap.dedent(code))
    known = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), **environment}
    done = subprocess.run([sys.executable, str(script)], env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_damaged_cache_is_replaced_with_one_warning(tmp_path) -> None:
    found = outcome(tmp_path, DAMAGE)
    assert len(found) == 18
    for name, (first, second) in found.items():
        value, said, hits = first
        assert value == 7.0, name
        if name in {"none", "no file"}:
            assert said == [], name
        else:
            assert len(said) == 1, name
            assert said[0].startswith(
                "NUMBA_CACHE_DIR: the compiled loop cannot be kept on disk or taken from there (a file"
            )
            assert "cannot be read" in said[0], name
            assert "To fix: empty that folder" in said[0], name
        assert hits == (name == "none"), name
        # what was compiled took its place
        assert second == [7.0, [], 1], name


def test_a_cache_that_cannot_be_written(tmp_path) -> None:
    code = """
    import errno
    from numba.core import caching

    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))  # the index fits, the code does not
    results["too large"] = attempt()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    results["left"] = [path.name for path in folder.rglob("*") if "tmp" in path.name]
    results["room again"] = [attempt(), attempt()]

    def full(self, filepath):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = caching.IndexDataCacheFile._open_for_write
    caching.IndexDataCacheFile._open_for_write = full
    results["full"] = attempt(other)
    # damaged, and it cannot be mended either
    for path in files("nbi"):
        path.write_bytes(b"")
    results["full and damaged"] = attempt()
    caching.IndexDataCacheFile._open_for_write = kept
    print(json.dumps(results))
    """
    found = outcome(tmp_path, code)
    for name, reason in {
        "too large": "cannot be written: File too large",
        "full": "cannot be written: No space left on device",
        "full and damaged": "cannot be read: Ran out of input",
    }.items():
        value, said, hits = found[name]
        assert value == (-3.0 if name == "full" else 7.0)
        assert len(said) == 1
        assert reason in said[0]
        assert hits == 0
    assert found["left"] == []
    assert found["room again"] == [[7.0, [], 0], [7.0, [], 1]]


def test_no_folder_for_the_cache(tmp_path) -> None:
    code = """
    from numba.core import caching
    caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
    results["none"] = attempt()
    print(json.dumps(results))
    """
    (tmp_path / "cache").write_text("a file where the folder should be")
    value, said, _ = outcome(tmp_path, code)["none"]
    assert value == 7.0
    assert len(said) == 1
    assert "(there is no folder it may be kept in)" in said[0]


def test_a_real_loop_survives_a_damaged_cache(tmp_path) -> None:
    code = """
    def lift():
        compiling.lifter.cache_clear()
        out = np.empty((2, 3))
        compiling.lifter()(np.arange(6.0).reshape(2, 3), Lift(np.eye(3).ravel(), np.arange(1, 4)), out)
        return out.tolist()

    results["first"] = lift()
    for path in files("nbc"):
        path.write_bytes(path.read_bytes()[:1000])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results["second"] = lift()
    results["said"] = [str(w.message) for w in caught]
    print(json.dumps(results))
    """
    found = outcome(tmp_path, code)
    assert found["first"] == found["second"]
    assert len(found["said"]) == 1
