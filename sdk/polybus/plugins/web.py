"""A protocol inside of a web application: its routes, and where they hand over whoever comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import frozen

from .endpoints import Listening, ListenOptions

__all__ = [
    "AsgiApp",
    "WebEndpoint",
    "WebRoute",
]


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
    """A protocol in a web application: its routes, and where they hand over whoever comes.

    `polybus.fastapi.attach` asks the protocol's adapter for one: ``adapter.web_endpoint(path)``. An adapter without that method
    gets WebSockets at the path, which any protocol can use.
    """

    def routes(self) -> Sequence[WebRoute]:
        """All addresses."""
        ...

    async def listen(self, options: ListenOptions) -> Listening:
        """From now on, connections are handed to `options.gate`; until `Listening.aclose`.

        Raises:
            ValueError: Something in the options is wrong.
        """
        ...
