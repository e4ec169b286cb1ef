"""A PyTorch module with a loss, as a model for every verb."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_fields, shown, users_code
from equipoise.data.fields import Columns
from equipoise.data.observed import Observations
from equipoise.engines.engine import Engine, Guard
from equipoise.errors import InvalidInput
from equipoise.interop.torch.engine import torch_engine
from equipoise.interop.torch.functions import Functions, mapped
from equipoise.models.general.observing import observations
from equipoise.models.general.prior import Prior, gaussian_prior
from equipoise.models.general.problem import GeneralProblem, Padded
from equipoise.models.general.structure import Structure, trainable_structure
from equipoise.models.problem import CUSTOM, Title
from equipoise.theory.tuning import Tuning

__all__ = ["Model", "TorchProblem"]

# Difference of two losses of one row that rounding explains, where a module computes in float32.
_SAME = 1e-4


@checked_fields
@dataclass(frozen=True, eq=False, repr=False)
class Model(Card):
    """A module and its loss.

    The module is copied to float64 and evaluation mode, in which dropout does nothing and batch norm uses its averages; the
    user's own is left as it is.

    Attributes
    ----------
    module
        A `torch.nn.Module`; its weights are where fits start.
    loss
        `loss(output, target)`, one number for each row: `torch.nn.CrossEntropyLoss(reduction="none")`, say.
    trainable
        Which parameters vary: names, a prefix (`"head."`), or a function of a name. Those that require a gradient, when
        left out.
    prior_precision, prior_mean
        Of a Gaussian prior on the flat parameters, in the order of `module.named_parameters()`: scalar, vector or (precision
        only) matrix.
    regularizer
        `regularizer(params)`, R(θ), of a dictionary of tensors by name, instead of a Gaussian prior.
    subspace
        (origin, basis): parameters are origin + coordinates @ basis; made by `identified`.

    Examples
    --------
    >>> import torch
    >>> model = Model(torch.nn.Linear(2, 1, dtype=torch.float64), lambda out, y: (out[:, 0] - y) ** 2 / 2)
    >>> problem = model.bind((torch.randn(20, 2), torch.randn(20)))
    >>> problem.names
    ('weight[0,0]', 'weight[0,1]', 'bias[0]')
    """

    module: torch.nn.Module
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    trainable: str | Iterable[str] | Callable[[str], bool] | None = None
    prior_precision: ArrayLike = 0.0
    prior_mean: ArrayLike = 0.0
    regularizer: Callable[[dict[str, torch.Tensor]], torch.Tensor] | None = None
    subspace: tuple[Array, Array] | None = None

    @property
    def title(self) -> Title:
        """It has no name of its own."""
        return Title("Loss", CUSTOM, None)

    @property
    def portable(self) -> bool:
        """A module is not part of what is saved."""
        return False

    def bind(self, data: object) -> TorchProblem:
        """The problem on a map-style dataset of (input, target) pairs, or on tensors (inputs, targets).

        `eq.data.observations(data, weights=..., frequency=...)` brings weights to either.

        Raises
        ------
        InvalidInput
            If the loss is not one finite number for each row.
        """
        given = data if isinstance(data, Observations) else Observations(data)
        x, y = _tensors(given.tree)
        source, tree = observations(replace(given, tree={"x": x, "y": y}))
        problem = TorchProblem(self, source, tree, source.n)  # type: ignore[arg-type]
        problem.check()
        return problem

    def mean_response(self, eta: Array) -> Array:
        """A module has none that is known."""
        raise InvalidInput(
            "model", "one from eq.glm to have a mean response", "a PyTorch module", "use model.outputs(draws, inputs)"
        )

    def outputs(self, draws: Array, inputs: torch.Tensor | tuple[torch.Tensor, ...]) -> Array:
        """What the module says of inputs at each of many flat parameters, (draws, rows, ...)."""
        functions, found = self.functions, []
        given = tuple(_floating(a) for a in (inputs if isinstance(inputs, tuple) else (inputs,)))
        with torch.no_grad():
            for theta in np.atleast_2d(draws):
                params: Any = self.structure.unflatten(theta)
                named = {name: torch.from_numpy(np.array(params[name])) for name, _, _ in functions.shapes}
                found.append(torch.func.functional_call(functions.twin, named, given).numpy())
        return np.stack(found)

    def load(self, theta: Array) -> torch.nn.Module:
        """Put flat parameters into the user's own module, in its precision; returns it."""
        params: Any = self.structure.unflatten(theta)
        own = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, _ in self.structure.trained:
                own[name].copy_(torch.from_numpy(np.array(params[name])))
        return self.module

    def __getstate__(self) -> dict[str, object]:
        # what is differentiated is made anew where it is needed
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def init(self) -> OrderedDict[str, Array]:
        """The module's own weights, in its own order."""
        if not isinstance(self.module, torch.nn.Module):
            raise InvalidInput("module", "a torch.nn.Module", shown(type(self.module)), "pass the network itself")
        return OrderedDict(
            (name, p.detach().cpu().double().numpy().copy()) for name, p in self.module.named_parameters()
        )

    @cached_property
    def structure(self) -> Structure:
        """How flat vectors become parameters by name."""
        whole = trainable_structure(self.init, self._chosen)
        return whole if self.subspace is None else whole.within(*self.subspace)

    @cached_property
    def functions(self) -> Functions:
        """Derivatives of the loss."""
        return Functions(self)

    def within(self, theta: Array, axes: Array) -> Model:
        """The model restricted to θ + the span of the rows of `axes`."""
        basis = axes if self.subspace is None else axes @ self.subspace[1]
        return replace(self, subspace=(np.asarray(self.structure.embed(theta)), basis))

    @cached_property
    def prior(self) -> Prior:
        """The Gaussian prior, checked."""
        return gaussian_prior(self.structure, self.prior_precision, self.prior_mean, self.regularizer is None)

    def _chosen(self, name: str) -> bool:
        """Whether a parameter varies."""
        chosen = self.trainable
        if chosen is None:
            return bool(dict(self.module.named_parameters())[name].requires_grad)
        if callable(chosen):
            return bool(chosen(name))
        if isinstance(chosen, str):
            return name.startswith(chosen)
        if not isinstance(chosen, Iterable):
            raise InvalidInput("trainable", "names, a prefix or a function of a name", shown(chosen), "leave it out")
        names = set(chosen)
        unknown = names - set(self.init)
        if unknown:
            known = ", ".join(list(self.init)[:6])
            raise InvalidInput("trainable", f"names among {known}", repr(sorted(unknown)[0]), "see named_parameters()")
        return name in names


