"""Provides `polybus.connect`, and `polybus.run`, which serves a bus until the process receives a signal."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..._util.event_loop import running_loop
from ..._util.logs import log_fields
from ..._util.misuse import CONNECT, explains
from ..._util.process_end import end_by_sigterm, ending_signals, exit_at_once
from ..._validation import check_choice, check_count, check_type, counted, seconds, shown
from ...errors import BusError, ConnectFailed, Forbidden, LocalProtocolError, Unauthorized
from ...limits import Limits
from ...plugins import ProtocolFeatures
from ...plugins.extensions import core_of
from ...plugins.registry import metrics_maker, resolve_url, supervise, with_tls, worker_here
from ...retry import Backoff
from ...secrets import without_secrets
from .bus import Bus, parts_of
from .dialer import Connecting, Headers
from .lifecycle import raised_by_lifespan

if TYPE_CHECKING:
    import ssl

    from ..._util.http_status import HttpStatus, Page
    from ...plugins import Connector, ProtocolAdapter
    from ..peer.peer import Peer


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
        tls: Client-side context for ``tls`` and ``wss``. By default, the server is verified against the system's certificate
            authorities.
        backoff: Pauses between attempts to reconnect. If the server sets `retry`, it overrides `initial` and `maximum`.
        wait: Seconds to keep retrying the first attempt. Use `math.inf` for no limit.
        limits: Limits of the new bus.
        record: Folder in which to record every frame of this link, with the defaults of `Bus.record`.

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


logger: logging.Logger = logging.getLogger("polybus")

_BACKOFF: Final = Backoff(initial=0.05, maximum=1.0)
"""Pauses between attempts to reconnect to a broker or to a cluster's engine."""
_OUTAGE: Final = 5.0
"""Seconds without a broker after which the service is not ready, similar to `Cluster.outage`."""
_PATIENCE = 20.0
"""Seconds to wait for a broker."""

_AT_ONCE = 3.0
"""Seconds to wait for the bus to close after the second signal. A lifespan or a thread may never exit."""


def run(
    bus: Bus,
    *urls: str,
    drain: float = 20.0,
    delay: float = 0.0,
    health: str | None = None,
    metrics: bool = False,
    backend: str = "asyncio",
    uvloop: bool = False,
    workers: int = 1,
    **options: Any,
) -> None:
    """Serve a bus until the process receives SIGINT or SIGTERM, then drain the bus.

    A second signal ends the program immediately, and so does a signal that arrives before the bus is serving. If a lifespan or
    thread is still running 3 s later, the process exits with status 128 plus the signal number.

    With several workers, this process binds the addresses, starts the same program once for each worker, and restarts workers
    that die. In this process, `run` returns once all workers have drained. The code before your call of `run` is executed in
    every worker.

    The ``polybus`` logger logs the addresses at level INFO. If no logging handler shows INFO records, ``serving URL`` is
    printed instead.

    Args:
        bus: Bus to serve.
        urls: Addresses to serve. See `Bus.serve`.
        drain: Seconds that running handlers have to finish after the signal. See `Bus.drain`.
        delay: Seconds between the signal and the drain. During this time, requests are still accepted but ``/readyz`` returns
            503, so that load balancers stop sending requests.
        health: Address for ``/livez`` and ``/readyz``, such as ``http://127.0.0.1:8081``. The pages are available from before
            the bus starts until after it has stopped.
        metrics: Also serve Prometheus metrics of all workers at ``/metrics`` on the `health` address. Anyone who can reach the
            address can read them. Requires ``pip install 'polybus[prometheus]'``.
        backend: ``asyncio`` or ``trio``.
        uvloop: Use uvloop with asyncio.
        workers: Number of serving processes (POSIX). More than one worker requires a bus with `cluster`, so that the workers
            act as one bus. If `cluster` is ``"auto"`` and ``POLYBUS_CLUSTER`` is not set, a NATS server is started for the
            workers.
        options: Additional arguments of `Bus.serve`, which apply to all URLs. `tls` applies only to URLs with TLS. If the bus
            connects to all URLs itself (``nats``), it is a client-side context.

    Raises:
        TypeError: If `bus` is not a bus, or an argument has the wrong type.
        LocalProtocolError: If you call this outside the main thread or while an event loop is running. If other machines can
            reach an address and the bus has no `authenticate` hook. With several workers, if the bus has no `cluster`, has
            stores but no engine, or finds no NATS server.
        Unsupported: If several workers cannot share an address.
        ImportError: If uvloop, trio or prometheus-client is required but not installed.
        Exception: If the lifespan of the bus raises it. If a task of the bus fails, the bus closes and this is a
            `RuntimeError`.
        ValueError: If `drain`, `delay` or `workers` is out of range, `backend` is unknown, or `metrics` lacks `health`.
        SystemExit: If a URL, `health` or one of `options` is invalid, an address cannot be bound, or the cluster's engine
            cannot be reached or rejects the program. In these cases, one line is printed to stderr, the status is 1, and the
            cause is a `ValueError`, `OSError`, `ConnectFailed`, `Unauthorized` or `Forbidden`. Also if one of several workers
            was killed, or exited before it served.
    """
    serve = _prepared(
        bus,
        *urls,
        drain=drain,
        delay=delay,
        health=health,
        metrics=metrics,
        backend=backend,
        uvloop=uvloop,
        workers=workers,
        announce=announce,
        **options,
    )
    try:
        serve()
    except (OSError, ValueError, ConnectFailed, Unauthorized, Forbidden) as error:
        if raised_by_lifespan(error) and _has_joined(bus):
            raise
        raise SystemExit(str(error)) from error


