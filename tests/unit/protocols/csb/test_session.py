"""Ids that come round, answers that find their request, and what a peer is told before it is known to be a polybus."""

from typing import Any

import pytest

from polybus.errors import Code, QueueFull, TooLarge, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import CloseWanted, Ready, Refused
from polybus.protocols import Csb
from polybus.protocols.csb.session import REST
from tests.doubles.driven import Driven

REQUEST = Message(Kind.REQUEST, 7, body=1)


def started(adapter: Csb = Csb(), **limits: Any) -> Driven:  # noqa: B008  # immutable
    session = Driven(adapter.session("client", Limits(**limits)))
    session.start(0.0)
    assert isinstance(session.events()[0], Ready)
    return session


@pytest.fixture
def session() -> Driven:
    return started()


def sent(session: Driven) -> list[str]:
    return [frame.hex() for frame in session.frames_to_send()]


def answer(session: Driven, number: int, action: int = 7, result: int = 0, payload: bytes = b"") -> list[Any]:
    session.receive(bytes([0x22 if payload else 0x20, result]) + number.to_bytes(2) + action.to_bytes(4) + payload, 1.0)
    return session.events()


def refused(events: list[Any]) -> str:
    [event] = events
    assert isinstance(event, Refused)
    return event.error.reason


def test_a_request_to_a_number_is_that_of_the_document_and_its_answer_has_its_key(session: Driven) -> None:
    key = session.send(Message(Kind.REQUEST, 7, body=1, ttl=30.0), 0.0)
    assert sent(session) == ["12000001" + "00000007" + "31"]
    [message] = answer(session, 1, payload=b'"ok"')
    assert (message.kind, message.id, message.body) == (Kind.RESPONSE, key, "ok")
    assert refused(answer(session, 1)) == "unknown_id"


def test_an_answer_counts_for_its_action_only_unless_the_peer_does_not_echo_it(session: Driven) -> None:
    key = session.send(REQUEST, 0.0)
    assert refused(answer(session, 1, action=8)) == "unknown_id"
    [message] = answer(session, 1, action=0)
    assert message.id == key


def test_an_incoming_request_is_answered_under_its_id_and_action(session: Driven) -> None:
    session.receive(bytes.fromhex("12 00 abcd 00010001 31"), 0.0)
    [message] = session.events()
    session.send(Message(Kind.RESPONSE, "", message.id, body=[1]), 0.0)
    session.send(Message(Kind.ERROR, "", message.id, code=Code.INTERNAL), 0.0)
    assert sent(session) == ["2200abcd00010001" + b"[1]".hex(), "22d0abcd00010001" + b'{"code":13}'.hex()]


def test_20_000_requests_at_once_round_and_round_are_never_mixed_up() -> None:
    asker = started()
    waiting: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    keys: set[int] = set()
    for turn in range(8):
        while len(waiting) < 20_000:
            body = len(keys)
            key = asker.send(Message(Kind.REQUEST, 7, None, b"%d" % body), 0.0)
            [frame] = asker.frames_to_send()
            number = int.from_bytes(frame[2:4])
            assert key is not None
            assert key not in keys and number not in taken
            waiting[key] = number, body
            taken.add(number)
            keys.add(key)
        for key in list(waiting)[turn % 3 :: 3]:  # answered out of order, some of them late
            number, body = waiting.pop(key)
            taken.discard(number)
            [message] = answer(asker, number, payload=b"%d" % body)
            assert (message.id, message.body) == (key, body)
    assert len(keys) > 65_536  # although the ids on the wire came round
    assert len(asker._one.pending) == len(waiting)


def test_the_65_537th_request_that_waits_fails_here_and_says_why(session: Driven) -> None:
    for _ in range(65_536):
        session.send(REQUEST, 0.0)
    assert len({frame[2:4] for frame in session.frames_to_send()}) == 65_536
    with pytest.raises(QueueFull, match=r"all 65536 message ids .* 65536 requests wait .* open another connection"):
        session.send(REQUEST, 0.0)
    assert session.frames_to_send() == []
    answer(session, 0x1234)
    session.send(REQUEST, 0.0)
    [frame] = session.frames_to_send()
    assert frame[2:4] == b"\x12\x34"


