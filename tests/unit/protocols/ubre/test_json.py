"""UBRE as JSON: tables of frames, in both dialects."""

from typing import Any

import pytest

from polybus.body import JSON, OCTETS, TEXT
from polybus.errors import Code, EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.protocols import Ubre

CODEC = Ubre().codec()
SPEC = Ubre(dialect="spec").codec()


def read(frame: str | bytes) -> Message:
    [message] = CODEC.decode(frame.encode() if isinstance(frame, str) else frame)
    assert isinstance(message, Message)
    return message


def refused(frame: str | bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        read(frame)
    return caught.value


def fields(message: Message) -> dict[str, Any]:
    """What is set on a message, for comparing."""
    given = {name: getattr(message, name) for name in ("subject", "id", "headers", "ttl", "code", "attributes")}
    found = {name: value for name, value in given.items() if value is not None and value not in ("", {})}
    return {**found, "body": message.body} if message.has_body else found


def failed(id: Any, code: Code, text: str = "", reason: str | None = None, detail: Any = None) -> dict[str, Any]:
    return {"id": id, "code": code, "attributes": {"text": text, "reason": reason, "detail": detail}}


def opening(mode: str, credit: int, hops: int) -> dict[str, Any]:
    return {"subject": "s", "id": "x-1", "attributes": {"mode": mode, "credit": credit, "hops": hops}}


MORE: dict[str, Any] = {"body": 2, "ttl": 1.0, "headers": {"k": "v"}}
BOTH_WAYS: list[tuple[Kind, dict[str, Any], str]] = [
    (Kind.SUBSCRIBE, {"subject": "a.b"}, '{"subscribe":"a.b"}'),
    (Kind.UNSUBSCRIBE, {"subject": "a.b"}, '{"unsubscribe":"a.b"}'),
    (Kind.PUBLISH, {"subject": "t"}, '{"publish":"t"}'),
    (Kind.PUBLISH, {"subject": "t", "body": None}, '{"publish":"t","body":null}'),
    (Kind.PUBLISH, {"subject": "t", "body": {"x": [1, 2.5]}}, '{"publish":"t","body":{"x":[1,2.5]}}'),
    (Kind.PUBLISH, {"subject": "t", "body": 1, "headers": {"a": "b"}}, '{"publish":"t","body":1,"headers":{"a":"b"}}'),
    (Kind.REQUEST, {"subject": "m", "id": "x-1"}, '{"request":"m","id":"x-1"}'),
    (Kind.REQUEST, {"subject": "m", "id": 7, "body": "é"}, '{"request":"m","id":7,"body":"é"}'),
    (Kind.REQUEST, {"id": "x"}, '{"request":"","id":"x"}'),
    (Kind.REQUEST, {"subject": "m", "id": 1, "ttl": 1.5}, '{"request":"m","id":1,"ttl":1500}'),
    (Kind.REQUEST, {"subject": "m", "id": 1, "body": 2, "ttl": 0.0}, '{"request":"m","id":1,"body":2,"ttl":0}'),
    (Kind.REQUEST, {"subject": "m", "id": 1, **MORE}, '{"request":"m","id":1,"body":2,"headers":{"k":"v"},"ttl":1000}'),
    (Kind.RESPONSE, {"id": "x-1"}, '{"success":"x-1"}'),
    (Kind.RESPONSE, {"id": 3, "body": []}, '{"success":3,"body":[]}'),
    (Kind.RESPONSE, {"id": 3, "body": 1, "headers": {"k": "v"}}, '{"success":3,"body":1,"headers":{"k":"v"}}'),
    (Kind.ERROR, failed(3, Code.NOT_FOUND, "no such order"), '{"fail":3,"body":"no such order","code":5}'),
    (Kind.ERROR, failed(3, Code.UNIMPLEMENTED, "no m"), '{"fail":3,"body":"NotFound","text":"no m","code":12}'),
    (Kind.ERROR, failed("a", Code.ABORTED, "t", "r", [1]), '{"fail":"a","body":"t","code":10,"reason":"r","detail":[1]}'),
    (Kind.CANCEL, {"id": "x-1"}, '{"cancel":"x-1"}'),
    (Kind.OPEN, opening("stream", 16, 0), '{"open":"x-1","subject":"s","mode":"stream","n":16,"hops":0}'),
    (
        Kind.OPEN,
        {**opening("tunnel", 1, 2), **MORE},
        '{"open":"x-1","subject":"s","body":2,"headers":{"k":"v"},"ttl":1000,"mode":"tunnel","n":1,"hops":2}',
    ),
    (Kind.ITEM, {"id": "x-1", "body": {"publish": "t"}}, '{"item":"x-1","body":{"publish":"t"}}'),
    (Kind.ITEM, {"id": "x-1", "body": b"\0\xff"}, '{"item":"x-1","data":"AP8="}'),
    (Kind.ITEM, {"id": "x-1"}, '{"item":"x-1"}'),
    (Kind.CREDIT, {"id": "x-1", "attributes": {"credit": 5}}, '{"credit":"x-1","n":5}'),
    (Kind.END, {"id": "x-1"}, '{"end":"x-1"}'),
    (Kind.END, failed("x", Code.CANCELLED, "gone", "r", 1), '{"end":"x","text":"gone","code":1,"reason":"r","detail":1}'),
]


@pytest.mark.parametrize(("kind", "given", "frame"), BOTH_WAYS)
def test_every_kind_has_one_form_that_is_written_and_read(kind: Kind, given: dict[str, Any], frame: str) -> None:
    assert CODEC.encode([Message(kind, **given)]).decode() == frame
    message = read(frame)
    assert message.kind is kind
    assert fields(message) == given


def test_a_notification_is_written_as_a_request() -> None:
    message = Message(Kind.NOTIFY, "m", "x-1", body=1, ttl=1.0)
    assert CODEC.encode([message]) == b'{"request":"m","id":"x-1","body":1,"ttl":1000}'


def failure(code: Code, text: str = "", detail: Any = None) -> dict[str, Any]:
    return failed(1, code, text, None, detail)


READ_ONLY: list[tuple[str, Kind, dict[str, Any]]] = [
    # What npm ubre and others write, and we do not.
    ('{ "id": 1, "request": "m" }', Kind.REQUEST, {"subject": "m", "id": 1}),
    ('\n{"body":1,"publish":"t"}', Kind.PUBLISH, {"subject": "t", "body": 1}),
    ('{"publish":"t","extra":{"a":1}}', Kind.PUBLISH, {"subject": "t"}),
    ('{"subscribe":"t","body":{"since":1}}', Kind.SUBSCRIBE, {"subject": "t"}),
    ('{"\\u0070ublish":"t"}', Kind.PUBLISH, {"subject": "t"}),
    ('{"publish":"a","publish":"b"}', Kind.PUBLISH, {"subject": "b"}),
    ('{"publish":"a","x":1,"publish":"b"}', Kind.PUBLISH, {"subject": "b"}),
    ('{"request":"m","id":1,"ttl":null,"headers":null}', Kind.REQUEST, {"subject": "m", "id": 1}),
    ('{"fail":1,"body":"NotFound"}', Kind.ERROR, failure(Code.UNIMPLEMENTED, "NotFound")),
    ('{"fail":1,"body":"boom"}', Kind.ERROR, failure(Code.UNKNOWN, "boom")),
    ('{"fail":1}', Kind.ERROR, failure(Code.UNKNOWN)),
    ('{"fail":1,"body":[1]}', Kind.ERROR, failure(Code.UNKNOWN, detail=[1])),
    (
        '{"fail":1,"body":{"name":"TypeError","message":"x is no function","stack":"at y"}}',
        Kind.ERROR,
        failure(Code.UNKNOWN, "x is no function", {"name": "TypeError", "message": "x is no function", "stack": "at y"}),
    ),
    ('{"fail":1,"body":{"message":5}}', Kind.ERROR, failure(Code.UNKNOWN, detail={"message": 5})),
    *((f'{{"fail":1,"body":"t","code":{it}}}', Kind.ERROR, failure(Code.UNKNOWN, "t")) for it in ("17", "0", "true", '"5"')),
    ('{"fail":1,"body":{"a":1},"code":5}', Kind.ERROR, failure(Code.NOT_FOUND, detail={"a": 1})),
    ('{"fail":1,"code":5,"text":1,"reason":2}', Kind.ERROR, failure(Code.NOT_FOUND)),
    ('{"end":1,"code":0}', Kind.END, {"id": 1}),
    ('{"end":1,"code":99}', Kind.END, failure(Code.UNKNOWN)),
    # The document's dialect.
    ('{"request":"m"}', Kind.REQUEST, {"id": "m"}),
    ('{"request":4,"body":[1]}', Kind.REQUEST, {"id": 4, "body": [1]}),
    ('{"request":"i","body":{"subject":"m"}}', Kind.REQUEST, {"subject": "m", "id": "i"}),
    ('{"request":"i","body":{"subject":"m","body":null}}', Kind.REQUEST, {"subject": "m", "id": "i", "body": None}),
    (
        '{"request":"i","body":{"body":1,"subject":"m"},"ttl":5}',
        Kind.REQUEST,
        {"subject": "m", "id": "i", "body": 1, "ttl": 0.005},
    ),
    ('{"request":"i","body":{"subject":5}}', Kind.REQUEST, {"id": "i", "body": {"subject": 5}}),
    ('{"request":"i","body":{"subject":"m","to":"x"}}', Kind.REQUEST, {"id": "i", "body": {"subject": "m", "to": "x"}}),
]


@pytest.mark.parametrize(("frame", "kind", "expected"), READ_ONLY)
def test_what_others_write_is_understood(frame: str, kind: Kind, expected: dict[str, Any]) -> None:
    message = read(frame)
    assert message.kind is kind
    assert fields(message) == expected


DOCUMENT: list[tuple[dict[str, Any], str]] = [
    ({"subject": "m", "id": "x-1"}, '{"request":"x-1","body":{"subject":"m"}}'),
    ({"subject": "m", "id": 2, "body": [1]}, '{"request":2,"body":{"subject":"m","body":[1]}}'),
    ({"subject": "m", "id": "i", "ttl": 1.0}, '{"request":"i","body":{"subject":"m"},"ttl":1000}'),
    ({"id": "i"}, '{"request":"i"}'),
    ({"id": "i", "body": [1]}, '{"request":"i","body":[1]}'),
    # As it stands this body would be taken for a subject and a body.
    ({"id": "i", "body": {"subject": "m"}}, '{"request":"i","body":{"subject":"","body":{"subject":"m"}}}'),
]


@pytest.mark.parametrize(("given", "frame"), DOCUMENT)
def test_requests_in_the_document_s_dialect_are_written_and_read(given: dict[str, Any], frame: str) -> None:
    assert SPEC.encode([Message(Kind.REQUEST, **given)]).decode() == frame
    assert fields(read(frame)) == given


def test_the_document_s_dialect_changes_nothing_but_requests() -> None:
    for kind, given, frame in BOTH_WAYS:
        if kind is not Kind.REQUEST:
            assert SPEC.encode([Message(kind, **given)]).decode() == frame


REFUSED: list[tuple[str, str, Any]] = [
    *((frame, "malformed", None) for frame in ("", "[]", '"publish"')),
    *((frame, "unknown_type", None) for frame in ("{}", '{"hello":1}')),
    ('{"publish":"a","success":1}', "ambiguous", None),
    ('{"open":"a","subject":"s","mode":"stream","credit":1}', "ambiguous", None),
    *((f'{{"publish":{subject}}}', "invalid_subject", None) for subject in ('""', "null", "1")),
    ('{"unsubscribe":"a\\u007f"}', "invalid_subject", None),
    ('{"subscribe":"' + "é" * 513 + '"}', "invalid_subject", None),
    ('{"request":5,"id":1}', "invalid_subject", 1),
    ('{"request":"a\\u0000","id":"x"}', "invalid_subject", "x"),
    ('{"request":"i","body":{"subject":"a\\n"}}', "invalid_subject", "i"),
    ('{"open":"i","subject":null,"mode":"stream"}', "invalid_subject", "i"),
    *((f'{{"request":"m","id":{id}}}', "invalid_id", None) for id in ("null", "true", "1.0", 2**53 + 1, f'"{"é" * 129}"')),
    ('{"request":{"a":1}}', "invalid_id", None),
    ('{"cancel":""}', "invalid_id", None),
    ('{"item":[1],"body":1}', "invalid_id", None),
    ('{"fail":null,"body":"x"}', "invalid_id", None),
    *(
        (f'{{"request":"m","id":1,"headers":{headers}}}', "invalid_headers", 1)
        for headers in ("[]", '{"a":1}', '{"":"b"}', '{"a":"b\\r\\nc: d"}')
    ),
    ('{"publish":"t","headers":{"a\\u0000":"b"}}', "invalid_headers", None),
    ('{"publish":"t","headers":{"a":"' + "é" * 8192 + '"}}', "invalid_headers", None),
    *((f'{{"request":"m","id":1,"ttl":{ttl}}}', "invalid_ttl", 1) for ttl in ("-1", "1.5", '"5"')),
    ('{"request":"m","id":1,"body":1e999}', "malformed", 1),
    ('{"request":"m","id":1,"x":2,"body":1e999}', "malformed", 1),
    ('{"request":"m","id":1,"body":' + "9" * 5000 + "}", "malformed", 1),
    ('{"publish":"t","body":1e999}', "malformed", None),
    ('{"success":1,"body":-1e999}', "malformed", None),
    ('{"item":1,"body":' + "9" * 5000 + "}", "malformed", None),
    ('{"publish":"t","body":' + "[" * 130 + "]" * 130 + "}", "too_deep", None),
    ('{"open":"i","subject":"s","mode":"pipe"}', "malformed", "i"),
    ('{"open":"i","subject":"s"}', "malformed", "i"),
    *(
        (f'{{"open":"i","subject":"s","mode":"stream",{bad}}}', "malformed", "i")
        for bad in ('"n":-1', '"hops":true', '"body":1e999')
    ),
    ('{"item":"i","data":"AA==","body":1}', "ambiguous", None),
    *((f'{{"item":"i","data":{data}}}', "malformed", None) for data in ('"%%"', "5")),
    *((f'{{"credit":"i"{n}}}', "malformed", None) for n in ("", ',"n":0', ',"n":1.5')),
]


@pytest.mark.parametrize(("frame", "reason", "answer_id"), REFUSED)
def test_a_bad_frame_is_refused_with_a_reason(frame: str, reason: str, answer_id: Any) -> None:
    error = refused(frame)
    assert (error.reason, error.answer_id, error.close_code) == (reason, answer_id, None)
    assert error.protocol == "ubre"
    assert error.frame == frame.encode()[:200]
    assert len(str(error)) < 300


def test_bytes_that_are_no_utf_8_are_refused() -> None:
    assert refused(b'{"publish":"t","body":"\xff"}').reason == "malformed"
    assert refused(b'{"publish":"\xc3\x28"}').reason == "malformed"


def test_a_frame_above_the_limit_ends_the_connection() -> None:
    codec = Ubre().codec(Limits(message=100))
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(b'{"publish":"t","body":"' + b"x" * 100 + b'"}')
    assert (caught.value.reason, caught.value.close_code) == ("too_large", 1009)


def test_a_body_keeps_its_bytes() -> None:
    message = read('{"request":"m","id":1,"body": {"a" : 1.50}}')
    assert (message.raw, message.format) == (b'{"a" : 1.50}', JSON)
    message.kind = Kind.PUBLISH
    assert CODEC.encode([message]) == b'{"publish":"m","body":{"a" : 1.50}}'


def test_bytes_of_other_formats_become_json_strings_and_an_item_holds_bytes_or_a_frame() -> None:
    assert CODEC.encode([Message(Kind.PUBLISH, "t", None, b"\0\xff", OCTETS)]) == b'{"publish":"t","body":"AP8="}'
    assert CODEC.encode([Message(Kind.RESPONSE, "", 1, b"hi", TEXT)]) == b'{"success":1,"body":"hi"}'
    assert CODEC.encode([Message(Kind.ITEM, "", 1, b"hi", TEXT)]) == b'{"item":1,"body":"hi"}'
    message = read('{"item":"x","data":""}')
    assert (message.raw, message.format, message.body) == (b"", OCTETS, b"")
    inner = CODEC.encode([Message(Kind.REQUEST, "m", "x-1", body={"a": "b"})])
    outer = CODEC.encode([Message(Kind.ITEM, "", "y-1", inner, JSON)])
    assert outer == b'{"item":"y-1","body":' + inner + b"}"
    assert read(outer).raw == inner


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message(Kind.PUBLISH, ""), LocalProtocolError),
        (Message(Kind.SUBSCRIBE, ""), LocalProtocolError),
        (Message(Kind.PUBLISH, 5), Unsupported),
        (Message(Kind.REQUEST, "a\nb", "x"), LocalProtocolError),
        (Message(Kind.REQUEST, "é" * 513, "x"), LocalProtocolError),
        (Message(Kind.REQUEST, "\ud800", "x"), LocalProtocolError),
        (Message(Kind.REQUEST, "m", None), LocalProtocolError),
        (Message(Kind.RESPONSE, "", True), LocalProtocolError),
        (Message(Kind.CANCEL, "", 1.5), LocalProtocolError),
        (Message(Kind.CANCEL, "", "\ud800"), EncodeError),
        (Message(Kind.PUBLISH, "t", headers={"a": "b\nc"}), LocalProtocolError),
        (Message(Kind.PUBLISH, "t", headers={"a": "b" * 20_000}), LocalProtocolError),
        (Message(Kind.PUBLISH, "t", body=object()), EncodeError),
        (Message(Kind.PUBLISH, "t", body=float("nan")), EncodeError),
        (Message(Kind.ERROR, "", 1, attributes={"detail": {1, object()}}), EncodeError),
        (Message(Kind.CONTROL, "x"), Unsupported),
    ],
)
def test_what_does_not_fit_the_wire_is_an_error_of_the_caller(message: Message, error: type[Exception]) -> None:
    with pytest.raises(error):
        CODEC.encode([message])


@pytest.mark.parametrize("messages", [[], [Message(Kind.PUBLISH, "a"), Message(Kind.PUBLISH, "b")]], ids=len)
def test_a_frame_holds_exactly_one_message(messages: list[Message]) -> None:
    with pytest.raises(Unsupported):
        CODEC.encode(messages)


@pytest.mark.parametrize(
    ("ttl", "written"),
    [(-1.0, 0), (0.0004, 0), (0.0005, 1), (29.9999, 30000), (1e20, 2**53), (float("inf"), 2**53), (float("nan"), 0)],
)
def test_a_deadline_is_written_in_whole_milliseconds(ttl: float, written: int) -> None:
    assert CODEC.encode([Message(Kind.REQUEST, "m", 1, ttl=ttl)]) == b'{"request":"m","id":1,"ttl":%d}' % written


def test_an_error_without_a_code_is_unknown_and_without_a_text_empty() -> None:
    assert CODEC.encode([Message(Kind.ERROR, "", 1)]) == b'{"fail":1,"body":"","code":2}'
