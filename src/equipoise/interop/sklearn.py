"""Calibrated linear models as scikit-learn estimators: penalised fits whose draws have a chosen covariance.

The loss is Σ ℓ(y_n, b + wᵀx_n) + ½ α ‖w‖²; the intercept b is not penalised. For gaussian responses ℓ is half the squared
error, so that the estimate is `Ridge(alpha)`'s, and that of `PoissonRegressor(alpha/n)` and `GammaRegressor(alpha/n)` with
their families; for classes it is the negative log-likelihood, as in `LogisticRegression(C=1/alpha)`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from equipoise.arrays import Array
from equipoise.calibration.calibration import Calibration, calibrate
from equipoise.checks import is_number, one_of, probability, shown
from equipoise.data.arrays import rows
from equipoise.errors import EquipoiseWarning, FitFailed, InfeasibleTarget, InvalidInput, warn
from equipoise.interop.scales import gamma_shape, residual_scale
from equipoise.interop.softmax import contrasts, softmax
from equipoise.models.glm import glm
from equipoise.models.problem import Model

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from equipoise.calibration.aims import Target

    MatrixLike: TypeAlias = pd.DataFrame | ArrayLike
    RandomState: TypeAlias = int | np.random.RandomState | None

__all__ = ["CalibratedClassifier", "CalibratedRegressor"]

# The smallest power of ten with which every check of scikit-learn passes within seconds: some of its data are separated,
# or have as many columns as rows, and the smaller the penalty, the longer chains take along what only it determines.
_ALPHA = 1e-3
# Predictions of one block of rows: 16 MB.
_BLOCK = 1 << 21


class _Calibrated(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: reading their arguments, and running a calibration."""

    alpha: float
    target: Target
    ess: float
    fit_intercept: bool
    random_state: RandomState
    calibration_: Calibration

    def _checked(
        self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None, **options: Any
    ) -> tuple[Array, Any, Array | None]:
        """The arrays of a fit; rows that count for nothing are left out."""
        if not (is_number(self.alpha) and 0.0 <= self.alpha < np.inf):
            raise InvalidInput("alpha", "zero or positive", shown(self.alpha), "0 is no penalty")
        if isinstance(self.target, str) and self.target.startswith("CRV"):
            raise InvalidInput(
                "target", "one that needs no clusters", repr(self.target), "use eq.calibrate(clusters=...)"
            )
        design, response = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2, **options)
        if sample_weight is None:
            return design, response, None
        weight = _check_sample_weight(sample_weight, design, dtype=np.float64, ensure_non_negative=True)
        if not np.array_equal(weight, np.rint(weight)):
            raise InvalidInput(
                "sample_weight",
                "whole numbers: how many observations each row stands for",
                f"{weight[weight != np.rint(weight)][0]:g}",
                "scale and round them, or use eq.data.rows(..., weights=...) for precision weights",
            )
        kept = weight > 0
        if kept.sum() < 2:
            raise InvalidInput("sample_weight", "positive for at least two rows", f"{kept.sum()} such rows", "drop it")
        return design[kept], response[kept], weight[kept]

    def _run(self, model: Model, data: object, exact: bool = False) -> Calibration:
        """The calibration of a model; to the posterior, which penalised rows always have, where the target is singular.

        It is where the fit is `exact`: scores of rows that vanish have no covariance.
        """
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        found = None if exact and self._robust else self._aimed(model, data, seed)
        if found is not None:
            return found
        found = calibrate(model, data, target="posterior", ess=self.ess, seed=seed, progress=False)
        warn(
            f"target: the {self.target} covariance of these rows has directions without variance (collinear columns, too "
            "few different rows, or residuals that vanish), so that the draws have the posterior's instead. To fix: drop "
            "collinear columns, give more rows, or use target='posterior'."
        )
        return found

    @property
    def _robust(self) -> bool:
        """Whether the target is a robust covariance, which may be singular."""
        return isinstance(self.target, str) and self.target != "posterior"

    def _aimed(self, model: Model, data: object, seed: int) -> Calibration | None:
        """The calibration to the target that was asked for; None where a robust one is singular."""
        try:
            with warnings.catch_warnings():
                # a run on a part of the directions has other coordinates than the columns
                warnings.filterwarnings("error", "the (scores do not vary|loss is flat)", EquipoiseWarning)
                return calibrate(model, data, target=self.target, ess=self.ess, seed=seed, progress=False)
        except FitFailed as failure:
            words = (
                str(failure)
                .replace("add a prior (prior_precision=...)", "raise alpha")
                .replace("add a prior", "raise alpha")
            )
            raise FitFailed(words, failure.columns) from failure
        except (InfeasibleTarget, EquipoiseWarning) as problem:
            if "the loss is flat" in str(problem):
                raise FitFailed(
                    "the coefficients are not determined: columns are collinear (or constant zero). To fix: drop some of "
                    "them, or raise alpha."
                ) from problem
            if not self._robust:
                raise
        return None

    def _design(self, X: Array) -> Array:
        """The columns of the linear predictor: those of X after the intercept's."""
        return np.column_stack([np.ones(len(X)), X]) if self.fit_intercept else X

    def _names(self) -> list[str]:
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{j}" for j in range(self.n_features_in_)]
        return ["Intercept", *names] if self.fit_intercept else names

    def _split(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients and intercept of vectors of both."""
        if not self.fit_intercept:
            return theta, np.zeros(theta.shape[:-1])
        return theta[..., 1:], theta[..., 0]

    def _precision(self) -> Array:
        """The penalty's precision by column."""
        precision = np.full(self.n_features_in_ + bool(self.fit_intercept), float(self.alpha))
        if self.fit_intercept:
            precision[0] = 0.0
        return precision

    def _new(self, X: MatrixLike) -> Array:
        check_is_fitted(self)
        return self._design(cast(Array, validate_data(self, X, dtype=np.float64, reset=False)))


class CalibratedRegressor(RegressorMixin, _Calibrated):  # type: ignore[misc]
    """A generalised linear regression whose draws have a calibrated covariance.

    Parameters
    ----------
    family
        `"gaussian"` (least squares), `"poisson"`, `"gamma"` or `"negative-binomial"` (log link): see `eq.glm`.
    alpha
        ½ α ‖w‖² is added to the summed loss; the intercept is not penalised.
    target
        What covariance the draws are to have: see `eq.calibrate`.
    ess
        Effective draws.
    fit_intercept
        Whether there is an intercept.
    random_state
        Of the draws; the estimate does not depend on it.

    Attributes
    ----------
    coef_, intercept_
        The penalised estimate.
    std_errors_, intercept_std_error_
        Standard errors of both, by the target.
    calibration_
        The whole run: draws, diagnosis, summary, report.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = X @ [1.0, -1.0] + rng.normal(size=200)
    >>> model = CalibratedRegressor(ess=100, random_state=0).fit(X, y)
    >>> model.predict_interval(X[:3], level=0.9).shape
    (3, 2)
    """

    def __init__(
        self,
        family: str = "gaussian",
        *,
        alpha: float = _ALPHA,
        target: Target = "sandwich",
        ess: float = 1000,
        fit_intercept: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.family, self.alpha, self.target = family, alpha, target
        self.ess, self.fit_intercept, self.random_state = ess, fit_intercept, random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.family != "gaussian"
        return tags

    def fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Estimate, tune and sample.

        Parameters
        ----------
        X, y
            Rows and their responses; a DataFrame gives its column names.
        sample_weight
            How many observations each row stands for.
        """
        one_of("family", self.family, ("gaussian", "poisson", "gamma", "negative-binomial"))
        x, response, weight = self._checked(X, y, sample_weight, y_numeric=True)
        design, precision = self._design(x), self._precision()
        data = rows(design, response, frequency=weight, names=self._names())
        model = glm(self.family, prior_precision=precision)
        if self.family == "gaussian":
            scale = residual_scale(design, response, weight, precision)
            model = glm("gaussian", scale=scale, prior_precision=precision / scale**2)
        shape = 1.0
        if self.family == "gamma" and self.alpha > 0.0:
            shape = gamma_shape(data, precision)
            model = glm("gamma", shape=shape or 1.0, prior_precision=precision * (shape or 1.0))
        self.calibration_ = self._run(model, data, exact=not shape)
        coef, intercept = self._split(self.calibration_.fit.theta)
        self.coef_, self.intercept_ = coef, float(intercept)
        errors, error = self._split(np.sqrt(np.diag(self.calibration_.tuning.target)))
        self.std_errors_, self.intercept_std_error_ = errors, float(error)
        return self

    def predict(self, X: MatrixLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean response at the estimate; with `return_std` also its standard deviation over the draws."""
        design = self._new(X)
        model = self.calibration_.require_model()
        mean = model.mean_response(design @ self.calibration_.fit.theta)
        if not return_std:
            return mean
        draws = self.calibration_.chains.flat()
        parts = [model.mean_response(part @ draws.T).std(axis=1) for part in _blocks(design, len(draws))]
        return mean, np.concatenate(parts)

    def predict_interval(self, X: MatrixLike, level: float = 0.95, kind: str = "mean") -> Array:
        """Intervals (rows, 2) for the mean response, or with `kind="observation"` for a new response."""
        design = self._new(X)
        found = self.calibration_.predict(design, interval=probability("level", level), kind=kind)
        return found[["lower", "upper"]].to_numpy()


class CalibratedClassifier(ClassifierMixin, _Calibrated):  # type: ignore[misc]
    """A logistic regression, of two classes or more, whose draws have a calibrated covariance.

    More than two classes have a softmax loss, which needs JAX (`pip install 'equipoise[general]'`). Its coefficients sum
    to zero over the classes.

    Parameters
    ----------
    alpha
        ½ α ‖w‖² is added to the summed loss, as by `LogisticRegression(C=1/alpha)`; the intercept is not penalised.
    target, ess, fit_intercept, random_state
        See `CalibratedRegressor`.

    Attributes
    ----------
    classes_
        The labels.
    coef_, intercept_
        The penalised estimate: (1, columns) and (1,) for two classes, a row for each class of more.
    std_errors_, intercept_std_error_
        Standard errors of both, by the target.
    calibration_
        The whole run: draws, diagnosis, report.
    """

    def __init__(
        self,
        *,
        alpha: float = _ALPHA,
        target: Target = "sandwich",
        ess: float = 1000,
        fit_intercept: bool = True,
        random_state: RandomState = None,
    ) -> None:
        self.alpha, self.target, self.ess = alpha, target, ess
        self.fit_intercept, self.random_state = fit_intercept, random_state

    def fit(self, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Estimate, tune and sample; `sample_weight` says how many observations each row stands for."""
        x, response, weight = self._checked(X, y, sample_weight)
        check_classification_targets(response)
        self.classes_, codes = np.unique(response, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput("y", "of at least two classes", "one class", "give rows of another class too")
        design = self._design(x)
        if len(self.classes_) == 2:
            model = glm("bernoulli", prior_precision=self._precision())
            data = rows(design, codes.astype(np.float64), frequency=weight, names=self._names())
            self.calibration_ = self._run(model, data)
        else:
            again = slice(None) if weight is None else np.repeat(np.arange(len(x)), weight.astype(int))
            loss = softmax(len(self.classes_), tuple(self._precision()))
            self.calibration_ = self._run(loss, {"x": design[again], "y": codes[again]})
        self.coef_, self.intercept_ = self._split(self._rows_of(self.calibration_.fit.theta))
        errors = self._spread(self.calibration_.tuning.target)
        self.std_errors_, self.intercept_std_error_ = self._split(errors)
        return self

    def decision_function(self, X: MatrixLike) -> Array:
        """Linear predictors: (rows,) of the second of two classes, (rows, classes) of more."""
        eta = self._new(X) @ self._rows_of(self.calibration_.fit.theta).T
        return eta[:, 0] if len(self.classes_) == 2 else eta

    def predict_proba(self, X: MatrixLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Probabilities (rows, classes) at the estimate; with `return_std` also their standard deviations over the draws."""
        design = self._new(X)
        mean = self._probabilities(design, self.calibration_.fit.theta[None])[0]
        if not return_std:
            return mean
        return mean, np.concatenate([found.std(axis=0) for found in self._of_draws(design)])

    def predict_log_proba(self, X: MatrixLike) -> Array:
        """Logarithms of the probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(cast(Array, self.predict_proba(X)))

    def predict(
        self, X: MatrixLike, return_std: bool = False
    ) -> NDArray[np.generic] | tuple[NDArray[np.generic], Array]:
        """The most probable class; with `return_std` also the standard deviation of its probability over the draws."""
        if not return_std:
            best = np.argmax(self.predict_proba(X), axis=1)
            return self.classes_[best]
        mean, spread = self.predict_proba(X, return_std=True)
        best = np.argmax(mean, axis=1)
        return self.classes_[best], spread[np.arange(len(best)), best]

    def predict_interval(self, X: MatrixLike, level: float = 0.95) -> Array:
        """Intervals (rows, classes, 2) for the probabilities."""
        tail = 0.5 * (1.0 - probability("level", level))
        parts = [np.quantile(found, [tail, 1.0 - tail], axis=0) for found in self._of_draws(self._new(X))]
        return np.moveaxis(np.concatenate(parts, axis=1), 0, 2)

    def _of_draws(self, design: Array) -> list[Array]:
        """Probabilities (draws, rows, classes) of every block of rows."""
        draws = self.calibration_.chains.flat()
        width = len(draws) * len(self.classes_)
        return [self._probabilities(part, draws) for part in _blocks(design, width)]

    def _probabilities(self, design: Array, theta: Array) -> Array:
        """(draws, rows, classes)."""
        eta = design @ np.swapaxes(self._rows_of(theta), -1, -2)
        if len(self.classes_) == 2:
            eta = np.concatenate([np.zeros_like(eta), eta], axis=-1)
        eta -= eta.max(axis=-1, keepdims=True)
        np.exp(eta, out=eta)
        return cast(Array, eta / eta.sum(axis=-1, keepdims=True))

    def _rows_of(self, theta: Array) -> Array:
        """Flat parameters as one row of columns for each class; of two classes the second alone."""
        if len(self.classes_) == 2:
            return theta[..., None, :]
        basis = contrasts(len(self.classes_))
        return basis @ theta.reshape(*theta.shape[:-1], basis.shape[1], -1)

    def _spread(self, cov: Array) -> Array:
        """Standard errors in the same shape."""
        if len(self.classes_) == 2:
            return np.sqrt(np.diag(cov))[None]
        basis = contrasts(len(self.classes_))
        free = basis.shape[1]
        blocks = cov.reshape(free, -1, free, len(cov) // free)
        return np.sqrt(np.einsum("ki,iclc,kl->kc", basis, blocks, basis))


def _blocks(design: Array, width: int) -> list[Array]:
    """Rows in blocks of so many that `width` numbers for each are not too many."""
    size = max(1, _BLOCK // width)
    return [design[start : start + size] for start in range(0, len(design), size)]
