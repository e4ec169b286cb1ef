"""The NUTS column: a real library's sampler on the generalised posterior exp(−Σ ℓ_n)."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

import equipoise as eq
from equipoise.arrays import Array
from equipoise.experiments.designs import Study

if TYPE_CHECKING:
    import jax
    from numpyro.infer import MCMC

__all__ = ["sample_posterior"]


def sample_posterior(study: Study, start: Array, seed: int) -> Array | None:
    """Draws of NumPyro's NUTS for a gaussian study; None when NumPyro is not installed."""
    try:
        import jax
        import numpyro  # noqa: F401
    except ModuleNotFoundError:
        return None
    x, y = study.data
    divergence, scale = study.model.divergence, study.model.constant
    assert scale is not None
    assert divergence is None or isinstance(divergence, eq.Beta)
    with jax.enable_x64(True):
        mcmc = _sampler(None if divergence is None else divergence.b)
        mcmc.run(jax.random.key(seed), x, y, scale, init_params={"theta": jax.numpy.asarray(start)})
        return np.asarray(mcmc.get_samples()["theta"], dtype=np.float64)


@cache
def _sampler(power: float | None) -> MCMC:
    """One sampler for all repetitions: the data are arguments of its compiled density, so they share the code."""
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(partial(_density, power))
    return MCMC(kernel, num_warmup=300, num_samples=1000, progress_bar=False, jit_model_args=True)


def _density(power: float | None, x: jax.Array, y: jax.Array, scale: float) -> None:
    import jax.numpy as jnp
    import numpyro
    from numpyro.distributions import ImproperUniform, Normal, constraints

    theta = numpyro.sample("theta", ImproperUniform(constraints.real_vector, (), (x.shape[1],)))
    log_f = Normal(x @ theta, scale).log_prob(y)
    # the integral of f^β is constant for a gaussian likelihood of fixed scale
    numpyro.factor("loss", jnp.sum(log_f if power is None else jnp.exp((power - 1.0) * log_f) / (power - 1.0)))
