"""One connection: its states, its answers, and what comes of every kind of message and error."""

import json
import random
from itertools import product
from typing import Any

import pytest

from polybus.body import JSON
from polybus.errors import Code, Forbidden, LocalProtocolError, TooLarge, Unauthorized, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import CloseWanted, Confirmed, OtherServers, Ready, Refused, Undelivered
from polybus.protocols import Nats
from polybus.protocols.nats.session import TRANSITIONS, NatsEvent, NatsState
from tests.doubles.driven import Driven

INFO = {"server_id": "S", "headers": True, "max_payload": 1 << 20}


def info(**more: Any) -> bytes:
    return b"INFO " + json.dumps({**INFO, **more}).encode() + b"\r\n"


def waiting(limits: Limits | None = None, **options: Any) -> Driven:
    session = Driven(Nats(**options).session("client", limits or Limits(), random.Random(7)))
    session.start(0.0)
    return session


def ready(limits: Limits | None = None, *, said: dict[str, Any] | None = None, **options: Any) -> Driven:
    session = waiting(limits, **options)
    session.receive(info(**(said or {})), 1.0)
    session.receive(b"PONG\r\n", 1.0)
    assert Ready(bare=True) in session.events()
    session.frames_to_send()
    return session


@pytest.fixture
def session() -> Driven:
    return ready()


def told(session: Driven, frame: bytes, now: float = 2.0) -> list[Any]:
    session.receive(frame, now)
    return session.events()


def only(session: Driven) -> Any:
    [event] = session.events()
    return event


def sent(session: Driven, message: Message) -> list[bytes]:
    session.send(message, 2.0)
    return session.frames_to_send()


def asked(session: Driven, subject: str = "user.get") -> tuple[str, str]:
    """The token of a request, and the inbox in which its answer is awaited."""
    token = session.send(Message(Kind.REQUEST, subject, None, b"7", JSON, ttl=2.0), 2.0)
    assert token is not None
    [frame] = session.frames_to_send()
    inbox = frame.split()[2].decode()
    assert inbox.startswith("_INBOX.") and inbox.endswith(f".{token}")
    return token, inbox


def delivery(subject: str, sid: str = "1", payload: bytes = b"", *headers: str, status: str = "", reply: str = "") -> bytes:
    names = f"{subject} {sid} {reply}".strip()
    if not headers and not status:
        return f"MSG {names} {len(payload)}\r\n".encode() + payload + b"\r\n"
    block = ("\r\n".join([f"NATS/1.0{status}", *headers]) + "\r\n\r\n").encode()
    return f"HMSG {names} {len(block)} {len(block) + len(payload)}\r\n".encode() + block + payload + b"\r\n"


def test_every_event_has_its_next_state_a_connection_that_is_closed_stays_closed_and_only_a_pong_lets_us_in() -> None:
    for state, event in product(NatsState, NatsEvent):
        assert isinstance(TRANSITIONS[state][event], NatsState)
    assert set(TRANSITIONS[NatsState.CLOSED].values()) == {NatsState.CLOSED}
    into = {(state, event) for state, row in TRANSITIONS.items() for event, then in row.items() if then is NatsState.READY}
    assert {state for state, _ in into} == {NatsState.CONNECTING, NatsState.READY}
    assert {event for state, event in into if state is NatsState.CONNECTING} == {NatsEvent.PONG}


def test_the_handshake() -> None:
    session = waiting(client="test")
    assert (session.events(), session.frames_to_send(), session.next_tick()) == ([], [], None)
    assert told(session, info()) == []
    connect, inbox, ping = session.frames_to_send()
    members = json.loads(connect.removeprefix(b"CONNECT "))
    assert members.pop("lang")
    assert members == {
        "verbose": False, "pedantic": False, "tls_required": False, "name": "test", "protocol": 1,
        "echo": True, "headers": True, "no_responders": True,
    }  # fmt: skip
    assert inbox.startswith(b"SUB _INBOX.") and inbox.endswith(b".* 1\r\n")
    assert ping == b"PING\r\n"
    assert told(session, b"+OK\r\n") == []
    assert told(session, b"PING\r\n") == []
    assert session.frames_to_send() == [b"PONG\r\n"]
    assert told(session, b"PONG\r\n") == [Ready(bare=True)]
    assert told(session, info(max_payload=7)) == []
    assert session.frames_to_send() == []


