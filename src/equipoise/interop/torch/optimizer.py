"""A tuned chain as a `torch.optim.Optimizer`, for training loops that are already there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import numpy as np
import torch

from equipoise.arrays import Array
from equipoise.checks import is_number, shown, whole
from equipoise.errors import CheckpointMismatch, InvalidInput
from equipoise.interop.moves import move_of, require_size
from equipoise.interop.torch.loading import require_matching
from equipoise.interop.torch.watching import Watch
from equipoise.theory.tuning import Tuning

__all__ = ["SGD"]

Closure = Callable[[], Any]


class SGD(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """The steps of a tuned chain: θ ← θ − Λ m + ε with m ← κ m + g and ε ~ N(0, M).

    Gradients are those of the mean loss of a batch; a regulariser is part of the loss, over N, or a Gaussian prior of
    precision γ is `weight_decay=γ/N`. With a tuning for control variates `step` takes a closure, and evaluates it at the
    minimiser too. While it runs, gradients are watched: batches of another size or law than the tuning's are named.

    A schedule may hold `lr` at 1 and `momentum` at the tuning's, and is refused where it would change them: the draws'
    covariance follows from the step matrix, and steps that shrink on the way leave them no law.

    Parameters
    ----------
    parameters
        The tensors that were tuned for, in the order of `module.parameters()`; with names or without.
    tuning
        From `eq.tune`, for batches that are independent or epochs.
    seed
        Of the injected noise.
    weight_decay
        Precision of a Gaussian prior over N.
    loader
        The `DataLoader` of the loop, if at hand: one that does not match the tuning is refused at once.

    Examples
    --------
    >>> import equipoise as eq
    >>> import torch
    >>> from equipoise.interop import torch as eqt
    >>> net, x, y = torch.nn.Linear(2, 1, dtype=torch.float64), torch.randn(200, 2), torch.randn(200)
    >>> model = eqt.Model(net, lambda out, y: (out[:, 0] - y) ** 2 / 2)
    >>> moments = eq.moments(model, (x, y), eq.fit(model, (x, y)))
    >>> chain = SGD(net.parameters(), eq.tune(moments, "sandwich", eq.Dynamics(batch_size=20)))
    >>> ((net(x[:20].double())[:, 0] - y[:20]) ** 2 / 2).mean().backward()
    >>> chain.step()
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        tuning: Tuning,
        seed: int = 0,
        *,
        weight_decay: float = 0.0,
        loader: object = None,
    ) -> None:
        self._move = move_of(tuning)
        if not (is_number(weight_decay) and weight_decay >= 0.0):
            raise InvalidInput("weight_decay", "zero or positive", shown(weight_decay), "use the precision over N")
        if loader is not None:
            require_matching(loader, tuning.dynamics)
        tensors = [_parameter(p) for p in parameters]
        require_size(tuning, sum(p.numel() for p in tensors), "pass the parameters that were tuned for, all of them")
        self.tuning, self._sealed = tuning, False
        settings = {"seed": whole("seed", seed, 0, "pass an int"), "weight_decay": float(weight_decay)}
        held = {"lr": 1.0, "momentum": self._move.momentum}
        super().__init__(tensors, {**settings, **held, "fingerprint": _fingerprint(tuning)})
        self._sealed = True
        flat = self._flat()  # in the precision that holds all parameters
        self._step, self._root, self._center = (
            torch.as_tensor(a, dtype=flat.dtype, device=flat.device) for a in (*self._move[:2], tuning.center)
        )
        self.watch = Watch(tuning)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: one step matrix moves all parameters together."""
        if getattr(self, "_sealed", False):
            raise _groups()
        super().add_param_group(param_group)

    def reference(self, closure: Closure) -> Self:
        """Take the gradient of all rows at the minimiser, for control variates, from a closure over the whole data.

        Without it that gradient is taken to be zero, as it is at a minimiser. It is part of the optimizer's state.
        """
        self.state[self._tensors()[0]]["reference"] = self._at_center(closure)
        return self

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, closure: Closure | None = None) -> Any:
        """One step; a closure clears the gradients, evaluates the loss of a batch, and calls `backward()`."""
        group = self.param_groups[0]
        self._require_tuned(group)
        state = self.state[group["params"][0]]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        g, theta = self._gradient(), self._flat()
        decay = group["weight_decay"]
        if self.tuning.dynamics.gradient == "control-variate":
            if closure is None:
                raise InvalidInput(
                    "closure", "given with a tuning for control variates", None,
                    "pass step a function that calls zero_grad() and backward(), and returns the loss of its batch",
                )  # fmt: skip
            g = g - self._at_center(closure)
            # of all rows with the penalty, the gradient vanishes at the minimiser
            g = g + state.get("reference", -decay * self._center)
        g = g + decay * theta
        self.watch.see(g.double().cpu().numpy(), theta.double().cpu().numpy())
        count = state.get("step", 0)
        if self._move.momentum:
            g = self._move.momentum * state.get("velocity", torch.zeros_like(g)) + g
            state["velocity"] = g
        move = -(self._step @ g)
        if self._root.numel():
            move = move + self._root @ self._normals(group["seed"], count)
        state["step"] = count + 1
        self._write(theta + move)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; one of another tuning is refused."""
        groups = state_dict.get("param_groups") or [{}]
        if groups[0].get("fingerprint") != _fingerprint(self.tuning):
            raise CheckpointMismatch("this optimizer's state belongs to another tuning")
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        own = ("tuning", "watch", "_move", "_sealed", "_step", "_root", "_center")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def flat(self) -> Array:
        """The parameters, flat: a draw."""
        return np.array(self._flat().double().cpu().numpy())

    def _require_tuned(self, group: Mapping[str, Any]) -> None:
        """Refuse settings that a scheduler, or a hand, has moved away from the tuning's."""
        for name, tuned in (("lr", 1.0), ("momentum", self._move.momentum)):
            given = float(group.get(name, tuned))
            if given != tuned:
                raise InvalidInput(
                    name, f"{tuned:g} throughout, as the step matrix was tuned for: with other steps the draws have another "
                    "covariance, and with changing ones none", f"{given:g}",
                    "leave the scheduler out, or tune for another step: eq.Tuning.at(moments, step, dynamics)",
                )  # fmt: skip

    def _normals(self, seed: int, count: int) -> Any:
        """Noise that depends on nothing but the seed and the step's number, so that a state is small and resumes."""
        word = int(np.random.SeedSequence([seed, count]).generate_state(1, np.uint64)[0]) >> 1
        source = torch.Generator().manual_seed(word)
        return torch.randn(self._root.shape[1], generator=source, dtype=self._root.dtype).to(self._root.device)

    def _at_center(self, closure: Closure) -> Any:
        """The gradient of a closure at the minimiser; parameters and their gradients are put back."""
        here = self._flat()
        kept = [p.grad for p in self._tensors()]
        self._write(self._center)
        for p in self._tensors():
            p.grad = None
        with torch.enable_grad():
            closure()
        found = self._gradient()
        self._write(here)
        for p, grad in zip(self._tensors(), kept, strict=True):
            p.grad = grad
        return found

    def _tensors(self) -> list[Any]:
        return list(self.param_groups[0]["params"])

    def _flat(self) -> Any:
        return torch.cat([p.detach().reshape(-1) for p in self._tensors()])

    def _gradient(self) -> Any:
        for k, p in enumerate(self._tensors()):
            if p.grad is None:
                raise InvalidInput("parameters", "with gradients", f"none in parameter {k}", "call backward() first")
        return torch.cat([p.grad.detach().reshape(-1) for p in self._tensors()])

    def _write(self, theta: Any) -> None:
        start = 0
        with torch.no_grad():
            for p in self._tensors():
                p.copy_(theta[start : start + p.numel()].reshape(p.shape))
                start += p.numel()


def _parameter(given: Any) -> Any:
    """A tensor, of a pair with its name or by itself."""
    if isinstance(given, dict):
        raise _groups()
    tensor = given[1] if isinstance(given, tuple) and len(given) == 2 else given
    if not isinstance(tensor, torch.Tensor):
        raise InvalidInput("parameters", "tensors", shown(type(tensor)), "pass module.parameters()")
    return tensor


def _groups() -> InvalidInput:
    return InvalidInput(
        "parameters",
        "one list of tensors, which one step matrix moves together",
        "parameter groups",
        "pass module.parameters(), and tune the parts that vary by eqt.Model(..., trainable=...)",
    )


def _fingerprint(tuning: Tuning) -> str:
    parts = b"".join(np.ascontiguousarray(a).tobytes() for a in (tuning.step, tuning.noise, tuning.center))
    return hashlib.blake2b(parts + repr(tuning.dynamics).encode(), digest_size=8).hexdigest()
