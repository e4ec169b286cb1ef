"""Linear hypotheses and combinations in words: `"distance = 0, C(zone)[T.2] = C(zone)[T.3]"` as rows of a matrix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.checks import finite_array, nearest, shown
from equipoise.data.wording import brief
from equipoise.errors import InvalidInput

__all__ = ["Restrictions", "restrictions"]

_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[^\s+\-*/=,()]+")
_SIGNS = "+-*/=,()"
_DEEPEST = 50


@dataclass(frozen=True)
class Restrictions:
    """R θ = r: R (q, D), r (q,), and what each row says."""

    matrix: Array
    value: Array
    words: tuple[str, ...]


class _Token(NamedTuple):
    kind: str  # name, number, sign or end
    text: str
    at: int


class _Form(NamedTuple):
    """A linear form: coefficients of the parameters, and a number."""

    weights: Array
    number: float


def restrictions(given: object, names: Sequence[str], argument: str = "hypothesis") -> Restrictions:
    """Rows of a matrix from words, a list of them, a matrix, or a matrix with what its rows are to equal.

    Words are such as `"a = 0, 2*b - c = 1"`: parameters by name, numbers, `+ - * /`, brackets, commas between statements.
    `a = b = 0` is two; an expression without `=` is held against 0. Names are matched longest first; in backticks, any is
    taken as it is. An array is (q, D), a pair one of these and a vector (q,). `argument` is what to call it in a message.
    """
    if isinstance(given, str):
        given = [given]
    if isinstance(given, (list, tuple)) and given and all(isinstance(words, str) for words in given):
        parts = [_Reader(words, names, argument).statements() for words in given]
        rows = [row for part in parts for row in part]
        return Restrictions(
            np.array([form.weights for form, _ in rows]), np.array([-form.number for form, _ in rows]),
            tuple(words for _, words in rows),
        )  # fmt: skip
    matrix, value = given if isinstance(given, tuple) and len(given) == 2 else (given, 0.0)
    made = np.atleast_2d(finite_array(argument, matrix, "pass words such as 'a = b', or a matrix"))
    if made.ndim != 2 or made.shape[1] != len(names):
        raise InvalidInput(
            argument, f"words, or a matrix of {len(names)} columns, one per parameter", f"shape {made.shape}",
            "match it to the parameters",
        )  # fmt: skip
    equal = finite_array(argument, value)
    if equal.shape not in {(), (len(made),)}:
        raise InvalidInput(
            argument, f"equal to one number per row, ({len(made)},)", f"shape {equal.shape}", "match the two"
        )
    value = np.broadcast_to(equal, len(made)).astype(np.float64)
    return Restrictions(made, value, tuple(_written(row, names) for row in made))


def _written(row: Array, names: Sequence[str]) -> str:
    """A row of a matrix in words."""
    parts = [
        f"{'-' if w < 0 else '+'} {'' if abs(w) == 1 else f'{abs(w):g}*'}{n}"
        for w, n in zip(row, names, strict=True)
        if w
    ]
    return " ".join(parts).removeprefix("+ ") or "0"


class _Reader:
    """A statement after the other, by recursive descent."""

    def __init__(self, text: str, names: Sequence[str], argument: str) -> None:
        self.text, self.names, self.argument = text, list(names), argument
        self.tokens = self._tokens()
        self.place = 0

    def statements(self) -> list[tuple[_Form, str]]:
        """(left − right, its words) of every statement."""
        found: list[tuple[_Form, str]] = []
        while True:
            start = self._next.at
            sides = [self._sum(0)]
            places = [start]
            while self._took("="):
                places.append(self._next.at)
                sides.append(self._sum(0))
            ends = [*places[1:], self._next.at]
            words = [self.text[a:b].strip(" =\n\t") for a, b in zip(places, ends, strict=True)]
            if len(sides) == 1:
                found.append((sides[0], words[0]))
            found += [
                (_Form(left.weights - right.weights, left.number - right.number), f"{a} = {b}")
                for left, right, a, b in zip(sides, sides[1:], words, words[1:], strict=False)
            ]
            if not self._took(","):
                break
        if self._next.kind != "end":
            raise self._refused(f"{self._next.text!r} where a comma or the end should be")
        for form, words_of in found:
            if not form.weights.any():
                raise self._refused(f"{words_of!r}, in which no parameter is left")
        return found

    def _sum(self, depth: int) -> _Form:
        if depth > _DEEPEST:
            raise self._refused("brackets too deep")
        total = self._product(depth)
        while self._next.text in ("+", "-") and self._next.kind == "sign":
            sign = 1.0 if self._take().text == "+" else -1.0
            other = self._product(depth)
            total = _Form(total.weights + sign * other.weights, total.number + sign * other.number)
        return total

    def _product(self, depth: int) -> _Form:
        total = self._factor(depth)
        while self._next.text in ("*", "/") and self._next.kind == "sign":
            times, other = self._take().text == "*", self._factor(depth)
            if times and not other.weights.any():
                total = _Form(total.weights * other.number, total.number * other.number)
            elif times and not total.weights.any():
                total = _Form(other.weights * total.number, other.number * total.number)
            elif not times and not other.weights.any() and other.number != 0.0:
                total = _Form(total.weights / other.number, total.number / other.number)
            else:
                raise self._refused("a product or quotient of parameters, or a division by zero")
        return total

    def _factor(self, depth: int) -> _Form:
        token = self._take()
        if token.kind == "number":
            return _Form(np.zeros(len(self.names)), float(token.text))
        if token.kind == "name":
            return _Form(np.eye(len(self.names))[self.names.index(token.text)], 0.0)
        if token.text == "(":
            inside = self._sum(depth + 1)
            if not self._took(")"):
                raise self._refused("a bracket that is not closed")
            return inside
        if token.text in ("+", "-"):
            form = self._factor(depth + 1) if depth < _DEEPEST else self._sum(depth + 1)
            sign = 1.0 if token.text == "+" else -1.0
            return _Form(sign * form.weights, sign * form.number)
        raise self._refused("nothing where a parameter should be" if token.kind == "end" else f"{token.text!r} there")

    @property
    def _next(self) -> _Token:
        return self.tokens[self.place]

    def _take(self) -> _Token:
        token = self.tokens[self.place]
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def _took(self, sign: str) -> bool:
        taken = self._next.kind == "sign" and self._next.text == sign
        if taken:
            self._take()
        return taken

    def _tokens(self) -> list[_Token]:
        longest, found, at = sorted(self.names, key=len, reverse=True), [], 0
        while at < len(self.text):
            if self.text[at].isspace():
                at += 1
                continue
            token, at = self._token(at, longest)
            found.append(token)
        return [*found, _Token("end", "", len(self.text))]

    def _token(self, at: int, longest: Sequence[str]) -> tuple[_Token, int]:
        text = self.text
        quoted = re.compile("`([^`]*)`").match(text, at)
        if quoted is not None and quoted[1] in self.names:
            return _Token("name", quoted[1], at), quoted.end()
        name = next((n for n in longest if n and text.startswith(n, at) and self._ends(n, at)), None)
        number = _NUMBER.match(text, at)
        if name is not None and not _NUMBER.fullmatch(name):
            return _Token("name", name, at), at + len(name)
        if number is not None and self._ends(number[0], at):
            return _Token("number", number[0], at), number.end()
        if text[at] in _SIGNS:
            return _Token("sign", text[at], at), at + 1
        found = _WORD.match(text, at)
        word = text[at] if found is None else found[0]
        close = nearest(word, self.names)
        listed = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
        raise InvalidInput(
            self.argument, f"made of parameters ({brief(listed, 200)}), numbers and + - * / = ,", f"{brief(word, 60)!r}",
            close or "use the names as the table of coefficients shows them",
        )  # fmt: skip

    def _ends(self, word: str, at: int) -> bool:
        """Whether a word is over where it ends: x1 does not begin x10."""
        after = self.text[at + len(word) : at + len(word) + 1]
        return not (word[-1].isalnum() or word[-1] in "_.") or not (after.isalnum() or after in tuple("_."))

    def _refused(self, what: str) -> InvalidInput:
        return InvalidInput(
            self.argument, "linear in the parameters, such as 'a = 0, 2*b - c = 1'", f"{what} in {shown(self.text)}",
            "correct it, or pass a matrix",
        )  # fmt: skip
