"""Addresses of UMessage (eclipse-uprotocol/up-spec 1.6.0-alpha.7, basics/uri.adoc): numbers after a host's name.

::

    [up:][//AUTHORITY]/ENTITY/VERSION/RESOURCE           hexadecimal: 32 bits, 8 bits, 16 bits

The low 16 bits of an entity are its type, and the high 16 bits are its instance. The wildcards are ``*`` as authority, which
also matches a missing authority, FFFF as type, instance or resource, and FF as version. For example, FFFFFFFF matches any
entity, and FFFF matches any type with instance 0.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

from attrs import frozen

from .._uprotocol import FIRST_TOPIC, is_ip

ANY_AUTHORITY: Final = "*"
ANY_PART: Final = 0xFFFF
ANY_VERSION: Final = 0xFF
LONGEST_AUTHORITY: Final = 128

_TEXT: Final = re.compile(
    r"(?:up:)?(?://(?P<authority>[^/]+))?/(?P<entity>[0-9A-Fa-f]{1,8})/(?P<version>[0-9A-Fa-f]{1,2})/(?P<resource>[0-9A-Fa-f]{1,4})"
)
_NAME: Final = re.compile(r"[a-z0-9\-._~]+")
_LITERAL: Final = re.compile(r"\[[0-9a-f:.]+\]")
_FORM: Final = "an address has the form //device1/10AB/3/80CD: an authority, and three hexadecimal numbers"


class UUriError(ValueError):
    """The string or the numbers are not a UMessage address."""


@frozen
class UUri:
    """An address, or a pattern of addresses."""

    authority: str  # The host; empty for this one
    entity: int  # Instance and type
    version: int
    resource: int  # 0 for answers and notifications, a method below 0x8000, otherwise a topic

    @property
    def type(self) -> int:
        return self.entity & 0xFFFF

    @property
    def instance(self) -> int:
        return self.entity >> 16

    @property
    def is_pattern(self) -> bool:
        any_number = self.version == ANY_VERSION or ANY_PART in (self.type, self.instance, self.resource)
        return any_number or self.authority == ANY_AUTHORITY

    @property
    def is_method(self) -> bool:
        return 0 < self.resource < FIRST_TOPIC

    @property
    def is_topic(self) -> bool:
        return FIRST_TOPIC <= self.resource < ANY_PART

    @property
    def entity_text(self) -> str:
        """The address without its resource, such as ``//device1/10AB/3``. It is the same for equal entities."""
        host = f"//{self.authority}" if self.authority else ""
        return f"{host}/{self.entity:X}/{self.version:X}"

    def with_resource(self, resource: int) -> UUri:
        return UUri(self.authority, self.entity, self.version, resource)

    def __str__(self) -> str:
        return f"{self.entity_text}/{self.resource:X}"


@lru_cache(maxsize=1024)
def parse_uuri(text: str) -> UUri:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise UUriError(f"{text[:100]!r} is not an address: {_FORM}")
    authority = found["authority"] or ""
    check_authority(authority)
    return UUri(authority, *(int(found[part], 16) for part in ("entity", "version", "resource")))


def parse_entity(text: str) -> UUri:
    try:
        entity = parse_uuri(f"{text}/0")
    except UUriError as error:
        raise UUriError(no_entity(text, error)) from error
    if entity.is_pattern:
        raise UUriError(f"{text[:100]!r} has wildcards: an entity has none")
    return entity


def no_entity(text: str, error: UUriError) -> str:
    """Explain why a string is not an entity, which may be due to its form or, as `error` says, its authority."""
    why = error if _TEXT.fullmatch(f"{text}/0") else "an entity has the form //device1/10AB/3"
    return f"{text[:100]!r} is not an entity: {why}"


@lru_cache(maxsize=1024)
def check_authority(authority: str) -> None:
    if len(authority) > LONGEST_AUTHORITY:
        raise UUriError(f"an authority of {len(authority)} characters: the limit is {LONGEST_AUTHORITY}: {authority[:40]!r}")
    if not authority or authority == ANY_AUTHORITY or _NAME.fullmatch(authority):
        return
    if _LITERAL.fullmatch(authority) and is_ip(authority, ipaddress.IPv6Address):
        return
    text = "lower-case letters, digits, - . _ ~, or an IPv6 address in brackets"
    raise UUriError(f"{authority[:60]!r} is not an authority: {text}; without user and port")
