"""Every public object shows itself in one short line and as a small table, and never as a dump of arrays."""

from __future__ import annotations

from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.cards import told_briefly


class Balanced(HTMLParser):
    """Fails unless tags balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def objects() -> dict[str, object]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=400), "<z>": rng.integers(0, 9, 400)})
    frame["y"] = rng.poisson(np.exp(0.3 * frame.a))
    source = eq.data.table(frame, "y ~ a + C(`<z>`)", clusters=["<z>"])
    cal = eq.calibrate(eq.glm("poisson"), source, target="posterior", ess=100, progress=False)
    own = eq.Model(lambda p, o: (o["y"] - p) ** 2, init=jnp.zeros(()))
    small = eq.Moments.from_arrays(rng.normal(size=(50, 2)), np.tile(np.eye(2), (50, 1, 1)))
    return {
        "calibration": cal, "plan": cal.plan, "covariance": cal.plan.target, "fit": cal.fit, "moments": cal.plan.moments,
        "tuning": cal.tuning, "law": cal.tuning.predicted, "dynamics": cal.tuning.dynamics, "chains": cal.chains,
        "diagnosis": cal.diagnosis, "check": cal.diagnosis.checks[0], "statistics": cal.fit_statistics,
        "test": cal.test("a = 0"), "source": source,
        "scan": eq.data.scan(pa.Table.from_pandas(frame), "y ~ a"), "design": cal.design, "model": cal.model, "own model": own,
        "problem": eq.bind(eq.glm("poisson"), source), "own problem": eq.bind(own, {"y": rng.normal(size=30)}),
        "half": cal.half_step, "family": cal.model.family, "marks": source.marks, "small": small,
        "observations": eq.bind(own, {"y": rng.normal(size=30)}).source,
    }  # fmt: skip


def test_every_object_is_told_in_a_line(objects) -> None:
    for name, thing in objects.items():
        text = repr(thing)
        assert "\n" not in text, name
        assert 8 < len(text) < 600, (name, len(text))
        assert "array(" not in text, name
        Balanced(thing._repr_html_())
    assert "n=400, where=" in repr(objects["scan"])
    assert "400 rows" in repr(objects["plan"])
    assert "rows=400" in repr(objects["calibration"])
    assert "and 7 more" in repr(objects["moments"])


def test_a_calibration_shows_its_summary_in_a_notebook(objects) -> None:
    cal = objects["calibration"]
    text = cal._repr_html_()
    assert "&lt;z&gt;" in text
    assert "<z>" not in text
    assert cal.diagnosis.verdict in text
    assert cal.summary().cells()["estimate"].iloc[0] in text
    assert cal.diagnosis.verdict in objects["diagnosis"]._repr_html_()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((3, 4)), "array of 3 x 4"),
        (np.arange(3.0), "[0, 1, 2]"),
        (np.float64(0.123456789), "0.123457"),
        (12345, "12,345"),
        (True, "True"),
        ("x" * 80, "x" * 57 + "..."),
        (tuple("abcdefgh"), "[a, b, c, d, e, f and 2 more]"),
        (np.array(2.5), "2.5"),
        (len, "len"),
    ],
)
def test_values_are_told_briefly(value, told) -> None:
    assert told_briefly(value) == told
