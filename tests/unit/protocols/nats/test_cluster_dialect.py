"""The dialect of a cluster, byte by byte: what a node says and understands, and that nothing that comes can break it."""

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.body import JSON
from polybus.errors import Code, Forbidden, LocalProtocolError
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import (
    CloseWanted,
    Due,
    Lost,
    NodeJoined,
    NodeLeft,
    Ready,
    Refused,
    ToAll,
    ToClient,
    ToGroup,
    ToNode,
    ToUser,
    Undelivered,
)
from polybus.protocols.nats import Nats
from polybus.protocols.nats.cluster.nodes import TOLD, TOLD_CHARACTERS, KnownHandlers
from polybus.protocols.nats.cluster.subjects import escape_subject, escape_token, unescape_subject, unescape_token
from polybus.subjects import canonical
from tests.doubles.driven import Driven

from .test_session import delivery, sent, told

INFO = b'INFO {"server_id":"S","headers":true,"max_payload":1048576}\r\n'
OTHERS = INFO.replace(b'"headers"', b'"connect_urls":["127.0.0.1:1"],"headers"')
HELLO = json.dumps({"hello": "other1", "bus": "b2", "name": "host:1", "host": "host"}).encode()


class Node(Driven):
    """A node of the cluster ``shop``, which is let in; `name` is its name there."""

    def __init__(self, known: KnownHandlers | None = None) -> None:
        adapter = Nats(cluster="shop", member="b1", known_handlers=known or KnownHandlers())
        super().__init__(adapter.session("client", Limits(), random.Random(7)))
        self.start(0.0)
        self.receive(INFO, 1.0)
        self.receive(b"PONG\r\n", 1.0)
        frames = self.frames_to_send()
        self.name = frames[1].split()[1].decode().removeprefix("shop.n.").removesuffix(".>")
        assert Ready(bare=True, node=self.name) in self.events()
        assert frames[4] == b"SUB shop.a 2\r\n"
        assert frames[5].startswith(f"PUB shop.a shop.n.{self.name}.h ".encode())

    def heard(self, frame: bytes, kind: Any = Message, now: float = 2.0) -> list[Any]:
        return [event for event in told(self, frame, now) if isinstance(event, kind)]

    def meet(self, hello: bytes = HELLO, reply: str = "") -> list[Any]:
        return told(self, delivery("shop.a", "2", hello, reply=reply))

    def ask(self, to: Any = None) -> str:
        facts = None if to is None else {"to": to}
        token: str | None = self.send(Message(Kind.REQUEST, "user.get", None, b"7", JSON, attributes=facts), 2.0)
        assert token is not None
        return token

    def answer(self, token: str, payload: bytes = b"", *headers: str, status: str = "") -> bytes:
        """What the engine delivers as the answer to a request of this node."""
        return delivery(f"shop.n.{self.name}.a.{token}", "1", payload, *headers, status=status)

    def handle(self, *subjects: str | int) -> dict[str, Any]:
        """Handle subjects, and return what it tells the others of them."""
        for subject in subjects:
            self.send(Message(Kind.SUBSCRIBE, subject, attributes={"handler": True}), 2.0)
        told(self, b"+OK\r\n")
        *_, hello = self.after(2.0)
        head, payload = hello.split(b"\r\n")[:2]
        assert head.startswith(b"PUB shop.a "), "it wants no answer"
        assert len(head.split()) == 3
        facts: dict[str, Any] = json.loads(payload)
        return facts

    def after(self, now: float) -> list[bytes]:
        self.tick(now)
        return self.frames_to_send()

    def probes(self, now: float | None = None) -> list[str]:
        """The inboxes in which it waits for a sign of life of ``other1``, which it has asked for one."""
        frames = self.frames_to_send() if now is None else self.after(now)
        return [frame.split()[2].decode() for frame in frames if frame.startswith(b"PUB shop.n.other1.y ")]


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def handling(node: Node) -> Node:
    node.handle("user.get")
    return node


