"""How objects show themselves: one line on a terminal, a small table in a notebook, and never a dump of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from html import escape
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["Card", "html_table"]

_SHOWN = 6  # numbers of an array, or names, that are shown one by one
_LONGEST = 60  # characters of one fact
_CELL = ' style="text-align:left;vertical-align:top"'
_NUMBER = ' style="text-align:right;vertical-align:top"'
_DIGITS = frozenset("0123456789+-−<([")  # what a cell of numbers begins with


class Card:
    """Shows itself by a few facts: by default its fields, arrays by their shape.

    A dataclass keeps this `repr` when it is made with `repr=False`.
    """

    def _facts(self) -> Mapping[str, object]:
        """What is told of it, by name; what is empty is left out."""
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self)) if f.repr}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={told}' for name, told in self._told())})"

    def _repr_html_(self) -> str:
        return html_table((), (list(pair) for pair in self._told()), type(self).__name__)

    def _told(self) -> list[tuple[str, str]]:
        """The facts in words, without those that are empty."""
        facts = self._facts().items()
        return [(name, told_briefly(value)) for name, value in facts if not _empty(value)]


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, (tuple, Mapping)) and not value)


def told_briefly(value: object) -> str:
    """A value in a few characters."""
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, (bool, str)):
        words = str(value)
    elif isinstance(value, (int, np.integer)):
        words = f"{value:,}"
    elif isinstance(value, (float, np.floating)):
        words = f"{value:.6g}"
    elif isinstance(value, Card):
        words = type(value).__name__
    elif isinstance(value, (tuple, list)):
        words = _several(value)
    elif isinstance(value, Mapping):
        words = _several(list(value))
    elif callable(value):
        words = getattr(value, "__name__", type(value).__name__)
    else:
        words = " ".join(repr(value).split())
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."


def _array(values: NDArray[np.generic]) -> str:
    if values.ndim == 0:
        return told_briefly(values.item())
    if values.ndim > 1 or values.size > _SHOWN:
        size = " x ".join(f"{side:,}" for side in values.shape)
        return f"array of {size}"
    return f"[{', '.join(told_briefly(value) for value in values.tolist())}]"


def _several(values: tuple[object, ...] | list[object]) -> str:
    """The first few, as many as there is room for, and how many there are beside."""
    kept: list[str] = []
    room = _LONGEST - len("[ and 1,000 more]")
    for value in values[:_SHOWN]:
        words = told_briefly(value)
        room -= len(words) + 2
        if kept and room < 0:
            break
        kept.append(words)
    more = len(values) - len(kept)
    return f"[{', '.join(kept)}{f' and {more:,} more' if more else ''}]"


def _cell(text: str) -> str:
    return f"<td{_NUMBER if text[:1] in _DIGITS else _CELL}>{escape(text)}</td>"


def html_table(heads: Iterable[str], rows: Iterable[list[str]], caption: str) -> str:
    """A table for a notebook; the first cell of a row is its heading. All are text."""
    top = "".join(f'<th scope="col"{_CELL}>{escape(head)}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row"{_CELL}>{escape(first)}</th>{"".join(map(_cell, rest))}</tr>' for first, *rest in rows
    )
    head = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f"<table><caption{_CELL}><b>{escape(caption)}</b></caption>{head}<tbody>{body}</tbody></table>"
