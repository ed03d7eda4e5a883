"""Words that two ends of a port say to each other besides frames.

A port has no end that can be seen from the other side, no sign of life and no way to hold back a sender. Between two ends of
ours these are messages of their own: text that begins with U+0000, which no frame of ours does (one that would is sent with a
second U+0000 before it). The same words are spoken by ``polybus.js``.

====================  =============================================================================
``\\0hi {...}``        the first message of each end: a JSON object with ``v``, ``protocol``, ``headers``
``\\0ack N``           so many data messages have been taken since the beginning
``\\0ping`` ``\\0pong``  a sign of life, and its answer
``\\0bye CODE TEXT``   the last message: a WebSocket close code and a reason
====================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from attrs import field, frozen

from ...plugins import Closed
from .._stream.close_codes import closed_by_peer, cut_reason

MARK: Final = "\0"
VERSION: Final = 1
PING: Final = "\0ping"
PONG: Final = "\0pong"
ACK_FRAMES: Final = 64
ACK_BYTES: Final = 64 * 1024
"""Frames or bytes that are taken between two acknowledgements, whichever come first."""
_HELLO_SIZE: Final = 64 * 1024


@frozen
class Hello:
    """First word of the other end."""

    protocol: str | None = None
    headers: Mapping[str, str] = field(factory=dict)


def hello(protocol: str, headers: Mapping[str, str]) -> str:
    said: dict[str, Any] = {"v": VERSION, "protocol": protocol}
    if headers:
        said["headers"] = dict(headers)
    return f"\0hi {msgspec.json.encode(said).decode()}"


def read_hello(text: str) -> Hello | Closed:
    """Read what follows ``hi``; or why the connection ends."""
    if len(text) > _HELLO_SIZE:
        return Closed(1009, f"a greeting of {len(text)} characters, the limit is {_HELLO_SIZE}")
    try:
        said = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("v", VERSION) != VERSION:
        return Closed(1002, f"a greeting that is not of version {VERSION}: {text[:80]!r}")
    protocol, headers = said.get("protocol"), said.get("headers", {})
    if not (protocol is None or isinstance(protocol, str)) or not isinstance(headers, dict):
        return Closed(1002, f"a greeting with a wrong protocol or headers: {text[:80]!r}")
    if not all(isinstance(value, str) for value in headers.values()):
        return Closed(1002, "a greeting whose headers are not all text")
    return Hello(protocol, {name.lower(): value for name, value in headers.items()})


def ack(count: int) -> str:
    return f"\0ack {count}"


def bye(code: int, reason: str) -> str:
    return f"\0bye {code} {cut_reason(reason).decode()}"


def read_bye(text: str) -> Closed:
    """Read what follows ``bye``."""
    word, _, reason = text.partition(" ")
    code = int(word) if word.isascii() and word.isdigit() and len(word) <= 4 else 1002
    return closed_by_peer(code, reason[:256])