def request(token: str, node: str = "other1", sid: str = "3") -> bytes:
    return delivery("shop.r.user.get", sid, b"7", reply=f"shop.n.{node}.a.{token}")


@pytest.mark.parametrize(
    ("to", "subject"),
    [
        (None, "shop.r.user.get"),
        (ToUser("ann"), "shop.k.ann.user.get"),
        (ToUser("a.b c*"), "shop.k.a%2Eb%20c%2A.user.get"),
        (ToClient("other1", "id7"), "shop.n.other1.d.id7.user.get"),
        (ToNode("other1"), "shop.n.other1.r.user.get"),
    ],
)
def test_whom_a_request_is_for_is_its_subject(node: Node, to: Any, subject: str) -> None:
    token = node.ask(to)
    assert node.frames_to_send() == [f"PUB {subject} shop.n.{node.name}.a.{token} 1\r\n7\r\n".encode()]


@pytest.mark.parametrize("key", ["x" * 3840, 2000 * "\u00e4", "a\ud800b"], ids=["long", "long where escaped", "surrogate"])
def test_a_key_that_the_wire_cannot_carry_is_refused_here_and_the_server_hears_nothing_of_it(node: Node, key: str) -> None:
    kinds, goals = (Kind.REQUEST, Kind.NOTIFY, Kind.PUBLISH), (ToUser(key), ToClient("other1", key))
    for kind, to in itertools.product(kinds, goals):
        with pytest.raises(LocalProtocolError, match="longer than 3840|lone surrogate"):
            node.send(Message(kind, "user.get", None, b"7", JSON, attributes={"to": to}), 2.0)
    with pytest.raises(LocalProtocolError, match="longer than 3840|lone surrogate"):
        node.send(Message(Kind.SUBSCRIBE, "", attributes={"user": key}), 2.0)
    assert node.frames_to_send() == []


def test_a_publication_is_for_all_for_a_group_or_a_user(node: Node) -> None:
    group, user = {"group": "g"}, {"user": "ann"}
    assert sent(node, Message(Kind.SUBSCRIBE, "news.*")) == [b"SUB shop.p.news.* 3\r\n"]
    assert sent(node, Message(Kind.SUBSCRIBE, "news.*", attributes=group)) == [b"SUB shop.p.news.* g 4\r\n"]
    subscriptions = [b"SUB shop.u.ann.> 5\r\n", b"SUB shop.k.ann.> h 6\r\n"]
    assert sent(node, Message(Kind.SUBSCRIBE, "", attributes=user)) == subscriptions
    for sid, subject, to in (
        ("3", "shop.p.news.today", ToAll("other1")),
        ("4", "shop.p.news.today", ToGroup("g", "news.*")),
        ("5", "shop.u.ann.news.today", ToUser("ann")),
    ):
        [message] = told(node, delivery(subject, sid, b"1", reply="shop.n.other1.p"))
        assert (message.kind, message.subject, message.body, message.peer) == (Kind.PUBLISH, "news.today", 1, to)
    # Its own come back to it: they have been delivered here already, but for those of groups.
    assert told(node, delivery("shop.p.news.today", "3", b"1", reply=f"shop.n.{node.name}.p")) == []
    assert len(told(node, delivery("shop.p.news.today", "4", b"1", reply=f"shop.n.{node.name}.p"))) == 1
    assert [node.publication("news.today", b"1")] == sent(node, Message(Kind.PUBLISH, "news.today", None, b"1", JSON))


def test_a_request_that_is_not_answered_in_its_turn_is_said_to_be_here(handling: Node) -> None:
    due, message = told(handling, request("t1"))
    assert due.at < 2.0
    answer = Message(Kind.RESPONSE, "", message.id, b"8", JSON)
    assert sent(handling, answer) == [b"PUB shop.n.other1.a.t1 1\r\n8\r\n"]
    assert handling.after(2.0) == []
    told(handling, request("t2"))
    [taken] = handling.after(2.0)
    assert taken.startswith(b"HPUB shop.n.other1.t ")
    assert taken.endswith(f"NATS/1.0 102 {handling.name}\r\n\r\nt2\r\n".encode())
    # Foreign programs would take it for the answer.
    told(handling, delivery("shop.r.user.get", "3", b"7", reply="_INBOX.them.1"))
    assert handling.after(2.0) == []


