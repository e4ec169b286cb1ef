"""The options of a run in a few groups: how to read the data, how chains move, how long they run, how they are run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypedDict, TypeVar, cast

import numpy as np

from equipoise.checks import flag, is_number, nearest, one_of, shown, whole
from equipoise.errors import InvalidInput
from equipoise.files import file_place, require_writable
from equipoise.theory.dynamics import BATCHES, GRADIENTS, Dynamics
from equipoise.theory.proxy import PROXIES
from equipoise.theory.tuning import STRUCTURES

__all__ = [
    "SAMPLERS",
    "Aim",
    "CalibrateOptions",
    "Length",
    "Moves",
    "PlanOptions",
    "Reading",
    "Running",
    "Tuned",
    "options_of",
    "takes",
]

SAMPLERS = ("auto", "control-variate", "sgmcmc", "gaussian")
_FIDELITY = 0.9  # of draws from a posterior
_MOST = 1e18  # effective draws: beyond it nothing is exact any more

Group = TypeVar("Group")
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Reading:
    """How a table becomes rows: see `eq.data.table`."""

    formula: str | None = None
    weights: object = None
    frequency: object = None
    offset: object = None
    missing: str = "raise"
    context: Mapping[str, Callable[..., object]] | None = None
    clusters: object = None
    time: object = None
    trials: object = None
    memory: str | int = "1GB"
    executor: object = None


@dataclass(frozen=True)
class Aim:
    """How a target that is robust is made: see `eq.robust`."""

    lags: int | None = None
    small_sample: bool | str = True


@dataclass(frozen=True)
class Moves:
    """How chains move: see `eq.Dynamics` and `eq.tune`. What is left to `"auto"` the plan chooses."""

    sampler: str = "auto"
    batch_size: int | str = "auto"
    momentum: float = 0.0
    inverse_temperature: float | str = np.inf
    replacement: bool = True
    proxy: str = "dq-exact"
    structure: str = "full"
    gradient: str = "auto"
    batches: str = "auto"
    noise: str = "auto"
    fidelity: float | str | None = "auto"

    def __post_init__(self) -> None:
        one_of("sampler", self.sampler, SAMPLERS)
        one_of("gradient", self.gradient, ("auto", *GRADIENTS))
        one_of("batches", self.batches, ("auto", *BATCHES))
        one_of("noise", self.noise, ("auto", "langevin", "completed"))
        f = self.fidelity
        if f not in ("auto", None) and not (is_number(f) and 0.0 <= f < 1.0):
            raise InvalidInput(
                "fidelity", "'auto', or a number from 0 to below 1", shown(f), "0.9 is a common choice, 0 asks for none"
            )
        if isinstance(self.batch_size, str) and self.batch_size != "auto":
            raise InvalidInput("batch_size", "'auto' or a whole number", repr(self.batch_size), "use 'auto'")
        if not isinstance(self.batch_size, str):
            whole("batch_size", self.batch_size, 1, "use 'auto'", "'auto' or ")
        if self.sampler == "control-variate":
            self._require_automatic()
        one_of("proxy", self.proxy, PROXIES, "use 'dq-exact' unless you compare proxies")
        one_of("structure", self.structure, STRUCTURES, "use 'full' unless you compare")
        self.dynamics(1)  # which looks at the others

    @property
    def chosen(self) -> str:
        """The sampler where the options decide it: `"sgmcmc"` for a chain that is described by them, else `"auto"`."""
        if self.sampler != "auto":
            return self.sampler
        described = (
            self.gradient == "plain" or self.batches == "epochs" or self.noise == "langevin" or bool(self._described)
        )
        return "sgmcmc" if described else "control-variate" if self.gradient == "control-variate" else "auto"

    @property
    def _described(self) -> dict[str, object]:
        """The options that describe a chain, where they are not those that a sampler chooses itself."""
        given = {name: getattr(self, name) for name in ("momentum", "inverse_temperature", "proxy", "structure")}
        return {name: value for name, value in given.items() if value != getattr(type(self), name)}

    @property
    def completed(self) -> bool:
        """Whether what a described chain lacks to the target is injected."""
        if self.noise == "auto":
            return self.gradient == "control-variate" and self.inverse_temperature == np.inf
        return self.noise == "completed"

    def wanted_fidelity(self, target: object, quadratic: bool) -> float:
        """The share of the posterior's skewness the draws are to have; a squared loss has none to lose."""
        if self.fidelity == "auto":
            return _FIDELITY if isinstance(target, str) and target == "posterior" and not quadratic else 0.0
        return float(self.fidelity or 0.0)

    def dynamics(self, n: int) -> Dynamics:
        """The dynamics that the options describe on n rows.

        An automatic batch is a twentieth of the data, between 8 and 1000 rows.
        """
        size = min(n, max(8, min(n // 20, 1000))) if isinstance(self.batch_size, str) else self.batch_size
        gradient = "plain" if self.gradient == "auto" else self.gradient
        batches = "independent" if self.batches == "auto" else self.batches
        return Dynamics(size, self.momentum, self.inverse_temperature, self.replacement, gradient, batches)

    def control_variate(self, batch_size: int, batches: str) -> Dynamics:
        """The dynamics of a control-variate chain."""
        return Dynamics(batch_size, replacement=self.replacement, gradient="control-variate", batches=batches)

    def _require_automatic(self) -> None:
        """Refuse what the sampler chooses itself."""
        if self._described:
            name, given = next(iter(self._described.items()))
            remedy = "use sampler='sgmcmc' with gradient='control-variate'"
            raise InvalidInput(name, "left out with sampler='control-variate'", shown(given), remedy)
        for name, refused in {"gradient": "plain", "batches": "epochs", "noise": "langevin"}.items():
            if getattr(self, name) == refused:
                raise InvalidInput(name, "left out with sampler='control-variate'", repr(refused), f"remove {name}=")


@dataclass(frozen=True)
class Tuned:
    """On which rows the step matrix is tuned: all, or so many random ones."""

    tuning_rows: int | None = None


@dataclass(frozen=True)
class Length:
    """How many draws are stored; by default what `ess` and the predicted law ask for."""

    ess: float = 1000
    chains: int = 4
    draws: int | None = None
    thin: int | str = "auto"
    burn_in: int | str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "chains", whole("chains", self.chains, 1, "pass a positive int"))
        if not (is_number(self.ess) and 1 <= self.ess <= _MOST):
            raise InvalidInput("ess", f"a number from 1 to {_MOST:g}", shown(self.ess), "1000 is a common choice")
        if self.draws is not None:
            object.__setattr__(self, "draws", whole("draws", self.draws, 1, "leave it out", "None or "))
        for name, value, least in (("thin", self.thin, 1), ("burn_in", self.burn_in, 0)):
            if not isinstance(value, str) or value != "auto":
                whole(name, value, least, "use 'auto'", "'auto' or ")


@dataclass(frozen=True)
class Running:
    """How chains are run: see `eq.sample`."""

    guard: float | str | None = "auto"
    progress: bool = True
    checkpoint: str | Path | None = None
    threads: int | None = None
    storage: str = "float64"

    def __post_init__(self) -> None:
        flag("progress", self.progress)
        if self.checkpoint is not None:
            place = file_place(self.checkpoint, "checkpoint")
            if not place.exists():
                require_writable(place, "checkpoint")
        one_of("storage", self.storage, ("float64", "float32"))


class PlanOptions(TypedDict, total=False):
    """The options of `eq.plan` besides its arguments: those of `Reading`, `Aim`, `Moves` and `Length`."""

    formula: str | None
    weights: object
    frequency: object
    offset: object
    missing: str
    context: Mapping[str, Callable[..., object]] | None
    clusters: object
    time: object
    trials: object
    memory: str | int
    executor: object
    lags: int | None
    small_sample: bool | str
    sampler: str
    batch_size: int | str
    momentum: float
    inverse_temperature: float | str
    replacement: bool
    proxy: str
    structure: str
    gradient: str
    batches: str
    noise: str
    fidelity: float | str | None
    draws: int | None
    thin: int | str
    burn_in: int | str
    tuning_rows: int | None


class CalibrateOptions(PlanOptions, total=False):
    """The options of `eq.calibrate` besides its arguments: those of `eq.plan`, and of `Running`."""

    guard: float | str | None
    progress: bool
    checkpoint: str | Path | None
    threads: int | None
    storage: str


def takes(*groups: type) -> Callable[[F], F]:
    """Show the options of the groups in a function's signature, with their defaults, in place of `**options`."""

    def shown_by(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        names = {p.name for p in own}
        more = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for group in groups
            for f in fields(group)
            if f.name not in names
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return shown_by


def options_of(group: type[Group], options: Mapping[str, object], known: type, **given: object) -> Group:
    """The part of a verb's options that belongs to a group, with those `given` that are arguments of their own.

    An option that is not among those `known` is refused, and the nearest one named.
    """
    names = known.__annotations__
    for name in options:
        if name not in names:
            listed = ", ".join(sorted(names))
            raise InvalidInput(name, "an option", "no such option", nearest(name, names) or f"choose from {listed}")
    own = {f.name for f in fields(cast(type[Moves], group))}
    return group(**{k: v for k, v in options.items() if k in own}, **given)
