"""The robust scale of residuals in files, between corners of the median that it is."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.fitting.scaling import _agreed_move
from equipoise.models.residuals import Reach, Scale

_NORMAL_MEDIAN = 0.6744897501960817


@pytest.mark.parametrize("tilt", [-6.0, -3.0, -0.5, 0.4])
@pytest.mark.parametrize("before", [0.7, 0.95, 1.3])
def test_a_scale_next_to_corners_is_that_of_the_residuals_it_leads_to(tilt, before) -> None:
    """Repeated steps of the average slope go round in circles where the median's own is steeper."""
    # the median of |r| is that of the first row, 1 + tilt · move, between the corners at 0.5 and 2
    rows = np.array([[1.0, 0.5, 2.0], [1.0, 1.0, 1.0], [-tilt, 0.0, 0.0]])
    scale = Scale(
        1.0 / _NORMAL_MEDIAN, np.zeros(1), Reach(1.0, np.inf, 1.0, np.eye(1)), total=3.0, under=0.0, close=rows
    )
    log, aside = float(np.log(before / _NORMAL_MEDIAN)), np.ones(1)
    move = _agreed_move(scale, log, np.zeros(1), aside)
    assert np.log(scale.after(move * aside)) == pytest.approx(log + move, abs=1e-14)
