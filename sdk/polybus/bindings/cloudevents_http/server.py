"""uProtocol over HTTP in an application: events are posted, and the response has the answers to requests.

The form is that of CloudEvents 1.0.2, HTTP protocol binding. A server begins nothing here.

The client is asked for credentials with each request, as is usual with HTTP. Requests of one entity with one identity, from
one host, are one peer of the bus: what it may run and how much of it waits is then bounded as on any other connection.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from attrs import frozen

from ...errors import RemoteProtocolError
from ...message import Kind
from ...plugins import Admission, Identity, Listening, ListenOptions, WebRoute
from ...protocols.uprotocol.adapter import UProtocol
from ...protocols.uprotocol.cloudevents.envelope import ReturnAddress
from ...protocols.uprotocol.http import Form, form_of, frames_of, http_of
from ...protocols.uprotocol.names import entity_of
from ...transports._ws.asgi import Send
from ...transports._ws.policy import HandshakeRejected
from ..http.server import HttpEndpoint, HttpRequest, respond
from .connection import EventsConnection, Posted

_METHODS = (b"allow", b"POST, OPTIONS")
_STATUS = {"too_large": 413, "unknown_format": 415}
_KINDS = frozenset({Kind.REQUEST, Kind.PUBLISH, Kind.NOTIFY})


@frozen
class _Content:
    """Content of a post: the events, who sends them, and which of them want an answer."""

    form: Form
    frames: list[bytes]
    entity: str
    requests: Sequence[str]
    refusal: RemoteProtocolError | None
    """Why not one of them is good."""


class EventsEndpoint(HttpEndpoint):
    """A `plugins.WebEndpoint`: CloudEvents in POST requests, beside the WebSockets of others."""

    def __init__(self, path: str = "/") -> None:
        super().__init__(path)
        self._adapter: UProtocol = UProtocol()
        self._asking = anyio.Semaphore(1)
        self._connections: dict[tuple[str, str, str | None], list[EventsConnection]] = {}

    def routes(self) -> Sequence[WebRoute]:
        """WebSockets and POST requests at the path itself; OPTIONS tells whether one would be let in."""
        return [*super().routes(), WebRoute("", self.exchange, ("POST", "OPTIONS"))]

    async def listen(self, options: ListenOptions) -> Listening:
        await super().listen(options)
        if isinstance(options.adapter, UProtocol):
            self._adapter = options.adapter
        self._asking = anyio.Semaphore(options.host.limits.handshakes)
        return self

    async def take(self, request: HttpRequest, send: Send) -> None:
        """May raise `HandshakeRejected`: there is no event in it, or its client is not let in."""
        if request.scope["method"] == "OPTIONS":
            await request.probe()
            await respond(send, 204, b"", [_METHODS])
            return
        async with self._asking:  # a crowd waits, and is not turned away: those whom the bus knows are in it too
            admission = await request.admission()
        body = await request.body()
        if body is None:
            return
        content = self._content(request, body)
        del body
        connection = self._connection_of(request, content.entity, admission.identity)
        if connection is None:
            connection = self._enter(request, content.entity, admission)
        twice = connection.taken(content.requests)
        if twice is not None:
            raise HandshakeRejected(409, f"the id {twice[:80]} is still in flight: ids must be unique")
        posted = Posted(request, content.requests)
        try:
            await connection.take(posted, content.frames)
            await self._answer(send, content, posted)
        finally:
            connection.answered(posted)

    async def _answer(self, send: Send, content: _Content, posted: Posted) -> None:
        """May raise `HandshakeRejected`: nothing that was posted is good, there is no room, or the bus was left meanwhile."""
        if posted.no_room == "total_bytes":
            text = f"the share of Limits.total_bytes leaves no room for {posted.size} bytes of answers: try again later"
            raise HandshakeRejected(503, text)
        if posted.no_room:
            limit = self._options.host.limits.outbox_bytes if self._options is not None else 0
            text = f"answers of more than {limit} bytes wait (Limits.outbox_bytes): post fewer requests at a time"
            raise HandshakeRejected(413, text)
        if posted.over:
            raise HandshakeRejected(503, "this server takes nobody now: its bus has ended")
        if not posted.complete:
            return  # nobody is there
        if posted.answers:
            made = http_of(posted.answers, self._adapter, content.form)
            posted.answers.clear()
            headers = [(name.encode(), value.encode("latin-1")) for name, value in made.headers.items()]
            await posted.request.respond(send, made.body, headers)
        elif content.refusal is not None:
            raise _turned(content.refusal)
        elif not content.requests:
            await respond(send, 202, b"")

    def _content(self, request: HttpRequest, body: bytes) -> _Content:
        """May raise `HandshakeRejected`: there is no event in it, or one that has no place in HTTP."""
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
        return _Content(form, frames, entity, requests, refusal)

    # -- who posts

    def _connection_of(self, request: HttpRequest, entity: str, identity: Identity) -> EventsConnection | None:
        known = self._connections.get((request.host, entity, identity.key), ())
        return next((one for one in known if one.identity == identity and not one.over), None)

    def _enter(self, request: HttpRequest, entity: str, admission: Admission) -> EventsConnection:
        """May raise `HandshakeRejected`: there is no room."""
        key = request.host, entity, admission.identity.key
        made = EventsConnection(request, self._adapter, admission.identity, lambda ended: self._left(key, ended))
        request.open(made, admission)
        self._connections.setdefault(key, []).append(made)
        return made

    def _left(self, key: tuple[str, str, str | None], connection: EventsConnection) -> None:
        known = self._connections.get(key, [])
        if connection in known:
            known.remove(connection)
        if not known:
            self._connections.pop(key, None)


def _turned(error: Exception) -> HandshakeRejected:
    reason, text = getattr(error, "reason", "malformed"), getattr(error, "text", str(error))
    return HandshakeRejected(_STATUS.get(reason, 400), text)
