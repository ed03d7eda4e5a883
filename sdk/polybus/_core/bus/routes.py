"""Routes of bridges, each in one direction: from a bus to another, or to a peer."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen

from ..._util.log_fields import log_fields
from ..._util.repeated_warnings import ViolationCounter
from ..._validation import check_callable
from ...errors import BusError, Code, LocalProtocolError, RequestError, Unsupported
from ...headers import VIA, check_headers
from ...message import MISSING, Kind, Message
from ...subjects import canonical, check_pattern, check_subject, is_pattern, is_uri, matches
from ..handlers.lookup import HandlerLookup
from ..rpc.call import ChannelCall
from ..rpc.loopback import Loopback
from ..runtime.via import ViaHeader, too_far
from .forwarding import (
    LEAVING,
    TRACE,
    BridgedCall,
    PublicationForwarder,
    RequestForwarder,
    StreamForwarder,
    TunnelForwarder,
    applied,
    carried,
    translated,
)

if TYPE_CHECKING:
    from ..peer.party import PeerParty
    from ..runtime.services import Services
    from .parts import BusParts

KINDS: Final = ("request", "publish", "stream", "channel", "tunnel")
_USES: Final = {
    "request": {"request", "publish", "stream", "channel"},
    "reply": {"request", "stream", "channel"},
    "headers": {"request", "publish"},
}
"""Kinds of a route that allow each argument."""
_NAME: Final = re.compile(r"\{(\w*)\}")
_BRACE: Final = re.compile(r"[{}]")


def _kinds(kinds: Any) -> frozenset[str]:
    given = frozenset((kinds,) if isinstance(kinds, str) else kinds)
    unknown = sorted(map(repr, given.difference(KINDS)))
    if unknown or not given:
        raise ValueError(f"kinds: {', '.join(unknown) or 'none at all'}; one or more of {', '.join(KINDS)}")
    return given


def _names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"headers={names!r}: several names, for example headers=[{names!r}]")
    return tuple(name.lower() if isinstance(name, str) else name for name in names)


def _check_target(target: object) -> None:
    if not isinstance(target, (str, int)) or isinstance(target, bool):
        raise TypeError(f"target={target!r}: a subject, text or a number, not {type(target).__name__}")


@frozen
class Route:
    """Messages that cross a bridge, in one direction.

    Args:
        source: Subject or pattern, on `left`; with `reverse` on `right`.
        target: Name on the other side. ``{1}``, ``{2}`` are the tokens of each ``*`` in the source, ``{rest}`` those of ``>``
            (or of the only wildcard), ``{name}`` the token of ``{name}``.
        kinds: Of ``request`` (with notifications), ``publish``, ``stream``, ``channel``, ``tunnel``.
        reverse: From `right` to `left`.
        request: ``request(body, message) -> body``, plain or async: converts crossing bodies. Without it they stay unchanged.
        reply: ``reply(body, message) -> body``: converts returning answers and items.
        headers: Names of the headers that cross, in addition to ``traceparent``.

    Raises:
        ValueError: A kind is unknown, or `target` has a name that `source` lacks.
        LocalProtocolError, ReservedSubject: A subject or header is not valid.
        TypeError: A converter cannot be called with a body and a message, or an argument has a wrong type.
    """

    source: str | int
    target: str | int
    kinds: frozenset[str] = field(default=frozenset(("request", "publish")), converter=_kinds)
    reverse: bool = field(default=False, kw_only=True)
    request: Callable[..., Any] | None = field(default=None, kw_only=True)
    reply: Callable[..., Any] | None = field(default=None, kw_only=True)
    headers: tuple[str, ...] = field(default=(), kw_only=True, converter=_names)

    def __attrs_post_init__(self) -> None:
        check_pattern(self.source)
        _check_target(self.target)
        have = _places(self.source)
        wanted = _NAME.findall(self.target) if isinstance(self.target, str) else []
        for name in wanted:
            if name not in have:
                known = ", ".join(f"{{{name}}}" for name in have) or "no wildcard"
                raise ValueError(f"target {self.target!r}: {{{name}}} is not in the source {self.source!r}, which has {known}")
        if isinstance(self.target, str) and _BRACE.search(_NAME.sub("", self.target)):
            raise ValueError(
                f"target {self.target!r} has a brace without its other, or other than letters and digits in braces"
            )
        check_subject(self.target if isinstance(self.target, int) else _NAME.sub("x", self.target))
        for name, converter in (("request", self.request), ("reply", self.reply)):
            check_callable(converter, name, f"{name}(body, message) -> body", 2)
        for name, kinds in _USES.items():
            if getattr(self, name) and not self.kinds & kinds:
                raise ValueError(f"{name}= for {', '.join(sorted(self.kinds))}, which do not use it")
        check_headers(dict.fromkeys(self.headers, ""), 1 << 16)

    def rewritten(self, subject: str | int) -> str | int:
        """Name on the other side for a subject that `source` matches.

        Raises:
            LocalProtocolError: A part of the subject would create or extend an address that `target` does not provide for.
        """
        if isinstance(self.target, int) or "{" not in self.target:
            return self.target
        have = _places(self.source)
        tokens = canonical(str(subject)).split(_separator(self.source))
        separator = _separator(self.target)
        made = _NAME.sub(lambda found: separator.join(tokens[have[found[1]]]), self.target)
        if is_uri(made) and self.source != ">":
            named = [token for name in _NAME.findall(self.target) for token in tokens[have[name]]]
            if not is_uri(self.target) or any("/" in token for token in named):
                text = f"the route {self.source!r} to {self.target!r} leads to no addresses like that; make one for them"
                raise LocalProtocolError(f"{subject!r} would cross as {made!r}: {text}")
        return made


def _separator(pattern: str | int) -> str:
    return "/" if "/" in str(pattern) else "."


def _places(source: str | int) -> dict[str, slice]:
    if isinstance(source, int):
        return {}
    places: dict[str, slice] = {}
    stars = 0
    tokens = canonical(source).split(_separator(source))
    for at, token in enumerate(tokens):
        if token == ">":
            places["rest"] = slice(at, None)
        elif token == "*":
            stars += 1
            places[str(stars)] = slice(at, at + 1)
        elif "/" not in source and (named := _NAME.fullmatch(token)):
            places[named[1]] = slice(at, at + 1)
    if len(places) == 1:
        places.setdefault("rest", next(iter(places.values())))
    return places


_REMEMBERED: Final = 1024

logger: logging.Logger = logging.getLogger("polybus")


class RouteSide:
    """A route with its source bus and its target bus."""

    inward: bool = False
    """True if it leads to the cluster's other nodes; it is not announced there."""

    def __init__(self, route: Route, here: BusParts, there: BusParts) -> None:
        self.route: Route = route
        self.here: BusParts = here
        self.there: BusParts = there
        self._known: dict[str | int, str | int] = {}
        self.is_open: bool = False
        self.calls: dict[BridgedCall | ChannelCall, None] = {}
        self._losses = ViolationCounter()
        self.requests: RequestForwarder = RequestForwarder(self)
        self._publications: PublicationForwarder | None = None
        self.streams: StreamForwarder = StreamForwarder(self)
        self.tunnels: TunnelForwarder = TunnelForwarder(self)

    # -- opening and closing ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
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
                text = "route %r to %r: requests cross, but publications do not: %s"
                logger.info(text, self.route.source, self.route.target, error)

    def close(self) -> None:
        """Stop accepting messages; queued publications still cross."""
        self.is_open = False
        if self in self.here.lookup.sides:
            self.here.lookup.sides.remove(self)
            if "request" in self.route.kinds:
                self.here.pubsub.announcer.remove_handlers({self.route.source} - {*self.here.lookup.answered(patterns=True)})
        if self._publications is not None:
            self.here.pubsub.remove_handler_queue(self._publications)

    def busy(self, *, lasting: bool) -> bool:
        """Check for anything in flight; `lasting` includes streams and channels, which may never end."""
        if self._publications is not None and self._publications.busy:
            return True
        return any(lasting or not isinstance(call, ChannelCall) for call in self.calls)

    def end_streams(self) -> None:
        for call in [one for one in self.calls if isinstance(one, ChannelCall)]:
            call.cut(Code.UNAVAILABLE, LEAVING)

    def stop(self) -> None:
        self.end_streams()
        for call in list(self.calls):
            call.cut(Code.UNAVAILABLE, LEAVING)
        self.calls.clear()
        self.tunnels.end()
        if self._publications is not None:
            self._publications.clear()

    # -- messages --------------------------------------------------------------------------------------------------------

    def fits(self, subject: str | int, kind: str) -> bool:
        return kind in self.route.kinds and matches(self.route.source, subject)

    def target(self, subject: str | int) -> str | int:
        """Name on the other side.

        Raises:
            LocalProtocolError, ReservedSubject: It is not a valid subject, or an address that the route does not lead to.
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
        """Make the crossing message, with the body converted or unchanged."""
        facts = carried(kind, message)
        if convert is not None:
            return Message(kind, subject, headers=headers, attributes=facts, body=await applied(convert, message.body, message))
        value = message.body if message.raw is None and message.has_body else MISSING
        on = Message(kind, subject, None, message.raw, message.format, headers, attributes=facts, body=value)
        on.checked = message.checked
        return on

    def hop(self, subject: str | int, hops: int) -> int:
        """Count one more bridge.

        Raises:
            RequestError: That exceeds the limit.
        """
        limit = self.here.services.limits.hops
        if hops >= limit:
            raise RequestError(Code.FAILED_PRECONDITION, too_far(subject, hops, limit))
        return hops + 1

    # -- losses ----------------------------------------------------------------------------------------------------------

    def lost(self, message: Message, error: BusError) -> None:
        """Count a message that could not cross; rate-limited, since peers must not fill the log."""
        here, route = self.here, self.route
        here.services.counters.dropped += 1
        here.services.dead_letter(message.peer, message, translated(error).code, f"not bridged: {error}")
        if self._losses.add(monotonic()) == 1:
            text = "%r could not cross the bridge (%r to %r): %s"
            logger.warning(text, message.subject, route.source, route.target, error, extra=log_fields(message=message))


@define(eq=False, repr=False)
class PeerTarget:
    """A peer as the target of a route, in place of a bus."""

    services: Services
    _choose: Callable[[], PeerParty]
    lookup: HandlerLookup = field(factory=HandlerLookup, init=False)
    loopback: Loopback = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.loopback = Loopback(self.services)

    @property
    def links(self) -> PeerTarget:
        return self

    def choose(self, subject: str | int) -> PeerParty:
        """Choose the peer. May raise `BusError`."""
        return self._choose()


class InnerRoute(RouteSide):
    """A route within a cluster: unlike a bridge it passes names and all headers unchanged."""

    def __init__(self, pattern: str | int, here: BusParts, choose: Callable[[], PeerParty], *, inward: bool = False) -> None:
        kinds = frozenset(("request", "stream", "channel", "tunnel"))
        super().__init__(Route(pattern, "same", kinds), here, PeerTarget(here.services, choose))  # type: ignore[arg-type]  # it has what a route needs of a bus
        self.inward: bool = inward

    def target(self, subject: str | int) -> str | int:
        return subject

    def headers(self, message: Message, via: ViaHeader | None) -> dict[str, str] | None:
        kept = {**(message.headers or {})}
        if via is not None:
            kept[VIA] = str(via)
        return kept or None

    async def converted(
        self,
        convert: Callable[..., Any] | None,
        message: Message,
        kind: Kind,
        subject: str | int,
        headers: dict[str, str] | None = None,
    ) -> Message:
        on = await super().converted(convert, message, kind, subject, headers)
        key = None if message.peer is None else message.peer.identity_key
        if key is not None and kind is not Kind.RESPONSE:
            on.attributes["user"] = key
        return on
