"""`polybus.run`, which serves a bus as a process until it receives a signal."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field, frozen

from . import Backoff, Bus, Peer
from .errors import BusError, ConnectFailed, Forbidden, LocalProtocolError, Unauthorized
from .integrations import mesh_of, parts_of, raised_by_lifespan, tell_of_threads_left
from .plugins import ProtocolFeatures
from .plugins.extensions import core_of
from .plugins.registry import metrics_maker, resolve_url, supervise, with_tls, worker_here
from .plugins.tools import (
    HttpStatus,
    check_choice,
    check_count,
    end_by_sigterm,
    ending_signals,
    exit_at_once,
    log_fields,
    running_loop,
    seconds,
    shown,
    without_secrets,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from .plugins.tools import Page

__all__ = ["BusProcess", "run"]

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
    process = BusProcess(bus, urls, options, drain, delay, health, metrics, backend, uvloop, workers, announce)
    try:
        process.run()
    except (OSError, ValueError, ConnectFailed, Unauthorized, Forbidden) as error:
        if raised_by_lifespan(error) and _has_joined(bus):
            raise
        raise SystemExit(str(error)) from error


def _has_joined(bus: Bus) -> bool:
    """Return False if the bus has a cluster that it has not joined yet."""
    mesh = mesh_of(bus)
    return mesh is None or mesh.entered


def announce(url: str) -> None:
    """Log the address. If no log shows it, print it."""
    url = without_secrets(url)
    logger.info("serving %s", url, extra=log_fields(address=url))
    if not (logger.isEnabledFor(logging.INFO) and logger.hasHandlers()):
        print(f"serving {url}", flush=True)


@frozen
class _Address:
    name: str
    """A worker requests the sockets by this name."""
    url: str
    is_dialled: bool
    """True if the bus connects to the address, which is a broker's, instead of serving it."""
    keeps: bool
    """True if the address may lead to external streams."""
    context: Any
    """Async context manager that `Bus.connect` or `Bus.serve` returned."""


