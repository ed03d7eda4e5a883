"""Publications that cross a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._handlers.handler import plan
from .._handlers.router import Listen
from .._pubsub.subscription import HandlerInbox
from ..errors import BusError
from ..headers import VIA
from ..message import Kind, Message
from .translation import USUAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._core.runtime import Runtime
    from .._core.services import Services
    from .._core.via import Via
    from .route_side import Passage

__all__ = ["Publications"]


class Publications:
    """What a passage has in place of an `on` handler."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self._inbox: Crossing | None = None

    async def open(self) -> None:
        """Take them from now on."""
        here = self._passage.here
        listen = Listen(plan(self._passage.route.source, self._cross, publication=True), 1000, "block", 1)
        services = here._services
        inbox = self._inbox = Crossing(services, services.running, listen, here._distribution.via_of)
        here._inboxes.append(inbox)
        distribution = here._distribution
        distribution.bridges += 1
        distribution.local.add(inbox.pattern, inbox)
        distribution.want(inbox.pattern)
        await distribution.announce(inbox.pattern)

    def close(self) -> None:
        """Take no more; those that wait still cross."""
        here, inbox = self._passage.here, self._inbox
        if inbox is not None and inbox in here._inboxes:
            here._inboxes.remove(inbox)
            distribution = here._distribution
            distribution.bridges -= 1
            distribution.local.remove(inbox.pattern, inbox)
            distribution.unwant(inbox.pattern)

    @property
    def busy(self) -> bool:
        """Whether some are on their way."""
        inbox = self._inbox
        return inbox is not None and inbox.busy and inbox._runtime is self._passage.here._services.runtime

    def stop(self) -> None:
        """Forget those that wait."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.clear()

    async def _cross(self, message: Message) -> None:
        passage = self._passage
        here, there = passage.here, passage.there
        mine, theirs = here._distribution, there._distribution
        try:
            target = passage.target(message.subject)
            via = mine.via_of(message)
            if theirs.journeys.is_own(via):
                return  # it has been there: nothing is lost, also where it may go no further
            if via.crossed >= here.limits.hops:
                mine.stopped(message, via.crossed)
                return
            via = mine.journeys.leaving(via).over(1)
            if not theirs.is_news(via, target):
                return
            on = Message(Kind.PUBLISH, target, headers=passage.headers(message, None))
            await passage.converted(passage.route.request, message, on)
            now = there._services.running.time()
            if message.expires is not None:
                on.expires, on.ttl = message.expires, message.expires - now
            await theirs.publish_crossed(on, via, now + USUAL)
        except BusError as error:  # of some peer or its wire; the others have got it
            passage.lost(message, error)


class Crossing(HandlerInbox):
    """The queue of a passage's publications, each with where it has been."""

    __slots__ = ("_via_of",)
    leads_on = True

    def __init__(self, services: Services, runtime: Runtime, listen: Listen, via_of: Callable[[Message], Via]) -> None:
        super().__init__(services, runtime, listen)
        self._via_of = via_of

    def offer(self, message: Message) -> None:
        via = self._via_of(message)
        on = message.with_headers(message.headers)
        on.shared[VIA] = str(via).encode()
        on.peer = message.peer
        super().offer(on)
