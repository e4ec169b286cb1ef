"""A guard against slower kernels: instructions per step, counted by callgrind, beside stored figures.

    .venv/bin/python benchmarks/instructions.py            (a few minutes; --only "poisson, B=16" for one)
    .venv/bin/python benchmarks/instructions.py --store    (keep what was counted as the figures to compare with)

Counts do not depend on what else the machine does, as times do. Each kernel runs for two lengths in one process under
valgrind, which counts between two marks only; the difference over the steps between them leaves out all that is not a step.
Numba compiles for one fixed processor (`_PROCESSOR`), beforehand and without valgrind: the same code everywhere, and none
that valgrind cannot run. A count more than 2 % above its stored figure ends with exit code 1. Figures are of one version of
the compiler; with another one the differences are shown, and nothing fails. Needs valgrind and gcc.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script, only this folder is on the path
FIGURES = ROOT / "benchmarks" / "results" / "instructions.json"

ROWS, COLUMNS, THIN = 1000, 20, 10
# Rows of a run, beyond those of a short one. What Python does around a run varies by some 10⁵ instructions: below 1 %.
READ, SHORT = 640_000, 1000
ALLOWED = 0.02
# Valgrind knows AVX2 and FMA; what is not named here is not used, whatever the processor has.
_PROCESSOR = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2"}
_CONTROLLED = {"gradient": "control-variate"}
_COMPLETED = {"noise": "completed"}
# Family, dynamics, how they are tuned, and the storage of rows.
KERNELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "gaussian, B=16": ("gaussian", {"batch_size": 16}, {}, "float64"),
    "gaussian, B=200": ("gaussian", {"batch_size": 200}, {}, "float64"),
    "poisson, B=16": ("poisson", {"batch_size": 16}, {}, "float64"),
    "poisson, B=200": ("poisson", {"batch_size": 200}, {}, "float64"),
    "poisson, B=200, float32": ("poisson", {"batch_size": 200}, {}, "float32"),
    "bernoulli, B=16": ("bernoulli", {"batch_size": 16}, {}, "float64"),
    "poisson, B=16, momentum": ("poisson", {"batch_size": 16, "momentum": 0.5}, {}, "float64"),
    "poisson, B=16, SGLD": ("poisson", {"batch_size": 16, "inverse_temperature": 4.0 * ROWS}, {}, "float64"),
    "poisson, B=16, control variates": ("poisson", {"batch_size": 16, **_CONTROLLED}, _COMPLETED, "float64"),
    "poisson, B=16, leverage": (
        "poisson", {"batch_size": 16, **_CONTROLLED, "batches": "leverage"}, _COMPLETED, "float64",
    ),
}  # fmt: skip
# Marks for callgrind: what valgrind's header expands to has to be compiled.
_MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_DUMP_STATS_AT("before"); }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def lengths(name: str) -> tuple[int, int]:
    """Steps of the two runs whose difference counts."""
    return SHORT, SHORT + READ // int(KERNELS[name][1]["batch_size"]) // THIN * THIN


def kernel(name: str) -> Callable[[int], object]:
    """A kernel as a function of the number of steps; compiled when this returns."""
    import equipoise as eq
    from benchmarks.suite.contenders import engine_run, numba_engine
    from benchmarks.suite.workloads import Workload, prepare

    family, moves, how, storage = KERNELS[name]
    prepared = prepare(Workload(name, family, ROWS, COLUMNS, (16,), THIN))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.EquipoiseWarning)  # a kernel is counted, whatever its draws are like
        tuning = eq.tune(prepared.moments, "sandwich", eq.Dynamics(**moves), **how)
    run = engine_run(numba_engine(prepared, tuning, storage), tuning, THIN)
    run(SHORT, 0)
    return lambda steps: run(steps, 1)


def child(names: list[str], marks: Path | None) -> None:
    """Run all kernels: inside valgrind between marks, and without marks so that everything is compiled and on disk."""
    library = ctypes.CDLL(str(marks)) if marks else None
    for name in names:
        run = kernel(name)
        for steps in lengths(name) if library else ():
            assert library is not None
            library.begin()
            run(steps)
            library.end(f"{name}|{steps}".encode())


def count(names: list[str]) -> dict[str, float]:
    """Instructions per step of kernels, from two processes: one that compiles, one that counts."""
    for tool in ("valgrind", "gcc"):
        if shutil.which(tool) is None:
            raise SystemExit(
                f"{tool} is not installed, and instructions are counted by it (Debian: apt install {tool})"
            )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        marks, source = folder / "marks.so", folder / "marks.c"
        source.write_text(_MARKS, encoding="utf-8")
        if subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", marks, source], check=False).returncode:
            raise SystemExit("valgrind's headers are not installed (Debian: they come with the package valgrind)")
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "NUMBA")}
        environment = {
            **os.environ, **_PROCESSOR, **threads, "PYTHONHASHSEED": "0",
            "NUMBA_CACHE_DIR": str(folder / "cache"),
        }  # fmt: skip
        own = [sys.executable, str(Path(__file__).resolve()), "--child", *names]
        subprocess.run(own, env=environment, check=True)
        counting = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out.%p"]
        subprocess.run([*counting, *own, "--marks", str(marks)], env=environment, check=True, stderr=subprocess.DEVNULL)
        return per_step([file.read_text(errors="replace") for file in folder.glob("out.*")])


def per_step(dumps: list[str]) -> dict[str, float]:
    """Instructions per step of every kernel, from the dumps of callgrind at their marks."""
    totals: dict[str, dict[int, int]] = {}
    for dump in dumps:
        mark = re.search(r"^desc: Trigger: Client Request: (.+)\|(\d+)$", dump, re.M)
        total = re.search(r"^totals: (\d+)", dump, re.M)
        if mark and total:
            totals.setdefault(mark[1], {})[int(mark[2])] = int(total[1])
    made = {}
    for name in (name for name in KERNELS if name in totals):
        short, long = lengths(name)
        made[name] = round((totals[name][long] - totals[name][short]) / (long - short), 1)
    return made


def compiler() -> str:
    """What made the code: counts of another one may differ."""
    from importlib.metadata import version

    return f"numba {version('numba')}, llvmlite {version('llvmlite')}"


def judge(counted: dict[str, float], stored: dict[str, float]) -> list[str]:
    """Kernels that take more instructions than they did, in words."""
    return [
        f"{name}: {found:,.0f} instructions a step, {stored[name]:,.0f} before"
        for name, found in counted.items()
        if name in stored and found > (1.0 + ALLOWED) * stored[name]
    ]


def main() -> None:
    """Count, compare and say; or store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(KERNELS), default=list(KERNELS), help="kernels to count")
    parser.add_argument("--store", action="store_true", help="keep the counts as the figures to compare with")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--marks", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, options.marks)
        return
    counted = count(options.only)
    kept = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {"figures": {}}
    for name, found in counted.items():
        before = kept["figures"].get(name)
        print(f"{name:34s} {found:10,.1f}" + (f"   {100 * (found / before - 1):+.2f} %" if before else "   new"))
    if options.store:
        made = {"compiler": compiler(), "figures": {**kept["figures"], **counted}}
        FIGURES.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    elif kept.get("compiler") != compiler():
        print(f"figures are of {kept.get('compiler')}, these counts of {compiler()}: nothing is held against them")
    elif slower := judge(counted, kept["figures"]):
        raise SystemExit("more instructions than before:\n" + "\n".join(slower))


if __name__ == "__main__":
    main()
