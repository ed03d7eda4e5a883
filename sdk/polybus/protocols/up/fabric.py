"""The protocol on Zenoh (up-l1/zenoh.adoc): UMessages as samples in one of the dialects, and sessions with filters.

Filters select publications for this side's subscriptions and messages addressed to it. The subject of a publication is its name
or, without one, its address. A pattern therefore selects the topics with matching names, and a pattern that begins with a
wildcard, which matches addresses too, selects any topic. A filter may select more than the pattern; the bus matches again.
"""

from __future__ import annotations

import random
from itertools import chain
from typing import TYPE_CHECKING, Final

from attrs import frozen

from ...errors import LocalProtocolError, Unsupported
from ...limits import Limits
from ...plugins import Hear, Role, Sample
from ...subjects import canonical, is_pattern, matches, wire_pattern
from .names import UpNames
from .rules import NAME, refuse
from .samples import DIALECTS, Dialect, ForeignDialect
from .session import UpSession
from .uuris import ANY_AUTHORITY, ANY_PART, ANY_VERSION, UUri, UUriError, parse_uuri

if TYPE_CHECKING:
    from .adapter import Up

_ANY_ENTITY: Final = 0xFFFF_FFFF
ANYTHING: Final = UUri(ANY_AUTHORITY, _ANY_ENTITY, ANY_VERSION, ANY_PART)
_ANY_PARTS: Final = (ANY_AUTHORITY, f"{_ANY_ENTITY:X}", f"{ANY_VERSION:X}", f"{ANY_PART:X}")
_WILDCARDS: Final = ("*", ">")


class Filters:
    """The active filters.

    Args:
        dialect: Form of the keys.
        names: Names of the connection.
        hear: Called with the expressions of all filters, at the start and after each change.
    """

    __slots__ = ("_dialect", "_hear", "_heard", "_to_us", "_wanted", "names")

    def __init__(self, dialect: Dialect, names: UpNames, hear: Hear) -> None:
        self._dialect: Final = dialect
        self._hear: Final = hear
        self.names: Final = names
        self._to_us: Final = self._expression(ANYTHING, names.entity.with_resource(ANY_PART))
        self._wanted: dict[str | int, tuple[str, ...]] = {}
        self._heard: tuple[str, ...] = ()

    def add(self, pattern: str | int) -> None:
        """Add a pattern. May raise `Unsupported`: it has no address; `LocalProtocolError`."""
        self._wanted[pattern] = tuple(self._expression(source, None) for source in self._sources(pattern))
        self.declare()

    def remove(self, pattern: str | int) -> None:
        self._wanted.pop(pattern, None)
        self.declare()

    def declare(self) -> None:
        expressions = tuple(dict.fromkeys((self._to_us, *chain.from_iterable(self._wanted.values()))))
        if expressions != self._heard:
            self._heard = expressions
            self._hear(expressions)

    def is_ours(self, sink: UUri | None) -> bool:
        return sink is not None and sink.with_resource(0) == self.names.entity.with_resource(0)

    def _expression(self, source: UUri, sink: UUri | None) -> str:
        return self._dialect.filter(source, sink, self.names.entity.authority)

    def _sources(self, pattern: str | int) -> tuple[UUri, ...]:
        if isinstance(pattern, int):
            raise Unsupported(f"up: {pattern} is a number; subjects are the names of Up(names=...), and addresses")
        if "/" in pattern:
            return (_sources_of_addresses(pattern),)
        if not is_pattern(pattern):
            return self.names.sources(pattern)
        if str(wire_pattern(pattern)).partition(".")[0] in _WILDCARDS:
            return (ANYTHING,)
        return tuple(uri for name in self.names.topics if matches(pattern, name) for uri in self.names.sources(name))


def _sources_of_addresses(pattern: str) -> UUri:
    """The narrowest filter for the addresses that a pattern of the bus matches."""
    tokens = canonical(pattern).split("/")
    parts = tokens[2:] if tokens[:2] == ["", ""] else ["", *tokens[1:]]
    if parts[-1] == ">":
        parts[-1:] = ["*"] * (5 - len(parts))
    text = "subjects of publications are addresses such as //device1/10AB/3/80CD, any part of which may be *"
    if len(parts) != len(_ANY_PARTS):
        raise LocalProtocolError(f"{pattern[:100]!r}: {text}", protocol=NAME)
    authority, *numbers = (any if "*" in part else part for part, any in zip(parts, _ANY_PARTS, strict=True))
    try:
        uri = parse_uuri("/".join((f"//{authority}" if authority else "", *numbers)))
    except UUriError as error:
        raise LocalProtocolError(f"{pattern[:100]!r}: {text}: {error}", protocol=NAME) from error
    if "*" not in parts[-1] and not uri.is_topic:
        raise LocalProtocolError(f"{pattern[:100]!r} is not a topic: its last number must be from 8000 to FFFE", protocol=NAME)
    return uri


@frozen
class UpFabric:
    """Form of `up` on Zenoh; implements `plugins.Fabric`."""

    adapter: Up

    def session(self, role: Role, limits: Limits, rng: random.Random | None, hear: Hear) -> UpSession:
        adapter = self.adapter
        names = UpNames(adapter.names, adapter.own, adapter.other, on_fabric=True)
        filters = Filters(DIALECTS[adapter.dialect], names, hear)
        return UpSession(adapter.codec(limits), adapter, limits, random.SystemRandom() if rng is None else rng, filters)

    def sample(self, frame: bytes) -> Sample:
        return DIALECTS[self.adapter.dialect].sample(frame, self.adapter.own.authority)

    def sender(self, key: str) -> str:
        return key.split("/", 2)[1] if "/" in key else ""

    def frame(self, sample: Sample, limits: Limits) -> bytes | None:
        """The message of a sample; None for another dialect with the same keys. May raise `RemoteProtocolError`."""
        try:
            return DIALECTS[self.adapter.dialect].frame(sample, limits.message)
        except ForeignDialect:
            return None
        except ValueError as error:
            raise refuse(f"no sample of a UMessage: {error}") from error
