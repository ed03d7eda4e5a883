"""Rules for incoming WebSockets, as pure functions: Host, Origin and subprotocol checks.

Browsers let any page open a WebSocket to any server with the user's cookies, so the server must check Origin (CWE-1385). A
page's host name may also resolve to 127.0.0.1 (DNS rebinding). Origin and Host then agree, and only Host shows that the page
doesn't belong to a server on the loopback address.

The built-in server and the ASGI endpoint share these rules, and so may other servers. They also decide from the client's
socket and proxy headers whether a client is local.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from attrs import evolve, field, frozen

from .._util.listening import is_loopback
from ..errors import BusError, Forbidden, Unauthorized
from ..plugins import Handshake, ListenOptions
from ..plugins.close_codes import cut_reason, text_of
from ..plugins.connections import cookies_of

_names_a_client: Final = re.compile(
    r"(?:^|-)forwarded(?:-for)?$|user-ip$|"
    r"(?:client|real|remote|connecting|connection|originating|external|viewer|socket|source|peer)-?(?:ip|addr|address)(?:v[46])?$"
).search
"""Matches headers that name a client of a proxy: ``X-Forwarded-For``, ``Forwarded``, ``X-Real-IP``, ``CF-Connecting-IP``."""
_forwarded_for: Final = re.compile(r"(?:^|;)\s*for\s*=([^;]*)", re.IGNORECASE).findall
"""Finds every match in a header part. The client chooses the value of ``host=``, which may contain another match."""
_SHOWN: Final = 60
"""Maximum characters to quote from a client or proxy. No address is longer than that."""
_LOCAL: Final = ("", "testclient")
"""Names of clients without an address: Unix sockets, and Starlette's test client."""


