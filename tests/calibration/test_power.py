"""What a diagnosis can tell: runs that are right are flagged at the nominal rate, runs too short say what they need."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import equipoise as eq
from equipoise.calibration.comparison import compare
from equipoise.calibration.expectation import expect
from equipoise.calibration.thresholds import ALARM
from tests.test_diagnostics import CHECKS, changed, looks, synthetic, tuned


def asked(words: str) -> int:
    """How many draws a check says it takes."""
    return int(words.split("takes ")[1].split(" draws")[0].replace(",", ""))


@pytest.mark.parametrize(
    ("dim", "step", "thin", "length"), [(1, None, 1, 1000), (3, None, 2, 800), (6, None, 1, 1500), (3, 0.02, 8, 700)]
)
def test_exact_chains_are_flagged_at_the_nominal_rate(dim, step, thin, length) -> None:
    runs, tuning = 250, tuned(dim=dim, step=step)[2]
    counts = dict.fromkeys(CHECKS, 0)
    flagged, chances = 0, []
    for seed in range(runs):
        chains = synthetic(tuning, np.random.default_rng([seed, dim]), 2, length, thin)
        for name in looks(chains, tuning):
            counts[name] += 1
        flagged += any(eq.diagnose(chains, tuning).flags)
        chances.append(compare(chains, tuning).joint_shift.chance)
    # as many as a coin that falls this way with probability ALARM would give in all but one of a thousand such tests
    most = stats.binom.isf(1e-3, runs, ALARM)
    assert max(counts.values()) <= most, counts
    # four kinds of flags
    assert flagged <= stats.binom.isf(1e-3, runs, 4 * ALARM)
    # the joint statistic is χ²: its probabilities are uniform
    assert stats.kstest(chances, "uniform").pvalue > 1e-3


def test_exact_engine_chains_are_flagged_at_the_nominal_rate() -> None:
    runs, (model, data, tuning) = 200, tuned(dim=4)
    counts, chances = dict.fromkeys(CHECKS, 0), []
    for seed in range(runs):
        chains = eq.sample(model, data, tuning, draws=800, chains=2, seed=seed, thin=1, progress=False)
        # the shape of this chain is not normal: the noise of a gradient has tails
        for name in looks(chains, tuning) - {"shape"}:
            counts[name] += 1
        chances.append(compare(chains, tuning).joint_shift.chance)
    assert max(counts.values()) <= stats.binom.isf(1e-3, runs, ALARM), counts
    assert stats.kstest(chances, "uniform").pvalue > 1e-3


def test_covariance_errors_have_the_predicted_size_and_degrees() -> None:
    tuning = tuned(dim=3, step=0.02)[2]
    runs = [synthetic(tuning, np.random.default_rng([8, s]), 2, 1500, 4) for s in range(400)]
    errors = np.array([eq.diagnose(c, tuning).check("covariance").observed for c in runs])
    expected = expect(runs[0], tuning)
    ratio = (errors / expected.floor) ** 2
    nu = expected.degrees
    # mean 1 and variance 2/ν of χ²_ν/ν; its kurtosis is 12/ν
    assert abs(ratio.mean() - 1.0) < 4.0 * np.sqrt(2.0 / nu / 400)
    assert ratio.var() == pytest.approx(2.0 / nu, rel=4.0 * np.sqrt((2.0 + 12.0 / nu) / 400) + 0.1)


def test_a_run_too_short_to_tell_says_so() -> None:
    tuning = tuned(dim=6)[2]
    short = synthetic(tuning, np.random.default_rng(3), 2, 100)
    found = eq.diagnose(short, tuning)
    check = found.check("covariance")
    assert check.error > 0.3
    assert check.status == "unknown"
    assert check.mark == "?"
    # neither a failure nor an ok
    assert not check.ok
    assert (found.status, found.ok, found.warnings) == ("unknown", False, ())
    assert check.words in found.undecided
    needed = asked(check.words)
    assert expect(synthetic(tuning, np.random.default_rng(3), 1, needed), tuning).floor < 0.3
    assert "as far as this run can tell" in found.verdict
    assert "?     covariance" in str(found)
    # what is far off is seen by a short run as well
    assert "covariance" in looks(changed(short, tuning, lambda e: 3.0 * e), tuning)
    tiny = synthetic(tuning, np.random.default_rng(3), 1, 3)
    assert eq.diagnose(tiny, tuning).check("chains").status == "unknown"
    assert eq.diagnose(tiny, tuning).check("mean bias").status == "unknown"


@pytest.mark.parametrize("length", [3, 30, 120])
def test_no_check_is_ok_without_power_and_each_says_how_many_draws_it_takes(length) -> None:
    """Every check but the guard's, which is a count; in the table, the summary's lines and the report's words."""
    tuning = tuned(dim=6)[2]
    found = eq.diagnose(synthetic(tuning, np.random.default_rng(5), 1, length), tuning)
    measured = [check for check in found.checks if check.name != "guard"]
    for check in measured:
        relative = check.error / check.observed if check.name == "effective draws" else check.error
        if check.status == "unknown":
            assert "cannot tell" in check.words, check.words
            needed = asked(check.words)
            assert needed > length, check.words
            assert f"instead of {length:,}" in check.words
        else:
            assert relative <= 0.3, str(check)
    assert found.status == "unknown"
    assert not found.ok


def test_the_draws_that_a_check_asks_for_give_it_power() -> None:
    tuning = tuned(dim=6)[2]
    short = eq.diagnose(synthetic(tuning, np.random.default_rng(5), 1, 60), tuning)
    wanted = [asked(words) for words in short.undecided]
    assert len(wanted) >= 4
    # twice as many: how long the chain remembers is itself observed
    enough = eq.diagnose(synthetic(tuning, np.random.default_rng(6), 1, 2 * max(wanted)), tuning)
    assert enough.undecided == (), str(enough)
