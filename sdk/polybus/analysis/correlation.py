"""Correlates answers with requests in SQL that Spark and DuckDB both run. Its cost is proportional to the number of rows.

An answer belongs to the newest earlier request with the same key, which consists of connection, client behind a broker,
direction and correlation id (the decoder adds CSB's action to its 16-bit ids). Each row of the working table is a *turn*:
either a message, or what an earlier run has stored about an open exchange, or about an orphan if its id may return. The
turns of an exchange are folded into one turn with the same columns, so that the next run continues where this run stops.

A cancel or stream item is a *note*. It belongs to the request before it, and does not affect the matching of answers. The
opening of a stream counts as a request and its end as the answer. Names in braces are tables for `Engine.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES
from polybus.errors import Code

from ..capture.store.compute import DAY_NS
from ..plugins.tools import seconds, shown
from .clocks import FARTHEST_NS

if TYPE_CHECKING:
    from .engine import Engine

LONGEST_MS: Final = 100 * 366 * 86_400_000
"""Maximum ttl in ms (a hundred years). Larger values are reduced to it, because in ns they might overflow 64 bits."""


def _limit(value: float, name: str) -> float:
    if not 0 < (limit := seconds(value, name)) <= LONGEST_MS / 1000:
        raise ValueError(f"{name}={shown(value)} must be more than 0 and at most {LONGEST_MS // 1000:,} seconds (100 years)")
    return limit


def _timeout(value: float) -> float:
    return _limit(value, "timeout")


def _horizon(value: float) -> float:
    return _limit(value, "horizon")


@attrs.frozen
class MatchTimeouts:
    """Time limits after which an answer counts as late and an id is forgotten.

    Raises:
        TypeError: If a limit is not a number of seconds.
        ValueError: If a limit is not positive or longer than 100 years, or the horizon is shorter than the timeout.
    """

    timeout: float = attrs.field(default=30.0, converter=_timeout)
    """Seconds after which an answer counts as late if its request has neither deadline nor ttl."""
    horizon: float = attrs.field(
        default=attrs.Factory(lambda self: min(10 * self.timeout, LONGEST_MS / 1000), takes_self=True),
        converter=_horizon,
    )
    """Seconds of silence after which an id is forgotten. A later message with this id is an orphan or a new exchange. A request
    with a longer deadline is remembered until the deadline. Open exchanges are carried over to later runs for the same time.
    """

    def __attrs_post_init__(self) -> None:
        if self.horizon < self.timeout:
            raise ValueError(f"horizon={self.horizon} is shorter than timeout={self.timeout}: it must be at least as long")

    @property
    def horizon_ns(self) -> int:
        return round(self.horizon * 1e9)


FINAL: Final = "final"
"""An exchange that is complete and will not change."""
OPEN: Final = "open"
"""An exchange that may still change, even if only because its id returns."""
LOST: Final = "orphan"
"""An orphan that does not affect later messages."""
REMEMBERED: Final = "orphan-kept"
"""An orphan. If the next request has the same id, the id counts as reused."""
ENDED: Final = "end-kept"
"""The end of a stream that began before the recording. It is not an orphan, but its id counts as reused."""
ORPHANS: Final = (LOST, REMEMBERED)
CARRIED: Final = (OPEN, REMEMBERED, ENDED)
"""Turns carried over to the next run: the newest turn per key, within the horizon before the recording's end."""
SILENT_NS: Final = 86_400_000_000_000
"""If a recording is silent for a day while others are written, it has ended. The same applies to a silent stream."""
SLACK_NS: Final = 250_000_000
"""An end that precedes the deadline on the recorder's clock by at most this time counts as reaching the deadline, because the
asker's timer started slightly earlier. For short deadlines it is a quarter of the deadline.
"""

