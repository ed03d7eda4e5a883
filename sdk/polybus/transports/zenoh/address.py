"""URLs of Zenoh: kind of node, addresses to listen on, and addresses to connect to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import evolve, frozen

from ...plugins.tools import is_loopback, without_secrets
from ..sockets import host_port

PORT: Final = 7447
_MODES: Final = ("client", "peer", "router")
_LINKS: Final = ("tcp", "tls", "quic", "ws", "udp")
_SECURE: Final = ("tls", "quic")
_OPTIONS: Final = ("mode", "link", "connect", "listen", "scouting", "ca", "cert", "key", "config")


@frozen(kw_only=True)
class ZenohAddress:
    """A parsed URL.

    Attributes:
        host: Host of the node; empty if only scouting finds other nodes.
        port: Port of the node.
        mode: Kind of this node; None: router if it serves, client if it connects.
        link: Link of a locator: ``tcp``, ``tls``, ``quic``, ``ws``, ``udp``.
        connect: Further locators to connect to, such as ``tcp/192.0.2.7:7447``.
        listen: Further locators to listen on.
        scouting: True to find other nodes by multicast and be found.
        ca: File with certificates to verify others.
        cert: File with the own certificate.
        key: File with its key.
        config: File with a Zenoh configuration; options of the URL take precedence.
    """

    host: str
    port: int
    mode: str | None = None
    link: str = "tcp"
    connect: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    scouting: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    config: str | None = None

    @property
    def shown(self) -> str:
        return f"{self.link}/{host_port(self.host, self.port)}" if self.host else "scouting"

    @property
    def is_private(self) -> bool:
        """True if only this machine can reach a node that serves here, and the nodes it joins."""
        locators = (*self.connect, *self.listen)
        near = all(is_loopback(_host_of(locator)) for locator in locators)
        return is_loopback(self.host) and near and not self.scouting and self.config is None

    def with_port(self, port: int) -> ZenohAddress:
        return evolve(self, port=port)

    def settings(self, *, serves: bool, patience: float) -> Mapping[str, Any]:
        """The session's configuration, by Zenoh's paths.

        Args:
            serves: True to listen at the address, False to connect to it.
            patience: Time-out in seconds for an attempt to connect.
        """
        own = (self.shown,) if self.host else ()
        listen, connect = ((*own, *self.listen), self.connect) if serves else (self.listen, (*own, *self.connect))
        settings: dict[str, Any] = {
            "mode": self.mode or ("router" if serves else "client"),
            "listen/endpoints": list(listen),
            "listen/timeout_ms": 0,
            "listen/exit_on_failure": True,
            "connect/endpoints": list(connect),
            # A server runs without the others and retries; a client fails at once.
            "connect/timeout_ms": -1 if serves else 0,
            "connect/exit_on_failure": not serves,
            "scouting/multicast/enabled": self.scouting,
            "scouting/gossip/enabled": self.scouting,
            "transport/unicast/open_timeout": round(patience * 1000),
            "transport/shared_memory/enabled": False,
        }
        if not self.scouting:
            settings["scouting/delay"] = (
                0  # otherwise a router waits for others, and admits clients before it receives their messages
            )
        side = "listen" if serves else "connect"
        tls = {"root_ca_certificate": self.ca, f"{side}_certificate": self.cert, f"{side}_private_key": self.key}
        settings |= {f"transport/link/tls/{name}": path for name, path in tls.items() if path is not None}
        if self.link in _SECURE and self.cert is not None and self.ca is not None:
            settings["transport/link/tls/enable_mtls"] = True
        return settings

    def url(self) -> str:
        query = urlencode({} if self.link == "tcp" else {"link": self.link})
        return f"zenoh://{host_port(self.host, self.port)}{'/?' if query else ''}{query}"


def listening_address(url: str) -> ZenohAddress:
    """Parse the URL of a server. May raise `ValueError`: as `zenoh_address`, or it cannot listen."""
    address = zenoh_address(url)
    if address.mode == "client":
        shown = without_secrets(url)
        raise ValueError(f"{shown}: mode=client listens nowhere: leave it out, or write mode=peer")
    return address


def zenoh_address(url: str) -> ZenohAddress:
    """Parse a URL. May raise `ValueError`: missing, malformed or unknown part."""
    parts = urlsplit(url)
    shown = without_secrets(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise ValueError(f"{shown}: unknown option {', '.join(unknown)}; of zenoh there are {', '.join(_OPTIONS)}")
    if parts.path not in ("", "/") or parts.username is not None:
        raise ValueError(f"{shown}: zenoh:// has no path and no user: write zenoh://127.0.0.1:{PORT}")
    _check_choice(shown, "mode", options.get("mode"), _MODES)
    _check_choice(shown, "link", options.get("link"), _LINKS)
    _check_choice(shown, "scouting", options.get("scouting"), ("off", "multicast"))
    address = ZenohAddress(
        host=parts.hostname or "",
        port=PORT if parts.port is None else parts.port,
        mode=options.get("mode"),
        link=options.get("link", "tcp"),
        connect=_locators(shown, "connect", options),
        listen=_locators(shown, "listen", options),
        scouting=options.get("scouting") == "multicast",
        **{name: _file(shown, name, options[name]) for name in ("ca", "cert", "key", "config") if name in options},
    )
    if not (address.host or address.connect or address.listen or address.scouting or address.config):
        raise ValueError(
            f"{shown}: the host is missing, write zenoh://127.0.0.1:{PORT}, or ?scouting=multicast to look for one"
        )
    if (address.cert is None) != (address.key is None):
        raise ValueError(f"{shown}: cert= and key= belong together: the file of a certificate, and that of its key")
    if address.link in _SECURE and address.cert is None and address.ca is None and address.config is None:
        raise ValueError(f"{shown}: link={address.link} needs ca= to verify others, and cert= with key= where it serves")
    return address


def _check_choice(url: str, name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise ValueError(f"{url}: {name}={value} is not known; it is one of {', '.join(choices)}")


def _locators(url: str, name: str, options: Mapping[str, str]) -> tuple[str, ...]:
    given = tuple(filter(None, options.get(name, "").split(",")))
    for locator in given:
        if not _is_locator(locator):
            raise ValueError(
                f"{url}: {name}={locator} is not a locator: a locator has the form tcp/127.0.0.1:{PORT}, several with commas"
            )
    return given


def _is_locator(text: str) -> bool:
    """True for a link, host and port; Zenoh silently never reaches a locator without port."""
    link, _, rest = text.partition("/")
    try:
        parts = urlsplit(f"//{rest}")
        return link in _LINKS and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


def _host_of(locator: str) -> str:
    try:
        return urlsplit(f"//{locator.partition('/')[2]}").hostname or ""
    except ValueError:
        return ""


def _file(url: str, name: str, path: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"{url}: {name}={path} is no file")
    return path


def as_json(settings: Mapping[str, Any]) -> Mapping[str, str]:
    return {path: json.dumps(value) for path, value in settings.items()}
