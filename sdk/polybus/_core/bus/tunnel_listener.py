"""Listens for tunnels, and accepts those with matching names as links of an inner bus."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

import anyio
from msgspec import Struct
from msgspec.structs import replace

from ..._util.typed_body import convert, misfit
from ...errors import BadRequest, BusError, Code, RequestError
from ...plugins import Admission, Handshake
from ...plugins.connections import cookies_of, decision
from ...plugins.extensions import core_of
from ...subjects import captures, matches
from ..rpc.call import Call, failure
from ..runtime.loop_prevention import depth_of_sender
from ..tunnel import FrameChannel, TunnelTransport, too_deep
from .acceptor import BusGate

if TYPE_CHECKING:
    from ...message import Message
    from ...plugins import ProtocolAdapter
    from ..peer.peer import Peer
    from ..peer.peer_core import PeerCore
    from ..runtime.runtime import Runtime
    from .bus_parts import BusParts


class _Opening(Struct, frozen=True):
    protocol: str | None = None
    headers: dict[str, str] | None = None
    params: dict[str, str] | None = None


def _read(message: Message) -> _Opening:
    """Parse the body of an open message. Raises `BadRequest`."""
    try:
        opening: _Opening = convert(message.body if message.has_body else {}, _Opening)
    except ValueError as error:
        text = "the body that opens a tunnel must be an object with protocol, headers and params"
        raise BadRequest(f"{text}: {misfit(error)[0]}") from None
    return opening


class TunnelListener:
    """Accepts tunnels that match a pattern, for the inner bus. Looked up in place of a handler. Implements `Listening`."""

    style = "tunnel"

    def __init__(self, outer: BusParts, pattern: str, inner: BusParts, adapter: ProtocolAdapter, when_full: str) -> None:
        self.pattern: str = pattern
        self.url: str = f"tunnel://{pattern}"
        self._outer = outer
        self._inner = inner
        self._adapter = adapter
        self._when_full = when_full
        self._gate: BusGate | None = None
        self._runtime: Runtime | None = None
        self._opening: anyio.Event | None = None

    def fits(self, name: str | int) -> bool:
        return matches(self.pattern, name)

    async def aclose(self) -> None:
        self._gate = None

    async def gate(self) -> BusGate:
        """Open the inner bus's gate. If that bus is not running, enter it now and leave it together with the outer bus."""
        while self._opening is not None:
            await self._opening.wait()
        inner, gate = self._inner, self._gate
        if gate is None or inner.services.runtime is not self._runtime:
            opening = self._opening = anyio.Event()
            try:
                if inner.services.runtime is None:
                    await self._outer.life.take_in(inner.life)
                runtime = inner.services.running
                runtime.check_here()
                url = f"{self._adapter.name}+{self.url}"
                gate = BusGate(inner.services, inner.links, self._adapter, url, self._when_full)
                inner.links.add_gate(gate, self)
                self._gate, self._runtime = gate, runtime
            finally:
                self._opening = None
                opening.set()
        return gate

    async def drain(self, reason: str, outer: Collection[Peer] | None = None) -> None:
        """Finish the calls in all tunnels, or in those over the given peers, then say goodbye. The inner bus keeps running."""
        gate, runtime = self._gate, self._runtime
        if gate is None or runtime is None or self._inner.services.runtime is not runtime:
            return
        links = [link for link in gate.links if outer is None or (link.admission and link.admission.handshake.outer in outer)]
        if not links:
            return  # also ends the recursion through buses that lead to themselves
        peers = [peer for link in links for peer in link.peers]
        for further in self._inner.lookup.listeners:
            await further.drain(reason, [peer.public for peer in peers])
        calls = [call for peer in peers for call in peer.calls.values()]
        await runtime.notifier.until(lambda: all(call.ended for call in calls))
        for link in links:
            link.close(1001, reason)
        await runtime.notifier.until(lambda: not any(link in runtime.links for link in links))

    def call(self, peer: PeerCore, message: Message, deadline: float) -> TunnelCall:
        text = self._adapter.codec(self._inner.services.limits).writes == "text"
        return tunnel_call(self, peer, message, deadline, text=text)

    async def admit(self, peer: PeerCore, message: Message, channel: FrameChannel) -> None:
        given = _read(message)
        inner, name = self._inner, str(message.subject)
        if given.protocol is not None and given.protocol != self._adapter.name:
            text = f"the tunnel {name!r} uses {self._adapter.name}, not {given.protocol[:64]!r}"
            raise RequestError(Code.FAILED_PRECONDITION, text)
        depth = hops_of(message) + 1
        limit = min(self._outer.services.limits.hops, inner.services.limits.hops)
        if depth > limit:
            raise RequestError(Code.FAILED_PRECONDITION, too_deep(depth, limit))
        gate = await self.gate()
        refused = gate.knock(peer.address)
        if refused is not None:
            raise refused
        try:
            admission = await self._asked(gate, self._handshake(peer, name, given))
        except BaseException:
            gate.left(peer.address)
            raise
        if channel.failed is not None or not peer.connected:
            gate.left(peer.address)
            return
        channel.accept()
        gate.opened(TunnelTransport(inner.services.running, channel, peer.address, depth), admission)

    async def _asked(self, gate: BusGate, handshake: Handshake) -> Admission:
        if self._inner.services.access.authenticate is None:
            return _inherited(core_of(handshake.outer), handshake)
        outcome = await decision(gate, handshake)
        if isinstance(outcome, BusError):
            raise outcome
        return outcome

    def renewed(self, outer: PeerCore) -> None:
        """Pass on a peer's renewed identity to its tunnels and the tunnels inside them.

        Does nothing if the inner bus has its own `authenticate`.
        """
        gate = self._gate
        if gate is None or self._inner.services.access.authenticate is not None:
            return
        for link in list(gate.links):
            if link.admission is not None and link.admission.handshake.outer is outer.public:
                link.renew(_inherited(outer, link.admission.handshake))

    def _handshake(self, peer: PeerCore, name: str, given: _Opening) -> Handshake:
        outer = None if peer.link.admission is None else peer.link.admission.handshake
        tokens = name.split(".")
        headers = {header.lower(): value for header, value in (given.headers or {}).items()}
        return Handshake(
            protocol=self._adapter.name,
            transport="tunnel",
            url=f"{self._adapter.name}+tunnel://{name}",
            path=f"/{name}",
            headers=headers,
            cookies=cookies_of(headers.get("cookie", "")),
            origin=None if outer is None else outer.origin,
            address=peer.address,
            tls_peer=None if outer is None else outer.tls_peer,
            outer=peer.public,
            params={**(given.params or {}), **{part: tokens[at] for part, at in captures(self.pattern).items()}},
        )


