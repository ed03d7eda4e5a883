"""Options of the protocol `up`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from attrs import field, frozen

from ...limits import Limits
from ...plugins import FrameField, Role
from ...plugins.tools import sources
from .._options import UrlOptions, choice
from .._uprotocol import Pairs, SubjectLevels, check_seconds, lifetime_within, pairs_of
from .codec import MAX_TTL, UpCodec
from .dissect import dissect
from .fabric import UpFabric
from .names import Table, UpNames, table_of
from .samples import DIALECTS
from .session import UpSession
from .uuris import FIRST_TOPIC, UUri, parse_entity

_LIMITS: Final = Limits()
DEFAULT_ENTITY: Final = "//polybus/1/1"
_SHARED: Final = ("strings", "dialect")
"""Options that must be equal at both ends."""


def _entity(adapter: Up, attribute: Any, value: Any) -> None:
    if value is None and attribute.name == "peer":
        return
    try:
        entity = parse_entity(str(value))
    except ValueError as error:
        raise ValueError(f"up: {attribute.name}={str(value)[:100]!r}: {error}") from error
    if not entity.authority:
        text = "an authority is needed, as in //device1/10AB/3: answers to a source without one go to the answerer's own host"
        raise ValueError(f"up: {attribute.name}={value!r}: {text}")


def _token(adapter: Up, attribute: object, value: Any) -> None:
    if not (value is None or callable(value) or (isinstance(value, str) and value.isprintable())):
        raise ValueError("up: token is text, a function that returns it, or None")  # never the value


def _number(adapter: Up, attribute: Any, value: Any) -> None:
    if value is not None and not (type(value) is int and 0 <= value <= MAX_TTL):
        raise ValueError(f"up: {attribute.name}={value!r} is no number from 0 to {MAX_TTL}")


def _count(adapter: Up, attribute: Any, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"up: {attribute.name}={value!r} is no number of requests, at least 1")


def _pairs(priorities: Mapping[str, str] | Pairs) -> Pairs:
    return pairs_of("up", priorities)


@frozen(kw_only=True)
class Up(UrlOptions):
    """Current uProtocol (UMessage), with its options.

    Args:
        entity: Address of this side with its authority: ``//device1/10AB/3``.
        peer: Address of the other side, for notifications and for requests to names with only a number. None: as in its first
            message.
        names: Table from subjects to resources: a method below 0x8000, otherwise a topic; a list with one of each; or a whole
            address, ``"//device2/CD/4/B"``. `names_in` reads a table from a file, `services_in` the services of a proto file.
            A subject with a slash needs no entry.
        ttl: Lifetime of publications and notifications in seconds; None for ever. Requests live until their deadline.
        priorities: Table from subject patterns to ``CS0`` ... ``CS6``; the first match counts. Requests have at least ``CS4``,
            their default; the default of publications is ``CS1``.
        token: Sent with each request: text, or a function that returns it (None for none). Never logged.
        permission_level: Sent with each request.
        strings: Encoding of text: ``json``, or plain ``text``.
        dialect: Form of messages on Zenoh: ``spec`` as in the specification and in up-rust since 0.7; ``cpp-1.0`` as in up-cpp;
            ``rust-0.6`` as in earlier up-rust. Programs with different dialects do not receive each other's messages.
        per_authority: Maximum number of active requests per source authority; further ones fail with RESOURCE_EXHAUSTED. For
            the bus a fabric is one peer, and this keeps one sender from using it up.
        max_clock_skew: Seconds that the time in an id may be in the future, if the message has a ttl.
        allowance: Seconds that a message may exceed its ttl, because clocks differ.
        clock: Returns nanoseconds since 1970.

    Raises:
        ValueError: Invalid value.
    """

    name = "up"
    option_names: ClassVar[tuple[str, ...]] = ("entity", "peer", "strings", "dialect")

    entity: str = field(default=DEFAULT_ENTITY, validator=_entity)
    peer: str | None = field(default=None, validator=_entity)
    names: Table = field(default=(), converter=table_of)
    ttl: float | None = field(default=None, validator=lifetime_within(MAX_TTL))
    priorities: Pairs = field(default=(), converter=_pairs)
    token: str | Callable[[], str | None] | None = field(default=None, validator=_token, repr=False)
    permission_level: int | None = field(default=None, validator=_number)
    strings: Literal["json", "text"] = choice("json", "text")
    dialect: Literal["spec", "cpp-1.0", "rust-0.6"] = choice(*DIALECTS)
    per_authority: int = field(default=4096, validator=_count)
    max_clock_skew: float = field(default=30.0, validator=check_seconds)
    allowance: float = field(default=0.0, validator=check_seconds)
    clock: Callable[[], int] = field(factory=lambda: sources.get().wall_clock_ns)

    @property
    def url_options(self) -> Mapping[str, str]:
        """Options that differ from the defaults, without entity and peer: a connecting client has its own."""
        return {name: value for name, value in super().url_options.items() if name in _SHARED}

    @property
    def fabric(self) -> UpFabric:
        """Form on Zenoh; see `plugins.Fabric`."""
        return UpFabric(self)

    @property
    def unhandled(self) -> str:
        """The last method number of the other side; see `plugins.ProtocolFeatures`."""
        return str((self.other or self.own).with_resource(FIRST_TOPIC - 1))

    @property
    def own(self) -> UUri:
        """Address of this side for answers and notifications."""
        return parse_entity(self.entity)

    @property
    def other(self) -> UUri | None:
        return None if self.peer is None else parse_entity(self.peer)

    def spellings(self, subject: str | int) -> tuple[str, ...]:
        """Other names of a publication of this side; see `plugins.ProtocolFeatures`."""
        return UpNames(self.names, self.own, self.other).own_spellings(subject)

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """The fields of a message, for people, without the value of a token; see `plugins.Dissector`."""
        return list(dissect(frame))

    def codec(self, limits: Limits = _LIMITS) -> UpCodec:
        """The codec, shared by adapters with equal options and limits."""
        return _codec(self.strings == "text", self.priorities, limits)

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> UpSession:
        """A session for one connection, the same for both roles. `rng` makes the random part of ids."""
        return UpSession(self.codec(limits), self, limits, random.SystemRandom() if rng is None else rng)


@lru_cache(maxsize=64)
def _codec(texts: bool, priorities: Pairs, limits: Limits) -> UpCodec:
    return UpCodec(limits=limits, texts=texts, level_of=SubjectLevels(priorities).of)
