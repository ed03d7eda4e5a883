"""Schemas of captures and their tables, for the recorder, the decoder, Spark and the documentation.

Columns named ``..._ns`` contain nanoseconds, either on the wall clock since 1970 UTC (``ts_ns``, ``time_ns``) or on a
monotonic clock with an arbitrary start (``mono_ns``, ``latency_ns``). The ``doc`` metadata of each field explains the column.
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

_CAPTURE_ID = _column("capture_id", _STRING, "The recording: a new name each time.")
_SEQ = _column("seq", _INT64, "Number of the frame in its capture, without gaps.")
_SUB = _column("sub", _INT32, "Number of the message in its frame; above 0 only if a frame holds several.")
_CONN_ID = _column("conn_id", _STRING, "The connection; a new name after each reconnect.")
_DIRECTION = _column("direction", _INT8, "0 out, 1 in, seen from the side that recorded.")
_PEER = _column("peer", _STRING, "Address of the other end.")
_PROTOCOL = _column("protocol", _STRING, "ubre, csb, jrep, nats, up, uprotocol, or a plugin's name.")
_TRANSPORT = _column("transport", _STRING, "tcp, ws, memory, ...")
_SUBJECT = _column("subject", _STRING, "Topic, J.REP subject, method URI, or CSB action (0x%08X without a name).")
_DATE = _column("date", pa.date32(), "Date of the frame or request, UTC; results of the pipeline have a folder per date.")
_STORED = (
    _column("stored", _STRING, "Message of a NATS stream: publication, delivery or dead letter; otherwise null."),
    _column("store", _STRING, "The stream; of a dead letter the publication's stream."),
    _column("store_seq", _INT64, "Number of the publication there."),
    _column("durable", _STRING, "The consumer that received it; null for a publication."),
    _column("attempt", _INT32, "Number of deliveries so far, including this one; of a dead letter, of all."),
    _column("reason", _STRING, "Reason of a dead letter, or of the stream's refusal."),
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
        _column("tunnel", _STRINGS, "Names of the tunnels that carry it, outermost first; empty without one."),
        _column("frame", pa.binary(), "The frame on the wire, without the transport's framing."),
        _column(
            "options", _STRING, "Options for the decoder that both sides agreed on, as JSON; of a gap row, the missing frames."
        ),
        _column("role", _INT8, "Role of the recording side: 0 client, 1 server."),
        _column("deadlines_ns", pa.list_(_INT64), "Deadlines of its requests, ns (monotonic), if the wire carries none."),
        _column("flags", _INT32, "1 truncated, 2 redacted, 4 frames are missing before this row."),
    ],
    metadata={"polybus.capture": SCHEMA_VERSION},
)
"""Schema with one row per frame, as the recorder writes it."""

KINDS: Final = (
    *("request", "response", "cancel", "stream", "item", "end", "publish", "notify", "subscribe", "unsubscribe"),
    *("open", "close", "control", "heartbeat"),
)
"""Kinds of events. ``open`` and ``close`` belong to a connection, or to a client behind it. A stream or channel begins with
``stream``.
"""

EVENTS: Final = pa.schema(
    [
        _column("id", _STRING, "Id of the event: from the wire, or else <capture_id>/<seq>/<sub>."),
        _column("source", _STRING, "Sender: from the wire, or else its address; capture_id for outgoing frames."),
        _column("type", _STRING, "<protocol>.<kind>"),
        _SUBJECT,
        _column("time", _TIMESTAMP, "When it was recorded."),
        _column("time_ns", _INT64, "The same in ns since 1970 UTC."),
        _column("specversion", _STRING, "Version of CloudEvents: 1.0"),
        _column("datacontenttype", _STRING, "Media type of data."),
        _column("dataschema", _STRING, "URI of the schema of data, if on the wire."),
        _column("data", pa.binary(), "The body on the wire; null if the recorder has cut the frame."),
        _column("kind", _STRING, ", ".join(KINDS)),
        _column("correlation_id", _STRING, "Ties a response to its request within its connection (and client)."),
        _column("code", _INT32, "google.rpc.Code: 0 for success; null for messages without a code."),
        _column("code_name", _STRING, "Name of the code, or the protocol's own word for the failure."),
        _column("ttl_ms", _INT64, "Time to live when it was sent, in milliseconds."),
        _column("expires_at", _TIMESTAMP, "End of the time to live."),
        _column("priority", _STRING, "CS0 to CS6 (uProtocol), priority (J.REP)."),
        _column("reply_to", _STRING, "Address for the answer."),
        _CONN_ID,
        _DIRECTION,
        _PEER,
        _PROTOCOL,
        _TRANSPORT,
        _CAPTURE_ID,
        _SEQ,
        _SUB,
        _column("nbytes", _INT32, "Size of the frame at its first message; 0 at the others."),
        _column("mono_ns", _INT64, "Monotonic clock, ns: for latencies."),
        _column("deadline_ns", _INT64, "Deadline of the recorder's request if the wire has none, ns on that clock."),
        _column("client", _STRING, "Client of the connection behind a broker; otherwise empty."),
        _column("tunnel", _STRINGS, "Names of the tunnels that carry it, outermost first."),
        _column("flags", _INT32, "As in the capture."),
        *_STORED,
        _column("traceparent", _STRING, "Context of a trace (W3C), if the message carries one."),
        _DATE,
    ],
    metadata={"polybus.events": SCHEMA_VERSION},
)
"""Schema with one row per message. Its key is (capture_id, seq, sub)."""

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
        _column("detail", _STRING, "Error text of the decoder."),
        _column("offset", _INT32, "Position of the error in the frame, in bytes, if known."),
        _column("raw", pa.binary(), "The frame."),
        _DATE,
    ],
    metadata={"polybus.quarantine": SCHEMA_VERSION},
)
"""Schema with one row per frame that contains no readable message."""

OUTCOMES: Final = ("ok", "error", "late", "timeout", "cancelled", "lost", "unanswered", "unseen", "open-at-end")
MATCH_QUALITIES: Final = ("unique", "reused_id", "ambiguous")

EXCHANGES: Final = pa.schema(
    [
        _CAPTURE_ID,
        _CONN_ID,
        _column("direction", _INT8, "Direction of the request: 0 out, 1 in."),
        _PROTOCOL,
        _column("kind", _STRING, "request, or stream (also for a channel)."),
        _SUBJECT,
        _column("correlation_id", _STRING, "As on the wire."),
        _column("request_seq", _INT64, "Frame of the request, or of its first attempt."),
        _column("response_seq", _INT64, "Frame of its first answer, or of the stream's end; or null."),
        _column("request_time_ns", _INT64, "Wall clock, ns since 1970 UTC."),
        _column("latency_ns", _INT64, "Time to the answer, or to a stream's first item, on the monotonic clock; or null."),
        _column("outcome", _STRING, ", ".join(OUTCOMES)),
        _column("code", _INT32, "Code of the answer; null without one."),
        _column("code_name", _STRING, "Name of the code."),
        _column("attempts", _INT32, "Number of times that it was sent with the same id before its answer."),
        _column("duplicates", _INT32, "Number of further answers."),
        _column("match_quality", _STRING, ", ".join(MATCH_QUALITIES)),
        _PEER,
        _column("identity_key", _STRING, "Sender of the request, if on the wire: the client behind a broker, or the source."),
        _column("request_time", _TIMESTAMP, "When it was recorded."),
        _column("latency_ms", pa.float64(), "The latency in milliseconds."),
        _column("items", _INT64, "Items that a stream returned; null for a request."),
        _column("length_ns", _INT64, "Time from a stream's opening to its end; null for a request, or without an end."),
        *_STORED,
        _DATE,
    ],
    metadata={"polybus.exchanges": SCHEMA_VERSION},
)
"""Schema with one row per request or stream."""

ORPHANS: Final = EVENTS.with_metadata({"polybus.orphans": SCHEMA_VERSION})
"""Schema with one row per response without a recorded request."""
