"""Schemas of a capture and of the tables made of it: one place, for the recorder, the decoder, Spark and the docs.

Times that end in ``_ns`` are nanoseconds: of the wall clock since 1970 UTC (``ts_ns``, ``time_ns``), or of a monotonic clock
with an arbitrary start (``mono_ns``, ``latency_ns``). Field metadata ``doc`` says what a column means.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from .rows import DIRECTION_IN, DIRECTION_OUT, FLAG_GAP_BEFORE, FLAG_REDACTED, FLAG_TRUNCATED

__all__ = ["DIRECTION_IN", "DIRECTION_OUT", "EVENTS", "EXCHANGES", "FLAG_GAP_BEFORE", "FLAG_REDACTED"]
__all__ += ["FLAG_TRUNCATED", "FRAMES", "KINDS", "MATCH_QUALITIES", "ORPHANS", "OUTCOMES", "QUARANTINE"]
__all__ += ["QUARANTINE_REASONS", "SCHEMA_VERSION"]

SCHEMA_VERSION: Final = "1"


def _column(name: str, kind: pa.DataType, doc: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable, metadata={"doc": doc})


_STRING = pa.string()
_INT64 = pa.int64()
_INT32 = pa.int32()
_INT8 = pa.int8()
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_STRINGS = pa.list_(_STRING)

_CAPTURE_ID = _column("capture_id", _STRING, "Of the recorder that wrote it; new with every recording.")
_SEQ = _column("seq", _INT64, "Number of the frame in its capture, without gaps.")
_SUB = _column("sub", _INT32, "Number of the message in its frame: 0 but for payloads that hold several.")
_CONN_ID = _column("conn_id", _STRING, "Of the connection; another one after each reconnect.")
_DIRECTION = _column("direction", _INT8, "0 out, 1 in, seen from the side that recorded.")
_PEER = _column("peer", _STRING, "Address of the other end.")
_PROTOCOL = _column("protocol", _STRING, "ubre, csb, jrep, nats, up, uprotocol, or a plugin's name.")
_TRANSPORT = _column("transport", _STRING, "tcp, ws, memory, ...")
_SUBJECT = _column("subject", _STRING, "Topic, J.REP subject, method URI, or CSB action (0x%08X where its name is not known).")
_DATE = _column("date", pa.date32(), "Of the frame or request, UTC; results of the pipeline have a folder for each.")
_STORED = (
    _column("stored", _STRING, "Of what a NATS stream keeps: publication, delivery, dead letter; null elsewhere."),
    _column("store", _STRING, "The stream; of a dead letter the one that the publication was in."),
    _column("store_seq", _INT64, "Number of the publication there."),
    _column("durable", _STRING, "The consumer that it was given to; null of a publication."),
    _column("attempt", _INT32, "How often it has been given out, this time included; of a dead letter, how often it was."),
    _column("reason", _STRING, "Why it is a dead letter, or the stream has refused it."),
)

FRAMES: Final = pa.schema(
    [
        _CAPTURE_ID,
        _SEQ,
        _column("ts_ns", _INT64, "Wall clock, ns since 1970 UTC."),
        _column("mono_ns", _INT64, "Monotonic clock, ns: for latencies."),
        _DIRECTION,
        _CONN_ID,
        _PEER,
        _PROTOCOL,
        _TRANSPORT,
        _column("tunnel", _STRINGS, "Names of the tunnels that carry it, outermost first; empty where there is none."),
        _column("frame", pa.binary(), "The frame as it stood on the wire, without the transport's framing."),
        _column("options", _STRING, "What both sides agreed on that the decoder needs, as JSON; of a gap row what is missing."),
        _column("role", _INT8, "Of the side that recorded: 0 client, 1 server."),
        _column("deadlines_ns", pa.list_(_INT64), "Of each request that this frame makes: ns on the monotonic clock."),
        _column("flags", _INT32, "1 truncated, 2 redacted, 4 frames are missing before it."),
    ],
    metadata={"polybus.capture": SCHEMA_VERSION},
)
"""A row for each frame, as the recorder writes it."""

KINDS: Final = (
    *("request", "response", "cancel", "stream", "item", "end", "publish", "notify", "subscribe", "unsubscribe"),
    *("open", "close", "control", "heartbeat"),
)
"""``open`` and ``close`` are those of a connection, and of a client behind one; a stream or channel begins with ``stream``."""

EVENTS: Final = pa.schema(
    [
        _column("id", _STRING, "Of the event: the wire's own where it has one, else <capture_id>/<seq>/<sub>."),
        _column("source", _STRING, "Who sent it: the wire's own where it has one, else the sender's address."),
        _column("type", _STRING, "<protocol>.<kind>"),
        _SUBJECT,
        _column("time", _TIMESTAMP, "When it was recorded."),
        _column("time_ns", _INT64, "The same in ns since 1970 UTC."),
        _column("specversion", _STRING, "Of CloudEvents: 1.0"),
        _column("datacontenttype", _STRING, "Media type of data."),
        _column("dataschema", _STRING, "URI of its schema where the wire names one."),
        _column("data", pa.binary(), "The body as it stood on the wire; null where the recorder has cut the frame."),
        _column("kind", _STRING, ", ".join(KINDS)),
        _column("correlation_id", _STRING, "Ties a response to its request within its connection (and client)."),
        _column("code", _INT32, "google.rpc.Code: 0 for good; null where the message has none."),
        _column("code_name", _STRING, "Its name, or the wire's own word for the failure."),
        _column("ttl_ms", _INT64, "Milliseconds that it was worth when it was sent."),
        _column("expires_at", _TIMESTAMP, "When that ends."),
        _column("priority", _STRING, "CS0 to CS6 (uProtocol), priority (J.REP)."),
        _column("reply_to", _STRING, "Where its answer is wanted."),
        _CONN_ID,
        _DIRECTION,
        _PEER,
        _PROTOCOL,
        _TRANSPORT,
        _CAPTURE_ID,
        _SEQ,
        _SUB,
        _column("nbytes", _INT32, "Of the frame, counted at its first message; 0 at the others."),
        _column("mono_ns", _INT64, "Monotonic clock, ns: for latencies."),
        _column("deadline_ns", _INT64, "Of a request made by the side that recorded: ns on that clock."),
        _column("client", _STRING, "Behind a broker: which client of the connection; empty elsewhere."),
        _column("tunnel", _STRINGS, "Names of the tunnels that carry it, outermost first."),
        _column("flags", _INT32, "As in the capture."),
        *_STORED,
        _column("traceparent", _STRING, "The context of a trace (W3C), where the message carries one."),
        _DATE,
    ],
    metadata={"polybus.events": SCHEMA_VERSION},
)
"""A row for each message; its key is (capture_id, seq, sub)."""

QUARANTINE_REASONS: Final = tuple(
    "short_frame bad_length bad_kind bad_encoding bad_code bad_text bad_json bad_protobuf not_array missing_field bad_field "
    "unknown_type too_deep too_large truncated redacted unknown_protocol malformed".split()
)

QUARANTINE: Final = pa.schema(
    [
        _CAPTURE_ID,
        _SEQ,
        _column("ts_ns", _INT64, "Wall clock, ns since 1970 UTC."),
        _CONN_ID,
        _PROTOCOL,
        _column("reason", _STRING, ", ".join(QUARANTINE_REASONS)),
        _column("detail", _STRING, "What the decoder said."),
        _column("offset", _INT32, "Byte in the frame where it went wrong, where known."),
        _column("raw", pa.binary(), "The frame."),
        _DATE,
    ],
    metadata={"polybus.quarantine": SCHEMA_VERSION},
)
"""A row for each frame of which not even one message could be read."""

OUTCOMES: Final = ("ok", "error", "late", "timeout", "cancelled", "lost", "unanswered", "unseen", "open-at-end")
MATCH_QUALITIES: Final = ("unique", "reused_id", "ambiguous")

EXCHANGES: Final = pa.schema(
    [
        _CAPTURE_ID,
        _CONN_ID,
        _column("direction", _INT8, "Of the request: 0 out, 1 in."),
        _PROTOCOL,
        _column("kind", _STRING, "request; or stream, also of a channel."),
        _SUBJECT,
        _column("correlation_id", _STRING, "As on the wire."),
        _column("request_seq", _INT64, "Frame of the request; of its first attempt where there are several."),
        _column("response_seq", _INT64, "Frame of its first answer, or of a stream's end; null without one."),
        _column("request_time_ns", _INT64, "Wall clock, ns since 1970 UTC."),
        _column("latency_ns", _INT64, "To the answer, or a stream's first item, on the monotonic clock; null without one."),
        _column("outcome", _STRING, ", ".join(OUTCOMES)),
        _column("code", _INT32, "Of the answer; null where none was taken."),
        _column("code_name", _STRING, "Its name."),
        _column("attempts", _INT32, "How often it was sent with the same id while it was open."),
        _column("duplicates", _INT32, "Further answers to it."),
        _column("match_quality", _STRING, ", ".join(MATCH_QUALITIES)),
        _PEER,
        _column("identity_key", _STRING, "Whose it was, where the wire says so: the client behind a broker, the source."),
        _column("request_time", _TIMESTAMP, "When it was recorded."),
        _column("latency_ms", pa.float64(), "The latency in milliseconds."),
        _column("items", _INT64, "Of a stream, those that came back; null of a request."),
        _column("length_ns", _INT64, "Of a stream, from its opening to its end; null of a request, and without an end."),
        *_STORED,
        _DATE,
    ],
    metadata={"polybus.exchanges": SCHEMA_VERSION},
)
"""A row for each request, and for each stream."""

ORPHANS: Final = EVENTS.with_metadata({"polybus.orphans": SCHEMA_VERSION})
"""Responses to which no request was recorded."""
