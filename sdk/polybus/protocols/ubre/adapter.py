"""Options of the UBRE protocol."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from attrs import field, frozen
from attrs.validators import optional

from ...body import JSON, OCTETS, BodyFormat
from ...errors import RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Message
from ...plugins import FrameField, Role
from .._shared import UrlOptions, choice, one_of
from .binary_format import BinaryReader, BinaryWriter, dissect
from .json_format import JsonWriter, ReadUsual, json_readers
from .session import RawUbreSession, ShortUbreSession, UbreSession

_LIMITS: Final = Limits()


@frozen(eq=False, kw_only=True)
class UbreCodec:
    """Codec with one message per frame. The session uses `read` and `write`. Other callers use `decode` and `encode`."""

    read: Callable[[bytes], Message]  # Reads the message of a frame. Raises only `RemoteProtocolError`.
    write: Callable[[Message, Any], bytes]  # Writes a message under an id (ignores `Message.id`). Raises as `encode`.
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    # Writes a request, given subject, id, body and time-out in seconds; None if not available
    ask: Callable[[Any, Any, bytes | None, float], bytes] | None = None
    tell: Callable[[Any, bytes | None], bytes] | None = None  # Writes an answer, given id and body; None if not available
    publication: Callable[[Any, bytes], bytes] | None = None  # Writes a publication, given subject and body
    usual: ReadUsual | None = None  # Reads usual frames: see `plugins.SessionFeatures`
    # Body formats on this wire. The first is for ordinary bodies; items and opens may use both.
    formats: tuple[BodyFormat, ...] = (JSON, OCTETS)
    one_format: ClassVar[bool] = True

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        return self.formats[0]

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        return [self.read(frame)]

    def encode(self, messages: Sequence[Message]) -> bytes:
        if len(messages) != 1:
            raise Unsupported(f"a UBRE frame carries one message, not {len(messages)}")
        return self.write(messages[0], messages[0].id)


def _length(value: Any) -> Any:
    return -1 if value == "-1" else value


@frozen(kw_only=True)
class Ubre(UrlOptions):
    """The UBRE protocol with its options.

    Args:
        format: ``json`` (text), ``binary``, or ``any``, which reads both formats and writes JSON.
        dialect: How to write requests: ``named``, as in the npm package, or ``spec``, as in the document. Both forms can be
            read.
        body: Encoding of bodies in binary frames: ``json``, or ``raw`` for bytes.
        body_length: How to write the length of a binary body: -1 for "the rest of the frame", or `None` for the actual number.
            Both forms can be read.

    Raises:
        ValueError: If a value is invalid, or an option does not apply to this format.
    """

    name = "ubre"
    option_names: ClassVar[tuple[str, ...]] = ("format", "dialect", "body", "body_length")
    inspect_options: ClassVar[Mapping[str, str]] = {"format": "any"}

    format: Literal["json", "binary", "any"] = choice("json", "binary", "any")
    dialect: Literal["named", "spec"] = choice("named", "spec")
    body: Literal["json", "raw"] = choice("json", "raw")
    body_length: Literal[-1] | None = field(default=None, converter=_length, validator=optional(one_of("-1")))

    def __attrs_post_init__(self) -> None:
        if self.body == "raw" and self.format == "json":
            raise ValueError("ubre: body=raw is for binary frames: set format=binary or format=any")
        if self.body_length is not None and self.format != "binary":
            raise ValueError("ubre: body_length=-1 is for written binary frames: set format=binary")

    def codec(self, limits: Limits = _LIMITS) -> UbreCodec:
        """Return the codec. Equal adapters with equal limits share a codec."""
        return _codec(self, limits)

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """Return the fields of a binary frame for display. Returns none for JSON. See `plugins.Dissector`."""
        return list(dissect(frame))

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> UbreSession:
        """Create a connection's session, which is the same in both roles. `rng` generates the random part of ids."""
        codec = _codec(self, limits)
        if codec.formats[0] is OCTETS:
            kind: type[UbreSession] = RawUbreSession
        else:
            kind = UbreSession if codec.ask is None else ShortUbreSession
        return kind(codec, limits, random.SystemRandom() if rng is None else rng)


@lru_cache(maxsize=64)
def _codec(adapter: Ubre, limits: Limits) -> UbreCodec:
    spec, raw = adapter.dialect == "spec", adapter.body == "raw"
    (read_json, usual), read_binary = json_readers(limits), BinaryReader(limits, raw).read
    if adapter.format == "binary":
        write = BinaryWriter(limits, spec, raw, to_the_end=adapter.body_length == -1).write
        formats = (OCTETS, JSON) if raw else (JSON, OCTETS)
        return UbreCodec(read=read_binary, write=write, reads=frozenset(("binary",)), writes="binary", formats=formats)
    writer = JsonWriter(limits, spec)
    short: dict[str, Any] = {"publication": writer.publication}
    if not spec:
        short |= {"ask": writer.ask, "tell": writer.tell, "usual": usual}
    if adapter.format == "json":
        return UbreCodec(read=read_json, write=writer.write, reads=frozenset(("text",)), writes="text", **short)

    def read(frame: bytes) -> Message:
        return read_json(frame) if frame[:1] in b"{ \t\r\n" else read_binary(frame)

    return UbreCodec(read=read, write=writer.write, reads=frozenset(("text", "binary")), writes="text", **short)
