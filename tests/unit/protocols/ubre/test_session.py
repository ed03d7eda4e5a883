"""A UBRE connection: its options, ids, refusals and limits."""

import json
import random
import re
import subprocess
import sys
from typing import Any

import pytest

import polybus.protocols
from polybus import Bus
from polybus.errors import Code, LocalProtocolError, TooLarge
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import CloseWanted, Ready, Refused
from polybus.protocols import Ubre
from tests.doubles.driven import Driven
from tests.unit.broker.raw import raw_peer


def opened(adapter: Ubre | None = None, limits: Limits | None = None) -> Driven:
    session = Driven((adapter or Ubre()).session("client", limits or Limits(), random.Random(7)))
    session.start(0.0)
    assert session.events() == [Ready()]
    return session


@pytest.fixture
def session() -> Driven:
    return opened()


def received(session: Driven, frame: str | bytes) -> list[Any]:
    session.receive(frame.encode() if isinstance(frame, str) else frame, 0.0)
    return session.events()


def reason_of(events: list[Any]) -> str:
    [event] = events
    assert isinstance(event, Refused)
    return event.error.reason


def test_it_is_ready_at_once_and_writes_nothing_by_itself(session: Driven) -> None:
    session.tick(5.0)
    session.forget("x", 5.0)
    session.close(1000, "bye", 5.0)
    assert (session.next_tick(), session.frames_to_send(), session.events()) == (None, [], [])


def test_ids_are_a_random_token_and_a_number(session: Driven) -> None:
    kinds = (Kind.REQUEST, Kind.NOTIFY, Kind.OPEN)
    keys = [session.send(Message(kind, "m"), 0.0) for kind in kinds]
    tokens = {str(key).partition("-")[0] for key in keys}
    assert len(tokens) == 1
    assert re.fullmatch(r"[A-Za-z0-9]{10}", tokens.pop())
    assert [str(key).partition("-")[2] for key in keys] == ["1", "2", "3"]
    for key, frame in zip(keys, session.frames_to_send(), strict=True):
        assert str(key).encode() in frame
    assert session.send(Message(Kind.PUBLISH, "t"), 0.0) is None
    session.send(message := Message(Kind.REQUEST, "m", "id of the asker", body=1), 0.0)
    assert message.id == "id of the asker"


def test_answers_to_ids_that_were_given_out_go_up_however_often(session: Driven) -> None:
    key = session.send(Message(Kind.REQUEST, "m"), 0.0)
    for frame in (f'{{"success":"{key}","body":1}}', f'{{"fail":"{key}","body":"x"}}', f'{{"success":"{key}"}}'):
        [message] = received(session, frame)
        assert message.id == key
    session.forget(key, 1.0)
    [late] = received(session, f'{{"success":"{key}"}}')
    assert late.id == key


TAILS = ["-0", "-2", "-x", "-", "-1x", "--1", "--", "-99999999999999999999"]


@pytest.mark.parametrize("id", [*(f'"TOKEN{tail}"' for tail in TAILS), "1", '"1"', '"other-1"', "-7"])
def test_answers_to_ids_of_others_or_that_were_never_given_out_are_refused(session: Driven, id: str) -> None:
    key = str(session.send(Message(Kind.REQUEST, "m"), 0.0))
    id = id.replace("TOKEN", key.partition("-")[0])
    assert reason_of(received(session, f'{{"success":{id}}}')) == "unknown_id"
    assert reason_of(received(session, f'{{"fail":{id},"body":"x"}}')) == "unknown_id"


def test_a_peer_cannot_open_a_channel_under_an_id_of_ours(session: Driven) -> None:
    key = session.send(Message(Kind.OPEN, "s", attributes={"mode": "channel", "credit": 1}), 0.0)
    assert reason_of(received(session, f'{{"open":"{key}","subject":"s","mode":"channel","n":1}}')) == "invalid_id"
    [message] = received(session, '{"open":"mine","subject":"s","mode":"channel","n":1}')
    assert message.kind is Kind.OPEN


def test_ids_are_echoed_with_the_type_that_they_came_with(session: Driven) -> None:
    for written in ("7", '"7"', "-1"):
        [request] = received(session, f'{{"request":"m","id":{written}}}')
        session.send(Message(Kind.RESPONSE, "", request.id, body=1), 0.0)
        assert session.frames_to_send() == [f'{{"success":{written},"body":1}}'.encode()]


