"""For the tests of transports: a host, a gate and a receiver that record calls."""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.abc
import anyio.lowlevel

from polybus import transports
from polybus.errors import BusError
from polybus.limits import Limits
from polybus.plugins import (
    Admission,
    Closed,
    Connector,
    DialOptions,
    Handshake,
    Identity,
    ListenOptions,
    Reservation,
    Transport,
    TransportAdapter,
)
from polybus.testing.contract.transport import FrameReceiver
from tests.support import BOUND

if TYPE_CHECKING:  # Pyodide has none
    import trustme

BOTH: frozenset[Literal["text", "binary"]] = frozenset({"text", "binary"})


def adapter_of(url: str) -> TransportAdapter:
    """The transport of a URL."""
    names = {"memory": "Memory", "tcp": "Tcp", "tls": "Tls", "unix": "Unix", "ws": "WebSocket", "wss": "SecureWebSocket"}
    adapter: TransportAdapter = getattr(transports, names[url.partition(":")[0]])()
    return adapter


def in_chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes, cut at these places."""
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


class Host:
    """A bus as far as transports see one. Its clock is real unless a test holds it."""

    def __init__(self, backend: Literal["asyncio", "trio"], group: anyio.abc.TaskGroup, limits: Limits) -> None:
        self.backend = backend
        self.limits = limits
        self._held: float | None = None
        self.tasks = 0
        self.errors: list[BaseException] = []
        self.receivers: list[Receiver] = []
        self._group = group

    def time(self) -> float:
        # In whole parts of a second, so that what tests add to it comes out exactly: (now + 15) - now may fall short of 15.
        now = anyio.current_time() if self._held is None else self._held
        return math.floor(now * 1024) / 1024

    def hold(self) -> None:
        """Have all that follows happen at this very time, however busy the machine is."""
        self._held = anyio.current_time()

    def reserve(self, address: str) -> Reservation:
        raise NotImplementedError("no transport of these tests is asked before it lets somebody in")

    def call_soon(self, function: Callable[[], None]) -> None:
        if self.backend == "asyncio":
            import asyncio

            asyncio.get_running_loop().call_soon(function)
        else:
            import trio

            trio.lowlevel.current_trio_token().run_sync_soon(function)

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self._group.start_soon(self._guarded, function, args)

    async def _guarded(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        self.tasks += 1
        try:
            await function(*args)
        except Exception as error:
            logging.getLogger(__name__).exception("a task failed")
            self.errors.append(error)
        finally:
            self.tasks -= 1


@asynccontextmanager
async def running(backend: Any, limits: Limits | None = None) -> AsyncIterator[Host]:
    """A host; all that it spawned is cancelled at the end, and nothing may have failed."""
    name = backend[0] if isinstance(backend, tuple) else backend
    async with anyio.create_task_group() as group:
        host = Host(name, group, limits or Limits())
        yield host
        for receiver in host.receivers:
            receiver.transport.abort(Closed(1006, "the test is over"))
        for receiver in host.receivers:
            await receiver.end()
        group.cancel_scope.cancel()
    assert host.errors == []
    assert host.tasks == 0
    await anyio.lowlevel.checkpoint()


class Receiver(FrameReceiver):
    """Writes down what a transport says, and echoes it if it shall; what it waits for has to come in time."""

    def __init__(self, transport: Transport, *, echo: bool = False) -> None:
        super().__init__(transport)
        self.echo = echo

    def frames_received(self, frames: Sequence[bytes]) -> None:
        assert frames
        super().frames_received(frames)
        if self.echo:
            for frame in frames:
                self.transport.send(frame)

    async def until(self, condition: Callable[[], Any]) -> None:
        with anyio.fail_after(BOUND):
            await super().until(condition)

    async def end(self) -> Closed:
        return await self.ended()


class Gate:
    """Lets everybody in, or whom `decide` lets in, and writes down who came."""

    def __init__(self, host: Host, *, echo: bool = False) -> None:
        self.host = host
        self.echo = echo
        self.refusal_at_the_door: BusError | None = None
        self.refusal: BusError | None = None
        self.patient = False
        """Let nobody in before `decide_now`."""
        self.late = False
        """Leave it to the test to start the transports."""
        self.knocks = 0
        self.gone = 0
        self.handshakes: list[Handshake] = []
        self.receivers: list[Receiver] = []
        self.waiting: list[Callable[[Admission | BusError], None]] = []
        self._changed = anyio.Event()

    def knock(self, address: str) -> BusError | None:
        assert address
        self.knocks += 1
        return self.refusal_at_the_door

    def left(self, address: str) -> None:
        self.gone += 1
        self._wake()

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        self.handshakes.append(handshake)
        if self.patient:
            self.waiting.append(decided)
        else:
            decided(self.refusal or Admission(Identity("somebody"), handshake))
        self._wake()

    def opened(self, transport: Transport, admission: Admission) -> None:
        receiver = Receiver(transport, echo=self.echo)
        self.receivers.append(receiver)
        self.host.receivers.append(receiver)
        if not self.late:
            transport.start(receiver)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(BOUND):
            while not condition():
                await self._changed.wait()

    async def peer(self, index: int = 0) -> Receiver:
        await self.until(lambda: len(self.receivers) > index)
        return self.receivers[index]


class Server:
    """A listener with its gate."""

    def __init__(self, url: str, gate: Gate, aclose: Callable[[], Awaitable[None]]) -> None:
        self.url = url
        self.gate = gate
        self.aclose = aclose

    @property
    def port(self) -> int:
        return int(self.url.partition("://")[2].partition("/")[0].rpartition(":")[2])


@asynccontextmanager
async def serving(host: Host, url: str, *, echo: bool = False, **options: Any) -> AsyncIterator[Server]:
    """A listener on a URL."""
    gate = Gate(host, echo=echo)
    chosen: dict[str, Any] = {"reads": BOTH, "writes": "binary", "subprotocol": "test.v1", **options}
    listening = await adapter_of(url).listen(url, ListenOptions(host=host, gate=gate, protocol="test", **chosen))
    try:
        yield Server(listening.url, gate, listening.aclose)
    finally:
        with anyio.CancelScope(shield=True):
            await listening.aclose()


async def dial(host: Host, to: str | Connector, **options: Any) -> Receiver:
    """A started connection."""
    chosen: dict[str, Any] = {"reads": BOTH, "writes": "binary", "subprotocol": "test.v1", **options}
    connector = adapter_of(to).connector(to) if isinstance(to, str) else to
    with anyio.fail_after(BOUND):
        transport = await connector.connect(DialOptions(host=host, **chosen))
    receiver = Receiver(transport)
    host.receivers.append(receiver)
    transport.start(receiver)
    return receiver


async def fill(receiver: Receiver) -> None:
    """Send until nothing more goes into the kernel's buffers either."""
    with anyio.fail_after(BOUND):
        while not (receiver.paused and receiver.transport.write_backlog()):
            receiver.transport.send(b"x" * 1_000_000)
            await anyio.wait_all_tasks_blocked()


