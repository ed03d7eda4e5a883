"""Key expressions of the binding to Zenoh (up-l1/zenoh.adoc): ``up/``, the segments of the source, those of the sink.

Five segments an address, with type and instance apart. Programs before up-rust 0.7 write four, with the entity as one.
"""

from __future__ import annotations

from typing import Final

from .uuris import ANY_AUTHORITY, ANY_PART, ANY_VERSION, UUri

_NO_SINK: Final = "{}/{}/{}/{}/{}"
_NO_SINK_OF_FOUR: Final = "{}/{}/{}/{}"


def segments_of(uri: UUri, host: str, *, whole_entity: bool = False) -> str:
    """The five segments of an address or a pattern; `host` stands where it has no authority.

    Args:
        uri: The address or the pattern.
        host: The name of the own host.
        whole_entity: Write four. A pattern of any type or any instance is one of any entity then: match again what comes.
    """
    type = "*" if uri.type == ANY_PART else f"{uri.type:X}"
    instance = "*" if uri.instance == ANY_PART else f"{uri.instance:X}"
    version = "*" if uri.version == ANY_VERSION else f"{uri.version:X}"
    resource = "*" if uri.resource == ANY_PART else f"{uri.resource:X}"
    entity = f"{type}/{instance}"
    if whole_entity:
        entity = "*" if "*" in entity else f"{uri.entity:X}"
    return f"{uri.authority or host}/{entity}/{version}/{resource}"


def key_of(source: UUri, sink: UUri | None, host: str, *, whole_entity: bool = False) -> str:
    """The key of a message, or the expression of a filter. May raise `ValueError`: the own host has no name."""
    if host in ("", ANY_AUTHORITY):
        raise ValueError(f"{host!r} is no name of the own host, which stands in keys for an empty authority")
    start = f"up/{segments_of(source, host, whole_entity=whole_entity)}"
    if sink is None:
        return f"{start}/{_NO_SINK_OF_FOUR if whole_entity else _NO_SINK}"
    return f"{start}/{segments_of(sink, host, whole_entity=whole_entity)}"
