"""The paper's tables and figures, regenerated through the public names of the library, each with a verdict.

One file per table or figure. `reproduce` runs them on all cores, keeps what is finished, and writes the pages.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.experiments.entry import Entry

__all__ = ["NAMES", "find", "reproduce"]

# The entries, and where each is: module and name.
NAMES = {
    "figure1": ("figure1", "ENTRY"),
    "table1": ("table1", "ENTRY"),
    "table2": ("table2", "ENTRY"),
    "table3": ("table3", "ENTRY"),
    "figure-nn": ("network", "ENTRY"),
    "figure-w2": ("wasserstein", "ENTRY"),
    "figure-dimension": ("dimension", "ENTRY"),
    "table-cost": ("cost", "ENTRY"),
    "figure-fixed-linear": ("fixed_step", "LINEAR"),
    "figure-fixed-poisson": ("fixed_step", "POISSON"),
    "table-fixed-poisson": ("fixed_step", "TABLE"),
    "figure-marginals": ("marginals", "ENTRY"),
    "figure-testloss": ("testloss", "ENTRY"),
}


def find(name: str) -> Entry:
    """The entry of that name."""
    module, attribute = NAMES[name]
    return getattr(import_module(f"equipoise.experiments.{module}"), attribute)


def reproduce(
    names: list[str] | None = None,
    out: Path = Path("out/reproduce"),
    *,
    smoke: bool = False,
    settings: str = "both",
    german_csv: Path | None = None,
    repetitions: int | None = None,
    seed: int = 0,
    progress: bool = True,
    workers: int | None = None,
) -> Path:
    """Regenerate tables and figures of the paper.

    Parameters
    ----------
    names
        Entries, or "all", which is the default.
    out
        Folder for the JSON, Markdown and picture of each entry and for `index.html`. Finished pieces of work in it are
        used again, so that a run that was stopped goes on where it was.
    smoke
        Small sizes: whether everything works, in less than two minutes.
    settings
        "described" as the paper's text, "released" as its scripts, or "both".
    german_csv
        The German credit data, which is not shipped.
    repetitions
        Of every cell; 30 as in the paper, or 4 with `smoke`.
    seed
        Of everything.
    progress
        Show how far each entry is.
    workers
        Processes; one per core by default.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InvalidInput
        If an entry or a setting is unknown.
    """
    from equipoise.checks import whole
    from equipoise.experiments.designs import SETTINGS
    from equipoise.experiments.entry import Scale
    from equipoise.experiments.runner import run

    wanted = list(NAMES) if not names or "all" in names else names
    unknown = [n for n in wanted if n not in NAMES]
    if unknown:
        raise InvalidInput("names", f"among {', '.join(NAMES)}, all", ", ".join(unknown), "choose from these")
    if settings not in (*SETTINGS, "both"):
        raise InvalidInput("settings", f"one of {', '.join(SETTINGS)}, both", repr(settings), "choose from these")
    if german_csv is not None and not Path(german_csv).is_file():
        raise InvalidInput("german_csv", "a file that exists", str(german_csv), "check the path")
    count = (4 if smoke else 30) if repetitions is None else whole("repetitions", repetitions, 2, "pass at least 2")
    scale = Scale(
        smoke, count, SETTINGS if settings == "both" else (settings,), german_csv, whole("seed", seed, 0, "pass an int")
    )
    return run([find(n) for n in dict.fromkeys(wanted)], scale, Path(out), progress, workers)
