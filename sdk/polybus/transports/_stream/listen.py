"""Listening sockets, the accept loop, and connections that are not admitted yet."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
from attrs import define, field

from ..._util.listening import network_of, unlink_if_ours
from ..._util.logs import Warnings, log_fields
from ...errors import BusError, TooManyRequests
from ...plugins import Admission, Handshake, ListenOptions
from ...plugins.connections import call_later
from ..sockets import accept_from, address_of, plain_reason
from ..tls import server_reason
from .dial import open_wire
from .transport import WireTransport
from .wire import Wire

logger: logging.Logger = logging.getLogger("polybus.transports")

PendingFactory: TypeAlias = "Callable[[StreamListener, Wire, AdmissionSlot | None, float], PendingConnection]"


@define(eq=False, repr=False)
class StreamListener:
    url: str
    options: ListenOptions
    _sockets: list[socket.socket]
    _tls: ssl.SSLContext | None
    _arrival: PendingFactory
    _arrivals: set[PendingConnection] = field(factory=set, init=False)
    silent: dict[AdmissionSlot, None] = field(factory=dict, init=False)
    """Connections that have not sent any data, oldest first."""
    _bound: contextlib.ExitStack = field(factory=contextlib.ExitStack, init=False)
    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _released: anyio.Event = field(factory=anyio.Event, init=False)
    _alone: anyio.Event = field(factory=anyio.Event, init=False)
    _failures: Warnings = field(init=False)

    def __attrs_post_init__(self) -> None:
        options, sockets = self.options, self._sockets
        if sockets[0].family not in (socket.AF_INET, socket.AF_INET6) and not options.sockets:
            path = sockets[0].getsockname()
            self._bound.callback(unlink_if_ours, path, os.stat(path).st_ino)
        for sock in sockets:
            self._bound.enter_context(sock)
        self._failures = Warnings(options.host.time)
        options.host.spawn(self._run)

    async def aclose(self) -> None:
        """Stop accepting connections, abort unfinished handshakes, and release the address. Other connections stay open.

        Rejected clients have `Limits.close_timeout` to read the reason.
        """
        self._scope.cancel()
        for arrival in list(self._arrivals):
            if not arrival.over:
                arrival.abort()
        await self._released.wait()
        with anyio.move_on_after(self.options.host.limits.close_timeout):
            await self._until_alone()

    async def _until_alone(self) -> None:
        while self._arrivals:
            await self._alone.wait()

    def forget(self, arrival: PendingConnection) -> None:
        self._arrivals.discard(arrival)
        if not self._arrivals:
            self._alone.set()
            self._alone = anyio.Event()

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for sock in self._sockets:
                        group.start_soon(accept_from, sock, self.url, partial(self.options.host.spawn, self._open))
            self._release()
            await self._until_alone()  # refused clients may still be reading, until the bus ends
        finally:
            self._release()
            for arrival in list(self._arrivals):
                arrival.abort()

    def tell(self, address: str, why: str) -> None:
        fields = log_fields(address=address)
        self._failures.warn(logger, "%s: no connection: %s", address, why, level=logging.INFO, extra=fields)

    def _release(self) -> None:
        self._failures.tell()
        self._bound.close()
        self._released.set()

    async def _open(self, sock: socket.socket, name: Any) -> None:
        host, gate = self.options.host, self.options.gate
        address = address_of(sock.family, name)
        deadline = host.time() + host.limits.handshake_timeout
        refusal = gate.knock(address)
        if isinstance(refusal, TooManyRequests) and refusal.reason == "handshakes" and self._make_room():
            refusal = gate.knock(address)
        if refusal is not None and (self._tls is not None or len(self._arrivals) > host.limits.handshakes):
            # A refusal isn't worth a TLS handshake, and at most this many clients get to read one.
            sock.close()
            return
        scope = anyio.CancelScope()
        knock = AdmissionSlot(self, address, scope.cancel) if refusal is None else None
        wire: Wire | None = None
        try:
            with scope:
                with anyio.fail_after(host.limits.handshake_timeout):
                    wire = await open_wire(sock, address, host, self._tls)
        except Exception as error:
            if isinstance(error, TimeoutError):
                self.tell(address, "the handshake did not finish in time")
            else:
                self.tell(address, server_reason(error) if self._tls else plain_reason(error))
        finally:
            if wire is None and knock is not None:
                knock.left()
        if wire is None:
            return
        if scope.cancel_called:  # displaced at the last moment
            wire.abort()
            return
        arrival = self._arrival(self, wire, knock, deadline)
        self._arrivals.add(arrival)
        wire.attach(arrival)
        if refusal is not None:
            arrival.refuse(refusal)
        else:
            arrival.begin()

    def _make_room(self) -> bool:
        """Disconnect the oldest silent connection of the address with the most. Returns `False` if no connection is silent."""
        if not self.silent:
            return False
        share = Counter(knock.network for knock in self.silent)
        most = max(share.values())
        oldest = next(knock for knock in self.silent if share[knock.network] == most)
        oldest.left()
        oldest.give_up()
        return True


@define(eq=False, repr=False)
class PendingConnection(ABC):
    """Base class for connections between accept and admission, which takes at most `Limits.handshake_timeout`."""

    listener: StreamListener
    wire: Wire
    # The slot in the gate's count, or None for a client that is only refused.
    _knock: AdmissionSlot | None
    # Time by which the client must be admitted.
    _deadline: float
    over: bool = field(default=False, init=False)
    """True once the connection has been admitted, rejected or lost. Later input is ignored."""
    # Input for the transport: the first chunk, and what the wire had already read.
    unread: bytearray = field(factory=bytearray, init=False)
    # Function that ends the authentication, while the bus decides.
    _withdraw: Callable[[], None] | None = field(default=None, init=False)
    _cancel_timer: Callable[[], None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        if self._knock is not None:
            self._knock.give_up = partial(self._cut, "it has not sent anything, and other clients are waiting")
        host = self.listener.options.host
        late = partial(self._cut, "the handshake did not finish in time")
        self._cancel_timer = call_later(host, max(self._deadline - host.time(), 0), late)

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def no(self, error: BusError) -> bytes: ...

    @abstractmethod
    def let_in(self, admission: Admission) -> WireTransport:
        """Send the welcome message, if any, and create the transport."""

    def ask(self, handshake: Handshake) -> None:
        """Ask the bus to admit the client. Once the client has sent something, reading is paused until the bus decides."""
        self.wire.pause_reading()
        if self._knock is not None:
            self._knock.heard()
        self._withdraw = self.listener.options.gate.admit(handshake, self._decided)
        if self._withdraw is not None and not self.unread:
            self.wire.resume_reading()

    def refuse(self, error: BusError) -> None:
        self.turn_away(self.no(error))

    def turn_away(self, last_words: bytes) -> None:
        """Send the last bytes, give the peer `Limits.close_timeout` to read them, and close the connection."""
        if self.over:
            return
        self.over = True
        if self._knock is not None:
            self._knock.heard()
        self.wire.write(last_words)
        self._hang_up()
        self.wire.attach(self)  # calls `wire_lost` again if the client has already left

    def _hang_up(self) -> None:
        host = self.listener.options.host
        self._cancel_timer()
        self._cancel_timer = call_later(host, host.limits.close_timeout, self.wire.abort)
        self.wire.hang_up()

    def _decided(self, outcome: Admission | BusError) -> None:
        if self.over:
            return
        if isinstance(outcome, BusError):
            self.refuse(outcome)
            return
        self.over = True
        self._knock = None
        self._cancel_timer()
        self.listener.forget(self)
        if self._withdraw is not None:
            self.wire.pause_reading()
        transport = self.let_in(outcome)
        if self.unread:
            transport.data_received(bytes(self.unread))
        self.wire.attach(transport)
        self.listener.options.gate.opened(transport, outcome)

    def _cut(self, why: str) -> None:
        self.listener.tell(self.wire.address, why)
        self.abort()

    def abort(self) -> None:
        self.over = True
        self.wire.abort()
        self.wire.attach(self)

    def _leave(self) -> bool:
        """End the authentication of a client that has left. Returns `False` if its input still waits for the decision."""
        if self._withdraw is not None and not self.over:
            if self.unread:
                return False
            self._withdraw()
        self.over = True
        return True

    # -- what the wire calls

    def data_received(self, data: bytes) -> None:
        """Keep input that arrives before the decision."""
        if not self.over:
            self.unread += data
            self.wire.pause_reading()

    def eof_received(self) -> None:
        if self._leave():
            self._hang_up()

    def wire_lost(self, error: Exception | None) -> None:
        if not self._leave():
            return
        self._cancel_timer()
        self.listener.forget(self)
        if self._knock is not None:
            self._knock.left()

    def pause_writing(self) -> None:  # noqa: B027
        pass

    resume_writing = pause_writing


@define(eq=False)
class AdmissionSlot:
    """A connection's slot in the gate's count, from accept until admission.

    A new connection can displace a silent one, so that silent connections cannot block a listener.
    """

    _listener: StreamListener
    address: str
    give_up: Callable[[], None]
    network: str = field(init=False)
    _counted: bool = field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self.network = network_of(self.address)
        self._listener.silent[self] = None

    def heard(self) -> None:
        self._listener.silent.pop(self, None)

    def left(self) -> None:
        self.heard()
        if self._counted:
            self._counted = False
            self._listener.options.gate.left(self.address)
