"""Several fits side by side: one table for a paper, as text, HTML, LaTeX or Markdown."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, cast

import pandas as pd

from equipoise.calibration.answers import CovarianceOptions
from equipoise.calibration.calibration import Calibration
from equipoise.calibration.findings import ratio_name
from equipoise.cards import html_table
from equipoise.checks import checked_options, flag, one_of, probability, shown
from equipoise.errors import InvalidInput
from equipoise.report.summary import STARS, aligned, decimals, fixed, shown_p, star

__all__ = ["FitTable", "compare_fits"]

_BELOW = {
    "std_error": "Standard errors in parentheses",
    "statistic": "z or t statistics in parentheses",
    "p_value": "p-values in parentheses",
    "interval": "Intervals in brackets",
}
_LATEX = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}"}
_LATEX |= {
    "[": "{[}",
    ">": r"\textgreater{}",
    "−": "$-$",
    "²": "$^2$",
    "±": r"$\pm$",
    **{c: rf"\{c}" for c in "&%$#_{}"},
}


@dataclass(frozen=True)
class FitTable:
    """Fits side by side; it prints itself, and a notebook shows it as a table.

    Attributes
    ----------
    frame
        The coefficients in full precision, one row per fit and term: the columns of `Calibration.tidy` after `fit`.
    statistics
        What is told of each fit as a whole, one row per fact and one column per fit, as text.
    names
        What the fits are called.
    below
        What stands below an estimate: `"std_error"`, `"statistic"`, `"p_value"` or `"interval"`.
    stars
        Whether small p-values are marked.
    notes
        What to know about the table.
    """

    frame: pd.DataFrame
    statistics: pd.DataFrame
    names: tuple[str, ...]
    below: str
    stars: bool
    notes: tuple[str, ...]

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms of all fits, in order of appearance; an intercept comes last."""
        seen = list(dict.fromkeys(self.frame["term"]))
        return tuple(sorted(seen, key=lambda term: term == "Intercept"))

    def to_text(self) -> str:
        """The table for a terminal."""
        top, *rows = aligned([["", *self.names], *self._lines(), *self._told()])
        heavy, light, terms = "=" * len(top), "-" * len(top), 2 * len(self.terms)
        body = [heavy, top, light, *rows[:terms], light, *rows[terms:], heavy]
        return "\n".join([*(line.rstrip() for line in body), *self.notes])

    def to_html(self) -> str:
        """The table as HTML: an estimate and what stands below it share a cell."""
        rows = [[term, *(" ".join(filter(None, cell)) for cell in cells)] for term, cells in self._cells()]
        made = html_table(("", *self.names), [*rows, *self._told()], "Fits side by side")
        return f"{made}<p>{escape(' '.join(self.notes))}</p>"

    def to_markdown(self) -> str:
        """The table as a Markdown table with pipes."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", r"\|").replace("*", r"\*") for cell in cells) + " |"

        rows = [[term, *("<br>".join(filter(None, cell)) for cell in cells)] for term, cells in self._cells()]
        rule = "|:--|" + "--:|" * len(self.names)
        notes = " ".join(self.notes).replace("*", r"\*")
        return "\n".join([line(["", *self.names]), rule, *map(line, rows), *map(line, self._told()), "", notes])

    def to_latex(self) -> str:
        """The table as a LaTeX tabular, for the booktabs package."""

        def line(cells: Sequence[str]) -> str:
            return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"

        notes = "".join(_LATEX.get(c, c) for c in " ".join(self.notes))
        width = len(self.names) + 1
        return "\n".join(
            [
                rf"\begin{{tabular}}{{l{'r' * len(self.names)}}}", r"\toprule", line(["", *self.names]), r"\midrule",
                *map(line, self._lines()), r"\midrule", *map(line, self._told()), r"\bottomrule",
                rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {notes}}} \\", r"\end{tabular}",
            ]
        )  # fmt: skip

    __str__ = __repr__ = to_text
    _repr_html_ = to_html

    def _told(self) -> Iterator[list[str]]:
        """A line for every fact of the fits as wholes."""
        for name, row in zip(self.statistics.index, self.statistics.to_numpy(), strict=True):
            yield [str(name), *row]

    def _cells(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Every term with its estimate and what stands below it, fit by fit; empty where a fit lacks the term."""
        rows = {(row["fit"], row["term"]): row for row in self.frame.to_dict("records")}
        for term in self.terms:
            found = [rows.get((name, term)) for name in self.names]
            places = decimals([row["std_error"] for row in found if row is not None])[0]
            yield term, [("", "") if row is None else self._pair(row, places) for row in found]

    def _pair(self, row: dict[Hashable, Any], places: int) -> tuple[str, str]:
        marks = star(row["p_value"]) if self.stars else ""
        if self.below == "interval":
            under = f"[{fixed(row['conf_low'], places)}, {fixed(row['conf_high'], places)}]"
        elif self.below == "p_value":
            under = f"({shown_p(row['p_value'])})"
        else:
            under = f"({row['statistic']:.2f})" if self.below == "statistic" else f"({fixed(row['std_error'], places)})"
        return fixed(row["estimate"], places) + marks, under

    def _lines(self) -> Iterator[list[str]]:
        """Two lines per term: estimates, and what stands below them."""
        for term, cells in self._cells():
            yield [term, *(first for first, _ in cells)]
            yield ["", *(second for _, second in cells)]


