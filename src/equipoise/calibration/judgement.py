"""What a comparison means: checks with a status and words, flags by parameter, and the verdict (theory §6, §7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.arrays import Array, Mask
from equipoise.calibration.comparison import Comparison, distance, worst_direction
from equipoise.calibration.thresholds import (
    ALARM,
    BIAS,
    COVARIANCE,
    GUARD,
    LAPLACE,
    MIXING,
    POWER,
    SEEN,
    SHAPE,
    TARGET,
    sigmas,
)
from equipoise.cards import Card

__all__ = ["Check", "Status", "carries_shape", "flags", "judge", "verdict"]

Status = Literal["ok", "look", "unknown"]
_MARKS: dict[Status, str] = {"ok": "ok", "look": "LOOK", "unknown": "?"}
_SHOWN = 3  # parameters of a direction that are named
_PART = 0.4  # and how large a part in it they must have
_OWN = "the chain follows the posterior itself"


@dataclass(frozen=True, repr=False)
class Check(Card):
    """One comparison: what was predicted, what was observed, the Monte Carlo error, and what it means.

    Attributes
    ----------
    name
        What was compared.
    predicted, observed, error
        The two numbers, and the Monte Carlo error or the tolerance.
    status
        `"ok"`; `"look"` when something is off; `"unknown"` when this run cannot tell.
    words
        What it means, for people.
    """

    name: str
    predicted: float
    observed: float
    error: float
    status: Status
    words: str

    @property
    def ok(self) -> bool:
        """Whether the comparison could be made and nothing is off."""
        return self.status == "ok"

    @property
    def mark(self) -> str:
        """The status as tables show it."""
        return _MARKS[self.status]


def judge(c: Comparison) -> tuple[Check, ...]:
    """Every check of a run, in the order in which they are read."""
    halved = (_half_step,) if c.halving is not None else ()
    made = (_covariance, _target, _effective_draws, _mean_bias, _joint_mean, _shape, *halved, _chains, _guard)
    return tuple(check(c) for check in made)


def flags(c: Comparison) -> tuple[tuple[str, ...], ...]:
    """What stands out in each parameter, by the checks' own thresholds."""
    limit, posterior = sigmas(len(c.names)), c.expected.posterior
    shift = c.surprise if posterior else c.shift
    spread = np.abs(c.sd_ratio - 1.0)
    excused = LAPLACE if posterior else COVARIANCE
    found: dict[str, Mask] = {
        "bias": (np.abs(shift) > BIAS) & (np.abs(shift) > limit * c.cautious_shift_error),
        # a standard deviation is off by half of what its variance is
        "spread": spread > 0.5 * excused + limit * c.cautious_spread_error,
        "target": np.abs(c.target_ratio - 1.0) > 0.5 * TARGET,
        "skew": _beyond(c.skewness_gap, c.skewness_error, np.inf if posterior else limit),
        "chains": c.observed.rhat >= c.rhat_limit,
    }
    return tuple(tuple(word for word, raised in found.items() if raised[j]) for j in range(len(c.names)))


def carries_shape(c: Comparison) -> bool:
    """Whether the draws have a posterior's shape that N(estimate, target) lacks, by as much as matters in an interval.

    A skewness of 0.2 moves the end of a 95 % interval by a tenth of a standard deviation, as such a shift of the mean
    does. What was not predicted counts where it is beyond Monte Carlo error.
    """
    if c.independent or not c.expected.posterior or (c.halving is not None and _half_step(c).status == "look"):
        return False
    limit = sigmas(3 * len(c.names))
    moved = np.abs(c.shift) > np.maximum(BIAS, limit * c.cautious_shift_error)
    spread = np.abs(c.sd_ratio - 1.0) > np.maximum(0.5 * TARGET, limit * c.cautious_spread_error)
    told = (np.abs(c.expected.skewness) > SHAPE) | (np.abs(c.predicted_shift) > BIAS)
    return bool((moved | spread | told | _beyond(c.observed.skewness, c.skewness_error, limit)).any())


