"""Is a control-variate chain with a fidelity a sampler of the posterior? Beside reference draws, and beside NUTS.

    .venv/bin/python benchmarks/posteriors.py [--smoke] [--data ../shared/data/posteriordb.npz]

Ten Gaussian regressions in (β, log σ) with the reference draws of posteriordb, and regressions of other families beside
NumPyro's NUTS. For each: the largest difference in mean (in standard deviations), standard deviation (relative), 2.5, 50
and 97.5 % quantile (in standard deviations) and skewness, over the Monte Carlo error of that difference, for the
control-variate chain and for plain SGD tuned to the same covariance; and what the diagnosis says.

The last case is beyond the method: a posterior so wide beside the curvature at its mode that no chain tuned there follows
it. There the differences are large, and the point is that the diagnosis says so.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import equipoise as eq
from equipoise.arrays import Array

__all__ = ["Comparison", "Reference", "compare", "nuts_cases", "out_of_reach", "posteriordb", "sampled"]

_PROBABILITIES = (0.025, 0.5, 0.975)
_RESULTS = Path(__file__).parent / "results" / "posteriors.json"


@dataclass(frozen=True)
class Reference:
    """What a posterior is known to be, by parameter, and from how many effective draws."""

    mean: Array
    sd: Array
    skewness: Array
    quantiles: Array
    draws: float

    @classmethod
    def of(cls, draws: Array, effective: float) -> Reference:
        """From draws (n, D)."""
        mean, sd = draws.mean(axis=0), draws.std(axis=0)
        skewness = (((draws - mean) / sd) ** 3).mean(axis=0)
        return cls(mean, sd, skewness, np.quantile(draws, _PROBABILITIES, axis=0), effective)


@dataclass(frozen=True)
class Case:
    """A bound problem, how its draws become what the reference is about, and the reference.

    Of one that is `beyond` the method the draws are expected to be wrong, and the diagnosis to say so.
    """

    name: str
    problem: Any
    reference: Reference
    log_scale: bool = False
    beyond: bool = False


@dataclass(frozen=True)
class Comparison:
    """The largest differences over all parameters, and the largest in Monte Carlo errors of the difference."""

    mean: float
    sd: float
    quantile: float
    skewness: float
    errors: float

    def __str__(self) -> str:
        shown = (
            f"mean {self.mean:5.3f}  sd {self.sd:5.3f}  quantile {self.quantile:5.3f}  skewness {self.skewness:5.3f}"
        )
        return f"{shown}  worst {self.errors:4.1f} Monte Carlo errors"


def compare(found: Reference, reference: Reference) -> Comparison:
    """How far one is from the other."""
    noise = np.sqrt(1.0 / found.draws + 1.0 / reference.draws)
    mean = (found.mean - reference.mean) / reference.sd
    sd = found.sd / reference.sd - 1.0
    quantile = (found.quantiles - reference.quantiles) / reference.sd
    skewness = found.skewness - reference.skewness
    # a quantile's error is √(p(1−p)/n)/density: for a normal law 2.67, 1.25 and 2.67 times 1/√n
    width = np.array([2.67, 1.25, 2.67])[:, None] * noise
    worst = [np.abs(mean) / noise, np.abs(sd) / (noise / np.sqrt(2.0)), np.abs(quantile) / width]
    worst.append(np.abs(skewness) / (np.sqrt(6.0) * noise))
    return Comparison(
        *(float(np.abs(v).max()) for v in (mean, sd, quantile, skewness)), max(float(w.max()) for w in worst)
    )


def posteriordb(path: Path) -> Iterator[Case]:
    """Gaussian regressions in (β, log σ), with the reference draws' moments and quantiles."""
    import jax.numpy as jnp

    stored = np.load(path)
    for name in sorted({key.split("/")[0] for key in stored.files}):
        x, y, spread, mean, sd, skewness, quantiles = (
            stored[f"{name}/{part}"] for part in ("x", "y", "prior_sd", "mean", "sd", "skewness", "quantiles")
        )
        prior, precision = str(stored[f"{name}/sigma_prior"]), jnp.asarray(1.0 / spread**2)

        def loss(p: Any, o: Any) -> Any:
            r = (o["y"] - jnp.dot(o["x"], p["b"])) * jnp.exp(-p["s"])
            return 0.5 * r * r + p["s"]

        def penalty(p: Any, prior: str = prior, precision: Any = precision) -> Any:
            scale = jnp.exp(p["s"])
            of_scale = {
                "flat": 0.0,
                "cauchy2.5": jnp.log1p((scale / 2.5) ** 2),
                "normal10": 0.5 * (scale / 10.0) ** 2,
                "student3_10": 2.0 * jnp.log1p((scale / 10.0) ** 2 / 3.0),
            }[prior]
            return 0.5 * jnp.sum(precision * p["b"] ** 2) + of_scale - p["s"]  # the last term is the Jacobian's

        start = np.linalg.lstsq(x, y, rcond=None)[0]
        init = {"b": start, "s": np.log(np.std(y - x @ start))}
        problem = eq.bind(eq.Model(loss, init, regularizer=penalty), {"x": x, "y": y})
        yield Case(name, problem, Reference(mean, sd, skewness, quantiles[[0, 2, 4]], 10_000.0), log_scale=True)


