"""Moves a link to a new connection before it leaves the old one, when its server announces its end.

For a while both are up. New messages use the new connection; requests end where they began. The server delivers a queue group's
messages once, and others on both connections, so that none is lost; the link drops the second copy. Foreign publishers mark
nothing, so copies are recognised by their contents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from ..._util.sources import sources
from ...errors import Disconnected
from ...message import Kind, Message
from ...plugins import Closed, CloseWanted, Confirmed, NodeJoined, NodeLeft, OtherServers, Ready, SessionFeatures, ToAll, ToUser
from .receiver import ConnectionReceiver, each
from .state import State

if TYPE_CHECKING:
    from ...plugins import Capabilities, Codec, Frames, Receiver, Session, SessionEvent, SessionOutput, Transport
    from ...plugins.features import SessionMoves
    from ..runtime.runtime import Runtime
    from .link import Link
    from .receiver import Taps

_COPIES: Final = 65_536
"""Limit of publications with an outstanding second copy."""
_OF_ONE: Final = (CloseWanted, Confirmed, NodeJoined, NodeLeft, OtherServers, Ready)
"""Events of the old connection that no longer matter."""


def next_connection(link: Link, transport: Transport) -> NextConnection | None:
    """Start a session on a second connection; None if the protocol cannot move."""
    moves = SessionFeatures.of(link.session).moves
    if moves is None or link.state is not State.UP:
        return None
    session = link.adapter.session("client", link.runtime.limits, sources.get().rng)
    moves.beside(session)
    SessionFeatures.of(session).moves.beside(link.session)  # type: ignore[union-attr]  # of the same protocol
    return NextConnection(link, transport, session)


class NextConnection:
    """A second connection, the link's once its session is admitted."""

    def __init__(self, link: Link, transport: Transport, session: Session) -> None:
        self.link = link
        self.transport = transport
        self.session = session
        self.runtime: Runtime = link.runtime
        self.decided: anyio.Event = anyio.Event()
        self.moving: Moving | None = None
        self.why: str = ""
        self._early: list[Message | SessionEvent] = []
        """Output since the session's admission, which comes first."""
        self.receiver: ConnectionReceiver = ConnectionReceiver(self, transport, session)

    def start(self) -> None:
        output = self.session.start(self.runtime.time())
        self.transport.start(cast("Receiver", self.receiver))  # pyright takes a function attribute for a method
        self._take(output)

    def give_up(self, why: str) -> None:
        self.why = self.why or why
        if self.moving is None:
            self.receiver.over()
            self.transport.abort(Closed(1000, why))
            self.decided.set()

    @property
    def ending(self) -> bool:
        return bool(self.why)

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._take(self.session.receive(frame, self.runtime.time()))
            if self.ending:
                return
        if self._early:
            self.moving = self._go_on()
            if self.moving is None:
                self.give_up("the link was lost meanwhile")
            self.decided.set()

    def _go_on(self) -> Moving | None:
        """Move the link here; None if it is no longer up."""
        link = self.link
        old, transport, receiver = link.session, link.transport, link.receiver
        if link.state is not State.UP or old is None or transport is None or receiver is None:
            return None
        taps, link.taps = link.taps, None
        link.session = moving = Moving(link, self.session, self._early, old, transport, receiver, taps)
        link.transport, link.receiver = self.transport, self.receiver
        self.receiver.hand_over(link)
        for recorder in (*link.services.recorders, link.recorder):
            if recorder is not None:
                link.record(recorder)
        link.due = math.inf
        if link.confirmations is not None:
            link.confirmations.lost()
        if link.reader is not None:
            link.reader.named(next((event.node for event in self._early if isinstance(event, Ready)), ""))
        link.set_shared()
        link.owner.link_moved(link)
        link.resume_writing()
        link.take(moving.began())
        return moving

    def _take(self, output: SessionOutput) -> None:
        for one in each(output):
            if isinstance(one, bytes):
                self.transport.send(one)
            elif isinstance(one, CloseWanted):
                self.give_up(one.reason)
                return
            elif self._early or isinstance(one, Ready):
                self._early.append(one)

    def closing(self, why: Closed) -> None:
        self.closed(why)

    def closed(self, why: Closed) -> None:
        self.why = self.why or why.reason or "the connection ended"
        self.decided.set()

    def refused(self, reason: str, text: str, now: float) -> None:
        self.give_up(text)

    def lost(self, count: int, why: str) -> None:
        """Nothing is dropped before admission."""

    def pause_writing(self) -> None:
        """A handshake is short."""

    def resume_writing(self) -> None:
        """Nothing waits."""


