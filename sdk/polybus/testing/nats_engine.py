"""An in-process NATS server for tests, and a function that runs buses as cluster nodes on it.

The server works over any transport. It passes the same tests as a real server (`tests/integration/interop`), so the two cannot
drift apart. Server clusters and permissions are not supported. JetStream is limited to what `nats_streams` implements. Clients
that do not read are disconnected.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import anyio
from attrs import define, evolve

from .. import Bus
from ..cluster.backbone import Backbone
from ..errors import BusError, LocalProtocolError, RemoteProtocolError
from ..integrations import Runtime, id_of, is_entered, mesh_of, until
from ..limits import Limits
from ..plugins import Admission, Closed, Handshake, Identity, ListenOptions, Transport
from ..plugins.registry import resolve_url
from ..plugins.tools import SubjectIndex, check_count, check_given, check_type, to_the_end
from ..protocols.nats import Nats
from ..protocols.nats.operations import PONG, NatsOperation, OperationReader, write_error, write_json, write_message
from .nats_streams import NatsStreams

_UNREAD: Final = 16 << 20
"""Number of unread bytes after which the engine disconnects a client."""
_NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"


@define(eq=False)
class EngineSubscription:
    client: EngineClient
    subject: str
    sid: str
    queue: str | None
    left: int | None = None
    """Number of messages still to deliver after an UNSUB with a maximum."""


class NatsEngine:
    """A NATS server for tests: ``async with NatsEngine() as engine, connect(engine.url) as bus: ...``

    Args:
        address: Address to listen at, without the protocol, such as ``tcp://127.0.0.1:0`` or ``ws://127.0.0.1:0/``. Defaults to
            a unique ``memory://`` address.
        max_payload: Maximum size of headers and payload together, in bytes.
        token: Token required from clients. If empty, every client is accepted.
        rng: Source of randomness used to choose members of queue groups.
        keeps: Provide JetStream streams, in memory, for `Store` and durable handlers.

    Raises:
        TypeError, ValueError: If an argument is invalid. On entry, `ValueError` if the address is malformed.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        max_payload: int = 1 << 20,
        token: str = "",
        rng: random.Random | None = None,
        keeps: bool = True,
    ) -> None:
        check_type(address, str, "address", "address='tcp://127.0.0.1:0'")
        check_count(max_payload, "max_payload")
        check_given(token, str, "token", "token='secret'")
        check_type(rng, random.Random, "rng", "rng=random.Random(7)")
        self._keeps = keeps
        self._streams: NatsStreams | None = None
        self._address = address if address is not None else f"memory://nats-{secrets.token_hex(4)}"
        self.max_payload: Final = max_payload
        self.token: Final = token
        self.clients: Final[dict[EngineClient, None]] = {}
        """Current connections."""
        self.subscriptions: Final[SubjectIndex[EngineSubscription]] = SubjectIndex()
        self._rng = rng if rng is not None else random.Random()
        self._limits = Limits(message=max_payload + 64 * 1024, headers=max_payload)
        self._reader = OperationReader(self._limits)
        self._runtime: Runtime | None = None
        self._listening: Any = None
        self.url: str = ""
        """The URL to connect to while the engine is running."""

    async def __aenter__(self) -> Self:
        """Start listening.

        Raises:
            OSError: If the address is already in use or not local.
            Unsupported: If NATS cannot be used over this transport.
            LocalProtocolError: If the engine has already been entered.
        """
        if self._runtime is not None:
            raise LocalProtocolError("this engine has already been entered: create another one")
        runtime = self._runtime = Runtime(self._limits)
        try:
            await runtime.open()
            adapter, transport, address = resolve_url(f"nats+{self._address}", Nats())
            codec = adapter.codec(self._limits)
            options = ListenOptions(
                host=runtime,
                gate=self,
                protocol="nats",
                reads=codec.reads,
                writes=codec.writes,
                subprotocol="nats",
                framing=Nats().framing,
            )
            self._listening = await transport.listen(address, options)
        except BaseException:
            await to_the_end(self._shut)
            raise
        self.url = f"nats+{self._listening.url}"
        runtime.spawn(self._keep_house, runtime)
        if self._keeps:
            self._streams = NatsStreams(self.hand, runtime.time)
            runtime.spawn(self._streams.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(self._leave)

    async def _leave(self) -> None:
        await self._listening.aclose()
        await self.cut()
        await self._shut()

    async def _shut(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    async def _keep_house(self, runtime: Runtime) -> None:
        while True:
            await anyio.sleep(1)
            for client in list(self.clients):
                client.transport.tick(runtime.time())

    async def cut(self) -> None:
        """Cut all connections without a close message, as if the server had been killed."""
        for client in list(self.clients):
            client.transport.abort(Closed(1006, "the engine was cut"))
        if self._runtime is not None:
            await self._runtime.notifier.until(lambda: not self.clients)

    def say(self, text: str) -> None:
        """Send an error to all clients: ``-ERR 'text'``."""
        for client in self.clients:
            client.transport.send(write_error(text))

    def inform(self, **members: Any) -> None:
        """Send all clients a new INFO with these members."""
        for client in self.clients:
            client.transport.send(write_json("INFO", {**self.info, **members}))

    @property
    def info(self) -> dict[str, Any]:
        """Members of the engine's INFO message."""
        return {
            "server_id": "POLYBUSTESTS",
            "server_name": "polybus.testing",
            "version": "2.10.25",
            "proto": 1,
            "headers": True,
            "max_payload": self.max_payload,
            **({"auth_required": True} if self.token else {}),
        }

    # -- plugins.Gate ----------------------------------------------------------------------------------------------------

    def knock(self, address: str) -> BusError | None:
        """Admit everyone."""
        return None

    def left(self, address: str) -> None:
        """Do nothing, because connections are not counted."""

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        """Admit every client, because clients don't authenticate before CONNECT."""
        decided(Admission(Identity(), handshake))

    def opened(self, transport: Transport, admission: Admission) -> None:
        """Send INFO to the new client."""
        client = EngineClient(self, transport)
        self.clients[client] = None
        transport.start(client)
        transport.send(write_json("INFO", self.info))

    # -- what clients do -------------------------------------------------------------------------------------------------

    def gone(self, client: EngineClient) -> None:
        self.clients.pop(client, None)
        for subscription in client.subscriptions.values():
            self.subscriptions.remove(subscription.subject, subscription)
        client.subscriptions.clear()
        if self._runtime is not None:
            self._runtime.notifier.signal()

    def read(self, frame: bytes) -> NatsOperation:
        return self._reader.read(frame)

    def route(self, sender: EngineClient, operation: NatsOperation, block: bytes) -> None:
        """Deliver a message to all matching subscriptions and one member of each queue group.

        Notify the sender if nothing matches.
        """
        told, groups = self._streams is not None and self._streams.take(operation, block), dict[str, list[EngineSubscription]]()
        for subscription in self.subscriptions.match(operation.subject):
            if subscription.client is sender and not sender.echo:
                continue
            if subscription.queue is not None:
                groups.setdefault(subscription.queue, []).append(subscription)
            else:
                told = subscription.client.deliver(subscription, operation, block) or told
        for members in groups.values():
            chosen = self._rng.choice(members)
            told = chosen.client.deliver(chosen, operation, block) or told
        if not told and operation.reply is not None and sender.no_responders:
            answer = NatsOperation("PUB", operation.reply)
            for subscription in self.subscriptions.match(operation.reply):
                if subscription.client is sender:
                    sender.deliver(subscription, answer, _NO_RESPONDERS)

    def hand(self, at: str, operation: NatsOperation, block: bytes) -> bool:
        """Deliver a message from the engine itself to subscribers of `at`. Returns `False` without subscribers."""
        told = False
        for subscription in self.subscriptions.match(at):
            told = subscription.client.deliver(subscription, operation, block) or told
        return told


class EngineClient:
    def __init__(self, engine: NatsEngine, transport: Transport) -> None:
        self.engine: Final = engine
        self.transport: Final = transport
        self.subscriptions: Final[dict[str, EngineSubscription]] = {}
        """Subscriptions by sid."""
        self.echo: bool = True
        self.no_responders: bool = False
        self._known = False

    # -- plugins.Receiver ------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            try:
                self._act(self.engine.read(frame), frame)
            except RemoteProtocolError:
                self._refuse("Unknown Protocol Operation")
                return

    def closed(self, why: Closed) -> None:
        self.engine.gone(self)

    def pause_writing(self) -> None:
        """Do nothing, because the engine disconnects clients that don't read."""

    def resume_writing(self) -> None:
        """Do nothing."""

    # -- operations ------------------------------------------------------------------------------------------------------

    def _act(self, operation: NatsOperation, frame: bytes) -> None:
        verb = operation.verb
        if verb == "CONNECT":
            self._connect(operation.info or {})
        elif not self._known:
            self._refuse("Authorization Violation")
        elif verb in ("PUB", "HPUB"):
            self._publish(operation, frame)
        elif verb == "SUB":
            subscription = EngineSubscription(self, operation.subject, operation.sid, operation.queue)
            self._drop(operation.sid)
            self.subscriptions[operation.sid] = subscription
            self.engine.subscriptions.add(operation.subject, subscription)
        elif verb == "UNSUB":
            self._unsubscribe(operation)
        elif verb == "PING":
            self.transport.send(PONG)

    def _connect(self, members: dict[str, Any]) -> None:
        if self.engine.token and members.get("auth_token") != self.engine.token:
            self._refuse("Authorization Violation")
            return
        self._known = True
        self.echo = members.get("echo") is not False
        self.no_responders = members.get("no_responders") is True

    def _publish(self, operation: NatsOperation, frame: bytes) -> None:
        start = frame.find(b"\r\n") + 2
        if len(frame) - start - 2 > self.engine.max_payload:
            self._refuse("Maximum Payload Violation")
            return
        block = frame[start : len(frame) - 2 - len(operation.payload)]
        self.engine.route(self, operation, block)

    def _unsubscribe(self, operation: NatsOperation) -> None:
        subscription = self.subscriptions.get(operation.sid)
        if subscription is not None and operation.most:
            subscription.left = operation.most
        else:
            self._drop(operation.sid)

    def _drop(self, sid: str) -> None:
        subscription = self.subscriptions.pop(sid, None)
        if subscription is not None:
            self.engine.subscriptions.remove(subscription.subject, subscription)

    def _refuse(self, text: str) -> None:
        self.transport.send(write_error(text))
        self.transport.close(1008, text)

    def deliver(self, subscription: EngineSubscription, operation: NatsOperation, block: bytes) -> bool:
        if self.transport.write_backlog() > _UNREAD:
            self.transport.abort(Closed(1013, "slow consumer"))
            return False
        self.transport.send(write_message(operation.subject, subscription.sid, operation.reply, block, operation.payload))
        if subscription.left is not None:
            subscription.left -= 1
            if not subscription.left:
                self._drop(subscription.sid)
        return True


_PATIENCE: Final = 30.0
"""Seconds to wait for all nodes to find each other. In memory, this is immediate."""


@asynccontextmanager
async def cluster(*buses: Bus, url: str | None = None) -> AsyncIterator[str]:
    """Run buses as the nodes of one cluster: ``async with cluster(gateway, worker): await gateway.publish(...)``

    When the block begins, every node knows all others. Yields the engine's URL, so that other nodes can join later. The cluster
    URLs in ``Bus(cluster=...)`` and ``POLYBUS_CLUSTER`` are ignored. Other cluster options still apply.

    Args:
        buses: The application's buses, not yet entered.
        url: URL of a running engine, for example a `NatsEngine` that the test cuts, or of a real server. Defaults to a new
            in-memory engine.

    Raises:
        TypeError: If an argument has the wrong type.
        LocalProtocolError: If a bus was created without ``cluster=`` or has already been entered.
        ConnectFailed: If there is no engine at `url`.
        TimeoutError: If the nodes don't find each other within 30 s.
    """
    backbones = [_backbone(bus) for bus in buses]
    name = backbones[0].options.name if backbones else ""
    async with AsyncExitStack() as stack:
        if url is None:
            url = (await stack.enter_async_context(NatsEngine())).url
        for backbone in backbones:
            stack.callback(setattr, backbone, "options", backbone.options)
            options = backbone.options
            backbone.options = evolve(options, url=url, name=name, tls=options.tls_for(url))
        for bus in buses:
            await stack.enter_async_context(bus)
        for bus in buses:
            await met(bus, *buses)
        yield url


async def met(bus: Bus, *others: Bus) -> None:
    """Wait until a node of a cluster knows other nodes.

    Raises:
        TimeoutError: If the node does not find them within 30 s.
    """
    backbone = _backbone(bus, entered=True)
    wanted = {*map(id_of, others)} - {id_of(bus)}

    def unknown() -> set[str]:
        return wanted - {str(node.facts.get("bus")) for node in backbone.nodes_known.values()}

    with anyio.move_on_after(_PATIENCE) as scope:
        await until(bus, lambda: not unknown())
    if scope.cancelled_caught:
        raise TimeoutError(
            f"a node did not find {len(unknown())} of {len(wanted)} nodes within {_PATIENCE:g} s: are they in one cluster?"
        )


def _backbone(bus: Bus, *, entered: bool = False) -> Backbone:
    check_given(bus, Bus, "bus", "cluster(Bus(cluster='auto'))")
    backbone = mesh_of(bus)
    if not isinstance(backbone, Backbone):
        raise LocalProtocolError(f"{bus!r} is not a node: create it with Bus(cluster='auto')")
    if not entered and is_entered(bus):
        raise LocalProtocolError(f"{bus!r} has already been entered: cluster() enters its buses itself")
    return backbone