def _has_joined(bus: Bus) -> bool:
    """Return False if the bus has a cluster that it has not joined yet."""
    mesh = parts_of(bus).links.mesh
    return mesh is None or mesh.entered


def tell_of_threads_left(buses: Iterable[Bus]) -> bool:
    """Log `def` handlers that still run after their bus has stopped. Returns True if the interpreter waits for them."""
    left = [each for bus in buses for each in parts_of(bus).services.executor.threads_left]
    waits = any(waited_for for _, waited_for in left)
    if left:
        names = ", ".join(sorted({name for name, _ in left}))
        what = "the process waits for them; a signal ends it at once" if waits else "they end with the process"
        logger.warning(
            "def handlers run after the end of the bus, in %s (%.400s): %s", counted(len(left), "thread"), names, what
        )
        end_by_sigterm()  # the event loop has handled it until now
    return waits


def announce(url: str) -> None:
    """Log the address. If no log shows it, print it."""
    url = without_secrets(url)
    logger.info("serving %s", url, extra=log_fields(address=url))
    if not (logger.isEnabledFor(logging.INFO) and logger.hasHandlers()):
        print(f"serving {url}", flush=True)


def serve_until_signal(bus: Bus, *urls: str, **arguments: Any) -> None:
    """Implement `run`, but raise every error. Also takes `announce`, which is called with each URL, and `client_tls` for URLs
    that the bus connects to."""
    _prepared(bus, *urls, **arguments)()


def _prepared(
    bus: Bus,
    *urls: str,
    drain: float,
    delay: float,
    health: str | None,
    metrics: bool,
    backend: str,
    uvloop: bool,
    workers: int,
    announce: Callable[[str], None],
    client_tls: ssl.SSLContext | None = None,
    **options: Any,
) -> Callable[[], None]:
    """Check the arguments of `run`, and return a function that serves the bus."""
    if not isinstance(bus, Bus):
        raise TypeError(
            f"run({shown(bus)}): pass a Bus, not {type(bus).__name__}; for example run(Bus(), 'ubre+tcp://127.0.0.1:9000')"
        )
    if not all(isinstance(url, str) for url in urls):
        raise TypeError(f"run(bus, {', '.join(map(shown, urls))}): pass URLs, for example 'ubre+tcp://127.0.0.1:9000'")
    if threading.current_thread() is not threading.main_thread():
        raise LocalProtocolError(
            "run() waits for signals, which only the main thread receives: use polybus.sync.Bus(bus) here, and close() to drain"
        )
    _check_loop(backend, uvloop)
    end_by_sigterm()  # until the event loop handles it
    drain, delay = seconds(drain, "drain"), seconds(delay, "delay")
    check_count(workers, "workers")
    if metrics:
        if health is None:
            raise ValueError(
                "metrics=True serves the page at the address for health checks, so pass health='http://127.0.0.1:8081' too"
            )
        _ = metrics_maker("scrape", "run(metrics=True)")

    def serve() -> None:
        worker = worker_here()
        if worker is None and workers > 1:
            addresses = _Addresses(bus, urls, options, client_tls)
            # Twice `drain`, because the lifespan has the same time for its end.
            if status := supervise(
                count=workers,
                buses=[bus],
                bind=addresses.bind,
                patience=delay + 2 * drain + _AT_ONCE,
                health=health,
                metrics=metrics,
            ):
                raise SystemExit(status)
            return
        running = _Run(bus, drain, delay, None if worker is not None else health, worker, announce, metrics=metrics)
        backend_options = {"use_uvloop": True} if uvloop and backend == "asyncio" else {}
        # Before the loop starts, since URLs may need imports.
        addresses = _Addresses(bus, urls, options, client_tls)
        anyio.run(running.main, addresses, backend=backend, backend_options=backend_options)
        running.over()

    return serve


