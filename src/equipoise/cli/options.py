"""The options of the command line, one line each, in groups: a command takes groups, and hands on what it was given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

__all__ = [
    "AIM",
    "DASK",
    "DEBUG",
    "LENGTH",
    "MODEL",
    "MOVES",
    "OUT",
    "PROGRESS",
    "READING",
    "RUNNING",
    "SEED",
    "STEP",
    "TABLE",
]
__all__ += ["TUNING_ROWS", "Option", "as_options", "picked", "table_file", "with_options"]

_DATA, _MODEL, _TARGET, _CHAIN, _RUN, _TABLE, _OUT = (
    "Data", "Model", "Target", "Chains", "Running", "Tables and tests", "Output",
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., None])


class Option(NamedTuple):
    """An option: its Python name, type, default, panel and help, what stands for its value, and what else typer takes."""

    name: str
    kind: object
    default: object
    panel: str
    words: str
    metavar: str | None = None
    more: dict[str, Any] = {}  # noqa: RUF012

    @property
    def flag(self) -> str:
        """What is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> inspect.Parameter:
        """What typer reads."""
        about = typer.Option(self.flag, help=self.words, metavar=self.metavar, rich_help_panel=self.panel, **self.more)
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=self.default, annotation=Annotated[self.kind, about])


def _auto_or(number: type[float], words: str) -> dict[str, Any]:
    """A number, or the word that leaves it to the library."""

    def parse(text: str) -> object:
        try:
            return text if text == "auto" else number(text)
        except ValueError:
            raise typer.BadParameter(f"must be 'auto' or {words}; got {text!r}") from None

    return {"parser": parse}


def _guard(text: str) -> object:
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"must be 'auto', 'none' or a number; got {text!r}") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _small_sample(text: str) -> bool | str:
    known: dict[str, bool | str] = {"yes": True, "no": False, "min": "min"}
    if text not in known:
        raise typer.BadParameter(f"must be yes, no or min; got {text!r}")
    return known[text]


def _share(value: float) -> float:
    if not 0.0 < value < 1.0:
        raise typer.BadParameter(f"must be between 0 and 1, such as 0.95; got {value:g}")
    return value


def table_file(path: Path | None) -> Path | None:
    """Refuse a file for a table that is neither CSV nor Parquet."""
    if path is not None and path.suffix.lower() not in {".csv", ".parquet", ".pq"}:
        raise typer.BadParameter(f"must end in .csv or .parquet; got {path.name!r}")
    return path


_COUNT = _auto_or(int, "a whole number")
_COL = "COL"

READING = (
    Option(
        "weights", str | None, None, _DATA, "Column of precision weights: each multiplies the loss of its row.", _COL
    ),
    Option("frequency", str | None, None, _DATA, "Column of counts: each row stands for so many.", _COL),
    Option("offset", str | None, None, _DATA, "Column added to the predictor: log exposure.", _COL),
    Option("trials", str | None, None, _DATA, "Column of trials; the response counts successes.", _COL),
    Option(
        "clusters", Any, None, _DATA, "Column of clusters, or two: for CRV1 and CRV3.", "COL[,COL]", {"parser": _names}
    ),
    Option("time", str | None, None, _DATA, "Column that orders the rows: for HAC.", _COL),
    Option("missing", str, "raise", _DATA, "Stop at missing values, or leave those rows out.", "raise|drop"),
    Option("memory", str, "1GB", _DATA, "What reading files may take; larger ones are read at every pass.", "SIZE"),
)
DASK = (
    Option("dask", str | None, None, _DATA, "Read the files on a Dask cluster: its scheduler's address, or local for "
           "processes of this machine.", "local|ADDRESS"),
)  # fmt: skip
TUNING_ROWS = (Option("tuning_rows", int | None, None, _DATA, "Fit and tune on this many random rows.", "N"),)

