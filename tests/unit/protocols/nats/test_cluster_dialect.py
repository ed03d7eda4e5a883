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

INFO = b'INFO {"server_id":"S","headers":true,"max_payload":1048576}\r\n'
HELLO = json.dumps({"hello": "other1", "bus": "b2", "name": "host:1", "host": "host"}).encode()


def ready(limits: Limits | None = None, known: KnownHandlers | None = None) -> tuple[Driven, str]:
    """A session that is in, and the name of its node."""
    adapter = Nats(cluster="shop", member="b1", known_handlers=known or KnownHandlers())
    session = Driven(adapter.session("client", limits or Limits(), random.Random(7)))
    session.start(0.0)
    session.receive(INFO, 1.0)
    session.receive(b"PONG\r\n", 1.0)
    frames = session.frames_to_send()
    node = frames[1].split()[1].decode().removeprefix("shop.n.").removesuffix(".>")
    assert Ready(bare=True, node=node) in session.events()
    assert frames[4] == b"SUB shop.a 2\r\n"
    assert frames[5].startswith(f"PUB shop.a shop.n.{node}.h ".encode())
    return session, node


def told(session: Driven, frame: bytes, now: float = 2.0) -> list[Any]:
    session.receive(frame, now)
    return session.events()


def sent(session: Driven, message: Message, now: float = 2.0) -> list[bytes]:
    session.send(message, now)
    return session.frames_to_send()


def handle(session: Driven, *subjects: str | int) -> dict[str, Any]:
    """Have a node handle subjects; what it tells the others of them."""
    for subject in subjects:
        session.send(Message(Kind.SUBSCRIBE, subject, attributes={"handler": True}), 2.0)
    told(session, b"+OK\r\n")
    session.tick(2.0)
    *_, hello = session.frames_to_send()
    head, payload = hello.split(b"\r\n")[:2]
    assert head.startswith(b"PUB shop.a "), "it wants no answer"
    assert len(head.split()) == 3
    facts: dict[str, Any] = json.loads(payload)
    return facts


def msg(subject: str, sid: str, payload: bytes = b"", reply: str = "", *headers: str, status: str = "") -> bytes:
    names = f"{subject} {sid} {reply}".strip()
    if not headers and not status:
        return f"MSG {names} {len(payload)}\r\n".encode() + payload + b"\r\n"
    block = ("\r\n".join([f"NATS/1.0{status}", *headers]) + "\r\n\r\n").encode()
    return f"HMSG {names} {len(block)} {len(block) + len(payload)}\r\n".encode() + block + payload + b"\r\n"


def asked(session: Driven, to: Any = None, kind: Kind = Kind.REQUEST, **facts: Any) -> str:
    extras = {**facts, **({} if to is None else {"to": to})}
    token: str | None = session.send(Message(kind, "user.get", None, b"7", JSON, attributes=extras or None), 2.0)
    assert token is not None
    return token


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
def test_whom_a_request_is_for_is_its_subject(to: Any, subject: str) -> None:
    session, node = ready()
    token = asked(session, to)
    [frame] = session.frames_to_send()
    assert frame == f"PUB {subject} shop.n.{node}.a.{token} 1\r\n7\r\n".encode()


@pytest.mark.parametrize(
    "key", ["x" * 3840, 2000 * "\u00e4", "a\ud800b"], ids=["long", "long where it is escaped", "surrogate"]
)
def test_a_key_that_the_wire_cannot_carry_is_refused_here_and_the_server_hears_nothing_of_it(key: str) -> None:
    session, _ = ready()
    for to in (ToUser(key), ToClient("other1", key)):
        for kind in (Kind.REQUEST, Kind.NOTIFY, Kind.PUBLISH):
            with pytest.raises(LocalProtocolError, match="longer than 3840|lone surrogate"):
                session.send(Message(kind, "user.get", None, b"7", JSON, attributes={"to": to}), 2.0)
    with pytest.raises(LocalProtocolError, match="longer than 3840|lone surrogate"):
        session.send(Message(Kind.SUBSCRIBE, "", attributes={"user": key}), 2.0)
    assert session.frames_to_send() == []


