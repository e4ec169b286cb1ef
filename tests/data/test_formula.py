"""Formulas: what may be said, with the values formulaic gives it; everything else is refused before it runs."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace

import formulaic.utils.stateful_transforms
import formulaic.utils.variables
import numpy as np
import pandas as pd
import pytest
from formulaic import Formula

import equipoise as eq
from equipoise.data.design import Design
from tests.data.conftest import mixed


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return mixed(60, 1)


# --- What may be said -------------------------------------------------------------------------------

GOOD = [
    "y ~ 1",
    "y ~ x",
    "y ~ x - 1",
    "y ~ 0 + x",
    "y ~ x + z - z",
    "y ~ -1 + g",
    "y ~ x + z + g",
    "y ~ x*z",
    "y ~ x:z",
    "y ~ x*g",
    "y ~ g:h",
    "y ~ g*h - 1",
    "y ~ g/x",
    "y ~ x %in% g",
    "y ~ (x + z + g)**2",
    "y ~ (x + z)^2",
    "y ~ 2:x",
    "y ~ (x + z):g - x:g",
    "y ~ `my col` + `2nd`",
    "y ~ a.b + `a.b`:x",
    "y ~ Q('my col') + Q('a.b')",
    "y ~ größe + log(größe)",
    "y ~ log(`my col`) + center(`a.b`)",
    "y ~ I(`my col` / (1 + `my col`))",
    "log(x) ~ z",
    "I(x > 1) ~ z",
    "y ~ log(x) + log10(x) + log2(x) + exp(z)",
    "y ~ log1p(x) + expm1(z) + sqrt(x) + abs(z)",
    "y ~ np.log(x) + np.exp(z) + np.sqrt(x) + np.log1p(x) + np.expm1(z) + np.abs(z)",
    "y ~ np.log2(x) + np.log10(x) + np.sin(z) + np.cos(z) + np.tanh(z) + np.square(z)",
    "y ~ np.maximum(z, 0) + np.minimum(x, z) + np.clip(z, -1, 1) + np.where(z > 0, x, -x)",
    "y ~ I(x**2) + I(x**3 - 2.5*x) + I(x**-1) + I(x**(1/3))",
    "y ~ I((x + z) / 2) + I(x // 1) + I(x % 2) + I(-z)",
    "y ~ I(2**x) + I(10**3 * x)",
    "y ~ I(x > 1) + I(g == 'a') + I('b' != g) + I(k <= 2)",
    "y ~ C(k)",
    "y ~ C(k) + k",
    "y ~ C(k, contr.sum) + C(g, contr.helmert)",
    "y ~ C(g, contr.treatment('b'))",
    "y ~ C(g, contr.treatment(base='c')):x",
    "y ~ C(g, contr.poly) + C(h, contr.diff) + C(k, contr.SAS)",
    "y ~ C(g, Treatment('b')) + C(h, Sum)",
    "y ~ C(g, contr.custom([[1, 0], [0, 1], [-1, -1]]))",
    "y ~ C(g, levels=['c', 'b', 'a'])",
    "y ~ C(b) + C(x > 1):z",
    "y ~ C(np.floor(x))",
    "y ~ b",
    "y ~ hashed(g, levels=5) - 1",
    "y ~ center(x) + scale(z)",
    "y ~ scale(x, center=False) + scale(z, scale=False) + scale(k, 2, 3)",
    "y ~ standardize(x) + standardize(z, rescale=False)",
    "y ~ center(log(x)) + I(2 * center(z))",
    "y ~ poly(x, 3) + poly(z, degree=2, raw=True)",
    "y ~ bs(x, df=5)",
    "y ~ bs(x, knots=[1, 2.5], degree=2, include_intercept=True) - 1",
    "y ~ bs(x, df=4, lower_bound=0, upper_bound=6, extrapolation='clip')",
    "y ~ cr(x, df=4) - 1",
    "y ~ cc(x, df=4) - 1",
    "y ~ cs(log(x), df=3, constraints='center')",
    "y ~ bs(x, df=4):g + poly(z, 2)*h",
    "y ~\n  x +\n\tz",
    "y~x+log( x )",
]


@pytest.mark.parametrize("formula", GOOD)
def test_values_and_names_are_those_of_formulaic(frame, formula) -> None:
    made = eq.data.table(frame, formula)
    extra = {"sqrt": np.sqrt, "abs": np.abs, "log1p": np.log1p, "expm1": np.expm1}
    expected = Formula(formula).get_model_matrix(frame, context=extra)
    assert list(made.names) == list(expected.rhs.columns)
    np.testing.assert_array_equal(made.x, expected.rhs.to_numpy(float))
    np.testing.assert_array_equal(made.y, expected.lhs.to_numpy(float)[:, 0])
    assert made.response == expected.lhs.columns[0]


# --- What may not -----------------------------------------------------------------------------------

HOSTILE = [
    # other functions and attributes
    "y ~ I(np.load.__globals__['os'].system('true')*x + x)",
    "y ~ __import__('os').system('true')",
    "y ~ I(__import__('os').getcwd() == x)",
    "y ~ eval('1')",
    "y ~ exec('x')",
    "y ~ I(eval(g))",
    "y ~ open('/etc/passwd')",
    "y ~ I(open('/etc/passwd').read())",
    "y ~ getattr(x, 'values')",
    "y ~ I(getattr(x, 'values'))",
    "y ~ compile('1', '', 'eval')",
    "y ~ globals()",
    "y ~ I(vars())",
    "y ~ np.load('x')",
    "y ~ np.fromfile('x')",
    "y ~ np.save('x', x)",
    "y ~ np.memmap('x')",
    "y ~ np.lib.format.open_memmap('x')",
    "y ~ np.ctypeslib.load_library('x', '.')",
    "y ~ np.frompyfunc(x, 1, 1)",
    "y ~ np.vectorize(x)",
    "y ~ np.ones(10**12)",
    "y ~ np(x)",
    "y ~ contr(x)",
    "y ~ x.mean()",
    "y ~ I(x - x.mean())",
    "y ~ I(x - np.mean(x))",
    "y ~ I((x + z).std())",
    "y ~ x.to_csv('x')",
    "y ~ I(x.to_pickle('x'))",
    "y ~ I(x.values)",
    "y ~ I(a.b)",
    "y ~ I(().__class__)",
    "y ~ I(().__class__.__bases__[0].__subclasses__())",
    "y ~ I(x.__class__)",
    "y ~ C(g, contr.__class__)",
    "y ~ C(g, contr.mro)",
    "y ~ C(g, contr.treatment.__init__)",
    "y ~ C(g, contr.treatment(base=open))",
    "y ~ C(g, np.eye)",
    "y ~ C(g, contr['sum'])",
    "y ~ C.__globals__",
    "y ~ C.__call__(g)",
    "y ~ log.__self__",
    "__import__('os').getcwd() ~ x",
    "I(open('x')) ~ x",
    # code in quotes, braces and backticks
    "y ~ {x}",
    "y ~ {__import__('os').getcwd()}",
    "y ~ x + {1 + 1}",
    "y ~ Q('__class__')",
    "y ~ Q('x').__class__",
    "y ~ Q(x)",
    "y ~ Q(open('x').read())",
    "y ~ Q('x' + 'y')",
    "y ~ Q(f'{x}')",
    "y ~ Q(b'x')",
    "y ~ Q('a\"].__class__ #')",
    'y ~ Q("it\'s")',
    "y ~ Q('x', _context=x)",
    "y ~ center(x, _state=x)",
    "y ~ `__class__`",
    "y ~ I(`-_import-_`('os'))",
    "y ~ I(`x`.`-_class-_`)",
    "y ~ I(`x; import os`)",
    "y ~ I(`class`)",
    "y ~ I(`a'b` + `c'd`)",
    "y ~ I(``)",
    "y ~ I(_formulaic_x)",
    "y ~ __FORMULAIC_STATE__",
    "y ~ I(__FORMULAIC_CONTEXT__)",
    "y ~ x\\",
    "y ~ I(x == 'a\\x41')",
    "y ~ I(x == '''a''')",
    # other syntax
    "y ~ I(lambda: x)",
    "y ~ (lambda q: q)(x)",
    "y ~ I((lambda q: q)(x))",
    "y ~ I([q for q in x])",
    "y ~ I({q for q in x})",
    "y ~ I(sum(q for q in x))",
    "y ~ I(q := x)",
    "y ~ I((q := x))",
    "y ~ I(f'{x}')",
    "y ~ I(x[0])",
    "y ~ x[0]",
    "y ~ I(x[::-1])",
    "y ~ I(x if z else x)",
    "y ~ I(x and z)",
    "y ~ I(not x)",
    "y ~ I(~b)",
    "y ~ I(x | z)",
    "y ~ I(x & z)",
    "y ~ I(x << 4)",
    "y ~ I(x @ z)",
    "y ~ I(0 < x < 1)",
    "y ~ I(x is z)",
    "y ~ I(x in z)",
    "y ~ I(*x)",
    "y ~ log(*[x])",
    "y ~ log(**x)",
    "y ~ log(x, out=z)",
    "y ~ np.log(x, where=z)",
    "y ~ np.log(x, z)",
    "y ~ log(x1=x)",
    "y ~ I(x, z)",
    "y ~ I()",
    "y ~ log()",
    "y ~ I(await_(x))",
    "y ~ I(x, data=z)",
    "y ~ bs(x, df=4, df=5)",
    "y ~ hashed(g, levels=5, hash_func=eval)",
    "y ~ lag(x, k=1)",
    "y ~ C(C(g))",
    "y ~ log(bs(x, df=4))",
    "y ~ I(True)",
    "y ~ I(None)",
    "y ~ I(...)",
    "y ~ I(1j * x)",
    "y ~ I('a')",
    "y ~ I('a' * 9)",
    "y ~ I('a' == 'a')",
    "y ~ I([x])",
    "y ~ I(3)",
    "y ~ log(2)",
    "y ~ C(g, {'a': [1, 0, 0]})",
    "y ~ log(x)(z)",
    "y ~ I(x # z)",
    "y ~ I(x) # z",
    "y ~ I(x; z)",
    "y ~ I(x\x00)",
    "y ~ x\x00",
    "y ~ x\u200b",
    "y ~ \u202ex",
    "y ~ ｎｐ.load(x)",
    "y ~ I(ｎｐ.ｌｏａｄ(x))",
    "y ~ С(g)",
    "y ~ l\u043eg(x)",
    "y ~ I(ｘ)",
    "y ~ I(x.＿＿class＿＿)",
    # other operators
    "y ~ x | z",
    "y | z ~ x",
    "y ~ x ~ z",
    "~ y ~ x",
    "y ~ ~x",
    "y ~ .",
    "y ~ . - x",
    "y ~ ...",
    "y ~ x + 'a'",
    "y ~ 'a'",
    "y ~ [x ~ z]",
    "y ~ [x + z]",
    "y ~ x @ z",
    "y ~ x, z",
    "y ~ x; z",
    "y ~ x = z",
    "y ~ x == z",
    "y ~ !x",
    "y ~ x ? z",
    "y ~ $x",
    "y ~ x & z",
    "y ~ x %o% z",
    "y ~ x %",
    "1 ~ x",
    "y ~ x z",
    "y ~ (x",
    "y ~ x)",
    "y ~ log(x",
    "y ~ `x",
    # sizes
    "y ~ I(x**9**9**9)",
    "y ~ I(9**9**9**9*x)",
    "y ~ I(((10**20)**20)**20*x)",
    "y ~ I(x**1000)",
    "y ~ I(x**(7*7*7*7))",
    "y ~ I(x**(9**9))",
    "y ~ I(99999999999999999999*x)",
    "y ~ I(1e999*x)",
    "y ~ I(x**-1000)",
    "y ~ (x + z)**99",
    "y ~ (x + z)**2**9",
    "y ~ x**z",
    "y ~ x**0.5",
    "y ~ (x + z + g + h + k)**10",
    "y ~ " + "*".join(f"x{i}" for i in range(40)),
    "y ~ " + ":".join(["(x + z)"] * 40),
    "y ~ bs(x, df=10**9)",
    "y ~ bs(x, df=1000000000)",
    "y ~ bs(x, df=4, degree=5000)",
    "y ~ poly(x, 100000)",
    "y ~ hashed(g, levels=100000000)",
    "y ~ lag(x, 99999999999)",
    "y ~ " + "+".join(["x"] * 20_000),
    "y ~ " + "(" * 5000 + "x" + ")" * 4000,
    "y ~ " + "(" * 100 + "x" + ")" * 100,
    "y ~ " + "I(" * 100 + "x" + ")" * 100,
    "y ~ I(" + "-" * 3000 + "x)",
    "y ~ I(" + "+".join(["x"] * 2000) + ")",
    "y ~ bs(x, df=" + "+".join(["1"] * 2000) + ")",
    "y ~ I(" + "[" * 1000 + "x)",
]


class Reached(BaseException):
    """Not an Exception, so that nothing on the way catches it."""


def reached(*arguments: object) -> None:
    raise Reached(arguments)


@pytest.fixture
def never_run(monkeypatch) -> None:
    """Formulaic's evaluation, made to fail the test when it is reached."""
    for module in (formulaic.utils.stateful_transforms, formulaic.utils.variables):
        monkeypatch.setattr(module, "eval", reached, raising=False)


