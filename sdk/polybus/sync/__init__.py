"""The blocking twin of the bus, which offers the methods of a bus to threads and runs an event loop in the background.

Use it in command-line tools, Django, notebooks and Spark's ``foreachBatch``: ``with polybus.sync.connect(url) as bus:
bus.request("user.get", {"id": 7})``. In a `def` handler or endpoint, ``ctx.bus`` is a twin that uses the event loop that called
the function.
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
from ..integrations import State_co, injected_as, parts_of
from ..nodes import VARIABLE, Cluster
from ..plugins.tools import CONNECT, check_choice, check_type, explains
from .event_loop_thread import BorrowedLoop, HandlerLoop, OwnedBus, check_not_on_loop
from .items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run
from .verbs import BlockingBus, BlockingCaller, BlockingListener, BlockingPeer, BlockingRemotePeer, BlockingUser

if TYPE_CHECKING:
    import ssl

    from ..integrations import CallThreads, Headers
    from ..limits import Limits
    from ..message import Message
    from ..plugins import Connector, ProtocolAdapter
    from ..retry import Backoff

__all__ = [
    "BlockingBlock", "BlockingBus", "BlockingCaller", "BlockingChannel", "BlockingItems", "BlockingListener", "BlockingPeer",
    "BlockingRemotePeer", "BlockingSubscription", "BlockingTunnel", "BlockingUser", "Bus", "Context", "cluster", "connect",
]  # fmt: skip


for _kind, _name in ((BlockingBus, "bus"), (BlockingPeer, "peer")):
    injected_as(_name, in_thread=True)(_kind)


class BlockingContext(AsyncContext[State_co]):
    """The `Context` of a `def` handler. For type checkers, annotate it as `polybus.sync.Context` or ``Context[Store]``."""

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
        """Sender of the message, or None if this bus itself sent it."""
        peer = super().peer
        return None if peer is None else BlockingPeer(peer, self._run)


Context = BlockingContext
"""Annotation for a `def` handler, with the types of its blocking bus."""


class Bus(BlockingBus):
    """A `polybus.Bus` that runs in a background thread: ``with polybus.sync.Bus(app_bus) as bus: bus.serve(...)``

    Register handlers on the `polybus.Bus`; `def` handlers run in worker threads. Leaving the block drains the bus. Without
    ``with``, call `open` and `close`. If the bus is still open when the interpreter exits, it is closed automatically.

    Args:
        bus: Bus to run. By default a new one is created.
        backend: Event loop in the background, ``asyncio`` or ``trio``.

    Raises:
        TypeError: If `bus` is not a `polybus.Bus`.
        ValueError: If the backend is unknown.
    """

    def __init__(self, bus: AsyncBus | None = None, *, backend: Literal["asyncio", "trio"] = "asyncio") -> None:
        check_choice(backend, ("asyncio", "trio"), "backend")
        if isinstance(bus, BlockingBus):
            raise TypeError(f"sync.Bus() takes a polybus.Bus, not {bus!r} of polybus.sync: use that one")
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
                    f"register handlers on a polybus.Bus: bus = polybus.Bus(), @bus.{name}(...), then sync.Bus(bus)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def _run(self) -> Run:
        return self._call  # not stored, because the bound method keeps the bus alive

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
        """Start the bus, unless it is already running.

        Raises:
            LocalProtocolError: If an ``async def`` function calls this method directly, or if the event loop of this thread
                runs a bus, because the call would block the event loop.
            BusError, ValueError: As for entering a bus, or connecting.
        """
        if self._life is not None:
            self._life.loop.check_process()
        else:
            self._life = self._begin()
        return self

    def close(self) -> None:
        """Drain and stop the bus. You can call this more than once, and from any thread.

        A call from a `def` handler of this bus returns at once. The bus stops later, because the drain waits for the handler.
        """
        if parts_of(self._original).life.is_inside():
            threading.Thread(target=contextvars.Context().run, args=(self.close,), name="polybus closing").start()
        else:
            self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        life = self._life
        if life is not None:
            life.end(kind, error, trace)
            if not life.loop.forked:  # a fork cannot reopen it: the thread is in the parent
                self._life = None

    def __del__(self) -> None:
        life = getattr(self, "_life", None)
        if life is not None and not life.over:
            warnings.warn(f"{self!r} was not closed: use `with`, or close()", ResourceWarning, stacklevel=1, source=self)
            # In another thread, because the garbage collector may run in the thread that has to do the work.
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
    """Connect to a server: ``with polybus.sync.connect("ubre+tcp://127.0.0.1:9000") as bus: ...``

    The link is up when this returns. Without a ``with`` block, for example in a notebook, call `Bus.close` at the end. For all
    other arguments, see `polybus.connect`.

    Args:
        target: As for `polybus.connect`, or the result of `BlockingBus.tunnel`.
        bus: Bus with handlers for the other side. By default a new one is created.
        backend: Event loop in the background, ``asyncio`` or ``trio``. A tunnel uses the event loop of its outer bus.

    Raises:
        ConnectFailed, Unauthorized, Forbidden, TypeError: As for `polybus.connect`.
        ValueError: As for `polybus.connect`, or if the backend is unknown.
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
    """Join a cluster as a node without clients: ``with polybus.sync.cluster("nats+tcp://nats.internal/shop") as bus: ...``

    Publications reach all nodes and their clients, a request reaches a node with a handler, and `BlockingBus.user` finds a user
    on any node. Use this in scripts, cron jobs and consoles. For a node with handlers of its own, use
    ``polybus.sync.Bus(polybus.Bus(cluster=...))``.

    Args:
        target: Engine and name of the cluster, as for `polybus.Cluster`. ``auto`` reads ``POLYBUS_CLUSTER``.
        limits: Limits of the bus.
        backend: Event loop in the background, ``asyncio`` or ``trio``.

    Raises:
        LocalProtocolError: If `target` is ``auto`` and ``POLYBUS_CLUSTER`` is not set.
        ConnectFailed: If the engine cannot be reached within `Cluster.wait`, which is 10 s.
        Unauthorized: If the engine rejects the user or token.
        ValueError: If the target is not the URL of a NATS server, or the backend is unknown.
    """
    options = Cluster.of(target)
    if options is None or options.resolved() is None:
        raise LocalProtocolError(
            f"{VARIABLE} is not set, so there is no cluster to join: set it, or name one, "
            "for example sync.cluster('nats+tcp://127.0.0.1:4222/shop')"
        )
    return Bus(AsyncBus(limits=limits, cluster=options), backend=backend).open()