_TEXT, _WHOLE, _SHORT, _TRUTH = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_KEY: Final = {"direction": pa.int8()} | dict.fromkeys("capture_id conn_id client protocol correlation_id".split(), _TEXT)
_REQUEST: Final = (
    *((name, _WHOLE) for name in ("request_seq", "request_time_ns", "request_mono_ns", "allowance_ns", "asked_ns")),
    *((name, _TEXT) for name in ("subject", "peer", "identity_key", "quality")),
)
_ANSWER: Final = (("response_seq", _WHOLE), ("response_mono_ns", _WHOLE), ("code", _SHORT), ("code_name", _TEXT))
_COUNTS: Final = (("attempts", _SHORT), ("answers", _SHORT))
_EITHER: Final = (
    ("kind", _TEXT),
    *((name, _TEXT) for name in ("stored", "store", "durable", "reason")),
    *(("store_seq", _WHOLE), ("attempt", _SHORT)),
)
"""Kind of exchange, and facts about a stored publication, taken from the request if it has them, otherwise from the answer."""
_NOTES: Final = {"cancelled_ns": "min", "items": "sum", "first_item_ns": "min", "closed_ns": "min", "hole_ns": "min"}
"""Facts between request and answer (cancelled, items, connection closed, frames missing), with their aggregate functions."""
_LAST: Final = (
    *(("last_seq", _WHOLE), ("last_sub", _SHORT), ("last_mono_ns", _WHOLE), ("last_linger_ns", _WHOLE)),
    *(("last_is_request", _TRUTH), ("last_digest", _TEXT), ("last_subject", _TEXT), ("last_allowance_ns", _WHOLE)),
)
TURNS: Final = pa.schema([*_KEY.items(), *_REQUEST, *_ANSWER, *_COUNTS, *_EITHER, *((name, _WHOLE) for name in _NOTES), *_LAST])
"""Schema of turns, which a run leaves for the next run."""
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
"""Schema of folded turns. `newest` is true if no later turn has the same key."""

_IN_ORDER: Final = f"partition by {', '.join(_KEY)} order by last_seq, last_sub"
_EXCEEDED, _CANCELLED = int(Code.DEADLINE_EXCEEDED), int(Code.CANCELLED)
_WAITED: Final = "coalesce(end_ns - request_mono_ns > allowance_ns, false)"


def _of_a_clock(name: str) -> str:
    """Return a time as SQL, or null if no monotonic clock can have this value, because arithmetic would overflow."""
    return f"case when {name} between -{FARTHEST_NS} and {FARTHEST_NS} then {name} end"


def turns_of(engine: Engine, events: Any, timeouts: MatchTimeouts) -> Any:
    asked = "seq time_ns own_ns allowance_ns asked_ns subject peer".split()
    names = "request_seq request_time_ns request_mono_ns allowance_ns asked_ns subject peer".split()
    answered = {"seq": "response_seq", "own_ns": "response_mono_ns", "code": "code", "code_name": "code_name"}
    allowance = f"coalesce(asked_ns, case when said = 'stream' then {FARTHEST_NS} else {round(timeouts.timeout * 1e9)} end)"
    # Not `least`, which ignores null: a message without ttl would get one.
    ttl = f"case when ttl_ms > {LONGEST_MS} then {LONGEST_MS} else ttl_ms end"
    of_asker = "asks or said in ('cancel', 'left')"
    gives_up = "said = 'cancel' or (said = 'left' and code != 0)"
    made = f"""
        select capture_id, conn_id, coalesce(client, '') as client,
            cast(case when {of_asker} then direction else 1 - direction end as tinyint) as direction, protocol, correlation_id,
            {", ".join(f"case when asks then {one} end as {name}" for one, name in zip(asked, names, strict=True))},
            case when asks then coalesce(nullif(client, ''), source) end as identity_key,
            cast(null as string) as quality,
            {", ".join(f"case when answers then {one} end as {name}" for one, name in answered.items())},
            cast(asks as int) as attempts, cast(answers as int) as answers,
            case when said in ('stream', 'end') then 'stream' else 'request' end as kind,
            {", ".join(name for name, _ in _EITHER if name != "kind")},
            case when {gives_up} then own_ns end as cancelled_ns, cast(said = 'item' as bigint) as items,
            case when said = 'item' then own_ns end as first_item_ns,
            cast(null as bigint) as closed_ns, cast(null as bigint) as hole_ns,
            seq as last_seq, sub as last_sub, own_ns as last_mono_ns,
            case when said = 'stream' and asked_ns is null then {max(SILENT_NS, timeouts.horizon_ns)}
                when asks and allowance_ns > {timeouts.horizon_ns} then allowance_ns
                when asks or answers then {timeouts.horizon_ns} end as last_linger_ns,
            case when asks or answers then asks end as last_is_request,
            case when asks or answers then coalesce(md5(data), '') end as last_digest,
            case when asks or answers then coalesce(subject, '') end as last_subject,
            case when asks then allowance_ns end as last_allowance_ns
        from (
            select *, case when side = 1 then 'left' else kind end as said,
                {_of_a_clock("mono_ns")} as own_ns, {_of_a_clock("deadline_ns")} as until_ns,
                said in ('request', 'stream') as asks, said in ('response', 'end') as answers,
                coalesce(until_ns - own_ns, ({ttl}) * 1000000) as asked_ns, {allowance} as allowance_ns
            from (
                -- Either side may end a stream: the other side's (an answer), or its own.
                select *, explode(sequence(0, cast(kind = 'end' as int))) as side from {{events}}
                where kind in ('request', 'response', 'cancel', 'stream', 'item', 'end') and correlation_id is not null
            ) as sided
        ) as told
    """
    return engine.sql(made, events=events)


