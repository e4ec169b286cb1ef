"""Draws as ArviZ data, for ArviZ 0.2x and 1.x alike."""

from __future__ import annotations

import warnings
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["to_arviz"]


def to_arviz(calibration: Calibration) -> Any:
    """One variable per parameter array in the posterior group; the run's settings as attributes.

    Raises
    ------
    InvalidInput
        If ArviZ is not installed.
    """
    try:
        with warnings.catch_warnings():
            # ArviZ 0.2x announces its own successor on import
            warnings.simplefilter("ignore", FutureWarning)
            import arviz
    except ImportError as error:
        raise InvalidInput(
            "arviz", "installed for to_arviz()", "no such package", "run: pip install 'equipoise[arviz]'"
        ) from error
    posterior, start = {}, 0
    for name, shape in calibration.chains.layout.variables:
        stop = start + prod(shape)
        posterior[name] = calibration.draws[:, :, start:stop].reshape(*calibration.draws.shape[:2], *shape)
        start = stop
    data = arviz.from_dict({"posterior": posterior}) if _is_one(arviz) else arviz.from_dict(posterior=posterior)
    attributes = {
        "inference_library": "equipoise",
        "target": calibration.plan.target_name,
        "batch_size": calibration.tuning.dynamics.batch_size,
        "thin": calibration.chains.thin,
    }
    data["posterior"].attrs.update(attributes)
    return data


def _is_one(arviz: ModuleType) -> bool:
    return int(str(arviz.__version__).split(".")[0]) >= 1