def test_each_asker_is_told_once_which_of_its_requests_of_a_turn_are_here_in_as_many_messages_as_it_takes(
    handling: Node,
) -> None:
    for asker, token in [("other1", "t1"), ("other2", "t2"), ("other1", "t3"), ("other1", "t4")]:
        handling.receive(request(token, asker), 2.0)
    third: Any = handling.events()[3]
    sent(handling, Message(Kind.RESPONSE, "", third.id, b"8", JSON))
    head = f"NATS/1.0 102 {handling.name}\r\n\r\n".encode()
    assert handling.after(2.0) == [
        b"HPUB shop.n.other1.t %d %d\r\n%bt1 t4\r\n" % (len(head), len(head) + 5, head),
        b"HPUB shop.n.other2.t %d %d\r\n%bt2\r\n" % (len(head), len(head) + 2, head),
    ]
    for number in range(600):
        told(handling, request(f"t{number}"))
    assert [len(frame.split(b"\r\n\r\n")[1].split()) for frame in handling.after(2.0)] == [256, 256, 88]


def test_a_node_that_has_several_requests_and_is_gone_ends_those(node: Node) -> None:
    tokens = [node.ask() for _ in range(3)]
    node.meet(reply="shop.n.other1.h")
    taken = " ".join(tokens[:2]).encode() + b"  \xff nobody's"
    told(node, delivery(f"shop.n.{node.name}.t", "1", taken, status=" 102 other1"))
    [probe] = node.probes(3.1)
    told(node, delivery(probe, status=" 102 other1"), 3.2)  # it lives
    [probe] = node.probes(4.2)
    [lost] = node.heard(delivery(probe, status=" 503"), Lost, 4.3)
    assert (lost.ids, lost.sent) == (tuple(tokens[:2]), True)


@pytest.mark.parametrize(
    ("payload", "status"),
    [(b"t1", ""), (b"t1", " 503"), (b"t1", " 102 *"), (b" ".join([b"t"] * 257), " 102 other1")],
    ids=["no status", "another one", "no node", "too many"],
)
def test_a_list_of_requests_that_is_none_is_counted_and_not_answered(node: Node, payload: bytes, status: str) -> None:
    [refused] = told(node, delivery(f"shop.n.{node.name}.t", "1", payload, status=status, reply="_INBOX.them.1"))
    assert isinstance(refused, Refused)
    assert node.frames_to_send() == []


def test_the_end_of_a_turn_is_that_of_its_own_requests_and_not_of_those_which_came_meanwhile(handling: Node) -> None:
    first, second = told(handling, request("t1"))
    assert first.at < 2.0
    sent(handling, Message(Kind.RESPONSE, "", second.id, b"8", JSON))
    # Before the link comes to the end of that turn, the next one has begun: its handlers have not had their turn yet.
    due, _ = told(handling, request("t2"), 2.1)
    assert due.at < 2.0
    assert handling.after(2.0) == []
    [taken] = handling.after(2.0)
    assert taken.endswith(b"\r\n\r\nt2\r\n")


def test_what_no_handler_has_seen_is_asked_elsewhere_twice(node: Node) -> None:
    token = node.ask()
    [frame] = node.frames_to_send()
    refusal = "Nats-Service-Error: full", "Nats-Service-Error-Code: 8", "Polybus-Kind: undelivered"
    for due in ([Due(3.0)], []):  # what a request wishes is told with the next that comes in
        assert told(node, node.answer(token, b"", *refusal)) == due
        assert node.frames_to_send() == [frame]
    [error] = told(node, node.answer(token, b"", *refusal))
    assert (error.kind, error.id, error.code) == (Kind.ERROR, token, Code.RESOURCE_EXHAUSTED)


