"""Forms of protocols over HTTP, as URLs name them: their clients and servers are loaded when they are needed."""

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
    """J.REP, as Errai speaks it; a `plugins.HttpBinding`.

    ``?channel=poll``, ``events`` or ``websocket`` chooses how messages come to a client, and ``?frame=`` is the largest frame
    in bytes that it gives to a WebSocket.
    """

    option_names: ClassVar[tuple[str, ...]] = ("channel", "frame")
    keeps_sessions: ClassVar[bool] = True
    """The connections of a client have to come to one process."""

    ways: set[str]
    """Channels that may be tried. A client takes out one that swallows messages, for the connections that follow."""
    frame: int | None = None
    """Bytes: what is larger is posted, although there is a WebSocket; 0 is nothing. None: as the server needs it."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """From a URL's query. May raise `ValueError`: a value is not known."""
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
        """Make a connection. Nothing is sent yet: the first request is the protocol's handshake."""
        from .jrep_http.client import ErraiClient

        return ErraiClient(url, options.tls, options, self.ways, self.frame)

    def web_endpoint(self, path: str) -> WebEndpoint:
        from .jrep_http.server import ErraiEndpoint

        return ErraiEndpoint(path)


class CloudEventsHttp:
    """uProtocol, as CloudEvents; a `plugins.HttpBinding` without options."""

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
