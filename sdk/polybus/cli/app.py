"""The list of commands, and their exit statuses."""

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
    "demo": ("demo:demo", "Run a 20-second demo with two programs."),
    "new": ("new:new", "Create a small service with tests."),
    "serve": ("serve:serve", "Serve a bus until SIGINT or SIGTERM."),
    "schema": ("serve:schema", "Generate an AsyncAPI document for a bus or a contract."),
    "request": ("client:request", "Send a request and print the answer as JSON."),
    "stream": ("client:stream", "Request a stream and print each item as a line of JSON."),
    "publish": ("client:publish", "Publish a message."),
    "subscribe": ("client:subscribe", "Print publications as lines of JSON."),
    "bridge": ("bridge:bridge", "Forward requests and publications between two buses."),
    "broker": ("broker:broker", "Run a CSB broker between clients and servers."),
    "record": ("capture:record", "Record all traffic to and from a server, as a proxy."),
    "replay": ("capture:replay", "Replay recorded client traffic against a server."),
    "inspect": ("inspect:inspect", "Decode frames and report their errors."),
    "analyse": ("analyse:analyse", "Analyse a capture and write tables, metrics and a report."),
    "journey": ("analyse:journey", "Trace a request, found by id, subject or time."),
    "doctor": ("doctor:doctor", "Diagnose a connection step by step."),
    "bench": ("bench:bench", "Measure latency and throughput."),
    "capture": ("capture:commands", "Inspect, verify, repair, convert and export captures."),
    "store": ("stores:stores", "Manage the stores of a cluster."),
    "dead": ("stores:dead", "List, retry and drop dead letters."),
}
"""Module, attribute and help line of each command. The list can be shown without importing the commands."""


class _Group(TyperGroup):
    """Imports commands on access, because importing all of them would take longer than most commands run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]  # read only

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
    module, _, attribute = where.partition(":")
    found = getattr(import_module(f".{module}", __package__), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command()(found)
    return typer.main.get_command(alone)


class _Commands(Mapping[str, Any]):
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
            typer.echo("not installed, running from source")
        raise typer.Exit


@app.callback()
def _options(
    show_version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """RPC and publish/subscribe over any protocol and any transport."""


def _open_closed_streams() -> None:
    """Reopen closed standard streams (`>&-`) on the null device. Otherwise a socket would get their file descriptors."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # until the process ends


@cache
def command() -> Any:
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status. Each error is printed to stderr as a single line."""
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
        # Our output is a closed pipe (`| head`), about which Python would complain again at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        text, status = describe(error)
        say(text)
        return status
    return outcome if isinstance(outcome, int) else 0
