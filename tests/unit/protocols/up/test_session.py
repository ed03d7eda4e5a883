"""The session: names, times, tokens, answers, accounts; no sockets, and a clock that stands where it is put."""

import random
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from polybus import Code, EncodeError, Limits, LocalProtocolError, Message, RemoteProtocolError, TooLarge, Unsupported
from polybus.body import JSON, OCTETS, TEXT
from polybus.message import MISSING, Kind
from polybus.plugins import CloseWanted, Ready, Refused, Undelivered
from polybus.protocols._protobuf import ANY, pack, status_of
from polybus.protocols.up import Up
from polybus.protocols.up.codec import UpReturnAddress
from polybus.protocols.up.uuris import parse_uuri
from polybus.protocols.up.wire import (
    Attributes,
    MessageType,
    PayloadFormat,
    id_ms,
    read_attributes,
    read_uuid,
    split_message,
    uuid_bytes,
    write_attributes,
    write_message,
    write_uuid,
)
from tests.doubles.driven import Driven
from tests.unit.protocols.uprotocol.support import Clock
from tests.vectors import up_vectors as vectors

NOW = 1_700_000_000_123  # the time in the ids of the examples
ID = uuid_bytes(vectors.ID.format(0))
NAMES = {"door.opened": 0x80CD, "UpdateDoor": 0xB, "light": [0xC, 0x80CE], "seat": "//device3/1/1/7"}
GONE = Message(Kind.ERROR, code=Code.NOT_FOUND, attributes={"text": "gone"})
CAR, PHONE = "//device1/10AB/3", "//device2/CD/4"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def session(clock: Clock | None = None, limits: Limits = Limits(), **options: Any) -> Driven:  # noqa: B008
    options = {"entity": CAR, "names": NAMES} | options
    made = Driven(Up(clock=clock or Clock(), **options).session("client", limits, random.Random(1)))
    made.start(0.0)
    assert made.events() == [Ready()]
    return made


@pytest.fixture
def ours() -> Driven:
    return session()


def pair() -> tuple[Driven, Driven]:
    clock = Clock()
    return session(clock, entity=CAR, peer=PHONE), session(clock, entity=PHONE, peer=CAR)


def request(subject: str = "UpdateDoor", ttl: float | None = 5.0, body: Any = MISSING) -> Message:
    return Message(Kind.REQUEST, subject, None, ttl=ttl, body=body)


def sent(by: Driven) -> list[tuple[Attributes, bytes | None]]:
    split = [split_message(frame) for frame in by.frames_to_send()]
    return [(read_attributes(attributes or b""), payload) for attributes, payload in split]


def receive(to: Driven, frame: bytes, now: float = 0.0) -> list[Any]:
    to.receive(frame, now)
    return to.events()


def carried(one: Driven, other: Driven) -> Message:
    """The message of the one frame that a session has to send, as another one gets it."""
    (frame,) = one.frames_to_send()
    (message,) = receive(other, frame)
    assert isinstance(message, Message)
    return message


def refused(events: list[Any]) -> RemoteProtocolError:
    (event,) = events
    assert isinstance(event, Refused)
    return event.error


def frame_of(payload: bytes | None = None, **attributes: Any) -> bytes:
    for name in ("source", "sink"):
        if name in attributes:
            attributes[name] = parse_uuri(attributes[name])
    return write_message(write_attributes(Attributes(**{"id": ID} | attributes)), payload)


def asked(**change: Any) -> bytes:
    usual: dict[str, Any] = {"type": MessageType.REQUEST, "priority": 5, "ttl": 2000}
    return frame_of(**usual | {"source": f"{PHONE}/0", "sink": f"{CAR}/B"} | change)


def published(**change: Any) -> bytes:
    usual: dict[str, Any] = {"type": MessageType.PUBLISH, "source": f"{PHONE}/80CD"}
    return frame_of(**usual | change)


