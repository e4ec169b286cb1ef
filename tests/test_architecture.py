"""The import graph, read from the source: data flows one way, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import equipoise

ROOT = Path(equipoise.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# The order in which data flows. A module imports only from its own rank and below, inside functions too.
ORDER = [
    {"errors", "arrays"},
    {"cards", "checks", "files", "linalg", "progress"},
    {"data"},
    {"theory"},
    {"families"},
    {"engines"},
    {"models"},
    {"fitting"},
    {"sampling"},
    {"calibration"},
    {"report", "interop"},
    {"experiments"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def part(file: Path) -> str:
    """The top-level module or package a file belongs to."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imports(file: Path, lazy: bool) -> set[str]:
    """Dotted names a file imports at run time; with `lazy`, also those inside functions."""
    found: set[str] = set()
    todo: list[ast.AST] = list(ast.parse(file.read_text(encoding="utf-8")).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif is_type_checking(node):
            todo += node.orelse
        elif lazy or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    return found


def imported_parts(file: Path, lazy: bool) -> set[str]:
    """The parts of the library a file imports."""
    names = {tuple(name.split(".")) for name in imports(file, lazy)}
    return {n[1] for n in names if n[0] == "equipoise" and len(n) > 1 and n[1] != "__version__"}


def packages(file: Path) -> set[str]:
    """The other packages a file imports, anywhere in it."""
    return {name.split(".")[0] for name in imports(file, lazy=True)} - {"equipoise"}


def label(file: Path) -> str:
    return str(file.relative_to(ROOT))


def allowed_later(file: Path) -> set[str]:
    """A calibration prints, draws and saves itself, and chains go to ArviZ: methods call what comes after them."""
    return {"calibration/calibration.py": {"report", "interop"}, "sampling/chains.py": {"interop"}}.get(
        label(file), set()
    )


@pytest.mark.parametrize("file", [f for f in FILES if f.name != "__init__.py" or f.parent != ROOT], ids=label)
def test_imports_follow_the_flow(file) -> None:
    assert part(file) in RANK, f"{label(file)} has no place in the flow: give it a rank in this test"
    later = {p for p in imported_parts(file, lazy=True) if RANK[p] > RANK[part(file)]} - allowed_later(file)
    assert not later, f"{label(file)} imports {sorted(later)}, which come after it"


@pytest.mark.parametrize("file", [f for f in FILES if part(f) in {"theory", "targets", "tuning"}], ids=label)
def test_the_theory_sees_only_moments(file) -> None:
    assert not packages(file) & {"jax", "numba", "pandas", "formulaic", "matplotlib"}
    assert not imported_parts(file, lazy=True) & {"data", "models", "engines", "fit", "sampling"}


@pytest.mark.parametrize("file", FILES, ids=label)
def test_heavy_packages_stay_where_they_belong(file) -> None:
    allowed = {
        "jax": part(file) in {"engines", "experiments", "interop"} or label(file).startswith("models/general/"),
        "numba": part(file) == "engines",
        "matplotlib": part(file) in {"experiments", "report"},
        "arviz": part(file) == "interop",
        "torch": part(file) == "interop",
        "formulaic": part(file) == "data",
    }
    assert not {package for package in packages(file) if not allowed.get(package, True)}


def test_the_reader_of_imports_sees_what_it_should(tmp_path) -> None:
    source = (
        "import numba\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from equipoise.models.glm import GLM\n"
        "try:\n    import jax.numpy\nexcept ImportError:\n    pass\n"
        "class A:\n    from equipoise.fit import fit\n"
        "def f():\n    from equipoise.report import page\n"
    )
    file = tmp_path / "module.py"
    file.write_text(source)
    eager = {"numba", "typing.TYPE_CHECKING", "jax.numpy", "equipoise.fit.fit"}
    assert imports(file, lazy=False) == eager
    assert imports(file, lazy=True) == eager | {"equipoise.report.page"}
    assert imported_parts(file, lazy=True) == {"fit", "report"}


@pytest.mark.parametrize("name", ["equipoise", "equipoise.cli"])
def test_importing_the_library_is_light(name) -> None:
    heavy = ["jax", "numba", "pandas", "matplotlib", "formulaic", "pyarrow", "arviz", "rich"]
    code = f"import sys, {name}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_fit_imports_only_what_it_uses(tmp_path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("count,age\n" + "".join(f"{k % 5},{k % 7}\n" for k in range(200)))
    unused = ("jax", "matplotlib", "rich", "dask", "torch", "arviz", "statsmodels", "sklearn", "equipoise.report.page",
              "equipoise.experiments", "equipoise.interop")  # fmt: skip
    code = (
        "import sys\nfrom equipoise.cli import main\n"
        "try: main()\nexcept SystemExit as stop: assert not stop.code\n"
        f"sys.exit(', '.join(m for m in {unused} if m in sys.modules) or 0)"
    )
    command = [sys.executable, "-c", code, "fit", str(data), "count ~ age", "--family", "poisson", "--no-progress"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "N(estimate, target)" in done.stdout


def test_the_wheel_holds_the_library_alone() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["src/equipoise"]}
    # modules, not folders: a checkout may keep an empty one with what was compiled
    assert not {label(file) for file in FILES if part(file).startswith("bench")}
    assert not {label(file) for file in FILES if "benchmarks" in packages(file)}


def test_public_names_exist_and_are_all_there() -> None:
    assert sorted(equipoise.__all__) == list(equipoise.__all__)
    for name in equipoise.__all__:
        assert hasattr(equipoise, name)


@pytest.mark.parametrize("file", FILES, ids=label)
def test_modules_open_with_a_docstring_and_list_their_names(file) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    assigned = {
        t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }
    assert "__all__" in assigned or len(tree.body) == 1