def test_a_publication_is_for_all_for_a_group_or_a_user() -> None:
    session, node = ready()
    assert sent(session, Message(Kind.SUBSCRIBE, "news.*")) == [b"SUB shop.p.news.* 3\r\n"]
    group = {"group": "g"}
    assert sent(session, Message(Kind.SUBSCRIBE, "news.*", attributes=group)) == [b"SUB shop.p.news.* g 4\r\n"]
    user = {"user": "ann"}
    assert sent(session, Message(Kind.SUBSCRIBE, "", attributes=user)) == [
        b"SUB shop.u.ann.> 5\r\n",
        b"SUB shop.k.ann.> h 6\r\n",
    ]
    for sid, subject, to in (
        ("3", "shop.p.news.today", ToAll("other1")),
        ("4", "shop.p.news.today", ToGroup("g", "news.*")),
        ("5", "shop.u.ann.news.today", ToUser("ann")),
    ):
        [message] = told(session, msg(subject, sid, b"1", "shop.n.other1.p"))
        assert (message.kind, message.subject, message.body, message.peer) == (Kind.PUBLISH, "news.today", 1, to)
    # Its own come back to it: they have been delivered here already, but for those of groups.
    assert told(session, msg("shop.p.news.today", "3", b"1", f"shop.n.{node}.p")) == []
    assert len(told(session, msg("shop.p.news.today", "4", b"1", f"shop.n.{node}.p"))) == 1


@pytest.mark.parametrize(
    ("reply", "source"),
    [("shop.n.other1.p", "other1"), ("shop.n.other2.p", "other2"), ("", ""), ("_INBOX.a.b", ""), ("shop.n..p", "")],
)
def test_a_publication_says_which_node_it_is_from_where_it_is_from_one(reply: str, source: str) -> None:
    session, _ = ready()
    sent(session, Message(Kind.SUBSCRIBE, "news.*"))
    for _ in range(2):
        [message] = told(session, msg("shop.p.news.today", "3", b"1", reply))
        assert message.peer == ToAll(source)


def test_a_request_that_is_not_answered_in_its_turn_is_said_to_be_here() -> None:
    session, node = ready()
    handle(session, "user.get")
    reply = "shop.n.other1.a.t1"
    due, message = told(session, msg("shop.r.user.get", "3", b"7", reply))
    assert due.at < 2.0
    answer = Message(Kind.RESPONSE, "", message.id, b"8", JSON)
    assert sent(session, answer) == [f"PUB {reply} 1\r\n8\r\n".encode()]
    session.tick(2.0)
    assert session.frames_to_send() == []
    _, message = told(session, msg("shop.r.user.get", "3", b"7", "shop.n.other1.a.t2"))
    session.tick(2.0)
    [taken] = session.frames_to_send()
    assert taken.startswith(b"HPUB shop.n.other1.t ")
    assert taken.endswith(f"NATS/1.0 102 {node}\r\n\r\nt2\r\n".encode())
    # Foreign programs would take it for the answer.
    told(session, msg("shop.r.user.get", "3", b"7", "_INBOX.them.1"))
    session.tick(2.0)
    assert session.frames_to_send() == []


def test_each_asker_is_told_once_which_of_its_requests_of_a_turn_are_here() -> None:
    session, node = ready()
    handle(session, "user.get")
    asked = [("other1", "t1"), ("other2", "t2"), ("other1", "t3"), ("other1", "t4")]
    for asker, token in asked:
        session.receive(msg("shop.r.user.get", "3", b"7", f"shop.n.{asker}.a.{token}"), 2.0)
    third: Any = session.events()[3]
    sent(session, Message(Kind.RESPONSE, "", third.id, b"8", JSON))
    session.tick(2.0)
    head = f"NATS/1.0 102 {node}\r\n\r\n".encode()
    assert session.frames_to_send() == [
        b"HPUB shop.n.other1.t %d %d\r\n%bt1 t4\r\n" % (len(head), len(head) + 5, head),
        b"HPUB shop.n.other2.t %d %d\r\n%bt2\r\n" % (len(head), len(head) + 2, head),
    ]