def test_a_request_by_name_that_takes_the_last_id_is_sent_and_the_next_one_asks_who_is_there(session: Driven) -> None:
    for _ in range(65_535):
        session.send(REQUEST, 0.0)
    session.frames_to_send()
    named = Message(Kind.REQUEST, "user.get", body=1, ttl=1.0)
    session.send(named, 0.0)
    assert len(session.frames_to_send()) == 2  # how long it is worth, and the request
    for number in (7, 8):
        answer(session, number)
    session.send(named, 0.0)
    assert len(session.frames_to_send()) == 3


def test_the_id_of_a_request_that_timed_out_rests_until_its_answer_comes(session: Driven) -> None:
    late = session.send(REQUEST, 0.0)
    session.forget(late, 5.0)
    assert session.next_tick() == 5.0 + REST
    for _ in range(65_535):
        session.send(REQUEST, 5.0)
    with pytest.raises(QueueFull, match="1 ids are reserved after a timeout"):
        session.send(REQUEST, 5.0)
    [message] = answer(session, 1)
    assert message.id == late  # the bus counts it as late: nobody waits under this key
    key = session.send(REQUEST, 6.0)
    assert key not in (late, None)
    [reply] = answer(session, 1)
    assert reply.id == key


def test_an_id_whose_answer_never_comes_is_free_after_its_rest(session: Driven) -> None:
    key = session.send(REQUEST, 0.0)
    session.forget(key, 1.0)
    session.forget(key, 30.0)  # once is enough
    session.tick(1.0 + REST - 0.1)
    assert session.next_tick() == 1.0 + REST
    session.tick(1.0 + REST)
    assert session.next_tick() is None
    assert refused(answer(session, 1)) == "unknown_id"


def test_a_cancel_goes_out_only_while_the_id_is_still_its_own(session: Driven) -> None:
    key = session.send(REQUEST, 0.0)
    sent(session)
    session.send(Message(Kind.CANCEL, 7, key), 0.0)
    assert sent(session) == ["10000001ffff0008" + "00000007"]
    answer(session, 1)
    session.send(Message(Kind.CANCEL, 7, key), 0.0)
    assert sent(session) == []


def test_a_notification_is_a_request_whose_answer_nobody_reads(session: Driven) -> None:
    assert session.send(Message(Kind.NOTIFY, 7, body=1), 0.0) is None
    assert sent(session) == ["1200000100000007" + "31"]
    assert session.next_tick() == REST
    [message] = answer(session, 1)
    assert message.kind is Kind.RESPONSE  # and the bus knows nobody who waits for it
    assert session.next_tick() is None


def test_after_the_first_name_the_peer_is_asked_once_who_it_is(session: Driven) -> None:
    session.send(Message(Kind.REQUEST, "a", ttl=30.0), 0.0)
    session.send(Message(Kind.REQUEST, "a", ttl=30.0), 0.0)
    hello = "12000002ffff0000" + b'{"v":1,"asks":""}'.hex()
    first = ["10000001ffff000c" + "ffff0004" + "00007530", "10000001ffff0004" + "000161"]
    second = ["10000003ffff000c" + "ffff0004" + "00007530", "10000003ffff0004" + "000161"]
    assert sent(session) == [*first, hello, *second]
    assert answer(session, 1, 0xFFFF000C, 0xC9) == []  # from a bare peer
    assert answer(session, 2, 0xFFFF0000, payload=b'{"v":1}') == []  # the session alone wanted to know
    session.send(Message(Kind.REQUEST, "a", ttl=30.0), 0.0)
    session.send(Message(Kind.REQUEST, 7, ttl=1.0), 0.0)
    assert sent(session) == [
        "10000004ffff0005" + "0001" + "0000" + "00007530" + "61",
        "10000005ffff0005" + "ffff" + "0000" + "000003e8" + "00000007",
    ]


