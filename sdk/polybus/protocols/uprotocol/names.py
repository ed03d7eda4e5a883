"""Subjects of the bus as addresses of uProtocol, and back.

A request for ``user.get`` goes to ``<entity of the peer>/rpc.user.get``, a publication of ``news.today`` has the source
``<own entity>/news.today#Message``. A subject with a ``/`` is an address as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote

from ...errors import BusError, LocalProtocolError, ReservedSubject, Unsupported
from ...subjects import canonical
from .uris import Uri, UriError, parse_uri, read_uri

MESSAGE: Final = "Message"
"""The message of a topic whose name is a plain subject."""
_SAFE: Final = "!$&'()+,;=:@~"  # pchar of RFC 3986 without ``*``, which would make a pattern; quote knows the unreserved ones
_DOTS: Final = 2
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def encode_name(subject: str, dots: int = _DOTS) -> str:
    """A subject as the last segment of an address: percent-encoded, also the dots after the second and those at no name."""
    tokens = subject.split(".")
    name = quote(tokens[0], safe=_SAFE)
    for place, (before, token) in enumerate(zip(tokens, tokens[1:], strict=False), 1):
        between = "." if place <= dots and before and token else "%2E"
        name += between + quote(token, safe=_SAFE)
    return name


def decode_name(name: str) -> str | None:
    """The subject of a segment; None where that is none: it would contain a ``/`` or what is no text."""
    try:
        subject = unquote(name, errors="strict")
    except UnicodeDecodeError:
        return None
    return subject if subject and "/" not in subject and _CONTROL.search(subject) is None else None


class Names:
    """The addresses of one connection.

    Args:
        entity: Of this side, as it is written.
        peer: Of the other side; None until it is known. Then our own stands for it: a bus of ours takes that for its own.
        subject_limit: `Limits.subject`.
    """

    __slots__ = ("_limit", "_ours", "_peer", "entity", "peer", "subjects")

    def __init__(self, entity: str, peer: str | None, subject_limit: int) -> None:
        self.entity: Final = entity
        self.peer = peer
        own = read_uri(entity)
        # An address without authority is of the device where it is used (basics/uri.adoc).
        self._ours = (entity_key(entity), f"/{own.ue}/{own.version}")
        self._peer = None if peer is None else entity_key(peer)
        self._limit = subject_limit
        self.subjects: dict[str, str] = {}
        """Of addresses that came in lately."""

    def learn(self, uri: str) -> None:
        """The peer has shown its own address."""
        self.peer = entity_of(uri) or None
        self._peer = read_uri(uri).entity
        self.subjects.clear()

    def method(self, subject: str | int) -> str:
        """Address to which a request goes. May raise `LocalProtocolError`, or `ReservedSubject`: where answers go."""
        text = subject_text(subject)
        if "/" in text:
            return _address(text, lambda uri: uri.is_method, "method: rpc.<name> of an entity with its version")
        if text == "response":
            raise ReservedSubject("'response' is where answers go (rpc.response): choose another name")
        return self._checked(f"{self.peer or self.entity}/rpc.{encode_name(text, _DOTS - 1)}")

    def topic(self, subject: str | int) -> str:
        """Address from which a publication comes. May raise `LocalProtocolError`: an address that is no topic, or too long."""
        text = subject_text(subject)
        if "/" in text:
            return _address(text, lambda uri: uri.is_topic, "topic: it has a resource and a #Message")
        # ``rpc.x`` would be taken for a method.
        name = encode_name(text, 0) if text.startswith("rpc.") else encode_name(text)
        return self._checked(f"{self.entity}/{name}#{MESSAGE}")

    def _checked(self, uri: str) -> str:
        if len(uri) > self._limit:
            text = f"an address of {len(uri)} characters, percent-encoded: the limit is {self._limit} (subject): {uri[:60]!r}"
            raise LocalProtocolError(text, protocol="uprotocol")
        return uri

    def subject(self, uri: str) -> str:
        """The subject of an address that came in: plain where it is our own's or the peer's, else in its one spelling."""
        found = self.subjects.get(uri)
        if found is None:
            if len(self.subjects) >= 1024:
                self.subjects.clear()
            found = self.subjects[uri] = self._find(uri)
        return found

    def own_spellings(self, subject: str | int) -> tuple[str, ...]:
        """Other names of a publication of this side."""
        try:
            address = self.topic(subject)
        except BusError:
            return ()
        return tuple(one for one in (canonical(address), self.subject(address)) if one != subject)

    def _find(self, text: str) -> str:
        uri = read_uri(text)
        if not uri.short and uri.entity in (*self._ours, self._peer):
            name = uri.instance if uri.is_method else uri.name if uri.message == MESSAGE else ""
            if name and (subject := decode_name(name)):
                return subject
        return canonical(uri.text)


def entity_of(uri: str) -> str:
    """The entity of an address, as it is written there."""
    return uri.partition("#")[0].rpartition("/")[0]  # a message may have a slash


def entity_key(entity: str) -> str:
    """An entity in the one spelling that is compared. May raise `ValueError`: it is none."""
    try:
        uri = parse_uri(entity)
    except UriError as error:
        raise ValueError(f"entity: {error}") from error
    if not uri.is_versioned or uri.resource or uri.message or uri.is_pattern or entity.endswith("/"):
        raise ValueError(f"{entity[:100]!r} is no entity: it has the form //VCU.VIN/body.access/1 or /body.access/1")
    return uri.entity


def subject_text(subject: str | int) -> str:
    """A subject, where it is one that this wire can carry. May raise `Unsupported`: it is a number."""
    if isinstance(subject, int):
        raise Unsupported(f"uprotocol: {subject} is a number, and subjects are names and addresses here")
    return subject


def _address(text: str, fits: Callable[[Uri], bool], wanted: str) -> str:
    """An address that stands for itself. May raise `LocalProtocolError`: it is not what is wanted there."""
    try:
        uri = parse_uri(text)
    except UriError as error:
        raise LocalProtocolError(str(error), protocol="uprotocol") from error
    if uri.is_pattern:
        raise LocalProtocolError(f"{text[:100]!r} has wildcards: only subscriptions take them", protocol="uprotocol")
    if not fits(uri) or not uri.is_versioned:
        raise LocalProtocolError(f"{text[:100]!r} is no {wanted}", protocol="uprotocol")
    return text
