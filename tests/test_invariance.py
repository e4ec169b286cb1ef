"""Units do not matter: a fit in other units of the response and the columns is the same fit in those units.

Differences are measured in standard errors of the sandwich, those of slopes and those of every row's predictor, and an
estimated scale relative to itself. All of them stay below 1e-9: nine digits of what the data can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import linprog

import equipoise as eq

SAME = 1e-9
N, D = 150, 4

LOG_LOSSES = [
    ("gaussian", {}, None),
    ("gaussian", {"scale": 1.3}, None),
    ("bernoulli", {}, None),
    ("poisson", {}, None),
    ("gamma", {"shape": 1.7}, None),
    ("negative-binomial", {"dispersion": 0.6}, None),
]
CONVEX = [
    *LOG_LOSSES,
    ("gaussian", {}, eq.Huber(1.2)),
    ("gaussian", {"scale": 1.3}, eq.Huber(1.2)),
    ("gaussian", {}, eq.Pinball(0.3)),
    ("gaussian", {"scale": 1.3}, eq.Pinball(0.3)),
]
BOUNDED = [
    ("gaussian", {}, eq.StudentT(3.0)),
    ("gaussian", {"scale": 1.3}, eq.StudentT(3.0)),
    ("gaussian", {}, eq.Beta(1.5)),
    ("gaussian", {"scale": 1.3}, eq.Beta(3.0)),
    ("bernoulli", {}, eq.Beta(1.5)),
    ("poisson", {}, eq.Beta(1.5)),
    ("gamma", {"shape": 1.7}, eq.Beta(1.5)),
    ("gamma", {"shape": 1.7}, eq.Beta(3.0)),
    ("negative-binomial", {"dispersion": 0.6}, eq.Beta(1.5)),
]


def label(case: Any) -> str:
    return " ".join(str(part) for part in case if part)


@dataclass(frozen=True)
class Task:
    """A regression with everything that has a unit."""

    family: str
    constants: dict[str, float]
    divergence: Any
    x: Any
    y: Any
    weights: Any = None
    offset: Any = None
    precision: Any = field(default_factory=lambda: np.zeros((D, D)))
    mean: Any = field(default_factory=lambda: np.zeros(D))

    @property
    def problem(self) -> Any:
        # without a precision there is no prior, and a mean of it is refused
        prior = {"prior_precision": self.precision, "prior_mean": self.mean} if np.any(self.precision) else {}
        model = eq.glm(self.family, divergence=self.divergence, **self.constants, **prior)
        return model.bind(eq.data.rows(self.x, self.y, weights=self.weights, offset=self.offset))


def task(case: Any, rng: np.random.Generator, *, prior: str = "none", n: int = N) -> Task:
    """Data that no family describes, with weights and offset in every other one."""
    family, constants, divergence = case
    x = np.column_stack(
        [np.ones(n), rng.normal(size=(n, D - 1)) @ (np.eye(D - 1) + 0.3 * rng.normal(size=(D - 1,) * 2))]
    )
    eta = x @ (0.35 * np.where(np.arange(D) % 2, -1.0, 1.0))
    eta = eta + 0.15 * (eta - eta.mean()) ** 2
    y = {
        "gaussian": eta + (0.5 + np.abs(eta)) * rng.standard_t(4, size=n),
        "bernoulli": (rng.random(n) < 0.1 + 0.8 / (1.0 + np.exp(-eta))).astype(float),
        "gamma": np.exp(eta + 0.6 * rng.normal(size=n)),
    }.get(family, rng.poisson(np.exp(np.minimum(eta, 5.0)) * rng.gamma(2.0, 0.5, size=n)).astype(float))
    made = Task(family, constants, divergence, x, y)
    if rng.random() < 0.5:
        made = replace(made, weights=rng.uniform(0.2, 3.0, n), offset=0.3 * rng.normal(size=n))
    if prior == "none":
        return made
    root = rng.normal(size=(D, D))
    root[:, 0] *= prior != "slopes"
    return replace(made, precision=5.0 * root.T @ root, mean=0.3 * rng.normal(size=D))


@dataclass(frozen=True)
class Units:
    """y' = y · response, x' = (x + shift) · columns."""

    response: float
    columns: Any
    shift: Any

    def apply(self, given: Task) -> Task:
        """The same task in these units."""
        u, factor, constants, offset = self.response, self.factor(given), dict(given.constants), given.offset
        if given.family == "gaussian":
            constants = {name: value * u for name, value in constants.items()}
            offset = None if offset is None else offset * u
        # the β-divergence is made of powers of a density, which has the unit 1/y
        loss = u ** (1.0 - given.divergence.b) if isinstance(given.divergence, eq.Beta) else 1.0
        T = self.matrix
        precision = T.T @ given.precision @ T * loss / factor**2
        return Task(
            given.family, constants, given.divergence, (given.x + self.shift) * self.columns, given.y * u,
            given.weights, offset, 0.5 * (precision + precision.T), self.theta(given, given.mean),
        )  # fmt: skip

    @property
    def matrix(self) -> Any:
        """θ = T θ' for the same predictor: the intercept makes up for the shifts."""
        T = np.eye(D)
        T[0] += self.shift
        return T * self.columns

    def factor(self, given: Task) -> float:
        return self.response if given.family == "gaussian" else 1.0

    def level(self, given: Task) -> Any:
        """With a log link, the unit of y is part of the intercept."""
        return np.log(self.response) * (np.arange(D) == 0) if given.family == "gamma" else np.zeros(D)

    def theta(self, given: Task, theta: Any) -> Any:
        """θ in these units."""
        return np.linalg.solve(self.matrix, theta * self.factor(given) + self.level(given))

    def back(self, given: Task, theta: Any) -> Any:
        """θ from these units."""
        return (self.matrix @ theta - self.level(given)) / self.factor(given)


