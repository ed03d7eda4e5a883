"""Protocols over HTTP: their routes in a web application, and their connections to one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, Self, TypeAlias

from attrs import frozen

from .endpoints import DialOptions, Listening, ListenOptions
from .transports import Transport

AsgiApp: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]
"""``await app(scope, receive, send)``"""


@frozen
class WebRoute:
    """One address of a protocol in a web application.

    Attributes:
        path: Relative to the path that was attached: empty for that path itself, or beginning with ``/``.
        app: Called for every connection or request there; the application's own routing has cut nothing off `scope["path"]`.
        methods: Of HTTP, such as ``("GET", "POST")``; None for WebSockets.
    """

    path: str
    app: AsgiApp
    methods: tuple[str, ...] | None = None


class WebEndpoint(Protocol):
    """Server side of a protocol in a web application: its routes, which hand over the connections that are made there.

    `polybus.fastapi.attach` asks the protocol's adapter for one: ``adapter.web_endpoint(path)``, or that of its `HttpBinding`.
    An adapter with neither gets WebSockets at the path, which any protocol can use.
    """

    def routes(self) -> Sequence[WebRoute]:
        """All addresses."""
        ...

    async def listen(self, options: ListenOptions) -> Listening:
        """Hand connections to `options.gate` from now on, until `Listening.aclose`.

        Raises:
            ValueError: Something in the options is wrong, for example no origin.
            LocalProtocolError: It is served already.
        """
        ...


class HttpBinding(Protocol):
    """A protocol over HTTP, at both ends. An adapter offers the class as ``http_binding``; each URL gets an object of it.

    ``connect("lines+http://host/path")`` calls `connect`; ``serve()`` with such a URL, and `polybus.fastapi.attach`, call
    `web_endpoint`, unless the adapter itself has a method of that name.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make one from those members of a URL's query that are in the class's ``option_names``, any collection of names.

        The server is shown the others (`Handshake.query`). A server's own URL has none.

        Raises:
            ValueError: A value is not known.
        """
        ...

    @property
    def option_names(self) -> Collection[str]:
        """Members of a URL's query that are options."""
        ...

    async def connect(self, url: str, options: DialOptions) -> Transport:
        """Make one connection to ``http://host/path`` or ``https://host/path``, as `Connector.connect`.

        Raises:
            ConnectFailed: With the address and the reason.
            Unauthorized: The server refuses who we are.
            Forbidden: The server does not let us in.
        """
        ...

    def web_endpoint(self, path: str) -> WebEndpoint:
        """Make the endpoint of a server at this path."""
        ...
