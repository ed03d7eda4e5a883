"""Saying again what was recorded: to another server, as fast or as slowly as wanted.

What the clients of a recording said is sent again, over connections made anew: so handshakes, ids and deadlines are those of
today, and what the servers said is what the new server says. Subscriptions come first.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import anyio
from attrs import define, field

from ..._core.bus.bus import Bus, parts_of
from ..._core.bus.connect import connect
from ..._core.link.link import Link
from ..._core.peer.subscription import Subscription
from ..._core.rpc.reply import Reply
from ..._util.cancel_scopes import to_the_end
from ..._util.log_fields import log_fields
from ..._util.own_thread import in_own_thread
from ...errors import BusError, Disconnected, Unsupported
from ...message import Kind, Message
from ..errors import CaptureError
from ..record.recorder import make_recorder
from ..store.reader import Capture
from .recorded_messages import RecordedMessage, Selection, client_messages

__all__ = ["Replayed", "Selection", "replay"]

logger: logging.Logger = logging.getLogger("polybus.capture")
_PATIENCE: Final = 30.0
_HASTY: Final = 1000
"""Requests that are waited for at the same time where nothing else sets the pace: an outbox takes four times as many."""
_PACED: Final = 50_000
"""The same where the recording sets it, and should not be held up."""


@define
class Replayed:
    """The report of a replay."""

    connections: int = 0
    said: Counter[str] = field(factory=Counter)
    """Number of messages by kind."""
    answered: int = 0
    failed: int = 0
    """Requests that the new server has refused, or not answered in time."""
    skipped: Counter[str] = field(factory=Counter)
    """Number of messages not replayed, by kind or reason; ``damaged`` are frames that the capture has lost, if known."""
    seconds: float = 0.0
    """Length of the recording that was replayed."""


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
        dry_run: Open no connection; only count the messages.
        options: For `polybus.connect`.

    Raises:
        ValueError: `speed` is not above 0.
        CaptureError: A segment is missing; the capture of the replay cannot be written, or is to be the one that is replayed.
        ConnectFailed, Unauthorized, Forbidden: The server is not there, or refuses the first connection; what was said over
            others that it refuses is counted in `skipped`.
    """
    if not speed > 0:
        raise ValueError(f"speed={speed!r}: a number above 0")
    report = Replayed()
    player = _Player(url, speed, report, options)
    plan = client_messages(capture, selection or Selection(), report.skipped)
    if dry_run:
        _count(plan, report)
        return report
    if record is None:
        await player.play(plan)
        return report
    recorder = player.recorder = make_recorder(record, source=_another(capture, record))
    try:
        await in_own_thread(recorder.open)
        await player.play(plan)
    finally:
        await to_the_end(in_own_thread, recorder.close)
    return report


def _another(capture: Capture, record: str) -> str:
    """The name of a capture for that of its replay.

    Raises:
        CaptureError: That is to be written into the same folder: it would be replayed the next time, and retention would remove
            the first one for it.
    """
    if "://" in capture.path:
        return capture.path
    if os.path.realpath(record) == os.path.realpath(capture.path):
        raise CaptureError(f"{record} is the capture that is replayed: record the replay in a folder of its own")
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
    """A connection of a client of the recording, made anew; an async context manager that may be left before its time."""

    def __init__(self, url: str, recorder: Any, options: dict[str, Any]) -> None:
        self.bus = Bus()
        if recorder is not None:
            parts_of(self.bus).services.recorders.append(recorder)
        self._connecting: Any = connect(url, bus=self.bus, **options)
        self.asked: dict[Any, Reply[Any]] = {}
        self.subscriptions: dict[str | int, Subscription] = {}

    async def __aenter__(self) -> Self:
        await self._connecting.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            for subject in list(self.subscriptions):
                await self.unsubscribe(subject)
            await connecting.__aexit__(*error)

    async def subscribe(self, subject: str | int) -> None:
        if subject not in self.subscriptions:
            subscription = self.bus.subscribe(subject, when_full="drop_oldest", local=False)
            await subscription.__aenter__()
            self.subscriptions[subject] = subscription

    async def unsubscribe(self, subject: str | int) -> None:
        subscription = self.subscriptions.pop(subject, None)
        if subscription is not None:
            await subscription.__aexit__(None, None, None)

    @property
    def link(self) -> Link:
        """
        Raises:
            Disconnected: The server has ended it, for good.
        """
        for link in parts_of(self.bus).links.opened:
            return link
        raise Disconnected("the server has ended the connection", "", False)


