"""Hops of an exchange: the same request at the other end of its connection, and on the further connections that it led to.

Which request of a bridge belongs to which is known by the trace that they carry; where they carry none, by ids, by bodies, or
by times alone. Each hop says which of them it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import attrs

Row = dict[str, Any]

SLACK_NS: Final = 1_000_000_000
"""By so much the clocks of two recordings may differ."""
_APART_NS: Final = 20_000
"""By so much two recorders of one machine date the same moment apart at most."""
MOST: Final = 8
"""Hops of an exchange that are followed."""
BY_ID: Final = "same id"
BY_TRACE: Final = "same trace"
BY_BODY: Final = "same body"
BY_SUBJECT: Final = "same name"
BY_TIME: Final = "nothing else at that time"


@attrs.frozen
class Hop:
    """An exchange of the way."""

    row: Row
    known_by: str
    """`BY_ID`, `BY_TRACE`, `BY_BODY`, `BY_SUBJECT` or `BY_TIME`; empty for the exchange that is asked about."""


def follow(root: Row, near: Sequence[Row], *, all_near: bool) -> list[Hop]:
    """The hops of an exchange, by when they began.

    Args:
        root: The exchange; rows have the columns of exchanges, and of their request ``digest``, that of the body, and
            ``traceparent``.
        near: Other exchanges of about that time.
        all_near: True where these are all of that time, so that one that is alone among them is known to be.
    """
    found, waiting, left = [Hop(root, "")], [root], [row for row in near if _key(row) != _key(root)]
    while waiting and len(found) < MOST:
        row = waiting.pop(0)
        for find in (_other_end, _onward, _origin):
            hop = find(row, left, all_near)
            if hop is not None and len(found) < MOST:
                found.append(hop)
                waiting.append(hop.row)
                left = [other for other in left if other is not hop.row]
    return sorted(found, key=lambda hop: (hop.row["request_time_ns"], hop.row["direction"] == 1, _key(hop.row)))


def _key(row: Row) -> tuple[Any, ...]:
    return row["capture_id"], row["conn_id"], row["request_seq"], row["correlation_id"] or ""


def end_of(row: Row) -> int | None:
    """The moment of its answer, ns since 1970 UTC; None without one."""
    return None if row["latency_ns"] is None else int(row["request_time_ns"] + row["latency_ns"])


def _other_end(row: Row, near: Iterable[Row], all_near: bool) -> Hop | None:
    """The same exchange, recorded at the other end of the connection: what goes out there comes in here."""
    same = [
        other
        for other in near
        if other["correlation_id"] is not None
        and all(other[name] == row[name] for name in ("correlation_id", "protocol", "subject", "digest"))
        and other["direction"] != row["direction"]
        and other["conn_id"] != row["conn_id"]
        and _apart(other, row) <= SLACK_NS
    ]
    nearest = min(same, key=lambda other: _apart(other, row), default=None)
    return Hop(nearest, BY_ID) if nearest is not None else None


def _onward(row: Row, near: Iterable[Row], all_near: bool) -> Hop | None:
    """The request that goes out while this one, which came in, waits for its answer."""
    if row["direction"] != 1:
        return None
    within = [other for other in near if other["direction"] == 0 and _encloses(row, other)]
    return _surest(row, within, all_near)


def _origin(row: Row, near: Iterable[Row], all_near: bool) -> Hop | None:
    """The request that had come in, and waits for its answer, while this one went out."""
    if row["direction"] != 0:
        return None
    around = [other for other in near if other["direction"] == 1 and _encloses(other, row)]
    return _surest(row, around, all_near)


def _encloses(outer: Row, inner: Row) -> bool:
    if outer["conn_id"] == inner["conn_id"]:
        return False
    slack = 0 if outer["capture_id"] == inner["capture_id"] else _APART_NS
    if inner["request_time_ns"] < outer["request_time_ns"] - slack:
        return False
    end, inner_end = end_of(outer), end_of(inner)
    if end is None:
        return True
    # A request that was given up at the deadline has no answer in it.
    return inner["request_time_ns"] <= end + slack and (inner_end is None or inner_end <= end + slack)


def _surest(row: Row, others: list[Row], all_near: bool) -> Hop | None:
    """The one that belongs to a row: of other recordings, as of the two buses of a bridge, only where one alone fits."""
    trace = _trace(row)
    others = [other for other in others if trace is None or _trace(other) in (None, trace)]
    ours = [other for other in others if other["capture_id"] == row["capture_id"]]
    for known_by, mark in ((BY_TRACE, _trace), (BY_BODY, _body), (BY_SUBJECT, _name)):
        alike = [other for other in others if mark(row) is not None and mark(other) == mark(row)]
        here = [other for other in alike if other in ours]
        if here or len(alike) == 1:
            return Hop(min(here or alike, key=lambda other: (_body(other) != _body(row), _apart(other, row))), known_by)
    return Hop(ours[0], BY_TIME) if all_near and len(ours) == 1 else None


def _apart(one: Row, other: Row) -> int:
    return abs(int(one["request_time_ns"]) - int(other["request_time_ns"]))


def _trace(row: Row) -> str | None:
    """The id of its trace: each request in it has a span of its own."""
    found = re.fullmatch(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-.*", row["traceparent"] or "")
    return found and found[1]


def _body(row: Row) -> str | None:
    digest: str | None = row["digest"]
    return digest


def _name(row: Row) -> str | None:
    """The last word of a subject, which routes of bridges usually keep."""
    words = re.findall(r"\w+", unquote(row["subject"] or ""))
    return words[-1] if words else None