def _from_outside(client: str, headers: Mapping[str, Sequence[str]]) -> str | None:
    """Return evidence that a client runs on another machine, or `None` without evidence. Malformed addresses aren't local.

    It doesn't matter who sent a header: a remote client gains nothing by sending one, and a proxy adds its own. `headers` maps
    lower-case names to all values.
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
    for part in value.split(","):
        found = _forwarded_for(part) if name == "forwarded" else []
        yield from map(_host, found or [part])


def _host(text: str) -> str:
    """Return the host part of ``127.0.0.1``, ``127.0.0.1:80``, ``::1``, ``[::1]`` or ``"[::1]:80"``."""
    text = text.strip().strip('"')
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, _, port = text.partition(":")
    return host if port.isdecimal() else text


_TOKEN = "polybus.token."
CLOSES: Final = "polybus.closes"
"""Subprotocol for clients that cannot see HTTP statuses, such as web pages. They get a close code with the reason instead."""
_CLOSES: Final[Mapping[int, int]] = {401: 4401, 403: 4403, 429: 1013, 503: 1013}
_HINTS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("WWW-Authenticate", "Bearer"),
    405: ("Allow", "GET"),
    426: ("Upgrade", "websocket"),
    503: ("Retry-After", "1"),
}


class HandshakeRejected(Exception):
    """A request was rejected with an HTTP status and a message that names the option to change.

    `about` is the listener's rule that the request broke. Rejections without a rule are not logged. `advice` says how to accept
    the client. It is only logged, because unauthenticated clients must not see it.
    """

    def __init__(self, status: int, text: str, *, about: str = "", advice: str = "") -> None:
        self.status: HTTPStatus = HTTPStatus(status)
        self.text: str = text
        self.about: str = about
        self.advice: str = advice
        super().__init__(status, text)

    def close(self, offers: Sequence[str]) -> tuple[int, str] | None:
        """Return an equivalent close code and reason if the client asked for one and is not a page of another site or host."""
        code = None if self.about or CLOSES not in offers else _CLOSES.get(self.status)
        return None if code is None else (code, cut_reason(self.text).decode())

    @classmethod
    def of(cls, error: BusError) -> HandshakeRejected:
        status = 401 if isinstance(error, Unauthorized) else 403 if isinstance(error, Forbidden) else 503
        return cls(status, text_of(error))

    def answer(self) -> tuple[list[tuple[str, str]], bytes]:
        body = f"{self.text}\n".encode("utf-8", "replace")
        headers = [("Content-Length", str(len(body))), ("Content-Type", "text/plain; charset=utf-8")]
        if self.status in _HINTS:
            headers.append(_HINTS[self.status])
        return headers, body


@frozen(kw_only=True)
class UpgradeRequest:
    """The head of a request for a WebSocket, or of another HTTP request."""

    path: str
    query: str
    headers: Mapping[str, Sequence[str]]
    """All values by lower-case name."""
    offers: Sequence[str] = field(default=())
    """Subprotocols."""
    client: str = ""
    """Host of the client, or an empty string if it has no address."""

    def only(self, name: str) -> str | None:
        """Return the value of a header. Raises `HandshakeRejected` (400) if it occurs more than once."""
        values = self.headers.get(name, ())
        if len(values) > 1:
            raise HandshakeRejected(400, f"more than one {name.capitalize()} header")
        return values[0] if values else None

    @property
    def fields(self) -> dict[str, str]:
        """The query parameters. If a name is repeated, the last value counts. Raises `HandshakeRejected` (400) for too many."""
        try:
            return dict(parse_qsl(self.query, keep_blank_values=True, max_num_fields=200))
        except ValueError:
            raise HandshakeRejected(400, "too many fields in the query") from None


@frozen(kw_only=True)
class OriginPolicy:
    """The rules of a listener. `loopback` means that it listens on loopback addresses only."""

    options: ListenOptions
    path: str
    tls: bool
    loopback: bool

    def check(self, upgrade: UpgradeRequest) -> None:
        """Raise `HandshakeRejected` if a request breaks a rule."""
        if self.options.private:  # the bus admits every client, so that only local ones are allowed
            self.check_client(upgrade)
        host = upgrade.only("host")
        self.check_host(host)
        self.check_origin(upgrade.only("origin"), host or "")
        self.check_path(upgrade.path)

    def handshake(self, upgrade: UpgradeRequest, known: Handshake) -> tuple[str | None, Handshake]:
        """Return the subprotocol for the response, and `known` completed from the request.

        Raises:
            HandshakeRejected: With status 400 if there is no common subprotocol.
        """
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
        seen = _from_outside(upgrade.client, upgrade.headers)
        if seen is not None:
            raise HandshakeRejected(
                403,
                f"this bus has no authentication, so it accepts only clients on its own machine, and this one is at {seen}: "
                "pass Bus(authenticate=...) or insecure=True",
                about="outside",
            )

    def check_path(self, path: str) -> None:
        if unquote(path or "/") != unquote(self.path or "/"):
            raise HandshakeRejected(404, f"nothing is served at {_shown(path)}, only at {self.path or '/'}")

    def check_host(self, host: str | None) -> None:
        if not host:
            raise HandshakeRejected(400, "the Host header is missing")
        name, _ = self._host_port(host)
        if not self.loopback or is_loopback(name):
            return
        if any(known.lower() in (host.lower(), name) for known in self.options.hosts):
            return
        if any(urlsplit(origin).hostname == name for origin in self.options.origins):
            return
        raise HandshakeRejected(
            421,
            f"Host {_shown(host)} is not a name of this server, which listens on a loopback address, nor in its hosts=",
            about="host",
            advice=f"hosts=[{_shown(host)}] in serve() or attach() would accept it",
        )

    def check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or origin in self.options.origins:
            return
        try:
            parts = urlsplit(origin)
        except ValueError:  # for example `http://[`
            raise HandshakeRejected(403, f"Origin {_shown(origin)} is malformed") from None
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            port = -1
        # Browsers send only scheme, host and port.
        whole = origin.lower() == f"{parts.scheme}://{parts.netloc.lower()}" and "@" not in parts.netloc
        if whole and parts.scheme == ("https" if self.tls else "http") and (parts.hostname, port) == self._host_port(host):
            return
        raise HandshakeRejected(
            403,
            f"Origin {_shown(origin)} may not connect here: it is not in the server's origins=",
            about="origin",
            advice=f"origins=[{_shown(origin)}] in serve() or attach() would accept it",
        )

    def choose(self, offers: Sequence[str]) -> tuple[str | None, str | None]:
        """Return the subprotocol for the response, and the token found among the client's offers."""
        ours = self.options.subprotocol
        tokens = [offer for offer in offers if offer.startswith(_TOKEN)]
        token = tokens[0].removeprefix(_TOKEN) if tokens else None
        if not offers:
            return None, None
        if ours in offers:
            return ours, token
        if len(tokens) == len(offers):
            # Browsers close the connection unless one of their offers is accepted.
            return tokens[0], token
        others = ", ".join(_shown(offer) for offer in offers if not offer.startswith(_TOKEN))
        spoken = f"{ours}: begin the URL with {ours}+" if ours else "none"
        raise HandshakeRejected(400, f"no common sub-protocol: the client offers {others}, the server accepts {spoken}")

    def tell(self, turned: HandshakeRejected, address: str) -> None:
        """Log a rejection, unless no rule was broken."""
        if turned.about:
            why = f"{turned.text}; {turned.advice}" if turned.advice else turned.text
            self.options.turned_away(address, why, turned.about)

    def _host_port(self, host: str) -> tuple[str, int]:
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
