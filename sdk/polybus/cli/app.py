"""The commands, and how every one of them ends."""

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
    "demo": ("demo:demo", "Two programs in a story of twenty seconds."),
    "serve": ("serve:serve", "Serve a bus until SIGINT or SIGTERM."),
    "schema": ("serve:schema", "Describe what a bus, or a contract, can be asked and told."),
    "request": ("client:request", "Ask for something and print the answer, as JSON."),
    "stream": ("client:stream", "Ask for a stream and print its items, one line of JSON each."),
    "publish": ("client:publish", "Publish something."),
    "subscribe": ("client:subscribe", "Print what is published, one line of JSON each."),
    "bridge": ("bridge:bridge", "Pass requests and publications on between two sides."),
    "broker": ("broker:broker", "Hand CSB frames on between clients and servers."),
    "record": ("record:record", "Stand before a server and record every frame."),
    "replay": ("record:replay", "Say again to a server what the clients of a recording said."),
    "inspect": ("inspect:inspect", "Show what frames say, and what is wrong with them."),
    "analyse": ("analyse:analyse", "Analyse a capture: tables, metrics and an HTML report."),
    "journey": ("analyse:journey", "Show what became of a request, by id, subject or time."),
    "doctor": ("doctor:doctor", "Connect step by step and say where it ends."),
    "bench": ("bench:bench", "Measure round trips, requests and publications a second."),
    "capture": ("capture:commands", "Look at a capture, check it, mend it, export it."),
    "store": ("stores:stores", "Stores of a cluster: publications that its engine keeps."),
    "dead": ("stores:dead", "Dead letters: stored publications that no handler could take."),
}
"""Of each command the module, what it is there (a function, a group), and a line: the list of commands loads none of them."""


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
    """The command that a row of the table names, as it is parsed."""
    module, _, attribute = where.partition(":")
    found = getattr(import_module(f".{module}", __package__), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command()(found)
    return typer.main.get_command(alone)


class _Commands(Mapping[str, Any]):
    """The commands by name. A module is loaded when its command is looked at: all of them take longer than most commands."""

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
    """Open streams that were closed (`>&-`) on the null device, so that no socket gets their numbers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # until the process ends


@cache
def command() -> TyperGroup:
    """All commands, as they are parsed."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    made.commands = _Commands()  # type: ignore[assignment]  # nothing is added to them
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
