"""The command line: parse, call one function, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from equipoise.calibration import Calibration
    from equipoise.report.summary import Summary

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Calibrated stochastic-gradient MCMC: regression with intervals that hold when the model is wrong.",
)

_INTERRUPTED = 130  # what a shell expects after Ctrl-C
_PIPE_WIDTH = 200  # columns of a table that is not printed on a terminal

_DATA, _MODEL, _CHAIN, _OUT = "Data", "Model", "Target and chains", "Output"


def _batch(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise typer.BadParameter(f"must be 'auto' or a whole number; got {text!r}")


def _share(value: float) -> float:
    if not 0.0 < value < 1.0:
        raise typer.BadParameter(f"must be between 0 and 1, such as 0.95; got {value:g}")
    return value


def _table_file(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in {".csv", ".parquet", ".pq"}:
        raise typer.BadParameter(f"must end in .csv or .parquet; got {path.name!r}")
    return path


def _option(*names: str, panel: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, **more)


Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file with a header row.", show_default=False)]
Formula = Annotated[
    str,
    typer.Argument(
        help="What to explain by what: 'count ~ age + C(region)'. C() marks categories.", show_default=False
    ),
]
Weights = Annotated[str | None, _option("--weights", panel=_DATA, metavar="COL", text="Column of positive weights.")]
Offset = Annotated[
    str | None,
    _option("--offset", panel=_DATA, metavar="COL", text="Column added to the predictor, such as log exposure."),
]
Missing = Annotated[
    str,
    _option("--missing", panel=_DATA, metavar="raise|drop", text="Stop at missing values, or leave those rows out."),
]
TuningRows = Annotated[
    int | None,
    _option("--tuning-rows", panel=_DATA, metavar="N", text="Fit and tune on this many random rows; sample on all."),
]
Family = Annotated[
    str,
    _option(
        "--family",
        panel=_MODEL,
        metavar="NAME",
        text="gaussian, bernoulli (logit), poisson, gamma or negative-binomial.",
    ),
]
Scale = Annotated[
    float | None,
    _option("--scale", panel=_MODEL, text="Standard deviation of the gaussian family; from the residuals if left out."),
]
Shape = Annotated[float | None, _option("--shape", panel=_MODEL, text="Shape of the gamma family; 1 if left out.")]
Dispersion = Annotated[
    float | None,
    _option("--dispersion", panel=_MODEL, text="a in the negative binomial's variance μ + a μ²; 1 if left out."),
]
Prior = Annotated[
    float, _option("--prior-precision", panel=_MODEL, text="Precision of a normal prior at zero on each coefficient.")
]
Target = Annotated[
    str,
    _option(
        "--target",
        panel=_CHAIN,
        metavar="sandwich|posterior|bayesbag",
        text="Covariance of the draws: robust to a wrong model, the model's own, or the bagged posterior's.",
    ),
]
Ess = Annotated[float, _option("--ess", panel=_CHAIN, text="Effective draws wanted, all chains together.")]
Chains = Annotated[int, _option("--chains", panel=_CHAIN, text="Number of chains.")]
Seed = Annotated[int, _option("--seed", panel=_CHAIN, text="The same seed gives the same draws.")]
BatchSize = Annotated[
    Any, _option("--batch-size", panel=_CHAIN, metavar="N|auto", parser=_batch, text="Rows per step.")
]
Momentum = Annotated[float, _option("--momentum", panel=_CHAIN, text="Heavy-ball coefficient, from 0 to below 1.")]
Temperature = Annotated[
    float,
    _option("--inverse-temperature", panel=_CHAIN, text="inf is SGD; the number of rows is canonical SGLD."),
]
Replacement = Annotated[
    bool,
    _option(
        "--replacement/--no-replacement", panel=_CHAIN, text="Draw the rows of a batch with or without replacement."
    ),
]
Step = Annotated[
    float | None,
    _option(
        "--step", panel=_CHAIN, text="Scalar step size; without it, the matrix tuned to the target.", show_default=False
    ),
]
Sampler = Annotated[
    str,
    _option(
        "--sampler", panel=_CHAIN, metavar="sgmcmc|gaussian", text="Run the chains, or draw from N(estimate, target)."
    ),
]
Interval = Annotated[float, _option("--interval", panel=_OUT, callback=_share, text="Probability of the intervals.")]
Report = Annotated[
    Path | None, _option("--report", panel=_OUT, metavar="FILE.html", text="Write a page with the plots.")
]
Save = Annotated[
    Path | None, _option("--save", panel=_OUT, metavar="FILE.eqz", text="Keep the run, for equipoise.load in Python.")
]
DrawsOut = Annotated[
    Path | None,
    _option(
        "--draws-out", panel=_OUT, metavar="FILE", callback=_table_file, text="Write the draws as .csv or .parquet."
    ),
]
CheckpointFile = Annotated[
    Path | None,
    _option("--checkpoint", panel=_OUT, metavar="FILE", text="Save the state here, and resume from it when it exists."),
]
ShowProgress = Annotated[
    bool, _option("--progress/--no-progress", panel=_OUT, text="Show a progress bar on long runs.")
]
Debug = Annotated[bool, _option("--debug", panel=_OUT, text="Show the traceback of an error.")]


@app.command("fit")
def fit_command(
    data: Data,
    formula: Formula,
    family: Family = "gaussian",
    scale: Scale = None,
    shape: Shape = None,
    dispersion: Dispersion = None,
    prior_precision: Prior = 0.0,
    weights: Weights = None,
    offset: Offset = None,
    missing: Missing = "raise",
    tuning_rows: TuningRows = None,
    target: Target = "sandwich",
    sampler: Sampler = "sgmcmc",
    ess: Ess = 1000,
    chains: Chains = 4,
    seed: Seed = 0,
    batch_size: BatchSize = "auto",
    momentum: Momentum = 0.0,
    inverse_temperature: Temperature = inf,
    replacement: Replacement = True,
    interval: Interval = 0.95,
    report: Report = None,
    save: Save = None,
    draws_out: DrawsOut = None,
    checkpoint: CheckpointFile = None,
    progress: ShowProgress = True,
    debug: Debug = False,
) -> None:
    """Fit a regression and draw from the target around it.

    Prints the coefficients with their intervals, and how the draws compare with what was predicted for them.

    Example: equipoise fit visits.csv "visits ~ age + C(plan)" --family poisson --report out.html
    """
    with _one_line_errors(debug):
        import equipoise as eq

        model = eq.glm(family, scale=scale, shape=shape, dispersion=dispersion, prior_precision=prior_precision)
        made = eq.calibrate(
            model, data, target, ess, chains, seed, sampler=sampler, formula=formula, weights=weights, offset=offset,
            missing=missing, progress=progress, checkpoint=checkpoint, batch_size=batch_size, momentum=momentum,
            inverse_temperature=inverse_temperature, replacement=replacement, tuning_rows=tuning_rows,
        )  # fmt: skip
        _show(made.summary(interval))
        _write(made, interval, report, save, draws_out)


@app.command("plan")
def plan_command(
    data: Data,
    formula: Formula,
    family: Family = "gaussian",
    scale: Scale = None,
    shape: Shape = None,
    dispersion: Dispersion = None,
    prior_precision: Prior = 0.0,
    weights: Weights = None,
    offset: Offset = None,
    missing: Missing = "raise",
    tuning_rows: TuningRows = None,
    target: Target = "sandwich",
    ess: Ess = 1000,
    chains: Chains = 4,
    seed: Seed = 0,
    batch_size: BatchSize = "auto",
    momentum: Momentum = 0.0,
    inverse_temperature: Temperature = inf,
    replacement: Replacement = True,
    debug: Debug = False,
) -> None:
    """Say what a run would cost, without sampling: steps, rows touched, effective draws, time.

    Example: equipoise plan visits.csv "visits ~ age + C(plan)" --family poisson --ess 4000
    """
    with _one_line_errors(debug):
        import equipoise as eq

        model = eq.glm(family, scale=scale, shape=shape, dispersion=dispersion, prior_precision=prior_precision)
        budget = eq.plan(
            model, data, target, ess, chains, seed, formula=formula, weights=weights, offset=offset, missing=missing,
            batch_size=batch_size, momentum=momentum, inverse_temperature=inverse_temperature, replacement=replacement,
            tuning_rows=tuning_rows,
        )  # fmt: skip
        typer.echo(str(budget))


@app.command("theory")
def theory_command(
    data: Data,
    formula: Formula,
    step: Step = None,
    family: Family = "gaussian",
    scale: Scale = None,
    shape: Shape = None,
    dispersion: Dispersion = None,
    prior_precision: Prior = 0.0,
    weights: Weights = None,
    offset: Offset = None,
    missing: Missing = "raise",
    tuning_rows: TuningRows = None,
    target: Target = "sandwich",
    seed: Seed = 0,
    batch_size: BatchSize = "auto",
    momentum: Momentum = 0.0,
    inverse_temperature: Temperature = inf,
    replacement: Replacement = True,
    debug: Debug = False,
) -> None:
    """Predict what a chain would do: its covariance, stability, bias and mixing, without running it.

    With --step, for that scalar step size; without, for the matrix tuned to the target. Stability is the spectral
    radius (below 1) and the largest stable step; iact is the integrated autocorrelation time in steps.

    Example: equipoise theory visits.csv "visits ~ age" --family poisson --step 0.01 --batch-size 100
    """
    with _one_line_errors(debug):
        import equipoise as eq
        from equipoise.report.summary import summarise_law

        model = eq.glm(family, scale=scale, shape=shape, dispersion=dispersion, prior_precision=prior_precision)
        rows = eq.data.table(data, formula, weights=weights, offset=offset, missing=missing)
        if batch_size == "auto":
            batch_size = eq.plan(model, rows, tuning_rows=tuning_rows, seed=seed).tuning.dynamics.batch_size
        fitted = eq.fit(model, rows, tuning_rows=tuning_rows, seed=seed)
        moments = eq.moments(model, rows, fitted.params, tuning_rows=tuning_rows, seed=seed)
        dynamics = eq.Dynamics(batch_size, momentum, inverse_temperature, replacement)
        wanted = _target(target, moments)
        law = eq.tune(moments, wanted, dynamics).predicted if step is None else eq.stationary(moments, step, dynamics)
        _show(summarise_law(moments, law, wanted, target))


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from equipoise import __version__

        typer.echo(f"equipoise {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line: exit code 0, 2 for a usage or input error, 1 for a bug, 130 after Ctrl-C."""
    try:
        code = app(standalone_mode=False)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        # newer versions of typer carry their own click, so its usage error is known by its method, not by its class
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _complain(f"{message()} See 'equipoise --help'.")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _one_line_errors(debug: bool) -> Iterator[None]:
    """Turn whatever goes wrong into one line and an exit code; with `debug`, print the traceback first."""
    from equipoise.errors import EquipoiseError

    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, BrokenPipeError):
            raise
        if isinstance(error, EquipoiseError):
            _complain(_as_options(str(error)))
        elif isinstance(error, OSError):
            _complain(f"{error.filename or 'file'}: {error.strerror or error}")
        else:
            _complain(
                f"unexpected {type(error).__name__}: {error}. Rerun with --debug for the traceback, and report it."
            )
            raise typer.Exit(1) from None
        raise typer.Exit(2) from None


