"""Plans of files beside plans in memory: random combinations of what can be asked for, and how far apart the answers are.

Run:  .venv/bin/python benchmarks/equality.py --count 150 --first 3000   (five seconds each; others with another --first)
Writes benchmarks/results/equality.json. Families, robust losses, formulas, priors, targets, weights, frequencies and offsets
are drawn at random, on 400,000 rows with heavy tails, a level of three rows, columns of 1e9 and 1e-7 and a response in
dollars. Of every combination: how often the files are read before the first step, and how far estimates (in standard
errors), constants and covariances (of unit diagonal) are from those in memory; and beside it how far those in memory are
from themselves with the rows in another order. What rounding makes of sums grows with the condition number of the Hessian.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import equipoise as eq
from equipoise.data.parts import ParquetPart

ROOT = Path(__file__).resolve().parent.parent
N = 400_000
TERMS = [
    "a", "b", "h", "g", "r", "u", "v", "c", "log(c)", "a:b", "g*a", "g:r", "scale(b)", "scale(h)", "poly(a, 2)",
    "bs(b, knots=[-0.5, 0.5])", "C(center(b) > 0)", "poly(exp(0.5*scale(a)), 2)",
    "poly(exp(0.3*scale(exp(0.3*scale(b)))), 2)",
]  # fmt: skip
RESPONSES = {
    "poisson": ["count"], "negative-binomial": ["count"], "beta-poisson": ["count"], "bernoulli": ["won"],
    "gamma": ["size"], "gaussian": ["level", "dollars"],
}  # fmt: skip
ROBUST = {"huber": eq.Huber(), "huber 0.8": eq.Huber(0.8), "student": eq.StudentT(), "beta": eq.Beta(1.3)}
TARGETS = ["sandwich", "HC1", "HC2", "HC3", "CRV1", "CRV3", "HAC", "posterior"]


def rows(seed: int = 5) -> pd.DataFrame:
    """The table that all of them look at."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, N))
    h, firm = rng.standard_t(3, N), rng.integers(0, 300, N)
    r = rng.choice(["k", "m"], N).astype(object)
    r[rng.choice(N, 40, replace=False)], r[rng.choice(N, 3, replace=False)] = "q", "A"
    off, g = 0.3 * rng.normal(size=N), rng.choice(list("wxyz"), N, p=[0.4, 0.3, 0.2, 0.1])
    effect = 0.2 * rng.normal(size=300)[firm]
    mean = np.exp(0.3 * a - 0.2 * b + 0.05 * np.clip(h, -8.0, 8.0) + 0.1 * (g == "y") + 0.5 * off + effect - 0.3)
    tailed = 0.3 * a + 0.1 * b + rng.standard_t(2.5, N)
    columns = {"a": a, "b": b, "h": h, "c": np.exp(rng.normal(size=N)), "g": g, "r": r.astype(str), "firm": firm}
    beside = {"w": rng.gamma(2.0, 0.5, N) + 0.05, "f": rng.integers(1, 4, N), "off": off, "t": np.arange(N)}
    units = {"u": 1e9 * (3.0 + a * b), "v": 1e-7 * rng.normal(size=N), "dollars": 1e6 * tailed, "tailed": tailed}
    responses = {
        "count": rng.negative_binomial(2.0, 2.0 / (2.0 + mean)).astype(float),
        "won": (rng.random(N) < mean / (1.0 + mean)).astype(float),
        "size": rng.gamma(2.0, 0.5 * mean),
        "level": 0.3 * a + rng.normal(size=N),
    }
    return pd.DataFrame({**columns, **beside, **units, **responses})


def combination(number: int) -> dict[str, Any]:
    """What is asked for."""
    rng = np.random.default_rng([77, number])
    terms = list(map(str, rng.choice(TERMS, rng.integers(1, 5), replace=False)))
    family = str(rng.choice([*RESPONSES, *ROBUST]))
    response = str(rng.choice(RESPONSES.get(family, ["level", "tailed", "dollars", "size", "count"])))
    target = str(rng.choice(TARGETS))
    beside = {"clusters": "firm"} if target.startswith("CRV") else {"time": "t"} if target == "HAC" else {}
    more = {"weights": "w", "frequency": "f", "offset": "off"}
    beside |= {name: more[name] for name in more if rng.random() < 0.3 and (name, target) != ("frequency", "HAC")}
    prior = float(rng.choice([0.0, 0.0, 1.0, 1e-3]))
    formula = f"{response} ~ {' + '.join(terms)}"
    return {"family": family, "formula": formula, "prior": prior, "target": target, "beside": beside}