def test_two_connections_have_inboxes_that_cannot_be_guessed() -> None:
    inboxes = set()
    for seed in range(100):
        session = Driven(Nats().session("client", Limits(), random.Random(seed)))
        session.receive(info(), 1.0)
        inboxes.add(session.frames_to_send()[1])
    assert len(inboxes) == 100


@pytest.mark.parametrize(
    ("options", "members"),
    [({"user": "ann", "password": "s"}, {"user": "ann", "pass": "s"}), ({"token": "s3cret"}, {"auth_token": "s3cret"})],
)
def test_who_we_are_stands_in_connect(options: Any, members: dict[str, Any]) -> None:
    session = waiting(**options)
    session.receive(info(), 1.0)
    connect = json.loads(session.frames_to_send()[0].removeprefix(b"CONNECT "))
    assert members.items() <= connect.items()


@pytest.mark.parametrize(
    "frame", [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"MSG a 1 0\r\n\r\n", b"PUB a 0\r\n\r\n", b"SSH-2.0\r\n", b""]
)
def test_who_does_not_begin_with_info_is_no_server(frame: bytes) -> None:
    session = waiting()
    refused, closed = told(session, frame)
    assert isinstance(refused, Refused) and isinstance(closed, CloseWanted)
    assert "begins with INFO" in closed.reason
    assert told(session, info()) == session.frames_to_send() == []


@pytest.mark.parametrize("frame", [b"PUB a 0\r\n\r\n", b"SUB a 1\r\n", b"CONNECT {}\r\n", b"UNSUB 1\r\n"])
def test_what_only_clients_say_ends_the_connection(session: Driven, frame: bytes) -> None:
    assert [type(event) for event in told(session, frame)] == [Refused, CloseWanted]


def test_what_is_malformed_later_costs_itself_alone(session: Driven) -> None:
    [refused] = told(session, b"MSG a..b 2 5\r\nhello\r\n")
    assert refused.error.reason == "invalid_subject"
    assert told(session, b"PING\r\n") == []
    [refused] = told(session, b"PONG\r\n")
    assert refused.error.reason == "unexpected"


@pytest.mark.parametrize(
    "frame",
    [b"MSG a 2 3\r\n1\r\nMS", b"G a 2 1\r\n", b"MSG a b c d e\r\n", b"HMSG a b c d 9 9\r\n", b"HMSG a 2 9 5\r\nhello\r\n"],
)
def test_a_stream_that_is_out_of_step_is_left(session: Driven, frame: bytes) -> None:
    refused, wanted = told(session, frame)
    assert isinstance(refused, Refused) and isinstance(wanted, CloseWanted)
    assert wanted.code == 1002
    assert told(session, delivery("a", "2", b"1")) == []


def test_subscriptions_and_handlers_have_sids_of_their_own() -> None:
    session = ready(queue="workers")
    handler = {"handler": True}
    assert sent(session, Message(Kind.SUBSCRIBE, "news.*")) == [b"SUB news.* 2\r\n"]
    assert sent(session, Message(Kind.SUBSCRIBE, "news.*")) == []
    assert sent(session, Message(Kind.SUBSCRIBE, "news.*", attributes=handler)) == [b"SUB news.* workers 3\r\n"]
    assert sent(session, Message(Kind.UNSUBSCRIBE, "news.*")) == [b"UNSUB 2\r\n"]
    assert sent(session, Message(Kind.UNSUBSCRIBE, "news.*")) == []
    assert sent(session, Message(Kind.UNSUBSCRIBE, "news.*", attributes=handler)) == [b"UNSUB 3\r\n"]
    assert sent(session, Message(Kind.SUBSCRIBE, "news.{day}")) == [b"SUB news.* 4\r\n"]
    for subject, error, text in (
        ("a b", LocalProtocolError, "blank"),
        (7, Unsupported, "number"),
        ("a/b.*", Unsupported, "URI"),
    ):
        with pytest.raises(error, match=text):
            session.send(Message(Kind.SUBSCRIBE, subject), 2.0)


