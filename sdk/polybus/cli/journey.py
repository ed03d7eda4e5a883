"""`polybus journey`: what became of one request, out of the results of `polybus analyse`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from .. import analysis
from ..capture.errors import CaptureError
from .options import Json, argument, option
from .problems import UsageError
from .values import json_line


def journey(
    out: Annotated[str, argument("DIR", "The results of polybus analyse.")],
    id: Annotated[str, option("ID", "Of the requests with this id, as on the wire.")] = "",
    subject: Annotated[str, option("PATTERN", "Of requests for this subject, 'tank.*'.")] = "",
    start: Annotated[str, option("TIME", "Of requests from here on, 2026-11-21T08:00:00Z.")] = "",
    end: Annotated[str, option("TIME", "Of requests before.")] = "",
    most: Annotated[int, option("N", "At most so many, the earliest first.", min=1, max=100)] = 4,
    as_json: Json = False,
) -> None:
    """Show what became of a request, by id, subject or time: where it was seen, what it led to, and each frame.

    What only may belong to it has a question mark.
    """
    if not (id or subject or start or end):
        raise UsageError("which request? --id ID, --subject PATTERN, --start TIME or --end TIME says it")
    window = {
        "start_ns": analysis.nanoseconds(start, "--start") if start else None,
        "end_ns": analysis.nanoseconds(end, "--end") if end else None,
    }
    found = analysis.journeys(out, id=id or None, subject=subject or None, most=most, **window)
    if not found:
        raise CaptureError(f"{out}: no request is like that; its table exchanges has all ids, subjects and times")
    if as_json or not sys.stdout.isatty():
        for row in found:
            print(json_line(row), flush=True)
    else:
        print("\n\n".join("\n".join(_lines(row)) for row in found))


def _lines(row: dict[str, Any]) -> list[str]:
    from ..analysis.report.words import duration, moment, shortened

    def hop(hop: dict[str, Any], mark: str) -> str:
        way, took = "in" if hop["direction"] else "out", "" if hop["latency_ns"] is None else duration(hop["latency_ns"])
        ended = f"{hop['outcome']} {hop['code_name'] or ''}".strip()
        after = f"+{duration(hop['at_ns'])}" if hop["at_ns"] >= 0 else f"-{duration(-hop['at_ns'])}"
        where, subject = f"{hop['protocol']} {shortened(hop['peer'] or '')}", shortened(hop["subject"] or "")
        return f"{mark} {after:>10}  {way:3} {where:32} {subject}: {ended} {took}  {hop['known_by']}".rstrip()

    name, id = shortened(row["subject"] or "no subject"), shortened(row["correlation_id"])
    title = f"{name}, {moment(row['request_time_ns'])}, id {id}"
    return [title, *(hop(one, " ") for one in row["hops"]), *(hop(one, "?") for one in row["may_be"])]