def test_the_worked_publication_arrives() -> None:
    (message,) = receive(session(), vectors.PUBLICATION, now=10.0)
    assert (message.kind, message.subject, message.body, message.format) == (Kind.PUBLISH, "door.opened", "open", TEXT)
    facts = {"id": vectors.ID.format(0), "type": "up-pub.v1", "source": "//device1/10AB/3/80CD"}
    assert message.attributes == {**facts, "priority": "CS2", "ttl": 5000, "payload_format": "text"}
    assert (message.ttl, message.expires) == (5.0, 15.0)


def test_the_worked_request_arrives_and_is_answered_the_other_way_round() -> None:
    ours = session(entity=PHONE)
    (message,) = receive(ours, vectors.REQUEST)
    assert (message.kind, message.subject, message.body, message.ttl) == (Kind.REQUEST, "UpdateDoor", {"p": 50}, 2.0)
    assert message.attributes["token"] == "t"
    ours.send(Message(Kind.RESPONSE, "", message.id, body=[1]), 0.0)
    ((given, payload),) = sent(ours)
    assert (str(given.source), str(given.sink)) == ("//device2/CD/4/B", "//device1/403AB/3/0")
    assert (given.type, given.priority, given.ttl, given.commstatus) == (MessageType.RESPONSE, 5, 2000, None)
    assert (given.reqid, payload, given.payload_format) == (uuid_bytes(vectors.ID.format(1)), b"[1]", PayloadFormat.JSON)
    assert id_ms(given.id) == NOW


