"""The report lays out what `calibration` computed: read from its source, and one home for the colours."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import equipoise
from equipoise.report import palette

ROOT = Path(equipoise.__file__).parent
REPORT = sorted((ROOT / "report").glob("*.py"))

# What places things on a page: positions, evenly spaced points, constants, the size of a number for its digits.
LAYOUT = {
    "arange", "astype", "float64", "floor", "intp", "isfinite", "linspace", "log10", "ones_like", "repeat", "tile", "unique",
    "zeros_like",
}  # fmt: skip


def numpy_names(source: str) -> set[str]:
    """What a module uses of NumPy and SciPy, by name."""
    tree = ast.parse(source)
    used = {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value).split(".")[0] == "np"
    }
    taken = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "scipy"]
    return used | {alias.name for n in taken for alias in n.names}


@pytest.mark.parametrize("file", REPORT, ids=lambda file: file.name)
def test_the_report_computes_nothing(file: Path) -> None:
    assert numpy_names(file.read_text(encoding="utf-8")) <= LAYOUT


def test_the_reader_of_numpy_names_sees_what_it_should() -> None:
    source = (
        "import numpy as np\nfrom scipy.special import ndtri\ndef f(x):\n    return np.linalg.eigvalsh(np.sqrt(x))\n"
    )
    assert numpy_names(source) == {"linalg", "eigvalsh", "sqrt", "ndtri"}


@pytest.mark.parametrize("folder", ["report", "experiments"])
def test_colours_have_one_home(folder: str) -> None:
    for file in (ROOT / folder).glob("*.py"):
        if file.name != "palette.py":
            # white sheets of paper aside
            found = set(re.findall(r"#[0-9a-fA-F]{6}\b", file.read_text(encoding="utf-8")))
            assert not found, f"{file.name} names {found}: take it from report/palette.py"


def test_themes_are_complete_and_readable() -> None:
    text = palette.stylesheet()
    for name in palette.THEME:
        assert text.count(f"--{name}:") == 2
    paper = {side: luminance(re.findall(r"--card:(#\w{6})", text)[side]) for side in (0, 1)}
    for name in ("ink", "muted", "observed", "predicted"):
        for side in (0, 1):
            low, high = sorted([luminance(palette.THEME[name][side]), paper[side]])
            assert (high + 0.05) / (low + 0.05) > 3.0, (name, side)


def test_words_in_colour_can_be_read() -> None:
    text = palette.stylesheet()
    for name in ("good", "alert", "muted", "ink"):
        for side, ground in itertools.product((0, 1), ("card", "paper")):
            colours = [re.findall(rf"--{key}:(#\w{{6}})", text)[side] for key in (name, ground)]
            low, high = sorted(map(luminance, colours))
            assert (high + 0.05) / (low + 0.05) > 4.5, (name, ground, side)


def luminance(colour: str) -> float:
    """Relative luminance of a colour, by the definition of the accessibility guidelines (WCAG 2)."""
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255.0
    return float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])
