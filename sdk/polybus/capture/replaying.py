"""Saying again what was recorded: to another server, as fast or as slowly as wanted.

What the clients of a recording said is sent again, over connections made anew: so handshakes, ids and deadlines are those of
today, and what the servers said is what the new server says. Subscriptions come first.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Final

import anyio
from attrs import define, field, frozen

from .._connect import connect
from ..bus import Bus
from ..errors import BusError, Disconnected, RemoteProtocolError, Unsupported
from ..link import Link
from ..message import Kind, Message
from ..reply import Reply
from ..subjects import matches
from .reading import Capture
from .recording import make_recorder
from .schema import DIRECTION_IN, DIRECTION_OUT
from .wires import wire_of

__all__ = ["Replayed", "Selection", "replay"]

logger: logging.Logger = logging.getLogger("polybus.capture")
_SAID: Final = frozenset({Kind.REQUEST, Kind.PUBLISH, Kind.NOTIFY, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL})
_OWN: Final = "_polybus."
_PATIENCE: Final = 30.0


@frozen
class Selection:
    """What of a recording is replayed; everything where nothing is said.

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
        """Whether a subject is among those wanted."""
        name = f"0x{subject:08X}" if isinstance(subject, int) else subject
        return not self.subjects or any(pattern in (name, subject) or matches(pattern, subject) for pattern in self.subjects)


@define
class Replayed:
    """What was said again."""

    connections: int = 0
    said: Counter[str] = field(factory=Counter)
    """How many messages, by kind."""
    answered: int = 0
    failed: int = 0
    """Requests that the new server has refused, or not answered in time."""
    skipped: Counter[str] = field(factory=Counter)
    """What was not said again, by kind or reason."""
    seconds: float = 0.0
    """How long the recording is that was replayed."""


class _Said:
    """One message of a client."""

    __slots__ = ("at", "conn", "message", "options", "protocol")

    def __init__(self, at: int, conn: tuple[str, str], protocol: str, options: str, message: Message) -> None:
        self.at = at
        self.conn = conn
        self.protocol = protocol
        self.options = options
        self.message = message

    def subject_for(self, protocol: str) -> str | int:
        """Its subject on a connection of a protocol: a number where it was one, and only the recording knows its name."""
        subject = self.message.subject
        if protocol != self.protocol or '"actions"' not in self.options:
            return subject
        number: str | int = json.loads(self.options)["actions"].get(subject, subject)
        return number


def _from_client(row: dict[str, Any], options: str) -> bool:
    """Whether a client has said it: somebody who dialled, or who is behind a broker."""
    if '"broker-server"' in options:
        return bool(row["direction"] == DIRECTION_IN)
    return bool(row["direction"] == (DIRECTION_OUT if row["role"] == 0 else DIRECTION_IN))


def said_by_clients(capture: Capture, selection: Selection, report: Replayed) -> Iterator[_Said]:
    """All that is to be said again, in its order, a batch of the capture at a time.

    Raises:
        CaptureError: A segment is missing, or of an unknown version.
    """
    window: tuple[float, float] | None = None
    for batch in capture.batches():
        for row in batch.rows.to_pylist():
            if None in (row["ts_ns"], row["mono_ns"]):
                report.skipped["unreadable"] += 1
                continue
            if window is None:
                window = selection.window(row["ts_ns"])
            frame, options = row["frame"], row["options"] or ""
            if frame is None or not _from_client(row, options):
                continue
            if selection.connections and row["conn_id"] not in selection.connections:
                continue
            inside = window[0] <= row["ts_ns"] < window[1]
            for message in _messages(row["protocol"], options, frame, report):
                if message.kind is Kind.SUBSCRIBE and row["ts_ns"] < window[1]:
                    pass  # also of before: what is said later may need it
                elif not inside or (message.kind is not Kind.CANCEL and not selection.wants(message.subject)):
                    continue
                client = "" if message.peer is None else str(message.peer)
                yield _Said(row["mono_ns"], (row["conn_id"], client), row["protocol"], options, message)


def _messages(protocol: str, options: str, frame: bytes, report: Replayed) -> Iterator[Message]:
    try:
        messages: Sequence[Any] = wire_of(protocol, options).decode(frame)
    except RemoteProtocolError:
        report.skipped["unreadable"] += 1
        return
    for message in messages:
        if isinstance(message, RemoteProtocolError):
            report.skipped["unreadable"] += 1
        elif message.kind not in _SAID:
            report.skipped[message.kind.value] += message.kind is not Kind.CONTROL
        elif not (isinstance(message.subject, str) and message.subject.startswith(_OWN)):
            yield message


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
    """Say again to a server what the clients of a recording said, over a connection for each of theirs.

    Args:
        capture: The recording.
        url: The server, with a protocol of its own if need be.
        speed: 2 is twice as fast; `math.inf` waits for nothing but the answers that were waited for.
        selection: What of it.
        record: A folder for the capture of the replay, which says of what it is one.
        dry_run: Connect to nobody; only tell what would be said.
        options: For `polybus.connect`.

    Raises:
        ValueError: `speed` is not above 0.
        CaptureError: A segment is missing; the capture of the replay cannot be written.
        ConnectFailed, Unauthorized, Forbidden: The server is not there, or refuses us.
    """
    if not speed > 0:
        raise ValueError(f"speed={speed!r}: a number above 0")
    report = Replayed()
    player = _Player(url, speed, report, options)
    plan = said_by_clients(capture, selection or Selection(), report)
    if dry_run:
        _tell(plan, report)
        return report
    recorder = None
    if record is not None:
        source = f"{capture.path}"
        recorder = player.recorder = make_recorder(record, source=source)
    try:
        if recorder is not None:
            await anyio.to_thread.run_sync(recorder.open)
        await player.play(plan)
    finally:
        if recorder is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(recorder.close)
    return report


