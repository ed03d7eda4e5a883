"""Moves a link to another server before the current one stops.

For a while both connections are up. New messages use the new connection, and requests are answered on the connection that they
arrived on. Publications, except those for queue groups, arrive on both connections, and the link drops the second copy. The
link recognises copies by their contents, because third-party publishers don't mark them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import anyio
from msgspec import Struct, field

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
"""Maximum number of publications that have arrived on only one of the connections."""
_OF_ONE: Final = (CloseWanted, Confirmed, NodeJoined, NodeLeft, OtherServers, Ready)
"""Events of the old connection that are ignored."""


def next_connection(link: Link, transport: Transport) -> NextConnection | None:
    """Create a session on a second connection. Returns None if the protocol doesn't support this."""
    moves = SessionFeatures.of(link.session).moves
    if moves is None or link.state is not State.UP:
        return None
    session = link.adapter.session("client", link.runtime.limits, sources.get().rng)
    moves.beside(session)
    SessionFeatures.of(session).moves.beside(link.session)  # type: ignore[union-attr]  # of the same protocol
    return NextConnection(link, transport, session)


class NextConnection:
    def __init__(self, link: Link, transport: Transport, session: Session) -> None:
        self.link = link
        self.transport = transport
        self.session = session
        self.runtime: Runtime = link.runtime
        self.decided: anyio.Event = anyio.Event()
        self.moving: MovingSession | None = None
        self.why: str = ""
        self._early: list[Message | SessionEvent] = []
        """Output that the session has produced since `Ready`."""
        self.receiver: ConnectionReceiver = ConnectionReceiver(self, transport, session)

    def start(self) -> None:
        output = self.session.start(self.runtime.time())
        self.transport.start(cast("Receiver", self.receiver))  # pyright treats a function attribute as a method
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

    def _go_on(self) -> MovingSession | None:
        """Move the link to this connection. Returns None if the link is down."""
        link = self.link
        old, transport, receiver = link.session, link.transport, link.receiver
        if link.state is not State.UP or old is None or transport is None or receiver is None:
            return None
        taps, link.taps = link.taps, None
        moves: SessionMoves = SessionFeatures.of(old).moves  # type: ignore[assignment]  # else `next_connection` gives None
        link.session = moving = MovingSession(link, self.session, self._early, old, transport, moves, taps)
        receiver.hand_over(moving)
        link.transport, link.receiver = self.transport, self.receiver
        self.receiver.hand_over(link)
        for recorder in (*link.services.recorders, link.recorder):
            if recorder is not None:
                link.record(recorder)
        link.due = math.inf
        link.end_confirmations()
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
        """Do nothing, because no messages have arrived yet."""

    def pause_writing(self) -> None:
        """Do nothing, because handshakes are short."""

    def resume_writing(self) -> None:
        """Do nothing."""


class MovingSession(Struct, eq=False):
    """A session with two connections, which also receives from the old one. Implements `plugins.Session`."""

    ask: ClassVar[None] = None
    """Always None, because the fast path would bypass `send`."""
    tell: ClassVar[None] = None
    usual: ClassVar[None] = None
    """Not available, because it would bypass `receive`."""
    _link: Link
    new: Session
    _early: list[Any]
    _old: Session | None
    _transport: Transport
    _moves: SessionMoves
    _taps: Taps | None
    left: anyio.Event = field(default_factory=anyio.Event)
    _missing: dict[int, int] = {}
    """Number of copies by content that the new connection has not delivered yet. Negative for the old connection."""
    _early_copies: dict[int, int] = {}
    """Copies in `_missing` that the old connection delivered before the new connection was subscribed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.new, name)

    def began(self) -> Iterator[Message | SessionEvent | bytes]:
        """Return the early output of the new connection, without `Ready`."""
        return self._once([event for event in self._early if not isinstance(event, Ready)], 1)

    def subscribed(self) -> None:
        """Called when all subscriptions are active on the new connection. Copies that are missing by then may never arrive."""
        self._early_copies = {content: count for content, count in self._missing.items() if count > 0}

    def retire(self) -> None:
        """Unsubscribe on the old connection, which closes after its last answer."""
        for content, early in self._early_copies.items():  # don't expect these copies any more
            count = self._missing.get(content, 0)
            if count > 0:
                self._missing[content] = max(0, count - early)
        if self._old is not None:
            self._write(self._moves.retire())

    def settle(self) -> None:
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
        """Do nothing, because the handshake is complete."""
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
        """Return True if the other connection has already delivered a publication."""
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
        """Return a time in the past, so that the old connection closes as soon as it is idle."""
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
        """Abort the old connection as well."""
        self.new.connection_lost(reason)
        if self._old is not None:
            self._transport.abort(Closed(1006, reason))
            self.closed(Closed(1006, reason))

    # -- reports of the old connection: as `ConnectionReceiver` ----------------------------------------------------------

    @property
    def runtime(self) -> Runtime:
        return self._link.runtime

    @property
    def ending(self) -> bool:
        return self._old is None

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self._old is not None:
                self._link.take(self._of_old(self._old.receive(frame, self.runtime.time())))

    def closing(self, why: Closed) -> None:
        """Do nothing until `closed`."""

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
        """Do nothing, because only answers are written to the old connection."""

    def resume_writing(self) -> None:
        """Do nothing."""


def _has_copies(message: Message) -> bool:
    """Return True if a publication arrives on both connections. Those for a single group member, node or client do not."""
    if message.peer is not None:
        return isinstance(message.peer, (ToAll, ToUser))
    return message.extras is None or "group" not in message.extras
