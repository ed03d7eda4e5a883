"""Options of the `up` protocol, and its form on Zenoh."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from attrs import field, frozen

from ...limits import Limits
from ...plugins import FrameField, Hear, Role, Sample
from ...plugins.tools import shown
from .._shared import choice
from .._uprotocol import FIRST_TOPIC, EntityOptions, Pairs, SubjectLevels
from .codec import UpCodec
from .names import Table, UpNames, table_of
from .samples import DIALECTS, Filters, ForeignDialect
from .session import UpSession
from .uuris import UUri, parse_entity
from .wire import dissect, refuse

_LIMITS: Final = Limits()
DEFAULT_ENTITY: Final = "//polybus/1/1"
_SHARED: Final = ("strings", "dialect")  # Options that must have the same value at both ends


def _entity(adapter: Up, attribute: Any, value: Any) -> None:
    if value is None and attribute.name == "peer":
        return
    try:
        entity = parse_entity(str(value))
    except ValueError as error:
        raise ValueError(f"up: {attribute.name}={shown(value)}: {error}") from error
    if not entity.authority:
        text = "add an authority, as in //device1/10AB/3: answers to an address without one go to the responder's own host"
        raise ValueError(f"up: {attribute.name}={shown(value)}: {text}")


def _count(adapter: Up, attribute: Any, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"up: {attribute.name}={shown(value)} must be a number of requests, at least 1")


@frozen(kw_only=True)
class Up(EntityOptions):
    """Current uProtocol (UMessage), with its options.

    Args:
        entity: Address of this side, with its authority: ``//device1/10AB/3``.
        peer: Address of the other side, used for notifications and for requests to names that are only a number. Defaults to
            the address in the first message.
        names: Maps each subject to a resource number (below 0x8000 for methods, otherwise topics), a list of a method and a
            topic, or a whole address such as ``"//device2/CD/4/B"``. `names_in` reads such a table from a file, and
            `services_in` reads services from a proto file. Subjects that contain a slash need no entry.
        ttl: Seconds until publications and notifications expire. By default they never expire. Requests expire at their
            deadline.
        priorities: Priorities by subject pattern, ``CS0`` to ``CS6``. The first match wins. Publications default to ``CS1``.
            Requests default to ``CS4``, which is also their minimum.
        token: Token to send with each request: a string, or a function that returns a string or `None` for no token. Tokens are
            never logged.
        permission_level: Permission level to send with each request.
        strings: Encoding of strings: ``json``, or plain ``text``.
        dialect: Message form on Zenoh: ``spec`` as in the specification and in up-rust since 0.7, ``cpp-1.0`` as in up-cpp, or
            ``rust-0.6`` as in older versions of up-rust. Peers with different dialects do not receive each other's messages.
        per_authority: Maximum number of active requests from one authority. Further requests fail with RESOURCE_EXHAUSTED. The
            bus treats a whole fabric as one peer, so without this limit a single sender could use up the peer's request limit.
        max_clock_skew: For messages with a ttl: how far the time in the id may be ahead of the local clock, in seconds.
        allowance: Extra seconds before a message expires, to allow for clock differences.
        clock: A function that returns nanoseconds since 1970.

    Raises:
        ValueError: If a value is invalid.
    """

    name = "up"
    option_names: ClassVar[tuple[str, ...]] = ("entity", "peer", "strings", "dialect")
    largest: ClassVar[int] = 2**32 - 1

    entity: str = field(default=DEFAULT_ENTITY, validator=_entity)
    peer: str | None = field(default=None, validator=_entity)
    names: Table = field(default=(), converter=table_of)
    strings: Literal["json", "text"] = choice("json", "text")
    dialect: Literal["spec", "cpp-1.0", "rust-0.6"] = choice(*DIALECTS)
    per_authority: int = field(default=4096, validator=_count)

    @property
    def url_options(self) -> Mapping[str, str]:
        """Return the options that differ from their defaults. Leaves out entity and peer, because clients have their own."""
        return {name: value for name, value in super().url_options.items() if name in _SHARED}

    @property
    def fabric(self) -> UpFabric:
        """The message form on Zenoh. See `plugins.Fabric`."""
        return UpFabric(self)

    @property
    def unhandled(self) -> str:
        """The highest method number of the other side. See `plugins.ProtocolFeatures`."""
        return str((self.other or self.own).with_resource(FIRST_TOPIC - 1))

    @property
    def own(self) -> UUri:
        """Address of this side, used in answers and notifications."""
        return parse_entity(self.entity)

    @property
    def other(self) -> UUri | None:
        return None if self.peer is None else parse_entity(self.peer)

    def spellings(self, subject: str | int) -> tuple[str, ...]:
        """Return other names for a publication that this side sends. See `plugins.ProtocolFeatures`."""
        return UpNames(self.names, self.own, self.other).own_spellings(subject)

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """Return the fields of a message for display, without token values. See `plugins.Dissector`."""
        return list(dissect(frame))

    def codec(self, limits: Limits = _LIMITS) -> UpCodec:
        """Return the codec. Adapters with equal options and limits share a codec."""
        return _codec(self.strings == "text", self.priorities, limits)

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> UpSession:
        """Create a connection's session, which is the same in both roles. `rng` generates the random part of ids."""
        return UpSession(self.codec(limits), self, limits, rng or random.SystemRandom())


@frozen
class UpFabric:
    """UMessages as samples on Zenoh, and sessions with filters. Implements `plugins.Fabric`."""

    adapter: Up

    def session(self, role: Role, limits: Limits, rng: random.Random | None, hear: Hear) -> UpSession:
        adapter = self.adapter
        names = UpNames(adapter.names, adapter.own, adapter.other, on_fabric=True)
        filters = Filters(DIALECTS[adapter.dialect], names, hear)
        return UpSession(adapter.codec(limits), adapter, limits, rng or random.SystemRandom(), filters)

    def sample(self, frame: bytes) -> Sample:
        return DIALECTS[self.adapter.dialect].sample(frame, self.adapter.own.authority)

    def sender(self, key: str) -> str:
        return key.split("/", 2)[1] if "/" in key else ""

    def frame(self, sample: Sample, limits: Limits) -> bytes | None:
        """Convert a sample to a frame. Returns `None` for a sample in another dialect that uses the same keys."""
        try:
            return DIALECTS[self.adapter.dialect].frame(sample, limits.message)
        except ForeignDialect:
            return None
        except ValueError as error:
            raise refuse(f"not a sample of a UMessage: {error}", "bad_protobuf") from error


@lru_cache(maxsize=64)
def _codec(texts: bool, priorities: Pairs, limits: Limits) -> UpCodec:
    return UpCodec(limits=limits, texts=texts, level_of=SubjectLevels(priorities).of)
