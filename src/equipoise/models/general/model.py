"""A differentiable loss of your own: JAX functions over pytrees of parameters, bound to pytrees of rows (theory §1).

Everything is computed in float64 inside a local context: the global JAX configuration is never touched. Data travel as
arguments of compiled functions, in blocks of rows, so memory stays O(block · D²) and nothing of size N×D×D is made.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_fields, one_of, users_code, whole
from equipoise.engines.jax.projection import Traced, Tree
from equipoise.errors import InvalidInput
from equipoise.models.general.functions import Functions
from equipoise.models.general.observing import observations
from equipoise.models.general.prior import Prior, gaussian_prior
from equipoise.models.general.problem import GeneralProblem
from equipoise.models.general.structure import Structure, trainable_structure
from equipoise.models.problem import CUSTOM, Title
from equipoise.models.verbs import settle

if TYPE_CHECKING:
    from equipoise.models.general.share import Share

__all__ = ["GeneralProblem", "Model"]


@checked_fields
@dataclass(frozen=True, eq=False, repr=False)
class Model(Card):
    """A loss of your own.

    Attributes
    ----------
    loss
        `loss(params, observation) -> scalar`, in JAX; `observation` is one row of the data's pytree.
    init
        Parameters to start from: any pytree of floating-point arrays. It also gives the structure of every result.
    prior_precision, prior_mean
        Of a Gaussian prior on the trainable parameters: a scalar, a flat vector (of precisions, the diagonal), a tree like
        `init` (prefixes allowed: a number for each leaf), or, for precisions, a matrix.
    regularizer
        `regularizer(params) -> scalar`, R(θ), instead of a Gaussian prior.
    trainable
        Which parameters vary: a pytree of booleans (prefixes allowed), or a function of a leaf's name. All by default;
        the others stay at `init` (last-layer calibration).
    subspace
        (origin, basis): parameters are origin + coordinates @ basis; made by `eq.subspace` and `identified`.

    Examples
    --------
    >>> import numpy as np
    >>> model = Model(lambda p, o: (o["y"] - p["a"] - p["b"] * o["x"]) ** 2 / 2, init={"a": 0.0, "b": 0.0})
    >>> problem = model.bind({"x": np.arange(4.0), "y": 1.0 + 2.0 * np.arange(4.0)})
    >>> problem.names
    ('a', 'b')
    """

    loss: Callable[..., Traced]
    init: Tree
    prior_precision: Tree = 0.0
    prior_mean: Tree = 0.0
    regularizer: Callable[..., Traced] | None = None
    trainable: Tree = None
    subspace: tuple[Array, Array] | None = None

    @property
    def title(self) -> Title:
        """It has no name of its own."""
        return Title("Loss", CUSTOM, None)

    @property
    def portable(self) -> bool:
        """A loss of your own is not part of what is saved."""
        return False

    def bind(self, data: object) -> GeneralProblem:
        """Check the loss at its start and the data's leading axes.

        Raises
        ------
        InvalidInput
            If the loss is not a finite scalar at `init`, parameters are not floating-point, or leading axes differ.
        """
        source, tree = observations(data)
        problem = GeneralProblem(self, source, tree, source.n)
        problem.check()
        return problem

    def mean_response(self, eta: Array) -> Array:
        """A loss of your own has none."""
        raise InvalidInput(
            "model",
            "one from eq.glm to have a mean response",
            "a loss of your own",
            "use evaluate(function, data), or cal.draws",
        )

    def __reduce__(self) -> tuple[Callable[[bytes], Model], tuple[bytes]]:
        # compiled functions are made anew where they are needed, once in every process
        return _unpacked, (self._packed,)

    @cached_property
    def _packed(self) -> bytes:
        given = type(self), {f.name: getattr(self, f.name) for f in fields(self)}
        remedy = "define the loss at the top of a module, not as a lambda, or install cloudpickle"
        with users_code("model", "one that can be sent to other processes", remedy):
            return _pickler().dumps(given)

    @cached_property
    def structure(self) -> Structure:
        """How flat vectors become the user's parameters."""
        every = trainable_structure(self.init, self.trainable)
        return every if self.subspace is None else every.within(*self.subspace)

    def identified(self, data: object, params: object) -> Model:
        """The model restricted to the directions its loss curves along at a minimiser, which is its new start."""
        problem = self.bind(data)
        return problem.identified(problem.flatten(params)).model

    def within(self, theta: Array, axes: Array) -> Model:
        """The model restricted to θ + the span of the rows of `axes`, with θ as its start."""
        basis = axes if self.subspace is None else axes @ self.subspace[1]
        origin = self.structure.embed(theta)
        return replace(self, subspace=(origin, basis), init=self.structure.unflatten(theta))

    def captured(
        self,
        data: object,
        params: object,
        *,
        function: Callable[..., object] | None = None,
        target: str = "sandwich",
        probes: int = 16,
        seed: int = 0,
    ) -> Share:
        """How much of the uncertainty a subspace has: its share of a total variance, with a standard error.

        Parameters
        ----------
        data
            The rows.
        params
            A fit of this model, or parameters like its.
        function
            `function(params, observation)`: the variance is that of its values at the rows, linearised. Without one it is
            the trace of the parameters' covariance.
        target
            `"sandwich"` or `"posterior"`: whose covariance.
        probes, seed
            Random combinations that estimate the traces; each takes tens of Hessian-vector products over all rows.
        """
        from equipoise.models.general.share import captured_share

        if self.subspace is None:
            raise InvalidInput("model", "on a subspace", "one on all its parameters", "make one with eq.subspace")
        problem = self.bind(data)
        one_of("target", target, ("sandwich", "posterior"))
        z = problem.flatten(settle(problem, params)[1])
        probes, seed = whole("probes", probes, 2, "16 is a good start"), whole("seed", seed, 0, "pass an int")
        return captured_share(problem, z, function, target, probes, seed)

    @cached_property
    def functions(self) -> Functions:
        """The compiled functions, shared by every binding of this model."""
        return Functions(self)

    @cached_property
    def prior(self) -> Prior:
        """The Gaussian prior, checked."""
        return gaussian_prior(self.structure, self.prior_precision, self.prior_mean, self.regularizer is None)


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> Model:
    """The model of these bytes: the same one each time, so that it is compiled once."""
    kind, given = pickle.loads(packed)
    return cast(Model, kind(**given))


def _pickler() -> Any:
    """What packs functions of the user's own: where there is cloudpickle, those without a name too."""
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        return pickle
    return cloudpickle
