"""One route in one direction: what is asked, told and opened on the one side, done on the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from .._core.via import Via, too_far
from .._util.violation_counter import Offences
from ..errors import BusError, Code, RequestError
from ..headers import VIA
from ..message import Message
from ..subjects import matches
from .forward_publications import Publications
from .forward_requests import PassingCall, Requests
from .forward_streams import Conversations, PassingChannelCall
from .forward_tunnels import Underpass
from .route import Route
from .translation import LEAVING, TRACE, applied, translated

if TYPE_CHECKING:
    from .._bus.bus import Bus

__all__ = ["Passage"]

_REMEMBERED: Final = 1024

logger: logging.Logger = logging.getLogger("polybus")


class Passage:
    """One route in one direction, as the bus that it begins at sees it."""

    def __init__(self, route: Route, here: Bus, there: Bus) -> None:
        self.route: Route = route
        self.here: Bus = here
        self.there: Bus = there
        self._known: dict[str | int, str | int] = {}
        self.is_open: bool = False
        self.calls: dict[PassingCall | PassingChannelCall, None] = {}
        """Requests, streams and channels that are under way."""
        self._losses = Offences()
        self.requests: Requests = Requests(self)
        self.publications: Publications = Publications(self)
        self.conversations: Conversations = Conversations(self)
        self.underpass: Underpass = Underpass(self)

    # -- its life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take what comes from now on."""
        self.is_open, self._losses = True, Offences()
        self.here._open_passage(self)
        if "publish" in self.route.kinds:
            await self.publications.open()

    def close(self) -> None:
        """Take nothing more."""
        self.is_open = False
        self.here._close_passage(self)
        self.publications.close()

    def busy(self, *, lasting: bool) -> bool:
        """Whether anything is under way; with `lasting` also what need not come to an end by itself."""
        return self.publications.busy or any(lasting or not isinstance(call, PassingChannelCall) for call in self.calls)

    def end_streams(self) -> None:
        """Streams and channels have had their time."""
        for call in [one for one in self.calls if isinstance(one, PassingChannelCall)]:
            call.cut(Code.UNAVAILABLE, LEAVING)

    def stop(self) -> None:
        """Cut what is still under way."""
        self.end_streams()
        for call in list(self.calls):
            call.cut(Code.UNAVAILABLE, LEAVING)
        self.calls.clear()
        self.underpass.end()
        self.publications.stop()

    # -- what is done to a message ---------------------------------------------------------------------------------------

    def fits(self, subject: str | int, kind: str) -> bool:
        """Whether a message crosses here."""
        return kind in self.route.kinds and matches(self.route.source, subject)

    def target(self, subject: str | int) -> str | int:
        """Its name on the other side.

        Raises:
            LocalProtocolError, ReservedSubject: That is no subject.
        """
        found = self._known.get(subject)
        if found is None:
            found = self.route.rewritten(subject)
            self.there._check_subject(found)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def headers(self, message: Message, via: Via | None) -> dict[str, str] | None:
        """What crosses of the headers."""
        kept = {} if via is None else {VIA: str(via)}
        named = {*self.route.headers, TRACE}
        kept.update((name, value) for name, value in (message.headers or {}).items() if name.lower() in named)
        return kept or None

    async def converted(self, convert: Callable[..., Any] | None, message: Message, on: Message) -> Message:
        """`on` with the body of a message, converted or as it is."""
        if convert is None:
            on.raw, on.format = message.raw, message.format
            if message.raw is None and message.has_body:
                on.decoded = message.body
            return on
        on.decoded = await applied(convert, message.body, message)
        return on

    def hop(self, subject: str | int, hops: int) -> int:
        """One bridge more.

        Raises:
            RequestError: It is one too many.
        """
        limit = self.here.limits.hops
        if hops >= limit:
            raise RequestError(Code.FAILED_PRECONDITION, too_far(subject, hops, limit))
        return hops + 1

    # -- what does not cross ---------------------------------------------------------------------------------------------

    def lost(self, message: Message, error: BusError) -> None:
        """What nobody waits for could not cross. The log says it once a minute: peers shall not fill it."""
        here, route = self.here, self.route
        here._services.counters.dropped += 1
        here._services.dead_letter(message.peer, message, translated(error).code, f"not bridged: {error}")
        if self._losses.add(monotonic()) == 1:
            logger.warning(
                "polybus: %r could not cross the bridge (%r to %r): %s", message.subject, route.source, route.target, error
            )
