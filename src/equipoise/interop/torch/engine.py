"""The loop over a PyTorch module: batches and normals are drawn as for losses in JAX, steps are taken here (theory §1)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.linalg import cho_solve, cholesky

from equipoise.arrays import Array
from equipoise.engines.engine import ChainState, Guard
from equipoise.engines.jax.autodiff import AutodiffEngine, Task
from equipoise.engines.jax.loop import Drawn, Held, Loss, Pull
from equipoise.engines.lottery import UNIFORM, Lottery
from equipoise.engines.numba.linear import lifting
from equipoise.engines.rules import coordinates
from equipoise.interop.torch.functions import mapped
from equipoise.theory.tuning import Tuning

if TYPE_CHECKING:
    from equipoise.interop.torch.model import TorchProblem

__all__ = ["TorchEngine", "torch_engine"]

_VERSION = "torch 2"


@dataclass(frozen=True)
class TorchEngine(AutodiffEngine):
    """Runs chains of a module; positions are θ."""

    problem: TorchProblem = field(kw_only=True)
    rows: Any = field(kw_only=True)

    @cached_property
    def identity(self) -> str:
        """A digest of rows and loss, whose gradient near θ̂ stands for it."""
        digest = hashlib.blake2b(f"{_VERSION} {self.task.identity}".encode(), digest_size=16)
        near = self.tuning.center + 0.1 * np.sqrt(np.diag(self.tuning.expected))
        digest.update(self.problem.derivatives(near, 1).gradient.tobytes())
        return digest.hexdigest()

    def _loop(self, state: ChainState, drawn: Drawn, count: int) -> tuple[Array, Array, Array, Array]:
        dynamics, c = self.tuning.dynamics, self.tuning
        step, shake = torch.from_numpy(c.step.copy()), torch.from_numpy(self.root * self.noise)
        theta, m = torch.from_numpy(state.position.copy()), torch.from_numpy(state.velocity.copy())
        normals, noisy = torch.from_numpy(np.asarray(drawn.normals)), bool(self.noise.any())
        path, hits = np.empty((count, theta.numel())), 0
        for t in range(count):
            g = self._slope(theta, drawn, t)
            m = dynamics.momentum * m + g if dynamics.momentum else m
            theta = theta - step @ (m if dynamics.momentum else g)
            theta = theta + shake @ normals[t] if noisy else theta
            if np.isfinite(self.radius2):
                e = theta.numpy() - self.origin
                form = float(e @ self.metric @ e)
                if np.isfinite(form) and form > self.radius2:
                    theta, hits = torch.from_numpy(self.origin + e * np.sqrt(self.radius2 / form)), hits + 1
            path[t] = theta.numpy()
        return theta.numpy(), m.numpy(), path, np.array(hits)

    def _slope(self, theta: Any, drawn: Drawn, t: int) -> Any:
        """The gradient estimate of step t."""
        functions = self.problem.functions
        size = drawn.batches.shape[1] if drawn.sizes is None else int(drawn.sizes[t])
        index = torch.from_numpy(np.asarray(drawn.batches[t])[:size].astype(np.int64))
        some = mapped(lambda a: a[index], self.rows)
        shares = torch.full((size,), 1.0 / size, dtype=torch.float64)
        if self.lottery.weights.size:
            shares = shares * torch.from_numpy(self.lottery.weights)[index]
        g = (
            self._mean_slope(theta, some, shares)
            + torch.from_numpy(functions.penalty_gradient(theta.numpy())) / self.task.n
        )
        if not self.task.gradient.size:
            return g
        center = torch.from_numpy(self.tuning.center.copy())
        return g - self._mean_slope(center, some, shares) + torch.from_numpy(self.pull.gradient)

    def _mean_slope(self, theta: Any, rows: Any, shares: Any) -> Any:
        # plain autograd: a third of the cost of torch.func's for small modules
        at = theta.detach().requires_grad_(True)
        return torch.autograd.grad(self.problem.functions.total(at, rows, shares), at)[0]


def torch_engine(problem: TorchProblem, tuning: Tuning, guard: Guard) -> TorchEngine:
    """The engine of a module for a step matrix."""
    root, noise, _ = coordinates(tuning.step, tuning.noise, tuning.dynamics.temperature)
    center, functions = tuning.center, problem.functions
    gradient, weights = problem.slope_and_emphasis(tuning)
    lottery = Lottery.of(weights) if weights.size else UNIFORM
    pull = gradient - functions.penalty_gradient(center) / problem.n if gradient.size else gradient
    loss = Loss(functions.row, functions.penalty, False, False, tuning.dim)  # type: ignore[arg-type]
    rows = _whole(problem)
    task = Task(loss, rows, problem.n, problem.source.fingerprint(), gradient, weights)
    metric = cho_solve((cholesky(guard.cov, lower=True), True), np.eye(tuning.dim))
    return TorchEngine(
        task, tuning, guard.radius2, root, noise, lifting(root, center), None, Held(rows, None, None), lottery,
        Pull(pull, np.empty((0, 0)), center), center, metric, None, problem=problem, rows=rows,
    )  # fmt: skip


def _whole(problem: TorchProblem) -> Any:
    """All rows as tensors."""
    parts = [block.observed(slice(None)).leaves for block in problem.source.blocks()]
    joined = [torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True)]
    return problem.tree.unflatten(joined)
