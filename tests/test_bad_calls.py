"""Every public name called with every argument wrong: only the library's own errors come out, short, naming the argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

import equipoise as eq

RAGGED = [[1.0, 2.0], [3.0]]
NOT_FINITE = np.full((3, 3), np.nan)
NO_COVARIANCES = (np.zeros((3, 3)), np.ones((3, 3)), -np.eye(3), np.triu(np.ones((3, 3))))


def function(*_: object) -> float:
    """A callable where none belongs."""
    return 0.0


# what is wrong for every kind of argument
COUNTS = (-1, 2.5, "many", np.nan, np.inf, [3], function, True)
OBJECTS = ("x", None, 3, np.eye(3), function, eq.Huber)
WRONG: dict[str, tuple[Any, ...]] = {
    "model": ("poisson", None, eq.Huber, eq.glm, 3, np.eye(3)),
    "object": OBJECTS,
    "numbers": (function, "text", "3", RAGGED, None, {"a": 1}, NOT_FINITE, np.ones((2, 2, 2)), np.ones(7), 1j, []),
    "optional numbers": (function, "text", RAGGED, {"a": 1}, NOT_FINITE, np.ones((2, 2, 2)), np.ones(7)),
    "params": (function, "text", RAGGED, None, np.full(3, np.nan), np.ones(2), np.ones((3, 3)), eq.Fit),
    "step": (function, "text", "3", RAGGED, None, NOT_FINITE, np.ones(2), 0.0, -1.0, np.nan, -np.eye(3)),
    "target": (function, "truth", RAGGED, None, NOT_FINITE, np.eye(2), {"a": 1}, 3, *NO_COVARIANCES),
    "X": (function, "text", RAGGED, None, NOT_FINITE, np.ones(3), [], [["a", "b"]], 1j * np.ones((60, 3))),
    "y": (function, "text", RAGGED, None, np.full(60, np.nan), np.ones(3), ["a"] * 60, -np.ones((60, 2))),
    "data": (function, "text", 3, None, np.eye(3), (np.eye(3),), {"x": 1}, [], (NOT_FINITE, np.ones(3))),
    "count": (*COUNTS, None, 0),
    "from zero": (*COUNTS, None),
    "optional count": (*COUNTS, 0),
    "rows": (*COUNTS, 0, 61),
    "automatic": (*COUNTS, None, np.ones(2)),
    "seed": (-1, 1.5, "x", None, np.nan, [1], function),
    "lag": (0.5, "x", None, np.nan, np.inf, [1], function),
    "flag": ("no", 1, None, [], function),
    "share": (0, 1, np.nan, "wide", -0.5, None, [0.9], function),
    "precision": (function, "text", "3", RAGGED, None, {"a": 1}, NOT_FINITE, np.ones((2, 2, 2)), -1.0, 1j, []),
    "seconds": (-1.0, np.nan, "x", None, [1.0], function),
    "positive": (0.0, -1.0, np.nan, np.inf, "x", None, [1.0], function, True),
    "optional positive": (0.0, -1.0, np.nan, np.inf, "x", [1.0], function),
    "momentum": (1.0, -0.1, np.nan, "x", None, [0.5], function, True),
    "temperature": (0.0, -1.0, np.nan, "x", None, [1.0], function),
    "guard": (0, -1.0, np.nan, "on", True, [3.0], function),
    "ess": (0, -1, np.nan, np.inf, "many", None, 1e9, 1e15, 1e300, function),
    "optional choice": ("nonsense", 3, [], function),
    "choice": ("nonsense", 3, None, [], function),
    "path": (3, None, function, "."),
    "from zero lags": (-1, 2.5, "many", np.nan, np.inf, [3], function),
    "factor": ("no", None, [], function, 0.5),
    "columns": ("y", 3, function, [], {}, {"x": 3}, {"x": "nothing"}, {3: "y"}),
    "clusters": (3, function, [], "nothing", [3]),
    "memory": (0, -1, 2.5, "many", None, np.nan, np.inf, [3], function),
    "names": ("abc", 3, ["a", "b"], ["a", "a", "b"], [1, 2, 3]),
}

MODEL = {"model": "model", "data": "data"}
DYNAMICS = {"moments": "object", "dynamics": "object"}
LENGTH = {"chains": "count", "seed": "seed", "thin": "automatic", "burn_in": "automatic"}
RUN = {
    **MODEL, **LENGTH, "target": "target", "ess": "ess", "draws": "optional count", "batch_size": "count",
    "momentum": "momentum", "inverse_temperature": "temperature", "replacement": "flag", "proxy": "choice",
    "structure": "choice", "tuning_rows": "rows",
}  # fmt: skip

# every public name: its arguments, with what is wrong for each
TABLE: dict[str, dict[str, str]] = {
    "bind": MODEL,
    "fit": {**MODEL, "tuning_rows": "rows", "seed": "seed", "max_iterations": "count"},
    "moments": {**MODEL, "params": "params", "tuning_rows": "rows", "seed": "seed"},
    "subspace": {**MODEL, "params": "params", "rank": "count", "of": "choice", "tuning_rows": "rows", "seed": "seed"},
    "tune": {**DYNAMICS, "target": "target", "proxy": "choice", "structure": "choice"},
    "stationary": {**DYNAMICS, "step": "step", "proxy": "choice"},
    "max_stable_step": {**DYNAMICS, "proxy": "choice"},
    "sample": {
        **MODEL, **LENGTH, "tuning": "object", "draws": "count", "progress": "flag", "guard": "guard",
        "threads": "optional count", "storage": "choice", "checkpoint_seconds": "seconds",
    },
    "plan": RUN,
    "calibrate": {**RUN, "sampler": "choice", "refine": "flag", "progress": "flag", "storage": "choice", "guard": "guard"},
    "diagnose": {"chains": "object", "tuning": "object"},
    "load": {"path": "path"},
    "compare_fits": {
        "fits": "object", "level": "share", "below": "choice", "stars": "flag", "exponentiate": "flag", "method": "choice",
    },
    "robust": {**MODEL, "params": "params", "kind": "choice", "lags": "from zero lags", "small_sample": "factor"},
    "sandwich": {"moments": "object"},
    "posterior": {"moments": "object"},
    "bayesbag": {"moments": "object", "bag_size": "optional count"},
    "expected_test_loss": {**MODEL, "fit": "params", "law": "object"},
    "optimal_weight_decay": {**MODEL, "test_data": "data", "step": "step", "dynamics": "object"},
    "optimal_batch_size": {**MODEL, "test_data": "data", "step": "step", "dynamics": "object", "tolerance": "positive"},
    "wasserstein_bound": {**MODEL, "fit": "params", "dynamics": "object", "t": "optional count", "radius": "optional positive"},
    "coupled_distance": {**MODEL, "tuning": "object", "steps": "count", "seed": "seed"},
    "Dynamics": {
        "batch_size": "count", "momentum": "momentum", "inverse_temperature": "temperature", "replacement": "flag",
        "gradient": "choice", "batches": "choice",
    },
    "glm": {"family": "choice", "prior_precision": "precision", "prior_mean": "optional numbers"},
    "Beta": {"b": "positive"},
    "Huber": {"threshold": "positive"},
    "StudentT": {"degrees": "positive"},
    "Pinball": {"smoothing": "positive", "quantile": "share"},
    "data.rows": {"x": "X", "y": "y", "weights": "optional numbers", "offset": "optional numbers", "names": "names"},
    "data.as_rows": {"data": "data"},
    "data.table": {"data": "data", "formula": "choice", "missing": "choice"},
    "data.read_table": {"path": "path"},
    "data.scan": {
        "source": "data", "formula": "choice", "columns": "columns", "missing": "choice", "memory": "memory",
        "clusters": "clusters",
    },
    "Moments.from_arrays": {
        "scores": "numbers", "hessians": "numbers", "prior_hessian": "optional numbers", "thirds": "optional numbers",
        "params": "optional numbers",
    },
    "Moments.curvature_noise": {"S": "numbers"},
    "Moments.third_derivative": {"S": "numbers"},
    "Moments.gradient_noise": {"S": "numbers", "dynamics": "object"},
    "Tuning.at": {**DYNAMICS, "step": "step", "proxy": "choice"},
    "Stationary.autocovariance": {"lag": "lag"},
    "Stationary.ess": {"steps": "from zero"},
    "Stationary.iact": {"direction": "optional numbers"},
    "Stationary.iterate_average_cov": {"k": "count"},
    "Stationary.burn_in": {"start": "numbers", "tolerance": "share"},
    "Stationary.covariance_floor": {"draws": "count", "thin": "count", "standardised": "flag"},
    "Chains.from_draws": {"draws": "numbers", "tuning": "object", "thin": "count"},
    "Calibration.summary": {"interval": "share"},
    "Calibration.predict": {"X_new": "X", "interval": "share", "offset": "optional numbers"},
    "Calibration.save": {"path": "path"},
    "Calibration.tidy": {"level": "share", "kind": "optional choice"},
    "Calibration.confint": {"level": "share"},
    "Calibration.conf_int": {"alpha": "share"},
    "Calibration.vcov": {"kind": "optional choice"},
    "Calibration.test": {"hypothesis": "numbers", "use_f": "flag"},
    "Calibration.combine": {"expressions": "numbers", "level": "share"},
    "Calibration.compare": {"function": "choice", "frame_a": "X", "level": "share", "average": "flag"},
    "Calibration.effects": {"level": "share", "kind": "optional choice"},
    "Calibration.report": {"path": "path", "interval": "share"},
    "Calibration.attach": {**MODEL},
    "Plan.attach": {"problem": "object"},
}  # fmt: skip
# the options of a method are Python's own business: only functions and settings name the nearest
OPTIONS = [name for name in TABLE if name.split(".")[0] in {"data", "Moments", "Tuning"} or "." not in name]
OPTIONS = [
    name
    for name in OPTIONS
    if name.split(".")[-1] not in {"curvature_noise", "third_derivative", "gradient_noise", "as_rows"}
]
# classes that only the library makes, and errors
RESULTS = {"Diagnosis", "Fit", "Model"}
# what an argument may be called in a message about it
ALIASES = {
    "data": ("X", "y", "formula", "data"), "source": ("data",), "test_data": ("X", "y", "data"), "fit": ("params",),
    "x": ("X", "x"), "X_new": ("X", "offset"), "frame_a": ("X", "X_new"),
    "y": ("y",), "scores": ("hessians",),
}  # fmt: skip


class Case(NamedTuple):
    """One call: a name, and the argument that is wrong."""

    name: str
    argument: str
    value: Any

    def __str__(self) -> str:
        # without addresses: every worker must give a test the same name
        text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(self.value).split()))
        return f"{self.name}-{self.argument}-{text[:30]}"


CASES = [
    Case(name, argument, value)
    for name, arguments in TABLE.items()
    for argument, kind in arguments.items()
    for value in WRONG[kind]
]


@cache
def things() -> SimpleNamespace:
    """One of everything that calls need."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(60), rng.normal(size=(60, 2))])
    data = (x, rng.poisson(np.exp(0.3 * x[:, 1])).astype(float))
    model = eq.glm("poisson")
    fit = eq.fit(model, data)
    moments = eq.moments(model, data, fit)
    dynamics = eq.Dynamics(10)
    tuning = eq.tune(moments, "sandwich", dynamics)
    cal = eq.calibrate(model, data, sampler="gaussian", draws=20)
    frame = pd.DataFrame({"y": data[1], "a": x[:, 1]})
    return SimpleNamespace(
        model=model, data=data, fit=fit, moments=moments, dynamics=dynamics, tuning=tuning, cal=cal, frame=frame,
        chains=cal.chains, law=tuning.predicted, columns={"x": x, "y": data[1]},
        general=eq.Model(lambda p, row: (row["y"] - row["x"] @ p) ** 2, np.zeros(3)),
    )  # fmt: skip


