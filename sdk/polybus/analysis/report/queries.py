"""The numbers of the report: the tables of ``metrics/``, with what each column means, and the SQL of their rows.

In ``metrics.json`` each table is a list of objects with its columns as members. Spark and DuckDB run the SQL alike; names in
braces are tables, or the ns of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from polybus.capture.protocols.nats import DEAD_LETTER, DELIVERY, PUBLICATION
from polybus.capture.schema import EVENTS, EXCHANGES, OUTCOMES

from ..clocks import LAST_NS
from .views import FAR_NS, TIES, USERS


def _count(name: str, doc: str) -> pa.Field:
    return pa.field(name, pa.int64(), metadata={"doc": doc})


MANY: Final = 1000
"""Subjects, errors, peers, sessions and reasons beyond so many are left out of the numbers, the rarest first."""

_STORE, _DURABLE, _WHY, _ATTEMPT = map(EXCHANGES.field, ("store", "durable", "reason", "attempt"))

STORE_METRICS: Final = MappingProxyType(
    {
        "store_publications": (
            "Publications to streams; of the 1000 streams with the most.",
            pa.schema(
                [
                    _STORE,
                    _count("n", "Publications; the store is null of those that no stream has answered."),
                    _count("kept", "Those that it says it has, duplicates included."),
                    _count("duplicates", "Those that it had already, by their id."),
                    _count("refused", "Those that it has refused."),
                    _count("unanswered", "Those of which it has said nothing."),
                    _count("sent_again", "How often one was sent again."),
                ]
            ),
        ),
        "store_deliveries": (
            "Deliveries of stored publications, by stream and durable consumer; the 1000 with the most.",
            pa.schema(
                [
                    _STORE,
                    _DURABLE,
                    _count("n", "Deliveries."),
                    _count("publications", "Publications that were delivered."),
                    _count("redelivered", "Deliveries that were not the first of their publication."),
                    _count("most_attempts", "The highest number of a delivery."),
                    _count("handled", "Deliveries that were acknowledged."),
                    _count("again", "Those that were to come again (NAK)."),
                    _count("ended", "Those that were not to come any more (TERM): a dead letter, or given up."),
                    _count("unsettled", "Those of which nothing was said: its worker is gone, or still at it."),
                ]
            ),
        ),
        "store_letters": (
            "Dead letters, by stream, durable consumer and reason; the 1000 most frequent.",
            pa.schema(
                [
                    _STORE,
                    _DURABLE,
                    _WHY,
                    _count("n", "Publications that became dead letters so."),
                    _count("most_attempts", "How often one was given out, at the most."),
                ]
            ),
        ),
    }
)
"""By name: what a row is, and the columns."""

_SETTLED: Final = "latency_ns is not null and code_name"


def _counted(stored: str, keys: str, columns: str, order: str) -> str:
    return f"""
        select {keys}, {columns} from {{exchanges}} where stored = '{stored}'
        group by {keys} order by {order} desc, {", ".join(f"{key} nulls first" for key in keys.split(", "))} limit {MANY}
    """


STORE_QUERIES: Final = MappingProxyType(
    {
        "store_publications": _counted(
            PUBLICATION,
            "store",
            """count(*) as n, count_if(latency_ns is not null and coalesce(code, 0) = 0) as kept,
                count_if(code_name = 'DUPLICATE') as duplicates, count_if(code != 0) as refused,
                count_if(latency_ns is null) as unanswered, sum(attempts - 1) as sent_again""",
            "n",
        ),
        "store_deliveries": _counted(
            DELIVERY,
            "store, durable",
            f"""count(*) as n, count(distinct store_seq) as publications, count_if(attempt > 1) as redelivered,
                max(attempt) as most_attempts, count_if({_SETTLED} = 'OK') as handled, count_if({_SETTLED} = 'NAK') as again,
                count_if({_SETTLED} = 'TERM') as ended, count_if(latency_ns is null) as unsettled""",
            "n",
        ),
        # A letter is stored again by the next worker where the first was killed before it had ended its publication.
        "store_letters": _counted(
            DEAD_LETTER,
            "store, durable, reason",
            "count(distinct store_seq) as n, max(attempt) as most_attempts",
            "n",
        ),
    }
)
"""By the names of `STORE_METRICS`; texts as those of `queries.QUERIES`."""


_TEXT, _WHOLE, _SHORT = pa.string(), pa.int64(), pa.int32()


def _column(name: str, kind: pa.DataType, doc: str) -> pa.Field:
    return pa.field(name, kind, metadata={"doc": doc})


def _ns(name: str, doc: str) -> pa.Field:
    return _column(name, _WHOLE, doc)


def _share(share: int, more: str = "") -> pa.Field:
    doc = f"Latency, ns, that {share} % of the answers did not exceed{more}; exact to six digits."
    return _ns(f"p{share}_ns", doc)


def _table(doc: str, *columns: pa.Field) -> tuple[str, pa.Schema]:
    return doc, pa.schema(columns)


_PROTOCOL, _DIRECTION, _PEER, _CONN_ID, _CAPTURE_ID = map(
    EVENTS.field, ("protocol", "direction", "peer", "conn_id", "capture_id")
)
_SUBJECT = _column("subject", _TEXT, "Its name, which is one on all wires; without such a one as in the events.")
_OUTCOME = _column("outcome", _TEXT, "As in the exchanges.")
_CODE = _column("code", _SHORT, "google.rpc.Code of the answer.")
_CODE_NAME = _column("code_name", _TEXT, "Its name.")
_MESSAGES = _column("n", _WHOLE, "Messages.")
_REQUESTS = _column("n", _WHOLE, "Requests.")
_DUPLICATES = _column("duplicates", _WHOLE, "Further answers.")
_NBYTES = _column("nbytes", _WHOLE, "Bytes of their frames.")
_BEGIN = _ns("window_ns", "Begin of the window, ns since 1970 UTC; how long one is stands in metrics.json as window_ns.")
_REASON = _column("reason", _TEXT, "As in the quarantine.")
_WAY = _column(
    "way_ns", pa.float64(), "By so much longer, ns, the view that counts has waited in the mean than the one that waited least."
)
_VIEWS = _column("views", _SHORT, "Places that have recorded it.")
_EXCHANGE = (
    _PROTOCOL,
    _SUBJECT,
    _OUTCOME,
    _ns("latency_ns", "From request to answer, ns; null without one."),
    _CODE,
    _CODE_NAME,
    _CONN_ID,
    _PEER,
    _column("correlation_id", _TEXT, "As on the wire."),
    _ns("request_time_ns", "ns since 1970 UTC."),
    _column("request_seq", _WHOLE, "Frame of the request."),
    _column("direction", pa.int8(), "Of the request in the recording whose view counts: 0 out, 1 in."),
    _VIEWS,
)
_NOW_AND_BEFORE: Final = tuple(
    _column(name + end, _WHOLE, doc + more)
    for name, doc in (
        ("n", "Messages of this kind"),
        ("failed", "Requests that ended as error"),
        ("lost", "Requests that ended as timeout, lost or unanswered"),
        ("late", "Requests that ended as late"),
    )
    for end, more in (("", "."), ("_before", ", in the capture before."))
)
_OF_OUTCOMES = {"ok": "Those with this outcome.", "open-at-end": "The same, of open-at-end."}
_BY_SUBJECT = (
    _ns("max_ns", "The longest latency, ns."),
    _column("mean_ns", pa.float64(), "The mean latency, ns."),
    *(_column(name.replace("-", "_"), _WHOLE, _OF_OUTCOMES.get(name, "The same.")) for name in OUTCOMES),
    _DUPLICATES,
    _column("asked", _WHOLE, "Those that are counted as who asked has seen them; the others as who was asked."),
    _column("seen", _WHOLE, "Those that were recorded at more than one place."),
    _WAY,
    *map(_share, (50, 90, 95)),
    _share(99, "; null below 100 answers"),
)

METRICS: Final = {
    "kinds": _table(
        "Messages by protocol, kind and direction.",
        _PROTOCOL,
        _column("kind", _TEXT, "As in the events."),
        _DIRECTION,
        _MESSAGES,
        _NBYTES,
        _ns("first_ns", "When the first was recorded, ns since 1970 UTC."),
        _ns("last_ns", "When the last was."),
    ),
    "outcomes": _table(
        "Exchanges by protocol, outcome and quality of the pair.",
        _PROTOCOL,
        _OUTCOME,
        _column("match_quality", _TEXT, "As in the exchanges."),
        _REQUESTS,
        _DUPLICATES,
        _column("repeats", _WHOLE, "Further attempts."),
    ),
    "places": _table(
        "Exchanges by how many have recorded them, and whose view counts.",
        _PROTOCOL,
        _column("direction", pa.int8(), "0 that of who asked, 1 another one's: who was asked, or stands between."),
        _VIEWS,
        _REQUESTS,
        _WAY,
    ),
    "latency": _table(
        "Requests by subject, the 1000 with the most.",
        *(_PROTOCOL, _SUBJECT, _REQUESTS, _column("answered", _WHOLE, "Of these with an answer; all latencies are of theirs.")),
        *_BY_SUBJECT,
    ),
    "streams": _table(
        "Streams and channels by subject, the 1000 with the most. The latency of one is that of its first item; where none "
        "came, of its end.",
        *(_PROTOCOL, _SUBJECT, _column("n", _WHOLE, "Streams."), _column("answered", _WHOLE, "Of these with a latency.")),
        *(
            *_BY_SUBJECT,
            _column("items", _WHOLE, "Items that came back."),
            _column("views", _WHOLE, "Places, of all together."),
        ),
    ),
    "latency_over_time": _table(
        "Exchanges by when they were asked.",
        _BEGIN,
        _REQUESTS,
        _column("not_ok", _WHOLE, "Those with another outcome than ok."),
        *map(_share, (50, 95)),
    ),
    "latency_histogram": _table(
        "Answers by latency, five buckets for each power of ten.",
        _column("from_ns", pa.float64(), "Where the bucket begins, ns."),
        _column("n", _WHOLE, "Answers in it."),
    ),
    "throughput": _table(
        "Messages by time and subject: the eight busiest subjects, and the others together.",
        _BEGIN,
        _column("subject", _TEXT, "Null for all others."),
        _MESSAGES,
        _NBYTES,
    ),
    "errors": _table(
        "Exchanges that ended as error, by subject and code; the 1000 most frequent.",
        *(_PROTOCOL, _SUBJECT, _CODE, _CODE_NAME, _column("n", _WHOLE, "Exchanges.")),
    ),
    "slowest": _table("The 20 exchanges with the longest latency.", *_EXCHANGE),
    "dead_letters": _table("The first 20 requests without an answer.", *_EXCHANGE),
    "orphans": _table("Answers without a request, by subject; the 1000 most frequent.", _PROTOCOL, _SUBJECT, _MESSAGES),
    "sessions": _table(
        "Connections; the 1000 with the most messages.",
        _CAPTURE_ID,
        _CONN_ID,
        _PROTOCOL,
        _column("transport", _TEXT, "tcp, ws, memory, ..."),
        _PEER,
        _MESSAGES,
        _NBYTES,
        _ns("first_ns", "When its first message was recorded, ns since 1970 UTC."),
        _ns("last_ns", "When its last one was."),
        _ns("length_ns", "From the first to the last on the monotonic clock, ns."),
        _ns(
            "handshake_ns",
            "From its first message of the kind open to its last, ns, but for those of clients behind it; null for one.",
        ),
        _column("heartbeats", _WHOLE, "Messages of the kind heartbeat."),
        _column("closed", _TEXT, "Why it was closed; null where that was not recorded."),
    ),
    "topics": _table(
        "Publications by subject; the 1000 most frequent.",
        *(_PROTOCOL, _SUBJECT, _DIRECTION, _column("n", _WHOLE, "Publications."), _NBYTES),
    ),
    "unheard": _table(
        "Publications that came in, that no recorded client has subscribed to and that went on to nobody, by subject: nobody "
        "has heard them, unless the program that recorded them has. At most 1000.",
        *(_PROTOCOL, _SUBJECT, _column("n", _WHOLE, "Publications.")),
    ),
    "rows": _table(
        "At most 400 exchanges to look at: of each protocol, subject, outcome and code the slowest five, those that did not go "
        "well first.",
        *_EXCHANGE,
        _CAPTURE_ID,
        _column("address", _TEXT, "The subject as it stands in the other tables."),
        _column("alike", _WHOLE, "Exchanges with this protocol, subject, outcome and code."),
    ),
    "clocks": _table(
        "Recordings, the 1000 with the most messages, and how right their clocks are.",
        *(_CAPTURE_ID, _MESSAGES),
        _ns("stepped_ns", "How far its wall clock moved against its monotonic one, ns: it was set, or the machine slept."),
        _ns("ahead_ns", "How far its wall clock is ahead of the others', ns, by what both have seen; 0 below half a second."),
    ),
    "peers": _table("Messages by peer; the 1000 most frequent.", _PEER, _PROTOCOL, _DIRECTION, _MESSAGES, _NBYTES),
    "quarantine": _table("Frames that could not be read, by reason.", _PROTOCOL, _REASON, _column("n", _WHOLE, "Frames.")),
    "quarantine_samples": _table(
        "The first 20 of them.",
        _CAPTURE_ID,
        _column("seq", _WHOLE, "Number of the frame in its capture."),
        _ns("ts_ns", "ns since 1970 UTC."),
        _CONN_ID,
        _PROTOCOL,
        _REASON,
        _column("detail", _TEXT, "What the decoder said."),
        _column("offset", _SHORT, "Byte in the frame where it went wrong, where known."),
        _column("raw_hex", _TEXT, "The first 48 bytes of the frame, in hexadecimal."),
        _column("size", _SHORT, "Bytes of the frame."),
    ),
    "changes": _table(
        "Subjects beside those of the capture before (`--before`), what has changed first; at most 1000.",
        _column("kind", _TEXT, "request or publish."),
        _PROTOCOL,
        _SUBJECT,
        _column("change", _TEXT, "What has changed beyond chance, several with commas; null for nothing."),
        *_NOW_AND_BEFORE,
        *(
            _ns(f"p{share}{end}_ns", f"Latency, ns, that {share} % of the answers did not exceed{more}")
            for share in (50, 95)
            for end, more in (("", "."), ("_before", ", in the capture before."))
        ),
    ),
    **STORE_METRICS,
}
"""By name: what a row is, and the columns."""


FEW: Final = 100
"""Below so many samples there is no p99."""
SAMPLES: Final = 20
ROWS: Final = 400
"""Exchanges that the report shows one by one."""
ALIKE: Final = 5
"""Of these with the same protocol, subject, outcome and code."""
STACKED: Final = 8
"""Subjects that a plot of throughput tells apart; the others are one."""
DIGITS: Final = 6
"""Significant digits by which latencies are told apart for percentiles, so that counting them takes little room."""
BUCKETS_A_DECADE: Final = 5

OF_KIND: Final = "select * from {exchanges} where kind = '{kind}'"


def _most(table: str, keys: str, more: str = "", where: str = "true") -> str:
    """Number of rows by some keys, and more about them, of the keys that have the most rows."""
    return f"""
        select {keys}, count(*) as n {more} from {{{table}}} where {where}
        group by {keys} order by n desc, {", ".join(f"{key} nulls first" for key in keys.split(", "))} limit {MANY}
    """


def _apart(late: str, early: str) -> str:
    """The ns between two moments; as many as there are numbers for, where rows say what no clock says."""
    apart = f"cast({late} as decimal(20, 0)) - cast({early} as decimal(20, 0))"
    return f"cast(case when {apart} > {LAST_NS} then {LAST_NS} else {apart} end as bigint)"


def _percentile(share: int, few: int = 0) -> str:
    """The least latency that so many in 100 answers do not exceed, out of `_ranked`; null below `few` answers."""
    enough = f" and total >= {few}" if few else ""
    return f"min(case when value is not null and upto * 100 >= {share} * total{enough} then value end) as p{share}_ns"


def _ranked(keys: Sequence[str], more: Sequence[str], columns: str) -> str:
    """Exchanges by keys and by latency, with the number of answers up to that latency (`upto`), and of all (`total`).

    The latency of a class is the longest in it: of few answers each has its own.
    """
    named = ", ".join(keys)
    return f"""
        select *, sum(answered) over (partition by {named} order by value nulls first) as upto,
            sum(answered) over (partition by {named}) as total
        from (
            select {named}, max(latency_ns) as value, count(*) as n, count(latency_ns) as answered, {", ".join(more)}
            from (
                select *, {columns}
                    latency_ns - latency_ns % cast(power(10, case when length(cast(latency_ns as string)) > {DIGITS}
                        then length(cast(latency_ns as string)) - {DIGITS} else 0 end) as bigint) as class
                from {{exchanges}}
            ) as classed
            group by {named}, class
        ) as counted
    """


_ITS_OWN: Final = "kind = '{}' and coalesce(client, '') = ''"
"""Of a connection itself, and not of a client behind it."""
_BY_OUTCOME: Final = {name.replace("-", "_"): name for name in OUTCOMES}
_LISTED: Final = ", ".join(METRICS["slowest"][1].names)
_ALIKE: Final = "protocol, subject, outcome, code"
_BYTES: Final = ", sum(nbytes) as nbytes"
_WINDOW: Final = "time_ns - time_ns % {width}"


def _by_subject(*more: str) -> str:
    """Latencies and outcomes by subject, and the sums of some columns more."""
    sums = {
        **{name: f"count_if(outcome = '{outcome}')" for name, outcome in _BY_OUTCOME.items()},
        **{"duplicates": "sum(duplicates)", "asked": "count_if(direction = 0)", "seen": "count_if(views > 1)"},
        **{name: f"sum({name})" for name in more},
    }
    parts = {"summed": "sum(cast(latency_ns as decimal(20, 0)))", "way": "sum(cast(way_ns as decimal(20, 0)))"}
    found = sums | parts | {"ways": "count(way_ns)"}
    return f"""
        select protocol, subject, sum(n) as n, sum(answered) as answered, max(value) as max_ns,
            cast(sum(summed) as double) / nullif(sum(answered), 0) as mean_ns,
            {", ".join(f"sum({name}) as {name}" for name in sums)}, cast(sum(way) as double) / nullif(sum(ways), 0) as way_ns,
            {", ".join(map(_percentile, (50, 90, 95)))}, {_percentile(99, FEW)}
        from ({_ranked(("protocol", "subject"), [f"{text} as {name}" for name, text in found.items()], "")}) as ranked
        group by protocol, subject order by n desc, protocol nulls first, subject nulls first limit {MANY}
    """


QUERIES: Final = MappingProxyType(
    {
        "kinds": f"""
            select protocol, kind, direction, count(*) as n{_BYTES}, min(time_ns) as first_ns, max(time_ns) as last_ns
            from {{events}} group by protocol, kind, direction order by protocol nulls first, kind, direction
        """,
        "outcomes": """
            select protocol, outcome, match_quality, count(*) as n, sum(duplicates) as duplicates, sum(attempts - 1) as repeats
            from {exchanges} group by protocol, outcome, match_quality order by protocol nulls first, outcome, match_quality
        """,
        "places": """
            select protocol, direction, views, count(*) as n, cast(sum(cast(way_ns as decimal(20, 0))) as double)
                / nullif(count(way_ns), 0) as way_ns
            from {exchanges} group by protocol, direction, views order by protocol nulls first, direction, views
        """,
        "latency": _by_subject(),
        "streams": _by_subject("items", "views").replace("{exchanges}", "{streams}"),
        "latency_over_time": f"""
            select window_ns, sum(n) as n, sum(not_ok) as not_ok, {_percentile(50)}, {_percentile(95)}
            from ({
            _ranked(
                ("window_ns",),
                ("count_if(outcome != 'ok') as not_ok",),
                "at_ns - at_ns % {width} as window_ns,",
            )
        }) as ranked
            group by window_ns order by window_ns
        """,
        "latency_histogram": f"""
            select bucket, count(*) as n from (
                select cast(floor(log10(positive_ns) * {BUCKETS_A_DECADE}) as int) as bucket from (
                    select case when latency_ns > 1 then latency_ns else 1 end as positive_ns
                    from {{exchanges}} where latency_ns is not null
                ) as answered
            ) as placed
            group by bucket order by bucket
        """,
        "throughput": f"""
            select {_WINDOW} as window_ns, busiest.subject as subject, count(*) as n{_BYTES}
            from {{events}} as events left join (
                select subject, count(*) as n from {{events}} where subject is not null and {USERS}
                group by subject order by n desc, subject limit {STACKED}
            ) as busiest on events.subject = busiest.subject
            group by {_WINDOW}, busiest.subject order by window_ns, subject nulls first
        """,
        "errors": _most("exchanges", "protocol, subject, code, code_name", where="outcome = 'error'"),
        "slowest": f"""
            select {_LISTED} from {{exchanges}} where latency_ns is not null order by latency_ns desc, {TIES} limit {SAMPLES}
        """,
        # By the clock of the wall: each recording of a folder counts its frames from 0.
        "dead_letters": f"""
            select {_LISTED} from {{exchanges}} where latency_ns is null order by request_time_ns, {TIES} limit {SAMPLES}
        """,
        "orphans": _most("orphans", "protocol, subject"),
        "sessions": _most(
            "events",
            "capture_id, conn_id, protocol",
            f""", max(transport) as transport, max(peer) as peer{_BYTES}, min(time_ns) as first_ns, max(time_ns) as last_ns,
                {_apart("max(mono_ns)", "min(mono_ns)")} as length_ns,
                case when count_if({_ITS_OWN.format("open")}) > 1 then {
                _apart(*(f"{end}(case when {_ITS_OWN.format('open')} then mono_ns end)" for end in ("max", "min")))
            } end as handshake_ns,
                count_if(kind = 'heartbeat') as heartbeats,
                coalesce(max(case when {_ITS_OWN.format("close")} then code_name end),
                    max(case when {_ITS_OWN.format("close")} then 'closed' end)) as closed""",
        ),
        "topics": _most("events", "protocol, subject, direction", _BYTES, where=f"kind = 'publish' and {USERS}"),
        # Publications that came in where none went on; in several recordings they are the same.
        "unheard": f"""
            select protocol, subject, max(n) as n from (
                select protocol, subject, capture_id, count_if(direction = 1) as n, count_if(direction = 0) as passed
                from {{events}} where kind = 'publish' and {USERS} group by protocol, subject, capture_id
            ) as counted
            where n > 0 group by protocol, subject having sum(passed) = 0
            order by n desc, protocol nulls first, subject nulls first limit {MANY}
        """,
        "rows": f"""
            select {_LISTED}, capture_id, address, alike from (
                select *,
                    row_number() over (partition by {_ALIKE} order by latency_ns desc nulls first, {TIES}) as nth,
                    count(*) over (partition by {_ALIKE}) as alike
                from {{exchanges}}
            ) as numbered
            where nth <= {ALIKE}
            order by outcome = 'ok', nth, protocol nulls first, subject nulls first, outcome, code nulls first, {TIES}
            limit {ROWS}
        """,
        "clocks": _most(
            "events",
            "capture_id",
            f", {_apart('max(time_ns - mono_ns)', 'min(time_ns - mono_ns)')} as stepped_ns",
            f"time_ns between -{FAR_NS} and {FAR_NS} and mono_ns between -{FAR_NS} and {FAR_NS}",
        ),
        "peers": _most("events", "peer, protocol, direction", _BYTES),
        "quarantine": _most("quarantine", "protocol, reason"),
        "quarantine_samples": f"""
            select capture_id, seq, ts_ns, conn_id, protocol, reason, detail, bad.offset, raw from {{quarantine}} as bad
            order by capture_id, seq limit {SAMPLES}
        """,
        **STORE_QUERIES,
    }
)
"""By the names of `METRICS`."""