def closes_of(engine: Engine, events: Any) -> Any:
    """Return the closing events of connections and clients, with the frame numbers of each event and the previous one."""
    made = """
        select * from (
            select capture_id, conn_id, coalesce(client, '') as client, seq, mono_ns as at_ns,
                coalesce(lag(seq) over earlier, -1) as after_seq
            from {events} where kind = 'close'
            window earlier as (partition by capture_id, conn_id, coalesce(client, '') order by seq, mono_ns is null, mono_ns)
        ) as closes
        where after_seq < seq
    """
    return engine.sql(made, events=events)


def fold(engine: Engine, turns: Iterable[Any], timeouts: MatchTimeouts, clocks: Any, closes: Any) -> Any:
    """Return one turn for each exchange and orphan, as in `FOLDED`, with the ends of their connections (`closes_of`).

    ``part`` is one of `FINAL`, `OPEN`, `LOST`, `REMEMBERED`. `clocks` contains each recording's last moment on its monotonic
    clock (``end_ns``), whether its end was written (``ended``), and how long other recordings have continued (``silent_ns``).
    """
    parts = dict(zip("abcdef", turns, strict=False))
    every = " union all ".join(f"select {', '.join(TURNS.names)} from {{{name}}}" for name in parts)
    return engine.sql(_parted(_folded(_numbered(_compared(every))), timeouts), **parts, clocks=clocks, closes=closes)


def _compared(turns: str) -> str:
    of = {"asks": "is_request", "linger": "linger_ns", "digest": "digest", "subject": "subject", "allowance": "allowance_ns"}
    lags = (f"lag(last_{one}) ignore nulls over earlier as before_{name}" for name, one in of.items())
    return f"""
        select *, coalesce(request_mono_ns, response_mono_ns) - lag(last_mono_ns) over earlier as since, {", ".join(lags)},
            request_seq is not null as is_request, last_is_request is null as is_note,
            not is_note and coalesce(since > before_linger, true) as broken,
            coalesce(
                before_digest is not distinct from last_digest and before_subject is not distinct from last_subject
                and since <= before_allowance, false
            ) as same,
            -- The same bytes again, before an answer and within the allowance of the first: a further attempt.
            is_request and not broken and before_asks and same as again, is_request and not again as starts
        from ({turns}) as turns
        window earlier as ({_IN_ORDER})
    """


