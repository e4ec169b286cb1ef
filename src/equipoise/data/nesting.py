"""Calls inside functions of calls: what each is given, block by block, and the blocks set aside for those inside others.

`poly(exp(scale(x)), 2)` learns from numbers that are known only once `scale(x)` has learnt from all rows. The columns of such
calls are set aside in the first pass, so that only the outermost ones take another.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from tempfile import gettempdir
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array
from equipoise.data.asked import Asked
from equipoise.data.calls import QUOTED, CallReader, Uses
from equipoise.data.frames import unsound_term
from equipoise.data.grammar import steadily
from equipoise.data.spill import Spill, free_disk
from equipoise.data.stored import Learnt, thawed
from equipoise.data.summaries import LEARNERS, WAITING, Spread, Summary, first_argument
from equipoise.data.wording import placed_in
from equipoise.errors import InvalidInput
from equipoise.linalg import fixed_order

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Aside", "Given", "States", "bare", "merged_states", "noted", "require_shallow", "rounds", "set_aside"]

States = dict[str, tuple[str, Summary]]
Known = Mapping[str, Mapping[str, Learnt]]

# What takes a column apart without learning from it: a call around one of these learns with it.
_SHIFTS = ("center", "scale", "standardize")
# Passes that a formula may take to learn: those for fits and moments are five at most.
_PASSES = 3
# Of the free space where temporary files go, the share that columns which are set aside may take.
_SHARE = 0.25


@dataclass(frozen=True)
class Given:
    """What the calls of a block are given: numbers of its rows, columns as expressions see them, and how often each counts."""

    index: pd.Index
    values: Mapping[str, pd.Series[Any]]
    times: Array

    def told(self, asked: Asked, factors: Iterable[str], known: Known) -> tuple[dict[str, object], States]:
        """The values of factors, and what their calls that have not learnt yet are given; refused where that is no number."""
        made, found = noted(asked, factors, self.values, self.times, known)
        for call, held in found.items():
            if held["unsound"].size:
                raise unsound_term(call, self.index[held["unsound"]])
        return made, {call: held["summary"] for call, held in found.items()}


@dataclass
class Aside:
    """What the calls of all blocks are given, kept from the first pass on; the parts of the data keep theirs apart.

    Nothing is `held` once the disk is full: how many rows there are, not every file tells.
    """

    asked: Asked
    factors: Mapping[str, tuple[str, ...]]
    held: Spill | None = field(default_factory=Spill)
    lock: Lock = field(default_factory=Lock)

    def add(self, part: int, label: str, given: Given) -> None:
        """Keep what a block of a part is given."""
        columns = sorted({name for names in self.factors.values() for name in names})
        kept = Given(given.index, {name: given.values[name] for name in columns}, given.times)
        with self.lock:
            try:
                if self.held is not None:
                    self.held.add(part, (label, kept))
            except InvalidInput:
                self.held = None

    def states(self, known: Known) -> States:
        """What calls are given that have not learnt yet: the same bits as by reading the rows again, if they are held."""
        parts, held = [], self.held or Spill()
        for part in held.numbers:
            blocks = []
            for label, given in held.look(part):
                with placed_in(label), fixed_order():
                    blocks.append(given.told(self.asked, self.factors, known)[1])
            parts.append(reduce(merged_states, blocks))
        return reduce(merged_states, parts, {})


def set_aside(asked: Asked, rows: int) -> Aside | None:
    """Where columns are kept, if calls lie deeper inside each other than two passes learn, and the disk has the room."""
    if rounds(asked) <= 2:
        return None
    factors = {}
    for factor, functions in asked.factors.items():
        if functions & LEARNERS.keys():
            uses = Uses()
            CallReader(str(asked.formula), asked.context, uses).read(factor)
            factors[factor] = tuple(uses.roles)
    # numbers of rows, how often they count, and the columns
    width = 2 + len({name for names in factors.values() for name in names})
    return Aside(asked, factors) if rows * width * 8 <= _SHARE * free_disk() else None


def require_shallow(asked: Asked, elsewhere: bool) -> None:
    """Raise where calls lie deeper inside each other than three passes learn, and what they are given is not set aside.

    It is not on a cluster, where rows stay, and where the disk has no room.
    """
    if (passes := rounds(asked)) > _PASSES:
        remedy = "leave executor= out" if elsewhere else f"free space in {gettempdir()}, or set TMPDIR"
        raise InvalidInput(
            "formula", f"one that is learnt in {_PASSES} passes {'with an executor' if elsewhere else 'on a full disk'}",
            f"calls of functions of calls that take {passes}", f"compute the innermost one as a column before; or {remedy}",
        )  # fmt: skip


def rounds(asked: Asked) -> int:
    """How often all rows are gone through until every call has learnt, and every level of what it makes was seen.

    Examples
    --------
    >>> def of(formula):
    ...     return rounds(Asked(formula, (), {}, (), None, "raise"))
    >>> of("y ~ x + g"), of("y ~ poly(scale(x), 2)"), of("y ~ poly(exp(scale(x)), 2)"), of("y ~ C(exp(center(x)) > 1)")
    (1, 1, 2, 2)
    """
    texts = (QUOTED.sub("x", factor) for factor in asked.factors)  # names in backticks are no Python
    return max([1, *(_depth(steadily(partial(ast.parse, text, mode="eval"))) for text in texts)])


def _depth(node: ast.AST) -> int:
    """How often the rows are gone through until the values of an expression are known."""
    inside = max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return inside
    if node.func.id == "C":
        return inside + 1
    if node.func.id not in LEARNERS:
        return inside
    first = node.args[0] if node.args else None
    moved = isinstance(first, ast.Call) and isinstance(first.func, ast.Name) and first.func.id in _SHIFTS
    return inside if moved else inside + 1


def merged_states(one: States, other: States) -> States:
    """What calls were given in both."""
    both = {**other, **one}
    for call in one.keys() & other.keys():
        both[call] = (one[call][0], one[call][1].merged(other[call][1]))  # type: ignore[arg-type]
    return both


def noted(
    asked: Asked,
    factors: Iterable[str],
    values: Mapping[str, pd.Series[Any]],
    weight: Array,
    known: Known,
) -> tuple[dict[str, object], dict[str, dict[str, Any]]]:
    """The values of factors, and what those of their calls are given that have not learnt yet."""
    state: dict[str, Any] = {call: thawed(numbers) for call, numbers in known.items()}
    functions = {name: _recorder(name, weight, state) for name in LEARNERS} | {"C": bare}
    made = {factor: asked.evaluated(factor, values, functions, state) for factor in factors}
    return made, {call: held for call, held in state.items() if "summary" in held}


def _recorder(name: str, times: Array, states: Mapping[str, dict[str, Any]]) -> Callable[..., Any]:
    """In place of a function that learns: it notes what it is given, unless it has learnt already."""
    from formulaic.transforms import TRANSFORMS
    from formulaic.utils.stateful_transforms import stateful_transform

    def note(data: Any, *arguments: Any, _state: dict[str, Any], **named: Any) -> Any:
        if "summary" in _state:
            return data
        if _state or named.get("raw") is True:
            return TRANSFORMS[name](data, *arguments, _state=_state, **named)
        call = next(text for text, held in states.items() if held is _state)
        if _waits(call, {text: held["summary"][1] for text, held in states.items() if "summary" in held}):
            _state |= {"unsound": np.zeros(0, np.intp), "summary": (name, WAITING)}
            return data
        x = np.asarray(data, dtype=np.float64)
        _state["unsound"] = np.flatnonzero(~np.isfinite(x))
        x = np.where(np.isfinite(x), x, 0.0) if _state["unsound"].size else x
        _state["summary"] = (name, LEARNERS[name](x, times, *arguments, **named))
        return data

    return stateful_transform(note)


def _waits(call: str, open_: Mapping[str, Summary]) -> bool:
    """Whether what a call is given is known only once calls inside it, which are open, have learnt."""
    inside = any(other != call and other in call for other in open_)
    return inside and not isinstance(open_.get(first_argument(call)), Spread)


def bare(data: object, *arguments: object, **named: object) -> object:
    """In place of `C`: the values themselves."""
    del arguments, named
    return data
