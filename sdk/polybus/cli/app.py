"""The commands, and how every one of them ends."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import typer
from typer.core import TyperGroup

from .analyse import analyse
from .bench import bench
from .bridge import bridge
from .broker import broker
from .capture import commands as capture
from .client import publish, request, stream, subscribe
from .demo import demo
from .doctor import doctor
from .inspect import inspect
from .journey import journey
from .problems import describe, say
from .record import record, replay
from .schema import schema
from .serve import serve
from .stores import dead, stores

app: typer.Typer = typer.Typer(
    name="polybus",
    help="RPC and publish/subscribe over any protocol and any transport.",
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    demo, serve, schema, request, stream, publish, subscribe, bridge, broker, record, replay, inspect, analyse, journey, doctor,
    bench
)  # fmt: skip
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(capture)
app.add_typer(stores)
app.add_typer(dead)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(version("polybus"))
        except PackageNotFoundError:
            typer.echo("not installed, run from its source")
        raise typer.Exit


@app.callback()
def _options(
    show_version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """RPC and publish/subscribe over any protocol and any transport."""


def _open_closed_streams() -> None:
    """Open streams that were closed (`>&-`) on the null device, so that no socket gets their numbers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # until the process ends


@cache
def command() -> TyperGroup:
    """All commands, as they are parsed: a tenth of a second to make, from the signatures of their functions."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    return made


def run(arguments: Sequence[str]) -> int:
    """The exit status of a command line. What went wrong has been said in one line on stderr."""
    _open_closed_streams()
    logging.getLogger("polybus").addHandler(logging.NullHandler())  # a command says in one line what went wrong
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):  # a terminal that cannot show a letter must not end the command
            output.reconfigure(errors="replace")
    try:
        outcome = command().main(
            args=list(arguments) or ["--help"], prog_name="polybus", standalone_mode=False, obj=list(arguments)
        )
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:  # typer and rich make status 1 of it
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # Whoever read our output has gone (`| head`). Python would complain once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        text, status = describe(error)
        say(text)
        return status
    return outcome if isinstance(outcome, int) else 0