MODEL = (
    Option("family", str, "gaussian", _MODEL, "gaussian, bernoulli, poisson, gamma or negative-binomial.", "NAME"),
    Option("link", str | None, None, _MODEL, "Of the bernoulli family: logit, probit or cloglog.", "NAME"),
    Option(
        "scale",
        float | None,
        None,
        _MODEL,
        "Standard deviation of the gaussian family; from the residuals if left out.",
    ),
    Option("shape", float | None, None, _MODEL, "Shape of the gamma family; estimated if left out."),
    Option(
        "dispersion",
        float | None,
        None,
        _MODEL,
        "a in the negative binomial's variance μ + a μ²; estimated if left out.",
    ),
    Option("beta", float | None, None, _MODEL, "Robust: β-divergence of this power, 1.1 to 1.5 say."),
    Option("huber", float | None, None, _MODEL, "Robust gaussian: Huber's loss with this threshold, 1.345 say."),
    Option("student", float | None, None, _MODEL, "Robust gaussian: Student's t with these degrees of freedom, 4 say."),
    Option("quantile", float | None, None, _MODEL, "Regression of this quantile, 0.5 for the median, smoothed."),
    Option("prior_precision", float, 0.0, _MODEL, "Of a normal prior on each coefficient."),
    Option("prior_mean", float, 0.0, _MODEL, "Of that prior."),
)

AIM = (
    Option("target", str, "sandwich", _TARGET, "Covariance of the draws: sandwich (right even if the model is wrong), "
           "posterior (the model's own), bayesbag, HC0 to HC3, CRV1, CRV3 or HAC.", "NAME"),
    Option("lags", int | None, None, _TARGET, "Of HAC: the largest lag; by rule if left out.", "N"),
    Option("small_sample", Any, "yes", _TARGET, "Factors of CRV1 and CRV3; min as fixest.", "yes|no|min",
           {"parser": _small_sample}),
)  # fmt: skip

MOVES = (
    Option("sampler", str, "auto", _CHAIN, "auto takes the fastest chain; control-variate, sgmcmc (tuned SGD), or gaussian: "
           "N(estimate, target).", "NAME"),
    Option("fidelity", Any, "auto", _CHAIN, "Share of the posterior's skewness the draws keep: auto, or 0 to below 1.",
           "X|auto", _auto_or(float, "a number from 0 to below 1")),
    Option("batch_size", Any, "auto", _CHAIN, "Rows per step.", "N|auto", _COUNT),
    Option("batches", str, "auto", _CHAIN, "How rows are drawn: auto, independent, leverage or epochs.", "NAME"),
    Option("gradient", str, "auto", _CHAIN, "auto, plain or control-variate.", "NAME"),
    Option("noise", str, "auto", _CHAIN, "auto, langevin, or completed to the target.", "NAME"),
    Option("momentum", float, 0.0, _CHAIN, "Heavy-ball coefficient, from 0 to below 1."),
    Option("inverse_temperature", Any, inf, _CHAIN, "inf is SGD; the number of rows is canonical SGLD.", "X|auto",
           _auto_or(float, "a number")),
    Option("no_replacement", bool, False, _CHAIN, "Draw the rows of a batch without replacement."),
    Option("proxy", str, "dq-exact", _CHAIN, "Model of the noise: dq-exact, dq-const, ct or lr-ws.", "NAME"),
    Option("structure", str, "full", _CHAIN, "Form of the step matrix: full, diagonal or scalar.", "NAME"),
)  # fmt: skip
SEED = (Option("seed", int, 0, _CHAIN, "The same seed gives the same draws.", "N", {"min": 0}),)
STEP = (Option("step", float | None, None, _CHAIN, "Scalar step size; without it, the matrix tuned to the target."),)
LENGTH = (
    Option("ess", float, 1000.0, _CHAIN, "Effective draws wanted, all chains together."),
    Option("chains", int, 4, _CHAIN, "Number of chains."),
    Option("draws", int | None, None, _CHAIN, "Stored draws per chain, in place of --ess.", "N"),
    Option("thin", Any, "auto", _CHAIN, "Steps per stored draw.", "N|auto", _COUNT),
    Option("burn_in", Any, "auto", _CHAIN, "Steps before the first stored draw.", "N|auto", _COUNT),
)

