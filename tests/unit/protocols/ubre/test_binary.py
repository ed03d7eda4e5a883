"""UBRE in binary frames: tables of bytes, in both dialects and both kinds of bodies, and what holds for all bytes."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.body import JSON, OCTETS, TEXT
from polybus.errors import Code, EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Codec
from polybus.protocols import Ubre
from tests.unit.protocols.strategies import CODES, COUNTS, FAILURES, NAMES, VALUES, messages_of

from .test_json import failed, fields, opening

CODEC = Ubre(format="binary").codec()
RAW = Ubre(format="binary", body="raw").codec()
SPEC = Ubre(format="binary", dialect="spec").codec()
REST = 0xFFFFFFFF


def frame(letter: str | int, name: str | bytes = b"", body: bytes = b"", length: int | None = None) -> bytes:
    name = name.encode() if isinstance(name, str) else name
    number = ord(letter) if isinstance(letter, str) else letter
    return struct.pack(">BHI", number, len(name), len(body) if length is None else length) + name + body


def read(data: bytes, codec: Codec = CODEC) -> Message:
    [message] = codec.decode(data)
    assert isinstance(message, Message)
    return message


MORE: dict[str, Any] = {"ttl": 1.0, "headers": {"k": "v"}}
EITHER_BODY: list[tuple[Kind, dict[str, Any], bytes]] = [
    (Kind.SUBSCRIBE, {"subject": "a.b"}, frame("S", "a.b")),
    (Kind.UNSUBSCRIBE, {"subject": "é"}, frame("U", "é")),
    (Kind.PUBLISH, {"subject": "t"}, frame("P", "t")),
    (Kind.REQUEST, {"subject": "m", "id": "x-1"}, frame("R", "x-1\0m")),
    (Kind.REQUEST, {"id": "x-1"}, frame("R", "x-1\0")),
    (Kind.REQUEST, {"subject": "m", "id": "x", "ttl": 1.5}, frame("R", 'x\0m\0{"ttl":1500}')),
    (Kind.REQUEST, {"subject": "m", "id": "x", **MORE}, frame("R", 'x\0m\0{"headers":{"k":"v"},"ttl":1000}')),
    (Kind.RESPONSE, {"id": "x-1"}, frame("s", "x-1")),
    (Kind.RESPONSE, {"id": "x", "headers": {"k": "v"}}, frame("s", 'x\0{"headers":{"k":"v"}}')),
    (Kind.CANCEL, {"id": "x-1"}, frame("C", "x-1")),
    (Kind.OPEN, opening("stream", 16, 0), frame("O", 'x-1\0s\0{"mode":"stream","n":16,"hops":0}')),
    (Kind.OPEN, {**opening("tunnel", 1, 2), "body": b"a"}, frame("o", 'x-1\0s\0{"mode":"tunnel","n":1,"hops":2}', b"a")),
    (Kind.ITEM, {"id": "x-1"}, frame("I", "x-1")),
    (Kind.ITEM, {"id": "x-1", "body": {"a": 1}}, frame("I", "x-1", b'{"a":1}')),
    (Kind.ITEM, {"id": "x-1", "body": b"\0\xff"}, frame("i", "x-1", b"\0\xff")),
    (Kind.ITEM, {"id": "x-1", "body": b""}, frame("i", "x-1", b"", REST)),
    (Kind.CREDIT, {"id": "x-1", "attributes": {"credit": 5}}, frame("K", 'x-1\0{"n":5}')),
    (Kind.END, {"id": "x-1"}, frame("E", "x-1")),
    (Kind.END, failed("x", Code.CANCELLED, "gone", "r", 1), frame("E", 'x\0{"text":"gone","code":1,"reason":"r","detail":1}')),
]
JSON_BODY: list[tuple[Kind, dict[str, Any], bytes]] = [
    (Kind.PUBLISH, {"subject": "t", "body": {"x": [1, 2.5]}}, frame("P", "t", b'{"x":[1,2.5]}')),
    (Kind.PUBLISH, {"subject": "t", "body": None}, frame("P", "t", b"null")),
    (Kind.PUBLISH, {"subject": "t", "body": 1, "headers": {"k": "v"}}, frame("P", 't\0{"headers":{"k":"v"}}', b"1")),
    (Kind.REQUEST, {"subject": "m", "id": "x-1", "body": "é"}, frame("R", "x-1\0m", '"é"'.encode())),
    (Kind.RESPONSE, {"id": "x-1", "body": []}, frame("s", "x-1", b"[]")),
    (Kind.ERROR, failed("x", Code.NOT_FOUND, "no such order"), frame("f", 'x\0{"code":5}', b'"no such order"')),
    (
        Kind.ERROR,
        failed("x", Code.UNIMPLEMENTED, "nobody", "r", [1]),
        frame("f", 'x\0{"text":"nobody","code":12,"reason":"r","detail":[1]}', b'"NotFound"'),
    ),
]
RAW_BODY: list[tuple[Kind, dict[str, Any], bytes]] = [
    (Kind.PUBLISH, {"subject": "t", "body": b"\xff\0"}, frame("P", "t", b"\xff\0")),
    (Kind.PUBLISH, {"subject": "t", "body": b""}, frame("P", "t", b"", REST)),
    (Kind.REQUEST, {"subject": "m", "id": "x-1", "body": b"{"}, frame("R", "x-1\0m", b"{")),
    (Kind.RESPONSE, {"id": "x-1", "body": b"ok"}, frame("s", "x-1", b"ok")),
    (Kind.ERROR, failed("x", Code.NOT_FOUND, "né"), frame("f", 'x\0{"code":5}', "né".encode())),
]


@pytest.mark.parametrize(("kind", "given", "data"), EITHER_BODY + JSON_BODY)
def test_every_kind_has_one_form_that_is_written_and_read(kind: Kind, given: dict[str, Any], data: bytes) -> None:
    assert CODEC.encode([Message(kind, **given)]) == data
    message = read(data)
    assert message.kind is kind
    assert fields(message) == given


@pytest.mark.parametrize(("kind", "given", "data"), EITHER_BODY + RAW_BODY)
def test_with_raw_bodies_too(kind: Kind, given: dict[str, Any], data: bytes) -> None:
    assert RAW.encode([Message(kind, **given)]) == data
    message = read(data, RAW)
    assert message.kind is kind
    assert fields(message) == given


def test_a_number_as_an_id_is_written_as_text_and_a_notification_as_a_request() -> None:
    assert CODEC.encode([Message(Kind.RESPONSE, "", 7)]) == frame("s", "7")
    assert CODEC.encode([Message(Kind.NOTIFY, "m", "x", ttl=1.0)]) == frame("R", 'x\0m\0{"ttl":1000}')


def failure(text: str) -> dict[str, Any]:
    return failed("x", Code.UNKNOWN, text)


READ_ONLY: list[tuple[Codec, bytes, Kind, dict[str, Any]]] = [
    (CODEC, frame(0x63, "x", b'"boom"'), Kind.ERROR, failure("boom")),
    (CODEC, frame("f", "x"), Kind.ERROR, failure("")),
    (RAW, frame("f", "x", b"a\xff"), Kind.ERROR, failure("a\ufffd")),
    (CODEC, frame("f", "x", b"a\xff"), Kind.ERROR, failure("a\ufffd")),
    (CODEC, frame("f", "x", b"[" * 200), Kind.ERROR, failure("[" * 200)),
    (CODEC, frame("f", "x", b"not JSON"), Kind.ERROR, failure("not JSON")),
    (CODEC, frame("P", "t", b"[1]", REST), Kind.PUBLISH, {"subject": "t", "body": [1]}),
    (CODEC, frame("P", "t", b"", REST), Kind.PUBLISH, {"subject": "t"}),
    (CODEC, frame("S", "t", b"ignored"), Kind.SUBSCRIBE, {"subject": "t"}),
    # The document's dialect.
    (CODEC, frame("R", "x"), Kind.REQUEST, {"id": "x"}),
    (CODEC, frame("R", "x", b"[1]"), Kind.REQUEST, {"id": "x", "body": [1]}),
    (CODEC, frame("R", "x", b'{"body":1,"subject":"m"}'), Kind.REQUEST, {"subject": "m", "id": "x", "body": 1}),
    (RAW, frame("R", "x", b'{"subject":"m"}'), Kind.REQUEST, {"id": "x", "body": b'{"subject":"m"}'}),
    # With a NUL it is the named form, whatever the body.
    (CODEC, frame("R", "x\0", b'{"subject":"m"}'), Kind.REQUEST, {"id": "x", "body": {"subject": "m"}}),
]


@pytest.mark.parametrize(("codec", "data", "kind", "expected"), READ_ONLY)
def test_what_others_write_is_understood(codec: Codec, data: bytes, kind: Kind, expected: dict[str, Any]) -> None:
    message = read(data, codec)
    assert message.kind is kind
    assert fields(message) == expected


DOCUMENT: list[tuple[dict[str, Any], bytes]] = [
    ({"subject": "m", "id": "x"}, frame("R", "x", b'{"subject":"m"}')),
    ({"subject": "m", "id": "x", "body": [1]}, frame("R", "x", b'{"subject":"m","body":[1]}')),
    ({"id": "x", "body": [1]}, frame("R", "x", b"[1]")),
    ({"id": "x"}, frame("R", "x")),
    ({"id": "x", "body": {"subject": "m"}}, frame("R", "x", b'{"subject":"","body":{"subject":"m"}}')),
    ({"subject": "m", "id": "x", "ttl": 1.0}, frame("R", 'x\0\0{"spec":true,"ttl":1000}', b'{"subject":"m"}')),
]


@pytest.mark.parametrize(("given", "data"), DOCUMENT)
def test_requests_in_the_document_s_dialect_are_written_and_read(given: dict[str, Any], data: bytes) -> None:
    assert SPEC.encode([Message(Kind.REQUEST, **given)]) == data
    assert fields(read(data)) == given


def test_the_document_s_dialect_with_raw_bodies_reaches_the_subject_without_a_name_only() -> None:
    codec = Ubre(format="binary", dialect="spec", body="raw").codec()
    assert codec.encode([Message(Kind.REQUEST, "", "x", body=b"\xff")]) == frame("R", "x", b"\xff")
    with pytest.raises(LocalProtocolError):
        codec.encode([Message(Kind.REQUEST, "m", "x", body=b"\xff")])


def test_the_length_of_a_body_can_be_written_as_the_rest_of_the_frame() -> None:
    codec = Ubre(format="binary", body_length=-1).codec()
    assert codec.encode([Message(Kind.PUBLISH, "t", body=1)]) == frame("P", "t", b"1", REST)
    assert codec.encode([Message(Kind.PUBLISH, "t")]) == frame("P", "t")


REFUSED: list[tuple[bytes, str, Any]] = [
    (b"\x50\0\1\0\0\0", "short_frame", None),
    (frame("P", "t")[:-1], "bad_length", None),
    (frame("P", "t", b"1", 2), "bad_length", None),
    (frame("P", "t", b"", REST)[:-1], "bad_length", None),
    (frame("P", "t", b"12", 1), "bad_length", None),
    (frame("P", "t", b"1", 0), "bad_length", None),
    (frame("X", "t"), "unknown_type", None),
    (frame(0, ""), "unknown_type", None),
    (frame("P"), "invalid_subject", None),
    (frame("S", "a\0b"), "invalid_subject", None),
    (frame("U", b"\xff"), "invalid_subject", None),
    (frame("P", "a\n"), "invalid_subject", None),
    (frame("P", "é" * 513), "invalid_subject", None),
    (frame("R", "x\0a\n"), "invalid_subject", "x"),
    (frame("R", "x", b'{"subject":"a\\n"}'), "invalid_subject", "x"),
    (frame("R", "\0m"), "invalid_id", None),
    (frame("R", b"\xff\0m"), "invalid_id", None),
    (frame("s"), "invalid_id", None),
    (frame("C", "x\0y"), "invalid_id", None),
    (frame("I", "é" * 129), "invalid_id", None),
    *((frame("R", "x\0m\0" + extras), "malformed", "x") for extras in ("{", "", "[]")),
    (frame("R", 'x\0m\0{"ttl":-1}'), "invalid_ttl", "x"),
    (frame("R", 'x\0m\0{"headers":{"a":"\\n"}}'), "invalid_headers", "x"),
    (frame("P", 't\0{"headers":1}'), "invalid_headers", None),
    (frame("R", "x\0m", b"\xff"), "malformed", "x"),
    (frame("R", "x", b"[\xc3\x28"), "malformed", "x"),
    (frame("R", "x", b'{"subject":"\xff"}'), "malformed", "x"),
    *((frame("R", "x", b'{"subject":"m","body":' + body + b"}"), "malformed", "x") for body in (b"1e999", b'"\xff"')),
    (frame("R", "x", b'{"subject":"m","body":' + b"[" * 129 + b"]" * 129 + b"}"), "too_deep", "x"),
    (frame("R", "x", b'{"subject":"m","body":' + b"[" * 60_000), "too_deep", "x"),
    *((frame("R", "x\0m", body), "malformed", "x") for body in (b"NaN", b"1e999")),
    (frame("R", "x\0m", b"[" * 130 + b"]" * 130), "too_deep", "x"),
    (frame("E", 'x\0{"code":1,"detail":' + "[" * 200 + "]" * 200 + "}"), "too_deep", None),
    (frame("E", "x\0" + "[" * 60_000), "too_deep", None),
    (frame("O", "x\0s"), "malformed", "x"),
    (frame("O", 'x\0\n\0{"mode":"stream"}'), "invalid_subject", "x"),
    (frame("K", "x"), "malformed", None),
]


@pytest.mark.parametrize(("data", "reason", "answer_id"), REFUSED)
def test_a_bad_frame_is_refused_with_a_reason(data: bytes, reason: str, answer_id: Any) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        CODEC.decode(data)
    error = caught.value
    assert (error.reason, error.answer_id, error.close_code) == (reason, answer_id, None)
    assert (error.protocol, error.frame) == ("ubre", data[:200])


@pytest.mark.parametrize("id", ["", "é" * 129], ids=["empty", "too long"])
@pytest.mark.parametrize("verb", ["R", "s", "f", "C", "O", "o", "I", "i", "K", "E"])
def test_a_bad_id_is_refused_in_every_frame_that_has_one(verb: str, id: str) -> None:
    rest = {"R": "\0m", "O": '\0s\0{"mode":"stream"}', "o": '\0s\0{"mode":"stream"}', "K": '\0{"n":5}'}.get(verb, "")
    with pytest.raises(RemoteProtocolError) as caught:
        CODEC.decode(frame(verb, id + rest))
    assert caught.value.reason == "invalid_id"


@pytest.mark.parametrize("data", [frame("P", "t", b"", 101), frame("P", "t", b"1" * 100), frame("X", "", b"", 0xFFFFFFFE)])
def test_a_length_above_the_limit_ends_the_connection(data: bytes) -> None:
    codec = Ubre(format="binary").codec(Limits(message=100))
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(data)
    assert (caught.value.reason, caught.value.close_code) == ("too_large", 1009)


def test_the_deepest_body_that_may_be_written_may_be_read() -> None:
    deep: Any = 1
    for _ in range(128):
        deep = [deep]
    for codec in (CODEC, SPEC, Ubre().codec(), Ubre(dialect="spec").codec()):
        assert read(codec.encode([Message(Kind.REQUEST, "m", "x", body=deep)]), codec).body == deep


def test_bodies_keep_their_bytes_and_their_format() -> None:
    message = read(frame("P", "t", b"[1, 2]"))
    assert (message.raw, message.format) == (b"[1, 2]", JSON)
    message = read(frame("P", "t", b"[1, 2]"), RAW)
    assert (message.raw, message.format) == (b"[1, 2]", OCTETS)


def test_bytes_in_json_bodies_are_json_strings_but_in_items_they_are_bytes() -> None:
    assert CODEC.encode([Message(Kind.PUBLISH, "t", None, b"\xff", OCTETS)]) == frame("P", "t", b'"/w=="')
    assert CODEC.encode([Message(Kind.ITEM, "", "x", b"\xff", OCTETS)]) == frame("i", "x", b"\xff")
    assert CODEC.encode([Message(Kind.ITEM, "", "x", b"hi", TEXT)]) == frame("I", "x", b'"hi"')


def test_a_tunnelled_frame_costs_a_header_and_an_id_a_level() -> None:
    inner = CODEC.encode([Message(Kind.REQUEST, "m", "abcdefghij-1", body=1)])
    outer = CODEC.encode([Message(Kind.ITEM, "", "abcdefghij-1", inner, OCTETS)])
    assert len(outer) - len(inner) == 19
    assert read(outer).raw == inner


@pytest.mark.parametrize(
    ("codec", "message", "error"),
    [
        (CODEC, Message(Kind.PUBLISH, ""), LocalProtocolError),
        (CODEC, Message(Kind.PUBLISH, 5), Unsupported),
        (CODEC, Message(Kind.REQUEST, "a\0b", "x"), LocalProtocolError),
        (CODEC, Message(Kind.REQUEST, "m", "a\0b"), LocalProtocolError),
        (CODEC, Message(Kind.REQUEST, "m", ""), LocalProtocolError),
        (CODEC, Message(Kind.REQUEST, "m", None), LocalProtocolError),
        (CODEC, Message(Kind.RESPONSE, "", True), LocalProtocolError),
        (CODEC, Message(Kind.CANCEL, "", "\ud800"), EncodeError),
        (CODEC, Message(Kind.PUBLISH, "t", headers={"a": "\r"}), LocalProtocolError),
        (CODEC, Message(Kind.ERROR, "", "x", attributes={"detail": "d" * 70_000}), EncodeError),
        (RAW, Message(Kind.PUBLISH, "t", body={"a": 1}), EncodeError),
        (CODEC, Message(Kind.CONTROL, "x"), Unsupported),
    ],
)
def test_what_does_not_fit_the_wire_is_an_error_of_the_caller(codec: Codec, message: Message, error: type[Exception]) -> None:
    with pytest.raises(error):
        codec.encode([message])


IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)


def messages(bodies: st.SearchStrategy[Any], ids: st.SearchStrategy[Any] = IDS) -> st.SearchStrategy[Message]:
    modes = st.sampled_from(["stream", "channel", "tunnel"])
    opening = st.fixed_dictionaries({"mode": modes, "credit": COUNTS, "hops": COUNTS})
    items = VALUES | st.binary(max_size=40)
    filled = NAMES.filter(bool)
    return st.one_of(
        messages_of(Kind.REQUEST, bodies, subject=NAMES, id=ids),
        messages_of(Kind.RESPONSE, bodies, id=ids),
        messages_of(Kind.PUBLISH, bodies, subject=filled),
        messages_of(Kind.SUBSCRIBE, subject=filled),
        messages_of(Kind.UNSUBSCRIBE, subject=filled),
        messages_of(Kind.ERROR, id=ids, code=CODES, attributes=FAILURES),
        messages_of(Kind.CANCEL, id=ids),
        messages_of(Kind.OPEN, items, subject=NAMES, id=ids, attributes=opening),
        messages_of(Kind.ITEM, items, id=ids),
        messages_of(Kind.CREDIT, id=ids, attributes=st.fixed_dictionaries({"credit": st.integers(1, 2**53)})),
        messages_of(Kind.END, id=ids),
        messages_of(Kind.END, id=ids, code=CODES, attributes=FAILURES),
    )


def parts(message: Message) -> dict[str, Any]:
    same = ("kind", "subject", "id", "headers", "ttl", "code", "attributes")
    body = (message.body, type(message.body)) if message.has_body else "no body"
    return {**{name: getattr(message, name) for name in same}, "id type": type(message.id), "body": body}


def comes_back(codec: Codec, message: Message) -> None:
    assert parts(read(codec.encode([message]), codec)) == parts(message)


@given(messages(VALUES, IDS | st.integers(-(2**53), 2**53)))
def test_what_is_written_as_json_is_read_again(message: Message) -> None:
    for adapter in (Ubre(), Ubre(dialect="spec"), Ubre(format="any")):
        comes_back(adapter.codec(), message)


@given(messages(VALUES))
def test_what_is_written_in_binary_is_read_again(message: Message) -> None:
    for adapter in (Ubre(format="binary"), Ubre(format="binary", dialect="spec"), Ubre(format="binary", body_length=-1)):
        comes_back(adapter.codec(), message)


@given(messages(st.binary(max_size=40)))
def test_what_is_written_in_binary_with_raw_bodies_is_read_again(message: Message) -> None:
    comes_back(Ubre(format="binary", body="raw").codec(), message)


@given(messages(VALUES))
def test_any_reads_what_the_others_write(message: Message) -> None:
    reader = Ubre(format="any").codec()
    for format in ("json", "binary"):
        written = Ubre.from_options({"format": format}).codec().encode([message])
        assert parts(read(written, reader)) == parts(message)