def _tell(plan: Iterator[_Said], report: Replayed) -> None:
    conns = set()
    first: int | None = None
    for said in plan:
        first = said.at if first is None else first
        report.seconds = (said.at - first) / 1e9
        report.said[said.message.kind.value] += 1
        conns.add(said.conn)
    report.connections = len(conns)


class _Player:
    """Says things at their time."""

    def __init__(self, url: str, speed: float, report: Replayed, options: dict[str, Any]) -> None:
        self._url = url
        self._speed = speed
        self._report = report
        self._options = options
        self._buses: dict[tuple[str, str], Bus] = {}
        self._asked: dict[tuple[tuple[str, str], Any], Reply[Any]] = {}
        self.recorder: Any = None

    async def play(self, plan: Iterator[_Said]) -> None:
        """All of it."""
        async with AsyncExitStack() as stack:
            first: int | None = None
            began = anyio.current_time()
            # Arrow reads in the event loop's own thread: a batch is read in about a millisecond.
            for said in plan:
                if first is None:
                    await self._connected(stack, said.conn)
                    first, began = said.at, anyio.current_time()
                self._report.seconds = (said.at - first) / 1e9
                due = began + (said.at - first) / 1e9 / self._speed
                if due > anyio.current_time():
                    await anyio.sleep_until(due)
                bus = self._buses.get(said.conn)
                if bus is None:
                    bus = await self._connected(stack, said.conn)
                await self._say(bus, said, stack)
                if self._speed == math.inf:
                    await anyio.lowlevel.checkpoint()
            await self._answers()

    async def _connected(self, stack: AsyncExitStack, conn: tuple[str, str]) -> Bus:
        bus = Bus()
        if self.recorder is not None:
            bus._recorders.append(self.recorder)
        await stack.enter_async_context(connect(self._url, bus=bus, **self._options))
        self._buses[conn] = bus
        self._report.connections += 1
        return bus

    async def _say(self, bus: Bus, said: _Said, stack: AsyncExitStack) -> None:
        message = said.message
        kind = message.kind
        try:
            link = _link_of(bus)
            subject = said.subject_for(link.adapter.name)
            if kind is Kind.REQUEST:
                await self._ask(link, subject, said)
            elif kind is Kind.PUBLISH:
                await bus.publish(subject, message.body, headers=message.headers)
            elif kind is Kind.NOTIFY:
                await bus.notify(subject, message.body, headers=message.headers)
            elif kind is Kind.SUBSCRIBE:
                subscription = bus.subscribe(subject, when_full="drop_oldest", local=False)
                await stack.enter_async_context(subscription)
            elif kind is Kind.CANCEL:
                reply = self._asked.get((said.conn, message.id))
                if reply is not None:
                    reply.cancel()
            else:
                self._report.skipped[kind.value] += 1
                return
        except (Unsupported, BusError) as error:
            logger.warning("polybus: %s of %r cannot be said again: %s", kind.value, message.subject, error)
            self._report.skipped[kind.value] += 1
            return
        self._report.said[kind.value] += 1

    async def _ask(self, link: Link, subject: str | int, said: _Said) -> None:
        message, peer = said.message, link.peer
        if peer is None:
            raise Unsupported("a server behind a broker asks nobody")
        again = Message(Kind.REQUEST, subject, None, headers=message.headers)
        if message.raw is not None and link.adapter.name == said.protocol:  # as it was written: the format of a body is kept
            again.raw, again.format = message.raw, message.format
        elif message.has_body:
            again._value = message.body
        self._asked[said.conn, message.id] = peer._pass_on(again, message.ttl if message.ttl else _PATIENCE)
        if len(self._asked) > 1000:
            await self._answers()

    async def _answers(self) -> None:
        """Wait for all that was asked."""
        asked, self._asked = self._asked, {}
        for reply in asked.values():
            try:
                await reply
                self._report.answered += 1
            except BusError:
                self._report.failed += 1


def _link_of(bus: Bus) -> Link:
    """
    Raises:
        Disconnected: The server has ended it, for good.
    """
    for link in bus._opened:
        return link
    raise Disconnected("the server has ended the connection", "", False)
