"""The document's bytes, both directions: what each frame means, and that writing it gives the same bytes.

Then what holds for all messages and for all bytes.
"""

import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.errors import Code, EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import PeerClosed, PeerOpened, Ready, Refused
from polybus.protocols import Csb
from polybus.protocols.csb import wire
from tests.doubles.driven import Driven
from tests.unit.protocols.strategies import CODES, HEADERS, NAMES, NUMBERS, TEXT, TTLS, values

CODEC = Csb(actions={"user.login": 0x00010001}).codec()
FORM = Csb(encodings={7: "urlencoded", 8: "base64", 9: "string", 10: "json", 11: "binary"}).codec()


def id_of(action: int, number: int) -> int:
    return action << 16 | number


def read(hexes: str, codec: Any = CODEC) -> Message:
    [message] = codec.decode(bytes.fromhex(hexes))
    assert isinstance(message, Message)
    return message


# frame, kind, subject, id, body, encoding
REQUESTS: list[tuple[str, Any, int, Any, str]] = [
    ("10 00 0001 00000007", 7, 1, None, "binary"),
    ("10 00 ffff 00000007 00ff", 7, 0xFFFF, b"\x00\xff", "binary"),
    ("11 00 0002 00000007", 7, 2, "", "string"),
    ("11 00 0002 00000007 c3bc", 7, 2, "ü", "string"),
    ("12 00 0003 00010001 7b226964223a377d", "user.login", 3, {"id": 7}, "json"),
    ("12 00 0003 fffeffff 5b5d", 0xFFFEFFFF, 3, [], "json"),
    ("12 00 0003 00000007", 7, 3, None, "json"),
    ("13 00 0004 00000007", 7, 4, {}, "urlencoded"),
    ("13 00 0004 00000007 613d3126613d3226623d", 7, 4, {"a": ["1", "2"], "b": ""}, "urlencoded"),
    ("13 00 0004 00000007 613d25433325424326622b633d78", 7, 4, {"a": "ü", "b c": "x"}, "urlencoded"),
    ("14 00 0005 00000007", 7, 5, b"", "base64"),
    ("14 00 0005 00000007 61476b3d", 7, 5, b"hi", "base64"),
]


@pytest.mark.parametrize(("frame", "subject", "number", "body", "encoding"), REQUESTS)
def test_a_request_and_its_response_in_every_encoding(frame: str, subject: Any, number: int, body: Any, encoding: str) -> None:
    message = read(frame)
    action = 0x00010001 if subject == "user.login" else subject
    assert (message.kind, message.subject, message.id) == (Kind.REQUEST, subject, id_of(action, number))
    assert message.body == body and type(message.body) is type(body)
    assert (message.has_body, message.attributes["encoding"]) == (body is not None, encoding)
    if frame not in ("12 00 0003 00000007", "14 00 0005 00000007") and "13" != frame[:2]:
        assert CODEC.encode([message]) == bytes.fromhex(frame)
    message.forget_value()
    assert message.body == body
    answer = read("2" + frame[1:])
    assert (answer.kind, answer.id, answer.body) == (Kind.RESPONSE, id_of(action, number), body)
    assert answer.attributes["encoding"] == encoding


@pytest.mark.parametrize(
    ("subject", "value", "frame"),
    [
        (7, None, "10 00 0001 00000007"),
        (7, b"\x00\xff", "10 00 0001 00000007 00ff"),
        (7, b"", "14 00 0001 00000007"),
        (7, "ü", "11 00 0001 00000007 c3bc"),
        (7, "", "11 00 0001 00000007"),
        (7, {"id": 7}, "12 00 0001 00000007 7b226964223a377d"),
        (7, 1.5, "12 00 0001 00000007 312e35"),
        ("user.login", True, "12 00 0001 00010001 74727565"),
        ("a.b", 1, "12 00 0001 ffff0004 0003 612e62 31"),
        ("a.b", None, "10 00 0001 ffff0004 0003 612e62"),
        ("ü", b"\x01", "10 00 0001 ffff0004 0002 c3bc 01"),
        ("_polybus.hello", {"v": 1}, "12 00 0001 ffff0000 7b2276223a317d"),
    ],
)
def test_the_encoding_is_chosen_by_the_value(subject: Any, value: Any, frame: str) -> None:
    message = Message(Kind.REQUEST, subject, id_of(0, 1))
    if value is not None:
        message.format = CODEC.format_for(value, subject)
        message.raw = message.format.encode(value)
    assert CODEC.encode([message]) == bytes.fromhex(frame)
    again = read(frame)
    assert (again.subject, again.body) == (subject, value)


