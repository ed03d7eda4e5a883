"""The tables in ``metrics/`` and ``metrics.json``, with the meaning of each column."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES, OUTCOMES
from polybus.errors import Code

FEW: Final = 100
"""Minimum number of samples for p99."""
SAMPLES: Final = 20
ROWS: Final = 400
"""Maximum number of listed exchanges."""
ALIKE: Final = 5
"""Maximum number of listed exchanges that have the same protocol, subject, outcome and code."""
STACKED: Final = 8
"""Maximum number of subjects in a throughput plot. Further subjects are combined."""
BUCKETS_A_DECADE: Final = 5
DEFECTS: Final = frozenset((Code.UNKNOWN, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS))
"""Error codes that indicate a problem of the service. Other codes indicate a problem of the request."""
MANY: Final = 1000
"""Maximum rows in a table of subjects, errors, peers, sessions or reasons. The rarest are left out."""

_ORDERLY: Final = frozenset(("1000", "1001", "1005"))


def broke_off(session: dict[str, Any]) -> bool:
    """Return True if a connection ended without an orderly close."""
    code = session["closed"] or ""
    return code.isdecimal() and code not in _ORDERLY


def host_of(peer: str | None) -> str:
    """Return an address without its port, because the port changes with each connection."""
    host, mark, port = (peer or "").rpartition(":")
    return host if mark and port.isdecimal() else peer or ""


_STORE, _DURABLE, _WHY = map(EXCHANGES.field, ("store", "durable", "reason"))
_TEXT, _WHOLE, _SHORT = pa.string(), pa.int64(), pa.int32()


def _column(name: str, kind: pa.DataType, doc: str) -> pa.Field:
    return pa.field(name, kind, metadata={"doc": doc})


def _ns(name: str, doc: str) -> pa.Field:
    return _column(name, _WHOLE, doc)


def _share(share: int, more: str = "") -> pa.Field:
    doc = f"{share}th percentile of the latency, ns{more}; at most 1 % too high."
    return _ns(f"p{share}_ns", doc)


def _table(doc: str, *columns: pa.Field) -> tuple[str, pa.Schema]:
    return doc, pa.schema(columns)


_PROTOCOL, _DIRECTION, _PEER, _CONN_ID, _CAPTURE_ID = map(
    EVENTS.field, ("protocol", "direction", "peer", "conn_id", "capture_id")
)
_SUBJECT = _column("subject", _TEXT, "Name of the subject, the same for all protocols; if it has none, as in the events.")
_OUTCOME = _column("outcome", _TEXT, "As in the exchanges.")
_CODE = _column("code", _SHORT, "google.rpc.Code of the answer.")
_CODE_NAME = _column("code_name", _TEXT, "Name of the code.")
_MESSAGES = _column("n", _WHOLE, "Number of messages.")
_REQUESTS = _column("n", _WHOLE, "Number of requests.")
_NOT_OK = _column("not_ok", _WHOLE, "Number with an outcome other than ok.")
_ROUGH = _ns("p95_ns", "95th percentile of the latency, ns; less than twice the exact one.")
_ASKER = _column("asker", _TEXT, "Name or address of the caller. `here` is the recording program; of several, the recording.")
_ANSWERER = _column("answerer", _TEXT, "Name or address of the program that answers.")
_DUPLICATES = _column("duplicates", _WHOLE, "Number of further answers.")
_NBYTES = _column("nbytes", _WHOLE, "Bytes of their frames.")
_BEGIN = _ns("window_ns", "Start of the window, ns since 1970 UTC.")
_REASON = _column("reason", _TEXT, "As in the quarantine.")
_WAY = _column("way_ns", pa.float64(), "Mean transit time, ns: latency of the view that counts, minus the shortest one.")
_VIEWS = _column("views", _SHORT, "Number of recordings that contain it.")
_EXCHANGE = (
    _PROTOCOL,
    _SUBJECT,
    _OUTCOME,
    _ns("latency_ns", "Time from request to answer, ns; null without an answer."),
    _CODE,
    _CODE_NAME,
    _CONN_ID,
    _PEER,
    _column("correlation_id", _TEXT, "As on the wire."),
    _ns("request_time_ns", "Time of the request, ns since 1970 UTC."),
    _column("request_seq", _WHOLE, "Frame of the request."),
    _column("direction", pa.int8(), "Direction of the request in the view that counts: 0 out, 1 in."),
    _VIEWS,
)
_BEFORE = "The same for the earlier capture."
_NOW_AND_BEFORE: Final = tuple(
    _column(name + end, _WHOLE, doc)
    for name, now in (
        ("n", "Messages of this kind."),
        ("failed", "Requests with the outcome error."),
        ("lost", "Requests with the outcome timeout, lost or unanswered."),
        ("late", "Requests with the outcome late."),
    )
    for end, doc in (("", now), ("_before", _BEFORE))
)
_BY_SUBJECT = (
    _ns("max_ns", "The longest latency, ns."),
    _column("mean_ns", pa.float64(), "The mean latency, ns."),
    *(_column(name.replace("-", "_"), _WHOLE, "Number with this outcome.") for name in OUTCOMES),
    _DUPLICATES,
    _column("asked", _WHOLE, "Number counted as the caller saw them; the others as the answering side saw them."),
    _column("seen", _WHOLE, "Number in more than one recording."),
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
        _ns("first_ns", "Time of the first message, ns since 1970 UTC."),
        _ns("last_ns", "Time of the last message, ns since 1970 UTC."),
    ),
    "outcomes": _table(
        "Exchanges by protocol, outcome and quality of the match.",
        _PROTOCOL,
        _OUTCOME,
        _column("match_quality", _TEXT, "As in the exchanges."),
        _REQUESTS,
        _DUPLICATES,
        _column("repeats", _WHOLE, "Number of further attempts."),
    ),
    "places": _table(
        "Exchanges by number of recordings, and by the view that counts.",
        _PROTOCOL,
        _column("direction", pa.int8(), "View that counts: 0 the caller's, 1 the answering side's or a broker's."),
        _VIEWS,
        _REQUESTS,
        _WAY,
    ),
    "latency": _table(
        "Requests by subject (top 1000).",
        *(_PROTOCOL, _SUBJECT, _REQUESTS, _column("answered", _WHOLE, "Number with an answer; latencies cover only these.")),
        *_BY_SUBJECT,
    ),
    "streams": _table(
        "Streams and channels by subject (top 1000). The latency is the time to the first item, or without items to the end.",
        *(
            _PROTOCOL,
            _SUBJECT,
            _column("n", _WHOLE, "Number of streams."),
            _column("answered", _WHOLE, "Number with a latency."),
        ),
        *(
            *_BY_SUBJECT,
            _column("items", _WHOLE, "Number of returned items."),
            _column("views", _WHOLE, "Number of views of all of them."),
        ),
    ),
    "latency_over_time": _table("Requests by time.", _BEGIN, _REQUESTS, _NOT_OK, *map(_share, (50, 95))),
    "latency_histogram": _table(
        "Answers by latency, in five buckets per power of ten; edges are accurate to 1 %.",
        _column("from_ns", pa.float64(), "Lower edge of the bucket, ns."),
        _column("n", _WHOLE, "Number of answers in it."),
    ),
    "throughput": _table(
        "Messages by time, for the eight busiest subjects and all others together.",
        _BEGIN,
        _column("subject", _TEXT, "Null for all other subjects."),
        _MESSAGES,
        _NBYTES,
    ),
    "errors": _table(
        "Exchanges that ended as error, by subject and code (top 1000).",
        *(_PROTOCOL, _SUBJECT, _CODE, _CODE_NAME, _column("n", _WHOLE, "Number of exchanges.")),
    ),
    "slowest": _table("The 20 exchanges with the longest latency.", *_EXCHANGE),
    "dead_letters": _table("The first 20 requests without an answer.", *_EXCHANGE),
    "orphans": _table("Answers without a request, by subject (top 1000).", _PROTOCOL, _SUBJECT, _MESSAGES),
    "sessions": _table(
        "Connections that broke off, then the busiest ones; at most 1000.",
        _CAPTURE_ID,
        _CONN_ID,
        _PROTOCOL,
        _column("transport", _TEXT, "tcp, ws, memory, ..."),
        _PEER,
        _column("who", _TEXT, "Key of the peer's identity, or the name in all messages of the peer."),
        _MESSAGES,
        _NBYTES,
        _ns("first_ns", "Time of the first message, ns since 1970 UTC."),
        _ns("last_ns", "Time of the last message, ns since 1970 UTC."),
        _ns("length_ns", "Time from the first to the last message on the monotonic clock, ns."),
        _ns(
            "handshake_ns",
            "Time from the first to the last message of the kind open, ns, without clients behind it; null for a single one.",
        ),
        _column("heartbeats", _WHOLE, "Number of heartbeats."),
        _column("closed", _TEXT, "Close code; null if not recorded."),
    ),
    "asks": _table(
        "Requests by caller, answering program and subject (top 1000).",
        *(_ASKER, _ANSWERER, _PROTOCOL, _SUBJECT, _DIRECTION, _REQUESTS, _NOT_OK, _ROUGH),
    ),
    "pairs": _table(
        "Requests by caller and answering program (top 1000).", *(_ASKER, _ANSWERER, _DIRECTION, _REQUESTS, _NOT_OK, _ROUGH)
    ),
    "topics": _table(
        "Publications by subject (top 1000).",
        *(_PROTOCOL, _SUBJECT, _DIRECTION, _column("n", _WHOLE, "Number of publications."), _NBYTES),
    ),
    "unheard": _table(
        "Incoming publications that matched no recorded subscription and were not forwarded, by subject (top 1000). Only the "
        "recording program can have handled them.",
        *(_PROTOCOL, _SUBJECT, _column("n", _WHOLE, "Number of publications.")),
    ),
    "rows": _table(
        "Up to 400 sample exchanges: the slowest five per protocol, subject, outcome and code; failed ones first.",
        *_EXCHANGE,
        _CAPTURE_ID,
        _column("address", _TEXT, "The subject in the tables of events and exchanges."),
        _column("alike", _WHOLE, "Number of exchanges like this one."),
    ),
    "clocks": _table(
        "Clock errors by recording (top 1000).",
        *(_CAPTURE_ID, _MESSAGES),
        _ns("stepped_ns", "Jump of the wall clock, ns, because it was set or the machine slept."),
        _ns("ahead_ns", "Offset of the wall clock from the other recordings', ns; 0 below half a second."),
    ),
    "peers": _table("Messages by peer (top 1000).", _PEER, _PROTOCOL, _DIRECTION, _MESSAGES, _NBYTES),
    "quarantine": _table(
        "Frames that could not be read, by reason.", _PROTOCOL, _REASON, _column("n", _WHOLE, "Number of frames.")
    ),
    "quarantine_samples": _table(
        "The first 20 quarantined frames.",
        _CAPTURE_ID,
        _column("seq", _WHOLE, "Number of the frame in its capture."),
        _ns("ts_ns", "Time of the frame, ns since 1970 UTC."),
        _CONN_ID,
        _PROTOCOL,
        _REASON,
        _column("detail", _TEXT, "Error text of the decoder."),
        _column("offset", _SHORT, "Position of the error in the frame, in bytes, if known."),
        _column("raw_hex", _TEXT, "The first 48 bytes of the frame, in hexadecimal."),
        _column("size", _SHORT, "Size of the frame in bytes."),
    ),
    "changes": _table(
        "Subjects compared with an earlier capture (`--before`), changed ones first (top 1000).",
        _column("kind", _TEXT, "request or publish."),
        _PROTOCOL,
        _SUBJECT,
        _column("change", _TEXT, "Significant changes, comma-separated, or null."),
        *_NOW_AND_BEFORE,
        *(
            _ns(f"p{share}{end}_ns", doc)
            for share in (50, 95)
            for end, doc in (("", f"{share}th percentile of the latency, ns."), ("_before", _BEFORE))
        ),
    ),
    "store_publications": _table(
        "Publications by stream (top 1000).",
        _STORE,
        _column("n", _WHOLE, "Number of publications; without an answer from a stream, the store is null."),
        _column("kept", _WHOLE, "Number confirmed by the stream, including duplicates."),
        _column("duplicates", _WHOLE, "Number that the stream already had, by id."),
        _column("refused", _WHOLE, "Number refused by the stream."),
        _column("unanswered", _WHOLE, "Number without an answer."),
        _column("sent_again", _WHOLE, "Number of repeated attempts."),
    ),
    "store_deliveries": _table(
        "Deliveries of stored publications, by stream and durable consumer (top 1000).",
        *(_STORE, _DURABLE, _column("n", _WHOLE, "Number of deliveries.")),
        _column("publications", _WHOLE, "Number of first deliveries of a publication."),
        _column("redelivered", _WHOLE, "Number of repeated deliveries."),
        _column("most_attempts", _WHOLE, "Most deliveries of one publication."),
        _column("handled", _WHOLE, "Number acknowledged."),
        _column("again", _WHOLE, "Number sent back for redelivery (NAK)."),
        _column("ended", _WHOLE, "Number of dead letters or given up (TERM)."),
        _column("unsettled", _WHOLE, "Number without an acknowledgement: the worker is gone or busy."),
    ),
    "store_letters": _table(
        "Dead letters, by stream, durable consumer and reason (top 1000).",
        *(_STORE, _DURABLE, _WHY, _column("n", _WHOLE, "Number of dead letters.")),
        _column("most_attempts", _WHOLE, "Most deliveries of one publication."),
    ),
}
"""Meaning and columns of each table, by name."""
