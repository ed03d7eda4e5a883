"""Replays recorded messages to another server, at any speed.

The messages of recorded clients are sent over new connections. This means that handshakes, ids and deadlines are new, and that
the new server sends the answers. Subscriptions are sent first.

Messages keep their order. A folder may contain several recordings, made one after the other or at the same time, each with its
own monotonic clock. When merged, each recording begins at its wall-clock time and continues by its own clock.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from attrs import Attribute, define, field, frozen

from .. import Bus, Reply, Subscription, connect
from ..errors import BusError, Disconnected, RemoteProtocolError, Unsupported
from ..integrations import links_of, record_with
from ..message import Kind, Message
from ..plugins.tools import check_given, check_type, in_own_thread, log_fields, shown, texts, to_the_end
from ..subjects import matches
from .decoding import MARK, decoder_for
from .errors import CaptureError
from .paths import folder_path
from .record.recorder import make_recorder
from .schema import DIRECTION_IN, DIRECTION_OUT, FLAG_GAP_BEFORE, FLAG_TRUNCATED
from .store.reader import Capture, Segment, lost

if TYPE_CHECKING:
    from ..integrations import Link

logger: logging.Logger = logging.getLogger("polybus.capture")
_PATIENCE: Final = 30.0
_HASTY: Final = 1000
"""Maximum number of concurrent requests at full speed. An outbox accepts four times as many."""
_PACED: Final = 50_000
"""Maximum number of concurrent requests at recorded speed. It is high so that requests are not delayed."""
_REPLAYED: Final = frozenset({Kind.REQUEST, Kind.PUBLISH, Kind.NOTIFY, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL})
_OWN: Final = "_polybus."


@define
class Replayed:
    connections: int = 0
    said: Counter[str] = field(factory=Counter)
    """Number of messages sent, by kind."""
    answered: int = 0
    failed: int = 0
    """Number of requests that the new server has rejected or has not answered in time."""
    skipped: Counter[str] = field(factory=Counter)
    """Number of messages that were not replayed, by kind or reason. ``damaged`` is the number of frames known to be lost."""
    seconds: float = 0.0
    """Duration of the replayed recording in seconds."""


def _moment(_: Any, attribute: Attribute[Any], value: Any) -> None:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{attribute.name}={value!r} must have a time zone, for example tzinfo=datetime.UTC")
    elif value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TypeError(f"{attribute.name}={shown(value)} must be a datetime, or a number of seconds after the first frame")


def _subjects(value: Iterable[str]) -> tuple[str, ...]:
    return texts(value, "subjects", "orders.>")


def _connections(value: Iterable[str]) -> tuple[str, ...]:
    return texts(value, "connections", "549c53e2-1")


@frozen
class Selection:
    """The part of a recording to replay. By default all of it is replayed.

    Attributes:
        start, end: Seconds after the first frame, or datetimes with a time zone.
        subjects: Patterns of the subjects to replay, such as ``orders.>``. Subscriptions are always replayed.
        connections: Ids of the connections to replay.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a datetime has no time zone.
    """

    start: float | datetime | None = field(default=None, validator=_moment)
    end: float | datetime | None = field(default=None, validator=_moment)
    subjects: tuple[str, ...] = field(default=(), converter=_subjects)
    connections: tuple[str, ...] = field(default=(), converter=_connections)

    def window(self, first_ns: int) -> tuple[float, float]:
        """Return the start and end in nanoseconds since 1970."""

        def point(value: float | datetime | None, default: float) -> float:
            if value is None:
                return default
            return value.timestamp() * 1e9 if isinstance(value, datetime) else first_ns + value * 1e9

        return point(self.start, -math.inf), point(self.end, math.inf)

    def wants(self, subject: str | int) -> bool:
        """Return True if a subject is selected."""
        name = f"0x{subject:08X}" if isinstance(subject, int) else subject
        return not self.subjects or any(pattern in (name, subject) or matches(pattern, subject) for pattern in self.subjects)


async def replay(
    capture: Capture,
    url: str,
    *,
    speed: float = 1.0,
    selection: Selection | None = None,
    record: str | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Replayed:
    """Send the recorded messages of all clients to a server, using a new connection for each recorded connection.

    Args:
        capture: The recording.
        url: URL of the server. Its protocol may differ from the recorded one.
        speed: Speed relative to the recording. 2 is twice as fast, and `math.inf` waits only for answers.
        selection: The part of the recording to replay.
        record: Folder for a recording of the replay. The new capture contains the name of its source.
        dry_run: Count the messages without opening a connection.
        options: Options for `polybus.connect`, except ``bus``.

    Raises:
        TypeError: If an argument has the wrong type, for example a path as `capture`.
        ValueError: If `speed` is not positive, or another argument is invalid.
        CaptureError: If a segment is missing, or `record` cannot be written to or is the folder of `capture`.
        ConnectFailed, Unauthorized, Forbidden: If the server cannot be reached or rejects the first connection. If it rejects a
            later connection, the messages of that connection are counted in `skipped`.
    """
    check_given(capture, Capture, "capture", "Capture('captures')")
    check_type(selection, Selection, "selection", "selection=Selection(subjects=['orders.>'])")
    check_given(dry_run, bool, "dry_run", "dry_run=True")
    if isinstance(speed, bool) or not isinstance(speed, (int, float)):
        raise TypeError(f"speed={shown(speed)} must be a number, not {type(speed).__name__}")
    if not speed > 0:
        raise ValueError(f"speed={shown(speed)} must be a number above 0")
    report = Replayed()
    player = _Player(url, speed, report, options)
    plan = client_messages(capture, selection or Selection(), report.skipped)
    if dry_run:
        _count(plan, report)
        return report
    if record is None:
        await player.play(plan)
        return report
    recorder = player.recorder = make_recorder(folder_path(record, "record"), source=_another(capture, record))
    try:
        await in_own_thread(recorder.open)
        await player.play(plan)
    finally:
        await to_the_end(in_own_thread, recorder.close)
    return report


def _another(capture: Capture, record: str) -> str:
    """Return the source's name. Raises `CaptureError` for the source's own folder, where retention would remove it."""
    if "://" in capture.path:
        return capture.path
    if os.path.realpath(record) == os.path.realpath(capture.path):
        raise CaptureError(f"{record} is the capture being replayed: record the replay in a different folder")
    return os.path.abspath(capture.path)


def _count(plan: Iterator[RecordedMessage], report: Replayed) -> None:
    conns = set()
    first: float | None = None
    for recorded in plan:
        if recorded.message is None:
            continue
        first = recorded.at if first is None else first
        report.seconds = (recorded.at - first) / 1e9
        report.said[recorded.message.kind.value] += 1
        conns.add(recorded.conn)
    report.connections = len(conns)


class _Client:
    def __init__(self, url: str, recorder: Any, options: dict[str, Any]) -> None:
        self.bus = Bus(limits=options.get("limits"))
        if recorder is not None:
            record_with(self.bus, recorder)
        self._connecting: Any = connect(url, bus=self.bus, **{**options, "limits": None})
        self.asked: dict[Any, Reply[Any]] = {}
        self.subscriptions: dict[str | int, Subscription] = {}

    async def __aenter__(self) -> Self:
        await self._connecting.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for subject in list(self.subscriptions):
            await self.unsubscribe(subject)
        await self._connecting.__aexit__(*error)

    async def subscribe(self, subject: str | int) -> None:
        if subject not in self.subscriptions:
            subscription = self.bus.subscribe(subject, when_full="drop_oldest", local=False)
            self.subscriptions[subject] = await subscription.__aenter__()

    async def unsubscribe(self, subject: str | int) -> None:
        await self.subscriptions.pop(subject).__aexit__(None, None, None)

    @property
    def link(self) -> Link:
        if (link := next(iter(links_of(self.bus)), None)) is None:
            raise Disconnected("the server has ended the connection", "", False)
        return link


class _Player:
    def __init__(self, url: str, speed: float, report: Replayed, options: dict[str, Any]) -> None:
        self._url = url
        self._speed = speed
        self._report = report
        self._options = options
        self._open: dict[_Client, None] = {}
        self._clients: dict[str, dict[str, _Client | None]] = {}
        """Maps a connection and the client behind it to a new client, or to `None` if the server has rejected it."""
        self._leaving: list[_Client] = []
        """Clients that still wait for answers after the end of their recorded connection."""
        self._asked = 0
        self._first: float | None = None
        """Time of the first message in ns since 1970. `_began` is the time of its replay on the event loop's clock."""
        self._began = 0.0
        self.recorder: Any = None

    async def play(self, plan: Iterator[RecordedMessage]) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self._close)
            ended: list[RecordedMessage] = []
            # Arrow reads in the event loop's thread: a batch of 1,024 rows takes about 1 ms, the largest ones 5 ms.
            for recorded in plan:
                if recorded.message is None:
                    if recorded.conn[0] in self._clients:
                        ended.append(recorded)
                    continue
                if self._first is None:
                    await self._client(recorded.conn)
                    self._first, self._began = recorded.at, anyio.current_time()
                for one in ended:  # only once a message follows: otherwise the pause is pointless
                    await self._wait_for(one)
                    await self._end(one.conn[0])
                ended.clear()
                self._report.seconds = (recorded.at - self._first) / 1e9
                await self._wait_for(recorded)
                await self._replay(await self._client(recorded.conn), recorded, recorded.message)
                if self._speed == math.inf:
                    await anyio.lowlevel.checkpoint()
            await self._answers(all_of_them=True)

    async def _wait_for(self, recorded: RecordedMessage) -> None:
        due = self._began + (recorded.at - (self._first or 0.0)) / 1e9 / self._speed
        if due > anyio.current_time():
            await anyio.sleep_until(due)

    async def _close(self, *error: Any) -> None:
        stack = AsyncExitStack()
        for client in self._open:
            stack.push_async_exit(client)
        await stack.__aexit__(*error)

    async def _client(self, conn: tuple[str, str]) -> _Client | None:
        """Return the client of a connection, or `None` if the server rejects it. Raises an error for the first client."""
        there = self._clients.setdefault(conn[0], {})
        if conn[1] in there:
            return there[conn[1]]
        client = None
        try:
            client = await _Client(self._url, self.recorder, self._options).__aenter__()
            self._open[client] = None
            self._report.connections += 1
        except BusError as error:
            if not self._report.connections:
                raise
            logger.warning("the messages of %s cannot be replayed: %s", conn[0], error, extra=log_fields(address=conn[0]))
        there[conn[1]] = client
        return client

    async def _end(self, conn_id: str) -> None:
        self._leaving += [client for client in self._clients.pop(conn_id, {}).values() if client is not None]
        await self._leave()

    async def _leave(self) -> None:
        for client in self._leaving:
            await self._answers_of(client)
            if not client.asked:
                del self._open[client]  # first, so that it is closed once if this is cancelled
                await client.__aexit__(None, None, None)
        self._leaving = [client for client in self._leaving if client in self._open]

    async def _replay(self, client: _Client | None, recorded: RecordedMessage, message: Message) -> None:
        kind, said = message.kind.value, False
        try:
            said = client is not None and await self._say(client, recorded, message)
        except BusError as error:
            more = log_fields(subject=message.subject)
            logger.warning("%s of %r cannot be replayed: %s", kind, message.subject, error, extra=more)
        (self._report.said if said else self._report.skipped)[kind] += 1

    async def _say(self, client: _Client, recorded: RecordedMessage, message: Message) -> bool:
        kind, link = message.kind, client.link
        subject = recorded.subject_for(message.subject, link.adapter.name)
        if kind is Kind.REQUEST:
            await self._request(client, link, subject, recorded, message)
        elif kind is Kind.PUBLISH:
            await client.bus.publish(subject, message.body, headers=message.headers)
        elif kind is Kind.NOTIFY:
            await client.bus.notify(subject, message.body, headers=message.headers)
        elif kind is Kind.SUBSCRIBE:
            await client.subscribe(subject)
        elif kind is Kind.UNSUBSCRIBE:
            if subject not in client.subscriptions:  # its subscription was not possible
                return False
            await client.unsubscribe(subject)
        elif (reply := client.asked.get(message.id)) is not None:
            reply.cancel()
        return True

    async def _request(
        self, client: _Client, link: Link, subject: str | int, recorded: RecordedMessage, message: Message
    ) -> None:
        peer = link.peer
        if peer is None:
            raise Unsupported("a server behind a broker cannot send requests")
        again = Message(Kind.REQUEST, subject, None, headers=message.headers)
        if message.raw is not None and link.adapter.name == recorded.protocol:  # keeps its format
            again.raw, again.format, again.checked = message.raw, message.format, message.checked
        elif message.has_body:
            again.decoded = message.body
        if (earlier := client.asked.pop(message.id, None)) is not None:  # 16-bit ids repeat
            client.asked[object()] = earlier
        client.asked[message.id] = peer.pass_on(again, message.ttl if message.ttl else _PATIENCE)
        self._asked += 1
        if self._asked > (_HASTY if self._speed == math.inf else _PACED):
            await self._answers()
            if self._asked > _HASTY // 2:
                await self._answers(all_of_them=True)

    async def _answers(self, *, all_of_them: bool = False) -> None:
        for client in list(self._open):
            await self._answers_of(client, all_of_them=all_of_them)
        await self._leave()

    async def _answers_of(self, client: _Client, *, all_of_them: bool = False) -> None:
        for key, reply in list(client.asked.items()):
            if all_of_them or reply.done():
                del client.asked[key]
                self._asked -= 1
                try:
                    await reply
                    self._report.answered += 1
                except BusError:
                    self._report.failed += 1


