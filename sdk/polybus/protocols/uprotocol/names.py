"""uProtocol addresses (eclipse-uprotocol/up-spec a6392ed, basics/uri.adoc) in long and short form, local and remote.

::

    [up:]//[USERINFO@]UDEVICE[.UDOMAIN][:PORT]/UE/[UE_VERSION]/[RESOURCE[.INSTANCE][#MESSAGE] | rpc.METHOD]
    [up:]/UE/[UE_VERSION]/...                                              without authority: on this device
    [up:][//IP]/UE_ID/UE_VERSION/METHOD_ID or TOPIC_ID                     short: numbers only

`read_uri` also accepts an IPv6 address without brackets, as the document prints it, and an id or name as the authority of the
short form, as up-python 1.5 writes it.

Scheme and authority are case-insensitive, and the rest is case-sensitive. An address that contains ``*`` is a pattern.

`docs/reference/uprotocol.md` lists the addresses of plain subjects. A subject that contains ``/`` is an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from attrs import frozen

from ...errors import BusError, LocalProtocolError, ReservedSubject, Unsupported
from ...subjects import canonical
from .._shared import Memo
from .._uprotocol import FIRST_TOPIC, is_ip

RESPONSE: Final = "rpc.response"  # Resource for answers (document, 1.2 RPC Attributes)

_FORM: Final = re.compile(
    r"(?:(?P<scheme>[^:/?#]*):)?(?P<remote>//(?P<authority>[^/?#]*))?(?P<path>[^?#]*)(?:#(?P<message>.*))?"
)
_AUTHORITY: Final = re.compile(r"(?:(?P<user>[^@]*)@)?(?P<host>\[[0-9a-f:.]+\]|[^:\[\]@]+)(?::[0-9]{1,5})?")
_BARE_IPV6: Final = re.compile(r"[0-9a-f:.]+")
_TEXT: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})*")  # pchar of RFC 3986, section 3.3
_FRAGMENT: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")
_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DOT_SEGMENT: Final = re.compile(r"(?:\.|%2e){1,2}", re.IGNORECASE)
_NUMBER_BITS: Final = 16


class UriError(ValueError):
    """The string is not a uProtocol address."""


@frozen
class Uri:
    """A parsed address. Missing parts are empty strings."""

    text: str
    authority: str  # Whole authority in lower case; empty for a local address
    ue: str  # Name (or number, as text) of the entity
    version: str  # ``major`` or ``major.minor``
    resource: str  # Text up to the first dot; ``rpc`` for methods
    instance: str  # Text after that dot; the name of a method
    message: str  # Text after the ``#``
    short: bool  # True for the short form, with numbers
    strange: str = ""  # Deviation from the grammar; empty if none

    @property
    def local(self) -> bool:
        return not self.authority

    @property
    def entity(self) -> str:
        """Authority, name and version, such as ``//vcu.vin/body.access/1``. Equal entities have equal strings."""
        return f"{'//' if self.authority else ''}{self.authority}/{self.ue}/{self.version}"

    @property
    def key(self) -> str:
        """The whole address in canonical form. Equal addresses have equal keys."""
        message = f"#{self.message}" if self.message else ""
        return f"{self.entity}/{self.name}{message}"

    @property
    def name(self) -> str:
        """The last segment, such as ``door.front_left`` or ``rpc.UpdateDoor``."""
        return f"{self.resource}.{self.instance}" if self.instance else self.resource

    @property
    def number(self) -> int:
        """The number in the last segment of a short form, otherwise -1."""
        return int(self.resource) if self.short and self.resource else -1

    @property
    def is_pattern(self) -> bool:
        return "*" in self.text

    @property
    def is_versioned(self) -> bool:
        """True if the entity's version is MAJOR or MAJOR.MINOR, without PATCH."""
        return bool(self.ue) and _VERSION.fullmatch(self.version) is not None

    @property
    def is_response(self) -> bool:
        return self.number == 0 if self.short else self.name == RESPONSE and not self.message

    @property
    def is_method(self) -> bool:
        if self.short:
            return 0 < self.number < FIRST_TOPIC
        return self.resource == "rpc" and bool(self.instance) and not self.message and not self.is_response

    @property
    def is_topic(self) -> bool:
        if self.short:
            return self.number >= FIRST_TOPIC
        return bool(self.resource and self.message) and self.resource != "rpc"


