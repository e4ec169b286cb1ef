"""Digests of seeded calibrations: the same on every Python, with the same packages on the same machine.

    python tests/bits.py                           prints one line per calibration
    python tests/bits.py PYTHON [PYTHON ...]       runs itself in each of these interpreters, and compares
    python tests/bits.py --build 3.11 3.12         installs the library for each of these versions that is at hand, and compares
    python tests/bits.py --find 3.12               prints where that version is, if anywhere

`make same-bits` builds. All get the versions of packages that the oldest Python gets: others may round otherwise.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["build", "compare", "digests", "find"]

_PACKAGES = ("numpy", "scipy", "numba", "pandas", "pyarrow")


def digests() -> dict[str, str]:
    """Of estimates, step matrices and draws of three runs: a sandwich from a table, a posterior, clustered errors."""
    import numpy as np
    import pandas as pd

    import equipoise as eq

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(600, 3)), columns=["a", "b", "c"])
    frame["kind"] = rng.choice(["x", "y", "z"], len(frame))
    frame["count"] = rng.poisson(np.exp(0.3 + 0.4 * frame["a"] - 0.2 * frame["b"]))
    frame["bought"] = (rng.random(len(frame)) < 1.0 / (1.0 + np.exp(-frame["c"]))).astype(float)
    frame["firm"] = rng.integers(0, 30, len(frame))
    runs = {
        "poisson, sandwich": ("poisson", "count ~ a + b + C(kind)", {"ess": 400}),
        "bernoulli, posterior": ("bernoulli", "bought ~ a * c", {"target": "posterior", "ess": 400}),
        "gaussian, CRV1, plain": ("gaussian", "c ~ a + b", {"target": "CRV1", "clusters": "firm", "sampler": "sgmcmc"}),
    }
    found = {}
    for name, (family, formula, options) in runs.items():
        cal = eq.calibrate(eq.glm(family), frame, formula=formula, seed=7, progress=False, **options)
        for what, array in (("estimate", cal.fit.params), ("step", cal.tuning.step), ("draws", cal.draws)):
            found[f"{name}: {what}"] = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
    return found


def compare(pythons: list[str]) -> list[str]:
    """What differs from the first of these interpreters, in words; nothing if all is the same.

    Other versions of a package may round otherwise: where they differ, that is among the differences.
    """
    made = [(python, _run(python)) for python in pythons]
    differences, first = [], made[0][1]
    for python, told in made[1:]:
        if told["packages"] != first["packages"]:
            differences.append(f"{python}: other packages ({told['packages']}, not {first['packages']})")
        differences += [
            f"{python}: {name} differs" for name, digest in first["digests"].items() if told["digests"][name] != digest
        ]
    for python, told in made:
        print(f"{told['python']:8s} {len(told['digests'])} digests, {told['packages']} ({python})")
    return differences


def _run(python: str) -> dict[str, Any]:
    done = subprocess.run([python, str(Path(__file__).resolve())], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def find(wanted: str) -> str | None:
    """An interpreter of that version, on the path or kept by pyenv."""
    places = [shutil.which(f"python{wanted}")]
    if shutil.which("pyenv"):
        kept = subprocess.run(["pyenv", "prefix", wanted], capture_output=True, text=True)
        places.append(str(Path(kept.stdout.strip()) / "bin" / "python") if kept.returncode == 0 else None)
    # pyenv puts commands on the path that only say that they are not chosen
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for place in filter(None, places):
        told = subprocess.run([place, "-c", code], capture_output=True, text=True)
        if told.returncode == 0 and told.stdout.strip() == wanted:
            return place
    return None


def build(versions: list[str], folder: Path) -> list[str]:
    """Empty environments with the library in them, one for every version that is at hand; their interpreters."""
    made: list[str] = []
    constraint = folder / "same.txt"
    constraint.write_text("", encoding="utf-8")
    for wanted in versions:
        python = find(wanted)
        if python is None:
            print(f"Python {wanted} is not here: skipped")
            continue
        place = folder / wanted
        own = str(place / "bin" / "python")
        subprocess.run([python, "-m", "venv", place], check=True)
        install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", constraint]
        subprocess.run([*install, Path(__file__).resolve().parents[1]], check=True)
        if not made:
            frozen = subprocess.run([own, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
            constraint.write_text(
                "".join(line + "\n" for line in frozen.splitlines() if "==" in line), encoding="utf-8"
            )
        made.append(own)
    return made


def main() -> None:
    """Print, compare, build or find."""
    given = sys.argv[1:]
    if given[:1] == ["--find"]:
        print(find(given[1]) or "")
    elif given[:1] == ["--build"]:
        with tempfile.TemporaryDirectory() as folder:
            _judge(build(given[1:], Path(folder)))
    elif given:
        _judge(given)
    else:
        packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
        print(json.dumps({"python": platform.python_version(), "packages": packages, "digests": digests()}))


def _judge(pythons: list[str]) -> None:
    differences = compare(pythons)
    if differences:
        raise SystemExit("\n".join(differences))
    print("the same bits in all" if len(pythons) > 1 else "one interpreter alone: nothing to compare with")


if __name__ == "__main__":
    main()