@pytest.mark.parametrize(
    ("action", "value", "frame"),
    [
        (7, {"a": ["1", 2], "b": "ü c", "ok": True}, "13 00 0001 00000007" + b"a=1&a=2&b=%C3%BC+c&ok=true".hex()),
        (8, b"hi", "14 00 0001 00000008 61476b3d"),
        (9, "hi", "11 00 0001 00000009 6869"),
        (10, "hi", "12 00 0001 0000000a 22686922"),
        (11, b"hi", "10 00 0001 0000000b 6869"),
    ],
)
def test_an_encoding_may_be_set_for_an_action(action: int, value: Any, frame: str) -> None:
    message = Message(Kind.REQUEST, action, 1, FORM.format_for(value, action).encode(value), FORM.format_for(value, action))
    assert FORM.encode([message]) == bytes.fromhex(frame)


@pytest.mark.parametrize(("action", "value"), [(7, 5), (7, {"a": None}), (7, {"a": {"b": 1}}), (8, "text"), (9, 5), (11, "x")])
def test_a_value_that_does_not_fit_the_encoding_is_told(action: int, value: Any) -> None:
    with pytest.raises(EncodeError):
        FORM.format_for(value, action).encode(value)


# result byte, code, reason: what a bare peer means, and what we write.
RESULTS = [
    (0xC9, Code.UNIMPLEMENTED, None),
    (0xCA, Code.DEADLINE_EXCEEDED, None),
    (0xCB, Code.INVALID_ARGUMENT, "bad_encoding"),
    (0xCC, Code.INVALID_ARGUMENT, None),
    (0xCD, Code.UNAUTHENTICATED, None),
    (0xCE, Code.PERMISSION_DENIED, None),
    (0xCF, Code.RESOURCE_EXHAUSTED, None),
    (0xD0, Code.INTERNAL, None),
    (0xD1, Code.RESOURCE_EXHAUSTED, "too_large"),
    (0xD2, Code.UNIMPLEMENTED, "not_implemented"),
]


@pytest.mark.parametrize(("result", "code", "reason"), RESULTS)
def test_a_reserved_result_has_its_code_both_ways(result: int, code: Code, reason: str | None) -> None:
    bare = read(f"20 {result:02x} 0005 00000007")
    assert (bare.kind, bare.id, bare.code, bare.attributes["reason"]) == (Kind.ERROR, id_of(7, 5), code, reason)
    assert bare.attributes["detail"] is None and bare.attributes["text"]
    ours = Message(Kind.ERROR, "", id_of(7, 5), code=code, attributes={"text": "no", "reason": reason, "detail": [1]})
    frame = CODEC.encode([ours])
    assert frame[:8] == bytes.fromhex(f"22 {result:02x} 0005 00000007")
    again = read(frame.hex())
    assert (again.code, again.attributes) == (code, {"text": "no", "reason": reason, "detail": [1]})


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
@pytest.mark.parametrize("reason", [None, "gone"])
def test_every_code_comes_back_between_our_own(code: Code, reason: str | None) -> None:
    facts = {"text": "t", "reason": reason, "detail": {"a": 1}}
    frame = CODEC.encode([Message(Kind.ERROR, "", id_of(7, 1), code=code, attributes=dict(facts))])
    again = read(frame.hex())
    assert (again.code, again.attributes) == (code, facts)
    if code not in {row[1] for row in RESULTS}:
        assert frame[1] == 0xD0  # without a byte of its own it travels under InternalError


