"""Opens links: connects for the first time, reconnects, and logs both."""

from __future__ import annotations

import errno
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import anyio
from msgspec.structs import replace

from ..._util.cancel_scopes import to_the_end
from ..._util.event_loop import is_foreign_exception
from ..._util.logs import log_fields
from ..._util.misuse import entered_first
from ..._util.own_thread import in_own_thread, read_text_files
from ..._util.sources import sources
from ..._validation import check_tls, check_type, counted, in_one_line, seconds
from ...errors import BusError, ConnectFailed, Disconnected, Forbidden, RequestError, Unauthorized
from ...events import LinkRetrying
from ...headers import check_handshake_headers
from ...plugins import Closed, Connector, DialOptions, EndpointFeatures, ProtocolAdapter, ProtocolFeatures, TransportFeatures
from ...plugins.close_codes import CERTIFICATE_ASKED, UNEXPLAINED
from ...plugins.hello import backoff_told
from ...plugins.registry import check_serves, has_tls, make_recorder, resolve_target
from ...retry import Backoff
from ...secrets import without_secrets
from ..link.link import Link
from ..link.server_move import next_connection
from ..link.state import State
from .lifecycle import within

if TYPE_CHECKING:
    import ssl

    from ...plugins.extensions import LinkReader, Recorder
    from ..link.server_move import MovingSession
    from ..runtime.runtime import Runtime
    from .bus_parts import BusParts

_ABSENT: Final = (errno.ECONNREFUSED, errno.ENOENT)
"""Error numbers that mean that there is no server."""
_STARTING: Final = "it may still be starting, or speak another protocol"
"""Ending of reasons that mean that the server accepted the connection but has not answered yet."""
_IMPLIED: Final = {"ws": 80, "http": 80, "wss": 443, "https": 443}


def advice_for(error: ConnectFailed, of_cluster: bool = False) -> str | None:
    longer = "Cluster(..., wait=30) waits longer for it" if of_cluster else "connect(..., wait=30) keeps trying"
    if error.reason.endswith(_STARTING):
        return f"; {longer}"
    if error.errno not in _ABSENT:
        return None
    scheme, _, address = error.url.partition("://")
    implied = _IMPLIED.get(scheme.rpartition("+")[2]) if urlsplit(f"//{address}").port is None else None
    where = "" if implied is None else f" (on port {implied}, because the URL has none)"
    if of_cluster:
        return f"{where}; is the NATS server of the cluster running? {longer}"
    return f"{where}; is the server running? {longer}"


logger: logging.Logger = logging.getLogger("polybus.link")

_PATIENCE = 4
"""Number of failed attempts at a first connect before a warning is logged. By then, a server should be there."""


