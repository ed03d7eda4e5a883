"""The micro form of an address: bytes for small buses (eclipse-uprotocol/up-spec v1.5.6, basics/uri.adoc).

Version 1, type, resource id (16 bits), entity id (16), entity version (8), 0; then nothing (local), 4 bytes (IPv4), 16 bytes
(IPv6), or a length and that many bytes (an id). Big endian. No message of the document carries it; it is for those who read
what its contemporaries have logged.
"""

from __future__ import annotations

import ipaddress
from struct import Struct
from typing import Final

from attrs import frozen

from .uris import UriError

__all__ = ["MicroUri"]

_HEAD: Final = Struct(">BBHHBB")
_LENGTHS: Final = {0: 0, 1: 4, 2: 16}
_ID: Final = 3


@frozen
class MicroUri:
    """An address in its micro form; `authority` is empty (local), an IP address, or ``ID`` bytes."""

    ue_id: int
    major: int
    resource_id: int
    authority: ipaddress.IPv4Address | ipaddress.IPv6Address | bytes | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> MicroUri:
        """Read it.

        Raises:
            UriError: The bytes are none.
        """
        if len(data) < _HEAD.size:
            raise UriError(f"{len(data)} bytes: a micro address has at least {_HEAD.size}")
        form, kind, resource, ue, major, unused = _HEAD.unpack_from(data)
        rest = data[_HEAD.size :]
        if form != 1 or unused:
            raise UriError("a micro address begins with version 1 and its eighth byte is 0")
        if kind == _ID:
            if not rest or len(rest) != 1 + rest[0]:
                raise UriError(f"{len(rest)} bytes follow the head: an id has one byte of length and as many as that says")
            return cls(ue, major, resource, rest[1:])
        if _LENGTHS.get(kind) != len(rest):
            raise UriError(f"type {kind} with {len(rest)} bytes of authority: local has 0, IPv4 4, IPv6 16")
        return cls(ue, major, resource, ipaddress.ip_address(rest) if rest else None)

    def to_bytes(self) -> bytes:
        """Write it.

        Raises:
            UriError: An id has more than 255 bytes, or a number does not fit.
        """
        authority = self.authority
        if authority is None:
            kind, rest = 0, b""
        elif isinstance(authority, bytes):
            if not 0 < len(authority) < 256:
                raise UriError(f"an id of {len(authority)} bytes: 1 to 255")
            kind, rest = _ID, bytes((len(authority),)) + authority
        else:
            kind, rest = (1 if authority.version == 4 else 2), authority.packed
        try:
            return _HEAD.pack(1, kind, self.resource_id, self.ue_id, self.major, 0) + rest
        except Exception as error:  # struct.error
            raise UriError(f"{self!r} does not fit: {error}") from error
