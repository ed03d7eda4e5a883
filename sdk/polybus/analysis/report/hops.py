"""Hops of an exchange: its views at other places, and the exchanges on further connections that it led to.

That two belong together is a fact where they have the same id or trace, or the same name and body in one recording. What merely
fits (the same body elsewhere, the same name, nothing else at that time) may belong to it, and is told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import attrs

Row = dict[str, Any]

_APART_NS: Final = 20_000
"""By so much two recorders of one machine date the same moment apart at most."""
MOST: Final = 8
"""Hops of an exchange that are followed."""
BY_ID: Final = "same id"
BY_TRACE: Final = "same trace"
BY_NAME: Final = "same name and body"
BY_BODY: Final = "same body"
BY_SUBJECT: Final = "same name"
BY_TIME: Final = "nothing else at that time"


@attrs.frozen
class Hop:
    """An exchange of the way."""

    row: Row
    known_by: str
    """`BY_ID`, `BY_TRACE`, `BY_NAME`, `BY_BODY`, `BY_SUBJECT` or `BY_TIME`; empty for the exchange that is asked about."""
    sure: bool = True
    """False where it only may belong to it, or belongs to one that only may."""


def follow(root: Row, near: Sequence[Row], *, all_near: bool) -> list[Hop]:
    """The hops of an exchange, by when they began.

    Args:
        root: The exchange; rows have the columns of `views.Seen.views`, and of their request ``digest``, that of the body,
            and ``traceparent``.
        near: Other exchanges of about that time.
        all_near: True where these are all of that time, so that one that is alone among them is known to be.
    """
    found, left, led = [Hop(root, "")], [row for row in near if _key(row) != _key(root)], set[tuple[int, Any]]()
    for sure in (True, False):  # what only may belong to it takes nothing away from what does
        waiting = found.copy()
        while waiting and len(found) < MOST:
            last = waiting[0]
            for find in (_other_end, _onward, _origin):
                hop = None if (id(last.row), find) in led else find(last.row, left, all_near)
                if hop is not None and (hop.known_by in _SURE or not sure):
                    break
            else:
                waiting.pop(0)
                continue
            found.append(attrs.evolve(hop, sure=last.sure and hop.known_by in _SURE))
            waiting.append(found[-1])
            left = [other for other in left if other is not hop.row]
            if find is not _other_end:  # of which there may be more
                led |= {(id(last.row), find), (id(hop.row), _origin if find is _onward else _onward)}
    return sorted(found, key=lambda hop: (not hop.sure, hop.row["at_ns"], hop.row["direction"] == 1, _key(hop.row)))


_SURE: Final = (BY_ID, BY_TRACE, BY_NAME)


def _key(row: Row) -> tuple[Any, ...]:
    return row["capture_id"], row["conn_id"], row["request_seq"], row["correlation_id"] or ""


def end_of(row: Row) -> int | None:
    """The moment of its answer, ns since 1970 UTC; None without one."""
    return None if row["latency_ns"] is None else int(row["at_ns"] + row["latency_ns"])


def _other_end(row: Row, near: Iterable[Row], all_near: bool) -> Hop | None:
    """The same exchange, recorded at another place."""
    names = "protocol correlation_id subject spell again".split()
    same = [other for other in near if all(other[name] == row[name] for name in names)]
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
    if inner["at_ns"] < outer["at_ns"] - slack:
        return False
    end, inner_end = end_of(outer), end_of(inner)
    if end is None:
        return True
    # A request that was given up at the deadline has no answer in it.
    return inner["at_ns"] <= end + slack and (inner_end is None or inner_end <= end + slack)


def _surest(row: Row, others: list[Row], all_near: bool) -> Hop | None:
    """The one that belongs to a row, or may: of other recordings, such as of a bridge's buses, only where one alone fits."""
    trace = _trace(row)
    others = [other for other in others if trace is None or _trace(other) in (None, trace)]
    ours = [other for other in others if other["capture_id"] == row["capture_id"]]
    marks = ((BY_TRACE, _trace, others), (BY_NAME, _name_and_body, ours), (BY_BODY, _body, others), (BY_SUBJECT, _name, ours))
    for known_by, mark, among in marks:
        alike = [other for other in among if mark(row) is not None and mark(other) == mark(row)]
        here = [other for other in alike if other in ours]
        if here or len(alike) == 1:
            return Hop(min(here or alike, key=lambda other: (_body(other) != _body(row), _apart(other, row))), known_by)
    return Hop(ours[0], BY_TIME) if all_near and len(ours) == 1 else None


def _apart(one: Row, other: Row) -> int:
    return abs(int(one["at_ns"]) - int(other["at_ns"]))


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


def _name_and_body(row: Row) -> tuple[str, str] | None:
    name, body = _name(row), _body(row)
    return None if name is None or body is None else (name, body)
