"""From tables as they are read to blocks of rows, by an encoding that was frozen before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.cards import Card
from equipoise.data.arrays import Rows, shares
from equipoise.data.asked import Asked
from equipoise.data.columns import Column, column_values, learnt, level_codes, numbers
from equipoise.data.design import Design, learnt_encoding, without_offset
from equipoise.data.evaluation import as_numbers, evaluated, specified
from equipoise.data.formula import require_room
from equipoise.data.frames import require_finite, stacked
from equipoise.data.learning import Lessons
from equipoise.data.marks import Marking, Marks, labels_of, mark_columns, times_of
from equipoise.data.numeric import require_moderate
from equipoise.data.recipes import Inputs, Recipe, recipe_for
from equipoise.data.rowwise import require_rowwise
from equipoise.data.stored import Learnt, thawed
from equipoise.data.table import require_single, typed
from equipoise.data.wording import placed_in
from equipoise.errors import InvalidInput
from equipoise.linalg import Room, blocks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LazyRows", "RowEncoder", "as_in_memory", "lighter", "marks_of", "row_encoder"]

# Rows on which a quick way to the design matrix must give what the formula gives.
_TRIED = 1000
# Rows on which functions of the user's are compared with what they make of a part of them.
_COMPARED = 10_000
# Rows from which a pass gains more by compiled sums than it takes to load them: their columns are laid out for these.
_MANY = 1_000_000


_ROOM = Room()


@dataclass(frozen=True, repr=False)
class LazyRows(Card):
    """Rows whose design matrix is made block by block, while a pass has it in cache.

    `rows` are all but the matrix, recipe and inputs how it is made and what of; labels and place are for messages.
    `apart`: its columns lie one after the other; `sound`: its numbers are known to be in order.
    """

    rows: Rows
    recipe: Recipe
    inputs: Inputs
    labels: Index
    place: str
    apart: bool
    sound: bool

    @property
    def n(self) -> int:
        """Number of observations."""
        return self.rows.n

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.rows.height

    @property
    def counts(self) -> Array:
        """The frequency of every row, ones where there is none."""
        return self.rows.counts

    def take(self, index: Index | slice) -> Rows:
        """The rows at `index`, with their matrix."""
        return self._made(index, None)

    def blocks(self, width: int | None = None) -> Iterator[Rows]:
        """The rows in blocks."""
        return (self._made(block, None) for block in self._cuts(width))

    def passing(self, width: int | None = None) -> Iterator[Rows]:
        """The rows in blocks, each gone when the next is asked for."""
        dim = self.recipe.width
        return (self._made(cut, _ROOM.shaped((cut.stop - cut.start, dim), self.apart)) for cut in self._cuts(width))

    def _cuts(self, width: int | None) -> Iterator[slice]:
        return blocks(self.height, max(self.recipe.width, width or 0))

    def _made(self, index: Index | slice, out: Array | None) -> Rows:
        x = self.recipe.matrix(self.inputs.take(index), out)
        if not self.sound:
            with placed_in(self.place):
                _require_columns(self.rows.names, x, self.labels[index])
        return replace(self.rows.take(index), x=x)


def _beside(name: str, values: pd.Series[Any]) -> Array:
    """A column that was found to be of finite numbers, as it was then; only spans of time and the like have to be looked at."""
    return values.to_numpy(np.float64) if values.dtype.kind in "biuf" else numbers(name, values)


def _require_columns(names: tuple[str, ...], x: Array, labels: Index) -> None:
    """Raise unless all numbers of a design matrix are finite and not absurdly large, naming the column and row."""
    try:
        require_moderate("X", x, labels)
    except InvalidInput:
        for name, column in zip(names, x.T, strict=True):
            require_moderate(name, column, labels)
        raise


@dataclass(frozen=True)
class RowEncoder:
    """Makes rows of a regression of a table.

    Attributes
    ----------
    asked
        What is read, and which rows take part.
    design
        The frozen encoding of the right-hand side.
    response, left
        What the columns of the response are, and what calls left of the `~` learnt.
    label
        The response's name.
    whole
        Whether every row takes part, so that none has to be looked at for that.
    recipe
        A quick way to the design matrix, or None where only the formula gives it.
    many, sound
        Whether there are so many rows that compiled sums gain, and whether all numbers were found to be in order in files
        that cannot have changed.
    clusters, clock
        The columns that blocks carry beside: what rows belong together by, and when they were observed.
    """

    asked: Asked
    design: Design
    response: Mapping[str, Column]
    left: Mapping[str, Mapping[str, Learnt]]
    label: str
    whole: bool
    recipe: Recipe | None
    many: bool
    sound: bool
    clusters: tuple[str, ...] = ()
    clock: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys([*self.asked.needed, *mark_columns(self)]))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns it makes."""
        return self.design.names

    @property
    def width(self) -> int:
        """Numbers of each row, as read or as made, whichever are more."""
        return max(len(self.columns), len(self.names)) + 1

    def __call__(self, frame: pd.DataFrame, place: str) -> Rows | LazyRows:
        """The rows of a table that take part; where there is a recipe, their matrix is made when it is asked for.

        `place` is where the table is from, for messages.
        """
        with placed_in(place):
            return self._encoded(frame, place)

    def _encoded(self, frame: pd.DataFrame, place: str) -> Rows | LazyRows:
        if self.whole:
            chosen = frame
            given = {name: _beside(name, values) for name, values in self.asked.given(frame).items()}
        else:
            taking = self.asked.taking(frame)
            chosen, given = taking.chosen, taking.numbers
        height, index = len(chosen), chosen.index.to_numpy()
        made = Rows(
            x=np.empty((height, 0)),
            y=self._y(chosen) if height else np.empty(0),
            weights=given.get("weights"),
            offset=given.get("offset"),
            names=self.names,
            response=self.label,
            design=self.design,
            frequency=given.get("frequency"),
            marks=marks_of(self, frame, chosen.index),
        )
        if height and "trials" in given:
            made = shares(made, given["trials"], index)
        lazy = self.recipe is not None and height > 0
        made = made if lazy else self._with_matrix(made, chosen)
        for name, array in ((self.label, made.y), ("offset", made.offset)):
            if array is not None and height:
                require_moderate(name, array, index)
        if self.recipe is None or not lazy:
            return made
        inputs = self.recipe.inputs(chosen, self.design.columns, partial(_evaluated, self.asked, self.design))
        return LazyRows(made, self.recipe, inputs, index, place, self.many, self.sound and self.recipe.plain)

    def _with_matrix(self, made: Rows, chosen: pd.DataFrame) -> Rows:
        """The rows with their design matrix by the formula, whose offsets are no columns of it."""
        sides, reading = self.asked.parsed
        if not made.height:
            return replace(made, x=np.empty((0, len(self.names))))
        matrix = self.design.matrix(sides, chosen)
        require_finite(matrix)
        matrix, shift = without_offset(matrix, reading.offsets)
        x = np.ascontiguousarray(matrix.to_numpy())
        _require_columns(self.names, x, chosen.index.to_numpy())
        offset = made.offset if shift is None else shift + (0.0 if made.offset is None else made.offset)
        return replace(made, x=x, offset=offset)

    def _y(self, chosen: pd.DataFrame) -> Array:
        """The response."""
        import pandas as pd

        sides, reading = self.asked.parsed
        factors = [factor for term in sides.lhs for factor in term.factors]
        if len(factors) == 1 and factors[0].expr in self.response:
            name = factors[0].expr
            column = self.response[name]
            if column.kind == "category":
                return level_codes(name, chosen[name], column).astype(np.float64)
            if column.kind != "text":
                return column_values(name, chosen[name], column).to_numpy(np.float64)
        values = {name: column_values(name, chosen[name], column) for name, column in self.response.items()}
        frame = pd.DataFrame(values, index=chosen.index)
        made = as_numbers(
            evaluated(specified(sides.lhs, self.left, {}), frame, reading.text, self.asked.context), reading.text
        )
        require_finite(made)
        return np.ascontiguousarray(made.to_numpy()[:, 0])


