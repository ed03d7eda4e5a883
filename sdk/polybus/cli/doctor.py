"""`polybus doctor`: every step of a connection by itself, how long it took, and what to do where it failed."""

from __future__ import annotations

import sys
from typing import Annotated

import anyio
from attrs import asdict

from .._secrets import without_secrets
from ..plugins.registry import resolve_url
from .doctor_steps import DoctorStep, Examination
from .options import Header, Tls, argument, connects, duration, flag, option
from .problems import PeerError, UsageError, say
from .show import Printer
from .values import (
    check_for_cluster,
    cluster_of,
    headers_of,
    json_line,
    parse_body,
    parse_subject,
    warn_of_slips,
)

_MARKS = {"ok": ("✓", "green"), "doubtful": ("!", "yellow"), "failed": ("✗", "bold red"), "not reached": ("–", "dim")}


@connects
def doctor(
    url: Annotated[
        str, argument("URL", "Where the server is said to be; of a cluster nats+tcp://host/name, or auto for POLYBUS_CLUSTER.")
    ],
    subject: Annotated[str, option("SUBJECT", "What to ask for; without it any answer will do.")] = "",
    body: Annotated[str | None, option("BODY", "JSON, for --subject; - reads it from stdin.")] = None,
    timeout: Annotated[float, duration("Seconds for each step.", min=0.1)] = 5.0,
    as_json: Annotated[bool, flag("--json", "One JSON document.")] = False,
    header: Header = None,
    tls: Tls = None,
) -> None:
    """Connect step by step: name, connection, TLS, upgrade, handshake, peer, request; of a cluster server, jetstream, nodes.
    Status 1 where one fails.
    """
    cluster = cluster_of(url, tls=tls)
    if cluster is None:
        resolve_url(url)
        warn_of_slips(url)
    value = parse_body(body)
    if body is not None and not subject:
        raise UsageError("--body without --subject: name the subject that is to be asked")
    what = parse_subject(url, subject)
    if cluster is None:
        examination = Examination(url, what, value, timeout, headers_of(header), tls)
    else:
        from .doctor_cluster import ClusterExamination

        check_for_cluster(header)
        examination = ClusterExamination.of(cluster, what, value, timeout)
    anyio.run(examination.run)
    if as_json:
        steps = [asdict(step) for step in examination.steps]
        result = {"url": without_secrets(url), "ok": examination.failed is None, "steps": steps}
        print(json_line(result, pretty=True), flush=True)
    else:
        _show(examination.steps)
    for step in examination.doubts:
        say(f"{step.name}: {step.detail}; {step.remedy}")
    failed = examination.failed
    if failed is not None:
        raise PeerError(f"{failed.name}: {failed.detail}; {failed.remedy}")


def _show(steps: list[DoctorStep]) -> None:
    times = ["" if step.seconds is None else f"{step.seconds * 1000:.1f} ms" for step in steps]
    rows = [(_MARKS[step.outcome][0], step.name, time, step.detail) for step, time in zip(steps, times, strict=True)]
    Printer().table(("", "step", "time", "what was seen"), rows, [_MARKS[step.outcome][1] for step in steps])
    sys.stdout.flush()
