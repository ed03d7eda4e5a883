"""The blocking twin: the bus's methods for threads, over an event loop in the background.

For command-line tools, Django, notebooks and Spark's ``foreachBatch``: ``with polybus.sync.connect(url) as bus:
bus.request("user.get", {"id": 7})``. In a `def` handler and a `def` endpoint, ``ctx.bus`` is a twin over the event loop that
called it.
"""

from __future__ import annotations

import contextvars
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from .. import Bus as AsyncBus
from .. import Context as AsyncContext
from .. import connect as connect_async
from ..errors import LocalProtocolError
from ..hosting import State_co, injected_as
from ..nodes import VARIABLE, Cluster
from ..plugins.parts import parts_of
from ..plugins.tools import CONNECT, check_type, explains
from .event_loop_thread import BorrowedLoop, HandlerLoop, OwnedBus, check_not_on_loop
from .items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run
from .verbs import BlockingBus, BlockingCaller, BlockingListener, BlockingPeer, BlockingRemotePeer, BlockingUser

if TYPE_CHECKING:
    import ssl

    from ..backoff import Backoff
    from ..hosting import CallThreads, Headers
    from ..limits import Limits
    from ..message import Message
    from ..plugins import Connector, ProtocolAdapter

__all__ = [
    "BlockingBlock",
    "BlockingBus",
    "BlockingCaller",
    "BlockingChannel",
    "BlockingItems",
    "BlockingListener",
    "BlockingPeer",
    "BlockingRemotePeer",
    "BlockingSubscription",
    "BlockingTunnel",
    "BlockingUser",
    "Bus",
    "Context",
    "cluster",
    "connect",
]


for _kind, _name in ((BlockingBus, "bus"), (BlockingPeer, "peer")):
    injected_as(_name, in_thread=True)(_kind)


class BlockingContext(AsyncContext[State_co]):
    """The `Context` of a `def` handler, as an annotation for type checkers: `polybus.sync.Context`, or ``Context[Store]``."""

    __slots__ = ("_run",)

    def __init__(
        self,
        bus: AsyncBus,
        message: Message,
        deadline: float | None = None,
        pattern: str | int | None = None,
        threads: CallThreads | None = None,
    ) -> None:
        super().__init__(bus, message, deadline, pattern)
        self._run = HandlerLoop(threads)

    @property
    def bus(self) -> BlockingBus:
        """Blocking twin of the handler's bus."""
        return BlockingBus(self._bus, self._run)

    @property
    def peer(self) -> BlockingPeer | None:  # type: ignore[override]  # its verbs block too
        """Sender of the message; None if it came from this bus itself."""
        peer = super().peer
        return None if peer is None else BlockingPeer(peer, self._run)


Context = BlockingContext
"""Annotation for a `def` handler, with the types of its blocking bus."""


