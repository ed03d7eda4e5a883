"""The commands, and their exit."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import typer
from typer.core import TyperGroup

from .problems import describe, say

_COMMANDS: Final = {
    "demo": ("demo:demo", "Run a 20-second demo of two programs."),
    "new": ("new:new", "Write a small service with tests, to start from."),
    "serve": ("serve:serve", "Serve a bus until SIGINT or SIGTERM."),
    "schema": ("serve:schema", "Describe the subjects of a bus or a contract."),
    "request": ("client:request", "Send a request and print the answer as JSON."),
    "stream": ("client:stream", "Request a stream and print its items, one line of JSON each."),
    "publish": ("client:publish", "Publish a message."),
    "subscribe": ("client:subscribe", "Print publications, one line of JSON each."),
    "bridge": ("bridge:bridge", "Bridge requests and publications between two buses."),
    "broker": ("broker:broker", "Route CSB frames between clients and servers."),
    "record": ("capture:record", "Record every frame to and from a server, as a proxy."),
    "replay": ("capture:replay", "Replay recorded client traffic to a server."),
    "inspect": ("inspect:inspect", "Decode frames and show their faults."),
    "analyse": ("analyse:analyse", "Analyse a capture: tables, metrics and an HTML report."),
    "journey": ("analyse:journey", "Show the journey of a request, by id, subject or time."),
    "doctor": ("doctor:doctor", "Connect step by step and report the step that fails."),
    "bench": ("bench:bench", "Measure round trips, requests and publications per second."),
    "capture": ("capture:commands", "Inspect, check, repair and export captures."),
    "store": ("stores:stores", "Stores of a cluster: publications kept by its engine."),
    "dead": ("stores:dead", "Dead letters: stored publications that failed every attempt."),
}
"""Module and attribute (a function, or a group) and help line of each command: the list of commands imports none."""


class _Group(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


app: typer.Typer = typer.Typer(
    name="polybus",
    cls=_Group,
    help="RPC and publish/subscribe over any protocol and any transport.",
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cache
def _made(where: str) -> Any:
    """Import the command of a table row for the parser."""
    module, _, attribute = where.partition(":")
    found = getattr(import_module(f".{module}", __package__), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command()(found)
    return typer.main.get_command(alone)


class _Commands(Mapping[str, Any]):
    """Commands by name. A module is imported on access: importing all takes longer than most commands."""

    def __getitem__(self, name: str) -> Any:
        return _made(_COMMANDS[name][0])

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


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
    """Open closed standard streams (`>&-`) on the null device, so that no socket gets their numbers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # until the process ends


@cache
def command() -> TyperGroup:
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    made.commands = _Commands()  # type: ignore[assignment]  # read only
    return made


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns its exit status. Errors are printed as one line on stderr."""
    _open_closed_streams()
    logging.getLogger("polybus").addHandler(logging.NullHandler())  # commands print errors themselves
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):  # a terminal that lacks a character must not end the command
            output.reconfigure(errors="replace")
    try:
        outcome = command().main(
            args=list(arguments) or ["--help"], prog_name="polybus", standalone_mode=False, obj=list(arguments)
        )
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:  # typer and rich turn it into status 1
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of our output has left (`| head`); Python would complain again at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        text, status = describe(error)
        say(text)
        return status
    return outcome if isinstance(outcome, int) else 0