def test_of_the_copies_of_a_publication_that_of_the_oldest_subscription_counts(session: Driven) -> None:
    for pattern in ("news.>", "news.*", "news.today", "other"):
        session.send(Message(Kind.SUBSCRIBE, pattern), 2.0)
    for order in (["4", "3", "2"], ["2", "3", "4"], ["3", "2", "4"]):
        got = [event for sid in order for event in told(session, delivery("news.today", sid, b"1"))]
        assert [(event.kind, event.subject, event.body) for event in got] == [(Kind.PUBLISH, "news.today", 1)]
    assert told(session, delivery("news.a.b", "2"))
    session.send(Message(Kind.UNSUBSCRIBE, "news.>"), 2.0)
    assert told(session, delivery("news.today", "2")) == []  # it was on its way
    assert told(session, delivery("news.today", "4")) == []
    assert len(told(session, delivery("news.today", "3"))) == 1
    session.send(Message(Kind.SUBSCRIBE, "news.>"), 2.0)
    assert told(session, delivery("news.today", "6")) == []
    assert len(told(session, delivery("news.today", "3"))) == 1


def test_the_short_way_writes_what_send_writes_but_for_publications_of_which_a_copy_may_come_back(session: Driven) -> None:
    [long] = sent(session, Message(Kind.PUBLISH, "news.today", None, b"7", JSON))
    assert session.publication("news.today", b"7") == long == b"PUB news.today 1\r\n7\r\n"
    session.send(Message(Kind.SUBSCRIBE, "news.*"), 2.0)
    assert session.publication("news.today", b"7") is None, "its copy needs a mark"
    assert session.publication("other", b"7") == b"PUB other 1\r\n7\r\n"
    session.send(Message(Kind.SUBSCRIBE, "job", attributes={"handler": True}), 2.0)
    assert session.publication("other", b"7") is None, "this side must not answer itself"
    with pytest.raises(TooLarge, match="max_payload"):
        ready(said={"max_payload": 9}).publication("other", b'"0123456789"')
    with pytest.raises(LocalProtocolError, match="blank"):
        ready().publication("a b", b"7")


@pytest.mark.parametrize(
    "frame", [b"MSG news 2 1\r\n12\r\n", b"MSG news 2 1\r\n\r\n", b"MSG news 2 1\r\n1\rx", b"MSG news 2 x\r\n1\r\n"]
)
def test_a_line_that_came_before_is_checked_like_a_new_one(session: Driven, frame: bytes) -> None:
    session.send(Message(Kind.SUBSCRIBE, "news"), 2.0)
    assert [told(session, delivery("news", "2", body))[0].body for body in (b"1", b"1", b"23")] == [1, 1, 23]
    refused, wanted = told(session, frame)
    assert isinstance(refused, Refused) and isinstance(wanted, CloseWanted)


def test_a_question_to_be_entered_is_answered_in_order_with_what_was_refused(session: Driven) -> None:
    session.send(Message(Kind.SUBSCRIBE, "open"), 2.0)
    first = session.confirm(2.0)
    session.send(Message(Kind.SUBSCRIBE, "secret.*"), 2.0)
    second = session.confirm(2.0)
    assert session.frames_to_send() == [b"SUB open 2\r\n", b"PING\r\n", b"SUB secret.* 3\r\n", b"PING\r\n"]
    assert told(session, b"PONG\r\n") == [Confirmed(first, ())]
    [letter] = told(session, b"-ERR 'Permissions Violation for Subscription to \"secret.*\"'\r\n")
    assert (letter.message.kind, letter.code) == (Kind.SUBSCRIBE, Code.PERMISSION_DENIED)
    assert told(session, b"PONG\r\n") == [Confirmed(second, ("secret.*",))]
    assert sent(session, Message(Kind.UNSUBSCRIBE, "secret.*")) == []
    session.confirm(2.0)
    assert told(session, b"PONG\r\n") == [Confirmed(second + 1, ())]


