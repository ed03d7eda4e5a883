"""Options of the protocol `uprotocol`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from attrs import field, frozen

from ...limits import Limits
from ...plugins import FrameField, Role
from ...plugins.tools import sources
from .._options import UrlOptions, choice
from .._uprotocol import Pairs, SubjectLevels, check_seconds, lifetime_within, pairs_of
from .cloudevents.envelope import Envelope
from .cloudevents.json_event import JsonEventReader, JsonEventWriter
from .cloudevents.proto_event import ProtoReader, ProtoWriter, dissect
from .codec import UProtocolCodec
from .names import UProtocolNames, entity_key
from .rules import MAX_INTEGER, Leniency, is_text, is_uri_reference
from .session import UProtocolSession

_LIMITS: Final = Limits()
DEFAULT_ENTITY: Final = "/polybus/1"
MODES: Final = ("document", "strict", "lenient")
"""Values of ``mode=``, the default first."""


def _entity(adapter: UProtocol, attribute: object, value: str | None) -> None:
    if value is not None:
        entity_key(value)


def _schema(adapter: UProtocol, attribute: object, value: str) -> None:
    if not is_uri_reference(value):
        raise ValueError(f"uprotocol: schema={value!r} is not a URI reference")


def _token(adapter: UProtocol, attribute: object, value: Any) -> None:
    if not (value is None or callable(value) or (isinstance(value, str) and is_text(value))):
        raise ValueError("uprotocol: token is a string, a function that returns one, or None")  # never the value


def _level(adapter: UProtocol, attribute: object, value: Any) -> None:
    if value is not None and not (isinstance(value, int) and 0 <= value <= MAX_INTEGER):
        raise ValueError(f"uprotocol: permission_level={value!r} is not within 0 and {MAX_INTEGER}")


def _pairs(priorities: Mapping[str, str] | Pairs) -> Pairs:
    return pairs_of("uprotocol", priorities)


@frozen(kw_only=True)
class UProtocol(UrlOptions):
    """uProtocol with its options.

    Args:
        entity: Address of this side: ``//VCU.VIN/body.access/1``.
        peer: Address of the other side, used for requests to plain subjects. By default it is taken from the first message of
            the other side.
        format: ``json`` (text) or ``protobuf`` (binary).
        mode: How strictly messages are read; they are always written strictly. ``document`` accepts the forms that appear in
            the document's examples: ids of any UUID version, base64 in ``data``, data without ``Any``, ``permission_level``,
            and addresses without an authority. ``lenient`` also accepts the forms that the SDKs of the same period wrote: text
            as a hash, addresses that break the grammar, and any time. ``strict`` refuses all of these. Tolerated violations
            are listed in ``message.attributes["polybus-lenient"]``.
        profile: Form of protobuf messages: ``strict`` as in the document, or readable by ``up-python-1.5``.
        content: Content mode over HTTP: ``structured``, ``binary``, or ``batch``, which combines waiting messages that need no
            answer.
        notification: Type of notifications: ``pub.v1`` with a sink, as in all SDKs, or ``notif.v1``.
        schema: ``dataschema`` of bodies that are bytes.
        ttl: Lifetime of publications and notifications in seconds. By default they do not expire. A request is valid until
            its deadline.
        priorities: Maps subject patterns to ``CS0`` ... ``CS6``; the first match counts. The default is ``CS4`` for requests,
            which cannot have less, and ``CS1`` for publications.
        token: Token to send with each request: a string, or a function that returns a string, or None for no token. It is
            never logged.
        permission_level: Permission level to send with each request (``plevel``).
        sign: ``sign(data)`` returns the ``hash`` of outgoing data.
        verify: ``verify(data, hash)`` returns True if incoming data is genuine. The message is refused if `verify` returns
            False or raises an exception, or if the message has no hash.
        max_clock_skew: For messages with a ttl, how many seconds in the future the time in the id may be.
        allowance: Seconds that a message may be older than its ttl, because clocks differ.
        clock: Function that returns nanoseconds since 1970.

    Raises:
        ValueError: A value is invalid.
    """

    name = "uprotocol"
    option_names: ClassVar[tuple[str, ...]] = ("entity", "peer", "format", "mode", "profile", "notification", "content")
    inspect_options: ClassVar[Mapping[str, str]] = {"mode": "lenient"}
    """Captured events are read as far as possible."""

    entity: str = field(default=DEFAULT_ENTITY, validator=_entity)
    peer: str | None = field(default=None, validator=_entity)
    format: Literal["json", "protobuf"] = choice("json", "protobuf")
    mode: Literal["document", "strict", "lenient"] = choice(*MODES)
    profile: Literal["strict", "up-python-1.5"] = choice("strict", "up-python-1.5")
    notification: Literal["pub.v1", "notif.v1"] = choice("pub.v1", "notif.v1")
    content: Literal["structured", "binary", "batch"] = choice("structured", "binary", "batch")
    schema: str = field(default="/polybus/octets", validator=_schema)
    ttl: float | None = field(default=None, validator=lifetime_within(MAX_INTEGER))
    priorities: tuple[tuple[str, str], ...] = field(default=(), converter=_pairs)
    token: str | Callable[[], str | None] | None = field(default=None, validator=_token, repr=False)
    permission_level: int | None = field(default=None, validator=_level)
    sign: Callable[[bytes], bytes] | None = None
    verify: Callable[[bytes, bytes], bool] | None = None
    max_clock_skew: float = field(default=30.0, validator=check_seconds)
    allowance: float = field(default=0.0, validator=check_seconds)
    clock: Callable[[], int] = field(factory=lambda: sources.get().wall_clock_ns)

    def spellings(self, subject: str | int) -> tuple[str, ...]:
        """Return other names for a publication of this side. See `plugins.ProtocolFeatures`."""
        return UProtocolNames(self.entity, self.peer, _LIMITS.subject).own_spellings(subject)

    def dissect(self, frame: bytes) -> list[FrameField]:
        """Return the fields of a protobuf event for `polybus inspect`; empty for JSON."""
        return list(dissect(frame)) if self.format == "protobuf" else []

    def codec(self, limits: Limits = _LIMITS) -> UProtocolCodec:
        """Return the codec. Equal adapters with equal limits share one."""
        return _codec(self, limits)

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> UProtocolSession:
        """Create the session for one connection, the same in both roles. `rng` generates the random part of ids."""
        return UProtocolSession(_codec(self, limits), self, limits, random.SystemRandom() if rng is None else rng)


@lru_cache(maxsize=64)
def _codec(adapter: UProtocol, limits: Limits) -> UProtocolCodec:
    # An entity without authority, except the default one, means that the connection stays on one device.
    own = entity_key(adapter.entity)
    device_only = own.startswith("/") and not own.startswith("//") and adapter.entity != DEFAULT_ENTITY
    known = {DEFAULT_ENTITY} if adapter.peer is None else {DEFAULT_ENTITY, entity_key(adapter.peer)}
    local = None if device_only else frozenset(known)
    envelope = Envelope(limits, Leniency.of(adapter.mode), local)
    levels = SubjectLevels(adapter.priorities)
    json, old = adapter.format == "json", adapter.profile == "up-python-1.5"
    return UProtocolCodec(
        reader=JsonEventReader(envelope, limits) if json else ProtoReader(envelope, limits),
        writer=JsonEventWriter(adapter.schema) if json else ProtoWriter(adapter.schema, old),
        reads=frozenset({"text" if json else "binary"}),
        writes="text" if json else "binary",
        local=local,
        headers_limit=limits.headers,
        schema=adapter.schema,
        level_of=levels.of,
    )
