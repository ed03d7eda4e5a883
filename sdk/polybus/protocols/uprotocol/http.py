"""The HTTP binding of CloudEvents 1.0.2 as functions without I/O, for transports and web frameworks.

In ``structured`` mode the body contains a whole event, and in ``batch`` mode it contains several events. In ``binary`` mode an
event's attributes are ``ce-`` headers and the body contains its data.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import quote, unquote

from attrs import evolve, frozen

from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Message
from ...plugins.tools import check_choice
from .adapter import DEFAULT_ENTITY, UProtocol, UProtocolCodec
from .cloudevent import attributes_of, message_of, named, typed
from .events import FORMATS, OCTET_STREAM, OLD_LEVEL, format_of, normalise, written_body
from .rules import TOLERATED, Leniency, refuse

Format: TypeAlias = Literal["json", "protobuf"]
Mode: TypeAlias = Literal["structured", "binary", "batch"]
_LIMITS: Final = Limits()
_PREFIX: Final = "ce-"
# 3.1.3.2: printable ASCII except space, double quote and percent is not encoded.
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPED: Final = re.compile(r"\\(.)")


@frozen
class HttpContent:
    """Headers (with lower-case names) and body of a request or response."""

    headers: Mapping[str, str]
    body: bytes


@frozen
class Form:
    """The form of events in an HTTP message."""

    mode: Mode = "structured"
    format: Format = "json"  # The format of whole events


_FORMS: Final[Mapping[str, Form]] = {
    "application/cloudevents+json": Form("structured", "json"),
    "application/cloudevents+protobuf": Form("structured", "protobuf"),
    "application/cloudevents-batch+json": Form("batch", "json"),
    "application/cloudevents-batch+protobuf": Form("batch", "protobuf"),
}
_MEDIA: Final = {form: media for media, form in _FORMS.items()}


# -- messages ------------------------------------------------------------------------------------------------------------


def to_http(messages: Sequence[Message], adapter: UProtocol | None = None, mode: Mode = "structured") -> HttpContent:
    """Convert messages to the content of an HTTP message.

    Args:
        messages: One message, or several if the mode is ``batch``.
        adapter: Provides the entity, format and profile. The default format is JSON.
        mode: The content mode.

    Raises:
        ValueError: If `mode` is invalid, or `messages` is empty, or has several messages and the mode is not ``batch``.
        EncodeError, LocalProtocolError, Unsupported: If a message cannot be written as a valid event.
    """
    check_choice(mode, get_args(Mode), "mode")
    adapter = adapter if adapter is not None else UProtocol()
    codec = adapter.codec()
    if mode != "batch" and len(messages) != 1:
        raise ValueError(f"{len(messages)} messages: {mode} mode allows one, batch mode several")
    found = [attributes_of(message, codec, adapter.entity) for message in messages]
    if mode == "binary":
        return _binary(*found[0][:2])
    return _whole([codec.event(*parts) for parts in found], codec, Form(mode, adapter.format))


def from_http(
    headers: Mapping[str, str], body: bytes, *, mode: str = "document", entity: str = DEFAULT_ENTITY
) -> Sequence[Message | RemoteProtocolError]:
    """Read the messages in an HTTP message. In a batch, a malformed message is replaced by an error.

    Args:
        headers: The headers. Names are case-insensitive.
        body: The whole body.
        mode: How strictly to read messages, as in `UProtocol`.
        entity: Addresses of this entity become plain subjects, which reverses `to_http`.

    Raises:
        RemoteProtocolError: If there is no event, or the event is malformed.
        ValueError: If the mode or the entity is invalid.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    leniency, form = Leniency.of(mode), form_of(lower)
    if form.mode == "binary":
        return [named(message_of(*_from_binary(lower, body, leniency), leniency), entity)]
    codec = UProtocol.from_options({"format": form.format, "mode": mode}).codec()
    found = codec.read_batch(body) if form.mode == "batch" else [codec.read(body)]
    return [named(one, entity) if isinstance(one, Message) else one for one in found]


# -- frames, for transports ----------------------------------------------------------------------------------------------


def form_of(headers: Mapping[str, str]) -> Form:
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    form = _FORMS.get(media) or (Form("binary") if _PREFIX + "specversion" in headers else None)
    if form is not None:
        return form
    raise refuse(f"not an event: the content type is {media!r}, and there is no ce-specversion", "unknown_format")