@pytest.fixture
def handling(session: Driven) -> Driven:
    sent(session, Message(Kind.SUBSCRIBE, "user.get", attributes={"handler": True}))
    return session


def test_what_wants_an_answer_is_a_request_to_a_handler_and_a_publication_to_others(handling: Driven) -> None:
    session = handling
    sent(session, Message(Kind.SUBSCRIBE, "user.*"))
    [request] = told(session, delivery("user.get", "2", b"7", "Polybus-Ttl: 1500", "A: b", reply="r.1"))
    assert (request.kind, request.subject, request.body, request.ttl) == (Kind.REQUEST, "user.get", 7, 1.5)
    assert (request.headers, request.reply_to) == ({"A": "b"}, "r.1")
    [heard] = told(session, delivery("user.get", "3", b"7", reply="r.1"))
    assert (heard.kind, heard.reply_to) == (Kind.PUBLISH, "r.1")
    [notification] = told(session, delivery("user.get", "2", b"7"))
    assert notification.kind is Kind.NOTIFY
    [again] = told(session, delivery("user.get", "2", b"7", reply="r.1"))
    assert again.id != request.id  # one inbox may ask twice
    assert sent(session, Message(Kind.RESPONSE, "user.get", again.id, b"8", JSON)) == [b"PUB r.1 1\r\n8\r\n"]
    [frame] = sent(session, Message(Kind.ERROR, "", request.id, code=Code.NOT_FOUND, attributes={"text": "no"}))
    assert frame.startswith(b"HPUB r.1 ") and b"Nats-Service-Error-Code: 5\r\n" in frame


def test_a_malformed_question_is_answered(handling: Driven) -> None:
    session = handling
    [refused] = told(session, b"MSG user.get 2 r.1 2000000\r\n")
    assert refused.error.reason == "too_large"
    [frame] = session.frames_to_send()
    assert frame.startswith(b"HPUB r.1 ") and b"Nats-Service-Error-Code: 8\r\nPolybus-Reason: too_large\r\n" in frame
    [question] = told(session, delivery("user.get", "2", b"", "no colon", reply="r.2"))
    assert "no colon" in question.attributes["left_out"]
    assert len(told(session, b"MSG user.get 9 r.1 2000000\r\n")) == 1
    assert session.frames_to_send() == []


def test_an_answer_comes_back_under_its_token_a_malformed_one_too_and_a_token_that_is_guessed_waits_for_nothing(
    session: Driven,
) -> None:
    token, inbox = asked(session)
    [answer] = told(session, delivery(inbox, payload=b'{"a":1}'))
    assert (answer.kind, answer.id, answer.body) == (Kind.RESPONSE, token, {"a": 1})
    token, inbox = asked(session)
    [error] = told(session, delivery(inbox, status=" 503"))
    assert (error.kind, error.id, error.code) == (Kind.ERROR, token, Code.UNIMPLEMENTED)
    token, inbox = asked(session)
    [refused] = told(session, f"MSG {inbox} 1 99999999\r\n".encode())
    assert (refused.error.reason, refused.error.reply_id) == ("too_large", token)
    first, _ = asked(session)
    second, inbox = asked(session)
    assert first[-8:] != second[-8:]
    guessed = second[:-8] + first[-8:]
    [answer] = told(session, delivery(inbox.removesuffix(second) + guessed, payload=b"1"))
    assert answer.id == guessed  # which waits for nothing: the link counts it as late


def test_a_request_carries_its_deadline_in_milliseconds(session: Driven) -> None:
    [frame] = sent(session, Message(Kind.REQUEST, "a", ttl=0.25, headers={"X": "y"}))
    assert b"X: y\r\nPolybus-Ttl: 250\r\n\r\n\r\n" in frame


