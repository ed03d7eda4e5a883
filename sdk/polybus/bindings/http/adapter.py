"""HTTP: ``jrep+http://host/path``, and ``uprotocol+http://host/path`` for CloudEvents.

`httpx` and uvicorn are imported on first use. hypercorn is imported only by a server on trio.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import field, frozen

from ...errors import Unsupported
from ...plugins import Connector, DialOptions, EndpointFeatures, HttpBinding, Listening, ListenOptions, Transport, WebEndpoint
from ...plugins.tools import check_choice, shown_url
from ...transports import WebSocket
from ...transports.sockets import bind_tcp, load_names, net_address
from ...transports.tls import check_client_tls, check_server_tls

if TYPE_CHECKING:
    import socket

_LATER: Final = ("certifi", "httpcore", "httpcore._backends.anyio", "httpcore._backends.auto")


@frozen
class HttpConnector:
    url: str = field(repr=shown_url)
    binding: HttpBinding | None
    reconnects: bool = field(default=True, init=False)

    async def connect(self, options: DialOptions) -> Transport:
        if self.binding is None:
            raise Unsupported(f"{options.subprotocol} has no form over HTTP here: use ws:// or tcp://")
        check_client_tls(urlsplit(self.url).scheme, options.tls)
        return await self.binding.connect(self.url, options)


class Http:
    """``http://host:port/path``

    `binding` maps the protocol to HTTP, and has its own URL options.
    """

    name = "http"

    def __init__(self, binding: type[HttpBinding] | None = None) -> None:
        self._binding = binding

    def load(self, serves: bool) -> None:
        if self._binding is not None:
            EndpointFeatures.of(self._binding).load(serves)
        if serves:
            import_module(".server", __package__)
            with suppress(ImportError):  # reported when it is needed
                import_module(".uvicorn", __package__)
        else:
            for module in _LATER:
                import_module(module)
        load_names()

    def connector(self, url: str) -> Connector:
        net_address(url)
        kind: Any = self._binding
        if kind is None:
            return HttpConnector(url, None)
        root, _, query = url.partition("?")
        fields = parse_qsl(query, keep_blank_values=True)
        binding: HttpBinding = kind.from_options({name: value for name, value in fields if name in kind.option_names})
        rest = urlencode([(name, value) for name, value in fields if name not in kind.option_names])
        return HttpConnector(f"{root}?{rest}" if rest else root, binding)

    def is_private(self, url: str) -> bool:
        return net_address(url).private

    @property
    def keeps_sessions(self) -> bool:
        """True if a client's requests must reach the same process."""
        return bool(getattr(self._binding, "keeps_sessions", False))

    async def bind(self, url: str) -> list[socket.socket]:
        """Raise `Unsupported` if the binding keeps sessions in one process."""
        if self.keeps_sessions:
            raise Unsupported(f"{url}: a session lives in one process, so several cannot share the address: use ws:// there")
        address = net_address(url)
        return await bind_tcp(address.host, address.port)

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Serve in this event loop, with uvicorn on asyncio or hypercorn on trio.

        Raises:
            Unsupported: If the protocol cannot be used over HTTP, or the server is not installed.
        """
        from .server import HttpListener

        address = net_address(url)
        check_server_tls(self.name, options.tls)
        sockets = list(options.sockets) or await bind_tcp(address.host, address.port)
        return await HttpListener.open(address, options, sockets)


class SecureHttp(Http):
    """``https://host:port/path``"""

    name = "https"


_CHANNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "auto": ("websocket", "events", "poll"),
    "websocket": ("websocket",),
    "events": ("events",),
    "poll": ("poll",),
}


@frozen
class JrepHttp:
    """J.REP over HTTP as in Errai, a `plugins.HttpBinding`.

    Set ``?channel=poll``, ``events`` or ``websocket`` to choose the channel to the client, and ``?frame=`` to limit the size in
    bytes of frames that the client sends over a WebSocket.
    """

    option_names: ClassVar[tuple[str, ...]] = ("channel", "frame")
    keeps_sessions: ClassVar[bool] = True
    """True because all connections of a client must reach the same process."""

    ways: set[str]
    """Channels to try. If a channel loses messages, the client removes it for later connections."""
    frame: int | None = None
    """Size in bytes above which a frame is posted even if there is a WebSocket, or 0 for no limit. If `None`, the server's type
    determines the size.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        channel, frame = options.get("channel", "auto"), options.get("frame")
        check_choice(channel, _CHANNELS, "http: channel")
        if frame is not None and not (frame.isascii() and frame.isdigit()):
            raise ValueError(f"http: frame={frame!r} must be a number of bytes; 0 means no limit")
        return cls(set(_CHANNELS[channel]), None if frame is None else int(frame))

    @staticmethod
    def load(serves: bool) -> None:
        import_module("..jrep_http.server" if serves else "..jrep_http.client", __package__)
        if not serves:
            WebSocket.load(serves)

    async def connect(self, url: str, options: DialOptions) -> Transport:
        """Create a connection. Its first request, which is sent later, is the protocol's handshake."""
        from ..jrep_http.client import ErraiClient

        return ErraiClient(url, options.tls, options, self.ways, self.frame)

    def web_endpoint(self, path: str) -> WebEndpoint:
        from ..jrep_http.server import ErraiEndpoint

        return ErraiEndpoint(path)


class CloudEventsHttp:
    option_names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls()

    @staticmethod
    def load(serves: bool) -> None:
        import_module("..cloudevents_server" if serves else "..cloudevents_client", __package__)

    async def connect(self, url: str, options: DialOptions) -> Transport:
        from ..cloudevents_client import EventsClient

        return await EventsClient.opened(url, options.tls, options)

    def web_endpoint(self, path: str) -> WebEndpoint:
        from ..cloudevents_server import EventsEndpoint

        return EventsEndpoint(path)