@pytest.mark.parametrize(
    "said", [{"result": 0xC9}, {"payload": b'{"v":2}'}, {"payload": b"[1]"}, {"payload": b'{"v":1,"asks":"me"}'}]
)
def test_a_peer_that_says_no_or_what_it_was_asked_is_bare(session: Driven, said: dict[str, Any]) -> None:
    key = session.send(Message(Kind.REQUEST, "_polybus.hello", body={"v": 1}), 0.0)
    [message] = answer(session, 1, 0xFFFF0000, **said)
    assert message.id == key
    sent(session)
    session.send(Message(Kind.REQUEST, "a", ttl=30.0), 0.0)
    assert sent(session) == ["10000002ffff0004" + "000161"]
    with pytest.raises(Unsupported, match="cannot carry headers"):
        session.send(Message(Kind.REQUEST, "a", headers={"x": "y"}), 0.0)
    assert sent(session) == []


def test_who_says_hello_is_one_of_ours(session: Driven) -> None:
    session.receive(bytes.fromhex("12 00 0005 ffff0000") + b'{"v":1}', 0.0)
    [message] = session.events()
    assert (message.kind, message.subject) == (Kind.REQUEST, "_polybus.hello")
    session.send(Message(Kind.REQUEST, 7, ttl=1.0), 0.0)
    assert sent(session) == ["10000001ffff0005" + "ffff" + "0000" + "000003e8" + "00000007"]


def test_the_deadline_before_a_request_is_its_own_even_where_they_are_read_apart(session: Driven) -> None:
    session.receive(bytes.fromhex("10 00 0001 ffff000c ffff0004 000003e8"), 0.0)
    assert session.events() == []
    for frame in (
        "10 00 0001 ffff0004 000161",
        "10 00 0002 ffff000c ffff0005 000007d0",  # of another action: of none
        "10 00 0002 ffff0004 000161",
        "10 00 0009 ffff000c ffff0004 000007d0",  # of another request
        "10 00 0003 ffff0004 000161",
        "10 00 0004 ffff0004 000161",
        "10 00 0004 ffff000c ffff0004 000007d0",  # too late: it runs already
    ):
        session.receive(bytes.fromhex(frame), 0.0)
    assert [event.ttl for event in session.events()] == [1.0, None, None, None]
    assert sent(session) == []


def test_publications_and_subscriptions_are_answered_like_any_request_until_the_peer_is_known(session: Driven) -> None:
    for number, action in ((0, "ffff0003"), (5, "ffff0003"), (6, "ffff0001"), (7, "ffff0002")):
        session.receive(bytes.fromhex(f"10 00 {number:04x} {action} 0001 61"), 0.0)
    assert [event.kind for event in session.events()] == [Kind.PUBLISH, Kind.PUBLISH, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE]
    assert sent(session) == ["20000000ffff0003", "20000005ffff0003", "20000006ffff0001", "20000007ffff0002"]
    session.receive(bytes.fromhex("12 00 0005 ffff0000") + b'{"v":1}', 0.0)
    session.receive(bytes.fromhex("10 00 0000 ffff0003 0001 61"), 0.0)
    session.receive(bytes.fromhex("10 00 0001 ffff0003 0001 61"), 0.0)
    assert sent(session) == ["20000001ffff0003"]


@pytest.mark.parametrize("result", [0, 0xC9])
def test_answers_to_our_publications_say_nothing(session: Driven, result: int) -> None:
    session.send(Message(Kind.PUBLISH, "a"), 0.0)
    assert sent(session) == ["10000000ffff0003" + "000161"]
    assert answer(session, 0, 0xFFFF0003, result) == []


def carry(one: Driven, other: Driven) -> None:
    for frame in one.frames_to_send():
        other.receive(frame, 0.0)


