"""One connection: ids, answers, refusals, and whatever bytes a peer may think of."""

import json
import random
from typing import Any

import pytest

from polybus import Code, Kind, Limits, Message
from polybus.cli.app import run
from polybus.errors import ReservedSubject, TooLarge
from polybus.plugins import Refused, Role
from polybus.protocols import Jrep
from tests.doubles.driven import Driven


def pair(**options: Any) -> tuple[Driven, Driven]:
    """Two sessions that are associated, with what they have said taken away."""
    client, server = Driven(Jrep(**options).session("client", rng=random.Random(1))), Driven(Jrep(**options).session("server"))
    client.start(0.0)
    server.start(0.0)
    carry(client, server)
    carry(server, client)
    client.events()
    server.events()
    return client, server


def carry(one: Driven, other: Driven) -> None:
    for frame in one.frames_to_send():
        other.receive(frame, 0.0)


def hear(one: Driven, *messages: dict[str, Any]) -> None:
    one.receive(json.dumps(messages).encode(), 0.0)


def said(one: Driven) -> list[dict[str, Any]]:
    return [message for frame in one.frames_to_send() for message in json.loads(frame)]


def messages(one: Driven) -> list[Message]:
    events = one.events()
    assert all(isinstance(event, Message) for event in events), events
    return [event for event in events if isinstance(event, Message)]


def reasons(one: Driven) -> list[str]:
    return [event.error.reason for event in one.events() if isinstance(event, Refused)]


def test_keys_are_never_given_twice_and_cannot_be_guessed() -> None:
    client, _ = pair()
    keys = [client.send(Message(Kind.REQUEST, "a"), 0.0) for _ in range(100)]
    assert len(set(keys)) == 100
    other = Driven(Jrep().session("client"))
    assert str(keys[0]).partition("-")[0] != str(other.send(Message(Kind.REQUEST, "a"), 0.0)).partition("-")[0]


@pytest.mark.parametrize("id", ["x-1", "PREFIX0", "PREFIX2", "PREFIX-1", "PREFIX٣", "PREFIX", "PREFIX99999999999999999999"])
def test_an_answer_that_nobody_asked_for_is_refused(id: str) -> None:
    client, _ = pair()
    key = str(client.send(Message(Kind.REQUEST, "a"), 0.0))
    forged = id.replace("PREFIX", key.removesuffix("1"))
    hear(client, {"ToSubject": f"a:{forged}:RespondTo:RPC"})
    hear(client, {"ToSubject": f"a:{forged}:Errors:RPC", "ErrorMessage": "x"})
    assert reasons(client) == ["unknown_id", "unknown_id"]


def test_who_sends_thousands_of_bad_messages_at_once_has_few_of_them_read() -> None:
    _, server = pair()
    payload = b"[" + b",".join([b"{}"] * 300_000) + b"]"
    assert Limits().bad_messages < len(server.codec.reader.read(payload)) < 1000
    server.receive(payload, 0.0)
    assert Limits().bad_messages < len(reasons(server)) < 1000


def test_a_peer_cannot_open_a_channel_under_a_name_of_ours() -> None:
    client, server = pair()
    key = client.send(Message(Kind.OPEN, "a", attributes={"mode": "stream", "credit": 1, "hops": 0}), 0.0)
    carry(client, server)
    (opened,) = messages(server)
    assert opened.id == key
    hear(client, {"ToSubject": "a", "PolybusVerb": "open", "PolybusId": key, "PolybusMode": "stream"})
    assert reasons(client) == ["invalid_id"]


def test_names_of_buses_and_of_answers_are_no_goals_and_subscriptions_to_answers_are_left_out() -> None:
    _, server = pair()
    server.receive(b'[{"ToSubject":"a","ReplyTo":"ServerBus","ErrorTo":"e"},{"ToSubject":"clientBUS ","Value":1}]', 0.0)
    assert reasons(server) == ["reserved_subject", "reserved_subject"]
    (told,) = said(server)
    assert told["ToSubject"] == "e"
    server.receive(b'[{"ToSubject":"x:RPC","CommandType":"m:Errors:RPC"},{"ToSubject":"x:RespondTo:RPC","ReplyTo":"r"}]', 0.0)
    assert reasons(server) == ["reserved_subject", "unknown_id"]
    for verb in ("RemoteSubscribe", "RemoteUnsubscribe"):
        hear(server, {"ToSubject": "ServerBus", "CommandType": verb, "SubjectsList": ["a:7:RespondTo:RPC", "b"]})
    assert [message.subject for message in messages(server)] == ["b", "b"]


RESERVED = ["AuthorizationServicE", "serverBUS", "ClientBusErrors", "ServerEchoService"]
ANSWERS = ["x:RespondTo:RPC", "x:1:Errors:RPC", "x:Errors:RPC.m", "x:RPC.m:RespondTo:RPC"]


@pytest.mark.parametrize("subject", RESERVED + ANSWERS)
def test_a_notification_to_the_buses_is_refused(subject: str) -> None:
    _, server = pair()
    hear(server, {"ToSubject": subject, "PolybusVerb": "notify", "Value": 1})
    assert reasons(server) == ["reserved_subject"]


@pytest.mark.parametrize("kind", [Kind.PUBLISH, Kind.NOTIFY, Kind.REQUEST, Kind.OPEN, Kind.SUBSCRIBE])
@pytest.mark.parametrize("subject", ANSWERS)
def test_a_name_that_the_peer_takes_for_an_answer_is_never_written(kind: Kind, subject: str) -> None:
    client, _ = pair()
    with pytest.raises(ReservedSubject, match="as answers"):
        client.send(Message(kind, subject), 0.0)
    assert client.frames_to_send() == []


