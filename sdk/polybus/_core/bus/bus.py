"""The bus: one symmetric object for clients, servers and everything between."""

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
from ..tunnel.endpoint import Entrance
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
    """An async context manager: while it is entered, every frame of every link of a bus is recorded.

    Attributes:
        recorder: Writes the frames down.
    """

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self.recorder: Recorder = recorder

    @property
    def capture_id(self) -> str:
        """The name of all that this one records."""
        return self.recorder.capture_id

    @property
    def path(self) -> str:
        """The folder."""
        return str(self.recorder.path)

    def stats(self) -> RecorderStats:
        """Figures so far: frames written, and lost."""
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
        """Change links between turns of the event loop, where none of them is in the middle of a frame."""
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

    A bus runs while it is entered: ``async with bus:``; `connect`, `serve` and `testing.pair` enter it too. Entering is
    counted; the last one out drains. Afterwards it may be entered again, in another event loop too; handlers stay.

    Args:
        limits: Sizes and times; see `Limits`.
        authenticate: ``authenticate(handshake)`` gives the identity of a new connection; None, and what else is
            empty, refuses; True admits without an identity. Without it every connection is accepted.
        authorize: ``authorize(peer, verb, subject)`` decides what a peer may do. Without it everything. With a parameter
            ``message`` it is given that too, with what the wire says of its sender (a token of uProtocol, for example).
        lifespan: ``lifespan(bus)`` is an async context manager run inside the entered bus; what it yields is ``ctx.state``. It
            has a task of its own, so it may hold a task group. Until it has yielded the bus is not `ready`, and others who
            enter wait; what it raises before is what entering raises. It ends after the handlers. As with an application
            server its end is always the orderly one, whatever was raised in the block, and may take as long as the drain did
            at most (20 s, unless `drain` was told otherwise): then it is cancelled; what it raises then comes out of the
            block (unless something else does: then it is logged). A failure in between, of its task group, closes the bus.
        debug: Send the text of unexpected exceptions to clients. Never in production.
        check_answers: Validate what a handler returns or sends by its annotation, and leave out what that type does not have:
            ``-> User`` sends a ``User``, whatever larger object it is given; so does what a `Subject` or contract promises.
            What does not fit is INTERNAL, and the log names it; what cannot be checked is a TypeError at registration. A
            publication to a `Subject` is validated by its type in the same way. With ``"validate"`` what fits is sent as it is,
            with all that it has. None is False, and under `polybus.testing.pair` ``"validate"``.
        cluster: Make this bus a node of a cluster, in which many processes are one bus, over an engine (NATS): its URL,
            ``auto`` for that in ``POLYBUS_CLUSTER`` (where there is none the bus is alone), or `Cluster`.

    Raises:
        TypeError: `limits` is no `Limits`, a hook cannot be called, or `cluster` is none.
        ValueError: The URL of `cluster` is none of NATS.
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
            ValueError: The URL or an option is wrong.
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
    ) -> AbstractAsyncContextManager[Listener]:
        """Accept links at an address; the async context manager yields the `Listener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 takes a free port.
            protocol: For a transport object: name or adapter.
            origins: Web origins whose pages may connect. Pages of the same host and port always may.
            hosts: Further ``Host`` values of a loopback server, behind a proxy.
            tls: For ``tls`` and ``wss``: a server-side context.
            when_full: What happens to publications for a peer whose outbox is full: ``drop_oldest``, ``drop_newest``,
                ``disconnect``.
            insecure: Allow an address that other machines can reach, and clients from there that a proxy brings, although every
                connection is accepted.

        Raises:
            ValueError: The URL or an option is wrong.
            LocalProtocolError: An open address without `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
        return Serving(self._parts, target, protocol, origins, hosts, tls, when_full, insecure)

    @property
    def peers(self) -> list[Peer]:
        """The peers of all links."""
        return [peer.public for peer in self._links.peers]

    def peers_of(self, key: str) -> list[Peer]:
        """The peers of one identity (its `Identity.key`), without those on their way out: for ``publish(..., to=...)``."""
        return [peer.public for peer in self._links.peers_of(key)]

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> Connector:
        """A connection that runs inside a link of this bus: ``connect(bus.tunnel("plant.7"), protocol="csb")``.

        It goes to the peer that a request to `name` would go to. It comes back after a loss as any connection does, once the
        outer link is back.

        Args:
            name: What the other side serves by `handle_tunnels`.
            params: Shown there in `Handshake.params`.

        Raises:
            ReservedSubject, LocalProtocolError: The name cannot be.
            TypeError: `params` are not text to text.
        """
        return self._links.tunnel(name, params)

    def handle_tunnels(
        self, pattern: str, inner: Bus, *, protocol: str | ProtocolAdapter, when_full: str = "drop_oldest"
    ) -> None:
        """Lead tunnels of these names to another bus, as if their openers had connected to it.

        A bus that does not run yet is entered with the first tunnel, and left together with this one. ``authorize(peer,
        "tunnel", name)`` of this bus is asked first; then `inner` asks its own ``authenticate`` with the outer peer in
        `Handshake.outer`; without one, the opener keeps the identity that it has here.

        Args:
            pattern: ``plant.{id}``: what the names give is in `Handshake.params`.
            inner: Where they lead; may be this bus.
            protocol: What is spoken inside: name or adapter.
            when_full: As in `serve`.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
            ValueError: The protocol or the policy is not known, or the pattern is served already.
            TypeError: `inner` is no bus.
        """
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
        """True while new requests are taken: from the lifespan's yield to the beginning of a drain."""
        return self._services.ready

    @property
    def why_not_ready(self) -> str:
        """The reason why a load balancer should send nothing here now; empty while it should.

        The bus has not started, is about to end or has failed, or it has been without the engine of its cluster for longer than
        `Cluster.outage`. ``/readyz`` says this. Requests are taken as long as `ready` is true.
        """
        if not self._services.ready:
            failed = self._services.failed
            return f"it does not take requests: {failed}" if failed else "it does not take requests"
        return next(filter(None, (extension.why_not_ready() for extension in self._links.extensions)), "")

    @property
    def leaving(self) -> bool:
        """True from the beginning of a drain to the end of the bus."""
        return self._services.leaving

    @property
    def state(self) -> Any:
        """The value that the lifespan has yielded."""
        return self._life.state

    async def drain(self, timeout: float = DRAIN) -> None:
        """Stop taking requests, let running handlers finish, tell the peers, write what waits, close the links.

        Streams and channels get a quarter of the time to come to their end by themselves; then they are ended as `Unavailable`.

        In a handler, a middleware or the lifespan of this very bus it returns at once, while the bus drains: they are among
        those that the drain waits for.

        Who cancels it gives it no more time: what still runs then is cut, the peers are told, and the bus is drained.

        Args:
            timeout: Seconds for all of it; what still runs then is cut. The end of the lifespan then gets as many.

        Raises:
            TypeError, ValueError: `timeout` is no number of seconds.
            LocalProtocolError: The bus runs in another event loop.
        """
        await self._life.drain(timeout)

    async def aclose(self) -> None:
        """Leave at once, whatever blocks are entered: links are closed, handlers cancelled. May be called at any time.

        In a handler, a middleware or the lifespan of this very bus it returns at once; the caller is cancelled at its next
        wait.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
            BaseException: What the lifespan raises at its end.
        """
        await self._life.aclose()

    async def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered, or runs in another event loop.
        """
        await self._life.wait_closed()

    # -- recording ------------------------------------------------------------------------------------------------------

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
        """Write every frame of every link, in both directions, to a capture: ``async with bus.record("captures/"): ...``

        The bus never waits for it: what the disk does not take is dropped and counted, and the capture says where. Needs ``pip
        install 'polybus[capture]'``.

        Args:
            path: A folder; it is made where there is none. Several recordings may share it.
            max_bytes: Of the folder: the oldest segments beyond that are removed.
            max_age: After which segments are removed; seconds or a `timedelta`.
            bodies: Whether bodies are written; without them, what each message is for.
            redact: ``redact(protocol, frame)`` gives what is written in place of a frame. The default blanks tokens, cookies
                and members named like secrets; None writes all as it is.
            decode: Whether what is sealed (after 64 MiB or a minute) is decoded meanwhile, once for all who read it, by a
                process of the lowest priority. What is not decoded in the end is decoded by those who read it.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is not what it should be.
            CaptureError: (on entering) The folder cannot be made or written.
        """
        recorder = make_recorder(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact, decode=decode)
        return Recording(self._services, recorder)

    # -- the cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that this bus is a node of, as it was given; None for a bus that is alone by intention."""
        return self._cluster

    def user(self, key: str) -> User:
        """A user by the key of the identity, connected here or to another node of the cluster.

        Raises:
            TypeError: `key` is no text.
        """
        check_type(key, str, "key", "bus.user('ann')")
        return User(self._links, key)

    def forward(self, pattern: str | int) -> None:
        """Send what clients ask, and this bus does not handle, on to the cluster, after `authorize`. Off by default.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus was made without ``cluster=``.
        """
        check_pattern(pattern, self.limits.subject)
        if self._links.mesh is None:
            raise LocalProtocolError("bus.forward() leads to the cluster: make the bus with cluster=, as Bus(cluster='auto')")
        self._links.mesh.forward(pattern)

    async def nodes(self) -> Survey[Node]:
        """Ask all nodes of the cluster for what they are, this one included; within 2 s.

        Raises:
            LocalProtocolError: The bus is not entered, or runs in another event loop.
        """
        self._services.running.check_here()
        if self._links.mesh is None:
            return Survey((Node("", self._services.id, "", len(self.peers), here=True),))
        return await self._links.mesh.nodes()

    async def present(self, pattern: str | int) -> Survey[Peer | RemotePeer]:
        """Find the clients that have subscribed to this very pattern, here and at all other nodes; within 2 s.

        Nothing is remembered: a node that was killed has no clients.

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

        The first one used is the outermost. May be used as a decorator.

        Args:
            middleware: A middleware, or with `outgoing` an `OutgoingHook`, a plain function.
            outgoing: Call it with everything that the application asks, publishes, notifies or opens on this bus, before it
                leaves. It may add to ``message.headers``, which go to peers that read headers, and may return a function that
                is called with the `Outcome`.

        Raises:
            TypeError: It cannot be called with these arguments, is a class, or is a coroutine function where `outgoing` wants a
                plain one.
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
        """The functions that handlers ask for by ``Depends``; in tests `Dependencies.override` has another one stand in."""
        return Dependencies(self._services.overrides)

    @property
    def debug(self) -> bool:
        """True where clients are sent the text of unexpected exceptions."""
        return self._services.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._services.debug = debug

    @property
    def check_answers(self) -> bool | Literal["validate"] | None:
        """The validation of what handlers return, and of what is published to a `Subject`; see `Bus`."""
        return self._services.check_answers

    @check_answers.setter
    def check_answers(self, check_answers: bool | Literal["validate"] | None) -> None:
        if check_answers is True:
            for handler in self._lookup.handlers.values():
                handler.check_that_answers_are_checked()
        self._services.check_answers = check_answers

    # -- watching --------------------------------------------------------------------------------------------------------

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
        """Iterate over events from now on, as they happen; the oldest of 1,000 unread events give way to new ones.

        Raises:
            LocalProtocolError: (here or by iterating) The bus runs in another event loop.
        """
        if self._services.runtime is not None:
            self._services.runtime.check_here()
        return self._life.keep_events(self._services.events.stream())


def parts_of(bus: Bus) -> BusParts:
    """Give the parts of a bus, for the rooms above it."""
    return bus._parts
