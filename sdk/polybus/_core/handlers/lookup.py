"""The lookup of the part that takes a request, stream or tunnel: a handler, a route of a bridge, or an end of tunnels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ..._validation import shown
from ...subjects import Subject, canonical, is_pattern, matches

if TYPE_CHECKING:
    from ...message import Message
    from .handler import Handler
    from .subscriber import SubscriberSpec


@frozen
class Publication:
    """A subject that is published.

    Attributes:
        subject: With the type of its bodies.
        description: As the docstring of a handler.
    """

    subject: Subject[Any, Any]
    description: str = ""

    def merged(self, other: Publication) -> Publication:
        """The two as one, which another module has declared too.

        Raises:
            TypeError: They are of different types.
        """
        mine, new = self.subject.takes, other.subject.takes
        if mine != new:
            raise TypeError(
                f"bus.publishes({self.subject.name!r}): it is published with {_name(mine)} already, and now with {_name(new)}: "
                f"write one type, {_name(mine)} | {_name(new)}"
            )
        return self if self.description else other


def declared(subject: Any, description: str) -> Publication:
    """Read what is to be published.

    Raises:
        TypeError: It is no subject, or one of requests.
    """
    if isinstance(subject, (str, int)) and not isinstance(subject, bool):
        subject = Subject(subject)
    if not isinstance(subject, Subject):
        raise TypeError(f"bus.publishes({shown(subject)}): a Subject, as in bus.publishes(Subject('news.today', News))")
    if subject.returns is not Any and subject.returns is not None:
        raise TypeError(
            f"bus.publishes({subject.name!r}): a publication has no answer, and this Subject has {_name(subject.returns)}: "
            "it is one of requests, which @bus.handle answers"
        )
    return Publication(subject, description)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else shown(hint)


@define(eq=False)
class HandlerLookup:
    """Handlers by subject, and behind them the routes of bridges and the ends of tunnels."""

    handlers: dict[str | int, Handler] = field(factory=dict)
    """Handlers by their subject, as it was registered."""
    by_uri: dict[str, Handler] = field(factory=dict)
    """Handlers of URIs by their canonical spelling: a URI has several."""
    subscribers: list[SubscriberSpec] = field(factory=list)
    publications: dict[str | int, Publication] = field(factory=dict)
    """Publications that the application makes, as far as it says so."""
    sides: list[Any] = field(factory=list)
    """Routes of bridges that begin here, `_core.bus.routes.RouteSide`: the first that fits takes a message."""
    entrances: list[Any] = field(factory=list)
    """Ends of tunnels, `_core.tunnel.endpoint.Entrance`."""
    handler_check: Callable[[Handler], None] | None = None
    """Refuses a handler that the bus has no use for, before any is added."""
    handler_added: Callable[[Handler], None] | None = None
    subscriber_added: Callable[[SubscriberSpec], None] | None = None
    copied: bool = False
    """The handlers of this router stand in a bus: one that came later would answer nothing there."""

    def add(self, *handlers: Handler) -> None:
        """Register handlers: all of them or none.

        Raises:
            TypeError: A subject has a handler already, this router is included already, or the bus refuses a handler.
        """
        for handler in handlers:
            self._check_open(handler)
            if self.handler_check is not None:
                self.handler_check(handler)
            if (old := self.find(handler.subject)) is not None:
                raise TypeError(
                    f"{handler.name}: {handler.subject!r} is already handled by {old.name}"
                    + (f" as {old.subject!r}" if old.subject != handler.subject else "")
                    + ", and a subject has one handler: give this one a subject of its own"
                )
        for handler in handlers:
            self.handlers[handler.subject] = handler
            if isinstance(handler.subject, str) and "/" in handler.subject:
                self.by_uri[canonical(handler.subject)] = handler
            if self.handler_added is not None:
                self.handler_added(handler)

    def add_subscriber(self, spec: SubscriberSpec) -> None:
        """Register an `on` function.

        Raises:
            TypeError: This router is included already.
        """
        self._check_open(spec.handler)
        self.subscribers.append(spec)
        if self.subscriber_added is not None:
            self.subscriber_added(spec)

    def add_publication(self, publication: Publication) -> None:
        """Note what is published.

        Raises:
            TypeError: It is published with another type already.
        """
        name = publication.subject.name
        known = self.publications.get(name)
        self.publications[name] = publication if known is None else known.merged(publication)

    def _check_open(self, handler: Handler) -> None:
        if self.copied:
            raise TypeError(
                f"{handler.name}: the router is included already, and {handler.subject!r} would reach no bus: "
                "register all handlers of a router, then bus.include(router)"
            )

    def find(self, subject: str | int) -> Handler | None:
        """Find the handler of a subject."""
        found = self.handlers.get(subject)
        if found is None and self.by_uri and isinstance(subject, str):
            found = self.by_uri.get(canonical(subject))
        return found

    def find_for(self, message: Message) -> Handler | None:
        """Find the handler of a message; a URI in it gets the spelling of the registration, or else the canonical one.

        What `authorize` is asked about is then what the application has written, whatever the peer wrote.
        """
        subject = message.subject
        found = self.find(subject)
        if found is None and self.by_uri:
            found = next((other for one in message.spellings if (other := self.find(one)) is not None), None)
        if found is not None:
            message.subject = found.subject
        elif isinstance(subject, str) and "/" in subject:
            message.subject = canonical(subject)
        return found

    def side_for(self, message: Message, kind: str) -> Any:
        """Find the route of a bridge that takes a message; where it names an address, that is its subject from then on."""
        for subject in (message.subject, *message.spellings):
            if (found := self.side(subject, kind)) is not None:
                message.subject = subject
                return found
        return None

    def meant(self, subject: str | int) -> str:
        """Say what a subject that nobody handles may be meant for; empty where nothing is near."""
        if any(spec.handler.subject == subject or matches(spec.handler.subject, subject) for spec in self.subscribers):
            return "an `on` handler hears it, and gives no answers; publish it, or register it with bus.handle"
        from difflib import get_close_matches

        names = {str(name).strip().casefold(): name for name in self.handlers}
        near = get_close_matches(str(subject).strip().casefold(), names, 1, 0.8)
        return f"did it mean {names[near[0]]!r}?" if near else ""

    def side(self, subject: str | int, kind: str, *, back_to: Any = None) -> Any:
        """Find the route of a bridge that takes such messages; `back_to` is the bus that they come from, where none leads."""
        return next((side for side in self.sides if side.there is not back_to and side.fits(subject, kind)), None)

    def tunnel_end(self, name: str | int, *, back_to: Any = None) -> Any:
        """Find the end of tunnels of a name: an `Entrance`, or a bridge that leads them on."""
        found = next((entrance for entrance in self.entrances if entrance.fits(name)), None)
        if found is None and (side := self.side(name, "tunnel", back_to=back_to)) is not None:
            return side.tunnels
        return found

    def answers(self, subject: str | int) -> bool:
        """Tell whether a subject is among those that `answered` lists."""
        return subject in self.handlers or any(
            side.route.source == subject and not is_pattern(subject) for side in self.sides if "request" in side.route.kinds
        )

    def answered(self, *, patterns: bool = False, inner: bool = False) -> list[str | int]:
        """List the subjects of requests that are answered here, by handlers or over bridges; those with wildcards if asked.

        For an inner link without those that are sent on to it.
        """
        sides = [side for side in self.sides if "request" in side.route.kinds and not (inner and side.inward)]
        crossing = [side.route.source for side in sides]
        return [*self.handlers, *(source for source in crossing if patterns or not is_pattern(source))]
