"""The criterion of the tests of real chains, the same for every one of them and every negative control.

The relative Frobenius error of the empirical covariance is at most 1.5 Monte Carlo floors (the root mean square of that error
for a chain that is exactly right) plus 2 %, an allowance for what the quadratic proxy leaves out at N = 1000.
"""

from __future__ import annotations

import numpy as np

import equipoise as eq


def excess(model, data, tuning, law=None, seed=7, *, goal: float) -> float:
    """Relative covariance error of a real chain, over what the criterion allows: at most 1 is a pass.

    Chains are as long as a floor of `goal` takes.
    """
    law = tuning.predicted if law is None else law
    thin = max(1, int(law.iact() // 5))
    # the floor falls with the square root of the number of draws
    draws = int(np.ceil(1000 * (law.covariance_floor(1000, thin) / goal) ** 2 / 2))
    chains = eq.sample(model, data, tuning, draws=draws, chains=2, seed=seed, thin=thin, progress=False, threads=1)
    floor = law.covariance_floor(2 * draws, thin)
    assert floor <= goal * 1.001
    error = np.linalg.norm(np.cov(chains.flat(), rowvar=False) - tuning.target) / np.linalg.norm(tuning.target)
    return float(error / (1.5 * floor + 0.02))
