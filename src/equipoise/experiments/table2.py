"""Table 2: the same regressions on the Boston housing data."""

from __future__ import annotations

from equipoise.experiments.designs import boston
from equipoise.experiments.entry import Curves, Entry, Job, Result, Scale
from equipoise.experiments.measure import compare_rules
from equipoise.experiments.numbers import Claim, Numbers, tell
from equipoise.experiments.rules import CLOSED
from equipoise.experiments.table1 import LONG_FLOOR, LONG_RULES, PRINTED_RULES, claims_of_rules

__all__ = ["ENTRY"]


def jobs(scale: Scale) -> list[Job]:
    """Repetitions differ in the seed of the chains; the data are what they are."""
    counts = {"printed": scale.repetitions, "long": scale.pick(3, 1)}
    return [
        {"run": run, "loss": loss, "repetition": r}
        for run, count in counts.items()
        for loss in PRINTED_RULES
        for r in range(count)
    ]


def run(job: Job, scale: Scale) -> Result:
    """A chain for every rule and batch size."""
    study, seed = boston(job["loss"]), 1000 * scale.seed + job["repetition"]
    sizes = {"16": 16, "0.1N": study.rows // 10}
    key = {"run": job["run"]}
    if job["run"] == "printed":
        # what does not depend on the seed is measured once, NUTS a few times
        most = {"posterior": 1, "sandwich-gaussian": 1, "nuts": scale.pick(3, 1)}
        rules = tuple(r for r in PRINTED_RULES[study.loss] if job["repetition"] < most.get(r, scale.repetitions))
        return {"rows": compare_rules(study, rules, sizes, seed, key, passes=scale.pick(None, 100))}
    sizes["0.5N"] = study.rows // 2
    rules = LONG_RULES if study.loss == "log" else (*LONG_RULES, CLOSED)
    return {"rows": compare_rules(study, rules, sizes, seed, key, floor=scale.pick(LONG_FLOOR, 0.08))}


def claims(numbers: Numbers, _: list[Curves]) -> list[Claim]:
    """What the table is said to show."""
    found = []
    for loss in PRINTED_RULES:
        found += claims_of_rules(numbers.where(loss=loss), f"Boston, {loss} loss")
    log = numbers.where(loss="log", run="printed", metric="covariance_error", batch="16")
    estimated, assumed = log.at(method="lr-ws"), log.at(method="lr-ws-model")
    if estimated is not None and assumed is not None:
        found.append(
            Claim(
                "lr-ws is unstable on this data, with errors of 10⁷ to 10⁹.",
                "holds in part" if assumed.mean > 1e3 and estimated.mean < 10 else "does not hold",
                f"Only when the noise is the one the model assumes: {tell(assumed)}. With the residual variance, which the "
                f"rule's own derivation calls for, the error is {tell(estimated)}.",
            )
        )
    return found


ENTRY = Entry(
    name="table2",
    title="Table 2: robust linear regression, Boston housing",
    caption=(
        "506 rows, twelve standardised covariates, no intercept; working scale from the least-squares residuals. "
        "Chains of 500 passes, half discarded."
    ),
    jobs=jobs,
    run=run,
    claims=claims,
)
