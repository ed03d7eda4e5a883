"""The bus: one symmetric object for clients, servers and everything between."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Literal

from .._core.access import Authenticate, Authorize
from .._core.executor import Middleware
from .._core.services import Services
from .._peer.peer import Peer
from .._pubsub.pubsub import PubSub
from .._tunnel.endpoint import Entrance
from .._validation import check_callable, check_type, shown
from ..events import BusEvent
from ..limits import Limits
from ..plugins.registry import make_recorder
from ..stats import Stats
from .ends import BridgeEnd, PubSubEnd
from .lifecycle import Lifespan
from .publishing import Publishing
from .recording import Recording

__all__ = ["Bus", "Middleware"]


class Bus(Publishing):
    """Handlers, subscriptions and any number of links. A client is a bus with one link, a server a bus with many.

    A bus runs while it is entered: ``async with bus:``; `connect`, `serve` and `testing.pair` enter it too. Entering is
    counted; the last one out drains. Afterwards it may be entered again, in another event loop too; handlers stay.

    Args:
        limits: Sizes and times; see `Limits`.
        authenticate: ``authenticate(handshake)`` decides who a stranger is; None refuses. Without it everybody may come in.
        authorize: ``authorize(peer, verb, subject)`` decides what a peer may do. Without it everything. With a parameter
            ``message`` it is given that too, with what the wire says of who asks (a token of uProtocol, for example).
        lifespan: ``lifespan(bus)`` is an async context manager run inside the entered bus; what it yields is ``ctx.state``. It
            has a task of its own, so it may hold a task group. Until it has yielded the bus is not `ready`, and others who
            enter wait; what it raises before is what entering raises. It ends after the handlers. As with an application
            server its end is always the orderly one, whatever was raised in the block, and may take as long as the drain did
            at most (20 s, unless `drain` was told otherwise): then it is cancelled; what it raises then comes out of the
            block (unless something else does: then it is logged). A failure in between, of its task group, closes the bus.
        debug: Send the text of unexpected exceptions to the asker. Never in production.

    Raises:
        TypeError: `limits` is no `Limits`, or a hook cannot be called.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        lifespan: Lifespan | None = None,
        debug: bool = False,
    ) -> None:
        check_type(limits, Limits, "limits", "Limits(message=2**20)")
        check_callable(authenticate, "authenticate", "authenticate(handshake)")
        check_callable(authorize, "authorize", "authorize(peer, verb, subject)")
        check_callable(lifespan, "lifespan", "lifespan(bus), that gives an async context manager")
        services = Services(
            self,
            limits if limits is not None else Limits(),
            authenticate=authenticate,
            authorize=authorize,
            debug=debug,
            open_peer=Peer,
        )
        end = PubSubEnd(self._check_subject, self._check_gone, self._answered, lambda: self.leaving)
        super().__init__(self, services, lifespan, PubSub(services, end))
        self._deliver = self._pubsub.receiver.deliver
        self._checked: set[str | int] = set()
        self._entrances: list[Entrance] = []
        self._route_sides: list[Any] = []
        """Routes of bridges that begin here: `_bridge.route_side.RouteSide`."""

    def _bridge_end(self) -> BridgeEnd:
        return BridgeEnd(
            self._services,
            self._pubsub,
            self._loopback,
            self._enter,
            self._leave,
            self._adapters,
            self._add_side,
            self._remove_side,
            self._side,
            self._check_subject,
            self._handler,
            self._entrance,
            self._route,
            self._tell,
            self._open,
        )

    # -- recording ------------------------------------------------------------------------------------------------------

    def record(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 10 << 30,
        max_age: float | timedelta = timedelta(days=7),
        bodies: bool = True,
        redact: Callable[[str, bytes], bytes] | Literal["default"] | None = "default",
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

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is not what it should be.
            CaptureError: (on entering) The folder cannot be made or written.
        """
        recorder = make_recorder(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact)
        return Recording(self._services, recorder)

    # -- running handlers ------------------------------------------------------------------------------------------------

    def use(self, middleware: Middleware) -> Middleware:
        """Run around every handler: ``async def middleware(message, ctx, call_next): return await call_next(message)``.

        The first one used is the outermost. May be used as a decorator.

        Raises:
            TypeError: It cannot be called.
        """
        if not callable(middleware):
            raise TypeError(f"bus.use({shown(middleware)}): a function, async def middleware(message, ctx, call_next)")
        self._services.executor.middleware.append(middleware)
        return middleware

    @property
    def debug(self) -> bool:
        """Whether the asker is sent the text of unexpected exceptions."""
        return self._services.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._services.debug = debug

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
            waiting=sum(peer.waiting for peer in peers),
            queued=sum(len(link.outbox) for link in links if link.outbox is not None),
            unread=self._pubsub.unread,
            sent=counters.sent,
            received=counters.received,
            dropped=counters.dropped,
            late=counters.late,
            malformed=counters.malformed,
            refused=counters.refused,
            failed=counters.failed,
            reconnects=counters.reconnects,
        )

    def events(self) -> AsyncIterator[BusEvent]:
        """What happens from now on, as it happens; the oldest of 1,000 unread events give way to new ones.

        Raises:
            LocalProtocolError: (here or by iterating) The bus runs in another event loop.
        """
        if self._services.runtime is not None:
            self._services.runtime.check_here()
        return self._services.events.stream()