def _inherited(outer: PeerCore, handshake: Handshake) -> Admission:
    """Return the outer peer's identity without its expiry. The tunnel closes with the outer link, which may renew it."""
    return Admission(replace(outer.admitted, expires_at=None), handshake)


def tunnel_call(accepts: Any, peer: PeerCore, message: Message, deadline: float, *, text: bool) -> TunnelCall:
    given = message.attributes.get("credit")
    credit = given if isinstance(given, int) and given > 0 else 0
    channel = FrameChannel(peer, message.subject, credit, text=text)
    channel.answers, channel.id = True, message.id
    services, no_handler = peer.link.services, cast("Any", None)
    return TunnelCall(services, peer.inbound, peer, no_handler, message, deadline, _accepts=accepts, channel=channel)


def hops_of(message: Message) -> int:
    """Return the number of tunnels and bridges that an open message has passed, including the tunnels below its link."""
    said = message.attributes.get("hops")
    return (said if isinstance(said, int) else 0) + depth_of_sender(message)


class TunnelCall(Call, eq=False, kw_only=True):
    """A request to open a tunnel. It does not occupy a request slot."""

    answers_once: bool = False
    _accepts: Any
    channel: FrameChannel

    def __post_init__(self) -> None:
        self.channel.on_end = self.stop  # cancels `authorize` and `authenticate` if the opener gives up

    @property
    def function(self) -> str:
        return "authorize or authenticate of a tunnel"

    async def _execute(self, deadline: float | None) -> None:
        assert self.peer is not None
        await self._accepts.admit(self.peer, self.message, self.channel)

    def _refuse(self, error: BaseException) -> None:
        if self.channel.failed is None and not self.channel.accepted:
            self.services.counters.refused += isinstance(error, RequestError)
            self.channel.abort(*failure(error, self.services, self.message))

    def end(self) -> None:
        self.channel.on_end = None
        super().end()

    def expire(self) -> None:
        """Clear the deadline, because it would close an open tunnel."""
        self.deadline = math.inf

    def stop(self) -> None:
        if not self.channel.accepted:
            self.channel.abort(Code.CANCELLED, "the tunnel was cancelled")
        super().stop()
