"""Clients of this machine, and those of others: by the socket, and by what proxies say of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from .._stream.sockets import is_loopback

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
