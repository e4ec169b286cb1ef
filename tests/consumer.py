"""An adopter's typed code: mypy checks it with the sources, and `make dist` against the installed wheel, where it also runs.

`assert_type` refuses `Any`: what the library hands out has a type of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import equipoise as eq

Floats = NDArray[np.float64]


def verbs(x: Floats, y: Floats, firm: NDArray[np.int64]) -> eq.Diagnosis:
    """The steps, one after the other."""
    rows = assert_type(eq.data.rows(x, y, clusters=firm), eq.data.Rows)
    problem = eq.bind(eq.glm("poisson"), rows)
    fit = assert_type(eq.fit(problem), eq.Fit)
    moments = assert_type(eq.moments(problem, fit), eq.Moments)
    assert_type(eq.sandwich(moments), Floats)
    assert_type(eq.robust(problem, fit, kind="CRV1"), Floats)
    dynamics = eq.Dynamics(batch_size=60, gradient="control-variate")
    tuning = assert_type(eq.tune(moments, "sandwich", dynamics, noise="completed"), eq.Tuning)
    law = assert_type(eq.stationary(moments, 0.1, eq.Dynamics(batch_size=20)), eq.Stationary)
    assert_type(law.spectral_radius, float)
    assert_type(law.cov, Floats)
    chains = assert_type(eq.sample(problem, tuning, draws=2000, chains=2, progress=False), eq.Chains)
    assert_type(chains.draws, Floats)
    return assert_type(eq.diagnose(chains, tuning), eq.Diagnosis)


def one_call(x: Floats, y: Floats) -> eq.Calibration:
    """The same at once, and what comes after."""
    plan = assert_type(eq.plan(eq.glm("poisson"), (x, y)), eq.Plan)
    assert_type(plan.tuning, eq.Tuning)
    cal = assert_type(eq.calibrate(eq.glm("poisson"), (x, y), target="HC3", progress=False), eq.Calibration)
    assert_type(cal.vcov("HC0"), Floats)
    assert_type(cal.to_json(level=0.9, method="closed"), str)
    assert_type(cal.predict(x[:3], to="predicted.csv"), Path)
    assert_type(cal.report("report.html"), Path)
    cal.tidy(0.9, kind="HC1", exponentiate=True)
    try:
        cal.tidy(0.9, clutsers=y)  # type: ignore[call-arg]  # which mypy would call unused, did it not see the misspelling
    except eq.InvalidInput as error:
        assert_type(error.remedy, str)
    return cal


def main() -> None:
    """Run both on a few rows."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(300), rng.normal(size=300)])
    y = rng.poisson(np.exp(x @ [0.5, 0.3])).astype(np.float64)
    print("status:", verbs(x, y, np.repeat(np.arange(30), 10)).status)
    print(one_call(x, y).summary())


if __name__ == "__main__":
    main()
