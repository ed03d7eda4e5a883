"""One link: a session joined to a transport, its peers, and its connections one after the other.

A transport reports to its link. On the way in it hands messages to its peers, on the way out it takes them from the peers
to the session; there is no queue and no task in between, unless the connection is slow or down: then messages wait in a
`SendQueue`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import define, field

from ..._util.log_fields import log_fields
from ..._util.repeated_warnings import ViolationCounter, too_many
from ..._util.sources import sources
from ...errors import (
    BusError,
    Code,
    Disconnected,
    Forbidden,
    QueueFull,
    RequestError,
    TooLarge,
    Unauthorized,
    Unsupported,
    another,
)
from ...events import FrameRefused, LinkDown, LinkUp, PeerSlow
from ...message import Kind, Message
from ...plugins import (
    Closed,
    CloseWanted,
    CodecFeatures,
    Confirmed,
    Due,
    Identity,
    Lost,
    NodeJoined,
    NodeLeft,
    OtherServers,
    PeerClosed,
    PeerOpened,
    ProtocolFeatures,
    Ready,
    Refused,
    SessionFeatures,
    TransportFeatures,
    Undelivered,
)
from ..runtime.memory import MemoryBudget, Share
from .moving import Moving, NextConnection
from .multiplexer import MultiplexedPeers
from .receiver import Confirmations, ConnectionReceiver, Taps, each
from .send_queue import SendQueue
from .state import TRANSITIONS, Change, Ending, State

if TYPE_CHECKING:
    from ...body import BodyFormat
    from ...plugins import Admission, Codec, Frames, Hear, ProtocolAdapter, Receiver, Role, Session, SessionOutput, Transport
    from ...plugins.extensions import LinkReader
    from ...plugins.recording import Recorder
    from ..rpc.reply import Reply
    from ..runtime.runtime import Runtime
    from ..runtime.services import Services
    from .ports import LinkDialer, LinkOwner, PeerPort, StalledCalls

logger: logging.Logger = logging.getLogger("polybus.link")

_ANSWERS: Final = (Kind.RESPONSE, Kind.ERROR)
_SILENT: Final = 3.0
"""Seconds after which an inner link counts as silent: its session asks it before for a sign of life."""
_BROKEN: Final = frozenset({1002, 1003, 1007, 1008, 1009})
"""Codes of connections that end because an end has broken a rule of the transport."""


@define(eq=False, repr=False, weakref_slot=False)
class Link:
    """A connection that this bus opened (it may come back) or accepted (it ends once)."""

    owner: LinkOwner
    services: Services
    adapter: ProtocolAdapter
    url: str
    _dialer: LinkDialer | None = field(default=None, kw_only=True, alias="dialer")
    serves: tuple[str | int, ...] = field(default=(), kw_only=True)
    when_full: str = field(default="drop_oldest", kw_only=True)
    admission: Admission | None = field(default=None, kw_only=True)
    """The identity and the handshake of one that was accepted."""
    runtime: Runtime = field(init=False)
    opened: bool = field(init=False)
    """True of a connection that this bus has dialled, not accepted."""
    state: State = field(default=State.CONNECTING, init=False)
    session: Session | None = field(default=None, init=False)
    transport: Transport | None = field(default=None, init=False)
    peer: Any = field(default=None, init=False)
    """The one peer of a point-to-point link, or None: a `PeerPort`, which the rooms above know as a `Peer`."""
    multiplexed: MultiplexedPeers | None = field(default=None, init=False)
    """The peers of a connection that carries many."""
    carries_headers: bool = field(default=True, init=False)
    """True where the wire has headers: known since the first session, also while the link is down."""
    bare_headers: bool = field(default=False, init=False)
    """True where a bare peer reads them too."""
    own_headers: frozenset[str] = field(default=frozenset(), init=False)
    """Headers that the wire has a place for, where it has none for others."""
    destinations: bool = field(default=False, init=False)
    """True where a notification may go to an address behind the peer."""
    has_groups: bool = field(default=False, init=False)
    """True where groups share handlers and publications on this wire, each with a copy of its own; known while it is down."""
    format: BodyFormat = field(init=False)
    format_for: Callable[[Any, str | int], BodyFormat] = field(init=False)
    one_format: bool = field(init=False)
    """True where `format_for` need not be asked: it always says `format`."""
    urgency: Callable[[Message], int] | None = field(init=False)
    """Tells the priority of a message, where the wire has priorities."""
    shared: Codec | None = field(default=None, init=False)
    """The codec, where a publication has the same frame on all its sessions."""
    framing: tuple[Codec, type[Transport], str] | None = field(default=None, init=False)
    """The key of a publication's bytes, where they are the same on all links with that key: they are made once."""
    send_framed: Callable[[bytes, int], None] | None = field(default=None, init=False)
    send_alone: Callable[[bytes], None] | None = field(default=None, init=False)
    """Writes bytes that `framed` has made."""
    ask: Callable[[str | int, bytes | None, float], tuple[Any, bytes]] | None = field(default=None, init=False)
    """Makes a request without a `Message`, where the session can; as `tell` makes an answer."""
    tell: Callable[[Any, bytes | None], bytes] | None = field(default=None, init=False)
    outbox: SendQueue | None = field(default=None, init=False)
    paused: bool = field(default=False, init=False)
    flowing: bool = field(default=False, init=False)
    """Up, not paused, and nothing waits: messages go straight to the session."""
    initiates: bool = field(default=True, init=False)
    """True where this side may begin requests and publications."""
    share: Share | None = field(default=None, init=False)
    """Its part of `Limits.total_bytes`; None where this bus has dialled one peer: then nothing is held back for others."""
    slow: int = field(default=0, init=False)
    """Publications dropped since the peer was last keeping up."""
    unwritten: MemoryBudget = field(init=False)
    """Bytes that the connection held when it last asked for a pause."""
    bodies: MemoryBudget = field(init=False)
    """Large bodies of requests that run."""
    stalled: dict[StalledCalls, None] = field(factory=dict, init=False)
    """Requests of the peers which wait until this connection takes answers again."""
    deferred: list[Callable[[], None]] = field(factory=list, init=False)
    """Functions to call when all that came in at once has been looked at."""
    was_up: bool = field(default=False, init=False)
    renews: bool = field(default=False, init=False)
    """True where every attempt asks for credentials anew."""
    insists: bool = field(default=False, init=False)
    """True where a refusal is tried again once it was up."""
    reader: LinkReader | None = field(default=None, kw_only=True)
    """Takes what says in `Message.peer` whom it is for."""
    inner: bool = field(default=False, kw_only=True)
    """True where the buses beyond it are this very bus: what comes over it counts as its own."""
    beyond: str = field(default="", kw_only=True)
    """The other end of an inner link, for people."""
    most_running: int | None = field(default=None, init=False)
    most_waiting: int | None = field(default=None, init=False)
    """Limits of this link in place of `Limits.running` and `Limits.waiting`."""
    holds: bool = field(default=False, init=False)
    """True while all but answers waits, since others are not back yet."""
    recorder: Recorder | None = field(default=None, init=False)
    """Records this link, besides the recorders of the whole bus."""
    expires: float | None = field(init=False)
    _ending: Ending | None = field(default=None, init=False)
    _offences: ViolationCounter = field(factory=ViolationCounter, init=False)
    _arriving: MemoryBudget | None = field(default=None, init=False)
    _receiver: ConnectionReceiver | None = field(default=None, init=False)
    _taps: Taps | None = field(default=None, init=False)
    _confirmations: Confirmations | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)
    _lost_at: float | None = field(default=None, init=False)
    """Time at which the last connection that could be used was lost; None where one can be used, and before the first."""
    _lost_why: str = field(default="", init=False)
    _due: float = field(default=math.inf, init=False)
    """Time at which the session is to be called, where it has asked for that."""

    def __attrs_post_init__(self) -> None:
        runtime = self.runtime = self.services.running
        codec = self.adapter.codec(runtime.limits)
        self.opened = self._dialer is not None
        if not self.opened:
            self.share = Share()
        self.unwritten = MemoryBudget(runtime, share=self.share)
        self.bodies = MemoryBudget(runtime, share=self.share)
        self.format, self.format_for = codec.formats[0], codec.format_for
        features = CodecFeatures.of(codec)
        self.one_format, self.urgency = features.one_format, features.urgency
        self.expires = None if self.admission is None else self.admission.identity.ends(runtime.time())
        runtime.links[self] = None

    # -- who is there ----------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> list[Any]:
        """All peers, each as `peer`."""
        if self.multiplexed is not None:
            return list(self.multiplexed.peers.values())
        return [self.peer] if self.peer is not None else []

    @property
    def ends(self) -> Closed | None:
        """The reason why it is over, or is about to be, and does not come back."""
        ending = self._ending
        return ending.why if ending is not None and (self.state is State.CLOSED or not ending.returns) else None

    @property
    def stands(self) -> bool:
        """True while messages are exchanged, also while it is being closed."""
        state = self.state
        return state is State.UP or state is State.CLOSING

    @property
    def upstream(self) -> bool:
        """True where there is one peer, which this bus has dialled: a server, not clients behind a broker."""
        return self.opened and self.multiplexed is None

    @property
    def address(self) -> str:
        """The address of the other end."""
        return self.transport.address if self.transport is not None else self.url

    @property
    def takes_answers(self) -> bool:
        """True while requests of its peers may begin: they have read all answers but a few."""
        return self.outbox is None or self.outbox.takes_answers

    @property
    def unread(self) -> int:
        """Bytes of answers and the like that its peers have not taken, as far as that is known."""
        return self.unwritten.held + (0 if self.outbox is None else self.outbox.kept_bytes)

    # -- life ------------------------------------------------------------------------------------------------------------

    def attach(self, transport: Transport) -> None:
        """Begin a session on a new connection."""
        role: Role = "client" if self.opened else "server"
        now = self.runtime.time()
        hear: Hear | None = getattr(transport, "hear", None)  # of its `TransportFeatures`, for speed
        if hear is None:
            self.session = self.adapter.session(role, self.runtime.limits, sources.get().rng)
        else:
            self.session = self._session_on_fabric(role, hear)
        self._due = math.inf  # what the last one wished for would hide what this one wishes
        self.transport = transport
        if not self.opened and self.share is not None:
            self.share.join(self.runtime.addresses, transport.address)
        for recorder in (*self.services.recorders, self.recorder):
            if recorder is not None:
                self.record(recorder)
        transport, session = self.transport, self.session
        self.paused = False
        self._ending = None
        self._since = now
        self._move(Change.ATTACHED)
        output = session.start(now)
        if self._receiver is not None:
            self._receiver.over()
        self._receiver = ConnectionReceiver(self, transport, session)
        if self.urgency is not None:
            TransportFeatures.of(transport).keep_short()
        transport.start(cast("Receiver", self._receiver))  # pyright takes an attribute that is a function for a method
        self._take(output, session, now)

    def next_connection(self, transport: Transport) -> NextConnection | None:
        """Begin a session on another connection, beside the one that is up; None where the protocol has no way for that."""
        moves = SessionFeatures.of(self.session).moves
        if moves is None or self.state is not State.UP:
            return None
        session = self.adapter.session("client", self.runtime.limits, sources.get().rng)
        moves.beside(session)
        SessionFeatures.of(session).moves.beside(self.session)  # type: ignore[union-attr]  # it is of the same protocol
        return NextConnection(self, transport, session)

    def move(self, connection: NextConnection, early: list[Any]) -> Moving | None:
        """Go on over a connection whose session is let in; None where this link is not up any more."""
        old, transport, receiver = self.session, self.transport, self._receiver
        if self.state is not State.UP or old is None or transport is None or receiver is None:
            return None
        taps, self._taps = self._taps, None
        self.session = moving = Moving(self, connection.session, early, old, transport, receiver, taps)
        self.transport, self._receiver = connection.transport, connection.receiver
        connection.receiver.hand_over(self)
        for recorder in (*self.services.recorders, self.recorder):
            if recorder is not None:
                self.record(recorder)
        self._due = math.inf
        if self._confirmations is not None:
            self._confirmations.lost()
        if self.reader is not None:
            self.reader.named(next((event.node for event in early if isinstance(event, Ready)), ""))
        self.set_shared()
        self.owner.link_moved(self)
        self.resume_writing()
        self.take(moving.began())
        return moving

    def moved(self, moving: Moving) -> None:
        """The connection before is over: do without what stood between."""
        if self.session is moving:
            self.session = moving.new
            self.set_shared()

    def _session_on_fabric(self, role: Role, hear: Hear) -> Session:
        fabric = ProtocolFeatures.of(self.adapter).fabric
        if fabric is None:
            raise Unsupported(f"{self.adapter.name} has no form on a fabric")
        return fabric.session(role, self.runtime.limits, sources.get().rng, hear)

    def record(self, recorder: Recorder) -> None:
        """Record every frame of this connection from now on. Not to be called while a frame is being handled."""
        if self.session is not None and self.transport is not None:
            taps = self._taps = self._taps or Taps(self.session, self.transport)
            if taps.add(recorder, self.adapter, self.transport, opened=self.opened):
                self._wrap(taps)

    def unrecord(self, recorder: Recorder) -> None:
        """Record no more. Not to be called while a frame is being handled."""
        if self.session is not None and self._taps is not None and self._taps.remove(recorder):
            self._wrap(self._taps)

    def _wrap(self, taps: Taps) -> None:
        self.session, self.transport = taps.around()
        if self.stands:
            self.set_shared()

    def _move(self, change: Change) -> None:
        self.state = TRANSITIONS[self.state][change]
        self._update_flow()

    def _ready(self, bare: bool) -> None:
        self._move(Change.READY)
        if self.state is not State.UP:
            return  # it is being closed, or has been cut
        assert self.session is not None
        capabilities = self.session.capabilities
        if capabilities.many_peers:
            if self.share is None:
                self._hold_back()
            self.multiplexed = self.multiplexed or MultiplexedPeers(self)
        elif self.peer is None:
            identity = Identity() if self.admission is None else self.admission.identity
            self.peer = self.owner.open_peer(self, None, identity, "")
        if bare and self.peer is not None:
            self.peer.mark_bare()
        self.set_shared()
        again, self.was_up = self.was_up, True
        self._lost_at = None
        self.owner.link_up(self)
        self._update_flow()
        self._drain_outbox()
        if self._dialer is not None:
            self._dialer.link_up()
        self.services.emit(LinkUp(peer=None if self.peer is None else self.peer.public, url=self.url, again=again))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and close; what waits in the outbox is written first where the connection takes it."""
        if self.state is State.CLOSED:
            return
        why = Closed(code, reason) if self._ending is None else self._ending.why
        self._ending = Ending(why)
        transport, session = self.transport, self.session
        if transport is None or session is None or self.state is State.DOWN:
            self._ended(Closed(code, reason))
            return
        self._move(Change.CLOSE)
        self.send_frames(session.close(code, reason, self.runtime.time()))
        transport.close(code, reason)

    def abort(self, why: Closed, *, comes_back: bool = False) -> None:
        """Cut the connection; with `comes_back` to protect this process, so that an opened link is made anew."""
        if comes_back and self.state is State.DOWN:
            return  # it is on its way back already, and must not come twice
        ending = self._ending
        self._ending = Ending(why if ending is None else ending.why, comes_back and (ending is None or ending.returns))
        if self.transport is not None and self.state is not State.DOWN and self.state is not State.CLOSED:
            # Nothing more of what has already come in is looked at, and nothing more is written.
            self._move(Change.CUT)
            if self.session is not None:
                self.session.connection_lost(why.reason)
                self.session = None
            try:
                self.transport.abort(why)
            except Exception:  # of a plugin's transport: whoever cuts a link goes on with the others
                logger.exception(
                    "the connection of %s could not be cut; it is given up", self.address, extra=self._log_fields()
                )
                self._ended(why)
        else:
            self._ended(why)

    def tick(self, now: float) -> None:
        """Look at what is due. Called about once a second."""
        transport, session = self.transport, self.session
        if self.expires is not None and self.expires <= now:
            self.expires = None
            self._ending = Ending(Closed(4401, "the identity has expired", Unauthorized("the identity has expired")))
            self.close(4401, "the identity has expired: authenticate again")
        if transport is not None and self.state is not State.DOWN:
            transport.tick(now)
            self._charge_arrival(transport)
        if self.multiplexed is not None:
            self.multiplexed.tick(now)
        limit = self.runtime.limits.handshake_timeout
        if self.state is State.CONNECTING and not self.opened and now - self._since > limit:
            self.abort(Closed(1002, f"the {self.adapter.name} handshake did not complete in {limit:g} s"))
        if session is not None and self.session is session:
            due = session.next_tick()
            if due is not None and due <= now:
                self._tick_session()

    def _tick_session(self) -> None:
        if self.session is not None:
            self.take(self.session.tick(self.runtime.time()))

    def _call_when_due(self, due: float, now: float) -> None:
        if due <= now:  # when handlers have had their turn as well, which begins behind this one
            self.runtime.call_soon(self.runtime.call_soon, self._tick_session)
        elif due < self._due:
            self._due = due
            self.runtime.watch(self, due)

    def _expire(self, now: float) -> float:
        """Call the session where it is time for that. The next time."""
        if self._due <= now:
            self._due = math.inf
            self._tick_session()
        return self._due

    # -- what comes in ---------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        session = self.session
        if session is None:
            return
        now = self.runtime.time()
        receive = session.receive
        try:
            for frame in frames:
                output = receive(frame, now)
                if isinstance(output, Message):
                    peer = self.peer
                    if peer is None or output.peer is not None:
                        self._deliver(output, now)
                    else:
                        output.peer = peer.public
                        peer.receive(output, now)
                elif not self._take(output, session, now):
                    break  # what comes after a violation is not looked at
                if self.session is not session:
                    break
            if self.deferred:
                self._do_deferred()
        except BaseException as error:
            self.broken()
            if not isinstance(error, Exception):
                raise  # Ctrl-C, in a hook

    def take(self, output: SessionOutput) -> None:
        """Act on what the session says by itself."""
        try:
            if self.session is not None:
                self._take(output, self.session, self.runtime.time())
            if self.deferred:
                self._do_deferred()
        except BaseException as error:
            self.broken()
            if not isinstance(error, Exception):
                raise

    def _take(self, output: SessionOutput, session: Session, now: float) -> bool:
        """Do one after the other. False where nothing more of the session is looked at."""
        for one in each(output):
            if isinstance(one, Message):
                self._deliver(one, now)
            elif isinstance(one, bytes):
                self.transport.send(one)  # type: ignore[union-attr]  # a session stands on a transport
            else:
                self._session_event(one, now)
                if self._ending is not None:
                    return False
            if self.session is not session:
                return False
        return True

    def _deliver(self, message: Message, now: float) -> None:
        if message.peer is not None and self.reader is not None:
            self.reader.receive(message, now)
            return
        peer = self.peer or self._peer_of(message.peer)
        if peer is not None:
            message.peer = peer.public
            peer.receive(message, now)
        elif self.multiplexed is not None:  # it was sent away, has never been opened, or waits to be let in
            self.multiplexed.hold(message)

    @property
    def ending(self) -> bool:
        """True once nothing more is looked at."""
        return self._ending is not None or self.session is None

    def _do_deferred(self) -> None:
        deferred, self.deferred = self.deferred, []
        for act in deferred:
            act()

    def _log_fields(self, message: Message | None = None) -> dict[str, object]:
        fields = log_fields(address=self.address, protocol=self.adapter.name)
        if message is not None:
            fields |= log_fields(subject=message.subject)
        if self.peer is not None:
            fields["peer"] = self.peer.id
        return fields

    def broken(self) -> None:
        """Cut the link for a mistake of ours, or of a plugin, which must not cost the event loop or other links."""
        logger.exception("what came from %s could not be handled; its link is cut", self.address, extra=self._log_fields())
        self.abort(Closed(1011, "an internal error"), comes_back=True)

    def _peer_of(self, key: Any) -> PeerPort | None:
        peer: PeerPort | None = self.peer if self.multiplexed is None else self.multiplexed.peers.get(key)
        return peer

    def receive_all(self, messages: list[Message]) -> None:
        """Act on messages that one of many peers has sent before it was authenticated."""
        now = self.runtime.time()
        for message in messages:
            peer = self._peer_of(message.peer)
            if peer is not None:
                message.peer = peer.public
                peer.receive(message, now)
        if self.deferred:
            self._do_deferred()

    def _session_event(self, event: Any, now: float) -> None:
        if isinstance(event, Ready):
            if self.reader is not None:
                self.reader.named(event.node)
            self._ready(event.bare)
        elif isinstance(event, Refused):
            self.refused(event.error.reason, str(event.error), now, event.peer_key)
            if event.answer is not None:
                self._answer_refused(event.answer, event.peer_key, now)
            if event.error.reply_id is not None and (peer := self._peer_of(event.peer_key)) is not None:
                peer.answered_badly(event.error)
        elif isinstance(event, Undelivered):
            self.services.counters.dropped += 1
            text = f"{event.reason}: {event.text}" if event.text else event.reason
            if event.code is Code.PERMISSION_DENIED:  # of a handler nobody else would hear
                template = "%s refuses %s of %.100r: %.200s"
                fields, kind = self._log_fields(event.message), event.message.kind.value
                self.runtime.warnings.warn(logger, template, self.address, kind, event.message.subject, text, extra=fields)
            peer = self._peer_of(event.message.peer)
            self.services.dead_letter(None if peer is None else peer.public, event.message, event.code, text)
            if peer is not None and event.message.kind in _ANSWERS:
                peer.answered_in_vain(event.message.id, text)
        elif isinstance(event, PeerOpened):
            if self.multiplexed is not None:
                self.multiplexed.opened(event)
        elif isinstance(event, PeerClosed):
            if self.multiplexed is not None:
                self.multiplexed.closed(event.key, event.reason)
        elif isinstance(event, Confirmed):
            if self._confirmations is not None:
                self._confirmations.answered(event)
        elif isinstance(event, Due):
            self._call_when_due(event.at, now)
        elif isinstance(event, Lost):
            if self.peer is not None:
                self.peer.lost(event.ids, Disconnected(event.reason, "", event.sent))
        elif isinstance(event, (NodeJoined, NodeLeft)):
            if self.reader is not None:
                self.reader.node_event(event)
        elif isinstance(event, OtherServers):
            if self._dialer is not None:
                self._dialer.other_servers(event.addresses, event.leaving)
        elif isinstance(event, CloseWanted):
            self._break_off(Closed(event.code, event.reason, event.error))

    def _break_off(self, why: Closed) -> None:
        """Close the connection because the protocol wants it: a link that this bus has opened comes back."""
        self._ending = self._ending or Ending(why, returns=True)
        self._move(Change.CLOSE)
        if self.transport is not None:
            self.transport.close(why.code, why.reason)

    def _answer_refused(self, answer: Message, key: Any, now: float) -> None:
        """Answer what was malformed, unless its id is in flight: the peer would take this for the answer to that."""
        peer = self._peer_of(key)
        in_flight = peer is not None and peer.in_flight(answer.id)
        if self.session is not None and not in_flight:
            with suppress(BusError):  # one of many has gone meanwhile
                self.send_frames(self.session.send(answer, now, key)[1])

    def refused(self, reason: str, text: str, now: float, key: Any = None) -> None:
        """Count one malformed message. Too many in a minute end the link, or of many peers the one with that key.

        A connection that many senders share stays: nobody knows which of them sends what is malformed.
        """
        self.services.counters.malformed += 1
        of_one = None if self.multiplexed is None else self.multiplexed.offences_of(key)
        count, limit = (of_one or self._offences).add(now), self.runtime.limits.bad_messages
        peer: Any = self._peer_of(key)
        if count == 1:
            template = "malformed message from %s dropped: %.200r"
            address = self.address if peer is None else peer.address
            self.runtime.warnings.warn(logger, template, address, text, extra=self._log_fields())
        self.services.emit(FrameRefused(peer=None if peer is None else peer.public, reason=reason, text=text))
        if count <= limit or self._ending is not None:
            return
        if self.multiplexed is not None and of_one is not None:
            self.multiplexed.expel(key, 1008, too_many(limit))
        elif self.session is None or not self.session.capabilities.many_senders:
            self._break_off(Closed(1008, too_many(limit)))

    def lost(self, count: int, why: str) -> None:
        """Count messages that the transport has dropped."""
        self.services.counters.dropped += count
        if why:
            template = "%s messages on the connection of %s are dropped: %s"
            self.runtime.warnings.warn(logger, template, count, self.address, why, about=why, extra=self._log_fields())

    # -- what leaves -----------------------------------------------------------------------------------------------------

    def send_frames(self, frames: Frames) -> None:
        """Hand frames of the session to the transport."""
        send = self.transport.send  # type: ignore[union-attr]  # a session stands on a transport
        for frame in (frames,) if isinstance(frames, bytes) else frames:
            send(frame)

    def forget(self, key: Any) -> None:
        """Tell the session that nobody waits for the answer to this key."""
        if self.session is not None:
            self.send_frames(self.session.forget(key, self.runtime.time()))

    def write(self, message: Message, peer: PeerPort) -> Any:
        """Give a message to the session now, whatever the state of the connection.

        Nothing is written to one of many peers that has gone, or to which goodbye has been said with all of them: its key may
        be another's by now.

        Raises:
            EncodeError, Unsupported, LocalProtocolError, TooLarge, QueueFull: As `Session.send`.
        """
        session = self.session
        assert session is not None
        if self.multiplexed is not None and (peer.gone or self.state is State.CLOSING):
            return None
        self.services.counters.sent += 1
        key, frames = session.send(message, self.runtime.time(), peer.key)
        if isinstance(frames, bytes):
            self.transport.send(frames)  # type: ignore[union-attr]  # a session stands on a transport
        else:
            self.send_frames(frames)
        return key

    def publish(self, message: Message, peer: PeerPort, deadline: float) -> bool:
        """Send a publication or let it wait; False if there is no room (then nothing has happened)."""
        session = self.session
        if self.multiplexed is not None and peer.gone:
            return True  # no peer will read it
        if self.flowing and session is not None:
            self.services.counters.sent += 1
            codec = self.shared
            if codec is not None:
                shared = message.shared
                frame = shared.get(codec)
                if frame is None:
                    frame = self._shared_frame(message, codec)
                self.transport.send(frame)  # type: ignore[union-attr]  # a session stands on a transport
            else:
                self.send_frames(session.send(message, self.runtime.time(), peer.key)[1])
            return True
        self.check_initiates(peer)
        return self._wait(message, peer, None, deadline, droppable=True)

    def check_initiates(self, peer: PeerPort) -> None:
        """
        Raises:
            Unsupported: This side may only answer (a plain HTTP server).
        """
        if not self.initiates:
            raise Unsupported(f"{peer!r} can only be answered: on this connection its server begins nothing")

    def publish_alone(self, message: Message, peer: PeerPort) -> None:
        """`publish` for a link that is flowing and a publication that goes nowhere else: nothing is kept for others."""
        codec = self.shared
        if codec is None:
            self.write(message, peer)
            return
        frame = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        self.services.counters.sent += 1
        self.transport.send(frame)  # type: ignore[union-attr]  # a flowing link has a transport

    def set_shared(self) -> None:
        """Find out what of a publication this link shares with others: for a new session, or once the peer is known."""
        session, transport = self.session, self.transport
        assert session is not None and transport is not None
        can = session.capabilities
        self.carries_headers, self.bare_headers, self.own_headers = can.headers, can.bare_headers, can.own_headers
        self.destinations, self.has_groups = can.destinations, can.groups
        # Where publications are an extension, what a stranger asked for has a form that strangers read: see the session.
        known = self.opened or not can.asks_before_publishing or (self.peer is not None and self.peer.speaks_extensions)
        self.shared = session.codec if can.shared_publish and known else None
        features = TransportFeatures.of(transport)
        self.initiates = can.initiates and features.initiates
        self.send_framed = features.send_framed
        self.send_alone = features.send_alone
        self.ask = self.tell = None
        if self.one_format and self.multiplexed is None:
            short = SessionFeatures.of(session)
            self.ask, self.tell = short.ask, short.tell
        self.framing = None
        if self.shared is not None and self.send_framed is not None and transport.framed(b"") is not None:  # type: ignore[attr-defined]
            self.framing = self.shared, type(transport), session.codec.writes

    def framed(self, message: Message) -> bytes:
        """Make the bytes of a publication on all links with the same `framing`.

        Raises:
            EncodeError, Unsupported, TooLarge: The wire cannot carry it.
        """
        framing, transport = self.framing, self.transport
        assert framing is not None and transport is not None
        data: bytes = transport.framed(framing[0].encode((message,)))  # type: ignore[attr-defined]  # it goes with `send_framed`
        message.shared[framing] = data
        return data

    def _too_large(self, frame: bytes) -> TooLarge:
        return TooLarge(f"a publication of {len(frame)} bytes: the limit is {self.runtime.limits.message} (Limits.message)")

    def _shared_frame(self, message: Message, codec: Any) -> bytes:
        frame: bytes = codec.encode((message,))
        if len(frame) > self.runtime.limits.message:
            raise self._too_large(frame)
        message.shared[codec] = frame
        return frame

    def request(self, message: Message, reply: Reply[Any], peer: PeerPort) -> None:
        """Send a request or let it wait.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: Misuse; anything else fails the reply.
        """
        if self.multiplexed is not None and peer.gone:
            reply.fail(Disconnected("the peer has gone", peer.address, False))
            return
        if not self.flowing:
            self.check_initiates(peer)
            if not self._comes:
                reply.fail(self.disconnected(sent=False))
            elif self._wait(message, peer, reply, reply.deadline, droppable=False):
                peer.request_waits(reply)
            else:
                reply.fail(QueueFull(f"the outbox to {self.address} is full: {self.outbox or 'empty'}"))
            return
        self.send_request(message, reply, peer, reply.started)

    def send_request(
        self, message: Message | None, reply: Reply[Any], peer: PeerPort, now: float, raw: bytes | None = None
    ) -> None:
        """Write a request now, before anything that waits; without a message the one that `reply` and `raw` say, by `ask`.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: Misuse; anything else fails the reply.
        """
        pending = peer.pending
        if len(pending) >= self.runtime.limits.pending:
            reply.fail(QueueFull(f"{len(pending)} requests to {self.address} already wait for their answer"))
            return
        try:
            if message is None:
                key, frames = self.ask(reply.subject, raw, reply.ttl)  # type: ignore[misc,arg-type]
            else:
                key, frames = self.session.send(message, now, peer.key)  # type: ignore[union-attr]  # there is a session
        except (RequestError, QueueFull, Disconnected) as error:
            reply.fail(error)
            return
        self.services.counters.sent += 1
        reply.key = key
        reply.sent = True
        pending[key] = reply
        if reply.deadline < peer.until:
            peer.watch_reply(reply)
        try:
            if isinstance(frames, bytes):
                ((len(pending) == 1 and self.send_alone) or self.transport.send)(frames)  # type: ignore[union-attr]
            else:
                self.send_frames(frames)
        except TooLarge as error:  # for a connection that takes less than the session does: a tunnel
            pending.pop(key, None)
            reply.fail(error)

    def answer(self, message: Message, peer: PeerPort, *, alone: bool = False) -> None:
        """Send what must not be dropped: answers, items, control. A peer that does not read even these loses its link.

        `alone` is an answer behind which no other is expected in this turn of the event loop.
        """
        if self.flowing and self.multiplexed is None:
            self.services.counters.sent += 1
            frames = self.session.send(message, self.runtime.time(), peer.key)[1]  # type: ignore[union-attr]  # a flowing link has both
            if isinstance(frames, bytes):
                ((alone and self.send_alone) or self.transport.send)(frames)  # type: ignore[union-attr]
            else:
                self.send_frames(frames)
        elif self.flowing or (self.takes_more and (not self.outbox or self.holds)):
            self.write(message, peer)
        elif self.state is State.UP and not self._wait(message, peer, None, 0.0, droppable=False):
            self.too_slow(peer, "its outbox is full of answers")

    async def written(self) -> None:
        """Wait until all that was written so far has left, or the connection is gone.

        Only where writing takes a while (HTTP): on other transports what the connection takes has left.
        """
        written = TransportFeatures.of(self.transport).written
        if written is None:
            return
        await self._outbox_written()
        await written()

    async def _outbox_written(self) -> None:
        """Wait until what waits now has been handed to the transport."""
        last = self.outbox.last if self.outbox is not None else None
        while last is not None and last.waits and self.stands:
            await self.room(math.inf)

    async def confirmed(self) -> Collection[str | int]:
        """Wait until the other end has handled all that was sent so far, on wires that can ask for that.

        Returns:
            Patterns whose subscriptions it refuses.

        Raises:
            Disconnected: The connection ended meanwhile.
        """
        if SessionFeatures.of(self.session).confirm is None:
            return ()
        await self._outbox_written()
        session = self.session
        if session is None or not self.stands:
            raise self.disconnected(sent=False)
        confirm = SessionFeatures.of(session).confirm
        if confirm is None:
            return ()
        self._confirmations = self._confirmations or Confirmations()
        key, question = confirm(self.runtime.time())
        asked = self._confirmations.ask(key)
        self.send_frames(question)
        return await asked.answer(self.address)

    def disconnected(self, *, sent: bool) -> BusError:
        """Make the error that says why nothing can be sent any more."""
        why = None if self._ending is None else self._ending.why
        if why is not None and why.error is not None:
            return another(why.error)
        return Disconnected(why.reason if why is not None else "the link is closed", self.address, sent)

    def absence(self, longest: float = 0.0) -> str:
        """Say since when it is down; empty while it is not, and where that is no longer than so many seconds."""
        if self._lost_at is None or self.runtime.time() - self._lost_at < longest:
            return ""
        which = f"the link to {self.beyond} is down " if self.inner else ""
        why = f": {self._lost_why}" if self._lost_why else ""
        return f"{which}since {self.runtime.time() - self._lost_at:.3g} s{why}"

    def silence(self, longest: float = 0.0) -> str:
        """Say that an inner link is silent for longer than so many seconds, and than it may be; else empty."""
        heard: float | None = getattr(self.session, "heard", None) if self.inner else None
        silent = 0.0 if heard is None else self.runtime.time() - heard
        return (
            f"nothing has come from {self.beyond} for {silent:.3g} s: is it stopped?" if silent > max(longest, _SILENT) else ""
        )

    def still_down(self, address: str) -> Disconnected:
        """Make the error of a request that has waited in vain for the connection to come back."""
        if self.inner and self._lost_at is not None:
            return Disconnected(self.absence(), "", False)
        absence = f"{self.absence()}; it did not come back within the timeout"
        return Disconnected(absence.removeprefix("; "), address, False)

    # -- what waits ------------------------------------------------------------------------------------------------------

    def too_slow(self, peer: Any, text: str) -> None:
        """End the link of a peer that does not read; one of many is sent away alone."""
        if self.multiplexed is not None and peer.gone:
            return
        self.services.emit(PeerSlow(peer=peer.public, policy="disconnect", dropped=self.slow))
        if self.multiplexed is not None:
            self.multiplexed.send_away(peer, 1013, f"too slow: {text}")
            return
        slow = Closed(1013, f"the peer is too slow: {text}")
        if self._ending is None:
            self._tell_end(slow)
        self.abort(slow, comes_back=True)

    def _tell_end(self, why: Closed) -> None:
        """Tell why an accepted connection ends; of one that is dialled again its dialer tells."""
        if not self.opened:
            template = "the connection of %s has ended: %.200s"
            self.runtime.warnings.warn(logger, template, self.address, why.reason, extra=self._log_fields())

    def dropped(self, peer: Any) -> None:
        self.services.counters.dropped += 1
        self.slow += 1
        if self.slow == 1:
            self.services.emit(PeerSlow(peer=None if peer is None else peer.public, policy=self.when_full, dropped=1))
            text = "%s reads too slowly: publications to it are dropped (when_full=%r), and counted in stats().dropped"
            self.runtime.warnings.warn(logger, text, peer or self.address, self.when_full, extra=self._log_fields())

    def _wait(self, message: Message, peer: PeerPort, reply: Reply[Any] | None, deadline: float, *, droppable: bool) -> bool:
        if not self._comes:
            return True  # no peer will read it; the caller learns from the link's end
        if self.outbox is None:
            self.outbox = SendQueue(self)
        return self.outbox.wait(message, peer, reply, deadline, droppable=droppable)

    @property
    def _comes(self) -> bool:
        """True while a connection is there, or will be, for what begins to wait now."""
        ending = self._ending
        return self.state is not State.CLOSED and (ending is None or (self.opened and ending.returns))

    @property
    def takes_more(self) -> bool:
        """True while the connection is up and takes what waits: not of one that is ended to make another."""
        return not self.paused and self.stands and not (self.opened and self._ending is not None and self._ending.returns)

    def _update_flow(self) -> None:
        self.flowing = self.state is State.UP and not self.paused and not self.outbox and self.initiates and not self.holds

    def _drain_outbox(self) -> None:
        """Write what waits, as far as the connection takes it."""
        outbox = self.outbox
        if outbox is not None and not self.holds:
            outbox.drain()
            if not len(outbox):
                self.outbox = None
                self.runtime.notifier.signal()
        self._update_flow()
        self.let_begin()

    def let_begin(self) -> None:
        """Let requests begin that waited until their peers read."""
        if self.stalled:
            stalled, self.stalled = self.stalled, {}
            for calls in stalled:
                calls.resume()

    async def room(self, deadline: float) -> bool:
        """Wait until the outbox may have room again. False when the deadline passed or the link ended."""
        if self.state is State.CLOSED:
            return False
        return self.outbox is None or await self.outbox.room(deadline)

    async def room_for_answer(self) -> None:
        """Let the answer of a handler wait as long as too many others do: it keeps the handler's place meanwhile.

        So a peer that reads gets all it has asked for, however much that is. One that does not read ends at `write_timeout`.
        """
        while self.stands and self.outbox is not None and not self.outbox.takes_answers:
            await self.room(math.inf)

    def hold(self) -> None:
        """Let all but answers wait, until `release`."""
        self.holds = True
        self._update_flow()

    def release(self) -> None:
        """Write what waits."""
        if self.holds:
            self.holds = False
            self._drain_outbox()

    def pause_writing(self) -> None:
        self.paused = True
        self.flowing = False
        self._charge(self.transport.write_backlog() if self.transport is not None else 0)

    def resume_writing(self) -> None:
        self.paused = False
        self._charge(0)
        if self.slow:
            self.slow = 0
        self._drain_outbox()

    def _charge(self, size: int) -> None:
        """Charge what a stalled connection holds, which counts in `Limits.total_bytes` like what waits for it."""
        self.unwritten.charge(size - self.unwritten.held)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def closing(self, why: Closed) -> None:
        """Fail what waits for answers: none can come any more, though the connection is not gone."""
        comes_back = self._comes_back(why)
        if not comes_back and self._ending is None:
            self._ending = Ending(why)  # so that no request begins to wait
        self._move(Change.CUT)
        for peer in self.peers:
            peer.cut_off(why.reason, None if comes_back else why.error)

    def closed(self, why: Closed) -> None:
        """End the connection: it is gone."""
        first = self._ending.why if self._ending is not None else why
        if (why.stalled or why.code in _BROKEN) and first is why:
            self._tell_end(why)
        if why.error is None and (first.error is not None or why.code == 1006):
            why = first
        self._ended(why)

    def _ended(self, why: Closed) -> None:
        """The connection is gone. An opened link may come back (its dialer decides), an accepted one is over."""
        if self.state is State.CLOSED:
            return
        before = self.state
        if self._taps is not None:
            self._taps.over(why)
            self._taps = None
        if self._receiver is not None:
            self._receiver.over()
            self._receiver = None
        returns = self._comes_back(why)
        if self.was_up and (self._lost_at is None or isinstance(why.error, (Unauthorized, Forbidden))):
            self._lost_at = self.runtime.time() if self._lost_at is None else self._lost_at
            self._lost_why = why.reason
        self._move(Change.LOST if returns else Change.ENDED)
        if self._confirmations is not None:
            self._confirmations.lost()
        self._charge(0)
        if self._arriving is not None:
            self._arriving.release(self._arriving.held)
        self._ending = None if returns else Ending(why)
        session, self.session = self.session, None
        if session is not None:
            session.connection_lost(why.reason)
        if self.multiplexed is not None:
            self.multiplexed.lost(why.reason, why.error)
        if self.peer is not None:
            self.peer.connection_lost(why.reason, going_on=returns, error=None if returns else why.error)
        if not returns:
            self._finish(why)
        elif self.outbox is not None:
            self.outbox.drop_bound()
        if before is not State.DOWN or not returns:
            self.services.emit(
                LinkDown(peer=None if self.peer is None else self.peer.public, url=self.url, code=why.code, reason=why.reason)
            )
        if self._dialer is not None:
            self._dialer.link_down(why)
        self.runtime.notifier.signal()

    def _comes_back(self, why: Closed) -> bool:
        # An identity that expires is no refusal where the next attempt brings a new one.
        renewed = self.was_up and (self.insists or (self.renews and isinstance(why.error, Unauthorized)))
        refused = isinstance(why.error, (Unauthorized, Forbidden)) and not renewed
        final = refused or (self._ending is not None and not self._ending.returns)
        return self.opened and not final

    def _finish(self, why: Closed) -> None:
        outbox, self.outbox = self.outbox, None
        if outbox is not None:
            for entry in outbox.clear():
                if entry.reply is not None:
                    entry.reply.fail(self.disconnected(sent=False))
            outbox.wake()
            self.runtime.forget(outbox)
        self.let_begin()
        self.runtime.links.pop(self, None)
        if self.share is not None:
            self.share.leave(self.runtime.addresses)
        self.owner.link_closed(self, why)

    def _hold_back(self) -> None:
        """Share memory and places with other links, though this bus has dialled: clients of others ask over this one."""
        assert self.transport is not None
        self.share = share = Share()
        share.join(self.runtime.addresses, f"broker {self.transport.address}")  # no address of those who have dialled
        self.unwritten.release(self.unwritten.held)
        self.unwritten = MemoryBudget(self.runtime, share=share)
        self.bodies = MemoryBudget(self.runtime, share=share)

    def _charge_arrival(self, transport: Transport) -> None:
        """Charge the part of a frame that comes slowly, since it is kept for long, in `Limits.total_bytes`."""
        slow_arrival = getattr(transport, "slow_arrival", None)  # alone: it is asked for once a second on every connection
        size: int = slow_arrival() if slow_arrival is not None else 0
        budget = self._arriving
        if budget is None:
            if not size:
                return
            budget = self._arriving = MemoryBudget(self.runtime, share=self.share)
        if size <= budget.held:
            budget.release(budget.held - size)
        elif not budget.hold(size - budget.held):
            text = f"the share of Limits.total_bytes leaves no room for the {size} bytes of a frame which comes slowly"
            self.abort(Closed(1013, text), comes_back=True)
