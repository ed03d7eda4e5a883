"""Key expressions of the binding to Zenoh (up-l1/zenoh.adoc): ``up/``, five segments of the source, five of the sink."""

from __future__ import annotations

from typing import Final

from .uuris import ANY_AUTHORITY, ANY_PART, ANY_VERSION, UUri

_NO_SINK: Final = "{}/{}/{}/{}/{}"


def segments_of(uri: UUri, host: str) -> str:
    """The five segments of an address or a pattern; `host` stands where it has no authority."""
    type = "*" if uri.type == ANY_PART else f"{uri.type:X}"
    instance = "*" if uri.instance == ANY_PART else f"{uri.instance:X}"
    version = "*" if uri.version == ANY_VERSION else f"{uri.version:X}"
    resource = "*" if uri.resource == ANY_PART else f"{uri.resource:X}"
    return f"{uri.authority or host}/{type}/{instance}/{version}/{resource}"


def key_of(source: UUri, sink: UUri | None, host: str) -> str:
    """The key of a message, or the expression of a filter. May raise `ValueError`: the own host has no name."""
    if host in ("", ANY_AUTHORITY):
        raise ValueError(f"{host!r} is no name of the own host, which stands in keys for an empty authority")
    return f"up/{segments_of(source, host)}/{_NO_SINK if sink is None else segments_of(sink, host)}"
