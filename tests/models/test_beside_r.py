"""Covariances beside R's sandwich package itself, where R is installed (Debian: r-cran-sandwich)."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import equipoise as eq

N, FAMILIES = 500, {"poisson": "poisson", "bernoulli": "binomial", "gaussian": "gaussian"}
KINDS = ("HC0", "HC1", "HC2", "HC3", "CRV1", "CRV1-twice", "CRV3", "HAC")
SCRIPT = """
library(sandwich)
rows <- read.csv("rows.csv")
say <- function(...) cat(..., "\n")
for (family in c("poisson", "binomial", "gaussian")) {
  tight <- glm.control(epsilon = 1e-15, maxit = 100)
  fit <- glm(reformulate(c("a", "b"), family), family, rows, control = tight)
  errors <- function(cov) format(sqrt(diag(cov)), digits = 17)
  for (kind in c("HC0", "HC1", "HC2", "HC3")) say(family, kind, errors(vcovHC(fit, type = kind)))
  say(family, "CRV1", errors(vcovCL(fit, ~ firm, type = "HC1")))
  say(family, "CRV1-twice", errors(vcovCL(fit, ~ firm + year, type = "HC1")))
  say(family, "CRV3", errors(vcovCL(fit, ~ firm, type = "HC3", cadjust = FALSE)))
  say(family, "HAC", errors(NeweyWest(fit, lag = 4, prewhite = FALSE, adjust = FALSE)))
}
"""


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame({"a": rng.normal(size=N), "b": rng.exponential(size=N), "when": np.arange(N)})
    made["firm"], made["year"] = rng.integers(0, 30, N), rng.integers(0, 12, N)
    mean = np.exp(0.2 + 0.3 * made.a - 0.2 * made.b + 0.3 * rng.normal(size=30)[made.firm])
    made["poisson"], made["gaussian"] = rng.poisson(mean), mean + rng.normal(size=N)
    return made.assign(binomial=(rng.random(N) < mean / (1.0 + mean)).astype(int))


@pytest.fixture(scope="module")
def theirs(frame, tmp_path_factory) -> dict[tuple[str, str], np.ndarray]:
    """Standard errors by R, by family and kind."""
    if shutil.which("Rscript") is None:
        pytest.skip("needs R (Debian: apt install r-cran-sandwich)")
    folder = tmp_path_factory.mktemp("r")
    (folder / "script.R").write_text(SCRIPT)
    frame.to_csv(folder / "rows.csv", index=False, float_format="%.17g")
    done = subprocess.run(["Rscript", "script.R"], capture_output=True, text=True, cwd=folder, check=False)
    if "no package called" in done.stderr:
        pytest.skip("needs R's sandwich (Debian: apt install r-cran-sandwich)")
    assert done.returncode == 0, done.stderr
    lines = (line.split() for line in done.stdout.splitlines())
    return {(family, kind): np.array(errors, dtype=float) for family, kind, *errors in lines}


# a fit without a cluster is approximated, and not alike, but for least squares
CASES = [(family, kind) for family in FAMILIES for kind in KINDS if family == "gaussian" or kind != "CRV3"]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_standard_errors_are_those_of_r(family, kind, frame, theirs) -> None:
    name, clusters = kind.removesuffix("-twice"), ["firm", "year"] if kind.endswith("twice") else "firm"
    problem = eq.bind(eq.glm(family), frame, formula=f"{FAMILIES[family]} ~ a + b", clusters=clusters, time="when")
    options = {"lags": 4} if name == "HAC" else {}
    ours = np.sqrt(np.diag(eq.robust(problem, eq.fit(problem), kind=name, **options)))
    # R's own fit stops at 1e-11 of a standard error for counts
    np.testing.assert_allclose(ours, theirs[FAMILIES[family], kind], rtol=1e-9)
