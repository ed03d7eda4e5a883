"""Connects two buses in one process, using the real codec, and creates contexts for calling handlers as plain functions."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from .. import Bus, Context, connect
from ..body import JSON
from ..errors import BusError, LocalProtocolError
from ..integrations import unchecked_of
from ..message import Kind, Message
from ..plugins import Admission, Gate, Handshake, Identity, Listening, ListenOptions, ProtocolAdapter
from ..plugins.features import ProtocolFeatures
from ..plugins.registry import find_protocol
from ..retry import Backoff
from ..transports.memory import Memory
from .faults import Faults

logger: logging.Logger = logging.getLogger("polybus")
_BACKOFF = Backoff(initial=0.001, maximum=0.02)
"""Pauses short enough for tests."""


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
    """Connect a client to a bus: ``async with pair(bus) as client: assert await client.request("user.get", 7) == ...``

    Enters both buses. Exceptions are the same as over real transports. Answers are validated
    (``Bus(check_answers="validate")``) unless you configure a bus otherwise. With NATS, both buses are clients of a
    `NatsEngine`.

    Args:
        bus: The server, with the handlers under test.
        protocol: Name or adapter of the protocol.
        client: The client. Defaults to a new bus.
        identity: The client's identity, used instead of calling `authenticate`. An `Identity` or any other object.
        faults: Faults on the connection.
        reconnect: Reconnect after the connection is lost.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the protocol is unknown.
        LocalProtocolError: If `identity` or `faults` is passed with a protocol that has clients on both ends.
        ConnectFailed: If faults prevent the connection.
        Unauthorized: If `authenticate` cannot authenticate the client.
        Forbidden: If `authenticate` rejects the client.
    """
    client = Bus() if client is None else client
    given = (("bus", bus, Bus), ("client", client, Bus), ("faults", Faults() if faults is None else faults, Faults))
    for name, value, kind in given:
        if not isinstance(value, kind):
            raise TypeError(f"{name}={value!r} must be {kind.__name__}, not {type(value).__name__}")
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
                f"pair(protocol={adapter.name!r}): both are clients of a server, so identity= and faults= do not "
                "apply; connect both to a polybus.testing.NatsEngine, which can be cut, or use another protocol"
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
    """A unique in-memory address. The server listens there and the client connects to it."""

    def __init__(self, identity: Any, reconnects: bool) -> None:
        self.url = f"memory://pair-{secrets.token_hex(4)}"
        self.reconnects = reconnects
        self._identity = identity
        self.connect = Memory().connector(self.url).connect

    async def listen(self, options: ListenOptions) -> Listening:
        if self._identity is not None:
            options = replace(options, gate=_Known(options.gate, self._identity))
        return await Memory().listen(self.url, options)


class _Known:
    """Accepts a client without calling `authenticate`."""

    def __init__(self, gate: Gate, who: Any) -> None:
        self.knock, self.left, self.opened = gate.knock, gate.left, gate.opened
        # Converted like the result of `authenticate`.
        self._who = who if isinstance(who, Identity) else Identity(who, key=who if isinstance(who, str) else None)

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        decided(Admission(self._who, handshake))


class HandlerContext(Context[Any]):
    """A `Context` that needs no running bus, created by `context`."""

    __slots__ = ("_state",)

    def __init__(self, bus: Bus, message: Message, deadline: float | None, state: Any) -> None:
        super().__init__(bus, message, deadline)
        self._state = state

    @property
    def state(self) -> Any:
        """The value passed to `context` in place of the lifespan's."""
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
    """Create a `Context` for calling a handler directly: ``await get_user(7, context(identity="ann", state=store))``

    Args:
        identity: The caller's identity, as `authenticate` would return it. `Context.peer` is `None`.
        state: Stands for the value that the bus's lifespan yields.
        bus: Value of `Context.bus`. Defaults to a new bus. Pass a bus if the handler calls that bus's other handlers.
        subject: Subject of the message.
        body: Body of the message as a plain value.
        headers: Headers of the message.
        deadline: Time on the event loop's clock at which the caller gives up.
    """
    message = Message(Kind.REQUEST, subject, None, None, JSON, None if headers is None else dict(headers))
    message.extras = {"identity": identity}
    if body is not None:
        message.decoded = body
        message.raw = JSON.encode(body)
    return HandlerContext(bus if bus is not None else Bus(), message, deadline, state)