def planned(asked: dict[str, Any], data: Callable[..., Any], where: object) -> Any:
    """The plan, or what was said in its place."""
    family, prior = asked["family"], {"prior_precision": asked["prior"]} if asked["prior"] else {}
    if family in ROBUST:
        model = eq.glm("gaussian", divergence=ROBUST[family], **prior)
    else:
        robust = {"divergence": eq.Beta(1.3)} if family.startswith("beta") else {}
        model = eq.glm(family.removeprefix("beta-"), **robust, **prior)
    lags = {"lags": 3} if asked["target"] == "HAC" else {}
    try:
        return eq.plan(model, data(where, asked["formula"], **asked["beside"]), target=asked["target"], **lags)
    except eq.EquipoiseError as error:
        return f"{type(error).__name__}: {error}"


def apart(one: Any, other: Any) -> dict[str, float]:
    """How far one plan is from another."""
    errors = np.sqrt(np.diag(one.tuning.target))
    found = {
        "estimate": float(np.max(np.abs(one.fit.theta - other.fit.theta) / errors)),
        "covariance": float(np.max(np.abs(one.tuning.target - other.tuning.target) / np.outer(errors, errors))),
    }
    if one.fit.constant is not None:
        found["constant"] = abs(other.fit.constant / one.fit.constant - 1.0)
    return found


def compared(number: int, frame: pd.DataFrame, folder: Path, readings: Counter[str]) -> dict[str, Any]:
    """One combination, with rows in memory, there in another order, and in files."""
    asked = combination(number)
    memory = planned(asked, eq.data.table, frame)
    shuffled = planned(asked, eq.data.table, frame.sample(frac=1.0, random_state=number).reset_index(drop=True))
    readings.clear()
    files = planned(asked, eq.data.scan, folder)
    about = {"number": number, **asked, "passes": readings["rows"] / N}
    said = [each if isinstance(each, str) else "" for each in (memory, files)]
    if any(said):
        return {**about, "memory says": said[0], "files say": said[1]}
    itself = {} if isinstance(shuffled, str) else apart(memory, shuffled)
    return {**about, "condition": memory.fit.condition, "files": apart(memory, files), "memory": itself}


def counting() -> Counter[str]:
    """Count the rows that are asked for where files are opened."""
    found: Counter[str] = Counter()
    frames = ParquetPart.frames

    def counted(self: ParquetPart, columns: Any, rows: Any) -> Any:
        found["rows"] += self.count or 0
        return frames(self, columns, rows)

    ParquetPart.frames = counted  # type: ignore[method-assign]
    return found


def summary(results: list[dict[str, Any]]) -> str:
    """What all of them show."""
    done = [each for each in results if "files" in each]
    eps = float(np.finfo(float).eps)
    alone = [
        each["number"] for each in results if "files" not in each and not (each["memory says"] and each["files say"])
    ]
    plain = [each for each in done if eps * each["condition"] < 1e-11]

    def worst(which: list[dict[str, Any]], where: str, what: str) -> str:
        return f"{max((each[where].get(what, 0.0) for each in which), default=0.0):.1e}"

    lines = [
        f"{len(results)} combinations, {len(done)} with a plan, {len(results) - len(done)} refused; "
        f"at most {max(each['passes'] for each in done):.0f} passes, {max(each['passes'] for each in results):.1f} with those "
        "refused",
        f"refused by one alone: {alone}",
    ]
    for name, which in (("all", done), ("condition below 45,000", plain)):
        shown = ", ".join(
            f"{what} {worst(which, 'files', what)} (another order: {worst(which, 'memory', what)})"
            for what in ("estimate", "constant", "covariance")
        )
        lines.append(f"{name} ({len(which)}): {shown}")
    return "\n".join(lines)


def main() -> None:
    """Compare, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "equality.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    frame, readings, results = rows(), counting(), []
    with tempfile.TemporaryDirectory() as made:
        for k in range(4):
            part = frame[k * N // 4 : (k + 1) * N // 4]
            part.to_parquet(Path(made) / f"{k}.parquet", row_group_size=25_000)
        for number in range(options.first, options.first + options.count):
            results.append(compared(number, frame, Path(made), readings))
            options.output.write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n")
            if (number + 1) % 25 == 0:
                print(f"--- {number + 1}\n{summary(results)}", flush=True)
    print(summary(results))


if __name__ == "__main__":
    main()
