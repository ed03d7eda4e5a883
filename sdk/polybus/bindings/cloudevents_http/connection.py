"""One peer that posts events over HTTP, as a connection: many requests, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from ...errors import TooLarge
from ...message import Kind, Message
from ...plugins import Closed, Identity, Receiver
from ...protocols._uprotocol import IdFactory
from ...protocols.uprotocol.adapter import UProtocol
from ...transports._stream.transport import TransportState
from ...transports._stream.wire import HIGH_WATER
from ..http.server import HttpRequest

_SILENCE = 90.0
"""Seconds without any request after which the peer has gone."""


class Posted:
    """One HTTP request with events in it, and the answers to them."""

    def __init__(self, request: HttpRequest, requests: Sequence[str]) -> None:
        self.request: HttpRequest = request
        self.requests: Sequence[str] = requests
        """Ids of those that want an answer."""
        self.answers: list[bytes] = []
        self.size: int = 0
        """Of the answers, in bytes."""
        self.over: bool = False
        """The connection has ended before all answers were there."""
        self.no_room: str = ""
        """So have they, because there was none for them: the limit."""
        self._done = anyio.Event()

    def answer(self, frame: bytes) -> None:
        """One of them has its answer."""
        self.answers.append(frame)
        self.size += len(frame)
        if len(self.answers) == len(self.requests):
            self._done.set()

    def end(self) -> None:
        self.over = True
        self._done.set()

    def drop(self, limit: str) -> None:
        """There is no room for an answer, so none is kept."""
        self.no_room = limit
        self.answers.clear()
        self.request.release()
        self.end()

    @property
    def complete(self) -> bool:
        """True if nothing is waited for."""
        return self.over or len(self.answers) == len(self.requests)

    async def wait(self) -> None:
        await self._done.wait()


class EventsConnection:
    """A `plugins.Transport` that can only answer."""

    hops = 0
    initiates = False

    def __init__(
        self, request: HttpRequest, adapter: UProtocol, identity: Identity, ended: Callable[[EventsConnection], None]
    ) -> None:
        host = request.options.host
        self.name: str = request.name
        self.address: str = request.address
        self.max_frame: int = host.limits.message
        self.identity: Identity = identity
        self._host = host
        self._codec = adapter.codec(host.limits)
        self._source = f"{adapter.entity}/rpc.response"
        self._ids = IdFactory(adapter.clock)
        self._ended = ended
        self._state = TransportState.OPEN
        self._receiver: Receiver | None = None
        self._posted: dict[str, Posted] = {}
        """Exchanges that wait, by the ids of their requests."""
        self._leaving: dict[Posted, None] = {}
        """Exchanges whose answers are complete and have not been read."""
        self._held = 0
        self._paused = False
        self._busy = 0
        self._seen = host.time()
        self._why: Closed | None = None

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, frame: bytes) -> None:
        """Hand an answer to the request that waits for it. One without such a request is dropped."""
        if len(frame) > self.max_frame:
            raise TooLarge(f"an event of {len(frame)} bytes: the limit is {self.max_frame} (Limits.message)")
        posted = self._posted.pop(self._codec.reader.answers(frame) or "", None)
        if posted is None or posted.no_room:
            return
        self._held += len(frame)
        posted.answer(frame)
        if not posted.request.hold(len(frame)):
            posted.drop("total_bytes")
        elif posted.size > len(frame) and self._held > self._host.limits.outbox_bytes:
            posted.drop("outbox_bytes")

    def write_backlog(self) -> int:
        """Bytes of answers that are complete and have not been read."""
        return sum(posted.size for posted in self._leaving)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Requests that have no answer yet get none. `Receiver.closed` follows."""
        self.abort(Closed(code, reason))

    def abort(self, why: Closed) -> None:
        if self._state is TransportState.OPEN:
            self._state, self._why = TransportState.CLOSING, why
            self._host.call_soon(self._finish)

    def tick(self, now: float) -> None:
        """About once a second: who posts nothing any more has gone."""
        if not self._busy and now - self._seen > _SILENCE:
            self.abort(Closed(1000, f"no request for {_SILENCE:g} s"))

    def idle(self) -> float:
        """Seconds without any request; 0 while one is answered."""
        return 0 if self._busy else self._host.time() - self._seen

    # -- requests

    @property
    def over(self) -> bool:
        """True if it takes nothing any more."""
        return self._state is not TransportState.OPEN

    def taken(self, ids: Sequence[str]) -> str | None:
        """The first of these ids that is given twice, or under which an answer is waited for."""
        seen = set[str]()
        for id in ids:
            if id in seen or id in self._posted:
                return id
            seen.add(id)
        return None

    async def take(self, posted: Posted, frames: list[bytes]) -> None:
        """Hand over events, and wait for all answers, for the end, or until the client has gone. `answered` is to follow.

        The list is empty then: a request that waits keeps nothing of what was posted.
        """
        self._busy += 1
        if self._state is not TransportState.OPEN or self._receiver is None:
            posted.end()
            return
        for id in posted.requests:
            self._posted[id] = posted
        posted.request.release()
        taken = frames[:]
        frames.clear()
        self._receiver.frames_received(taken)
        del taken
        if not posted.complete and posted.requests:
            await posted.request.while_there(posted.wait())
        if posted.answers and posted.complete and not posted.over:
            self._held -= posted.size
            self._leaving[posted] = None
            self._update_backlog()
            posted.request.release()  # they are charged to the link as its backlog

    def answered(self, posted: Posted) -> None:
        """The client of a request has read its answers, or has gone."""
        self._busy -= 1
        self._seen = self._host.time()
        self._give_up(posted)
        if posted in self._leaving:
            del self._leaving[posted]
            self._update_backlog()
        else:
            self._held -= posted.size

    def _update_backlog(self) -> None:
        if self._receiver is None or self.over:
            return
        if self.write_backlog() > HIGH_WATER:
            self._paused = True
            self._receiver.pause_writing()
        elif self._paused:
            self._paused = False
            self._receiver.resume_writing()

    def _give_up(self, posted: Posted) -> None:
        """Tell the handlers of what is not answered yet that no answer is wanted any more."""
        for id in posted.requests:
            if self._posted.get(id) is posted:
                del self._posted[id]
                if self._state is TransportState.OPEN and self._receiver is not None:
                    self._receiver.frames_received([self._cancel(id)])

    def _cancel(self, id: str) -> bytes:
        facts: dict[str, Any] = {"id": self._ids.next(), "source": self._source}
        return self._codec.encode([Message(Kind.CANCEL, "", id, attributes=facts)])

    def _finish(self) -> None:
        if self._state is TransportState.LOST:
            return
        self._state = TransportState.LOST
        everything, self._posted = self._posted, {}
        for posted in everything.values():
            posted.end()
        self._ended(self)
        if self._receiver is not None:
            self._receiver.closed(self._why or Closed(1001, "the server ended the connection"))
        for posted in self._leaving:
            _ = posted.request.hold(posted.size)  # the link, which ends here, has answered for them
