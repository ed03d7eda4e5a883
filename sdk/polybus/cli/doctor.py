"""`polybus doctor`: every step of a connection by itself, how long it took, and what to do where it failed."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import anyio
import typer
from attrs import asdict

from .._validation import without_password
from ..plugins.registry import resolve_url
from .doctor_steps import DoctorStep, Examination
from .options import Ca, Header, finite, headers_of, json_line, parse_body, parse_subject, trust_of
from .problems import PeerError, UsageError
from .show import Printer

_MARKS = {"ok": ("✓", "green"), "failed": ("✗", "bold red"), "not reached": ("–", "dim")}


def doctor(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the server is said to be.")],
    subject: Annotated[
        str, typer.Option(metavar="SUBJECT", help="What to ask for; without it any answer will do.", show_default=False)
    ] = "",
    body: Annotated[
        str | None, typer.Option(metavar="BODY", help="JSON, for --subject; - reads it from stdin.", show_default=False)
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="S", min=0.1, callback=finite, help="Seconds for each step.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    header: Header = None,
    ca: Ca = None,
) -> None:
    """Connect step by step: name, connection, TLS, upgrade, handshake, peer, request. Status 1 where one fails."""
    resolve_url(url)
    value = parse_body(body)
    if body is not None and not subject:
        raise UsageError("--body without --subject: name the subject that is to be asked")
    examination = Examination(
        url,
        subject=parse_subject(url, subject),
        body=value,
        timeout=timeout,
        headers=headers_of(header),
        tls=trust_of(ca),
    )
    anyio.run(examination.run)
    if as_json:
        print(json_line(_result(examination), pretty=True), flush=True)
    else:
        _show(examination.steps)
    failed = examination.failed
    if failed is not None:
        raise PeerError(f"{failed.name}: {failed.detail}; {failed.remedy}")


def _result(examination: Examination) -> dict[str, Any]:
    return {
        "url": without_password(examination.url),
        "ok": examination.failed is None,
        "steps": [asdict(step) for step in examination.steps],
    }


def _show(steps: list[DoctorStep]) -> None:
    rows = [(_MARKS[step.outcome][0], step.name, _milliseconds(step), step.detail) for step in steps]
    Printer().table(("", "step", "time", "what was seen"), rows, [_MARKS[step.outcome][1] for step in steps])
    sys.stdout.flush()


def _milliseconds(step: DoctorStep) -> str:
    return "" if step.seconds is None else f"{step.seconds * 1000:.1f} ms"