class TorchProblem(GeneralProblem):
    """A module on its rows."""

    model: Model  # type: ignore[assignment]

    @property
    def functions(self) -> Functions:  # type: ignore[override]
        """Derivatives by PyTorch."""
        return self.model.functions

    def check(self) -> None:
        """Evaluate the loss of a few rows at the start, and name what is wrong."""
        start = self.flatten(self.model.init)
        block = next(iter(self.source.blocks()))
        some = self.padded(block.take(slice(0, min(3, block.n))), min(3, block.n))
        remedy = "check shapes and dtypes: floating-point inputs come as float64"
        with users_code("module, loss", "functions of the data's inputs, and of outputs and targets", remedy):
            found = self.functions.each(torch.from_numpy(start), some.rows)
        if not isinstance(found, torch.Tensor) or tuple(found.shape) != (some.size,):
            given = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise InvalidInput(
                "loss", f"one number for each row, shape ({some.size},) for {some.size} rows", given,
                "use reduction='none', and squeeze outputs of width one",
            )  # fmt: skip
        self._check_rows(torch.from_numpy(start), some.rows, found)
        value = self.derivatives(start, 0).value
        if not np.isfinite(value):
            raise InvalidInput("module", "weights where the loss is finite", f"mean loss {value}", "start elsewhere")

    def _check_rows(self, start: Any, rows: Any, found: Any) -> None:
        """Refuse a module that draws numbers of its own, and one whose rows change with the others of their batch."""
        again = self.functions.each(start, rows)
        for other, given, remedy in (
            (again, "other losses when called again", "leave out dropout and other noise in evaluation mode"),
            (self._alone(start, rows, len(found)), "losses that change with the other rows of a batch",
             "leave out batch norm without running averages, means over a batch and sequences whose first axis is time"),
        ):  # fmt: skip
            if found.isfinite().all() and not torch.allclose(other, found, rtol=_SAME, atol=_SAME):
                raise InvalidInput("module, loss", "a function of each row by itself", given, remedy)

    def _alone(self, start: Any, rows: Any, count: int) -> Any:
        """The loss of each row in a batch of its own; NaN where a module refuses such a batch."""
        try:
            each = [mapped(itemgetter(k), rows) for k in range(count)]
            return torch.stack([self.functions.row(start, row) for row in each])
        except Exception:  # whatever the user's module raises of one row, it has just taken several
            return torch.full((count,), torch.nan, dtype=torch.float64)

    def padded(self, block: Columns, length: int) -> Padded:
        """A block as PyTorch takes it, its last row repeated until it has `length`."""
        size, counts = block.height, block.counts
        leaves = block.leaves if length == size else block.take(np.minimum(np.arange(length), size - 1)).leaves
        mask: Any = torch.from_numpy(np.append(counts, np.zeros(length - size)))
        rows = self.tree.unflatten([torch.from_numpy(np.array(leaf)) for leaf in leaves])
        return Padded(rows, mask, size, counts)

    def engine(self, tuning: Tuning, guard: Guard, storage: str = "float64", touched: float = np.inf) -> Engine:
        """A loop over the module."""
        if storage != "float64":
            raise InvalidInput("storage", "float64 for a module", repr(storage), "leave it out")
        return torch_engine(self, tuning, guard)


def _tensors(data: Any) -> tuple[Any, Any]:
    """Inputs and targets of all rows."""
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors
    if isinstance(data, (tuple, list)) and len(data) == 2:
        x, y = data
        return (tuple(_numpy(a) for a in x) if isinstance(x, tuple) else _numpy(x)), _numpy(y)
    wanted = "a map-style dataset of (input, target) pairs, or tensors (inputs, targets)"
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or isinstance(data, dict):
        raise InvalidInput("data", wanted, shown(type(data)), "read an iterable dataset into tensors first")
    pairs = [data[n] for n in range(len(data))]
    odd = next((pair for pair in pairs if not (isinstance(pair, (tuple, list)) and len(pair) == 2)), None)
    if odd is not None:
        raise InvalidInput("data", wanted, f"a row that is {shown(type(odd))}", "pass (inputs, targets)")
    x, y = zip(*pairs, strict=True)
    if isinstance(x[0], tuple):
        return tuple(np.stack([_numpy(a) for a in part]) for part in zip(*x, strict=True)), np.stack(
            [_numpy(a) for a in y]
        )
    return np.stack([_numpy(a) for a in x]), np.stack([_numpy(a) for a in y])


def _numpy(a: Any) -> Any:
    return a.detach().cpu().numpy() if isinstance(a, torch.Tensor) else np.asarray(a)


def _floating(a: Any) -> Any:
    tensor = torch.as_tensor(_numpy(a))
    return tensor.double() if tensor.is_floating_point() else tensor
