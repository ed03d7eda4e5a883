"""What comes in over a connection: frames to the session, and what it makes of them to the peers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from .._peer import dispatch
from .._util.violation_counter import Offences, too_many
from ..errors import BusError
from ..events import FrameRefused
from ..message import Kind, Message
from ..plugins import Closed, CloseWanted, PeerClosed, PeerOpened, Ready, Refused, SessionFeatures, Undelivered
from .outflow import Outflow
from .pieces import Pieces

if TYPE_CHECKING:
    from .._bus.bus import Bus
    from .._core.runtime import Runtime
    from .._core.services import Services
    from .._peer.peer import Peer
    from ..plugins import ProtocolAdapter, Session, Transport
    from .multiplexer import Crowd

__all__ = ["Attachment", "Inflow"]

_ANSWERS: Final = (Kind.RESPONSE, Kind.ERROR)
logger: logging.Logger = logging.getLogger("polybus.link")


class Attachment:
    """What one connection of a link reports to; implements `plugins.Receiver`. Once it is over, it says nothing to the link any
    more: however often and however late a transport reports, it does not meet the connection that came after it."""

    __slots__ = ("_link", "_pieces", "frames_received")

    def __init__(self, link: Inflow, transport: Transport, session: Session) -> None:
        self._link: Inflow | None = link
        self._pieces: Pieces | None = None
        self.frames_received: Callable[[Sequence[bytes]], None] = link.frames_received  # no call in between, for speed
        if (cut := SessionFeatures.of(session).pieces) is not None:
            self._pieces = Pieces(link, transport, cut)
            self.frames_received = self._pieces.frames_received

    def over(self) -> None:
        """The connection is no longer the link's."""
        self._link = None
        self.frames_received = _unheard
        if self._pieces is not None:
            self._pieces.drop()

    def closing(self, why: Closed) -> None:
        if self._pieces is not None:
            self._pieces.finish()
        if self._link is not None:
            self._link.closing(why)

    def closed(self, why: Closed) -> None:
        if self._pieces is not None:
            self._pieces.finish()
        if self._link is not None:
            self._link.closed(why)

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resume_writing()


def _unheard(frames: Sequence[bytes]) -> None:
    """Frames of a connection that is over."""


