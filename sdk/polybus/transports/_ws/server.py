"""The server side of a WebSocket handshake (RFC 6455, section 4.2)."""

from __future__ import annotations

from urllib.parse import urlsplit

from attrs import define, field
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeader
from websockets.frames import Close, Frame, Opcode
from websockets.headers import parse_subprotocol
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from ...errors import BusError
from ...plugins import Admission, Handshake
from .._stream.listen import PendingConnection
from ..upgrades import CLOSES, HandshakeRejected, OriginPolicy, UpgradeRequest
from ..websocket import core_logger
from .transport import WebSocketTransport, make_transport

_LINE = 8192
_END = b"\r\n\r\n"
_TLS_HELLO = b"\x16"


@define(eq=False, repr=False)
class PendingWebSocket(PendingConnection):
    _policy: OriginPolicy = field(kw_only=True, alias="policy")
    # The 101 response, written when the bus admits the peer.
    _welcome: bytes = field(default=b"", init=False)
    _offers: tuple[str, ...] = field(default=(), init=False)

    def begin(self) -> None:
        self.wire.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        if self._welcome:
            super().data_received(data)
            return
        seen = len(self.unread)
        self.unread += data
        # Neither a TLS hello nor frames of tcp:// end like a request.
        if not (self.unread[:1].isalpha() or self.unread[:1] in b"\r\n"):
            hello = self.unread[:1] == _TLS_HELLO
            what = "a TLS hello: connect by ws://, or serve wss://" if hello else "no HTTP: does it speak tcp://?"
            self.listener.tell(self.wire.address, f"the client sent {what}")
            self.turn_away(_response(HandshakeRejected(400, f"ws:// is served here, but the client sent {what}")))
            return
        end = self.unread.find(_END, max(0, seen - len(_END) + 1))
        limit = _LINE + self.listener.options.host.limits.headers
        if end >= 0 or len(self.unread) > limit:
            head = bytes(self.unread[: end + len(_END)] if end >= 0 else self.unread)
            # Bytes after the request are WebSocket frames.
            del self.unread[: len(head)]
            self._answer(head, too_long=end < 0 or len(head) > limit)

    def _answer(self, head: bytes, too_long: bool) -> None:
        core = ServerProtocol(logger=core_logger)
        core.receive_data(head)
        requests = core.events_received()
        output = b"".join(core.data_to_send())
        if output:
            # The library rejected a long line (414) or too many lines (431).
            self.turn_away(output)
        elif too_long:
            self.turn_away(_response(HandshakeRejected(431, "the request is too long")))
        elif not requests or not isinstance(requests[0], Request):
            text = "this is not an HTTP/1.1 request for a WebSocket (a GET without a body), and nothing else is served here"
            self.turn_away(_response(HandshakeRejected(400, text)))
        else:
            try:
                self.ask(self._handshake(core, requests[0]))
            except HandshakeRejected as turned:
                self._policy.tell(turned, self.wire.address)
                self.turn_away(_response(turned))

    def _handshake(self, core: ServerProtocol, request: Request) -> Handshake:
        policy = self._policy
        upgrade = _upgrade(request, self.wire.address.rpartition(":")[0].strip("[]"))
        policy.check(upgrade)
        response = core.accept(request)
        if response.status_code != 101:
            raise HandshakeRejected(response.status_code, bytes(response.body).decode().strip())
        known = Handshake(
            protocol=self.listener.options.protocol,
            transport="wss" if policy.tls else "ws",
            url=self.listener.url,
            address=self.wire.address,
            tls_peer=self.wire.tls_peer(),
        )
        chosen, handshake = policy.handshake(upgrade, known)
        if chosen is not None:
            response.headers["Sec-WebSocket-Protocol"] = chosen
        self._welcome, self._offers = response.serialize(), (chosen or "", *upgrade.offers)
        return handshake

    def no(self, error: BusError) -> bytes:
        turned = HandshakeRejected.of(error)
        if (close := turned.close(self._offers)) is None:
            return _response(turned)
        name = "Sec-WebSocket-Protocol: "
        upgraded = self._welcome.replace(f"{name}{self._offers[0]}".encode(), f"{name}{CLOSES}".encode())
        return upgraded + Frame(Opcode.CLOSE, Close(*close).serialize()).serialize(mask=False)

    def let_in(self, admission: Admission) -> WebSocketTransport:
        self.wire.write(self._welcome)
        return make_transport("wss" if self._policy.tls else "ws", self.wire, self.listener.options, server=True)


def _upgrade(request: Request, client: str) -> UpgradeRequest:
    headers = request.headers
    try:
        target = urlsplit(request.path)
        offers = [offer for value in headers.get_all("Sec-WebSocket-Protocol") for offer in parse_subprotocol(value)]
    except ValueError as error:  # for example `//[`
        raise HandshakeRejected(400, f"the target of the request is not a URL: {error}") from None
    except InvalidHeader as error:
        raise HandshakeRejected(400, str(error)) from None
    lower = {name.lower(): headers.get_all(name) for name in headers}
    return UpgradeRequest(path=target.path, query=target.query, headers=lower, offers=offers, client=client)


def _response(turned: HandshakeRejected) -> bytes:
    fields, body = turned.answer()
    fields.append(("Connection", "close"))
    if turned.status in (400, 426):  # the version may be wrong (RFC 6455, section 4.2.2)
        fields.append(("Sec-WebSocket-Version", "13"))
    return Response(turned.status.value, turned.status.phrase, Headers(fields), body).serialize()
