"""Saving and loading a calibration whole: one file of arrays and a JSON header, no pickle, no rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Words
from equipoise.calibration.archive import read_archive, write_archive
from equipoise.calibration.calibration import Calibration
from equipoise.calibration.candidates import Candidate
from equipoise.calibration.fitstats import FitStatistics
from equipoise.calibration.planning import Plan
from equipoise.calibration.reads import Reads
from equipoise.calibration.rowfacts import RowFacts, Side
from equipoise.checks import checked_options
from equipoise.data.table import Design
from equipoise.engines.engine import ChainState
from equipoise.errors import InvalidInput
from equipoise.families.divergence import Beta
from equipoise.families.family import family_named
from equipoise.families.robust import Huber, Pinball, StudentT
from equipoise.fitting.certificate import Fit
from equipoise.models.covariance import Covariance
from equipoise.models.glm import GLM, Divergence
from equipoise.models.layout import FlatLayout, Skeleton
from equipoise.models.problem import Layout, Model
from equipoise.sampling.chains import Chains
from equipoise.sampling.halving import HalfStep
from equipoise.sampling.refinement import Pilot, Refinement
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.epochs import Reshuffled
from equipoise.theory.moments import Moments
from equipoise.theory.stationary import Stationary
from equipoise.theory.tuning import Tuning

__all__ = ["load", "save"]

_FORMAT = 3
# what a well-formed file raises that is not a run of this version
_UNFIT = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, StopIteration)
_FIT = ("gradient_norm", "converged", "iterations", "loss", "condition", "constant")
_MOMENTS = ("params", "loss_hessian", "hessian", "score_cov", "mean_score")
_LAW = ("cov", "gradient_noise", "score_noise", "mean_bias")
_RESULTS = ("worst_kurtosis", "skewness", "kurtosis")  # of the law; of these the last only where it was asked for
_MAY_BE_NAN = {"draws", "law.mean_bias", *(f"result.{name}" for name in _RESULTS)}
_STATE = ("position", "velocity", "rng", "shuffle")
_TUNING = ("residual", "proxy", "structure", "distance", "fidelity")
_PLAN = ("chains", "draws", "thin", "burn_in", "ess", "seconds", "sampler")
_TARGET = ("kind", "by", "groups", "lags", "repaired", "df")
_TOLD = ("n", "df_resid", "r_squared_kind", "words")  # of the fit's statistics; the others are numbers
_NUMBERS = tuple(f.name for f in fields(FitStatistics) if f.name not in _TOLD)
_HALF = ("mean", "sd", "skewness")
_CHAINS = ("names", "thin", "burn_in", "seed", "statistics", "independent", "group")
_DIVERGENCES: dict[str, Callable[..., Divergence]] = {kind.__name__: kind for kind in (Beta, Huber, Pinball, StudentT)}

T = TypeVar("T")
Header = dict[str, object]
Arrays = dict[str, NDArray[np.generic]]


def save(calibration: Calibration, path: Path) -> Path:
    """Write a calibration, whole or not at all; the rows of the data are not kept."""
    return write_archive(path, *_described(calibration))


@checked_options
def load(path: str | Path) -> Calibration:
    """Read a calibration written by `Calibration.save`, whole but for its rows: `attach` brings a problem back.

    The file may come from anywhere: nothing in it is run, and it is checked before it is believed.

    Raises
    ------
    InvalidInput
        If the file is missing, damaged, or not such a file.
    """
    header, stored = read_archive(path)
    try:
        if header.get("format") != _FORMAT:
            raise ValueError(f"format {header.get('format')!r} is not one this version reads")
        return _restored(header, stored)
    except _UNFIT as error:
        name = Path(path).name
        reason = f"{type(error).__name__}: {error}" if isinstance(error, (KeyError, TypeError)) else str(error)
        raise InvalidInput("path", "a file written by save()", f"{name}: {reason:.200}", "check the path") from error


def _described(cal: Calibration) -> tuple[Header, Arrays]:
    """All of a calibration as JSON and arrays."""
    plan, chains, tuning, law = cal.plan, cal.chains, cal.tuning, cal.tuning.predicted
    frame, parts = _layout_parts(chains.layout)
    model, prior = _model_parts(cal.model)
    facts = _worth_keeping(cal)
    # what diagnosis asks of a law and takes rows to answer, and what else was answered
    results = {"worst_kurtosis": law.worst_kurtosis, "skewness": law.skewness, **law.results}
    header: Header = {
        "format": _FORMAT,
        "model": model,
        "fit": _picked(plan.fit, _FIT),
        "moments": _picked(plan.moments, ("n", "noise_ratio", "names", "constant", "loss")),
        "dynamics": asdict(tuning.dynamics),
        "tuning": _picked(tuning, _TUNING),
        "plan": _picked(plan, _PLAN),
        "reads": None if plan.reads is None else asdict(plan.reads),
        "target": _picked(plan.target, _TARGET),
        "chains": _picked(chains, _CHAINS),
        "state": [{"step": state.step, "hits": state.hits} for state in chains.state],
        "layout": frame,
        "response": cal.response,
        "design": None if cal.design is None else cal.design.to_json(),
        "refinement": None if cal.refinement is None else asdict(cal.refinement),
        "candidates": [asdict(candidate) for candidate in plan.candidates],
        "rows": None if facts is None else _facts_header(facts),
        "half_step": None if cal.half_step is None else _picked(cal.half_step, ("ess", "rows")),
    }
    arrays = {
        "theta": plan.fit.theta,
        "draws": chains.draws,
        "step": tuning.step,
        "target": tuning.target,
        **{f"moments.{name}": getattr(plan.moments, name) for name in _MOMENTS},
        **{f"law.{name}": getattr(law, name) for name in _LAW},
        **({} if tuning.internal is None else {"internal": tuning.internal}),
        **({} if law.completion is None else {"law.completion": law.completion}),
        **{f"result.{name}": np.asarray(value) for name, value in results.items()},
        **({} if cal.half_step is None else {f"half.{name}": getattr(cal.half_step, name) for name in _HALF}),
        **({} if plan.fit.flat is None else {"flat": plan.fit.flat}),
        **{f"state.{k}.{f}": getattr(s, f) for k, s in enumerate(chains.state) for f in _STATE},
        **({} if facts is None else _facts_arrays(facts)),
        **parts,
        **prior,
    }
    return header, arrays


def _restored(header: Mapping[str, object], stored: Arrays) -> Calibration:
    _require_sizes(header, stored)
    layout = _layout(_member(header, "layout", dict), _member(header, "chains", dict)["names"], stored)
    about = _member(header, "moments", dict)
    arrays: Header = {name: _floats(stored, f"moments.{name}") for name in _MOMENTS}
    moments = Moments(**{**about, **arrays, "names": tuple(about["names"])})
    dynamics, words = Dynamics(**_member(header, "dynamics", dict)), _member(header, "tuning", dict)
    cov, gradient_noise, score_noise, bias = (_floats(stored, f"law.{name}") for name in _LAW)
    step = _floats(stored, "step")
    completion = _floats(stored, "law.completion") if "law.completion" in stored else None
    kind = Reshuffled if dynamics.batches == "epochs" else Stationary
    law = kind(cov, step, gradient_noise, score_noise, dynamics, words["proxy"], moments, bias, completion)
    results = {name: _floats(stored, f"result.{name}") for name in _RESULTS if f"result.{name}" in stored}
    law = law.with_results({name: float(value) if value.ndim == 0 else value for name, value in results.items()})
    internal = _floats(stored, "internal") if "internal" in stored else None
    tuning = Tuning(
        step=step, dynamics=dynamics, target=_floats(stored, "target"), predicted=law, internal=internal, **words
    )
    theta, flat = _floats(stored, "theta"), _floats(stored, "flat") if "flat" in stored else None
    fit = Fit(theta=theta, flat=flat, params=layout.unflatten(theta), **_member(header, "fit", dict))
    considered = tuple(Candidate(**words) for words in _member(header, "candidates", list))
    about = _member(header, "target", dict)
    target = Covariance(matrix=tuning.target, **{**about, "by": tuple(about["by"]), "groups": tuple(about["groups"])})
    plan = Plan(
        target=target, model=_model(header["model"], stored), fit=fit, moments=moments, tuning=tuning, candidates=considered,
        reads=None if header.get("reads") is None else Reads(**_member(header, "reads", dict)), **_member(header, "plan", dict),
    )  # fmt: skip
    about = _member(header, "chains", dict)
    chains = Chains(
        draws=_floats(stored, "draws"),
        layout=layout,
        state=_states(_member(header, "state", list), stored),
        **{**about, "names": tuple(about["names"])},
    )
    design, found = header["design"], None
    if header["refinement"] is not None:
        about = _member(header, "refinement", dict)
        found = Refinement(
            tuple(Pilot(**pilot) for pilot in _member(about, "pilots", list)), _member(about, "words", str)
        )
    return Calibration(
        plan,
        chains,
        _member(header, "response", str),
        None if design is None else Design.from_json(_member(header, "design", str)),
        found,
        None if header["half_step"] is None else _half_step(_member(header, "half_step", dict), stored),
        None if header.get("rows") is None else _facts(_member(header, "rows", dict), stored),
    )


def _require_sizes(header: Mapping[str, object], stored: Arrays) -> None:
    """Raise `ValueError` unless the arrays fit together: D parameters throughout, and matrices that are what they say."""
    dim, plan = _floats(stored, "theta").size, _member(header, "plan", dict)
    for name, shape in {"draws": (plan["chains"], plan["draws"], dim), **_shapes(dim, stored)}.items():
        if stored[name].shape != shape:
            raise ValueError(f"{name} has shape {stored[name].shape}, not {shape}")
        if name not in _MAY_BE_NAN and not np.isfinite(_floats(stored, name)).all():
            raise ValueError(f"{name} is not finite")
    for name in ("step", "target", "law.cov", "moments.hessian"):
        matrix = _floats(stored, name)
        if np.abs(matrix - matrix.T).max() > 1e-8 * np.abs(matrix).max() or np.linalg.eigvalsh(matrix)[0] <= 0.0:
            raise ValueError(f"{name} is not symmetric and positive definite")


def _shapes(dim: int, stored: Arrays) -> dict[str, tuple[int, ...]]:
    half = tuple(f"half.{name}" for name in _HALF if f"half.{name}" in stored)
    vectors = ("moments.params", "moments.mean_score", "law.mean_bias", *half)
    matrices = [name for name in stored if name.startswith(("moments.", "law.")) and name not in vectors]
    results = {f"result.{name}": () if name == "worst_kurtosis" else (dim,) for name in _RESULTS}
    errors = tuple(name for name in stored if name.startswith("rows.errors."))
    vectors = (*vectors, *errors, *(("rows.column_sd",) if "rows.column_sd" in stored else ()))
    own = ("step", "target", *(("internal",) if "internal" in stored else ()))
    kept = {name: shape for name, shape in results.items() if name in stored}
    return {**dict.fromkeys((*matrices, *own), (dim, dim)), **dict.fromkeys(vectors, (dim,)), **kept}


def _picked(thing: object, names: tuple[str, ...]) -> Header:
    return {name: getattr(thing, name) for name in names}


def _member(header: Mapping[str, object], name: str, kind: type[T]) -> T:
    value = header[name]
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _floats(stored: Arrays, name: str) -> Array:
    array = stored[name]
    if array.dtype != np.float64:
        raise ValueError(f"{name} is {array.dtype}, not float64")
    return cast(Array, array)


def _states(words: list[dict[str, int]], stored: Arrays) -> tuple[ChainState, ...]:
    return tuple(
        ChainState(
            _floats(stored, f"state.{k}.position"),
            _floats(stored, f"state.{k}.velocity"),
            cast(Words, stored[f"state.{k}.rng"]),
            counts["step"],
            counts["hits"],
            cast(Words, stored[f"state.{k}.shuffle"]),
        )
        for k, counts in enumerate(words)
    )


def _worth_keeping(cal: Calibration) -> RowFacts | None:
    """What the rows show, where that is known or they are in memory: a file is not read again for it."""
    problem = cal.plan.problem
    known = "row_facts" in vars(cal) or cal.kept is not None
    return cal.row_facts if known or (problem is not None and problem.source.in_memory) else None


def _facts_header(facts: RowFacts) -> Header:
    told = facts.statistics
    header = {**_picked(facts, ("rows", "dropped")), "errors": list(facts.errors)}
    return header | {"statistics": None if told is None else _picked(told, _TOLD)}


def _facts_arrays(facts: RowFacts) -> Arrays:
    told = facts.statistics
    return {
        "rows.response": np.array([facts.response_mean, facts.response_sd]),
        "rows.column_sd": facts.column_sd,
        **{f"rows.errors.{k}": error for k, error in enumerate(facts.errors.values())},
        **({} if facts.side is None else {"rows.side": np.stack(facts.side)}),
        **({} if told is None else {"rows.statistics": np.array([getattr(told, name) for name in _NUMBERS], float)}),
    }


def _facts(words: dict[str, Any], stored: Arrays) -> RowFacts:
    told = None
    if words["statistics"] is not None:
        numbers = zip(_NUMBERS, _floats(stored, "rows.statistics").tolist(), strict=True)
        told = FitStatistics(**_member(words, "statistics", dict), **dict(numbers))
    errors = {str(name): _floats(stored, f"rows.errors.{k}") for k, name in enumerate(_member(words, "errors", list))}
    side = Side(*_floats(stored, "rows.side")) if "rows.side" in stored else None
    mean, sd = _floats(stored, "rows.response").tolist()
    rows, dropped = (_member(words, name, int) for name in ("rows", "dropped"))
    return RowFacts(rows, dropped, mean, sd, _floats(stored, "rows.column_sd"), errors, side, told)


def _half_step(words: dict[str, float], stored: Arrays) -> HalfStep:
    mean, sd, skewness = (_floats(stored, f"half.{name}") for name in _HALF)
    return HalfStep(mean, sd, skewness, words["ess"], words["rows"])


def _layout_parts(layout: Layout) -> tuple[Header, Arrays]:
    """A layout in plain containers; constants and a subspace are arrays."""
    kept = layout.skeleton()
    if not isinstance(kept, Skeleton):
        return {"frame": None}, {}
    arrays: Arrays = {f"layout.{k}": _wide(array) for k, array in kept.constants.items()}
    if kept.origin is not None and kept.basis is not None:
        arrays |= {"layout.origin": kept.origin, "layout.basis": kept.basis}
    return {"frame": kept.frame, "trained": kept.trained, "constants": list(kept.constants)}, arrays


def _wide(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """An array in one of the few types that are kept."""
    wide = {"f": np.float64, "i": np.int64, "u": np.uint64, "b": np.bool_}[array.dtype.kind]
    return array.astype(wide)


def _layout(words: Mapping[str, object], names: list[str], stored: Arrays) -> Layout:
    if words["frame"] is None:
        return FlatLayout(tuple(names))
    trained = tuple((name, tuple(shape), number) for name, shape, number in _member(words, "trained", list))
    constants = {number: stored[f"layout.{number}"] for number in _member(words, "constants", list)}
    origin, basis = (stored.get(f"layout.{name}") for name in ("origin", "basis"))
    frame = _member(words, "frame", dict)
    return Skeleton(frame, trained, constants, cast(Array | None, origin), cast(Array | None, basis))


def _model_parts(model: Model | None) -> tuple[Header | None, Arrays]:
    """A GLM in words and its prior; a loss of the user's own cannot be kept without pickle."""
    if not isinstance(model, GLM):
        return None, {}
    robust = model.divergence
    words = None if robust is None else {"kind": type(robust).__name__, **vars(robust)}
    header: Header = {"family": model.family.name, "constant": model.constant, "divergence": words}
    header["estimated"] = model.estimated
    return header, {"prior_precision": model.prior_precision, "prior_mean": model.prior_mean}


def _model(header: object, stored: Arrays) -> GLM | None:
    if not isinstance(header, dict):
        return None
    words = dict(header["divergence"] or {})
    robust = _DIVERGENCES[words.pop("kind")](**words) if words else None
    prior = (_floats(stored, "prior_precision"), _floats(stored, "prior_mean"))
    return GLM(family_named(header["family"]), header["constant"], *prior, robust, bool(header["estimated"]))
