"""Formulas that were read, applied to tables by formulaic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.checks import shown
from equipoise.data.columns import Level
from equipoise.data.formula import UnknownLevels, functions_in_sight, require_levels
from equipoise.data.grammar import UserFunction, steadily
from equipoise.data.stored import Learnt, thawed
from equipoise.data.wording import brief
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import Formula, ModelMatrices, ModelMatrix, ModelSpec
    from formulaic.materializers import FormulaMaterializer

__all__ = ["as_numbers", "evaluated", "inapplicable", "specified"]


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
    """Apply a formula that was read, or an encoder, or say why formulaic cannot; what a transform makes undefined is kept."""
    try:
        with np.errstate(all="ignore"):
            make, seen = _materializer(), functions_in_sight(context)
            return steadily(lambda: make(frame, context=seen).get_model_matrix(spec, na_action="ignore"))
    except UnknownLevels as error:
        raise InvalidInput(
            "formula", "coded by levels that include every value of the table", _reason(formula, error),
            "add the levels, or recode or drop those rows",
        ) from error  # fmt: skip
    except Exception as error:
        raise inapplicable(formula, error) from error


def inapplicable(formula: str, error: object) -> InvalidInput:
    """The error for a formula that no rows can be made by."""
    return InvalidInput(
        "formula", "applicable to the table", _reason(formula, error), "correct the formula or the table"
    )


@cache
def _materializer() -> type[FormulaMaterializer]:
    """formulaic's own, which would code a value outside of the levels as if it were the first level, made to refuse it."""
    from formulaic.materializers import PandasMaterializer
    from interface_meta import override

    class Strict(PandasMaterializer):  # type: ignore[misc]  # formulaic has no types
        @override
        def _encode_categorical(
            self, values: Any, metadata: Any, encoder_state: dict[str, Any], spec: ModelSpec, drop_rows: Sequence[int],
            reduced_rank: bool = False,
        ) -> Any:  # fmt: skip
            require_levels(values, encoder_state.get("categories"))
            return super()._encode_categorical(values, metadata, encoder_state, spec, drop_rows, reduced_rank)

    return Strict


def _reason(formula: str, error: object) -> str:
    return f"{shown(formula)}: {brief(error, 300)}"


def as_numbers(matrix: pd.DataFrame, formula: str) -> pd.DataFrame:
    """A design matrix as float64; refused if a function of the user's made something else."""
    try:
        return matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "formula", "numeric in every term", _reason(formula, error), "correct the formula"
        ) from error