def test_a_node_tells_the_others_once_a_turn_what_it_handles_and_each_that_says_hello(node: Node) -> None:
    handles = ["user.get", "door.*.open", "%i7", "%u.a.b.c"]
    assert node.handle("user.get", "door.{id}.open", 7, "a/b/c")["handles"] == handles
    assert node.after(2.1) == []
    assert node.handle("more")["handles"] == [*handles, "more"]
    node.meet(reply="shop.n.other1.h")
    [answer] = node.frames_to_send()
    assert answer.startswith(b"PUB shop.n.other1.h ")
    assert json.loads(answer.split(b"\r\n")[1])["handles"][0] == "user.get"
    node.send(Message(Kind.SUBSCRIBE, "user.get", attributes={"handler": True}), 2.2)
    assert node.after(2.2) == [], "known already"


def test_a_node_whose_handlers_do_not_fit_tells_of_as_many_as_do_and_what_others_say_fills_no_memory() -> None:
    assert len(Node().handle(*(f"h.{number}" for number in range(TOLD + 10)))["handles"]) == TOLD
    handles = Node().handle(*(f"{number:0100d}" for number in range(TOLD)))["handles"]
    assert sum(map(len, handles)) <= TOLD_CHARACTERS < sum(map(len, handles)) + 100
    known = KnownHandlers(60.0)
    for number in range(600):
        known.told(f"n{number}", [f"{number}.{index}.{'x' * 8000}.*" for index in range(5)])
        known.left(f"n{number - 200}", 1.0 + number / 1e6)
        assert known._kept + known._kept_gone <= 2 * 4 * 1024 * 1024
    for number in range(100):  # short ones cost more than their characters
        known.told(f"s{number}", [f"{number}.{index}" for index in range(TOLD)])
        known.left(f"s{number}", 2.0)
    assert len(known._gone) <= 64 * 1024
    assert KnownHandlers().last_seen("x", 1.0) is None
    known.all_left(1000.0)
    known.all_left(1001.0)
    known.told("z", ["z"])
    known.left("z", 2000.0)
    assert (known._kept, known._kept_gone) == (0, 1), "what is remembered no more is kept no more"


@pytest.mark.parametrize(
    ("handles", "code"),
    [
        (["other", "user.get"], Code.UNAVAILABLE),
        (["user.*"], Code.UNAVAILABLE),
        ([">"], Code.UNAVAILABLE),
        (["*/*\x00", "//[", "user.get"], Code.UNAVAILABLE),
        (["user", "user.get.all", "*", "users.get"], Code.UNIMPLEMENTED),
        ("user.get", Code.UNIMPLEMENTED),
        ([7, None, "", ["user.get"]], Code.UNIMPLEMENTED),
        ({"user.get": 1}, Code.UNIMPLEMENTED),
        (None, Code.UNIMPLEMENTED),
    ],
)
@pytest.mark.parametrize("end", ["bye", "probe", "connection"])
def test_a_subject_whose_last_handler_went_lately_is_unavailable_and_later_unknown(handles: Any, code: Code, end: str) -> None:
    known = KnownHandlers(60.0)
    node = Node(known)
    node.meet(json.dumps({**json.loads(HELLO), "handles": handles}).encode(), "shop.n.other1.h")

    def nobody(now: float) -> tuple[Code | None, str]:
        [error] = node.heard(node.answer(node.ask(), status=" 503"), now=now)
        assert error.kind is Kind.ERROR
        return error.code, error.attributes["text"]

    if end == "bye":
        told(node, delivery("shop.a", "2", b'{"bye": "other1"}'), 3.0)
    elif end == "probe":  # it was killed, and the engine is the first who knows
        assert nobody(2.5)[0] is code
        probes = node.probes(3.6)
        assert len(probes) == (code is Code.UNAVAILABLE)
        for probe in probes:
            told(node, delivery(probe, status=" 503"), 3.0)
    else:
        node.receive(b"PING\r\n", 3.0)
        node.connection_lost("gone")
        node = Node(known)
    more = " now, and its last handler left 2 s ago: retry, for example with retry=Retry()"
    text = "no node of the cluster handles this" + (more if code is Code.UNAVAILABLE else "")
    assert nobody(5.0) == (code, text)
    assert nobody(62.9)[0] is code
    assert nobody(63.0)[0] is Code.UNIMPLEMENTED


