"""Facts about a message of uProtocol that outlive a relay, in both of its generations: how urgent it is, and its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..message import RELAYED
from ._levels import LEVELS
from ._uuids import id_version

_CONVERTIBLE: Final = (7, 8)
"""Versions of ids with the same layout: the old generation writes 8, the new one 7."""
_VERSION_AT: Final = 14


def relayed_priority(attributes: Mapping[str, Any]) -> str | None:
    """The priority that a message came with, also over a bridge; None of one that came with none, or from another wire."""
    crossed = attributes.get(RELAYED)
    name = crossed.get("priority") if isinstance(crossed, dict) else attributes.get("priority")
    return name if isinstance(name, str) and name in LEVELS else None


def relayed_id(attributes: Mapping[str, Any], version: int) -> str | None:
    """The id with which a message set out before it crossed a bridge, as one of a version; None where it had none with a time.

    Version 7 and 8 differ in that digit alone, so that an id that crosses twice is what it was.
    """
    crossed = attributes.get(RELAYED)
    id = crossed.get("id") if isinstance(crossed, dict) else None
    if not isinstance(id, str) or id_version(id) not in _CONVERTIBLE:
        return None
    return f"{id[:_VERSION_AT]}{version}{id[_VERSION_AT + 1 :]}".lower()