def _numbered(compared: str) -> str:
    # An exchange ends with its last turn that is not a note.
    opens, reuses = (
        f"lead(case when not is_note then starts {how} broken end) ignore nulls over alike" for how in ("or", "and not")
    )
    return f"""
        select *,
            sum(cast(starts or broken as int)) over upto as number,
            max(case when is_request then last_seq end) over upto as asked,
            max(case when broken then last_seq end) over upto as broken_at,
            {opens} as next_opens, {reuses} as next_reuses,
            not is_request and (asked is null or asked < broken_at) as orphaned
        from ({compared}) as compared
        window alike as ({_IN_ORDER}), upto as ({_IN_ORDER} rows between unbounded preceding and current row)
    """


def _folded(numbered: str) -> str:
    def of(flag: str, columns: Iterable[tuple[str, Any]]) -> str:
        return ", ".join(f"max(case when {flag} then {name} end) as {name}" for name, _ in columns)

    def first_known(column: tuple[str, Any]) -> str:
        name, _ = column
        by_request, by_answer = (f"max(case when {flag} then {name} end)" for flag in ("starts", "first_answer"))
        return f"coalesce({by_request}, {by_answer}) as {name}"

    key = ", ".join(_KEY)
    known = [column for column in _REQUEST if column[0] != "quality"]
    last = _LAST[:2] + _LAST[3:]  # without the moment, which is that of a note too
    return f"""
        select {key}, {of("starts", known)}, max(case when starts then found end) as quality,
            {of("first_answer", _ANSWER)},
            cast(sum(attempts) as int) as attempts, cast(sum(answers) as int) as answers,
            {", ".join(map(first_known, _EITHER))},
            {", ".join(f"cast({how}({name}) as bigint) as {name}" for name, how in _NOTES.items())},
            {of("ends", last)}, max(last_mono_ns) as last_mono_ns, max(last_seq) as seen_seq,
            max(next_opens is null and ends) as newest, max(next_reuses and ends) as reused
        from (
            select *, not is_note and (orphaned or coalesce(next_opens, true)) as ends,
                starts or orphaned or (not is_note and before_asks and not broken and request_seq is null) as first_answer,
                coalesce(quality, case when broken then 'unique' when before_asks then 'ambiguous' else 'reused_id' end)
                    as found
            from ({numbered}) as numbered
            where not (is_note and orphaned)
        ) as told
        group by {key}, number, case when orphaned then last_seq end, case when orphaned then last_sub end
    """


def _parted(folded: str, timeouts: MatchTimeouts) -> str:
    kept = [name for name in (*TURNS.names, "newest", "reused") if name not in ("closed_ns", "hole_ns")]
    ended = """folded.capture_id = link.capture_id and folded.conn_id = link.conn_id
                    and folded.request_seq > link.after_seq and folded.request_seq < link.seq"""
    # Wall clocks are adjusted at times, so the horizon is waited once more. While its recording may continue, an exchange is
    # not open at the end.
    return f"""
        select {", ".join(name for name in FOLDED.names if name != "part")},
            case when request_seq is not null then case when is_over then '{FINAL}' else '{OPEN}' end
                when kind != 'request' then '{ENDED}' when is_over then '{LOST}' else '{REMEMBERED}' end as part
        from (
            select /*+ broadcast(clocks, link, gone) */
                {", ".join(f"folded.{name}" for name in kept)},
                coalesce(folded.closed_ns, gone.at_ns, link.at_ns) as closed_ns,
                coalesce(case when folded.hole_ns >= folded.last_mono_ns then folded.hole_ns end, clocks.hole_ns) as hole_ns,
                clocks.end_ns, clocks.silent_ns, clocks.ended,
                not newest or coalesce(end_ns - last_mono_ns > last_linger_ns, false) or coalesce(
                    ended or (
                        silent_ns > last_linger_ns + {timeouts.horizon_ns}
                        and (request_seq is null or answers > 0 or {_WAITED} or silent_ns > last_linger_ns + {SILENT_NS})
                    ), false) as is_over
            from ({folded}) as folded
            -- The next hole behind what was seen of it.
            left join {{clocks}} as clocks on folded.capture_id = clocks.capture_id
                and folded.seen_seq >= clocks.from_seq and folded.seen_seq < clocks.until_seq
            left join {{closes}} as link on {ended} and link.client = ''
            left join {{closes}} as gone on {ended.replace("link.", "gone.")} and gone.client = folded.client
                and gone.client != ''
        ) as settled
        where request_seq is not null or kind = 'request' or not is_over
    """