def nuts_cases(smoke: bool = False) -> Iterator[Case]:
    """Regressions of other families, N/D from 5 to 100, beside NUTS."""
    for seed, (family, n, dim) in enumerate(
        [
            ("bernoulli", 60, 4),
            ("bernoulli", 300, 6),
            ("bernoulli", 1000, 10),
            ("poisson", 40, 4),
            ("poisson", 250, 5),
            ("gamma", 30, 6),
            ("gamma", 120, 4),
            ("gamma", 500, 5),
        ][: 2 if smoke else None]
    ):
        rng = np.random.default_rng(seed)
        x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
        eta = 0.5 * x[:, 0] + x[:, 1:] @ rng.normal(scale=0.5, size=dim - 1)
        y = _response(family, eta, rng)
        draws, effective = _nuts(family, x, y, 500 if smoke else 20_000, seed)
        # the gamma law's shape is known to both
        model = eq.glm(family, prior_precision=0.25, **({"shape": 1.0} if family == "gamma" else {}))
        problem = eq.bind(model, (x, y))
        yield Case(f"{family} N={n} D={dim}", problem, Reference.of(draws, effective))


def out_of_reach(smoke: bool = False) -> Iterator[Case]:
    """Twelve rows that a line separates, and a prior of standard deviation 100, which alone bounds the posterior."""
    z = np.linspace(-2.0, 2.0, 12) + 0.1 * np.random.default_rng(0).normal(size=12)
    x, y, spread = np.column_stack([np.ones(12), z]), (z > 0.0).astype(np.float64), 100.0
    draws, effective = _nuts("bernoulli", x, y, 500 if smoke else 20_000, 0, spread)
    problem = eq.bind(eq.glm("bernoulli", prior_precision=spread**-2), (x, y))
    yield Case("bernoulli N=12 D=2, separated", problem, Reference.of(draws, effective), beyond=True)


def _response(family: str, eta: Array, rng: np.random.Generator) -> Array:
    if family == "bernoulli":
        return (rng.random(eta.size) < 1.0 / (1.0 + np.exp(-eta))).astype(np.float64)
    return rng.poisson(np.exp(eta)).astype(np.float64) if family == "poisson" else rng.gamma(1.0, np.exp(eta))


def _nuts(family: str, x: Array, y: Array, count: int, seed: int, spread: float = 2.0) -> tuple[Array, float]:
    """Draws of NUTS and how many are effective, in the worst parameter; the prior's standard deviation is `spread`."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    def model() -> None:
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(x.shape[1]), spread).to_event(1))
        eta = x @ theta
        laws = {
            "bernoulli": lambda: dist.Bernoulli(logits=eta),
            "poisson": lambda: dist.Poisson(jnp.exp(eta)),
            "gamma": lambda: dist.Gamma(1.0, jnp.exp(-eta)),
        }
        numpyro.sample("y", laws[family](), obs=y)

    with jax.enable_x64(True):
        chains = MCMC(
            NUTS(model),
            num_warmup=1000,
            num_samples=count // 2,
            num_chains=2,
            chain_method="vectorized",
            progress_bar=False,
        )
        chains.run(jax.random.key(seed))
        draws = np.asarray(chains.get_samples(group_by_chain=True)["theta"])
    return draws.reshape(-1, x.shape[1]), float(np.min(effective_sample_size(draws)))


def sampled(case: Case, ess: float, seed: int = 0, **options: Any) -> tuple[Reference, eq.Calibration]:
    """Draws of the posterior in the reference's parameters, and the run."""
    made = eq.calibrate(case.problem, target="posterior", ess=ess, seed=seed, progress=False, **options)
    draws = made.chains.flat().copy()
    if case.log_scale:
        draws[:, -1] = np.exp(draws[:, -1])
    return Reference.of(draws, float(made.diagnosis.ess.min())), made


def main() -> None:
    """Compare all, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "posteriordb.npz")
    parser.add_argument("--fidelity", type=float, default=0.95)
    parser.add_argument("--ess", type=float, default=20_000)
    options = parser.parse_args()
    ess = 500.0 if options.smoke else options.ess
    known = posteriordb(options.data) if options.data.exists() else ()
    cases = chain(known, nuts_cases(options.smoke), out_of_reach(options.smoke))
    results = {}
    for case in cases:
        began = time.perf_counter()
        found, made = sampled(case, ess, fidelity=options.fidelity)
        seconds = time.perf_counter() - began
        plain, _ = sampled(case, min(ess, 4000.0), sampler="sgmcmc")
        ours, theirs = compare(found, case.reference), compare(plain, case.reference)
        looks = [check.name for check in made.diagnosis.checks if check.status == "look"]
        note = " (beyond the method)" if case.beyond else ""
        print(f"{case.name}{note}: B = {made.tuning.dynamics.batch_size}, {seconds:.1f} s, diagnosis {looks or 'ok'}")
        print(f"   control variates  {ours}\n   plain SGD         {theirs}", flush=True)
        results[case.name] = {
            "control variates": vars(ours), "plain": vars(theirs), "seconds": seconds, "look": looks, "beyond": case.beyond
        }  # fmt: skip
    if not options.smoke:
        _RESULTS.parent.mkdir(exist_ok=True)
        _RESULTS.write_text(json.dumps({"fidelity": options.fidelity, "ess": ess, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