def frames_of(headers: Mapping[str, str], body: bytes, adapter: UProtocol, limits: Limits = _LIMITS) -> list[bytes]:
    """Return the events of an HTTP message as connection frames. Events in the adapter's own format are not parsed."""
    form, leniency = form_of(headers), Leniency.of(adapter.mode)
    if form.mode == "binary":
        attributes, raw = _from_binary(headers, body, leniency)
        return [_written(message_of(attributes, raw, leniency), attributes, raw, leniency, adapter.codec(limits))]
    theirs = adapter if form.format == adapter.format else evolve(adapter, format=form.format)
    codec = theirs.codec(limits)
    frames = codec.reader.split(body) if form.mode == "batch" else [body]
    if theirs is adapter:
        return frames
    return [_converted(frame, codec, adapter.codec(limits), leniency) for frame in frames]


def http_of(frames: Sequence[bytes], adapter: UProtocol, form: Form, limits: Limits = _LIMITS) -> HttpContent:
    """Convert connection frames to HTTP content. Only batch mode allows several frames."""
    codec = adapter.codec(limits)
    if form.mode == "binary":
        attributes, raw, format = codec.reader.parts(frames[0])
        if raw is not None:
            attributes.setdefault("datacontenttype", format.content_type)
        return _binary(attributes, raw)
    if form.format != adapter.format:
        other = evolve(adapter, format=form.format).codec(limits)
        frames, codec = [_converted(frame, codec, other, Leniency.LENIENT) for frame in frames], other
    return _whole(frames, codec, form)


def _converted(frame: bytes, reads: UProtocolCodec, writes: UProtocolCodec, leniency: Leniency) -> bytes:
    message = reads.read(frame)
    attributes, raw, _ = reads.reader.parts(frame)
    return _written(message, attributes, raw, leniency, writes)


def _written(
    message: Message, attributes: dict[str, Any], raw: bytes | None, leniency: Leniency, codec: UProtocolCodec
) -> bytes:
    """Write an event in another form. Writers do not check events, but a `message` has already been checked by a reader."""
    attributes.pop(TOLERATED, None)
    old_level = attributes.get(OLD_LEVEL)
    normalise(attributes, leniency)
    if old_level is not None and leniency:  # a later reader then marks the event as leniently read
        attributes[OLD_LEVEL] = attributes.pop("plevel")
    # The content type of leniently read bytes does not match their format.
    format = format_of(attributes.get("datacontenttype")) if message.raw is None else message.format
    if raw is not None and format not in FORMATS:
        raw, format = written_body(message)  # JSON or text from another implementation
        attributes.pop("dataschema", None)
    return codec.event(attributes, raw, format)


# -- either ----------------------------------------------------------------------------------------------------------------


def _whole(frames: Sequence[bytes], codec: UProtocolCodec, form: Form) -> HttpContent:
    body = frames[0] if form.mode == "structured" else codec.writer.batch(frames)
    return HttpContent({"content-type": _MEDIA[form]}, body)


def _binary(attributes: Mapping[str, Any], raw: bytes | None) -> HttpContent:
    headers = {}
    for name, value in attributes.items():
        if name == "datacontenttype":
            headers["content-type"] = str(value)
        else:
            headers[_PREFIX + name] = quote(_text(value), safe=_SAFE)
    return HttpContent(headers, raw or b"")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _header_text(header: str, value: str) -> str:
    """Decode a header value (3.1.3.2): first a quoted string, then percent escapes. Incomplete escapes are left unchanged."""
    if _QUOTED.fullmatch(value):
        value = _ESCAPED.sub(r"\1", value[1:-1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise refuse(f"a percent escape in {header[:60]} is not UTF-8 (HTTP binding, 3.1.3.2)", "invalid_attribute") from error


def _from_binary(headers: Mapping[str, str], body: bytes, leniency: Leniency) -> tuple[dict[str, Any], bytes | None]:
    attributes: dict[str, Any] = {}
    for header, value in headers.items():
        if header.startswith(_PREFIX):
            name = header[len(_PREFIX) :]
            attributes[name] = typed(name, _header_text(header, value), leniency)
    if attributes.pop("datacontenttype", None) is not None and leniency is not Leniency.LENIENT:
        text = "ce-datacontenttype: in binary mode Content-Type gives it (CloudEvents 1.0.2, HTTP binding, 3.1.1)"
        raise refuse(text, "ambiguous")
    content_type = headers.get("content-type")
    if not body and content_type != OCTET_STREAM:
        return attributes, None
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    return attributes, body
