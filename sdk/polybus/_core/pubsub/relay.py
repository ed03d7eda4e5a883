"""Passing publications of peers on to other peers, where `bus.relay` says so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from attrs import define, field

from ..._util.log_fields import log_fields
from ..._util.pattern_index import SubjectIndex
from ...errors import BusError, Code, Unsupported
from ...message import MISSING, RELAYED, Kind, Message
from ..runtime.via import ViaHeader, speaker, too_far
from .publisher import Publisher

if TYPE_CHECKING:
    from ..peer.peer import Peer
    from ..runtime.services import Services
    from ..runtime.via import Deduplicator
    from .recipients import Recipients

logger: logging.Logger = logging.getLogger("polybus")

_HINTS = 256


@define(eq=False)
class Relay:
    """Passes publications of peers on to other peers that subscribed, up to the limit of hops; hints at those it does not."""

    _services: Services
    patterns: SubjectIndex[str | int]
    _recipients: Recipients
    _publisher: Publisher
    _deduplicator: Deduplicator
    _hinted: set[str | int] = field(factory=set, init=False)
    _stopped: set[str | int] = field(factory=set, init=False)
    """Subjects of which the log says that some came too far."""

    def takes(self, message: Message) -> bool:
        """Tell whether a publication is passed on, whichever of its spellings `bus.relay` has named."""
        patterns = self.patterns
        if not patterns.size:
            return False
        return bool(patterns.match(message.subject) or (patterns.addresses and any(map(patterns.match, message.spellings))))

    def pass_on(self, message: Message, source: Peer) -> None:
        """Send a publication of a peer on to the others that subscribed."""
        id = None if source.link.carries_headers else message.attributes.get("id")
        news = id is None or self._deduplicator.is_news(ViaHeader(str(id)), message.subject, speaker=speaker(source))
        if not news:
            return  # it has gone round: its id stands for the header, which that wire has no room for
        via = self._deduplicator.via_of(message)
        if via.hops > self._services.limits.hops:
            self.stop(message, via.hops)
            return
        now = source.link.runtime.time()
        deadline = now + 30.0 if message.expires is None else min(now + 30.0, message.expires)
        copies: dict[tuple[bool, bool], Message] = {}
        for peer in self._recipients.of(message.subject):
            if peer is not source:
                wire = peer.protocol == source.protocol, peer.link.carries_headers
                try:
                    on = copies.get(wire) or copies.setdefault(wire, self._copy(message, via, *wire, now=now))
                    if not self._publisher.send_nowait(on, peer, deadline):
                        self._services.counters.dropped += 1
                except BusError as error:
                    self._publisher.unsent(message, peer, "relayed", error)
                    self._services.dead_letter(peer, message, Code.INVALID_ARGUMENT, f"not relayed: {error}")
        for on in copies.values():
            on.forget_shared()

    def _copy(self, message: Message, via: ViaHeader, same_wire: bool, has_headers: bool, *, now: float) -> Message:
        """Make what goes on to peers on one sort of wire: what only that of the publisher knows to others on the same.

        Raises:
            Unsupported: Nothing would tell how far it has come.
        """
        if has_headers:
            on = self._deduplicator.onward(message, via)
        else:
            on = _with_id(message, same_wire)
        if message.attributes and not same_wire:
            value = message.body if message.raw is None and message.has_body else MISSING
            on = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format, on.headers, body=value)
            on.checked = message.checked
        if message.expires is not None:  # what is left of its time
            on.expires, on.ttl = message.expires, message.expires - now
        return on

    def stop(self, message: Message, hops: int) -> None:
        """Drop a publication that has come too far: counted and told, and in the log once for each subject."""
        subject = message.subject
        text = too_far(subject, hops, self._services.limits.hops)
        self._services.counters.dropped += 1
        self._services.dead_letter(message.peer, message, Code.FAILED_PRECONDITION, text)
        if subject not in self._stopped and len(self._stopped) < _HINTS:
            self._stopped.add(subject)
            logger.warning("%.200s", text, extra=log_fields(message=message))

    def hint(self, subject: str | int, source: Peer) -> bool:
        """Warn once for each subject that a relay would pass publications on. False where that is known from before."""
        if subject in self._hinted:
            return False
        others = [peer for peer in self._recipients.remote.match(subject) if peer is not source]
        if others and len(self._hinted) < _HINTS:
            self._hinted.add(subject)
            text = (
                "%r published %.100r, to which others subscribed (%d), and none of them hears of it: clients are isolated. "
                "bus.relay(%.100r), or polybus serve --relay, passes it on"
            )
            self._services.running.warnings.warn(
                logger, text, source, subject, len(others), subject, extra=log_fields(source, subject=subject)
            )
        return True


def _with_id(message: Message, same_wire: bool) -> Message:
    """Make the copy for a wire without headers: it keeps its id, by which a bus knows that it has passed it on already.

    Raises:
        Unsupported: It has none, or is from another wire.
    """
    known = message.attributes
    if not same_wire or "id" not in known:
        raise Unsupported(
            "a wire without headers does not tell how far a publication has come, and a ring of relays would have no end: "
            "publish it from a handler, or over a bridge"
        )
    on = message.with_headers(message.headers)
    on.extras = {**known, RELAYED: {name: known[name] for name in ("id", "priority") if name in known}}
    return on
