"""uProtocol over HTTP, as CloudEvents."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar, Self

from ...plugins import DialOptions, Transport, WebEndpoint


class CloudEventsHttp:
    """A `plugins.HttpBinding` without options."""

    option_names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls()

    @staticmethod
    def load(serves: bool) -> None:
        import_module(".server" if serves else ".client", __package__)

    async def connect(self, url: str, options: DialOptions) -> Transport:
        from .client import EventsClient

        return await EventsClient.opened(url, options.tls, options)

    def web_endpoint(self, path: str) -> WebEndpoint:
        from .server import EventsEndpoint

        return EventsEndpoint(path)
