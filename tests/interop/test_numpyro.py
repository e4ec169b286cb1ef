"""NumPyro models bound as problems: their own density, their own NUTS posterior, their own sites."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.interop import numpyro as eqn
from equipoise.interop import optax as eqo

numpyro = pytest.importorskip("numpyro")
dist = numpyro.distributions


def data(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x, g = rng.normal(size=(n, 2)), rng.integers(0, 3, size=n)
    mean = np.array([0.5, -0.2, 0.1])[g] + x @ [1.0, -0.5]
    return x, g, mean + 0.7 * rng.standard_t(5, size=n)


def groups(x, g, y=None, *, width=1.0):
    """Effects of groups, coefficients, a scale and a share on the simplex; what follows from them besides."""
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0.0, width))
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    numpyro.deterministic("precision", scale**-2)
    with numpyro.plate("data", x.shape[0]):
        mean = numpyro.deterministic("mean", effect[g] + x @ slope)
        numpyro.sample("y", dist.StudentT(5.0, mean, scale), obs=y)


@pytest.fixture(scope="module")
def problem():
    x, g, y = data()
    return eqn.bind(groups, x, g, y=y, width=2.0)


@pytest.mark.slow
def test_the_loss_is_their_potential_energy(problem) -> None:
    """Rows and regulariser add up to NumPyro's own density, whose gradient is ours."""
    x, g, y = data()
    assert problem.names == ("effect[0]", "effect[1]", "effect[2]", "log(scale)", "slope[0]", "slope[1]")
    theta = np.array([0.3, -0.1, 0.2, -0.4, 0.9, -0.6])
    with jax.enable_x64(True):

        def energy(t):
            sites = {"effect": t[:3], "scale": t[3], "slope": t[4:]}
            return numpyro.infer.util.potential_energy(groups, (x, g), {"y": y, "width": 2.0}, sites)

        value, slope = jax.value_and_grad(energy)(jnp.asarray(theta))
    found = problem.derivatives(theta, 1)
    np.testing.assert_allclose(problem.n * found.value, value, rtol=1e-6)
    np.testing.assert_allclose(problem.n * found.gradient, slope, rtol=1e-5)


def test_sites_come_back_and_go_in_again(problem) -> None:
    theta = np.array([[0.3, -0.1, 0.2, -0.4, 0.9, -0.6], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
    sites = problem.layout.unflatten(theta)
    assert set(sites) == {"effect", "slope", "scale", "precision"}  # what is in the plate stays there
    np.testing.assert_allclose(sites["scale"], np.exp(theta[:, 3]))
    np.testing.assert_allclose(sites["precision"], np.exp(-2 * theta[:, 3]))
    np.testing.assert_allclose(problem.flatten({name: value[0] for name, value in sites.items()}), theta[0], atol=1e-12)


@pytest.mark.slow
def test_the_posterior_is_that_of_nuts(problem) -> None:
    x, g, y = data()
    kernel = numpyro.infer.NUTS(groups)
    run = numpyro.infer.MCMC(kernel, num_warmup=300, num_samples=1500, progress_bar=False)
    run.run(jax.random.key(0), x, g, y=y, width=2.0)
    theirs = run.get_samples()
    cal = eq.calibrate(problem, target="posterior", ess=1500, progress=False)
    ours = cal.chains.tree()
    for name in ("effect", "slope", "scale", "precision"):
        a = np.asarray(theirs[name], float).reshape(1500, -1)
        b = np.asarray(ours[name], float).reshape(cal.draws.shape[0] * cal.draws.shape[1], -1)
        # Monte Carlo error of both: a standard deviation over √1500, and of the spread over √3000
        assert (np.abs(a.mean(0) - b.mean(0)) < 5 * a.std(0) * np.sqrt(2 / 1000)).all(), name
        np.testing.assert_allclose(b.std(0), a.std(0), rtol=5 * np.sqrt(2 / 2000))
    exported = cal.to_arviz(log_likelihood=True)
    assert set(exported["posterior"].data_vars) == {"effect", "slope", "scale", "precision"}
    assert exported["log_likelihood"]["y"].shape[-1] == len(y)


def test_improper_priors_and_columns_of_a_table() -> None:
    """Flat priors give least squares; of log(scale) the mode is at RSS/(N − 1), since a flat scale has a Jacobian."""
    x, _, y = data(n=60)

    def program(frame, y):
        slope = numpyro.sample("slope", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
        scale = numpyro.sample("scale", dist.ImproperUniform(dist.constraints.positive, (), ()))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(slope[0] * frame["u"] + slope[1] * frame["v"], scale), obs=y)

    columns = {"u": pd.Series(x[:, 0]), "v": pd.Series(x[:, 1])}
    found = eq.fit(eqn.bind(program, columns, y=pd.Series(y))).params
    slope, (squares,) = np.linalg.lstsq(x, y, rcond=None)[:2]
    np.testing.assert_allclose(found["slope"], slope, rtol=1e-6)
    np.testing.assert_allclose(found["scale"], np.sqrt(squares / 59), rtol=1e-6)
    with pytest.raises(eq.InvalidInput, match=r"args\[0\]\['u'\], args\[0\]\['v'\], kwargs\['y'\] add up"):
        eqn.bind(lambda frame, y: program(frame, y - jnp.mean(y)), columns, y=y)


@pytest.mark.slow
def test_a_program_runs_in_a_loop_of_optax(problem) -> None:
    """Unconstrained parameters by label, the program's own gradient, an optax loop: the sandwich of the mode."""
    moments = eq.moments(problem, eq.fit(problem))
    tuning = eq.tune(moments, "sandwich", eq.Dynamics(batch_size=40))
    chain, slope = eqo.calibrated(tuning, seed=0), eqo.gradient(tuning, problem)
    x, g, y = data()
    rows = {key: jnp.asarray(a) for key, a in zip(problem.source.names, (x, g, y), strict=True)}
    first = problem.model.structure.unflatten(jnp.asarray(tuning.center, jnp.float32))

    def one(key):
        def step(carry, index):
            params, state = carry
            updates, state = chain.update(slope(params, {k: a[index] for k, a in rows.items()}), state)
            params = jax.tree.map(jnp.add, params, updates)
            return (params, state), jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])

        index = jax.random.randint(key, (1000, 40), 0, len(y))
        return jax.lax.scan(step, (first, chain.init(first)), index)[1]

    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 32))
    found = eq.diagnose(eq.Chains.from_draws(np.asarray(draws, float)[:, 200:], tuning), tuning)
    assert found.check("covariance").status == "ok", str(found)


