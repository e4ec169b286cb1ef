"""One chain against its target: the paper's metrics, what theory says they must be, and the Monte Carlo floor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

import equipoise as eq
from equipoise.arrays import Array
from equipoise.experiments.designs import Study
from equipoise.experiments.numbers import Row
from equipoise.experiments.rules import CLOSED, true_law, tuned
from equipoise.sampling.refinement import refine

__all__ = [
    "Chain", "compare_rules", "covariance_error", "ks_distance", "ks_reference", "passes_for", "quantile_error",
    "quantile_gap", "quantile_gap_of", "quantile_reference", "row", "run_chain",
]  # fmt: skip

_LEVELS = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
# Rows that all pilots together may touch whatever the length of the run.
_CHEAP = 5e7
# Draws at which the Hessian is looked at: enough to tell few from most.
_LOOKS = 20
# Stored draws per pass over the data: autocorrelation time is one pass, so more would only repeat themselves.
_PER_PASS = 4


@dataclass(frozen=True)
class Chain:
    """A chain that was run, and the law it follows in theory.

    There are no draws when it left the numbers a computer has, and there is no law when it has none under the exact
    proxy: `radius` is that of its second moments, which above 1 grow without bound. `floor` is the Monte Carlo error of
    its covariance and `bias` the distance of the law's from the target, both relative to the target; there is no bias
    after pilots, which trust no law. `passes` are those after burn-in.
    """

    draws: Array | None
    law: eq.Stationary | None
    radius: float
    floor: float | None
    bias: float | None
    passes: float


def row(value: float, **key: float | str | None) -> Row:
    """One measured number with the names of its cell; infinite values are kept as such."""
    return {"value": float(value), **key}


def run_chain(
    study: Study, moments: eq.Moments, tuning: eq.Tuning, target: Array, seed: int, passes: float, discarded: float
) -> Chain:
    """Run one chain for a number of passes over the data, and discard a share of them.

    No guard: the paper's chains have none, and a rule that makes them explode is to be seen doing so.
    """
    found, size = true_law(moments, tuning), tuning.dynamics.batch_size
    law, radius = (None, found) if isinstance(found, float) else (found, found.spectral_radius)
    per_pass = study.rows / size
    thin = _thin(study, size)
    burn_in = int(discarded * passes * per_pass)
    draws = max(2, (int(passes * per_pass) - burn_in) // thin)
    scale = float(np.linalg.norm(target))
    bias = None if law is None else float(np.linalg.norm(law.cov - target)) / scale
    mc = None if law is None else law.covariance_floor(draws, thin) * float(np.linalg.norm(law.cov)) / scale
    if law is not None and tuning.internal is not None:
        # after pilots the proxy's law is no longer what the chain is meant to have
        bias, mc = None, law.covariance_floor(draws, thin)
    try:
        chains = eq.sample(
            study.model, study.data, tuning, draws=draws, chains=1, seed=seed, thin=thin, burn_in=burn_in, guard=None,
            threads=1, progress=False,
        )  # fmt: skip
        made = chains.flat()
    except eq.ChainDiverged:
        made = None
    return Chain(made, law, radius, mc, bias, draws * thin / per_pass)


def passes_for(
    study: Study, moments: eq.Moments, target: Array, size: int, floor: float, rule: str = "dq-exact"
) -> float:
    """Passes over the data after which a chain with the target covariance knows it to `floor`."""
    thin, some = _thin(study, size), 1000
    # rules that miss the target are given the length of the one that does not
    right = rule if rule.startswith("dq-exact") else "dq-exact"
    reference = tuned(right, moments, target, size).predicted.covariance_floor(some, thin)
    return max(100.0, some * (reference / floor) ** 2 * thin * size / study.rows)


def _thin(study: Study, size: int) -> int:
    return max(1, int(study.rows / size / _PER_PASS))


def covariance_error(draws: Array | None, target: Array) -> float:
    """‖Ŝ − S⋆‖_F / ‖S⋆‖_F; infinite for a chain that left the numbers."""
    if draws is None:
        return np.inf
    # a chain on its way out may still be finite when its squares are not
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.cov(draws, rowvar=False)
        error = float(np.linalg.norm(spread - target) / np.linalg.norm(target))
    return error if np.isfinite(error) else np.inf


def ks_distance(levels: Array) -> float:
    """max_i |i/D − u_(i)|: the distance of D values from the uniform law, as the paper's numbers were made.

    It looks at the empirical distribution function only where it has just jumped; the full Kolmogorov–Smirnov
    statistic, which also looks just before, is larger by about 0.02 at D = 20 and 0.01 at D = 50.
    """
    u = np.sort(levels)
    return float(np.abs(np.arange(1, len(u) + 1) / len(u) - u).max())


def ks_reference(dim: int) -> float:
    """The mean of that distance over uniform values: what a perfectly calibrated method scores."""
    u = np.sort(np.random.default_rng(0).random((20_000, dim)), axis=1)
    return float(np.abs(np.arange(1, dim + 1) / dim - u).max(axis=1).mean())


def quantile_error(draws: Array | None, center: Array, target: Array) -> float:
    """Root mean squared error of whitened draws' quantiles against the normal ones, averaged over coordinates."""
    if draws is None:
        return np.inf
    values, vectors = np.linalg.eigh(target)
    with np.errstate(over="ignore", invalid="ignore"):
        white = (draws - center) @ (vectors / np.sqrt(values)) @ vectors.T
        gaps = np.quantile(white, _LEVELS, axis=0) - ndtri(_LEVELS)[:, None]
        return float(np.sqrt(np.mean(gaps**2, axis=0)).mean())


