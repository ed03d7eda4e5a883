"""URLs: ``<protocol>+<transport>://<address>[/path][?option=value&...]``, and the plugins that their words name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import frozen

if TYPE_CHECKING:
    from .plugins import ProtocolAdapter, TransportAdapter

__all__ = ["SplitUrl", "find_protocol", "find_transport", "join_url", "split_url"]

# Ours are known without a look at the installed distributions.
_PROTOCOLS = {"ubre": "polybus.protocols.ubre:Ubre"}
_TRANSPORTS = {
    "memory": "polybus.transports.memory:Memory",
    "tcp": "polybus.transports.tcp:Tcp",
    "tls": "polybus.transports.tcp:Tls",
    "unix": "polybus.transports.tcp:Unix",
    "ws": "polybus.transports.websocket:WebSocket",
    "wss": "polybus.transports.websocket:SecureWebSocket",
}


@frozen
class SplitUrl:
    """A URL in its parts: the address keeps its scheme (``ws://host/path``) and the query members that are no options."""

    protocol: str
    transport: str
    address: str
    options: Mapping[str, str]


def split_url(url: str) -> SplitUrl:
    """Take a URL apart.

    Raises:
        ValueError: No protocol, no transport, or no ``://``; the text shows the right form.
    """
    scheme, found, rest = url.partition("://")
    protocol, plus, transport = scheme.partition("+")
    if not (found and plus and protocol and transport):
        raise ValueError(
            f"{url!r} is no bus URL: it has the form protocol+transport://address, for example ubre+ws://127.0.0.1:8000/bus"
        )
    parts = urlsplit(f"{transport}://{rest}")
    if parts.fragment:
        raise ValueError(f"{url!r}: a bus URL has no fragment (#{parts.fragment})")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from None
    # Not `urlunsplit`: it makes unix:/path of unix:///path.
    address = f"{transport}://{rest.partition('?')[0]}"
    return SplitUrl(protocol, transport, address, dict(parse_qsl(parts.query, keep_blank_values=True)))


def join_url(protocol: ProtocolAdapter, address: str) -> str:
    """The URL of a protocol at a real address, with the options that differ from the defaults."""
    query = urlencode(protocol.url_options)
    return f"{protocol.name}+{address}{'?' + query if query else ''}"


def find_protocol(protocol: str | ProtocolAdapter, options: Mapping[str, str]) -> ProtocolAdapter:
    """The protocol with its options.

    Raises:
        ValueError: Not installed, or an option that it does not know.
    """
    if not isinstance(protocol, str):
        if options:
            raise ValueError(f"options belong to the protocol object or to the URL, not to both: {', '.join(options)}")
        return protocol
    return cast("ProtocolAdapter", _load("protocols", protocol).from_options(options))


def find_transport(name: str) -> TransportAdapter:
    """The transport of a name.

    Raises:
        ValueError: Not installed.
    """
    return cast("TransportAdapter", _load("transports", name)())


@cache
def _load(group: str, name: str) -> Any:
    known = _PROTOCOLS if group == "protocols" else _TRANSPORTS
    if name in known:
        module, _, attribute = known[name].partition(":")
        return getattr(import_module(module), attribute)
    # Costs some ten milliseconds, and does not exist in a zip: only names that are not ours need it.
    from importlib import metadata

    installed = {entry.name: entry for entry in metadata.entry_points(group=f"polybus.{group}")}
    if name not in installed:
        choices = ", ".join(sorted({*known, *installed}))
        raise ValueError(f"{name!r} is no {group[:-1]} here; there are: {choices}")
    return installed[name].load()
