"""Maps the bus's subjects to addresses and back, using a table of names from code, a file, or a proto file (see `services`).

A bare number is a resource. In a request to the peer, the resource belongs to the peer. Everywhere else it belongs to this
entity. A subject with a ``/`` is an address.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

from attrs import evolve

from ...errors import BusError, LocalProtocolError, Unsupported
from ...plugins.tools import shown
from .._shared import Memo
from .._uprotocol import FIRST_TOPIC, pairs_in
from .uuris import ANY_PART, UUri, UUriError, no_entity, parse_uuri
from .wire import NAME

Place: TypeAlias = "int | UUri"  # A resource of this entity or the peer, or a whole address
Table: TypeAlias = tuple[tuple[str, tuple[Place, ...]], ...]
_REMEMBERED: Final = 1024
_WITH_RESOURCE: Final = re.compile(r"(?:up:)?(?://[^/]+)?(?:/[^/]+){3}")


def names_in(text: str, *, file: str = "names") -> dict[str, Any]:
    """Read a table for ``Up(names=...)`` from a TOML file.

    Each line maps a name to a number, an address, or a list of a method and a topic: ``"door.opened" = 0x80CD``, ``UpdateDoor =
    "//device2/CD/4/B"``, ``light = [0xC, 0x80CE]``.

    Args:
        text: Content of the file.
        file: Name of the file, for error messages.

    Raises:
        ValueError: If the table is invalid. The message names the file and line.
    """
    return table_in(text, file, ANY_PART)


def table_in(text: str, file: str, end: int) -> dict[str, Any]:
    """Read a table as `names_in` does, with numbers below `end`: reports also name the actions of CSB."""
    text = checked_text(text)
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # also for a number with thousands of digits
        raise ValueError(f"up: {file}: not TOML: {error}") from error
    except RecursionError:
        raise ValueError(f"up: {file}: not a table of names: lists are nested too deeply") from None
    taken: dict[Place, str] = {}
    for name, given in table.items():
        try:
            _entry(name, given, taken, end)
        except ValueError as error:
            raise ValueError(f"up: {file}{_line_of(name, text)}: {error}") from error
    return table


def checked_text(text: str) -> str:
    """Return a file's text without a byte order mark. Raises `ValueError` if the argument is a file name instead."""
    if text.endswith((".toml", ".proto")) and "\n" not in text:
        raise ValueError(f"up: {text!r} is the name of a file: pass its text, Path({text!r}).read_text()")
    return text.removeprefix("\ufeff")


def _line_of(name: str, text: str) -> str:
    key = re.escape(name)
    found = re.search(rf"""^[ \t]*(?:"{key}"|'{key}'|{key})[ \t]*[=.]|^[ \t]*\[[ \t]*["']?{key}\b""", text, re.M)
    return "" if found is None else f", line {text.count(chr(10), 0, found.start()) + 1}"


def table_of(names: Mapping[str, Any] | Table) -> Table:
    pairs = pairs_in(names)
    if pairs is None:
        text = "must be a table from names to numbers or addresses: {'door.opened': 0x80CD}"
        raise ValueError(f"up: names={shown(names)} {text}; names_in reads one from a file's text")
    taken: dict[Place, str] = {}
    try:
        return tuple((name, _entry(name, given, taken)) for name, given in pairs)
    except ValueError as error:
        raise ValueError(f"up: names: {error}") from error


def _entry(name: Any, given: Any, taken: dict[Place, str], end: int = ANY_PART) -> tuple[Place, ...]:
    if type(name) is not str or not name or "/" in name:
        raise ValueError(f"{name!r} is not a name: a name must be a string without a slash")
    if isinstance(given, Mapping):
        inner = next(iter(given), "...")
        raise ValueError(f'{name!r} is a table of several: write a name with a dot in quotes, as in "{name}.{inner}" = 0x8001')
    places = tuple(_place(name, one, end) for one in (given if isinstance(given, (list, tuple)) else (given,)))
    if not 1 <= len(places) == len({_is_topic(place) for place in places}):
        raise ValueError(f"{name!r} has one method, one topic, or one of each, not {given!r}")
    for place in places:
        if place in taken:
            raise ValueError(f"{_shown(place)} is both {taken[place]!r} and {name!r}")
        taken[place] = name
    return places


def _place(name: str, given: Any, end: int) -> Place:
    try:
        uri = parse_uuri(given) if isinstance(given, str) else given
    except UUriError as error:
        raise ValueError(f"{name!r}: {error}") from error
    if isinstance(uri, UUri):
        if not uri.is_pattern and uri.resource:
            return uri
    elif type(uri) is int and 0 < uri < end:
        return uri
    text = "a number from 1 to 7FFF (a method) or from 8000 to FFFE (a topic), or an address with one"
    raise ValueError(f"{given!r} of {name!r} is not {text}")


def _is_topic(place: Place) -> bool:
    return (place if isinstance(place, int) else place.resource) >= FIRST_TOPIC


def _shown(place: Place) -> str:
    return f"{place:X}" if isinstance(place, int) else str(place)