def test_a_node_that_has_more_requests_than_one_message_names_sends_several() -> None:
    session, _ = ready()
    handle(session, "user.get")
    for number in range(600):
        session.receive(msg("shop.r.user.get", "3", b"7", f"shop.n.other1.a.t{number}"), 2.0)
    session.events()
    session.tick(2.0)
    taken = session.frames_to_send()
    assert [len(frame.split(b"\r\n\r\n")[1].split()) for frame in taken] == [256, 256, 88]


def test_a_node_that_has_several_requests_and_is_gone_ends_those() -> None:
    session, node = ready()
    tokens = [asked(session) for _ in range(3)]
    told(session, msg("shop.a", "2", HELLO, "shop.n.other1.h"))
    told(session, msg(f"shop.n.{node}.t", "1", " ".join(tokens[:2]).encode(), status=" 102 other1"))
    session.frames_to_send()
    session.tick(3.1)
    [probe] = [frame for frame in session.frames_to_send() if b"shop.n.other1.y" in frame]
    events = told(session, msg(probe.split()[2].decode(), "1", status=" 503"), 3.2)
    [lost] = [event for event in events if isinstance(event, Lost)]
    assert (lost.ids, lost.sent) == (tuple(tokens[:2]), True)


@pytest.mark.parametrize(
    ("payload", "status"),
    [(b"t1", ""), (b"t1", " 503"), (b"t1", " 102 *"), (b" ".join([b"t"] * 257), " 102 other1")],
    ids=["no status", "another one", "no node", "too many"],
)
def test_a_list_of_requests_that_is_none_is_counted_and_not_answered(payload: bytes, status: str) -> None:
    session, node = ready()
    [refused] = told(session, msg(f"shop.n.{node}.t", "1", payload, "_INBOX.them.1", status=status))
    assert isinstance(refused, Refused)
    assert session.frames_to_send() == []


def test_a_list_of_requests_that_nobody_has_asked_changes_nothing() -> None:
    session, node = ready()
    told(session, msg("shop.a", "2", HELLO, "shop.n.other1.h"))
    session.frames_to_send()
    assert told(session, msg(f"shop.n.{node}.t", "1", b"t1  \xff t2", status=" 102 other1")) == []
    assert session.frames_to_send() == []


def test_the_end_of_a_turn_is_that_of_its_own_requests_and_not_of_those_which_came_meanwhile() -> None:
    session, _ = ready()
    handle(session, "user.get")
    first, second = told(session, msg("shop.r.user.get", "3", b"7", "shop.n.other1.a.t1"))
    assert first.at < 2.0
    sent(session, Message(Kind.RESPONSE, "", second.id, b"8", JSON))
    # Before the link comes to the end of that turn, the next one has begun: its handlers have not had their turn yet.
    due, _ = told(session, msg("shop.r.user.get", "3", b"7", "shop.n.other1.a.t2"), 2.1)
    assert due.at < 2.0
    session.tick(2.0)
    assert session.frames_to_send() == []
    session.tick(2.0)
    [taken] = session.frames_to_send()
    assert taken.endswith(b"\r\n\r\nt2\r\n")


def test_a_node_that_has_a_request_and_is_gone_ends_it() -> None:
    session, node = ready()
    token = asked(session)
    session.frames_to_send()
    assert told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 102 other1"))[:1] != []
    session.tick(3.1)
    [probe] = [frame for frame in session.frames_to_send() if b"shop.n.other1.y" in frame]
    question = probe.split()[2].decode()
    told(session, msg(question, "1", status=" 102 other1"), 3.2)  # it lives
    session.tick(4.2)
    [probe] = [frame for frame in session.frames_to_send() if b"shop.n.other1.y" in frame]
    events = told(session, msg(probe.split()[2].decode(), "1", status=" 503"), 4.3)
    [lost] = [event for event in events if isinstance(event, Lost)]
    assert (lost.ids, lost.sent) == ((token,), True)


def test_what_no_handler_has_seen_is_asked_elsewhere_twice() -> None:
    session, node = ready()
    token = asked(session)
    [frame] = session.frames_to_send()
    refusal = "Nats-Service-Error: full", "Nats-Service-Error-Code: 8", "Polybus-Kind: undelivered"
    for due in ([Due(3.0)], []):  # what a request wishes is told with the next that comes in
        assert told(session, msg(f"shop.n.{node}.a.{token}", "1", b"", "", *refusal)) == due
        assert session.frames_to_send() == [frame]
    [error] = told(session, msg(f"shop.n.{node}.a.{token}", "1", b"", "", *refusal))
    assert (error.kind, error.id, error.code) == (Kind.ERROR, token, Code.RESOURCE_EXHAUSTED)