@pytest.mark.parametrize("role", ["server", "client"])
@pytest.mark.parametrize("more", [{}, {"PriorityProcessing": "high"}], ids=["good", "bad"])
@pytest.mark.parametrize("name", ["ServerBus", "clientBUS ", "AuthenticationService"])
def test_nobody_is_told_of_errors_under_a_reserved_name(name: str, more: dict[str, str], role: Role) -> None:
    client, server = pair()
    one = server if role == "server" else client
    hear(one, {"ToSubject": "a", "ReplyTo": "r", "ErrorTo": name, **more})
    assert reasons(one) == ["invalid_part" if more else "reserved_subject"]
    assert [told["ToSubject"] for told in said(one)] == ["ClientBusErrors"] * (role == "server")


def test_a_client_s_bus_is_told_of_errors_that_name_it_or_nothing_and_a_server_s_is_not() -> None:
    client, server = pair()
    server.receive(b'[{"ToSubject":"a","ReplyTo":"r","ErrorTo":"ClientBusErrors"}]', 0.0)
    (asked,) = messages(server)
    server.send(Message(Kind.ERROR, "a", asked.id, code=Code.INTERNAL, attributes={"text": "x"}), 0.0)
    assert [told["ToSubject"] for told in said(server)] == ["ClientBusErrors"]
    for one, expected in ((server, ["ClientBusErrors"]), (client, [])):
        one.send(Message(Kind.ERROR, "a", ("reply", None), code=Code.INTERNAL, attributes={"text": "x"}), 0.0)
        assert [told["ToSubject"] for told in said(one)] == expected


@pytest.mark.parametrize("priority", ["+-5", "--1", "", "٣x", "9" * 401, 10**400, -(10**400), None, True, [1]])
def test_a_priority_that_is_no_number_is_refused_alone(priority: Any) -> None:
    _, server = pair()
    hear(server, {"ToSubject": "e", "PriorityProcessing": priority}, {"ToSubject": "f"})
    refused, good = server.events()
    assert isinstance(refused, Refused) and isinstance(good, Message)
    assert refused.error.reason in ("invalid_part", "malformed")
    assert good.subject == "f"


def test_priority_comes_first_within_a_payload() -> None:
    _, server = pair()
    priorities: tuple[dict[str, Any], ...] = (
        {},
        {"PriorityProcessing": "1"},
        {"PriorityProcessing": 0},
        {"PriorityProcessing": 5},
    )
    hear(server, *({"ToSubject": "job", "ReplyTo": str(number), **one} for number, one in enumerate(priorities)))
    assert [message.reply_to for message in messages(server)] == ["1", "3", "0", "2"]


def test_what_is_too_large_is_not_sent_and_a_lost_connection_forgets_what_was_not() -> None:
    client = Driven(Jrep().session("client", Limits(message=2000)))
    with pytest.raises(TooLarge, match="2000"):
        client.send(Message(Kind.REQUEST, "a", body="x" * 2000), 0.0)
    assert client.frames_to_send() == []
    client.send(Message(Kind.PUBLISH, "a"), 0.0)
    client.connection_lost("cut")
    assert client.frames_to_send() == []


def test_the_answers_to_one_payload_leave_in_as_few_payloads_as_the_limit_allows() -> None:
    client, server = pair()
    server.session._limits = Limits(message=500)
    asked = [{"ToSubject": "ServerEchoService", "ReplyTo": f"n{number}:RespondTo:RPC", "Value": "x"} for number in range(20)]
    hear(server, *asked)
    frames = server.frames_to_send()
    assert 1 < len(frames) < 20
    assert all(len(frame) <= 500 for frame in frames)
    assert [answer["ToSubject"] for frame in frames for answer in json.loads(frame)] == [one["ReplyTo"] for one in asked]


def test_sending_does_not_change_the_message_and_leaves_out_what_a_bridge_notes_of_another_wire() -> None:
    client, server = pair()
    message = Message(Kind.REQUEST, "a", body=1, headers={"x-a": "b"}, ttl=1.0)
    client.send(message, 0.0)
    assert (message.id, message.subject, message.headers, message.ttl, message.body) == (None, "a", {"x-a": "b"}, 1.0, 1)
    carry(client, server)
    messages(server)
    crossed = {"polybus-relayed": {"id": "018bcfe5-687b-8005-b010-101010101a1a"}, "Page": 7}
    for kind in (Kind.PUBLISH, Kind.NOTIFY):
        client.send(Message(kind, "a", body=1, attributes=crossed), 0.0)
    carry(client, server)
    assert [(message.body, message.attributes) for message in messages(server)] == [(1, {"Page": 7})] * 2


def test_a_peer_cannot_make_the_tables_grow_without_bound() -> None:
    _, server = pair()
    for start in range(0, 5000, 500):
        subjects = [f"s{number}" for number in range(start, start + 500)]
        hear(server, {"ToSubject": "ServerBus", "CommandType": "RemoteSubscribe", "SubjectsList": subjects})
    assert len(server.wanted) == Limits().subscriptions
    assert len(server.events()) == 5000, "the bus counts and refuses the rest"


def test_inspect_shows_the_messages_of_a_payload(capsys: pytest.CaptureFixture[str]) -> None:
    payload = b'[{"ToSubject":"a","Value":{"^EncodedType":"java.lang.Long","^ObjectID":"-1","^NumVal":"5"}},{"Value":1}]'
    assert run(["inspect", payload.hex(), "--protocol", "jrep", "--json"]) == 1
    shown = capsys.readouterr().out
    assert json.loads(shown.splitlines()[0])["messages"][0] == {"kind": "publish", "subject": "a", "body": 5}
    assert "no ToSubject" in shown