def parse_uri(text: str) -> Uri:
    uri = read_uri(text)
    if uri.strange:
        raise UriError(uri.strange)
    return uri


@lru_cache(maxsize=1024)
def read_uri(text: str) -> Uri:
    """Parse an address. Addresses that an SDK writes against the grammar are accepted."""
    form = _FORM.fullmatch(text)
    if not text or form is None:
        raise UriError(f"{_shown(text)} is not an address: an address begins with up:, // or / and has no query")
    scheme, path, message = form["scheme"], form["path"], form["message"] or ""
    if scheme is not None and scheme.lower() != "up":
        raise UriError(f"the scheme of {_shown(text)} is not up")
    if form["message"] == "" or not _FRAGMENT.fullmatch(message):
        raise UriError(f"the part after # in {_shown(text)} is empty or has characters that must be percent-encoded")
    if not path.startswith("/") or path.startswith("//"):
        raise UriError(f"the path of {_shown(text)} does not begin with one /")
    segments = path[1:].split("/")
    if len(segments) > 3:
        raise UriError(f"{_shown(text)} has {len(segments)} segments instead of 3: entity, version and resource")
    for segment in segments:
        if not _TEXT.fullmatch(segment):
            raise UriError(f"{segment[:40]!r} in {_shown(text)} has characters that must be percent-encoded")
        if _DOT_SEGMENT.fullmatch(segment):
            raise UriError(f"{_shown(text)} has a . or .. segment in its path")
    ue, version, name = (*segments, "", "")[:3]
    if not ue:
        raise UriError(f"{_shown(text)} has no entity")
    given, strange = form["authority"] or "", ""
    if _BARE_IPV6.fullmatch(given.lower()) and ":" in given and is_ip(given):
        strange = f"{given[:60]!r} in {_shown(text)} is an IPv6 address without brackets"
        text, given = text.replace(given, f"[{given}]", 1), f"[{given}]"
    authority, host = _authority(text, given) if form["remote"] else ("", "")
    short = ue.isdigit()
    resource, _, instance = name.partition(".")
    if short:
        _check_short(text, ue, version, name, message)
        resource, instance = name, ""
        if host and not is_ip(host):
            strange = f"the authority of {_shown(text)}, in the short form, is an IP address"
    return Uri(text, authority, ue, version, resource, instance, message, short, strange)


def _authority(text: str, authority: str) -> tuple[str, str]:
    if not authority:
        raise UriError(f"{_shown(text)} is marked as remote and has no authority")
    lower = authority.lower()
    parts = _AUTHORITY.fullmatch(lower)
    if parts is None or not (_TEXT.fullmatch(parts["user"] or "") and (is_ip(parts["host"]) or _TEXT.fullmatch(parts["host"]))):
        raise UriError(f"{authority[:60]!r} in {_shown(text)} is not an authority (an IPv6 address needs brackets)")
    return lower, parts["host"]


def _check_short(text: str, ue: str, version: str, name: str, message: str) -> None:
    if message or any(part and not (part.isascii() and part.isdigit()) for part in (ue, version.replace(".", "", 1), name)):
        raise UriError(f"{_shown(text)} begins as the short form, in which entity, version and resource must be numbers")
    if max(int(ue or 0), int(name or 0)) >= 2**_NUMBER_BITS:
        raise UriError(f"numbers in {_shown(text)} have {_NUMBER_BITS} bits: at most {2**_NUMBER_BITS - 1}")


def _shown(text: str) -> str:
    return repr(text[:100])


MESSAGE: Final = "Message"  # Message of a topic with a plain subject
_SAFE: Final = "!$&'()+,;=:@~"  # pchar of RFC 3986 without ``*``, the wildcard; quote() knows the unreserved ones
_DOTS: Final = 2
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def encode_name(subject: str, dots: int = _DOTS) -> str:
    """Encode a subject as the last segment of an address, escaping dots after the second one or next to an empty name."""
    tokens = subject.split(".")
    name = quote(tokens[0], safe=_SAFE)
    for place, (before, token) in enumerate(zip(tokens, tokens[1:], strict=False), 1):
        between = "." if place <= dots and before and token else "%2E"
        name += between + quote(token, safe=_SAFE)
    return name