@pytest.mark.parametrize(
    "to", ["//device7/1/2", "up://device7/1/2", "//device7/1/2/0", "//device7/1/2/8001", "//device7/01/02/7fff"]
)
def test_a_notification_goes_to_the_entity_of_the_address_that_it_names(to: str) -> None:
    ours = session(peer=PHONE)
    for attributes in (None, {"to": to}):
        ours.send(Message(Kind.NOTIFY, "door.opened", body=1, attributes=attributes), 0.0)
    (usual, _), (given, _) = sent(ours)
    assert (str(usual.sink), str(given.sink)) == (f"{PHONE}/0", "//device7/1/2/0")
    assert usual.source == given.source == parse_uuri(f"{CAR}/80CD")


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("ann", "to='ann' is not an entity: an entity has the form //device1/10AB/3"),
        ("", "to='' is not an entity"),
        ("//Device7/1/2", "to='//Device7/1/2' is not an entity: 'Device7' is not an authority: lower-case letters"),
        ("//Device7/1/2/8001", "to='//Device7/1/2' is not an entity: 'Device7' is not an authority: lower-case letters"),
        ("//device7/1/2/3/4", "to='//device7/1/2/3/4' is not an entity"),
        ("/1/2", "to='/1/2' has no authority"),
        ("//*/1/2", "has wildcards: a notification goes to a single entity"),
        ("//device7/FFFF/2/0", "has wildcards: a notification goes to a single entity"),
    ],
)
def test_what_is_no_destination_is_said(ours: Driven, to: str, text: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        ours.send(Message(Kind.NOTIFY, "door.opened", attributes={"to": to}), 0.0)
    assert text in str(caught.value)
    assert ours.frames_to_send() == []


OLD_ID = "018bcfe5-687b-8005-b010-101010101a1a"
"""Of the generation before."""


def test_an_id_of_the_future_does_not_shorten_what_is_left() -> None:
    ours = session(Clock(1_600_000_000_000))
    ours.send(Message(Kind.PUBLISH, "door.opened", ttl=5.0, attributes={"polybus-relayed": {"id": OLD_ID}}), 0.0)
    ours.send(Message(Kind.PUBLISH, "door.opened", ttl=None, attributes={"polybus-relayed": {"id": OLD_ID}}), 0.0)
    assert [given.ttl for given, _ in sent(ours)] == [5000, None]


@pytest.mark.parametrize(
    "said",
    [
        *("x", 7, {"id": 7, "priority": ["CS6"]}, {"id": ""}, {"id": "018bcfe5-687b-8005-f010-101010101a1a"}),
        {"id": "018bcfe5-687b-4005-b010-101010101a1a"},  # version 4 has no time
        {"id": "018bcfe5-687b-6005-b010-101010101a1a"},  # the time of version 6 stands elsewhere
        {"id": "018bcfe5687b8005b010101010101a1a", "priority": "cs6"},
    ],
)
def test_what_a_peer_says_has_crossed_and_cannot_is_made_anew(said: object) -> None:
    ours = session(peer=PHONE)
    ours.send(Message(Kind.PUBLISH, "door.opened", ttl=1.0, attributes={"polybus-relayed": said}), 0.0)
    ((given, _),) = sent(ours)
    assert (id_ms(given.id), given.priority, given.ttl) == (NOW, 2, 1000)


def test_a_request_goes_from_us_to_the_peer() -> None:
    ours = session(peer=PHONE, token="secret", permission_level=3, priorities={"light": "CS6"})
    key = ours.send(request(body={"p": 1}), 0.0)
    ours.send(request("light", 0.0001), 0.0)
    ours.send(request("seat"), 0.0)
    ours.send(request("//a.b/1/2/3"), 0.0)
    (first, payload), (second, none), (third, _), (fourth, _) = sent(ours)
    assert (str(first.source), str(first.sink)) == (f"{CAR}/0", f"{PHONE}/B")
    assert (first.type, first.priority, first.ttl, first.permission_level) == (MessageType.REQUEST, 5, 5000, 3)
    assert (first.token, payload, first.payload_format) == ("secret", b'{"p":1}', PayloadFormat.JSON)
    assert key == write_uuid(first.id)
    assert (str(second.sink), second.priority, second.ttl, none, second.payload_format) == (f"{PHONE}/C", 7, 1, None, 0)
    assert (str(third.sink), str(fourth.sink)) == ("//device3/1/1/7", "//a.b/1/2/3")


def test_a_publication_comes_from_us_and_is_made_once_for_all_peers() -> None:
    ours, other = session(ttl=2.5), session(ttl=2.5)
    message = Message(Kind.PUBLISH, "door.opened", body=b"\x00")
    ours.send(message, 0.0)
    other.send(message, 0.0)
    (frame,) = ours.frames_to_send()
    assert other.frames_to_send() == [frame]
    attributes, payload = split_message(frame)
    given = read_attributes(attributes or b"")
    assert (given.type, str(given.source), given.sink, given.priority) == (MessageType.PUBLISH, f"{CAR}/80CD", None, 2)
    assert (given.ttl, payload, given.payload_format) == (2500, b"\x00", PayloadFormat.RAW)


def test_notifications_and_messages_of_protocol_buffers_arrive_at_the_peer() -> None:
    ours, theirs = pair()
    ours.send(Message(Kind.NOTIFY, "light", body=1), 0.0)
    message = carried(ours, theirs)
    assert (message.kind, message.subject, message.body) == (Kind.NOTIFY, "light", 1)
    assert (message.attributes["source"], message.attributes["sink"]) == (f"{CAR}/80CE", f"{PHONE}/0")
    ours.send(Message(Kind.PUBLISH, "door.opened", body=Duration(seconds=3)), 0.0)
    message = carried(ours, theirs)
    assert (message.format, message.body) == (ANY, Duration(seconds=3))
    assert message.attributes["payload_format"] == "protobuf_in_any"


def test_what_is_relayed_keeps_its_priority_and_the_form_of_its_bytes(ours: Driven) -> None:
    said = {"priority": "CS5", "payload_format": "someip"}
    ours.send(Message(Kind.PUBLISH, "door.opened", raw=b"\x01", format=OCTETS, attributes=said), 0.0)
    ((given, payload),) = sent(ours)
    assert (given.priority, given.payload_format, payload) == (6, PayloadFormat.SOMEIP, b"\x01")


@pytest.mark.parametrize(
    ("body", "strings", "payload", "format"),
    [
        ({"a": None}, "json", b'{"a":null}', PayloadFormat.JSON),
        ("hi", "json", b'"hi"', PayloadFormat.JSON),
        ("hi", "text", b"hi", PayloadFormat.TEXT),
        (b"", "json", b"", PayloadFormat.RAW),
        (bytearray(b"a"), "text", b"a", PayloadFormat.RAW),
    ],
)
def test_a_value_is_written_in_its_form(body: Any, strings: str, payload: bytes, format: PayloadFormat) -> None:
    ours = session(strings=strings)
    ours.send(Message(Kind.PUBLISH, "door.opened", body=body), 0.0)
    ((given, written),) = sent(ours)
    assert (written, given.payload_format) == (payload, format)


@pytest.mark.parametrize(
    ("subject", "error", "text"),
    [
        ("door.closed", Unsupported, "add it to Up\\(names="),
        ("door.opened", Unsupported, "not a method: names= has only 80CD"),
        (7, Unsupported, "is a number"),
        ("//a/1/1/8000", LocalProtocolError, "not a method"),
        ("//a/1/1/0", LocalProtocolError, "not a method"),
        ("//*/1/1/1", LocalProtocolError, "wildcards"),
        ("//A/1/1/1", LocalProtocolError, "not an authority"),
        ("a/b", LocalProtocolError, "not an address"),
    ],
)
def test_a_subject_without_an_address_is_named(subject: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        session().send(request(subject), 0.0)


KINDS = (Kind.SUBSCRIBE, Kind.OPEN, Kind.ITEM, Kind.CANCEL)


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        *((Message(kind, "door.opened", "x"), Unsupported, kind.value) for kind in KINDS),
        (Message(Kind.PUBLISH, "UpdateDoor"), Unsupported, "not a topic: names= has only B"),
        (Message(Kind.PUBLISH, "//a/1/1/1"), LocalProtocolError, "8000"),
        (Message(Kind.PUBLISH, "door.opened", headers={"x-user": "1"}), Unsupported, "'x-user'"),
        (request(ttl=None), LocalProtocolError, "timeout="),
        (request(body="x" * 1000), TooLarge, "a message of .* bytes"),
        (Message(Kind.RESPONSE, "", "x"), LocalProtocolError, "needs the id of its request"),
    ],
)
def test_what_cannot_be_sent_is_said(message: Message, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        session(limits=Limits(message=1000)).send(message, 0.0)


def test_the_context_of_a_trace_goes_along() -> None:
    ours, theirs = pair()
    for _ in range(2):
        ours.send(Message(Kind.REQUEST, "UpdateDoor", headers={"traceparent": TRACE}, ttl=1.0), 0.0)
        message = carried(ours, theirs)
        assert message.headers == {"traceparent": TRACE}
        assert message.attributes["traceparent"] == TRACE
        message.headers.clear()  # of this one alone


@pytest.mark.parametrize(
    "trace", ["x\r\ny", "garbage", "", TRACE.upper(), TRACE + "-x", TRACE[:-1], "ff" + TRACE[2:], f"00-{'0' * 32}{TRACE[35:]}"]
)
def test_a_traceparent_that_is_none_is_no_header_and_costs_no_message(trace: str) -> None:
    ours, theirs = pair()
    ours.send(Message(Kind.REQUEST, "UpdateDoor", headers={"traceparent": TRACE}, ttl=1.0), 0.0)
    (frame,) = ours.frames_to_send()
    attributes, payload = split_message(frame)
    assert attributes is not None
    given = read_attributes(attributes)
    given.traceparent = trace
    (message,) = receive(theirs, write_message(write_attributes(given), payload))
    assert (message.subject, message.headers) == ("UpdateDoor", None)
    ours.send(Message(Kind.REQUEST, "UpdateDoor", headers={"traceparent": trace}, ttl=1.0), 0.0)  # from over a bridge, say
    ((written, _),) = sent(ours)
    assert written.traceparent is None


def test_a_token_is_asked_for_each_time_and_never_shown() -> None:
    tokens = iter(["a", None, b"secret"])
    ours = session(peer=PHONE, token=lambda: next(tokens))
    ours.send(request(), 0.0)
    ours.send(request(), 0.0)
    assert [given.token for given, _ in sent(ours)] == ["a", None]
    with pytest.raises(LocalProtocolError, match=r"token\(\) returned bytes") as caught:
        ours.send(request(), 0.0)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(Up(token="secret"))


def test_requests_go_to_the_peer_as_it_has_shown_itself(ours: Driven) -> None:
    ours.send(request(), 0.0)
    receive(ours, published())
    receive(ours, published(source="//device9/9/9/8001"))
    ours.send(request(), 0.0)
    assert [str(given.sink) for given, _ in sent(ours)] == [f"{CAR}/B", f"{PHONE}/B"]


def test_a_topic_of_somebody_else_is_an_address_unless_the_table_has_it() -> None:
    ours = session(peer=PHONE, names=NAMES | {"far": "//device9/9/9/80CD"})
    subjects = [receive(ours, published(source=uri))[0].subject for uri in
                (f"{PHONE}/80CD", f"{CAR}/80CE", f"{PHONE}/8001", "//device8/CD/4/80CD", "//device9/9/9/80CD")]  # fmt: skip
    assert subjects == ["door.opened", "light", f"{PHONE}/8001", "//device8/CD/4/80CD", "far"]


@pytest.mark.parametrize("format", [0, 2, 4, 5, 8])
def test_forms_that_only_the_application_knows_are_bytes(format: int) -> None:
    (message,) = receive(session(), published(payload=b"\x0a", payload_format=format))
    assert (message.format, message.body) == (OCTETS, b"\x0a")


@pytest.mark.parametrize(
    ("payload", "format", "reason"),
    [
        (b"[" * 200 + b"]" * 200, PayloadFormat.JSON, "too_deep"),
        (b'"\xff"', PayloadFormat.JSON, "malformed"),
        (b'1,"request":"admin.reset"', PayloadFormat.JSON, "malformed"),
        (b"1 2", PayloadFormat.JSON, "malformed"),
        (b"", PayloadFormat.JSON, "malformed"),
        (b"\xff", PayloadFormat.TEXT, "invalid_value"),
        (b"\xff", PayloadFormat.PROTOBUF_IN_ANY, "bad_protobuf"),
        (None, PayloadFormat.JSON, "invalid_attribute"),
    ],
)
def test_a_payload_that_is_not_what_it_says_is_refused(ours: Driven, payload: Any, format: Any, reason: str) -> None:
    assert refused(receive(ours, published(payload=payload, payload_format=format))).reason == reason
    assert ours.frames_to_send() == []
    receive(ours, asked(payload=payload, payload_format=format))
    ((given, status),) = sent(ours)
    assert (given.commstatus, given.payload_format, given.reqid) == (Code.INVALID_ARGUMENT, PayloadFormat.PROTOBUF, ID)
    assert status is not None


@pytest.mark.parametrize("change", [{"priority": 1}, {"ttl": None}])
def test_a_request_that_breaks_a_rule_is_told_where_it_can_be(ours: Driven, change: dict[str, Any]) -> None:
    assert "rule request." in refused(receive(ours, asked(**change))).text
    ((given, _),) = sent(ours)
    assert (given.commstatus, given.reqid, str(given.sink)) == (Code.INVALID_ARGUMENT, ID, f"{PHONE}/0")


@pytest.mark.parametrize(
    "frame",
    [
        *(b"", b"\x0a", b"\x12\x00", published(source="//*/CD/4/80CD"), published(source=f"{PHONE}/B")),
        *(published(sink=f"{CAR}/0"), published(id=bytes(16)), published(type=0), published(type=7)),
        *(asked(sink=f"{CAR}/0"), asked(source=f"{PHONE}/B")),
        frame_of(type=MessageType.NOTIFICATION, source=f"{PHONE}/80CD"),
    ],
)
def test_bad_input_is_counted_and_dropped(ours: Driven, frame: bytes) -> None:
    assert refused(receive(ours, frame)).protocol == "up"
    assert ours.frames_to_send() == []


def test_a_frame_over_the_limit_ends_the_connection_and_a_token_is_not_shown() -> None:
    ours = session(limits=Limits(message=60))
    *first, wanted = receive(ours, vectors.REQUEST)
    assert refused(first)
    assert isinstance(wanted, CloseWanted) and wanted.code == 1009
    assert b"secret" not in refused(receive(session(), asked(token="secret", priority=1))).frame
    assert refused(receive(session(), b"\x0a\x7f")).frame == b"\x0a\x7f"


def answered(to: Driven, key: bytes, payload: bytes | None = None, **change: Any) -> list[Any]:
    usual: dict[str, Any] = {"type": MessageType.RESPONSE, "reqid": read_uuid(key), "priority": 5, "ttl": 5000}
    return receive(to, frame_of(payload, **usual | {"source": f"{PHONE}/B", "sink": f"{CAR}/0"} | change))


def ask(clock: Clock | None = None) -> tuple[Driven, bytes]:
    ours = session(clock, peer=PHONE)
    key = ours.send(request(), 0.0)
    assert key is not None
    ours.frames_to_send()
    return ours, key


def test_an_answer_has_the_key_of_its_request_also_with_a_status_of_0() -> None:
    ours, key = ask()
    (message,) = answered(ours, key, b"[]", payload_format=PayloadFormat.JSON)
    assert (message.kind, message.id, message.body) == (Kind.RESPONSE, key, [])
    for status in (None, 0):
        (late,) = answered(ours, key, commstatus=status)
        assert (late.kind, late.id) == (Kind.RESPONSE, key)
    ours, key = ask()
    (message,) = answered(ours, key, commstatus=0)
    assert message.kind is Kind.RESPONSE


@pytest.mark.parametrize(
    ("payload", "format"), [(b'1,"a":2', PayloadFormat.JSON), (b"\xff", PayloadFormat.TEXT), (None, PayloadFormat.JSON)]
)
def test_an_answer_that_is_not_what_it_says_ends_its_request(payload: bytes | None, format: PayloadFormat) -> None:
    ours, key = ask()
    assert refused(answered(ours, key, payload, payload_format=format)).reply_id == key


def test_bytes_that_nobody_has_read_are_read_before_they_leave() -> None:
    ours = session(peer=PHONE)
    for message in (request("UpdateDoor"), Message(Kind.PUBLISH, "door.opened"), Message(Kind.NOTIFY, "door.opened")):
        message.raw, message.format = b'1,"publish":"admin"', JSON
        with pytest.raises(EncodeError, match="the body is not application/json"):
            ours.send(message, 0.0)
        message.raw = b'{"a":1}'
        ours.send(message, 0.0)
        ((_, payload),) = sent(ours)
        assert payload == b'{"a":1}'


def test_a_handlers_error_comes_back_as_it_was() -> None:
    ours, theirs = pair()
    ours.send(request(), 0.0)
    message = carried(ours, theirs)
    facts = {"text": "no key", "reason": "locked", "detail": {"door": 2}}
    theirs.send(Message(Kind.ERROR, "", message.id, code=Code.PERMISSION_DENIED, attributes=facts), 0.0)
    error = carried(theirs, ours)
    assert (error.kind, error.code, error.id) == (Kind.ERROR, Code.PERMISSION_DENIED, message.id.id)
    assert {name: error.attributes[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("payload", "format", "status", "code", "text"),
    [
        (None, 0, 14, Code.UNAVAILABLE, ""),
        (b"\x08\x0e\x12\x02no", 2, 14, Code.UNAVAILABLE, "no"),
        (b"\x0a\x17/uprotocol.v1.UStatus\x12", 1, 14, Code.UNAVAILABLE, ""),
        (b"\xff\xff", 2, 7, Code.PERMISSION_DENIED, ""),
        (pack("uprotocol.v1.UStatus", status_of(GONE)), 1, 5, Code.NOT_FOUND, "gone"),
        (b"anything", 6, 13, Code.INTERNAL, ""),
        (None, 0, 99, Code.UNKNOWN, "UNKNOWN(99): not a google.rpc.Code"),
        (None, 0, -1, Code.UNKNOWN, "UNKNOWN(-1): not a google.rpc.Code"),
    ],
)
def test_a_failed_answer_is_an_error_whatever_its_payload(
    payload: Any, format: int, status: int, code: Code, text: str
) -> None:
    ours, key = ask()
    (error,) = answered(ours, key, payload, payload_format=format, commstatus=status)
    assert (error.kind, error.code, error.attributes["text"]) == (Kind.ERROR, code, text)


def test_an_answer_from_elsewhere_or_to_nothing_is_refused() -> None:
    ours, key = ask()
    assert refused(answered(ours, key, source="//device9/CD/4/B")).reason == "wrong_peer"
    assert refused(answered(ours, write_uuid(uuid_bytes(vectors.ID.format(7))))).reason == "unknown_id"
    assert refused(answered(ours, key, b"\xff", payload_format=7))


def test_a_bad_answer_ends_the_wait_of_its_request() -> None:
    ours, key = ask()
    errors = [refused(answered(ours, key, sink=f"{CAR}/8001")) for _ in range(2)]
    assert [error.reply_id for error in errors] == [key, None]


def test_an_answer_that_has_expired_is_not_taken() -> None:
    clock = Clock()
    ours, key = ask(clock)
    clock.ms += 6000
    (event,) = answered(ours, key)
    assert isinstance(event, Undelivered) and event.message.subject == "UpdateDoor"


def ids() -> Any:
    return (uuid_bytes(f"018bcfe5-687b-7{number:03x}-8010-101010101a1a") for number in range(4096))


def test_a_loud_authority_fills_its_own_account_alone() -> None:
    ours, made = session(per_authority=2), ids()
    messages = [receive(ours, asked(id=next(made)))[0] for _ in range(2)]
    (event,) = receive(ours, asked(id=next(made)))
    assert isinstance(event, Undelivered)
    assert (event.code, event.reason) == (Code.RESOURCE_EXHAUSTED, "too_many")
    ((given, _),) = sent(ours)
    assert given.commstatus == Code.RESOURCE_EXHAUSTED
    (other,) = receive(ours, asked(id=next(made), source="//device5/1/1/0"))
    assert other.kind is Kind.REQUEST
    ours.send(Message(Kind.RESPONSE, "", messages[0].id), 0.0)
    (again,) = receive(ours, asked(id=next(made)))
    assert again.kind is Kind.REQUEST


def test_nothing_is_left_of_a_connection_that_is_lost() -> None:
    ours, made = session(per_authority=1), ids()
    receive(ours, asked(id=next(made)))
    ours.send(Message(Kind.PUBLISH, "door.opened"), 0.0)
    ours.connection_lost("gone")
    assert ours.frames_to_send() == []
    (message,) = receive(ours, asked(id=next(made)))
    assert message.kind is Kind.REQUEST
    assert ours.next_tick() is None


@pytest.mark.parametrize("frame", [vectors.PUBLICATION, vectors.REQUEST])
def test_a_frame_is_written_as_it_was_read(frame: bytes) -> None:
    codec = Up().codec()
    (message,) = codec.decode(frame)
    assert isinstance(message, Message)
    assert codec.encode([message]) == frame


def test_the_codec_writes_what_attributes_say_and_refuses_what_breaks_a_rule() -> None:
    codec = Up().codec()
    with pytest.raises(LocalProtocolError, match="rule publish.source"):
        codec.encode([Message(Kind.PUBLISH, attributes={"id": vectors.ID.format(0), "source": "//a/1/1/1"})])
    with pytest.raises(LocalProtocolError, match="not a UUID"):
        codec.encode([Message(Kind.PUBLISH, attributes={"source": "//a/1/1/8000"})])
    with pytest.raises(Unsupported, match="not 2"):
        codec.encode([Message(Kind.PUBLISH), Message(Kind.PUBLISH)])
    with pytest.raises(Unsupported, match="subscribe"):
        codec.encode([Message(Kind.SUBSCRIBE)])


def test_urgency_is_that_of_the_message_its_subject_or_its_question() -> None:
    codec = Up(priorities={"light": "CS3"}).codec()
    (first,) = receive(session(), asked(priority=7))
    assert isinstance(first.id, UpReturnAddress)
    messages = [Message(Kind.PUBLISH, "door.opened"), Message(Kind.PUBLISH, "light"), Message(Kind.REQUEST, "UpdateDoor")]
    messages += [Message(Kind.PUBLISH, "x", attributes={"priority": "CS6"}), Message(Kind.RESPONSE, "", first.id)]
    assert [codec.urgency(message) for message in messages] == [1, 3, 4, 6, 6]
    assert codec.format_for({}, "x") is JSON
