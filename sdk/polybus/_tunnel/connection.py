"""Connections through a tunnel: a place to connect to, and the transport that is had there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from ..errors import AmbiguousRoute, BusError, ConnectFailed, DeadlineExceeded, Forbidden, LocalProtocolError, Unauthorized
from ..plugins import Closed
from .frame_channel import WINDOW, FrameChannel

if TYPE_CHECKING:
    from .._core.peer.peer import Peer
    from ..plugins import DialOptions, Host, Receiver


class TunnelTransport:
    """One connection through a tunnel; implements `plugins.Transport`."""

    __slots__ = ("_channel", "_limits", "address", "hops", "max_frame")

    name = "tunnel"

    def __init__(self, host: Host, channel: FrameChannel, address: str, hops: int) -> None:
        self._channel = channel
        self._limits = host.limits
        self.address: str = address
        self.hops: int = hops
        self.max_frame: int = min(host.limits.message, channel.packing.plain)

    def send(self, frame: bytes) -> None:
        """Hand over a frame without waiting.

        Raises:
            TooLarge: It does not fit the outer connection; the text has both limits.
        """
        self._channel.put(frame)

    def start(self, receiver: Receiver) -> None:
        """Deliver from the next turn on."""
        self._channel.attach(receiver)

    def write_backlog(self) -> int:
        """Bytes that the other side has granted no room for."""
        return self._channel.queued

    def pause_reading(self) -> None:
        """Take nothing for now: the other side may send what it was granted."""
        self._channel.listen(on=False)

    def resume_reading(self) -> None:
        """Go on taking."""
        self._channel.listen(on=True)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End in order."""
        self._channel.close(Closed(code, reason))

    def abort(self, why: Closed) -> None:
        """Cut: what has not been written is lost."""
        self._channel.cut(why)

    def tick(self, now: float) -> None:
        """The time limits of writing and closing."""
        self._channel.watch(now, self._limits.write_timeout, self._limits.close_timeout)


def tunnel_facts(protocol: str, headers: Mapping[str, str], params: Mapping[str, str]) -> dict[str, Any]:
    """Make the body of an open: the protocol inside, and what the inner handshake shall see."""
    facts: dict[str, Any] = {"protocol": protocol}
    if headers:
        facts["headers"] = dict(headers)
    if params:
        facts["params"] = dict(params)
    return facts


class TunnelConnector:
    """A place at the other end of a link: ``connect(bus.tunnel("plant.7"), protocol="csb")``."""

    def __init__(self, route: Callable[[], Peer], lasting: Callable[[], bool], name: str, params: Mapping[str, str]) -> None:
        self.url: str = f"tunnel://{name}"
        self._name = name
        self._params = params
        self._route = route
        self._lasting = lasting

    @property
    def reconnects(self) -> bool:
        """True while the outer link may come back."""
        return self._lasting()

    def __repr__(self) -> str:
        return f"<TunnelConnector {self._name!r}>"

    async def connect(self, options: DialOptions) -> TunnelTransport:
        """One attempt.

        Raises:
            ConnectFailed: Nobody serves the tunnel, the outer link is down, or it would be one hop too many.
            Unauthorized, Forbidden: The other side refuses who we are.
            LocalProtocolError, AmbiguousRoute: The outer bus is not entered; it does not know whom to ask.
        """
        if options.tls is not None:
            raise LocalProtocolError("tls= given for a tunnel, which is as safe as its outer connection", protocol="tunnel")
        try:
            return await self._connect(options)
        except (ConnectFailed, LocalProtocolError, AmbiguousRoute):
            raise
        except Unauthorized as error:
            raise Unauthorized(error.text) from None
        except Forbidden as error:
            raise Forbidden(error.text) from None
        except BusError as error:
            reason = getattr(error, "text", None) or getattr(error, "reason", None) or str(error)
            raise ConnectFailed(self.url, reason) from error

    async def _connect(self, options: DialOptions) -> TunnelTransport:
        peer = self._route()
        runtime = peer.link.runtime
        runtime.check_here()
        if not peer.connected:
            raise ConnectFailed(self.url, f"the outer link to {peer.address} is down")
        transport = peer.link.transport
        hops = 0 if transport is None else transport.hops
        limit = options.host.limits.hops
        if hops >= limit:
            raise ConnectFailed(self.url, too_deep(hops + 1, limit))
        facts = tunnel_facts(options.subprotocol, options.headers, self._params)
        channel = FrameChannel(peer, self._name, 0, text=options.writes == "text")
        seconds = options.host.limits.connect_timeout
        try:
            with anyio.fail_after(seconds):
                await peer.streams.open_channel(channel, facts, "tunnel", None, WINDOW)
                await channel.acceptance()
        except TimeoutError as error:
            if isinstance(error, DeadlineExceeded):
                raise
            channel.cut(Closed(1000, "the opener gave up"))
            raise ConnectFailed(self.url, f"timed out after {seconds:g} s, waiting to be let in") from None
        except BaseException:
            channel.cut(Closed(1000, "the opener gave up"))
            raise
        return TunnelTransport(options.host, channel, f"{peer.address}/{self._name}", hops + 1)


def too_deep(depth: int, limit: int) -> str:
    """Why a tunnel is refused."""
    return f"it would be tunnel number {depth} one in the other: the limit is {limit} (Limits.hops)"
