"""The estimators: scikit-learn's own checks, its own estimates, and standard errors worked out by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import equipoise as eq
from equipoise.interop.sklearn import CalibratedClassifier, CalibratedRegressor

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.errors.EquipoiseWarning")


@parametrize_with_checks([CalibratedRegressor(ess=20)])
def test_a_regressor_passes_every_check(estimator, check) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [CalibratedClassifier(ess=20), *(CalibratedRegressor(family, ess=20) for family in ("poisson", "gamma"))]
)
def test_the_others_pass_every_check(estimator, check) -> None:
    check(estimator)


def regression(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 5.0, 0.2] + [0.0, 2.0, 0.0]
    y = 1.0 + X @ [0.5, -0.3, 2.0] + rng.normal(size=n) * (0.5 + np.abs(X[:, 0]))
    return X, y, rng.integers(0, 4, size=n)


def sandwich(X, residuals, H, weight):
    """The covariance of a penalised estimate by its definition; scores are centred, and the penalty shifts their mean."""
    n = weight.sum()
    scores = residuals[:, None] * X
    mean = weight @ scores / n
    V = (scores - mean).T @ ((scores - mean) * weight[:, None])
    return np.linalg.solve(H, np.linalg.solve(H, V).T)


def test_least_squares_are_ridge_with_the_sandwich_of_its_residuals() -> None:
    X, y, weight = regression()
    ours = CalibratedRegressor(alpha=3.0, ess=50, random_state=1).fit(X, y, sample_weight=weight)
    theirs = Ridge(alpha=3.0).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-7)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-7)
    design = np.column_stack([np.ones(len(X)), X])
    H = design.T @ (design * weight[:, None]) + np.diag([0.0, 3.0, 3.0, 3.0])
    cov = sandwich(design, y - theirs.predict(X), H, weight.astype(float))
    errors = np.sqrt(np.diag(cov))
    np.testing.assert_allclose(np.r_[ours.intercept_std_error_, ours.std_errors_], errors, rtol=1e-6)


def test_the_posterior_of_least_squares_has_the_residuals_scale() -> None:
    X, y, _ = regression()
    ours = CalibratedRegressor(alpha=0.5, target="posterior", ess=50, random_state=1).fit(X, y)
    design = np.column_stack([np.ones(len(X)), X])
    H = design.T @ design + np.diag([0.0, 0.5, 0.5, 0.5])
    squares = np.sum((y - ours.predict(X)) ** 2)
    used = np.trace(np.linalg.solve(H, design.T @ design))
    errors = np.sqrt(np.diag(np.linalg.inv(H)) * squares / (len(y) - used))
    np.testing.assert_allclose(np.r_[ours.intercept_std_error_, ours.std_errors_], errors, rtol=1e-6)


@pytest.mark.parametrize(("family", "other"), [("poisson", PoissonRegressor), ("gamma", GammaRegressor)])
def test_positive_responses_are_those_of_their_regressions(family, other) -> None:
    X, _, _ = regression()
    rng, mean = np.random.default_rng(3), np.exp(0.2 * X[:, 0] - 0.1 * X[:, 1])
    y = rng.poisson(mean) if family == "poisson" else rng.gamma(3.0, mean / 3.0)
    ours = CalibratedRegressor(family, alpha=2.0, ess=50).fit(X, y)
    # theirs averages the loss over rows
    theirs = other(alpha=2.0 / len(y), tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
    np.testing.assert_allclose(ours.predict(X[:5]), theirs.predict(X[:5]), rtol=1e-5)


def test_weights_are_rows_written_several_times() -> None:
    X, y, weight = regression()
    again = np.repeat(np.arange(len(y)), weight)
    for make in (CalibratedRegressor(alpha=1.0, ess=20), CalibratedClassifier(alpha=1.0, ess=20)):
        response = y if isinstance(make, CalibratedRegressor) else y > 0.5
        one = clone(make).fit(X, response, sample_weight=weight)
        other = clone(make).fit(X[again], response[again])
        np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-8)
        np.testing.assert_allclose(one.std_errors_, other.std_errors_, rtol=1e-8)


def test_two_classes_are_logistic_regression() -> None:
    X, y, _ = regression()
    ours = CalibratedClassifier(alpha=0.3, ess=50).fit(X, np.where(y > 0.5, "yes", "no"))
    theirs = LogisticRegression(C=1 / 0.3, tol=1e-10, max_iter=10_000).fit(X, np.where(y > 0.5, "yes", "no"))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-4)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), rtol=1e-4)
    assert ours.score(X, np.where(y > 0.5, "yes", "no")) == theirs.score(X, np.where(y > 0.5, "yes", "no"))


@pytest.mark.slow
def test_more_classes_are_a_softmax() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["a", "b", "c"])[y]
    ours = CalibratedClassifier(alpha=2.0, ess=100, random_state=0).fit(X, names)
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=100_000).fit(X, names)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    # the sandwich of all twelve coefficients by pseudo-inverses: the sum over classes does not vary
    design = np.column_stack([np.ones(len(X)), X])
    p = theirs.predict_proba(X)
    scores = np.einsum("nk,nc->nkc", p - np.eye(3)[y], design).reshape(len(X), -1)
    H = sum(
        np.kron(np.diag(p[n]) - np.outer(p[n], p[n]), np.outer(design[n], design[n])) for n in range(len(X))
    ) + np.kron(np.eye(3), np.diag([0.0, 2.0, 2.0, 2.0, 2.0]))
    centred = np.kron(np.eye(3) - 1 / 3, np.eye(5))
    inverse = np.linalg.pinv(centred @ H @ centred, rcond=1e-10)
    away = scores - scores.mean(axis=0)
    errors = np.sqrt(np.diag(inverse @ away.T @ away @ inverse)).reshape(3, 5)
    np.testing.assert_allclose(ours.std_errors_, errors[:, 1:], rtol=1e-3)
    np.testing.assert_allclose(ours.intercept_std_error_, errors[:, 0], rtol=1e-3)
    bounds = ours.predict_interval(X[:4], level=0.9)
    assert bounds.shape == (4, 3, 2)
    assert (bounds[..., 0] < bounds[..., 1]).all()
    mean, spread = ours.predict_proba(X[:4], return_std=True)
    assert mean.shape == spread.shape == (4, 3)
    restored = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(restored.predict_interval(X[:4], 0.9), bounds)


def test_predictions_spread_as_the_coefficients_do() -> None:
    X, y, _ = regression()
    ours = CalibratedRegressor(alpha=1.0, ess=4000, random_state=2).fit(X, y)
    _, spread = ours.predict(X[:50], return_std=True)
    design = np.column_stack([np.ones(50), X[:50]])
    exact = np.sqrt(np.einsum("ni,ij,nj->n", design, ours.calibration_.tuning.target, design))
    np.testing.assert_allclose(spread, exact, rtol=5.0 / np.sqrt(2 * 4000))
    low, high = ours.predict_interval(X[:50], level=0.9).T
    np.testing.assert_allclose((high - low) / 2, ndtri(0.95) * exact, rtol=1e-7)
    H = (whole := np.column_stack([np.ones(len(X)), X])).T @ whole
    used = np.trace(np.linalg.solve(H + np.diag([0.0, 1.0, 1.0, 1.0]), H))
    scale = np.sqrt(np.sum((y - ours.predict(X)) ** 2) / (len(y) - used))
    low, high = ours.predict_interval(X[:50], level=0.9, kind="observation").T
    np.testing.assert_allclose((high - low) / 2, ndtri(0.95) * np.hypot(exact, scale), rtol=1e-7)


def test_they_work_where_estimators_work() -> None:
    X, y, _ = regression()
    frame = pd.DataFrame(X, columns=["age", "dose", "weight"])
    piped = make_pipeline(StandardScaler(), CalibratedRegressor(ess=20, random_state=0))
    assert cross_val_score(piped, frame, y, cv=3).min() > 0.3
    search = GridSearchCV(CalibratedRegressor(ess=20), {"alpha": [1e-2, 1e5]}, cv=3).fit(frame, y)
    assert search.best_params_ == {"alpha": 1e-2}
    best = search.best_estimator_
    assert best.calibration_.names == ("Intercept", "age", "dose", "weight")
    assert list(best.feature_names_in_) == ["age", "dose", "weight"]
    assert "CalibratedRegressor" in best._repr_html_()
    with pytest.raises(ValueError, match="feature names"):
        best.predict(frame.rename(columns={"age": "years"}))


def test_the_draws_are_those_of_the_random_state() -> None:
    X, y, _ = regression()
    one, same, other = (CalibratedRegressor(ess=20, random_state=s).fit(X, y).calibration_.draws for s in (4, 4, 5))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_no_intercept() -> None:
    X, y, _ = regression()
    ours = CalibratedRegressor(alpha=3.0, ess=20, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(ours.coef_, Ridge(alpha=3.0, fit_intercept=False).fit(X, y).coef_, rtol=1e-7)
    assert ours.intercept_ == 0.0


def test_rows_too_few_for_a_sandwich_are_said_to_be() -> None:
    X, y, _ = regression(n=4)
    with pytest.warns(eq.EquipoiseWarning, match="posterior's instead"):
        ours = CalibratedRegressor(alpha=1.0, ess=20).fit(X, y)
    assert ours.calibration_.plan.target_name == "posterior"


@pytest.mark.parametrize(
    ("options", "weight", "named"),
    [
        ({"alpha": -1.0}, None, "alpha"),
        ({"family": "cauchy"}, None, "family"),
        ({"target": "CRV1"}, None, "needs no clusters"),
        ({}, np.full(300, 0.5), "sample_weight"),
        ({}, np.zeros(300), "sample weight"),
    ],
)
def test_what_is_wrong_is_named(options, weight, named) -> None:
    X, y, _ = regression()
    with pytest.raises(ValueError, match=rf"(?i){named}"):
        CalibratedRegressor(ess=20, **options).fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_collinear_columns_are_refused_without_a_penalty_and_taken_with_one(classes) -> None:
    X, y, _ = regression()
    X = np.column_stack([X, X[:, 0]])
    made, y = (
        (CalibratedRegressor, y) if not classes else (CalibratedClassifier, np.digitize(y, [0.0, 2.0][: classes - 1]))
    )
    with pytest.raises(eq.FitFailed, match="raise alpha"):
        made(alpha=0.0, ess=20).fit(X, y)
    with pytest.warns(eq.EquipoiseWarning, match="collinear"):
        ours = made(alpha=1.0, ess=20, random_state=0).fit(X, y)
    # the penalty shares what the twins have in common, and is all that holds them apart: 1/α between them
    design, held = np.column_stack([np.ones(len(X)), X]), np.diag([0.0, 1.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(ours.coef_[..., 0], ours.coef_[..., 3], rtol=1e-6)
    if classes == 0:
        H = design.T @ design + held
        used = np.trace(np.linalg.solve(H, design.T @ design))
        cov = np.linalg.inv(H) * np.sum((y - ours.predict(X)) ** 2) / (len(y) - used)
    elif classes == 2:
        p = ours.predict_proba(X)[:, 1]
        cov = np.linalg.inv(design.T @ (design * (p * (1.0 - p))[:, None]) + held)
    else:
        p = ours.predict_proba(X)
        middle = np.einsum("nk,kl->nkl", p, np.eye(3)) - p[:, :, None] * p[:, None, :]
        H = np.einsum("nkl,nc,nd->kcld", middle, design, design).reshape(15, 15) + np.kron(np.eye(3), held)
        centred = np.kron(np.eye(3) - 1 / 3, np.eye(5))  # the sum over classes does not vary
        cov = np.linalg.pinv(centred @ H @ centred, rcond=1e-10)
    errors = np.sqrt(np.diag(cov)).reshape(*ours.coef_.shape[:-1], 5)[..., 1:]
    np.testing.assert_allclose(ours.std_errors_, errors, rtol=1e-3)


def test_separated_classes_are_refused_without_a_penalty() -> None:
    X, _, _ = regression()
    for cuts in ([0.0], [-0.5, 0.5]):
        with pytest.raises(eq.FitFailed, match="raise alpha"):
            CalibratedClassifier(alpha=0.0, ess=20).fit(X, np.digitize(X[:, 0], cuts))


@pytest.mark.parametrize("made", [CalibratedRegressor, CalibratedClassifier])
def test_intervals_need_a_fit(made) -> None:
    with pytest.raises(NotFittedError):
        made().predict_interval(np.ones((2, 3)))
