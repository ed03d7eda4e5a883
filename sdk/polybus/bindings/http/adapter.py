"""HTTP: ``jrep+http://host/path``, and ``uprotocol+http://host/path`` for CloudEvents.

`httpx`, or uvicorn, is imported when a URL needs it, at the latest with the first connection or listener; hypercorn only then.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import field, frozen

from ...errors import Unsupported
from ...plugins import Connector, DialOptions, EndpointFeatures, HttpBinding, Listening, ListenOptions, Transport
from ...plugins.tools import shown_url
from ...transports.sockets import bind_tcp, load_names, net_address
from ...transports.tls import check_client_tls, check_server_tls

if TYPE_CHECKING:
    import socket

_LATER: Final = ("certifi", "httpcore", "httpcore._backends.anyio", "httpcore._backends.auto")


@frozen
class HttpConnector:
    """Connects to ``http://host/path`` or ``https://host/path``."""

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

    Args:
        binding: The protocol's form over HTTP, with its own URL options.
    """

    name = "http"

    def __init__(self, binding: type[HttpBinding] | None = None) -> None:
        self._binding = binding

    def load(self, serves: bool) -> None:
        """Import the binding's modules and, to serve, uvicorn if installed."""
        if self._binding is not None:
            EndpointFeatures.of(self._binding).load(serves)
        if serves:
            import_module(".server", __package__)
            with suppress(ImportError):  # reported when needed
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
        """Listening sockets, for `ListenOptions.sockets`. May raise `Unsupported`: sessions need a single process."""
        if self.keeps_sessions:
            raise Unsupported(f"{url}: a session lives in one process, so several cannot share the address: use ws:// there")
        address = net_address(url)
        return await bind_tcp(address.host, address.port)

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and serve in this event loop: with uvicorn on asyncio, with hypercorn on trio.

        Raises:
            OSError: The address is in use or not local.
            ValueError: The host is missing, or an invalid origin in `origins`.
            LocalProtocolError: `tls` is missing, or given without need.
            Unsupported: No form over HTTP, or uvicorn (hypercorn) is not installed.
        """
        from .server import HttpListener

        address = net_address(url)
        check_server_tls(self.name, options.tls)
        sockets = list(options.sockets) or await bind_tcp(address.host, address.port)
        return await HttpListener.open(address, options, sockets)


class SecureHttp(Http):
    """``https://host:port/path``"""

    name = "https"