def difference(given: Task, units: Units, moved: Task | None = None) -> float:
    """How much the fit in other units differs: slopes and predictors in standard errors, the scale relative to itself."""
    problem, there = given.problem, (moved or units.apply(given)).problem
    plain, other = eq.fit(problem), eq.fit(there)
    if moved is None and given.divergence is None and not np.any(units.shift):
        # the condition number is that of columns of one size
        assert other.condition == pytest.approx(plain.condition, rel=1e-5)
    m = eq.moments(problem, plain)
    inverse = np.linalg.inv(m.hessian)
    cov = inverse @ m.score_cov @ inverse / m.n
    slopes = (units.back(given, other.theta) - plain.theta)[1:] / np.sqrt(np.diag(cov))[1:]
    level = np.log(units.response) if given.family == "gamma" else 0.0
    eta = (there.source.x @ other.theta - level) / units.factor(given)
    predictors = (eta - given.x @ plain.theta) / np.sqrt(np.einsum("ij,jk,ik->i", given.x, cov, given.x))
    scale = 0.0 if plain.constant is None else other.constant / (plain.constant * units.factor(given)) - 1.0
    if given.family == "gamma":
        scale = other.constant - plain.constant
    return float(max(np.abs(slopes).max(), np.abs(predictors).max(), abs(scale)))


def factors(rng: np.random.Generator, size: int) -> Any:
    """From 1e-8 to 1e8, the ends included."""
    return 10.0 ** np.clip(rng.uniform(-10.0, 10.0, size), -8.0, 8.0)


def rescaling(given: Task, rng: np.random.Generator) -> Units:
    known = given.family in {"gaussian", "gamma"}
    return Units(float(factors(rng, 1)[0]) if known else 1.0, factors(rng, D), np.zeros(D))


@pytest.mark.parametrize("case", [*CONVEX, *BOUNDED], ids=label)
@pytest.mark.parametrize("prior", ["none", "all"])
def test_units_of_response_and_columns(case, prior) -> None:
    first, seeds = (1, 12) if case in CONVEX else (2, 2)
    for seed in range(seeds):
        rng = np.random.default_rng([first, seed])
        given = task(case, rng, prior=prior)
        assert difference(given, rescaling(given, rng)) < SAME, seed


@pytest.mark.parametrize("case", [*CONVEX, *BOUNDED], ids=label)
@pytest.mark.parametrize("prior", ["none", "slopes"])
def test_origins_of_columns(case, prior) -> None:
    """Up to a thousand standard deviations from zero, in other units at the same time."""
    for seed in range(8 if case in CONVEX else 1):
        rng = np.random.default_rng([3, seed])
        given = task(case, rng, prior=prior)
        far = np.where(np.arange(D) > 0, rng.choice([-1e3, -30.0, 30.0, 1e3], D), 0.0)
        units = Units(1.0, factors(rng, D) if seed % 2 else np.ones(D), far * given.x.std(axis=0))
        assert difference(given, units) < SAME, seed


