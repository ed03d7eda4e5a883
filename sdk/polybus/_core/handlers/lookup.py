"""Finds the handler, bridge route or tunnel listener for a request, stream or tunnel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..._validation import shown, type_name
from ...subjects import Subject, canonical, is_pattern, matches, wire_pattern

if TYPE_CHECKING:
    from ...message import Message
    from .handler import Handler, SubscriberSpec


class Publication(Struct, frozen=True):
    """A declared publication. See `Router.publishes`."""

    subject: Subject[Any, Any]
    description: str = ""

    def merged(self, other: Publication) -> Publication:
        mine, new = self.subject.takes, other.subject.takes
        if mine != new:
            raise TypeError(
                f"bus.publishes({self.subject.name!r}) was declared with {type_name(mine)} before, and now with "
                f"{type_name(new)}: use one type, {type_name(mine)} | {type_name(new)}"
            )
        return self if self.description else other


def declared(subject: Any, description: str) -> Publication:
    if isinstance(subject, (str, int)) and not isinstance(subject, bool):
        subject = Subject(subject)
    if not isinstance(subject, Subject):
        raise TypeError(f"bus.publishes({shown(subject)}): pass a Subject, as in bus.publishes(Subject('news.today', News))")
    if subject.returns is not Any and subject.returns is not None:
        raise TypeError(
            f"bus.publishes({subject.name!r}): a publication has no answer, and this Subject has {type_name(subject.returns)}: "
            "it is for requests, which @bus.handle answers"
        )
    return Publication(subject, description)


class HandlerLookup(Struct, eq=False):
    """Finds handlers by subject, then bridge routes and tunnel listeners."""

    handlers: dict[str | int, Handler] = {}
    by_uri: dict[str, Handler] = {}
    """Handlers for URIs, by canonical spelling."""
    subscribers: list[SubscriberSpec] = []
    publications: dict[str | int, Publication] = {}
    routes: list[Any] = []
    """Bridge routes from this bus, as `_core.bus.forwarding.ForwardingRoute`. The first matching route is used."""
    listeners: list[Any] = []
    """Tunnel listeners, as `_core.bus.tunnel_listener.TunnelListener`."""
    handler_check: Callable[[Handler], None] | None = None
    """Called to reject invalid handlers before any handler is added."""
    handler_added: Callable[[Handler], None] | None = None
    subscriber_added: Callable[[SubscriberSpec], None] | None = None
    copied: bool = False
    """True once this router has been included. Handlers that are added later would not reach the bus."""

    def add(self, *handlers: Handler) -> None:
        """Register all of these handlers or, if there is an error, none of them.

        Raises:
            TypeError: If a subject already has a handler, this router has already been included, or the bus rejects a handler.
        """
        for handler in handlers:
            self._check_open(handler)
            if self.handler_check is not None:
                self.handler_check(handler)
            if (old := self.find(handler.subject)) is not None:
                raise TypeError(
                    f"{handler.name}: {handler.subject!r} is already handled by {old.name}"
                    + (f" as {old.subject!r}" if old.subject != handler.subject else "")
                    + ", and a subject can have only one handler: use another subject"
                )
        for handler in handlers:
            self.handlers[handler.subject] = handler
            if isinstance(handler.subject, str) and "/" in handler.subject:
                self.by_uri[canonical(handler.subject)] = handler
            if self.handler_added is not None:
                self.handler_added(handler)

    def add_subscriber(self, spec: SubscriberSpec) -> None:
        self._check_open(spec.handler)
        self.subscribers.append(spec)
        if self.subscriber_added is not None:
            self.subscriber_added(spec)

    def add_publication(self, publication: Publication) -> None:
        name = publication.subject.name
        known = self.publications.get(name)
        self.publications[name] = publication if known is None else known.merged(publication)

    def _check_open(self, handler: Handler) -> None:
        if self.copied:
            raise TypeError(
                f"{handler.name}: the router has already been included, so {handler.subject!r} would not reach the bus: "
                "register all handlers of a router, then bus.include(router)"
            )

    def find(self, subject: str | int) -> Handler | None:
        found = self.handlers.get(subject)
        if found is None and self.by_uri and isinstance(subject, str):
            found = self.by_uri.get(canonical(subject))
        return found

    def find_for(self, message: Message, kind: str = "request") -> Any:
        """Find the handler, bridge route or tunnel listener for a peer's message.

        A URI is replaced by its registered spelling, or by its canonical one if it is not registered. This means that
        `authorize` never sees the peer's spelling. Routes take precedence over handlers of another kind.
        """
        subject = message.subject
        if kind == "tunnel":
            found: Any = self.listener(subject) or self.route(subject, kind)
        else:
            found = self.find(subject)
            if found is None and self.by_uri:
                found = next((other for one in message.spellings if (other := self.find(one)) is not None), None)
            if found is not None:
                message.subject = found.subject
                return found if kind in ("request", found.style) else self.route_for(message, kind) or found
        if isinstance(subject, str) and "/" in subject:
            message.subject = canonical(subject)
        return found if kind == "tunnel" else self.route_for(message, kind)

    def route_for(self, message: Message, kind: str) -> Any:
        """Find the bridge route for a message. The route may rename the message's subject to an address."""
        for subject in (message.subject, *message.spellings) if self.routes else ():
            if (found := self.route(subject, kind)) is not None:
                message.subject = subject
                return found
        return None

    def meant(self, subject: str | int) -> str:
        """Return a suggestion for a subject that has no handler, or an empty string."""
        if any(spec.handler.subject == subject or matches(spec.handler.subject, subject) for spec in self.subscribers):
            return "an `on` handler receives it but does not answer; publish it, or register it with bus.handle"
        from difflib import get_close_matches

        names = {str(name).strip().casefold(): name for name in self.handlers}
        near = get_close_matches(str(subject).strip().casefold(), names, 1, 0.8)
        return f"did it mean {names[near[0]]!r}?" if near else ""

    def route(self, subject: str | int, kind: str, *, back_to: Any = None) -> Any:
        """Find the bridge route for messages of this kind. Routes that lead to the bus `back_to` are skipped."""
        return next((route for route in self.routes if route.there is not back_to and route.fits(subject, kind)), None)

    def listener(self, name: str | int) -> Any:
        return next((listener for listener in self.listeners if matches(listener.pattern, name)), None)

    def answers(self, subject: str | int) -> bool:
        return subject in self.handlers or subject in self.answered()

    def answered(self, *, patterns: bool = False, inner: bool = False) -> list[str | int]:
        """Return the subjects of request handlers and of bridge routes. Wildcards are included only if `patterns` is set.

        For the inner link (`inner`), the result includes tunnel listeners and excludes routes that lead into that link.
        """
        listeners = [wire_pattern(one.pattern) for one in self.listeners] if inner else []
        routes = [one for one in self.routes if "request" in one.kinds and not (inner and one.inward)]
        return [*self.handlers, *listeners, *(route.source for route in routes if patterns or not is_pattern(route.source))]
