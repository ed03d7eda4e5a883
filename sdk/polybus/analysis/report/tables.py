"""The numbers of the report: the tables of ``metrics/``, with what each column means.

In ``metrics.json`` each table is a list of objects with its columns as members.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES, OUTCOMES

FEW: Final = 100
"""Below so many samples there is no p99."""
SAMPLES: Final = 20
ROWS: Final = 400
"""Exchanges that the report shows one by one."""
ALIKE: Final = 5
"""Of these with the same protocol, subject, outcome and code."""
STACKED: Final = 8
"""Subjects that a plot of throughput tells apart; the others are one."""
BUCKETS_A_DECADE: Final = 5
MANY: Final = 1000
"""Subjects, errors, peers, sessions and reasons beyond so many are left out of the numbers, the rarest first."""

_STORE, _DURABLE, _WHY = map(EXCHANGES.field, ("store", "durable", "reason"))
_TEXT, _WHOLE, _SHORT = pa.string(), pa.int64(), pa.int32()


def _column(name: str, kind: pa.DataType, doc: str) -> pa.Field:
    return pa.field(name, kind, metadata={"doc": doc})


def _ns(name: str, doc: str) -> pa.Field:
    return _column(name, _WHOLE, doc)


def _share(share: int, more: str = "") -> pa.Field:
    doc = f"Latency, ns, that {share} % of the answers did not exceed{more}; at most 1 % too long."
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
        "Answers by latency, five buckets for each power of ten, whose edges are right to 1 %.",
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
        _column("who", _TEXT, "What the other end calls itself, where all that came from it says the same."),
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
    "store_publications": _table(
        "Publications to streams; of the 1000 streams with the most.",
        _STORE,
        _column("n", _WHOLE, "Publications; the store is null of those that no stream has answered."),
        _column("kept", _WHOLE, "Those that it says it has, duplicates included."),
        _column("duplicates", _WHOLE, "Those that it had already, by their id."),
        _column("refused", _WHOLE, "Those that it has refused."),
        _column("unanswered", _WHOLE, "Those of which it has said nothing."),
        _column("sent_again", _WHOLE, "How often one was sent again."),
    ),
    "store_deliveries": _table(
        "Deliveries of stored publications, by stream and durable consumer; the 1000 with the most.",
        *(_STORE, _DURABLE, _column("n", _WHOLE, "Deliveries.")),
        _column("publications", _WHOLE, "Those that were the first of their publication."),
        _column("redelivered", _WHOLE, "Deliveries that were not the first of their publication."),
        _column("most_attempts", _WHOLE, "The highest number of a delivery."),
        _column("handled", _WHOLE, "Deliveries that were acknowledged."),
        _column("again", _WHOLE, "Those that were to come again (NAK)."),
        _column("ended", _WHOLE, "Those that were not to come any more (TERM): a dead letter, or given up."),
        _column("unsettled", _WHOLE, "Those of which nothing was said: its worker is gone, or still at it."),
    ),
    "store_letters": _table(
        "Dead letters, by stream, durable consumer and reason; the 1000 most frequent.",
        *(_STORE, _DURABLE, _WHY, _column("n", _WHOLE, "Publications that became dead letters so.")),
        _column("most_attempts", _WHOLE, "How often one was given out, at the most."),
    ),
}
"""By name: what a row is, and the columns."""
