"""The HTTP binding of CloudEvents 1.0.2 as plain functions: events to headers and bytes, and back.

``structured`` is a whole event as the body, ``binary`` its attributes as ``ce-`` headers and its data as the body, ``batch``
several whole events. No socket is in here: a transport or any web framework has those.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote

from attrs import evolve, frozen

from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Message
from .adapter import DEFAULT_ENTITY, UProtocol
from .bodies import FORMATS, format_of, written_body
from .cloudevents.cloudevent import attributes_of, message_of, named, typed
from .cloudevents.envelope import OLD_LEVEL, normalise
from .codec import UProtocolCodec
from .rules import TOLERATED, Leniency, refuse

Format: TypeAlias = Literal["json", "protobuf"]
Mode: TypeAlias = Literal["structured", "binary", "batch"]
_LIMITS: Final = Limits()
_PREFIX: Final = "ce-"
# 3.1.3.2: printable ASCII but space, double quote and percent stays as it is.
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPED: Final = re.compile(r"\\(.)")


@frozen
class HttpContent:
    """Headers (names in lower case) and body of a request or a response."""

    headers: Mapping[str, str]
    body: bytes


@frozen
class Form:
    """Form of events in an HTTP message."""

    mode: Mode = "structured"
    format: Format = "json"
    """Of whole events."""


_FORMS: Final[Mapping[str, Form]] = {
    "application/cloudevents+json": Form("structured", "json"),
    "application/cloudevents+protobuf": Form("structured", "protobuf"),
    "application/cloudevents-batch+json": Form("batch", "json"),
    "application/cloudevents-batch+protobuf": Form("batch", "protobuf"),
}
_MEDIA: Final = {form: media for media, form in _FORMS.items()}


# -- messages ------------------------------------------------------------------------------------------------------------


def to_http(messages: Sequence[Message], adapter: UProtocol | None = None, mode: Mode = "structured") -> HttpContent:
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
    return _whole([codec.event(*parts) for parts in found], codec, Form(mode, adapter.format))


def from_http(
    headers: Mapping[str, str], body: bytes, *, mode: str = "document", entity: str = DEFAULT_ENTITY
) -> Sequence[Message | RemoteProtocolError]:
    """The messages in the content of an HTTP message; a refused one of a batch is an error among them.

    Args:
        headers: Names in any case.
        body: Whole.
        mode: As of `UProtocol`: how the rules of the document are read.
        entity: Its addresses become the plain subjects that `to_http` has made them of.

    Raises:
        RemoteProtocolError: There is no event, or a bad one.
        ValueError: The mode is not known, or the entity is none.
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
    """Form of the events in an HTTP message with these headers (names in lower case). May raise `RemoteProtocolError`."""
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    form = _FORMS.get(media) or (Form("binary") if _PREFIX + "specversion" in headers else None)
    if form is not None:
        return form
    raise refuse(f"no event: the content type is {media!r}, and there is no ce-specversion", "unknown_format")


def frames_of(headers: Mapping[str, str], body: bytes, adapter: UProtocol, limits: Limits = _LIMITS) -> list[bytes]:
    """The events in the content of an HTTP message, each as a frame of a connection with this adapter.

    What comes in the adapter's own format is not looked into. May raise `RemoteProtocolError`: none, or of no such format.
    """
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
    """Frames of a connection with this adapter as HTTP content, several in batch mode. May raise `RemoteProtocolError`."""
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
    """An event in another form. `message` is what was read of it: a writer trusts what it is given, so that comes first."""
    attributes.pop(TOLERATED, None)
    old_level = attributes.get(OLD_LEVEL)
    normalise(attributes, leniency)
    if old_level is not None and leniency:  # whoever reads it says then that it was read leniently
        attributes[OLD_LEVEL] = attributes.pop("plevel")
    # Of what a lenient reader has taken for bytes, the content type says something else.
    format = format_of(attributes.get("datacontenttype")) if message.raw is None else message.format
    if raw is not None and format not in FORMATS:
        raw, format = written_body(message)  # JSON and text, which only a foreign peer sends
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
    """The canonical string of a value (CloudEvents 1.0.2, type system)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _header_text(header: str, value: str) -> str:
    """The text in the value of a header (3.1.3.2): a quoted string is taken out of its quotes, then percents are decoded. What
    is no whole quoted string, or no whole percent, stands for itself. May raise `RemoteProtocolError`: that is no UTF-8."""
    if _QUOTED.fullmatch(value):
        value = _ESCAPED.sub(r"\1", value[1:-1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise refuse(
            f"what is percent-encoded in {header[:60]} is no UTF-8 (HTTP binding, 3.1.3.2)", "invalid_attribute"
        ) from error


def _from_binary(headers: Mapping[str, str], body: bytes, leniency: Leniency) -> tuple[dict[str, Any], bytes | None]:
    attributes: dict[str, Any] = {}
    for header, value in headers.items():
        if header.startswith(_PREFIX):
            name = header[len(_PREFIX) :]
            attributes[name] = typed(name, _header_text(header, value), leniency)
    if attributes.pop("datacontenttype", None) is not None and leniency is not Leniency.LENIENT:
        text = "ce-datacontenttype: in binary mode the Content-Type says it (CloudEvents 1.0.2, HTTP binding, 3.1.1)"
        raise refuse(text, "ambiguous")
    if body and "content-type" in headers:
        attributes["datacontenttype"] = headers["content-type"]
    return attributes, body or None
