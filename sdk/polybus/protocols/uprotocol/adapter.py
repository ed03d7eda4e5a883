"""The options of the protocol, and what is made from them."""

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
from .cloudevents.proto_event import ProtoReader, ProtoWriter
from .codec import UProtocolCodec
from .dissect import dissect
from .names import UProtocolNames, entity_key
from .rules import MAX_INTEGER, Leniency, is_text, is_uri_reference
from .session import UProtocolSession

_LIMITS: Final = Limits()
DEFAULT_ENTITY: Final = "/polybus/1"
MODES: Final = ("document", "strict", "lenient")
"""Ways to read events; the first by default."""


def _entity(adapter: UProtocol, attribute: object, value: str | None) -> None:
    if value is not None:
        entity_key(value)


def _schema(adapter: UProtocol, attribute: object, value: str) -> None:
    if not is_uri_reference(value):
        raise ValueError(f"uprotocol: schema={value!r} is no URI reference")


def _token(adapter: UProtocol, attribute: object, value: Any) -> None:
    if not (value is None or callable(value) or (isinstance(value, str) and is_text(value))):
        raise ValueError("uprotocol: token is text, a function that gives it, or None")  # never the value


def _level(adapter: UProtocol, attribute: object, value: Any) -> None:
    if value is not None and not (isinstance(value, int) and 0 <= value <= MAX_INTEGER):
        raise ValueError(f"uprotocol: permission_level={value!r} is not within 0 and {MAX_INTEGER}")


def _pairs(priorities: Mapping[str, str] | Pairs) -> Pairs:
    return pairs_of("uprotocol", priorities)


@frozen(kw_only=True)
class UProtocol(UrlOptions):
    """uProtocol with its options.

    Args:
        entity: Who this side is: ``//VCU.VIN/body.access/1``.
        peer: Who the other side is, for requests to plain subjects, where it does not say so first. None: as it shows itself.
        format: ``json`` (text) or ``protobuf`` (binary).
        mode: How events are read; they are written strictly. ``document`` takes what the document itself shows: ids of any UUID
            version, base64 in ``data``, data that are no ``Any``, ``permission_level``, addresses without authority.
            ``lenient`` also takes what the SDKs of its time wrote: text as hash, addresses against the grammar, any time.
            ``strict`` refuses all that. What was read in spite of a rule says so: ``message.attributes["polybus-lenient"]``.
        profile: How protobuf is written: ``strict`` as the document says, or as ``up-python-1.5`` can read it.
        content: How events are posted over HTTP: ``structured``, ``binary``, or ``batch`` for what waits and has no answer.
        notification: How notifications are written: ``pub.v1`` with a sink, as all SDKs did, or ``notif.v1``.
        schema: ``dataschema`` of bodies that are bytes.
        ttl: Seconds that publications and notifications live; None for ever. Requests live as long as their deadline.
        priorities: From patterns of subjects to ``CS0`` ... ``CS6``; of several that fit the first. Requests have at least
            ``CS4``, which is their default; that of publications is ``CS1``.
        token: Goes out with every request: text, or a function that gives it each time (None for none). Never logged.
        permission_level: Goes out with every request (``plevel``).
        sign: ``sign(data)`` gives the ``hash`` of what goes out.
        verify: ``verify(data, hash)`` tells whether what came in is genuine; False, an exception, or no hash refuses it.
        max_clock_skew: Seconds that the time in an id may lie in the future, where the message has a ttl.
        allowance: Seconds that a message may be older than its ttl, because clocks differ.
        clock: Nanoseconds since 1970.

    Raises:
        ValueError: A value is not known.
    """

    name = "uprotocol"
    option_names: ClassVar[tuple[str, ...]] = ("entity", "peer", "format", "mode", "profile", "notification", "content")
    inspect_options: ClassVar[Mapping[str, str]] = {"mode": "lenient"}
    """Recorded events are read as far as they can be."""

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
        """Other names of a publication of this side; see `plugins.ProtocolFeatures`."""
        return UProtocolNames(self.entity, self.peer, _LIMITS.subject).own_spellings(subject)

    def dissect(self, frame: bytes) -> list[FrameField]:
        """The fields of a protobuf event, for `polybus inspect`; of JSON none."""
        return list(dissect(frame)) if self.format == "protobuf" else []

    def codec(self, limits: Limits = _LIMITS) -> UProtocolCodec:
        """The codec; the same object for equal adapters and limits."""
        return _codec(self, limits)

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> UProtocolSession:
        """A session for one connection. Both roles speak alike; `rng` makes the random part of the ids."""
        return UProtocolSession(_codec(self, limits), self, limits, random.SystemRandom() if rng is None else rng)


@lru_cache(maxsize=64)
def _codec(adapter: UProtocol, limits: Limits) -> UProtocolCodec:
    # An entity without authority says that the connection stays on one device; the default one says nothing.
    own = entity_key(adapter.entity)
    device_only = own.startswith("/") and not own.startswith("//") and adapter.entity != DEFAULT_ENTITY
    known = {DEFAULT_ENTITY} if adapter.peer is None else {DEFAULT_ENTITY, entity_key(adapter.peer)}
    local = None if device_only else frozenset(known)
    envelope = Envelope(limits, Leniency.of(adapter.mode), local)
    # What is written keeps all rules, also where what is read need not.
    strict = envelope if adapter.mode == "strict" else Envelope(limits, Leniency.STRICT, local)
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
        usual=strict.usual,
        level_of=levels.of,
    )