class _Player:
    """Says things at their time."""

    def __init__(self, url: str, speed: float, report: Replayed, options: dict[str, Any]) -> None:
        self._url = url
        self._speed = speed
        self._report = report
        self._options = options
        self._open: dict[_Client, None] = {}
        self._clients: dict[str, dict[str, _Client | None]] = {}
        """By connection and client behind it; None for those that the server has refused."""
        self._leaving: list[_Client] = []
        """Their connection had ended by now; answers are still waited for."""
        self._asked = 0
        self._first: float | None = None
        """Time of the first one, ns since 1970; `_began` is the time of its repetition, by the clock of the event loop."""
        self._began = 0.0
        self.recorder: Any = None

    async def play(self, plan: Iterator[RecordedMessage]) -> None:
        """All of it."""
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self._close)
            ended: list[RecordedMessage] = []
            # Arrow reads in the event loop's own thread: a batch of 1,024 rows takes about 1 ms, the largest ones 5 ms.
            for recorded in plan:
                if recorded.message is None:
                    if recorded.conn[0] in self._clients:
                        ended.append(recorded)
                    continue
                if self._first is None:
                    await self._client(recorded.conn)
                    self._first, self._began = recorded.at, anyio.current_time()
                for one in ended:  # where a message follows: else there is nothing to wait for
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
        """Until it is its time."""
        due = self._began + (recorded.at - (self._first or 0.0)) / 1e9 / self._speed
        if due > anyio.current_time():
            await anyio.sleep_until(due)

    async def _close(self, *error: Any) -> None:
        """All connections that are still there, also where one of them fails."""
        stack = AsyncExitStack()
        for client in self._open:
            stack.push_async_exit(client)
        await stack.__aexit__(*error)

    async def _client(self, conn: tuple[str, str]) -> _Client | None:
        """
        Raises:
            ConnectFailed, Unauthorized, Forbidden: It is the first, and the server is not there or refuses it.
        """
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
            logger.warning("what was said over %s cannot be said again: %s", conn[0], error, extra=log_fields(address=conn[0]))
        there[conn[1]] = client
        return client

    async def _end(self, conn_id: str) -> None:
        """A connection had ended, with all clients behind it."""
        self._leaving += [client for client in self._clients.pop(conn_id, {}).values() if client is not None]
        await self._leave()

    async def _leave(self) -> None:
        """Close the connections whose answers are there."""
        for client in self._leaving:
            await self._answers_of(client)
            if not client.asked:
                await client.__aexit__(None, None, None)
                del self._open[client]
        self._leaving = [client for client in self._leaving if client in self._open]

    async def _replay(self, client: _Client | None, recorded: RecordedMessage, message: Message) -> None:
        kind, said = message.kind.value, False
        try:
            said = client is not None and await self._say(client, recorded, message)
        except BusError as error:
            logger.warning(
                "%s of %r cannot be said again: %s", kind, message.subject, error, extra=log_fields(subject=message.subject)
            )
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
            if subject not in client.subscriptions:  # that could not be made
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
            raise Unsupported("a server behind a broker asks nobody")
        again = Message(Kind.REQUEST, subject, None, headers=message.headers)
        if message.raw is not None and link.adapter.name == recorded.protocol:  # its format is kept
            again.raw, again.format, again.checked = message.raw, message.format, message.checked
        elif message.has_body:
            again.decoded = message.body
        earlier = client.asked.pop(message.id, None)
        if earlier is not None:  # an id of 16 bits comes again
            client.asked[object()] = earlier
        client.asked[message.id] = peer.pass_on(again, message.ttl if message.ttl else _PATIENCE)
        self._asked += 1
        if self._asked > (_HASTY if self._speed == math.inf else _PACED):
            await self._answers()
            if self._asked > _HASTY // 2:
                await self._answers(all_of_them=True)

    async def _answers(self, *, all_of_them: bool = False) -> None:
        """Count those that are there, or wait for all."""
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
