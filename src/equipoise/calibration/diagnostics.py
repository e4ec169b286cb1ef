"""Diagnostics: predicted against observed, each with its Monte Carlo error and a flag in words (theory §6, §7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from equipoise.arrays import Array
from equipoise.checks import checked_options
from equipoise.errors import InvalidInput
from equipoise.sampling.chains import Chains
from equipoise.theory.stationary import Stationary
from equipoise.theory.tuning import Tuning

__all__ = ["Check", "Diagnosis", "autocorrelation_time", "diagnose"]


_FLOORS = 1.5  # Monte Carlo floors, and
_COVARIANCE = 0.02  # relative error, that a covariance may be off
_BIAS = 0.1  # standard deviations of mean bias that matter
_SHAPE = 0.2  # skewness or excess kurtosis that matters
_RHAT = 1.02
_GUARD = 1e-3  # share of the steps on which the guard may act
_WINDOW = 5.0  # autocorrelation times summed over: Sokal's window, bias e^{−2·5}


@dataclass(frozen=True)
class Check:
    """One comparison: what was predicted, what was observed, the Monte Carlo error, and what it means."""

    name: str
    predicted: float
    observed: float
    error: float
    ok: bool
    words: str


@dataclass(frozen=True)
class Diagnosis:
    """Predicted against observed.

    Attributes
    ----------
    checks
        Covariance, effective draws, mean bias, shape, agreement of the chains, guard.
    cov
        Observed covariance.
    shift, predicted_shift, shift_error
        Mean of the draws minus the minimiser, in predicted standard deviations: observed, predicted, and its error.
    sd_ratio
        Observed over predicted standard deviation, by parameter.
    ess, predicted_ess
        Effective draws by parameter.
    rhat, skewness, kurtosis
        By parameter.
    verdict
        Whether the chain says more than the Gaussian approximation N(θ̂, target) would have.
    """

    checks: tuple[Check, ...]
    cov: Array
    shift: Array
    predicted_shift: Array
    shift_error: Array
    sd_ratio: Array
    ess: Array
    predicted_ess: Array
    rhat: Array
    skewness: Array
    kurtosis: Array
    verdict: str

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    @property
    def rhat_limit(self) -> float:
        """The R̂ above which chains disagree, for this many effective draws."""
        return next(1.0 + check.error for check in self.checks if check.name == "chains")

    @property
    def warnings(self) -> tuple[str, ...]:
        """The words of the checks that did not pass."""
        return tuple(check.words for check in self.checks if not check.ok)

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"{'ok  ' if c.ok else 'LOOK'}  {c.name:<{width}}  predicted {c.predicted:>9.4g}  observed {c.observed:>9.4g}  "
            f"± {c.error:<8.2g}  {c.words}"
            for c in self.checks
        ]
        return "\n".join([*lines, self.verdict])


def autocorrelation_time(draws: Array) -> float:
    """Integrated autocorrelation time of one quantity, in stored draws, from (chains, draws).

    Autocovariances are averaged over the chains and summed up to the first lag M ≥ 5 τ(M).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> 0.9 < autocorrelation_time(rng.normal(size=(4, 5000))) < 1.1
    True
    """
    centred = draws - draws.mean(axis=1, keepdims=True)
    n = draws.shape[1]
    spectrum = np.abs(np.fft.rfft(centred, n=2 * n, axis=1)) ** 2
    acov = np.fft.irfft(spectrum.mean(axis=0))[:n] / n
    if acov[0] <= 0.0:
        return 1.0
    tau = 2.0 * np.cumsum(acov / acov[0]) - 1.0
    # five lags at least: the sums of a chain that alternates swing below zero before they settle
    enough = np.arange(n) >= _WINDOW * np.maximum(tau, 1.0)
    window = int(np.argmax(enough)) if enough.any() else n - 1
    # draws may repel each other, but an estimate this far below 1 is noise of a short run
    return max(float(tau[window]), 0.1)


@checked_options
def diagnose(chains: Chains, tuning: Tuning) -> Diagnosis:
    """Compare what the theory predicted with what the chains did.

    Parameters
    ----------
    chains, tuning
        The draws, and the tuning they were made with.

    Returns
    -------
    Diagnosis
    """
    for name, given, kind in (("chains", chains, Chains), ("tuning", tuning, Tuning)):
        if not isinstance(given, kind):
            remedy = "see eq.Chains.from_draws(array, tuning)"
            raise InvalidInput(name, kind.__name__, type(given).__name__, remedy)
    if chains.draws.shape[2] != tuning.dim:
        raise InvalidInput(
            "chains", f"of the tuning's {tuning.dim} parameters", f"{chains.draws.shape[2]} parameters", "match the two"
        )
    law, draws = tuning.predicted, chains.draws
    count, length, dim = draws.shape
    independent = chains.independent
    expected = tuning.target if independent else tuning.expected
    flat, sd = chains.flat(), np.sqrt(np.diag(expected))
    tau = np.array([autocorrelation_time(draws[:, :, j]) for j in range(dim)])
    ess = count * length / tau
    predicted_tau = np.ones(dim) if independent else np.maximum(law.iacts() / chains.thin, 1.0)
    cov = np.atleast_2d(np.cov(flat, rowvar=False))
    shift = (flat.mean(axis=0) - tuning.center) / sd
    predicted_shift = np.zeros(dim) if independent else law.mean_bias / sd
    z = (flat - flat.mean(axis=0)) / flat.std(axis=0)
    result = {
        "cov": cov,
        "shift": shift,
        "predicted_shift": predicted_shift,
        "shift_error": np.sqrt(np.diag(cov)) / sd / np.sqrt(ess),
        "sd_ratio": np.sqrt(np.diag(cov)) / sd,
        "ess": ess,
        "predicted_ess": count * length / predicted_tau,
        "rhat": _rhat(draws),
        "skewness": (z**3).mean(axis=0),
        "kurtosis": (z**4).mean(axis=0) - 3.0,
    }
    checks = (
        _covariance_check(cov, expected, chains, law),
        _ess_check(result, tau, length, count),
        _bias_check(result),
        _shape_check(result),
        _agreement_check(result["rhat"], result["predicted_ess"], count),
        _guard_check(chains),
    )
    return Diagnosis(checks=checks, verdict=_verdict(checks, independent), **result)


def _covariance_check(cov: Array, predicted: Array, chains: Chains, law: Stationary) -> Check:
    """Compare in units of the predicted standard deviations: otherwise the parameter with the largest units decides."""
    count, length, dim = chains.draws.shape
    sd = np.sqrt(np.diag(predicted))
    expected, found = (c / np.outer(sd, sd) for c in (predicted, cov))
    size = float(np.linalg.norm(expected))
    # independent normal draws: E‖Σ̂−Σ‖² = (‖Σ‖² + tr(Σ)²)/T
    floor = (
        float(np.sqrt((size**2 + dim**2) / (count * length)) / size)
        if chains.independent
        else law.covariance_floor(count * length, chains.thin, standardised=True)
    )
    error = float(np.linalg.norm(found - expected)) / size
    ok = error <= _FLOORS * floor + _COVARIANCE
    words = (
        f"covariance is {error:.1%} from the prediction, as Monte Carlo error alone would make it ({floor:.1%})"
        if ok
        else f"covariance is {error:.1%} from the prediction, beyond Monte Carlo error ({floor:.1%}): the loss is not "
        "quadratic at this scale; use more data, a smaller batch, or sampler='gaussian'"
    )
    return Check("covariance", 0.0, error, floor, ok, words)


def _ess_check(result: dict[str, Array], tau: Array, length: int, count: int) -> Check:
    ratio = result["ess"] / result["predicted_ess"]
    worst = int(np.argmin(ratio))
    # variance of a windowed estimate: τ² · 2(2M+1)/T with M = 5τ
    spread = float(np.sqrt(2.0 * (2.0 * _WINDOW * tau[worst] + 1.0) / (length * count)))
    allowed = -float(ndtri(0.005 / len(ratio))) * spread + 0.1
    ok = bool(ratio[worst] >= 1.0 - allowed)
    observed, predicted = float(result["ess"][worst]), float(result["predicted_ess"][worst])
    words = f"{observed:.0f} effective draws in the parameter furthest from its prediction of {predicted:.0f}"
    return Check(
        "effective draws", predicted, observed, observed * spread, ok,
        words if ok else words + ": the chain mixes more slowly than predicted; ask for more draws",
    )  # fmt: skip


def _bias_check(result: dict[str, Array]) -> Check:
    gap = np.abs(result["shift"] - np.nan_to_num(result["predicted_shift"]))
    error, limit = result["shift_error"], -float(ndtri(0.005 / (2 * len(gap))))
    worst = int(np.argmax(np.abs(result["shift"])))
    predicted, observed = float(result["predicted_shift"][worst]), float(result["shift"][worst])
    surprising = bool(np.any((gap > limit * error) & (gap > _BIAS)))
    large = bool(np.any(np.abs(np.nan_to_num(result["predicted_shift"])) > _BIAS))
    if surprising:
        words = f"the mean is off by {observed:+.2f} standard deviations where {predicted:+.2f} was predicted"
    elif large:
        words = (
            f"the mean is shifted by {observed:+.2f} standard deviations, as predicted: the loss is not quadratic at the "
            "target's scale; read intervals around the estimate with that in mind"
        )
    else:
        words = f"the mean is within {np.abs(result['shift']).max():.2f} standard deviations of the minimiser"
    return Check("mean bias", predicted, observed, float(error[worst]), not (surprising or large), words)


def _shape_check(result: dict[str, Array]) -> Check:
    ess, limit = result["ess"], -float(ndtri(0.005 / (4 * len(result["ess"]))))
    shapes = np.stack([result["skewness"], result["kurtosis"]])
    errors = np.stack([np.sqrt(6.0 / ess), np.sqrt(24.0 / ess)])
    beyond = (np.abs(shapes) > limit * errors) & (np.abs(shapes) > _SHAPE)
    row, worst = np.unravel_index(int(np.argmax(np.abs(shapes) / errors)), shapes.shape)
    name = ("skewness", "excess kurtosis")[row]
    value = float(shapes[row, worst])
    words = f"{name} of {value:+.2f}" + (
        " beyond Monte Carlo error" if beyond.any() else " is what normal draws would show"
    )
    return Check("shape", 0.0, value, float(errors[row, worst]), not beyond.any(), words)


def _agreement_check(rhat: Array, ess: Array, count: int) -> Check:
    worst = float(rhat.max())
    # halves of a chain with e effective draws differ in mean by about 1/√e standard deviations: R̂² ≈ 1 + 1/e, spread alike
    half = max(1.0, float(ess.min()) / (2 * count))
    limit = max(_RHAT, float(np.sqrt(1.0 + 3.0 / half)))
    ok = worst < limit
    words = "the chains agree" if ok else "the chains disagree: ask for more draws"
    return Check("chains", 1.0, worst, limit - 1.0, ok, words)


def _guard_check(chains: Chains) -> Check:
    rate = chains.statistics["guard_rate"]
    ok = rate <= _GUARD
    words = f"the guard acted on {rate:.2%} of the steps" if rate else "the guard never acted"
    advice = "" if ok else ": the tails of this loss are felt; use a smaller batch or more data"
    return Check("guard", 0.0, rate, _GUARD, ok, words + advice)


def _verdict(checks: tuple[Check, ...], independent: bool) -> str:
    if independent:
        return "Draws are from N(estimate, target); no chain was run, so nothing beyond that law can show."
    more = [c.name for c in checks if c.name in {"covariance", "mean bias", "shape"} and not c.ok]
    if more:
        return f"The chain adds something over the Gaussian approximation: {', '.join(more)}."
    return "The chain agrees with N(estimate, target) within Monte Carlo error: the closed form would have been enough."


def _rhat(draws: Array) -> Array:
    """Split potential scale reduction: between-half against within-half variance."""
    count, length, dim = draws.shape
    half = length // 2
    if half < 2:
        return np.ones(dim)
    parts = draws[:, : 2 * half].reshape(2 * count, half, dim)
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = parts.mean(axis=1).var(axis=0, ddof=1)
    return np.sqrt((half - 1) / half + between / np.maximum(within, np.finfo(float).tiny))