def right(name: str) -> tuple[Callable[..., object], dict[str, Any]]:
    """A callable, and arguments it takes."""
    t = things()
    pair, chain = {"model": t.model, "data": t.data}, {"moments": t.moments, "dynamics": t.dynamics}
    arrays = {"scores": np.ones((4, 3)), "hessians": np.ones((4, 3, 3))}
    owner, _, method = name.partition(".")
    of = {"Stationary": t.law, "Moments": t.moments, "Calibration": t.cal, "Plan": t.cal.plan}.get(owner)
    called = getattr(of, method) if of is not None else getattr(eq.data, method) if owner == "data" else None
    if called is None:
        called = getattr(getattr(eq, owner), method) if method else getattr(eq, owner)
    arguments: dict[str, dict[str, Any]] = {
        "bind": pair, "fit": pair, "plan": pair, "calibrate": {**pair, "progress": False},
        "subspace": {"model": t.general, "data": t.columns, "params": np.zeros(3), "rank": 2},
        "moments": {**pair, "params": t.fit}, "tune": {**chain, "target": "sandwich"},
        "stationary": {**chain, "step": 0.01}, "max_stable_step": chain,
        "sample": {**pair, "tuning": t.tuning, "draws": 5, "progress": False},
        "diagnose": {"chains": t.chains, "tuning": t.tuning},
        "robust": {**pair, "params": t.fit, "kind": "HAC"}, "compare_fits": {"fits": [t.cal, t.cal]},
        "sandwich": {"moments": t.moments}, "posterior": {"moments": t.moments}, "bayesbag": {"moments": t.moments},
        "expected_test_loss": {**pair, "fit": t.fit, "law": t.law},
        "optimal_weight_decay": {**pair, "test_data": t.data, "step": 0.01, "dynamics": t.dynamics},
        "optimal_batch_size": {**pair, "test_data": t.data, "step": 0.01, "dynamics": t.dynamics},
        "wasserstein_bound": {**pair, "fit": t.fit, "step": 0.01, "dynamics": t.dynamics},
        "coupled_distance": {**pair, "tuning": t.tuning, "steps": 100},
        "Dynamics": {"batch_size": 10}, "glm": {"family": "gaussian"},
        "data.rows": {"x": t.data[0], "y": t.data[1]}, "data.table": {"data": t.frame, "formula": "y ~ a"},
        "data.scan": {"source": pa.Table.from_pandas(t.frame), "formula": "y ~ a"},
        "Moments.from_arrays": arrays, "Moments.gradient_noise": {"S": np.eye(3), "dynamics": t.dynamics},
        "Tuning.at": {**chain, "step": 0.01}, "Stationary.burn_in": {"start": np.zeros(3)},
        "Stationary.covariance_floor": {"draws": 10},
        "Chains.from_draws": {"draws": np.arange(27.0).reshape(9, 3), "tuning": t.tuning},
        "Calibration.predict": {"X_new": t.data[0]}, "Calibration.report": {"path": "absent.html"},
        "Calibration.attach": pair, "Calibration.test": {"hypothesis": "x1 = 0"},
        "Calibration.combine": {"expressions": "x1 - x2"}, "Calibration.compare": {"frame_a": t.data[0], "frame_b": t.data[0]},
    }  # fmt: skip
    return called, dict(arguments.get(name, {}))


