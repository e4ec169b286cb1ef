"""A run under the names that statsmodels' users type. Each function is a method or a property of `Calibration`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.checks import checked_options, probability
from equipoise.models.sums import predictor

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.calibration.calibration import Calibration

__all__ = ["bse", "conf_int", "cov_params", "fittedvalues", "params", "pvalues", "resid"]


def params(self: Calibration) -> pd.Series[float]:
    """The estimate, by name."""
    import pandas as pd

    return pd.Series(self.fit.theta, index=list(self.names), name="params")


def bse(self: Calibration) -> pd.Series[float]:
    """Standard errors: of the target."""
    import pandas as pd

    return pd.Series(np.sqrt(np.diag(self.plan.target.matrix)), index=list(self.names), name="bse")


def pvalues(self: Calibration) -> pd.Series[float]:
    """p-values of the hypotheses that a parameter is zero, each alone."""
    return self.tidy().set_index("term")["p_value"].rename("pvalues").rename_axis(None)


def fittedvalues(self: Calibration) -> Array:
    """The mean response of every row of the fit, which are read for it."""
    model, source = self.require_glm(), self.require_linear().source
    return np.concatenate([model.family.mean(predictor(rows, self.fit.theta)) for rows in source.blocks()])


def resid(self: Calibration) -> Array:
    """The response of every row of the fit less its mean."""
    return np.concatenate([rows.y for rows in self.require_linear().source.blocks()]) - fittedvalues(self)


def cov_params(self: Calibration) -> pd.DataFrame:
    """The target, by name."""
    import pandas as pd

    return pd.DataFrame(self.plan.target.matrix, index=list(self.names), columns=list(self.names))


@checked_options
def conf_int(self: Calibration, alpha: float = 0.05) -> pd.DataFrame:
    """Intervals of probability 1 − alpha, in columns 0 and 1: `confint` for those used to it."""
    probability("alpha", alpha)
    return self.confint(1.0 - alpha).set_axis([0, 1], axis=1)