@define(eq=False, repr=False)
class BusProcess:
    """A bus that is served as a process. Takes the arguments of `run`, and raises errors that `run` turns into `SystemExit`.

    Attributes:
        announce: Called with each URL that is served.
        client_tls: Context for the URLs that the bus connects to.
    """

    bus: Bus
    urls: tuple[str, ...]
    options: dict[str, Any]
    drain: float = 20.0
    delay: float = 0.0
    health: str | None = None
    metrics: bool = False
    backend: str = "asyncio"
    uvloop: bool = False
    workers: int = 1
    announce: Callable[[str], None] = announce
    client_tls: ssl.SSLContext | None = None
    _worker: Any = field(default=None, init=False)
    _health: HttpStatus | None = field(default=None, init=False)
    _serving: bool = field(default=False, init=False)
    _entrances: list[Peer] = field(factory=list, init=False)
    """Peers at the other end of the links to brokers."""
    _signalled: anyio.Event = field(init=False)
    _scope: anyio.CancelScope = field(init=False)
    _force: threading.Timer | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.bus, Bus):
            raise TypeError(
                f"run({shown(self.bus)}): pass a Bus, not {type(self.bus).__name__}; "
                "for example run(Bus(), 'ubre+tcp://127.0.0.1:9000')"
            )
        if not all(isinstance(url, str) for url in self.urls):
            raise TypeError(f"run(bus, {', '.join(map(shown, self.urls))}): pass URLs, for example 'ubre+tcp://127.0.0.1:9000'")
        if threading.current_thread() is not threading.main_thread():
            raise LocalProtocolError(
                "run() waits for signals, which only the main thread receives: use polybus.sync.Bus(bus) here, "
                "and close() to drain"
            )
        _check_loop(self.backend, self.uvloop)
        end_by_sigterm()  # until the event loop handles it
        self.drain, self.delay = seconds(self.drain, "drain"), seconds(self.delay, "delay")
        check_count(self.workers, "workers")
        if self.metrics:
            if self.health is None:
                raise ValueError(
                    "metrics=True serves the page at the address for health checks, so pass health='http://127.0.0.1:8081' too"
                )
            _ = metrics_maker("scrape", "run(metrics=True)")

    @property
    def _patience(self) -> float:
        """Seconds that a worker has to end. The lifespan has the same time for its end as the handlers."""
        return self.delay + 2 * self.drain + _AT_ONCE

    def run(self) -> None:
        """Serve the bus until a signal arrives. Raises every error as it is."""
        self._worker = worker_here()
        addresses = self._addresses()  # before the loop starts, since URLs may need imports
        if self._worker is not None or self.workers == 1:
            self._run_here(addresses)
        elif status := supervise(
            count=self.workers,
            buses=[self.bus],
            bind=partial(_bind, addresses),
            patience=self._patience,
            health=self.health,
            metrics=self.metrics,
        ):
            raise SystemExit(status)

    def _run_here(self, addresses: list[_Address]) -> None:
        pages: dict[str, Page] = {"/livez": self._lives, "/readyz": self._ready}
        if self.metrics:
            pages["/metrics"] = self._metrics_page
        if self.health is not None and self._worker is None:
            self._health = HttpStatus("health", self.health, pages, "http://127.0.0.1:8081")
        backend_options = {"use_uvloop": True} if self.uvloop and self.backend == "asyncio" else {}
        anyio.run(self._main, addresses, backend=self.backend, backend_options=backend_options)
        if not tell_of_threads_left([self.bus]) and self._force is not None:
            self._force.cancel()

    def _addresses(self) -> list[_Address]:
        features = {url: ProtocolFeatures.of(resolve_url(url)[0]) for url in self.urls}
        secure = with_tls(self.urls)
        plain = {name: value for name, value in self.options.items() if name != "tls"}
        only_dials = all(each.dials for each in features.values())
        client_tls = self.client_tls or (self.options.get("tls") if only_dials else None)

        def context(url: str) -> Any:
            if not features[url].dials:
                return self.bus.serve(url, **(self.options if url in secure else plain))
            tls = client_tls if url in secure else None
            connecting: Any = self.bus.connect(url, wait=_PATIENCE, backoff=_BACKOFF, tls=tls)
            connecting.insists = True
            return connecting

        return [
            _Address(f"{number} {url}", url, features[url].dials, features[url].keeps, context(url))
            for number, url in enumerate(self.urls)
        ]

    async def _main(self, addresses: list[_Address]) -> None:
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
                        self._worker.follow(self._patience)
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
        return not _has_joined(self.bus) and self._worker.tell_why_not(str(error))

    async def _serve(self, addresses: list[_Address]) -> None:
        bus, worker = self.bus, self._worker
        if any(address.keeps for address in addresses):
            parts_of(bus).links.storage.expected = True
        async with bus, AsyncExitStack() as stack:
            served: list[str] = []
            for address in addresses:
                if worker is not None and not address.is_dialled:
                    address.context.serve_at(worker.sockets(address.name))
                entered = await stack.enter_async_context(address.context)
                if address.is_dialled:
                    self._entrances.append(entered)
                served.append(address.url if address.is_dialled else entered.url)
                if worker is None:  # for a worker the supervisor reports it
                    self.announce(served[-1])
            self._tell_if_alone()
            if not served and parts_of(bus).services.running.links:
                logger.info("ready, at no address of its own: requests come over its cluster, or the links that it has opened")
            self._serving = True
            if worker is not None:
                worker.tell_served(served)
            if not await self._until_signalled():
                return  # leaving the bus raises the error that closed it
            await anyio.sleep(self.delay)
            for address in addresses:  # load balancers send new clients elsewhere when nothing listens here
                if not address.is_dialled:
                    await address.context.release()
            await bus.drain(self.drain)

    async def _until_signalled(self) -> bool:
        """Wait for a signal. Returns False if the bus is closed first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_closed, group.cancel_scope)
            await self._signalled.wait()
            group.cancel_scope.cancel()
        return self._signalled.is_set()

    async def _until_closed(self, scope: anyio.CancelScope) -> None:
        with suppress(LocalProtocolError):  # the bus is already closed
            await self.bus.wait_closed()
        scope.cancel()

    def _tell_if_alone(self) -> None:
        """Warn if nothing can reach this bus. Call this after the lifespan has started, which may also serve and connect."""
        links = parts_of(self.bus).links
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
        over = self._serving and parts_of(self.bus).services.runtime is None
        return (503, "the bus has been closed\n") if over else (200, "OK\n")

    def _ready(self) -> tuple[int, str]:
        why = self._why_not_ready()
        return (503, f"{why}\n") if why else (200, "OK\n")

    async def _metrics_page(self) -> tuple[int, str]:
        return 200, await self._metrics()

    async def _metrics(self) -> str:
        text: str = await metrics_maker("scrape", "run(metrics=True)")(self.bus)
        return text

    def _why_not_ready(self) -> str:
        if not self._serving or self._signalled.is_set():
            return "it does not take requests"
        for peer in map(core_of, self._entrances):
            if absence := peer.link.absence(_OUTAGE):
                return f"the link to {without_secrets(peer.link.url)} is down {absence}"
        return self.bus.why_not_ready


async def _bind(addresses: list[_Address]) -> dict[str, list[socket.socket]]:
    return {address.name: await address.context.bind() for address in addresses if not address.is_dialled}


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