@pytest.mark.parametrize("reply", ["$JS.API.STREAM.DELETE.ORDERS", "$JS.ACK.O.d.1.5.5.1.0", "$SYS.REQ.SERVER.PING", "$KV.a.b"])
def test_no_answer_is_published_where_the_server_would_do_something_for_it(handling: Driven, reply: str) -> None:
    for headers in ((), ("Polybus-Ttl: x",)):
        events = told(handling, delivery("user.get", "2", b"7", *headers, reply=reply))
        assert [type(event) for event in events] == [Refused]
        assert handling.frames_to_send() == []


@pytest.mark.parametrize(
    "change", [lambda t: "2" + "1" * 8, lambda t: "zz", lambda t: "", lambda t: "ffff" + t, lambda t: t[1:]]
)
def test_an_answer_to_a_token_that_was_never_given_is_refused(session: Driven, change: Any) -> None:
    token, inbox = asked(session)
    events = told(session, delivery(inbox.removesuffix(token) + (change(token) or "x")))
    assert [event.error.reason for event in events] == ["unknown_id"] or events[0].id != token


def test_what_the_server_does_not_allow_is_told_to_who_has_asked(session: Driven) -> None:
    other, _ = asked(session, "other")
    token, _ = asked(session, "secret.plan")
    violation = b"-ERR 'Permissions Violation for Publish to \"secret.plan\"'\r\n"
    [error] = told(session, violation)
    assert (error.kind, error.id, error.code) == (Kind.ERROR, token, Code.PERMISSION_DENIED)
    [letter] = told(session, violation)  # of a publication
    assert isinstance(letter, Undelivered)
    assert (letter.message.subject, letter.code) == ("secret.plan", Code.PERMISSION_DENIED)
    session.forget(other, 3.0)
    [letter] = told(session, violation.replace(b"secret.plan", b"other"))
    assert isinstance(letter, Undelivered)


def test_who_may_not_hear_answers_does_not_ask() -> None:
    session = waiting()
    session.receive(info(), 1.0)
    inbox = session.frames_to_send()[1].split()[1]
    session.receive(b"-ERR 'Permissions Violation for Subscription to \"%b\"'\r\n" % inbox, 1.0)
    assert told(session, b"PONG\r\n") == [Ready(bare=True)]
    with pytest.raises(Forbidden, match=r"allow this user to subscribe to _INBOX\.>"):
        asked(session)


def test_the_server_s_limit_is_kept_and_may_change() -> None:
    session = ready(said={"max_payload": 100})
    large, request = (
        Message(Kind.PUBLISH, "a", None, b"1" * 101, JSON),
        Message(Kind.REQUEST, "a", None, b"1" * 90, JSON, ttl=1.0),
    )
    assert sent(session, Message(Kind.PUBLISH, "a", None, b"1" * 100, JSON))
    for message in (large, request):
        with pytest.raises(TooLarge, match="accepts 100"):
            session.send(message, 2.0)
    told(session, info(max_payload=1000))
    assert sent(session, large)
    with pytest.raises(TooLarge, match="limit: message"):
        ready(Limits(message=50)).send(Message(Kind.PUBLISH, "a", None, b"1" * 50, JSON), 2.0)


def test_a_server_without_headers_gets_none() -> None:
    session = waiting()
    session.receive(info(headers=False), 1.0)
    assert json.loads(session.frames_to_send()[0].removeprefix(b"CONNECT "))["no_responders"] is False
    session.receive(b"PONG\r\n", 1.0)
    assert not session.capabilities.headers and not session.capabilities.deadlines
    [frame] = sent(session, Message(Kind.REQUEST, "a", None, b"7", JSON, ttl=1.0))
    assert frame.startswith(b"PUB a _INBOX.")
    with pytest.raises(Unsupported, match="does not support headers"):
        session.send(Message(Kind.PUBLISH, "a", headers={"a": "b"}), 2.0)