def _complain(message: str) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)


def _as_options(message: str) -> str:
    """Remedies that name Python arguments, as options: missing='drop' becomes --missing drop."""
    known = r"\b(missing|sampler|prior_precision|inverse_temperature|batch_size|tuning_rows)=(?:'(\w+)'|\.\.\.)"
    return re.sub(known, lambda m: f"--{m[1].replace('_', '-')} {m[2] or '...'}", message).replace("numpy.inf", "inf")


def _target(name: str, moments: Any) -> Any:
    from equipoise.targets import target_matrix

    return target_matrix(name, moments)


def _show(summary: Summary) -> None:
    """Print a summary: header, table, footer."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(Text(summary.title, style="bold"))
    head = Table.grid(padding=(0, 3))
    for name, value in summary.header:
        head.add_row(Text(name, style="dim"), Text(value))
    console.print(head)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    cells = summary.cells()
    table.add_column("", no_wrap=True)
    for name in cells.columns:
        table.add_column(Text(str(name)), justify="right", no_wrap=True)
    for name, row in zip(cells.index, cells.to_numpy(), strict=True):
        table.add_row(*(Text(str(cell)) for cell in (name, *row)))
    console.print(table)
    for line in summary.footer:
        console.print(Text(line, style="yellow" if line.startswith("LOOK") else ""))


def _write(made: Calibration, interval: float, report: Path | None, save: Path | None, draws_out: Path | None) -> None:
    """Write what was asked for, and say where."""
    if report is not None:
        from equipoise.report.page import write_report

        typer.echo(f"report: {write_report(made, report, interval)}")
    if save is not None:
        typer.echo(f"run: {made.save(save)}")
    if draws_out is not None:
        _write_draws(made, draws_out)
        typer.echo(f"draws: {draws_out}")


def _write_draws(made: Calibration, path: Path) -> None:
    """One row per draw: chain, draw, and one column per parameter."""
    import numpy as np
    import pandas as pd

    count, length, _ = made.draws.shape
    frame = pd.DataFrame(made.chains.flat(), columns=list(made.names))
    frame.insert(0, "draw", np.tile(np.arange(length), count), allow_duplicates=True)
    frame.insert(0, "chain", np.repeat(np.arange(count), length), allow_duplicates=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
