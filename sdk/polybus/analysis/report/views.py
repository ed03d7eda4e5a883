"""Counts each exchange once, even if client, broker and server have all recorded it. Their records are views of one exchange.

Views have the same protocol, id and subject. Each outgoing request is an exchange, and each recording with a matching incoming
request has a view of it. If an id is reused, the first requests are matched, then the second, and so on. Only one view counts,
which is the asker's if it saw the end. An outgoing and an incoming request in the same recording are never views of one
exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from polybus.capture.schema import EXCHANGES

if TYPE_CHECKING:
    from ..engine import Engine

SLACK_NS: Final = 1_000_000_000
"""Maximum difference between the clocks of two recordings before correction, and between the views of one exchange."""
TIES: Final = "capture_id, request_seq, conn_id, direction, correlation_id"
"""Sort order of exchanges that are otherwise equal."""
CROWDED_NS: Final = 60_000_000_000
"""Maximum wait for the end of a period, if an id is reused repeatedly."""
_LONG_NS: Final = 30_000_000_000
FAR_NS: Final = 2**61
"""No clock has a time that is farther from 1970."""
_UNKNOWN: Final = "('open-at-end', 'unseen')"
"""Outcomes of a view that did not see the end of the exchange."""

USERS: Final = "coalesce(substring(subject, 1, 9) != '_polybus.' and position('/rpc._polybus.' in subject) = 0, true)"
"""SQL that is true for a subject that is not one of the bus's own."""
_ID: Final = "protocol, correlation_id, subject"
_WHO: Final = "direction, case when direction = 1 then capture_id end"
"""SQL for matching views: each outgoing request is a separate exchange, and each recording of incoming requests has a view."""
DRAWN: Final = "translate(correlation_id, '0123456789', '') != ''"
"""SQL that is true for a random id. Counted ids are not unique, because two clients use the same numbers at different times."""
_LISTED: Final = ", ".join((*EXCHANGES.names, "address", "place"))

_APART: Final = f"""
    select reference, capture_id, ahead_ns, n from (
        select *, row_number() over (partition by reference, capture_id order by ahead_ns) as place,
            count(*) over (partition by reference, capture_id) as n
        from (
            select capture_id, first_value(capture_id) over alike as reference,
                middle - first_value(middle) over alike as ahead_ns
            from (
                select *, row_number() over (partition by {_ID}, {_WHO} order by middle, {TIES}) as nth from (
                    select *, request_time_ns + div(latency_ns, 2) as middle from {{exchanges}}
                    where latency_ns < {FAR_NS} and request_time_ns between -{FAR_NS} and {FAR_NS} and {DRAWN}
                ) as answered
            ) as numbered
            window alike as (partition by {_ID}, nth order by direction, {TIES})
        ) as compared
        where reference != capture_id
    ) as ordered
    where place * 2 between n and n + 1
"""
"""SQL for the offset between the clocks of two recordings, which is the median over random ids in both."""

_VIEWS: Final = f"""
    select {_LISTED}, at_ns, spell, again,
        cast(row_number() over (
            partition by {_ID}, spell, again order by outcome in {_UNKNOWN}, direction, at_ns, {TIES}
        ) as int) as view,
        cast(count(*) over alike as int) as views,
        case when count(latency_ns) over alike > 1 then latency_ns - min(latency_ns) over alike end as way_ns,
        case when (max(at_ns) over spells) - at_ns > {CROWDED_NS} then at_ns + {CROWDED_NS}
            else max(at_ns) over spells end as last_ns
    from (
        select *, case when direction = 1 and capture_id = max(case when direction = 0 then capture_id end) over (
            partition by {_ID}, spell, nth
        ) then -nth else nth end as again
        from (
            select *, row_number() over (partition by {_ID}, spell, {_WHO} order by at_ns, {TIES}) as nth from (
                select *, sum(apart) over (partition by {_ID} order by at_ns, {TIES} rows unbounded preceding) as spell from (
                    select *, case when div(at_ns, 2) - lag(div(at_ns, 2)) over (partition by {_ID} order by at_ns, {TIES})
                        > {SLACK_NS // 2} then 1 else 0 end as apart
                    from (
                        select /*+ broadcast(clocks) */ found.*, case when request_time_ns between -{FAR_NS} and {FAR_NS}
                            then request_time_ns - coalesce(ahead_ns, 0) else request_time_ns end as at_ns
                        from {{exchanges}} as found left join {{clocks}} as clocks on found.capture_id = clocks.capture_id
                    ) as dated
                ) as compared
            ) as spelled
        ) as numbered
    ) as told
    window alike as (partition by {_ID}, spell, again), spells as (partition by {_ID}, spell)
"""
_ALONE: Final = f"""
    select {_LISTED}, request_time_ns as at_ns, 0 as spell, request_seq as again, 1 as view, 1 as views,
        cast(null as bigint) as way_ns, request_time_ns as last_ns
    from {{exchanges}}
"""
"""SQL for a single recording, where each row is an exchange, even if an incoming and an outgoing request have the same id."""

