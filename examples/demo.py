"""Doctor visits in the RAND health insurance experiment: intervals that hold although the model is wrong.

Counts of doctor visits vary far more than a Poisson law allows. The Poisson estimates are still good, but the posterior
that goes with them is much too sure of itself. Here the same model is calibrated to the sandwich covariance instead: a
stochastic-gradient chain whose step and noise are computed, not tuned by hand, so that its draws have exactly that spread.

Run it with `make demo`. The rows are treated as independent; the experiment followed people over years, so a study of
its own would also cluster by person.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.api as sm

import equipoise as eq

OUT = Path("out")
FORMULA = "visits ~ coinsurance + individual_deductible + limitation + diseases + C(health)"


def doctor_visits() -> pd.DataFrame:
    """20,190 person-years; ships with statsmodels."""
    raw = sm.datasets.randhie.load_pandas().data
    health = np.select([raw.hlthp == 1, raw.hlthf == 1, raw.hlthg == 1], ["poor", "fair", "good"], "excellent")
    return pd.DataFrame(
        {
            "visits": raw.mdvis,
            "coinsurance": raw.lncoins,  # log of the share of the bill the patient pays, plus 1
            "individual_deductible": raw.idp,
            "limitation": raw.physlm,  # physical limitation
            "diseases": raw.disea,  # number of chronic diseases
            "health": health,  # self-rated
        }
    )


def main() -> None:
    """Plan, sample, compare, and write the report."""
    visits = doctor_visits()
    mean, variance = visits.visits.mean(), visits.visits.var()
    print(f"{len(visits):,} rows. Visits have mean {mean:.1f} and variance {variance:.1f}; Poisson needs them equal.\n")

    model = eq.glm("poisson")
    print("What the run will cost, known before the first step:\n")
    print(eq.plan(model, visits, target="sandwich", ess=2000, formula=FORMULA), "\n")

    cal = eq.calibrate(model, visits, target="sandwich", ess=2000, formula=FORMULA)
    print(cal.summary(), "\n")

    moments = cal.plan.moments
    spread = pd.DataFrame(
        {
            "posterior sd": np.sqrt(np.diag(eq.posterior(moments))),
            "sandwich sd": np.sqrt(np.diag(eq.sandwich(moments))),
            "sd of the draws": cal.chains.flat().std(axis=0),
        },
        index=pd.Index(cal.names),
    )
    spread["posterior/sandwich"] = spread["posterior sd"] / spread["sandwich sd"]
    print(spread.round(4).to_string(), "\n")
    print(
        f"The posterior's intervals are {1 / spread['posterior/sandwich'].median():.1f} times too narrow; "
        "the draws have the sandwich's spread.\n"
    )

    new = pd.DataFrame(
        {
            "coinsurance": [0.0, np.log(96.0)],  # free care, and paying 95 % of the bill
            "individual_deductible": 0,
            "limitation": 0.0,
            "diseases": 10.0,
            "health": "good",
        },
        index=pd.Index(["free care", "pays 95 %"]),
    )
    print("Expected visits a year, with 90 % intervals:\n")
    print(cal.predict(new, interval=0.9).round(2).to_string(), "\n")

    print(f"report: {cal.report(OUT / 'demo.html')}   (open it in a browser)")
    print(f"run:    {cal.save(OUT / 'demo.eqz')}    (equipoise.load reads it back)")


if __name__ == "__main__":
    main()
