"""Parameters in the user's structure: names, round trips, which of them vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import equipoise as eq
from equipoise.models.general.structure import trainable_structure


def nested():
    """A scalar, a vector, a matrix and a Python number; dicts in a list in a dict; two precisions."""
    return {
        "head": [{"bias": np.float32(0.0), "w": jnp.zeros(2, dtype=jnp.float32)}, {"m": np.zeros((2, 2))}],
        "z": 0.0,
    }


class Pair(NamedTuple):
    left: object
    right: object


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    """A module in the style of Equinox: parameters are its fields, and it is callable."""

    weight: object
    bias: object

    def __call__(self, x):
        return x @ self.weight + self.bias


ENTRIES = [f"head.1.m[{i},{j}]" for i in (0, 1) for j in (0, 1)]
STRUCTURES = {
    "nested": (nested(), ["head.0.bias", "head.0.w[0]", "head.0.w[1]", *ENTRIES, "z"]),
    "tuple": ((0.0, np.zeros(2)), ["0", "1[0]", "1[1]"]),
    "list": ([np.zeros((1, 2)), 1.5], ["0[0,0]", "0[0,1]", "1"]),
    "named tuple": (Pair(np.zeros(2), {"b": 0.0}), ["left[0]", "left[1]", "right.b"]),
    "module": (Layer(np.zeros((2, 1)), np.zeros(1)), ["weight[0,0]", "weight[1,0]", "bias[0]"]),
    "bare array": (np.zeros(3), ["theta[0]", "theta[1]", "theta[2]"]),
    "bare number": (0.5, ["theta"]),
    "keys out of order, a None": ({"b": 1.0, "a": None, "A": np.ones(1)}, ["A[0]", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(STRUCTURES))
def test_names_and_round_trips(name) -> None:
    init, names = STRUCTURES[name]
    structure = trainable_structure(init, None)
    assert list(structure.names) == names
    assert structure.dim == structure.full == len(names)
    assert sum(int(np.prod(shape)) for _, shape in structure.variables) == len(names)
    for lead in ((), (4,), (2, 5)):
        flat = np.random.default_rng(0).normal(size=(*lead, len(names)))
        tree = structure.unflatten(flat)
        assert jax.tree.structure(tree) == jax.tree.structure(init)
        for leaf, start in zip(jax.tree.leaves(tree), jax.tree.leaves(init), strict=True):
            assert leaf.shape == (*lead, *np.shape(start))
            assert leaf.dtype == np.float64
        # the order is that of ravel_pytree, for every index of the leading axes
        for index in np.ndindex(*lead):
            one = jax.tree.map(lambda a, i=index: a[i], tree)
            with jax.enable_x64(True):
                np.testing.assert_array_equal(ravel_pytree(one)[0], flat[index])
            np.testing.assert_array_equal(structure.flatten(one), flat[index])


def test_flat_vectors_are_accepted_wherever_they_are_not_ambiguous() -> None:
    structure = trainable_structure({"a": 0.0, "b": np.zeros(2)}, None)
    np.testing.assert_array_equal(structure.flatten(np.arange(3.0)), np.arange(3.0))
    bare = trainable_structure(np.zeros(3), None)
    np.testing.assert_array_equal(bare.flatten(np.arange(3.0)), np.arange(3.0))
    for bad, words in [
        ({"a": 1.0}, "params: must be of the structure"),
        ({"a": 1.0, "b": np.zeros(3)}, r"params b: must be of shape \(2,\); got shape \(3,\)"),
        ({"a": np.nan, "b": np.zeros(2)}, "params: must be finite"),
        (np.array([0.0, np.inf, 0.0]), "params: must be finite"),
        (np.zeros(4), "params: must be of the structure"),
    ]:
        with pytest.raises(eq.InvalidInput, match=words):
            structure.flatten(bad)


@pytest.mark.parametrize(
    ("trainable", "names"),
    [
        ({"head": [True, False], "z": False}, ["head.0.bias", "head.0.w[0]", "head.0.w[1]"]),
        ({"head": [{"bias": False, "w": True}, False], "z": True}, ["head.0.w[0]", "head.0.w[1]", "z"]),
        (lambda name: name.startswith("head.1") or name == "z", [*ENTRIES, "z"]),
        (True, list(STRUCTURES["nested"][1])),
    ],
    ids=["prefix", "mixed", "function of the name", "one flag"],
)  # fmt: skip
def test_trainable_leaves(trainable, names) -> None:
    init = jax.tree.map(lambda a: np.asarray(a, dtype=np.float64) + 0.7, nested())
    structure = trainable_structure(init, trainable)
    assert list(structure.names) == names
    tree = structure.unflatten(np.zeros((5, len(names))))
    for leaf, start, varies in zip(jax.tree.leaves(tree), jax.tree.leaves(init), structure.varies, strict=True):
        # constants are returned as they were given, without leading axes
        np.testing.assert_array_equal(leaf, np.zeros((5, *np.shape(start))) if varies else start)


def test_a_callable_module_of_flags_is_a_mask_not_a_function() -> None:
    structure = trainable_structure(Layer(np.zeros((2, 1)), np.ones(1)), Layer(True, False))
    assert structure.names == ("weight[0,0]", "weight[1,0]")


def test_frozen_parameters_stay_and_come_back() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    data = {"x": x, "y": x @ [1.0, -1.0] + 0.7 + rng.normal(size=100), "label": np.arange(100)}
    init = {"layer": Layer(np.zeros(2), 0.25), "order": 3, "act": jnp.tanh}

    def loss(p, o):
        assert isinstance(p["order"], int)
        return 0.5 * (o["y"] - p["layer"](o["x"])) ** 2

    model = eq.Model(loss, init, trainable=lambda name: name == "layer.weight")
    found = eq.fit(model, data)
    exact = np.linalg.lstsq(x, data["y"] - 0.25, rcond=None)[0]
    np.testing.assert_allclose(found.params["layer"].weight, exact, rtol=1e-12)
    assert (found.params["layer"].bias, found.params["order"], found.params["act"]) == (0.25, 3, jnp.tanh)
    tuning = eq.tune(eq.moments(model, data, found.params), "sandwich", eq.Dynamics(10))
    chains = eq.sample(model, data, tuning, draws=7, chains=3, progress=False)
    tree = chains.tree()
    assert chains.names == ("layer.weight[0]", "layer.weight[1]")
    assert chains.layout.variables == (("layer.weight", (2,)),)
    np.testing.assert_array_equal(tree["layer"].weight, chains.draws)
    assert tree["layer"].bias == 0.25
