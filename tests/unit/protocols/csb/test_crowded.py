"""A server's socket to a broker: clients come and go, each with ids of its own."""

import json
from typing import Any

import pytest

from polybus.errors import Disconnected
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import CloseWanted, PeerClosed, PeerOpened, Ready, Refused
from polybus.protocols import Csb
from polybus.protocols.csb.session import REST
from tests.doubles.driven import Driven


def session_of(**options: Any) -> Driven:
    session = Driven(Csb(side="broker-server", **options).session("client", Limits()))
    session.start(0.0)
    return session


def with_clients(*numbers: int) -> Driven:
    session = session_of()
    for number in numbers:
        session.receive(number.to_bytes(4) + bytes.fromhex("d0000000 00000000"), 0.0)
    session.events()
    return session


@pytest.fixture
def session() -> Driven:
    return with_clients(7)


def said(session: Driven, frame: str, payload: bytes = b"") -> list[Any]:
    session.receive(bytes.fromhex(frame) + payload, 0.0)
    return session.events()


def sent(session: Driven) -> list[str]:
    return [frame.hex() for frame in session.frames_to_send()]


def test_without_an_id_nothing_but_the_documents_bytes_go_out() -> None:
    session = session_of()
    assert isinstance(session.events()[0], Ready)
    assert sent(session) == []
    assert said(session, "00000007 d0000000 00000000") == [PeerOpened(7, "client 7", {})]
    session.close(4401, "no", 0.0, 7)
    assert sent(session) == ["00000007" + "f0000000" + "00000000"]


def test_with_an_id_it_introduces_itself_and_learns_who_its_clients_are() -> None:
    session = session_of(server="A", instance="i1")
    assert session.events() == []
    [frame] = session.frames_to_send()
    assert frame[:12] == bytes.fromhex("00000000 12000000 ffff0000")
    assert json.loads(frame[12:]) == {"v": 1, "server": "A", "instance": "i1"}
    assert isinstance(said(session, "00000000 22000000 ffff0000", b'{"v":1}')[0], Ready)
    facts = b'{"address":"10.0.0.1:5","params":{"path":"/game","n":1}}'
    assert said(session, "00000007 d2000000 00000000", facts) == [PeerOpened(7, "10.0.0.1:5", {"path": "/game"})]
    facts = b'{"address":5,"params":[1]}'
    assert said(session, "00000008 d2000000 00000000", facts) == [PeerOpened(8, "client 8", {})]
    session.close(4401, "no", 0.0, 7)
    assert sent(session) == ["00000007" + "f2000000" + "00000000" + b'{"code":4401,"reason":"no"}'.hex()]


def test_clients_that_the_broker_has_assigned_before_it_answers_are_there_when_it_has() -> None:
    session = session_of(server="A")
    for frame in ("00000007 d0000000 00000000", "00000007 10000001 00000005"):
        assert said(session, frame) == []
    for frame in ("00000008 d0000000 00000000", "00000008 e0000000 00000000"):
        assert said(session, frame) == []
    assert said(session, "00000007 d2000000 00000000", b'{"address":"10.0.0.1:5","params":{"path":"/game"}}') == []
    ready, seven, asked, eight, gone = said(session, "00000000 22000000 ffff0000", b'{"v":1}')
    assert isinstance(ready, Ready)
    assert seven == PeerOpened(7, "10.0.0.1:5", {"path": "/game"})
    assert isinstance(asked, Message) and (asked.subject, asked.peer) == (5, 7)
    assert (eight, gone) == (PeerOpened(8, "client 8", {}), PeerClosed(8, "the client disconnected"))


def test_a_broker_that_refuses_it_or_says_too_much_before_it_answers_ends_the_connection() -> None:
    session = session_of(server="A")
    [event] = said(session, "00000000 22d00000 ffff0000", b'{"code":6,"text":"taken"}')
    assert isinstance(event, CloseWanted) and event.reason == "taken"
    session = session_of(server="A")
    for _ in range(5):
        session.receive(bytes.fromhex("00000007 10000001 00000005") + bytes(1_000_000), 0.0)
    [event] = session.events()
    assert isinstance(event, CloseWanted)


