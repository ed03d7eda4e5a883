"""Errors as ``google.rpc.Status`` in an ``Any``: what a handler raises (document, 4.4; up-l2 dispatchers)."""

from __future__ import annotations

from typing import Any, Final

from ...message import Message
from .._protobuf.any_body import pack, type_name, unpack
from .._protobuf.status import facts_of, status_of

_STATUS: Final = "google.rpc.Status"
STATUSES: Final = (_STATUS, "uprotocol.v1.UStatus")
"""The document's, and the one that the SDKs answer with, whose fields are the same."""
STATUS_URLS: Final = tuple(f"{where}/{name}".encode() for where in ("type.googleapis.com", "") for name in STATUSES)
"""Types of a Status, as they stand in an ``Any``."""


def write_status(message: Message) -> bytes:
    """An ``Any`` that says why, of an error or of an end that failed. May raise `EncodeError`: the detail cannot be written."""
    return pack(_STATUS, status_of(message))


def read_status(data: bytes | None) -> tuple[int, dict[str, Any]] | None:
    """Code and facts of an ``Any`` that holds a Status, or None. May raise `ValueError`: it says that it is one and is none."""
    if data is None or not data[2:].startswith(STATUS_URLS):
        return None
    url, inner = unpack(data)
    return facts_of(inner) if type_name(url) in STATUSES else None
