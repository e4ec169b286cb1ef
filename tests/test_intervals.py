"""Intervals in small samples: what the chain's own bias costs, and that recentring takes it back."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from benchmarks import recentred_coverage as study


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    """A small version of the study: well-specified logit, 40 rows."""
    return study.study("bernoulli", 40, "sandwich", replicates=250, ess=800)


def test_recentred_intervals_cover_more_often(found) -> None:
    # 1500 data sets: 91.5 % for the draws, 95.5 % recentred, a difference of 4.0 ± 0.3 points
    gain = found["recentred - draws"]
    assert gain["mean"] > 2.5 * gain["error"]
    assert found["recentred"]["mean"] > found["draws"]["mean"]
    assert abs(found["recentred"]["mean"] - 0.955) < 4.0 * found["recentred"]["error"]
    # and the draws are no better than estimate ± z·se
    assert found["normal - draws"]["mean"] > 0.0


def test_misses_lie_behind_the_shift(found) -> None:
    behind = {kind: found[kind]["missed behind"] / found[kind]["missed"] for kind in study.KINDS}
    assert behind["draws"] > 0.8
    assert found["recentred"]["missed behind"] < 0.7 * found["draws"]["missed behind"]


def test_the_shift_is_where_it_was_predicted() -> None:
    data = study.simulate("bernoulli", 60, np.random.default_rng(2))
    cal = eq.calibrate(eq.glm("bernoulli"), data, ess=20_000, progress=False)
    d = cal.diagnosis
    assert np.abs(d.predicted_shift).max() > 0.15
    moved = cal.intervals(0.5, recentred=True)
    middle = (0.5 * (moved["lower"] + moved["upper"]) - moved["estimate"]) / np.sqrt(np.diag(cal.tuning.target))
    plain = cal.intervals(0.5)
    before = (0.5 * (plain["lower"] + plain["upper"]) - plain["estimate"]) / np.sqrt(np.diag(cal.tuning.target))
    # the median of a skewed law is not its mean: what remains is a third of the shift at most
    assert np.abs(middle).max() < 0.34 * np.abs(before).max()


def test_control_recentring_the_wrong_way_covers_less_often() -> None:
    hits = {1.0: [], -1.0: []}
    for k in range(80):
        data = study.simulate("bernoulli", 40, np.random.default_rng([k, 40]))
        try:
            cal = eq.calibrate(eq.glm("bernoulli"), data, ess=400, seed=k, progress=False)
        except eq.FitFailed:
            continue
        frame, bias = cal.intervals(), cal.tuning.predicted.mean_bias
        for sign, found in hits.items():
            inside = (frame["lower"] - sign * bias <= study.TRUTH["bernoulli"]) & (
                study.TRUTH["bernoulli"] <= frame["upper"] - sign * bias
            )
            found.append(inside.mean())
    right, wrong = (np.array(hits[sign]) for sign in (1.0, -1.0))
    gap = right - wrong
    assert gap.mean() > 3.0 * gap.std(ddof=1) / np.sqrt(len(gap))
