"""The command line: parse, call one function, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Calibrated stochastic-gradient MCMC: regression with intervals that hold when the model is wrong.",
)

_INTERRUPTED = 130  # what a shell expects after Ctrl-C

_DATA, _MODEL, _CHAIN, _OUT = "Data", "Model", "Target and chains", "Output"


def _batch(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise typer.BadParameter(f"must be 'auto' or a whole number; got {text!r}")


def _fidelity(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise typer.BadParameter(f"must be 'auto' or a number from 0 to below 1; got {text!r}") from None


def _share(value: float) -> float:
    if not 0.0 < value < 1.0:
        raise typer.BadParameter(f"must be between 0 and 1, such as 0.95; got {value:g}")
    return value


def _table_file(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in {".csv", ".parquet", ".pq"}:
        raise typer.BadParameter(f"must end in .csv or .parquet; got {path.name!r}")
    return path


def _option(name: str, panel: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(name, help=text, metavar=metavar, rich_help_panel=panel, **more)


Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file with a header row, a folder, or a quoted glob.")]
Formula = Annotated[str, typer.Argument(help="Such as 'count ~ age + C(region)'; C() marks categories.")]

_WEIGHTS = "Column of precision weights: each multiplies the loss of its row."
Weights = Annotated[str | None, _option("--weights", _DATA, _WEIGHTS, "COL")]
Frequency = Annotated[
    str | None, _option("--frequency", _DATA, "Column of counts: each row stands for so many.", "COL")
]
Offset = Annotated[str | None, _option("--offset", _DATA, "Column added to the predictor: log exposure.", "COL")]
Missing = Annotated[str, _option("--missing", _DATA, "Stop at missing values, or leave those rows out.", "raise|drop")]
_DASK = "Read the files on a Dask cluster: its scheduler's address, or local for processes of this machine."
Dask = Annotated[str | None, _option("--dask", _DATA, _DASK, "local|ADDRESS")]
TuningRows = Annotated[int | None, _option("--tuning-rows", _DATA, "Fit and tune on this many random rows.", "N")]

_FAMILIES = "gaussian, bernoulli (logit), poisson, gamma or negative-binomial."
_SCALE = "Standard deviation of the gaussian family; from the residuals if left out."
_DISPERSION = "a in the negative binomial's variance μ + a μ²; 1 if left out."
Family = Annotated[str, _option("--family", _MODEL, _FAMILIES, "NAME")]
Scale = Annotated[float | None, _option("--scale", _MODEL, _SCALE)]
Shape = Annotated[float | None, _option("--shape", _MODEL, "Shape of the gamma family; 1 if left out.")]
Dispersion = Annotated[float | None, _option("--dispersion", _MODEL, _DISPERSION)]
Robust = Annotated[float | None, _option("--beta", _MODEL, "Robust: β-divergence of this power, 1.1 to 1.5 say.")]
Prior = Annotated[float, _option("--prior-precision", _MODEL, "Of a normal prior at zero on each coefficient.")]

_TARGETS = (
    "Covariance of the draws: sandwich (right even if the model is wrong), posterior (the model's own) or bayesbag."
)
_SAMPLERS = "auto takes the fastest chain; control-variate, sgmcmc (tuned SGD), or gaussian: N(estimate, target)."
_FIDELITY = "Share of the posterior's skewness the draws keep: auto, or 0 to below 1."
_BATCHES = "How rows are drawn: auto, independent, leverage or epochs."
_STEP = "Scalar step size; without it, the matrix tuned to the target."
_BETA = "inf is SGD; the number of rows is canonical SGLD."
Target = Annotated[str, _option("--target", _CHAIN, _TARGETS, "NAME")]
Sampler = Annotated[str, _option("--sampler", _CHAIN, _SAMPLERS, "NAME")]
Fidelity = Annotated[Any, _option("--fidelity", _CHAIN, _FIDELITY, "X|auto", parser=_fidelity)]
Batches = Annotated[str, _option("--batches", _CHAIN, _BATCHES, "NAME")]
Ess = Annotated[float, _option("--ess", _CHAIN, "Effective draws wanted, all chains together.")]
Chains = Annotated[int, _option("--chains", _CHAIN, "Number of chains.")]
Seed = Annotated[int, _option("--seed", _CHAIN, "The same seed gives the same draws.", min=0)]
BatchSize = Annotated[Any, _option("--batch-size", _CHAIN, "Rows per step.", "N|auto", parser=_batch)]
Momentum = Annotated[float, _option("--momentum", _CHAIN, "Heavy-ball coefficient, from 0 to below 1.")]
Temperature = Annotated[float, _option("--inverse-temperature", _CHAIN, _BETA)]
NoReplacement = Annotated[bool, _option("--no-replacement", _CHAIN, "Draw the rows of a batch without replacement.")]
Refine = Annotated[bool, _option("--refine", _CHAIN, "Correct the step by pilot runs: for few rows per coefficient.")]
Step = Annotated[float | None, _option("--step", _CHAIN, _STEP)]

_SETTINGS = "Simulated data as the paper's text describes them, or as its released scripts make them."
_CHECKPOINT = "Save the state here, and resume from it when it exists."
Interval = Annotated[float, _option("--interval", _OUT, "Probability of the intervals.", callback=_share)]
Report = Annotated[Path | None, _option("--report", _OUT, "Write a page with the plots.", "FILE.html")]
Save = Annotated[Path | None, _option("--save", _OUT, "Keep the run, for equipoise.load in Python.", "FILE.eqz")]
DrawsOut = Annotated[
    Path | None, _option("--draws-out", _OUT, "Write the draws as .csv or .parquet.", "FILE", callback=_table_file)
]
CheckpointFile = Annotated[Path | None, _option("--checkpoint", _OUT, _CHECKPOINT, "FILE")]
NoProgress = Annotated[bool, _option("--no-progress", _OUT, "Show no progress bar.")]
Debug = Annotated[bool, _option("--debug", _OUT, "Show the traceback of an error.")]


@contextmanager
def _dask(address: str | None) -> Iterator[Any]:
    """The client of a cluster, started here for `local`; nothing without an address."""
    if address is None:
        yield None
        return
    from equipoise.data.cluster import connected

    with connected(address) as client:
        yield client


@app.command("fit")
def fit_command(
    data: Data,
    formula: Formula,
    family: Family = "gaussian",
    scale: Scale = None,
    shape: Shape = None,
    dispersion: Dispersion = None,
    beta: Robust = None,
    prior_precision: Prior = 0.0,
    weights: Weights = None,
    frequency: Frequency = None,
    offset: Offset = None,
    missing: Missing = "raise",
    dask: Dask = None,
    tuning_rows: TuningRows = None,
    target: Target = "sandwich",
    sampler: Sampler = "auto",
    fidelity: Fidelity = "auto",
    refine: Refine = False,
    ess: Ess = 1000,
    chains: Chains = 4,
    seed: Seed = 0,
    batch_size: BatchSize = "auto",
    batches: Batches = "auto",
    momentum: Momentum = 0.0,
    inverse_temperature: Temperature = inf,
    no_replacement: NoReplacement = False,
    interval: Interval = 0.95,
    report: Report = None,
    save: Save = None,
    draws_out: DrawsOut = None,
    checkpoint: CheckpointFile = None,
    no_progress: NoProgress = False,
    debug: Debug = False,
) -> None:
    """Fit a regression and draw from the target around it.

    Prints the coefficients with their intervals, and how the draws compare with what was predicted for them.

    Example: equipoise fit visits.csv "visits ~ age + C(plan)" --family poisson --report out.html
    """
    with _one_line_errors(debug):
        import equipoise as eq
        from equipoise.report.console import show

        _require_places(report=report, save=save, draws_out=draws_out, checkpoint=checkpoint)
        model = _model(family, scale, shape, dispersion, beta, prior_precision)
        with _dask(dask) as client:
            made = eq.calibrate(
                model, data, target, ess, chains, seed, sampler=sampler, refine=refine, formula=formula, weights=weights,
                frequency=frequency, offset=offset, missing=missing, progress=not no_progress, checkpoint=checkpoint,
                batch_size=batch_size, momentum=momentum, inverse_temperature=inverse_temperature,
                replacement=not no_replacement, tuning_rows=tuning_rows, fidelity=fidelity, batches=batches, executor=client,
            )  # fmt: skip
        show(made.summary(interval))
        _write(made, interval, report, save, draws_out)


@app.command("plan")
def plan_command(
    data: Data,
    formula: Formula,
    family: Family = "gaussian",
    scale: Scale = None,
    shape: Shape = None,
    dispersion: Dispersion = None,
    beta: Robust = None,
    prior_precision: Prior = 0.0,
    weights: Weights = None,
    frequency: Frequency = None,
    offset: Offset = None,
    missing: Missing = "raise",
    dask: Dask = None,
    tuning_rows: TuningRows = None,
    target: Target = "sandwich",
    sampler: Sampler = "auto",
    fidelity: Fidelity = "auto",
    ess: Ess = 1000,
    chains: Chains = 4,
    seed: Seed = 0,
    batch_size: BatchSize = "auto",
    batches: Batches = "auto",
    momentum: Momentum = 0.0,
    inverse_temperature: Temperature = inf,
    no_replacement: NoReplacement = False,
    debug: Debug = False,
) -> None:
    """Say what a run would cost, without sampling: steps, rows touched, effective draws, time, and the other chains' cost.

    Example: equipoise plan visits.csv "visits ~ age + C(plan)" --family poisson --ess 4000
    """
    with _one_line_errors(debug):
        import equipoise as eq

        model = _model(family, scale, shape, dispersion, beta, prior_precision)
        with _dask(dask) as client:
            budget = eq.plan(
                model, data, target, ess, chains, seed, formula=formula, weights=weights, frequency=frequency,
                offset=offset, missing=missing, batch_size=batch_size, momentum=momentum,
                inverse_temperature=inverse_temperature, replacement=not no_replacement, tuning_rows=tuning_rows,
                sampler=sampler, fidelity=fidelity, batches=batches, executor=client,
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
    beta: Robust = None,
    prior_precision: Prior = 0.0,
    weights: Weights = None,
    frequency: Frequency = None,
    offset: Offset = None,
    missing: Missing = "raise",
    tuning_rows: TuningRows = None,
    target: Target = "sandwich",
    seed: Seed = 0,
    batch_size: BatchSize = "auto",
    momentum: Momentum = 0.0,
    inverse_temperature: Temperature = inf,
    no_replacement: NoReplacement = False,
    debug: Debug = False,
) -> None:
    """Predict what a chain would do: its covariance, stability, bias and mixing, without running it.

    With --step, for that scalar step size; without, for the matrix tuned to the target. Stability is the spectral
    radius (below 1) and the largest stable step; iact is the integrated autocorrelation time in steps.

    Example: equipoise theory visits.csv "visits ~ age" --family poisson --step 0.01 --batch-size 100
    """
    with _one_line_errors(debug):
        import equipoise as eq
        from equipoise.calibration.preview import preview
        from equipoise.report.console import show
        from equipoise.report.summary import summarise_law

        problem = eq.bind(
            _model(family, scale, shape, dispersion, beta, prior_precision), data, formula=formula, weights=weights,
            frequency=frequency, offset=offset, missing=missing,
        )  # fmt: skip
        found = preview(
            problem, target, step, seed=seed, tuning_rows=tuning_rows, batch_size=batch_size, momentum=momentum,
            inverse_temperature=inverse_temperature, replacement=not no_replacement,
        )  # fmt: skip
        show(summarise_law(found))


@app.command("reproduce")
def reproduce_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Such as table1 figure-w2, or all.", metavar="NAME...")
    ] = None,
    smoke: Annotated[
        bool, _option("--smoke", _OUT, "Small sizes: whether it works, in less than two minutes.")
    ] = False,
    settings: Annotated[str, _option("--settings", _DATA, _SETTINGS, "described|released|both")] = "both",
    german_csv: Annotated[Path | None, _option("--german-csv", _DATA, "The German credit data.", "FILE")] = None,
    reps: Annotated[int | None, _option("--reps", _CHAIN, "Repetitions of every cell; 30 by default.", "N")] = None,
    seed: Seed = 0,
    out: Annotated[Path, _option("--out", _OUT, "Folder for the pages; a stopped run goes on there.", "DIR")] = Path(
        "out/reproduce"
    ),
    no_progress: NoProgress = False,
    debug: Debug = False,
) -> None:
    """Regenerate the paper's tables and figures, each with a verdict; under half an hour for all of them.

    Writes JSON, Markdown and pictures, and index.html, which shows the paper's number, ours and the Monte Carlo floor.

    Example: equipoise reproduce table1 figure1 --out out/reproduce
    """
    with _one_line_errors(debug):
        from equipoise.experiments import reproduce

        page = reproduce(
            names, out, smoke=smoke, settings=settings, german_csv=german_csv, repetitions=reps, seed=seed,
            progress=not no_progress,
        )  # fmt: skip
        typer.echo(f"page: {page}")


def _model(
    family: str, scale: float | None, shape: float | None, dispersion: float | None, beta: float | None, prior: float
) -> Any:
    """The model the options describe."""
    import equipoise as eq

    robust = None if beta is None else eq.Beta(beta)
    return eq.glm(family, scale=scale, shape=shape, dispersion=dispersion, divergence=robust, prior_precision=prior)


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
    except KeyboardInterrupt as stop:
        code = _interrupted(stop)
    except Exception as error:
        # newer versions of typer carry their own click, so its usage error is known by its method, not by its class
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _complain(f"{message().rstrip('.')}. See 'equipoise --help'.")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _one_line_errors(debug: bool) -> Iterator[None]:
    """Turn whatever goes wrong into one line and an exit code; with `debug`, print the traceback first."""
    from equipoise.errors import EquipoiseError

    try:
        with _notes():
            yield
    except KeyboardInterrupt as stop:
        raise typer.Exit(_interrupted(stop)) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, BrokenPipeError):  # the reader of our output left: typer ends quietly
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


@contextmanager
def _notes() -> Iterator[None]:
    """Print the library's warnings as they come, one line each; those of other packages are not for this reader."""
    from equipoise.errors import EquipoiseWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", EquipoiseWarning)
        warnings.showwarning = lambda message, *_, **__: _say("note", _as_options(str(message)))
        yield