@pytest.mark.parametrize("case", LOG_LOSSES, ids=label)
def test_units_when_a_sample_leads_the_way(case, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.fitting.fit._SAMPLE", 500)
    rng = np.random.default_rng(4)
    given = task(case, rng, n=2000)
    assert difference(given, rescaling(given, rng)) < SAME
    far = 1e3 * given.x.std(axis=0)
    assert difference(given, Units(1.0, np.ones(D), far)) < SAME


def test_a_prior_that_does_not_follow_the_units_is_seen() -> None:
    rng = np.random.default_rng(5)
    given = task(LOG_LOSSES[1], rng, prior="all")
    units = Units(3.0, np.ones(D), np.zeros(D))
    assert difference(given, units) < SAME
    assert difference(given, units, replace(units.apply(given), precision=given.precision)) > 1e-3


@pytest.mark.parametrize("case", CONVEX, ids=label)
def test_the_size_of_the_weights_does_not_matter_without_a_prior(case) -> None:
    rng = np.random.default_rng(6)
    given = task(case, rng)
    w = rng.uniform(0.2, 3.0, N)
    fits = [eq.fit(replace(given, weights=w * size).problem) for size in (1.0, 1e-8, 1e8)]
    for other in fits[1:]:
        np.testing.assert_allclose(other.theta, fits[0].theta, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_a_fixed_scale_of_any_size(scale) -> None:
    rng = np.random.default_rng(7)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    y = 200_000.0 + 60_000.0 * (0.5 * x[:, 1] + rng.normal(size=300))
    found = eq.fit(eq.glm("gaussian", scale=scale), (x, y))
    np.testing.assert_allclose(found.theta, np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-11)


@pytest.mark.parametrize("unit", [1e-12, 1e12, 1e90])
def test_gamma_in_any_unit(unit) -> None:
    given = task(LOG_LOSSES[4], np.random.default_rng(9))
    assert difference(given, Units(unit, np.ones(D), np.zeros(D))) < SAME


@pytest.mark.parametrize(("mean", "sd"), [(200_000.0, 60_000.0), (5_000.0, 1_500.0), (2_000.0, 5.0), (1.5e13, 2e12)])
def test_ordinary_least_squares_in_everyday_units(mean, sd) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
        y = mean + sd * (0.5 * x[:, 1] + rng.normal(size=200))
        found = eq.fit(eq.glm("gaussian"), (x, y))
        expected, square, *_ = np.linalg.lstsq(x, y, rcond=None)
        np.testing.assert_allclose(found.theta, expected, rtol=1e-11, atol=1e-11 * sd)
        assert found.constant == pytest.approx(np.sqrt(square[0] / 197), rel=1e-12)
        assert found.loss == pytest.approx(0.5 * 197 / 200, rel=1e-12)


def test_longley() -> None:
    """NIST's certified values, a design whose columns are nearly collinear and far from zero."""
    table = sm.datasets.longley.load_pandas()
    short = eq.fit(eq.glm("gaussian"), (sm.add_constant(table.exog[["GNP", "UNEMP"]]), table.endog))
    assert short.theta == pytest.approx([52382.167, 0.037840327, -0.54357433], rel=1e-7)
    found = eq.fit(eq.glm("gaussian"), (sm.add_constant(table.exog), table.endog))
    certified = [
        -3482258.63459582, 15.0618722713733, -0.0358191792925910, -2.02022980381683, -1.03322686717359,
        -0.0511041056535807, 1829.15146461355,
    ]  # fmt: skip
    np.testing.assert_allclose(found.theta, certified, rtol=1e-9)
    assert found.constant == pytest.approx(304.854073561965, rel=1e-10)


def separable(family: str, x: Any, y: Any) -> bool:
    """Whether a direction exists along which no row's loss rises and some fall, by a linear programme."""
    signs = np.where(y == 0.0, 1.0, -1.0 if family == "bernoulli" else 0.0)
    signs[(y > 0.0) & (y < 1.0)] = 0.0
    free = signs != 0.0
    A = signs[free, None] * x[free]
    still = {} if free.all() else {"A_eq": x[~free], "b_eq": np.zeros(int((~free).sum()))}
    found = linprog(A.sum(axis=0), A_ub=A, b_ub=np.zeros(len(A)), bounds=[(-1.0, 1.0)] * x.shape[1], **still)
    return bool(found.fun < -1e-7)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "negative-binomial"])
def test_separation_is_decided_exactly_in_any_unit(family) -> None:
    seen = []
    for seed in range(150):
        rng = np.random.default_rng([8, seed])
        n, dim = int(rng.integers(8, 50)), int(rng.integers(2, 5))
        kinds = [rng.normal(size=n), rng.integers(0, 2, n), rng.integers(0, 4, n), rng.standard_t(2, size=n)]
        x = np.column_stack([np.ones(n), *(kinds[k] for k in rng.permutation(4)[: dim - 1])]).astype(float)
        eta = np.clip(x @ (rng.normal(size=dim) * rng.choice([0.5, 2.0, 8.0])), -30.0, 6.0)
        y = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))) if family == "bernoulli" else rng.poisson(np.exp(eta - 1.0))
        y = y.astype(float)
        y[:1] = 0.5 if rng.random() < 0.2 else y[:1]
        if np.linalg.matrix_rank(x) < dim:
            continue
        shift = 1e3 * x.std(axis=0) * (np.arange(dim) > 0) * (seed % 3 == 1)
        size = 10.0 ** rng.uniform(-8.0, 8.0, dim) if seed % 3 == 2 else 1.0
        expected = separable(family, x, y)
        seen.append(expected)
        try:
            model = eq.glm(family, **({"dispersion": 1.0} if family == "negative-binomial" else {}))
            found = "converged" if eq.fit(model, ((x + shift) * size, y)).converged else "not converged"
        except eq.FitFailed as error:
            found = str(error).partition(":")[0]
        assert found == ("the loss has no finite minimiser" if expected else "converged"), seed
    assert 20 < sum(seen) < len(seen) - 20
