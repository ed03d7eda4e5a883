"""A proxy that records all frames between clients and a server, even frames that a bus would reject."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio

from ... import plugins
from ...errors import BusError, ConnectFailed, LocalProtocolError, TooManyRequests, Unsupported
from ...integrations import Runtime
from ...limits import Limits
from ...plugins.registry import find_reader, join_url, resolve_url
from ...plugins.tools import check_tls, in_own_thread, to_the_end, warn_of_certificate
from .recorder import CaptureRecorder

logger: logging.Logger = logging.getLogger("polybus.capture")
_HOP: Final = frozenset({"host", "connection", "upgrade", "origin", "content-length", "transfer-encoding", "keep-alive"})
_UNSUPPORTED: Final = {"http": "HTTP, which carries more than frames", "zenoh": "a fabric, which does not have two ends"}
_AT_THE_ENDS: Final = "record at one of the programs, with connect(..., record=) or bus.record()"
_PATIENT: Final = 4 << 20
"""Maximum unread bytes from one side. If that side cannot be paused, the other side is disconnected above this limit."""


class _Side:
    def __init__(self, transport: plugins.Transport) -> None:
        self.transport = transport
        self.other: _Side | None = None
        self.hand_on: Callable[[bytes], None] = transport.send
        self.over: Callable[[plugins.Closed], None] = lambda why: None

    def frames_received(self, frames: Sequence[bytes]) -> None:
        other = self.other
        if other is not None:
            for frame in frames:
                other.hand_on(frame)
            if other.transport.write_backlog() > _PATIENT:
                self.transport.abort(plugins.Closed(1013, "the other side of the proxy is too slow"))

    def closed(self, why: plugins.Closed) -> None:
        self.over(why)
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            other.transport.close(why.code if why.code != 1006 else 1001, why.reason)

    def pause_writing(self) -> None:
        if self.other is not None:
            plugins.TransportFeatures.of(self.other.transport).pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            plugins.TransportFeatures.of(self.other.transport).resume_reading()


class RecordingProxy:
    """Listens and records inside a context: ``async with RecordingProxy(url, recorder, listen) as proxy: ...``

    Args:
        url: URL of the server.
        recorder: The recorder that writes the frames. The proxy opens and closes it.
        listen: Address to listen on, for example ``ubre+tcp://127.0.0.1:0``.
        insecure: Allow an address that other machines can reach, although the proxy does not authenticate clients.
        tls: TLS context for connections to a server with ``wss`` or ``tls``.
        listen_tls: TLS context for the address to listen on.

    Raises:
        TypeError: If `tls` is not an `ssl.SSLContext`.
        ValueError: If a URL is invalid or `tls` is a server context.
        Unsupported: If a URL uses HTTP, which carries more than frames, or Zenoh, because a fabric does not have two ends.
        LocalProtocolError: If other machines could reach the proxy and `insecure` is not set.
    """

    def __init__(
        self,
        url: str,
        recorder: CaptureRecorder,
        listen: str,
        *,
        insecure: bool = False,
        tls: ssl.SSLContext | None = None,
        listen_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.recorder: CaptureRecorder = recorder
        self._adapter, self._there, self._target = resolve_url(url)
        self._connector = self._there.connector(self._target)
        self._reads = find_reader(self._adapter.name, self._adapter.url_options)  # a proxy refuses nothing
        self._own, self._transport, self._address = resolve_url(listen)
        if self._own.name != self._adapter.name:
            raise ValueError(f"{listen}: the server uses {self._adapter.name}, and a proxy does not translate protocols")
        for one in (url, listen):
            for scheme, why in _UNSUPPORTED.items():
                if one.partition("+")[2].startswith(scheme):
                    raise Unsupported(f"{one}: a proxy cannot record {why}: {_AT_THE_ENDS}")
        check_tls(tls)
        check_tls(listen_tls, serves=True)
        self._tls, self._listen_tls = tls, listen_tls
        self._private = not insecure
        if self._private and not self._transport.is_private(self._address):
            raise LocalProtocolError(
                f"{listen} is reachable from other machines, without authentication: bind to 127.0.0.1, or pass insecure=True"
            )
        self._limits = Limits()
        self._sides: dict[_Side, None] = {}
        self._dialled: dict[int, plugins.Transport] = {}
        self._knocking = 0
        self.url: str = ""
        """URL for clients, available inside the context."""

    async def __aenter__(self) -> Self:
        """Start listening. Raises `OSError` or `CaptureError` if the address or the folder cannot be used."""
        self.recorder.claim()
        runtime = self._runtime = Runtime(self._limits)
        options = plugins.ListenOptions(
            gate=self, protocol=self._adapter.name, private=self._private, tls=self._listen_tls, **self._common_options()
        )
        try:
            await runtime.open()
            await in_own_thread(self.recorder.open)
            self._listening: Any = await self._transport.listen(self._address, options)
        except BaseException:
            await to_the_end(self._shut)
            raise
        self.url = join_url(self._adapter, self._listening.url)
        if self._listen_tls is not None:
            warn_of_certificate(self._listen_tls, self.url)
        runtime.spawn(self._keep_house)
        return self

    async def __aexit__(self, *error: object) -> None:
        await to_the_end(self._leave)

    async def _leave(self) -> None:
        await self._listening.aclose()
        for side in list(self._sides):
            side.transport.close(1001, "the proxy is leaving")
        with anyio.move_on_after(self._limits.close_timeout):
            await self._runtime.notifier.until(lambda: not self._sides)
        await self._shut()

    def _common_options(self) -> dict[str, Any]:
        codec, framing = self._adapter.codec(self._limits), plugins.ProtocolFeatures.of(self._adapter).framing
        forms = {"reads": codec.reads, "writes": codec.writes, "framing": framing}
        return {"host": self._runtime, "subprotocol": self._adapter.name, **forms}

    async def _shut(self) -> None:
        await self._runtime.close()
        await in_own_thread(self.recorder.close)

    async def _keep_house(self) -> None:
        while True:
            await anyio.sleep(1)
            for side in list(self._sides):
                side.transport.tick(self._runtime.time())

    def knock(self, address: str) -> BusError | None:
        """Count a new client, or return the reason to reject it."""
        if self._knocking >= self._limits.handshakes or len(self._sides) >= 2 * self._limits.peers:
            return TooManyRequests("too many connections to this proxy")
        self._knocking += 1
        return None

    def left(self, address: str) -> None:
        self._knocking -= 1

    def admit(self, handshake: plugins.Handshake, decided: Callable[[plugins.Admission | BusError], None]) -> None:
        """Accept a client if the server accepts its connection."""
        self._runtime.spawn(self._dial, handshake, decided)

    async def _dial(self, handshake: plugins.Handshake, decided: Callable[[plugins.Admission | BusError], None]) -> None:
        own = {name: value for name, value in handshake.headers.items() if not name.startswith("sec-websocket")}
        headers = {name: value for name, value in own.items() if name not in _HOP}
        options = plugins.DialOptions(headers=headers, tls=self._tls, **self._common_options())
        try:
            transport = await self._connector_for(handshake).connect(options)
        except BusError as error:
            self._runtime.warnings.warn(logger, "%s", error)
            decided(error if not isinstance(error, ConnectFailed) else TooManyRequests(f"the server is not reachable: {error}"))
            return
        self._dialled[id(handshake)] = transport
        decided(plugins.Admission(plugins.Identity(), handshake))
        if self._dialled.pop(id(handshake), None) is not None:  # the client has gone by now
            transport.start(_Side(transport))
            transport.abort(plugins.Closed(1000, "the client disconnected"))

    def _connector_for(self, handshake: plugins.Handshake) -> plugins.Connector:
        """Return a connector that sends the client's query, because the server may use it in place of headers."""
        if not handshake.query:
            return self._connector
        parts = urlsplit(self._target)
        query = urlencode(dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(handshake.query))
        return self._there.connector(urlunsplit((*parts[:3], query, parts.fragment)))

    def opened(self, transport: plugins.Transport, admission: plugins.Admission) -> None:
        self._knocking -= 1
        client, server = _Side(transport), _Side(self._dialled.pop(id(admission.handshake)))
        tap = self.recorder.tap(self._reads, transport, opened=False)
        came_in = tap.came_in(lambda frame, now: server.transport.send(frame))
        server.hand_on = lambda frame: came_in(frame, 0.0)
        client.hand_on = tap.goes_out(transport.send)
        client.other, server.other = server, client

        def over(side: _Side, why: plugins.Closed) -> None:
            self._sides.pop(side, None)
            if side is client:
                tap.over(why)
            self._runtime.notifier.signal()

        client.over, server.over = partial(over, client), partial(over, server)
        self._sides[client] = self._sides[server] = None
        client.transport.start(client)
        server.transport.start(server)