def decode_name(name: str) -> str | None:
    """Decode a segment. Returns `None` if it is not UTF-8 or contains ``/`` or control characters."""
    try:
        subject = unquote(name, errors="strict")
    except UnicodeDecodeError:
        return None
    return subject if subject and "/" not in subject and _CONTROL.search(subject) is None else None


class UProtocolNames:
    """The addresses of one connection. Until the peer's address is known, this side's is used, as a polybus peer accepts."""

    __slots__ = ("_limit", "_ours", "_peer", "entity", "peer", "subjects")

    def __init__(self, entity: str, peer: str | None, subject_limit: int) -> None:
        self.entity: Final = entity
        self.peer = peer
        own = read_uri(entity)
        # An address without authority is on the local device (basics/uri.adoc).
        self._ours = (entity_key(entity), f"/{own.ue}/{own.version}")
        self._peer = None if peer is None else entity_key(peer)
        self._limit = subject_limit
        self.subjects: Memo[str, str] = Memo(self._subject, 1024)
        """Maps incoming addresses to subjects: names for addresses of either side, and canonical addresses otherwise."""

    def learn(self, uri: str) -> None:
        self.peer = entity_of(uri) or None
        self._peer = read_uri(uri).entity
        self.subjects.clear()

    def method(self, subject: str | int) -> str:
        text = subject_text(subject)
        if "/" in text:
            return _address(text, lambda uri: uri.is_method, "method: rpc.<name> of an entity with its version")
        if text == "response":
            raise ReservedSubject("'response' is where answers go (rpc.response): choose another name")
        return self._checked(f"{self.peer or self.entity}/rpc.{encode_name(text, _DOTS - 1)}")

    def topic(self, subject: str | int) -> str:
        text = subject_text(subject)
        if "/" in text:
            return _address(text, lambda uri: uri.is_topic, "topic: it has a resource and a #Message")
        # ``rpc.x`` would be a method.
        name = encode_name(text, 0) if text.startswith("rpc.") else encode_name(text)
        return self._checked(f"{self.entity}/{name}#{MESSAGE}")

    def _checked(self, uri: str) -> str:
        if len(uri) > self._limit:
            text = f"an address of {len(uri)} characters, percent-encoded: the limit is {self._limit} (subject): {uri[:60]!r}"
            raise LocalProtocolError(text, protocol="uprotocol")
        return uri

    def subject(self, uri: str) -> str:
        return self.subjects[uri]

    def own_spellings(self, subject: str | int) -> tuple[str, ...]:
        try:
            address = self.topic(subject)
        except BusError:
            return ()
        return tuple(one for one in (canonical(address), self.subjects[address]) if one != subject)

    def _subject(self, text: str) -> str:
        uri = read_uri(text)
        if not uri.short and uri.entity in (*self._ours, self._peer):
            name = uri.instance if uri.is_method else uri.name if uri.message == MESSAGE else ""
            if name and (subject := decode_name(name)):
                return subject
        return canonical(uri.text)


def entity_of(uri: str) -> str:
    return uri.partition("#")[0].rpartition("/")[0]  # a message may contain a slash


def entity_key(entity: str) -> str:
    try:
        uri = parse_uri(entity)
    except UriError as error:
        raise ValueError(f"entity: {error}") from error
    if not uri.is_versioned or uri.resource or uri.message or uri.is_pattern or entity.endswith("/"):
        raise ValueError(f"{entity[:100]!r} is not an entity: an entity has the form //VCU.VIN/body.access/1 or /body.access/1")
    return uri.entity


def subject_text(subject: str | int) -> str:
    if isinstance(subject, int):
        raise Unsupported(f"uprotocol: {subject} is a number, but subjects are names and addresses here")
    return subject


def _address(text: str, fits: Callable[[Uri], bool], wanted: str) -> str:
    try:
        uri = parse_uri(text)
    except UriError as error:
        raise LocalProtocolError(str(error), protocol="uprotocol") from error
    if uri.is_pattern:
        raise LocalProtocolError(f"{text[:100]!r} has wildcards, which only subscriptions may have", protocol="uprotocol")
    if not fits(uri) or not uri.is_versioned:
        raise LocalProtocolError(f"{text[:100]!r} is not a {wanted}", protocol="uprotocol")
    return text
