"""Calibrated chains for PyTorch: modules as models for every verb, an optimizer, loaders that match, and a look at health.

Modules are differentiated by `torch.func` in float64, on a copy in evaluation mode. The general machinery behind them is that
of losses in JAX, which `pip install 'equipoise[torch]'` brings along.
"""

from equipoise.interop.torch.certifying import certify
from equipoise.interop.torch.health import Health
from equipoise.interop.torch.loading import loader
from equipoise.interop.torch.model import Model
from equipoise.interop.torch.optimizer import SGD

__all__ = ["SGD", "Health", "Model", "certify", "loader"]
