"""Targets: the covariances a chain can be asked to sample (theory §3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.checks import checked_options, instance, numeric_array, whole
from equipoise.errors import FitFailed, InfeasibleTarget, InvalidInput
from equipoise.linalg import FLAT, between, is_positive, symmetric
from equipoise.theory.moments import Moments

__all__ = ["TARGETS", "bayesbag", "posterior", "require_scores", "sandwich", "target_matrix"]

_LEAST = 1e-14  # eigenvalue of a correlation matrix that is rounding


@checked_options
def sandwich(moments: Moments) -> Array:
    """The robust covariance H⁻¹ V H⁻¹ / N: the sampling variance of the minimiser, whether or not the model is right."""
    return between(_hessian_factor(moments), moments.score_cov) / moments.n


@checked_options
def posterior(moments: Moments) -> Array:
    """The Laplace approximation of the posterior, H⁻¹ / N."""
    return symmetric(cho_solve(_hessian_factor(moments), np.eye(moments.dim))) / moments.n


@checked_options
def bayesbag(moments: Moments, bag_size: int | None = None) -> Array:
    """The bagged posterior's covariance, (H⁻¹ + H⁻¹ V H⁻¹) / M for bags of M rows (all N by default)."""
    total = posterior(moments) + sandwich(moments)
    if bag_size is None:
        return total
    return total * (moments.n / whole("bag_size", bag_size, 1, "use the number of rows, or leave it out", "None or "))


TARGETS = {"sandwich": sandwich, "posterior": posterior, "bayesbag": bayesbag}


def target_matrix(target: str | ArrayLike, moments: Moments) -> Array:
    """A target given by name or as a matrix that fits; `InfeasibleTarget` unless it is symmetric positive definite."""
    if isinstance(target, str):
        if target not in TARGETS:
            raise InvalidInput("target", f"one of {', '.join(TARGETS)} or a matrix", repr(target), "choose one of them")
        matrix = TARGETS[target](moments)
    else:
        matrix = numeric_array("target", target, f"pass a matrix, or one of {', '.join(TARGETS)}")
    if matrix.shape != (moments.dim, moments.dim):
        raise InvalidInput(
            "target",
            f"of shape ({moments.dim}, {moments.dim})",
            f"shape {matrix.shape}",
            "match the parameters",
        )
    scale = np.abs(matrix).max()
    if not np.isfinite(scale) or np.abs(matrix - matrix.T).max() > 1e-8 * scale:
        raise InfeasibleTarget("target: must be a finite symmetric matrix. To fix: pass (target + target.T) / 2.")
    if isinstance(target, str) and target == "sandwich":
        require_scores(moments, target)
    root = np.sqrt(np.abs(np.diag(matrix)))
    if root.min() > 0.0:
        shifted = matrix / (root[:, None] * root)
        shifted.flat[:: moments.dim + 1] -= _LEAST
        if is_positive(shifted):
            return symmetric(matrix)
    raise _indefinite(moments, matrix)


def _indefinite(moments: Moments, matrix: Array) -> InfeasibleTarget:
    """What to say of a given matrix that is no covariance of full rank."""
    variances = np.diag(matrix)
    if not np.all(variances > 0.0):
        wrong = moments.mainly(np.eye(moments.dim)[[int(np.argmin(variances))]])
        return InfeasibleTarget(
            f"target: must be positive definite; its diagonal has {variances.min():.2g} at {wrong}. To fix: pass a matrix "
            "with a positive variance of every parameter, or 'posterior'."
        )
    smallest = np.linalg.eigvalsh(matrix / np.sqrt(np.outer(variances, variances)))[0]
    share = max(1e-6, -1.1 * smallest)
    return InfeasibleTarget(
        f"target: must be positive definite; its correlation matrix has smallest eigenvalue {smallest:.2g}. To fix: pass a "
        f"matrix with variance along every direction, as target + {share:.2g} * numpy.diag(numpy.diag(target)) has, or "
        "'posterior'."
    )


def require_scores(moments: Moments, kind: str) -> None:
    """Refuse a robust covariance where the scores do not vary along some directions, which the error carries."""
    quiet = moments.quiet
    if len(quiet):
        raise InfeasibleTarget(
            f"target: the {kind} covariance is singular: the scores do not vary along {len(quiet)} of {moments.dim} "
            f"direction(s), mainly {moments.mainly(quiet)} (collinear columns or redundant parameters, which a prior alone "
            "decides), and no chain has it. To fix: use target='posterior', which has variance along all of them, or leave "
            "out what is redundant.",
            directions=quiet,
        )


def _hessian_factor(moments: Moments) -> tuple[Array, bool]:
    instance("moments", moments, Moments, "make them with eq.moments")
    try:
        factor, lower = cho_factor(moments.hessian)
        # no eigenvalue is larger than a pivot: rounding may leave one of a singular matrix
        if np.all(np.diag(factor) ** 2 > FLAT * np.diag(moments.hessian)):
            return factor, lower
    except np.linalg.LinAlgError:
        pass
    raise FitFailed(
        "the Hessian at the given parameters is not positive definite, so no covariance can be formed. To fix: check "
        "that the fit converged; remove collinear columns or redundant parameters (model.identified(data, params) leaves "
        "those of a loss of your own out), or add a prior (prior_precision=...) and use target='posterior'."
    )
