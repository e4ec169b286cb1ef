"""Coverage with few clusters: CRV3 with t quantiles covers, and errors that count rows as independent do not."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evidence.coverage import study


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_intervals_cover_with_twenty_clusters(family) -> None:
    found = study(family, 200, range(5000, 5400), designs=("clustered",))
    share = {
        name: np.array(found[name]["hits"]) / found[name]["intervals"]
        for name in ("CRV1", "CRV3", "HC0, clusters ignored")
    }
    # between 93 and 97 %, where the error of a share of 400 is 1.1 %
    assert np.all(np.abs(share["CRV3"] - 0.95) <= 0.02 + 2 * 0.011)
    # the coefficient that varies between clusters alone
    assert share["HC0, clusters ignored"][1] < 0.8
    assert share["CRV3"][1] > share["CRV1"][1] > share["HC0, clusters ignored"][1]