@pytest.mark.parametrize(
    "odd", [{"max_payload": 0}, {"max_payload": "x"}, {"max_payload": -1}, {"nonce": 7}, {"connect_urls": {}}]
)
def test_odd_members_of_info_count_as_not_said(odd: dict[str, Any]) -> None:
    session = ready(said=odd)
    assert sent(session, Message(Kind.PUBLISH, "a", None, b"1" * 1000, JSON))


ENDS = {
    4401: "Authorization Violation|User Authentication Expired|User Authentication Revoked|"
    "Account Authentication Expired|Authentication Timeout",
    1006: "Stale Connection",
    1013: "Slow Consumer|maximum connections exceeded",
    1009: "Maximum Payload Violation",
    1001: "Server Shutdown",
    1002: "maximum account active connections exceeded|Parser Error|Unknown Protocol Operation|"
    "Secure Connection - TLS Required|something that a later version says|",
}


@pytest.mark.parametrize(("text", "code"), [(text, code) for code, texts in ENDS.items() for text in texts.split("|")])
@pytest.mark.parametrize("let_in", [True, False])
def test_an_error_that_ends_the_connection(text: str, code: int, let_in: bool) -> None:
    session = ready() if let_in else waiting()
    if not let_in:
        session.receive(info(), 1.0)
    [closed] = told(session, f"-ERR '{text}'\r\n".encode())
    assert isinstance(closed, CloseWanted)
    assert (closed.code, type(closed.error)) == (code, Unauthorized if code == 4401 else type(None))
    assert text in closed.reason
    assert told(session, b"PING\r\n") == session.frames_to_send()[3:] == []


@pytest.mark.parametrize("text", ["Invalid Subject", "Invalid Publish Subject", "maximum subscriptions exceeded"])
def test_an_error_after_which_the_server_goes_on_is_told(session: Driven, text: str) -> None:
    [letter] = told(session, f"-ERR '{text}'\r\n".encode())
    assert isinstance(letter, Undelivered) and text in letter.text
    assert told(session, b"PING\r\n") == []
    assert session.frames_to_send() == [b"PONG\r\n"]


def test_what_is_on_its_way_when_a_group_is_left_still_comes(session: Driven) -> None:
    handler = {"handler": True}
    assert sent(session, Message(Kind.SUBSCRIBE, "work", attributes=handler)) == [b"SUB work q 2\r\n"]
    assert sent(session, Message(Kind.SUBSCRIBE, "jobs", attributes={"group": "g"})) == [b"SUB jobs g 3\r\n"]
    assert sent(session, Message(Kind.UNSUBSCRIBE, "work", attributes=handler)) == [b"UNSUB 2\r\n"]
    assert sent(session, Message(Kind.SUBSCRIBE, "work", attributes=handler)) == [b"SUB work q 4\r\n"]
    key = session.confirm(2.0)
    assert sent(session, Message(Kind.UNSUBSCRIBE, "jobs", attributes={"group": "g"})) == [b"PING\r\n", b"UNSUB 3\r\n"]
    [request] = told(session, delivery("work", "2", b"1", reply="r.1"))
    assert (request.kind, request.subject) == (Kind.REQUEST, "work")
    assert told(session, b"PONG\r\n") == [Confirmed(key, ())]
    assert told(session, delivery("work", "2", b"1", reply="r.1")) == []  # not any more
    [publication] = told(session, delivery("jobs", "3", b"1"))
    assert (publication.kind, publication.subject) == (Kind.PUBLISH, "jobs")
    session.confirm(2.0)
    told(session, b"PONG\r\n")
    assert told(session, delivery("jobs", "3", b"1")) == []
    [again] = told(session, delivery("work", "4", b"1", reply="r.1"))
    assert again.kind is Kind.REQUEST


