"""Equipoise: calibrated stochastic-gradient MCMC."""

from typing import TYPE_CHECKING

from equipoise import data
from equipoise.calibration.accuracy import coupled_distance, wasserstein_bound
from equipoise.calibration.calibration import Calibration, calibrate
from equipoise.calibration.diagnostics import Diagnosis, diagnose
from equipoise.calibration.planning import Plan, plan
from equipoise.calibration.risk import expected_test_loss, optimal_batch_size, optimal_weight_decay
from equipoise.calibration.storage import load
from equipoise.errors import (
    ChainDiverged,
    CheckpointMismatch,
    ClusterLost,
    EquipoiseError,
    EquipoiseWarning,
    FitFailed,
    InfeasibleTarget,
    InvalidInput,
    UnstableStep,
)
from equipoise.families.divergence import Beta
from equipoise.families.robust import Huber, Pinball, StudentT
from equipoise.fitting.fit import Fit, fit
from equipoise.models.binding import bind
from equipoise.models.glm import glm
from equipoise.models.robust import robust
from equipoise.models.verbs import moments
from equipoise.sampling.chains import Chains
from equipoise.sampling.run import sample
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.limit import max_stable_step
from equipoise.theory.moments import Moments
from equipoise.theory.stationary import Stationary, stationary
from equipoise.theory.targets import bayesbag, posterior, sandwich
from equipoise.theory.tuning import Tuning, tune

if TYPE_CHECKING:
    # as a checker sees them; `__getattr__` imports them for the rest
    from equipoise.models.general import Model, subspace
    from equipoise.report.side_by_side import compare_fits

__all__ = [
    "Beta",
    "Calibration",
    "ChainDiverged",
    "Chains",
    "CheckpointMismatch",
    "ClusterLost",
    "Diagnosis",
    "Dynamics",
    "EquipoiseError",
    "EquipoiseWarning",
    "Fit",
    "FitFailed",
    "Huber",
    "InfeasibleTarget",
    "InvalidInput",
    "Model",
    "Moments",
    "Pinball",
    "Plan",
    "Stationary",
    "StudentT",
    "Tuning",
    "UnstableStep",
    "bayesbag",
    "bind",
    "calibrate",
    "compare_fits",
    "coupled_distance",
    "data",
    "diagnose",
    "expected_test_loss",
    "fit",
    "glm",
    "load",
    "max_stable_step",
    "moments",
    "optimal_batch_size",
    "optimal_weight_decay",
    "plan",
    "posterior",
    "robust",
    "sample",
    "sandwich",
    "stationary",
    "subspace",
    "tune",
    "wasserstein_bound",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`eq.Model` and `eq.subspace` bring JAX along, `eq.compare_fits` pandas: imported when they are first asked for."""
    if name == "compare_fits":
        from equipoise.report.side_by_side import compare_fits

        return compare_fits
    if name not in ("Model", "subspace"):
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    try:
        from equipoise.models import general
    except ModuleNotFoundError as error:
        raise InvalidInput(
            "jax", f"installed for eq.{name}", "no such package", "run: pip install 'equipoise[general]'"
        ) from error
    return getattr(general, name)
