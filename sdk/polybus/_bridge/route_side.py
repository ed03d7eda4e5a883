"""One route in one direction: from the bus where messages come in to the one where they go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from .._core.rpc.stream_call import ChannelCall
from .._core.runtime.via import ViaHeader, too_far
from .._util.log_fields import log_fields
from .._util.repeated_warnings import ViolationCounter
from ..errors import BusError, Code, RequestError, Unsupported
from ..headers import VIA
from ..message import MISSING, Kind, Message
from ..subjects import is_pattern, matches
from .forward_publications import PublicationForwarder
from .forward_requests import BridgedCall, RequestForwarder
from .forward_streams import StreamForwarder
from .forward_tunnels import TunnelForwarder
from .route import Route
from .translation import LEAVING, TRACE, applied, carried, translated

if TYPE_CHECKING:
    from .._core.bus.parts import BusParts

_REMEMBERED: Final = 1024

logger: logging.Logger = logging.getLogger("polybus")


class RouteSide:
    """One route, with the bus that it begins at and the one that it leads to."""

    inward: bool = False
    """True where that is the cluster of the bus itself."""

    def __init__(self, route: Route, here: BusParts, there: BusParts) -> None:
        self.route: Route = route
        self.here: BusParts = here
        self.there: BusParts = there
        self._known: dict[str | int, str | int] = {}
        self.is_open: bool = False
        self.calls: dict[BridgedCall | ChannelCall, None] = {}
        """Requests, streams and channels that are under way."""
        self._losses = ViolationCounter()
        self.requests: RequestForwarder = RequestForwarder(self)
        self._publications: PublicationForwarder | None = None
        self.streams: StreamForwarder = StreamForwarder(self)
        self.tunnels: TunnelForwarder = TunnelForwarder(self)

    # -- opening and closing ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take what comes from now on."""
        self.is_open, self._losses = True, ViolationCounter()
        self.here.lookup.sides.append(self)
        if "request" in self.route.kinds:
            self.here.pubsub.announcer.add_handler(self.route.source)
            await self.here.pubsub.announcer.known()
        if "publish" in self.route.kinds:
            self._publications = PublicationForwarder(self)
            self.here.pubsub.add_handler_queue(self._publications)
            try:
                await self.here.pubsub.announcer.announce(self.route.source)
            except Unsupported as error:
                if "request" not in self.route.kinds or is_pattern(self.route.source):
                    raise
                text = "route %r to %r: requests cross, and no publications come: %s"
                logger.info(text, self.route.source, self.route.target, error)

    def close(self) -> None:
        """Take nothing more; publications that wait still cross."""
        self.is_open = False
        if self in self.here.lookup.sides:
            self.here.lookup.sides.remove(self)
            if "request" in self.route.kinds:
                self.here.pubsub.announcer.remove_handlers({self.route.source} - {*self.here.lookup.answered(patterns=True)})
        if self._publications is not None:
            self.here.pubsub.remove_handler_queue(self._publications)

    def busy(self, *, lasting: bool) -> bool:
        """Tells whether anything is under way; with `lasting` also what need not come to an end by itself."""
        if self._publications is not None and self._publications.busy:
            return True
        return any(lasting or not isinstance(call, ChannelCall) for call in self.calls)

    def end_streams(self) -> None:
        """End streams and channels, which have had their time."""
        for call in [one for one in self.calls if isinstance(one, ChannelCall)]:
            call.cut(Code.UNAVAILABLE, LEAVING)

    def stop(self) -> None:
        """Cut what is still under way."""
        self.end_streams()
        for call in list(self.calls):
            call.cut(Code.UNAVAILABLE, LEAVING)
        self.calls.clear()
        self.tunnels.end()
        if self._publications is not None:
            self._publications.clear()

    # -- what is done to a message ---------------------------------------------------------------------------------------

    def fits(self, subject: str | int, kind: str) -> bool:
        """Tell whether a message crosses here."""
        return kind in self.route.kinds and matches(self.route.source, subject)

    def target(self, subject: str | int) -> str | int:
        """Give its name on the other side.

        Raises:
            LocalProtocolError, ReservedSubject: That is no subject, or an address that the route does not lead to.
        """
        found = self._known.get(subject)
        if found is None:
            found = self.route.rewritten(subject)
            self.there.services.subjects.check(found)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def headers(self, message: Message, via: ViaHeader | None) -> dict[str, str] | None:
        """Choose the headers that cross."""
        kept = {} if via is None else {VIA: str(via)}
        named = {*self.route.headers, TRACE}
        kept.update((name, value) for name, value in (message.headers or {}).items() if name.lower() in named)
        return kept or None

    async def converted(
        self,
        convert: Callable[..., Any] | None,
        message: Message,
        kind: Kind,
        subject: str | int,
        headers: dict[str, str] | None = None,
    ) -> Message:
        """Make the message that crosses, with the body of the given one, converted or as it is."""
        facts = carried(kind, message)
        if convert is not None:
            return Message(kind, subject, headers=headers, attributes=facts, body=await applied(convert, message.body, message))
        value = message.body if message.raw is None and message.has_body else MISSING
        on = Message(kind, subject, None, message.raw, message.format, headers, attributes=facts, body=value)
        on.checked = message.checked
        return on

    def hop(self, subject: str | int, hops: int) -> int:
        """Count one bridge more.

        Raises:
            RequestError: It is one too many.
        """
        limit = self.here.services.limits.hops
        if hops >= limit:
            raise RequestError(Code.FAILED_PRECONDITION, too_far(subject, hops, limit))
        return hops + 1

    # -- what does not cross ---------------------------------------------------------------------------------------------

    def lost(self, message: Message, error: BusError) -> None:
        """Count a message that could not cross, for which no caller waits; peers shall not fill the log with such."""
        here, route = self.here, self.route
        here.services.counters.dropped += 1
        here.services.dead_letter(message.peer, message, translated(error).code, f"not bridged: {error}")
        if self._losses.add(monotonic()) == 1:
            text = "%r could not cross the bridge (%r to %r): %s"
            logger.warning(text, message.subject, route.source, route.target, error, extra=log_fields(message=message))
