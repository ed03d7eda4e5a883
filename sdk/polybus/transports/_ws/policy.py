"""Rules for opening a WebSocket here: Host, Origin and sub-protocol, as pure functions.

A browser lets any page open a WebSocket to any server and sends the user's cookies along, so the server must look at Origin
(CWE-1385). A page can also give its own host name the address 127.0.0.1 (DNS rebinding): then Origin and Host agree, and
only Host shows that the page is a stranger to a server on the loopback address.

Our own server and the one behind an ASGI application ask the same questions here; what parsed the request does not matter.
Which clients are of this machine: by the socket, and by what proxies say of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from attrs import evolve, field, frozen

from ..._util.listening import is_loopback
from ...errors import BusError, Forbidden, Unauthorized
from ...plugins import Handshake, ListenOptions
from ...plugins.close_codes import cut_reason, text_of
from ...plugins.transports import cookies_of

_names_a_client: Final = re.compile(
    r"(?:^|-)forwarded(?:-for)?$|user-ip$|"
    r"(?:client|real|remote|connecting|connection|originating|external|viewer|socket|source|peer)-?(?:ip|addr|address)(?:v[46])?$"
).search
"""True of headers in which proxies name the client: ``X-Forwarded-For``, ``Forwarded``, ``X-Real-IP``, ``CF-Connecting-IP``."""
_forwarded_for: Final = re.compile(r"(?:^|;)\s*for\s*=([^;]*)", re.IGNORECASE).findall
"""All of a part: one may stand in the text of its ``host=``, which the client has chosen."""
_SHOWN: Final = 60
"""Characters of what a client or a proxy says: more than any address has."""
_LOCAL: Final = ("", "testclient")
"""Clients without an address: of Unix sockets, and Starlette's test client."""


def from_outside(client: str, headers: Mapping[str, Sequence[str]]) -> str | None:
    """Find what shows that a client is on another machine; None if nothing does.

    A header counts whoever has sent it: a stranger gains nothing by one, and what a proxy adds stands beside it. What is no
    address is nobody's of this machine.

    Args:
        client: Its host, as the server knows it.
        headers: Lower-case names, and all values of each.
    """
    if client not in _LOCAL and not is_loopback(client):
        return repr(client[:_SHOWN])
    for name, values in headers.items():
        if _names_a_client(name):
            for value in values:
                for address in _addresses(name, value):
                    if not is_loopback(address):
                        return f"{address[:_SHOWN]!r} ({name[:_SHOWN]})"
    return None


def _addresses(name: str, value: str) -> Iterator[str]:
    """The hosts in a header; a part without one is given as it is."""
    for part in value.split(","):
        found = _forwarded_for(part) if name == "forwarded" else []
        yield from map(_host, found or [part])


def _host(text: str) -> str:
    """The host in ``127.0.0.1``, ``127.0.0.1:80``, ``::1``, ``[::1]`` and ``"[::1]:80"``."""
    text = text.strip().strip('"')
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, _, port = text.partition(":")
    return host if port.isdecimal() else text


_TOKEN = "polybus.token."
CLOSES: Final = "polybus.closes"
"""Sub-protocol of a client that cannot see a status of HTTP, as a page: it is told by a close why it is not let in."""
_CLOSES: Final[Mapping[int, int]] = {401: 4401, 403: 4403, 429: 1013, 503: 1013}
_HINTS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("WWW-Authenticate", "Bearer"),
    405: ("Allow", "GET"),
    426: ("Upgrade", "websocket"),
    503: ("Retry-After", "1"),
}
"""Headers that go with a status."""