def test_a_handler_that_another_node_has_still_or_again_has_not_gone() -> None:
    known = KnownHandlers(60.0)
    known.told("a", ["x", "y.*"])
    known.told("b", ["x"])
    known.left("a", 1.0)
    assert (known.last_seen("x", 100.0), known.last_seen("y.1", 50.0), known.last_seen("y.1", 61.0)) == (100.0, 1.0, None)
    known.told("c", ["y.*"])
    assert known.last_seen("y.1", 100.0) == 100.0
    known.told("c", [])
    known.left("b", 200.0)
    assert (known.last_seen("x", 201.0), known.last_seen("y.1", 201.0)) == (200.0, None)


def test_a_cancel_waits_until_it_is_known_who_has_the_request(node: Node) -> None:
    node.meet()
    token = node.ask()
    node.forget(token, 2.0)
    node.frames_to_send()
    assert sent(node, Message(Kind.CANCEL, "user.get", token)) == []
    told(node, node.answer(token, status=" 102 other1"))
    [cancel] = node.frames_to_send()
    assert cancel.startswith(f"HPUB shop.n.other1.c.{node.name}.{token} ".encode())
    assert b"Polybus-Kind: cancel\r\n" in cancel


@pytest.mark.parametrize("entered", [False, True], ids=["at the beginning", "later"])
@pytest.mark.parametrize(
    ("refused", "ends"),
    [
        ('Subscription to "{inbox}"', True),
        ('Subscription to "shop.a"', True),
        ('Publish to "shop.a"', True),
        ('Publish to "{probe}"', True),
        ('Subscription to "shop.p.secret"', False),
        ('Subscription to "shop.r.secret" using queue "h"', False),
        ('Publish to "shop.r.secret"', False),
    ],
)
def test_a_node_that_may_not_hear_or_answer_the_others_is_none(refused: str, ends: bool, entered: bool) -> None:
    session = Driven(Nats(cluster="shop", member="b1").session("client", Limits(), random.Random(7)))
    session.start(0.0)
    session.receive(INFO, 1.0)
    _, subscription, probe, ping = session.frames_to_send()
    assert ping == b"PING\r\n"
    if entered:
        assert any(isinstance(event, Ready) for event in told(session, b"PONG\r\n"))
    names = {"inbox": subscription.split()[1].decode(), "probe": probe.split()[1].decode()}
    [event] = told(session, f"-ERR 'Permissions Violation for {refused.format(**names)}'\r\n".encode())
    assert isinstance(event, CloseWanted if ends else Undelivered)
    if isinstance(event, CloseWanted):
        assert (event.code, type(event.error)) == (4403, Forbidden)
        assert "allow this user to publish and to subscribe to shop.>" in str(event.error)


def test_nodes_say_hello_and_goodbye(node: Node) -> None:
    assert node.meet(reply="shop.n.other1.h") == [NodeJoined("other1", {"bus": "b2", "name": "host:1", "host": "host"})]
    [answer] = node.frames_to_send()
    assert answer.startswith(b"PUB shop.n.other1.h ")
    assert answer.split(b"\r\n")[0].count(b" ") == 2, "it wants no answer"
    assert node.meet(reply="shop.n.other1.h") == []
    assert told(node, delivery("shop.a", "2", b'{"bye":"other1"}')) == [NodeLeft("other1", orderly=True)]
    node.frames_to_send()
    node.close(1000, "", 3.0)
    [bye] = node.frames_to_send()
    assert json.loads(bye.split(b"\r\n")[1])["bye"] == node.name


