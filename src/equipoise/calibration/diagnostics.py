"""Diagnosis: predicted against observed, each check with its Monte Carlo error and a status in words (theory §6, §7)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from equipoise.arrays import Array
from equipoise.calibration.autocorrelation import autocorrelation_time
from equipoise.calibration.comparison import compare
from equipoise.calibration.judgement import Check, Status, carries_shape, flags, judge, verdict
from equipoise.cards import Card, html_table
from equipoise.checks import checked_options, instance, one_of
from equipoise.errors import InvalidInput
from equipoise.linalg import in_fixed_order
from equipoise.sampling.chains import Chains
from equipoise.sampling.halving import HalfStep
from equipoise.theory.tuning import Tuning

__all__ = ["Check", "Diagnosis", "autocorrelation_time", "diagnose"]


@dataclass(frozen=True, repr=False)
class Diagnosis(Card):
    """Predicted against observed.

    Attributes
    ----------
    checks
        Covariance, target, effective draws, mean bias, joint mean, shape, half step (where such a run was made), chains
        (their agreement), guard.
    flags
        What stands out in each parameter: bias, spread, target, skew, chains.
    names
        Parameter names.
    cov
        Observed covariance.
    shift, predicted_shift, shift_error
        Mean of the draws minus the minimiser, in predicted standard deviations: observed, predicted, and its error.
    sd_ratio, spread_error
        Observed over predicted standard deviation, by parameter, and its Monte Carlo error.
    target_ratio
        Predicted standard deviation over the target's, by parameter: 1 unless the step's form is restricted.
    ess, predicted_ess
        Effective draws by parameter.
    rhat, skewness, predicted_skewness, skewness_error, kurtosis
        By parameter; the predicted skewness is NaN where it is not known.
    verdict
        What is known of the run, and what is not.
    carries_shape
        Whether the draws have a posterior's shape that N(estimate, target) lacks, by as much as matters: tables then
        print their quantiles, otherwise estimate ± z·se.
    """

    checks: tuple[Check, ...]
    flags: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    cov: Array
    shift: Array
    predicted_shift: Array
    shift_error: Array
    sd_ratio: Array
    spread_error: Array
    target_ratio: Array
    ess: Array
    predicted_ess: Array
    rhat: Array
    skewness: Array
    predicted_skewness: Array
    skewness_error: Array
    kurtosis: Array
    verdict: str
    carries_shape: bool = False

    @property
    def status(self) -> Status:
        """`"look"` if any check asks for a look, else `"unknown"` if any cannot tell, else `"ok"`."""
        found = {check.status for check in self.checks}
        return "look" if "look" in found else "unknown" if "unknown" in found else "ok"

    @property
    def ok(self) -> bool:
        """Whether every check could be made and passed; False also where one cannot tell, which `status` keeps apart."""
        return self.status == "ok"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The words of the checks that ask for a look."""
        return tuple(check.words for check in self.checks if check.status == "look")

    @property
    def undecided(self) -> tuple[str, ...]:
        """The words of the checks that cannot tell."""
        return tuple(check.words for check in self.checks if check.status == "unknown")

    def check(self, name: str) -> Check:
        """One check by its name."""
        by_name = {check.name: check for check in self.checks}
        return by_name[one_of("name", name, tuple(by_name))]

    def __repr__(self) -> str:
        off = ", ".join(c.name for c in self.checks if not c.ok)
        return f"Diagnosis(status={self.status}, {len(self.checks)} checks{f', not ok: {off}' if off else ''})"

    def _repr_html_(self) -> str:
        rows = [
            [c.name, c.mark, f"{c.predicted:.4g}", f"{c.observed:.4g}", f"{c.error:.2g}", c.words] for c in self.checks
        ]
        heads = ("check", "", "predicted", "observed", "±", "in words")
        return f"{html_table(heads, rows, 'Diagnosis')}<p>{escape(self.verdict)}</p>"

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"{c.mark:<4}  {c.name:<{width}}  predicted {c.predicted:>9.4g}  observed {c.observed:>9.4g}  "
            f"± {c.error:<8.2g}  {c.words}"
            for c in self.checks
        ]
        return "\n".join([*lines, self.verdict])


@checked_options
@in_fixed_order  # its products are small: threads that wait for one another cost more than they save
def diagnose(chains: Chains, tuning: Tuning, *, half_step: HalfStep | None = None) -> Diagnosis:
    """Compare what the theory predicted with what the chains did.

    Parameters
    ----------
    chains, tuning
        The draws, and the tuning they were made with.
    half_step
        What a run at half the step shows, for draws that are to have a posterior's shape: `Calibration.half_step`.

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
    if half_step is not None:
        instance("half_step", half_step, HalfStep, "leave it out")
    c = compare(chains, tuning, half_step)
    checks = judge(c)
    return Diagnosis(
        checks=checks,
        flags=flags(c),
        names=c.names,
        cov=c.observed.cov,
        shift=c.shift,
        predicted_shift=c.predicted_shift,
        shift_error=c.shift_error,
        sd_ratio=c.sd_ratio,
        spread_error=c.spread_error,
        target_ratio=c.target_ratio,
        ess=c.observed.ess,
        predicted_ess=c.observed.draws / c.expected.tau,
        rhat=c.observed.rhat,
        skewness=c.observed.skewness,
        predicted_skewness=c.expected.skewness,
        skewness_error=c.skewness_error,
        kurtosis=c.observed.kurtosis,
        verdict=verdict(c, checks),
        carries_shape=carries_shape(c),
    )
