"""Versions of the decoders: columns that another one has made are not read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ...plugins.registry import find_reader

_OURS: Final[Mapping[str, int]] = MappingProxyType({"csb": 4, "jrep": 4, "nats": 5, "ubre": 4, "up": 5, "uprotocol": 4})
"""Another number when other events are made of the same frames: `test_columns.py` knows what they make of some."""


def decoder_version(protocol: str) -> str | None:
    """The version of what decodes a protocol here; None where nothing does. Of a plugin it is that of its distribution."""
    if protocol in _OURS:
        return str(_OURS[protocol])
    try:
        find_reader(protocol, {})
    except (ValueError, TypeError):
        return None
    from importlib import metadata

    found = [entry.dist for entry in metadata.entry_points(group="polybus.protocols", name=protocol) if entry.dist is not None]
    return f"{found[0].name} {found[0].version}" if found else ""


def is_current(versions: Mapping[str, str | None]) -> bool:
    """True where these decoders of protocols are as good as those that there are: the same, or of what nothing here decodes."""
    for protocol, version in versions.items():
        here = decoder_version(protocol)
        if here is not None and here != version:
            return False
    return True
