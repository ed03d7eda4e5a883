"""Streams by bytes: the cluster's words for what an engine keeps, and one connection to the streams of others."""

from typing import Any

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from polybus.body import OCTETS
from polybus.errors import Code, RemoteProtocolError
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Refused, Undelivered
from polybus.protocols.nats.stored import AckSubject, ToEngine, ToReader, ToStore, read_ack, read_pull
from tests.doubles.driven import Driven

from .test_bytes import with_block
from .test_cluster_dialect import Node
from .test_session import delivery, only, ready, sent, told

ACK = "$JS.ACK.ORDERS.billing.2.41.57.1700000000000000000.0"
GIVEN = ToReader(3, ACK, 2, 41, "billing", 57)
PULL = "$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing"


@pytest.fixture
def node() -> Node:
    return Node()


def written(session: Driven) -> bytes:
    return b"".join(session.frames_to_send())


def stored(node: Node, to: ToStore, body: bytes = b"1", **more: Any) -> str:
    """Have a publication stored, and return where the node awaits the engine's word."""
    token = node.send(Message(Kind.REQUEST, "orders.x", None, body, attributes={"to": to}, **more), 0.0)
    return f"shop.n.{node.name}.a.{token}"


def violation(subject: str) -> bytes:
    return f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode()


@pytest.mark.parametrize(
    ("to", "subject", "headers"),
    [
        (ToStore("id 1"), "shop.p.orders.x", b"Nats-Msg-Id: id 1\r\n"),
        (ToStore("7", "shop.dead.billing.x", "billing"), "shop.dead.billing.x", b"Nats-Msg-Id: 7\r\nPolybus-Only: billing\r\n"),
    ],
    ids=["for all", "for one durable handler, at another subject"],
)
def test_a_stored_publication_is_one_with_an_id_and_an_answer(node: Node, to: ToStore, subject: str, headers: bytes) -> None:
    inbox = stored(node, to, ttl=5.0)
    head = b"NATS/1.0\r\n" + headers + b"\r\n"
    assert written(node) == f"HPUB {subject} {inbox} {len(head)} {len(head) + 1}\r\n".encode() + head + b"1\r\n"


def test_a_stored_publication_is_sent_again_by_and_by_until_the_engine_says_that_it_is_stored(node: Node) -> None:
    inbox = stored(node, ToStore("7"))
    node.frames_to_send()
    times = []
    for now in range(1, 20):
        node.tick(float(now))
        times += [now] * written(node).count(f"HPUB shop.p.orders.x {inbox} ".encode())
    assert times == [2, 6, 14]
    assert node.heard(delivery(inbox, "1", b"{}", "Answer: yes"), now=19.0) == []  # a listener's
    others = b"", b"{}", b"no", b"null", b"[1]", b'"stored"', b'{"stream":"s","seq":0}', b'{"stream":"s","seq":"1"}'
    for answer in (*others, b'{"stream":5,"seq":1}', b'{"ok":true}', b"[" * 5000):
        assert node.heard(delivery(inbox, payload=answer), now=19.0) == []
    [said] = node.heard(delivery(inbox, payload=b'{"stream":"s","seq":41}'), now=19.0)  # of whichever time it was sent
    assert (said.kind, said.id, said.body) == (Kind.RESPONSE, inbox.rpartition(".")[2], {"stream": "s", "seq": 41})
    node.tick(25.0)
    assert b"orders.x" not in written(node)


def test_what_is_sent_again_says_so_and_listeners_and_groups_do_not_hear_it_twice(node: Node) -> None:
    stored(node, ToStore("7"))
    node.frames_to_send()
    node.tick(2.0)
    assert b"NATS/1.0\r\nNats-Msg-Id: 7\r\nPolybus-Again: 1\r\n\r\n1\r\n" in written(node)
    for listening in ({}, {"group": "billing"}):
        node.send(Message(Kind.SUBSCRIBE, "orders.x", attributes=listening), 2.0)
        sid = written(node).decode().split()[-1]
        for header, heard in {"Nats-Msg-Id: 7": 1, "Polybus-Again: 1": 0, "Polybus-Only: billing": 0}.items():
            frame = delivery("shop.p.orders.x", sid, b"5", header, reply="shop.n.other1.a.abc")
            assert len(node.heard(frame)) == heard


def test_what_would_tell_the_engine_what_to_do_is_left_out_of_publications(node: Node) -> None:
    headers = {"Nats-Msg-Id": "order-1", "NATS-Rollup": "all", "kind": "sham"}
    node.send(Message(Kind.PUBLISH, "orders.x", None, b"1", headers=headers), 0.0)
    assert b"NATS/1.0\r\nkind: sham\r\n\r\n1\r\n" in written(node)
    stored(node, ToStore("7"), headers=headers)
    assert b"NATS/1.0\r\nkind: sham\r\nNats-Msg-Id: 7\r\n\r\n1\r\n" in written(node)