class Bus(BlockingBus):
    """A `polybus.Bus` that runs in a separate thread: ``with polybus.sync.Bus(app_bus) as bus: bus.serve(...)``

    Register handlers on the `polybus.Bus`; `def` handlers run in worker threads. Leaving the block drains. Without ``with``,
    call `open` and `close`; an open bus is closed when the interpreter ends.

    Args:
        bus: The bus to run; None creates one.
        backend: The event loop in the background: ``asyncio`` or ``trio``.
    """

    def __init__(self, bus: AsyncBus | None = None, *, backend: Literal["asyncio", "trio"] = "asyncio") -> None:
        if isinstance(bus, str):
            raise TypeError(
                f"sync.Bus() takes a polybus.Bus: a client is polybus.sync.connect({bus!r}), a server bus.serve({bus!r})"
            )
        check_type(bus, AsyncBus, "bus", "bus=polybus.Bus()")
        self._original = bus if bus is not None else AsyncBus()
        self._backend = backend
        self._life: OwnedBus | BorrowedLoop | None = None
        self._outer: Run | None = None
        self._enters: Callable[[], AbstractAsyncContextManager[Any]] = lambda: self._original

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("handle", "on", "include", "use"):
                raise AttributeError(
                    f"handlers stand on a polybus.Bus: bus = polybus.Bus(), @bus.{name}(...), then sync.Bus(bus)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def _run(self) -> Run:
        return self._call  # created anew each time: it keeps the bus alive, but not the other way round

    def _call(self, function: Callable[..., Any], /, *args: Any) -> Any:
        life = self._life
        if life is None:
            raise LocalProtocolError("this bus is not running: open it first, with `with bus:` or bus.open()")
        return life.loop(function, *args)

    def _begin(self) -> OwnedBus | BorrowedLoop:
        check_not_on_loop()
        manager = self._enters()
        return OwnedBus(self._original, self._backend, manager) if self._outer is None else BorrowedLoop(self._outer, manager)

    def open(self) -> Self:
        """Start the bus; does nothing if it runs already.

        Raises:
            LocalProtocolError: An event loop of this thread runs a bus, which this call would block. BusError, ValueError: As
                entering the bus, or connecting.
        """
        if self._life is not None:
            self._life.loop.check_process()
        else:
            self._life = self._begin()
        return self

    def close(self) -> None:
        """Drain and stop the bus. May be called repeatedly, from any thread.

        In a `def` handler of this bus it returns at once and the bus stops afterwards, because the drain waits for that
        handler.
        """
        if parts_of(self._original).is_inside():
            threading.Thread(target=contextvars.Context().run, args=(self.close,), name="polybus closing").start()
        else:
            self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        life = self._life
        if life is not None:
            life.end(kind, error, trace)
            if not life.loop.forked:  # a fork cannot reopen it: it has half of a bus of another process
                self._life = None

    def __del__(self) -> None:
        life = getattr(self, "_life", None)
        if life is not None and not life.over:
            warnings.warn(f"{self!r} was not closed: use `with`, or close()", ResourceWarning, stacklevel=1, source=self)
            # Not here: the garbage collector may run in the very thread that has to do the work.
            threading.Thread(target=life.end, name="polybus closing").start()


@explains("sync.connect", CONNECT)
def connect(
    target: str | Connector | BlockingTunnel,
    *,
    bus: AsyncBus | None = None,
    protocol: str | ProtocolAdapter | None = None,
    serves: Iterable[str | int] = (),
    headers: Headers = None,
    tls: ssl.SSLContext | None = None,
    backoff: Backoff | None = None,
    wait: float = 0.0,
    limits: Limits | None = None,
    record: str | os.PathLike[str] | None = None,
    backend: Literal["asyncio", "trio"] = "asyncio",
) -> Bus:
    """Open a link: ``with polybus.sync.connect("ubre+tcp://127.0.0.1:9000") as bus: ...``

    The link is up when this returns. Without a block (in a notebook), call `Bus.close` at the end.

    Args:
        target: As `polybus.connect`, like the other options; or the result of `BlockingBus.tunnel`.
        bus: A bus with handlers for the other side; None creates one.
        protocol: For a transport object: name or adapter.
        serves: Patterns of the requests for this link.
        headers: Headers of the handshake.
        tls: TLS context for clients.
        backoff: Waits between attempts to reconnect.
        wait: Seconds during which the first connect is retried.
        limits: Limits of a new bus.
        record: Folder for a recording of this link.
        backend: The event loop in the background: ``asyncio`` or ``trio``. A tunnel uses that of its outer bus.

    Raises:
        ConnectFailed, Unauthorized, Forbidden, ValueError: As `polybus.connect`.
    """
    if bus is None:
        bus, limits = AsyncBus(limits=limits), None
    twin = Bus(bus, backend=backend)
    if isinstance(target, BlockingTunnel):
        twin._outer, target = target.run, target.connector
    link: Any = {"protocol": protocol, "serves": serves, "headers": headers, "tls": tls, "record": record}
    twin._enters = partial(connect_async, target, bus=bus, backoff=backoff, wait=wait, limits=limits, **link)
    return twin.open()


def cluster(
    target: str | Cluster = "auto", *, limits: Limits | None = None, backend: Literal["asyncio", "trio"] = "asyncio"
) -> Bus:
    """Join a cluster, as a node without clients: ``with polybus.sync.cluster("nats+tcp://nats.internal/shop") as bus: ...``

    Publications reach all nodes and their clients, requests a node with a handler, and `BlockingBus.user` finds a user
    connected to any node. For scripts, cron jobs and consoles; a node with its own handlers is
    ``polybus.sync.Bus(polybus.Bus(cluster=...))``.

    Args:
        target: The engine and the name of the cluster, as `polybus.Cluster`; ``auto`` reads ``POLYBUS_CLUSTER``.
        limits: Sizes and times.
        backend: The event loop in the background: ``asyncio`` or ``trio``.

    Raises:
        LocalProtocolError: ``auto``, but ``POLYBUS_CLUSTER`` is not set: the bus would be alone.
        ConnectFailed: The engine was not reachable within `Cluster.wait`, 10 s.
        Unauthorized: The engine does not accept this user or token.
        ValueError: Not a URL of NATS.
    """
    options = Cluster.of(target)
    if options is None or options.resolved() is None:
        raise LocalProtocolError(
            f"{VARIABLE} is not set, so there is no cluster to join: set it, or name one, "
            "for example sync.cluster('nats+tcp://127.0.0.1:4222/shop')"
        )
    return Bus(AsyncBus(limits=limits, cluster=options), backend=backend).open()