@pytest.mark.usefixtures("never_run")
@pytest.mark.parametrize("formula", HOSTILE, ids=range(len(HOSTILE)))
def test_everything_else_is_refused_before_it_runs(frame, formula) -> None:
    start = time.perf_counter()
    with pytest.raises(eq.InvalidInput, match=r"^formula: must be ") as caught:
        eq.data.table(frame, formula)
    assert time.perf_counter() - start < 2.0
    message = str(caught.value)
    assert len(message) < 1000
    assert message.isprintable()


def test_the_guard_of_these_tests_works(frame, request) -> None:
    eq.data.table(frame, "y ~ log(x)")
    request.getfixturevalue("never_run")
    with pytest.raises(Reached):
        eq.data.table(frame, "y ~ log(x)")


PIECES = [
    *"yxzkg()[]{}~+-*/:^%|.,=<>`'\"#@\\ \n_", "**", "I(", "C(", "Q(", "bs(x, df=4)", "center(", "np.", "np.load(",
    "contr.", "open('x')", "__import__('os')", ".system('x')", ".mean()", "lambda q: q", " for q in x", " if ", ":=",
    "f'", "9**9",
]  # fmt: skip


def test_damaged_formulas_raise_nothing_else(frame, monkeypatch) -> None:
    monkeypatch.setattr("os.system", reached)
    monkeypatch.setattr(np, "load", reached)
    monkeypatch.setattr("builtins.open", reached)
    draw = random.Random(0)
    messages = []
    for _ in range(1000):
        formula = draw.choice(GOOD + HOSTILE)[:300]
        for _ in range(draw.randint(1, 3)):
            at = draw.randint(0, len(formula))
            formula = formula[:at] + draw.choice(PIECES) + formula[at + draw.randint(0, 3) :]
        try:
            eq.data.table(frame, formula)
        except eq.InvalidInput as error:
            messages.append(str(error))
    assert 800 < len(messages) < 1000
    assert all(message.isprintable() and len(message) < 1000 for message in messages)