class LinkLog:
    """Logs the events of one link. Logs only attempts 1, 2, 4, 8 and so on, so that an hour's outage takes a few lines."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self.url: str = in_one_line(without_secrets(url))
        self.fields: dict[str, object] = log_fields(address=self.url, protocol=url.partition("+")[0])
        self._clock = clock
        self._since = 0.0
        self._quiet = False
        """True if the current outage has not been logged."""

    def waiting(self, reason: str, attempt: int, delay: float) -> None:
        if not _is_told(attempt):
            return
        text = "no link to %s yet, attempt %d in %.1f s: %s"
        if attempt < _PATIENCE:
            logger.info(text, self.url, attempt, delay, in_one_line(reason), extra=self.fields)
        else:  # visible even without logging set up: the program would seem to hang
            logger.warning(text, self.url, attempt, delay, in_one_line(reason), extra=self.fields)

    def lost(self, reason: str, attempt: int, delay: float) -> None:
        """Log that a link was lost. If `attempt` is above 1, it was lost right after a reconnect."""
        if attempt == 1:
            self._since = self._clock()
        self._quiet = not _is_told(attempt)
        if not self._quiet:
            what = "lost" if attempt == 1 else "lost again"
            reason = in_one_line(reason) or "no reason was given"
            logger.warning(
                "the link to %s is %s: %s; attempt %d in %.1f s", self.url, what, reason, attempt, delay, extra=self.fields
            )

    def retrying(self, reason: str, attempt: int, delay: float) -> None:
        if _is_told(attempt):
            self._quiet = False
            text = "the link to %s: attempt %d in %.1f s, it is down for %.0f s: %s"
            logger.info(text, self.url, attempt, delay, self._clock() - self._since, in_one_line(reason), extra=self.fields)

    def back(self, attempts: int) -> None:
        if not self._quiet:
            text, tried = "the link to %s is back after %s (%s)", counted(attempts, "attempt")
            logger.info(text, self.url, _span(self._clock() - self._since), tried, extra=self.fields)

    def moved(self, address: str) -> None:
        logger.info("the server of the link to %s is about to end: the link moves to %s", self.url, address, extra=self.fields)

    def stays(self, reason: str, attempt: int) -> None:
        if not _is_told(attempt):
            return
        text = "the server of the link to %s is about to end, and no other server accepts this bus (attempt %d): %s"
        reason = in_one_line(reason) or "no reason was given"
        if attempt < _PATIENCE:
            logger.info(text, self.url, attempt, reason, extra=self.fields)
        else:
            logger.warning(text, self.url, attempt, reason, extra=self.fields)

    def gone(self, reason: str) -> None:
        logger.warning(
            "the link to %s is lost for good: %s", self.url, in_one_line(reason) or "no reason was given", extra=self.fields
        )

    def given_up(self, reason: str, attempts: int | None = None) -> None:
        after = "" if attempts is None else f" after {counted(attempts, 'attempt')}"
        logger.warning("the link to %s is given up%s: %s", self.url, after, in_one_line(reason), extra=self.fields)


def _span(seconds: float) -> str:
    return "less than 0.1 s" if seconds < 0.1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _is_told(attempt: int) -> bool:
    return attempt & (attempt - 1) == 0


_SPREADS = 0.5
"""Seconds that an announcement may take to spread over a server's network."""
_GRACE = 0.01
_LONGEST_GRACE = 0.2
"""Bounds in seconds of the wait for a rejection if connections have no welcome (plain TCP): twice the connect time."""

Headers: TypeAlias = "Mapping[str, str] | Callable[[], Any] | None"
"""Headers for the handshake, or a plain or async function that returns them. It is called before every attempt."""

_TRY_AGAIN_LATER: Final = 1013
"""Close code of a server that temporarily rejects all connections or this peer."""
_AFTER_REFUSAL: Final = 10.0
"""Minimum number of seconds between attempts after a rejection, if it is retried."""


