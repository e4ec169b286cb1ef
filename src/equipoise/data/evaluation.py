"""Formulas that were read, applied to tables by formulaic."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from equipoise.checks import shown
from equipoise.data.columns import Level
from equipoise.data.formula import functions_in_sight
from equipoise.data.grammar import UserFunction
from equipoise.data.stored import Learnt, thawed
from equipoise.data.wording import brief
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import Formula, ModelMatrices, ModelMatrix, ModelSpec

__all__ = ["as_numbers", "evaluated", "specified"]


def specified(
    side: Formula, transforms: Mapping[str, Mapping[str, Learnt]], categories: Mapping[str, tuple[Level, ...]]
) -> ModelSpec:
    """One side of a formula with what it learnt before, as formulaic takes it."""
    from formulaic import ModelSpec
    from formulaic.parser.types import Factor

    return ModelSpec(
        formula=side,
        output="pandas",
        transform_state={call: thawed(state) for call, state in transforms.items()},
        encoder_state={
            factor: (Factor.Kind.CATEGORICAL, {"categories": list(levels)}) for factor, levels in categories.items()
        },
    )


def evaluated(
    spec: ModelSpec | Formula, frame: pd.DataFrame, formula: str, context: Mapping[str, UserFunction]
) -> ModelMatrix | ModelMatrices:
    """Apply a formula that was read, or an encoder; values that a transform makes undefined are kept.

    Raises
    ------
    InvalidInput
        If formulaic cannot apply it to the table.
    """
    from formulaic.errors import DataMismatchWarning

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # formulaic would code a value outside of the levels as if it were the first level
            warnings.simplefilter("error", DataMismatchWarning)
            return spec.get_model_matrix(frame, context=functions_in_sight(context), na_action="ignore")
    except DataMismatchWarning as error:
        raise InvalidInput(
            "formula", "coded by levels that include every value of the table", _reason(formula, error),
            "add the levels, or recode or drop those rows",
        ) from error  # fmt: skip
    except Exception as error:
        raise InvalidInput(
            "formula", "applicable to the table", _reason(formula, error), "correct the formula or the table"
        ) from error


def _reason(formula: str, error: BaseException) -> str:
    return f"{shown(formula)}: {brief(error, 300)}"


def as_numbers(matrix: pd.DataFrame, formula: str) -> pd.DataFrame:
    """A design matrix as float64.

    Raises
    ------
    InvalidInput
        If a function of the user's made something else.
    """
    try:
        return matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "formula", "numeric in every term", _reason(formula, error), "correct the formula"
        ) from error