def verdict(c: Comparison, checks: tuple[Check, ...]) -> str:
    """What is known of the run, and what is not."""
    if c.independent:
        return "Draws are from N(estimate, target); no chain was run, so nothing beyond that law can show."
    about = [check for check in checks if check.name in {"covariance", "target", "mean bias", "joint mean"}]
    off = ", ".join(check.name for check in about if check.status == "look")
    if off:
        known = f"The draws are not those of N(estimate, target): see {off}."
    elif any(check.status == "unknown" for check in about):
        known = "Nothing is off in covariance and mean as far as this run can tell."
    elif c.expected.posterior:
        known = "Covariance and mean of the draws are as predicted."
    else:
        known = "Covariance and mean of the draws are those of N(estimate, target) within Monte Carlo error."
    if c.halving is not None and _half_step(c).status == "look":
        return f"{known} The shape of the draws has not settled: see half step."
    if c.expected.posterior and not carries_shape(c):
        return f"{known} Their shape adds nothing that matters to N(estimate, target): read estimate ± z·se."
    if c.expected.posterior and _steady(c):
        return f"{known} The draws carry the posterior's shape, which N(estimate, target) lacks: read their quantiles."
    if c.expected.posterior:
        return f"{known} With noise at the posterior's own temperature {_OWN}, shape included."
    return f"{known} Skewness and tails of the draws come from the sampler: for quantiles take estimate ± z·se."


def _covariance(c: Comparison) -> Check:
    floor, noise = c.tails * c.expected.floor, c.tails * c.expected.covariance_limit
    error = distance(c.observed.cov, c.expected.cov)
    law = "Laplace approximation it was tuned to" if c.expected.posterior else "prediction"
    told = f"covariance is {error:.1%} from the {law}"
    beyond = f"{told}, beyond Monte Carlo error ({floor:.1%})"
    status: Status
    if error > noise + COVARIANCE and c.expected.posterior and _steady(c):
        status, words = "ok", f"{beyond}: what the draws add to it, and a run at half the step shows the same"
    elif error > noise + COVARIANCE and c.expected.posterior and error <= noise + LAPLACE:
        status, words = "unknown", f"{beyond}: {_OWN}, whose covariance may be just that"
    elif error > noise + COVARIANCE:
        status, words = "look", f"{beyond}: {_cause(c)}"
    elif floor > POWER:
        status, words = "unknown", f"{told}: {_too_few(c, floor, 'makes it')}"
    elif error > noise:
        status, words = "ok", f"{told}, little more than Monte Carlo error alone would make it ({floor:.1%})"
    else:
        status, words = "ok", f"{told}, as Monte Carlo error alone would make it ({floor:.1%})"
    return Check("covariance", 0.0, error, floor, status, words)


def _cause(c: Comparison) -> str:
    if c.independent:
        return "the draws are not from the law they are compared with"
    return (
        "the loss is not quadratic at this scale, or the draws are not of this tuning; against the first, refine=True "
        "corrects the step, and more rows or a smaller batch help"
    )


def _target(c: Comparison) -> Check:
    target = c.expected.target
    predicted, observed = distance(c.expected.cov, target), distance(c.observed.cov, target)
    scale = c.tails * c.target_scale
    floor, limit = scale * c.expected.floor, scale * c.expected.covariance_limit
    status: Status
    if predicted > TARGET:
        step = f"the best {c.structure} step" if c.structure in {"scalar", "diagonal"} else "this step"
        status, words = "look", f"{step} cannot reach this target: {_interval(c, c.expected.cov)}"
    elif observed > limit + (LAPLACE if c.expected.posterior else TARGET) and not (c.expected.posterior and _steady(c)):
        status, words = "look", f"the draws miss the target: {_interval(c, c.observed.cov)}"
    elif floor > POWER:
        status, words = "unknown", f"the step can reach it; {_too_few(c, floor, 'makes it')}"
    else:
        status, words = "ok", f"the draws' covariance is {observed:.1%} from the target (Monte Carlo error {floor:.1%})"
    return Check("target", predicted, observed, floor, status, words)


def _interval(c: Comparison, cov: Array) -> str:
    """What is furthest from what it should be: the interval of a parameter, and that of a combination where it is worse."""
    ratio = np.sqrt(np.diag(cov) / np.diag(c.expected.target))
    worst = int(np.argmax(np.abs(np.log(ratio))))
    words = f"{c.names[worst]}'s interval is {ratio[worst]:.2f} of what it should be"
    joint, part = worst_direction(cov, c.expected.target)
    if abs(np.log(joint)) <= abs(np.log(ratio[worst])) + TARGET:
        return words
    return f"{words}, that of a combination of parameters (mainly {_parameters(c, part)}) {joint:.2f}"


def _too_few(c: Comparison, error: float, does: str, most: float = POWER, unit: str = "") -> str:
    """What to say where Monte Carlo error leaves a check without power: relative, or in a unit."""
    draws = c.observed.draws
    if not np.isfinite(error):
        return "cannot tell: these draws have no variance to speak of"
    has, limit = (f"{error:.2g} {unit}", f"{most:.2g}") if unit else (f"{error:.0%}", f"{most:.0%}")
    return (
        f"cannot tell, because Monte Carlo error alone {does} {has}; to bring that to {limit} takes "
        f"{np.ceil(draws * (error / most) ** 2):,.0f} draws instead of {draws:,}"
    )