def test_a_question_to_the_engine_stands_as_it_is_and_has_no_deadline_and_the_engine_may_be_gone(node: Node) -> None:
    question = Message(Kind.REQUEST, "$JS.API.INFO", None, b"{}", ttl=5.0, attributes={"to": ToEngine()})
    token = node.send(question, 0.0)
    assert written(node) == f"PUB $JS.API.INFO shop.n.{node.name}.a.{token} 2\r\n{{}}\r\n".encode()
    [answer] = told(node, node.answer(token, b"[]"))
    assert (answer.kind, answer.id, answer.body) == (Kind.RESPONSE, token, [])
    token = node.send(question, 0.0)
    [answer] = told(node, node.answer(token, status=" 503"))
    assert (answer.kind, answer.id) == (Kind.ERROR, token)


def test_a_node_is_not_asked_for_its_life_because_the_engine_takes_its_time(node: Node) -> None:
    node.send(Message(Kind.REQUEST, "$JS.API.INFO", attributes={"to": ToEngine()}), 0.0)
    node.frames_to_send()
    for now in (1.0, 2.0, 3.0):
        node.tick(now)
    assert written(node) == b"PING\r\n", "to the engine"


def test_the_id_of_a_stored_publication_is_no_part_of_what_its_sender_may_fill(node: Node) -> None:
    [frame] = sent(node, Message(Kind.SUBSCRIBE, "orders.x"))
    headers = "x: " + "y" * (Limits().headers - 10), "Nats-Msg-Id: " + "7" * 256
    [message] = told(node, delivery("shop.p.orders.x", frame.split()[-1].decode(), b"5", *headers))
    assert message.body == 5


@frozen
class Reading:
    """A session with a reader: the subject at which that is given what it asks for, and its sid."""

    session: Driven
    inbox: str
    sid: str
    subject: str = "orders.x"
    """What the engine says of the subject ``orders.x``."""

    def given(self, payload: bytes = b"5", *headers: str, reply: str = ACK) -> list[Any]:
        return told(self.session, delivery(self.subject, self.sid, payload, *headers, reply=reply))

    def given_block(self, block: bytes, name: bytes = b"") -> Any:
        names = b"HMSG %b %b %b" % (name or self.subject.encode(), self.sid.encode(), ACK.encode())
        [message] = told(self.session, with_block(names, block, b"5"))
        return message


def native() -> Reading:
    session = ready()
    [frame] = sent(session, Message(Kind.SUBSCRIBE, attributes={"reader": 3}))
    verb, subject, group, sid = frame.split()
    assert (verb, group) == (b"SUB", b"q")
    inbox = subject.decode()
    assert inbox.startswith("_INBOX.") and inbox.endswith(".j.3") and inbox.count(".") == 3
    return Reading(session, inbox, sid.decode())


def clustered() -> Reading:
    node = Node()
    [frame] = sent(node, Message(Kind.SUBSCRIBE, attributes={"reader": 3}))
    assert frame.startswith(f"SUB shop.j.{node.name}.3 h ".encode())
    return Reading(node, f"shop.j.{node.name}.3", frame.split()[-1].decode(), "shop.p.orders.x")


@pytest.fixture(params=[native, clustered])
def reading(request: pytest.FixtureRequest) -> Reading:
    made: Reading = request.param()
    return made


def engine(subject: str, **more: Any) -> Message:
    message = Message(Kind.NOTIFY, subject, attributes={"to": ToEngine(), **more})
    message.decoded = {"batch": 1}
    return message


def test_a_reader_asks_and_settles_by_publications_without_headers(reading: Reading) -> None:
    asked = [f'PUB {PULL} {reading.inbox} 11\r\n{{"batch":1}}\r\n'.encode()]
    assert sent(reading.session, engine(PULL, reader=3)) == asked
    said = Message(Kind.NOTIFY, ACK, None, b"+ACK", OCTETS, attributes={"to": ToEngine()})
    assert sent(reading.session, said) == [f"PUB {ACK} 4\r\n+ACK\r\n".encode()]


def test_a_stored_publication_is_for_its_reader_named_as_it_was_published_and_what_cannot_be_read_of_its_headers_is_left_out(
    reading: Reading,
) -> None:
    [message] = reading.given(b'{"n":1}', "Nats-Msg-Id: one", "x: 7")
    assert (message.kind, message.subject, message.peer, message.reply_to) == (Kind.PUBLISH, "orders.x", GIVEN, None)
    assert (message.body, message.headers) == ({"n": 1}, {"Nats-Msg-Id": "one", "x": "7"})
    [message] = reading.given(b"5", "no colon", "z: 1")
    assert (message.raw, message.headers, message.peer.fault, message.peer.block) == (b"5", {"z": "1"}, "", b"")
    assert "no colon" in message.attributes["left_out"]


