"""Predicted against observed, while a user's loop runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration.diagnostics import Diagnosis, diagnose
from equipoise.checks import instance, whole
from equipoise.interop.torch.optimizer import SGD
from equipoise.sampling.chains import Chains
from equipoise.sampling.run import resolve_burn_in, resolve_thin

__all__ = ["Health"]


class Health:
    """Keeps the draws of an `eqt.SGD` as it steps, and prints how they compare with what was predicted.

    Parameters
    ----------
    optimizer
        The chain to look at, from its next step on.
    every
        Steps between two lines.
    thin, burn_in
        Steps per stored draw, and steps left out first; `"auto"` takes both from the predicted law.
    show
        What to do with a line: `print`, or a logger's method.

    Examples
    --------
    `health = eqt.Health(chain, every=1000)` before the loop; `health.diagnosis()` and `health.draws` after it.
    """

    def __init__(
        self,
        optimizer: SGD,
        every: int = 1000,
        *,
        thin: int | str = "auto",
        burn_in: int | str = "auto",
        show: Callable[[str], object] = print,
    ) -> None:
        instance("optimizer", optimizer, SGD, "pass the eqt.SGD of your loop")
        self.optimizer, self.every, self.show = optimizer, whole("every", every, 1, "pass an int"), show
        self.thin, self.burn_in = resolve_thin(thin, optimizer.tuning), resolve_burn_in(burn_in, optimizer.tuning)
        self.steps, self._kept = 0, list[Array]()
        self._hook = optimizer.register_step_post_hook(self._seen)

    def detach(self) -> Self:
        """Look no longer."""
        self._hook.remove()
        return self

    @property
    def draws(self) -> Array:
        """(1, draws, D)."""
        return np.array(self._kept).reshape(1, len(self._kept), self.optimizer.tuning.dim)

    def chains(self) -> Chains:
        """The draws, for whatever takes chains."""
        return Chains.from_draws(self.draws, self.optimizer.tuning, thin=self.thin)

    def diagnosis(self) -> Diagnosis:
        """The whole comparison."""
        return diagnose(self.chains(), self.optimizer.tuning)

    def __str__(self) -> str:
        watch = self.optimizer.watch
        words = [f"step {self.steps:,}"]
        if len(self._kept) < 10:
            words.append(f"{len(self._kept)} draws so far, {self.burn_in:,} steps of burn-in")
        else:
            tuning, draws = self.optimizer.tuning, self.draws[0]
            sd = np.sqrt(np.diag(tuning.expected))
            ratio, shift = draws.std(axis=0) / sd, (draws.mean(axis=0) - tuning.center) / sd
            # effective draws of the slowest parameter
            count = len(draws) / max(1.0, float(tuning.predicted.draw_times().max()) / self.thin)
            words.append(
                f"observed/predicted standard deviation {np.median(ratio):.2f} ± {np.sqrt(0.5 / count):.2f} "
                f"({ratio.min():.2f} to {ratio.max():.2f})"
            )
            words.append(f"mean within {np.abs(shift).max():.2f} ± {np.sqrt(1.0 / count):.2f} sd of the estimate")
        words += [f"gradient noise {watch.noise:.2f} of predicted"] if watch.plain else []
        words += [f"LOOK at {name}" for name in watch.findings()]
        return "; ".join(words)

    def _seen(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        self.steps += 1
        if self.steps > self.burn_in and (self.steps - self.burn_in) % self.thin == 0:
            self._kept.append(self.optimizer.flat())
        if self.steps % self.every == 0:
            self.show(str(self))