def refused(call: Callable[[], object], *words: str) -> str:
    """The call raises an error of the library's, short, with one of the words in it."""
    with pytest.raises(eq.EquipoiseError) as caught:
        call()
    message = str(caught.value)
    if isinstance(caught.value, eq.InvalidInput):
        assert re.match(r"\S.*?: must be \S.*; got .*\. To fix: \S", message, re.S), message
    assert len(message.splitlines()) <= 10
    assert len(message) <= 1000
    assert any(re.search(rf"\b{word}\b", message) for word in words), message
    return message


def test_the_table_has_every_public_name() -> None:
    kinds = {
        name for name in eq.__all__ if isinstance(getattr(eq, name), type) and issubclass(getattr(eq, name), Exception)
    }
    assert set(eq.__all__) == {name.split(".")[0] for name in TABLE} | kinds | RESULTS
    assert len(CASES) > 250


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_argument_is_named(case: Case) -> None:
    call, arguments = right(case.name)
    arguments[case.argument] = case.value
    refused(lambda: call(**arguments), case.argument, *ALIASES.get(case.argument, ()))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_misspelt_option_is_named_with_the_nearest(name: str) -> None:
    call, arguments = right(name)
    option = list(TABLE[name])[-1]
    misspelt = f"{option[:-1]}{option[-1] * 2}"
    arguments.pop(option, None)
    message = refused(lambda: call(**arguments, **{misspelt: 1}), misspelt)
    assert f"did you mean {option}?" in message