def quantile_reference(passes: float) -> float:
    """What that error is for a chain with the target's law and an autocorrelation time of one pass over the data.

    The indicator of θ ≤ q is a sum of Hermite polynomials in θ, and the k-th of them forgets k times as fast as θ itself:
    ``Var q̂ = Σ_k He_{k−1}(q)² / (k! k) / passes``. Independent draws would have k! for k! k.
    """
    q = ndtri(_LEVELS)
    before, now, total = np.zeros_like(q), np.ones_like(q), np.zeros_like(q)
    for k in range(1, 400):
        total += now**2 / k**2  # He_{k−1}² / (k−1)! over k²
        before, now = now, (q * now - np.sqrt(k - 1.0) * before) / np.sqrt(k)
    return float(np.sqrt(np.mean(total) / max(passes, 1.0)))


def quantile_gap(draws: Array | None, center: Array, target: Array) -> float:
    """The same for each parameter by itself, in the target's standard deviations and without whitening."""
    return quantile_error(draws, center, np.diag(np.diag(target)))


def quantile_gap_of(law: eq.Stationary) -> float:
    """What that gap is for an endless chain with this law's shift of the mean and skewness; NaN where they are not known.

    Cornish and Fisher: skewness g moves the quantile of a standard normal at q by (q² − 1) g / 6.
    """
    q = ndtri(_LEVELS)[:, None]
    gaps = law.mean_bias / np.sqrt(np.diag(law.cov)) + (q**2 - 1.0) * law.skewness / 6.0
    return float(np.sqrt(np.mean(gaps**2, axis=0)).mean())


def compare_rules(
    study: Study,
    rules: Iterable[str],
    batches: dict[str, int],
    seed: int,
    key: dict[str, str],
    floor: float | None = None,
    passes: float | None = None,
) -> list[Row]:
    """Covariance and calibration errors of one chain for every rule and batch size.

    Chains are as long as the paper's, or have the given number of passes, or as many as a chain with the right
    covariance needs for a Monte Carlo error of `floor`.
    """
    fit = eq.fit(study.model, study.data)
    moments = eq.moments(study.model, study.data, fit.params)
    target = eq.sandwich(moments)
    found: list[Row] = []
    nuts: list[Row] = []
    for label, size in batches.items():
        for rule in rules:
            length, discarded = passes or study.epochs, study.discarded
            if floor is not None:
                length, discarded = passes_for(study, moments, target, size, floor, rule), 0.0
            cell = {**key, "dataset": study.dataset, "loss": study.loss, "batch": label, "method": rule}
            if rule == "posterior" or rule == "sandwich-gaussian":
                cov = eq.posterior(moments) if rule == "posterior" else target
                found += _gaussian(study, moments.params, cov, target, cell)
                continue
            if rule == "nuts":
                # it knows nothing of batches
                nuts = nuts or _nuts(study, moments, target, seed, cell)
                found += [{**r, "batch": label} for r in nuts]
                continue
            tuning = tuned(rule, moments, target, size)
            if rule == CLOSED:
                # four pilots, each four times as long as the run if that is cheap, else all together as long as the run
                rows = min(16 * length * study.rows, max(length * study.rows, _CHEAP))
                problem = eq.bind(study.model, study.data)
                tuning, done = refine(problem, moments, tuning, seed=seed, rows=rows, guard=None, progress=False)
                cell["reason"] = f"Pilots: {done.words}."
            chain = run_chain(study, moments, tuning, target, seed, length, discarded)
            found += _of_chain(study, moments.params, chain, target, cell)
            if rule == "dq-exact" and floor is not None:
                found += _shape(study, chain, target, cell)
    return found


