"""Correlation of answers with requests, as SQL: a window over the ordered events, no self-join, so cost grows with the rows.

An answer belongs to the newest request before it with the same key: connection, client behind a broker, direction and
correlation id (into which the decoder has put CSB's action, since its ids have only 16 bits). Each row of the working table is
a *turn*: one message, or what an earlier run left: all that is known so far of an exchange that was open, or an orphan whose id
may come again. All have the same columns, and the turns of one exchange fold into one turn, so that a run over new segments
goes on exactly where the last one stopped.

Spark and DuckDB run this text alike; names in braces are the tables that `Engine.sql` is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES

from ..capture.store.compute import DAY_NS
from .engine import Engine
from .timeouts import LONGEST_MS, MatchTimeouts
from .watermarks import FARTHEST_NS

FINAL: Final = "final"
"""An exchange that nothing can change any more."""
OPEN: Final = "open"
"""An exchange to which something may still come, be it only its id."""
LOST: Final = "orphan"
"""An orphan that nothing depends on."""
REMEMBERED: Final = "orphan-kept"
"""An orphan whose id is not new to the next request that has it."""
ORPHANS: Final = (LOST, REMEMBERED)
CARRIED: Final = (OPEN, REMEMBERED)
"""Turns carried over to the next run: of each key at most the newest, and only within the horizon of the recording's end."""
SILENT_NS: Final = 86_400_000_000_000
"""A recording that says nothing for a day while others are written has ended."""

_TEXT, _WHOLE, _SHORT, _TRUTH = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_KEY: Final = (*((name, _TEXT) for name in ("capture_id", "conn_id", "client")), ("direction", pa.int8()))
_KEY_END: Final = (("protocol", _TEXT), ("correlation_id", _TEXT))
_REQUEST: Final = (
    *((name, _WHOLE) for name in ("request_seq", "request_time_ns", "request_mono_ns", "allowance_ns", "asked_ns")),
    *((name, _TEXT) for name in ("subject", "peer", "identity_key", "quality")),
)
_ANSWER: Final = (("response_seq", _WHOLE), ("response_mono_ns", _WHOLE), ("code", _SHORT), ("code_name", _TEXT))
_COUNTS: Final = (("attempts", _SHORT), ("answers", _SHORT))
_STORED: Final = (
    *((name, _TEXT) for name in ("stored", "store", "durable", "reason")),
    *(("store_seq", _WHOLE), ("attempt", _SHORT)),
)
"""Facts about a stored publication: those of the request count before those of its answer."""
_LAST: Final = (
    *(("last_seq", _WHOLE), ("last_sub", _SHORT), ("last_mono_ns", _WHOLE), ("last_linger_ns", _WHOLE)),
    *(("last_is_request", _TRUTH), ("last_digest", _TEXT), ("last_subject", _TEXT), ("last_allowance_ns", _WHOLE)),
)
TURNS: Final = pa.schema([*_KEY, *_KEY_END, *_REQUEST, *_ANSWER, *_COUNTS, *_STORED, *_LAST])
"""Columns of turns: what a run leaves to the next one."""
FOLDED: Final = pa.schema(
    [
        *TURNS,
        ("newest", _TRUTH),
        ("reused", _TRUTH),
        ("end_ns", _WHOLE),
        ("silent_ns", _WHOLE),
        ("ended", _TRUTH),
        ("part", _TEXT),
    ]
)
"""Columns of folded turns: `newest` means that no other turn of its key comes after it."""

_IN_ORDER: Final = f"partition by {', '.join(name for name, _ in (*_KEY, *_KEY_END))} order by last_seq, last_sub"
_WAITED: Final = "coalesce(end_ns - request_mono_ns > allowance_ns, false)"


def _of_a_clock(name: str) -> str:
    """A moment on a monotonic clock; null for one that no clock says: reckoning with it would leave the numbers there are."""
    return f"case when {name} between -{FARTHEST_NS} and {FARTHEST_NS} then {name} end"


