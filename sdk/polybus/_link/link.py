"""One connection: a session joined to a transport, with its peers and its ups and downs.

A transport reports to its link. On the way in it hands messages to its peers, on the way out it takes them from the peers
to the session; there is no queue and no task in between, unless the connection is slow or down: then messages wait in the
outbox. What leaves is in `outflow`, what comes in is in `inflow`; its life is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .._core.memory import Account
from .._peer.peer import Peer
from ..errors import Forbidden, Unauthorized
from ..events import LinkDown, LinkUp
from ..plugins import Closed, Handshake, Identity, TransportFeatures
from .inflow import Attachment, Inflow
from .multiplexer import Crowd, expiry
from .outflow import State

if TYPE_CHECKING:
    from .._bus.bus import Bus
    from .._core.runtime import Runtime
    from .._core.services import Services
    from ..capture.record.recorder import Recorder
    from ..capture.record.taps import Tap
    from ..plugins import ProtocolAdapter, Receiver, Role, Session, Transport
    from .outbox import Outbox

__all__ = ["Link", "State"]


class Link(Inflow):
    """A connection that this bus opened (it may come back) or accepted (it ends once)."""

    __slots__ = (
        "_arriving",
        "_attachment",
        "_bare",
        "_since",
        "_taps",
        "expires",
        "handshake",
        "identity",
        "on_down",
        "on_up",
        "recorder",
        "renews",
        "serves",
        "was_up",
    )

    # Declared in `Backlog`; again here for type checkers, because all parts set them.
    flowing: bool
    paused: bool
    session: Session | None
    state: State
    transport: Transport | None
    crowd: Crowd | None
    initiates: bool
    outbox: Outbox | None
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
        *,
        opened: bool,
        serves: tuple[str | int, ...] = (),
        when_full: str = "drop_oldest",
        identity: Identity | None = None,
        handshake: Handshake | None = None,
    ) -> None:
        super().__init__(bus, services, runtime, adapter, url, opened, when_full)
        self.serves: tuple[str | int, ...] = serves
        self.identity: Identity | None = identity
        self.handshake: Handshake | None = handshake
        self.was_up: bool = False
        self.renews: bool = False
        """Whether every attempt asks for credentials anew."""
        self.on_up: Callable[[], None] | None = None
        self.on_down: Callable[[Closed], None] | None = None
        self.recorder: Recorder | None = None
        """Records this link, besides those that record the whole bus."""
        self._arriving: Account | None = None
        self._attachment: Attachment | None = None
        self._taps: list[Tap] = []
        self._bare: tuple[Session, Transport] | None = None  # what they are around
        self._since = 0.0
        self.expires = expiry(identity, runtime)
        runtime.links[self] = None

    # -- peers -----------------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> Peer | None:
        """The one peer of a point-to-point link."""
        return self._peer

    @property
    def peers(self) -> list[Peer]:
        """All peers."""
        if self.crowd is not None:
            return list(self.crowd.peers.values())
        return [self._peer] if self._peer is not None else []

    @property
    def ends(self) -> Closed | None:
        """Why it is over, or is about to be, and does not come back."""
        return self._closing if self.state is State.CLOSED or not self._wanted else None

    # -- life ------------------------------------------------------------------------------------------------------------

    def attach(self, transport: Transport) -> None:
        """A connection is there: begin the session."""
        role: Role = "client" if self.opened else "server"
        now = self.runtime.time()
        self.session = self.adapter.session(role, self.runtime.limits)
        self.transport = transport
        if self.share is not None:
            self.share.join(self.runtime.addresses, transport.address)
        for recorder in (*self.bus._recorders, self.recorder):
            if recorder is not None:
                self.record(recorder)
        transport, session = self.transport, self.session
        self.paused = False
        self._closing = None
        self._wanted = False
        self._since = now
        self.state = State.CONNECTING
        session.start(now)
        if self._attachment is not None:
            self._attachment.over()
        self._attachment = Attachment(self, transport, session)
        if self.urgency is not None:
            TransportFeatures.of(transport).keep_short()
        transport.start(cast("Receiver", self._attachment))  # pyright takes an attribute that is a function for a method
        self._take_events(now)
        self.flush()

    def record(self, recorder: Recorder) -> None:
        """Write down every frame of this connection from now on. Not to be called while a frame is being handled."""
        if self.session is not None and self.transport is not None and all(tap.recorder is not recorder for tap in self._taps):
            if not self._taps:
                self._bare = self.session, self.transport
            self._taps.append(recorder.tap(self.adapter, self.transport, opened=self.opened))
            self._wrap()

    def unrecord(self, recorder: Recorder) -> None:
        """Write down nothing more. Not to be called while a frame is being handled."""
        if self.session is not None and any(tap.recorder is recorder for tap in self._taps):
            self._taps = [tap for tap in self._taps if tap.recorder is not recorder]
            self._wrap()

    def _wrap(self) -> None:
        """Put all who write down around the session and the transport, which otherwise know nothing of it."""
        session: Any
        transport: Any
        session, transport = self._bare or (None, None)
        for tap in self._taps:
            session, transport = tap.around(session, transport)
        self.session = session
        self.transport = transport
        if self.state is State.UP:
            self.set_shared()

    def _ready(self, bare: bool) -> None:
        assert self.session is not None
        capabilities = self.session.capabilities
        if capabilities.many_peers:
            self.crowd = self.crowd or Crowd(self)
        elif self._peer is None:
            self._peer = Peer(self, None, self.identity or Identity())
        if bare and self._peer is not None:
            self._peer._extended = False
        self.set_shared()
        self.state = State.UP
        again, self.was_up = self.was_up, True
        self.bus._link_up(self)
        self._update_flow()
        self._drain_outbox()
        if self.on_up is not None:
            self.on_up()
        self.services.emit(LinkUp(peer=self._peer, url=self.url, again=again))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and close; what waits in the outbox is written first where the connection takes it."""
        if self.state is State.CLOSED:
            return
        self._closing = self._closing or Closed(code, reason)
        self._wanted = self.flowing = False
        transport, session = self.transport, self.session
        if transport is None or session is None or self.state is State.DOWN:
            self._ended(Closed(code, reason))
            return
        session.close(code, reason, self.runtime.time())
        self.flush()
        transport.close(code, reason)

    def abort(self, why: Closed, *, comes_back: bool = False) -> None:
        """Cut the connection; with `comes_back` to protect this process, so that an opened link is made anew."""
        if comes_back and self.state is State.DOWN:
            return  # it is on its way back already, and must not come twice
        self._wanted = comes_back and (self._closing is None or self._wanted)
        self._closing = self._closing or why
        if self.transport is not None and self.state in (State.UP, State.CONNECTING):
            # Nothing more of what has already come in is looked at, and nothing more is written.
            self.flowing = False
            self.paused = True
            if self.session is not None:
                self.session.connection_lost(why.reason)
                self.session = None
            self.transport.abort(why)
        else:
            self._ended(why)

    # -- what the connection reports -------------------------------------------------------------------------------------

    def closing(self, why: Closed) -> None:
        """No answer can come any more, though the connection is not gone: whoever waits for one is told now."""
        comes_back = self._comes_back(why)
        if not comes_back:
            self._closing = self._closing or why  # so that nobody begins to wait
        self.flowing = False
        self.paused = True
        for peer in self.peers:
            peer._cut_off(why.reason, None if comes_back else why.error)

    def closed(self, why: Closed) -> None:
        if self._closing is not None and why.error is None:
            why = self._closing if self._closing.error is not None or why.code == 1006 else why
        self._ended(why)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _ended(self, why: Closed) -> None:
        """The connection is gone. An opened link may come back (`on_down` decides), an accepted one is over."""
        if self.state is State.CLOSED:
            return
        before = self.state
        for tap in self._taps:
            tap.over(why)
        if self._taps:
            self._taps, self._bare = [], None
        if self._attachment is not None:
            self._attachment.over()
            self._attachment = None
        returns = self._comes_back(why)
        self.state = State.DOWN if returns else State.CLOSED
        self.flowing = False
        self._charge(0)
        if self._arriving is not None:
            self._arriving.release(self._arriving.held)
        self._closing = None if returns else why
        session, self.session = self.session, None
        if session is not None:
            session.connection_lost(why.reason)
        if self.crowd is not None:
            self.crowd.lost(why.reason, why.error)
        if self._peer is not None:
            self._peer._lost(why.reason, going_on=returns, error=None if returns else why.error)
        if not returns:
            self._finish(why)
        elif self.outbox is not None:
            self.outbox.drop_bound()
        if before is State.UP or before is State.CONNECTING:
            self.services.emit(LinkDown(peer=self._peer, url=self.url, code=why.code, reason=why.reason))
        if self.on_down is not None:
            self.on_down(why)
        self.runtime.bell.ring()

    def _comes_back(self, why: Closed) -> bool:
        # An identity that expires is no refusal where the next attempt brings a new one.
        renewed = self.renews and self.was_up and isinstance(why.error, Unauthorized)
        refused = isinstance(why.error, (Unauthorized, Forbidden)) and not renewed
        final = refused or (self._closing is not None and not self._wanted)
        return self.opened and self.on_down is not None and not final

    def _finish(self, why: Closed) -> None:
        if self.outbox is not None:
            for entry in self.outbox.clear():
                if entry.reply is not None:
                    entry.reply._fail(self.disconnected(sent=False))
            self.outbox = None
        self._wake_room()
        self.runtime.timed.pop(self, None)
        self.runtime.links.pop(self, None)
        if self.share is not None:
            self.share.leave(self.runtime.addresses)
        self.bus._link_gone(self, why)

    def _charge_arrival(self, transport: Transport) -> None:
        """A frame that comes slowly is kept for long: what is there of it counts in `Limits.total_bytes`."""
        slow_arrival = getattr(transport, "slow_arrival", None)  # alone: it is asked for once a second on every connection
        size: int = slow_arrival() if slow_arrival is not None else 0
        account = self._arriving
        if account is None:
            if not size:
                return
            account = self._arriving = Account(self.runtime, share=self.share)
        if size <= account.held:
            account.release(account.held - size)
        elif not account.hold(size - account.held):
            text = f"the share of Limits.total_bytes leaves no room for the {size} bytes of a frame which comes slowly"
            self.abort(Closed(1013, text), comes_back=True)

    def tick(self, now: float) -> None:
        """About once a second."""
        transport, session = self.transport, self.session
        if self.expires is not None and self.expires <= now:
            self.expires = None
            self._closing = Closed(4401, "the identity has expired", Unauthorized("the identity has expired"))
            self.close(4401, "the identity has expired: authenticate again")
        if transport is not None and self.state is not State.DOWN:
            transport.tick(now)
            self._charge_arrival(transport)
        if self.crowd is not None:
            self.crowd.tick(now)
        limit = self.runtime.limits.handshake_timeout
        if self.state is State.CONNECTING and not self.opened and now - self._since > limit:
            self.abort(Closed(1002, f"the {self.adapter.name} handshake did not complete in {limit:g} s"))
        if session is not None and self.session is session:
            due = session.next_tick()
            if due is not None and due <= now:
                session.tick(now)
                self._take_events(now)
                if self.deferred:
                    self._do_deferred()
                self.flush()