@checked_options
def compare_fits(
    fits: Sequence[Calibration] | Mapping[str, Calibration],
    names: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    kind: str | None = None,
    below: str = "std_error",
    exponentiate: bool = False,
    stars: bool = False,
    method: str = "auto",
    clusters: object = None,
    time: object = None,
    lags: int | None = None,
    small_sample: bool | str = True,
) -> FitTable:
    """Several fits side by side: a row per term, a column per fit.

    Parameters
    ----------
    fits
        Calibrations, fresh or loaded; or a dict of them by name.
    names
        What to call them; (1), (2), … by default.
    level, kind, method, exponentiate, clusters, time, lags, small_sample
        As for `Calibration.tidy`, for every fit.
    below
        What stands below an estimate: `"std_error"`, `"statistic"`, `"p_value"` or `"interval"`.
    stars
        Mark p-values below 0.05, 0.01 and 0.001.

    Returns
    -------
    FitTable
        Prints as text; `to_html()`, `to_latex()`, `to_markdown()`.

    Examples
    --------
    >>> import equipoise as eq
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = np.column_stack([np.ones(300), rng.normal(size=300)])
    >>> y = rng.poisson(np.exp(x @ [0.5, 0.3]))
    >>> fits = [eq.calibrate(eq.glm(f), (x, y), ess=100, progress=False) for f in ("poisson", "gaussian")]
    >>> compare_fits(fits).names
    ('(1)', '(2)')
    """
    one_of("below", below, tuple(_BELOW))
    probability("level", level)
    flag("stars", stars)
    runs, called = _named(fits, names)
    options = CovarianceOptions(clusters=clusters, time=time, lags=lags, small_sample=small_sample)
    tables = [run.tidy(level, kind, method=method, exponentiate=exponentiate, **options) for run in runs]
    frame = pd.concat([t.assign(fit=name)[["fit", *t.columns]] for t, name in zip(tables, called, strict=True)])
    statistics = pd.DataFrame({name: _told(run, kind) for run, name in zip(runs, called, strict=True)}).fillna("")
    notes = [f"{_BELOW[below]}."]
    if exponentiate:
        ratios = dict.fromkeys(ratio_name(run) or "exp(coefficient)" for run in runs)
        notes.insert(0, f"Exponentiated coefficients ({', '.join(ratios)}).")
    if below == "interval":
        words = list(dict.fromkeys(t.attrs["intervals"] for t in tables))
        notes += [f"{w}." for w in words]
    return FitTable(
        frame.reset_index(drop=True), statistics, called, below, stars, (*notes, *((STARS,) if stars else ()))
    )


def _named(
    fits: Sequence[Calibration] | Mapping[str, Calibration], names: Sequence[str] | None
) -> tuple[list[Calibration], tuple[str, ...]]:
    """The fits, and what they are called."""
    if isinstance(fits, Mapping):
        names = list(fits) if names is None else names
        fits = list(fits.values())
    runs: list[Calibration] = list(fits) if isinstance(fits, (list, tuple)) else [cast(Calibration, fits)]
    for run in runs:
        if not isinstance(run, Calibration):
            raise InvalidInput("fits", "calibrations", shown(run), "pass what eq.calibrate or eq.load returned")
    if not runs:
        raise InvalidInput("fits", "at least one calibration", "none", "pass what eq.calibrate returned")
    if names is not None and (isinstance(names, str) or not isinstance(names, Iterable)):
        raise InvalidInput("names", "a list of names", shown(names), "give one to each fit")
    called = [f"({k + 1})" for k in range(len(runs))] if names is None else [str(name) for name in names]
    if len(called) != len(runs) or len(set(called)) != len(called):
        raise InvalidInput("names", f"{len(runs)} different names", shown(called), "give one to each fit")
    return runs, tuple(called)


def _told(run: Calibration, kind: str | None) -> dict[str, str]:
    """What is told of a fit as a whole; its statistics where the rows are at hand."""
    told = {
        "Response": run.response,
        "Model": run.title.name,
        "Covariance": run.plan.target.words if kind in (None, run.plan.target.kind) else str(kind),
        "Rows": f"{run.plan.moments.n:,}",
    }
    try:
        found = run.fit_statistics
    except InvalidInput:  # no rows, or a loss that is no likelihood
        return told
    return told | {
        "Log-likelihood": f"{found.log_likelihood:,.2f}", "AIC": f"{found.aic:,.2f}", "BIC": f"{found.bic:,.2f}",
        found.r_squared_kind: f"{found.r_squared:.4f}",
    }  # fmt: skip
