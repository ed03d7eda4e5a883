"""The session: names and addresses, times, tokens, hashes, answers; no sockets, and a clock that stands where it is put."""

import hashlib
import hmac
import json
import random
from typing import Any

import pytest

from polybus import Code, Limits, LocalProtocolError, Message, ReservedSubject, TooLarge, Unsupported
from polybus.message import Kind
from polybus.plugins import Ready, Refused, Undelivered
from polybus.protocols import UProtocol
from polybus.protocols._protobuf import ANY
from polybus.protocols.uprotocol.names import UProtocolNames, decode_name, encode_name
from tests.doubles.driven import Driven

from .support import PUBLISH, REQUEST, RESPONSE, Clock

NOW = 1_700_000_000_123  # the time in the ids of the examples


def session(clock: Clock | None = None, limits: Limits = Limits(), **options: Any) -> Driven:  # noqa: B008
    made = Driven(UProtocol(clock=clock or Clock(), **options).session("client", limits, random.Random(1)))
    made.start(0.0)
    assert made.events() == [Ready()]
    return made


@pytest.fixture
def ours() -> Driven:
    return session()


def receive(to: Driven, event: Any, now: float = 0.0) -> list[Any]:
    to.receive(event if isinstance(event, bytes) else json.dumps(event).encode(), now)
    return to.events()


def sent(from_: Driven) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in from_.frames_to_send()]


def request(subject: str, ttl: float | None = 5.0, body: Any = "hi") -> Message:
    return Message(Kind.REQUEST, subject, None, ANY.encode(body), ANY, None, ttl)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        *((plain, plain) for plain in ("user", "user.get", "a.b.c")),
        ("a.b.c.d", "a.b.c%2Ed"),
        ("a b", "a%20b"),
        ("gr\u00fcn", "gr%C3%BCn"),
        ("50%", "50%25"),
        ("a*b", "a%2Ab"),
        ("a#b", "a%23b"),
        (".a", "%2Ea"),
        ("a..b", "a%2E%2Eb"),
        ("..", "%2E%2E"),
    ],
)
def test_a_subject_becomes_a_segment_and_comes_back(subject: str, name: str) -> None:
    assert encode_name(subject) == name
    assert decode_name(name) == subject


@pytest.mark.parametrize("name", ["", "a%2Fb", "a%00b", "%ff"])
def test_a_segment_that_is_no_subject_stays_an_address(name: str) -> None:
    assert decode_name(name) is None


def test_requests_go_to_the_peer_and_publications_come_from_us() -> None:
    names = UProtocolNames("//VCU.VIN/body.access/1", "up://hu.veh7/hmi.app/1", 1024)
    assert names.method("user.get") == "up://hu.veh7/hmi.app/1/rpc.user.get"
    assert names.topic("news.today") == "//VCU.VIN/body.access/1/news.today#Message"
    assert names.topic("rpc.x") == "//VCU.VIN/body.access/1/rpc%2Ex#Message"
    full = "up://other.veh/x.y/2.1/door#Door"
    assert names.topic(full) == full
    assert names.subject(full) == full[3:]
    assert names.subject("UP://Other.VEH/x.y/2.1/door#Door") == full[3:]
    for subject in ("user.get", "a.b.c.d", "news", "rpc.x"):
        assert names.subject(names.topic(subject)) == subject
        assert names.subject(names.method(subject)) == subject
    assert names.subject("UP://HU.veh7/hmi.app/1/rpc.user.get") == "user.get"
    for uri in ("//vcu.vin/body.access/1/door#Door", "//vcu.vin/body.access/2/news#Message", "/4/1/3"):
        assert names.subject(uri) == uri