class UpNames:
    """The names of one connection: the table, the address of this side, and the address of the other side once it is known.

    Until then, this side's address is used instead. On a fabric there is no single other side.
    """

    __slots__ = ("_methods", "_names", "_on_fabric", "_topics", "entity", "peer", "spellings")

    def __init__(self, table: Table, entity: UUri, peer: UUri | None, *, on_fabric: bool = False) -> None:
        self.entity: Final = entity
        self.peer = peer
        self._on_fabric: Final = on_fabric
        self._methods: dict[str, Place] = {}
        self._topics: dict[str, Place] = {}
        self._names: dict[Place, str] = {}
        for name, places in table:
            for place in places:
                (self._topics if _is_topic(place) else self._methods)[name] = place
                self._names[place] = name
        self.spellings: Memo[str, tuple[str, tuple[str, ...]]] = Memo(self._spellings, _REMEMBERED)

    @property
    def other(self) -> UUri:
        """Address of the other side. Raises `Unsupported` if the address is unknown and the transport is a fabric."""
        if self.peer is None and self._on_fabric:
            raise Unsupported("up: a fabric has no single peer: set Up(peer=...), or use an address as subject")
        return self.entity if self.peer is None else self.peer

    @property
    def topics(self) -> Collection[str]:
        return self._topics.keys()

    def sources(self, name: str) -> tuple[UUri, ...]:
        place = _place_of(name, "topic", self._topics, self._methods)
        if not isinstance(place, int):
            return (place,)
        return tuple({one.with_resource(place): None for one in (self.entity, self.peer) if one is not None})

    def learn(self, source: str) -> None:
        self.peer = parse_uuri(source).with_resource(0)
        self.spellings.clear()

    def method(self, subject: str | int) -> UUri:
        return self._found(subject, "method", self._methods, self._topics)

    def topic(self, subject: str | int) -> UUri:
        return self._found(subject, "topic", self._topics, self._methods)

    def _found(self, subject: str | int, kind: str, places: Mapping[str, Place], others: Mapping[str, Place]) -> UUri:
        subject = subject_text(subject)
        place = _address(subject, kind) if "/" in subject else _place_of(subject, kind, places, others)
        if isinstance(place, int):
            return (self.other if kind == "method" else self.entity).with_resource(place)
        # On a fabric a receiver would complete an address with its own authority.
        return evolve(place, authority=self.entity.authority) if self._on_fabric and not place.authority else place

    def destination(self, to: str | None) -> UUri:
        return self.other.with_resource(0) if to is None else _entity(to)

    def _spellings(self, text: str) -> tuple[str, tuple[str, ...]]:
        uri, host = parse_uuri(text), self.entity.authority
        whole = uri if uri.authority else evolve(uri, authority=host)
        local = evolve(whole, authority="") if whole.authority == host else whole
        subject = self._name(whole) or self._name(local) or text
        others = dict.fromkeys((str(whole), str(local)))
        others.pop(subject, None)
        return subject, tuple(others)

    def subject(self, text: str) -> str:
        return self.spellings[text][0]

    def own_spellings(self, subject: str | int) -> tuple[str, ...]:
        try:
            text = str(self.topic(subject))
        except BusError:
            return ()
        name, others = self.spellings[text]
        return tuple(one for one in (name, *others) if one != subject)

    def _name(self, uri: UUri) -> str | None:
        name = self._names.get(uri)
        if name is None and uri.with_resource(0) in (self.entity, self.peer):
            name = self._names.get(uri.resource)
        return name


def subject_text(subject: str | int) -> str:
    if isinstance(subject, int):
        raise Unsupported(f"up: {subject} is a number, but a subject is a name in Up(names=...) or an address")
    return subject


def _place_of(name: str, kind: str, places: Mapping[str, Place], others: Mapping[str, Place]) -> Place:
    place = places.get(name)
    if place is not None:
        return place
    if name in others:
        text = f"{name!r} is not a {kind}: names= has only {_shown(others[name])} for it"
    else:
        text = f"{name!r} has no number: add it to Up(names=...), or use an address such as //device1/10AB/3/80CD"
    raise Unsupported(f"up: {text}")


def _address(subject: str, kind: str) -> UUri:
    try:
        uri = parse_uuri(subject)
    except UUriError as error:
        raise LocalProtocolError(str(error), protocol=NAME) from error
    if uri.is_pattern:
        raise LocalProtocolError(f"{subject[:100]!r} has wildcards, which are invalid in a message", protocol=NAME)
    if not (uri.is_method if kind == "method" else uri.is_topic):
        numbers = "from 1 to 7FFF" if kind == "method" else "from 8000 to FFFE"
        raise LocalProtocolError(f"{subject[:100]!r} is not a {kind}: its last number must be {numbers}", protocol=NAME)
    return uri


def _entity(text: str) -> UUri:
    """Return the entity of an address, which may have a resource, so that a message's source can be used as a destination."""
    try:
        uri = parse_uuri(text if _WITH_RESOURCE.fullmatch(text) else f"{text}/0").with_resource(0)
    except UUriError as error:
        entity = text.rpartition("/")[0] if _WITH_RESOURCE.fullmatch(text) else text
        raise LocalProtocolError(f"to={no_entity(entity, error)}", protocol=NAME) from error
    if uri.is_pattern:
        raise LocalProtocolError(f"to={text[:100]!r} has wildcards: a notification goes to a single entity", protocol=NAME)
    if not uri.authority:
        raise LocalProtocolError(f"to={text[:100]!r} has no authority, as in //device1/10AB/3", protocol=NAME)
    return uri
