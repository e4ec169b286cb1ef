"""The documentation is true: its Python blocks run and print what is shown, its names, equations and links exist.

The blocks of one page share a namespace and run in order, in an empty directory, with warnings as errors. A text block
right after a Python block is what it prints. ``python tests/docs/test_snippets.py`` writes those blocks anew.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest

import equipoise as eq

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TORCH = DOCS / "tutorials" / "torch.md"  # the page whose blocks need torch
RUN = [pytest.param(page, marks=pytest.mark.torch) if page == TORCH else page for page in PAGES]


BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<shown>.*?)^```\n)?", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?")
LINK = re.compile(r"\]\((?!https?:)(?P<page>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")

# Besides the last printed digit, which rounding may turn: every printed number is deterministic, and the chains
# contract, so that differences in the last bits of a library's arithmetic stay of that size and do not grow.
RELATIVE = 1e-6


def called(page: Path) -> str:
    """A page as the tests call it: its path without the ending."""
    return page.relative_to(DOCS).with_suffix("").as_posix()


def run(page: Path, under: str = "", namespace: dict[str, object] | None = None) -> Iterator[tuple[re.Match[str], str]]:
    """Each Python block of a page, or of what is under one of its headings, with what it prints."""
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": page.stem} if namespace is None else namespace
    begin = text.index(f"## {under}\n") if under else 0
    end = text.find("\n## ", begin) if under else len(text)
    for block in BLOCK.finditer(text, begin, end):
        # blank lines in front: a traceback then names the line of the page
        above = "\n" * (text.count("\n", 0, block.start()) + 1)
        printed = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("error")
            exec(compile(above + block["code"], str(page), "exec"), namespace)
        yield block, printed.getvalue()


def difference(shown: str, printed: str) -> str | None:
    """Why two outputs differ beyond rounding, or None."""
    words = [[" ".join(part.split()) for part in NUMBER.split(text)] for text in (shown, printed)]
    if words[0] != words[1]:
        return "the words differ"
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        x, y = (float(token.replace(",", "")) for token in (a, b))
        if abs(x - y) > max(1.01 * last_digit(a), RELATIVE * abs(x)):
            return f"{a} is shown, {b} is printed"
    return None


def last_digit(token: str) -> float:
    """The size of one unit in the last digit of a printed number; zero for a whole number, which is exact."""
    mantissa, _, exponent = token.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.0 if decimals == 0 and not exponent else 10.0 ** (int(exponent or 0) - decimals)


@pytest.mark.parametrize("page", RUN, ids=called)
def test_blocks_print_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == TORCH:
        pytest.importorskip("torch", reason="run by make test-torch")
    monkeypatch.chdir(tmp_path)
    for block, printed in run(page):
        problem = difference(block["shown"] or "", printed)
        assert problem is None, f"{called(page)}: {problem}\n{block['code']}\nprinted:\n{printed}"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("gap 0.12\n", "gap  0.13", True),
        ("gap 0.12", "gap 0.14", False),
        ("1,008 rows", "1,009 rows", False),
        ("1.2e+02 rows", "1.3e+02 rows", True),
        ("ok 1", "LOOK 1", False),
        ("1 2", "1", False),
        ("", "anything", False),
    ],
)
def test_outputs_are_told_apart(shown: str, printed: str, same: bool) -> None:
    assert (difference(shown, printed) is None) == same


@pytest.mark.parametrize("name", eq.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert re.search(rf"`eq\.{name}\b", text), f"docs/api.md does not mention eq.{name}"
    if not inspect.isfunction(getattr(eq, name)):
        return
    written = re.search(rf"`eq\.{name}\((.*?)\)`", text, re.S)
    assert written, f"docs/api.md has no signature of eq.{name}"
    assert _parameters(written[1]) == list(inspect.signature(getattr(eq, name)).parameters)


def _parameters(signature: str) -> list[str]:
    arguments = ast.parse(f"def f({signature}): ...").body[0].args  # type: ignore[attr-defined]
    last = [arguments.kwarg] if arguments.kwarg else []
    return [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *last]]


@pytest.mark.parametrize("page", PAGES, ids=called)
def test_links_resolve(page: Path) -> None:
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = page if not link["page"] else page.parent / link["page"]
        assert target.is_file(), f"{called(page)} links to {link['page']}, which does not exist"
        if link["anchor"]:
            assert link["anchor"] in _anchors(target), f"{called(page)} links to {link[0]}: no such place"


def _anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    slugs = {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_equations_cited_in_the_code_exist() -> None:
    anchors = _anchors(DOCS / "concepts" / "theory.md") | _anchors(DOCS / "concepts" / "epochs.md")
    cited = {
        number
        for folder in ("src", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
        for number in re.findall(r"eq\. (\d+\.\d+)", file.read_text("utf-8"))
    }
    assert cited
    assert {f"eq-{number.replace('.', '-')}" for number in cited} <= anchors


@pytest.mark.parametrize("page", PAGES, ids=called)
def test_tests_and_code_cited_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`(tests/[^`]*\.py)`", text):
        assert (ROOT / name).is_file(), f"{called(page)} cites {name}, which does not exist"
    for cited in re.findall(r"\*Code:\*(.*?)(?:\*Tests:\*|\n\n)", text, re.S):
        for name in re.findall(r"`(?:eq\.)?([\w.]+)`", cited):
            resolve_name(f"equipoise.{name}")


def test_no_block_escapes_and_no_figure_is_left_over() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *PAGES]}
    assert [
        called(page) for page, text in pages.items() if re.search(r"^[ \t]+```python|^ *```py(con)?$", text, re.M)
    ] == []
    shown = "".join(pages.values())
    assert [figure.name for figure in (DOCS / "figures").iterdir() if f"figures/{figure.name}" not in shown] == []


def rewrite(page: Path) -> None:
    """Put what the blocks print now into the text blocks of a page."""
    text, pieces, end = page.read_text(encoding="utf-8"), [], 0
    for block, printed in run(page):
        pieces += [text[end : block.start()], f"```python\n{block['code']}```\n"]
        pieces += [f"\n```text\n{printed.rstrip()}\n```\n"] if printed else []
        end = block.end()
    page.write_text("".join([*pieces, text[end:]]), encoding="utf-8")


if __name__ == "__main__":
    for path in PAGES:
        if path == TORCH and find_spec("torch") is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            rewrite(path)
            os.chdir(ROOT)
