"""The handshakes: every state has an answer to every verb, in every dialect."""

import json
import random
from itertools import product
from typing import Any

import pytest

from polybus import Kind, Limits, Message, Unauthorized
from polybus.plugins import CloseWanted, Ready, Refused, Role
from polybus.protocols import Jrep
from polybus.protocols.jrep.handshake import VERBS, Dialect, FederationState, step_of
from tests.doubles.driven import Driven

DIALECTS: tuple[Dialect, ...] = ("auto", "v3", "legacy")
ROLES: tuple[Role, ...] = ("client", "server")
COMMON = [FederationState.CONNECTED, FederationState.CLOSED]
STATES_OF: dict[Role, list[FederationState]] = {
    "client": [FederationState.ASSOCIATING, FederationState.TRYING, FederationState.QUEUEING, *COMMON],
    "server": [FederationState.LISTENING, FederationState.SYNCING, *COMMON],
}


def session(role: Role, dialect: Dialect = "auto", **options: Any) -> Driven:
    made = Driven(Jrep(dialect=dialect, **options).session(role, rng=random.Random(1)))
    made.start(0.0)
    return made


def command(bus: str, verb: str, **parts: Any) -> bytes:
    return json.dumps([{"ToSubject": bus, "CommandType": verb, **parts}]).encode()


def carry(one: Driven, other: Driven) -> int:
    """Take what one session has to send to the other: how many frames."""
    frames = one.frames_to_send()
    for frame in frames:
        other.receive(frame, 0.0)
    return len(frames)


def said(one: Driven) -> list[dict[str, Any]]:
    return [message for frame in one.frames_to_send() for message in json.loads(frame)]


def shaken(client: Jrep, server: Jrep) -> tuple[Driven, Driven]:
    """Two sessions after as many words as they need."""
    here, there = Driven(client.session("client")), Driven(server.session("server"))
    here.start(0.0)
    there.start(0.0)
    for turn in range(10):
        if not carry(here, there) + carry(there, here):
            if here.session.state is FederationState.CONNECTED:
                break
            here.tick(float(turn))
    return here, there


PARTS: list[dict[str, Any]] = [{}, {"Subject": "a"}, {"RemoteServices": "a,b"}, {"CapabilitiesFlags": "x"}]


