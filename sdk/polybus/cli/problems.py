"""Converts errors to a line with advice, and to an exit status."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable
from typing import TypeVar

from ..errors import (
    BusError,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    EncodeError,
    Forbidden,
    LocalProtocolError,
    NoHandler,
    ProtocolError,
    ReservedSubject,
    Unauthorized,
    Unsupported,
)
from ..limits import Limits
from ..outcomes import first_of
from ..plugins.close_codes import LOAD_CERTIFICATE
from ..plugins.tools import in_one_line, without_secrets

T = TypeVar("T")

OF_NATS = "the NATS server says"
NATS_CREDENTIALS = (
    "put credentials into the URL: TOKEN@ or USER:PASSWORD@ before the host, or ?creds=FILE or ?nkey=FILE after it"
)
_NEXT_STEPS = ("instead of", "keeps trying", "waits longer for it", "begin the URL with")
"""Phrases in error messages that already give advice."""
_SECONDS = re.compile(r"timed out after (\d[\d.e+-]*) s\b")
_TRUST = re.compile(r"tls=(?= is for nats\+| given for \S+, which is not encrypted)")
"""Matches the `tls` argument of a client. The option --ca is its equivalent."""
_WORKERS = re.compile(r"(?<!\()(?<!, )workers=")
"""Matches the `workers` argument, except in the example of a call."""
_WAITING = re.compile(r"\? (?:Cluster|connect)\(\.\.\., wait=30\) .*")
"""Advice at the end of an error message, for commands with --wait."""
_LOOK = "; polybus doctor URL checks every step"
_TOKENS = ("--auth", "--bearer", "--token")
"""Options that similar programs have for tokens. In polybus, a token is a header."""
REFUSED = 1
USAGE = 2


class UsageError(Exception):
    """The command was used incorrectly, which results in exit status 2."""


class PeerError(Exception):
    """The peer caused an error, which results in exit status 1."""


def say(text: str) -> None:
    print("polybus: " + in_one_line(" ".join(without_secrets(text).split())), file=sys.stderr, flush=True)


def describe(error: Exception) -> tuple[str, int]:
    """Return the message and exit status for an error. An unexpected error is re-raised, so that its traceback is shown."""
    if isinstance(error, UsageError):
        return str(error), USAGE
    if isinstance(error, PeerError):
        return str(error), REFUSED
    if hasattr(error, "format_message"):  # click's class, of which typer may have its own copy
        return _of_click(error), USAGE
    if type(error).__name__ == "Abort":
        return "aborted", 130
    if isinstance(error, ImportError) and "pip install" in str(error):  # a missing extra
        return str(error), USAGE
    if isinstance(error, (LocalProtocolError, EncodeError, ReservedSubject, Unsupported)):
        return for_shell(str(error)), USAGE
    if isinstance(error, BusError):
        return f"{for_shell(str(error))}{_next_step(error)}", REFUSED
    if isinstance(error, ValueError):
        return for_shell(str(error)), USAGE
    if isinstance(error, OSError):
        return str(error), REFUSED
    raise error


def unwrapped(function: Callable[[], T]) -> T:
    """Run a function and raise its first error without exception groups."""
    try:
        return function()
    except (Exception, BaseExceptionGroup) as error:  # a group can contain a SystemExit, which rich raises for a closed pipe
        first = first_of(error)
    raise first  # with its cause


def for_shell(text: str) -> str:
    """Replace advice for Python code in an error message with advice for the command line."""
    text = _TRUST.sub("--ca FILE", text)  # before the advice about a server's tls=
    text = _WORKERS.sub("--workers ", text)
    return (
        text.replace("connect(..., wait=30) keeps trying", "--wait S keeps trying")
        .replace("Cluster(..., wait=30) waits longer for it", "--wait S keeps trying")
        .replace("--ca, or with tls=ssl.create_default_context(cafile=...)", "--ca FILE")
        .replace("timeout=,", "--timeout,")
        .replace("timeout=", "--timeout ")
        .replace("pass authenticate=..., or ", "")
        .replace("pass authenticate_servers=..., or ", "")
        .replace("insecure=True", "--insecure")
        .replace("metrics=", "--metrics ")
        .replace(LOAD_CERTIFICATE, "show one with --cert FILE --key FILE")
        .replace("tls=", "--cert FILE")
        .replace("headers={'authorization': 'Bearer TOKEN'}", "--header 'authorization: Bearer TOKEN'")
        .replace("headers=", "--header")
        .replace("use bus.stream()", "use polybus stream")
        .replace("use bus.request()", "use polybus request")
        .replace("use bus.channel()", "which requires a program: bus.channel()")
    )


def without_wait(reason: str) -> str:
    """Remove the advice to wait for a server, which commands without --wait cannot follow."""
    return _WAITING.sub("?", reason)


def _of_click(error: Exception) -> str:
    text: str = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = "polybus" if context is None else context.command_path
    option: str = getattr(error, "option_name", "")
    if option in _TOKENS and context is not None and any(known.name == "header" for known in context.command.params):
        text = f"No such option: {option}: write --header 'authorization: Bearer TOKEN'"
    elif option[1:2].isdigit():
        text = f"No such option: {option}: write -- before a body that begins with a minus"
    text = text.removesuffix(".").replace("Value error, ", "")
    return f"{text}{'' if text.endswith('?') else '.'} See: {command} --help"


def _ran_out(reason: str) -> bool:
    """Return True if a step timed out because of --timeout, which some commands lack."""
    found = _SECONDS.search(reason)
    return found is not None and float(found[1]) < min(Limits().connect_timeout, Limits().handshake_timeout)


def _next_step(error: BusError) -> str:
    if isinstance(error, ConnectFailed):
        advised = any(error.reason.endswith(mark) for mark in "?!") or any(mark in error.reason for mark in _NEXT_STEPS)
        if error.errno != errno.ETIMEDOUT:
            return "" if advised else _LOOK
        longer = "--timeout S waits longer, " if _ran_out(error.reason) else ""
        return _LOOK if advised else f"; {longer}--wait S keeps trying"
    if isinstance(error, DeadlineExceeded) and error.where == "remote":  # this command set the deadline
        return "; --timeout S waits longer"
    if isinstance(error, (Disconnected, DeadlineExceeded, ProtocolError)):
        return _LOOK
    if isinstance(error, Unauthorized) and OF_NATS in str(error):
        return f"; {NATS_CREDENTIALS}"
    if isinstance(error, Unauthorized) and str(error).endswith("?"):  # credentials were sent
        return ""
    if isinstance(error, Unauthorized) and str(error).endswith("headers="):
        return ", for example 'authorization: Bearer TOKEN'"
    if isinstance(error, Unauthorized):
        return "; identify yourself, for example with --header 'authorization: Bearer TOKEN'"
    if isinstance(error, Forbidden):
        return "" if str(error).endswith("?") else "; ask the operator of the server for permission"
    if isinstance(error, NoHandler):
        return "; is the subject spelled as in the server's handle()?"
    return ""