def _effective_draws(c: Comparison) -> Check:
    ratio = c.expected.tau / c.observed.tau
    worst = int(np.argmin(ratio))
    spread = float(c.time_error[worst])
    allowed = sigmas(len(ratio)) * spread + MIXING
    observed, predicted = float(c.observed.ess[worst]), float(c.observed.draws / c.expected.tau[worst])
    words = f"{observed:.0f} effective draws in the parameter furthest from its prediction of {predicted:.0f}"
    # the time, not its inverse, has symmetric errors
    if 1.0 / ratio[worst] > 1.0 + allowed:
        status: Status = "look"
        words += ": the chain mixes more slowly than predicted; ask for more draws"
    elif c.cautious_time_error > POWER:
        status = "unknown"
        words += f": {_too_few(c, c.cautious_time_error, 'makes such a number uncertain by')}"
    else:
        status = "ok"
    return Check("effective draws", predicted, observed, observed * spread, status, words)


def _mean_bias(c: Comparison) -> Check:
    error = c.cautious_shift_error
    gap, limit = np.abs(c.surprise), sigmas(len(c.names))
    odd = (gap > limit * error) & (gap > BIAS)
    worst = int(np.argmax(np.where(odd, gap, -1.0) if odd.any() else np.abs(c.shift)))
    predicted, observed = float(c.predicted_shift[worst]), float(c.shift[worst])
    size, name = c.expected.size(c.expected.known_bias), c.names[worst]
    if odd.any():
        status: Status = "look"
        words = f"the mean of {name} is off by {observed:+.2f} standard deviations where {predicted:+.2f} was predicted"
    elif size > BIAS:
        status, words = _predicted_bias(c, size)
    elif limit * error.max() > SEEN:
        status = "unknown"
        words = _too_few(c, float(error.max()), "moves a mean by", SEEN / limit, "standard deviations")
    else:
        status = "ok"
        words = f"the mean is within {np.abs(c.shift).max():.2f} standard deviations of the minimiser"
    return Check("mean bias", predicted, observed, float(error[worst]), status, words)


def _predicted_bias(c: Comparison, size: float) -> tuple[Status, str]:
    where = _parameters(c, np.linalg.solve(c.expected.cov, c.expected.known_bias) * c.expected.sd)
    told = f"the mean is shifted by {size:.2f} standard deviations in its worst direction ({where}), as predicted"
    if c.expected.posterior:
        return "ok", f"{told}: that is the posterior's own mean"
    back = "intervals(recentred=True) shifts the draws' intervals back"
    return "look", f"{told}, because the loss is not quadratic; {back}"


def _joint_mean(c: Comparison) -> Check:
    found = c.joint_shift
    where = f"mainly {_parameters(c, found.direction)}"
    if found.chance < ALARM and found.real > BIAS:
        status: Status = "look"
        words = (
            f"some combination of parameters ({where}) has its mean {found.real:.2f} standard deviations from where it was "
            "predicted"
        )
    elif found.noise > POWER:
        moves = "moves the mean of some combination of parameters by"
        status, words = "unknown", _too_few(c, found.noise, moves, POWER, "standard deviations")
    else:
        status = "ok"
        words = f"no combination of parameters is shifted beyond its prediction and Monte Carlo error ({found.noise:.2f} sd)"
    return Check("joint mean", 0.0, found.size, found.noise, status, words)


def _parameters(c: Comparison, part: Array) -> str:
    """The parameters that matter in a direction, given what each has to do with it."""
    size = np.abs(part) / (float(np.abs(part).max()) or 1.0)
    order = [j for j in np.argsort(-size, kind="stable")[:_SHOWN] if size[j] >= _PART]
    return ", ".join(c.names[j] for j in order)


