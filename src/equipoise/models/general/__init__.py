"""Any differentiable loss, written in JAX; the only models that import it."""

from equipoise.models.general.model import GeneralProblem, Model

__all__ = ["GeneralProblem", "Model"]
