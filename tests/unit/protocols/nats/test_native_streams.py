"""Streams of others on one connection: what is asked of them, what they give, and what they do not allow, by bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.body import OCTETS
from polybus.errors import Code
from polybus.message import Kind, Message
from polybus.plugins import Refused, Undelivered
from polybus.protocols.nats.session import NatsSession
from polybus.protocols.nats.stored import ToEngine, ToReader, ToStore

from .test_session import delivery, only, ready, sent, told

ACK = "$JS.ACK.ORDERS.billing.2.41.57.1700000000000000000.0"
GIVEN = ToReader(3, ACK, 2, 41, "billing", 57)


def reading() -> tuple[NatsSession, str, str]:
    """A session with a reader: the subject at which that is given what it asks for, and its sid."""
    session = ready()
    [frame] = sent(session, Message(Kind.SUBSCRIBE, attributes={"reader": 3}))
    verb, subject, group, sid = frame.split()
    assert (verb, group) == (b"SUB", b"q")
    inbox = subject.decode()
    assert inbox.startswith("_INBOX.") and inbox.endswith(".j.3") and inbox.count(".") == 3
    return session, inbox, sid.decode()


def engine(subject: str, **more: Any) -> Message:
    message = Message(Kind.NOTIFY, subject, attributes={"to": ToEngine(), **more})
    message.decoded = {"batch": 1}
    return message


def test_a_reader_asks_and_settles_by_publications_without_headers() -> None:
    session, inbox, _ = reading()
    pull = "$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing"
    assert sent(session, engine(pull, reader=3)) == [f'PUB {pull} {inbox} 11\r\n{{"batch":1}}\r\n'.encode()]
    said = Message(Kind.NOTIFY, ACK, None, b"+ACK", OCTETS, attributes={"to": ToEngine()})
    assert sent(session, said) == [f"PUB {ACK} 4\r\n+ACK\r\n".encode()]


def test_a_stored_publication_is_for_its_reader_and_named_as_it_was_published() -> None:
    session, _, sid = reading()
    [message] = told(session, delivery("orders.placed", sid, b'{"n":1}', "Nats-Msg-Id: one", "x: 7", reply=ACK))
    assert (message.kind, message.subject, message.peer, message.reply_to) == (Kind.PUBLISH, "orders.placed", GIVEN, None)
    assert (message.body, message.headers) == ({"n": 1}, {"Nats-Msg-Id": "one", "x": "7"})


def test_words_of_the_engine_are_for_the_reader() -> None:
    session, inbox, sid = reading()
    [word] = told(session, delivery(inbox, sid, b"", "Nats-Pending-Messages: 4", status=" 408 Request Timeout"))
    assert (word.kind, word.peer) == (Kind.CONTROL, ToReader(3, status=408, text="Request Timeout", left=4))


def test_what_cannot_be_read_is_given_with_its_fault() -> None:
    session, _, sid = reading()
    block = b"NATS/1.0\r\nNats-Msg-Id: one\r\nx: \xff\r\n\r\n"
    frame = b"HMSG orders..placed %b %b %d %d\r\n%b7\r\n" % (sid.encode(), ACK.encode(), len(block), len(block) + 1, block)
    [message] = told(session, frame)
    to = message.peer
    assert (to.number, to.consumer, message.body) == (41, "billing", 7)
    assert "empty token" in to.fault
    assert to.block == b"NATS/1.0\r\nx: \xff\r\n\r\n"


def test_what_is_over_the_limit_is_given_without_its_body() -> None:
    session, _, sid = reading()
    [message] = told(session, f"HMSG orders.placed {sid} {ACK} 30 5000000\r\n".encode())  # as the framing cuts it
    assert "is over the limit (limit: message)" in message.peer.fault
    assert (message.raw, message.headers, message.peer.number) == (None, None, 41)


def test_what_nobody_has_given_is_refused() -> None:
    session, _, sid = reading()
    [refused] = told(session, delivery("orders.placed", sid, b"1", reply="_INBOX.other"))
    assert isinstance(refused, Refused)


def test_what_was_on_its_way_is_given_when_the_reader_has_been_given_up() -> None:
    session, _, sid = reading()
    [frame] = sent(session, Message(Kind.UNSUBSCRIBE, attributes={"reader": 3}))
    assert frame == f"UNSUB {sid}\r\n".encode()
    [message] = told(session, delivery("orders.placed", sid, b"1", reply=ACK))
    assert message.peer == GIVEN


def publish(session: NatsSession, to: ToStore, **headers: str) -> tuple[str, str]:
    """The token of a publication that is to be stored, and the inbox for the stream's word."""
    message = Message(Kind.REQUEST, "orders.placed", headers=headers or None, ttl=2.0, attributes={"to": to})
    message.decoded = 7
    token = session.send(message, 2.0)
    assert token is not None
    [frame] = session.frames_to_send()
    line, _, rest = frame.partition(b"\r\n")
    assert rest == b"NATS/1.0\r\nx: 7\r\nNats-Msg-Id: one\r\n\r\n7\r\n"  # neither a deadline nor a word for nodes is stored
    return token, line.split()[2].decode()


