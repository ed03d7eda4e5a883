"""Options of the J.REP protocol."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from attrs import field, frozen

from ...body import JSON, OCTETS, BodyFormat
from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Role
from ...plugins.tools import shown
from .._shared import UrlOptions, choice
from .formats import ErraiFormat, Parts, PartsFormat
from .handshake import Dialect
from .java import JavaTypes
from .names import is_unusable, subjects_of
from .reader import MessageReader
from .session import JrepSession
from .writer import MessageWriter, joined

_TEXT: Final[frozenset[Literal["text", "binary"]]] = frozenset(("text",))
_SUBSCRIPTIONS: Final = {"RemoteSubscribe": Kind.SUBSCRIBE, "RemoteUnsubscribe": Kind.UNSUBSCRIBE}


@frozen(eq=False, kw_only=True)
class JrepCodec:
    """Codec for payloads that contain several messages.

    The session uses `reader` and `writer`, which do not interpret commands between buses. `decode` and `encode` implement the
    plugin, with subscriptions as messages.
    """

    reader: MessageReader
    writer: MessageWriter
    limits: Limits
    formats: tuple[BodyFormat, ...]
    item_formats: tuple[BodyFormat, ...] = (JSON, OCTETS)
    """A tunnel sends frames as JSON documents or base64, because bytes as a marked value would be three times as long."""
    reads: frozenset[Literal["text", "binary"]] = _TEXT
    writes: Literal["text", "binary"] = "text"

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """The members of `Parts` are written next to ToSubject. Any other value is written as a part of its own."""
        return self.formats[1 if type(value) is Parts else 0]

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """Return the messages of a payload. A RemoteSubscribe is split into one message per subject."""
        found: list[Message | RemoteProtocolError] = []
        for message in self.reader.read(frame):
            parts = message.attributes if isinstance(message, Message) and message.kind is Kind.CONTROL else {}
            kind = _SUBSCRIPTIONS.get(str(parts.get("CommandType")))
            found.extend([message] if kind is None else self._subscriptions(kind, parts))
        return found

    def _subscriptions(self, kind: Kind, parts: dict[str, Any]) -> list[Message | RemoteProtocolError]:
        try:
            subjects = subjects_of(parts, self.limits.subject, self.limits.subscriptions)
        except RemoteProtocolError as error:
            return [error]
        return [Message(kind, subject, attributes=parts) for subject in subjects if not is_unusable(subject)]

    def encode(self, messages: Sequence[Message]) -> bytes:
        write = self.writer.write
        return joined([document for message in messages if (document := write(message, message.id))])

    def join(self, frames: Sequence[bytes]) -> bytes:
        return joined([inner for frame in frames if (inner := frame.strip()[1:-1].strip())])


@lru_cache(maxsize=64)
def make_codec(limits: Limits, types: JavaTypes, plain: bool, strict: bool) -> JrepCodec:
    marked = ErraiFormat(types, strict, limits.depth)
    values: BodyFormat = JSON if plain else marked
    parts = PartsFormat(values)
    reader, writer = MessageReader(limits, marked), MessageWriter(limits, values, parts)
    return JrepCodec(reader=reader, writer=writer, limits=limits, formats=(values, parts))


_LIMITS: Final = Limits()
_NO_TYPES: Final = JavaTypes()


def _interval(value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"jrep: heartbeat={shown(value)} must be a number of seconds") from None
    if not 0 <= seconds < 1e6:
        raise ValueError(f"jrep: heartbeat={shown(value)} must be the seconds between two heartbeats, or 0 for none")
    return seconds


@frozen(kw_only=True)
class Jrep(UrlOptions):
    """The J.REP protocol with its options.

    Args:
        dialect: Handshake to use: ``v3`` as in Errai since 2.4, ``legacy`` as in the document, or ``auto`` to detect the peer's
            dialect.
        values: How to write values. ``errai`` adds Errai's markers; ``plain`` writes bare JSON. Both forms can be read.
        types: ``lenient`` reads unregistered Java types as `JavaObject`. ``strict`` rejects them and any object with duplicate
            members.
        heartbeat: Seconds between Heartbeat messages, or 0 to disable them. A polybus peer closes the connection when
            heartbeats stop.
        java: The application's Java types.

    Raises:
        ValueError: If a value is invalid.
    """

    name = "jrep"
    option_names: ClassVar[tuple[str, ...]] = ("dialect", "values", "types", "heartbeat")

    dialect: Dialect = choice("auto", "v3", "legacy")
    values: str = choice("errai", "plain")
    types: str = choice("lenient", "strict")
    heartbeat: float = field(default=0.0, converter=_interval)
    java: JavaTypes = field(default=_NO_TYPES)

    def codec(self, limits: Limits = _LIMITS) -> JrepCodec:
        """Return the codec. Adapters with equal values, types and limits share a codec."""
        return make_codec(limits, self.java, self.values == "plain", self.types == "strict")

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> JrepSession:
        """Create a connection's session. `rng` generates the random part of ids and the session key."""
        random_ = random.SystemRandom() if rng is None else rng
        return JrepSession(self.codec(limits), role, self.dialect, limits, random_, self.heartbeat)
