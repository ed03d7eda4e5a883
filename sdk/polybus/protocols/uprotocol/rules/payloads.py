"""The data of an event: what the content type says that they are (document, 1.1 datacontenttype, and 3 Formats)."""

from __future__ import annotations

import binascii
from functools import lru_cache
from typing import Any, Final

import msgspec

from ....body import JSON, OCTETS, TEXT, BodyFormat, check_json
from ....errors import BusError, RemoteProtocolError
from ..._protobuf.any_body import ANY
from . import Leniency
from .checks import refuse

PROTOBUF: Final = "application/protobuf"
OCTET_STREAM: Final = "application/octet-stream"
_decode: Final = msgspec.json.Decoder().decode


@lru_cache(256)
def format_of(content_type: str | None) -> BodyFormat:
    """The body format of a content type. Both media types of protobuf mean ``Any``: of before and after June 2023."""
    media = "" if content_type is None else content_type.partition(";")[0].strip().lower()
    if media in ("", PROTOBUF, "application/x-protobuf"):
        return ANY
    if media == "application/json" or media.endswith("+json"):
        return JSON
    return TEXT if media.startswith("text/") else OCTETS


def from_base64(text: Any, name: str = "data_base64") -> bytes:
    """The bytes of ``data_base64``, or of the attribute of this name. May raise `RemoteProtocolError`: it is no base64."""
    try:
        if not isinstance(text, str):
            raise ValueError("not text")
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as error:  # UnicodeEncodeError and binascii.Error are ValueErrors
        raise refuse(f"{name} is no base64: {error} (document, 3 Formats, Table 6)") from error


def hash_of(text: str, leniency: Leniency) -> bytes:
    """The bytes of a ``hash`` that stands as base64 in JSON or a header. May raise `RemoteProtocolError`: it is none."""
    try:
        return from_base64(text, "hash")
    except RemoteProtocolError:
        if leniency is Leniency.LENIENT:  # up-python and up-java write any text: what happens to be base64 cannot be told apart
            return text.encode()
        raise


def from_json(value: Any, format: BodyFormat, leniency: Leniency) -> bytes:
    """The bytes of ``data`` in a JSON event. May raise `RemoteProtocolError`: it must stand in ``data_base64``."""
    if format is JSON:
        return msgspec.json.encode(value)
    if format is TEXT and isinstance(value, str):
        return value.encode()
    if is_misplaced(value, format) and leniency:
        return from_base64(value, "data")
    raise refuse("data in the member data: protobuf and binary data stand in data_base64 (document, 3 Formats, Table 6)")


def is_misplaced(value: Any, format: BodyFormat) -> bool:
    """True of base64 in ``data``: the document's examples show it there, its Table 6 wants it in ``data_base64``."""
    return format is ANY and isinstance(value, str)


def from_text(data: bytes, format: BodyFormat, depth: int) -> bytes:
    """Data that came, checked where they say that they are JSON or text. May raise `RemoteProtocolError`: they are not."""
    try:
        if format is JSON:
            check_json(data, depth)
            _decode(data)
        elif format is TEXT:
            str(data, "utf-8")
    except (BusError, ValueError, RecursionError) as error:
        raise refuse(f"the data are no {format.content_type}: {error}") from error
    return data
