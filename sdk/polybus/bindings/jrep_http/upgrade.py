"""The WebSocket that an Errai client negotiates beside its posts (J.REP notes, section 2.4), from the client's side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import anyio
from attrs import field, frozen

from ...errors import BusError
from ...plugins import Closed, DialOptions, Receiver, Transport
from ...transports import WebSocket
from .payloads import MAX_WORD, command_in, word
from .requests import ErraiRequests

_TEXT: Final[frozenset[Literal["text", "binary"]]] = frozenset({"text"})
PATIENCE: Final = 2.5
"""Seconds for each step: a proxy that does not know WebSockets may answer nothing at all."""
_PAUSE: Final = 0.05
_TRIES: Final = 20
"""Number of times to ask if the channel is open: a real server answers from another thread, perhaps after the post."""


@frozen
class Offer:
    """Abilities of a server, as it said when it let us in."""

    flags: frozenset[str] = frozenset()
    key: str = ""
    url: str = ""
    token: str = field(default="", repr=False)
    frequency: float = 0.5
    """Seconds between two short polls."""
    legacy: bool = False
    """True if it is a server of Errai until 2.3."""
    ours: bool = False
    """True if it is a polybus."""


def offer_in(payload: bytes) -> Offer:
    """Abilities in a FinishAssociation, or in a CapabilitiesNotice."""
    message = command_in(payload, "FinishAssociation", "CapabilitiesNotice")
    if message is None:
        return Offer()

    def text(part: str) -> str:
        value = message.get(part)
        return value if isinstance(value, str) else ""

    flags = frozenset(flag.strip() for flag in text("CapabilitiesFlags").split(","))
    legacy, ours = message["CommandType"] == "CapabilitiesNotice", "Polybus" in message
    key, url, token = text("ConnectionSessionKey"), text("WebSocketURL"), text("WebSocketToken")
    return Offer(flags, key, url, token, _frequency(message), legacy, ours)


def _frequency(message: Mapping[str, Any]) -> float:
    given = message.get("PollFrequency")
    if isinstance(given, dict):
        given = given.get("^NumVal")
    try:
        return min(max(int(float(str(given))), 100), 30_000) / 1000
    except (ValueError, OverflowError):  # the latter of Infinity
        return 0.5


class WebSocketNegotiation:
    """One attempt.

    Args:
        post: Posts between other posts, delivers what the answer has for the bus, and returns it.
        receiver: User of the WebSocket. Until it is open, what comes is for `hear` and `end`.
    """

    def __init__(
        self,
        post: Callable[[bytes], Awaitable[bytes]],
        receiver: Receiver,
        offer: Offer,
        requests: ErraiRequests,
        options: DialOptions,
    ) -> None:
        self._post = post
        self._receiver = receiver
        self._offer = offer
        self._requests = requests
        self._options = options
        self._word: Mapping[str, Any] | None = None
        self._heard = anyio.Event()
        self.over: bool = False
        """True if the WebSocket has ended."""
        self.socket: Transport | None = None
        self.reason: str = ""
        """Why there is none."""

    @property
    def claim(self) -> bytes:
        """The first word, and the last, with which it is open. A bare object: an array would be answered by silence."""
        offer = self._offer
        return word(CommandType="Associate", ConnectionSessionKey=offer.key, WebSocketToken=offer.token)[1:-1]

    async def negotiate(self) -> bool:
        """Negotiate. True if the WebSocket is there and the server has confirmed it: `claim` is all that is left."""
        self.reason = self._objection()
        if not self.reason:
            try:
                self.reason = await self._negotiate()
            except BusError as error:
                self.reason = str(error)
        if self.reason and self.socket is not None:
            self.socket.abort(Closed(1000, self.reason))
        return not self.reason

    def hear(self, frame: bytes) -> None:
        if self._word is None and len(frame) <= MAX_WORD:
            self._word = command_in(frame, "WebsocketChannelVerify", "WebsocketNegotiationFailed")
            if self._word is not None:
                self._heard.set()

    def end(self) -> None:
        self.over = True
        self._heard.set()

    def _objection(self) -> str:
        """A server may send its clients to a WebSocket of its own, not to another's, and not out of TLS."""
        parts = urlsplit(self._offer.url)
        if parts.scheme not in ("ws", "wss") or not self._offer.token or not self._offer.key:
            return "the server offers WebSockets and does not say where"
        if parts.hostname != self._requests.host:
            return f"the server offers a WebSocket at another host, {parts.hostname}"
        if self._requests.secure and parts.scheme != "wss":
            return "the server offers a WebSocket without encryption"
        return ""

    async def _negotiate(self) -> str:
        """Nothing, or why not. May raise `BusError`: there is no WebSocket; `Lost`: the posts do not get through either."""
        url, host = self._offer.url, self._options.host
        headers = self._requests.upgrade_headers(url)
        options = DialOptions(
            host=host, reads=_TEXT, writes="text", subprotocol="", headers=headers, tls=self._requests.tls_of(url)
        )
        with anyio.move_on_after(PATIENCE):
            self.socket = await WebSocket().connector(url).connect(options)
            self.socket.start(self._receiver)
            self.socket.send(self.claim)
            await self._heard.wait()
        if self._word is None:
            return "the server does not answer over the WebSocket"
        if self._word.get("CommandType") != "WebsocketChannelVerify":
            return f"the server refuses the WebSocket: {self._word.get('ErrorMessage')}"
        token = str(self._word.get("WebSocketToken"))
        answer = await self._post(word(ToSubject="ServerBus", CommandType="WebsocketChannelVerify", WebSocketToken=token))
        for _ in range(_TRIES):
            said = command_in(answer, "WebsocketChannelOpen", "WebsocketNegotiationFailed")
            if said is not None:
                return "" if said.get("CommandType") == "WebsocketChannelOpen" else f"refused: {said.get('ErrorMessage')}"
            await anyio.sleep(_PAUSE)
            answer = await self._post(b"[]")
        return "the server does not confirm the WebSocket"
