"""Columns with heavy tails on files: few rows stand for all, and take no further pass."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq


@pytest.fixture(scope="module")
def heavy() -> pa.Table:
    rng = np.random.default_rng(4)
    rows = 130_000  # more than the sample that a fit starts from
    a, b = rng.standard_t(3, size=(2, rows)).clip(-30.0, 30.0)
    mean = np.exp((0.1 * a - 0.1 * b).clip(-3.0, 3.0))
    return pa.table({"a": a, "b": b, "count": rng.poisson(mean).astype(float), "w": rng.uniform(0.5, 2.0, rows)})


@pytest.mark.parametrize(
    ("right", "target", "weights", "most"),
    [("bs(a, df=4) + center(b)", "HC3", None, 7), ("a + b", "sandwich", "w", 6), ("a * b", "posterior", None, 7)],
)
def test_heavy_tails_take_no_further_pass_and_the_plan_is_that_in_memory(right, target, weights, most, heavy) -> None:
    formula = f"count ~ {right}"
    source = eq.data.scan(heavy, formula, weights=weights)
    found = eq.plan(eq.glm("poisson"), source, target=target)
    assert source.passes <= most
    rows = eq.data.table(heavy.to_pandas(), formula, weights=weights)
    if "bs" not in right:  # whose knots on a scan are those of a sample
        chosen = found.tuning.dynamics
        expected = eq.plan(eq.glm("poisson"), rows, target=target, batches=chosen.batches, batch_size=chosen.batch_size)
        np.testing.assert_allclose(found.fit.theta, expected.fit.theta, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(found.tuning.target, expected.tuning.target, rtol=1e-10)
        np.testing.assert_allclose(found.tuning.step, expected.tuning.step, rtol=1e-9, atol=1e-15)
        # tails are those of 32,768 rows, and other ones in memory
        auto = eq.plan(eq.glm("poisson"), rows, target=target, batches=chosen.batches)
        assert auto.tuning.dynamics.batch_size == pytest.approx(chosen.batch_size, rel=0.1)


@pytest.mark.parametrize("options", [{}, {"weights": "w", "frequency": "f"}])
def test_some_rows_stand_for_all(options, heavy) -> None:
    frame = heavy.to_pandas()
    frame["f"] = np.random.default_rng(5).integers(1, 4, len(frame))
    problem = eq.bind(eq.glm("poisson"), eq.data.table(frame, "count ~ a + b", **options))
    moments = eq.moments(problem, eq.fit(problem))
    cov, operator = eq.sandwich(moments), moments.curvature
    x = problem.source.x
    eta = x @ moments.params
    v = np.exp(eta) * np.einsum("ni,ij,nj->n", x, cov, x) * (1.0 if not options else frame["w"].to_numpy())
    few = operator.sampled(1 << 15)
    part = operator.representative(1 << 15, cov)
    rows = part.problem.source
    assert part is not few
    assert rows.height < 0.5 * len(frame)
    # the largest for themselves, and all together as many as all
    largest = np.argsort(-v)[:2000]
    assert {tuple(row) for row in x[largest]} <= {tuple(row) for row in rows.x}
    assert rows.frequency.sum() == pytest.approx(problem.source.n, rel=1e-12)
    # what uniform rows miss by far, with 33,000 kept by v² and no more than 1/√33,000 of it by chance: five of those
    size = np.exp(rows.x @ moments.params) * np.einsum("ni,ij,nj->n", rows.x, cov, rows.x) * rows.weights
    for power in (1, 2, 4):
        expected = float(problem.source.counts @ v**power)
        assert rows.frequency @ size**power == pytest.approx(expected, rel=5.0 / np.sqrt(33_000))
    assert abs(few._fourth(cov) / operator._fourth(cov) - 1.0) > 0.1


def test_the_chain_that_is_chosen_does_not_depend_on_the_clock(heavy, monkeypatch) -> None:
    chosen = []
    for seconds in (0.0, 1e3):
        monkeypatch.setattr("equipoise.data.metering.Meter.pass_seconds", lambda self, size, s=seconds: s)
        plan = eq.plan(eq.glm("poisson"), eq.data.scan(heavy, "count ~ a + b"), target="HC3")
        assert plan.reads.seconds == seconds
        assert {c.batches for c in plan.candidates} >= {"independent", "leverage"}
        chosen.append((plan.tuning.dynamics, plan.tuning.step.tobytes()))
    assert chosen[0] == chosen[1]


@pytest.fixture
def rare_levels(monkeypatch):
    """Counts with levels of 12 and 4 rows in 60,000, of which samples have few or none."""
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 6_000)
    monkeypatch.setattr("equipoise.fitting.fit.LARGEST", 6_000)
    rng = np.random.default_rng(6)
    kind = rng.choice(["x", "y"], 60_000).astype(object)
    # the first is the level that others are compared with
    kind[rng.choice(60_000, 12, replace=False)] = "a few"
    rare = rng.choice(60_000, 4, replace=False)
    kind[rare] = "rare"
    a, won = rng.normal(size=60_000), rng.random(60_000) < 0.4
    won[rare] = [True, False, False, True]
    return pa.table({"a": a, "kind": kind, "won": won.astype(float), "level": a + rng.standard_t(4, size=60_000)})


def _require_plan_of_memory(model, source, table, formula) -> None:
    """A plan in at most eight passes, with estimates and target of the same rows in memory."""
    plan = eq.plan(model, source, target="HC3")
    assert source.passes <= 8.0
    expected = eq.plan(model, table.to_pandas(), formula=formula, target="HC3")
    np.testing.assert_allclose(plan.fit.theta, expected.fit.theta, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(plan.tuning.target, expected.tuning.target, rtol=1e-9, atol=1e-14)


def test_a_second_pass_for_a_formula_brings_the_rows_of_rare_levels(rare_levels) -> None:
    formula, model = "level ~ poly(exp(scale(a)), 2) + kind", eq.glm("gaussian", divergence=eq.Huber())
    source = eq.data.scan(rare_levels, formula)
    assert source.passes == 2.0
    certain, others = source.standing(6_000)
    kinds = [k for k, name in enumerate(source.names) if name.startswith("kind")]
    rare = source.names.index("kind[T.rare]")
    assert certain.x[:, rare].sum() == 4
    assert np.sum(~certain.x[:, kinds].any(axis=1)) == 12
    assert not others.x[:, rare].any()
    assert others.x[:, kinds].any(axis=1).all()
    assert eq.bind(model, source).standing(6_000).source.n == pytest.approx(60_000, rel=1e-12)
    assert source.passes == 2.0
    _require_plan_of_memory(model, source, rare_levels, formula)


def test_combinations_of_no_row_are_not_looked_for_again(rare_levels) -> None:
    kind = rare_levels["kind"].to_numpy(zero_copy_only=False)
    one = np.where((kind == "a few") | (np.random.default_rng(8).random(60_000) < 0.5), "u", "v")
    made = rare_levels.append_column("one", pa.array(one))
    source = eq.data.scan(made, "level ~ poly(exp(scale(a)), 2) + kind:one")
    problem = eq.bind(eq.glm("gaussian", divergence=eq.Huber(), prior_precision=1.0), source)
    problem.standing(6_000)
    assert source.passes == 2.0
    # levels of an expression that the sample has none of are
    far = eq.data.scan(made, "level ~ kind + C((center(a) - 1) ** 2 < 1e-8)")
    assert far.passes == 2.0
    rows = eq.bind(eq.glm("gaussian", divergence=eq.Huber()), far).standing(6_000).source
    assert far.passes == 3.0
    a = made["a"].to_numpy()
    assert rows.x[:, -1] @ rows.counts == np.sum(np.abs(a - a.mean() - 1.0) < 1e-4) > 0


def test_combinations_of_levels_that_are_rare_together(rare_levels) -> None:
    one, other = np.random.default_rng(7).random((2, 60_000)) < 0.03
    made = rare_levels.append_column("one", pa.array(np.where(one, "u", "v"))).append_column(
        "other", pa.array(other * 1)
    )
    model = eq.glm("gaussian", divergence=eq.Huber())
    # levels of an expression cannot be looked for, and the few rows that the sample has of one do
    formula = "level ~ poly(exp(scale(a)), 2) + one:other + C(center(a) > 3)"
    source = eq.data.scan(made, formula)
    (certain, others), both = source.standing(6_000), source.names.index("one[u]:other")
    assert certain.x[:, both].sum() == np.sum(one & other)
    assert not others.x[:, both].any()
    eq.bind(model, source).standing(6_000)
    assert source.passes == 2.0
    _require_plan_of_memory(model, source, made, formula)


@pytest.mark.parametrize(
    ("family", "terms"), [("bernoulli", "a + kind"), ("poisson", "a + kind"), ("bernoulli", "kind:a")]
)
def test_a_rare_level_that_separates_is_refused_as_in_memory(family, terms, rare_levels) -> None:
    frame = rare_levels.to_pandas()
    won = frame["won"].to_numpy().copy()
    won[frame["kind"] == "rare"] = 0.0
    frame.loc[frame["kind"] == "rare", "a"] = [-2.0, -0.4, -0.1, -1.0]
    formula = f"won ~ {terms}"
    for data in (frame.assign(won=won), pa.Table.from_pandas(frame.assign(won=won))):
        source = data if isinstance(data, pd.DataFrame) else eq.data.scan(data, formula)
        options = {"formula": formula} if source is data else {}
        with pytest.raises(eq.FitFailed, match=r"separated by .*rare"):
            eq.fit(eq.glm(family), source, **options)
    # one row that differs is enough for a minimiser
    won[np.flatnonzero(frame["kind"] == "rare")[1]] = 1.0
    source = eq.data.scan(pa.Table.from_pandas(frame.assign(won=won)), formula)
    expected = eq.fit(eq.glm(family), frame.assign(won=won), formula=formula)
    np.testing.assert_allclose(eq.fit(eq.glm(family), source).theta, expected.theta, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("family", "response"), [("bernoulli", "won"), ("gaussian", "level")])
def test_rare_levels_take_one_further_pass(family, response, rare_levels) -> None:
    made = rare_levels
    source, formula = eq.data.scan(made, f"{response} ~ a + kind"), f"{response} ~ a + kind"
    model = eq.glm(family) if family != "gaussian" else eq.glm(family, divergence=eq.Huber())
    problem = eq.bind(model, source).standing(6_000)
    rows = problem.source
    counts = {
        name: float(rows.frequency[column != 0.0].sum()) for name, column in zip(rows.names, rows.x.T, strict=True)
    }
    assert counts["kind[T.rare]"] == 4.0
    assert rows.frequency[~rows.x[:, 2:].any(axis=1)].sum() == 12.0
    assert rows.frequency.sum() == pytest.approx(60_000, rel=1e-12)
    assert source.passes == 2.0
    found = eq.fit(model, source)
    assert source.passes <= 2.0 + 1.0 + (4.0 if family == "gaussian" else 3.0)
    expected = eq.fit(model, made.to_pandas(), formula=formula)
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-9, atol=1e-12)
    # nothing is rare where there are no levels, not even a column of ones
    bare = eq.data.scan(made, f"{response} ~ 0 + a")
    assert eq.bind(model, bare).standing(6_000).source.height > 6_000
    assert bare.passes == 1.0