@pytest.mark.parametrize(("name", "here"), [("freq_weights", "frequency"), ("groups", "clusters")])
def test_the_name_of_an_option_elsewhere_leads_to_ours(name: str, here: str) -> None:
    call, arguments = right("calibrate")
    assert refused(lambda: call(**arguments, **{name: "w"}), name).endswith(f"did you mean {here}?")


@pytest.mark.parametrize(("name", "here"), [("binomial", "bernoulli"), ("logit", "bernoulli"), ("Poisson", "poisson")])
def test_the_name_of_a_family_elsewhere_leads_to_ours(name: str, here: str) -> None:
    assert refused(lambda: eq.glm(name), "family").endswith(f"did you mean {here}?")


@pytest.mark.parametrize(
    ("name", "here"), [("crv1", "CRV1"), ("clustered", "CRV1"), ("hc3", "HC3"), ("robust", "sandwich")]
)
def test_the_name_of_a_target_elsewhere_leads_to_ours(name: str, here: str) -> None:
    frame = pd.DataFrame({"y": np.arange(40) % 3, "clinic": np.arange(40) % 8})
    # nothing is said of clusters before there is such a target
    call = lambda: eq.plan(eq.glm("poisson"), frame, name, formula="y ~ 1", clusters="clinic")  # noqa: E731
    assert refused(call, "target").endswith(f"did you mean {here}?")


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in {"Huber", "Pinball", "StudentT"}])
def test_a_missing_argument_is_named(name: str) -> None:
    call, arguments = right(name)
    needed = next(iter(TABLE[name]))
    arguments.pop(needed, None)
    refused(lambda: call(**arguments), needed)


