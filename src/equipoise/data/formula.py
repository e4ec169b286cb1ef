"""Formulas, read before they are run: columns, numbers, operators and known functions, and nothing else.

Formulaic evaluates parts of a formula as Python. So each formula, typed or stored, is first walked against an
allow-list (`equipoise.data.grammar`), and what formulaic then made of it is walked once more.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np

from equipoise.checks import shown
from equipoise.data.calls import CallReader, Uses, alike, refusal
from equipoise.data.columns import Column
from equipoise.data.grammar import LIMITS, SHIPPED, UserFunction
from equipoise.data.wording import brief
from equipoise.errors import InvalidInput
from equipoise.files import available_memory

if TYPE_CHECKING:
    from formulaic import Formula
    from formulaic.parser.types import Factor, Token

__all__ = ["Reading", "UnknownLevels", "functions_in_sight", "parsed", "read", "require_levels", "require_room"]

_NUMBER = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)
_SYMBOLS = re.compile(r"\*\*|[~+\-*/:^]")
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "in": 2, ":": 3, "**": 4, "^": 4}


@dataclass(frozen=True)
class Reading:
    """What a formula uses.

    Attributes
    ----------
    text
        The formula as given.
    response, predictors
        The columns left and right of the `~`, each with its roles: `term` (on its own), `coded` (inside `C()`),
        `hashed` (inside `hashed()`), `value` (in a computation).
    learns
        The calls on the right that learn numbers from the table, as formulaic writes them, with their function.
    functions
        The functions that are written, on either side.
    lags
        Whether rows see their predecessors.
    offsets
        The terms `offset(...)`, which are no columns of the design: known parts of the predictor.
    """

    text: str
    response: dict[str, frozenset[str]]
    predictors: dict[str, frozenset[str]]
    learns: dict[str, str]
    functions: frozenset[str]
    lags: bool
    offsets: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Every column of the formula, once."""
        return list(dict.fromkeys([*self.response, *self.predictors]))

    @property
    def roles(self) -> dict[str, frozenset[str]]:
        """What each column is used for, on both sides."""
        nothing = frozenset[str]()
        return {name: self.response.get(name, nothing) | self.predictors.get(name, nothing) for name in self.columns}


def functions_in_sight(context: Mapping[str, UserFunction]) -> dict[str, UserFunction]:
    """What an evaluated formula sees beside the table and formulaic's transforms."""
    from formulaic.materializers.types import FactorValues
    from formulaic.transforms import C

    def coded(data: object, *arguments: Any, **options: Any) -> object:
        import pandas as pd

        if len(pd.unique(np.asarray(data))) > LIMITS.levels:
            raise ValueError(f"C() of more than {LIMITS.levels} levels")
        made = C(data, *arguments, **options)
        encoder = made.__formulaic_metadata__.encoder

        def strict(values: object, *rest: Any, encoder_state: dict[str, Any], **named: Any) -> object:
            levels = options.get("levels")
            require_levels(values, encoder_state.get("categories") if levels is None else levels)
            return encoder(values, *rest, encoder_state=encoder_state, **named)

        return FactorValues(made, encoder=strict)

    return {**SHIPPED, "C": coded, **context}


class UnknownLevels(ValueError):
    """Values of a table that its levels, learnt or written out, do not include."""


def require_levels(values: object, levels: Iterable[object] | None) -> None:
    """Refuse values outside of the levels, if there are any yet.

    formulaic warns of them; what becomes of a warning is up to the whole process and not safe to change where threads read.
    """
    import pandas as pd

    outside = (
        set()
        if levels is None
        else set(pd.unique(pd.Series(getattr(values, "__wrapped__", values)))).difference(levels)
    )
    if outside:
        raise UnknownLevels(f"{outside} outside of the levels")


def read(text: object, context: Mapping[str, UserFunction]) -> Reading:
    """Check a formula and find the columns it uses, without evaluating any part of it.

    Raises
    ------
    InvalidInput
        If it is not a formula, is too large, or has anything beyond columns, numbers and known functions.
    """
    formula = _checked_text(text)
    tokens = _tokens(formula)
    tildes = [i for i, token in enumerate(tokens) if _kind(token) == "operator" and "~" in token.token]
    if not tildes:
        raise _no_response(formula)
    if len(tildes) > 1 or tokens[tildes[0]].token.count("~") > 1:
        raise refusal(formula, "more than one ~", "write the response before a single ~")
    left, right = Uses(), Uses()
    for uses, side in ((left, tokens[: tildes[0]]), (right, tokens[tildes[0] :])):
        for token in side:
            _read_token(token, formula, context, uses)
        _require_few_terms(side, formula)
    if not left.roles:
        raise _no_response(formula)
    if not {"name", "value", "python"} & {_kind(token) for token in tokens[tildes[0] + 1 :]}:
        raise _nothing_on_the_right(formula)
    _require_distinct(left, right, formula, context)
    return _reading(formula, left, right, frozenset(left.functions | right.functions))


def _reading(formula: str, left: Uses, right: Uses, written: frozenset[str]) -> Reading:
    lags = "lag" in left.functions | right.functions
    return Reading(formula, left.roles, right.roles, right.learns, written, lags)