@pytest.mark.parametrize("verb", [*VERBS, "Dance"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("role", ROLES)
def test_a_session_survives_every_verb_in_every_state(role: Role, dialect: Dialect, verb: str) -> None:
    for state, parts in product(STATES_OF[role], [*PARTS, {"Reason": "r"}, {"PolybusInterval": 5}]):
        one = session(role, dialect)
        one.session.state = state
        one.receive(command("ServerBus" if role == "server" else "ClientBus", verb, **parts), 1.0)
        action, then = step_of(role, dialect, state, verb if verb in VERBS else "unknown")
        refused = [event for event in one.events() if isinstance(event, Refused)]
        assert one.session.state is then or refused
        if action in ("reject", "violate", "expired"):
            assert len(refused) == 1


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("server", DIALECTS)
def test_two_of_ours_find_a_common_dialect_where_there_is_one(client: Dialect, server: Dialect) -> None:
    here, there = shaken(Jrep(dialect=client), Jrep(dialect=server))
    if {client, server} == {"v3", "legacy"}:
        assert here.session.state is not FederationState.CONNECTED
        assert there.session.state is FederationState.LISTENING
    else:
        assert here.session.state is there.session.state is FederationState.CONNECTED
        for one in (here, there):
            assert one.session.ours
            assert [event for event in one.events() if isinstance(event, Ready)] == [Ready()]


def test_the_words_of_v3_are_those_of_errai() -> None:
    client, server = session("client", "v3"), session("server")
    associate = client.frames_to_send()[0]
    assert json.loads(associate) == [
        {
            "ToSubject": "ServerBus",
            "CommandType": "Associate",
            "PriorityProcessing": "1",
            "RemoteServices": "ClientBus,ClientBusErrors",
            "Polybus": "1",
        }
    ]
    output = iter(server.session.receive(associate, 0.0))
    assert isinstance(next(output), Ready)
    for subject in ("news", "x.Svc:RPC.add:int:", "x.Svc:RPC.sub:int:"):  # as the bus does when it hears that
        assert server.session.send(Message(Kind.SUBSCRIBE, subject), 0.0) == (None, ())
    ((finish,),) = map(json.loads, output)
    assert finish.pop("ConnectionSessionKey")
    assert finish == {
        "ToSubject": "ClientBus",
        "CommandType": "FinishAssociation",
        "RemoteServices": "ServerBus,ServerEchoService,news,x.Svc:RPC",
        "CapabilitiesFlags": "LongPolling,SSE",
        "Polybus": "1",
    }


def test_the_words_of_the_document_come_in_its_order() -> None:
    client, server = session("client", "legacy"), session("server")
    (connect,) = client.frames_to_send()
    assert json.loads(connect)[0]["CommandType"] == "ConnectToQueue"
    server.receive(connect, 0.0)
    (greeting,) = server.frames_to_send()
    words = ["RemoteSubscribe", "CapabilitiesNotice", "FinishStateSync"]
    assert [message["CommandType"] for message in json.loads(greeting)] == words
    assert server.events() == []
    client.receive(greeting, 0.0)
    (rest,) = client.frames_to_send()
    assert [message["CommandType"] for message in json.loads(rest)] == [words[0], words[2]]
    server.receive(rest, 0.0)
    assert client.events() == server.events() == [Ready()]


@pytest.mark.parametrize("nothing", [True, False], ids=["an empty answer", "silence"])
def test_a_client_falls_back_after_an_empty_answer_and_after_silence(nothing: bool) -> None:
    client = session("client")
    client.frames_to_send()
    if nothing:
        client.receive(b"[]", 0.1)
    else:
        assert client.next_tick() == 1.0
        client.tick(1.0)
    assert [word["CommandType"] for word in said(client)] == ["ConnectToQueue"]
    client.receive(command("ClientBus", "FinishAssociation", RemoteServices="ServerBus"), 2.0)
    assert client.session.state is FederationState.CONNECTED  # it was only slow


def test_a_second_associate_tells_everything_anew_and_is_no_second_link() -> None:
    server = session("server")
    server.receive(command("ServerBus", "Associate", RemoteServices="ClientBus,a,b"), 0.0)
    told = [(event.kind, event.subject) for event in server.events() if isinstance(event, Message)]
    assert told == [(Kind.SUBSCRIBE, "a"), (Kind.SUBSCRIBE, "b")]
    server.send(Message(Kind.SUBSCRIBE, "news"), 0.0)
    server.frames_to_send()
    server.receive(command("ServerBus", "Associate", RemoteServices="ClientBus,b,c"), 0.0)
    events = server.events()
    assert not any(isinstance(event, Ready) for event in events)
    told = [(event.kind, event.subject) for event in events if isinstance(event, Message)]
    assert told == [(Kind.UNSUBSCRIBE, "a"), (Kind.SUBSCRIBE, "b"), (Kind.SUBSCRIBE, "c")]
    (finish,) = said(server)
    assert finish["RemoteServices"] == "ServerBus,ServerEchoService,news"
    server = session("server")
    for _ in range(2):
        server.receive(command("ServerBus", "Associate", RemoteServices="ClientBus"), 0.0)
    assert [type(event) for event in server.events()] == [Ready]


def test_a_second_connect_to_queue_tells_everything_anew() -> None:
    """The client's list has its own bus in it, as in the first handshake; afterwards that is reserved again."""
    server = session("server")

    def greeted(subject: str) -> list[tuple[Kind, Any]]:
        server.receive(command("ServerBus", "ConnectToQueue"), 0.0)
        assert [message["CommandType"] for message in said(server)][-1] == "FinishStateSync"
        names = ["ClientBus", "ClientBusErrors", subject]
        server.receive(command("ServerBus", "RemoteSubscribe", SubjectsList=names), 0.0)
        server.receive(command("ServerBus", "FinishStateSync"), 0.0)
        events = server.events()
        assert not any(isinstance(event, Refused) for event in events)
        return [(event.kind, event.subject) for event in events if isinstance(event, Message)]

    assert greeted("a") == [(Kind.SUBSCRIBE, "a")]
    assert greeted("b") == [(Kind.UNSUBSCRIBE, "a"), (Kind.SUBSCRIBE, "b")]
    server.receive(command("ServerBus", "RemoteSubscribe", Subject="ClientBus"), 0.0)
    (refused,) = server.events()
    assert isinstance(refused, Refused) and refused.error.reason == "reserved_subject"


def test_traffic_or_an_associate_without_what_it_needs_is_answered_at_once_and_federates_nothing() -> None:
    server = session("server")
    server.receive(b'[{"ToSubject":"a","Value":1}]', 0.0)
    assert [word["CommandType"] for word in said(server)] == ["SessionExpired"]
    assert [type(event) for event in server.events()] == [Refused]
    assert server.session.state is FederationState.LISTENING
    server = session("server")
    server.receive(command("ServerBus", "Associate"), 0.0)
    (complaint,) = said(server)
    assert complaint["ToSubject"] == "ClientBusErrors"
    assert "RemoteServices" in complaint["ErrorMessage"]
    assert server.session.state is FederationState.LISTENING
    server = session("server")
    server.receive(b'{"CommandType":"Associate","ConnectionSessionKey":"k","WebSocketToken":"t"}', 0.0)
    assert [word.get("CommandType") for word in said(server)] == ["WebsocketNegotiationFailed"]
    assert server.session.state is FederationState.LISTENING


def test_a_client_whose_session_has_expired_comes_back_and_a_peer_cannot_speak_for_this_side_s_bus() -> None:
    client, _ = shaken(Jrep(), Jrep())
    client.events()
    client.receive(command("ClientBus", "SessionExpired"), 1.0)
    (event,) = client.events()
    assert isinstance(event, CloseWanted)
    assert event.error is None, "the link is made anew"
    assert "expired" in event.reason
    server = session("server")
    server.receive(command("ServerBus", "Associate", RemoteServices="a"), 0.0)
    server.events()
    server.receive(command("ClientBus", "Disconnect", Reason="spoof"), 0.0)
    (event,) = server.events()
    assert isinstance(event, Refused) and event.error.reason == "reserved_subject"
    assert server.session.state is FederationState.CONNECTED


def test_disconnect_says_why_in_both_directions() -> None:
    client, server = shaken(Jrep(), Jrep())
    client.close(1000, "bye", 1.0)
    (word,) = said(client)
    assert word == {"ToSubject": "ServerBus", "CommandType": "Disconnect", "Reason": "bye", "PolybusCode": 1000}
    server.events()
    server.receive(json.dumps([word]).encode(), 1.0)
    assert server.events() == [CloseWanted(1000, "bye")]
    client, server = shaken(Jrep(), Jrep())
    client.events()
    server.close(4401, "expired", 1.0)
    carry(server, client)
    (event,) = client.events()
    assert isinstance(event, CloseWanted) and (event.code, type(event.error)) == (4401, Unauthorized)
    bare = session("client")
    bare.receive(command("ClientBus", "FinishAssociation", RemoteServices="ServerBus"), 0.0)
    bare.events()
    bare.receive(command("ClientBus", "Disconnect", Reason="maintenance"), 1.0)
    assert bare.events() == [CloseWanted(1001, "maintenance")]


def test_a_peer_that_says_how_often_it_beats_is_held_to_it_and_others_are_not() -> None:
    client, server = shaken(Jrep(heartbeat=10), Jrep())
    assert client.next_tick() == 10.0
    client.tick(10.0)
    assert client.next_tick() == 20.0
    (beat,) = client.frames_to_send()
    server.events()
    server.receive(beat, 10.0)
    assert server.next_tick() == 40.0
    server.tick(39.0)
    assert server.events() == []
    server.tick(41.0)
    (event,) = server.events()
    assert isinstance(event, CloseWanted)
    plain = session("server")
    plain.receive(command("ServerBus", "Associate", RemoteServices="a"), 0.0)
    plain.receive(command("ServerBus", "Heartbeat"), 1.0)
    assert plain.next_tick() is None


def test_how_often_a_peer_beats_says_nothing_of_how_often_this_side_does() -> None:
    _, server = shaken(Jrep(), Jrep(heartbeat=10))
    server.frames_to_send()
    beats = []
    for step in range(1, 1300):
        now = step / 100
        server.receive(command("ServerBus", "Heartbeat", PolybusInterval=1) if step % 10 == 1 else b"[]", now)
        due = server.next_tick()
        if due is not None and due <= now:
            server.tick(now)
            assert (due := server.next_tick()) is None or due > now
            beats += [now] * len(server.frames_to_send())
    assert beats == [10.0]
    server.tick(14.0)
    assert CloseWanted(1006, "no heartbeat for too long") in server.events()


@pytest.mark.parametrize(
    "names",
    [[str(number) for number in range(50_000)], ["a"] * 100_000, ["ServerBus" + "\u200b" * number for number in range(400)]],
)
def test_of_a_handshake_that_lists_any_number_of_services_no_more_are_taken_than_a_peer_may_have(names: list[str]) -> None:
    for role, bus, verb in (("server", "ServerBus", "Associate"), ("client", "ClientBus", "FinishAssociation")):
        one = Driven(Jrep(dialect="v3").session(role, Limits(subscriptions=10), random.Random(1)))  # type: ignore[arg-type]
        one.start(0.0)
        one.receive(command(bus, verb, RemoteServices=",".join(names)), 0.0)
        assert one.session.state is FederationState.CONNECTED
        wanted = [event for event in one.events() if isinstance(event, Message)]
        assert len(wanted) <= 10 + 20
        assert len({event.subject for event in wanted}) == len(wanted)
