"""Effective draws: per second against NUTS, and per data pass against theory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import equipoise as eq
from benchmarks.suite.contenders import jax_functions
from benchmarks.suite.measure import Settings, guarded, say
from benchmarks.suite.peers import require
from benchmarks.suite.workloads import WORKLOADS, Array, Prepared, Workload, prepare, smaller

__all__ = ["against_nuts", "compiled_nuts", "effective_draws", "per_data_pass", "usual_nuts"]


# Warm-up and draws of NUTS.
_NUTS, _NUTS_SMOKE = (500, 1000), (20, 20)
# (family, batch size, momentum) on N = 5000, D = 20
_CASES = (
    ("gaussian", 16, 0.0),
    ("gaussian", 500, 0.0),
    ("poisson", 50, 0.9),
    ("poisson", 500, 0.0),
    ("bernoulli", 100, 0.5),
    ("bernoulli", 500, 0.9),
)


def effective_draws(draws: Array) -> Array:
    """ArviZ's bulk effective sample size of every parameter; `draws` is (chains, draws, D)."""
    arviz = require("arviz")
    return np.array([float(arviz.ess(draws[:, :, j], method="bulk")) for j in range(draws.shape[2])])


def against_nuts(settings: Settings) -> dict[str, Any]:
    """Minimum effective draws per second of the posterior: `eq.calibrate` as it is, plain SGD alone, and NUTS."""
    return {w.name: guarded(lambda w=w: _one_against_nuts(w, settings)) for w in _small(settings)}  # type: ignore[misc]


def _small(settings: Settings) -> list[Workload]:
    return [smaller(w) if settings.smoke else w for w in WORKLOADS[:2]]


