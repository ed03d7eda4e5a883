"""Two buses in one process, joined by the real codec, and a context for calling a handler as the plain function that it is."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from attrs import evolve

from .. import Bus, Context, connect
from ..backoff import Backoff
from ..body import JSON
from ..errors import BusError, LocalProtocolError
from ..integrations import unchecked_of
from ..message import Kind, Message
from ..plugins import Admission, Gate, Handshake, Identity, Listening, ListenOptions, ProtocolAdapter
from ..plugins.features import ProtocolFeatures
from ..plugins.registry import find_protocol
from ..transports.memory import Memory
from .faults import Faults

logger: logging.Logger = logging.getLogger("polybus")
_BACKOFF = Backoff(initial=0.001, maximum=0.02)
"""A test does not want to wait for a link that comes back."""


@asynccontextmanager
async def pair(
    bus: Bus,
    *,
    protocol: str | ProtocolAdapter = "ubre",
    client: Bus | None = None,
    identity: Any = None,
    faults: Faults | None = None,
    reconnect: bool = False,
) -> AsyncIterator[Bus]:
    """Join a client to a bus: ``async with pair(bus) as client: assert await client.request("user.get", 7) == ...``

    Both are entered. Answers are validated (``Bus(check_answers="validate")``) unless a bus says otherwise. The exceptions are
    those of the real transports. Where both ends of a protocol are clients of a server (NATS), they are of a `NatsEngine`.

    Args:
        bus: The server's side, with the handlers under test.
        protocol: Name or adapter.
        client: The client's side; a new bus by default.
        identity: Who the client is to the server, past `authenticate`: anything, or an `Identity`. None asks `authenticate`.
        faults: How the connection misbehaves.
        reconnect: Whether the link comes back after a loss.

    Raises:
        LocalProtocolError: `identity` or `faults` of a protocol whose ends are both clients: its server says who may come in.
        ConnectFailed: (on entering) The faults did not let the connection stand.
        Unauthorized, Forbidden: (on entering) `authenticate` refuses.
    """
    client = Bus() if client is None else client
    unsaid = [one for one in (bus, client) if one.check_answers is None]
    for one in unsaid:
        one.check_answers = "validate"
        for name, why in unchecked_of(one).items():
            logger.warning("pair: the answers of %s are not validated: %s", name, why)
    try:
        async with _joined(bus, protocol, client, identity, faults, reconnect) as joined:
            yield joined
    finally:
        for one in unsaid:
            one.check_answers = None


@asynccontextmanager
async def _joined(
    bus: Bus, protocol: str | ProtocolAdapter, client: Bus, identity: Any, faults: Faults | None, reconnect: bool
) -> AsyncIterator[Bus]:
    adapter = find_protocol(protocol, {})
    if ProtocolFeatures.of(adapter).dials:
        if identity is not None or faults is not None:
            raise LocalProtocolError(
                f"pair(protocol={adapter.name!r}): both are clients of a server, so identity= and faults= have "
                "no place; connect both to a polybus.testing.NatsEngine, which can be cut, or take another protocol"
            )
        from .nats_engine import NatsEngine

        async with (
            NatsEngine() as engine,
            bus.connect(engine.url, protocol=protocol, backoff=_BACKOFF),
            connect(engine.url, protocol=protocol, bus=client, backoff=_BACKOFF) as joined,
        ):
            yield joined
        return
    meeting = _Meeting(identity, reconnect)
    dialled = meeting if faults is None else faults.around(meeting)
    async with (
        bus.serve(meeting, protocol=protocol),
        connect(dialled, protocol=protocol, bus=client, backoff=_BACKOFF) as joined,
    ):
        yield joined


class _Meeting:
    """One in-memory address that nobody else knows: the server's side listens, the client's connects."""

    def __init__(self, identity: Any, reconnects: bool) -> None:
        self.url = f"memory://pair-{secrets.token_hex(4)}"
        self.reconnects = reconnects
        self._identity = identity
        self.connect = Memory().connector(self.url).connect

    async def listen(self, options: ListenOptions) -> Listening:
        if self._identity is not None:
            options = evolve(options, gate=_Known(options.gate, self._identity))
        return await Memory().listen(self.url, options)


class _Known:
    """A gate that asks nobody who the stranger is."""

    def __init__(self, gate: Gate, who: Any) -> None:
        self.knock, self.left, self.opened = gate.knock, gate.left, gate.opened
        # As the answer of `authenticate` would be taken.
        self._who = who if isinstance(who, Identity) else Identity(who, key=who if isinstance(who, str) else None)

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        decided(Admission(self._who, handshake))


class HandlerContext(Context[Any]):
    """A `Context` outside of any bus that runs; see `context`."""

    __slots__ = ("_state",)

    def __init__(self, bus: Bus, message: Message, deadline: float | None, state: Any) -> None:
        super().__init__(bus, message, deadline)
        self._state = state

    @property
    def state(self) -> Any:
        """The value that was given in the place of the lifespan's."""
        return self._state


def context(
    *,
    identity: Any = None,
    state: Any = None,
    bus: Bus | None = None,
    subject: str | int = "test",
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    deadline: float | None = None,
) -> Context[Any]:
    """Make the `Context` with which a test calls a handler: ``await get_user(7, context(identity="ann", state=store))``

    Args:
        identity: Whoever asks, as `authenticate` would give it; `Context.peer` is None.
        state: The value that the bus's lifespan would yield.
        bus: The bus of `Context.bus`, with the other handlers that are asked; a new one without.
        subject: What the message is about.
        body: Its body, as it would come out of a decoder.
        headers: Text to text.
        deadline: Monotonic time of the event loop at which the asker gives up.
    """
    message = Message(Kind.REQUEST, subject, None, None, JSON, None if headers is None else dict(headers))
    message.extras = {"identity": identity}
    if body is not None:
        message.decoded = body
        message.raw = JSON.encode(body)
    return HandlerContext(bus if bus is not None else Bus(), message, deadline, state)
