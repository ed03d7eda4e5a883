"""The messages of the clients of a capture, in their order, for a replay.

A folder may hold several recordings, made one after the other or at the same time, each with a monotonic clock of its own. Here
they are one story: a recording begins when the wall clock says so, and goes on by its own clock.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import define, field, frozen

from ...errors import RemoteProtocolError
from ...message import Kind, Message
from ...subjects import matches
from ..decoding.frame_decoders import MARK, decoder_for
from ..schema import DIRECTION_IN, DIRECTION_OUT, FLAG_GAP_BEFORE, FLAG_TRUNCATED
from ..store.reader import Capture, Segment, lost

_REPLAYED: Final = frozenset({Kind.REQUEST, Kind.PUBLISH, Kind.NOTIFY, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL})
_OWN: Final = "_polybus."

Rows = Iterator[tuple[int, dict[str, Any]]]
"""With the moment of each, ns."""


@frozen
class Selection:
    """The part of a recording to replay; by default all of it.

    Attributes:
        start, end: Seconds after the first frame, or points in time (aware datetimes).
        subjects: Patterns, such as ``orders.>``; subscriptions are always made.
        connections: Their ids.
    """

    start: float | datetime | None = None
    end: float | datetime | None = None
    subjects: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()

    def window(self, first_ns: int) -> tuple[float, float]:
        """In ns since 1970."""

        def point(value: float | datetime | None, default: float) -> float:
            if value is None:
                return default
            return value.timestamp() * 1e9 if isinstance(value, datetime) else first_ns + value * 1e9

        return point(self.start, -math.inf), point(self.end, math.inf)

    def wants(self, subject: str | int) -> bool:
        """True for a subject that was chosen."""
        name = f"0x{subject:08X}" if isinstance(subject, int) else subject
        return not self.subjects or any(pattern in (name, subject) or matches(pattern, subject) for pattern in self.subjects)


@define
class RecordedMessage:
    """One message of a client; None where its connection has ended."""

    at: float
    """Time in ns since 1970 UTC."""
    conn: tuple[str, str]
    """Its connection, and which client behind it; the latter is empty but for those of a broker."""
    protocol: str
    """Of the connection."""
    options: str
    """As in the capture."""
    message: Message | None
    """Message that was recorded."""

    def subject_for(self, subject: str | int, protocol: str) -> str | int:
        """A subject on a connection of a protocol: a number where it was one, and only the recording knows its name."""
        if protocol != self.protocol or '"actions"' not in self.options:
            return subject
        number: str | int = json.loads(self.options)["actions"].get(subject, subject)
        return number


def client_messages(capture: Capture, selection: Selection, skipped: Counter[str]) -> Iterator[RecordedMessage]:
    """All that is to be said again, in its order, a batch of each recording at a time.

    What was subscribed to before the window is said when that begins. `skipped` counts what is not said again, by kind or
    reason.

    Raises:
        CaptureError: A segment is missing, or of an unknown version.
    """
    window: tuple[float, float] | None = None
    subscriptions: _OpenSubscriptions | None = _OpenSubscriptions()
    for at, row in _in_order(capture, skipped):
        if window is None:
            window = selection.window(row["ts_ns"])
        begin, end = window
        if row["ts_ns"] >= end or (selection.connections and row["conn_id"] not in selection.connections):
            continue
        inside = begin <= row["ts_ns"]
        if inside and subscriptions is not None:
            yield from subscriptions.at(begin)
            subscriptions = None
        for recorded in _of_row(row, max(at, begin), selection, inside, skipped if inside else Counter()):
            if subscriptions is not None:
                subscriptions.take(recorded)
            else:
                yield recorded


def _of_row(
    row: dict[str, Any], at: float, selection: Selection, inside: bool, skipped: Counter[str]
) -> Iterator[RecordedMessage]:
    """The messages of a row; of rows before the window, only the subscriptions and the connections that ended."""
    frame, options = row["frame"], row["options"] or ""
    if frame is None:
        if _is_end(options):
            yield RecordedMessage(at, (row["conn_id"], ""), row["protocol"], options, None)
        return
    if not _from_client(row, options):
        return
    if row["tunnel"]:  # it was meant for who is behind the tunnel, and not for the server that is there now
        skipped["tunnel"] += 1
        return
    if (row["flags"] or 0) & FLAG_TRUNCATED:  # half a body is not what the client said
        skipped["cut"] += 1
        return
    for message in _messages(row["protocol"], options, frame, skipped):
        if not inside and message.kind not in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE):
            continue
        if message.kind in (Kind.REQUEST, Kind.PUBLISH, Kind.NOTIFY) and not selection.wants(message.subject):
            continue
        client = "" if message.peer is None else str(message.peer)
        yield RecordedMessage(at, (row["conn_id"], client), row["protocol"], options, message)


class _OpenSubscriptions:
    """The subscriptions that stand when the window begins: those of closed connections, and ended ones, are left out."""

    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[str, str | int], RecordedMessage]] = {}
        """By connection; by the client behind it and the subject."""

    def take(self, recorded: RecordedMessage) -> None:
        conn_id, client = recorded.conn
        if recorded.message is None:
            self._of.pop(conn_id, None)
        elif recorded.message.kind is Kind.SUBSCRIBE:
            self._of.setdefault(conn_id, {}).setdefault((client, recorded.message.subject), recorded)
        else:
            self._of.get(conn_id, {}).pop((client, recorded.message.subject), None)

    def at(self, begin: float) -> Iterator[RecordedMessage]:
        """All of it, to be said then."""
        for wanted in self._of.values():
            for recorded in wanted.values():
                recorded.at = begin
                yield recorded


@frozen
class _Recording:
    """The segments of one recording."""

    capture: Capture
    segments: list[Segment] = field(factory=list)

    def begin(self) -> tuple[int, int] | None:
        """Time of its first frame, ns by the wall clock and by its own; None where there is none."""
        row = next(self._read(Counter(), ["ts_ns", "mono_ns", "flags"]), None)
        return None if row is None else (row["ts_ns"], row["mono_ns"])

    def rows(self, ahead: int, skipped: Counter[str]) -> Rows:
        """Its rows but for those that say that others are missing, and when each was recorded by its own clock.

        The wall clock is so many ns `ahead` of that. `skipped` counts the rows that cannot be read.
        """
        return ((row["mono_ns"] + ahead, row) for row in self._read(skipped))

    def _read(self, skipped: Counter[str], columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        for segment in self.segments:
            reader = self.capture.reader(segment)
            for message in reader.messages():
                for row in reader.rows(message, columns).to_pylist() if message.rows else ():
                    if (row["flags"] or 0) & FLAG_GAP_BEFORE:
                        continue
                    if None not in (row["ts_ns"], row["mono_ns"]):
                        yield row
                    else:
                        skipped["unreadable"] += 1
            for loss in lost(segment, reader):
                skipped["damaged"] += loss.stretch.frames or 1


def _in_order(capture: Capture, skipped: Counter[str]) -> Rows:
    """The rows of all recordings, those of the same time beside each other. A recording is opened when its time has come."""
    recordings: dict[str, _Recording] = {}
    for segment in capture.segments():
        name = capture.reader(segment).schema_metadata().get("capture_id", "")
        recordings.setdefault(name, _Recording(capture)).segments.append(segment)
    begins = ((one.begin(), number, one) for number, one in enumerate(recordings.values()))
    waiting = [(begin, number, one) for begin, number, one in begins if begin is not None]
    waiting.sort(reverse=True, key=lambda found: (found[0][0], found[1]))
    there: list[tuple[int, int, dict[str, Any], Rows]] = []

    def enter(number: int, rows: Rows) -> None:
        following = next(rows, None)
        if following is not None:
            heapq.heappush(there, (following[0], number, following[1], rows))

    while waiting or there:
        while waiting and (not there or waiting[-1][0][0] <= there[0][0]):
            (wall, own), number, recording = waiting.pop()
            enter(number, recording.rows(wall - own, skipped))
        if there:
            at, number, row, rows = heapq.heappop(there)
            yield at, row
            enter(number, rows)


def _from_client(row: dict[str, Any], options: str) -> bool:
    """True if it comes from a client: the end that dialled, or one behind a broker."""
    if '"broker-server"' in options:
        return bool(row["direction"] == DIRECTION_IN)
    return bool(row["direction"] == (DIRECTION_OUT if row["role"] == 0 else DIRECTION_IN))


def _is_end(options: str) -> bool:
    """True for a row without a frame that marks the end of its connection."""
    try:
        return bool(json.loads(options)[MARK]["state"] == "close")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _messages(protocol: str, options: str, frame: bytes, skipped: Counter[str]) -> Iterator[Message]:
    try:
        messages: Sequence[Any] = decoder_for(protocol, options).decode(frame)
    except RemoteProtocolError:
        skipped["unreadable"] += 1
        return
    for message in messages:
        if isinstance(message, RemoteProtocolError):
            skipped["unreadable"] += 1
        elif message.kind not in _REPLAYED:
            if message.kind is not Kind.CONTROL:
                skipped[message.kind.value] += 1
        elif not (isinstance(message.subject, str) and message.subject.startswith(_OWN)):
            yield message
