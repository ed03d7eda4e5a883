"""Protocol forms over HTTP, as named in URLs; clients and servers are imported on use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar, Final, Self

from attrs import frozen

from ..plugins import DialOptions, Transport, WebEndpoint
from ..transports import WebSocket

_CHANNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "auto": ("websocket", "events", "poll"),
    "websocket": ("websocket",),
    "events": ("events",),
    "poll": ("poll",),
}


@frozen
class JrepHttp:
    """J.REP in Errai's form; a `plugins.HttpBinding`.

    ``?channel=poll``, ``events`` or ``websocket`` chooses the channel to the client, and ``?frame=`` the largest frame in bytes
    that it sends over a WebSocket.
    """

    option_names: ClassVar[tuple[str, ...]] = ("channel", "frame")
    keeps_sessions: ClassVar[bool] = True
    """A client's connections must reach the same process."""

    ways: set[str]
    """Channels to try. A client removes one that loses messages, for later connections."""
    frame: int | None = None
    """Bytes beyond which a frame is posted despite a WebSocket; 0 for no limit. None: depends on the server."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Read a URL's query. May raise `ValueError`: invalid value."""
        channel, frame = options.get("channel", "auto"), options.get("frame")
        if channel not in _CHANNELS:
            raise ValueError(f"http: channel={channel!r} is not known; it is one of {', '.join(_CHANNELS)}")
        if frame is not None and not (frame.isascii() and frame.isdigit()):
            raise ValueError(f"http: frame={frame!r} is no number of bytes; 0 is no limit")
        return cls(set(_CHANNELS[channel]), None if frame is None else int(frame))

    @staticmethod
    def load(serves: bool) -> None:
        import_module(".jrep_http.server" if serves else ".jrep_http.client", __package__)
        if not serves:
            WebSocket.load(serves)

    async def connect(self, url: str, options: DialOptions) -> Transport:
        """Make a connection. The first request is the protocol's handshake, sent later."""
        from .jrep_http.client import ErraiClient

        return ErraiClient(url, options.tls, options, self.ways, self.frame)

    def web_endpoint(self, path: str) -> WebEndpoint:
        from .jrep_http.server import ErraiEndpoint

        return ErraiEndpoint(path)


class CloudEventsHttp:
    """uProtocol as CloudEvents; a `plugins.HttpBinding` without options."""

    option_names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls()

    @staticmethod
    def load(serves: bool) -> None:
        import_module(".cloudevents_http.server" if serves else ".cloudevents_http.client", __package__)

    async def connect(self, url: str, options: DialOptions) -> Transport:
        from .cloudevents_http.client import EventsClient

        return await EventsClient.opened(url, options.tls, options)

    def web_endpoint(self, path: str) -> WebEndpoint:
        from .cloudevents_http.server import EventsEndpoint

        return EventsEndpoint(path)
