"""Tunnels that lead through a bridge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
from attrs import define, field

from .._tunnel import WINDOW, FrameChannel, too_large
from .._tunnel.endpoint import Entrance, TunnelCall, hops_of
from ..errors import BusError, Code, RequestError, Unavailable
from ..message import Message
from ..plugins import Closed
from .translation import LEAVING, translated

if TYPE_CHECKING:
    from .._core.peer.peer import Peer
    from .route_side import RouteSide


@define(eq=False)
class TunnelForwarder:
    """The end of the tunnels of a route in this bus: opens their second halves on the other one."""

    style = "tunnel"

    side: RouteSide
    _through: dict[FrameChannel, None] = field(factory=dict)
    """The near halves of those that lead through here."""

    def end(self) -> None:
        """End all: the bridge is left."""
        for near in list(self._through):
            near.cut(Closed(1001, LEAVING))

    def call(self, peer: Peer, message: Message, deadline: float) -> TunnelCall:
        """Make the call that opens one more."""
        return TunnelCall(self, peer, message, deadline, Entrance.channel_for(peer, message, text=True))

    async def admit(self, peer: Peer, message: Message, near: FrameChannel) -> None:
        """Open the other half, and let frames through.

        Raises:
            RequestError: The other side does not take it.
        """
        far: FrameChannel | None = None
        try:
            bridges, name, hops = self._way(message.subject, hops_of(peer, message))
            there = bridges[-1].side.there
            beyond = there.links.choose(name)
            far = FrameChannel(beyond, name, 0, text=True)
            with anyio.fail_after(there.services.limits.connect_timeout):
                await beyond.streams.open_channel(far, message.body, "tunnel", None, WINDOW, hops)
                await far.acceptance()
        except BaseException as error:
            if far is not None and far.id is not None:
                far.cut(Closed(1000, "the opener gave up"))
            if isinstance(error, (BusError, TimeoutError)):
                raise translated(error) from error
            raise
        if near.failed is not None:
            far.cut(Closed(1006, str(near.failed)))
            return
        if not all(bridge.side.is_open for bridge in bridges):
            far.cut(Closed(1001, LEAVING))
            raise Unavailable(LEAVING)
        near.accept()
        for bridge in bridges:
            bridge._through[near] = None
        near.attach(FrameRelay(far, lambda: [bridge._through.pop(near, None) for bridge in bridges]))
        far.attach(FrameRelay(near))

    def _way(self, name: str | int, hops: int) -> tuple[list[TunnelForwarder], str | int, int]:
        """Find all bridges of this process that a tunnel leads through, its name behind the last one, and its hops then.

        Raises:
            RequestError: It ends in this process, or has too many hops.
        """
        bridges: list[TunnelForwarder] = [self]
        while True:
            side = bridges[-1].side
            name, hops = side.target(name), side.hop(name, hops)
            onward = side.there.lookup.tunnel_end(name, back_to=side.here)
            if not isinstance(onward, TunnelForwarder):
                break
            bridges.append(onward)
        if onward is not None:
            raise RequestError(Code.UNIMPLEMENTED, f"the tunnel {name!r} ends in this process: serve it on this side too")
        side.hop(name, hops)  # the tunnel is one as well
        return bridges, name, hops


@define(eq=False)
class FrameRelay:
    """Hands the frames of one half of a tunnel to the other; implements `plugins.Receiver`."""

    _other: FrameChannel
    _over: Callable[[], object] | None = None

    def frames_received(self, frames: Sequence[bytes]) -> None:
        try:
            for frame in frames:
                self._other.put(frame)
        except BusError as error:
            self._other.cut(too_large(error))

    def closed(self, why: Closed) -> None:
        if self._over is not None:
            self._over()
        self._other.close(why if why.code != 1006 else Closed(1011, why.reason))

    def pause_writing(self) -> None:
        """The half that it belongs to is full: the other one is not read until there is room."""
        self._other.listen(on=False)

    def resume_writing(self) -> None:
        self._other.listen(on=True)