def parsed(text: object, context: Mapping[str, UserFunction]) -> tuple[Formula, Reading]:
    """A formula by formulaic's parser, and what is left to use of it once terms were taken away; neither side is empty.

    The text is read before, and what formulaic made of it is read again: nothing unread is ever evaluated.
    """
    first = read(text, context)
    sides = _formulaic(first.text)
    left, right = Uses(), Uses()
    for terms, uses, known in ((sides.lhs, left, first.response), (sides.rhs, right, first.predictors)):
        for factor in (factor for term in terms for factor in term.factors):
            _read_factor(factor, first.text, context, uses)
        if set(uses.roles) - set(known):
            raise refusal(first.text, "something that reads in two ways", "write it more simply")
    if not left.roles:
        raise _no_response(first.text)
    offsets = _offsets(sides, first.text)
    if not [term for term in sides.rhs if str(term) not in offsets]:
        raise _nothing_on_the_right(first.text)
    return sides, replace(_reading(first.text, left, right, first.functions), offsets=offsets)


def _offsets(sides: Formula, formula: str) -> tuple[str, ...]:
    """The terms `offset(...)`, each of which must stand alone on the right."""
    found = []
    for side, terms in (("left", sides.lhs), ("right", sides.rhs)):
        for term in terms:
            known = [factor.expr for factor in term.factors if factor.expr.startswith("offset(")]
            if known and (side == "left" or len(term.factors) > 1):
                raise refusal(formula, "offset() in a product or in the response", "write + offset(...) on the right")
            found += known
    return tuple(found)


def _formulaic(text: str) -> Formula:
    # formulaic takes half a second to import: only tables pay for it
    from formulaic import Formula

    try:
        sides = Formula(text)
    except Exception as error:
        raise InvalidInput(
            "formula", "a valid formula such as 'y ~ x + C(group)'", shown(text), _reason(error)
        ) from error
    if not hasattr(sides, "lhs") or isinstance(sides.rhs, tuple):
        raise refusal(text, "parts beside a response and one right-hand side", "write y ~ x")
    return sides


def require_room(
    sides: Formula, reading: Reading, context: Mapping[str, UserFunction], known: Mapping[str, Column], rows: int
) -> None:
    """Raise, saying how many, if a formula would make more columns than a model or the memory can take, given their levels."""
    total = sum(
        math.prod(_width(factor, reading.text, context, known) for factor in term.factors) for term in sides.rhs
    )
    if total > LIMITS.columns:
        raise InvalidInput(
            "formula", f"one that makes at most {LIMITS.columns} columns", f"{shown(reading.text)}, which makes {total}",
            "cross fewer columns, or group their levels",
        )  # fmt: skip
    # the matrix, and what it is put together from
    needed, had = 2.0 * 8.0 * rows * total, available_memory()
    if needed > had:
        raise InvalidInput(
            "formula",
            f"one whose columns fit into the {had / 1e9:.1f} GB of memory at hand",
            f"{shown(reading.text)}, which makes {total:,} columns of {rows:,} rows, {needed / 1e9:.1f} GB",
            "group the levels of its widest factor, use hashed(x, levels=...), or read the rows with eq.data.scan",
        )


def _width(factor: Factor, formula: str, context: Mapping[str, UserFunction], known: Mapping[str, Column]) -> int:
    """How many columns a factor makes, at least."""
    method, uses = str(factor.eval_method.value), Uses()
    if method == "lookup":
        column = known[factor.expr]
        return len(column.levels or ()) if column.kind == "category" else 1
    if method == "literal":
        return 1
    CallReader(formula, context, uses).read(factor.expr)
    return uses.width * math.prod(len(known[n].levels or "1") for n, roles in uses.roles.items() if "coded" in roles)


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidInput("formula", "text such as 'y ~ x'", type(text).__name__, "pass a string")
    if len(text) > LIMITS.characters:
        raise InvalidInput(
            "formula", f"at most {LIMITS.characters} characters long", len(text), "use fewer or shorter column names"
        )
    odd = sorted({c for c in text if not c.isprintable() and c not in "\n\r\t"})
    if odd:
        raise refusal(text, f"the invisible character {odd[0]!r}", "retype the formula, or rename the column")
    if re.search(r"(?<!\w)__", normalize("NFKC", text)):
        raise refusal(text, "a name that begins with two underscores", "leave it out, or rename that column")
    for sign in ("{", "}", "\\", "'''", '"""', "_formulaic"):
        if sign in text:
            raise refusal(text, sign, "use columns, numbers and functions only; rename columns that contain it")
    depth = deepest = 0
    for character in re.sub("`[^`]*`", "", text):
        depth += (character in "([") - (character in ")]")
        deepest = max(deepest, depth)
    if deepest > LIMITS.brackets:
        raise refusal(text, f"brackets more than {LIMITS.brackets} deep", "write the formula with fewer brackets")
    return text