@entered_first("async with connect(url) as bus:")
class Connecting:
    """The async context manager that `connect` and `Bus.connect` return. Implements `_core.link.ports.LinkDialer`."""

    def __init__(
        self,
        parts: BusParts,
        target: str | Connector,
        protocol: str | ProtocolAdapter | None,
        serves: Iterable[str | int],
        headers: Headers,
        tls: ssl.SSLContext | None,
        backoff: Backoff | None,
        wait: float,
        record: str | os.PathLike[str] | None = None,
        *,
        gives_bus: bool = False,
        inner: LinkReader | None = None,
        beyond: str = "",
    ) -> None:
        self._parts = parts
        self._services = parts.services
        self._adapter, self._connector = resolve_target(target, protocol)
        others: list[ProtocolAdapter] = []
        if (connections := ProtocolFeatures.of(self._adapter).connections) is not None:
            self._adapter, *others = connections()
        self._siblings: list[Connecting] = [
            Connecting(parts, self._connector, adapter, serves, headers, tls, backoff, wait) for adapter in others
        ]
        """Additional connections, for a protocol that needs several."""
        features = ProtocolFeatures.of(self._adapter)
        self._files, self._with_files = features.files, features.with_files
        self._others = AsyncExitStack()
        self._serves = check_serves(serves)
        self._headers = headers
        self._checked_headers = {} if callable(headers) else check_handshake_headers(headers)
        check_tls(tls)
        self._tls = tls
        check_type(backoff, Backoff, "backoff", "Backoff(maximum=5)")
        self._own = self._backoff = backoff if backoff is not None else Backoff()
        self._wait = seconds(wait, "wait", endless=True)
        self._recorder: Recorder | None = None
        if record is not None:
            self._recorder = make_recorder(record)
            for sibling in self._siblings:
                sibling._recorder = self._recorder
        self._link: Link
        self._log = LinkLog(f"{self._adapter.name}+{self._connector.url}", self._time)
        self._runtime: Runtime | None = None
        self._gives_bus = gives_bus
        self._inner, self._beyond = inner, beyond
        self.insists: bool = inner is not None
        """True to retry rejections slowly once the link has been up, because the process would otherwise be up but useless."""
        self._keeps = features.keeps and inner is None
        self._decided: anyio.Event | None = None
        self._lost: Closed | None = None
        self._stands = False
        self._leaving = False
        """True while the link's server is about to stop and there are other servers."""
        self._moves = False
        self._failures = 0
        self._up_since = 0.0

    def _time(self) -> float:
        return self._services.running.time()

    async def __aenter__(self) -> Any:
        if self._recorder is not None:
            self._recorder.claim()
        try:
            if self._recorder is not None:
                await in_own_thread(self._recorder.open)
            return await self._connected()
        except BaseException as error:
            await self._recorded()
            if isinstance(error, BusError):  # the text has the reason of an OSError; an application's error stays the cause
                below = isinstance(error.__cause__, (OSError, EOFError))
                raise error.with_traceback(None) from (None if below else error.__cause__)
            raise

    async def _connected(self) -> Any:
        parts, links = self._parts, self._parts.links
        if self._keeps:
            links.storage.expected = True
        runtime = self._runtime = await parts.life.enter()
        link: Link | None = None
        try:
            link = self._link = self._new_link()
            if within(runtime):
                links.of_lifespan.add(link)
            await parts.pubsub.announcer.prepare_link()
            await self._first()
            await links.announced(link)
            if self._services.outgoing and link.peer is not None and not link.peer.reads_headers and link.peer.may_be_ours:
                await link.peer.extended()  # otherwise the first request would lack the hooks' headers
            if (why := link.ends) is not None:  # the server rejected the link in the meantime
                raise self._failure(why)
            if self._keeps:
                await links.storage.attach(link)
            for sibling in self._siblings:
                await sibling._connected()
                self._others.push_async_exit(sibling._left)
        except BaseException as error:
            if link is not None:
                link.abort(Closed(1000, "the connection attempt was cancelled"))
            try:
                await to_the_end(self._others.__aexit__, type(error), error, None)
            finally:
                await parts.life.leave(runtime, error)
            raise
        return self._services.bus if self._gives_bus or link.peer is None else link.peer.public

    def _new_link(self) -> Link:
        link = Link(
            self._parts.links,
            self._services,
            self._adapter,
            self._log.url,
            dialer=self,
            serves=self._serves,
            reader=self._inner,
            inner=self._inner is not None,
            beyond=self._beyond,
        )
        link.renews = link.greets = callable(self._headers) or bool(self._files)
        link.insists = self.insists
        link.recorder = self._recorder
        return link

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._left(kind, error, trace)
        finally:
            await self._recorded()

    async def _recorded(self) -> None:
        if self._recorder is not None:
            await to_the_end(in_own_thread, self._recorder.close)

    async def _left(self, kind: object, error: BaseException | None, trace: object) -> None:
        life = self._parts.life
        try:
            if self._siblings:
                if error is None and life.is_last(1 + len(self._siblings)):
                    await life.drain()  # the last exit: handlers finish before any connection closes
                await self._others.__aexit__(None if error is None else type(error), error, None)
            if not life.is_last():  # the last exit closes all links
                await to_the_end(partial(self._parts.links.close, self._link, drain=error is None))
        finally:
            await life.leave(self._runtime, error)

    # -- attempts --------------------------------------------------------------------------------------------------------

    async def _first(self) -> None:
        link, time = self._link, self._services.running.time
        until = time() + self._wait
        attempt = 0
        while True:
            try:
                await self._try(first=True)
                break
            except ConnectFailed as error:
                left = until - time()
                if left <= 0 or EndpointFeatures.of(self._connector).spent:  # a message port works only once
                    of_cluster = self._inner is not None
                    if (attempt == 0 or of_cluster) and (advice := advice_for(error, of_cluster)) is not None:
                        text = f"{error.reason}{advice}"
                        raise ConnectFailed(error.url, text, errno=error.errno, status=error.status) from error.__cause__
                    raise
                # The last attempt is made when the time is up.
                delay = min(self._backoff.delay(attempt, sources.get().rng.random), left)
                attempt += 1
                self._log.waiting(error.reason, attempt, delay)
                self._services.emit(LinkRetrying(url=link.url, attempt=attempt, delay=delay, reason=error.reason))
                await anyio.sleep(delay)
        if link.state is State.DOWN or link.state is State.CLOSED:
            raise ConnectFailed(link.url, "the connection closed immediately")
        self._established()

    async def _try(self, first: bool = False) -> None:
        link, runtime = self._link, self._services.running
        options = await self._dial_options()
        began = runtime.time()
        transport = await self._connector.connect(options)
        took = runtime.time() - began
        if link.state is State.CLOSED:  # the block was left in the meantime
            transport.start(link)
            transport.abort(Closed(1000, "the link was closed"))
            raise ConnectFailed(link.url, "the link was closed")
        # From here the link owns the connection.
        self._stands, self._lost = False, None
        decided = self._decided = anyio.Event()
        try:
            link.attach(transport)
            # A handshake of the protocol counts as a welcome.
            welcomed = TransportFeatures.of(transport).admitted or not decided.is_set()
            with anyio.move_on_after(runtime.limits.handshake_timeout):
                await decided.wait()
            if first and not welcomed:
                with anyio.move_on_after(min(_LONGEST_GRACE, max(_GRACE, 2 * took))):
                    await runtime.notifier.until(lambda: self._lost is not None)
        finally:
            self._decided = None
            if not decided.is_set():
                transport.abort(Closed(1006, "the handshake did not complete"))
        if self._lost is not None:
            raise self._failure(self._lost)
        if not decided.is_set():
            seconds = runtime.limits.handshake_timeout
            raise ConnectFailed(
                link.url,
                f"the {self._adapter.name} handshake did not complete in {seconds:g} s (Limits.handshake_timeout): the server "
                f"has accepted the connection but does not answer, {_STARTING}",
                errno=errno.ETIMEDOUT,
            )

    async def _dial_options(self) -> DialOptions:
        if self._with_files is not None and self._files:
            self._link.adapter = await self._current_adapter(self._with_files)
        runtime = self._services.running
        codec = self._adapter.codec(runtime.limits)
        return DialOptions(
            host=runtime,
            reads=codec.reads,
            writes=codec.writes,
            subprotocol=self._adapter.name,
            headers=await self._current_headers() if callable(self._headers) else self._checked_headers,
            tls=self._tls,
            adapter=self._adapter,
            framing=ProtocolFeatures.of(self._adapter).framing,
        )

    def _failure(self, why: Closed) -> Exception:
        if isinstance(why.error, (Unauthorized, Forbidden)):
            return why.error
        reason = why.reason or f"closed with code {why.code}"
        if has_tls(self._link.url) and (reason == UNEXPLAINED or why.errno == errno.ECONNRESET):
            reason = f"{reason}; {CERTIFICATE_ASKED}"
        return ConnectFailed(self._link.url, reason, errno=why.errno, status=why.status)

    async def _current_adapter(self, with_files: Callable[[Mapping[str, str]], ProtocolAdapter]) -> ProtocolAdapter:
        patience = self._services.limits.connect_timeout
        try:
            with anyio.fail_after(patience):
                texts = await read_text_files(self._files)
            return with_files(texts)
        except TimeoutError:
            name = " and ".join(self._files.values())
            reason = f"reading {name} took more than {patience:g} s (Limits.connect_timeout)"
            raise ConnectFailed(self._link.url, reason) from None
        except ValueError as error:
            raise ConnectFailed(self._link.url, str(error)) from None

    async def _current_headers(self) -> Mapping[str, str]:
        """Call the application's function. Raises `ConnectFailed`, or the function's `Unauthorized` or `Forbidden`."""
        headers: Any = self._headers
        patience = self._services.limits.connect_timeout
        try:
            headers = headers()
            if inspect.isawaitable(headers):
                with anyio.move_on_after(patience) as scope:
                    headers = await headers
                if scope.cancelled_caught:
                    raise ConnectFailed(self._link.url, f"headers() took more than {patience:g} s (Limits.connect_timeout)")
        except (Unauthorized, Forbidden, ConnectFailed):
            raise
        except BaseException as error:
            if not is_foreign_exception(error):
                raise
            reason = f"headers() raised {type(error).__name__}: {error}".removesuffix(": ")
            if self._link.was_up and self._failures == 1:  # no caller can catch it; LinkLog reports later ones
                text = "%s; an attempt to connect to %s follows"
                logger.warning(text, reason, self._log.url, exc_info=error, extra=self._log.fields)
            raise ConnectFailed(self._link.url, reason) from error
        return check_handshake_headers(headers)

    async def renewal(self) -> dict[str, Any] | None:
        """Return the members of a hello with a new bearer token: {} if `headers` failed, None if there is no such token."""
        if not callable(self._headers):
            return None
        try:
            headers = await self._current_headers()
        except (BusError, TypeError) as error:
            text = "no new token for %s: %s; the link ends with the one that it has"
            logger.warning(text, self._log.url, in_one_line(str(error)), extra=self._log.fields)
            return {}
        shown = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
        kind, _, token = shown.partition(" ")
        return {"token": token} if kind.lower() == "bearer" else None

    def told_retry(self, retry: Any) -> None:
        """Use the server's pauses between attempts, because it knows how many clients it has. Our own are the default."""
        self._backoff = backoff_told(self._own, retry)
        if self._backoff is not self._own:
            self._link.greets = True  # another server may answer at that address

    # -- reconnecting ----------------------------------------------------------------------------------------------------

    def link_up(self) -> None:
        if self._decided is not None:
            self._decided.set()

    def other_servers(self, addresses: Sequence[str], leaving: bool) -> None:
        """Pass other servers to the connector. If the current server is about to stop, move to another."""
        EndpointFeatures.of(self._connector).other_servers(addresses, leaving)
        self._leaving = leaving and len(addresses) > 0
        if self._leaving and not self._moves:
            self._moves = True
            self._link.runtime.spawn(self._move_on)

    async def _move_on(self) -> None:
        """Move to another server before the current one stops. If that fails, keep the link until then."""
        link, attempt = self._link, 0
        try:
            while self._leaving and link.state is State.UP:
                why = ""
                try:
                    with anyio.fail_after(link.runtime.limits.handshake_timeout):
                        moving = await self._beside()
                except (BusError, OSError, TimeoutError) as error:
                    why, moving = str(error), None
                if moving is not None:
                    self._leaving, attempt = False, 0
                    self._services.counters.reconnects += 1
                    self._log.moved(link.address)
                    await self._leave_one(moving)
                elif self._leaving:
                    attempt += 1
                    self._log.stays(why, attempt)
                    await anyio.sleep(self._backoff.delay(attempt - 1, sources.get().rng.random))
        finally:
            self._moves = False

    async def _beside(self) -> MovingSession | None:
        """Open a second connection to move the link to. Returns None if the link has ended."""
        link, transport = self._link, await self._connector.connect(await self._dial_options())
        connection = next_connection(link, transport)
        if connection is None:
            transport.start(link)
            transport.abort(Closed(1000, "the link was closed"))
            self._leaving = False
            return None
        try:
            connection.start()
            await connection.decided.wait()
        finally:
            if connection.moving is None:
                connection.give_up("the handshake did not complete")
        if connection.moving is None:
            raise ConnectFailed(link.url, connection.why)
        return connection.moving

    async def _leave_one(self, moving: MovingSession) -> None:
        """Close the old connection once its server has announced the new connection's subscriptions."""
        with suppress(BusError):
            await self._link.confirmed()
        await anyio.sleep(_SPREADS / 2)
        moving.subscribed()
        await anyio.sleep(_SPREADS / 2)
        moving.retire()
        await moving.left.wait()
        await anyio.sleep(_SPREADS)  # duplicates from the old connection
        moving.settle()

    def link_down(self, why: Closed) -> None:
        if self._decided is not None:
            self._lost = self._lost or why
            self._decided.set()
        elif self._stands:
            if isinstance(why.error, (Unauthorized, Forbidden)) and self._link.state is State.CLOSED:
                self._log.given_up(str(why.error))
            self._down(why)

    def _down(self, why: Closed) -> None:
        link = self._link
        if link.state is State.DOWN:
            if self._connector.reconnects:
                link.runtime.spawn(self._come_back, why)
            else:  # even a normal close loses the link
                self._log.gone(why.reason)
                link.abort(replace(why, code=1006) if why.code == 1000 else why)

    async def _come_back(self, why: Closed) -> None:
        link, reason = self._link, why.reason
        attempts = self._backoff.attempts
        # A link that ends as soon as it is up counts as a failure, or the pauses would never grow. A refusal may come late:
        # without a welcome, a link is up while the server still authenticates it.
        lasting = self._backoff.maximum if why.code == _TRY_AGAIN_LATER else self._backoff.bound(self._failures)
        if link.runtime.time() - self._up_since > lasting:
            self._failures = 0
        tell, pause = self._log.lost, 0.0
        while (attempts is None or self._failures < attempts) and self._connector.reconnects:
            delay = max(self._backoff.delay(self._failures, sources.get().rng.random), pause)
            self._failures += 1
            tell(reason, self._failures, delay)
            tell = self._log.retrying
            self._services.emit(
                LinkRetrying(
                    peer=None if link.peer is None else link.peer.public,
                    url=link.url,
                    attempt=self._failures,
                    delay=delay,
                    reason=reason,
                )
            )
            await anyio.sleep(delay)
            if link.state is State.CLOSED:
                return
            try:
                await self._try()
            except (Unauthorized, Forbidden) as error:
                if self.insists:
                    reason, pause = str(error), _AFTER_REFUSAL
                    continue
                if not self._files or isinstance(error, Forbidden):
                    self._log.given_up(str(error))
                    link.abort(Closed(4401, str(error), error))
                    return
                reason = str(error)  # the contents of the files are wrong, and may be rewritten
                continue
            except (ConnectFailed, Disconnected, RequestError) as error:
                reason = getattr(error, "reason", None) or str(error)
                continue
            except Exception as error:
                if self._failures == 1:
                    text = "an attempt to connect to %s failed on this side; it will be tried again: %r"
                    logger.exception(text, self._log.url, error, extra=self._log.fields)
                reason = repr(error)
                continue
            self._services.counters.reconnects += 1
            self._log.back(self._failures)
            self._established()
            return
        self._log.given_up(reason, self._failures)
        link.abort(Closed(1006, f"given up after {self._failures} attempts: {reason}"))

    def _established(self) -> None:
        self._up_since = self._link.runtime.time()
        self._stands = True
        if self._link.state is State.DOWN:  # lost again right away
            self._down(Closed(1006, "lost immediately after it was established"))
