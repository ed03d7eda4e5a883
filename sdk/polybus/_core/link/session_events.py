"""Handles the events of sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..._util.logs import too_many
from ...errors import BusError, Code, Disconnected
from ...events import FrameRefused
from ...message import Kind
from ...plugins import (
    Closed,
    CloseWanted,
    Confirmed,
    Due,
    Lost,
    NodeJoined,
    NodeLeft,
    OtherServers,
    PeerClosed,
    PeerOpened,
    Ready,
    Refused,
    Undelivered,
)

if TYPE_CHECKING:
    from .link import Link

logger: logging.Logger = logging.getLogger("polybus.link")

_ANSWERS: Final = (Kind.RESPONSE, Kind.ERROR)


def act_on(link: Link, event: Any, now: float) -> None:
    """Handle an event of the session. Raises `TypeError` for other objects."""
    action = _ACTIONS.get(type(event))
    if action is None:
        raise TypeError(
            f"a session of {link.adapter.name} returns messages, events of polybus.plugins and frames (bytes), not "
            f"{type(event).__name__}"
        )
    action(link, event, now)


def refuse(link: Link, reason: str, text: str, now: float, key: Any = None) -> None:
    """Count a malformed message. After too many, close the link, or disconnect only the peer on a multiplexed link.

    A connection stays open if its senders cannot be identified.
    """
    link.services.counters.malformed += 1
    multiplexed = link.multiplexed
    of_one = None if multiplexed is None else multiplexed.offences_of(key)
    count, limit = (of_one or link.offences).add(now), link.runtime.limits.bad_messages
    peer: Any = link.peer_of(key)
    if count == 1:
        template = "malformed message from %s dropped: %.200r"
        address = link.address if peer is None else peer.address
        link.runtime.warnings.warn(logger, template, address, text, extra=link.log_fields())
    link.services.emit(FrameRefused(peer=None if peer is None else peer.public, reason=reason, text=text))
    if count <= limit or link.ending:
        return
    if multiplexed is not None and of_one is not None:
        multiplexed.expel(key, 1008, too_many(limit))
    elif link.session is None or not link.session.capabilities.many_senders:
        link.break_off(Closed(1008, too_many(limit)))


def _ready(link: Link, event: Ready, now: float) -> None:
    if link.reader is not None:
        link.reader.named(event.node)
    link.ready(event.bare)


def _refused(link: Link, event: Refused, now: float) -> None:
    """Count a malformed message, and answer it unless a request with its id is in flight.

    In that case, the peer would confuse the two answers.
    """
    key, answer = event.peer_key, event.answer
    refuse(link, event.error.reason, str(event.error), now, key)
    peer = link.peer_of(key)
    if answer is not None and link.session is not None and not (peer is not None and peer.in_flight(answer.id)):
        with suppress(BusError):  # the peer has left a multiplexed link
            link.send_frames(link.session.send(answer, now, key)[1])
    if event.error.reply_id is not None and (peer := link.peer_of(key)) is not None:
        peer.answered_badly(event.error)


def _undelivered(link: Link, event: Undelivered, now: float) -> None:
    message = event.message
    link.services.counters.dropped += 1
    text = f"{event.reason}: {event.text}" if event.text else event.reason
    if event.code is Code.PERMISSION_DENIED:  # otherwise no handler would report it
        template = "%s refuses %s of %.100r: %.200s"
        fields = link.log_fields(message)
        link.runtime.warnings.warn(logger, template, link.address, message.kind.value, message.subject, text, extra=fields)
    peer: Any = link.peer_of(message.peer)
    link.services.dead_letter(None if peer is None else peer.public, message, event.code, text)
    if peer is not None and message.kind in _ANSWERS:
        peer.answered_in_vain(message.id, text)


def _peer_opened(link: Link, event: PeerOpened, now: float) -> None:
    if link.multiplexed is not None:
        link.multiplexed.opened(event)


def _peer_closed(link: Link, event: PeerClosed, now: float) -> None:
    if link.multiplexed is not None:
        link.multiplexed.closed(event.key, event.reason)


def _confirmed(link: Link, event: Confirmed, now: float) -> None:
    asked = link.confirmations.pop(event.key, None)
    if asked is not None:
        asked.end(event.refused)


def _due(link: Link, event: Due, now: float) -> None:
    link.call_when_due(event.at, now)


def _lost(link: Link, event: Lost, now: float) -> None:
    if link.peer is not None:
        link.peer.lost(event.ids, Disconnected(event.reason, "", event.sent))


def _node_event(link: Link, event: NodeJoined | NodeLeft, now: float) -> None:
    if link.reader is not None:
        link.reader.node_event(event)


def _other_servers(link: Link, event: OtherServers, now: float) -> None:
    if link.dialer is not None:
        link.dialer.other_servers(event.addresses, event.leaving)


def _close_wanted(link: Link, event: CloseWanted, now: float) -> None:
    link.break_off(Closed(event.code, event.reason, event.error))


_ACTIONS: Final[Mapping[type, Callable[[Link, Any, float], None]]] = {
    Ready: _ready,
    Refused: _refused,
    Undelivered: _undelivered,
    PeerOpened: _peer_opened,
    PeerClosed: _peer_closed,
    Confirmed: _confirmed,
    Due: _due,
    Lost: _lost,
    NodeJoined: _node_event,
    NodeLeft: _node_event,
    OtherServers: _other_servers,
    CloseWanted: _close_wanted,
}