@pytest.mark.parametrize("rest", ["", "a", "a.", "a.zz", "c", "c.x", "d", "d.x", "d..", "r", "q", "y", "h", "p", "c.a.b", "."])
def test_whatever_a_member_sends_a_node_it_is_read_or_counted(node: Node, rest: str) -> None:
    replies = ("", "shop.n.other1.a.t1", "shop.n", "shop.n.", "x")
    kinds = ((), ("Polybus-Kind: item",), ("Polybus-Kind: credit x",), ("Polybus-Kind: open a b",))
    for reply, headers in itertools.product(replies, kinds):
        events = told(node, delivery(f"shop.n.{node.name}.{rest}", "1", b"{", *headers, reply=reply))
        assert all(isinstance(event, Message | Refused | Due | Lost) for event in events)


@pytest.mark.parametrize(
    "reply",
    [
        *("shop.p.admin.reset", "shop.r.user.get", "shop.a", "shop.u.ann.news", "shop.k.ann.user.get", "shop.dead.x"),
        *("shop.n.other1.r.user.get", "shop.n.other1.d.id7.x", "shop.n.other1.y", "shop.n.other1.h", "shop.n.other1.c.t1"),
        *("shop.n.other1.a.b.c", "shop.n..a.t1", "shop.n.-.a.t1", "shop.n.a", "shop.j.other1.5"),
        *("$JS.API.STREAM.DELETE.ORDERS", "$JS.ACK.ORDERS.d.1.5.5.1.0", "$SYS.REQ.SERVER.PING", "$KV.settings.a"),
    ],
)
def test_who_may_only_ask_has_a_node_publish_nothing_by_the_reply_subject(handling: Node, reply: str) -> None:
    """Engines check what a program publishes, and not where it wants its answer: that a node publishes with its own rights."""
    handling.send(Message(Kind.SUBSCRIBE, "", attributes={"user": "ann"}), 2.0)
    handling.frames_to_send()
    own = ("r.user.get", "d.id7.user.get", "y", "q", "r.", "h")
    subjects = {"shop.r.user.get": "3", "shop.k.ann.user.get": "5", "shop.r.%25x": "3", "shop.a": "2"}
    subjects |= {f"shop.n.{handling.name}.{rest}": "1" for rest in own}
    for (subject, sid), kind in itertools.product(subjects.items(), ("", "open a b", "open stream 5 0")):
        headers = (f"Polybus-Kind: {kind}",) if kind else ()
        payload = HELLO if subject == "shop.a" else b"7"
        assert handling.heard(delivery(subject, sid, payload, *headers, reply=reply)) == [], subject
        goals = {frame.split()[1].decode() for frame in handling.after(2.0)}
        assert reply not in goals or reply == "shop.n.other1.h"


@pytest.mark.parametrize("status", [" 102", " 102 ", " 102 a b", " 102 a.b", " 102 *", " 102 \u00e9", " 102 " + 65 * "x"])
def test_a_request_is_not_taken_by_what_is_no_node(node: Node, status: str) -> None:
    token = node.ask()
    node.frames_to_send()
    *_, refused = told(node, node.answer(token, status=status))
    assert isinstance(refused, Refused)
    node.send(Message(Kind.CANCEL, "", token), 2.0)
    assert node.after(9.0) == [b"PING\r\n"], "the engine alone is asked for a sign of life"
    *_, answer = told(node, node.answer(token, b"8"), 9.0)
    assert (answer.kind, answer.body) == (Kind.RESPONSE, 8)