def _shape(study: Study, chain: Chain, target: Array, cell: dict[str, str]) -> list[Row]:
    """Quantiles and skewness of a long chain beside what theory predicts, and where on the loss its draws lie."""
    if chain.draws is None or chain.law is None:
        return []
    law, center = chain.law, chain.law.moments.params
    found = [
        row(
            quantile_gap(chain.draws, center, target), metric="quantile_gap", floor=quantile_reference(chain.passes),
            bias=quantile_gap_of(law), passes=chain.passes, **cell,
        )
    ]  # fmt: skip
    if not np.isnan(law.skewness).any():
        worst = int(np.abs(law.skewness).argmax())
        off = chain.draws[:, worst] - chain.draws[:, worst].mean()
        sign = float(np.sign(law.skewness[worst]))  # data sets differ in it
        seen = float(np.mean(off**3) / np.mean(off**2) ** 1.5)
        found.append(row(sign * seen, metric="largest_skewness", bias=sign * float(law.skewness[worst]), **cell))
    if study.loss == "log":
        return found
    places = chain.draws[:: max(1, len(chain.draws) // _LOOKS)]
    lowest = [np.linalg.eigvalsh(eq.moments(study.model, study.data, place).hessian)[0] for place in places]
    share = float(np.mean(np.array(lowest) < 0.0))
    found.append(row(share, metric="draws_where_the_loss_is_not_convex", **cell))
    return found


def _of_chain(study: Study, center: Array, chain: Chain, target: Array, cell: dict[str, str]) -> list[Row]:
    more: Row = {**cell, "radius": chain.radius, "passes": chain.passes}
    found = [
        row(
            covariance_error(chain.draws, target), metric="covariance_error", floor=chain.floor, bias=chain.bias, **more
        )
    ]
    if study.truth is not None and study.dataset == "simulated-linear":
        levels = None if chain.draws is None else (chain.draws <= study.truth).mean(axis=0)
        mean = None if chain.draws is None else chain.draws.mean(axis=0)
        found += _against_truth(study.truth, levels, mean, center, more)
    elif study.dataset == "simulated-poisson":
        value = quantile_error(chain.draws, center, target)
        found.append(row(value, metric="calibration_error", floor=quantile_reference(chain.passes), **more))
    return found


def _gaussian(study: Study, center: Array, cov: Array, target: Array, cell: dict[str, str]) -> list[Row]:
    gap = float(np.linalg.norm(cov - target) / np.linalg.norm(target))
    found = [row(gap, metric="covariance_error", floor=0.0, bias=gap, **cell)]
    if study.truth is not None:
        levels = ndtr((study.truth - center) / np.sqrt(np.diag(cov)))
        found += _against_truth(study.truth, levels, center, center, cell)
    return found


def _nuts(study: Study, moments: eq.Moments, target: Array, seed: int, cell: dict[str, str]) -> list[Row]:
    from equipoise.experiments.nuts import sample_posterior

    draws = sample_posterior(study, moments.params, seed)
    if draws is None:
        return [row(np.nan, metric="covariance_error", note="NumPyro is not installed: pip install numpyro", **cell)]
    cov = eq.posterior(moments)
    scale = float(np.linalg.norm(target))
    mc = float(np.sqrt((np.sum(cov**2) + np.trace(cov) ** 2) / len(draws))) / scale
    bias = float(np.linalg.norm(cov - target)) / scale
    found = [row(covariance_error(draws, target), metric="covariance_error", floor=mc, bias=bias, **cell)]
    if study.truth is not None:
        levels = (draws <= study.truth).mean(axis=0)
        found += _against_truth(study.truth, levels, draws.mean(axis=0), moments.params, cell)
    return found


def _against_truth(
    truth: Array, levels: Array | None, mean: Array | None, center: Array, cell: Mapping[str, float | str | None]
) -> list[Row]:
    """Where the truth lies among the draws, and how far off ‖θ̄ − θ⋆‖ / ‖θ⋆‖ is; infinite for a chain that left the numbers."""
    gap = np.inf if levels is None else ks_distance(levels)
    off, least = (np.inf if c is None else np.linalg.norm(c - truth) / np.linalg.norm(truth) for c in (mean, center))
    return [
        row(gap, metric="calibration_error", floor=ks_reference(truth.size), **cell),
        row(float(off), metric="parameter_error", floor=float(least), **cell),
    ]
