"""The messages of `uprotocol.v1` and their addresses in bytes: the rows of the specification, examples, and any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import Limits, RemoteProtocolError
from polybus.protocols.up.codec import UpReader
from polybus.protocols.up.samples import key_of, segments_of
from polybus.protocols.up.uuris import UUri, UUriError, parse_entity, parse_uuri
from polybus.protocols.up.wire import (
    Attributes,
    is_v7,
    read_attributes,
    read_uuid,
    read_uuri,
    split_message,
    uuid_bytes,
    uuid_text,
    write_attributes,
    write_message,
    write_uuid,
    write_uuri,
)
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


@given(URIS)
def test_every_address_comes_back_from_its_text(uri: UUri) -> None:
    assert parse_uuri(str(uri)) == uri


@given(st.text() | st.from_regex(r"(up:)?(//[a-zA-Z.\[\]:]*)?(/[0-9A-Ga-g]{0,9}){0,4}"))
def test_every_text_is_an_address_or_a_typed_error(text: str) -> None:
    try:
        uri = parse_uuri(text)
    except UUriError:
        return
    assert parse_uuri(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("//Device1/10AB/3", "'Device1' is not an authority: lower-case letters"),
        (f"//{'a' * 129}/10AB/3", "an authority of 129 characters: the limit is 128"),
        ("//device1:7447/10AB/3", "without user and port"),
        ("//device1/10AB/3/80CD", "an entity has the form //device1/10AB/3"),
        ("//device1/door/3", "an entity has the form //device1/10AB/3"),
        *((text, "") for text in ("", "//a/1", "//a/1/2/3", "//a/1/2/")),
    ],
)
def test_what_is_wrong_with_an_entity_is_said(text: str, why: str) -> None:
    with pytest.raises(UUriError, match=f"is not an entity: .*{why}"):
        parse_entity(text)


@pytest.mark.parametrize("text", ["//*/1/2", "/FFFF/1", "//a/1/FF"])
def test_an_entity_has_no_wildcards(text: str) -> None:
    with pytest.raises(UUriError, match="an entity has none"):
        parse_entity(text)


@pytest.mark.parametrize(("text", "segments"), vectors.SEGMENTS)
def test_an_address_has_five_segments_in_a_key(text: str, segments: str) -> None:
    assert segments_of(parse_uuri(text), "local_authority") == segments


@pytest.mark.parametrize(("source", "sink", "key"), vectors.KEYS)
def test_a_key_has_the_segments_of_source_and_sink(source: str, sink: str | None, key: str) -> None:
    assert key_of(parse_uuri(source), None if sink is None else parse_uuri(sink), "device1") == key


@pytest.mark.parametrize("host", ["", "*"])
def test_a_key_needs_the_name_of_the_own_host(host: str) -> None:
    with pytest.raises(ValueError, match="this host"):
        key_of(parse_uuri("/1/1/8000"), None, host)


OPTIONAL_TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
UINT32 = st.none() | st.integers(0, 2**32 - 1)
ANY_ATTRIBUTES = st.builds(
    Attributes,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
    st.none() | URIS,
    st.none() | URIS,
    st.integers(0, 2**31 - 1),
    UINT32,
    UINT32,
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.just(b"") | st.binary(min_size=16, max_size=16),
    OPTIONAL_TEXT,
    OPTIONAL_TEXT,
    st.integers(0, 2**31 - 1),
)


@pytest.mark.parametrize(("authority", "type", "instance", "version", "resource", "data"), vectors.ADDRESS_BYTES)
def test_an_address_has_these_bytes(authority: str, type: int, instance: int, version: int, resource: int, data: str) -> None:
    uri = UUri(authority, instance << 16 | type, version, resource)
    assert read_uuri(bytes.fromhex(data)) == uri
    assert read_uuri(write_uuri(uri)) == uri
    assert (uri.type, uri.instance) == (type, instance)


@pytest.mark.parametrize(("msb", "lsb", "data"), vectors.ID_BYTES)
def test_an_id_is_two_fixed64_on_the_wire(msb: int, lsb: int, data: str) -> None:
    id = msb.to_bytes(8, "big") + lsb.to_bytes(8, "big")
    assert read_uuid(bytes.fromhex(data)) == id
    assert write_uuid(id).hex() == data


@pytest.mark.parametrize(("msb", "lsb", "text"), vectors.IDS)
def test_an_id_is_written_with_hyphens(msb: int, lsb: int, text: str) -> None:
    id = msb.to_bytes(8, "big") + lsb.to_bytes(8, "big")
    assert uuid_text(id) == text
    assert uuid_bytes(text) == id


@pytest.mark.parametrize("text", [*vectors.NO_IDS, "", "x", "0000000000017000801010101010 1a1a", "ä" * 36])
def test_other_versions_and_variants_are_no_ids(text: str) -> None:
    with pytest.raises(ValueError):
        uuid_bytes(text)


def test_halves_of_an_id_of_version_7_may_stand_the_other_way_round_and_a_zero_be_left_out() -> None:
    id = uuid_bytes(vectors.ID.format(0))
    data = write_uuid(id)
    assert read_uuid(data[9:] + data[:9]) == id
    assert read_uuid(data[:9]) == id[:8] + bytes(8)
    with pytest.raises(ValueError, match="fixed64"):
        read_uuid(b"\x08\x01" + data[9:])
    with pytest.raises(ValueError, match="65 bytes"):
        read_uuid(bytes(65))
    assert is_v7(uuid_bytes(vectors.ID.format(0)))
    assert not is_v7(b"")


@given(ANY_ATTRIBUTES, st.none() | st.binary(max_size=300))
def test_a_message_comes_back_from_its_bytes(given: Attributes, payload: bytes | None) -> None:
    attributes, found = split_message(write_message(write_attributes(given), payload))
    assert (attributes, found) == (write_attributes(given), payload)
    assert read_attributes(attributes or b"") == given


@given(ANY_ATTRIBUTES, st.integers(0, 300))
def test_attributes_that_are_cut_off_are_a_value_error_or_shorter(given: Attributes, cut: int) -> None:
    data = write_attributes(given)
    try:
        found = read_attributes(data[:cut])
    except ValueError:
        return
    assert write_attributes(found) == data[:cut] or cut >= len(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("0801", "id is not a number"),
        ("1a01", "beyond"),
        ("120100", "type must be a number"),
        ("3500000000", "ttl must be a number"),
        ("5561626364", "token is not a fixed-width number"),
        ("596162636465666768", "traceparent is not a fixed-width number"),
        ("0d61626364", "id is not a fixed-width number"),
        ("0000", "number 0"),
        ("0b", "not a protobuf message"),
        ("1a05", "beyond"),
        ("5201ff", "utf-8"),
    ],
)
def test_a_damaged_field_is_named(data: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_attributes(bytes.fromhex(data))


@pytest.mark.parametrize("tiny", [b"\x78\x01", b"\x10\x01", b"\x1a\x00", b"\x12\x00"])
def test_messages_of_many_tiny_fields_are_refused_before_they_cost_what_thousands_of_messages_do(tiny: bytes) -> None:
    for read in (read_attributes, split_message, read_uuri):
        with pytest.raises(ValueError, match="more than 4096 fields|number|bytes"):
            read(tiny * 4097)
    attributes, payload = split_message(vectors.PUBLICATION)
    assert UpReader(Limits()).read(write_message((attributes or b"") + b"\x78\x01" * 4000, payload)).body == "open"
    with pytest.raises(RemoteProtocolError, match="more than 4096 fields"):
        UpReader(Limits()).read(tiny * 5000)


@pytest.mark.parametrize("data", ["6805", "7a0161", "7d01020304", "790102030405060708", "8201026162", "880107", "8d0100000000"])
def test_fields_of_a_later_release_are_passed_over(data: str) -> None:
    assert read_attributes(bytes.fromhex(data) + b"\x28\x05") == Attributes(priority=5)


def test_a_number_above_32_bits_is_read_as_protobuf_reads_it() -> None:
    assert read_attributes(bytes.fromhex("308080808010")).ttl == 0
    assert read_attributes(bytes.fromhex("40ffffffffffffffffff01")).commstatus == -1


def test_an_address_beyond_its_bits_or_its_length_is_refused() -> None:
    for data in ("188002", "20808004", "0a03414243", "0d00000000", "12"):
        with pytest.raises(ValueError):
            read_uuri(bytes.fromhex(data))
    with pytest.raises(ValueError, match="300 bytes"):
        read_uuri(b"\x0a" + bytes(299))