class Raw:
    """A peer that speaks bytes."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream
        self.seen = b""

    async def send(self, data: bytes) -> None:
        with anyio.fail_after(BOUND):
            await self.stream.send(data)

    async def until(self, ending: bytes) -> bytes:
        """Everything up to these bytes; what comes after them is kept."""
        with anyio.fail_after(BOUND):
            while ending not in self.seen:
                self.seen += await self.stream.receive()
        head, _, self.seen = self.seen.partition(ending)
        return head + ending

    async def exactly(self, count: int) -> bytes:
        with anyio.fail_after(BOUND):
            while len(self.seen) < count:
                self.seen += await self.stream.receive()
        data, self.seen = self.seen[:count], self.seen[count:]
        return data

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        with anyio.fail_after(BOUND):
            while True:
                try:
                    self.seen += await self.stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return self.seen


@asynccontextmanager
async def raw_peer(server: Server) -> AsyncIterator[Raw]:
    """A bare TCP connection to a listener."""
    stream = await anyio.connect_tcp("127.0.0.1", server.port)
    try:
        yield Raw(stream)
    finally:
        await anyio.aclose_forcefully(stream)


UPGRADE = (
    b"GET /bus HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def accepted(request: bytes) -> bytes:
    """The head of the answer that accepts an upgrade, without the empty line at its end."""
    found = re.search(rb"(?i)sec-websocket-key: (\S+)", request)
    assert found is not None
    accept = base64.b64encode(hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return head + b"Sec-WebSocket-Accept: %b\r\n" % accept


@asynccontextmanager
async def opened(server: Server) -> AsyncIterator[tuple[Raw, Receiver]]:
    """A bare peer that a listener has let in, on ws after the upgrade, and the newest end over there."""
    count = len(server.gate.receivers)
    async with raw_peer(server) as raw:
        if server.url.startswith("ws"):
            await raw.send(UPGRADE)
            await raw.until(b"\r\n\r\n")
        yield raw, await server.gate.peer(count)


@asynccontextmanager
async def bare(
    backend: Any, url: str, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Host, Raw, Receiver]]:
    """A host that serves, a bare peer that it has let in, and its own end of that connection."""
    async with running(backend, limits) as host, serving(host, url, **options) as server, opened(server) as (raw, there):
        yield host, raw, there


@asynccontextmanager
async def joined(
    backend: Any, url: str, limits: Limits | None = None, *, late: bool = False, **options: Any
) -> AsyncIterator[tuple[Host, Receiver, Receiver]]:
    """A host that dials itself, that end, and the other one, which may have to be started yet."""
    async with running(backend, limits) as host, serving(host, url, **options) as server:
        server.gate.late = late
        here = await dial(host, server.url)
        yield host, here, await server.gate.peer()


@asynccontextmanager
async def raw_server(answer: Callable[[Raw], Awaitable[None]]) -> AsyncIterator[int]:
    """A bare TCP server; gives its port."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def serve(stream: anyio.abc.ByteStream) -> None:
        with suppress(anyio.BrokenResourceError):  # the client may leave while we send
            async with stream:
                await answer(Raw(stream))

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        group.cancel_scope.cancel()


def client_tls(authority: trustme.CA, *identities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the authorities of the system, which take long to load
    authority.configure_trust(context)
    if identities:
        authority.issue_cert(*identities).configure_cert(context)
    return context
