"""Origins, as a browser writes them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

OPAQUE: Final = "null"
"""The origin of sandboxed pages and of files: equal to no other, not even to itself."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origin_of(url: str) -> str | None:
    """Of an address: scheme, host in small letters, and the port unless it is the scheme's own. None where there is none."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme == "file":
        return OPAQUE
    if not parts.scheme or not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}")


def check_origin(origin: str) -> None:
    """May raise `ValueError`: it is not exactly one origin: empty, a wildcard, more than an origin, or not as a browser writes
    it."""
    exact = None if "*" in origin else origin_of(origin)
    if origin != OPAQUE and (exact != origin or exact == OPAQUE):
        hint = f" (say {exact!r})" if exact not in (None, OPAQUE) else ""
        raise ValueError(f"origin={origin!r}: exactly one, such as https://example.org, or 'null' for a sandboxed frame{hint}")
