"""UBRE in binary frames (document UBRE, "Binary Message Format"). The table of types is in the package's docstring.

A frame is a header of 7 bytes (type uint8, name length uint16, body length uint32, big endian), the name and the body.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial
from typing import Any, Final, Literal

import msgspec

from ...body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ...errors import EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import MISSING, Kind, Message
from .checks import check_id, check_subject, foul_json, read_headers, read_ttl, refuse
from .codec import UbreCodec, check_local_subject, unencodable
from .members import NO_EXTRAS, Extras, body_is_octets, credit, end, error, error_body, extras_of, opening

__all__ = ["BinaryCodec"]

HEADER: Final = struct.Struct(">BHI")
REST_OF_FRAME: Final = 0xFFFFFFFF
"""The body length -1."""
MAX_NAME: Final = 0xFFFF
_FAIL_BY_HEX: Final = 0x63  # the document's table says 0x63 and 102; 102 is "f", as its ASCII column says
_BODY_FORMATS: Final = (JSON,)
_REQUEST, _NOTIFY, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM

_decode: Final = msgspec.json.Decoder().decode
_extras: Final = msgspec.json.Decoder(Extras).decode


class BinaryCodec(UbreCodec):
    """Binary frames."""

    def __init__(self, limits: Limits, dialect: str, body: str, body_length: int | None) -> None:
        raise NotImplementedError