def _tokens(text: str) -> list[Token]:
    """The words of a formula, by the splitting that formulaic itself uses; it evaluates nothing."""
    from formulaic.errors import FormulaicError
    from formulaic.parser.algos.tokenize import tokenize

    try:
        return list(tokenize(text))
    except FormulaicError as error:
        raise InvalidInput(
            "formula", "a valid formula such as 'y ~ x + C(group)'", shown(text), _reason(error)
        ) from error


def _reason(error: Exception) -> str:
    # formulaic marks the place in colour on the lines that follow the first
    if str(error).startswith("Missing operator"):
        return "write + between columns, and names with a space in backticks"
    return brief(str(error).split("\n\n")[0], 200).rstrip(".") or "correct the formula"


def _kind(token: Token) -> str:
    return str(token.kind.value)


def _read_token(token: Token, formula: str, context: Mapping[str, UserFunction], uses: Uses) -> None:
    text = str(token.token)
    match _kind(token):
        case "operator":
            if "|" in text:
                raise InvalidInput(
                    "formula",
                    "one with a single right-hand side",
                    shown(formula),
                    "write + C(group) for | group, or leave it out and give clusters=",
                )
            if text != "in" and _SYMBOLS.sub("", text):
                raise refusal(formula, f"the sign {brief(text, 20)}", "use + - : * / ** and brackets between columns")
        case "context":
            if text in "[]":
                raise refusal(formula, text, "write round brackets")
        case "value":
            if text == ".":
                raise refusal(formula, "the sign .", "write the columns out, with + between them")
            if not _NUMBER.fullmatch(text):
                raise refusal(
                    formula, brief(text, 40), "write text only inside a function, as in C(x, contr.treatment('a'))"
                )
            uses.beside.add(text)
        case "name":
            uses.column(text, "term")
        case _:
            CallReader(formula, context, uses).read(text)


def _read_factor(factor: Factor, formula: str, context: Mapping[str, UserFunction], uses: Uses) -> None:
    """Check what formulaic is going to evaluate, whatever it made of the text."""
    method = str(factor.eval_method.value)
    if method == "python":
        CallReader(formula, context, uses).read(factor.expr)
    elif method == "lookup":
        uses.column(factor.expr, "term")
    elif not _NUMBER.fullmatch(factor.expr):
        raise refusal(formula, brief(factor.expr, 40), "write columns, numbers and functions")


def _no_response(formula: str) -> InvalidInput:
    return InvalidInput(
        "formula", "one with a response, such as 'y ~ x'", shown(formula), "write the response before a ~"
    )


def _nothing_on_the_right(formula: str) -> InvalidInput:
    return InvalidInput(
        "formula", "one with something on the right of the ~", shown(formula), "write y ~ 1 for an intercept only"
    )


def _require_few_terms(tokens: list[Token], formula: str) -> None:
    symbols: deque[str] = deque()
    for token in tokens:
        if _kind(token) == "operator" and token.token != "in":
            symbols.extend(s for s in _SYMBOLS.findall(token.token) if s != "~")
        else:
            symbols.append(token.token if _kind(token) in {"operator", "context", "value"} else "column")
    if _expansion(symbols, formula) > LIMITS.terms:
        raise refusal(formula, f"more than {LIMITS.terms} terms when written out", "cross fewer columns")


def _expansion(symbols: deque[str], formula: str, above: int = 0) -> int:
    """An upper bound on the number of terms, found before formulaic writes them out."""
    while symbols and symbols[0] in {"+", "-"}:
        symbols.popleft()
    if not symbols:
        return 0
    count = 1
    if symbols.popleft() == "(":
        count = _expansion(symbols, formula)
        if symbols and symbols[0] == ")":
            symbols.popleft()
    while symbols and _BINDING.get(symbols[0], 0) > above:
        sign = symbols.popleft()
        if sign in {"**", "^"}:
            power = symbols.popleft() if symbols else ""
            if not power.isdecimal() or int(power) > LIMITS.power or (symbols and symbols[0] in {"**", "^"}):
                raise refusal(
                    formula, f"a power other than a whole number up to {LIMITS.power}", "write I(x**2) for a square"
                )
            count **= int(power)
        else:
            other = _expansion(symbols, formula, _BINDING[sign])
            count = count + other if sign in {"+", "-"} else (count + 1) * (other + 1)
        count = min(count, LIMITS.terms + 1)
    return count


def _require_distinct(left: Uses, right: Uses, formula: str, context: Mapping[str, UserFunction]) -> None:
    """Refuse columns that would hide a function, or that formulaic could not tell apart inside one."""
    columns = {*left.roles, *right.roles}
    hidden = columns & {name.partition(".")[0] for name in left.functions | right.functions}
    if hidden:
        raise refusal(formula, f"{min(hidden)!r} as a column and as a function", "rename the column")
    for uses in (left, right):
        # formulaic takes terms that read alike for the same
        same = {name for name, roles in uses.roles.items() if "term" in roles} & uses.beside
        if same:
            raise refusal(formula, f"the column {min(same)[:40]!r}, which reads like another term", "rename the column")
    aliases = [*left.aliases.items(), *right.aliases.items()]
    for alias, quoted in aliases:
        if alias in {*columns, *context} or any(alias == other and quoted != name for other, name in aliases):
            raise alike(formula, quoted)
