"""The verbs of a bus for threads: each runs on the event loop while the calling thread waits. See `polybus.sync`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import anyio.from_thread
import anyio.lowlevel

from .blocking_items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run
from .blocking_peer import AnyPeer, BlockingListener, BlockingPeer, asynchronous, called
from .context import Context
from .errors import BusError, LocalProtocolError
from .runtime import runs_here
from .subjects import AnySubject, Subject

if TYPE_CHECKING:
    import ssl

    from .backoff import Backoff
    from .bus import Bus
    from .capture.recording import Recording
    from .connecting import Headers
    from .events import BusEvent
    from .message import Message
    from .plugins import Connector, ProtocolAdapter
    from .router import WhenFull
    from .stats import Stats

__all__ = ["BlockingBus", "BlockingContext"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")


class FromHandler:
    """Runs things on the loop that a `def` handler was called from, also for threads that the handler starts."""

    def __init__(self) -> None:
        self._token = anyio.lowlevel.current_token()
        self._thread = threading.get_ident()

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Any:
        check_not_on_loop(self._thread)
        try:
            return self._call(function, args)
        except BusError as error:
            raise error.with_traceback(None)  # noqa: B904  # the same error, without the frames of two event loops
        except anyio.RunFinishedError:
            raise LocalProtocolError("the bus of this handler has been left: its blocking twin ends with it") from None

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return anyio.from_thread.run(function, *args)  # ends when the handler is cancelled
        except anyio.NoEventLoopError:
            return anyio.from_thread.run(function, *args, token=self._token)


def check_not_on_loop(thread: int = 0) -> None:
    """Raise where waiting would wait for itself, or for a bus that cannot go on meanwhile.

    Args:
        thread: That of the event loop that does the work.

    Raises:
        LocalProtocolError: This is that thread, or one whose event loop runs another bus.
    """
    if threading.get_ident() == thread:
        raise LocalProtocolError(
            "a blocking verb was called on the event loop that has to do the work: await the verb of the polybus.Bus there"
        )
    if runs_here():
        raise LocalProtocolError(
            "a blocking verb was called on an event loop that runs a polybus.Bus, which stands still while it waits: await "
            "polybus.connect and the verbs of a polybus.Bus there, or block in a thread (anyio.to_thread.run_sync)"
        )


class BlockingBus:
    """A `Bus` whose verbs block the calling thread. Safe to use from several threads at once.

    The verbs, their arguments and their errors are those of `Bus`. A request gives its answer, not a `Reply`: for several at a
    time use several threads.
    """

    def __init__(self, bus: Bus, run: Run) -> None:
        self._bus = bus
        self._runs = run

    @property
    def _run(self) -> Run:
        return self._runs

    def __reduce__(self) -> Any:
        raise TypeError("a bus cannot be pickled, it lives in one process: open one in the function that runs in the other")

    # -- requests --------------------------------------------------------------------------------------------------------

    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Out: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: Any = ...,
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Any: ...
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        to: AnyPeer | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.

        Raises:
            BusError: As `Bus.request` and its `Reply`.
        """

        async def ask() -> Any:
            peer = asynchronous(to)
            return await self._bus.request(subject, body, timeout=timeout, returns=returns, to=peer, headers=headers)  # type: ignore[arg-type]

        return self._run(ask)

    def notify(
        self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None, to: AnyPeer | None = None
    ) -> None:
        """Tell one handler, without an answer.

        Raises:
            BusError: As `Bus.notify`.
        """
        self._run(lambda: self._bus.notify(subject, body, headers=headers, to=asynchronous(to)))

    # -- publications ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: AnyPeer | Iterable[AnyPeer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish; waits for room.

        Raises:
            BusError: As `Bus.publish`.
        """
        self._run(lambda: self._bus.publish(subject, body, headers=headers, to=asynchronous(to), timeout=timeout))

    def publish_nowait(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: AnyPeer | Iterable[AnyPeer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`publish` without waiting for room.

        Raises:
            BusError: As `Bus.publish_nowait`.
        """
        self._run(
            called,
            lambda: self._bus.publish_nowait(subject, body, headers=headers, to=asynchronous(to), timeout=timeout),
        )

    @overload
    def subscribe(
        self, pattern: Subject[In, Any], *, queue: int = ..., when_full: WhenFull = ..., local: bool = ...
    ) -> BlockingSubscription[In]: ...
    @overload
    def subscribe(
        self, pattern: str | int, *, returns: type[T], queue: int = ..., when_full: WhenFull = ..., local: bool = ...
    ) -> BlockingSubscription[T]: ...
    @overload
    def subscribe(
        self, pattern: AnySubject, *, returns: Any = ..., queue: int = ..., when_full: WhenFull = ..., local: bool = ...
    ) -> BlockingSubscription[Any]: ...
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = Any,
        queue: int = 1000,
        when_full: WhenFull = "drop_oldest",
        local: bool = True,
    ) -> BlockingSubscription[Any]:
        """Receive publications: ``with bus.subscribe("news.*") as news: for message in news: ...``

        Raises:
            BusError, ValueError: As `Bus.subscribe`.
        """
        made = self._bus.subscribe(pattern, returns=returns, queue=queue, when_full=when_full, local=local)
        return BlockingSubscription(made, self._run)

    # -- streams and channels --------------------------------------------------------------------------------------------

    @overload
    def stream(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> BlockingChannel[Out, Any]: ...
    @overload
    def stream(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        returns: type[T],
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def stream(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        returns: Any = ...,
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> BlockingChannel[Any, Any]: ...
    def stream(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        returns: Any = Any,
        timeout: float | None = None,
        to: AnyPeer | None = None,
    ) -> BlockingChannel[Any, Any]:
        """Ask for many answers: ``with bus.stream("log.tail", {"n": 10}) as lines: for line in lines: ...``

        Raises:
            BusError: As `Bus.stream`.
        """
        opening = self._bus.stream(subject, body, returns=returns, timeout=timeout, to=asynchronous(to))
        return BlockingChannel(opening, self._run)

    @overload
    def channel(
        self,
        subject: Subject[In, Out],
        *,
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> BlockingChannel[Out, In]: ...
    @overload
    def channel(
        self,
        subject: str | int,
        *,
        sends: Any = ...,
        receives: type[T],
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> BlockingChannel[T, Any]: ...
    @overload
    def channel(
        self,
        subject: str | int,
        *,
        sends: Any = ...,
        receives: Any = ...,
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> BlockingChannel[Any, Any]: ...
    def channel(
        self,
        subject: AnySubject,
        *,
        sends: Any = Any,
        receives: Any = Any,
        timeout: float | None = None,
        to: AnyPeer | None = None,
    ) -> BlockingChannel[Any, Any]:
        """Open a conversation: ``with bus.channel("chat") as chat: chat.send(...); for item in chat: ...``

        Raises:
            BusError: As `Bus.channel`.
        """
        opening = self._bus.channel(subject, sends=sends, receives=receives, timeout=timeout, to=asynchronous(to))
        return BlockingChannel(opening, self._run)

    # -- links -----------------------------------------------------------------------------------------------------------

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
    ) -> BlockingBlock[BlockingPeer]:
        """Add a link to this bus: ``with bus.connect(url) as peer: ...``

        Raises:
            BusError, ValueError: As `Bus.connect`.
        """
        manager = self._bus.connect(
            target, protocol=protocol, serves=serves, headers=headers, tls=tls, backoff=backoff, wait=wait, record=record
        )
        return BlockingBlock(self._run, manager, lambda peer: BlockingPeer(peer, self._run))

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
    ) -> BlockingBlock[BlockingListener]:
        """Accept links at an address: ``with bus.serve(url) as listener: ...``

        Raises:
            BusError, ValueError, OSError: As `Bus.serve`.
        """
        manager = self._bus.serve(
            target, protocol=protocol, origins=origins, hosts=hosts, tls=tls, when_full=when_full, insecure=insecure
        )
        return BlockingBlock(self._run, manager, lambda listener: BlockingListener(listener, self._run))

    def record(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 10 << 30,
        max_age: float | timedelta = timedelta(days=7),
        bodies: bool = True,
        redact: Callable[[str, bytes], bytes] | Literal["default"] | None = "default",
    ) -> BlockingBlock[Recording]:
        """Write every frame of every link to a capture: ``with bus.record("captures/"): ...``

        Raises:
            BusError, ImportError, TypeError, ValueError: As `Bus.record`.
        """
        manager = self._bus.record(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact)
        return BlockingBlock(self._run, manager, lambda recording: recording)

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> BlockingTunnel:
        """A connection that runs inside a link of this bus: ``sync.connect(bus.tunnel("plant.7"), protocol="csb")``

        Raises:
            BusError, TypeError: As `Bus.tunnel`.
        """
        return BlockingTunnel(self._bus.tunnel(name, params=params), self._run)

    @property
    def peers(self) -> list[BlockingPeer]:
        """Everybody linked to this bus."""
        peers = self._run(called, lambda: self._bus.peers)
        return [BlockingPeer(peer, self._run) for peer in peers]

    def peers_of(self, key: str) -> list[BlockingPeer]:
        """The peers of one identity (its `Identity.key`)."""
        return [BlockingPeer(peer, self._run) for peer in self._run(called, self._bus.peers_of, key)]

    # -- watching and ending ---------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """A snapshot, as `Bus.stats`."""
        snapshot: Stats = self._run(called, self._bus.stats)
        return snapshot

    def events(self) -> BlockingItems[BusEvent]:
        """What happens from now on: ``for event in bus.events(): ...``"""
        return BlockingItems(self._run(called, self._bus.events), self._run)

    def drain(self, timeout: float = 20.0) -> None:
        """Stop taking requests and let running handlers finish, as `Bus.drain`."""
        self._run(self._bus.drain, timeout)

    def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered.
        """
        self._run(self._bus.wait_closed)


class BlockingContext(Context):
    """The `Context` of a `def` handler; annotate it as `polybus.sync.Context` to have its types."""

    __slots__ = ("_run",)

    def __init__(self, bus: Bus, message: Message, deadline: float | None = None) -> None:
        super().__init__(bus, message, deadline)
        self._run = FromHandler()

    @property
    def bus(self) -> BlockingBus:
        """The blocking twin of the bus that the handler runs on."""
        return BlockingBus(self._bus, self._run)

    @property
    def peer(self) -> BlockingPeer | None:  # type: ignore[override]  # its verbs block too
        """Who sent the message; None when it came from this bus itself."""
        peer = super().peer
        return None if peer is None else BlockingPeer(peer, self._run)