@pytest.mark.parametrize("result", [1, 100, 0xC8])
def test_a_result_of_the_application_travels_as_detail(result: int) -> None:
    bare = read(f"20 {result:02x} 0005 00000007")
    assert (bare.code, bare.attributes["detail"]) == (Code.UNKNOWN, {"result": result})
    said = read(f"21 {result:02x} 0005 00000007" + b"no seat".hex())
    assert (said.attributes["text"], said.attributes["detail"]) == ("no seat", {"result": result})
    value = read(f"22 {result:02x} 0005 00000007" + b'{"seat":4}'.hex())
    assert value.attributes["detail"] == {"result": result, "body": {"seat": 4}}
    ours = Message(Kind.ERROR, "", id_of(7, 5), code=Code.ABORTED, attributes={"text": "x", "detail": {"result": result}})
    frame = CODEC.encode([ours])
    assert frame[1] == result
    again = read(frame.hex())
    assert (again.code, again.attributes["detail"]) == (Code.ABORTED, {"result": result})


@pytest.mark.parametrize("detail", [*({"result": result} for result in (0, 0xC9, "1", True, -1)), 5])
def test_what_is_no_result_of_an_application_is_only_detail(detail: Any) -> None:
    error = Message(Kind.ERROR, "", id_of(7, 5), code=Code.NOT_FOUND, attributes={"detail": detail})
    assert CODEC.encode([error])[1] == 0xD0


def test_a_result_that_is_not_defined_is_an_unknown_error() -> None:
    message = read("20 f0 0005 00000007")
    assert (message.code, message.attributes["detail"]) == (Code.UNKNOWN, {"result": 0xF0})


CHANNEL = [
    ("12 00 0009 ffff0009 31", Message(Kind.ITEM, "", id_of(0xFFFF0007, 9), body=1)),
    ("22 00 0009 ffff0009 31", Message(Kind.ITEM, "", ~id_of(0xFFFF0007, 9), body=1)),
    ("10 00 0009 ffff000a 00000040", Message(Kind.CREDIT, "", id_of(0xFFFF0007, 9), attributes={"credit": 64})),
    ("20 00 0009 ffff000a 00000001", Message(Kind.CREDIT, "", ~id_of(0xFFFF0007, 9), attributes={"credit": 1})),
    ("10 00 0009 ffff000b", Message(Kind.END, "", id_of(0xFFFF0007, 9))),
    ("20 00 0009 ffff000b", Message(Kind.END, "", ~id_of(0xFFFF0007, 9))),
    ("10 00 0009 ffff0008 00000007", Message(Kind.CANCEL, "", id_of(7, 9))),
    ("10 00 0009 ffff000c 00000007 000005dc", Message(Kind.CONTROL, "deadline", id_of(7, 9), ttl=1.5)),
]


@pytest.mark.parametrize(("frame", "message"), CHANNEL)
def test_what_belongs_to_a_request_or_an_open(frame: str, message: Message) -> None:
    again = read(frame)
    assert (again.kind, again.id, again.body) == (message.kind, message.id, message.body)
    assert again.attributes.get("credit") == message.attributes.get("credit")
    assert CODEC.encode([message]) == bytes.fromhex(frame)


def test_an_open_carries_mode_credit_hops_headers_and_deadline() -> None:
    facts = {"mode": "stream", "credit": 64, "hops": 2}
    message = Message(Kind.OPEN, "log", id_of(0xFFFF0007, 9), headers={"x-a": "b"}, ttl=1.5, attributes=facts, body=[1])
    frame = CODEC.encode([message])
    extras = b'{"mode":"stream","n":64,"hops":2,"headers":{"x-a":"b"}}'
    assert frame == bytes.fromhex(f"12 00 0009 ffff0007 0003 {len(extras):04x} 000005dc") + b"log" + extras + b"[1]"
    again = read(frame.hex())
    assert (again.kind, again.subject, again.id, again.ttl, again.headers) == (Kind.OPEN, "log", message.id, 1.5, {"x-a": "b"})
    assert {name: again.attributes[name] for name in facts} == facts
    assert again.body == [1]


