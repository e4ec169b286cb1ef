"""The tuning rules that are compared, each as a step matrix for the same target and the same batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import equipoise as eq
from equipoise.arrays import Array

__all__ = ["CLOSED", "RULES", "true_law", "tuned"]

CLOSED = "dq-exact-closed"


# How each rule is called in the tables, and what it is.
RULES = {
    "posterior": "the exact posterior of the model",
    "nuts": "NUTS on the generalised posterior exp(−Σ ℓ)",
    "sandwich-gaussian": "independent draws from N(θ̂, S⋆)",
    "ct": "continuous time",
    "lr-ws": "linear regression, well specified, with the residual variance",
    "lr-ws-model": "the same with the variance the model assumes",
    "dq-const": "discrete time, constant noise J/B",
    "dq-const-literal": "discrete time, constant noise J, as Algorithm 1 and the released scripts have it",
    "dq-exact": "discrete time, exact noise, step matrix in closed form",
    "dq-exact-sgld": "the same for SGLD at twice the smallest feasible inverse temperature",
    "dq-exact-momentum": "the same with momentum 0.5",
    CLOSED: "dq-exact, its step corrected by what pilot runs show",
}
_MOMENTUM = 0.5


def tuned(rule: str, moments: eq.Moments, target: Array, batch_size: int) -> eq.Tuning:
    """The step matrix a rule gives for a target, with the dynamics it is to be run with; before pilots, where it has them."""
    dynamics = eq.Dynamics(batch_size)
    if rule == "dq-const-literal":
        # noise J in place of J/B is what the rule with 1/B says for batches of one row
        return replace(eq.tune(moments, target, eq.Dynamics(1), "dq-const"), dynamics=dynamics)
    if rule == "lr-ws-model":
        return eq.tune(replace(moments, noise_ratio=1.0), target, dynamics, "lr-ws")
    if rule == "dq-exact-sgld":
        slopes = np.linalg.eigvals(moments.hessian @ target).real
        return eq.tune(moments, target, replace(dynamics, inverse_temperature=2.0 / float(slopes.min())))
    if rule == "dq-exact-momentum":
        return eq.tune(moments, target, replace(dynamics, momentum=_MOMENTUM))
    return eq.tune(moments, target, dynamics, "dq-exact" if rule == CLOSED else rule)


def true_law(moments: eq.Moments, tuning: eq.Tuning) -> eq.Stationary | float:
    """What a chain with this step really does (exactly so for squared loss); its spectral radius if it has no law."""
    try:
        return eq.stationary(moments, tuning.step, tuning.dynamics)
    except eq.UnstableStep as error:
        return error.spectral_radius