def _interrupted(stop: KeyboardInterrupt) -> int:
    """Say where a run was stopped, if it was one, and return the exit code."""
    if str(stop):
        _say("note", str(stop))
    return _INTERRUPTED


def _complain(message: str) -> None:
    _say("error", message)


def _say(kind: str, message: str) -> None:
    typer.echo(f"{kind}: {' '.join(message.split())}", err=True)


def _require_places(**places: Path | None) -> None:
    """Make sure, before the work, that every file asked for can be written."""
    from equipoise.files import require_writable

    for name, path in places.items():
        if path is not None:
            require_writable(path, f"--{name.replace('_', '-')}")


def _as_options(message: str) -> str:
    """Remedies that name Python arguments, as options: missing='drop' becomes --missing drop."""
    names = "missing|sampler|fidelity|batches|prior_precision|inverse_temperature|batch_size|tuning_rows"
    known = rf"\b({names})=(?:'(\w+)'|\.\.\.)"
    return re.sub(known, lambda m: f"--{m[1].replace('_', '-')} {m[2] or '...'}", message).replace("numpy.inf", "inf")


def _write(made: Calibration, interval: float, report: Path | None, save: Path | None, draws_out: Path | None) -> None:
    """Write what was asked for, and say where."""
    from equipoise.report.console import write_draws

    if report is not None:
        typer.echo(f"report: {made.report(report, interval)}")
    if save is not None:
        typer.echo(f"run: {made.save(save)}")
    if draws_out is not None:
        typer.echo(f"draws: {write_draws(made, draws_out)}")
