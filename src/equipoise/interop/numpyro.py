"""NumPyro models as problems: a loss for each row of a plate, and all the rest of the log density as the regulariser.

For a model with latent sites z and observed sites y_n in a plate, log p(y, z) = Σ_n log p(y_n | z) + log p(z). With z = f(u)
unconstrained, the loss of a row is −log p(y_n | f(u)), and R(u) = −log p(f(u)) − log |f'(u)|, so that N L(u) is NumPyro's own
potential energy; its minimum is the mode of the unconstrained posterior, and the target `"posterior"` its curvature there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path
from numpy.typing import ArrayLike
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import (
    ExpTransform,
    IdentityTransform,
    IndependentTransform,
    SigmoidTransform,
    Transform,
)
from numpyro.infer import init_to_uniform
from numpyro.infer.util import potential_energy

from equipoise.arrays import Array, PyTree
from equipoise.errors import InvalidInput
from equipoise.interop.sites import SiteLayout, Sites
from equipoise.models.general.model import Model
from equipoise.models.general.observing import observations
from equipoise.models.general.problem import GeneralProblem

__all__ = ["SiteProblem", "bind"]

Site = Mapping[str, Any]  # what NumPyro notes of one: its kind, distribution, value and plates
Trace = Mapping[str, Site]
# Relative difference of a sum over rows from NumPyro's own potential energy: some distributions compute in float32.
_AGREED = 1e-4
_TRIED = 2  # random points where both are compared


@dataclass(frozen=True, repr=False)
class SiteProblem(GeneralProblem):
    """A program on its rows, whose parameters come and go as sites."""

    sites: Sites = field(kw_only=True, repr=False)

    @property
    def layout(self) -> SiteLayout:  # type: ignore[override]
        """The sites."""
        return SiteLayout(self.model.structure, self.sites)

    def flatten(self, params: object) -> Array:
        """Sites by name, or what is flat already, as a flat vector."""
        if isinstance(params, Mapping) and set(self.sites.names) <= set(params):
            with jax.enable_x64(True):
                params = {label: np.asarray(value) for label, value in self.sites.inward(params).items()}
        return self.model.structure.flatten(params)


def bind(model: Callable[..., object], *args: object, plate: str = "data", **kwargs: object) -> SiteProblem:
    """A NumPyro model on its data as a problem for every verb.

    Arrays among the arguments that have the plate's size along their first axis are rows; all else is passed on as it is.
    Draws come back as the model's own sites, `fit.params` and `chains.tree()`; flat draws are unconstrained, and their names
    say how: `log(sigma)`.

    Parameters
    ----------
    model
        A NumPyro model; its plate must not be subsampled.
    *args, **kwargs
        Its arguments, observed values among them.
    plate
        The plate whose rows batches are drawn from.

    Returns
    -------
    SiteProblem

    Raises
    ------
    InvalidInput
        For latent sites inside the plate, plates within it, discrete latent sites, `numpyro.param`, or a likelihood that
        is not a sum over the rows of the arguments; they are named.

    Examples
    --------
    >>> import numpyro, numpyro.distributions as dist
    >>> def program(x, y):
    ...     slope, scale = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1))
    ...     with numpyro.plate("data", len(x)):
    ...         numpyro.sample("y", dist.Normal(slope * x, scale), obs=y)
    >>> bind(program, np.arange(4.0), np.array([0.1, 0.9, 2.2, 2.8])).names
    ('log(scale)', 'slope')
    """
    args, kwargs = jax.tree.map(_array, (args, kwargs))
    program = _Program(model, args, kwargs, plate)
    loss = Model(program.loss, init=program.start, regularizer=program.regularizer)
    source, tree = observations(program.rows)
    sites = Sites(program.outward, program.inward, tuple(program.labels))
    problem = SiteProblem(loss, source, tree, source.n, sites=sites)
    problem.check()
    program.require_sum(problem)
    return problem


class _Program:
    """A model taken apart: which of its arguments are rows, which sites vary, and the densities of both kinds of sites."""

    def __init__(self, model: Callable[..., Any], args: Any, kwargs: Any, plate: str) -> None:
        self.model, self.plate = model, plate
        with jax.enable_x64(True):
            self.given = jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, (args, kwargs))
            jax.eval_shape(jax.jit(self._look))  # nothing is computed for it
        paths, self.tree = tree_flatten_with_path((args, kwargs))
        self.leaves = [leaf for _, leaf in paths]
        self.is_row = [np.ndim(leaf) > 0 and np.shape(leaf)[0] == self.size for leaf in self.leaves]
        self.rows = {
            _argument(path): np.asarray(leaf) for (path, leaf), row in zip(paths, self.is_row, strict=True) if row
        }
        self.keys = tuple(self.rows)
        if not self.rows:
            raise InvalidInput(
                "args",
                f"arrays with the plate's {self.size} rows, the observed values among them",
                "none",
                "pass the data as arguments of the model",
            )
        self.first = {key: array[:1] for key, array in self.rows.items()}

    def _look(self) -> None:
        """Find the sites that vary and the plate's size, whatever values there are."""
        # NumPyro's own start, as improper priors have nothing to draw from
        trace = self._traced(self.given, substitute_fn=init_to_uniform)
        self.size = _plate_size(trace, self.plate)
        latent = _latent_sites(trace, self.plate)
        self.labels = {name: _label(name, trace[name]) for name in latent}
        # the inverse of a value has the shape of the unconstrained one; zero is always feasible
        shapes = {name: _transform(trace[name]).inv(trace[name]["value"]).shape for name in latent}
        self.start = {self.labels[name]: np.zeros(shape) for name, shape in shapes.items()}

    def loss(self, params: PyTree, row: PyTree) -> jax.Array:
        """−log p(y_n | z)."""
        # a plate of fixed size repeats what one row has
        return -jnp.mean(self._densities(params, {key: row[key][None] for key in self.keys}))

    def regularizer(self, params: PyTree) -> jax.Array:
        """−log p(z) − log |dz/du|; the rows play no part in it."""
        trace, total = self._trace(params, self.first), jnp.zeros(())
        for name, site in trace.items():
            if site["type"] == "sample" and not _inside(site, self.plate):
                total = total - jnp.sum(_density(site))
            if name in self.labels:
                value = params[self.labels[name]]
                total = total - jnp.sum(_transform(site).log_abs_det_jacobian(value, site["value"]))
        return total

    def outward(self, params: PyTree) -> dict[str, jax.Array]:
        """All sites outside of the plate that vary or follow from what varies."""
        trace = self._trace(params, self.first)
        return {
            name: jnp.asarray(site["value"])
            for name, site in trace.items()
            if name in self.labels or (site["type"] == "deterministic" and not _inside(site, self.plate))
        }

    def inward(self, sites: Mapping[str, ArrayLike]) -> dict[str, jax.Array]:
        """Unconstrained values of the sites that vary."""
        values = {name: jnp.asarray(sites[name]) for name in self.labels}
        trace = self._traced(self._arguments(self.first), data=values)
        return {label: _transform(trace[name]).inv(values[name]) for name, label in self.labels.items()}

    def require_sum(self, problem: SiteProblem) -> None:
        """Refuse a model whose log density is not the sum over rows that it was taken for."""
        args, kwargs = self.given

        @jax.jit
        def both(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
            params: PyTree = problem.model.structure.unflatten(theta)
            unconstrained = {name: params[label] for name, label in self.labels.items()}
            return potential_energy(self.model, args, kwargs, unconstrained), self._densities(params, self.first)

        rng = np.random.default_rng(0)
        for _ in range(_TRIED):
            theta = 0.3 * rng.normal(size=len(problem.names))
            with jax.enable_x64(True):
                theirs, each = (np.asarray(part) for part in both(theta))
            uneven = float(np.ptp(each))
            ours = problem.n * problem.derivatives(theta, 0).value
            if not abs(ours - theirs) <= _AGREED * (1.0 + abs(theirs)) or not uneven <= _AGREED * abs(each.max()):
                raise InvalidInput(
                    "model",
                    f"one whose density is a sum over the rows of the plate {self.plate!r}",
                    f"a potential energy of {theirs:.6g} where the rows of {', '.join(self.keys)} add up to {ours:.6g}",
                    "pass every array that has one entry for each row as an argument, and let rows depend on nothing "
                    "but their own entries",
                )

    def _densities(self, params: PyTree, rows: PyTree) -> jax.Array:
        """Log densities of the observed sites of the plate, row by row."""
        sites = self._trace(params, rows).values()
        found = [_density(site) for site in sites if site["type"] == "sample" and _inside(site, self.plate)]
        return sum(found[1:], start=found[0])

    def _arguments(self, rows: PyTree) -> PyTree:
        some = iter(self.keys)
        leaves = [
            _traceable(rows[next(some)]) if row else leaf for leaf, row in zip(self.leaves, self.is_row, strict=True)
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def _trace(self, params: PyTree, rows: PyTree) -> Trace:
        def value(site: Site) -> jax.Array | None:
            if site["type"] != "sample" or site["name"] not in self.labels:
                return None
            return _transform(site)(params[self.labels[site["name"]]])

        return self._traced(self._arguments(rows), substitute_fn=value)

    def _traced(self, arguments: PyTree, **values: Any) -> Trace:
        """What the model does with these values; the key is drawn from only where a latent site has none."""
        args, kwargs = arguments
        bound = handlers.substitute(handlers.seed(self.model, jax.random.key(0)), **values)
        return handlers.trace(bound).get_trace(*args, **kwargs)


def _array(value: object) -> object:
    """Columns of a table as arrays: JAX's functions take no others."""
    return np.asarray(value) if hasattr(value, "__array__") and not isinstance(value, jax.Array) else value


def _argument(path: tuple[Any, ...]) -> str:
    """What an array is called: `args[0]`, `kwargs['y']`."""
    return ("kwargs" if path[0].idx else "args") + keystr(path[1:])


def _traceable(value: object) -> object:
    """An array of JAX's, in the precision that is on: a user's loop may have another than ours."""
    if not isinstance(value, np.ndarray):
        return value
    return jnp.asarray(value.astype(jax.dtypes.canonicalize_dtype(value.dtype)))


def _density(site: Site) -> jax.Array:
    found = site["fn"].log_prob(site["value"])
    return found if site["scale"] is None else site["scale"] * found


def _transform(site: Site) -> Transform:
    return biject_to(site["fn"].support)


def _inside(site: Site, plate: str) -> bool:
    return any(frame.name == plate for frame in site.get("cond_indep_stack", ()))


def _label(name: str, site: Site) -> str:
    """What an unconstrained value is called."""
    transform = _transform(site)
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    if isinstance(transform, IdentityTransform):
        return name
    if isinstance(transform, ExpTransform):
        return f"log({name})"
    return f"logit({name})" if isinstance(transform, SigmoidTransform) else f"unconstrained({name})"


def _plate_size(trace: Trace, plate: str) -> int:
    plates = {name: site for name, site in trace.items() if site["type"] == "plate"}
    if plate not in plates:
        found = ", ".join(repr(name) for name in plates) or "none"
        raise InvalidInput(
            "plate", f"the name of a plate of the model, which has {found}", repr(plate), "pass plate=..."
        )
    size, subsample = plates[plate]["args"]
    if subsample not in (None, size):
        raise InvalidInput(
            "model",
            f"without subsample_size in its plate {plate!r}",
            f"{subsample} of {size} rows",
            "leave it out: batches are drawn here",
        )
    return int(size)


def _latent_sites(trace: Trace, plate: str) -> list[str]:
    """The sites that vary; what cannot be sampled here is refused by name."""
    latent, observed = [], False
    for name, site in trace.items():
        if site["type"] == "param":
            raise InvalidInput(
                "model", "without numpyro.param", f"the site {name!r}", "use numpyro.sample with a prior instead"
            )
        if site["type"] != "sample":
            continue
        others = [frame.name for frame in site["cond_indep_stack"] if frame.name != plate]
        if _inside(site, plate) and not site["is_observed"]:
            raise InvalidInput(
                "model",
                f"without latent sites inside the plate {plate!r}, of which every row would bring its own",
                f"the site {name!r}",
                "pass obs= if it is observed; else integrate it out, or sample this model with NUTS",
            )
        if _inside(site, plate) and others:
            raise InvalidInput(
                "model",
                f"without plates nested with {plate!r}",
                f"the plate {others[0]!r} at the site {name!r}",
                "let the distribution of a row have event dimensions (to_event) in place of the other plate",
            )
        if not site["is_observed"] and site["fn"].support.is_discrete:
            raise InvalidInput("model", "of continuous latent sites", f"the site {name!r}", "sum over its values")
        if not site["is_observed"]:
            latent.append(name)
        observed |= _inside(site, plate)
    if not observed:
        raise InvalidInput("model", f"with an observed site in the plate {plate!r}", "none", "pass obs= to it")
    if not latent:
        raise InvalidInput("model", "with latent sites", "none", "sample something")
    return latent