RUNNING = (
    Option("refine", bool, False, _RUN, "Correct the step by pilot runs: for few rows per coefficient."),
    Option("guard", Any, "auto", _RUN, "Radius, in standard deviations, beyond which steps are held back.", "X|auto|none",
           {"parser": _guard}),
    Option("threads", int | None, None, _RUN, "Threads of the chains.", "N"),
    Option("storage", str, "float64", _RUN, "Of the rows while sampling: float64 or float32.", "NAME"),
    Option("checkpoint", Path | None, None, _RUN, "Save the state here, and resume from it when it exists.", "FILE"),
)  # fmt: skip
PROGRESS = (Option("no_progress", bool, False, _RUN, "Show no progress bar."),)

TABLE = (
    Option("interval", float, 0.95, _TABLE, "Probability of the intervals.", None, {"callback": _share}),
    Option(
        "method", str, "auto", _TABLE, "Intervals: closed (estimate ± z·se), draws (their quantiles), or auto.", "NAME"
    ),
    Option("exponentiate", bool, False, _TABLE, "Show rate ratios, odds ratios, hazard ratios."),
    Option("stars", bool, False, _TABLE, "Mark small p-values."),
)
OUT = (
    Option("test", list[str] | None, None, _TABLE, "Wald test, such as 'a = b, c = 0'; may be repeated.", "'a = b'"),
    Option("use_f", bool, False, _TABLE, "F in place of χ² for --test."),
    Option("report", Path | None, None, _OUT, "Write a page with the effects and plots.", "FILE.html"),
    Option(
        "json", Path | None, None, _OUT, "Write the tables as JSON; - prints them in place of the summary.", "FILE|-"
    ),
    Option(
        "csv",
        Path | None,
        None,
        _OUT,
        "Write the coefficients as CSV; - prints them in place of the summary.",
        "FILE|-",
    ),
    Option(
        "save",
        Path | None,
        None,
        _OUT,
        "Keep the run, for equipoise predict and table, and equipoise.load.",
        "FILE.eqz",
    ),
    Option(
        "draws_out", Path | None, None, _OUT, "Write the draws as .csv or .parquet.", "FILE", {"callback": table_file}
    ),
)
DEBUG = (Option("debug", bool, False, _OUT, "Show the traceback of an error."),)

_EVERY = (*READING, *TUNING_ROWS, *MODEL, *AIM, *MOVES, *SEED, *STEP, *LENGTH, *RUNNING, *TABLE, *OUT)


def with_options(*groups: Iterable[Option]) -> Callable[[F], F]:
    """Give a function the options of these groups, in place of `**options`."""

    def given(function: F) -> F:
        own = inspect.signature(function, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [option.parameter for group in groups for option in group]
        function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return function

    return given


def picked(options: dict[str, Any], *groups: Iterable[Option]) -> dict[str, Any]:
    """The values of these groups, under the names that the library has."""
    found = {option.name: options[option.name] for group in groups for option in group}
    if "no_replacement" in found:
        found["replacement"] = not found.pop("no_replacement")
    return found


def as_options(message: str) -> str:
    """Python arguments in a message as options: missing='drop' becomes --missing drop, and batch_size: --batch-size:."""
    names = "|".join(option.name for option in _EVERY)
    first = re.sub(rf"^({names}):", lambda m: f"--{m[1].replace('_', '-')}:", re.sub(r"^X_new:", "data:", message))
    worded = rf"\b({names})=(?:'([\w-]+)'|([\d.]+)|\.\.\.)"
    made = re.sub(worded, lambda m: f"--{m[1].replace('_', '-')} {m[2] or m[3] or '...'}", first)
    return made.replace("numpy.inf", "inf")
