"""What a scan is asked for: a formula or columns, what stands beside them, and what to do with missing values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from equipoise.data.calls import CallReader, Uses
from equipoise.data.columns import plain_values
from equipoise.data.evaluation import inapplicable
from equipoise.data.formula import Reading, functions_in_sight, parsed
from equipoise.data.grammar import UserFunction, steadily
from equipoise.data.marks import mark_columns
from equipoise.data.summaries import LEARNERS
from equipoise.data.taking import Taking, taking_part
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import Formula

__all__ = ["Asked"]


@dataclass(frozen=True)
class Asked:
    """What a scan is asked for; it travels to where the rows are.

    A formula, or columns as they are; those of weights, frequency, offset and trials `beside`, by these names; those that
    say which rows belong together and when they were observed; whether missing values are to `"raise"` or to `"drop"`
    rows; and functions that the formula may call.
    """

    formula: str | None
    columns: tuple[str, ...]
    beside: Mapping[str, str]
    clusters: tuple[str, ...]
    clock: str | None
    missing: str
    context: Mapping[str, UserFunction] = field(default_factory=dict)

    @cached_property
    def parsed(self) -> tuple[Formula, Reading]:
        """The formula's two sides, and what they use."""
        return parsed(self.formula, self.context)

    def __getstate__(self) -> dict[str, object]:
        # what was parsed is made anew where it is needed
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def roles(self) -> dict[str, frozenset[str]]:
        """The columns that enter and what they are used for."""
        if self.formula is None:
            return dict.fromkeys(self.columns, frozenset({"term"}))
        return self.parsed[1].roles

    @property
    def needed(self) -> list[str]:
        """Every column that is read, once."""
        return list(dict.fromkeys([*self.entering, *self.marks]))

    @property
    def entering(self) -> list[str]:
        """The columns that losses look at."""
        return list(dict.fromkeys([*self.roles, *self.beside.values()]))

    @property
    def marks(self) -> list[str]:
        """The columns that no loss looks at, each once."""
        return mark_columns(self)

    def taking(self, frame: pd.DataFrame, complete: bool = False) -> Taking:
        """The rows of a table that take part: all, of a complete one without weights."""
        import pandas as pd

        if complete and not self.beside:
            return Taking(frame[list(self.roles)], pd.DataFrame(index=frame.index), {}, 0)
        beside = pd.DataFrame(self.given(frame), index=frame.index)
        marks = {"marks": frame[self.marks]} if self.marks else {}
        return taking_part(frame[list(self.roles)], beside, marks, self.missing, self.beside)

    def given(self, frame: pd.DataFrame) -> dict[str, pd.Series]:
        """Weights, frequency, offset and trials of every row of a table, as far as asked for."""
        return {name: frame[column] for name, column in self.beside.items()}

    @cached_property
    def factors(self) -> dict[str, frozenset[str]]:
        """The factors whose values depend on the table, or are levels that no column has; with their functions."""
        if self.formula is None:
            return {}
        found = {}
        sides = self.parsed[0]
        for factor in (f for side in (sides.lhs, sides.rhs) for term in side for f in term.factors):
            if str(factor.eval_method.value) != "python":
                continue
            uses = Uses()
            CallReader(self.formula, self.context, uses).read(factor.expr)
            expressed = "C" in uses.functions and not any("coded" in roles for roles in uses.roles.values())
            if expressed or uses.functions & {*LEARNERS, *self.context}:
                found[factor.expr] = frozenset(uses.functions)
        return found

    @cached_property
    def terms(self) -> list[list[str]]:
        """The columns of every term on the right-hand side."""
        if self.formula is None:
            return []
        found = []
        for term in self.parsed[0].rhs:
            uses = Uses()
            for factor in term.factors:
                if str(factor.eval_method.value) == "lookup":
                    uses.column(factor.expr, "term")
                elif str(factor.eval_method.value) == "python":
                    CallReader(self.formula, self.context, uses).read(factor.expr)
            found.append(sorted(uses.roles))
        return found

    @cached_property
    def bare(self) -> set[str]:
        """The columns that are numbers if they can be: used as they are, as weights or as offset, and for nothing else."""
        if self.formula is None:
            return set()
        factors = [f for side in (self.parsed[0].lhs, self.parsed[0].rhs) for term in side for f in term.factors]
        uses = Uses()
        for factor in factors:
            if str(factor.eval_method.value) == "python":
                CallReader(self.formula, self.context, uses).read(factor.expr)
        given = {self.beside[name] for name in ("weights", "offset") if name in self.beside}
        plain = {f.expr for f in factors if str(f.eval_method.value) == "lookup"}
        return (given | plain) - set(uses.roles) - set(self.marks)

    @cached_property
    def rowwise(self) -> list[str]:
        """The expressions on the right-hand side whose values depend on their own row alone, once calls have learnt."""
        factors = (factor for term in self.parsed[0].rhs for factor in term.factors)
        python = [f.expr for f in factors if str(f.eval_method.value) == "python"]
        return [expression for expression in python if not self.factors.get(expression, set()) & {"C", *self.context}]

    def values(self, chosen: pd.DataFrame) -> dict[str, pd.Series]:
        """The columns as the formula's expressions see them."""
        return {name: plain_values(name, chosen[name], roles) for name, roles in self.roles.items()}

    def evaluated(
        self,
        expression: str,
        values: Mapping[str, pd.Series],
        functions: Mapping[str, UserFunction],
        state: dict[str, object],
    ) -> object:
        """The value of one factor, or why it has none; what its calls learn is put into `state`."""
        from formulaic import ModelSpec
        from formulaic.transforms import TRANSFORMS
        from formulaic.utils.layered_mapping import LayeredMapping
        from formulaic.utils.stateful_transforms import stateful_eval

        layers = {
            "data": values,
            "context": {**functions_in_sight(self.context), **functions},
            "transforms": TRANSFORMS,
        }
        env = LayeredMapping(*(LayeredMapping(layer, name=name) for name, layer in layers.items()))
        try:
            with np.errstate(all="ignore"):
                return steadily(lambda: stateful_eval(expression, env, {}, state, ModelSpec(formula=[])))
        except EquipoiseError:
            raise
        except Exception as error:  # whatever a function makes of columns that are not for it
            # in formulaic's words, as for a table in memory
            reason = f"Unable to evaluate factor `{expression}`. [{type(error).__name__}: {error}]"
            raise inapplicable(str(self.formula), reason) from error
