"""Equipoise: calibrated stochastic-gradient MCMC."""

from equipoise import data
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
from equipoise.targets import bayesbag, posterior, sandwich
from equipoise.theory.stationary import Stationary, max_stable_step, stationary
from equipoise.tuning import Tuning, tune
