"""Calls inside a formula: their syntax tree walked against the allow-list, without evaluating it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from unicodedata import normalize

from equipoise.checks import shown
from equipoise.data.grammar import CONTRASTS, FUNCTIONS, LIMITS, MOMENTS, Argument, Function, UserFunction, steadily
from equipoise.data.wording import brief
from equipoise.data.written import ARITHMETIC, DESCRIBED, constant, depth, is_flag, is_written, mentions, quotes, width
from equipoise.errors import InvalidInput

__all__ = ["QUOTED", "CallReader", "Uses", "alike", "refusal"]

_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_REMEDY = "use columns, numbers, + - * / **, comparisons and the functions of eq.data.table"


def refusal(formula: str, what: str, remedy: str) -> InvalidInput:
    """The error for something a formula may not contain."""
    return InvalidInput(
        "formula", "made of columns, numbers, operators and known functions", f"{what} in {shown(formula)}", remedy
    )


def alike(formula: str, name: str) -> InvalidInput:
    """The error for columns that formulaic could not tell apart inside functions."""
    return refusal(formula, f"columns too alike inside a function, such as `{brief(name, 40)}`", "rename one of them")


@dataclass
class Uses:
    """What was found so far on one side of a formula; `beside` are the terms that are not columns, as written.

    `width` is how many columns the last call makes, as far as its text says.
    """

    roles: dict[str, frozenset[str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    beside: set[str] = field(default_factory=lambda: {"1"})
    learns: dict[str, str] = field(default_factory=dict)
    mentions: int = 0
    width: int = 1

    def column(self, name: str, role: str) -> None:
        """Note that a column is used."""
        self.roles[name] = self.roles.get(name, frozenset()) | {role}
        self.mentions += 1


@dataclass
class CallReader:
    """Reads one call of a formula.

    `aliases` are its backticked columns by the names formulaic gives them, `learns` whether it learns from the table.
    """

    formula: str
    context: Mapping[str, UserFunction]
    uses: Uses
    aliases: dict[str, str] = field(default_factory=dict)
    learns: bool = False

    def read(self, source: str) -> None:
        """Check one call, such as `C(x, contr.sum)`, and note what it uses."""
        # Python changes the letters of names, never those of what stands in quotes
        names = QUOTED.sub(lambda match: match[0] if match[0][0] == "`" else "''", source)
        if normalize("NFKC", names) != names:
            raise self._refused(source, "spell names without letters that Python reads as others, or rename columns")
        node = self._tree(source)
        if not isinstance(node, ast.Call):
            raise self._refused(source, _REMEDY)
        mentions = self.uses.mentions
        self._call(node, outermost=True)
        self.uses.beside.add(ast.unparse(node))
        if self.uses.mentions == mentions:
            raise self._refused(source, "use a column in it")
        twice = [name for name in self.aliases.values() if source.count(f"`{name}`") > 1]
        if twice and self.learns:
            # formulaic draws a random name for the second of two equal backticked columns, and forgets what it learnt
            raise self._refused(
                f"`{brief(twice[0], 40)}` twice in a function that learns from the table", "rename that column"
            )
        for alias, name in self.aliases.items():
            # formulaic files what calls learn under the alias
            if self.uses.aliases.setdefault(alias, name) != name:
                raise alike(self.formula, name)

    def _tree(self, source: str) -> ast.expr:
        code = self._unquoted(source)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python's advice on odd code; formulas that cause it are refused
                node = steadily(lambda: ast.parse(code.strip(), mode="eval")).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidInput(
                "formula", "a valid formula such as 'y ~ x + C(group)'", f"{brief(source)} in {shown(self.formula)}",
                "correct this part",
            ) from error  # fmt: skip
        if depth(node) > LIMITS.depth:
            raise self._refused("an expression of too many parts", "compute that column before")
        return node

    def _unquoted(self, source: str) -> str:
        """The text with each backticked column under the name that formulaic gives it inside a call."""

        def alias(match: re.Match[str]) -> str:
            if match[0][0] != "`":
                return match[0]
            name = match[0][1:-1]
            plain = name if name.isidentifier() else re.sub(r"^(?=\d)", "_", re.sub(r"\W", "_", name))
            spelt = plain.isidentifier() and not iskeyword(plain) and not plain.startswith("__")
            if not spelt or set(name) & set("'\""):
                raise self._refused(match[0], "rename that column to use it inside a function")
            if plain != name and self.aliases.setdefault(plain, name) != name:
                raise alike(self.formula, name)
            return f" {plain} "

        code = QUOTED.sub(alias, source)
        bare = set(re.findall(r"\w+", QUOTED.sub(" ", source)))
        for plain, name in self.aliases.items():
            # formulaic puts the backticks back by replacing text, so that no alias may begin with another
            if plain in bare or any(other != plain and other.startswith(plain) for other in self.aliases):
                raise alike(self.formula, name)
        return code

    def _call(self, node: ast.Call, *, outermost: bool = False) -> None:
        """A call of a known function with the arguments it takes."""
        name = self._name(node.func)
        self.uses.functions.add(name)
        if name in self.context:
            self._user_call(name, node)
            return
        if name not in FUNCTIONS:
            raise self._unknown(name, called=True)
        function = FUNCTIONS[name]
        if function.alone and not outermost:
            raise self._refused(f"{name}(...) inside another function", f"let {name}(...) stand alone")
        given = self._bound(name, function, node)
        if outermost:
            self.uses.width = width(name, given)
        for parameter, value in given.items():
            self._argument(function.parameters[parameter], value)
            if function.learns and any(quotes(part) for part in ast.walk(value)):
                # formulaic evaluates the argument once more, without the table that Q() looks into
                raise self._refused(f"Q(...) inside {name}(...)", "write the column in backticks there")
        raw = given.get("raw")
        if function.learns and not (isinstance(raw, ast.Constant) and raw.value is True):
            self.learns = True
            self.uses.learns[ast.unparse(node)] = name

    def _user_call(self, name: str, node: ast.Call) -> None:
        """A call of a function that the user passed: columns, numbers, text and flags may go in."""
        if any(k.arg is None or k.arg.startswith("_") for k in node.keywords):
            raise self._refused(f"** in {name}(...)", "write the arguments out")
        for value in (*node.args, *(k.value for k in node.keywords)):
            if not is_flag(value) and not self._text(value):
                self._data(value)

    def _bound(self, name: str, function: Function, node: ast.Call) -> dict[str, ast.expr]:
        """The arguments by the names of their parameters."""
        parameters = list(function.parameters)
        positional = len(parameters) if function.positional is None else function.positional
        if len(node.args) > positional:
            raise self._refused(f"{name}(...) with {len(node.args)} arguments", f"give it at most {positional}")
        given = dict(zip(parameters, node.args, strict=False))
        for keyword in node.keywords:
            # elementwise functions have no parameters to name, lag() takes its second by place
            unnamed = keyword.arg is None or keyword.arg not in parameters or parameters[0] == "x1" or name == "lag"
            if unnamed or keyword.arg in given:
                raise self._refused(f"{name}(...) with {str(keyword.arg)[:40]}=", f"see what {name} takes")
            given[str(keyword.arg)] = keyword.value
        if len(given) < function.required or any(p not in given for p in parameters[: function.required]):
            raise self._refused(f"{name}(...) with too few arguments", f"give it {function.required}")
        return given

    def _argument(self, kind: Argument, node: ast.expr) -> None:
        match kind:
            case "data":
                self._data(node)
            case "coded" | "hashed":
                name = self._bare_column(node)
                if name is None:
                    self._data(node)
                else:
                    self.uses.column(name, kind)
            case "column":
                self.uses.column(self._column_text(node), "value")
            case "contrast":
                self._contrast(node)
            case _:
                if not is_written(kind, node, self._text):
                    raise self._refused(
                        f"{brief(ast.unparse(node), 40)} as an argument", f"write {DESCRIBED[kind]} there"
                    )

    def _data(self, node: ast.expr) -> None:
        """An expression over columns."""
        match node:
            case ast.Name(id=name):
                self.uses.column(self.aliases.get(name, name), "value")
            case ast.Constant() if constant(node) is not None:
                return
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
                self._data(operand)
            case ast.BinOp(op=ast.Pow()):
                self._power(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                self._data(left)
                self._data(right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _COMPARISONS):
                texts = [side for side in (left, right) if isinstance(op, (ast.Eq, ast.NotEq)) and self._text(side)]
                for side in (left, right):
                    if side not in texts or len(texts) == 2:
                        self._data(side)
            case ast.Call():
                self._call(node)
            case ast.Attribute():
                raise self._unknown(self._name(node), called=False)
            case _:
                raise self._refused(brief(ast.unparse(node), 60), _REMEDY)

    def _power(self, node: ast.BinOp) -> None:
        """A power whose size is known to be small: nothing of a power of a power of constants."""
        if mentions(node.right):
            self._data(node.right)
        else:
            exponent = constant(node.right)
            if exponent is None or not abs(exponent) <= LIMITS.exponent:
                raise self._refused(
                    f"the power {brief(ast.unparse(node), 40)}", f"write a number up to {LIMITS.exponent} as exponent"
                )
        if not mentions(node.left) and any(isinstance(part, ast.Pow) for part in ast.walk(node.left)):
            raise self._refused(f"the power {brief(ast.unparse(node), 40)}", "write the number out")
        self._data(node.left)

    def _contrast(self, node: ast.expr) -> None:
        name = self._name(node.func if isinstance(node, ast.Call) else node)
        if name not in CONTRASTS:
            known = ", ".join(c for c in CONTRASTS if c.startswith("contr."))
            raise self._refused(f"the contrasts {brief(ast.unparse(node), 40)}", f"use one of {known}")
        self.uses.functions.add(name)
        if isinstance(node, ast.Call):
            for parameter, value in self._bound(name, CONTRASTS[name], node).items():
                self._argument(CONTRASTS[name].parameters[parameter], value)

    def _bare_column(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Call) and quotes(node):
            self.uses.functions.add("Q")
            return self._column_text(self._bound("Q", FUNCTIONS["Q"], node)["variable"])
        return None

    def _column_text(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and self._text(node):
            return node.value
        raise self._refused(f"Q({brief(ast.unparse(node), 40)})", "write the column's name there, as in Q('my column')")

    def _text(self, node: ast.expr) -> bool:
        """Whether the node is text; text that would not survive formulaic's quoting is refused."""
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            return False
        if not node.value.isprintable() or set(node.value) & set("'\"`\\") or node.value.startswith("__"):
            raise self._refused(f"the text {node.value[:40]!r}", "use text without quotes; recode the column")
        return True

    def _name(self, node: ast.expr) -> str:
        """`log`, `np.log`: the name of what is called."""
        match node:
            case ast.Name(id=name) if name not in self.aliases:
                return name
            case ast.Attribute(value=ast.Name(id=root), attr=attribute):
                return f"{root}.{attribute}"
            case ast.Attribute(attr=attribute) if attribute in MOMENTS:
                return f"(...).{attribute}"
        raise self._refused(brief(ast.unparse(node), 60), _REMEDY)

    def _unknown(self, name: str, *, called: bool) -> InvalidInput:
        root, _, attribute = name.rpartition(".")
        if attribute in MOMENTS:
            return self._refused(
                name, f"this would use the new data's {attribute} when predicting; use center(x) or scale(x)"
            )
        if root and root not in {"np", "contr"} and not called:
            return self._refused(name, f"write a column whose name has a dot in backticks, as in `{brief(name, 40)}`")
        if name in {"factor", "i"}:
            return self._refused(f"the function {name}", "mark a category with C(x)")
        return self._refused(
            f"the function {brief(name, 40)}",
            "compute that column before, or pass a function of your own to eq.data.table as context={'f': f}",
        )

    def _refused(self, what: str, remedy: str) -> InvalidInput:
        return refusal(self.formula, brief(what), remedy)