class HandshakeRejected(Exception):
    """A request is turned away with an HTTP status and a text that says what was seen and which option would change it.

    Args:
        status: Of the answer.
        text: Of the answer.
        about: The rule of the listener that it breaks: such a client is told of in the log.
        advice: For the log alone: what would let the client in is nothing for strangers.
    """

    def __init__(self, status: int, text: str, *, about: str = "", advice: str = "") -> None:
        self.status: HTTPStatus = HTTPStatus(status)
        self.text: str = text
        self.about: str = about
        self.advice: str = advice
        super().__init__(status, text)

    def close(self, offers: Sequence[str]) -> tuple[int, str] | None:
        """The code and reason of a close that says the same, to a client that has asked for it; None where a page of another
        site, or of another name, is not to know more than that it failed."""
        code = None if self.about or CLOSES not in offers else _CLOSES.get(self.status)
        return None if code is None else (code, cut_reason(self.text).decode())

    @classmethod
    def of(cls, error: BusError) -> HandshakeRejected:
        """The answer, before the upgrade, to a client that the bus does not let in."""
        status = 401 if isinstance(error, Unauthorized) else 403 if isinstance(error, Forbidden) else 503
        return cls(status, text_of(error))

    def answer(self) -> tuple[list[tuple[str, str]], bytes]:
        """Headers and body of the response."""
        body = f"{self.text}\n".encode("utf-8", "replace")
        headers = [("Content-Length", str(len(body))), ("Content-Type", "text/plain; charset=utf-8")]
        if self.status in _HINTS:
            headers.append(_HINTS[self.status])
        return headers, body


