"""The server side of uProtocol over HTTP, in an application. Events are posted, and the responses contain the answers to
requests.

It implements the HTTP protocol binding of CloudEvents 1.0.2. A server cannot send unsolicited events. As usual with HTTP, each
request contains the client's credentials. Requests with the same entity, identity and host belong to the same peer of the bus,
so that its limits apply as on any other connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
from attrs import define, field

from ..errors import RemoteProtocolError, TooLarge
from ..message import Kind, Message
from ..plugins import Closed, Identity, Listening, ListenOptions, Receiver, WebRoute
from ..plugins.connections import HIGH_WATER, TransportState
from ..protocols.uprotocol import IdFactory, UProtocol
from ..protocols.uprotocol.events import ReturnAddress
from ..protocols.uprotocol.http import Form, form_of, frames_of, http_of
from ..protocols.uprotocol.names import entity_of
from ..transports.asgi import HandshakeRejected, Send
from .http.server import HttpEndpoint, HttpRequest, respond

_SILENCE = 90.0
"""Seconds without a request after which a peer is considered gone."""


@define(eq=False)
class Posted:
    request: HttpRequest
    form: Form
    frames: list[bytes]
    entity: str
    requests: Sequence[str]  # Ids
    refusal: RemoteProtocolError | None  # Reason why all events are refused
    answers: list[bytes] = field(factory=list)
    size: int = 0
    over: bool = False
    no_room: str = ""  # Limit that left no space for answers
    done: anyio.Event = field(factory=anyio.Event)

    def answer(self, frame: bytes) -> None:
        self.answers.append(frame)
        self.size += len(frame)
        if len(self.answers) == len(self.requests):
            self.done.set()

    def end(self) -> None:
        self.over = True
        self.done.set()

    def drop(self, limit: str) -> None:
        self.no_room = limit
        self.answers.clear()
        self.request.release()
        self.end()

    @property
    def complete(self) -> bool:
        return self.over or len(self.answers) == len(self.requests)


class EventsConnection:
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
        self._leaving: dict[Posted, None] = {}
        self._held = 0
        self._paused = False
        self._busy = 0
        self._seen = host.time()
        self._why: Closed | None = None

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, frame: bytes) -> None:
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
        return sum(posted.size for posted in self._leaving)

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.abort(Closed(code, reason))

    def abort(self, why: Closed) -> None:
        if self._state is TransportState.OPEN:
            self._state, self._why = TransportState.CLOSING, why
            self._host.call_soon(self._finish)

    def tick(self, now: float) -> None:
        if not self._busy and now - self._seen > _SILENCE:
            self.abort(Closed(1000, f"no request for {_SILENCE:g} s"))

    def idle(self) -> float:
        return 0 if self._busy else self._host.time() - self._seen

    # -- requests

    @property
    def over(self) -> bool:
        return self._state is not TransportState.OPEN

    def taken(self, ids: Sequence[str]) -> str | None:
        seen = set[str]()
        for id in ids:
            if id in seen or id in self._posted:
                return id
            seen.add(id)
        return None

    async def take(self, posted: Posted) -> None:
        """Deliver events, and wait until all are answered or the connection ends. Call `answered` afterwards."""
        self._busy += 1
        if self._state is not TransportState.OPEN or self._receiver is None:
            posted.end()
            return
        for id in posted.requests:
            self._posted[id] = posted
        posted.request.release()
        taken, posted.frames = posted.frames, []
        self._receiver.frames_received(taken)
        del taken  # a waiting request does not keep the posted data in memory
        if not posted.complete and posted.requests:
            await posted.request.while_there(posted.done.wait())
        if posted.answers and posted.complete and not posted.over:
            self._held -= posted.size
            self._leaving[posted] = None
            self._update_backlog()
            posted.request.release()  # counted by the link's backlog from now on

    def answered(self, posted: Posted) -> None:
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
            self._receiver.closed(self._why or Closed(1001, "the server closed the connection"))
        for posted in self._leaving:
            _ = posted.request.hold(posted.size)  # no longer counted by the closing link


_METHODS = (b"allow", b"POST, OPTIONS")
_STATUS = {"too_large": 413, "unknown_format": 415}
_KINDS = frozenset({Kind.REQUEST, Kind.PUBLISH, Kind.NOTIFY})


class EventsEndpoint(HttpEndpoint):
    def __init__(self, path: str = "/") -> None:
        super().__init__(path)
        self._adapter: UProtocol = UProtocol()
        self._asking = anyio.Semaphore(1)
        self._connections: dict[tuple[str, str, str | None], list[EventsConnection]] = {}

    def routes(self) -> Sequence[WebRoute]:
        return [*super().routes(), WebRoute("", self.exchange, ("POST", "OPTIONS"))]

    async def listen(self, options: ListenOptions) -> Listening:
        await super().listen(options)
        if isinstance(options.adapter, UProtocol):
            self._adapter = options.adapter
        self._asking = anyio.Semaphore(options.host.limits.handshakes)
        return self

    async def take(self, request: HttpRequest, send: Send) -> None:
        if request.scope["method"] == "OPTIONS":
            await request.probe()
            await respond(send, 204, b"", [_METHODS])
            return
        async with self._asking:  # wait instead of rejecting, because there may be known clients among many others
            admission = await request.admission()
        body = await request.body()
        if body is None:
            return
        posted = self._read(request, body)
        del body
        key = request.host, posted.entity, admission.identity.key
        known = self._connections.get(key, ())
        connection = next((one for one in known if one.identity == admission.identity and not one.over), None)
        if connection is None:
            connection = EventsConnection(request, self._adapter, admission.identity, partial(self._left, key))
            request.open(connection, admission)
            self._connections.setdefault(key, []).append(connection)
        twice = connection.taken(posted.requests)
        if twice is not None:
            raise HandshakeRejected(409, f"the id {twice[:80]} is still in flight: ids must be unique")
        try:
            await connection.take(posted)
            await self._answer(send, posted)
        finally:
            connection.answered(posted)

    async def _answer(self, send: Send, posted: Posted) -> None:
        if posted.no_room == "total_bytes":
            text = f"the share of Limits.total_bytes leaves no room for {posted.size} bytes of answers: try again later"
            raise HandshakeRejected(503, text)
        if posted.no_room:
            limit = self._options.host.limits.outbox_bytes if self._options is not None else 0
            text = f"answers of more than {limit} bytes are waiting (Limits.outbox_bytes): post fewer requests at a time"
            raise HandshakeRejected(413, text)
        if posted.over:
            raise HandshakeRejected(503, "this server accepts no clients: its bus has ended")
        if not posted.complete:
            return  # the client is gone
        if posted.answers:
            made = http_of(posted.answers, self._adapter, posted.form)
            posted.answers.clear()
            headers = [(name.encode(), value.encode("latin-1")) for name, value in made.headers.items()]
            await posted.request.respond(send, made.body, headers)
        elif posted.refusal is not None:
            raise _turned(posted.refusal)
        elif not posted.requests:
            await respond(send, 202, b"")

    def _read(self, request: HttpRequest, body: bytes) -> Posted:
        assert self._options is not None
        limits = self._options.host.limits
        headers = {name: ", ".join(values) for name, values in request.head.headers.items()}
        try:
            form = form_of(headers)
            frames = frames_of(headers, body, self._adapter, limits)
        except (RemoteProtocolError, ValueError, RecursionError) as error:
            raise _turned(error) from error
        codec = self._adapter.codec(limits)
        entity, requests, refusals = "", list[str](), list[RemoteProtocolError]()
        for frame in frames:
            try:
                message = codec.read(frame)
            except RemoteProtocolError as error:
                refusals.append(error)
                if isinstance(error.answer_id, ReturnAddress):
                    requests.append(error.answer_id)
                continue
            if message.kind not in _KINDS:
                text = f"{message.attributes['type']}: requests, publications and notifications are posted here"
                raise HandshakeRejected(400, text)
            entity = entity or entity_of(str(message.attributes["source"]))
            if message.kind is Kind.REQUEST:
                requests.append(str(message.id))
        refusal = refusals[0] if len(refusals) == len(frames) and refusals else None
        return Posted(request, form, frames, entity, requests, refusal)

    def _left(self, key: tuple[str, str, str | None], connection: EventsConnection) -> None:
        known = self._connections.get(key, [])
        if connection in known:
            known.remove(connection)
        if not known:
            self._connections.pop(key, None)


def _turned(error: Exception) -> HandshakeRejected:
    reason, text = getattr(error, "reason", "malformed"), getattr(error, "text", str(error))
    return HandshakeRejected(_STATUS.get(reason, 400), text)