def _check_loop(backend: str, uvloop: bool) -> None:
    check_choice(backend, ("asyncio", "trio"), "backend")
    with suppress(RuntimeError):
        here = running_loop().backend
        raise LocalProtocolError(
            f"run() starts an event loop, but {here} is already running one: use `async with bus.serve(url): "
            "await bus.wait_closed()` in it"
        )
    if uvloop and backend == "asyncio" and find_spec("uvloop") is None:
        raise ImportError("run(uvloop=True) needs uvloop: pip install 'polybus[uvloop]'", name="uvloop")
    if backend == "trio" and find_spec("trio") is None:
        raise ImportError("run(backend='trio') needs trio: pip install trio", name="trio")


class _Addresses:
    def __init__(
        self, bus: Bus, urls: tuple[str, ...], options: dict[str, Any], client_tls: ssl.SSLContext | None = None
    ) -> None:
        without = {name: value for name, value in options.items() if name != "tls"}
        self._secure = with_tls(urls)
        dialled = {url for url in urls if ProtocolFeatures.of(resolve_url(url)[0]).dials}
        self._client_tls = client_tls if client_tls or len(dialled) < len({*urls}) else options.get("tls")
        self.all: list[tuple[str, str, Any]] = [
            (
                f"{number} {url}",
                url,
                None if url in dialled else bus.serve(url, **(options if url in self._secure else without)),
            )
            for number, url in enumerate(urls)
        ]
        """Name, URL and listener of each address. The listener is None for a broker's URL."""
        self.keep: bool = any(ProtocolFeatures.of(resolve_url(url)[0]).keeps for url in urls)
        """True if an address may lead to external streams."""

    def connecting(self, bus: Bus, url: str) -> Any:
        tls = self._client_tls if url in self._secure else None
        connecting: Any = bus.connect(url, wait=_PATIENCE, backoff=_BACKOFF, tls=tls)
        connecting.insists = True
        return connecting

    async def bind(self) -> dict[str, list[socket.socket]]:
        return {name: await serving.bind() for name, _, serving in self.all if serving is not None}


