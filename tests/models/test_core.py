"""Rows that stand for all: how many are kept, and that they have the sums of all."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.models.core import Chances, lots, standing

SIZES = {
    "normal": lambda rng, n: rng.chisquare(11, n),
    "heavy": lambda rng, n: rng.standard_t(2.5, n) ** 2,
    "alike": lambda rng, n: np.full(n, 3.0),
    "factor": lambda rng, n: 1.0 + rng.integers(0, 5, n),
    # as of a Huber loss, which does not bend for outliers
    "clipped": lambda rng, n: np.where(rng.random(n) < 0.3, 0.0, rng.chisquare(11, n)),
}


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("n", [10**5, 10**7, 10**10])
def test_as_many_rows_are_kept_of_any_number(kind, n) -> None:
    """More rows than the sample has are larger than all of it: their number must not grow with n."""
    some, others = (SIZES[kind](np.random.default_rng(seed), 1 << 15) for seed in (0, 1))
    kept = n * float(np.mean(Chances.of(some, n)(others)))
    # 32,768 by their size and 8192 alike, as far as 2¹⁵ rows tell: the heavy ones' mean v² is infinite
    assert 0.8 * 2**15 < kept < (3.0 if kind == "heavy" else 1.1) * (2**15 + 2**13)


@pytest.mark.parametrize("kind", list(SIZES))
def test_kept_rows_have_the_sums_of_all(kind) -> None:
    n = 2_000_000
    rng = np.random.default_rng(2)
    v, mark = SIZES[kind](rng, n), rng.normal(size=n)
    chances = Chances.of(v[: 1 << 15], n)
    chance = chances(v)
    kept = lots(v) < chance
    times = standing(np.ones(kept.sum()), chance[kept], n)
    assert times.sum() == pytest.approx(n)
    for f in (v, v**2, v * mark**2):
        # the sum's variance over which rows are kept: Σ f² (1/p − 1)
        error = np.sqrt(np.sum(f**2 * (1.0 / chance - 1.0)))
        assert abs(times @ f[kept] - f.sum()) < 4.0 * error
    # sizes decide which: half of the chances keep rows whose sum is off
    halved = lots(v) < 0.5 * chance
    assert abs(np.sum(v[halved] / chance[halved]) - v.sum()) > 20.0 * np.sqrt(np.sum(v**2 * (1.0 / chance - 1.0)))