@pytest.mark.parametrize("name", ["\u00e9\u00e9", "\u00b2", 65 * "x", "a b", ""])
def test_a_node_is_no_name_that_this_wire_cannot_carry(node: Node, name: str) -> None:
    assert isinstance(node.meet(json.dumps({"hello": name}).encode(), "shop.n.x.h")[0], Refused)
    assert node.frames_to_send() == []
    # What one with such a name asks is answered to where it says, and it is no node that could be asked whether it lives.
    if name and " " not in name:
        node.handle("user.get")
        told(node, request("t1", name))
        assert [frame for now in (2.0, 4.0, 9.0) for frame in node.after(now)] == [b"PING\r\n"]


def test_facts_of_a_node_that_are_no_text_are_none(node: Node) -> None:
    hello = json.dumps({"hello": "other1", "bus": ["b2"], "name": {"a": 1}}).encode()
    assert node.meet(hello) == [NodeJoined("other1", {"bus": None, "name": None, "host": None})]
    hello = json.dumps({"hello": "other2", "bus": 500 * "b", "name": 500 * "n", "host": 500 * "h"}).encode()
    assert node.meet(hello) == [NodeJoined("other2", {"bus": 200 * "b", "name": 200 * "n", "host": 200 * "h"})]


def test_a_node_that_was_silent_and_is_there_again_is_greeted_and_known(node: Node) -> None:
    node.meet()
    told(node, node.answer(node.ask(), status=" 102 other1"))
    gone: list[Any] = []
    for now in range(3, 40):
        node.receive(b"PING\r\n", float(now))
        node.tick(float(now))
        gone += [event for event in node.events() if isinstance(event, NodeLeft | Lost)]
    assert [type(event) for event in gone] == [Lost, NodeLeft]
    reply = node.probes()[0]
    assert told(node, delivery(reply, status=" 102 other1"), 41.0) == []
    [hello] = node.frames_to_send()
    assert hello.startswith(f"PUB shop.n.other1.h shop.n.{node.name}.h ".encode())
    [joined] = told(node, delivery(f"shop.n.{node.name}.h", "1", HELLO), 41.0)
    assert joined == NodeJoined("other1", {"bus": "b2", "name": "host:1", "host": "host"})
    assert told(node, delivery(reply, status=" 102 other1"), 42.0) == []
    assert node.frames_to_send() == []


def test_a_node_that_cannot_be_asked_is_known_no_more(node: Node) -> None:
    node.meet()
    token = node.ask(ToNode("other1"))
    lost, left = told(node, node.answer(token, status=" 503"))[-2:]
    assert (lost.ids, lost.sent) == ((token,), False)
    assert left == NodeLeft("other1")


def test_a_bus_that_has_come_back_under_another_name_is_asked_for_by_the_old_one(node: Node) -> None:
    node.meet()
    node.frames_to_send()
    node.meet(HELLO.replace(b"other1", b"other2"))
    [probe] = node.probes()
    assert told(node, delivery(probe, status=" 503")) == [NodeLeft("other1")]


def test_where_too_many_nodes_are_known_those_that_are_gone_make_room(node: Node) -> None:
    for number in range(4096):
        node.meet(json.dumps({"hello": f"n{number}"}).encode())
    assert node.frames_to_send() == []
    assert node.meet() == []
    probes = [frame.split() for frame in node.frames_to_send()]
    assert len(probes) == 4096
    assert told(node, delivery(probes[7][2].decode(), status=" 503")) == [NodeLeft("n7")]
    [joined] = node.meet()
    assert isinstance(joined, NodeJoined)


def test_a_node_that_dies_with_the_question_whether_it_lives_is_asked_again(node: Node) -> None:
    node.meet()
    told(node, node.answer(node.ask(), status=" 102 other1"))
    node.frames_to_send()
    [_], [probe] = node.probes(3.5), node.probes(4.6)  # the first came to the node, which was killed before it answered
    events = told(node, delivery(probe, status=" 503"), 4.7)
    assert [type(event) for event in events if not isinstance(event, Due)] == [Lost, NodeLeft]


