"""How a command ends: what goes wrong in one line and an exit code, what was asked for in files."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from equipoise.cli.options import as_options

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["complain", "interrupted", "one_line_errors", "printed", "require_places", "written"]

_INTERRUPTED = 130  # what a shell expects after Ctrl-C
_SCREEN = Path("-")


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn whatever goes wrong into one line and an exit code; with `debug`, print the traceback first."""
    from equipoise.errors import EquipoiseError

    try:
        with _notes():
            yield
    except KeyboardInterrupt as stop:
        raise typer.Exit(interrupted(stop)) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, BrokenPipeError):  # the reader of our output left: typer ends quietly
            raise
        if isinstance(error, EquipoiseError):
            complain(as_options(str(error)))
        elif isinstance(error, OSError):
            complain(f"{error.filename or 'file'}: {error.strerror or error}")
        else:
            complain(
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
        warnings.showwarning = lambda message, *_, **__: _say("note", as_options(str(message)))
        yield


def interrupted(stop: KeyboardInterrupt) -> int:
    """Say where a run was stopped, if it was one, and return the exit code."""
    if str(stop):
        _say("note", str(stop))
    return _INTERRUPTED


def complain(message: str) -> None:
    """One line on the error stream."""
    _say("error", message)


def _say(kind: str, message: str) -> None:
    typer.echo(f"{kind}: {' '.join(message.split())}", err=True)


def require_places(options: dict[str, Any], *names: str) -> None:
    """Make sure, before the work, that every file asked for can be written."""
    from equipoise.files import require_writable

    for name in names:
        path = options.get(name)
        if path is not None and path != _SCREEN:
            require_writable(path, f"--{name.replace('_', '-')}")


def printed(made: Calibration, options: dict[str, Any], table: dict[str, Any]) -> bool:
    """Print JSON or CSV where that was asked for in place of the summary."""
    for name, text in (("json", made.to_json), ("csv", made.to_csv)):
        if options[name] == _SCREEN:
            typer.echo(text(**table), nl=False)
            return True
    return False


def written(made: Calibration, options: dict[str, Any], table: dict[str, Any]) -> None:
    """Write what was asked for, and say where, on the error stream when the other holds a table for a program."""
    from equipoise.report.console import write_draws

    quiet = _SCREEN in (options["json"], options["csv"])
    for name, write in (("json", made.to_json), ("csv", made.to_csv)):
        path = options[name]
        if path not in (None, _SCREEN):
            write(path, **table)
            typer.echo(f"{name}: {path}", err=quiet)
    if options["report"] is not None:
        typer.echo(f"report: {made.report(options['report'], options['interval'])}", err=quiet)
    if options["save"] is not None:
        typer.echo(f"run: {made.save(options['save'])}", err=quiet)
    if options["draws_out"] is not None:
        typer.echo(f"draws: {write_draws(made, options['draws_out'])}", err=quiet)
