"""Draws as ArviZ data, for ArviZ 0.2x and 1.x alike.

The group of the draws is called `posterior` only where the target is the posterior's covariance: draws with a sandwich's
spread are in the group `draws`, and every group carries the target's name.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import InvalidInput
from equipoise.interop.likelihood import log_likelihood as log_likelihood_of
from equipoise.interop.sites import SiteLayout
from equipoise.sampling.chains import Chains

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["calibration_to_arviz", "to_arviz"]


def to_arviz(chains: Chains, **attributes: object) -> Any:
    """The draws, one variable per parameter array, and the steps they were taken at; settings as attributes.

    Raises
    ------
    InvalidInput
        If ArviZ is not installed.
    """
    return _assembled({chains.group: _values(chains), "sample_stats": _stats(chains)}, _described(chains, attributes))


def calibration_to_arviz(calibration: Calibration, log_likelihood: bool) -> Any:
    """The same of a run, with the log-likelihood of every row at every draw when asked for."""
    chains, plan = calibration.chains, calibration.plan
    group = "posterior" if plan.target_name == "posterior" else "draws"
    groups: dict[str, Mapping[str, object]] = {group: _values(chains), "sample_stats": _stats(chains)}
    if log_likelihood:
        found = log_likelihood_of(calibration.require_problem(), chains.draws)
        groups["log_likelihood"] = {calibration.response: found}
    attributes = {
        "target": plan.target_name,
        "sampler": plan.sampler,
        "batch_size": calibration.tuning.dynamics.batch_size,
        "momentum": calibration.tuning.dynamics.momentum,
    }
    return _assembled(groups, _described(chains, attributes))


def _values(chains: Chains) -> dict[str, Array]:
    """Arrays (chains, draws, ...) by name: a program's own sites, or the model's parameter arrays."""
    if isinstance(chains.layout, SiteLayout):
        return chains.layout.unflatten(chains.draws)
    found, start = {}, 0
    for name, shape in chains.layout.variables:
        stop = start + prod(shape)
        found[name] = chains.draws[:, :, start:stop].reshape(*chains.draws.shape[:2], *shape)
        start = stop
    return found


def _stats(chains: Chains) -> dict[str, object]:
    """At which step a draw was taken, and whether its chain had diverged by then."""
    count, length = chains.draws.shape[:2]
    steps = chains.burn_in + chains.thin * (1 + np.arange(length))
    return {"step": np.tile(steps, (count, 1)), "diverging": np.any(np.isnan(chains.draws), axis=2)}


def _described(chains: Chains, attributes: Mapping[str, object]) -> dict[str, object]:
    run = {name: float(value) for name, value in chains.statistics.items()}
    own = {
        "thin": chains.thin,
        "burn_in": chains.burn_in,
        "seed": chains.seed,
        "sampling_time": run.pop("seconds", 0.0),
    }
    return {"inference_library": "equipoise", **own, **run, **attributes}


def _assembled(groups: Mapping[str, Mapping[str, object]], attributes: Mapping[str, object]) -> Any:
    try:
        with warnings.catch_warnings():
            # ArviZ 0.2x announces its own successor on import
            warnings.simplefilter("ignore", FutureWarning)
            import arviz as installed

            arviz: Any = installed
    except ImportError as error:
        raise InvalidInput(
            "arviz", "installed for to_arviz()", "no such package", "run: pip install 'equipoise[arviz]'"
        ) from error
    if int(str(arviz.__version__).split(".")[0]) >= 1:
        data = arviz.from_dict({name: dict(group) for name, group in groups.items()})
    else:
        sets = {name: arviz.dict_to_dataset(dict(group)) for name, group in groups.items()}
        data = arviz.InferenceData(warn_on_custom_groups=False, **sets)
    for name in groups:
        data[name].attrs.update(attributes)
    return data