@define
class RecordedMessage:
    """A recorded message of a client. `message` is `None` if the connection has ended."""

    at: float
    """Time in ns since 1970 (UTC)."""
    conn: tuple[str, str]
    """The connection and the client behind it, which is empty unless the connection goes through a broker."""
    protocol: str
    options: str
    message: Message | None

    def subject_for(self, subject: str | int, protocol: str) -> str | int:
        """Return the subject for a new connection. If only the recording knows the subject's name, return its number."""
        if protocol != self.protocol or '"actions"' not in self.options:
            return subject
        number: str | int = json.loads(self.options)["actions"].get(subject, subject)
        return number


def client_messages(capture: Capture, selection: Selection, skipped: Counter[str]) -> Iterator[RecordedMessage]:
    """Yield all messages to send, in order. One batch of each recording is read at a time.

    Subscriptions from before the window are yielded at its beginning. `skipped` counts all other messages, by kind or reason.
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
    """Yield the messages in a row. Before the window, yield only subscriptions and ends of connections."""
    frame, options = row["frame"], row["options"] or ""
    if frame is None:
        if _is_end(options):
            yield RecordedMessage(at, (row["conn_id"], ""), row["protocol"], options, None)
        return
    if not _from_client(row, options):
        return
    if row["tunnel"]:  # addressed to the other end of the tunnel, not to the new server
        skipped["tunnel"] += 1
        return
    if (row["flags"] or 0) & FLAG_TRUNCATED:  # half a body is not the client's message
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
    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[str, str | int], RecordedMessage]] = {}
        """Subscriptions by connection, then by the client behind it and the subject."""

    def take(self, recorded: RecordedMessage) -> None:
        conn_id, client = recorded.conn
        if recorded.message is None:
            self._of.pop(conn_id, None)
        elif recorded.message.kind is Kind.SUBSCRIBE:
            self._of.setdefault(conn_id, {}).setdefault((client, recorded.message.subject), recorded)
        else:
            self._of.get(conn_id, {}).pop((client, recorded.message.subject), None)

    def at(self, begin: float) -> Iterator[RecordedMessage]:
        for wanted in self._of.values():
            for recorded in wanted.values():
                recorded.at = begin
                yield recorded


def _rows(
    capture: Capture, segments: Sequence[Segment], skipped: Counter[str], columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a recording that have times. `skipped` counts the others."""
    for segment in segments:
        reader = capture.reader(segment)
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


