"""The bus: one symmetric object for clients, servers and everything in between."""

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
from ..._util.own_thread import in_own_thread
from ..._validation import check_callable, check_type, counted, shown
from ...backoff import Backoff
from ...errors import LocalProtocolError
from ...events import BusEvent
from ...limits import Limits
from ...nodes import Cluster, Node, Survey
from ...outcomes import OutgoingHook
from ...plugins.recording import Recorder, RecorderStats
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
from .dialer import Connecting, Headers
from .lifecycle import DRAIN, Lifespan, check_lifespan
from .parts import BusParts
from .remote_peer import RemotePeer, User
from .verbs import BusVerbs

if TYPE_CHECKING:
    import ssl

    from ...plugins import Connector, ProtocolAdapter
    from ..link.link import Link


class Recording:
    """An async context manager that records every frame of a bus's links.

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
        """The folder."""
        return str(self.recorder.path)

    def stats(self) -> RecorderStats:
        """Frames written and lost so far."""
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
        """Change links between turns of the event loop, when none handles a frame."""
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
    """Handlers, subscriptions and any number of links. A client is a bus with one link, a server a bus with many.

    A bus runs while it is entered: ``async with bus:``; `connect`, `serve` and `testing.pair` enter it too. Entries are
    counted; the last exit drains. A bus may be entered again later, even in another event loop; handlers stay.

    Args:
        limits: Sizes and times; see `Limits`.
        authenticate: ``authenticate(handshake)`` returns the identity of a new connection; None and other empty values refuse;
            True admits without an identity. Without it every connection is accepted.
        authorize: ``authorize(peer, verb, subject)`` decides what a peer may do; without it everything. A parameter ``message``
            receives the message, with sender data of the wire (such as a uProtocol token).
        lifespan: ``lifespan(bus)`` is an async context manager around the handlers; its value is ``ctx.state``. It runs in its
            own task, so it may hold a task group. Until its yield the bus is not `ready`, and entering waits, or raises its
            error. Its end comes after the handlers, without the exception of the block, and is cancelled after the timeout of
            the drain (20 s by default). The block raises an error of the end, or logs it next to its own. An error in between
            closes the bus.
        debug: Send the text of unexpected exceptions to clients. Never in production.
        check_answers: Validate answers and items of handlers by their annotations, and drop fields that the type lacks: ``->
            User`` sends a ``User`` even for a larger object. The types of a `Subject` or contract, and publications to a
            `Subject`, are checked too. A value that does not fit becomes INTERNAL, with its details in the log; an annotation
            that cannot be checked is a TypeError at registration. ``"validate"`` sends valid values unchanged. None means
            False, under `polybus.testing.pair` ``"validate"``.
        cluster: Make this bus a node of a cluster, in which many processes are one bus: the URL of its engine (NATS), ``auto``
            for the URL in ``POLYBUS_CLUSTER`` (if unset, the bus stays alone), or `Cluster`.

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
        """Add a link to this bus; the async context manager yields the `Peer` at the other end.

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
        """Accept links at an address; the async context manager yields the `Listener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 takes a free port.
            protocol: For a transport object: name or adapter.
            origins: Web origins with pages that may connect. Pages of the same host and port always may.
            hosts: Further ``Host`` values of a loopback server, behind a proxy.
            tls: For ``tls`` and ``wss``: a server-side context.
            when_full: Policy for publications to a peer with a full outbox: ``drop_oldest``, ``drop_newest``, ``disconnect``.
            insecure: Allow other machines to connect, directly or through a proxy, although every connection is accepted.

        Raises:
            ValueError: The URL or an option is invalid.
            LocalProtocolError: An open address without `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
        return Serving(self._parts, target, protocol, origins, hosts, tls, when_full, insecure, retry)

    @property
    def peers(self) -> list[Peer]:
        """The peers of all links."""
        return [peer.public for peer in self._links.peers]

    def peers_of(self, key: str) -> list[Peer]:
        """The peers of one identity (its `Identity.key`), except leaving ones: for ``publish(..., to=...)``."""
        return [peer.public for peer in self._links.peers_of(key)]

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> Connector:
        """A connection inside a link of this bus: ``connect(bus.tunnel("plant.7"), protocol="csb")``.

        It goes to the peer for requests to `name`, and reconnects once the outer link is back.

        Args:
            name: A name that the other side serves with `handle_tunnels`.
            params: Shown there in `Handshake.params`.

        Raises:
            ReservedSubject, LocalProtocolError: The name is not valid.
            TypeError: `params` are not text to text.
        """
        return self._links.tunnel(name, params)

    def handle_tunnels(
        self, pattern: str, inner: Bus, *, protocol: str | ProtocolAdapter, when_full: str = "drop_oldest"
    ) -> None:
        """Lead tunnels with these names to another bus, as if their openers had connected to it.

        The inner bus is entered with the first tunnel, unless it runs, and left together with this one. First ``authorize(peer,
        "tunnel", name)`` of this bus is called, then ``authenticate`` of `inner`, with the outer peer in `Handshake.outer`;
        without one, the opener keeps its identity.

        Args:
            pattern: ``plant.{id}``: the named tokens are in `Handshake.params`.
            inner: The target; may be this bus.
            protocol: The protocol inside: name or adapter.
            when_full: As in `serve`.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
            ValueError: The protocol or the policy is unknown, or the pattern is already served.
            TypeError: `inner` is not a bus.
        """
        from ..tunnel.endpoint import Entrance  # few programs have one

        check_pattern(pattern, self.limits.subject)
        check_type(inner, Bus, "inner", "Bus()")
        if when_full not in WHEN_FULL:
            raise ValueError(f"when_full={when_full!r}: one of {', '.join(WHEN_FULL)}")
        if any(entrance.pattern == pattern for entrance in self._lookup.entrances):
            raise ValueError(f"tunnels of {pattern!r} are served already")
        adapter = find_protocol(protocol, {})
        self._lookup.entrances.append(Entrance(self._parts, pattern, inner._parts, adapter, when_full))

    # -- entering and leaving --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._life.enter_block()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._life.leave_block(error)

    @property
    def ready(self) -> bool:
        """True while the bus accepts new requests: from the lifespan's yield until a drain begins."""
        return self._services.ready

    @property
    def why_not_ready(self) -> str:
        """Reason why a load balancer should send no requests now, or empty.

        The bus has not started, is ending or has failed, or its cluster's engine has been down for longer than
        `Cluster.outage`. ``/readyz`` returns this text. Requests are accepted while `ready` is true.
        """
        if not self._services.ready:
            failed = self._services.failed
            return f"it does not take requests: {failed}" if failed else "it does not take requests"
        return next(filter(None, (extension.why_not_ready() for extension in self._links.extensions)), "")

    @property
    def leaving(self) -> bool:
        """True from the start of a drain to the end of the bus."""
        return self._services.leaving

    @property
    def state(self) -> Any:
        """The value that the lifespan yielded."""
        return self._life.state

    async def drain(self, timeout: float = DRAIN) -> None:
        """Stop accepting requests, let running handlers finish, notify the peers, write the outboxes, close the links.

        Streams and channels get a quarter of the time; then they end as `Unavailable`. A handler, a middleware or the lifespan
        of this bus does not wait in this call, since the drain waits for them. Cancelling the call cuts running handlers; the
        peers are still notified.

        Args:
            timeout: Seconds for everything; then the rest is cut. The end of the lifespan gets the same time again.

        Raises:
            TypeError, ValueError: `timeout` is not a number of seconds.
            LocalProtocolError: The bus runs in another event loop.
        """
        await self._life.drain(timeout)

    async def aclose(self) -> None:
        """Leave at once, regardless of entered blocks: close links, cancel handlers. May be called at any time.

        A handler, a middleware or the lifespan of this bus does not wait in this call, and is cancelled at its next wait.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
            BaseException: Raised by the lifespan at its end.
        """
        await self._life.aclose()

    async def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered, or runs in another event loop.
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

        The bus never waits: frames that the disk cannot take are dropped and counted, and the capture marks the gap. Needs
        ``pip install 'polybus[capture]'``.

        Args:
            path: A folder, made if missing. Several recordings may share it.
            max_bytes: Limit of the folder; the oldest segments are removed.
            max_age: Age limit of segments; seconds or a `timedelta`.
            bodies: Record bodies, not only the kind and target of each message.
            redact: ``redact(protocol, frame)`` returns the bytes to write. The default blanks tokens, cookies and members with
                names of secrets; None writes everything unchanged.
            decode: Decode sealed segments (after 64 MiB or a minute) in a process of the lowest priority, once for all readers.
                Readers decode the rest themselves.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is invalid.
            CaptureError: (on entering) The folder cannot be made or written.
        """
        recorder = make_recorder(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact, decode=decode)
        return Recording(self._services, recorder)

    # -- the cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster | None:
        """The cluster of this bus, as given; None for a single bus."""
        return self._cluster

    def user(self, key: str) -> User:
        """A user by identity key, connected here or to another node of the cluster.

        Raises:
            TypeError: `key` is not text.
        """
        check_type(key, str, "key", "bus.user('ann')")
        return User(self._links, key)

    def forward(self, pattern: str | int) -> None:
        """Forward clients' requests without a handler here to the cluster, after `authorize`. Off by default.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus was made without ``cluster=``.
        """
        check_pattern(pattern, self.limits.subject)
        if self._links.mesh is None:
            raise LocalProtocolError("bus.forward() leads to the cluster: make the bus with cluster=, as Bus(cluster='auto')")
        self._links.mesh.forward(pattern)

    async def nodes(self) -> Survey[Node]:
        """Survey all nodes of the cluster, this one included, within 2 s.

        Raises:
            LocalProtocolError: The bus is not entered, or runs in another event loop.
        """
        self._services.running.check_here()
        if self._links.mesh is None:
            return Survey((Node("", self._services.id, "", len(self.peers), here=True),))
        return await self._links.mesh.nodes()

    async def present(self, pattern: str | int) -> Survey[Peer | RemotePeer]:
        """Find the clients with a subscription to this exact pattern, at all nodes, within 2 s. There is no cache: a killed
        node has no clients.

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
        """Run around every handler: ``async def middleware(message, ctx, call_next): return await call_next(message)``.

        The first one is the outermost. May be used as a decorator.

        Args:
            middleware: A middleware, or with `outgoing` an `OutgoingHook`, a plain function.
            outgoing: Call it before each request, publication, notification, stream and channel of the application leaves. It
                may add to ``message.headers``, for peers that read headers, and may return a function for the `Outcome`.

        Raises:
            TypeError: It cannot be called with these arguments, is a class, or is a coroutine function with `outgoing`.
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
        """Functions that handlers request with ``Depends``; `Dependencies.override` replaces one in tests."""
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
        """Validation of answers, and of publications to a `Subject`; see `Bus`."""
        return self._services.check_answers

    @check_answers.setter
    def check_answers(self, check_answers: bool | Literal["validate"] | None) -> None:
        if check_answers is True:
            for handler in self._lookup.handlers.values():
                handler.check_that_answers_are_checked()
        self._services.check_answers = check_answers

    # -- statistics and events -------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """A snapshot of what the bus has done and has to do."""
        runtime, counters = self._services.runtime, self._services.counters
        links = list(runtime.links) if runtime is not None else []
        peers = [peer for link in links for peer in link.peers]
        return Stats(
            links=len(links),
            peers=len(peers),
            pending=sum(peer.unanswered for peer in peers) + len(self._loopback.calls),
            running=(runtime.running if runtime is not None else 0) + self._loopback.running,
            waiting=sum(peer.waiting for peer in peers) + self._loopback.waiting,
            queued=sum(len(link.outbox) for link in links if link.outbox is not None),
            unread=self._pubsub.unread,
            durables=tuple(self._links.progress),
            **asdict(counters),
        )

    def events(self) -> AsyncIterator[BusEvent]:
        """Iterate over events from now on; beyond 1,000 unread events the oldest are dropped.

        Raises:
            LocalProtocolError: (here or by iterating) The bus runs in another event loop.
        """
        if self._services.runtime is not None:
            self._services.runtime.check_here()
        return self._life.keep_events(self._services.events.stream())


def parts_of(bus: Bus) -> BusParts:
    """The parts of a bus, for higher layers."""
    return bus._parts