_EXCHANGES: Final = f"""
    select capture_id, conn_id, direction, protocol, kind, subject, correlation_id, request_seq, response_seq, request_time_ns,
        latency_ns,
        -- The engine delivers a publication again on its own schedule.
        case when taken and took > allowance_ns and stored is distinct from 'delivery' then 'late'
            when taken and coalesce(code, 0) = 0 then 'ok'
            when taken then 'error'
            when given_up then 'cancelled'
            when answers > 0 or cancelled_ns is not null then 'timeout'
            -- The id was reused, so the request had been given up before.
            when id_is_another then case when asked_ns is not null then 'timeout' else 'unanswered' end
            when hole_ns <= request_mono_ns + allowance_ns and coalesce(hole_ns <= closed_ns, true) then 'unseen'
            when closed_ns < due_ns then 'lost'
            when not waited and closed_ns is null then 'open-at-end'
            when asked_ns is not null then 'timeout'
            else 'unanswered' end as outcome,
        case when taken then code end as code, case when taken then code_name end as code_name,
        attempts, case when answers > 1 then answers - 1 else 0 end as duplicates,
        -- Its answer may have been taken for the next one's.
        case when answers = 0 and id_is_another then 'ambiguous' else quality end as match_quality,
        peer, identity_key, timestamp_micros(div(request_time_ns, 1000)) as request_time, latency_ns / 1e6 as latency_ms,
        case when kind = 'stream' then items end as items, case when kind = 'stream' then took end as length_ns,
        stored, store, store_seq, durable, attempt, reason,
        date '1970-01-01' + cast(div(request_time_ns, {DAY_NS}) as int) as date{{part}}
    from (
        select *, coalesce(reused, false) as id_is_another, response_mono_ns - request_mono_ns as took,
            request_mono_ns + allowance_ns - case
                when allowance_ns < {4 * SLACK_NS} then div(allowance_ns, 4) else {SLACK_NS} end as due_ns,
            coalesce(cancelled_ns < due_ns, false) as given_up,
            -- After its id was reused, a request no longer waits.
            {_WAITED} or id_is_another as waited,
            -- Answers after a cancel do not count, nor those that only report a deadline or a cancel.
            answers > 0 and not (given_up and coalesce(cancelled_ns <= response_mono_ns, true)) and not (
                coalesce(code, 0) in ({_EXCEEDED}, {_CANCELLED}) and (
                    coalesce(response_mono_ns >= due_ns, false) or cancelled_ns is not null
                    or (code = {_EXCEEDED} and asked_ns is null)
                )
            ) as taken,
            case when kind = 'stream' and items > 0 then first_item_ns - request_mono_ns
                when taken then took end as latency_ns
        from {{folded}}
        where request_seq is not null
    ) as found
"""


def exchanges_of(engine: Engine, folded: Any, *further: str) -> Any:
    """Return the table of exchanges from folded turns, with the `further` columns."""
    return engine.sql(_EXCHANGES.replace("{part}", "".join(f", {name}" for name in further)), folded=folded)


def orphans_of(engine: Engine, events: Any, lost: Any) -> Any:
    made = f"""
        select {", ".join(f"events.{name}" for name in EVENTS.names)}
        from {{events}} as events semi join {{lost}} as lost
        on events.capture_id = lost.capture_id and events.seq = lost.last_seq and events.sub = lost.last_sub
    """
    return engine.sql(made, events=events, lost=lost)


EXCHANGES_BY_PART: Final = EXCHANGES.append(pa.field("part", _TEXT))