def test_all_are_greeted_again_when_servers_have_found_each_other(node: Node) -> None:
    node.ask()  # a look at what is under way is due sooner, and stays due
    *_, due = told(node, OTHERS, 2.5)
    assert due == Due(3.5)
    node.tick(3.0)
    assert Due(3.5) in node.events()
    node.frames_to_send()
    hello = [frame for frame in node.after(3.5) if frame.startswith(f"PUB shop.a shop.n.{node.name}.h ".encode())]
    assert len(hello) == 1
    # One that is gone has nobody to greet.
    told(node, INFO, 4.0)
    assert not [frame for frame in node.after(6.0) if frame.startswith(b"PUB shop.a ")]


def test_a_node_that_was_away_itself_gives_the_others_time_to_answer(node: Node) -> None:
    node.meet()
    told(node, node.answer(node.ask(), status=" 102 other1"))
    [probe] = node.probes(3.5)
    # It was stopped, or the machine slept: the answer has come, and is read after this.
    node.receive(b"PING\r\n", 300.0)
    node.tick(300.0)
    assert not [event for event in node.events() if isinstance(event, Lost | NodeLeft)]
    told(node, delivery(probe, status=" 102 other1"), 300.0)
    for now in range(301, 310):
        node.receive(b"PING\r\n", float(now))
        for probe in node.probes(float(now)):
            told(node, delivery(probe, status=" 102 other1"), float(now))
    assert not [event for event in node.events() if isinstance(event, Lost | NodeLeft)]


@pytest.mark.parametrize(
    ("rest", "kind"), [("r.user.get", "open2 a"), ("zz", ""), ("d.x", ""), ("d.id7.%ix", ""), ("r.user.get", "open stream x 1")]
)
def test_what_a_newer_node_asks_and_this_one_does_not_know_is_answered(node: Node, rest: str, kind: str) -> None:
    headers = [f"Polybus-Kind: {kind}"] if kind else []
    [refused] = told(node, delivery(f"shop.n.{node.name}.{rest}", "1", b"7", *headers, reply="shop.n.other1.a.t1"))
    assert isinstance(refused, Refused)
    [answer] = node.frames_to_send()
    assert answer.startswith(b"HPUB shop.n.other1.a.t1 ")
    assert b"Nats-Service-Error-Code: " in answer
    # An answer has none, or two that do not understand each other would never end.
    told(node, delivery(f"shop.n.{node.name}.a.zz", "1", b"7", reply="shop.n.other1.a.t1"))
    assert node.frames_to_send() == []


@given(st.binary(max_size=300), st.sampled_from(["MSG", "HMSG", "INFO", "-ERR", ""]))
def test_any_bytes_are_read_or_counted(data: bytes, verb: str) -> None:
    node = Node()
    node.ask()
    node.receive(verb.encode() + b" " + data + b"\r\n", 2.0)
    node.receive(node.answer("", data), 2.0)
    node.meet(data)
    node.tick(9.0)


@given(st.text(max_size=40))
def test_every_key_is_one_token_and_comes_back(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    token = escape_token(text)
    assert token
    assert not {*token} & {".", "*", ">", " ", "\r", "\n", "\t"}
    assert unescape_token(token) == text


@pytest.mark.parametrize(
    "subject", ["a", "a.b", "a b.c%d", "Ä.ö", 65537, -1, 0, "//VCU.VIN/body.access/1/rpc.Update", "/body/1", "a/b c", "x\ty"]
)
def test_every_subject_comes_back_and_an_address_in_its_one_spelling(subject: str | int) -> None:
    wire = escape_subject(subject)
    assert not {*wire} & {" ", "\t", "\r", "\n"}
    assert ".." not in wire
    assert unescape_subject(wire) == (canonical(subject) if isinstance(subject, str) else subject)


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a.", "\ud800"])
def test_a_subject_that_servers_would_drop_is_refused_here(subject: str) -> None:
    with pytest.raises(LocalProtocolError):
        escape_subject(subject)