@pytest.mark.parametrize(
    ("subject", "error"),
    [
        ("response", ReservedSubject),
        (7, Unsupported),
        *((subject, LocalProtocolError) for subject in ("/a/1/door#Door", "/a/1/rpc.*", "/a//rpc.Get", "a/b", "x" * 1020)),
    ],
)
def test_what_cannot_be_asked_is_said(subject: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        session().send(request(subject), 0.0)


def test_the_default_entity_and_the_learned_one(ours: Driven) -> None:
    ours.send(request("user.get"), 0.0)
    (event,) = sent(ours)
    assert (event["source"], event["sink"]) == ("/polybus/1/rpc.response", "/polybus/1/rpc.user.get")
    (message,) = receive(ours, REQUEST)
    assert "up:" + str(message.subject) == REQUEST["sink"]  # not ours and not the peer's
    ours.send(request("user.get"), 0.0)
    assert sent(ours)[0]["sink"] == "up://hu.veh7/hmi.app/1/rpc.user.get"


def test_a_foreign_address_loses_its_scheme_a_plain_topic_of_the_peer_is_plain_and_a_slash_in_a_message_teaches_it_too(
    ours: Driven,
) -> None:
    (foreign,) = receive(ours, PUBLISH)
    assert "up:" + str(foreign.subject) == PUBLISH["source"] == foreign.attributes["source"]
    (plain,) = receive(ours, {**PUBLISH, "source": "up://cgw.veh7/climate.seat/1/news.today#Message"})
    assert plain.subject == "news.today"
    ours = session(entity="//vcu.vin/door/1")
    receive(ours, {**PUBLISH, "type": "notif.v1", "source": "//hu.veh7/hmi.app/1/key#a/b", "sink": "//vcu.vin/door/1"})
    ours.send(request("user.get"), 0.0)
    assert sent(ours)[0]["sink"] == "//hu.veh7/hmi.app/1/rpc.user.get"


def test_a_request_has_all_that_the_document_wants() -> None:
    ours = session(entity="//VCU.VIN/body.access/1", peer="//hu.veh7/hmi.app/1", token=lambda: "t0ken", permission_level=3)
    key = ours.send(request("user.get", 2.5), 0.0)
    (event,) = sent(ours)
    assert event.pop("data_base64")
    assert event == {
        "specversion": "1.0",
        "id": key,
        "type": "req.v1",
        "source": "//VCU.VIN/body.access/1/rpc.response",
        "sink": "//hu.veh7/hmi.app/1/rpc.user.get",
        "priority": "CS4",
        "ttl": 2500,
        "token": "t0ken",
        "plevel": 3,
        "datacontenttype": "application/protobuf",
    }


def test_a_request_without_an_end_is_refused_and_a_long_one_shortened(ours: Driven) -> None:
    with pytest.raises(LocalProtocolError, match="timeout"):
        ours.send(request("x", None), 0.0)
    ours.send(request("x", 1e12), 0.0)
    ours.send(request("x", 0.0), 0.0)
    assert [event["ttl"] for event in sent(ours)] == [2**31 - 1, 1]


def test_priorities_come_from_the_application_and_requests_have_four_at_least() -> None:
    ours = session(priorities={"door.>": "CS6", "log.*": "CS0"})
    for subject in ("door.open", "log.x", "other"):
        ours.send(request(subject), 0.0)
        ours.send(Message(Kind.PUBLISH, subject, body=1), 0.0)
    assert [event["priority"] for event in sent(ours)] == ["CS6", "CS6", "CS4", "CS0", "CS4", "CS1"]


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_an_answer_takes_over_address_priority_and_ttl(format: Any) -> None:
    clock = Clock()
    asker, server = session(clock, format=format), session(clock, format=format, priorities={"x": "CS5"})
    key = asker.send(request("x"), 0.0)
    (frame,) = asker.frames_to_send()
    (question,) = receive(server, frame)
    assert (question.id, question.subject, question.ttl) == (key, "x", 5.0)
    server.send(Message(Kind.RESPONSE, "x", question.id, body={"a": 1}), 0.0)
    (answer,) = server.codec.decode(server.frames_to_send()[0])
    assert isinstance(answer, Message)
    facts = answer.attributes
    assert (facts["source"], facts["sink"]) == ("/polybus/1/rpc.x", "/polybus/1/rpc.response")
    assert (facts["priority"], facts["ttl"], facts["reqid"], answer.body) == ("CS4", 5000, key, {"a": 1})


def asked(ours: Driven) -> dict[str, Any]:
    """A request that is out, and the answer to it as the peer would write it."""
    key = ours.send(request(RESPONSE["source"]), 0.0)
    ours.frames_to_send()
    return {**RESPONSE, "reqid": key, "sink": "/polybus/1/rpc.response"}


def test_an_answer_to_nobody_from_another_or_a_bad_one_is_refused_and_a_late_one_left_to_the_bus(ours: Driven) -> None:
    (refused,) = receive(ours, RESPONSE)
    assert refused.error.reason == "unknown_id"
    answer = asked(ours)
    ours.forget(answer["reqid"], 0.0)
    (late,) = receive(ours, answer)
    assert late.id == answer["reqid"]
    answer = asked(ours)
    (refused,) = receive(ours, {**answer, "priority": "CS9"})
    assert refused.error.reply_id == answer["reqid"]
    answer = asked(ours)
    (refused,) = receive(ours, {**answer, "source": "up://cgw.veh7/evil/1/rpc.SetHeat"})
    assert (refused.error.reason, refused.error.reply_id) == ("wrong_peer", None)
    (message,) = receive(ours, {**answer, "source": "up://CGW.VEH7/climate.seat/1/rpc.SetHeat"})
    assert message.kind is Kind.RESPONSE


def test_a_bad_request_is_answered_with_commstatus_and_one_without_address_is_not(ours: Driven) -> None:
    (refused,) = receive(ours, {**REQUEST, "priority": "CS1"})
    assert isinstance(refused, Refused)
    (answer,) = sent(ours)
    assert (answer["type"], answer["reqid"], answer["commstatus"]) == ("res.v1", REQUEST["id"], 3)
    assert (answer["source"], answer["sink"]) == (REQUEST["sink"], REQUEST["source"])
    receive(ours, {**REQUEST, "source": "up://x"})
    receive(ours, {**REQUEST, "id": "no"})
    assert sent(ours) == []


@pytest.mark.parametrize(
    ("id", "mode", "answered"),
    [
        ("018BCFE5-687B-8001-8000-00000000000A", "strict", True),
        ("cf8b1bcd-30bd-43be-a8d3-ad1cde652e10", "strict", False),  # the reqid of an answer would break a rule
        ("cf8b1bcd-30bd-43be-a8d3-ad1cde652e10", "lenient", True),
        ("no id", "lenient", False),
    ],
)
def test_a_bad_request_is_answered_where_a_good_one_would_be(id: str, mode: str, answered: bool) -> None:
    ours = session(mode=mode)
    receive(ours, {**REQUEST, "id": id, "priority": "CS1"})
    expected = [(id, Code.INVALID_ARGUMENT)] if answered else []
    assert [(event["reqid"], event["commstatus"]) for event in sent(ours)] == expected


def test_what_the_bus_refuses_is_commstatus_and_what_a_handler_says_is_a_status(ours: Driven) -> None:
    (question,) = receive(ours, REQUEST)
    facts = {"text": "nobody", "reason": None, "detail": None}
    ours.send(Message(Kind.ERROR, "", question.id, code=Code.UNIMPLEMENTED, attributes={**facts, "undelivered": True}), 0.0)
    ours.send(Message(Kind.ERROR, "", question.id, code=Code.NOT_FOUND, attributes=facts), 0.0)
    refused, said = sent(ours)
    assert refused["commstatus"] == 12
    assert "commstatus" not in said
    (error,) = UProtocol(mode="lenient").codec().decode(json.dumps(said).encode())
    assert isinstance(error, Message)
    assert (error.kind, error.code, error.attributes["text"]) == (Kind.ERROR, Code.NOT_FOUND, "nobody")


@pytest.mark.parametrize("code", [None, Code.UNAVAILABLE])
def test_an_answer_that_has_expired_is_not_taken_and_a_later_one_is(code: Code | None) -> None:
    clock = Clock()
    ours = session(clock)
    answer = {**asked(ours), "id": RESPONSE["id"], "ttl": 5000, **({} if code is None else {"commstatus": int(code)})}
    clock.ms = NOW + 5001
    (dead,) = receive(ours, answer)
    assert isinstance(dead, Undelivered)
    assert (dead.code, dead.reason) == (Code.DEADLINE_EXCEEDED, "expired")
    assert dead.message.kind is (Kind.RESPONSE if code is None else Kind.ERROR)
    assert str(dead.message.subject) == RESPONSE["source"].removeprefix("up:")
    clock.ms = NOW + 5000  # strictly after
    (message,) = receive(ours, answer)
    assert (message.kind, message.ttl) == (dead.message.kind, None)


def test_an_answer_lives_for_ever_without_ttl_or_time_in_its_id_and_with_an_allowance_as_much_longer() -> None:
    clock = Clock(NOW + 31_536_000_000)
    for ttl in (None, 0):
        ours = session(clock)
        assert receive(ours, {**asked(ours), "ttl": ttl})[0].kind is Kind.RESPONSE
    ours = session(Clock(NOW + 34_999), allowance=30)
    assert receive(ours, asked(ours))[0].kind is Kind.RESPONSE
    ours = session(Clock(NOW - 86_400_000))  # of a clock that is far ahead: a timer of this side runs
    assert receive(ours, asked(ours))[0].kind is Kind.RESPONSE
    event = {**REQUEST, "id": "5b9fe861-8c1c-4899-9b07-ad1cde652e10"}
    (message,) = receive(session(Clock(NOW + 10**12), mode="lenient"), event)
    assert (message.kind, message.ttl) == (Kind.REQUEST, 5.0)


def sign(data: bytes) -> bytes:
    return hmac.digest(b"device key", data, hashlib.sha256)


def verify(data: bytes, given: bytes) -> bool:
    return hmac.compare_digest(sign(data), given)


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_a_hash_is_made_and_verified_and_a_wrong_or_missing_one_refused(format: Any) -> None:
    good, plain = session(sign=sign, format=format), session(format=format)
    for by, fine in ((good, True), (plain, False)):
        by.send(request("x"), 0.0)
        by.send(Message(Kind.PUBLISH, "x", body=b"\x00"), 0.0)
        reader = session(verify=verify, format=format)
        for frame in by.frames_to_send():
            (found,) = receive(reader, frame)
            assert isinstance(found, Message) is fine
            if not fine:
                assert found.error.reason == "invalid_hash"
        answers = [reader.codec.decode(frame)[0] for frame in reader.frames_to_send()]
        assert [answer.code for answer in answers if isinstance(answer, Message)] == ([] if fine else [Code.UNAUTHENTICATED])


@pytest.mark.parametrize("format", ["json", "protobuf"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("token", 5), ("token", b"s3cret"), ("sign", "s3cret"), ("sign", None)],
    ids=["int", "bytes", "text", "None"],
)
def test_what_a_function_of_the_application_gives_is_looked_at(format: Any, option: str, value: Any) -> None:
    options: Any = {option: lambda *_: value}
    with pytest.raises(LocalProtocolError, match=rf"{option}\(\) returned {type(value).__name__}") as caught:
        session(format=format, **options).send(request("x"), 0.0)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_a_function_may_give_no_token(format: Any) -> None:
    asker = session(format=format, token=lambda: None)
    asker.send(request("x"), 0.0)
    (frame,) = asker.frames_to_send()
    (message,) = receive(session(format=format), frame)
    assert "token" not in message.attributes and b"null" not in frame


def test_a_function_that_raises_where_a_hash_is_wrong_refuses_it() -> None:
    """As those of the package cryptography do. The connection stays."""

    def genuine(data: bytes, given: bytes) -> bool:
        if given != sign(data):
            raise ArithmeticError("a wrong signature")
        return True

    asker, reader = session(sign=lambda data: b"wrong"), session(verify=genuine)
    asker.send(request("x"), 0.0)
    (refused,) = receive(reader, asker.frames_to_send()[0])
    assert (refused.error.reason, type(refused.error.__cause__)) == ("invalid_hash", ArithmeticError)
    assert sent(reader)[0]["commstatus"] == Code.UNAUTHENTICATED


def test_notifications_are_written_as_the_sdks_did_or_as_the_document_says() -> None:
    for name in ("pub.v1", "notif.v1"):
        ours = session(peer="//hu.veh7/hmi.app/1", notification=name)
        ours.send(Message(Kind.NOTIFY, "door.opened", body=1), 0.0)
        (event,) = sent(ours)
        addresses = ("//hu.veh7/hmi.app/1", "/polybus/1/door.opened#Message")
        assert (event["type"], event["sink"], event["source"]) == (name, *addresses)
        (message,) = receive(session(), event)
        assert (message.kind, message.subject) == (Kind.NOTIFY, "door.opened")


def test_a_batch_is_taken_message_by_message_and_no_more_is_looked_at_than_may_be_bad_in_a_minute(ours: Driven) -> None:
    found = receive(ours, [PUBLISH, {**PUBLISH, "priority": "CS9"}, REQUEST])
    assert [type(item) for item in found[1:2]] == [Refused]
    assert [item.kind for item in (found[0], found[2])] == [Kind.PUBLISH, Kind.REQUEST]
    made, bad = session(limits=Limits(bad_messages=3)), list[Any]([{}] * 3)
    *refused, last = receive(made, [*bad, PUBLISH])
    assert [type(event) for event in refused] == [Refused, Refused, Refused]
    assert last.kind is Kind.PUBLISH
    assert len(receive(made, [*bad, {}, PUBLISH, *bad])) == 4


def test_what_is_larger_than_a_message_may_be_is_refused_before_it_is_sent() -> None:
    ours = session()
    ours.send(request("x", body="y" * (3 * Limits().message // 4 - 2048)), 0.0)  # in base64 it is a third longer
    for large in (request("x", body="y" * Limits().message), Message(Kind.PUBLISH, "x", body="y" * Limits().message)):
        with pytest.raises(TooLarge, match=str(Limits().message)):
            ours.send(large, 0.0)


def test_a_channel_is_not_opened_under_a_name_of_ours(ours: Driven) -> None:
    own = ours.send(Message(Kind.OPEN, "talk", None, attributes={"mode": "channel", "credit": 1, "hops": 0}), 0.0)
    (event,) = sent(ours)
    assert event["id"] == own
    (refused,) = receive(ours, event)
    assert refused.error.reason == "invalid_id"


UNREADABLE: list[dict[str, Any]] = [{"hash": "no base64!"}, {"data_base64": "no base64!"}]


@pytest.mark.parametrize("parts", UNREADABLE)
def test_a_request_with_an_unreadable_hash_or_data_is_answered_and_an_answer_ends_it(
    ours: Driven, parts: dict[str, Any]
) -> None:
    (event,) = receive(ours, {**REQUEST, **parts})
    assert isinstance(event, Refused)
    (answer,) = sent(ours)
    assert (answer["reqid"], answer["commstatus"]) == (REQUEST["id"], Code.INVALID_ARGUMENT)
    answer = asked(ours)
    (event,) = receive(ours, {**answer, **parts})
    assert isinstance(event, Refused) and event.error.reply_id == answer["reqid"]
