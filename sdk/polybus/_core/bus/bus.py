"""The bus: a single class for clients, servers and gateways."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import anyio
from attrs import asdict

from ..._util.cancel_scopes import to_the_end
from ..._util.misuse import BUS, CONNECT, SERVE
from ..._util.own_thread import in_own_thread
from ..._validation import check_callable, check_choice, check_type, counted, explains, shown
from ...errors import LocalProtocolError
from ...events import BusEvent
from ...limits import Limits
from ...nodes import Cluster, Node, Survey
from ...outcomes import OutgoingHook
from ...plugins.extensions import Recorder, RecorderStats
from ...plugins.registry import find_protocol, make_recorder
from ...retry import Backoff
from ...stats import Stats
from ...subjects import check_pattern
from ..handlers.providers import Dependencies
from ..handlers.signature import ContextPart, injected_as
from ..peer.peer import Peer
from ..runtime.access import Authenticate, Authorize
from ..runtime.executor import Middleware
from ..runtime.services import Services
from .acceptor import WHEN_FULL, Listener, Serving
from .bus_parts import BusParts
from .cluster_clients import RemotePeer, User
from .dialer import Connecting, Headers
from .lifecycle import DRAIN, Lifespan, check_lifespan
from .verbs import BusVerbs

if TYPE_CHECKING:
    import ssl

    from ...plugins import Connector, ProtocolAdapter
    from ..link.link import Link


class Recording:
    """An async context manager that records all links of a bus.

    Attributes:
        recorder: The recorder that writes the frames.
    """

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self.recorder: Recorder = recorder

    @property
    def capture_id(self) -> str:
        """Name of this recording."""
        return self.recorder.capture_id

    @property
    def path(self) -> str:
        """Folder of the recording."""
        return str(self.recorder.path)

    def stats(self) -> RecorderStats:
        """Return the numbers of frames that have been written and dropped."""
        return self.recorder.stats()

    async def __aenter__(self) -> Recording:
        self.recorder.claim()
        try:
            await in_own_thread(self.recorder.open)
            self._services.recorders.append(self.recorder)
            await self._for_each_link(lambda link: link.record(self.recorder))
        except BaseException:
            await to_the_end(self._end)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await to_the_end(self._end)

    async def _end(self) -> None:
        if self.recorder in self._services.recorders:
            self._services.recorders.remove(self.recorder)
            await self._for_each_link(lambda link: link.unrecord(self.recorder))
        await in_own_thread(self.recorder.close)

    async def _for_each_link(self, change: Callable[[Link], None]) -> None:
        """Change all links between two event-loop iterations, when no link is handling a frame."""
        runtime = self._services.runtime
        if runtime is None:
            return
        done = anyio.Event()

        def now() -> None:
            try:
                for link in runtime.links:
                    change(link)
            finally:
                done.set()

        runtime.call_soon(now)
        with anyio.move_on_after(1):
            await done.wait()


@injected_as("bus")
class Bus(BusVerbs):
    """A message bus with handlers, subscriptions and any number of links.

    A client is a bus with one link and a server is a bus with many. The bus runs inside ``async with bus:`` blocks, which
    `connect`, `serve` and `testing.pair` enter for you. Leaving the last block drains the bus. You can re-enter it later, even
    in another event loop. Its handlers stay registered.

    Args:
        limits: Sizes and times; see `Limits`.
        authenticate: ``authenticate(handshake)`` returns the identity of a new connection. `True` accepts the connection
            without an identity. `None` or another empty value rejects the connection. By default, only clients on this machine
            are accepted.
        authorize: ``authorize(peer, verb, subject)`` returns True if the peer may do this. By default, everything is allowed.
            If the function has a ``message`` parameter, it also receives the message, for example to check a uProtocol token.
        lifespan: ``lifespan(bus)`` returns an async context manager that runs around the handlers and yields ``ctx.state``. It
            runs in its own task and can contain a task group. Entering the bus waits until it yields, or raises its error. It
            exits after the handlers have finished and is cancelled after the drain timeout, which is 20 s by default. It does
            not see exceptions from the block. If it fails on exit, the block raises the error, unless the block itself has
            failed: then the error is logged. If it fails earlier, the bus closes.
        debug: Send the text of unexpected exceptions to clients. Do not use this in production.
        check_answers: Validate what handlers return against their annotations and drop undeclared fields, so that ``-> User``
            sends only a ``User`` even if the handler returns an object with more fields. This also applies to the types of a
            `Subject` or contract, and to publications to a `Subject`. If a value does not match, the client receives an
            INTERNAL error, and the mismatch is logged. Registering a handler raises `TypeError` if its annotation cannot be
            checked. With ``"validate"``, values are checked but sent unchanged. The default is `False`, or ``"validate"`` in
            `polybus.testing.pair`.
        cluster: Make this bus a node of a cluster, where many processes act as one bus. Pass the URL of a NATS server, a
            `Cluster`, or ``auto`` to read ``POLYBUS_CLUSTER``. If you pass ``auto`` and the variable is not set, the bus has no
            cluster.

    Raises:
        TypeError: If `limits` or `cluster` has the wrong type, or a hook cannot be called.
        ValueError: If the URL of `cluster` is not a NATS URL.
    """

    __context_part__: ClassVar[ContextPart]

    @explains(
        "Bus",
        BUS,
        most=1,
        positional="takes no URL: a client is `async with polybus.connect({0!r}) as bus:`, a server `async with "
        "bus.serve({0!r}):` of a Bus() with handlers",
    )
    def __init__(
        self,
        *,
        limits: Limits | None = None,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        lifespan: Lifespan | None = None,
        debug: bool = False,
        check_answers: bool | Literal["validate"] | None = None,
        cluster: str | Cluster | None = None,
    ) -> None:
        check_type(limits, Limits, "limits", "Limits(message=2**20)")
        check_lifespan(lifespan)
        if check_answers not in (None, True, False, "validate"):
            raise TypeError(f"check_answers={shown(check_answers)} must be True, False or 'validate'")
        super().__init__()
        services = Services(self, limits if limits is not None else Limits(), authenticate, authorize, debug=debug)
        services.check_answers = check_answers
        self._cluster = Cluster.of(cluster)
        parts = self._parts = BusParts(services, self._lookup, lifespan, self._cluster)
        self._find_parts(parts)
        self._life = parts.life

    def __repr__(self) -> str:
        runtime = self._services.runtime
        handlers = counted(len(self._lookup.handlers), "handler")
        if runtime is None:
            return f"<Bus not entered, {handlers}>"
        state = "leaving" if self._services.leaving else "ready" if self._services.ready else "starting"
        return f"<Bus {state}, {counted(len(runtime.links), 'link')}, {handlers}>"

    @property
    def limits(self) -> Limits:
        """Limits on sizes and times."""
        return self._services.limits

    # -- links -----------------------------------------------------------------------------------------------------------

    @explains("bus.connect", CONNECT)
    def connect(
        self,
        target: str | Connector,
        *,
        protocol: str | ProtocolAdapter | None = None,
        serves: Iterable[str | int] = (),
        headers: Headers = None,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        wait: float = 0.0,
        record: str | os.PathLike[str] | None = None,
    ) -> AbstractAsyncContextManager[Peer]:
        """Connect this bus to a server.

        Use the result as an async context manager that yields the `Peer` at the other end. See `polybus.connect` for the
        arguments.

        Raises:
            ValueError: If the URL or an option is invalid.
            ConnectFailed: On entry, if the server cannot be reached.
            Unauthorized, Forbidden: On entry, if the server rejects the connection.
        """
        return Connecting(self._parts, target, protocol, serves, headers, tls, backoff, wait, record)

    @explains("bus.serve", SERVE)
    def serve(
        self,
        target: str | Any,
        *,
        protocol: str | ProtocolAdapter | None = None,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        when_full: str = "drop_oldest",
        insecure: bool = False,
        retry: Backoff | None = None,
    ) -> AbstractAsyncContextManager[Listener]:
        """Start accepting connections at an address.

        Use the result as an async context manager that yields a `Listener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 picks a free port.
            protocol: Protocol of a transport object, by name or as an adapter.
            origins: Web origins that may connect, in addition to the same host and port.
            hosts: Additional ``Host`` values that a server on a loopback address accepts, for use behind a proxy.
            tls: Server-side context for ``tls``, ``wss`` and ``https``.
            when_full: Policy for publications when a peer's outbox is full: ``drop_oldest``, ``drop_newest`` or ``disconnect``.
            insecure: Accept connections from other machines, directly or through a proxy, without an `authenticate` hook.
            retry: Pauses before polybus clients reconnect. Its `initial` and `maximum` override the clients' settings.

        Raises:
            ValueError: If the URL or an option is invalid.
            LocalProtocolError: If other machines can reach the address and the bus has no `authenticate` hook.
            OSError: On entry, if the address cannot be bound.
        """
        return Serving(self._parts, target, protocol, origins, hosts, tls, when_full, insecure, retry)

    @property
    def peers(self) -> list[Peer]:
        """Peers on all links."""
        return [peer.public for peer in self._links.peers]

    def peers_of(self, key: str) -> list[Peer]:
        """Return the connected peers with this `Identity.key`, for example for ``publish(..., to=...)``."""
        return [peer.public for peer in self._links.peers_of(key)]

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> Connector:
        """Return a connector for a connection through one of this bus's links.

        Pass the connector to `connect`, as in ``connect(bus.tunnel("plant.7"), protocol="csb")``. The tunnel leads to the peer
        that would receive requests to `name`, and it reconnects whenever the outer link does.

        Args:
            name: Name that matches the pattern that the other side passed to `handle_tunnels`.
            params: Strings for `Handshake.params` on the other side.

        Raises:
            ReservedSubject, LocalProtocolError: If the name is invalid.
            TypeError: If `params` does not map strings to strings.
        """
        return self._links.tunnel(name, params)

    def handle_tunnels(
        self, pattern: str, inner: Bus, *, protocol: str | ProtocolAdapter, when_full: str = "drop_oldest"
    ) -> None:
        """Connect tunnels to another bus, as if the peers that open them had connected to it directly.

        If the inner bus is not running, the first tunnel enters it, and it is left together with this bus. For each tunnel,
        this bus first calls its ``authorize(peer, "tunnel", name)``. The inner bus then calls its ``authenticate``, which can
        read the outer peer from `Handshake.outer`. If the inner bus has no ``authenticate``, the peer keeps its outer identity,
        including when that identity is renewed.

        Args:
            pattern: Pattern for tunnel names, such as ``plant.{id}``. `Handshake.params` contains the matched values.
            inner: Bus that the tunnels connect to. It may be this bus.
            protocol: Protocol inside the tunnels, by name or as an adapter.
            when_full: As for `serve`.

        Raises:
            LocalProtocolError, ReservedSubject: If the pattern is invalid.
            ValueError: If the protocol or policy is unknown, or the pattern is already in use.
            TypeError: If `inner` is not a bus.
        """
        from .tunnel_listener import TunnelListener  # few programs use tunnels

        check_pattern(pattern, self.limits.subject)
        check_type(inner, Bus, "inner", "Bus()")
        check_choice(when_full, WHEN_FULL, "when_full")
        if any(listener.pattern == pattern for listener in self._lookup.listeners):
            raise ValueError(f"tunnels of {pattern!r} are already handled")
        adapter = find_protocol(protocol, {})
        self._lookup.listeners.append(TunnelListener(self._parts, pattern, inner._parts, adapter, when_full))
        self._parts.pubsub.announcer.add_listener(pattern)

    # -- entering and leaving --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._life.enter_block()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._life.leave_block(error)

    @property
    def ready(self) -> bool:
        """True while the bus accepts new requests, from the lifespan's yield until the bus starts to drain."""
        return self._services.ready

    @property
    def why_not_ready(self) -> str:
        """Reason why a load balancer should not send requests now. The string is empty if it can.

        ``/readyz`` returns this text. The bus is not ready before it has started, while it shuts down, and after a failure. It
        is also not ready, but still accepts requests, if its cluster's engine has been down for longer than `Cluster.outage`.
        """
        if not self._services.ready:
            failed = self._services.failed
            return f"it does not take requests: {failed}" if failed else "it does not take requests"
        return next(filter(None, (extension.why_not_ready() for extension in self._links.extensions)), "")

    @property
    def leaving(self) -> bool:
        """True from the start of a drain until the bus has stopped."""
        return self._services.leaving

    @property
    def state(self) -> Any:
        """Value that the lifespan yielded."""
        return self._life.state

    async def drain(self, timeout: float = DRAIN) -> None:
        """Drain the bus: stop accepting requests, finish running handlers, notify the peers and close the links.

        Streams and channels end with `Unavailable` after a quarter of the time. If you call this from a handler, a middleware
        or the lifespan of this bus, it returns immediately, because the drain itself waits for them. Cancelling the call
        cancels running handlers, but peers are still notified.

        Args:
            timeout: Seconds after which everything that is still running is cancelled. The lifespan then has the same time to
                exit.

        Raises:
            TypeError, ValueError: If `timeout` is not a number of seconds.
            LocalProtocolError: If the bus runs in another event loop.
        """
        await self._life.drain(timeout)

    async def aclose(self) -> None:
        """Close the bus immediately. Handlers are cancelled and links closed, even if ``async with bus`` blocks are still open.

        You can call this at any time. If you call it from a handler, a middleware or the lifespan of this bus, it returns
        without waiting, and the caller is cancelled at its next await.

        Raises:
            LocalProtocolError: If the bus runs in another event loop.
            BaseException: If the lifespan raises it on exit.
        """
        await self._life.aclose()

    async def wait_closed(self) -> None:
        """Wait until the bus has stopped.

        Raises:
            LocalProtocolError: If the bus is not entered, or runs in another event loop.
        """
        await self._life.wait_closed()

    # -- recording -------------------------------------------------------------------------------------------------------

    def record(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 10 << 30,
        max_age: float | timedelta = timedelta(days=7),
        bodies: bool = True,
        redact: Callable[[str, bytes], bytes] | Literal["default"] | None = "default",
        decode: bool = False,
    ) -> AbstractAsyncContextManager[Recording]:
        """Record every frame on every link, in both directions.

        Use the result as an async context manager: ``async with bus.record("captures/"): ...`` The bus never waits for the
        disk. If the disk is too slow, frames are dropped and counted, and the capture shows the gap. Requires ``pip install
        'polybus[capture]'``.

        Args:
            path: Folder to write to, which is created if necessary. Several recordings may share it.
            max_bytes: Maximum size of the folder in bytes. The oldest segments are removed to stay below it.
            max_age: Maximum age of segments, in seconds or as a `timedelta`.
            bodies: Record the body of each message in addition to its kind and subject.
            redact: ``redact(protocol, frame)`` returns the bytes to write. The default masks tokens, cookies and members that
                are named like secrets. With `None`, everything is written unchanged.
            decode: Decode each segment in a process with the lowest priority once it is complete, after 64 MiB or a minute.
                Otherwise, each reader has to decode it.

        Raises:
            ImportError: If pyarrow is not installed.
            TypeError, ValueError: If an argument is invalid.
            CaptureError: On entry, if the folder cannot be created or written to.
        """
        recorder = make_recorder(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact, decode=decode)
        return Recording(self._services, recorder)

    # -- the cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster | None:
        """The `cluster` argument as a `Cluster`, or `None` if there is no cluster."""
        return self._cluster

    def user(self, key: str) -> User:
        """Return a handle to a user. The user may be connected to any node of the cluster.

        Args:
            key: The `Identity.key` of the user.

        Raises:
            TypeError: If `key` is not a string.
        """
        check_type(key, str, "key", "bus.user('ann')")
        return User(self._links, key)

    def forward(self, pattern: str | int) -> None:
        """Forward clients' requests to the cluster if this bus has no handler for them. Off by default.

        The bus calls `authorize` before it forwards a request.

        Raises:
            LocalProtocolError, ReservedSubject: If the pattern is invalid, or the bus has no cluster.
        """
        check_pattern(pattern, self.limits.subject)
        if self._links.mesh is None:
            raise LocalProtocolError(
                "bus.forward() forwards to the cluster: create the bus with cluster=, as in Bus(cluster='auto')"
            )
        self._links.mesh.forward(pattern)

    async def nodes(self) -> Survey[Node]:
        """Query all nodes of the cluster, including this one, with a timeout of 2 s.

        Raises:
            LocalProtocolError: If the bus is not entered, or runs in another event loop.
        """
        self._services.running.check_here()
        if self._links.mesh is None:
            return Survey((Node("", self._services.id, "", len(self.peers), here=True),))
        return await self._links.mesh.nodes()

    async def present(self, pattern: str | int) -> Survey[Peer | RemotePeer]:
        """Find the clients on all nodes that have subscribed to exactly this pattern, with a timeout of 2 s.

        Results are never cached, so that clients of a killed node are not included.

        Raises:
            LocalProtocolError, ReservedSubject: If the pattern is invalid, or the bus is not entered.
        """
        self._services.running.check_here()
        check_pattern(pattern, self.limits.subject)
        if self._links.mesh is None:
            return Survey(tuple(peer.public for peer in self._links.peers if pattern in peer.patterns))
        return await self._links.mesh.present(pattern)

    # -- running handlers ------------------------------------------------------------------------------------------------

    @overload
    def use(self, middleware: Middleware) -> Middleware: ...
    @overload
    def use(self, middleware: OutgoingHook, *, outgoing: Literal[True]) -> OutgoingHook: ...
    def use(self, middleware: Any, *, outgoing: bool = False) -> Any:
        """Add a middleware around all handlers. You can also use this as a decorator.

        A middleware is ``async def middleware(message, ctx, call_next): return await call_next(message)``. The first middleware
        that you add is the outermost.

        Args:
            middleware: A middleware or, with `outgoing`, a plain function that is an `OutgoingHook`.
            outgoing: Call the hook before the application sends a request, publication, notification, stream or channel. The
                hook can add to ``message.headers`` if the peer reads headers, and can return a function to receive the
                `Outcome`.

        Raises:
            TypeError: If the middleware is a class, cannot be called with these arguments, or is an outgoing coroutine
                function.
        """
        if isinstance(middleware, type):
            name = middleware.__name__
            raise TypeError(f"bus.use({name}): pass an instance instead of the class, bus.use({name}())")
        form, takes = ("def hook(message)", 1) if outgoing else ("async def middleware(message, ctx, call_next)", 3)
        if middleware is None:
            raise TypeError(f"bus.use(None): pass a function, {form}")
        check_callable(middleware, "middleware", form, takes)
        of_object = getattr(type(middleware), "__call__", None)  # noqa: B004  # whether it is a coroutine function
        if outgoing and (inspect.iscoroutinefunction(middleware) or inspect.iscoroutinefunction(of_object)):
            raise TypeError(f"bus.use({shown(middleware)}, outgoing=True): pass a plain function: request() does not wait")
        hooks: list[Any] = self._services.outgoing if outgoing else self._services.executor.middleware
        hooks.append(middleware)
        return middleware

    @property
    def dependencies(self) -> Dependencies:
        """The dependencies of handlers, which tests can replace with `Dependencies.override`."""
        return Dependencies(self._services.overrides)

    @property
    def debug(self) -> bool:
        """True if clients receive the text of unexpected exceptions."""
        return self._services.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._services.debug = debug

    @property
    def check_answers(self) -> bool | Literal["validate"] | None:
        """Validation of handler results and of publications to a `Subject`. See `Bus`."""
        return self._services.check_answers

    @check_answers.setter
    def check_answers(self, check_answers: bool | Literal["validate"] | None) -> None:
        if check_answers is True:
            for handler in self._lookup.handlers.values():
                handler.check_that_answers_are_checked()
        self._services.check_answers = check_answers

    # -- statistics and events -------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return a snapshot of the counters and queues."""
        runtime, counters, loopback = self._services.runtime, self._services.counters, self._parts.loopback
        links = list(runtime.links) if runtime is not None else []
        peers = [peer for link in links for peer in link.peers]
        return Stats(
            links=len(links),
            peers=len(peers),
            pending=sum(peer.unanswered for peer in peers) + len(loopback.calls),
            running=(runtime.running if runtime is not None else 0) + loopback.running,
            waiting=sum(peer.waiting for peer in peers) + loopback.waiting,
            queued=sum(len(link.outbox) for link in links if link.outbox is not None),
            unread=self._pubsub.unread,
            durables=tuple(self._links.progress),
            **asdict(counters),
        )

    def events(self) -> AsyncIterator[BusEvent]:
        """Iterate over the events of the bus from now on. The oldest are dropped if more than 1,000 are unread.

        Raises:
            LocalProtocolError: If the bus runs in another event loop.
        """
        if self._services.runtime is not None:
            self._services.runtime.check_here()
        return self._life.keep_events(self._services.events.stream())


def parts_of(bus: Bus) -> BusParts:
    return bus._parts


@explains("connect", CONNECT)
def connect(
    target: str | Connector,
    *,
    bus: Bus | None = None,
    protocol: str | ProtocolAdapter | None = None,
    serves: Iterable[str | int] = (),
    headers: Headers = None,
    tls: ssl.SSLContext | None = None,
    backoff: Backoff | None = None,
    wait: float = 0.0,
    limits: Limits | None = None,
    record: str | os.PathLike[str] | None = None,
) -> AbstractAsyncContextManager[Bus]:
    """Connect to a server.

    Use the result as an async context manager: ``async with connect("ubre+ws://127.0.0.1:8000/bus") as bus: ...`` The first
    attempt fails immediately unless you pass `wait`. Once established, the link reconnects on its own and restores its
    subscriptions before any other traffic. Leaving the block drains the bus.

    Args:
        target: A URL of the form ``<protocol>+<transport>://<address>``, or a transport object.
        bus: Bus to add the link to. By default, a new bus is created.
        protocol: Protocol of a transport object, by name or as an adapter. If `target` is a URL, you can pass an adapter to set
            options that a URL cannot express.
        serves: Patterns for the requests that go over this link, if the bus opens several links.
        headers: Headers for the handshake, or a plain or async function that returns them. The function is called before every
            attempt, and before the link's identity expires, so that it can return a new bearer token. If it raises, the attempt
            fails; `Unauthorized` and `Forbidden` count as a rejection by the server.
        tls: Client-side context for ``tls``, ``wss`` and ``https``. By default, the server is verified against the system's
            certificate authorities.
        backoff: Pauses between attempts to reconnect. If the server sets `retry`, it overrides `initial` and `maximum`.
        wait: Seconds to keep retrying the first attempt. Use `math.inf` for no limit.
        limits: Limits of the new bus.
        record: Folder for a recording of every frame of this link, with the defaults of `Bus.record`.

    Raises:
        ValueError: If the URL or an option is invalid, or both `bus` and `limits` are given.
        TypeError: If an argument has the wrong type.
        ConnectFailed: On entry, if the server cannot be reached. The error contains the address and the reason.
        Unauthorized, Forbidden: On entry, if the server rejects the connection. A rejection is never retried.
    """
    check_type(bus, Bus, "bus", "bus=Bus()")
    if bus is None:
        bus = Bus(limits=limits)
    elif limits is not None:
        raise ValueError("limits belong to the bus: pass Bus(limits=...) or connect(limits=...), not both")
    return Connecting(parts_of(bus), target, protocol, serves, headers, tls, backoff, wait, record, gives_bus=True)