def marks_of(encoder: Marking, frame: pd.DataFrame, kept: pd.Index[Any]) -> Marks | None:
    """What goes beside some rows of a table; labels depend on their values alone, and are the same in every block."""
    if not mark_columns(encoder):
        return None
    frame = frame if len(kept) == len(frame) else frame.loc[kept, mark_columns(encoder)]
    labels = [labels_of(frame[name], name) for name in encoder.clusters]
    return Marks(
        encoder.clusters,
        np.column_stack(labels) if labels else np.zeros((len(frame), 0), dtype=np.int64),
        None if encoder.clock is None else times_of(frame[encoder.clock], encoder.clock),
        encoder.clock or "time",
    )


def row_encoder(asked: Asked, lessons: Lessons, transforms: Mapping[str, dict[str, Learnt]], told: bool) -> RowEncoder:
    """Freeze the encoding of a formula, given what was found in all of the data; files tell if they change, or do not.

    The rows in which every level occurs are encoded as a table in memory is, with what the calls learnt from all rows.
    """
    import pandas as pd

    sides, reading = asked.parsed
    witness = as_in_memory(lessons.witness, lessons)
    if asked.context and lessons.lot.size:
        some = as_in_memory(lessons.lot.fewer(_COMPARED).frame, lessons)
        require_rowwise(asked, asked.taking(some).chosen, transforms)
    values, known, response_levels = typed(witness, reading)
    # of a chunk, however many rows there are
    require_room(sides, reading, asked.context, known, 1)
    left = {call: state for call, state in transforms.items() if call not in reading.learns}
    right = {call: transforms[call] for call in reading.learns}
    lhs = evaluated(specified(sides.lhs, left, {}), values, reading.text, asked.context)
    rhs = evaluated(specified(sides.rhs, right, {}), values, reading.text, asked.context)
    response = as_numbers(lhs, reading.text)
    require_single(response, reading)
    design = Design(
        formula=reading.text,
        columns=known,
        **learnt_encoding(reading, rhs.model_spec),
        offset=asked.beside.get("offset"),
        dropped=lessons.dropped,
        response_levels=response_levels,
        context={name: function for name, function in asked.context.items() if name in reading.functions},
    )
    tried = asked.taking(as_in_memory(lessons.lot.frame.iloc[:_TRIED], lessons)).chosen
    tried = stacked([witness, tried.reset_index(drop=True)]) if len(tried) else witness
    encoder = RowEncoder(
        asked=lighter(asked, lessons),
        design=design,
        response={n: known.get(n) or learnt(n, witness[n], roles) for n, roles in reading.response.items()},
        left=left,
        label=str(response.columns[0]),
        whole=sum(lessons.kept) == sum(lessons.rows),
        recipe=None,
        many=sum(lessons.kept) >= _MANY,
        sound=lessons.moderate and told,
    )
    recipe = None if reading.offsets else recipe_for(design, asked.rowwise)
    if recipe is None:
        return encoder
    expected = design.matrix(sides, pd.DataFrame({name: tried[name] for name in known})).to_numpy()
    try:
        same = np.array_equal(recipe.matrix(recipe.inputs(tried, known, partial(_evaluated, asked, design))), expected)
    except (InvalidInput, LookupError, TypeError, ValueError):
        return encoder  # an expression that is no number, or not of every row
    return replace(encoder, recipe=recipe) if same else encoder


def _evaluated(asked: Asked, design: Design, expression: str, values: Mapping[str, Any]) -> Any:
    return asked.evaluated(expression, values, {}, {call: thawed(held) for call, held in design.transforms.items()})


def lighter(asked: Asked, lessons: Lessons) -> Asked:
    """Without the columns that no loss looks at, but for those whose missing values leave rows out."""
    clock = asked.clock if asked.clock in lessons.holed else None
    return replace(asked, clusters=tuple(name for name in asked.clusters if name in lessons.holed), clock=clock)


def as_in_memory(frame: pd.DataFrame, lessons: Lessons) -> pd.DataFrame:
    """Whole numbers of a column with missing values elsewhere are floats, as in memory, where these do not round them."""
    changed = {str(n): np.float64 for n in frame.columns if n in lessons.holed and _turned_to_floats(frame[n])}
    return frame.astype(changed) if changed else frame


def _turned_to_floats(column: pd.Series[Any]) -> bool:
    """Whether pandas has these numbers as floats once some of them are missing, and they stay what they are."""
    whole = isinstance(column.dtype, np.dtype) and column.dtype.kind in "iu" and len(column) > 0
    return whole and max(-int(column.min()), int(column.max())) <= 2**53