class Inflow(Outflow):
    """The reading half of a link."""

    __slots__ = ("_offences", "deferred")

    # Declared in `Backlog`; again here for type checkers.
    flowing: bool
    crowd: Crowd | None
    session: Session | None
    transport: Transport | None
    _closing: Closed | None
    _wanted: bool
    _peer: Peer | None

    def __init__(
        self,
        bus: Bus,
        services: Services,
        runtime: Runtime,
        adapter: ProtocolAdapter,
        url: str,
        opened: bool,
        when_full: str,
    ) -> None:
        super().__init__(bus, services, runtime, adapter, url, opened, when_full)
        self.deferred: list[Callable[[], None]] = []
        """What is to be done when all that came in at once has been looked at."""
        self._offences = Offences()

    # -- what the class above does ---------------------------------------------------------------------------------------

    def _ready(self, bare: bool) -> None:
        """The handshake is over."""
        raise NotImplementedError

    def closing(self, why: Closed) -> None:
        """Nothing more comes in."""
        raise NotImplementedError

    def closed(self, why: Closed) -> None:
        """The connection is gone."""
        raise NotImplementedError

    # -- frames ----------------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        session = self.session
        if session is None:
            return
        now = self.runtime.time()
        receive = session.receive
        try:
            for frame in frames:
                receive(frame, now)
            self._take_events(now)
            if self.deferred:
                self._do_deferred()
            self.flush()
        except BaseException as error:
            self.broken()
            if not isinstance(error, Exception):
                raise  # Ctrl-C, in a hook

    @property
    def ending(self) -> bool:
        """Whether nothing more is looked at."""
        return self._closing is not None or self.session is None

    def _do_deferred(self) -> None:
        deferred, self.deferred = self.deferred, []
        for act in deferred:
            act()

    def broken(self) -> None:
        """A mistake of ours, or of a plugin: it costs this link, and neither the event loop nor the others."""
        logger.exception("polybus: what came from %s could not be handled; its link is cut", self.address)
        self.abort(Closed(1011, "an internal error"), comes_back=True)

    # -- what the session makes of them ----------------------------------------------------------------------------------

    def _take_events(self, now: float) -> None:
        session = self.session
        assert session is not None
        receive = dispatch.receive
        for event in session.events():
            if isinstance(event, Message):
                peer = self._peer or self._peer_of(event.peer)
                if peer is None:  # it was sent away, has never been opened, or waits to be let in
                    if self.crowd is not None:
                        self.crowd.hold(event)
                    continue
                event.peer = peer
                receive(peer, event, now)
            else:
                self._session_event(event, now)
                if self._closing is not None:
                    return  # what came after the offence is not looked at
            if self.session is not session:
                return

    def _peer_of(self, key: Any) -> Peer | None:
        if self.crowd is None:
            return self._peer
        return self.crowd.peers.get(key)

    def receive_all(self, messages: list[Message]) -> None:
        """What one of many has said before it was let in."""
        now = self.runtime.time()
        for message in messages:
            peer = self._peer_of(message.peer)
            if peer is not None:
                message.peer = peer
                dispatch.receive(peer, message, now)
        if self.deferred:
            self._do_deferred()
        self.flush()

    def _session_event(self, event: Any, now: float) -> None:
        if isinstance(event, Ready):
            self._ready(event.bare)
        elif isinstance(event, Refused):
            self.refused(event.error.reason, str(event.error), now)
            if event.answer is not None:
                self._answer_refused(event.answer, event.peer_key, now)
            if event.error.reply_id is not None and (peer := self._peer_of(event.peer_key)) is not None:
                peer.answered_badly(event.error)
        elif isinstance(event, Undelivered):
            self.services.counters.dropped += 1
            text = f"{event.reason}: {event.text}" if event.text else event.reason
            peer = self._peer_of(event.message.peer)
            self.services.dead_letter(peer, event.message, event.code, text)
            if peer is not None and event.message.kind in _ANSWERS:
                peer.answered_in_vain(event.message.id, text)
        elif isinstance(event, PeerOpened):
            if self.crowd is not None:
                self.crowd.opened(event, now)
        elif isinstance(event, PeerClosed):
            if self.crowd is not None:
                self.crowd.closed(event.key, event.reason)
        elif isinstance(event, CloseWanted):
            self.flush()
            if self._closing is None:
                self._closing = Closed(event.code, event.reason, event.error)
                self._wanted = True
            self.flowing = False
            if self.transport is not None:
                self.transport.close(event.code, event.reason)

    def _answer_refused(self, answer: Message, key: Any, now: float) -> None:
        """Answer what was malformed, unless its id is in flight: who asked that would take this for the answer."""
        peer = self._peer_of(key)
        in_flight = peer is not None and (answer.id in (peer.calls or ()) or answer.id in (peer.channels or ()))
        if self.session is not None and not in_flight:
            with suppress(BusError):  # one of many has gone meanwhile
                self.session.send(answer, now, key)

    def refused(self, reason: str, text: str, now: float) -> None:
        """Count one malformed message; too many in a minute end the link."""
        self.services.counters.malformed += 1
        count, limit = self._offences.add(now), self.runtime.limits.bad_messages
        if count == 1:
            template = "polybus: malformed message from %s dropped: %.200r"
            self.runtime.warnings.warn(logger, now, template, self.address, text)
        self.services.emit(FrameRefused(peer=self._peer, reason=reason, text=text))
        if count > limit and self._closing is None:
            self._closing = Closed(1008, too_many(limit))
            self._wanted = True
            self.flowing = False
            if self.transport is not None:
                self.transport.close(1008, self._closing.reason)
