"""Saving and loading a calibration: one zip file of arrays and a JSON header, no pickle."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.calibration.calibration import Calibration
from equipoise.calibration.planning import Plan
from equipoise.data.table import Design
from equipoise.errors import InvalidInput
from equipoise.families.divergence import Beta
from equipoise.families.family import FAMILIES
from equipoise.families.robust import Huber, Pinball, StudentT
from equipoise.fitting.fit import Fit
from equipoise.models.glm import GLM
from equipoise.sampling.refinement import Pilot, Refinement
from equipoise.sampling.run import Chains
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.moments import Moments
from equipoise.theory.stationary import Stationary
from equipoise.theory.tuning import Tuning

__all__ = ["load", "save"]

_FORMAT = 1
# what numpy, zipfile and zlib raise on a file that is damaged or of another kind
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_FIT = ("gradient_norm", "converged", "iterations", "loss", "condition", "constant")
_DIVERGENCES: dict[str, Any] = {kind.__name__: kind for kind in (Beta, Huber, Pinball, StudentT)}
_MOMENTS = ("params", "loss_hessian", "hessian", "score_cov", "mean_score")


def save(calibration: Calibration, path: Path) -> Path:
    """Write a calibration; the rows of the data are not kept."""
    plan, chains = calibration.plan, calibration.chains
    tuning, law = plan.tuning, plan.tuning.predicted
    header = {
        "format": _FORMAT,
        "model": _model_header(calibration.model),
        "fit": {k: getattr(plan.fit, k) for k in _FIT},
        "moments": {"n": plan.moments.n, "noise_ratio": plan.moments.noise_ratio},
        "dynamics": asdict(tuning.dynamics),
        "tuning": {k: getattr(tuning, k) for k in ("residual", "proxy", "structure", "distance")},
        "plan": {k: getattr(plan, k) for k in ("target_name", "chains", "draws", "thin", "burn_in", "ess", "seconds")},
        "chains": {k: getattr(chains, k) for k in ("names", "thin", "burn_in", "seed", "statistics", "variables")},
        "response": calibration.response,
        "design": _design_header(calibration.design),
        "refinement": None if calibration.refinement is None else asdict(calibration.refinement),
    }
    arrays = {
        **{f"moments.{name}": getattr(plan.moments, name) for name in _MOMENTS},
        **{f"law.{name}": getattr(law, name) for name in ("cov", "gradient_noise", "score_noise", "mean_bias")},
        "step": tuning.step,
        "target": tuning.target,
        **({} if tuning.internal is None else {"internal": tuning.internal}),
        "draws": chains.draws,
    }
    if isinstance(calibration.model, GLM):
        arrays |= {"prior_precision": calibration.model.prior_precision, "prior_mean": calibration.model.prior_mean}
    try:
        text = json.dumps(header)
    except TypeError as error:
        raise InvalidInput(
            "formula", "over text or numeric levels to be saved", str(error), "convert dates and objects to text first"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        np.savez_compressed(stream, header=np.array(text), **arrays)
    return path


def load(path: str | Path) -> Calibration:
    """Read a calibration written by `Calibration.save`.

    Raises
    ------
    InvalidInput
        If the file is missing or not such a file.
    """
    file = Path(path)
    try:
        # opened here because np.load leaves a file it cannot read open
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            header = json.loads(str(stored["header"]))
            if header["format"] != _FORMAT:
                raise ValueError(f"format {header['format']} is not one this version reads")
            return _restored(header, stored)
    except _UNREADABLE as error:
        raise InvalidInput("path", "a file written by save()", f"{file.name}: {error}", "check the path") from error


def _restored(header: dict[str, Any], stored: Any) -> Calibration:
    dynamics = Dynamics(**header["dynamics"])
    names = tuple(header["chains"]["names"])
    moments = Moments(
        **header["moments"],
        **{name: stored[f"moments.{name}"] for name in _MOMENTS},
        curvature=None,
        names=names,
    )
    law = Stationary(
        cov=stored["law.cov"],
        step=stored["step"],
        hessian=moments.hessian,
        gradient_noise=stored["law.gradient_noise"],
        score_noise=stored["law.score_noise"],
        bias=stored["law.mean_bias"],
        dynamics=dynamics,
        proxy=header["tuning"]["proxy"],
    )
    tuning = Tuning(
        step=stored["step"], dynamics=dynamics, target=stored["target"], predicted=law, center=moments.params,
        internal=stored.get("internal"), **header["tuning"],
    )  # fmt: skip
    plan = Plan(
        model=_model(header["model"], stored),
        fit=Fit(params=moments.params, **header["fit"]),
        moments=moments,
        tuning=tuning,
        **header["plan"],
    )
    variables = tuple((name, tuple(shape)) for name, shape in header["chains"]["variables"])
    chains = Chains(draws=stored["draws"], state=(), **{**header["chains"], "names": names, "variables": variables})
    design = header["design"]
    found = header["refinement"]
    return Calibration(
        plan,
        chains,
        header["response"],
        None if design is None else Design(spec=None, **design),
        None if found is None else Refinement(tuple(Pilot(**p) for p in found["pilots"]), found["words"]),
    )


def _model_header(model: Any) -> dict[str, Any] | None:
    """A GLM in words; a loss of the user's own cannot be kept without pickle."""
    if not isinstance(model, GLM):
        return None
    robust = model.divergence
    words = None if robust is None else {"kind": type(robust).__name__, **vars(robust)}
    return {"family": model.family.name, "constant": model.constant, "divergence": words}


def _model(header: dict[str, Any] | None, stored: Any) -> GLM | None:
    if header is None:
        return None
    words = dict(header["divergence"] or {})
    robust = _DIVERGENCES[words.pop("kind")](**words) if words else None
    prior = (stored["prior_precision"], stored["prior_mean"])
    return GLM(FAMILIES[header["family"]], header["constant"], *prior, robust)


def _design_header(design: Design | None) -> dict[str, Any] | None:
    if design is None:
        return None
    return {k: getattr(design, k) for k in ("formula", "template", "offset", "stateful")}
