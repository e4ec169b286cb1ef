"""Differentiable losses of your own, written in JAX; the only models that import it."""

from equipoise.models.general.model import Model
from equipoise.models.general.problem import GeneralProblem
from equipoise.models.general.subspace import subspace

__all__ = ["GeneralProblem", "Model", "subspace"]
