"""The bus: one symmetric class for clients, servers and everything in between."""

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
from ..._util.misuse import BUS, CONNECT, SERVE, explains
from ..._util.process import in_own_thread
from ..._validation import check_callable, check_type, counted, shown
from ...backoff import Backoff
from ...errors import LocalProtocolError
from ...events import BusEvent
from ...limits import Limits
from ...nodes import Cluster, Node, Survey
from ...outcomes import OutgoingHook
from ...plugins.extensions import Recorder, RecorderStats
from ...plugins.registry import find_protocol, make_recorder
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
from .dialer import Connecting, Headers
from .lifecycle import DRAIN, Lifespan, check_lifespan
from .remote_peer import RemotePeer, User
from .verbs import BusVerbs

if TYPE_CHECKING:
    import ssl

    from ...plugins import Connector, ProtocolAdapter
    from ..link.link import Link


class Recording:
    """Async context manager that records every frame on the links of a bus.

    Attributes:
        recorder: Writes the frames.
    """

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self.recorder: Recorder = recorder

    @property
    def capture_id(self) -> str:
        """The name of this recording."""
        return self.recorder.capture_id

    @property
    def path(self) -> str:
        """The folder that holds the recording."""
        return str(self.recorder.path)

    def stats(self) -> RecorderStats:
        """Counts of the frames written and lost so far."""
        return self.recorder.stats()

    async def __aenter__(self) -> Recording:
        self.recorder.claim()
        try:
            await in_own_thread(self.recorder.open)
            self._services.recorders.append(self.recorder)
            await self._for_each_link(lambda link: link.record(self.recorder))
        except BaseException:
            await self._left()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._left()

    async def _left(self) -> None:
        await to_the_end(self._end)

    async def _end(self) -> None:
        if self.recorder in self._services.recorders:
            self._services.recorders.remove(self.recorder)
            await self._for_each_link(lambda link: link.unrecord(self.recorder))
        await in_own_thread(self.recorder.close)

    async def _for_each_link(self, change: Callable[[Link], None]) -> None:
        """Change all links between turns of the event loop, when no link is handling a frame."""
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
    """Holds handlers, subscriptions and any number of links. A client is a bus with one link, a server is a bus with many.

    A bus runs while it is entered: ``async with bus:``. `connect`, `serve` and `testing.pair` also enter it. The bus counts
    its entries, and the last exit drains it. You can enter a bus again later, even in another event loop; its handlers are
    kept.

    Args:
        limits: Sizes and times; see `Limits`.
        authenticate: ``authenticate(handshake)`` returns the identity of a new connection. None or another empty value refuses
            the connection; True admits it without an identity. By default every connection is accepted.
        authorize: ``authorize(peer, verb, subject)`` decides what a peer may do. By default everything is allowed. If the
            function has a parameter ``message``, it receives the message with the sender data of the wire (such as a uProtocol
            token).
        lifespan: ``lifespan(bus)`` is an async context manager around the handlers; its value is ``ctx.state``. It runs in its
            own task, so it may contain a task group. Until it yields, the bus is not `ready`, and entering the bus waits (or
            raises the error of the lifespan). It ends after the handlers, does not see the exception of the block, and is
            cancelled after the timeout of the drain (20 s by default). If it fails at its end, the block raises the error, or
            logs it if the block itself failed. If it fails before that, the bus is closed.
        debug: Send the text of unexpected exceptions to clients. Do not use this in production.
        check_answers: Validate the answers and items of handlers against their annotations, and drop fields that the type does
            not have: ``-> User`` sends a ``User`` even for a larger object. The types of a `Subject` or contract, and
            publications to a `Subject`, are checked too. A value that does not fit is answered with INTERNAL, and the details
            are logged. An annotation that cannot be checked raises TypeError at registration. ``"validate"`` checks values but
            sends them unchanged. None means False, or ``"validate"`` under `polybus.testing.pair`.
        cluster: Make this bus a node of a cluster, in which many processes act as one bus. Pass the URL of the engine (NATS),
            a `Cluster`, or ``auto`` for the URL in ``POLYBUS_CLUSTER`` (if that is not set, the bus stays alone).

    Raises:
        TypeError: `limits` or `cluster` has a wrong type, or a hook cannot be called.
        ValueError: The URL of `cluster` is not a NATS URL.
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
            raise TypeError(f"check_answers={shown(check_answers)}: True, False or 'validate'")
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
        """Sizes and times."""
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
        """Add a link to this bus. The async context manager yields the `Peer` at the other end.

        Args: as `polybus.connect`.

        Raises:
            ValueError: The URL or an option is invalid.
            ConnectFailed: (on entering) With the address and the reason.
            Unauthorized, Forbidden: (on entering) The server refuses us.
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
        """Accept links at an address. The async context manager yields the `Listener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 picks a free port.
            protocol: The protocol of a transport object, by name or as an adapter.
            origins: Web origins whose pages may connect. Pages from the same host and port may always connect.
            hosts: Additional ``Host`` values that a loopback server accepts, for use behind a proxy.
            tls: A server-side context for ``tls`` and ``wss``.
            when_full: Policy for publications to a peer whose outbox is full: ``drop_oldest``, ``drop_newest`` or
                ``disconnect``.
            insecure: Allow other machines to connect, directly or through a proxy, although every connection is accepted.

        Raises:
            ValueError: The URL or an option is invalid.
            LocalProtocolError: Other machines can reach the address, and the bus has no `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
        return Serving(self._parts, target, protocol, origins, hosts, tls, when_full, insecure, retry)

    @property
    def peers(self) -> list[Peer]:
        """The peers on all links."""
        return [peer.public for peer in self._links.peers]

    def peers_of(self, key: str) -> list[Peer]:
        """The peers of one identity (by its `Identity.key`), for ``publish(..., to=...)``. Excludes peers that are leaving."""
        return [peer.public for peer in self._links.peers_of(key)]

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> Connector:
        """Return a connection that runs inside a link of this bus: ``connect(bus.tunnel("plant.7"), protocol="csb")``.

        The tunnel leads to the peer that requests to `name` are sent to. It reconnects once the outer link is back.

        Args:
            name: A name that the other side serves with `handle_tunnels`.
            params: Strings that the other side finds in `Handshake.params`.

        Raises:
            ReservedSubject, LocalProtocolError: The name is not valid.
            TypeError: `params` does not map strings to strings.
        """
        return self._links.tunnel(name, params)

    def handle_tunnels(
        self, pattern: str, inner: Bus, *, protocol: str | ProtocolAdapter, when_full: str = "drop_oldest"
    ) -> None:
        """Connect tunnels with these names to another bus, as if the peers that open them had connected to it directly.

        The inner bus is entered with the first tunnel, unless it is already running, and left together with this one. This bus
        first calls its ``authorize(peer, "tunnel", name)``, then the ``authenticate`` of `inner`, with the outer peer in
        `Handshake.outer`. If `inner` has no ``authenticate``, the peer keeps its identity, and
        its open tunnels get a renewed one too.

        Args:
            pattern: A pattern such as ``plant.{id}``. The values of its names are in `Handshake.params`.
            inner: The target bus, which may be this one.
            protocol: The protocol inside the tunnels, by name or as an adapter.
            when_full: As in `serve`.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
            ValueError: The protocol or the policy is unknown, or the pattern is already served.
            TypeError: `inner` is not a bus.
        """
        from .tunnel_listener import TunnelListener  # few programs use tunnels

        check_pattern(pattern, self.limits.subject)
        check_type(inner, Bus, "inner", "Bus()")
        if when_full not in WHEN_FULL:
            raise ValueError(f"when_full={when_full!r}: one of {', '.join(WHEN_FULL)}")
        if any(listener.pattern == pattern for listener in self._lookup.listeners):
            raise ValueError(f"tunnels of {pattern!r} are served already")
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
        """True while the bus accepts new requests, from the lifespan's yield until a drain begins."""
        return self._services.ready

    @property
    def why_not_ready(self) -> str:
        """The reason why a load balancer should not send requests now; empty if it should.

        There is a reason if the bus has not started, is ending or has failed, or if the engine of its cluster has been down
        for longer than `Cluster.outage`. ``/readyz`` returns this text. The bus accepts requests as long as `ready` is true.
        """
        if not self._services.ready:
            failed = self._services.failed
            return f"it does not take requests: {failed}" if failed else "it does not take requests"
        return next(filter(None, (extension.why_not_ready() for extension in self._links.extensions)), "")

    @property
    def leaving(self) -> bool:
        """True from the start of a drain until the bus has ended."""
        return self._services.leaving

    @property
    def state(self) -> Any:
        """The value that the lifespan yielded."""
        return self._life.state

    async def drain(self, timeout: float = DRAIN) -> None:
        """Stop accepting requests, let running handlers finish, notify the peers, write the outboxes and close the links.

        Streams and channels have a quarter of the time; then they end with `Unavailable`. If a handler, a middleware or the
        lifespan of this bus makes this call, it returns at once, since the drain waits for them. Cancelling the call cancels
        the running handlers; the peers are still notified.

        Args:
            timeout: Seconds for the whole drain. What is not finished by then is cancelled. The lifespan then has the same
                time again for its end.

        Raises:
            TypeError, ValueError: `timeout` is not a number of seconds.
            LocalProtocolError: The bus runs in another event loop.
        """
        await self._life.drain(timeout)

    async def aclose(self) -> None:
        """End the bus at once, even if blocks that entered it are still open: cancel handlers and close links.

        You can call this at any time. If a handler, a middleware or the lifespan of this bus makes the call, it returns
        without waiting, and the caller is cancelled at its next wait.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
            BaseException: The lifespan raised an error at its end.
        """
        await self._life.aclose()

    async def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: The bus is not entered, or runs in another event loop.
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
        """Record every frame of every link, in both directions: ``async with bus.record("captures/"): ...``

        The bus never waits for the disk. If the disk is too slow, frames are dropped and counted, and the capture marks the
        gap. Needs ``pip install 'polybus[capture]'``.

        Args:
            path: The folder to write to; it is created if necessary. Several recordings may share it.
            max_bytes: Maximum size of the folder. Beyond it, the oldest segments are removed.
            max_age: Maximum age of segments, in seconds or as a `timedelta`.
            bodies: Record bodies, not only the kind and target of each message.
            redact: ``redact(protocol, frame)`` returns the bytes to write. The default blanks tokens, cookies and members that
                are named like secrets; None writes everything unchanged.
            decode: Decode each segment once for all readers when it is sealed (after 64 MiB or a minute), in a process with
                the lowest priority. Readers decode the rest themselves.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is invalid.
            CaptureError: (on entering) The folder cannot be created or written to.
        """
        recorder = make_recorder(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact, decode=decode)
        return Recording(self._services, recorder)

    # -- the cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that was passed to this bus; None for a single bus."""
        return self._cluster

    def user(self, key: str) -> User:
        """Return the user with an identity key, who may be connected here or to another node of the cluster.

        Raises:
            TypeError: `key` is not a string.
        """
        check_type(key, str, "key", "bus.user('ann')")
        return User(self._links, key)

    def forward(self, pattern: str | int) -> None:
        """Forward requests of clients to the cluster if this bus has no handler for them, after `authorize`. Off by default.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus was created without ``cluster=``.
        """
        check_pattern(pattern, self.limits.subject)
        if self._links.mesh is None:
            raise LocalProtocolError("bus.forward() leads to the cluster: make the bus with cluster=, as Bus(cluster='auto')")
        self._links.mesh.forward(pattern)

    async def nodes(self) -> Survey[Node]:
        """Ask all nodes of the cluster, including this one, to report within 2 s.

        Raises:
            LocalProtocolError: The bus is not entered, or runs in another event loop.
        """
        self._services.running.check_here()
        if self._links.mesh is None:
            return Survey((Node("", self._services.id, "", len(self.peers), here=True),))
        return await self._links.mesh.nodes()

    async def present(self, pattern: str | int) -> Survey[Peer | RemotePeer]:
        """Find the clients on all nodes that are subscribed to this exact pattern, within 2 s. Nothing is cached, so clients of
        a killed node are not reported.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus is not entered.
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
        """Run middleware around every handler.

        A middleware is ``async def middleware(message, ctx, call_next): return await call_next(message)``. The first one that
        you add is the outermost. `use` also works as a decorator.

        Args:
            middleware: A middleware; with `outgoing`, an `OutgoingHook`, which is a plain function.
            outgoing: Call the hook before each request, publication, notification, stream and channel of the application is
                sent. The hook may add to ``message.headers``, for peers that read headers, and may return a function that
                receives the `Outcome`.

        Raises:
            TypeError: The middleware cannot be called with these arguments, is a class, or is a coroutine function although
                `outgoing` is set.
        """
        if isinstance(middleware, type):
            name = middleware.__name__
            raise TypeError(f"bus.use({name}): a class, and its objects are called; write bus.use({name}())")
        form, takes = ("def hook(message)", 1) if outgoing else ("async def middleware(message, ctx, call_next)", 3)
        if middleware is None:
            raise TypeError(f"bus.use(None): a function, {form}")
        check_callable(middleware, "middleware", form, takes)
        of_object = getattr(type(middleware), "__call__", None)  # noqa: B004  # whether it is a coroutine function
        if outgoing and (inspect.iscoroutinefunction(middleware) or inspect.iscoroutinefunction(of_object)):
            raise TypeError(f"bus.use({shown(middleware)}, outgoing=True): a plain function, for request() does not wait")
        hooks: list[Any] = self._services.outgoing if outgoing else self._services.executor.middleware
        hooks.append(middleware)
        return middleware

    @property
    def dependencies(self) -> Dependencies:
        """The functions that handlers request with ``Depends``. `Dependencies.override` replaces one in tests."""
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
        """The validation of answers, and of publications to a `Subject`; see `Bus`."""
        return self._services.check_answers

    @check_answers.setter
    def check_answers(self, check_answers: bool | Literal["validate"] | None) -> None:
        if check_answers is True:
            for handler in self._lookup.handlers.values():
                handler.check_that_answers_are_checked()
        self._services.check_answers = check_answers

    # -- statistics and events -------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return a snapshot of the counters and queues of the bus."""
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
        """Iterate over the events that happen after this call. If more than 1,000 are unread, the oldest are dropped.

        Raises:
            LocalProtocolError: (here or while iterating) The bus runs in another event loop.
        """
        if self._services.runtime is not None:
            self._services.runtime.check_here()
        return self._life.keep_events(self._services.events.stream())


def parts_of(bus: Bus) -> BusParts:
    """Return the parts of a bus, for higher layers."""
    return bus._parts