def test_only_the_word_of_a_stream_answers_a_publication() -> None:
    session = ready()
    token, inbox = publish(session, ToStore("one", again=True), x="7")
    assert told(session, delivery(inbox, payload=b'"thank you"')) == []
    for other in ("x: 7", "Nats-Service-Error-Code: 500"):
        assert told(session, delivery(inbox, "1", b"", other)) == []
    [answer] = told(session, delivery(inbox, payload=b'{"stream":"ORDERS","seq":1}'))
    assert (answer.kind, answer.id, answer.body["seq"]) == (Kind.RESPONSE, token, 1)


def test_nobody_who_keeps_a_publication_is_an_error() -> None:
    session = ready()
    token, inbox = publish(session, ToStore("one"), x="7")
    [answer] = told(session, delivery(inbox, status=" 503"))
    assert (answer.kind, answer.id, answer.code) == (Kind.ERROR, token, Code.UNIMPLEMENTED)


def test_a_publication_that_is_not_allowed_is_an_error() -> None:
    session = ready()
    token, _ = publish(session, ToStore("one"), x="7")
    session.receive(b"-ERR 'Permissions Violation for Publish to \"orders.placed\"'\r\n", 3.0)
    answer = only(session)
    assert (answer.kind, answer.id, answer.code) == (Kind.ERROR, token, Code.PERMISSION_DENIED)


@pytest.mark.parametrize("subject", ["$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", ACK])
def test_readers_are_told_what_they_may_not_publish(subject: str) -> None:
    session, _, _ = reading()
    sent(session, engine("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", reader=3))
    session.receive(f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode(), 3.0)
    to = only(session).peer
    assert (to.reader, to.ack, to.consumer, to.status) == (0, subject, "billing", 403)


def test_a_reader_that_asks_no_more_is_told_what_it_may_not_say_of_the_last_ones() -> None:
    session, _, _ = reading()
    sent(session, engine("$JS.hub.API.CONSUMER.MSG.NEXT.ORDERS.billing", reader=3))
    sent(session, Message(Kind.UNSUBSCRIBE, attributes={"reader": 3}))
    session.receive(f"-ERR 'Permissions Violation for Publish to \"{ACK}\"'\r\n".encode(), 3.0)
    to = only(session).peer
    assert (to.reader, to.ack, to.consumer, to.status) == (0, ACK, "billing", 403)


@pytest.mark.parametrize("subject", ["$JS.API.CONSUMER.MSG.NEXT.ORDERS.others", ACK.replace("billing", "others")])
def test_who_asks_or_settles_by_hand_is_told_what_is_not_allowed(subject: str) -> None:
    session, _, _ = reading()
    sent(session, engine("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", reader=3))
    refusal = f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode()
    token = session.send(Message(Kind.REQUEST, subject, ttl=2.0), 2.0)
    session.receive(refusal, 3.0)
    answer = only(session)
    assert (answer.kind, answer.id, answer.code) == (Kind.ERROR, token, Code.PERMISSION_DENIED)
    session.receive(refusal, 3.0)
    lost = only(session)
    assert isinstance(lost, Undelivered)
    assert (lost.message.subject, lost.code) == (subject, Code.PERMISSION_DENIED)


@given(st.binary(max_size=60), st.sampled_from(["", ACK, "$JS.ACK.a.b.c", "_INBOX.x"]), st.binary(max_size=40))
def test_whatever_comes_to_a_reader_the_session_lives(block: bytes, reply: str, payload: bytes) -> None:
    session, _, sid = reading()
    block = b"NATS/1.0" + block + b"\r\n\r\n"
    names = f"orders.placed {sid} {reply}".strip().encode()
    session.receive(b"HMSG %b %d %d\r\n%b%b\r\n" % (names, len(block), len(block) + len(payload), block, payload), 2.0)
    for event in session.events():
        assert isinstance(event, (Message, Refused))
        if isinstance(event, Message):
            assert (event.raw or b"") == payload
    [message] = told(session, delivery("orders.placed", sid, b"1", reply=ACK))
    assert message.peer == GIVEN