@pytest.mark.usefixtures("never_run")
@pytest.mark.parametrize("formula", HOSTILE[::7], ids=range(0, len(HOSTILE), 7))
def test_stored_formulas_are_read_as_strictly(frame, formula) -> None:
    design = Design("y ~ x", eq.data.table(frame, "y ~ x").design.columns, ("Intercept", "x"))
    with pytest.raises(eq.InvalidInput, match=r"^(formula|design): must be "):
        replace(design, formula=formula).encode(frame)
    record = {**json.loads(design.to_json()), "formula": formula}
    with pytest.raises(eq.InvalidInput, match=r"^(formula|design): must be "):
        Design.from_json(json.dumps(record))


def test_what_formulaic_made_of_a_formula_is_read_again(frame, monkeypatch) -> None:
    # a parser that turns the text into something else stands for any difference in reading it
    monkeypatch.setattr(formulaic, "Formula", lambda _: Formula("y ~ x + I(open('/etc/passwd'))"))
    with pytest.raises(eq.InvalidInput, match="formula: must be made of columns"):
        eq.data.table(frame, "y ~ x")
    monkeypatch.setattr(formulaic, "Formula", lambda _: Formula("y ~ z"))
    with pytest.raises(eq.InvalidInput, match="write it more simply"):
        eq.data.table(frame, "y ~ x")
