"""What is written out in a call of a formula: numbers, flags, lists; read from the syntax tree, never evaluated."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from equipoise.data.grammar import LIMITS, Argument

__all__ = [
    "ARITHMETIC",
    "DESCRIBED",
    "constant",
    "depth",
    "is_flag",
    "is_written",
    "mentions",
    "quotes",
    "width",
]

ARITHMETIC: dict[type[ast.operator], Callable[[int | float, int | float], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_EXTRAPOLATIONS = ("raise", "clip", "na", "zero", "extend")

DESCRIBED: dict[str, str] = {
    "count": f"a whole number up to {LIMITS.count}",
    "degree": f"a whole number up to {LIMITS.degree}",
    "shift": f"a whole number up to {LIMITS.count}",
    "number": "a number",
    "numbers": "a list of numbers",
    "flag": "True or False",
    "flag or number": "True, False or a number",
    "word": f"one of {', '.join(_EXTRAPOLATIONS)}, in quotes",
    "literal": "text or a number",
    "literals": "a list of texts or numbers",
    "matrix": "a list of lists of numbers",
    "constraints": "'center' or a list of lists of numbers",
}


def mentions(node: ast.AST) -> bool:
    """Whether a column or a call occurs in an expression."""
    return any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(node))


def width(name: str, given: Mapping[str, ast.expr]) -> int:
    """How many columns a call makes, from its written arguments; at least that, and one where they do not say."""
    size = {"hashed": "levels", "poly": "degree", "bs": "df", "cr": "df", "cs": "df", "cc": "df"}.get(name, "")
    number = constant(given[size]) if size in given else None
    knots = given.get("knots")
    return max(1, int(number or 0), len(knots.elts) if isinstance(knots, (ast.List, ast.Tuple)) else 0)


def quotes(node: ast.AST) -> bool:
    """Whether this is a call of `Q`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Q"


def depth(node: ast.AST) -> int:
    """How deep a tree is, found without recursion."""
    depth, layer = 0, [node]
    while layer:
        depth, layer = depth + 1, [child for parent in layer for child in ast.iter_child_nodes(parent)]
    return depth


def is_flag(node: ast.expr) -> bool:
    """Whether this is True or False."""
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _is_list(node: ast.expr, check: Callable[[ast.expr], bool]) -> bool:
    return isinstance(node, (ast.List, ast.Tuple)) and bool(node.elts) and all(check(item) for item in node.elts)


def constant(node: ast.expr) -> int | float | None:
    """The value of arithmetic on written numbers, without powers; None for anything else, or what is too large."""
    value: int | float | None = None
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = number
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            inner = constant(operand)
            value = -inner if inner is not None and isinstance(sign, ast.USub) else inner
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            one, other = constant(left), constant(right)
            try:
                value = None if one is None or other is None else ARITHMETIC[type(op)](one, other)
            except (ArithmeticError, ValueError):
                value = None
    if isinstance(value, int):
        return value if abs(value) <= LIMITS.integer else None
    return value if value is not None and math.isfinite(value) else None


def is_written(kind: Argument, node: ast.expr, is_text: Callable[[ast.expr], bool]) -> bool:
    """Whether an argument that must be written out, not computed, is of its kind; `is_text` says what text is."""
    number = constant(node)
    match kind:
        case "count":
            return isinstance(number, int) and 0 <= number <= LIMITS.count
        case "degree":
            return isinstance(number, int) and 0 <= number <= LIMITS.degree
        case "shift":
            return isinstance(number, int) and abs(number) <= LIMITS.count
        case "number":
            return number is not None
        case "flag":
            return is_flag(node)
        case "flag or number":
            return is_flag(node) or number is not None
        case "word":
            return isinstance(node, ast.Constant) and node.value in _EXTRAPOLATIONS
        case "literal":
            return is_flag(node) or number is not None or is_text(node)
        case "literals":
            return _is_list(node, lambda item: is_written("literal", item, is_text))
        case "numbers":
            return _is_list(node, lambda item: constant(item) is not None)
        case "matrix":
            return _is_list(node, lambda item: is_written("numbers", item, is_text))
        case "constraints":
            return (isinstance(node, ast.Constant) and node.value == "center") or is_written("matrix", node, is_text)
    return False