def _shape(c: Comparison) -> Check:
    limit = sigmas(2 * len(c.names))
    # gradient noise that grows with the distance makes tails a little heavier than normal: that much is predicted
    kurtosis = c.observed.kurtosis
    heavy = np.clip(kurtosis, 0.0, np.nan_to_num(c.expected.kurtosis))
    values, expected = np.stack([c.observed.skewness, kurtosis]), np.stack([np.nan_to_num(c.expected.skewness), heavy])
    errors = np.stack([c.skewness_error, c.kurtosis_error])
    beyond = _beyond(values - expected, errors, limit)
    score = np.abs(values - expected) / errors
    shown = np.where(beyond, score + score.max(), np.abs(values) / errors if not beyond.any() else 0.0)
    row, worst = np.unravel_index(int(np.argmax(shown)), values.shape)
    value, error, told = float(values[row, worst]), float(errors[row, worst]), float(expected[row, worst])
    words = f"{('skewness', 'excess kurtosis')[row]} of {value:+.2f} in {c.names[worst]}"
    odd = bool(_beyond(values, errors, limit).any())
    status: Status
    if beyond.any() and c.expected.posterior and _steady(c):
        status = "ok"
        words += f" ({told:+.2f} to leading order): the posterior's own shape, which half the step keeps"
    elif beyond.any() and c.expected.posterior:
        status, words = "unknown", f"{words} beyond Monte Carlo error: {_OWN}, whose shape is not predicted"
    elif beyond.any():
        status = "look"
        words += (
            " beyond prediction and Monte Carlo error: it comes from the sampler; read estimate ± z·se, not quantiles "
            "of the draws"
        )
    elif max(c.cautious_shape_errors) > POWER:
        # of the two an excess kurtosis always has the larger error
        few = _too_few(c, max(c.cautious_shape_errors), "makes an excess kurtosis of", POWER, "or so")
        status, words = "unknown", f"{words}: {few}"
    elif odd and c.expected.posterior:
        status, words = "ok", f"{words} where {told:+.2f} was predicted: shape that N(estimate, target) lacks"
    elif odd:
        status = "ok"
        words += f" where {told:+.2f} was predicted: it comes from the sampler; read estimate ± z·se"
    else:
        small = bool((np.abs(values) > limit * errors).any())
        alike = "what normal draws would show" if abs(told) < error else f"as predicted ({told:+.2f})"
        status, words = "ok", f"{words} is {'small' if small else alike}"
    return Check("shape", told, value, error, status, words)


def _half_step(c: Comparison) -> Check:
    """Whether half the step changes anything: the draws' shape is then not settled."""
    assert c.halving is not None
    change, error = c.halving
    limit = sigmas(change.size)
    excess = np.abs(change) / np.array([[BIAS], [COVARIANCE], [SHAPE]])
    odd = (np.abs(change) > limit * error) & (excess > 1.0)
    row, worst = np.unravel_index(int(np.argmax(np.where(odd, excess + excess.max(), excess))), change.shape)
    what = ("mean (in standard deviations)", "standard deviation (relative)", "skewness")[row]
    value, noise = float(change[row, worst]), float(error[row, worst])
    told = f"half the step changes the {what} of {c.names[worst]} by {value:+.2f}"
    if odd.any():
        advice = "the draws have not settled: ask for a higher fidelity, and see whether the posterior is proper"
        return Check(
            "half step", 0.0, value, noise, "look", f"{told}, beyond Monte Carlo error ({noise:.2f}): {advice}"
        )
    if float(error.max()) > POWER:
        few = _too_few(c, float(error.max()), "makes a change of", POWER, "or so")
        return Check("half step", 0.0, value, noise, "unknown", f"{told}: {few}")
    return Check("half step", 0.0, value, noise, "ok", f"{told}, within Monte Carlo error ({noise:.2f})")


def _steady(c: Comparison) -> bool:
    """Whether a run at half the step showed nothing else."""
    return c.halving is not None and _half_step(c).status == "ok"


def _beyond(values: Array, errors: Array, limit: float) -> Mask:
    return (np.abs(values) > limit * errors) & (np.abs(values) > SHAPE)


def _chains(c: Comparison) -> Check:
    limit = c.rhat_limit
    worst = float(c.observed.rhat.max())
    if worst >= limit:
        return Check("chains", 1.0, worst, limit - 1.0, "look", "the chains disagree: ask for more draws")
    if limit - 1.0 > POWER or np.isnan(worst):
        needed = np.ceil(c.observed.draws * c.halves_needed(1.0 + POWER) / c.half_ess)
        words = (
            f"cannot tell, because halves of chains that agree may have R-hat {limit:.2f} with {c.half_ess:.2g} effective "
            f"draws each; to bring that to {1.0 + POWER:.2g} takes {needed:,.0f} draws instead of {c.observed.draws:,}"
        )
        return Check("chains", 1.0, worst, limit - 1.0, "unknown", words)
    return Check("chains", 1.0, worst, limit - 1.0, "ok", "the chains agree")


def _guard(c: Comparison) -> Check:
    rate = c.observed.guard_rate
    words = f"the guard acted on {rate:.2%} of the steps" if rate else "the guard never acted"
    if rate <= GUARD:
        return Check("guard", 0.0, rate, GUARD, "ok", words)
    return Check(
        "guard", 0.0, rate, GUARD, "look", f"{words}: the tails of this loss are felt; use a smaller batch or more data"
    )