# what happens on an ordinary day, each with the words that help

EVERYDAY: dict[str, tuple[Callable[[SimpleNamespace], object], str]] = {
    "sparse X": (lambda t: eq.fit(t.model, (sparse.csr_matrix(t.data[0]), t.data[1])), r"X: .* pass X\.toarray\(\)"),
    "huge X": (lambda t: eq.fit(t.model, (t.data[0] * 1e200, t.data[1])), r"X: must be at most 1e\+100 in size"),
    "huge y": (lambda t: eq.fit(eq.glm("gaussian"), (t.data[0], t.data[1] * 1e200)), r"y: must be at most 1e\+100"),
    "columns named alike": (
        lambda t: eq.fit(t.model, (pd.DataFrame(t.data[0], columns=["a", "b", "b"]), t.data[1])),
        r"X: must be a table of distinct columns; got several named \['b'\]",
    ),
    "a mean without precision": (lambda t: eq.glm("poisson", prior_mean=1.0), r"prior_mean: .*add prior_precision"),
    "a class as divergence": (lambda t: eq.glm("gaussian", divergence=eq.Huber), r"divergence: must be a robust loss"),
    "chains of another dimension": (
        lambda t: eq.diagnose(replace(t.chains, draws=t.chains.draws[:, :, :2]), t.tuning),
        r"chains: must be of the tuning's 3 parameters; got 2 parameters",
    ),
    "a tuning of another family": (
        lambda t: eq.sample(eq.glm("gaussian", scale=1.0), t.data, t.tuning),
        r"tuning: must be made for this model's loss, gaussian; got poisson",
    ),
    "a tuning of another divergence": (
        lambda t: eq.sample(eq.glm("poisson", divergence=eq.Beta(1.2)), t.data, t.tuning),
        r"tuning: must be made for this model's loss, poisson, Beta\(b=1\.2\); got poisson",
    ),
    "refine without chains": (lambda t: gaussian(t, refine=True), r"refine: must be left out"),
    "storage without chains": (lambda t: gaussian(t, storage="float32"), r"storage: must be left out"),
    "checkpoint without chains": (lambda t: gaussian(t, checkpoint="run.ckpt"), r"checkpoint: must be left out"),
    "guard without chains": (lambda t: gaussian(t, guard=None), r"guard: must be left out"),
    "a problem and data": (lambda t: eq.bind(eq.bind(t.model, t.data), t.data), r"data: must be left out"),
    "a misspelt option": (lambda t: eq.calibrate(t.model, t.data, bacth_size=3), r"bacth_size: .*mean batch_size\?"),
    "a million chains": (lambda t: eq.plan(t.model, t.data, chains=10**6), r"chains: must be at most 10,000"),
    "more chains than memory": (lambda t: eq.sample(t.model, t.data, t.tuning, draws=10**15), r"draws: .* GB"),
    "draws beyond memory": (lambda t: eq.calibrate(t.model, t.data, ess=1e13), r"ess, draws: .* GB"),
    "independent draws beyond memory": (lambda t: gaussian(t, ess=1e13), r"ess, draws: .* GB"),
    "years of steps": (lambda t: eq.plan(t.model, t.data, draws=100, thin=10**12), r"thin, burn_in: .* hours of sampling"),
    "a table that lacks a column": (lambda t: formula_run().effects(t.frame[["y"]]), r"which it does not have"),
    "effects of words": (lambda t: formula_run().effects(t.frame.assign(a="b")), r"a: must be a column of numbers"),
    "effects of nothing": (lambda t: t.cal.effects(variables=[]), r"variables: must be columns of which at least one"),
    "effects of a number": (lambda t: t.cal.effects(variables=3), r"variables: must be columns of the model; got 3"),
    "two columns of three": (lambda t: t.cal.predict(t.data[0][:, :2]), r"X_new: .*got 2 columns"),
    "one offset for two": (lambda t: t.cal.compare(*[t.data[0]] * 2, offset=(None,)), r"offset: must be a pair"),
    "recentred in words": (lambda t: t.cal.intervals(recentred="yes"), r"recentred: must be True or False"),
    "one name for all": (lambda t: eq.compare_fits([t.cal], names="fit"), r"names: must be a list of names"),
    "a range in words": (lambda t: eq.optimal_weight_decay(t.model, t.data, t.data, 0.01, t.dynamics, low="a"), r"low: "),
    "a number as a path": (lambda t: eq.sample(t.model, t.data, t.tuning, checkpoint=3), r"checkpoint: must be the path"),
    "columns in a list": (lambda t: eq.data.observations(t.frame, columns=["a"]), r"columns: must be a mapping"),
    "frames that raise": (lambda t: eq.data.scan(lambda: 1 / 0, "y ~ a"), r"source: .*ZeroDivisionError"),
    "a function that raises": (lambda t: t.cal.evaluate(lambda p, o: o["q"], {"y": np.ones(3)}), r"function: .*'q'"),
    "years of burn-in": (lambda t: eq.sample(t.model, t.data, t.tuning, burn_in=10**15), r"burn_in: .* hours of sampling"),
}  # fmt: skip