@pytest.mark.slow
def test_a_plate_of_fixed_size_and_other_observations() -> None:
    """An observation outside of the plate belongs to the regulariser; so does a scale handler to its site."""
    x, _, y = data(n=50)

    def program(x, y, n):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
        share = numpyro.sample("share", dist.Dirichlet(jnp.array([2.0, 3.0, 1.0])))
        numpyro.sample("earlier", dist.Normal(slope[0], 0.1), obs=jnp.asarray(0.9))
        with numpyro.plate("rows", n), numpyro.handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Normal(x @ slope + share[0], 1.0), obs=y)

    problem = eqn.bind(program, x, y, 50, plate="rows")
    assert problem.names == ("slope[0]", "slope[1]", "unconstrained(share)[0]", "unconstrained(share)[1]")
    theta = np.array([0.5, 0.2, 0.1, -0.3])
    sites = problem.layout.unflatten(theta)
    assert sites["share"].sum() == pytest.approx(1.0)
    mean = x @ theta[:2] + sites["share"][0]
    rows = problem.without_prior().derivatives(theta, 0).value
    assert rows == pytest.approx(np.mean(0.5 * (0.5 * (y - mean) ** 2 + 0.5 * np.log(2 * np.pi))), rel=1e-6)


def refused(kind):
    """A model for each thing that cannot be done, and the site that is named."""

    def program(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        if kind == "param":
            b = b + numpyro.param("offset", 0.0)
        if kind == "discrete":
            b = b * numpyro.sample("on", dist.Bernoulli(0.5))
        size = 20 if kind == "subsample" else None
        with numpyro.plate("data", len(x), subsample_size=size) as index:
            rows, seen = x[index], y[index]
            if kind == "inside":
                b = numpyro.sample("noise", dist.Normal(0, 1)) + b
            if kind == "nested":
                with numpyro.plate("outputs", 2, dim=-2):
                    numpyro.sample("y", dist.Normal(b * rows, 1), obs=jnp.stack([seen, seen]))
                return
            mean = b * rows + (jnp.mean(seen) if kind == "mixed" else 0.0)
            numpyro.sample("y", dist.Normal(mean, 1), obs=None if kind == "unseen" else seen)

    return program


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("param", "'offset'"),
        ("discrete", "'on'"),
        ("subsample", "20 of 50"),
        ("inside", "'noise'"),
        ("nested", "'outputs'"),
        ("mixed", "sum over the rows"),
        ("unseen", "'y'"),
    ],
)
def test_what_cannot_be_done_is_named(kind, named) -> None:
    x, _, y = data(n=50)
    with pytest.raises(eq.InvalidInput, match=named):
        eqn.bind(refused(kind), x[:, 0], y)


def test_rows_that_are_not_arguments_are_missed() -> None:
    x, _, y = data(n=50)

    def closed(z):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("data", 50):
            numpyro.sample("y", dist.Normal(b * x[:, 0], 1), obs=y)

    with pytest.raises(eq.InvalidInput, match="as an argument"):
        eqn.bind(closed, np.zeros(50))
    with pytest.raises(eq.InvalidInput, match="pass the data as arguments"):
        eqn.bind(closed, 0.0)
    with pytest.raises(eq.InvalidInput, match="which has 'groups', 'data'"):
        eqn.bind(groups, *data(), plate="rows")
