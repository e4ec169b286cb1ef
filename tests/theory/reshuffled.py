"""Random reshuffling by brute force: all permutations, stacked noises, the recursion with curvature, and simulation."""

from __future__ import annotations

from itertools import permutations

import numpy as np


def batches(n: int, batch: int, drop_last: bool) -> list[int]:
    sizes = [batch] * (n // batch)
    return sizes + ([n % batch] if n % batch and not drop_last else [])


def joint(H, step, momentum):
    """The mean dynamics of (position, momentum), what a gradient does to it, and where injected noise goes."""
    eye = np.eye(len(H))
    if momentum == 0.0:
        return eye - step @ H, -step, eye
    A = np.block([[eye - step @ H, -momentum * step], [H, momentum * eye]])
    return A, np.vstack([-step, eye]), np.vstack([eye, 0 * eye])


def all_permutations(H, scores, step, momentum, sizes):
    """Covariances at every position when all rows have the Hessian H: the mean over every order of the rows."""
    A, G, _ = joint(H, step, momentum)
    centred, n = scores - scores.mean(axis=0), len(sizes)
    made = np.zeros((n + 1, len(A), len(A)))
    orders = list(permutations(range(len(scores))))
    for order in orders:
        state, used = np.zeros(len(A)), 0
        for j, size in enumerate(sizes):
            state = A @ state + G @ centred[list(order[used : used + size])].mean(axis=0)
            used += size
            made[j + 1] += np.outer(state, state) / len(orders)
    return _closed(A, made)


def _closed(A, made):
    """P_j = A^j P_0 A^jᵀ + R_j with P_n = P_0."""
    m, power = len(A), [np.eye(len(A))]
    for _ in made[1:]:
        power.append(A @ power[-1])
    start = np.linalg.solve(np.eye(m * m) - np.kron(power[-1], power[-1]), made[-1].ravel()).reshape(m, m)
    return np.array([a @ start @ a.T + r for a, r in zip(power, made, strict=True)])


class Stacked:
    """An epoch's noises in one long vector with its covariance: any lag at any position is one product."""

    def __init__(self, H, V, step, momentum, temperature, sizes, n):
        self.dim, self.n, self.A = len(H), len(sizes), joint(H, step, momentum)[0]
        _, G, E = joint(H, step, momentum)
        weight = n / (n - 1) * (np.diag(1.0 / np.array(sizes)) - 1.0 / n)
        noise = np.kron(weight, V)
        power = [np.eye(len(self.A))]
        for _ in range(20 * self.n):
            power.append(self.A @ power[-1])
        self.power = power
        self.response = [
            np.hstack([power[j - 1 - i] @ G if i < j else 0 * G for i in range(self.n)]) for j in range(self.n + 1)
        ]
        Q = 2.0 * temperature * E @ step @ E.T
        self.injected = [sum((a @ Q @ a.T for a in power[:j]), np.zeros_like(self.A)) for j in range(self.n + 1)]
        self.noise = noise
        made = [r @ noise @ r.T + q for r, q in zip(self.response, self.injected, strict=True)]
        self.P = _closed(self.A, np.array(made))

    def lag(self, j, k):
        """Cov(θ_{t+k}, θ_t), t at position j."""
        end = min(j + k, self.n)
        X = (
            self.power[end] @ self.P[0] @ self.power[j].T
            + self.response[end] @ self.noise @ self.response[j].T
            + self.power[end - j] @ self.injected[j]
        )
        return (np.linalg.matrix_power(self.A, j + k - end) @ X)[: self.dim, : self.dim]

    def mean_lag(self, k):
        return np.mean([self.lag(j, k) for j in range(self.n)], axis=0)


def with_curvature(x, slope, H, step, batch):
    """Σ̄ and the shifts by position from the second-order recursion, rows of squared loss with scores slope·x."""
    N, D = x.shape
    n, q, eta = N // batch, batch / N, N / (batch * (N - 1))
    b, eta3 = eta * (1 - q), N**2 / ((N - 1) * (N - 2) * batch**2)
    J, g = x.T @ x / N, slope[:, None] * x
    g = g - g.mean(axis=0)
    V = g.T @ g / N

    def bent(y):
        return np.sum(x * y, axis=1)[:, None] * x - y @ J

    def twice(M):
        return bent(g @ M.T).T @ g / N

    def moved(mu):
        return bent(np.tile(mu, (N, 1))).T @ g / N

    A = np.eye(D) - step @ H
    power = [np.linalg.matrix_power(A, j) for j in range(n + 1)]
    c = [(np.eye(D) - a) @ np.linalg.inv(H) for a in power]
    push = [-eta * q * step @ bent(g @ M.T).mean(axis=0) for M in c[:n]]
    mu = [np.linalg.solve(np.eye(D) - power[n], sum(power[n - 1 - j] @ push[j] for j in range(n)))]
    for p in push:
        mu.append(A @ mu[-1] + p)
    sums, X, Y = [np.zeros((D, D)) for _ in range(3)], [], []
    for j in range(n):
        Tj, Zj = twice(c[j]), moved(mu[j])
        X.append(
            eta * q * (c[j] @ V + c[j] @ Zj.T + sums[0]) + eta3 * (2 * q * q * (sums[1] + c[j] @ Tj.T) - q * sums[2])
        )
        Y.append(b * (V + Zj + Zj.T) + eta3 * q * (1 - 2 * q) * (Tj + Tj.T))
        reach = power[j] @ step
        sums = [A @ sums[0] + step @ Zj, A @ sums[1] + step @ Tj, sums[2] + reach @ twice(reach).T]
    P = np.zeros((D, D))
    for _ in range(60):
        seen = [P]
        for j in range(n):
            S = seen[-1]
            K = (x * np.sum((x @ S) * x, axis=1)[:, None]).T @ x / N - J @ S @ J
            crossed = A @ X[j] @ step
            seen.append(A @ S @ A.T + step @ (Y[j] + b * K) @ step - crossed - crossed.T)
        P = seen[-1]
    return np.mean(seen[:n], axis=0), np.array(mu)


def simulate(x, y, theta, H, step, momentum, temperature, sizes, epochs, chains, seed):
    """Deviations from the minimiser at every position of the later epochs, squared loss with a prior: (positions, draws, D)."""
    rng, (N, D) = np.random.default_rng(seed), x.shape
    prior, root = H - x.T @ x / N, np.linalg.cholesky(2.0 * temperature * step) if temperature else None
    e, m, kept = np.zeros((chains, D)), np.zeros((chains, D)), []
    residual = y - x @ theta
    pull = -x.T @ residual / N  # minus the prior's gradient at the minimiser
    for epoch in range(epochs):
        order, used, seen = rng.permuted(np.tile(np.arange(N), (chains, 1)), axis=1), 0, []
        for size in sizes:
            rows = order[:, used : used + size]
            used += size
            xb = x[rows]
            off = np.einsum("cbd,cd->cb", xb, e) - residual[rows]
            m = momentum * m + np.einsum("cbd,cb->cd", xb, off) / size - pull + e @ prior
            e = e - m @ step
            if root is not None:
                e = e + rng.normal(size=e.shape) @ root.T
            seen.append(e)
        if epoch >= epochs // 5:
            kept.append(seen)
    return np.concatenate(np.array(kept).transpose(0, 2, 1, 3), axis=0).transpose(1, 0, 2)
