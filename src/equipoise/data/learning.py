"""What a formula learns from rows that are read block by block: levels, the numbers of its calls, and how many rows.

Each part of the data is read once. What is found in the parts is merged in their order, so that no bit of the result
depends on who read which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Index
from equipoise.data.asked import Asked
from equipoise.data.columns import Level, first_of_each, require_few, simplified
from equipoise.data.frames import compact, stacked
from equipoise.data.kept import Far, Lot
from equipoise.data.metering import Meter
from equipoise.data.nesting import Aside, Given, States, bare, merged_states, noted
from equipoise.data.numeric import LARGEST
from equipoise.data.parts import CSVPart, Part, numbered
from equipoise.data.sameness import Seen, both_seen, notices_changes, ordered_sum, rows_seen
from equipoise.data.spelling import Kinds, Spelling, both_kinds, both_spellings, kinds_beside, spellings
from equipoise.data.stored import Learnt, frozen, thawed
from equipoise.data.summaries import LEARNERS, learnt_by
from equipoise.data.wording import placed_in
from equipoise.linalg import fixed_order

if TYPE_CHECKING:
    import pandas as pd
    from formulaic.parser.types import Factor

__all__ = ["KEPT", "Learner", "Lessons", "enough_of", "settled"]

# Rows of the random sample that is kept of what is read: knots are placed by it, and searches start from it.
KEPT = 100_000
# What there is one of for each part.
_PER_PART = ("rows", "kept", "observations", "seen")


@dataclass(frozen=True)
class Lessons:
    """What was found in some parts, one after the other.

    Attributes
    ----------
    rows, kept, observations, dropped
        Rows that were read, that take part, what these stand for, and those left out for missing values; per part.
    holed, moderate
        The columns with missing values, and whether all are of numbers, finite and not absurdly large.
    witness, levels
        A few rows in which every level occurs, and for every column or factor its levels with their places there.
    states
        What each call was given so far, by its text, with the name of its function.
    ends
        The extremes of a response that is a number which its own row tells.
    lot, far
        A random sample of the rows, and those at the ends of columns.
    check, seen
        Sums over all values, as far as parts cannot tell them: one that tells places apart, and others per part.
    spelt
        Where columns of text files have their first numbers and words.
    kinds
        What clusters and times are, and where.
    """

    rows: tuple[int, ...]
    kept: tuple[int, ...]
    observations: tuple[int, ...]
    dropped: int
    holed: frozenset[str]
    moderate: bool
    witness: pd.DataFrame
    levels: dict[str, dict[Level, int]]
    states: States
    ends: tuple[float, float] | None
    lot: Lot
    far: Far
    check: int = 0
    seen: tuple[Seen, ...] = (Seen(),)
    spelt: Spelling = field(default_factory=dict)
    kinds: Kinds = field(default_factory=dict)

    def merged(self, other: Lessons, most: int) -> Lessons:
        """What was found in both; where there are no rows, there are no types either."""
        for some, none in ((self, other), (other, self)):
            if not sum(none.rows):
                return replace(some, **{name: getattr(self, name) + getattr(other, name) for name in _PER_PART})
        spelt = both_spellings(self.spelt, other.spelt)
        witness, levels = _joined_witness(self, other)
        ends = [end for end in (self.ends, other.ends) if end is not None]
        return Lessons(
            self.rows + other.rows,
            self.kept + other.kept,
            self.observations + other.observations,
            self.dropped + other.dropped,
            self.holed | other.holed,
            self.moderate and other.moderate,
            witness,
            levels,
            merged_states(self.states, other.states),
            (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None,
            self.lot.merged(other.lot, most),
            self.far.merged(other.far),
            self.check + other.check,
            self.seen + other.seen,
            spelt,
            both_kinds(self.kinds, other.kinds),
        )

    def within(self, other: Lessons, most: int) -> Lessons:
        """What was found in both, which are of one part."""
        both = self.merged(other, most)
        counts = {name: (sum(getattr(both, name)),) for name in ("rows", "kept", "observations")}
        return replace(both, seen=(both_seen(*both.seen),), **counts)  # type: ignore[arg-type]


def _joined_witness(first: Lessons, second: Lessons) -> tuple[pd.DataFrame, dict[str, dict[Level, int]]]:
    """Rows with every level of both, and where they are."""
    new: dict[int, int] = {}
    levels = {thing: dict(known) for thing, known in first.levels.items()}
    for thing, found in second.levels.items():
        known = levels.setdefault(thing, {})
        for level, place in found.items():
            if level not in known:
                known[level] = len(first.witness) + new.setdefault(place, len(new))
        require_few(thing, known)
    if not len(first.witness):
        return stacked([first.witness, second.witness]), second.levels
    if not new and first.witness.dtypes.equals(second.witness.dtypes):
        return first.witness, levels
    # also without new rows: categories and types are those of all
    return stacked([first.witness, second.witness.iloc[list(new)]]), levels


@dataclass(frozen=True)
class Learner:
    """Reads a part and finds what a formula learns from it.

    `known` are calls whose numbers were found before, `chunk` the rows to read at a time, `most` and `share` the rows of
    the sample and how likely a row is to be among them at most, `far` of which columns rows at the ends are kept, and how
    many, `seen` what a pass before saw of each part, `aside` where what calls are given is kept, if it is, and `meter` what
    counts the rows: that of a copy elsewhere is its own.
    """

    asked: Asked
    known: Mapping[str, Mapping[str, Learnt]]
    chunk: int
    most: int
    share: float
    far: Far
    seen: tuple[Seen, ...]
    aside: Aside | None = None
    meter: Meter = field(default_factory=Meter)

    def __call__(self, part: tuple[int, Part]) -> Lessons:
        """What is found in a part, which comes with its number."""
        number, where = part
        rng = np.random.default_rng([number, 0])
        found: Lessons | None = None
        limit = self.share
        for frame in numbered(where, self.asked.needed, self.chunk):
            # sums of what `center` and the like learn are those of any other process
            with placed_in(where.label), fixed_order():
                lessons = self._found(frame, part, rng, limit, found)
            self.meter.add(len(frame))
            found = lessons if found is None else found.within(lessons, self.most)
            if len(found.lot.priorities) == 1 and found.lot.size >= self.most:
                limit = min(limit, float(found.lot.priority.max()))
        if found is None:
            return _nothing(self.asked, self.far)
        return found

    def _found(
        self, frame: pd.DataFrame, part: tuple[int, Part], rng: np.random.Generator, limit: float, found: Lessons | None
    ) -> Lessons:
        """What is found in one block of a part, after what was found in those before."""
        number, where = part
        far, seen = (self.far, self.seen[number]) if found is None else (found.far.beyond, found.seen[0])
        moderate = all(_moderate(frame[name]) for name in frame.columns)
        taking = self.asked.taking(frame, complete=moderate)
        times, chosen = taking.times, taking.chosen
        count = len(chosen)
        kinds: Kinds = {}
        if count and self.asked.marks:
            marks = frame if count == len(frame) else frame.loc[chosen.index, self.asked.marks]
            kinds = kinds_beside(marks, self.asked, where.label)
        spelt = spellings(chosen, self.asked.roles, where.label) if isinstance(where, CSVPart) else {}
        watched = None if notices_changes(where) else seen
        hashes, seen = rows_seen(frame, self.asked.entering, words=where.identity is None, watched=watched)
        places = None if count == len(frame) else chosen.index.to_numpy() - frame.index[0]
        witness, levels, states = chosen.iloc[:0], dict[str, dict[Level, int]](), States()
        if count and self.asked.formula is not None:
            values, states = self._expressed(part, chosen, times)
            witness, levels = self._witness(chosen, values)
        elif count:
            witness = chosen.iloc[:1]
            for name in (n for n in chosen.columns if chosen[n].dtype.kind == "O"):  # which may hold anything
                simplified(str(name), chosen[name])
        return Lessons(
            (len(frame),),
            (count,),
            (count if times is None else int(times.sum()),),
            taking.dropped,
            # where no row is left out, nothing is missing
            frozenset(str(n) for n in frame.columns if frame[n].isna().any()) if count < len(frame) else frozenset(),
            moderate,
            witness.reset_index(drop=True),
            levels,
            states,
            self._ends(chosen) if count else None,
            self._drawn(frame, places, times, rng, limit),
            far.of(frame, places),
            ordered_sum(hashes, int(frame.index[0]), number),
            (seen,),
            spelt,
            kinds,
        )

    def _drawn(
        self, frame: pd.DataFrame, places: Index | None, times: Index | None, rng: np.random.Generator, limit: float
    ) -> Lot:
        """The observations whose random number is below the limit; each draws its own, also those that share a row.

        They are at some places of the table, or at all. Rows may stand for more than there is room for: of their observations
        only those are made that can be among those that are kept.
        """
        if times is None:
            priority = rng.random(len(frame) if places is None else places.size)
            index = np.flatnonzero(priority < limit)
            priority, index = priority[index], index if places is None else places[index]
        else:
            limit = min(limit, enough_of(self.most, int(times.sum())))
            index = np.repeat(np.arange(len(frame)) if places is None else places, rng.binomial(times, limit))
            priority = limit * rng.random(index.size)
        return Lot((priority,), (compact(frame.iloc[index], self.far.coded),))

    def _expressed(self, part: tuple[int, Part], chosen: pd.DataFrame, times: Index | None) -> tuple[Any, States]:
        """The values of factors that depend on the table, and what their calls are given in it."""
        if not self.asked.factors:
            return {}, {}
        weight = np.ones(len(chosen)) if times is None else times.astype(np.float64)
        given = Given(chosen.index, self.asked.values(chosen), weight)
        if self.aside is not None:
            self.aside.add(part[0], part[1].label, given)
        return given.told(self.asked, self.asked.factors, self.known)

    def _witness(
        self, chosen: pd.DataFrame, expressed: Mapping[str, Any]
    ) -> tuple[pd.DataFrame, dict[str, dict[Level, int]]]:
        """Rows in which every level of the block occurs."""
        import pandas as pd

        found = {name: first_of_each(name, chosen[name], roles) for name, roles in self.asked.roles.items()}
        for factor, value in expressed.items():
            role = frozenset({"coded" if "C" in self.asked.factors[factor] else "term"})
            if np.shape(value) == (len(chosen),):
                found[factor] = first_of_each(factor, pd.Series(value), role)
        places: dict[int, int] = {0: 0}
        levels = {
            thing: {level: places.setdefault(place, len(places)) for level, place in known.items()}
            for thing, known in found.items()
            if known is not None
        }
        return chosen.iloc[list(places)], levels

    def _ends(self, chosen: pd.DataFrame) -> tuple[float, float] | None:
        """The extremes of the response, where it is a number that its own row tells."""
        if self.asked.formula is None:
            return None
        factors = [factor for term in self.asked.parsed[0].lhs for factor in term.factors]
        if len(factors) != 1:
            return None
        values = self._plain(factors[0], chosen)
        return None if values is None else (float(values.min()), float(values.max()))

    def _plain(self, factor: Factor, chosen: pd.DataFrame) -> NDArray[Any] | None:
        """A factor's numbers; None where it learns from other rows, or makes no numbers, which encoding says better."""
        if factor.expr in self.asked.factors:
            return None
        if str(factor.eval_method.value) == "lookup":
            values = simplified(factor.expr, chosen[factor.expr]).to_numpy()
        else:
            try:
                values = np.asarray(self.asked.evaluated(factor.expr, self.asked.values(chosen), {}, {}))
            except Exception:  # whatever an expression of the user's may raise
                return None
        return values if values.ndim == 1 and values.dtype.kind in "biuf" else None