def test_groups_that_are_left_without_end_are_not_kept_without_end(session: Driven) -> None:
    for _ in range(5000):
        for kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE):
            session.send(Message(kind, "work", attributes={"handler": True}), 2.0)
    assert len(session._connection.subscriptions.by_sid) == 4096
    session.confirm(2.0)
    told(session, b"PONG\r\n")
    assert len(session._connection.subscriptions.by_sid) == 0


def test_a_silent_server_is_asked_and_then_given_up(session: Driven) -> None:
    assert session.next_tick() == 16.0
    session.tick(15.0)
    assert session.frames_to_send() == []
    session.tick(16.0)
    assert session.frames_to_send() == [b"PING\r\n"]
    assert session.next_tick() == 24.0
    assert told(session, b"PONG\r\n", 20.0) == []
    assert session.next_tick() == 35.0
    session.tick(24.0)
    session.tick(35.0)
    assert session.frames_to_send() == [b"PING\r\n"]
    session.tick(42.9)
    assert session.events() == []
    session.tick(43.0)
    closed = only(session)
    assert (closed.code, closed.reason) == (1006, "no PONG within 8 s")
    session.tick(99.0)
    assert session.events() == []


@pytest.mark.parametrize("at", [16.0, 17.0])  # at once, too, as within a process whose time goes fast
def test_any_sign_of_life_will_do(session: Driven, at: float) -> None:
    session.tick(16.0)
    told(session, b"+OK\r\n", at)
    session.tick(30.0)
    session.tick(38.0)
    told(session, b"+OK\r\n", 38.0)
    session.tick(46.0)
    assert session.events() == []


def test_other_servers_are_told_and_a_lame_duck_gives_nothing_more_and_is_left_when_all_is_answered() -> None:
    session = ready(said={"connect_urls": ["10.0.0.1:4222", 7, "10.0.0.2:4222"]})
    token, inbox = asked(session)
    session.send(Message(Kind.SUBSCRIBE, "user.get", attributes={"handler": True}), 2.0)
    session.send(Message(Kind.SUBSCRIBE, "news"), 2.0)
    [request] = told(session, delivery("user.get", "2", b"7", reply="r.1"))
    others = ("10.0.0.1:4222", "10.0.0.2:4222")
    assert told(session, info(ldm=True)) == [OtherServers(others, leaving=True)]
    session.frames_to_send()
    session.tick(3.0)
    assert (session.events(), session.frames_to_send()) == ([], [])  # the link first goes on over another connection
    session.retire()
    session.retire()
    assert session.frames_to_send() == [b"UNSUB 2\r\n", b"UNSUB 3\r\n", b"PING\r\n"]
    [late] = told(session, delivery("user.get", "2", b"7", reply="r.2"))  # what the server had given before it read that
    [news] = told(session, delivery("news", "3", b"1"))
    assert (late.kind, news.kind) == (Kind.REQUEST, Kind.PUBLISH)
    assert told(session, b"PONG\r\n") == []
    assert (session.asked(), session.holds(token), session.holds(late.id), session.holds("x")) == ([token], True, True, False)
    told(session, delivery(inbox, payload=b"1"))
    session.send(Message(Kind.RESPONSE, "", request.id, b"8", JSON), 4.0)
    session.tick(4.0)
    assert session.events() == []
    session.send(Message(Kind.RESPONSE, "", late.id, b"8", JSON), 4.0)
    session.tick(5.0)
    closed = only(session)
    assert (closed.code, "lame duck" in closed.reason) == (1012, True)
    assert told(waiting(), info(connect_urls=["10.0.0.1:4222"])) == [OtherServers(("10.0.0.1:4222",))]  # with the first words
    alone = ready()
    assert told(alone, info(ldm=True)) == [OtherServers((), leaving=True)]
    alone.tick(3.0)
    assert alone.events() == []


def test_after_the_end_nothing_is_written(session: Driven) -> None:
    session.send(Message(Kind.PUBLISH, "a"), 2.0)
    session.connection_lost("gone")
    assert (session.frames_to_send(), told(session, b"PING\r\n"), session.next_tick()) == ([], [], None)