def test_a_failed_end_says_why_in_both_directions() -> None:
    facts = {"text": "gone", "reason": "r", "detail": None}
    for id, first, result in ((id_of(0xFFFF0007, 9), 0x12, 0), (~id_of(0xFFFF0007, 9), 0x22, 0xCE)):
        frame = CODEC.encode([Message(Kind.END, "", id, code=Code.PERMISSION_DENIED, attributes=dict(facts))])
        assert (frame[0], frame[1]) == (first, result)
        again = read(frame.hex())
        assert (again.kind, again.id, again.code, again.attributes) == (Kind.END, id, Code.PERMISSION_DENIED, facts)


@pytest.mark.parametrize(
    ("kind", "subject", "frame"),
    [
        (Kind.SUBSCRIBE, "news.*", "10 00 0000 ffff0001 0006 6e6577732e2a"),
        (Kind.UNSUBSCRIBE, "news.*", "10 00 0000 ffff0002 0006 6e6577732e2a"),
        (Kind.SUBSCRIBE, 0x00020001, "10 00 0000 ffff0001 ffff 00020001"),
        (Kind.SUBSCRIBE, "user.login", "10 00 0000 ffff0001 ffff 00010001"),
        (Kind.PUBLISH, "news", "12 00 0000 ffff0003 0004 6e657773 31"),
        (Kind.PUBLISH, 0x00020001, "12 00 0000 ffff0003 ffff 00020001 31"),
    ],
)
def test_subscriptions_and_publications_travel_on_reserved_actions(kind: Kind, subject: Any, frame: str) -> None:
    message = Message(kind, subject, body=1) if kind is Kind.PUBLISH else Message(kind, subject)
    assert CODEC.encode([message]) == bytes.fromhex(frame)
    again = read(frame)
    assert (again.kind, again.subject) == (kind, subject)


def test_headers_of_publications_and_requests_have_actions_of_their_own() -> None:
    frame = CODEC.encode([Message(Kind.PUBLISH, "a", headers={"polybus-via": "b1"}, body=1)])
    extras = b'{"headers":{"polybus-via":"b1"}}'
    assert frame == bytes.fromhex(f"12 00 0000 ffff0006 0001 {len(extras):04x} ffffffff 61") + extras + b"1"
    assert read(frame.hex()).headers == {"polybus-via": "b1"}
    frame = CODEC.encode([Message(Kind.REQUEST, "a", id_of(0xFFFF0005, 3), headers={"x": "y"}, ttl=30.0, body=1)])
    extras = b'{"headers":{"x":"y"}}'
    assert frame == bytes.fromhex(f"12 00 0003 ffff0005 0001 {len(extras):04x} 00007530 61") + extras + b"1"
    again = read(frame.hex())
    assert (again.subject, again.ttl, again.headers, again.body) == ("a", 30.0, {"x": "y"}, 1)


WRAPPED = Csb(side="broker-server").codec()


@pytest.mark.parametrize(
    ("frame", "kind", "subject"),
    [
        ("00000007 12 00 0001 00000009 31", Kind.REQUEST, 9),
        ("ffffffff 22 00 0001 00000009 31", Kind.RESPONSE, ""),
        ("00000007 d0 00 0000 00000000", Kind.CONTROL, "connected"),
        ("00000007 e0 00 0000 00000000", Kind.CONTROL, "closed"),
        ("00000007 f0 00 0000 00000000", Kind.CONTROL, "close"),
    ],
)
def test_behind_a_broker_the_number_of_the_client_stands_in_front(frame: str, kind: Kind, subject: Any) -> None:
    message = read(frame, WRAPPED)
    assert (message.kind, message.subject, message.peer) == (kind, subject, int(frame[:8], 16))
    assert WRAPPED.encode([message]) == bytes.fromhex(frame)


