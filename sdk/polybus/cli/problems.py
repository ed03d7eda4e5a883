"""Errors in one line, with the next step, and their exit status."""

from __future__ import annotations

import sys

from ..errors import (
    BusError,
    ConnectFailed,
    EncodeError,
    Forbidden,
    LocalProtocolError,
    NoHandler,
    ReservedSubject,
    Unauthorized,
    Unsupported,
)

__all__ = ["PeerError", "UsageError", "describe", "say"]

REFUSED = 1
USAGE = 2


class UsageError(Exception):
    """The command line asks for something that cannot be; status 2."""


class PeerError(Exception):
    """What the other side sent or did is not as it should be; status 1."""


def say(text: str) -> None:
    """One line on stderr."""
    print("polybus: " + " ".join(text.split()), file=sys.stderr, flush=True)


def describe(error: Exception) -> tuple[str, int]:
    """What to say about an error, and the exit status.

    Raises:
        Exception: The error itself, where it is a defect of ours: its traceback is wanted.
    """
    if isinstance(error, UsageError):
        return str(error), USAGE
    if isinstance(error, PeerError):
        return str(error), REFUSED
    if hasattr(error, "format_message"):  # of click, which typer may bring along under another name
        return _of_click(error), USAGE
    if type(error).__name__ == "Abort":
        return "given up", 130
    if isinstance(error, (LocalProtocolError, EncodeError, ReservedSubject, Unsupported)):
        return str(error), USAGE
    if isinstance(error, BusError):
        return f"{error}{_next_step(error)}", REFUSED
    if isinstance(error, ValueError):
        return str(error), USAGE
    if isinstance(error, OSError):
        return str(error), REFUSED
    raise error


def _of_click(error: Exception) -> str:
    text: str = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    return f"{text} See: {context.command_path} --help" if context is not None else f"{text} See: polybus --help"


def _nobody_there(reason: str) -> bool:
    return any(word in reason.lower() for word in ("refused", "nobody", "no such file", "timed out"))


def _next_step(error: BusError) -> str:
    if isinstance(error, ConnectFailed):
        if "certificate" in error.reason.lower():
            return "; name the authority that signed it with --ca FILE"
        return "; is the server running? --wait S goes on trying" if _nobody_there(error.reason) else ""
    if isinstance(error, Unauthorized):
        return "; identify yourself, for example with --header 'authorization: Bearer TOKEN'"
    if isinstance(error, Forbidden):
        return "; ask whoever runs the server for the permission"
    if isinstance(error, NoHandler):
        return "; is the subject spelled as in the server's handle()?"
    return ""