@cache
def formula_run() -> eq.Calibration:
    """A run by a formula."""
    return eq.calibrate(eq.glm("gaussian"), things().frame, formula="y ~ a", ess=20, chains=1, progress=False)


def gaussian(t: SimpleNamespace, **options: Any) -> object:
    """Independent draws, for which chains have no options."""
    return eq.calibrate(t.model, t.data, sampler="gaussian", **options)


@pytest.mark.parametrize("name", EVERYDAY)
def test_an_ordinary_mistake_is_explained(name: str) -> None:
    call, pattern = EVERYDAY[name]
    with pytest.raises(eq.InvalidInput, match=pattern) as caught:
        call(things())
    assert len(str(caught.value)) <= 1000


def test_what_looks_wrong_and_is_not() -> None:
    t = things()
    np.testing.assert_array_equal(eq.moments(t.model, t.data, t.fit).hessian, t.moments.hessian)
    assert eq.Dynamics(10.0, replacement=np.bool_(False)) == eq.Dynamics(10, replacement=False)
    assert eq.data.rows(t.data[0], t.data[1], names=pd.Index(["a", "b", "c"])).names == ("a", "b", "c")
    assert eq.fit(eq.glm("poisson", prior_precision=1.0, prior_mean=0.5), t.data).converged
    assert eq.fit(t.model, (t.data[0] * 1e50, t.data[1]), seed=3.0).converged
