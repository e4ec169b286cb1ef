"""A family of one's own: from four functions to a report, a saved run and predictions; what it lacks is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import equipoise as eq
from equipoise.families.family import FAMILIES
from equipoise.families.links import register
from equipoise.families.response import LAWS


@pytest.fixture
def twin():
    """The Poisson family under another name, without a law."""
    return replace(FAMILIES["poisson"], name="twin", law="twin")


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(800), rng.normal(size=800)])
    return x, rng.poisson(np.exp(x @ [0.3, 0.4]))


def test_a_registered_family_gives_what_the_library_gives(twin, data, tmp_path) -> None:
    register(twin, "log")
    found = [eq.calibrate(eq.glm(name), data, ess=200, progress=False) for name in ("twin", "poisson")]
    np.testing.assert_array_equal(found[0].draws, found[1].draws)
    np.testing.assert_array_equal(found[0].predict(data[0][:3]), found[1].predict(data[0][:3]))
    assert found[0].report(tmp_path / "run.html").exists()
    assert eq.load(found[0].save(tmp_path / "run.eqz")).model.family is twin


def test_without_a_law_there_is_no_likelihood(twin, data) -> None:
    register(twin, "log")
    cal = eq.calibrate(eq.glm("twin"), data, ess=200, progress=False)
    with pytest.raises(eq.InvalidInput, match="known law"):
        _ = cal.aic
    with pytest.raises(eq.InvalidInput, match="known law"):
        cal.predict(data[0][:3], kind="observation")


def test_with_a_law_there_is(twin, data) -> None:
    register(twin, "log", LAWS["poisson"])
    found = [eq.calibrate(eq.glm(name), data, ess=200, progress=False).aic for name in ("twin", "poisson")]
    assert found[0] == found[1]


def test_a_name_is_taken_once(twin) -> None:
    with pytest.raises(eq.InvalidInput, match="no family has"):
        register(replace(twin, name="gamma"), "log")