class _Run:
    def __init__(
        self,
        bus: Bus,
        drain: float,
        delay: float,
        health: str | None,
        worker: Any,
        announce: Callable[[str], None],
        *,
        metrics: bool,
    ) -> None:
        self._bus = bus
        self._announce = announce
        self._worker = worker
        self._drain = drain
        self._delay = delay
        pages: dict[str, Page] = {"/livez": self._lives, "/readyz": self._ready}
        if metrics:
            pages["/metrics"] = self._metrics_page
        self._health: HttpStatus | None = None
        if health is not None:
            from ..._util.http_status import HttpStatus  # only a service with health checks needs it

            self._health = HttpStatus("health", health, pages, "http://127.0.0.1:8081")
        self._serving = False
        self._entrances: list[Peer] = []
        self._signalled: anyio.Event
        self._scope: anyio.CancelScope
        self._force: threading.Timer | None = None

    async def main(self, addresses: _Addresses) -> None:
        failure: BaseException | None = None
        self._signalled, self._scope = anyio.Event(), anyio.CancelScope()
        with anyio.open_signal_receiver(*ending_signals()) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(self._heed, signals)
                try:
                    if self._health is not None:
                        await self._health.listen()
                        group.start_soon(self._health.serve)
                    if self._worker is not None:
                        self._worker.follow(self._delay + 2 * self._drain + _AT_ONCE)
                        group.start_soon(self._worker.answer, self._why_not_ready, self._metrics)
                    with self._scope:
                        await self._serve(addresses)
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as error:
                    failure = SystemExit(1) if self._told_why_not(error) else error
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _told_why_not(self, error: BaseException) -> bool:
        """Report a start-up error once, through the supervisor. Returns False if this process must raise the error itself."""
        if self._worker is None or not isinstance(error, BusError):
            return False
        return not _has_joined(self._bus) and self._worker.tell_why_not(str(error))

    async def _serve(self, addresses: _Addresses) -> None:
        bus = self._bus
        if addresses.keep:
            parts_of(bus).links.storage.expected = True
        async with bus, AsyncExitStack() as stack:
            served: list[str] = []
            for name, url, serving in addresses.all:
                if serving is None:
                    self._entrances.append(await stack.enter_async_context(addresses.connecting(bus, url)))
                    served.append(url)
                else:
                    if self._worker is not None:
                        serving.serve_at(self._worker.sockets(name))
                    served.append((await stack.enter_async_context(serving)).url)
                if self._worker is None:  # for a worker the supervisor reports it
                    self._announce(served[-1])
            self._tell_if_alone()
            if not served and parts_of(bus).services.running.links:
                logger.info("ready, at no address of its own: requests come over its cluster, or the links that it has opened")
            self._serving = True
            if self._worker is not None:
                self._worker.tell_served(served)
            if not await self._until_signalled():
                return  # leaving the bus raises the error that closed it
            await anyio.sleep(self._delay)
            for _, _, serving in addresses.all:  # load balancers send new clients elsewhere when nothing listens here
                if serving is not None:
                    await serving.release()
            await bus.drain(self._drain)

    async def _until_signalled(self) -> bool:
        """Wait for a signal. Returns False if the bus is closed first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_closed, group.cancel_scope)
            await self._signalled.wait()
            group.cancel_scope.cancel()
        return self._signalled.is_set()

    async def _until_closed(self, scope: anyio.CancelScope) -> None:
        with suppress(LocalProtocolError):  # the bus is already closed
            await self._bus.wait_closed()
        scope.cancel()

    def _tell_if_alone(self) -> None:
        """Warn if nothing can reach this bus. Call this after the lifespan has started, which may also serve and connect."""
        links = parts_of(self._bus).links
        if not links.gates and not links.services.running.links:
            logger.warning(
                "no client can reach this program: run() has no URL, and its bus has neither a link nor a cluster; write "
                "for example run(bus, 'ubre+tcp://127.0.0.1:9000'), or set POLYBUS_CLUSTER for one with cluster='auto'"
            )

    async def _heed(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for number in signals:
            if number.name == "SIGHUP" and (self._worker is not None or self._signalled.is_set()):
                continue  # a closing terminal sends it to all processes, twice
            if self._worker is not None and self._signalled.is_set() and number == signal.SIGTERM:
                continue  # may arrive twice, from supervisor and service manager: only SIGINT is a second signal
            if self._serving and not self._signalled.is_set() and (self._worker is None or number == signal.SIGTERM):
                logger.info("%s, draining", number.name)
                self._signalled.set()
            elif self._force is None:
                logger.warning("%s, ending at once", number.name)
                self._scope.cancel()
                self._force = threading.Timer(_AT_ONCE, exit_at_once, (128 + number,))
                self._force.daemon = True
                self._force.start()

    def _lives(self) -> tuple[int, str]:
        over = self._serving and parts_of(self._bus).services.runtime is None
        return (503, "the bus has been closed\n") if over else (200, "OK\n")

    def _ready(self) -> tuple[int, str]:
        why = self._why_not_ready()
        return (503, f"{why}\n") if why else (200, "OK\n")

    async def _metrics_page(self) -> tuple[int, str]:
        return 200, await self._metrics()

    async def _metrics(self) -> str:
        text: str = await metrics_maker("scrape", "run(metrics=True)")(self._bus)
        return text

    def _why_not_ready(self) -> str:
        if not self._serving or self._signalled.is_set():
            return "it does not take requests"
        for peer in map(core_of, self._entrances):
            if absence := peer.link.absence(_OUTAGE):
                return f"the link to {without_secrets(peer.link.url)} is down {absence}"
        return self._bus.why_not_ready

    def over(self) -> None:
        if not tell_of_threads_left([self._bus]) and self._force is not None:
            self._force.cancel()
