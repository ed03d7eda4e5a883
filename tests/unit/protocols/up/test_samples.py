"""Samples of Zenoh: recorded bytes of the three dialects, round trips, and any bytes."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from polybus.plugins import Sample
from polybus.protocols.up.samples import DIALECTS, MAX_ATTACHMENT, Dialect, ForeignDialect
from polybus.protocols.up.uuris import UUri, parse_uuri
from polybus.protocols.up.wire import Attributes, write_attributes, write_message

from .test_wire import ANY_ATTRIBUTES

PUBLICATION = "0a120900707b68e5cf8b01111a1a10101010108010011a120a076465766963653110ab21180320cd810228033088276007"
REQUEST = (
    "0a120901707b68e5cf8b01111a1a10101010108010021a0f0a076465766963653110ab8710180322100a076465766963653210cd011804200b"
    "280530d00f5201746003"
)
OPEN, POSITION = "6f70656e", "7b2270223a35307d"
LONG, SHORT = "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}", "up/device1/10AB/3/80CD/{}/{}/{}/{}"
LONG_REQUEST, SHORT_REQUEST = "up/device1/3AB/4/3/0/device2/CD/0/4/B", "up/device1/403AB/3/0/device2/CD/4/B"
ROWS = [
    ("spec", PUBLICATION, OPEN, LONG, "01" + PUBLICATION, OPEN, 2),
    ("spec", REQUEST, POSITION, LONG_REQUEST, "01" + REQUEST, POSITION, 4),
    ("rust-0.6", PUBLICATION, OPEN, SHORT, "01" + PUBLICATION, OPEN, 2),
    ("rust-0.6", REQUEST, POSITION, SHORT_REQUEST, "01" + REQUEST, POSITION, 4),
    ("cpp-1.0", PUBLICATION, OPEN, SHORT, "020001010031" + PUBLICATION, "04" + OPEN, 2),
    ("cpp-1.0", REQUEST, POSITION, SHORT_REQUEST, "020001010043" + REQUEST, "08" + POSITION, 4),
]
EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
LIMIT = 2**20


@pytest.mark.parametrize(("name", "attributes", "body", "key", "attachment", "payload", "level"), ROWS)
def test_the_worked_examples(
    name: str, attributes: str, body: str, key: str, attachment: str, payload: str, level: int
) -> None:
    frame = write_message(bytes.fromhex(attributes), bytes.fromhex(body))
    sample = DIALECTS[name].sample(frame, "device1")
    assert sample == Sample(key, bytes.fromhex(attachment), bytes.fromhex(payload), level)
    assert DIALECTS[name].frame(sample, LIMIT) == frame


@pytest.mark.parametrize(
    ("name", "sink", "key"),
    [
        ("spec", "//device1/300EF/4/0", "up/*/*/*/*/*/device1/EF/3/4/0"),
        ("spec", "//device1/FFFF/4/0", "up/*/*/*/*/*/device1/*/0/4/0"),
        ("cpp-1.0", "//device1/300EF/4/0", "up/*/*/*/*/device1/300EF/4/0"),
        ("cpp-1.0", "//device1/FFFF/4/0", "up/*/*/*/*/device1/*/4/0"),
        ("rust-0.6", "/300EF/4/FFFF", "up/*/*/*/*/here/300EF/4/*"),
    ],
)
def test_a_filter_is_a_key_expression(name: str, sink: str, key: str) -> None:
    anyone = UUri("*", 0xFFFF_FFFF, 0xFF, 0xFFFF)
    assert DIALECTS[name].filter(anyone, parse_uuri(sink), "here") == key


@EACH
@given(attributes=ANY_ATTRIBUTES, payload=st.none() | st.binary(min_size=1, max_size=300))
def test_what_goes_into_a_sample_comes_out_of_it(dialect: Dialect, attributes: Attributes, payload: bytes | None) -> None:
    attributes.source = attributes.source or parse_uuri("//a/1/1/8000")
    attributes.payload_format = 6 if payload else 0
    sample = dialect.sample(write_message(write_attributes(attributes), payload), "here")
    attributes.source = evolve(attributes.source, authority=attributes.source.authority or "here")
    if attributes.sink is not None:
        attributes.sink = evolve(attributes.sink, authority=attributes.sink.authority or "here")
    assert dialect.frame(sample, LIMIT) == write_message(write_attributes(attributes), payload)
    assert 0 <= sample.level <= 6


@EACH
def test_an_empty_payload_with_a_format_is_one(dialect: Dialect) -> None:
    frame = write_message(bytes.fromhex(PUBLICATION), b"")
    sample = dialect.sample(frame, "here")
    assert dialect.frame(sample, LIMIT) == frame


@EACH
@given(attachment=st.none() | st.binary(max_size=60), payload=st.binary(max_size=60))
def test_any_bytes_are_a_frame_or_refused(dialect: Dialect, attachment: bytes | None, payload: bytes) -> None:
    start = b"\x02\x00\x01\x01\x00" if dialect.serialized else b"\x01"
    for tried in (attachment, start + (attachment or b"")):
        try:
            dialect.sample(dialect.frame(Sample("up/a", tried, payload, 1), LIMIT), "here")
        except ValueError as error:
            assert str(error)


@EACH
@pytest.mark.parametrize(
    ("attachment", "payload", "text"),
    [
        (None, b"", "an attachment of 0 bytes"),
        (b"\x01", b"", "an attachment of 1 bytes"),
        (b"\x03\x00\x01", b"", "begins with 030001"),
        (bytes(MAX_ATTACHMENT + 1), b"", "the limits are 65536"),
        (b"\x01\x00", bytes(LIMIT), r"Limits\.message"),
    ],
)
def test_what_is_no_sample_is_refused(dialect: Dialect, attachment: Any, payload: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        dialect.frame(Sample("up/a", attachment, payload, 1), LIMIT)


@pytest.mark.parametrize("payload", [b"\x05open", b"\x03open", b"\x80"])
def test_a_length_that_is_not_that_of_the_payload_is_refused(payload: bytes) -> None:
    attachment = bytes.fromhex("020001010031" + PUBLICATION)
    with pytest.raises(ValueError, match="the payload"):
        DIALECTS["cpp-1.0"].frame(Sample(SHORT, attachment, payload, 2), LIMIT)


def test_a_message_without_source_has_no_key() -> None:
    with pytest.raises(ValueError, match="without source"):
        DIALECTS["spec"].sample(write_message(b"\x10\x01", None), "here")


def test_two_dialects_share_their_keys_and_know_each_others_attachments() -> None:
    cpp, rust = DIALECTS["cpp-1.0"], DIALECTS["rust-0.6"]
    frame = write_message(bytes.fromhex(PUBLICATION), bytes.fromhex(OPEN))
    assert cpp.sample(frame, "here").key == rust.sample(frame, "here").key
    for writer, reader in ((cpp, rust), (rust, cpp)):
        with pytest.raises(ForeignDialect):
            reader.frame(writer.sample(frame, "here"), LIMIT)


@EACH
@pytest.mark.parametrize(
    "key", ["", "up", "up/device1", "up/device2/10AB/0/3/80CD/{}/{}/{}/{}/{}", LONG + "/more", LONG_REQUEST]
)
def test_a_key_that_is_not_that_of_the_attributes_is_refused(dialect: Dialect, key: str) -> None:
    sample = dialect.sample(write_message(bytes.fromhex(PUBLICATION), bytes.fromhex(OPEN)), "here")
    with pytest.raises(ValueError, match="does not match its attributes"):
        dialect.frame(replace(sample, key=key), LIMIT)


@EACH
@pytest.mark.parametrize(("source", "sink"), [("/10AB/3/80CD", None), ("//a/1/1/0", "/10AB/3/1"), ("/1/1/0", "//b/10AB/3/1")])
def test_an_address_without_authority_has_that_of_its_host(dialect: Dialect, source: str, sink: str | None) -> None:
    def frame_of(host: str) -> bytes:
        first, second = (None if text is None else parse_uuri(text) for text in (source, sink))
        assert first is not None
        given = Attributes(type=1, source=evolve(first, authority=first.authority or host))
        given.sink = second if second is None else evolve(second, authority=second.authority or host)
        return write_message(write_attributes(given), None)

    sample = dialect.sample(frame_of(""), "here")
    assert "here" in sample.key
    assert dialect.frame(sample, LIMIT) == frame_of("here")


@pytest.mark.parametrize("host", ["*", "**", "$*", "a$*", "", "-A-"])
def test_a_key_names_one_host_where_an_address_has_none(host: str) -> None:
    attributes = write_attributes(Attributes(type=2, source=parse_uuri("//a/1/1/0"), sink=parse_uuri("/10AB/3/1")))
    with pytest.raises(ValueError, match="does not match its attributes"):
        DIALECTS["spec"].frame(Sample(f"up/a/1/0/1/0/{host}/10AB/0/3/1", b"\x01" + attributes, b"", 4), LIMIT)
