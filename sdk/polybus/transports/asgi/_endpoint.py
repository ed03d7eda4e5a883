"""The endpoint for WebSockets in an ASGI application, and requests that an ASGI server has received."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from functools import partial
from inspect import ismethod
from typing import Any, Final

import anyio
from attrs import evolve
from msgspec.structs import replace

from ...errors import BusError, LocalProtocolError
from ...plugins import Admission, Handshake, ListenOptions, WebRoute
from ...plugins.tools import is_loopback
from ..sockets import host_port, tune
from ..upgrades import CLOSES, HandshakeRejected, OriginPolicy, UpgradeRequest
from ._adoption import AdoptedConnection, UvicornWebSocket
from ._transport import AsgiTransport, Receive, Scope, Send, Socket, socket_of

logger: logging.Logger = logging.getLogger("polybus.security")

_PARTING: Final = 1.0
ENCRYPTED: Final = "polybus.encrypted"
"""Name in a scope's state of the connection's TLS stream, which has the client's certificate, if the server is hypercorn."""
_ENDS: Final = ("http.disconnect", "websocket.disconnect")


class AsgiWebSocket:
    """An endpoint to pass to `Bus.serve` instead of a URL. A router calls it for each WebSocket at one path.

    The client's address, scheme and headers come from the ASGI `scope`. Behind a proxy they describe the proxy unless the
    server trusts ``X-Forwarded-*`` headers.

    If possible, the bus takes over the connection from uvicorn (see `UvicornWebSocket`).

    Args:
        path: Path in the router, for log and error messages.
        watched: A function called with a scope and its `receive`. Return True if code around this application, such as
            middleware, waits for the application to return. The ASGI call for a taken-over connection then lasts until the
            connection ends. Otherwise the call returns immediately, which saves memory.
    """

    def __init__(self, path: str = "/", watched: Callable[[Scope, Receive], bool] | None = None) -> None:
        self.path: str = path
        self._watched = watched
        self._options: ListenOptions | None = None
        self._warned = False

    # -- plugins.WebEndpoint, plugins.Listening

    def routes(self) -> Sequence[WebRoute]:
        return [WebRoute("", self)]

    @property
    def url(self) -> str:
        """The address within the application. Host and port are known only to the server."""
        return f"asgi://{self.path}"

    async def listen(self, options: ListenOptions) -> AsgiWebSocket:
        """Accept clients. Raises `LocalProtocolError` if a bus already serves this endpoint."""
        if self._options is not None:
            raise LocalProtocolError(f"{self.path} is already served, in another event loop or by another bus")
        self._options = options
        return self

    async def aclose(self) -> None:
        self._options = None

    # -- the ASGI application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answered(self._knock, scope, receive, send)

    async def _knock(self, scope: Scope, receive: Receive, send: Send) -> None:
        last = await self._let_in(scope, receive, send)
        if last is not None:
            await last()

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> Callable[[], Awaitable[None]] | None:
        """Create a client's connection, and return a function that lasts as long as it, or `None` if the call may return.

        Raises `HandshakeRejected`.
        """
        options = self._options
        if options is None:
            raise HandshakeRejected(503, "this server accepts no clients: its bus has ended")
        address = _client_of(scope)
        refusal = options.gate.knock(address)
        if refusal is not None:
            raise HandshakeRejected.of(refusal)
        inside = False
        try:
            request = AsgiRequest(options, scope, receive)
            self.check_private(request)
            name = "wss" if request.policy.tls else "ws"
            chosen, admission = await request.admitted(name)
            theirs = UvicornWebSocket.under(receive) if options.framing is None and not request.early else None
            if theirs is not None:
                theirs.decline_extensions()
            if not await accept(send, chosen) or self._options is not options:
                return None
            inside = True
            if theirs is not None and theirs.untouched:
                limit = min(options.host.limits.message, theirs.largest or options.host.limits.message)
                connection = theirs.hand_over(name, address, options, limit)
                # Only `authenticate` needs the scope, which makes up most of an idle connection's memory.
                freed = replace(admission, handshake=evolve(admission.handshake, scope=None))
                options.host.spawn(self._open, options, connection, address, freed)
                return connection.lost if self._watched is None or self._watched(scope, receive) else None
            transport = AsgiTransport(
                name, address, options.host, send, request.socket, reads=options.reads, writes=options.writes
            )
            options.gate.opened(transport, admission)
            return partial(transport.run, request.receive if request.early else receive)
        finally:
            if not inside:
                options.gate.left(address)

    async def _open(self, options: ListenOptions, connection: AdoptedConnection, address: str, admission: Admission) -> None:
        if self._options is not options:  # the bus is shutting down
            options.gate.left(address)
            connection.abort()
            return
        try:
            options.gate.opened(connection.serve(), admission)
        except BaseException:
            connection.abort()
            raise

    def check_private(self, request: AsgiRequest) -> None:
        """Raise `HandshakeRejected` (403) if a bus without authentication is reachable from other machines."""
        host = request.here[0]
        if not request.options.private or not _is_public(host):
            return
        text = (
            f"this server can be reached from other machines (at {host}) and its bus has no authentication: pass "
            "Bus(authenticate=...), or bind to 127.0.0.1, or use attach(..., insecure=True)"
        )
        if not self._warned:
            self._warned = True
            logger.error("connections to %s are refused: %s", self.path, text)
        raise HandshakeRejected(403, "this server accepts no clients: see its log")


