"""How often the files are read, counted where they are opened: at most eight times before the first step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data.parts import ParquetPart

N = 60_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(1)
    made = tmp_path_factory.mktemp("passes")
    a, b = rng.normal(size=(2, N))
    firm, year = rng.integers(0, 200, N), rng.integers(0, 30, N)
    mean = np.exp(0.3 * a - 0.2 * b + 0.2 * rng.normal(size=200)[firm])
    frame = pd.DataFrame({"a": a, "b": b, "g": rng.choice(list("xyz"), N), "firm": firm, "year": year})
    frame["count"] = rng.negative_binomial(2.0, 2.0 / (2.0 + mean)).astype(float)
    frame["won"] = (rng.random(N) < mean / (1.0 + mean)).astype(float)
    frame["size"] = rng.gamma(2.0, 0.5 * mean)
    frame["level"] = 0.3 * a + rng.normal(size=N)
    for k in range(3):
        frame[k * N // 3 : (k + 1) * N // 3].to_parquet(made / f"{k}.parquet", row_group_size=10_000)
    return made


@pytest.fixture
def readings(monkeypatch):
    """How many rows of each file were asked for."""
    found: Counter[str] = Counter()
    frames = ParquetPart.frames

    def counted(self, columns, rows):
        found[self.location.path] += self.count
        return frames(self, columns, rows)

    monkeypatch.setattr(ParquetPart, "frames", counted)
    return found


@pytest.mark.parametrize(
    ("response", "family", "target", "clusters", "most"),
    [
        ("count", "poisson", "sandwich", None, 6),
        ("count", "poisson", "CRV1", "firm", 7),
        ("count", "poisson", "CRV1", ["firm", "year"], 7),
        ("won", "bernoulli", "HC3", None, 8),
        ("level", "gaussian", "posterior", None, 6),
        ("size", "gamma", "CRV3", "firm", 8),
        ("count", "negative-binomial", "CRV1", "firm", 8),
    ],
)
def test_a_plan_reads_the_files_at_most_eight_times(response, family, target, clusters, most, folder, readings) -> None:
    source = eq.data.scan(folder, f"{response} ~ a + b + g", clusters=clusters)
    plan = eq.plan(eq.glm(family), source, target=target)
    assert set(readings.values()) == {readings.most_common(1)[0][1]}
    assert readings.total() / N <= most
    assert source.passes == pytest.approx(readings.total() / N)
    if family == "poisson":
        # what follows the plan is one pass for the rows of all steps
        before = readings.total()
        eq.sample(plan.problem, plan.tuning, 20, chains=2, progress=False)
        assert readings.total() - before <= N


def test_a_loss_of_ones_own_is_read_at_most_eight_times(folder, readings) -> None:
    def loss(p, o):
        import jax.numpy as jnp

        eta = p["a"] + jnp.dot(o["x"], p["b"])
        return jnp.exp(eta) - o["y"] * eta

    source = eq.data.scan(folder, columns={"x": ["a", "b"], "y": "count"})
    eq.plan(eq.Model(loss, {"a": 0.0, "b": np.zeros(2)}), source)
    assert readings.total() / N <= 8


def test_few_rows_are_not_read_more_often(folder, readings) -> None:
    source = eq.data.scan(folder / "0.parquet", "count ~ a + b")
    plan = eq.plan(eq.glm("poisson"), source)
    assert readings.total() / (N // 3) <= 6
    expected = eq.plan(eq.glm("poisson"), folder / "0.parquet", formula="count ~ a + b")
    np.testing.assert_allclose(plan.fit.theta, expected.fit.theta, rtol=1e-10)
    np.testing.assert_allclose(plan.tuning.step, expected.tuning.step, rtol=1e-9)


@pytest.mark.parametrize(("response", "family"), [("size", "gamma"), ("count", "negative-binomial")])
@pytest.mark.parametrize("prior", [0.0, 4.0])
def test_parameters_and_constant_together_are_those_found_in_memory(response, family, prior, folder) -> None:
    model, formula = eq.glm(family, prior_precision=prior), f"{response} ~ a + b + g"
    found = eq.fit(model, eq.data.scan(folder, formula, weights="year"))
    frame = pd.concat([pd.read_parquet(folder / f"{k}.parquet") for k in range(3)])
    expected = eq.fit(model, eq.data.table(frame, formula, weights="year"))
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose([found.constant, found.loss], [expected.constant, expected.loss], rtol=1e-9)
    assert found.converged
