"""Equipoise: calibrated stochastic-gradient MCMC."""

from equipoise import data
from equipoise.calibration import Calibration, Plan, calibrate, plan
from equipoise.diagnostics import Diagnosis, diagnose
from equipoise.dynamics import Dynamics
from equipoise.errors import (
    ChainDiverged,
    CheckpointMismatch,
    EquipoiseError,
    FitFailed,
    InfeasibleTarget,
    InvalidInput,
    UnstableStep,
)
from equipoise.fit import Fit, fit
from equipoise.models.glm import glm
from equipoise.moments import Moments, moments
from equipoise.sampling import Chains, sample
from equipoise.storage import load
from equipoise.targets import bayesbag, posterior, sandwich
from equipoise.theory.stationary import Stationary, max_stable_step, stationary
from equipoise.tuning import Tuning, tune

__all__ = [
    "Calibration",
    "ChainDiverged",
    "Chains",
    "CheckpointMismatch",
    "Diagnosis",
    "Dynamics",
    "EquipoiseError",
    "Fit",
    "FitFailed",
    "InfeasibleTarget",
    "InvalidInput",
    "Moments",
    "Plan",
    "Stationary",
    "Tuning",
    "UnstableStep",
    "bayesbag",
    "calibrate",
    "data",
    "diagnose",
    "fit",
    "glm",
    "load",
    "max_stable_step",
    "moments",
    "plan",
    "posterior",
    "sample",
    "sandwich",
    "stationary",
    "tune",
]
__version__ = "0.1.0"