class AsgiRequest:
    """A request or upgrade. The constructor checks Host and Origin, and raises `HandshakeRejected` if one is invalid."""

    def __init__(self, options: ListenOptions, scope: Scope, receive: Receive) -> None:
        self.options: ListenOptions = options
        self.scope: Scope = scope
        self.early: list[MutableMapping[str, Any]] = []
        """ASGI messages that arrived while the bus decided about the client. `receive` returns them first."""
        self._receive = receive
        self._left = False
        self.socket: Socket | None = socket_of(receive)
        self.address: str = _client_of(scope)
        self.here: tuple[str, int | None] = scope.get("server") or ("", None)
        self.head: UpgradeRequest = _upgrade_of(scope)
        self.policy: OriginPolicy = OriginPolicy(
            options=options,
            path=self.head.path,
            tls=scope.get("scheme") in ("wss", "https"),
            # An address without a port is a Unix socket, which browsers cannot connect to.
            loopback=self.here[1] is not None and is_loopback(self.here[0]),
        )
        try:
            self.policy.check(self.head)
        except HandshakeRejected as turned:
            self.policy.tell(turned, self.address)
            raise
        if self.socket is not None:
            # asyncio leaves Nagle's algorithm on for sockets that the server didn't create. An answer's head and body are two
            # writes, so the body would wait 40 ms for the client to acknowledge the head.
            tune(self.socket.get_extra_info("socket"), options.host.limits)

    async def admitted(self, transport: str) -> tuple[str | None, Admission]:
        """Ask the bus to admit the client, and return the subprotocol for the response and the client's admission.

        Raises:
            HandshakeRejected: If the bus doesn't admit the client in time, if the client leaves earlier, or if there is no
                common subprotocol (status 400).
        """
        known = Handshake(
            protocol=self.options.protocol,
            transport=transport,
            url=f"{transport}://{_host_and_port(*self.here)}{self.head.path}",
            address=self.address,
            tls_peer=self._certificate(),
            scope=self.scope,
        )
        chosen, handshake = self.policy.handshake(self.head, known)
        return chosen, await self._decided(handshake)

    def _certificate(self) -> Mapping[str, Any] | None:
        if self.socket is not None:
            return self.socket.get_extra_info("peercert") or None
        stream = (self.scope.get("state") or {}).get(ENCRYPTED)
        return None if stream is None else stream.getpeercert() or None

    async def _decided(self, handshake: Handshake) -> Admission:
        limits, outcome = self.options.host.limits, list[Admission | BusError]()
        # `authenticate` has its own timeout, and a bus that is shutting down answers at once. A bus that fails never does.
        waiting = anyio.move_on_after(limits.handshake_timeout + limits.close_timeout)

        def decide(result: Admission | BusError) -> None:
            outcome.append(result)
            waiting.cancel()

        withdraw = self.options.gate.admit(handshake, decide)
        try:
            with waiting:
                # Only a server's own `receive` is cancelled: a middleware's may lose a message, or end.
                if not outcome and not (ismethod(self._receive) and await self.leaves()):
                    await anyio.sleep_forever()
        finally:
            if withdraw is not None:
                withdraw()
        if not outcome:
            ended = "the client has left" if self._left else "this server accepts no clients: its bus has ended"
            raise HandshakeRejected(503, ended)
        if isinstance(outcome[0], BusError):
            raise HandshakeRejected.of(outcome[0])
        return outcome[0]

    # -- messages of the server

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next ASGI message."""
        return self.early.pop(0) if self.early else await self._receive()

    async def leaves(self) -> bool:
        """Wait until the client has left. Returns `False` if it has sent something, so that the bus still decides about it."""
        if not self._left:
            message = await self._receive()
            self._left = message["type"] in _ENDS
            self.early.append(message)
        return self._left


async def answered(
    upgrade: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope, receive: Receive, send: Send
) -> None:
    """Handle an upgrade request. Rejected clients receive the reason."""
    await receive()  # websocket.connect
    try:
        await upgrade(scope, receive, send)
    except HandshakeRejected as turned:
        try:
            await _turn_away(scope, send, turned)
            await _until_gone(receive)
        except Exception as error:
            logger.debug("gone before it could be turned away: %r", error)


async def accept(send: Send, chosen: str | None) -> bool:
    """Accept the upgrade. Returns `False` if the client has disconnected."""
    try:
        await send({"type": "websocket.accept", "subprotocol": chosen, "headers": []})
    except Exception as error:
        logger.debug("gone before the upgrade: %r", error)
        return False
    return True


async def _turn_away(scope: Scope, send: Send, turned: HandshakeRejected) -> None:
    """Reject the upgrade with a status and message, or with a close code. A server that supports neither responds with 403."""
    if (close := turned.close(scope.get("subprotocols") or ())) is not None:
        code, reason = close
        await send({"type": "websocket.accept", "subprotocol": CLOSES, "headers": []})
        await send({"type": "websocket.close", "code": code, "reason": reason})
        return
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": turned.text[:100]})
        return
    fields, body = turned.answer()
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields]
    await send({"type": "websocket.http.response.start", "status": turned.status.value, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


async def _until_gone(receive: Receive) -> None:
    """Wait until the connection of a rejected client has ended.

    uvicorn (websockets-sansio) reports the end twice: once immediately, and once when the connection has really ended. If the
    application returned before the second report, uvicorn would log that the application did not respond.
    """
    with anyio.move_on_after(_PARTING):
        for _ in range(2):
            await receive()


def _upgrade_of(scope: Scope) -> UpgradeRequest:
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return UpgradeRequest(
        path=scope["path"],
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
        offers=scope.get("subprotocols") or (),
        client=(scope.get("client") or ("",))[0],
    )


def _client_of(scope: Scope) -> str:
    client = scope.get("client")
    return _host_and_port(*client) if client else ""


def _host_and_port(host: str, port: int | None) -> str:
    return host if port is None else host_port(host, port)


def _is_public(host: str) -> bool:
    """Return True if an address is reachable from other machines. Test clients and Unix sockets have names instead."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return not is_loopback(host)