def test_nobody_there_is_an_error_for_handlers_and_a_loss_for_users() -> None:
    session, node = ready()
    token = asked(session)
    [error] = [e for e in told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 503")) if isinstance(e, Message)]
    assert (error.kind, error.code) == (Kind.ERROR, Code.UNIMPLEMENTED)
    token = asked(session, ToUser("ann"))
    [lost] = [e for e in told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 503")) if isinstance(e, Lost)]
    assert (lost.ids, lost.sent) == ((token,), False)
    assert "'ann'" in lost.reason


def test_a_node_tells_the_others_once_a_turn_what_it_handles_and_each_that_says_hello() -> None:
    session, node = ready()
    handles = ["user.get", "door.*.open", "%i7", "%u.a.b.c"]
    assert handle(session, "user.get", "door.{id}.open", 7, "a/b/c")["handles"] == handles
    session.tick(2.1)
    assert session.frames_to_send() == []
    assert handle(session, "more")["handles"] == [*handles, "more"]
    told(session, msg("shop.a", "2", HELLO, "shop.n.other1.h"))
    [answer] = session.frames_to_send()
    assert answer.startswith(b"PUB shop.n.other1.h ")
    assert json.loads(answer.split(b"\r\n")[1])["handles"][0] == "user.get"
    session.send(Message(Kind.SUBSCRIBE, "user.get", attributes={"handler": True}), 2.2)
    session.tick(2.2)
    assert len(session.frames_to_send()) == 0, "known already"


def test_a_node_with_more_handlers_than_fit_tells_of_as_many_as_do() -> None:
    session, _ = ready()
    assert len(handle(session, *(f"h.{number}" for number in range(TOLD + 10)))["handles"]) == TOLD
    session, _ = ready()
    handles = handle(session, *(f"{number:0100d}" for number in range(TOLD)))["handles"]
    assert sum(map(len, handles)) <= TOLD_CHARACTERS < sum(map(len, handles)) + 100


REMEMBERED = [
    ("user.get", ["other", "user.get"], Code.UNAVAILABLE),
    ("user.get", ["user.*"], Code.UNAVAILABLE),
    ("user.get", [">"], Code.UNAVAILABLE),
    ("user.get", ["user", "user.get.all", "*", "users.get"], Code.UNIMPLEMENTED),
    ("user.get", "user.get", Code.UNIMPLEMENTED),
    ("user.get", [7, None, "", ["user.get"]], Code.UNIMPLEMENTED),
    ("user.get", {"user.get": 1}, Code.UNIMPLEMENTED),
    ("user.get", None, Code.UNIMPLEMENTED),
]


@pytest.mark.parametrize(("subject", "handles", "code"), REMEMBERED)
@pytest.mark.parametrize("end", ["bye", "probe", "connection"])
def test_a_subject_whose_last_handler_went_lately_is_unavailable_and_later_unknown(
    subject: str, handles: Any, code: Code, end: str
) -> None:
    known = KnownHandlers(60.0)
    session, node = ready(known=known)
    hello = {**json.loads(HELLO), "handles": handles}
    told(session, msg("shop.a", "2", json.dumps(hello).encode(), "shop.n.other1.h"))

    def nobody(now: float) -> tuple[Code, str]:
        token = asked(session)
        events = told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 503"), now)
        [error] = [event for event in events if isinstance(event, Message)]
        assert error.kind is Kind.ERROR
        assert error.code is not None
        return error.code, error.attributes["text"]

    if end == "bye":
        told(session, msg("shop.a", "2", b'{"bye": "other1"}'), 3.0)
    elif end == "probe":  # it was killed, and the engine is the first who knows
        assert nobody(2.5)[0] is code
        session.frames_to_send()
        session.tick(3.6)
        probes = [frame for frame in session.frames_to_send() if b"shop.n.other1.y" in frame]
        assert len(probes) == (code is Code.UNAVAILABLE)
        for probe in probes:
            told(session, msg(probe.split()[2].decode(), "1", status=" 503"), 3.0)
    else:
        session.receive(b"PING\r\n", 3.0)
        session.connection_lost("gone")
        session, node = ready(known=known)
    more = " now, and its last handler went 2 s ago: ask again, for example with retry=Retry()"
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


def test_members_that_lie_about_what_they_handle_fill_no_memory() -> None:
    known = KnownHandlers(60.0)
    for number in range(600):
        known.told(f"n{number}", [f"{number}.{index}.{'x' * 8000}.*" for index in range(5)])
        known.left(f"n{number - 200}", 1.0 + number / 1e6)
        assert known.characters <= 2 * 4 * 1024 * 1024
    assert KnownHandlers().last_seen("x", 1.0) is None
    known.all_left(1000.0)
    known.all_left(1001.0)
    known.told("z", ["z"])
    known.left("z", 2000.0)
    assert known.characters == 1, "what is remembered no more is kept no more"


def test_a_cancel_waits_until_it_is_known_who_has_the_request() -> None:
    session, node = ready()
    told(session, msg("shop.a", "2", HELLO))
    token = asked(session)
    session.forget(token, 2.0)
    session.frames_to_send()
    assert sent(session, Message(Kind.CANCEL, "user.get", token)) == []
    told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 102 other1"))
    [cancel] = session.frames_to_send()
    assert cancel.startswith(f"HPUB shop.n.other1.c.{node}.{token} ".encode())
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


def test_nodes_say_hello_and_goodbye() -> None:
    session, node = ready()
    [joined] = told(session, msg("shop.a", "2", HELLO, "shop.n.other1.h"))
    assert joined == NodeJoined("other1", {"bus": "b2", "name": "host:1", "host": "host"})
    [answer] = session.frames_to_send()
    assert answer.startswith(b"PUB shop.n.other1.h ")
    assert told(session, msg("shop.a", "2", HELLO, "shop.n.other1.h")) == []
    [left] = told(session, msg("shop.a", "2", b'{"bye":"other1"}'))
    assert left == NodeLeft("other1", orderly=True)
    session.frames_to_send()
    session.close(1000, "", 3.0)
    [bye] = session.frames_to_send()
    assert json.loads(bye.split(b"\r\n")[1])["bye"] == node


@pytest.mark.parametrize(
    "frame",
    [
        msg("shop.a", "2", b"[]"),
        msg("shop.a", "2", b'{"hello":"a.b"}'),
        msg("shop.a", "2", b'{"hello":7}'),
    ],
)
def test_an_announcement_that_is_none_is_counted(frame: bytes) -> None:
    session, _ = ready()
    [refused] = told(session, frame)
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("rest", ["", "a", "a.", "a.zz", "c", "c.x", "d", "d.x", "d..", "r", "q", "y", "h", "p", "c.a.b", "."])
def test_whatever_a_member_sends_a_node_it_is_read_or_counted(rest: str) -> None:
    session, node = ready()
    replies = ("", "shop.n.other1.a.t1", "shop.n", "shop.n.", "x")
    kinds = ((), ("Polybus-Kind: item",), ("Polybus-Kind: credit x",), ("Polybus-Kind: open a b",))
    for reply, headers in itertools.product(replies, kinds):
        events = told(session, msg(f"shop.n.{node}.{rest}", "1", b"{", reply, *headers))
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
def test_who_may_only_ask_has_a_node_publish_nothing_by_the_reply_subject(reply: str) -> None:
    """Engines check what a program publishes, and not where it wants its answer: that a node publishes with its own rights."""
    session, node = ready()
    handle(session, "user.get")
    session.send(Message(Kind.SUBSCRIBE, "", attributes={"user": "ann"}), 2.0)
    session.frames_to_send()
    mine = f"shop.n.{node}"
    for subject, sid in (
        *(("shop.r.user.get", "3"), ("shop.k.ann.user.get", "5"), (f"{mine}.r.user.get", "1"), (f"{mine}.d.id7.user.get", "1")),
        *(
            (f"{mine}.y", "1"),
            (f"{mine}.q", "1"),
            (f"{mine}.r.", "1"),
            ("shop.r.%25x", "3"),
            (f"{mine}.h", "1"),
            ("shop.a", "2"),
        ),
    ):
        for headers in ((), ("Polybus-Kind: open a b",), ("Polybus-Kind: open stream 5 0",)):
            events = told(session, msg(subject, sid, HELLO if subject == "shop.a" else b"7", reply, *headers))
            assert not any(isinstance(event, Message) for event in events), subject
            session.tick(2.0)
            assert not [
                frame for frame in session.frames_to_send() if frame.split()[1].decode() == reply and reply != "shop.n.other1.h"
            ]


@pytest.mark.parametrize("status", [" 102", " 102 ", " 102 a b", " 102 a.b", " 102 *", " 102 \u00e9", " 102 " + 65 * "x"])
def test_a_request_is_not_taken_by_what_is_no_node(status: str) -> None:
    session, node = ready()
    token = asked(session)
    session.frames_to_send()
    *_, refused = told(session, msg(f"shop.n.{node}.a.{token}", "1", b"", "", status=status))
    assert isinstance(refused, Refused)
    session.send(Message(Kind.CANCEL, "", token), 2.0)
    session.tick(9.0)
    assert session.frames_to_send() == [b"PING\r\n"], "the engine alone is asked for a sign of life"
    *_, answer = told(session, msg(f"shop.n.{node}.a.{token}", "1", b"8"), 9.0)
    assert (answer.kind, answer.body) == (Kind.RESPONSE, 8)


@pytest.mark.parametrize("name", ["\u00e9\u00e9", "\u00b2", 65 * "x", "a b", ""])
def test_a_node_is_no_name_that_this_wire_cannot_carry(name: str) -> None:
    session, node = ready()
    hello = json.dumps({"hello": name}).encode()
    assert isinstance(told(session, msg("shop.a", "2", hello, "shop.n.x.h"))[0], Refused)
    assert session.frames_to_send() == []
    # What one with such a name asks is answered to where it says, and it is no node that could be asked whether it lives.
    if name and " " not in name:
        handle(session, "user.get")
        told(session, msg("shop.r.user.get", "3", b"7", f"shop.n.{name}.a.t1"))
        for now in (2.0, 4.0, 9.0):
            session.tick(now)
        assert session.frames_to_send() == [b"PING\r\n"]


def test_facts_of_a_node_that_are_no_text_are_none() -> None:
    session, _ = ready()
    hello = json.dumps({"hello": "other1", "bus": ["b2"], "name": {"a": 1}}).encode()
    assert told(session, msg("shop.a", "2", hello)) == [NodeJoined("other1", {"bus": None, "name": None, "host": None})]
    hello = json.dumps({"hello": "other2", "bus": 500 * "b", "name": 500 * "n", "host": 500 * "h"}).encode()
    facts = {"bus": 200 * "b", "name": 200 * "n", "host": 200 * "h"}
    assert told(session, msg("shop.a", "2", hello)) == [NodeJoined("other2", facts)]


def silent_node() -> tuple[Driven, str, str]:
    """A session that has taken a node for gone; the name of its own node, and the token of what it has asked the other."""
    session, node = ready()
    told(session, msg("shop.a", "2", HELLO))
    token = asked(session)
    told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 102 other1"))
    gone: list[Any] = []
    for now in range(3, 40):
        session.receive(b"PING\r\n", float(now))
        session.tick(float(now))
        gone += [event for event in session.events() if isinstance(event, NodeLeft | Lost)]
    assert [type(event) for event in gone] == [Lost, NodeLeft]
    [probe] = [frame.split() for frame in session.frames_to_send() if frame.startswith(b"PUB shop.n.other1.y ")][:1]
    return session, node, probe[2].decode()


def test_a_node_that_was_silent_and_is_there_again_is_greeted_and_known() -> None:
    session, node, reply = silent_node()
    assert told(session, msg(reply, "1", status=" 102 other1"), 41.0) == []
    [hello] = session.frames_to_send()
    assert hello.startswith(f"PUB shop.n.other1.h shop.n.{node}.h ".encode())
    [joined] = told(session, msg(f"shop.n.{node}.h", "1", HELLO), 41.0)
    assert joined == NodeJoined("other1", {"bus": "b2", "name": "host:1", "host": "host"})
    assert told(session, msg(reply, "1", status=" 102 other1"), 42.0) == []
    assert session.frames_to_send() == []


def test_a_node_that_is_greeted_alone_answers_so() -> None:
    session, node = ready()
    [joined] = told(session, msg(f"shop.n.{node}.h", "1", HELLO, "shop.n.other1.h"))
    assert isinstance(joined, NodeJoined)
    [answer] = session.frames_to_send()
    assert answer.startswith(b"PUB shop.n.other1.h ")
    assert answer.split(b"\r\n")[0].count(b" ") == 2


def test_a_node_that_cannot_be_asked_is_known_no_more() -> None:
    session, node = ready()
    told(session, msg("shop.a", "2", HELLO))
    token = asked(session, ToNode("other1"))
    lost, left = told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 503"))[-2:]
    assert (lost.ids, lost.sent) == ((token,), False)
    assert left == NodeLeft("other1")


def test_a_bus_that_has_come_back_under_another_name_is_asked_for_by_the_old_one() -> None:
    session, node = ready()
    told(session, msg("shop.a", "2", HELLO))
    session.frames_to_send()
    told(session, msg("shop.a", "2", HELLO.replace(b"other1", b"other2")))
    [probe] = [frame.split() for frame in session.frames_to_send()]
    assert probe[1] == b"shop.n.other1.y"
    assert told(session, msg(probe[2].decode(), "1", status=" 503")) == [NodeLeft("other1")]


def test_where_too_many_nodes_are_known_those_that_are_gone_make_room() -> None:
    session, node = ready()
    for number in range(4096):
        told(session, msg("shop.a", "2", json.dumps({"hello": f"n{number}"}).encode()))
    assert session.frames_to_send() == []
    assert told(session, msg("shop.a", "2", HELLO)) == []
    probes = [frame.split() for frame in session.frames_to_send()]
    assert len(probes) == 4096
    assert told(session, msg(probes[7][2].decode(), "1", status=" 503")) == [NodeLeft("n7")]
    [joined] = told(session, msg("shop.a", "2", HELLO))
    assert isinstance(joined, NodeJoined)


def test_a_node_that_dies_with_the_question_whether_it_lives_is_asked_again() -> None:
    session, node = ready()
    told(session, msg("shop.a", "2", HELLO))
    token = asked(session)
    told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 102 other1"))
    probes: list[bytes] = []
    for now in (3.5, 4.6):
        session.frames_to_send()
        session.tick(now)
        probes += [frame for frame in session.frames_to_send() if frame.startswith(b"PUB shop.n.other1.y ")]
    assert len(probes) == 2  # the first was delivered to the node, which was killed before it answered
    events = told(session, msg(probes[1].split()[2].decode(), "1", status=" 503"), 4.7)
    assert [type(event) for event in events if not isinstance(event, Due)] == [Lost, NodeLeft]


def test_a_node_that_goes_on_at_another_server_takes_back_what_it_has_here_and_ends_as_soon_as_all_is_answered() -> None:
    session, node = ready()
    handle(session, "user.get")
    sent(session, Message(Kind.SUBSCRIBE, "news"))
    token = asked(session)
    session.frames_to_send()
    leaving = INFO.replace(b'"headers"', b'"ldm":true,"connect_urls":["127.0.0.1:1"],"headers"')
    told(session, leaving)
    session.tick(2.1)
    assert session.frames_to_send() == []  # the link first goes on over another connection
    session.retire()
    assert session.frames_to_send() == [b"UNSUB 2\r\n", b"UNSUB 3\r\n", b"UNSUB 4\r\n", b"PING\r\n"]
    told(session, msg(f"shop.n.{node}.a.{token}", "1", b"8"), 2.2)
    # What the engine had given to this node before it heard of that is still taken, and answered.
    *_, late = told(session, msg("shop.r.user.get", "3", b"7", "shop.n.other1.a.t1"), 2.3)
    assert (late.kind, late.body) == (Kind.REQUEST, 7)
    session.tick(2.3)
    session.frames_to_send()
    assert not [event for event in told(session, b"PONG\r\n", 2.4) if isinstance(event, CloseWanted)]
    assert len(sent(session, Message(Kind.RESPONSE, "", late.id, b"8", JSON), 2.5)) == 1
    session.tick(2.6)
    [wanted] = session.events()
    assert isinstance(wanted, CloseWanted)
    assert wanted.code == 1012


def test_all_are_greeted_again_when_servers_have_found_each_other() -> None:
    session, node = ready()
    asked(session)  # a look at what is under way is due sooner, and stays due
    session.frames_to_send()
    *_, due = told(session, INFO.replace(b'"headers"', b'"connect_urls":["127.0.0.1:1"],"headers"'), 2.5)
    assert due == Due(3.5)
    session.tick(3.0)
    assert Due(3.5) in session.events()
    session.frames_to_send()
    session.tick(3.5)
    hello = [frame for frame in session.frames_to_send() if frame.startswith(f"PUB shop.a shop.n.{node}.h ".encode())]
    assert len(hello) == 1
    # One that is gone has nobody to greet.
    told(session, INFO, 4.0)
    session.tick(6.0)
    assert not [frame for frame in session.frames_to_send() if frame.startswith(b"PUB shop.a ")]


def test_a_node_that_was_away_itself_gives_the_others_time_to_answer() -> None:
    session, node = ready()
    told(session, msg("shop.a", "2", HELLO))
    token = asked(session)
    told(session, msg(f"shop.n.{node}.a.{token}", "1", status=" 102 other1"))
    session.tick(3.5)
    [probe] = [frame.split() for frame in session.frames_to_send() if frame.startswith(b"PUB shop.n.other1.y ")]
    # It was stopped, or the machine slept: the answer has come, and is read after this.
    session.receive(b"PING\r\n", 300.0)
    session.tick(300.0)
    assert not [event for event in session.events() if isinstance(event, Lost | NodeLeft)]
    told(session, msg(probe[2].decode(), "1", status=" 102 other1"), 300.0)
    for now in range(301, 310):
        session.receive(b"PING\r\n", float(now))
        session.tick(float(now))
        for frame in session.frames_to_send():
            if frame.startswith(b"PUB shop.n.other1.y "):
                told(session, msg(frame.split()[2].decode(), "1", status=" 102 other1"), float(now))
    assert not [event for event in session.events() if isinstance(event, Lost | NodeLeft)]


@pytest.mark.parametrize(
    ("rest", "kind"), [("r.user.get", "open2 a"), ("zz", ""), ("d.x", ""), ("d.id7.%ix", ""), ("r.user.get", "open stream x 1")]
)
def test_what_a_newer_node_asks_and_this_one_does_not_know_is_answered(rest: str, kind: str) -> None:
    session, node = ready()
    headers = [f"Polybus-Kind: {kind}"] if kind else []
    [refused] = told(session, msg(f"shop.n.{node}.{rest}", "1", b"7", "shop.n.other1.a.t1", *headers))
    assert isinstance(refused, Refused)
    [answer] = session.frames_to_send()
    assert answer.startswith(b"HPUB shop.n.other1.a.t1 ")
    assert b"Nats-Service-Error-Code: " in answer
    # An answer has none, or two that do not understand each other would never end.
    told(session, msg(f"shop.n.{node}.a.zz", "1", b"7", "shop.n.other1.a.t1"))
    assert session.frames_to_send() == []


@given(st.binary(max_size=300), st.sampled_from(["MSG", "HMSG", "INFO", "-ERR", ""]))
def test_any_bytes_are_read_or_counted(data: bytes, verb: str) -> None:
    session, node = ready()
    asked(session)
    session.receive(verb.encode() + b" " + data + b"\r\n", 2.0)
    session.receive(msg(f"shop.n.{node}.a.", "1", data), 2.0)
    session.receive(msg("shop.a", "2", data), 2.0)
    session.tick(9.0)
    session.events()
    session.frames_to_send()


@given(st.text(max_size=40))
def test_every_key_is_one_token_and_comes_back(text: str) -> None:
    token = escape_token(text.encode("utf-8", "replace").decode())
    assert token
    assert not {*token} & {".", "*", ">", " ", "\r", "\n", "\t"}
    assert unescape_token(token) == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    "subject",
    ["a", "a.b", "a b.c%d", "Ä.ö", 65537, -1, 0, "//VCU.VIN/body.access/1/rpc.Update", "/body/1", "a/b c", "x\ty"],
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