def _in_order(capture: Capture, skipped: Counter[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of all recordings with their time in ns."""
    recordings: dict[str, list[Segment]] = {}
    for segment in capture.segments():
        name = capture.reader(segment).schema_metadata().get("capture_id", "")
        recordings.setdefault(name, []).append(segment)
    timed = (_timed(capture, segments, skipped) for segments in recordings.values())
    for at, row in heapq.merge(*timed, key=itemgetter(0)):
        if row is not None:
            yield at, row


def _timed(capture: Capture, segments: Sequence[Segment], skipped: Counter[str]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the time of the first row alone, so that a recording is opened when that row is due, then each row and its time."""
    first = next(_rows(capture, segments, Counter(), ["ts_ns", "mono_ns", "flags"]), None)
    if first is not None:
        yield first["ts_ns"], None
        ahead = first["ts_ns"] - first["mono_ns"]
        yield from ((row["mono_ns"] + ahead, row) for row in _rows(capture, segments, skipped))


def _from_client(row: dict[str, Any], options: str) -> bool:
    """Return True for a frame from a client, which is the end that dialled or a client behind a broker."""
    if '"broker-server"' in options:
        return bool(row["direction"] == DIRECTION_IN)
    return bool(row["direction"] == (DIRECTION_OUT if row["role"] == 0 else DIRECTION_IN))


def _is_end(options: str) -> bool:
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