def test_words_of_the_engine_are_for_the_reader(reading: Reading) -> None:
    lines = "Nats-Pending-Messages: 4", "Nats-Pending-Bytes: 0"
    [word] = told(reading.session, delivery(reading.inbox, reading.sid, b"", *lines, status=" 408 Request Timeout"))
    assert (word.kind, word.peer) == (Kind.CONTROL, ToReader(3, status=408, text="Request Timeout", left=4))


def test_what_is_acknowledged_elsewhere_is_refused_and_ends_nothing(reading: Reading) -> None:
    [refused] = reading.given(reply="_INBOX.other")
    assert isinstance(refused, Refused)


def test_a_stored_publication_with_headers_over_the_limit_is_given_as_it_is_for_a_reader_with_a_larger_one() -> None:
    reading, x = clustered(), b"x: " + b"y" * Limits().headers
    message = reading.given_block(
        b"NATS/1.0\r\nNats-Msg-Id: 7\r\nPolybus-Only: billing\r\n%b\r\nz: 1\r\n\xff: 2\r\nNats-Rollup: all\r\n\r\n" % x
    )  # and nothing that counts against the engine: what is stored does not go away
    assert (message.kind, message.subject, message.raw) == (Kind.PUBLISH, "orders.x", b"5")
    assert (message.peer.ack, message.peer.attempt, message.peer.number) == (ACK, 2, 41)
    assert (message.headers, message.peer.only) == ({"Nats-Msg-Id": "7", "z": "1", "Nats-Rollup": "all"}, "billing")
    assert "limit: headers" in message.peer.fault
    assert message.peer.block == b"NATS/1.0\r\nPolybus-Only: billing\r\n%b\r\nz: 1\r\n\xff: 2\r\n\r\n" % x
    assert written(reading.session) == b""


@pytest.mark.parametrize(
    ("name", "fault"), [(b"orders..placed", "empty token"), (b"shop.p.\xff", ""), (b"shop.p." + b"o" * 5000, "")]
)
def test_a_stored_publication_with_an_unreadable_subject_keeps_its_headers(reading: Reading, name: bytes, fault: str) -> None:
    message = reading.given_block(b"NATS/1.0\r\nNats-Msg-Id: one\r\nx: 1\r\n\xff: 2\r\nNats-Rollup: all\r\n\r\n", name)
    to = message.peer
    assert (to.number, to.attempt, to.consumer, message.body, message.raw) == (41, 2, "billing", 5, b"5")
    assert to.fault and fault in to.fault
    assert to.block == b"NATS/1.0\r\nx: 1\r\n\xff: 2\r\n\r\n", "without what tells an engine what to do"
    [message] = told(reading.session, b"MSG %b %b %b 1\r\n5\r\n" % (name, reading.sid.encode(), ACK.encode()))
    assert (message.raw, message.peer.number, message.peer.attempt) == (b"5", 41, 2)
    assert message.peer.fault


def test_what_could_not_be_read_is_stored_again_with_its_headers_as_they_are(node: Node) -> None:
    raw = b"NATS/1.0\r\nz: 1\r\n\xff: 2\r\n\r\n"
    stored(node, ToStore("", "shop.dead.b", block=raw), b"5")
    assert raw + b"5\r\n" in written(node)


def test_of_a_stored_publication_over_the_limit_a_reader_is_given_nothing_but_that(reading: Reading) -> None:
    cut = f"HMSG {reading.subject} {reading.sid} {ACK} 30 5000000\r\n".encode()  # as the framing does
    [message] = told(reading.session, cut)
    assert "is over the limit (limit: message)" in message.peer.fault
    assert (message.raw, message.headers, message.peer.block, message.peer.number) == (None, None, b"", 41)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.s.c.1.2.3.4.5", ("c", 1, 2, 3)),
        ("$JS.ACK.domain.hash.s.c.3.4.5.6.7", ("c", 3, 4, 5)),
        ("$JS.ACK._.hash.s.c.3.4.5.6.7.random", ("c", 3, 4, 5)),
    ],
)
def test_whom_it_was_given_to_and_how_often_are_in_where_it_is_acknowledged(reply: str, expected: Any) -> None:
    assert read_ack(reply) == AckSubject(reply, "s", *expected)


@pytest.mark.parametrize(
    "reply",
    [
        *(None, "", "_INBOX.1", "$JS.ACK.s.c.1.2", "$JS.ACK.s.c.x.2.3.4.5", "$JS.ACK.s.c.1.-2.3.4.5", "$JS.ACK.s.c.1.².3.4.5"),
        "$JS.ACK.s.c." + "1" * 40 + ".2.3.4.5",
    ],
)
def test_another_subject_is_refused(reply: str | None) -> None:
    with pytest.raises(RemoteProtocolError):
        read_ack(reply)


