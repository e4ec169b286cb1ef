"""The command line: parse, call one function, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli import options as o
from equipoise.cli.outcome import complain, interrupted, one_line_errors, printed, require_places, written

if TYPE_CHECKING:
    from distributed import Client

    from equipoise.models.problem import Model

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Calibrated stochastic-gradient MCMC: regression with intervals that hold when the model is wrong.",
)

_FIT = (*o.READING, *o.DASK, *o.TUNING_ROWS, *o.MODEL, *o.AIM, *o.MOVES, *o.SEED, *o.LENGTH)
_FORMATS = ("text", "markdown", "latex", "html")

Data = Annotated[
    Path, typer.Argument(help="CSV, Parquet or Arrow: a file with a header row, a folder, or a glob in quotes.")
]
Formula = Annotated[str, typer.Argument(help="Such as 'count ~ age + C(region)'; C() marks categories.")]
Run = Annotated[Path, typer.Argument(help="A run kept by equipoise fit --save.", metavar="RUN.eqz")]


@app.command("fit")
@o.with_options(_FIT, o.RUNNING, o.PROGRESS, o.TABLE, o.OUT, o.DEBUG)
def fit_command(data: Data, formula: Formula, **options: Any) -> None:
    """Fit a regression and draw from the target around it.

    Prints the coefficients with z, p and intervals, and how the draws compare with what was predicted for them.

    Example: equipoise fit visits.csv "visits ~ age + C(plan)" --family poisson --target CRV1 --clusters firm --report out.html
    """
    with one_line_errors(options["debug"]):
        import equipoise as eq
        from equipoise.report.console import show

        require_places(options, "report", "json", "csv", "save", "draws_out", "checkpoint")
        # tables and pages read the rows as the fit does, so the cluster stays until all is written
        with _connected(options["dask"]) as client:
            made = eq.calibrate(
                _model(options), data, formula=formula, executor=client, progress=not options["no_progress"],
                **o.picked(options, o.READING, o.TUNING_ROWS, o.AIM, o.MOVES, o.SEED, o.LENGTH, o.RUNNING),
            )  # fmt: skip
            shown = {name: options[name] for name in ("method", "exponentiate")}
            table = {"level": options["interval"], **shown}
            if not printed(made, options, table):
                show(made.summary(options["interval"], stars=options["stars"], **shown))
            for hypothesis in options["test"] or ():
                typer.echo(f"test: {made.test(hypothesis, options['use_f'])}")
            written(made, options, table)


@app.command("plan")
@o.with_options(_FIT, o.DEBUG)
def plan_command(data: Data, formula: Formula, **options: Any) -> None:
    """Say what a run would cost, without sampling: steps, rows touched, effective draws, time, and the other chains' cost.

    Example: equipoise plan visits.csv "visits ~ age + C(plan)" --family poisson --ess 4000
    """
    with one_line_errors(options["debug"]):
        import equipoise as eq

        chosen = o.picked(options, o.READING, o.TUNING_ROWS, o.AIM, o.MOVES, o.SEED, o.LENGTH)
        with _connected(options["dask"]) as client:
            typer.echo(str(eq.plan(_model(options), data, formula=formula, executor=client, **chosen)))


_PREVIEWED = tuple(
    option for option in o.MOVES if option.name in ("batch_size", "momentum", "inverse_temperature", "no_replacement")
)
_NAMED = tuple(option for option in o.AIM if option.name == "target")


@app.command("theory")
@o.with_options(o.STEP, o.READING, o.TUNING_ROWS, o.MODEL, _NAMED, _PREVIEWED, o.SEED, o.DEBUG)
def theory_command(data: Data, formula: Formula, **options: Any) -> None:
    """Predict what a chain would do: its covariance, stability, bias and mixing, without running it.

    With --step, for that scalar step size; without, for the matrix tuned to the target. Stability is the spectral
    radius (below 1) and the largest stable step; iact is the integrated autocorrelation time in steps.

    Example: equipoise theory visits.csv "visits ~ age" --family poisson --step 0.01 --batch-size 100
    """
    with one_line_errors(options["debug"]):
        import equipoise as eq
        from equipoise.calibration.preview import preview
        from equipoise.report.console import show
        from equipoise.report.summary import summarise_law

        problem = eq.bind(_model(options), data, formula=formula, **o.picked(options, o.READING))
        found = preview(
            problem, options["target"], options["step"], **o.picked(options, o.TUNING_ROWS, _PREVIEWED, o.SEED)
        )
        show(summarise_law(found))


@app.command("predict")
@o.with_options(o.TABLE[:2], o.DEBUG)
def predict_command(
    run: Run,
    data: Annotated[str, typer.Argument(help="Files with the columns of the formula: a path, a glob or a folder.")],
    kind: Annotated[
        str, typer.Option(help="What the interval is for: mean, or a new observation.", metavar="NAME")
    ] = "mean",
    out: Annotated[
        Path | None, typer.Option(help="Write them as .csv or .parquet.", metavar="FILE", callback=o.table_file)
    ] = None,
    **options: Any,
) -> None:
    """Predict the response at new rows with a run that was kept: CSV with estimate, lower and upper.

    Example: equipoise predict run.eqz new.csv --interval 0.9 --out predicted.csv
    """
    with one_line_errors(options["debug"]):
        import equipoise as eq

        require_places({"out": out}, "out")
        found = eq.load(run).predict(data, options["interval"], kind=kind, method=options["method"], to=out)
        if isinstance(found, Path):
            typer.echo(f"predictions: {found}")
        else:
            typer.echo(found.to_csv(index=False, lineterminator="\n"), nl=False)


@app.command("table")
@o.with_options(o.TABLE, o.DEBUG)
def table_command(
    runs: Annotated[list[Path], typer.Argument(help="Runs kept by equipoise fit --save.", metavar="RUN.eqz...")],
    below: Annotated[
        str, typer.Option(help="Below an estimate: std_error, statistic, p_value or interval.", metavar="NAME")
    ] = "std_error",
    kind: Annotated[
        str | None, typer.Option(help="Another covariance: posterior, sandwich, HC0, HC1.", metavar="NAME")
    ] = None,
    names: Annotated[str | None, typer.Option(help="What to call them; their files by default.", metavar="A,B")] = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or html.", metavar="NAME")] = "text",
    out: Annotated[Path | None, typer.Option(help="Write it to a file.", metavar="FILE")] = None,
    **options: Any,
) -> None:
    """Show runs that were kept side by side.

    Example: equipoise table small.eqz large.eqz --format latex --below interval
    """
    with one_line_errors(options["debug"]):
        import equipoise as eq
        from equipoise.checks import one_of
        from equipoise.files import write_atomic

        require_places({"out": out}, "out")
        one_of("--format", form, _FORMATS)
        called = [path.stem for path in runs] if names is None else [name.strip() for name in names.split(",")]
        made = eq.compare_fits(
            [eq.load(path) for path in runs], called, level=options["interval"], kind=kind, below=below,
            exponentiate=options["exponentiate"], stars=options["stars"], method=options["method"],
        )  # fmt: skip
        text = getattr(made, f"to_{form}")() + "\n"
        if out is None:
            typer.echo(text, nl=False)
        else:
            typer.echo(f"table: {write_atomic(out, text.encode())}")


_SETTINGS = "Simulated data as the paper's text describes them, or as its released scripts make them."


@app.command("reproduce")
@o.with_options(o.SEED, o.PROGRESS, o.DEBUG)
def reproduce_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Such as table1 figure-w2, or all.", metavar="NAME...")
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Small sizes: whether it works, in less than two minutes.")
    ] = False,
    settings: Annotated[str, typer.Option(help=_SETTINGS, metavar="described|released|both")] = "both",
    german_csv: Annotated[Path | None, typer.Option(help="The German credit data.", metavar="FILE")] = None,
    reps: Annotated[int | None, typer.Option(help="Repetitions of every cell; 30 by default.", metavar="N")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pages; a stopped run goes on there.", metavar="DIR")] = Path(
        "out/reproduce"
    ),
    **options: Any,
) -> None:
    """Regenerate the paper's tables and figures, each with a verdict; under half an hour for all of them.

    Writes JSON, Markdown and pictures, and index.html, which shows the paper's number, ours and the Monte Carlo floor.

    Example: equipoise reproduce table1 figure1 --out out/reproduce
    """
    with one_line_errors(options["debug"]):
        from equipoise.experiments import reproduce

        page = reproduce(
            names, out, smoke=smoke, settings=settings, german_csv=german_csv, repetitions=reps, seed=options["seed"],
            progress=not options["no_progress"],
        )  # fmt: skip
        typer.echo(f"page: {page}")


@contextmanager
def _connected(address: str | None) -> Iterator[Client | None]:
    """The client of a cluster, started here for `local`; nothing without an address."""
    if address is None:
        yield None
        return
    from equipoise.data.cluster import connected

    with connected(address) as client:
        yield client


def _model(options: dict[str, Any]) -> Model:
    """The model the options describe."""
    import equipoise as eq
    from equipoise.errors import InvalidInput

    robust = {"beta": eq.Beta, "huber": eq.Huber, "student": eq.StudentT, "quantile": eq.Pinball}
    asked = [name for name in robust if options[name] is not None]
    if len(asked) > 1:
        raise InvalidInput(
            f"--{asked[1]}", "left out where another robust loss is asked for", f"--{asked[0]} too", "choose one"
        )
    divergence = robust[asked[0]](options[asked[0]]) if asked else None
    own = {name: options[name] for name in ("family", "link", "scale", "shape", "dispersion")}
    return eq.glm(
        **own, divergence=divergence, prior_precision=options["prior_precision"], prior_mean=options["prior_mean"]
    )


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
        code = app(prog_name="equipoise", standalone_mode=False)
    except KeyboardInterrupt as stop:
        code = interrupted(stop)
    except Exception as error:
        # newer versions of typer carry their own click, so its usage error is known by its method, not by its class
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        place = getattr(getattr(error, "ctx", None), "command_path", "equipoise")
        complain(f"{message().rstrip('.')}. See '{place} --help'.")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)
