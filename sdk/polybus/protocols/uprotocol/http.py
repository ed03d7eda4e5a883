"""The HTTP binding of CloudEvents 1.0.2 as plain functions: events to headers and bytes, and back.

``structured`` is a whole event as the body, ``binary`` its attributes as ``ce-`` headers and its data as the body, ``batch``
several whole events. No socket is in here: a transport or any web framework has those.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

from attrs import frozen

from ...errors import RemoteProtocolError
from ...message import Message
from .adapter import UProtocol
from .cloudevent import attributes_of, message_of
from .envelope import refuse
from .payloads import from_base64
from .rules import MAX_INTEGER

__all__ = ["HttpContent", "from_http", "to_http"]

_TYPES: Final = {"json": "application/cloudevents+json", "protobuf": "application/cloudevents+protobuf"}
_BATCHES: Final = {"json": "application/cloudevents-batch+json", "protobuf": "application/cloudevents-batch+protobuf"}
_PREFIX: Final = "ce-"
# 3.1.3.2: printable ASCII but space, double quote and percent stays as it is.
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_NUMBERS: Final = ("ttl", "plevel", "commstatus", "permission_level", "credit", "hops")


@frozen
class HttpContent:
    """Headers (names in lower case) and body of a request or a response."""

    headers: Mapping[str, str]
    body: bytes


def to_http(
    messages: Sequence[Message], adapter: UProtocol | None = None, mode: Literal["structured", "binary", "batch"] = "structured"
) -> HttpContent:
    """Events as the content of an HTTP message.

    Args:
        messages: One, or several with ``mode="batch"``.
        adapter: Entity, format and profile; by default JSON.
        mode: How.

    Raises:
        ValueError: Several messages and not a batch, or none.
        EncodeError, LocalProtocolError, Unsupported: A message is no event of uProtocol.
    """
    adapter = adapter if adapter is not None else UProtocol()
    codec = adapter.codec()
    if mode != "batch" and len(messages) != 1:
        raise ValueError(f"{len(messages)} messages: {mode} mode holds one, batch mode several")
    found = [attributes_of(message, codec, adapter.entity) for message in messages]
    if mode == "binary":
        return _binary(*found[0][:2])
    frames = [codec.event(*parts) for parts in found]
    if mode == "structured":
        return HttpContent({"content-type": _TYPES[adapter.format]}, frames[0])
    return HttpContent({"content-type": _BATCHES[adapter.format]}, codec.writer.batch(frames))


def _binary(attributes: dict[str, Any], raw: bytes | None) -> HttpContent:
    headers = {}
    for name, value in attributes.items():
        if name == "datacontenttype":
            headers["content-type"] = str(value)
        else:
            headers[_PREFIX + name] = quote(_text(value), safe=_SAFE)
    return HttpContent(headers, raw or b"")


def _text(value: Any) -> str:
    """The canonical string of a value (CloudEvents 1.0.2, type system)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def from_http(headers: Mapping[str, str], body: bytes, *, mode: str = "strict") -> Sequence[Message | RemoteProtocolError]:
    """The messages in the content of an HTTP message; a refused one of a batch is an error among them.

    Args:
        headers: Names in any case.
        body: Whole.
        mode: ``strict`` or ``lenient``: how the rules of the document are read.

    Raises:
        RemoteProtocolError: There is no event, or a bad one.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    media = lower.get("content-type", "").partition(";")[0].strip().lower()
    lenient = mode == "lenient"
    for format, name in (*_TYPES.items(), *_BATCHES.items()):
        if media == name:
            codec = UProtocol(format=format, mode="lenient" if lenient else "strict").codec()  # type: ignore[arg-type]
            return codec.read_batch(body) if name in _BATCHES.values() else [codec.read(body)]
    if _PREFIX + "specversion" in lower:
        return [_from_binary(lower, body, lenient)]
    raise refuse(f"no event: the content type is {media!r}, and there is no ce-specversion", "malformed")


def _from_binary(headers: Mapping[str, str], body: bytes, lenient: bool) -> Message:
    attributes: dict[str, Any] = {}
    for header, value in headers.items():
        if header.startswith(_PREFIX):
            attributes[header[len(_PREFIX) :]] = _decoded(header[len(_PREFIX) :], value)
    if "content-type" in headers:
        attributes["datacontenttype"] = headers["content-type"]
    return message_of(attributes, body or None, lenient=lenient)


def _decoded(name: str, value: str) -> Any:
    """All is text in headers: what the document types otherwise gets its type back."""
    text = unquote(value.strip('"'))
    if name in _NUMBERS and text.isascii() and text.isdigit() and int(text[:11]) <= MAX_INTEGER:
        return int(text)
    if name == "hash":
        return from_base64(text)
    return text
