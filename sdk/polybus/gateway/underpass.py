"""Tunnels that lead through a bridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from ..errors import BusError, Code, RequestError
from ..message import Message
from ..plugins import Closed
from ..tunnel import WINDOW, FrameChannel, limits_of
from ..tunnels import Entrance, TunnelCall, hops_of
from .translation import translated

if TYPE_CHECKING:
    from ..peer import Peer
    from .passage import Passage

__all__ = ["Underpass"]


class Underpass:
    """Tunnels that lead on: what a `tunnels.Entrance` is for those that end here."""

    style = "tunnel"

    def __init__(self, passage: Passage) -> None:
        self._passage = passage

    def call(self, peer: Peer, message: Message, deadline: float) -> TunnelCall:
        """What opens one more."""
        return TunnelCall(self, peer, message, deadline, Entrance.channel_for(peer, message, text=True))

    async def admit(self, peer: Peer, message: Message, near: FrameChannel) -> None:
        """Open the other half, and let frames through.

        Raises:
            RequestError: The other side does not take it.
        """
        passage = self._passage
        name = passage.target(message.subject)
        hops, limit = hops_of(peer, message) + 1, passage.here.limits.hops
        far: FrameChannel | None = None
        try:
            if hops >= limit:
                raise RequestError(
                    Code.FAILED_PRECONDITION, f"tunnels and bridges are {hops + 1}: the limit is {limit} (Limits.hops)"
                )
            onward = passage.there._entrance(name)
            if onward is not None and isinstance(onward, Entrance):
                raise RequestError(Code.UNIMPLEMENTED, f"the tunnel {name!r} ends in this process: serve it on this side too")
            beyond = passage.there._route(name)
            far = FrameChannel(beyond, name, 0, limits_of(beyond, True, str(name)))
            with anyio.fail_after(passage.there.limits.connect_timeout):
                await beyond._open_channel(far, message.body, "tunnel", None, WINDOW, hops)
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
        near.accept()
        near.attach(Splice(far))
        far.attach(Splice(near))


class Splice:
    """Hands the frames of one half of a tunnel to the other; implements `plugins.Receiver`."""

    def __init__(self, other: FrameChannel) -> None:
        self._other = other

    def frames_received(self, frames: Sequence[bytes]) -> None:
        try:
            for frame in frames:
                self._other.put(frame)
        except BusError as error:
            self._other.cut(Closed(1009, str(error)))

    def closed(self, why: Closed) -> None:
        self._other.close(why if why.code != 1006 else Closed(1011, why.reason))

    def pause_writing(self) -> None:
        """The half that it belongs to is full: the other one is not read until there is room."""
        self._other.listen(on=False)

    def resume_writing(self) -> None:
        self._other.listen(on=True)