def _nothing(asked: Asked, far: Far) -> Lessons:
    """What is found where there are no rows."""
    import pandas as pd

    empty = pd.DataFrame({name: pd.Series(dtype=object) for name in asked.needed})
    return Lessons(
        (0,),
        (0,),
        (0,),
        0,
        frozenset(),
        True,
        empty[list(asked.roles)],
        {},
        {},
        None,
        Lot((np.zeros(0),), (empty,)),
        far,
    )


def _moderate(column: pd.Series[Any]) -> bool:
    """Whether all values are numbers, finite and not absurdly large: a sum of squares tells, nearly always."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "biuf":
        return False
    values = column.to_numpy()
    with np.errstate(over="ignore", invalid="ignore"), fixed_order():
        return values.dtype.kind != "f" or bool(float(values @ values) <= LARGEST**2)


def enough_of(most: int, total: int) -> float:
    """What at least `most` of so many random numbers are below, but for one case in a million; 1 where that is all."""
    return min(1.0, (most + 6.0 * np.sqrt(most) + 10.0) / total) if total else 1.0


def settled(
    asked: Asked, lessons: Lessons, known: Mapping[str, Mapping[str, Learnt]]
) -> tuple[dict[str, dict[str, Learnt]], bool]:
    """The numbers of the calls that could be found, knots from the sample among them; and whether that is all.

    A call around another one that only shifts and divides is found with it. For one that is around other expressions of a
    call, the data are read once more.
    """
    unknown = [call for call in lessons.states if call not in known]
    with np.errstate(all="ignore"):  # of a constant, which nothing divides by
        learnt = learnt_by({call: lessons.states[call] for call in unknown})
    state: dict[str, Any] = {call: thawed(numbers) for call, numbers in known.items()} | learnt
    if learnt:
        values = asked.values(asked.taking(lessons.lot.frame).chosen)
        for factor in asked.factors:
            asked.evaluated(factor, values, {"C": bare}, state)
    found = {call: frozen(lessons.states[call][0], state[call]) for call in learnt}
    # levels of an expression over numbers that were only found now have not been seen
    coded = [factor for factor, used in asked.factors.items() if "C" in used and used & LEARNERS.keys()]
    rows = lessons.witness
    seen = noted(asked, coded, asked.values(rows), np.ones(len(rows)), known)[1] if unknown else {}
    done = not unknown or (len(learnt) == len(unknown) and not seen)
    return {**{call: dict(numbers) for call, numbers in known.items()}, **found}, done
