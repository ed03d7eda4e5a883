"""Streams and channels that lead through a bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import anyio
from attrs import field, frozen

from .._core.rpc.channel import Channel, ChannelContext
from .._core.rpc.stream_call import ChannelCall
from .._core.runtime.memory import AnswerSizes
from .._tunnel.endpoint import hops_of
from ..errors import BusError
from ..message import Kind, Message
from .translation import applied, first, translated

if TYPE_CHECKING:
    from .._core.peer.peer import Peer
    from .route_side import RouteSide


@frozen(eq=False)
class CrossingHandler:
    """A function of a bridge in place of a handler. Implements `_core.rpc.ports.LocalHandler`."""

    subject: str | int
    style: str
    function: Callable[[Message, Channel[Any, Any]], Any]
    answers: AnswerSizes = field(factory=AnswerSizes, init=False)
    places: None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.function.__qualname__

    def checked(self, value: Any) -> Any:
        """The item as it came: the other bus has looked at it."""
        return value

    def invoke(self, services: Any, message: Message, deadline: float | None, channel: Channel[Any, Any]) -> Any:
        return self.function(message, channel)


class StreamForwarder:
    """The handler of the streams and channels of a route: opens those of the other bus, one hop further on."""

    def __init__(self, side: RouteSide) -> None:
        self._side = side

    def call(self, peer: Peer, message: Message, deadline: float, channel: Channel[Any, Any]) -> ChannelCall:
        """Make the call of a stream or channel that goes to the other bus."""
        handler = self.handler(message.attributes.get("mode", "stream"))
        calls, services = self._side.calls, self._side.here.services
        call = ChannelCall(
            services, peer.inbound, peer, handler, message, deadline, channel=channel, on_discard=lambda it: calls.pop(it, None)
        )
        calls[call] = None
        return call

    def handler(self, mode: str) -> CrossingHandler:
        """Make what stands in place of a handler."""
        return CrossingHandler(self._side.route.source, mode, self._streamed if mode == "stream" else self._conversed)

    def _opening(self, message: Message, mode: str, body: Any) -> ChannelContext[Any, Any]:
        """Open the stream or channel of the other bus.

        Raises:
            RequestError: That is one hop too many.
        """
        side = self._side
        there, target = side.there, side.target(message.subject)
        hops = side.hop(message.subject, hops_of(message.peer, message))
        headers = side.headers(message, None)

        async def opened() -> Channel[Any, Any]:
            if (own := there.lookup.find(target)) is not None:
                return there.loopback.open(own, body, mode, None, Any, headers=headers)
            if (further := there.lookup.side(target, mode, back_to=side.here)) is not None:
                return there.loopback.converse(further.streams.handler(mode), target, body, None, hops, headers=headers)
            peer = there.links.choose(target)
            kept = headers if peer.link.carries_headers else None
            return await peer.streams.open(target, body, mode, None, hops, headers=kept)

        return ChannelContext(opened, mode == "stream")

    async def _streamed(self, message: Message, near: Channel[Any, Any]) -> AsyncIterator[Any]:
        route = self._side.route
        try:
            on = await self._side.converted(route.request, message, Kind.OPEN, message.subject)
            async with self._opening(message, "stream", on.body) as items:
                async for item in items:
                    yield await applied(route.reply, item, message)
        except BusError as error:
            raise translated(error) from error

    async def _conversed(self, message: Message, near: Channel[Any, Any]) -> None:
        reply = self._side.route.reply
        try:
            async with self._opening(message, "channel", None) as far, anyio.create_task_group() as group:
                group.start_soon(self._there, near, far, message)
                async for item in far:
                    await near.send(await applied(reply, item, message))
                await near.send_eof()
        except BaseExceptionGroup as errors:
            raise first(errors) from errors
        except BusError as error:
            raise translated(error) from error

    async def _there(self, near: Channel[Any, Any], far: Channel[Any, Any], message: Message) -> None:
        async for item in near:
            await far.send(await applied(self._side.route.request, item, message))
        await far.send_eof()
