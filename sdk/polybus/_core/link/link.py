"""Links, each with a session, a transport and peers. They keep their identity across reconnects.

Messages pass between transport, session and peers without a queue or task in between, except for the `SendQueue` of a
connection that is slow or down.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import define, field

from ..._util.logs import ViolationCounter
from ..._util.sources import sources
from ...errors import Disconnected, Forbidden, Unauthorized, Unsupported
from ...events import LinkDown, LinkUp
from ...message import Message
from ...plugins import Closed, CodecFeatures, Identity, ProtocolFeatures, SessionFeatures, TransportFeatures
from ..runtime.memory_budgets import Share
from .flow import LinkFlow
from .multiplexer import MultiplexedPeers
from .receiver import Confirmation, ConnectionReceiver, Taps, each
from .session_events import act_on, refuse
from .state import TRANSITIONS, Change, Ending, State, ending_after

if TYPE_CHECKING:
    from ...body import BodyFormat
    from ...plugins import Admission, Hear, Receiver, Role, Session, SessionOutput, Transport
    from ...plugins.extensions import LinkReader, Recorder
    from ...retry import Backoff
    from ..runtime.runtime import Runtime
    from .ports import LinkDialer, PeerPort
    from .send_queue import SendQueue

logger: logging.Logger = logging.getLogger("polybus.link")

_SILENT: Final = 3.0
"""Seconds without input after which an inner link counts as silent. Its session sends pings more often than that."""
_BROKEN: Final = frozenset({1002, 1003, 1007, 1008, 1009})
"""Close codes for violations of the transport protocol, by either side."""


@define(eq=False, repr=False, weakref_slot=False)
class Link(LinkFlow):
    """A connection that this bus opened or accepted. Connections that this bus opened can reconnect."""

    dialer: LinkDialer | None = field(default=None, kw_only=True)
    serves: tuple[str | int, ...] = field(default=(), kw_only=True)
    admission: Admission | None = field(default=None, kw_only=True)
    retry: Backoff | None = field(default=None, kw_only=True)
    """Back-off that the client should use, if the listener sets one."""
    deferred: list[Callable[[], None]] = field(factory=list, init=False)
    """Functions to call after the current batch of frames."""
    was_up: bool = field(default=False, init=False)
    renews: bool = field(default=False, init=False)
    """True if every connection attempt requests new credentials."""
    greets: bool = field(default=False, init=False)
    """True if every connection must begin with a hello, because the server's answer may change."""
    insists: bool = field(default=False, init=False)
    """True to reconnect even after a rejection if the link has been up before."""
    reader: LinkReader | None = field(default=None, kw_only=True)
    """Handler for messages that have an address in `Message.peer`."""
    inner: bool = field(default=False, kw_only=True)
    """True if the link connects this bus to the other nodes of its cluster, so that its messages are the bus's own."""
    beyond: str = field(default="", kw_only=True)
    """Name of the remote end of an inner link, for error messages."""
    most_running: int | None = field(default=None, init=False)
    """Override of `Limits.running` for this link."""
    most_waiting: int | None = field(default=None, init=False)
    """Override of `Limits.waiting` for this link."""
    recorder: Recorder | None = field(default=None, init=False)
    expires: float | None = field(init=False)
    offences: ViolationCounter = field(factory=ViolationCounter, init=False)
    receiver: ConnectionReceiver | None = field(default=None, init=False)
    taps: Taps | None = field(default=None, init=False)
    confirmations: dict[Any, Confirmation] = field(factory=dict, init=False)
    _since: float = field(default=0.0, init=False)
    _lost_at: float | None = field(default=None, init=False)
    """Time at which the last usable connection was lost. None while the link is up, and before it was first up."""
    _lost_why: str = field(default="", init=False)
    due: float = field(default=math.inf, init=False)
    """Time at which the session wants to be called."""

    def __attrs_post_init__(self) -> None:
        runtime = self.services.running
        self.runtime: Runtime = runtime
        codec = self.adapter.codec(runtime.limits)
        self.format: BodyFormat = codec.formats[0]
        self.format_for: Callable[[Any, str | int], BodyFormat] = codec.format_for
        features = CodecFeatures.of(codec)
        self.one_format: bool = features.one_format
        self.urgency: Callable[[Message], int] | None = features.urgency
        self.opened: bool = self.dialer is not None
        self.share_with(None if self.opened else Share())
        self.expires = None if self.admission is None else self.admission.identity.ends(runtime.time())
        runtime.links[self] = None

    def renew(self, admission: Admission) -> None:
        self.admission, self.expires = admission, admission.identity.ends(self.runtime.time())
        if self.peer is not None:
            self.peer.renew(admission.identity)

    # -- peers -----------------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> list[Any]:
        if self.multiplexed is not None:
            return list(self.multiplexed.peers.values())
        return [self.peer] if self.peer is not None else []

    @property
    def ends(self) -> Closed | None:
        """Reason why the link has closed or is about to close for good, otherwise None."""
        ending = self._ending
        return ending.why if ending is not None and (self.state is State.CLOSED or not ending.returns) else None

    # -- life ------------------------------------------------------------------------------------------------------------

    def attach(self, transport: Transport) -> None:
        role: Role = "client" if self.opened else "server"
        now = self.runtime.time()
        hear: Hear | None = getattr(transport, "hear", None)  # faster than `TransportFeatures.of`
        if hear is None:
            self.session = self.adapter.session(role, self.runtime.limits, sources.get().rng)
        else:
            self.session = self._session_on_fabric(role, hear)
        self.usual: Callable[[bytes, Mapping[Any, Any]], Message | None] | None = None  # may belong to the last session
        self.due = math.inf  # forget the time that the last session asked for
        self.transport: Transport | None = transport
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
        if self.receiver is not None:
            self.receiver.over()
        self.receiver = ConnectionReceiver(self, transport, session)
        if self.urgency is not None:
            TransportFeatures.of(transport).keep_short()
        transport.start(cast("Receiver", self.receiver))  # pyright treats a function attribute as a method
        self._take(output, session, now)

    def _session_on_fabric(self, role: Role, hear: Hear) -> Session:
        fabric = ProtocolFeatures.of(self.adapter).fabric
        if fabric is None:
            raise Unsupported(f"{self.adapter.name} has no form on a fabric")
        return fabric.session(role, self.runtime.limits, sources.get().rng, hear)

    def record(self, recorder: Recorder) -> None:
        """Start recording the frames of this connection. Do not call this while a frame is being handled."""
        if self.session is not None and self.transport is not None:
            taps = self.taps = self.taps or Taps(self.session, self.transport)
            who = None if self.admission is None else self.admission.identity.key
            if taps.add(recorder, self.adapter, self.transport, opened=self.opened, who=who):
                self._wrap(taps)

    def unrecord(self, recorder: Recorder) -> None:
        """Stop recording. Do not call this while a frame is being handled."""
        if self.session is not None and self.taps is not None and self.taps.remove(recorder):
            self._wrap(self.taps)

    def _wrap(self, taps: Taps) -> None:
        self.session, self.transport = taps.around()
        if self.stands:
            self.set_shared()

    def _move(self, change: Change) -> None:
        self.state: State = TRANSITIONS[self.state][change]
        self.update_flow()

    def ready(self, bare: bool) -> None:
        self._move(Change.READY)
        if self.state is not State.UP:
            return
        assert self.session is not None
        capabilities = self.session.capabilities
        if capabilities.many_peers:
            if self.share is None:
                self.hold_back()
            self.multiplexed: MultiplexedPeers | None = self.multiplexed or MultiplexedPeers(self)
        elif self.peer is None:
            identity = Identity() if self.admission is None else self.admission.identity
            self.peer: Any = self.owner.open_peer(self, None, identity, "")
        if bare and self.peer is not None:
            self.peer.mark_bare()
        self.set_shared()
        again, self.was_up = self.was_up, True
        self._lost_at = None
        self.owner.link_up(self)
        self.drain_outbox()
        if self.dialer is not None:
            self.dialer.link_up()
        self.services.emit(LinkUp(peer=None if self.peer is None else self.peer.public, url=self.url, again=again))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the link, after writing the outbox if possible."""
        if self.state is State.CLOSED:
            return
        self._ending = ending_after(self._ending, Closed(code, reason))
        transport, session = self.transport, self.session
        if transport is None or session is None or self.state is State.DOWN:
            self._ended(Closed(code, reason))
            return
        self._move(Change.CLOSE)
        self.send_frames(session.close(code, reason, self.runtime.time()))
        transport.close(code, reason)

    def abort(self, why: Closed, *, comes_back: bool = False) -> None:
        """Abort the connection. If `comes_back` is set, a link that this bus opened reconnects."""
        if comes_back and self.state is State.DOWN:
            return  # already reconnecting
        self._ending = ending_after(self._ending, why, returns=comes_back)
        if self.transport is not None and self.state is not State.DOWN and self.state is not State.CLOSED:
            self._move(Change.CUT)
            if self.session is not None:
                self.session.connection_lost(why.reason)
                self.session = None
            try:
                self.transport.abort(why)
            except Exception:  # an error of a plugin must not affect other links
                logger.exception("the connection of %s could not be cut; it is given up", self.address, extra=self.log_fields())
                self._ended(why)
        else:
            self._ended(why)

    def turn_away(self, error: Forbidden | Unauthorized, text: str) -> None:
        """Close the link of a client that is not authorized to connect, or no longer authorized."""
        self.expires = None
        code = 4403 if isinstance(error, Forbidden) else 4401
        self._ending = Ending(Closed(code, error.text, error))
        self.close(code, text)

    def tick(self, now: float) -> None:
        """Check timeouts and call the session if it is due. Called about once a second."""
        transport, session = self.transport, self.session
        if self.expires is not None and self.expires <= now:
            self.turn_away(Unauthorized("the identity has expired"), "the identity has expired: authenticate again")
        if transport is not None and self.state is not State.DOWN:
            transport.tick(now)
            self.charge_arrival(transport)
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

    def call_when_due(self, due: float, now: float) -> None:
        if due <= now:  # in two iterations, after the handlers that start in the next one
            self.runtime.call_soon(self.runtime.call_soon, self._tick_session)
        elif due < self.due:
            self.due = due
            self.runtime.deadlines.watch(self, due)

    def expire(self, now: float) -> float:
        if self.due <= now:
            self.due = math.inf
            self._tick_session()
        return self.due

    # -- incoming --------------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        session = self.session
        if session is None:
            return
        now = self.runtime.time()
        receive, usual = session.receive, self.usual
        try:
            for frame in frames:
                peer = self.peer
                message = None if usual is None else usual(frame, peer.pending)
                if message is None:
                    output = receive(frame, now)
                    if not isinstance(output, Message):
                        if self._take(output, session, now):
                            continue
                        break  # after a violation, drop the rest
                    message = output
                if peer is None or message.peer is not None:
                    self._deliver(message, now)
                else:
                    message.peer = peer.public
                    peer.receive(message, now)
                if self.session is not session:
                    break
            if self.deferred:
                self._do_deferred()
        except BaseException as error:
            self.broken()
            if not isinstance(error, Exception):
                raise  # for example KeyboardInterrupt in a hook

    def take(self, output: SessionOutput) -> None:
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
        """Handle the session's output. Returns False if the remaining output must be dropped."""
        for one in each(output):
            if isinstance(one, Message):
                self._deliver(one, now)
            elif isinstance(one, bytes):
                self.transport.send(one)  # type: ignore[union-attr]  # a session implies a transport
            else:
                act_on(self, one, now)
                if self._ending is not None:
                    return False
            if self.session is not session:
                return False
        return True

    def _deliver(self, message: Message, now: float) -> None:
        if message.peer is not None and self.reader is not None:
            self.reader.receive(message, now)
            return
        peer = self.peer or self.peer_of(message.peer)
        if peer is not None:
            message.peer = peer.public
            peer.receive(message, now)
        elif self.multiplexed is not None:  # a peer that is unknown or being authenticated
            self.multiplexed.hold(message)

    @property
    def ending(self) -> bool:
        """True if later input is dropped."""
        return self._ending is not None or self.session is None

    def _do_deferred(self) -> None:
        deferred, self.deferred = self.deferred, []
        for act in deferred:
            act()

    def broken(self) -> None:
        """Abort this link, but no others, after a bug in polybus or a plugin."""
        logger.exception("what came from %s could not be handled; its link is cut", self.address, extra=self.log_fields())
        self.abort(Closed(1011, "an internal error"), comes_back=True)

    def peer_of(self, key: Any) -> PeerPort | None:
        peer: PeerPort | None = self.peer if self.multiplexed is None else self.multiplexed.peers.get(key)
        return peer

    def break_off(self, why: Closed) -> None:
        """Close the connection because the session requests it. A link that this bus opened then reconnects."""
        self._ending = ending_after(self._ending, why, returns=True)
        self._move(Change.CLOSE)
        if self.transport is not None:
            self.transport.close(why.code, why.reason)

    refused = refuse  # a method without a call of its own

    def lost(self, count: int, why: str) -> None:
        self.services.counters.dropped += count
        if why:
            template = "%s messages on the connection of %s are dropped: %s"
            self.runtime.warnings.warn(logger, template, count, self.address, why, about=why, extra=self.log_fields())

    # -- outgoing --------------------------------------------------------------------------------------------------------

    async def written(self) -> None:
        """Wait until everything has been written or the connection is lost, on transports with slow writes such as HTTP."""
        written = TransportFeatures.of(self.transport).written
        if written is None:
            return
        await self._outbox_written()
        await written()

    async def _outbox_written(self) -> None:
        last = self.outbox.last if self.outbox is not None else None
        while last is not None and last.waits and self.stands:
            await self.room(math.inf)

    async def confirmed(self) -> Collection[str | int]:
        """Wait until the peer has handled all earlier messages, if the protocol supports confirmations.

        Returns the patterns that the peer refused to subscribe to. Raises `Disconnected` if the connection ends first.
        """
        if SessionFeatures.of(self.session).confirm is None:
            return ()
        await self._outbox_written()
        confirm = SessionFeatures.of(self.session).confirm
        if confirm is None or not self.stands:
            raise self.disconnected(sent=False)
        key, question = confirm(self.runtime.time())
        asked = self.confirmations[key] = Confirmation()
        self.send_frames(question)
        await asked.over.wait()
        if asked.refused is None:
            raise Disconnected("the connection ended before the server had answered", self.address, True)
        return asked.refused

    def end_confirmations(self) -> None:
        """Fail the tasks that wait in `confirmed`, because the connection has ended."""
        unconfirmed, self.confirmations = self.confirmations, {}
        for asked in unconfirmed.values():
            asked.end(None)

    def absence(self, longest: float = 0.0) -> str:
        """Describe how long the link has been down. Returns an empty string if it is less than `longest` seconds."""
        if self._lost_at is None or self.runtime.time() - self._lost_at < longest:
            return ""
        which = f"the link to {self.beyond} is down " if self.inner else ""
        why = f": {self._lost_why}" if self._lost_why else ""
        return f"{which}since {self.runtime.time() - self._lost_at:.3g} s{why}"

    def silence(self, longest: float = 0.0) -> str:
        """Describe how long an inner link has been silent. Returns an empty string if it is less than `longest` seconds."""
        heard: float | None = getattr(self.session, "heard", None) if self.inner else None
        silent = 0.0 if heard is None else self.runtime.time() - heard
        return (
            f"nothing has come from {self.beyond} for {silent:.3g} s: is it stopped?" if silent > max(longest, _SILENT) else ""
        )

    def still_down(self, address: str) -> Disconnected:
        if self.inner and self._lost_at is not None:
            return Disconnected(self.absence(), "", False)
        absence = f"{self.absence()}; it did not come back within the timeout"
        return Disconnected(absence.removeprefix("; "), address, False)

    # -- closing ---------------------------------------------------------------------------------------------------------

    def closing(self, why: Closed) -> None:
        comes_back = self._comes_back(why)
        if not comes_back and self._ending is None:
            self._ending = Ending(why)  # so that new requests fail
        self._move(Change.CUT)
        for peer in self.peers:
            peer.cut_off(why.reason, None if comes_back else why.error)

    def closed(self, why: Closed) -> None:
        first = self._ending.why if self._ending is not None else why
        if (why.stalled or why.code in _BROKEN) and first is why:
            self.tell_end(why)
        if why.error is None and (first.error is not None or why.code == 1006):
            why = first
        self._ended(why)

    def _ended(self, why: Closed) -> None:
        """Handle the end of the connection, after which the link reconnects or ends."""
        if self.state is State.CLOSED:
            return
        before = self.state
        if self.taps is not None:
            self.taps.over(why)
            self.taps = None
        if self.receiver is not None:
            self.receiver.over()
            self.receiver = None
        returns = self._comes_back(why)
        if self.was_up and (self._lost_at is None or isinstance(why.error, (Unauthorized, Forbidden))):
            self._lost_at = self.runtime.time() if self._lost_at is None else self._lost_at
            self._lost_why = why.reason
        self._move(Change.LOST if returns else Change.ENDED)
        self.end_confirmations()
        self.discharge()
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
        if self.dialer is not None:
            self.dialer.link_down(why)
        self.runtime.notifier.signal()

    def _comes_back(self, why: Closed) -> bool:
        # If every attempt uses new credentials, an expired identity isn't a reason to give up.
        renewed = self.was_up and (self.insists or (self.renews and isinstance(why.error, Unauthorized)))
        refused = isinstance(why.error, (Unauthorized, Forbidden)) and not renewed
        final = refused or (self._ending is not None and not self._ending.returns)
        return self.opened and not final

    def _finish(self, why: Closed) -> None:
        outbox = self.outbox
        self.outbox: SendQueue | None = None
        if outbox is not None:
            outbox.lost(why.reason, why.error)
            outbox.wake()
            self.runtime.deadlines.forget(outbox)
        self.let_begin()
        self.runtime.links.pop(self, None)
        if self.share is not None:
            self.share.leave(self.runtime.addresses)
        self.owner.link_closed(self, why)