def test_a_refused_request_is_answered_one_without_an_id_is_not_and_the_connection_goes_on(session: Driven) -> None:
    [refused] = received(session, '{"request":"a\\nb","id":4}')
    assert isinstance(refused, Refused)
    [answer] = session.frames_to_send()
    [message] = session.codec.decode(answer)
    assert isinstance(message, Message)
    assert (message.kind, message.id, message.code) == (Kind.ERROR, 4, Code.INVALID_ARGUMENT)
    assert (message.attributes["reason"], message.attributes["text"]) == ("invalid_subject", refused.error.text)
    [message] = received(session, '{"request":"m","id":4}')
    assert message.subject == "m"
    assert reason_of(received(session, '{"publish":"a\\nb"}')) == "invalid_subject"
    assert session.frames_to_send() == []


def test_a_frame_above_the_limit_ends_the_connection_and_is_not_queued_here() -> None:
    session = opened(Ubre(format="binary"), Limits(message=1000))
    [refused, close] = received(session, b"P\0\1\xff\xff\xff\xfet")
    assert isinstance(refused, Refused) and isinstance(close, CloseWanted)
    assert (close.code, close.reason, close.error) == (1009, "too_large", refused.error)
    session = opened(limits=Limits(message=100))
    with pytest.raises(TooLarge, match="limit: message"):
        session.send(Message(Kind.PUBLISH, "t", body="x" * 100), 0.0)
    with pytest.raises(LocalProtocolError):
        session.send(Message(Kind.PUBLISH, "a\nb"), 0.0)
    assert session.frames_to_send() == []
    session.send(Message(Kind.PUBLISH, "t", body="x" * 10), 0.0)
    assert len(session.frames_to_send()) == 1


@pytest.mark.parametrize(
    ("format", "reads", "writes"),
    [("json", {"text"}, "text"), ("binary", {"binary"}, "binary"), ("any", {"text", "binary"}, "text")],
)
def test_a_codec_says_which_frames_it_reads_and_writes(format: Any, reads: set[str], writes: str) -> None:
    codec = Ubre(format=format).codec()
    assert (set(codec.reads), codec.writes) == (reads, writes)
    assert codec.format_for({"a": 1}, "t") is codec.formats[0]


def test_any_reads_both_formats_and_writes_json() -> None:
    codec = Ubre(format="any").codec()
    for frame in (b'{"publish":"t"}', b' {"publish":"t"}', b"P\0\1\0\0\0\0t"):
        [message] = codec.decode(frame)
        assert isinstance(message, Message)
        assert (message.kind, message.subject) == (Kind.PUBLISH, "t")
        assert codec.encode([message]) == b'{"publish":"t"}'


def test_ids_of_two_connections_differ_unless_they_are_made_from_one_generator() -> None:
    def first_id(**options: Any) -> object:
        return Driven(Ubre().session("client", **options)).send(Message(Kind.REQUEST, "m"), 0.0)

    assert first_id() != first_id()
    assert first_id(rng=random.Random(1)) == first_id(rng=random.Random(1)) != first_id(rng=random.Random(2))


@pytest.mark.native
def test_a_protocol_is_loaded_when_it_is_first_asked_for() -> None:
    script = (
        "import sys, polybus.protocols as p; loaded = lambda: 'polybus.protocols.ubre' in sys.modules;"
        "assert not loaded(); p.Ubre; assert loaded()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="Nothing"):
        polybus.protocols.Nothing  # noqa: B018


@pytest.mark.native
async def test_in_the_dialect_of_the_document_a_body_without_a_subject_goes_to_the_handler_of_the_empty_one() -> None:
    bus = Bus()
    bus.handle("user.get")(lambda body: {"user": body["id"]})
    bus.handle("")(lambda body: {"whatever": body})
    asked = [
        {"request": "1", "body": {"subject": "user.get", "body": {"id": 7}}},
        {"request": "2", "body": [1, 2]},
        {"request": "3"},
    ]
    async with bus.serve("ubre+tcp://127.0.0.1:0?dialect=spec") as listener, raw_peer(listener.url) as raw:
        await raw.send(*(json.dumps(one).encode() for one in asked))
        answers = [json.loads(bytes.fromhex(await raw.receive())) for _ in asked]
    assert {answer["success"]: answer["body"] for answer in answers} == {
        "1": {"user": 7},
        "2": {"whatever": [1, 2]},
        "3": {"whatever": None},
    }