def test_each_client_has_ids_of_its_own_and_keys_that_no_other_has() -> None:
    session = with_clients(7, 8)
    one = session.send(Message(Kind.REQUEST, 5), 0.0, 7)
    two = session.send(Message(Kind.REQUEST, 5), 0.0, 8)
    assert one != two
    assert sent(session) == ["00000007" + "10000001" + "00000005", "00000008" + "10000001" + "00000005"]
    [answer] = said(session, "00000008 20000001 00000005")
    assert isinstance(answer, Message) and (answer.id, answer.peer) == (two, 8)
    [again] = said(session, "00000008 20000001 00000005")
    assert isinstance(again, Refused) and (again.error.reason, again.peer_key) == ("unknown_id", 8)
    session.forget(one, 1.0)
    assert session.next_tick() == 1.0 + REST
    session.tick(1.0 + REST)
    assert session.next_tick() is None


def test_when_a_client_has_gone_nothing_of_it_is_left_and_its_number_is_another_client(session: Driven) -> None:
    key = session.send(Message(Kind.REQUEST, 5), 0.0, 7)
    session.forget(key, 0.0)
    assert said(session, "00000007 e0000000 00000000") == [PeerClosed(7, "the client disconnected")]
    assert session.next_tick() is None
    with pytest.raises(Disconnected, match="client 7"):
        session.send(Message(Kind.REQUEST, 5), 0.0, 7)
    said(session, "00000007 d0000000 00000000")
    session.frames_to_send()
    again = session.send(Message(Kind.REQUEST, 5), 0.0, 7)
    assert again != key
    assert [type(event) for event in said(session, "00000007 d0000000 00000000")] == [PeerClosed, PeerOpened]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("000000", "short_frame"),
        ("00000007", "short_frame"),
        ("00000009 10000001 00000005", "unknown_peer"),
        ("00000009 20000001 00000005", "unknown_peer"),
        ("00000000 10000001 00000005", "unknown_peer"),
        ("00000000 d0000000 00000000", "bad_kind"),
        ("00000007 f0000000 00000000", "bad_kind"),
        ("00000007 40000000 00000000", "bad_kind"),
    ],
)
def test_what_a_broker_must_not_say(session: Driven, frame: str, reason: str) -> None:
    [event] = said(session, frame)
    assert isinstance(event, Refused) and event.error.reason == reason
    assert sent(session) == []


def test_a_bad_request_of_a_client_is_answered_to_that_client(session: Driven) -> None:
    [event] = said(session, "00000007 12000005 00000001 7b")
    assert isinstance(event, Refused) and event.answer is not None
    session.send(event.answer, 0.0, event.peer_key)
    [frame] = session.frames_to_send()
    assert frame[:12] == bytes.fromhex("00000007 22cb0005 00000001")


def test_leaving_sends_everybody_away() -> None:
    session = with_clients(7, 8)
    session.close(1001, "the bus is leaving", 0.0)
    assert sent(session) == [f"{number:08x}f000000000000000" for number in (7, 8)]
    session.close(1001, "again", 0.0, 7)
    assert sent(session) == []


def test_what_a_client_had_sent_before_it_learned_that_it_must_go_is_no_mistake_while_it_is_remembered() -> None:
    session = with_clients(7, 8)
    session.close(4401, "no", 0.0, 7)
    for frame in ("00000007 12000001 00010001 31", "00000007 12000001 00010001 7b", "00000007 ff"):
        assert said(session, frame) == []
    session = Driven(Csb(side="broker-server").session("client", Limits(peers=2)))
    session.start(0.0)
    for number in (1, 2, 3):
        session.receive(number.to_bytes(4) + bytes.fromhex("d0000000 00000000"), 0.0)
        session.close(4401, "no", 0.0, number)
    session.events()
    for number, refused in ((1, 1), (2, 0), (3, 0)):
        session.receive(number.to_bytes(4) + bytes.fromhex("12000001 00010001 31"), 0.0)
        assert len(session.events()) == refused


@pytest.mark.parametrize("end", ["e0000000 00000000", "d0000000 00000000 00000007 e0000000 00000000"])
def test_a_client_that_has_gone_since_sends_nothing_more(session: Driven, end: str) -> None:
    session.close(4401, "no", 0.0, 7)
    for frame in bytes.fromhex("00000007" + end).hex(" ", 12).split():
        session.receive(bytes.fromhex(frame), 0.0)
    session.events()
    [refused] = said(session, "00000007 12000001 00010001 31")
    assert isinstance(refused, Refused)
    assert "client 7 is not connected" in refused.error.args[0]