@frozen(kw_only=True)
class UpgradeRequest:
    """A request for a WebSocket, for all parsers."""

    path: str
    query: str
    headers: Mapping[str, Sequence[str]]
    """Lower-case names, and all values of each."""
    offers: Sequence[str] = field(default=())
    """Sub-protocols."""
    client: str = ""
    """Host of the client, as the server knows it; empty if the server knows none."""

    def only(self, name: str) -> str | None:
        """The value of a header that may be there once. May raise `HandshakeRejected`: 400, it is there more than once."""
        values = self.headers.get(name, ())
        if len(values) > 1:
            raise HandshakeRejected(400, f"more than one {name.capitalize()} header")
        return values[0] if values else None

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the query, the last of each name. May raise `HandshakeRejected`: 400, too many fields."""
        try:
            return dict(parse_qsl(self.query, keep_blank_values=True, max_num_fields=200))
        except ValueError:
            raise HandshakeRejected(400, "too many fields in the query") from None


@frozen(kw_only=True)
class OriginPolicy:
    """The rules of one listener."""

    path: str
    tls: bool
    loopback: bool
    subprotocol: str
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    private: bool = False
    """Every client is let in, so none may come from another machine."""

    def check(self, upgrade: UpgradeRequest) -> None:
        """Check that the request may be made here at all. May raise `HandshakeRejected`: client, host, origin or path are not
        those of this listener."""
        if self.private:
            self.check_client(upgrade)
        host = upgrade.only("host")
        self.check_host(host)
        self.check_origin(upgrade.only("origin"), host or "")
        self.check_path(upgrade.path)

    def handshake(self, upgrade: UpgradeRequest, known: Handshake) -> tuple[str | None, Handshake]:
        """The sub-protocol to answer with, and what the bus is shown of the client: `known`, with what the request says. May
        raise `HandshakeRejected`: 400, no common sub-protocol, or too many fields."""
        chosen, token = self.choose(upgrade.offers)
        shown = {name: ", ".join(values) for name, values in upgrade.headers.items()}
        if token is not None:
            shown.setdefault("authorization", f"Bearer {token}")
        return chosen, evolve(
            known,
            path=upgrade.path or "/",
            query=upgrade.fields,
            headers=shown,
            cookies=cookies_of("; ".join(upgrade.headers.get("cookie", ()))),
            origin=upgrade.only("origin"),
        )

    def check_client(self, upgrade: UpgradeRequest) -> None:
        """May raise `HandshakeRejected`: 403, the client comes from another machine, through a proxy on this one."""
        seen = from_outside(upgrade.client, upgrade.headers)
        if seen is not None:
            raise HandshakeRejected(
                403,
                f"this bus lets everybody in, so it takes clients of its own machine alone, and this one comes from {seen}: "
                "pass Bus(authenticate=...), or say insecure=True",
                about="outside",
            )

    def check_path(self, path: str) -> None:
        """May raise `HandshakeRejected`: 404, another path is served here."""
        if unquote(path or "/") != unquote(self.path or "/"):
            raise HandshakeRejected(404, f"nothing is served at {_shown(path)}, only at {self.path or '/'}")

    def check_host(self, host: str | None) -> None:
        """May raise `HandshakeRejected`: 421, a name that a loopback server does not answer to; 400, none at all."""
        if not host:
            raise HandshakeRejected(400, "the Host header is missing")
        name, _ = self._host_port(host)
        if not self.loopback or is_loopback(name):
            return
        if any(known.lower() in (host.lower(), name) for known in self.hosts):
            return
        if any(urlsplit(origin).hostname == name for origin in self.origins):
            return
        raise HandshakeRejected(
            421,
            f"Host {_shown(host)} is not a name of this server, which listens on a loopback address, nor in its hosts=",
            about="host",
            advice=f"hosts=[{_shown(host)}] in serve() or attach() would answer to it",
        )

    def check_origin(self, origin: str | None, host: str) -> None:
        """May raise `HandshakeRejected`: 403, a page of another site."""
        if origin is None or origin in self.origins:
            return
        try:
            parts = urlsplit(origin)
        except ValueError:  # `http://[`, say
            raise HandshakeRejected(403, f"Origin {_shown(origin)} is no origin") from None
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            port = -1
        # What a browser sends: scheme, host and port, and nothing else.
        whole = origin.lower() == f"{parts.scheme}://{parts.netloc.lower()}" and "@" not in parts.netloc
        if whole and parts.scheme == ("https" if self.tls else "http") and (parts.hostname, port) == self._host_port(host):
            return
        raise HandshakeRejected(
            403,
            f"Origin {_shown(origin)} may not connect here: it is not in the server's origins=",
            about="origin",
            advice=f"origins=[{_shown(origin)}] in serve() or attach() would let it in",
        )

    def choose(self, offers: Sequence[str]) -> tuple[str | None, str | None]:
        """The sub-protocol to answer with, and the token that came along in the offers. May raise `HandshakeRejected`: 400,
        nothing in common."""
        tokens = [offer for offer in offers if offer.startswith(_TOKEN)]
        token = tokens[0].removeprefix(_TOKEN) if tokens else None
        if not offers:
            return None, None
        if self.subprotocol in offers:
            return self.subprotocol, token
        if len(tokens) == len(offers):
            # A browser ends the connection when none of its offers is taken.
            return tokens[0], token
        others = ", ".join(_shown(offer) for offer in offers if not offer.startswith(_TOKEN))
        spoken = f"{self.subprotocol}: begin the URL with {self.subprotocol}+" if self.subprotocol else "none"
        raise HandshakeRejected(400, f"no common sub-protocol: offered {others}, spoken here {spoken}")

    def _host_port(self, host: str) -> tuple[str, int]:
        """May raise `HandshakeRejected`: 400, this is no host."""
        try:
            parts = urlsplit(f"//{host}")
            port = parts.port or (443 if self.tls else 80)
        except ValueError:
            raise HandshakeRejected(400, f"Host {_shown(host)} is malformed") from None
        if not parts.hostname or parts.path or parts.query or parts.username is not None:
            raise HandshakeRejected(400, f"Host {_shown(host)} is malformed")
        return parts.hostname, port


def _shown(text: str) -> str:
    return repr(text[:200])


def tell(turned: HandshakeRejected, address: str, options: ListenOptions) -> None:
    """Have the log tell of a client that broke a rule of the listener."""
    if turned.about:
        why = f"{turned.text}; {turned.advice}" if turned.advice else turned.text
        options.turned_away(address, why, turned.about)