@pytest.mark.parametrize(
    ("frame", "reason", "answered"),
    [
        *((frame, "short_frame", None) for frame in ("", "10000001000000")),
        *((f"{first} 00 0001 00000001", "bad_kind", None) for first in ("00", "32")),
        ("10 07 0005 00000001", "bad_code", id_of(1, 5)),
        ("15 00 0005 00000001", "bad_encoding", id_of(1, 5)),
        *((f"12 00 0005 00000001 {body}", "bad_encoding", id_of(1, 5)) for body in ("7b", "4e614e", "22ff22")),
        ("11 00 0005 00000001 ff", "bad_encoding", id_of(1, 5)),
        *((f"13 00 0005 00000001 {body}", "bad_encoding", id_of(1, 5)) for body in ("61", "613d256666", "613dc3bc")),
        *((f"14 00 0005 00000001 {body}", "bad_encoding", id_of(1, 5)) for body in ("61476b", "61476b3d0a")),
        *((f"12 00 0005 ffff0004 {rest}", "bad_length", id_of(0xFFFF0004, 5)) for rest in ("00", "0005 61", "ffff 61")),
        *((f"12 00 0005 ffff0004 {rest}", "invalid_subject", id_of(0xFFFF0004, 5)) for rest in ("0001 ff", "0001 0a")),
        ("10 00 0005 ffff0001 0001 00", "invalid_subject", id_of(0xFFFF0001, 5)),
        *((f"10 00 0005 ffff000{n} 0000", "invalid_subject", id_of(0xFFFF0000 + n, 5)) for n in (1, 2, 3)),
        ("10 00 0005 ffff0005 0001", "bad_length", id_of(0xFFFF0005, 5)),
        ("10 00 0005 ffff0005 0001 0005 ffffffff 61 7b", "bad_length", id_of(0xFFFF0005, 5)),
        ("10 00 0005 ffff0005 0001 0002 ffffffff 61 5b5d", "malformed", id_of(0xFFFF0005, 5)),
        ("10 00 0005 ffff0007 0001 0002 ffffffff 61 7b7d", "malformed", id_of(0xFFFF0007, 5)),
        *((f"10 00 0005 ffff00{rest}", "malformed", None) for rest in ("08 00", "0c 00000007", "0a 00000000", "0a 00")),
    ],
)
def test_a_bad_frame_is_refused_with_its_reason(frame: str, reason: str, answered: int | None) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        CODEC.decode(bytes.fromhex(frame))
    assert (caught.value.reason, caught.value.answer_id) == (reason, answered)
    assert caught.value.frame == bytes.fromhex(frame)
    assert caught.value.close_code is None


def test_a_bad_answer_names_its_request_and_a_bad_form_or_json_has_a_limit() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        CODEC.decode(bytes.fromhex("22 00 0005 00000001 7b"))
    assert (caught.value.reply_id, caught.value.answer_id) == (id_of(1, 5), None)
    head, fields = "13 00 0005 00000001", [b"a%d=1" % number for number in range(1001)]
    assert len(read(head + b"&".join(fields[1:]).hex()).body) == 1000
    with pytest.raises(RemoteProtocolError) as caught:
        read(head + b"&".join(fields).hex())
    assert caught.value.reason == "too_large"
    codec = Csb().codec(Limits(depth=4))
    assert read("12 00 0005 00000001" + b"[[[[1]]]]".hex(), codec).body == [[[[1]]]]
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(bytes.fromhex("12 00 0005 00000001") + b"[[[[[1]]]]]")
    assert caught.value.reason == "bad_encoding"


@pytest.mark.parametrize(
    "message",
    [
        *(Message(Kind.REQUEST, action, 1) for action in (-1, 0xFFFF0000, 0xFFFFFFFF, 2**32)),
        *(Message(Kind.RESPONSE, "", id) for id in (None, "1", 1.0, -1, 1 << 48)),
        *(Message(Kind.REQUEST, subject, 1) for subject in ("a\nb", "x" * 1025, "\ud800")),
        *(Message(Kind.PUBLISH, subject) for subject in ("a\nb", "x" * 1025, "\ud800")),
        *(Message(Kind.SUBSCRIBE, subject) for subject in ("a\nb", "x" * 1025, "\ud800")),
    ],
    ids=lambda message: ascii((message.kind.value, message.subject, message.id))[:40],
)
def test_an_action_an_id_or_a_subject_that_does_not_fit_is_ours_to_refuse(message: Message) -> None:
    with pytest.raises(LocalProtocolError):
        CODEC.encode([message])


