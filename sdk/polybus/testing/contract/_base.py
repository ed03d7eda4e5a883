"""Base class and helpers for the contract tests."""

from __future__ import annotations

import functools
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

import anyio
import pytest

from ... import Backoff, Bus, Context, Listener, Peer, Subscription, connect
from ...events import BusEvent
from ...plugins import Capabilities, ProtocolAdapter
from .._waiting import PATIENCE, eventually, let_expire

__all__ = ["Contract", "Dial", "Endless", "Ground", "echo", "eventually", "let_expire", "needs", "next_event", "suite", "take"]

Test = TypeVar("Test", bound=Callable[..., Any])
Event = TypeVar("Event", bound=BusEvent)
Dial: TypeAlias = Callable[..., AbstractAsyncContextManager[Bus]]
"""``dial(bus=None)`` connects another client."""
Ground: TypeAlias = Callable[[], AbstractAsyncContextManager[str]]
"""Yields a fresh address without the protocol."""
Meeting: TypeAlias = tuple[Bus, list[Bus], list[Peer], Callable[[], Awaitable[None]]]
"""A server, its clients, the server's peers for them, and a function that waits until everything sent has been handled."""

BOUND = 60.0
"""Time limit per test, in seconds. Only failing tests take this long, even on a slow, busy machine."""


def needs(*capabilities: str) -> Callable[[Test], Test]:
    """Leave out a test unless the protocol has all of these `Capabilities`.

    ``interest`` (subscriptions can be withdrawn), ``wildcards`` and ``notifications`` may come from the extensions or from the
    protocol.
    """

    def mark(test: Test) -> Test:
        test.__dict__["needs"] = capabilities
        return test

    return mark


async def echo(body: Any) -> Any:
    return body


class Endless:
    def __init__(self) -> None:
        self.started = anyio.Event()
        self.stopped = anyio.Event()

    async def endless(self) -> None:
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.stopped.set()


async def next_event(events: AsyncIterator[BusEvent], kind: type[Event]) -> Event:
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__} event")


async def take(subscription: Subscription, count: int) -> list[Any]:
    return [(await anext(subscription)).body for _ in range(count)]


def _bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def within(*args: Any, **kwargs: Any) -> None:
        with pytest.MonkeyPatch.context() as patch, anyio.fail_after(BOUND):
            # All peers here answer the hello, but on a stalled machine it may take more than a second.
            patch.setattr("polybus._core.peer.negotiation.HELLO_TIMEOUT", PATIENCE)
            await test(*args, **kwargs)

    return within


class Contract:
    # Static methods of the class that `suite` creates.
    make: ClassVar[Any]
    ground: ClassVar[Any]
    if TYPE_CHECKING:  # set by `suite`

        def subject(self, name: str, /) -> str | int:
            """Convert a test's dotted subject to a subject of the protocol."""
            raise NotImplementedError

    requires: ClassVar[tuple[str, ...]] = ()
    """`Capabilities` required by all tests of this class."""
    turns: ClassVar[int] = 300
    """Number of round trips in a conversation, enough to use up and renew credits. Use fewer if round trips are slow."""

    @property
    def adapter(self) -> ProtocolAdapter:
        adapter: ProtocolAdapter = type(self).make()
        return adapter

    @asynccontextmanager
    async def serving(self, bus: Bus, **options: Any) -> AsyncIterator[tuple[Listener, Dial]]:
        """Serve a bus. Yields the listener and a function that connects clients."""
        adapter = self.adapter
        async with (
            type(self).ground() as address,
            bus.serve(f"{adapter.name}+{address}", protocol=adapter, **options) as listener,
        ):
            url = listener.url.partition("?")[0]  # the adapter already has the options

            def dial(client: Bus | None = None, **more: Any) -> AbstractAsyncContextManager[Bus]:
                return connect(url, protocol=adapter, bus=client, backoff=Backoff(initial=0.001, maximum=0.02), **more)

            yield listener, dial

    @asynccontextmanager
    async def joined(self, bus: Bus, client: Bus | None = None) -> AsyncIterator[Bus]:
        async with self.serving(bus) as (_, dial), dial(client) as joined:
            await eventually(lambda: bus.peers)  # without a handshake, a client may be ready before the server is
            yield joined

    @asynccontextmanager
    async def handling(self, handler: Callable[..., Any], bus: Bus | None = None) -> AsyncIterator[tuple[Bus, Bus, str | int]]:
        """Yield a server with one handler, a client, and the handler's subject."""
        bus, subject = Bus() if bus is None else bus, self.subject(handler.__name__)
        bus.handle(subject)(handler)
        async with self.joined(bus) as client:
            yield bus, client, subject

    @asynccontextmanager
    async def meeting(self, count: int = 1, bus: Bus | None = None) -> AsyncIterator[Meeting]:
        """Yield a server and clients that know each other."""
        bus, hello, peers = Bus() if bus is None else bus, self.subject("hello"), list[Peer]()

        @bus.handle(hello)
        async def greet(ctx: Context) -> None:
            assert ctx.peer is not None
            peers.append(ctx.peer)

        async def settled() -> None:
            for client in clients:
                await client.request(hello)

        async with self.serving(bus) as (_, dial), AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(dial()) for _ in range(count)]
            await settled()
            yield bus, clients, peers, settled


@asynccontextmanager
async def _unix() -> AsyncIterator[str]:
    # Operating systems limit socket paths to about a hundred bytes.
    with tempfile.TemporaryDirectory(prefix="bus") as folder:
        yield f"unix://{Path(folder) / 's'}"


def ground_of(transport: str) -> Ground:
    """Return the default ground for a transport name. An address is used unchanged."""
    if transport == "memory":
        return lambda: nullcontext(f"memory://contract-{secrets.token_hex(4)}")
    if transport == "unix":
        return _unix
    return lambda: nullcontext(transport if "://" in transport else f"{transport}://127.0.0.1:0")


_EITHER: Final = {
    "interest": ("extensions", "subscribe"),
    "wildcards": ("extensions", "patterns"),
    "notifications": ("extensions", "groups"),
}
"""Capabilities that the extensions or the protocol itself can provide."""


def _has(capabilities: Capabilities, want: str) -> bool:
    return any(getattr(capabilities, one) for one in _EITHER.get(want, (want,)))


def suite(
    name: str, parts: Iterable[type], members: Mapping[str, Any], capabilities: Capabilities | None, skip: Mapping[str, str]
) -> type[Any]:
    """Return a class with the tests from all parts, each with a time limit. Leaves out tests that the protocol cannot pass."""
    made: dict[str, Any] = {**members, "__test__": True}
    unknown = set(skip)
    for part in parts:
        for key, test in vars(part).items():
            if not key.startswith("test_"):
                continue
            unknown.discard(key)
            wanted = (*getattr(part, "requires", ()), *getattr(test, "needs", ()))
            if capabilities is not None and not all(_has(capabilities, want) for want in wanted):
                made[key] = None  # so pytest does not collect a test with this name
            elif key in skip:
                made[key] = pytest.mark.skip(reason=skip[key])(_bounded(test))
            else:
                made[key] = _bounded(test)
    if unknown:
        raise ValueError(f"skip= names no tests of the suite: {', '.join(sorted(unknown))}")
    cls: type[Any] = pytest.mark.anyio(type(name, tuple(parts), made))
    return cls
