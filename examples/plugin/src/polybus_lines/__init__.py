"""Lines: a human-readable protocol for polybus. The README describes its frames."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self
from urllib.parse import quote, unquote

import msgspec
from attrs import frozen

from polybus.body import JSON, BodyFormat, check_json
from polybus.errors import Code, LocalProtocolError, RemoteProtocolError, TooLarge, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Capabilities, QuietSession, Refused, Role, SessionOutput

__all__ = ["Lines", "LinesCodec", "LinesSession"]

VERBS = {kind.name: kind for kind in Kind if kind is not Kind.CONTROL}
WITHOUT_ID = {Kind.PUBLISH, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.NOTIFY}
WITHOUT_SUBJECT = {Kind.RESPONSE, Kind.ERROR, Kind.CANCEL, Kind.ITEM, Kind.CREDIT, Kind.END}
ASKS = {Kind.REQUEST, Kind.OPEN}
NO_BODY = msgspec.Raw()


class Members(msgspec.Struct, omit_defaults=True):
    """The last part of a line."""

    body: msgspec.Raw = NO_BODY
    headers: dict[str, str] | None = None
    ttl: int | None = None
    code: int | None = None
    text: str | None = None
    reason: str | None = None
    detail: Any = None
    mode: str | None = None
    credit: int | None = None
    hops: int | None = None


FACTS = ("text", "reason", "detail", "mode", "credit", "hops")  # the bus finds them in `Message.attributes`
_read, _write = msgspec.json.Decoder(Members).decode, msgspec.json.Encoder().encode


def refused(text: str, reason: str = "malformed") -> RemoteProtocolError:
    return RemoteProtocolError(text, reason=reason, protocol="lines")


# -- the codec: one line to one message and back, without a memory -------------------------------------------------------


@frozen(eq=False)
class LinesCodec:
    """Pure: it knows the limits and the options, but neither client nor server."""

    limits: Limits
    upper: bool
    formats: tuple[BodyFormat, ...] = (JSON,)
    reads: frozenset[Literal["text", "binary"]] = frozenset(("text",))
    writes: Literal["text", "binary"] = "text"

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        return JSON

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        try:
            check_json(frame, self.limits.depth)  # UTF-8, and not nested too deep
            verb, id, where, rest = str(frame, "utf-8").split(" ", 3)
            kind = VERBS[verb.upper()]
            members = _read(rest)
            subject = "" if where == "-" else unquote(where, errors="strict")
        except (ValueError, KeyError, RecursionError) as error:  # ValueError: errors of msgspec and unicode
            raise refused(f"not a line of this protocol: {error}") from error
        if (id == "-") is not (kind in WITHOUT_ID) or len(id) > self.limits.id:
            raise refused(f"{verb} with the id {id[:20]!r}", "invalid_id")
        if (not subject) is not (kind in WITHOUT_SUBJECT) or len(subject.encode()) > self.limits.subject:
            raise refused(f"{verb} with the subject {subject[:20]!r}", "invalid_subject")
        ttl = None if members.ttl is None else members.ttl / 1000
        message = Message(kind, subject, None if id == "-" else id, bytes(members.body) or None, JSON, members.headers, ttl)
        if kind is Kind.ERROR or members.code is not None:
            message.code = Code(members.code) if members.code and 0 < members.code < 17 else Code.UNKNOWN
        message.attributes.update({name: getattr(members, name) for name in FACTS})
        return [message]

    def encode(self, messages: Sequence[Message]) -> bytes:
        (message,) = messages  # one per line
        kind, subject, raw = message.kind, message.subject, message.encoded(self.formats)
        if not isinstance(subject, str) or kind.name not in VERBS:
            raise Unsupported(f"lines have no form for {kind.value} on {subject!r}: subjects are text")
        if kind not in WITHOUT_ID and not isinstance(message.id, str):
            raise LocalProtocolError(f"{kind.value} without an id", protocol="lines")
        facts = {name: message.attributes.get(name) for name in FACTS}
        members = Members(NO_BODY if raw is None else msgspec.Raw(raw), message.headers, **facts)
        members.ttl = None if message.ttl is None else int(message.ttl * 1000)
        members.code = None if message.code is None else int(message.code)
        if members.detail is not None:
            members.detail = msgspec.Raw(JSON.encode(members.detail))  # its errors name the path of the value
        verb = kind.name if self.upper else kind.name.lower()
        id = "-" if kind in WITHOUT_ID else message.id
        where = "-" if kind in WITHOUT_SUBJECT else quote(subject, safe="/>*#").replace("-", "%2D")
        return f"{verb} {id} {where} ".encode() + _write(members)


# -- the session: one connection, without I/O ----------------------------------------------------------------------------


class LinesSession(QuietSession):
    """Creates ids and recognises them. It is ready at once, without a handshake, and has no timers."""

    capabilities = Capabilities(shared_publish=True)

    def __init__(self, codec: LinesCodec, rng: random.Random) -> None:
        self.codec = codec
        self._prefix = f"{rng.getrandbits(64):x}-"  # unpredictable, so that answers cannot be forged
        self._count = 0

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        try:
            (message,) = self.codec.decode(frame)
            assert isinstance(message, Message)
            number = str(message.id).removeprefix(self._prefix)
            ours = number != message.id and number.isdecimal() and 0 < int(number) <= self._count
            if message.kind in (Kind.RESPONSE, Kind.ERROR) and not ours:
                raise refused("an answer to an id that was never sent", "unknown_id")
            if message.kind in ASKS and str(message.id).startswith(self._prefix):
                raise refused("a question under an id of this side", "invalid_id")
        except RemoteProtocolError as error:
            return (Refused(error),)
        return message

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[str | None, bytes]:
        key = None
        if message.kind in ASKS:
            self._count += 1
            key = f"{self._prefix}{self._count}"
            ask = Message(message.kind, message.subject, key, message.raw, message.format, message.headers, message.ttl)
            ask.attributes.update(message.attributes)
            message = ask  # the bus may send the original to others
        frame = self.codec.encode([message])
        if len(frame) > self.codec.limits.message:
            raise TooLarge(f"a line of {len(frame)} bytes, the limit is {self.codec.limits.message} (Limits.message)")
        return key, frame


@frozen(kw_only=True)
class Lines:
    """The adapter behind the entry point: the protocol with its options. `upper` is the spelling of verbs."""

    name: ClassVar[str] = "lines"
    option_names: ClassVar[frozenset[str]] = frozenset(("upper",))
    upper: bool = True

    @property
    def url_options(self) -> Mapping[str, str]:
        return {} if self.upper else {"upper": "no"}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        if set(options) - cls.option_names or options.get("upper", "yes") not in ("yes", "no"):
            raise ValueError(f"lines: {dict(options)} is not known; the one option is upper=yes or upper=no")
        return cls(upper=options.get("upper", "yes") == "yes")

    def codec(self, limits: Limits = Limits()) -> LinesCodec:  # noqa: B008  # immutable
        return _codec(limits, self.upper)

    def session(self, role: Role, limits: Limits = Limits(), rng: random.Random | None = None) -> LinesSession:  # noqa: B008
        return LinesSession(self.codec(limits), rng or random.SystemRandom())


_codec = lru_cache(maxsize=16)(LinesCodec)
