"""The second law: an effective draw for a few D rows. Its rate beside others', and what a step costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

import equipoise as eq
from benchmarks.suite.contenders import Run, engine_run, jax_engine, numba_engine
from benchmarks.suite.effective import compiled_nuts, effective_draws, usual_nuts
from benchmarks.suite.measure import Settings, guarded, interleave, say, timed
from benchmarks.suite.throughput import rate_of
from benchmarks.suite.workloads import Array, Prepared

__all__ = ["second_law", "step_costs"]

# Effective draws of one repeat. Those of plain SGD on a million rows take a tenth of a second each.
_MANY, _PLAIN, _PLAIN_LARGE, _SMOKE = 20_000, 2000, 200, 100
_LARGE = 100_000  # rows from which runs are few and long
# Where NUTS and the JAX engine take part. A smoke run compiles them for one workload.
_PEERS, _PEERS_SMOKE = ("W1", "W2"), ("W1",)
# Chains as `eq.plan` makes them: the target, and what else is asked for.
_PLANS: dict[str, dict[str, Any]] = {
    "plain SGD": {"target": "sandwich", "sampler": "sgmcmc"},
    "control variates, sandwich": {"target": "sandwich"},
    "control variates, posterior": {"target": "posterior", "fidelity": 0.0},
    "control variates, posterior, fidelity 0.9": {"target": "posterior", "fidelity": 0.9},
}
# Steps that are compared at the same batch size: dynamics, and how they are tuned.
_STEPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SGLD": ({}, {}),
    "control variates": ({"gradient": "control-variate"}, {"noise": "completed"}),
    "leverage": ({"gradient": "control-variate", "batches": "leverage"}, {"noise": "completed"}),
}


@dataclass(frozen=True)
class _Sampler:
    """A way to make draws (chains, draws, D) from a seed, the rows it reads for them, and what is to be said of it."""

    draw: Callable[[int], Array]
    rows: float
    facts: dict[str, float]


def second_law(workloads: list[Prepared], settings: Settings) -> dict[str, Any]:
    """Effective draws per second, sampling only, of chains as `eq.plan` makes them, of NUTS and without any chain."""
    return {p.workload.name: guarded(lambda p=p: _rates(p, settings)) for p in workloads}  # type: ignore[misc]


def _rates(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """All samplers in turn, repeat by repeat. What counts is the mean over repeats and parameters of ArviZ's bulk ess.

    The smallest of a hundred estimates from few draws is too small, which would be held against plain SGD alone.
    """
    makers: dict[str, Callable[[], _Sampler]] = {
        name: (lambda n=name: _chain(prepared, n, settings))
        for name in _PLANS  # type: ignore[misc]
    }
    makers["independent Gaussian draws"] = lambda: _gaussian(prepared, settings)
    if prepared.workload.name in (_PEERS_SMOKE if settings.smoke else _PEERS):
        makers["NumPyro NUTS"] = lambda: _Sampler(usual_nuts(prepared, settings), 0.0, {})
        makers["NumPyro NUTS in one compiled scan"] = lambda: _Sampler(compiled_nuts(prepared, settings), 0.0, {})
    samplers: dict[str, _Sampler] = {}
    found = {name: guarded(lambda n=name, m=make: _ready(samplers, n, m)) for name, make in makers.items()}  # type: ignore[misc]
    seconds: dict[str, list[float]] = {name: [] for name in samplers}
    means: dict[str, list[float]] = {name: [] for name in samplers}
    smallest: dict[str, list[float]] = {name: [] for name in samplers}
    rounds = 1 if settings.smoke else 3 if prepared.workload.rows >= _LARGE else min(5, settings.repeats)
    for repeat in range(1, 1 + rounds):
        for name, sampler in samplers.items():
            held: dict[str, Array] = {}
            seconds[name].append(timed(lambda s=sampler, h=held, k=repeat: h.update(draws=s.draw(k))))  # type: ignore[misc]
            ess = effective_draws(held["draws"])
            means[name].append(float(ess.mean()))
            smallest[name].append(float(ess.min()))
    for name, sampler in samplers.items():
        mean, best = float(np.mean(means[name])), min(seconds[name])
        found[name] |= {
            **sampler.facts,
            "seconds": seconds[name],
            "mean_ess": means[name],
            "min_ess": smallest[name],
            "ess_per_second": mean / best,
            "min_ess_per_second": float(np.mean(smallest[name])) / best,
            "rows_per_draw": sampler.rows / mean,
        }
        say(f"second law {prepared.workload.name} {name}: {found[name]['ess_per_second']:,.0f} effective draws/s")
    return found


def _ready(samplers: dict[str, _Sampler], name: str, make: Callable[[], _Sampler]) -> dict[str, Any]:
    """Make a sampler and let it draw once, so that all is compiled."""
    sampler = make()
    sampler.draw(0)
    samplers[name] = sampler
    return {}


def _chain(prepared: Prepared, name: str, settings: Settings) -> _Sampler:
    """One chain on one thread, as the plan has it, started from its predicted law."""
    large, plain = prepared.workload.rows >= _LARGE, name == "plain SGD"
    effective = _SMOKE if settings.smoke else _MANY if not plain else _PLAIN_LARGE if large else _PLAIN
    planned = eq.plan(prepared.model, (prepared.x, prepared.y), chains=1, ess=effective, **_PLANS[name])
    tuning, thin = planned.tuning, planned.thin
    steps = planned.draws * thin
    run = engine_run(numba_engine(prepared, tuning), tuning, thin)
    batch, law = tuning.dynamics.batch_size, tuning.predicted
    facts = {
        "batch_size": float(batch),
        "predicted_rows_per_draw": batch * law.draw_time(),
        "curvature_number": planned.moments.curvature_number(tuning.target, tuning.dynamics),
    }
    return _Sampler(lambda seed: run(steps, seed)[None], float(steps * batch), facts)


def _gaussian(prepared: Prepared, settings: Settings) -> _Sampler:
    """The limit: independent draws from N(estimate, sandwich) through a factor."""
    root, center = np.linalg.cholesky(eq.sandwich(prepared.moments)), prepared.moments.params
    shape = (_SMOKE if settings.smoke else _MANY, len(center))

    def draw(seed: int) -> Array:
        made: Array = np.random.default_rng(seed).standard_normal(shape) @ root.T + center
        return made[None]

    return _Sampler(draw, 0.0, {})


def step_costs(workloads: list[Prepared], settings: Settings) -> dict[str, Any]:
    """Seconds per step of control variates, and of rows drawn by leverage, over those of SGLD at the same batch size."""
    cases: dict[str, Any] = {}
    for prepared in workloads:
        engines = {"Numba": numba_engine}
        if prepared.workload.name in (_PEERS_SMOKE if settings.smoke else _PEERS):
            engines["JAX"] = jax_engine
        for batch in prepared.workload.batches:
            if batch > 1000:
                continue
            for engine, make in engines.items():
                label = f"{prepared.workload.name} B={batch}, {engine}"
                cases[label] = guarded(lambda p=prepared, b=batch, m=make: _steps(p, b, m, settings))  # type: ignore[misc]
                say(f"steps {label}: {cases[label].get('ratios', cases[label])}")
    return {"cases": cases}


def _steps(
    prepared: Prepared, batch: int, make: Callable[[Prepared, eq.Tuning], Any], settings: Settings
) -> dict[str, Any]:
    thin, runs = 10, dict[str, tuple[Run, int]]()
    for name, (moves, how) in _STEPS.items():
        # the edge of feasibility is near β = N (theory eq. 3.3): four times that leaves room for gradient noise
        own = moves or {"inverse_temperature": 4.0 * prepared.workload.rows}
        tuning = eq.tune(prepared.moments, "sandwich", eq.Dynamics(batch, **own), **how)
        run = engine_run(make(prepared, tuning), tuning, thin)
        run(10 * thin, 0)
        pace = timed(lambda r=run: r(10 * thin, 0)) / (10 * thin)  # type: ignore[misc]
        steps = 10 * thin if settings.smoke else max(10, min(5000, ceil(settings.seconds / pace / thin))) * thin
        run(steps, 0)
        runs[name] = run, steps
    works = {name: (lambda r=run, n=steps: r(n, 1)) for name, (run, steps) in runs.items()}  # type: ignore[misc]
    seconds = interleave(works, settings.repeats)
    rates = {name: rate_of(runs[name][1], times) for name, times in seconds.items()}
    each = {name: 1.0 / found["rate"] for name, found in rates.items()}
    ratios = {
        "control variates over SGLD": each["control variates"] / each["SGLD"],
        "leverage over uniform": each["leverage"] / each["control variates"],
    }
    return {"rates": rates, "ratios": ratios}