def test_what_has_no_form_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        CODEC.encode([Message(Kind.CONTROL, "pause")])
    with pytest.raises(Unsupported):
        CODEC.encode([Message(Kind.CANCEL, "", 1), Message(Kind.CANCEL, "", 2)])
    with pytest.raises(LocalProtocolError):
        WRAPPED.encode([Message(Kind.REQUEST, 7, 1)])


def seen(frame: str, adapter: Any = None) -> list[tuple[int, int, str, str, str]]:
    fields = (adapter or Csb(actions={"user.login": 0x00010001})).dissect(bytes.fromhex(frame))
    return [(field.offset, field.length, field.name, field.value, field.note) for field in fields]


def test_the_fields_of_a_header_and_of_reserved_actions() -> None:
    assert seen("22 c9 0007 00010001 7b7d") == [
        (0, 1, "kind", "0x2", "response (high four bits)"),
        (0, 1, "encoding", "0x2", "json (low four bits)"),
        (1, 1, "result code", "0xc9", "NotFound"),
        (2, 2, "message id", "7", ""),
        (4, 4, "action id", "0x00010001", "user.login"),
        (8, 2, "payload", "{}", ""),
    ]
    assert seen("00000009 f0 00 0000 00000000", Csb(side="broker-server"))[:2] == [
        (0, 4, "client id", "9", ""),
        (4, 1, "kind", "0xf", "close (high four bits)"),
    ]
    assert seen("12 00 0003 ffff0005 0001 0002 00007530 61 7b7d 31")[4:] == [
        (4, 4, "action id", "0xffff0005", "request with extras"),
        (8, 2, "subject length", "1", ""),
        (10, 2, "extras length", "2", ""),
        (12, 4, "ttl", "30000", "milliseconds"),
        (16, 1, "subject", "a", ""),
        (17, 2, "extras", "{}", ""),
        (19, 1, "payload", "1", ""),
    ]
    assert seen("10 00 0000 ffff0001 ffff 00020001")[5:] == [
        (8, 2, "subject length", "65535", "an action's number in 4 bytes"),
        (10, 4, "subject", "0x00020001", ""),
    ]


@pytest.mark.parametrize(
    ("frame", "last"),
    [
        ("", "header"),
        ("10000001", "header"),
        ("4f 07 0001 00000001", "action id"),
        ("12 00 0003 ffff0004 00", "subject length"),
        ("12 00 0003 ffff0004 0005 61", "subject"),
        ("12 00 0003 ffff0005 0001 0009 00007530 61 7b", "extras"),
    ],
)
def test_what_is_cut_off_or_wrong_is_shown_as_far_as_it_goes(frame: str, last: str) -> None:
    assert seen(frame)[-1][2] == last
    assert seen("000000", Csb(side="broker-server")) == [(0, 3, "client id", "00 00 00", "cut off: it has 4 bytes")]


ACTIONS = st.integers(0, wire.FIRST_RESERVED - 1).filter(lambda number: number != 0x00010001)
SUBJECTS = NAMES | ACTIONS | st.just("user.login")
SHORTS = st.integers(0, 0xFFFF)
VALUES = values(st.booleans() | NUMBERS, within=st.none() | TEXT)
BODIES = VALUES | TEXT | st.binary(max_size=40)
FAILURES = st.fixed_dictionaries({"text": TEXT, "reason": st.none() | TEXT, "detail": st.none() | VALUES})
COUNTS = st.integers(0, 2**32 - 1)
MODES = st.sampled_from(["stream", "channel", "tunnel"])
OPENINGS = st.fixed_dictionaries({"mode": MODES, "credit": COUNTS, "hops": COUNTS})


def written(kind: Kind, id: Any = None, subject: Any = "", **facts: Any) -> Message:
    message = Message(kind, subject, id)
    for name, value in facts.items():
        if name == "body":
            message.format = CODEC.format_for(value, subject)
            message.raw = message.format.encode(value)
        else:
            setattr(message, "extras" if name == "attributes" else name, value)
    return message


