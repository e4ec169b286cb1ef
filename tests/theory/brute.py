"""Independent restatements of the theory: dense Kronecker algebra, plain sums, no shared code with the library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import equipoise as eq


@dataclass
class Problem:
    moments: eq.Moments
    hessians: np.ndarray
    scores: np.ndarray


def problem(dim: int, n: int = 60, seed: int = 0, prior: float = 3.0) -> Problem:
    """A misspecified linear-predictor problem with correlated covariates and curvature that varies by row."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)) @ (np.eye(dim) + 0.5 * rng.normal(size=(dim, dim)))
    h = rng.uniform(0.2, 1.5, size=n)
    scores = (rng.normal(size=n) * (0.5 + x[:, 0] ** 2))[:, None] * x
    hessians = h[:, None, None] * x[:, :, None] * x[:, None, :]
    return Problem(eq.Moments.from_arrays(scores, hessians, prior * np.eye(dim)), hessians, scores)


def step_direction(dim: int, seed: int = 1) -> np.ndarray:
    q = np.random.default_rng(seed).normal(size=(dim, dim))
    return q @ q.T + np.eye(dim)


def noise(p: Problem, dynamics: eq.Dynamics, proxy: str):
    """(constant, linear) of C(S) = constant + linear(S), from the table of theory §2."""
    n, B = p.moments.n, dynamics.batch_size
    b = 1 / B if dynamics.replacement else (n - B) / (B * (n - 1))
    J = p.hessians.mean(axis=0)
    centred = p.scores - p.scores.mean(axis=0)
    V = centred.T @ centred / n
    if proxy == "dq-exact":
        # rows drawn with probabilities chance, their terms divided by n · chance
        chance = leverage_chances(p) if dynamics.batches == "leverage" else np.full(n, 1 / n)
        V = sum(np.outer(g, g) / (n * n * c) for g, c in zip(p.scores, chance, strict=True))
        V = V - np.outer(p.scores.mean(axis=0), p.scores.mean(axis=0))
        V = 0.0 * V if dynamics.gradient == "control-variate" else V
        terms = list(zip(p.hessians, chance, strict=True))
        return b * V, lambda S: b * (sum(h @ S @ h / (n * n * c) for h, c in terms) - J @ S @ J)
    if proxy == "dq-const":
        return b * J, lambda S: 0.0 * S
    ratio = np.trace(np.linalg.inv(J) @ V) / len(J)
    return b * ratio * J, lambda S: b * (J @ S @ J + np.trace(J @ S) * J)


@dataclass
class Joint:
    """The joint law of position and momentum, by one dense linear solve."""

    P: np.ndarray
    A: np.ndarray
    radius: float

    def autocovariance(self, lag: int) -> np.ndarray:
        dim = len(self.P) // 2
        return (np.linalg.matrix_power(self.A, lag) @ self.P)[:dim, :dim]


def leverage_chances(p: Problem) -> np.ndarray:
    """p_n = 0.1/N + 0.9 l_n/Σl, l_n = tr(H⁻¹J_n)."""
    leverage = np.array([np.trace(np.linalg.solve(p.moments.hessian, h)) for h in p.hessians])
    return 0.1 / len(leverage) + 0.9 * leverage / leverage.sum()


def joint(
    p: Problem,
    step: np.ndarray,
    dynamics: eq.Dynamics,
    proxy: str = "dq-exact",
    injected: np.ndarray | None = None,
) -> Joint:
    """P = 𝒜P𝒜ᵀ + 𝒢C(P₁₁)𝒢ᵀ + diag(M, 0) through its (2D)²×(2D)² matrix; M is (2/β)Λ unless given."""
    H, k, dim = p.moments.hessian, dynamics.momentum, p.moments.dim
    eye = np.eye(dim)
    A = np.block([[eye - step @ H, -k * step], [H, k * eye]])
    G = np.vstack([-step, eye])
    constant, linear = noise(p, dynamics, proxy)
    size = (2 * dim) ** 2
    T = np.empty((size, size))
    for column in range(size):
        P = np.zeros(size)
        P[column] = 1.0
        P = P.reshape(2 * dim, 2 * dim)
        T[:, column] = (A @ P @ A.T + G @ linear(P[:dim, :dim]) @ G.T).ravel()
    source = G @ constant @ G.T
    source[:dim, :dim] += 2.0 / dynamics.inverse_temperature * step if injected is None else injected
    P = np.linalg.solve(np.eye(size) - T, source.ravel()).reshape(2 * dim, 2 * dim)
    return Joint(P, A, float(np.abs(np.linalg.eigvals(T)).max()))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())
