"""Facts that a server tells of itself, in INFO: at the beginning, and again when something changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

_MOST: Final = 64
"""Addresses of other servers that are remembered."""
_VERSION: Final = 40
"""Characters that are kept of a version."""
_PAYLOAD: Final = 1024 * 1024
"""Largest payload that servers take by default, in bytes."""


@frozen(kw_only=True)
class ServerInfo:
    """The members of INFO that matter to a client.

    Attributes:
        id: Of the server; None before the first INFO.
        version: Of the server.
        max_payload: Bytes of headers and payload together that it takes.
        headers: It carries headers.
        nonce: What a client with a key is to sign.
        others: Addresses of servers of the same cluster, ``host:port``.
        leaving: It is about to end: clients had better go elsewhere (lame duck).
    """

    id: str | None = None
    version: str = ""
    max_payload: int = _PAYLOAD
    headers: bool = True
    tls_required: bool = False
    nonce: str | None = None
    others: tuple[str, ...] = ()
    leaving: bool = False

    @classmethod
    def read(cls, members: Mapping[str, Any], before: ServerInfo) -> ServerInfo:
        """From the JSON of an INFO. What has another type than it should counts as not said; what is not said stays."""

        def member(name: str, kind: type, otherwise: Any) -> Any:
            value = members.get(name)
            return value if type(value) is kind else otherwise

        size = member("max_payload", int, before.max_payload)
        urls = member("connect_urls", list, None)
        others = before.others if urls is None else tuple(url for url in urls if type(url) is str)[:_MOST]
        return cls(
            id=member("server_id", str, before.id or ""),
            version=member("version", str, before.version)[:_VERSION],
            max_payload=size if size > 0 else before.max_payload,
            headers=member("headers", bool, before.headers if before.id is not None else False),
            tls_required=member("tls_required", bool, before.tls_required),
            nonce=member("nonce", str, before.nonce),
            others=others,
            leaving=member("ldm", bool, before.leaving),
        )