def test_a_channel_goes_by_the_number_of_its_open_in_both_directions() -> None:
    opener, other = started(), started()
    key = opener.send(Message(Kind.OPEN, "log", attributes={"mode": "channel", "credit": 4, "hops": 0}), 0.0)
    carry(opener, other)
    [opened] = other.events()
    assert isinstance(opened, Message) and opened.id != key
    for kind, facts in ((Kind.ITEM, {"body": b""}), (Kind.CREDIT, {"attributes": {"credit": 3}}), (Kind.END, {})):
        opener.send(Message(kind, "", key, **facts), 0.0)
        other.send(Message(kind, "", opened.id, **facts), 0.0)
    carry(opener, other)
    carry(other, opener)
    for one, id in ((other, opened.id), (opener, key)):
        item, *more = one.events()
        assert [(event.kind, event.id) for event in (item, *more)] == [(Kind.ITEM, id), (Kind.CREDIT, id), (Kind.END, id)]
        assert item.body == b""


def test_an_item_for_a_channel_that_was_never_open_is_refused_and_an_open_that_a_bare_peer_does_not_know_is_over(
    session: Driven,
) -> None:
    session.send(REQUEST, 0.0)
    session.receive(bytes.fromhex("22 00 0001 ffff0009 31"), 0.0)  # 1 is a request, and no open
    assert refused(session.events()) == "unknown_id"
    key = session.send(Message(Kind.OPEN, "log", attributes={"mode": "stream", "credit": 4, "hops": 0}), 0.0)
    [message] = answer(session, 2, 0xFFFF0007, 0xC9)
    assert (message.kind, message.id, message.code) == (Kind.ERROR, key, Code.UNIMPLEMENTED)


def test_a_bad_open_is_answered_with_an_end_and_an_answer_that_does_not_parse_fails_its_request(session: Driven) -> None:
    session.receive(bytes.fromhex("10 00 0005 ffff0007 0001 0002 ffffffff 61 7b7d"), 0.0)
    [event] = session.events()
    assert refused([event]) == "malformed"
    session.send(event.answer, 0.0)
    [frame] = session.frames_to_send()
    assert frame[:8] == bytes.fromhex("22 cc 0005 ffff000b")
    key = session.send(REQUEST, 0.0)
    [event] = answer(session, 1, payload=b"{")
    assert isinstance(event, Refused) and event.error.reply_id == key
    assert not session._one.pending


@pytest.mark.parametrize("first", ["d0", "e0", "f0"])
def test_point_to_point_nobody_says_connected_closed_or_close(session: Driven, first: str) -> None:
    session.receive(bytes.fromhex(first + "000000" + "00000000"), 0.0)
    assert refused(session.events()) == "bad_kind"


def test_what_cannot_be_written_or_is_over_the_limit_takes_no_id(session: Driven) -> None:
    for bad in (Message(Kind.REQUEST, -1), Message(Kind.NOTIFY, 2**32), Message(Kind.OPEN, "a\nb", attributes={})):
        with pytest.raises(Exception, match="csb|action|control"):
            session.send(bad, 0.0)
    assert not session._one.pending and not session._one.resting
    session = started(message=100)
    with pytest.raises(TooLarge, match="limit: message"):
        session.send(Message(Kind.REQUEST, 7, body=b"x" * 100), 0.0)
    assert session.frames_to_send() == []
    assert not session._one.pending
    session.receive(bytes(10), 0.0)
    assert not any(isinstance(event, CloseWanted) for event in session.events())


def test_a_pool_is_so_many_connections_of_one_instance_and_an_encoding_goes_by_number_and_by_name() -> None:
    connections = Csb(side="broker-server", pool=3, server="A").connections()
    assert len(connections) == 3
    assert len({adapter.instance for adapter in connections}) == 1
    assert all(adapter.instance and adapter.pool == 1 for adapter in connections)
    one = Csb(side="broker-server")
    assert one.connections() == (one,)
    codec = Csb(actions={"user.login": 7}, encodings={"user.login": "urlencoded"}).codec()
    assert codec.format_for({}, 7) is codec.format_for({}, "user.login")
    assert codec.format_for({}, 7).content_type == "application/x-www-form-urlencoded"