def test_a_pull_is_known_at_the_engine_and_at_that_of_a_domain_and_what_only_looks_like_one_is_none() -> None:
    pulls, lookalikes = ("$JS.", "$JS.hub."), ("", "a.", "$JS.a.b.", "$JSX.")
    assert [read_pull(f"{start}API.CONSUMER.MSG.NEXT.s.c") for start in (*pulls, *lookalikes)] == ["s.c"] * 2 + [""] * 4
    assert [read_pull(subject) for subject in ("", "$JS.API.CONSUMER.INFO.s.c")] == ["", ""]


def publish(session: Driven, **more: Any) -> tuple[str, str]:
    """The token of a publication that is to be stored, and the inbox for the stream's word."""
    message = Message(Kind.REQUEST, "orders.placed", headers={"x": "7"}, ttl=2.0, attributes={"to": ToStore("one", **more)})
    message.decoded = 7
    token = session.send(message, 2.0)
    assert token is not None
    [frame] = session.frames_to_send()
    line, _, rest = frame.partition(b"\r\n")
    assert rest == b"NATS/1.0\r\nx: 7\r\nNats-Msg-Id: one\r\n\r\n7\r\n"  # neither a deadline nor a word for nodes is stored
    return token, line.split()[2].decode()


def test_only_the_word_of_a_stream_answers_a_publication() -> None:
    session = ready()
    token, inbox = publish(session, again=True)
    assert told(session, delivery(inbox, payload=b'"thank you"')) == []
    for other in ("x: 7", "Nats-Service-Error-Code: 500"):
        assert told(session, delivery(inbox, "1", b"", other)) == []
    [answer] = told(session, delivery(inbox, payload=b'{"stream":"ORDERS","seq":1}'))
    assert (answer.kind, answer.id, answer.body["seq"]) == (Kind.RESPONSE, token, 1)


def test_a_publication_that_nobody_keeps_or_that_is_not_allowed_is_an_error() -> None:
    session = ready()
    token, inbox = publish(session)
    [answer] = told(session, delivery(inbox, status=" 503"))
    assert (answer.kind, answer.id, answer.code) == (Kind.ERROR, token, Code.UNIMPLEMENTED)
    token, _ = publish(session)
    [answer] = told(session, violation("orders.placed"), 3.0)
    assert (answer.kind, answer.id, answer.code) == (Kind.ERROR, token, Code.PERMISSION_DENIED)


@pytest.mark.parametrize("subject", [PULL, ACK])
def test_readers_are_told_what_they_may_not_publish(subject: str) -> None:
    session = native().session
    sent(session, engine(PULL, reader=3))
    session.receive(violation(subject), 3.0)
    to = only(session).peer
    assert (to.reader, to.ack, to.consumer, to.status) == (0, subject, "billing", 403)


def test_a_reader_that_asks_no_more_is_told_what_it_may_not_say_of_the_last_ones() -> None:
    session = native().session
    sent(session, engine("$JS.hub.API.CONSUMER.MSG.NEXT.ORDERS.billing", reader=3))
    sent(session, Message(Kind.UNSUBSCRIBE, attributes={"reader": 3}))
    session.receive(violation(ACK), 3.0)
    to = only(session).peer
    assert (to.reader, to.ack, to.consumer, to.status) == (0, ACK, "billing", 403)


@pytest.mark.parametrize("subject", [PULL.replace("billing", "others"), ACK.replace("billing", "others")])
def test_who_asks_or_settles_by_hand_is_told_what_is_not_allowed(subject: str) -> None:
    session = native().session
    sent(session, engine(PULL, reader=3))
    token = session.send(Message(Kind.REQUEST, subject, ttl=2.0), 2.0)
    [answer] = told(session, violation(subject), 3.0)
    assert (answer.kind, answer.id, answer.code) == (Kind.ERROR, token, Code.PERMISSION_DENIED)
    [lost] = told(session, violation(subject), 3.0)
    assert isinstance(lost, Undelivered)
    assert (lost.message.subject, lost.code) == (subject, Code.PERMISSION_DENIED)


@given(st.binary(max_size=60), st.sampled_from(["", ACK, "$JS.ACK.a.b.c", "_INBOX.x"]), st.binary(max_size=40))
def test_whatever_comes_to_a_reader_the_session_lives(block: bytes, reply: str, payload: bytes) -> None:
    reading = native()
    block = b"NATS/1.0" + block + b"\r\n\r\n"
    for event in told(reading.session, with_block(f"HMSG orders.x {reading.sid} {reply}".strip().encode(), block, payload)):
        assert isinstance(event, (Message, Refused))
        if isinstance(event, Message):
            assert (event.raw or b"") == payload
    [message] = reading.given()
    assert message.peer == GIVEN