def turns_of(engine: Engine, events: Any, timeouts: MatchTimeouts) -> Any:
    """The requests and responses among events as turns."""
    asked = "seq time_ns own_ns allowance_ns asked_ns subject peer".split()
    names = "request_seq request_time_ns request_mono_ns allowance_ns asked_ns subject peer".split()
    answered = {"seq": "response_seq", "own_ns": "response_mono_ns", "code": "code", "code_name": "code_name"}
    # Not `least`, for which nothing is more than something.
    ttl = f"case when ttl_ms > {LONGEST_MS} then {LONGEST_MS} else ttl_ms end"
    made = f"""
        select capture_id, conn_id, coalesce(client, '') as client,
            cast(case when asks then direction else 1 - direction end as tinyint) as direction, protocol, correlation_id,
            {", ".join(f"case when asks then {one} end as {name}" for one, name in zip(asked, names, strict=True))},
            case when asks then coalesce(nullif(client, ''), source) end as identity_key,
            cast(null as string) as quality,
            {", ".join(f"case when not asks then {one} end as {name}" for one, name in answered.items())},
            cast(asks as int) as attempts, cast(not asks as int) as answers,
            {", ".join(name for name, _ in _STORED)},
            seq as last_seq, sub as last_sub, own_ns as last_mono_ns,
            case when asks and allowance_ns > {timeouts.horizon_ns} then allowance_ns else {timeouts.horizon_ns} end
                as last_linger_ns,
            asks as last_is_request, digest as last_digest, subject as last_subject,
            case when asks then allowance_ns end as last_allowance_ns
        from (
            select *, coalesce(asked_ns, {timeouts.timeout_ns}) as allowance_ns
            from (
                select *, kind = 'request' as asks, md5(data) as digest,
                    coalesce(until_ns - own_ns, ({ttl}) * 1000000) as asked_ns
                from (
                    select *, {_of_a_clock("mono_ns")} as own_ns, {_of_a_clock("deadline_ns")} as until_ns
                    from {{events}}
                    where kind in ('request', 'response') and correlation_id is not null
                ) as told
            ) as asking
        ) as waiting
    """
    return engine.sql(made, events=events)


def fold(engine: Engine, turns: Iterable[Any], timeouts: MatchTimeouts, clocks: Any) -> Any:
    """One turn for each exchange and each orphan, as in `FOLDED`.

    ``part`` is where it belongs: one of `FINAL`, `OPEN`, `LOST`, `REMEMBERED`. Its recording ends at ``end_ns`` of `clocks`
    on its monotonic clock, and says so itself (``ended``), or others have gone on for ``silent_ns``.
    """
    parts = dict(zip("abcdef", turns, strict=False))
    every = " union all ".join(f"select {', '.join(TURNS.names)} from {{{name}}}" for name in parts)
    return engine.sql(_parted(_folded(_numbered(_compared(every))), timeouts), **parts, clocks=clocks)


def _compared(turns: str) -> str:
    """Compares each turn with the one before it of the same key."""
    before = {
        "asks": "is_request",
        "linger": "linger_ns",
        "digest": "digest",
        "subject": "subject",
        "allowance": "allowance_ns",
    }
    return f"""
        select *, is_request and not again as starts from (
            -- The same bytes once more while there is no answer and the first are still waited for: a further attempt.
            select *, is_request and not broken and before_asks and same as again from (
                select *, request_seq is not null as is_request, coalesce(since > before_linger, true) as broken,
                    coalesce(
                        before_digest is not distinct from last_digest and before_subject is not distinct from last_subject
                        and since <= before_allowance, false
                    ) as same
                from (
                    select *, coalesce(request_mono_ns, response_mono_ns) - lag(last_mono_ns) over earlier as since,
                        {", ".join(f"lag(last_{column}) over earlier as before_{name}" for name, column in before.items())}
                    from ({turns}) as turns
                    window earlier as ({_IN_ORDER})
                ) as told
            ) as compared
        ) as asking
    """


def _numbered(compared: str) -> str:
    return f"""
        select *, not is_request and (asked is null or asked < broken_at) as orphaned from (
            select *,
                sum(cast(starts or broken as int)) over upto as number,
                max(case when is_request then last_seq end) over upto as asked,
                max(case when broken then last_seq end) over upto as broken_at,
                lead(starts or broken) over alike as next_opens,
                lead(starts and not broken) over alike as next_reuses
            from ({compared}) as compared
            window alike as ({_IN_ORDER}), upto as ({_IN_ORDER} rows between unbounded preceding and current row)
        ) as counted
    """