Strategies: TypeAlias = Mapping[str, st.SearchStrategy[Any]]


def of(kind: Kind, optional: Strategies = {}, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:  # noqa: B006  # read
    made: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(fields, optional={**optional})
    return made.map(lambda given: written(kind, **given))


def ids_under(action: int) -> st.SearchStrategy[int]:
    return SHORTS.map(lambda number: action << 16 | number)


ANSWERED = st.builds(lambda action, number: action << 16 | number, ACTIONS, SHORTS)
OPENED = ids_under(wire.OPEN) | ids_under(wire.OPEN).map(lambda id: ~id)
ANY_BODY: Strategies = {"body": BODIES}
MORE: Strategies = {"headers": HEADERS, "ttl": TTLS}
MESSAGES = st.one_of(
    of(Kind.REQUEST, ANY_BODY, subject=SUBJECTS, id=SHORTS),
    of(Kind.REQUEST, subject=SUBJECTS, id=ids_under(wire.REQUEST_MORE), headers=HEADERS, ttl=TTLS, body=BODIES),
    of(Kind.PUBLISH, {"headers": HEADERS, **ANY_BODY}, subject=SUBJECTS.filter(lambda subject: subject != "")),
    of(Kind.RESPONSE, ANY_BODY, id=ANSWERED),
    of(Kind.ERROR, id=ANSWERED, code=CODES, attributes=FAILURES),
    of(Kind.OPEN, MORE, subject=SUBJECTS, id=ids_under(wire.OPEN), attributes=OPENINGS, body=BODIES),
    of(Kind.ITEM, id=OPENED, body=BODIES),
    of(Kind.CREDIT, id=OPENED, attributes=st.fixed_dictionaries({"credit": st.integers(1, 2**32 - 1)})),
    of(Kind.END, id=OPENED),
    of(Kind.END, id=OPENED, code=CODES, attributes=FAILURES),
)


@settings(max_examples=3 * settings().max_examples)
@given(MESSAGES)
def test_messages_of_every_kind_come_back(message: Message) -> None:
    [again] = CODEC.decode(CODEC.encode([message]))
    assert isinstance(again, Message)
    for name in ("kind", "subject", "code", "headers"):
        assert getattr(again, name) == getattr(message, name), name
    assert (again.body, type(again.body)) == (message.body, type(message.body))
    assert again.ttl == pytest.approx(message.ttl, abs=0.001)
    assert {name: again.attributes[name] for name in message.attributes} == message.attributes
    if message.kind is Kind.REQUEST:
        assert again.id & 0xFFFF == message.id & 0xFFFF
    elif message.kind is not Kind.PUBLISH:
        assert again.id == message.id


def frames() -> st.SearchStrategy[bytes]:
    """Bytes that get past the first checks more often than chance allows."""
    heads = st.builds(
        struct.Struct(">BBHI").pack,
        st.integers(0, 255) | st.sampled_from([0x10, 0x11, 0x12, 0x13, 0x14, 0x20, 0x22]),
        st.integers(0, 255) | st.just(0),
        SHORTS,
        st.integers(0xFFFF0000, 0xFFFF000F) | st.integers(0, 2**32 - 1),
    )
    lengths = st.builds(struct.Struct(">H").pack, st.integers(0, 6) | st.just(0xFFFF))
    return st.builds(lambda *parts: b"".join(parts), heads, lengths | st.just(b""), st.binary(max_size=40))


@given(st.lists(frames(), max_size=8))
def test_a_session_takes_any_bytes(given_frames: list[bytes]) -> None:
    for adapter, head in ((Csb(), b""), (Csb(side="broker-server"), (7).to_bytes(4))):
        session = Driven(adapter.session("server"))
        session.start(0.0)
        if head:
            session.receive(head + bytes.fromhex("d0000000 00000000"), 0.0)
        for frame in given_frames:
            session.receive(head + frame, 0.0)
        assert all(isinstance(event, Message | Ready | Refused | PeerOpened | PeerClosed) for event in session.events())
        for frame in session.frames_to_send():
            adapter.codec().decode(frame)