_ORPHANS: Final = f"""
    select protocol, subject, count(*) as n from (
        select *, row_number() over (
            partition by protocol, correlation_id, nth order by direction desc, time_ns, capture_id, seq, sub
        ) as view
        from (
            select *, row_number() over (
                partition by protocol, correlation_id, direction, case when direction = 0 then capture_id end
                order by time_ns, capture_id, seq, sub
            ) as nth
            from {{orphans}}
        ) as numbered
    ) as answers
    anti join {{views}} as views
    on answers.protocol = views.protocol and answers.correlation_id = views.correlation_id
        and answers.capture_id != views.capture_id
        and cast(answers.time_ns as double) between cast(views.request_time_ns as double) - {SLACK_NS}
            and cast(views.request_time_ns as double) + coalesce(views.latency_ns, {_LONG_NS}) + {SLACK_NS}
    where view = 1 group by protocol, subject
"""
"""SQL for answers without a request in any recording, each counted once."""


@contextmanager
def told_apart(engine: Engine, exchanges: Any, clocks: Mapping[str, int] | None) -> Iterator[Any]:
    """Distinguish the exchanges of users. `clocks` are the clock offsets in ns, or `None` if there is only one recording.

    In the table, exchanges with the same protocol, id, subject, `spell` and `again` are views of one exchange, and the view
    with `view` 1 counts. `at_ns` is the request time on a common clock, `last_ns` the last request time of the spell,
    and `way_ns` the transit time, which is the view's latency minus the shortest latency.
    """
    if clocks is None:
        yield engine.sql(_ALONE, exchanges=exchanges)
        return
    given = pa.table({"capture_id": pa.array(clocks, pa.string()), "ahead_ns": pa.array(clocks.values(), pa.int64())})
    with engine.kept(engine.sql(_VIEWS, exchanges=exchanges, clocks=engine.hand(given))) as views:
        yield views


def clocks_of(engine: Engine, exchanges: Any) -> dict[str, int]:
    """Return the recordings with a clock that differs from the most compared one, and by how many ns they are ahead."""
    compared, together = Counter[str](), dict[str, dict[str, int]]()
    for row in sorted(
        engine.rows(engine.sql(_APART, exchanges=exchanges)).to_pylist(),
        key=lambda row: (-row["n"], row["reference"], row["capture_id"]),
    ):
        one, other = row["reference"], row["capture_id"]
        compared.update({one: row["n"], other: row["n"]})
        these, those = together.setdefault(one, {one: 0}), together.setdefault(other, {other: 0})
        if these is not those:
            by = these[one] + row["ahead_ns"] - those[other]
            these |= {name: ns + by for name, ns in those.items()}
            together |= dict.fromkeys(those, these)
    found = dict[str, int]()
    for name, these in together.items():
        most = min(these, key=lambda one: (-compared[one], one))
        if abs(ahead := these[name] - these[most]) > SLACK_NS // 2:
            found[name] = ahead
    return found


def lost(engine: Engine, orphans: Any, exchanges: Any) -> Any:
    """Count answers without a recorded request, by protocol and subject."""
    return engine.sql(_ORPHANS, orphans=orphans, views=exchanges)