def _folded(numbered: str) -> str:
    def of(flag: str, columns: Iterable[tuple[str, Any]]) -> str:
        return ", ".join(f"max(case when {flag} then {name} end) as {name}" for name, _ in columns)

    def first_known(column: tuple[str, Any]) -> str:
        name, _ = column
        by_request, by_answer = (f"max(case when {flag} then {name} end)" for flag in ("starts", "first_answer"))
        return f"coalesce({by_request}, {by_answer}) as {name}"

    key, end = (", ".join(name for name, _ in part) for part in (_KEY, _KEY_END))
    known = [column for column in _REQUEST if column[0] != "quality"]
    return f"""
        select {key}, {end}, {of("starts", known)}, max(case when starts then found end) as quality,
            {of("first_answer", _ANSWER)},
            cast(sum(attempts) as int) as attempts, cast(sum(answers) as int) as answers,
            {", ".join(map(first_known, _STORED))},
            {of("ends", _LAST)},
            max(next_opens is null and ends) as newest, max(next_reuses and ends) as reused
        from (
            select *, orphaned or coalesce(next_opens, true) as ends,
                starts or orphaned or (before_asks and not broken and request_seq is null) as first_answer,
                coalesce(quality, case when broken then 'unique' when before_asks then 'ambiguous' else 'reused_id' end)
                    as found
            from ({numbered}) as numbered
        ) as told
        group by {key}, {end}, number, case when orphaned then last_seq end, case when orphaned then last_sub end
    """


def _parted(folded: str, timeouts: MatchTimeouts) -> str:
    # Clocks of the wall are put right now and then, so once more the horizon is waited. As long as its recording may go on, an
    # exchange is not known to be open at the end.
    return f"""
        select {", ".join(name for name in FOLDED.names if name != "part")},
            case when request_seq is null then case when is_over then '{LOST}' else '{REMEMBERED}' end
                when is_over then '{FINAL}' else '{OPEN}' end as part
        from (
            select *, not newest or coalesce(end_ns - last_mono_ns > last_linger_ns, false) or coalesce(
                ended or (
                    silent_ns > last_linger_ns + {timeouts.horizon_ns}
                    and (request_seq is null or answers > 0 or {_WAITED} or silent_ns > last_linger_ns + {SILENT_NS})
                ), false) as is_over
            from (
                select /*+ broadcast(clocks) */ folded.*, clocks.end_ns, clocks.silent_ns, clocks.ended
                from ({folded}) as folded left join {{clocks}} as clocks on folded.capture_id = clocks.capture_id
            ) as dated
        ) as settled
    """


_EXCHANGES: Final = f"""
    select capture_id, conn_id, direction, protocol, subject, correlation_id, request_seq, response_seq, request_time_ns,
        case when answers > 0 then latency end as latency_ns,
        -- Of a delivery the engine knows how long it waits, and gives it out again.
        case when answers > 0 and latency > allowance_ns and stored is distinct from 'delivery' then 'late'
            when answers > 0 and coalesce(code, 0) = 0 then 'ok'
            when answers > 0 then 'error'
            when not waited then 'open-at-end'
            when asked_ns is not null then 'timeout'
            else 'unanswered' end as outcome,
        code, code_name, attempts, case when answers > 1 then answers - 1 else 0 end as duplicates,
        -- Its answer may have been taken for the next one's.
        case when answers = 0 and given_up then 'ambiguous' else quality end as match_quality,
        peer, identity_key, timestamp_micros(div(request_time_ns, 1000)) as request_time,
        case when answers > 0 then latency / 1e6 end as latency_ms,
        stored, store, store_seq, durable, attempt, reason,
        date '1970-01-01' + cast(div(request_time_ns, {DAY_NS}) as int) as date{{part}}
    from (
        -- No answer is waited for any more to an id that was given to the next request, however soon the recording ends.
        select *, response_mono_ns - request_mono_ns as latency, coalesce(reused, false) as given_up,
            {_WAITED} or coalesce(reused, false) as waited
        from {{folded}}
        where request_seq is not null
    ) as found
"""


def exchanges_of(engine: Engine, folded: Any, *further: str) -> Any:
    """The table of exchanges and `further` columns, from folded turns."""
    return engine.sql(_EXCHANGES.replace("{part}", "".join(f", {name}" for name in further)), folded=folded)


def orphans_of(engine: Engine, events: Any, lost: Any) -> Any:
    """The events that are orphans."""
    made = f"""
        select {", ".join(f"events.{name}" for name in EVENTS.names)}
        from {{events}} as events semi join {{lost}} as lost
        on events.capture_id = lost.capture_id and events.seq = lost.last_seq and events.sub = lost.last_sub
    """
    return engine.sql(made, events=events, lost=lost)


EXCHANGES_BY_PART: Final = EXCHANGES.append(pa.field("part", _TEXT))
"""Columns of exchanges with the part that each belongs to."""
