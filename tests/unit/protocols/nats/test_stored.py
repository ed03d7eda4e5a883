"""Streams by bytes: the cluster's words for what an engine keeps, and one connection to the streams of others."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.body import OCTETS
from polybus.errors import Code, RemoteProtocolError
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Refused, ToAll, Undelivered
from polybus.protocols.nats import Nats
from polybus.protocols.nats.stored import AckSubject, ToEngine, ToReader, ToStore, api_of, read_ack, read_pull
from tests.doubles.driven import Driven

from .test_session import delivery, only, ready, sent, told

INFO = b'INFO {"server_id":"x","version":"2.10.25","headers":true,"max_payload":1048576,"proto":1}\r\n'


def session() -> Any:
    """A node of the cluster ``shop`` that is let in, with nothing to write."""
    from attrs import evolve

    made = Driven(evolve(Nats(), cluster="shop", member="bus").session("client", Limits(), random.Random(7)))
    made.start(0.0)
    for frame in (INFO, b"PONG\r\n"):
        made.receive(frame, 0.0)
        made.frames_to_send()
        made.events()
    made.frames_to_send()
    return made


def written(made: Any) -> bytes:
    return b"".join(made.frames_to_send())


def node_of(made: Any) -> str:
    return str(made._dialect.node)


def test_a_stored_publication_is_one_with_an_id_and_an_answer() -> None:
    made = session()
    token = made.send(Message(Kind.REQUEST, "orders.x", None, b"1", ttl=5.0, attributes={"to": ToStore("id 1")}), 0.0)
    head = b"NATS/1.0\r\nNats-Msg-Id: id 1\r\n\r\n"
    line = f"HPUB shop.p.orders.x shop.n.{node_of(made)}.a.{token} {len(head)} {len(head) + 1}\r\n".encode()
    assert written(made) == line + head + b"1\r\n"


def test_a_stored_publication_is_sent_again_by_and_by_until_the_engine_says_that_it_is_stored() -> None:
    made = session()
    token = made.send(Message(Kind.REQUEST, "orders.x", None, b"1", attributes={"to": ToStore("7")}), 0.0)
    inbox = f"shop.n.{node_of(made)}.a.{token}"
    made.frames_to_send()
    sent = []
    for now in range(1, 20):
        made.tick(float(now))
        sent += [now] * written(made).count(f"HPUB shop.p.orders.x {inbox} ".encode())
    assert sent == [2, 6, 14]
    block = b"NATS/1.0\r\nAnswer: yes\r\n\r\n"
    made.receive(f"HMSG {inbox} 1 {len(block)} {len(block) + 2}\r\n".encode() + block + b"{}\r\n", 19.0)  # a listener's
    for answer in (b"", b"{}", b"no", b'{"stream":"s","seq":0}', b'{"ok":true}', b"[" * 5000):
        made.receive(f"MSG {inbox} 1 {len(answer)}\r\n".encode() + answer + b"\r\n", 19.0)
    assert not [event for event in made.events() if isinstance(event, Message)]
    made.receive(f"MSG {inbox} 1 23\r\n".encode() + b'{"stream":"s","seq":41}\r\n', 19.0)  # of whichever time it was sent
    [said] = [event for event in made.events() if isinstance(event, Message)]
    assert (said.kind, said.id, said.body) == (Kind.RESPONSE, token, {"stream": "s", "seq": 41})
    made.tick(25.0)
    assert b"orders.x" not in written(made)


def test_nothing_is_sent_again_when_the_store_may_have_forgotten_its_id() -> None:
    made = session()
    made.send(Message(Kind.REQUEST, "orders.x", None, b"1", attributes={"to": ToStore("7", until=5.0)}), 0.0)
    made.frames_to_send()
    sent = []
    for now in range(1, 40):
        made.tick(float(now))
        sent += [now] * written(made).count(b"HPUB shop.p.orders.x ")
    assert sent == [2]


def test_what_is_sent_again_says_so_and_listeners_and_groups_do_not_hear_it_twice() -> None:
    made = session()
    made.send(Message(Kind.REQUEST, "orders.x", None, b"1", attributes={"to": ToStore("7")}), 0.0)
    made.frames_to_send()
    made.tick(2.0)
    assert b"NATS/1.0\r\nNats-Msg-Id: 7\r\nPolybus-Again: 1\r\n\r\n1\r\n" in written(made)
    for listening in ({}, {"group": "billing"}):
        made.send(Message(Kind.SUBSCRIBE, "orders.x", attributes=listening), 2.0)
        sid = written(made).decode().split()[-1]
        blocks = {"Nats-Msg-Id: 7": 1, "Polybus-Again: 1": 0, "Polybus-Only: billing": 0}
        for line, heard in blocks.items():
            block = f"NATS/1.0\r\n{line}\r\n\r\n".encode()
            head = f"HMSG shop.p.orders.x {sid} shop.n.other1.a.abc {len(block)} {len(block) + 1}\r\n".encode()
            made.receive(head + block + b"5\r\n", 2.0)
            assert len([event for event in made.events() if isinstance(event, Message)]) == heard


def test_what_would_tell_the_engine_what_to_do_is_left_out_of_publications() -> None:
    made = session()
    headers = {"Nats-Msg-Id": "order-1", "NATS-Rollup": "all", "kind": "sham"}
    made.send(Message(Kind.PUBLISH, "orders.x", None, b"1", headers=headers), 0.0)
    assert b"NATS/1.0\r\nkind: sham\r\n\r\n1\r\n" in written(made)
    made.send(Message(Kind.REQUEST, "orders.x", None, b"1", headers=headers, attributes={"to": ToStore("7")}), 0.0)
    assert b"NATS/1.0\r\nkind: sham\r\nNats-Msg-Id: 7\r\n\r\n1\r\n" in written(made)


def test_one_for_a_durable_handler_alone_and_one_at_another_subject_say_so() -> None:
    made = session()
    to = ToStore("7", "shop.dead.billing.x", "billing")
    token = made.send(Message(Kind.REQUEST, "x", None, b"1", attributes={"to": to}), 0.0)
    head = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nPolybus-Only: billing\r\n\r\n"
    line = f"HPUB shop.dead.billing.x shop.n.{node_of(made)}.a.{token} {len(head)} {len(head) + 1}\r\n".encode()
    assert written(made) == line + head + b"1\r\n"


def test_a_question_to_the_engine_stands_as_it_is_and_has_no_deadline() -> None:
    made = session()
    message = Message(Kind.REQUEST, "$JS.API.INFO", None, b"{}", ttl=5.0, attributes={"to": ToEngine()})
    token = made.send(message, 0.0)
    assert written(made) == f"PUB $JS.API.INFO shop.n.{node_of(made)}.a.{token} 2\r\n{{}}\r\n".encode()
    made.receive(f"MSG shop.n.{node_of(made)}.a.{token} 1 2\r\n[]\r\n".encode(), 0.0)
    [answer] = made.events()
    assert (answer.kind, answer.id, answer.body) == (Kind.RESPONSE, token, [])


def test_who_asked_the_engine_is_told_that_nobody_is_there() -> None:
    made = session()
    token = made.send(Message(Kind.REQUEST, "$JS.API.INFO", attributes={"to": ToEngine()}), 0.0)
    block = b"NATS/1.0 503\r\n\r\n"
    made.receive(f"HMSG shop.n.{node_of(made)}.a.{token} 1 {len(block)} {len(block)}\r\n".encode() + block + b"\r\n", 0.0)
    [answer] = made.events()
    assert (answer.kind, answer.id) == (Kind.ERROR, token)


def test_a_node_is_not_asked_for_its_life_because_the_engine_takes_its_time() -> None:
    made = session()
    made.send(Message(Kind.REQUEST, "$JS.API.INFO", attributes={"to": ToEngine()}), 0.0)
    made.frames_to_send()
    for now in (1.0, 2.0, 3.0):
        made.tick(now)
    assert written(made) == b"PING\r\n", "to the engine"


def test_a_reader_subscribes_asks_and_is_given_stored_publications() -> None:
    made = session()
    node = node_of(made)
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 3}), 0.0)
    [subscribed] = made.frames_to_send()
    assert subscribed.startswith(f"SUB shop.j.{node}.3 ".encode())
    sid = subscribed.split()[-1].decode()
    asked = Message(
        Kind.NOTIFY, "$JS.API.CONSUMER.MSG.NEXT.s.c", None, b'{"batch":1}', attributes={"to": ToEngine(), "reader": 3}
    )
    made.send(asked, 0.0)
    assert written(made) == f'PUB $JS.API.CONSUMER.MSG.NEXT.s.c shop.j.{node}.3 11\r\n{{"batch":1}}\r\n'.encode()
    made.receive(f"MSG shop.p.orders.x {sid} $JS.ACK.s.c.2.41.7.1.0 1\r\n5\r\n".encode(), 0.0)
    [message] = made.events()
    assert (message.kind, message.subject, message.body) == (Kind.PUBLISH, "orders.x", 5)
    assert message.peer == ToReader(3, "$JS.ACK.s.c.2.41.7.1.0", 2, 41, "c", 7)
    block = b"NATS/1.0\r\nPolybus-Only: billing\r\n\r\n"
    size = f"{len(block)} {len(block) + 1}"
    made.receive(f"HMSG shop.p.orders.x {sid} $JS.ACK.s.c.1.42.8.1.0 {size}\r\n".encode() + block + b"5\r\n", 0.0)
    [message] = made.events()
    assert message.peer.only == "billing"
    block = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 4\r\nNats-Pending-Bytes: 0\r\n\r\n"
    made.receive(f"HMSG shop.j.{node}.3 {sid} {len(block)} {len(block)}\r\n".encode() + block + b"\r\n", 0.0)
    [word] = made.events()
    assert word.peer == ToReader(3, status=408, text="Request Timeout", left=4)


def test_what_is_acknowledged_elsewhere_is_refused_and_ends_nothing() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 1}), 0.0)
    sid = made.frames_to_send()[0].split()[-1].decode()
    made.receive(f"MSG shop.p.orders.x {sid} _INBOX.1 1\r\n5\r\n".encode(), 0.0)
    [refused] = made.events()
    assert isinstance(refused, Refused)


def test_a_reader_is_given_a_publication_with_the_headers_that_can_be_read() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 1}), 0.0)
    sid = made.frames_to_send()[0].split()[-1]
    block = b"NATS/1.0\r\nno colon\r\nz: 1\r\n\r\n"
    made.receive(b"HMSG shop.p.x %b $JS.ACK.s.c.3.41.7.1.0 %d %d\r\n%b5\r\n" % (sid, len(block), len(block) + 1, block), 0.0)
    [message] = made.events()
    assert (message.raw, message.headers, message.peer.fault, message.peer.block) == (b"5", {"z": "1"}, "", b"")
    assert "no colon" in message.attributes["left_out"]


def test_a_stored_publication_with_headers_over_the_limit_is_given_as_it_is_for_a_reader_with_a_larger_one() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 1}), 0.0)
    sid = made.frames_to_send()[0].split()[-1].decode()
    x = b"x: " + b"y" * Limits().headers
    block = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nPolybus-Only: billing\r\n%b\r\nz: 1\r\n\xff: 2\r\nNats-Rollup: all\r\n\r\n" % x
    size = f"{len(block)} {len(block) + 1}"
    made.receive(f"HMSG shop.p.orders.x {sid} $JS.ACK.s.c.3.41.7.1.0 {size}\r\n".encode() + block + b"5\r\n", 0.0)
    [message] = made.events()  # and nothing that counts against the engine: what is stored does not go away
    assert (message.kind, message.subject, message.raw) == (Kind.PUBLISH, "orders.x", b"5")
    assert (message.peer.ack, message.peer.attempt, message.peer.number) == ("$JS.ACK.s.c.3.41.7.1.0", 3, 41)
    assert (message.headers, message.peer.only) == ({"Nats-Msg-Id": "7", "z": "1", "Nats-Rollup": "all"}, "billing")
    assert "limit: headers" in message.peer.fault
    assert message.peer.block == b"NATS/1.0\r\nPolybus-Only: billing\r\n%b\r\nz: 1\r\n\xff: 2\r\n\r\n" % x
    assert written(made) == b""


def test_a_stored_publication_that_cannot_be_read_keeps_its_headers_as_they_are() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 1}), 0.0)
    sid = made.frames_to_send()[0].split()[-1]
    block = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nz: 1\r\n\xff: 2\r\nNats-Rollup: all\r\n\r\n"
    made.receive(b"HMSG shop.p.\xff %b $JS.ACK.s.c.3.41.7.1.0 %d %d\r\n%b5\r\n" % (sid, len(block), len(block) + 1, block), 0.0)
    [message] = made.events()
    raw = b"NATS/1.0\r\nz: 1\r\n\xff: 2\r\n\r\n"  # without what tells an engine what to do
    assert message.peer.fault
    assert message.peer.block == raw
    made.send(Message(Kind.REQUEST, "x", None, b"5", attributes={"to": ToStore("", "shop.dead.b", block=raw)}), 0.0)
    assert raw + b"5\r\n" in written(made)


@pytest.mark.parametrize("name", [b"shop.p." + b"o" * 5000, b"shop.p.orders.\xff"])
def test_a_stored_publication_whose_subject_cannot_be_read_is_given_to_its_reader_too(name: bytes) -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 1}), 0.0)
    sid = made.frames_to_send()[0].split()[-1]
    made.receive(b"MSG %b %b $JS.ACK.s.c.3.41.7.1.0 1\r\n5\r\n" % (name, sid), 0.0)
    [message] = made.events()
    assert (message.raw, message.peer.number, message.peer.attempt) == (b"5", 41, 3)
    assert message.peer.fault


def test_of_a_stored_publication_over_the_limit_a_reader_is_given_nothing_but_that() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 1}), 0.0)
    sid = made.frames_to_send()[0].split()[-1].decode()
    made.receive(f"HMSG shop.p.orders.x {sid} $JS.ACK.s.c.3.41.7.1.0 30 5000000\r\n".encode(), 0.0)  # as the framing cuts it
    [message] = made.events()
    assert (message.raw, message.headers, message.peer.block) == (None, None, b"")
    assert "over the limit" in message.peer.fault


def test_the_id_of_a_stored_publication_is_no_part_of_what_its_sender_may_fill() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, "orders.x"), 0.0)
    sid = made.frames_to_send()[0].split()[-1].decode()
    block = b"NATS/1.0\r\nx: " + b"y" * (Limits().headers - 10) + b"\r\nNats-Msg-Id: " + b"7" * 256 + b"\r\n\r\n"
    size = f"{len(block)} {len(block) + 1}"
    made.receive(f"HMSG shop.p.orders.x {sid} {size}\r\n".encode() + block + b"5\r\n", 0.0)
    [message] = made.events()
    assert message.body == 5


def test_what_is_on_its_way_when_a_reader_is_given_up_still_comes() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, attributes={"reader": 1}), 0.0)
    sid = made.frames_to_send()[0].split()[-1].decode()
    made.send(Message(Kind.UNSUBSCRIBE, attributes={"reader": 1}), 0.0)
    assert written(made) == f"UNSUB {sid}\r\n".encode()
    made.receive(f"MSG shop.p.orders.x {sid} $JS.ACK.s.c.1.41.7.1.0 1\r\n5\r\n".encode(), 0.0)
    [message] = made.events()
    assert message.body == 5
    made.confirm(0.0)
    made.receive(b"PONG\r\n", 0.0)
    made.events()
    made.receive(f"MSG shop.p.orders.x {sid} $JS.ACK.s.c.1.42.8.1.0 1\r\n5\r\n".encode(), 0.0)
    assert made.events() == []


def test_a_node_leaves_out_its_own_and_what_is_stored_again_for_one_handler() -> None:
    made = session()
    made.send(Message(Kind.SUBSCRIBE, "orders.x"), 0.0)
    sid = made.frames_to_send()[0].split()[-1].decode()
    node = node_of(made)
    block = b"NATS/1.0\r\nPolybus-Only: billing\r\n\r\n"
    size = f"{len(block)} {len(block) + 1}"
    made.receive(f"MSG shop.p.orders.x {sid} shop.n.{node}.a.abc 1\r\n5\r\n".encode(), 0.0)
    made.receive(f"HMSG shop.p.orders.x {sid} {size}\r\n".encode() + block + b"5\r\n", 0.0)
    assert made.events() == []
    made.receive(f"MSG shop.p.orders.x {sid} shop.n.other1.a.abc 1\r\n5\r\n".encode(), 0.0)
    [message] = made.events()
    assert message.peer == ToAll("other1")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.s.c.1.2.3.4.5", ("c", 1, 2, 3)),
        ("$JS.ACK.domain.hash.s.c.3.4.5.6.7", ("c", 3, 4, 5)),
        ("$JS.ACK._.hash.s.c.3.4.5.6.7.random", ("c", 3, 4, 5)),
    ],
)
def test_whom_it_was_given_to_and_how_often_are_read_from_where_it_is_acknowledged(
    reply: str, expected: tuple[str, int, int, int]
) -> None:
    assert read_ack(reply) == AckSubject(reply, "s", *expected)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "",
        "_INBOX.1",
        "$JS.ACK.s.c.1.2",
        "$JS.ACK.s.c.x.2.3.4.5",
        "$JS.ACK.s.c.1.-2.3.4.5",
        "$JS.ACK.s.c.1.²." + "3.4.5",
        "$JS.ACK.s.c." + "1" * 40 + ".2.3.4.5",
    ],
)
def test_another_subject_is_refused(reply: str | None) -> None:
    with pytest.raises(RemoteProtocolError):
        read_ack(reply)


@pytest.mark.parametrize("domain", ["", "hub"])
def test_a_pull_is_known_at_the_engine_and_at_that_of_a_domain(domain: str) -> None:
    assert read_pull(f"{api_of(domain)}CONSUMER.MSG.NEXT.s.c") == "s.c"
    assert read_pull(f"{api_of(domain)}CONSUMER.INFO.s.c") == ""


@pytest.mark.parametrize(
    "subject", ["", "a.API.CONSUMER.MSG.NEXT.s.c", "$JS.a.b.API.CONSUMER.MSG.NEXT.s.c", "$JSX.API.CONSUMER.MSG.NEXT.s.c"]
)
def test_what_only_looks_like_a_pull_is_none(subject: str) -> None:
    assert read_pull(subject) == ""


ACK = "$JS.ACK.ORDERS.billing.2.41.57.1700000000000000000.0"
GIVEN = ToReader(3, ACK, 2, 41, "billing", 57)


def reading() -> tuple[Driven, str, str]:
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


def publish(session: Driven, to: ToStore, **headers: str) -> tuple[str, str]:
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