class Moving:
    """The session of a link with two connections; the old one also reports here. Implements `plugins.Session`."""

    ask: None = None
    tell: None = None
    """Unused: they would bypass `send`."""

    def __init__(
        self, link: Link, new: Session, early: list[Any], old: Session, transport: Transport, receiver: Any, taps: Taps | None
    ) -> None:
        self._link = link
        self.new = new
        self._early = early
        self._old: Session | None = old
        self._transport = transport
        self._taps = taps
        self.left: anyio.Event = anyio.Event()
        self.runtime: Runtime = link.runtime
        self._missing: dict[int, int] = {}
        """Outstanding copies by content: positive from the new connection, negative from the old one."""
        self._early_copies: dict[int, int] = {}
        """Copies in `_missing` that the old connection delivered first."""
        self._moves: SessionMoves = SessionFeatures.of(old).moves  # type: ignore[assignment]  # else `next_connection` gives None
        receiver.hand_over(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.new, name)

    def began(self) -> Iterator[Message | SessionEvent | bytes]:
        """The new connection's early output, without its admission: the link is up."""
        return self._once([event for event in self._early if not isinstance(event, Ready)], 1)

    def subscribed(self) -> None:
        """Note that the new connection delivers everything: missing copies may be older."""
        self._early_copies = {content: count for content, count in self._missing.items() if count > 0}

    def retire(self) -> None:
        """Unsubscribe on the old connection; it ends after its last answer."""
        for content, early in self._early_copies.items():  # their copies will not come: the next equal publication is a new one
            count = self._missing.get(content, 0)
            if count > 0:
                self._missing[content] = max(0, count - early)
        if self._old is not None:
            self._write(self._moves.retire())

    def settle(self) -> None:
        """Remove this object from the link after the old connection's end."""
        if self._link.session is self:
            self._link.session = self.new
            self._link.set_shared()

    # -- plugins.Session -------------------------------------------------------------------------------------------------

    @property
    def codec(self) -> Codec:
        return self.new.codec

    @property
    def capabilities(self) -> Capabilities:
        return self.new.capabilities

    def start(self, now: float) -> SessionOutput:
        """The handshake is already over."""
        return ()

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        return self._once(self.new.receive(frame, now), 1)

    def _once(self, output: SessionOutput, side: int) -> Iterator[Message | SessionEvent | bytes]:
        return (one for one in each(output) if not self._is_second(one, side))

    def _of_old(self, output: SessionOutput) -> Iterator[Message | SessionEvent]:
        for one in self._once(output, -1):
            if isinstance(one, bytes):
                self._transport.send(one)
            elif isinstance(one, CloseWanted):
                self._transport.close(one.code, one.reason)
            elif not isinstance(one, _OF_ONE):
                yield one

    def _is_second(self, event: Any, side: int) -> bool:
        """Check whether the other connection has delivered a publication."""
        if not isinstance(event, Message) or event.kind is not Kind.PUBLISH or not _has_copies(event):
            return False
        headers = None if event.headers is None else tuple(event.headers.items())
        content, missing = hash((event.subject, event.raw, headers, event.reply_to)), self._missing
        count = missing.get(content, 0)
        if count * side > 0:
            missing[content] = count - side
            if count == side:
                del missing[content]
            return True
        if count or len(missing) < _COPIES:
            missing[content] = count - side
        return False

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[Any, Frames]:
        old = self._old
        if old is None:
            return self.new.send(message, now, peer_key)
        if message.id is not None and self._moves.holds(message.id):
            key, frames = old.send(message, now, peer_key)
            self._write(frames)
            return key, ()
        if message.kind is Kind.UNSUBSCRIBE:
            self._write(old.send(message, now, peer_key)[1])
        return self.new.send(message, now, peer_key)

    def forget(self, key: Any, now: float) -> Frames:
        if self._old is None or not self._moves.holds(key):
            return self.new.forget(key, now)
        self._write(self._old.forget(key, now))
        return ()

    def _write(self, frames: Frames) -> None:
        for frame in (frames,) if isinstance(frames, bytes) else frames:
            self._transport.send(frame)

    def next_tick(self) -> float | None:
        """At once, so that the old connection ends as soon as it is idle."""
        return -1.0 if self._old is not None else self.new.next_tick()

    def tick(self, now: float) -> SessionOutput:
        output = self._once(self.new.tick(now), 1)
        return output if self._old is None else chain(self._of_old(self._old.tick(now)), output)

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        if self._old is not None:
            self._write(self._old.close(code, reason, now))
            self._transport.close(code, reason)
        return self.new.close(code, reason, now, peer_key)

    def connection_lost(self, reason: str) -> None:
        """Abort the old connection too: the link is lost."""
        self.new.connection_lost(reason)
        if self._old is not None:
            self._transport.abort(Closed(1006, reason))
            self.closed(Closed(1006, reason))

    # -- reports of the old connection: as `ConnectionReceiver` ----------------------------------------------------------

    @property
    def ending(self) -> bool:
        return self._old is None

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self._old is not None:
                self._link.take(self._of_old(self._old.receive(frame, self.runtime.time())))

    def closing(self, why: Closed) -> None:
        """`closed` follows."""

    def closed(self, why: Closed) -> None:
        old, self._old = self._old, None
        if old is None:
            return
        asked = self._moves.asked()
        old.connection_lost(why.reason)
        if self._taps is not None:
            self._taps.over(why)
        self._missing = {content: count for content, count in self._missing.items() if count > 0}
        if asked and self._link.peer is not None:
            self._link.peer.lost(asked, Disconnected(why.reason or "the connection is gone", self._link.address, True))
        self.left.set()

    def refused(self, reason: str, text: str, now: float) -> None:
        self._link.refused(reason, text, now)

    def lost(self, count: int, why: str) -> None:
        self._link.lost(count, why)

    def pause_writing(self) -> None:
        """Only answers are written there."""

    def resume_writing(self) -> None:
        """Nothing waits."""


def _has_copies(message: Message) -> bool:
    """Check whether both connections deliver a publication: not to a group member, a reader or one client."""
    if message.peer is not None:
        return isinstance(message.peer, (ToAll, ToUser))
    return message.extras is None or "group" not in message.extras