def _one_against_nuts(workload: Workload, settings: Settings) -> dict[str, Any]:
    prepared = prepare(workload)
    measures = {
        "equipoise, whole job": lambda: _our_job(prepared, settings),
        "plain SGD, whole job": lambda: _our_job(
            prepared, settings, sampler="sgmcmc", batch_size=prepared.workload.batches[-1]
        ),
        "NumPyro NUTS, whole job": lambda: _nuts_job(prepared, settings),
        "NumPyro NUTS, whole job, compiled before": lambda: _nuts_compiled_job(prepared, settings),
        "plain SGD, sampling only": lambda: _our_rate(prepared, settings),
        "NumPyro NUTS, sampling only": lambda: _nuts_rate(prepared, settings),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, measure in measures.items():
        found[name] = guarded(measure)
        say(f"ess/s {workload.name} {name}: {found[name].get('ess_per_second', found[name])}")
    return found


def _our_job(prepared: Prepared, settings: Settings, **moves: Any) -> dict[str, Any]:
    """`eq.calibrate` from the data on: fit, moments, tuning and one chain on one thread."""
    data = prepared.x, prepared.y

    def job(seed: int) -> Array:
        made = eq.calibrate(
            prepared.model, data, "posterior", ess=100 if settings.smoke else 4000, chains=1, seed=seed,
            progress=False, threads=1, **moves,
        )  # fmt: skip
        return made.draws

    job(0)  # compiles, or loads what was compiled before
    return _ess_rates(job, min(5, settings.repeats))


def _nuts_job(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """`MCMC.run` as its documentation has it, started at the minimiser: it compiles, warms up and draws in every call.

    It compiles in about two seconds, even if `jit_model_args` is set or the warm-up was done before; a draw more takes
    what it takes in `_nuts_rate`.
    """
    infer = require("numpyro.infer")
    import jax
    import jax.numpy as jnp

    likelihood, _ = jax_functions(prepared)
    x, y, start = (jnp.asarray(a) for a in (prepared.x, prepared.y, prepared.moments.params))
    kernel = infer.NUTS(potential_fn=lambda theta: -jnp.sum(jax.vmap(likelihood, (None, 0))(theta, (x, y))))
    warm, draws = _NUTS_SMOKE if settings.smoke else _NUTS
    nuts = infer.MCMC(kernel, num_warmup=warm, num_samples=draws, progress_bar=False)

    def job(seed: int) -> Array:
        nuts.run(jax.random.PRNGKey(seed), init_params=start)
        return np.asarray(nuts.get_samples(group_by_chain=True), dtype=np.float64)

    return _ess_rates(job, 1 if settings.smoke else 3)


def _nuts_compiled_job(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """The same with JAX's cache on disk turned on and filled, as ours is: what is left to a call is to trace the model."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    config: Any = jax.config
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(config, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, value in zip(names, (folder, 0.0), strict=True):
                config.update(name, value)
            compilation_cache.reset_cache()
            return _nuts_job(prepared, settings)
        finally:
            for name, value in before.items():
                config.update(name, value)
            compilation_cache.reset_cache()


def _our_rate(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """`eq.sample` from start to end: one chain of plain SGD on one thread, tuned to the posterior."""
    tuning = prepared.tune(prepared.workload.batches[-1], "posterior")
    thin = max(1, int(tuning.predicted.iact() // 10))
    draws = int((100 if settings.smoke else 4000) * tuning.predicted.iact() / thin)
    data = prepared.x, prepared.y

    def job(seed: int) -> Array:
        return eq.sample(
            prepared.model, data, tuning, draws=draws, chains=1, seed=seed, thin=thin, progress=False, threads=1
        ).draws

    job(0)  # compiles
    return _ess_rates(job, min(5, settings.repeats))


def _nuts_rate(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """NUTS after its warm-up and after it is compiled."""
    return _ess_rates(compiled_nuts(prepared, settings), 1 if settings.smoke else 3)


def usual_nuts(prepared: Prepared, settings: Settings) -> Callable[[int], Array]:
    """NUTS as its users run it: a NumPyro model, `MCMC.warmup`, then `MCMC.run`, which is compiled from the second call on."""
    require("numpyro")
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    family = prepared.workload.family

    def model(x: Any, y: Any) -> None:
        theta = numpyro.sample("theta", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            eta = x @ theta
            law = dist.Normal(eta, 1.0) if family == "gaussian" else dist.Poisson(jnp.exp(eta))
            numpyro.sample("y", law, obs=y)

    warm, draws = _NUTS_SMOKE if settings.smoke else _NUTS
    rows = jnp.asarray(prepared.x), jnp.asarray(prepared.y)
    chain = MCMC(NUTS(model), num_warmup=warm, num_samples=draws, progress_bar=False)
    chain.warmup(jax.random.PRNGKey(0), *rows)

    def job(seed: int) -> Array:
        chain.run(jax.random.PRNGKey(seed), *rows)
        chain.post_warmup_state = chain.last_state
        return np.asarray(chain.get_samples()["theta"], dtype=np.float64)[None]

    return job


def compiled_nuts(prepared: Prepared, settings: Settings) -> Callable[[int], Array]:
    """NUTS started at the minimiser, warmed up and compiled: every call goes on for as many draws, whatever the seed.

    Through NumPyro's functional interface, in one compiled scan: it is faster so than users of `MCMC.run` see it.
    """
    hmc = require("numpyro.infer.hmc").hmc
    import jax
    import jax.numpy as jnp

    likelihood, _ = jax_functions(prepared)
    warm, draws = _NUTS_SMOKE if settings.smoke else _NUTS

    def potential(x: Any, y: Any) -> Any:
        return lambda theta: -jnp.sum(jax.vmap(likelihood, (None, 0))(theta, (x, y)))

    init, kernel = hmc(potential_fn_gen=potential, algo="NUTS")
    rows = jnp.asarray(prepared.x), jnp.asarray(prepared.y)
    start = jnp.asarray(prepared.moments.params)
    state = init(start, num_warmup=warm, model_args=rows, rng_key=jax.random.PRNGKey(0))

    def chain(state: Any, rows: Any, length: int) -> Any:
        def one(state: Any, _: Any) -> Any:
            state = kernel(state, model_args=rows)
            return state, state.z

        return jax.lax.scan(one, state, None, length=length)

    compiled = jax.jit(chain, static_argnums=2)
    held = [compiled(state, rows, warm)[0]]
    held = [compiled(held[0], rows, draws)[0]]

    def job(_: int) -> Array:
        held[0], sampled = compiled(held[0], rows, draws)
        return np.asarray(sampled, dtype=np.float64)[None]

    return job


def _ess_rates(job: Callable[[int], Array], repeats: int) -> dict[str, Any]:
    """Time a job, not the count of its effective draws; the best repeat counts."""
    seconds, ess = [], []
    for seed in range(1, 1 + repeats):
        began = time.perf_counter()
        draws = job(seed)
        seconds.append(time.perf_counter() - began)
        ess.append(float(effective_draws(draws).min()))
    rates = [e / s for e, s in zip(ess, seconds, strict=True)]
    return {"seconds": seconds, "min_ess": ess, "ess_per_second": max(rates)}


def per_data_pass(settings: Settings) -> dict[str, Any]:
    """Effective draws per pass over the data, averaged over parameters; theory §6 says 1 for the sandwich."""
    results = {}
    for family, batch, momentum in _CASES[:2] if settings.smoke else _CASES:
        name = f"{family} B={batch} momentum {momentum:g}"
        results[name] = guarded(lambda f=family, b=batch, k=momentum: _passes(f, b, k, settings))  # type: ignore[misc]
        say(f"effective draws per data pass, {name}: {results[name]}")
    return {"cases": results}


def _windowed(draws: Array, window: int) -> Array:
    """n/τ with τ summed over a fixed number of lags.

    ArviZ stops summing where the autocorrelation turns negative, which counts too few draws of a chain that swings.
    """
    n = len(draws)
    spectrum = np.fft.rfft(draws - draws.mean(axis=0), 2 * n, axis=0)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[: window + 1]
    return n / (2.0 * covariance.sum(axis=0) / covariance[0] - 1.0)


def _passes(family: str, batch: int, momentum: float, settings: Settings) -> dict[str, Any]:
    rows, dim, passes = (500, 4, 300) if settings.smoke else (5000, 20, 20_000)
    prepared = prepare(Workload("passes", family, rows, dim, (batch,)))
    tuning = prepared.tune(batch, momentum=momentum)
    thin = max(1, int(tuning.predicted.iact() // 10))
    draws = passes * rows // (batch * thin)
    chains = eq.sample(
        prepared.model, (prepared.x, prepared.y), tuning, draws=draws, chains=1, thin=thin, progress=False, threads=1
    )
    # with momentum the autocorrelation falls below zero and swings back, by √κ a step
    window = int(max(8.0 * tuning.predicted.iact(), 12.0 / (1.0 - momentum)) / thin)
    ess = _windowed(chains.draws[0], window)
    covered = draws * thin * batch / rows
    return {
        "observed": float(ess.mean() / covered),
        # of the mean over parameters, which are close to independent here
        "standard_error": float(ess.std(ddof=1) / np.sqrt(dim) / covered),
        "predicted": rows / batch / tuning.predicted.iact(),
        "theory": 1.0,
        "passes": covered,
    }
