"""Addresses: the rows of the specification, matching, and that every text is an address or a typed error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.protocols.up.samples import key_of, segments_of
from polybus.protocols.up.uuris import UUri, UUriError, parse_entity, parse_uuri
from tests.vectors import up_vectors as vectors

AUTHORITIES = st.from_regex(r"[a-z0-9\-._~]{0,128}", fullmatch=True) | st.sampled_from(["*", "[2001:db8::1]"])
URIS = st.builds(UUri, AUTHORITIES, st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 65535))


@pytest.mark.parametrize(("authority", "entity", "version", "resource", "text"), vectors.ADDRESSES)
def test_an_address_is_written_and_read_again(authority: str, entity: int, version: int, resource: int, text: str) -> None:
    uri = UUri(authority, entity, version, resource)
    assert f"up:{uri}" == text
    assert parse_uuri(text) == parse_uuri(str(uri)) == uri


@pytest.mark.parametrize("text", vectors.NO_ADDRESSES)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UUriError):
        parse_uuri(text)


@pytest.mark.parametrize(("text", "pattern"), vectors.MATCHES)
def test_an_address_matches_its_patterns(text: str, pattern: str) -> None:
    assert parse_uuri(text).matches(parse_uuri(pattern))


@pytest.mark.parametrize(("text", "pattern"), vectors.NO_MATCHES)
def test_an_address_matches_no_other_pattern(text: str, pattern: str) -> None:
    assert not parse_uuri(text).matches(parse_uuri(pattern))


@given(URIS)
def test_every_address_comes_back_from_its_text(uri: UUri) -> None:
    assert parse_uuri(str(uri)) == uri
    assert uri.matches(uri)
    assert uri.matches(UUri("*", 0xFFFFFFFF, 0xFF, 0xFFFF))


@given(st.text() | st.from_regex(r"(up:)?(//[a-zA-Z.\[\]:]*)?(/[0-9A-Ga-g]{0,9}){0,4}"))
def test_every_text_is_an_address_or_a_typed_error(text: str) -> None:
    try:
        uri = parse_uuri(text)
    except UUriError:
        return
    assert parse_uuri(str(uri)) == uri


@pytest.mark.parametrize("text", ["", "//a/1", "//a/1/2/3", "//*/1/2", "/FFFF/1", "//a/1/FF", "//A/1/1", "//a/1/2/"])
def test_an_entity_is_one_address_without_resource(text: str) -> None:
    with pytest.raises(UUriError, match="entity"):
        parse_entity(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("//Device1/10AB/3", "'Device1' is no authority: lower-case letters"),
        (f"//{'a' * 129}/10AB/3", "an authority of 129 characters: the limit is 128"),
        ("//device1:7447/10AB/3", "without user and port"),
        ("//device1/10AB/3/80CD", "it has the form //device1/10AB/3"),
        ("//device1/door/3", "it has the form //device1/10AB/3"),
    ],
)
def test_what_is_wrong_with_an_entity_is_said(text: str, why: str) -> None:
    with pytest.raises(UUriError, match=f"is no entity: .*{why}"):
        parse_entity(text)


@pytest.mark.parametrize(("text", "segments"), vectors.SEGMENTS)
def test_an_address_has_five_segments_in_a_key(text: str, segments: str) -> None:
    assert segments_of(parse_uuri(text), "local_authority") == segments


@pytest.mark.parametrize(("source", "sink", "key"), vectors.KEYS)
def test_a_key_has_the_segments_of_source_and_sink(source: str, sink: str | None, key: str) -> None:
    assert key_of(parse_uuri(source), None if sink is None else parse_uuri(sink), "device1") == key


@pytest.mark.parametrize("host", ["", "*"])
def test_a_key_needs_the_name_of_the_own_host(host: str) -> None:
    with pytest.raises(ValueError, match="own host"):
        key_of(parse_uuri("/1/1/8000"), None, host)
