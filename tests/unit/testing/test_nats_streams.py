"""The streams of the NATS double on a clock that stands still: what a JetStream server answers where it refuses."""

from typing import Any

import msgspec
import pytest

from polybus.protocols.nats.operations import NatsOperation
from polybus.testing.nats_streams import NatsStreams

SECOND = 1_000_000_000


class Keeper:
    """Streams, their clock, and what each inbox was handed."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.handed: list[tuple[str, NatsOperation, bytes]] = []
        self.streams = NatsStreams(self._hand, lambda: self.now)

    def _hand(self, at: str, operation: NatsOperation, block: bytes) -> bool:
        self.handed.append((at, operation, block))
        return True

    def ask(self, word: str, **asked: Any) -> Any:
        """The answer of the API."""
        self.handed.clear()
        self.streams.take(NatsOperation("PUB", f"$JS.API.{word}", reply="_I.a", payload=msgspec.json.encode(asked)), b"")
        return msgspec.json.decode(self.handed[-1][1].payload)

    def stream(self, **config: Any) -> None:
        made = self.ask("STREAM.CREATE.S", **{"name": "S", "subjects": ["s.>"], **config})
        assert "error" not in made, made

    def consumer(self, name: str = "C", **config: Any) -> Any:
        return self.ask(f"CONSUMER.CREATE.S.{name}", config={"ack_policy": "explicit", **config}, action="create")

    def store(self, payload: bytes = b"x", subject: str = "s.a", id: str = "") -> Any:
        block = f"NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n".encode() if id else b""
        self.handed.clear()
        self.streams.take(NatsOperation("PUB", subject, reply="_I.p", payload=payload), block)
        return msgspec.json.decode(next(one.payload for at, one, _ in self.handed if at == "_I.p"))

    def pull(self, inbox: str, name: str = "C", **asked: Any) -> None:
        self.handed.clear()
        payload = msgspec.json.encode({"batch": 1, **asked})
        self.streams.take(NatsOperation("PUB", f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", reply=inbox, payload=payload), b"")

    def payloads(self, inbox: str) -> list[bytes]:
        return [operation.payload for at, operation, _ in self.handed if at == inbox]

    def statuses(self, inbox: str) -> list[str]:
        return [block.partition(b"\r\n")[0].decode() for at, _, block in self.handed if at == inbox and block]


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_an_id_counts_once_within_its_window_and_again_after_it(keeper: Keeper) -> None:
    keeper.stream(duplicate_window=10 * SECOND)
    assert keeper.store(id="one") == {"stream": "S", "seq": 1}
    keeper.now += 9.0
    assert keeper.store(id="one") == {"stream": "S", "seq": 1, "duplicate": True}
    keeper.now += 1.0
    assert keeper.store(id="one") == {"stream": "S", "seq": 2}


def test_messages_that_are_too_old_are_forgotten(keeper: Keeper) -> None:
    keeper.stream(max_age=5 * SECOND)
    keeper.store()
    keeper.now += 5.0
    keeper.store()
    state = keeper.ask("STREAM.INFO.S")["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (1, 2, 2)


@pytest.mark.parametrize(("limit", "text"), [({"max_msgs": 2}, "maximum messages"), ({"max_bytes": 320}, "maximum bytes")])
def test_a_full_stream_refuses_what_is_new_or_forgets_what_is_old(limit: dict[str, int], text: str) -> None:
    for discard, first in (("new", 1), ("old", 2)):
        keeper = Keeper()
        keeper.stream(discard=discard, **limit)
        answers = [keeper.store() for _ in range(3)]
        state = keeper.ask("STREAM.INFO.S")["state"]
        assert (state["messages"], state["first_seq"]) == (2, first)
        if discard == "new":
            assert answers[2]["error"]["description"] == f"{text} exceeded"


def test_more_pulls_than_may_wait_are_refused(keeper: Keeper) -> None:
    keeper.stream()
    keeper.consumer(max_waiting=1)
    keeper.pull("_I.one")
    keeper.pull("_I.two")
    assert keeper.statuses("_I.two") == ["NATS/1.0 409 Exceeded MaxWaiting"]
    keeper.store(b"first")
    assert keeper.payloads("_I.one") == [b"first"]


@pytest.mark.parametrize(
    ("word", "asked", "number"),
    [
        ("STREAM.INFO.X", {}, 10059),
        ("CONSUMER.INFO.S.X", {}, 10014),
        ("STREAM.MSG.GET.S", {"seq": 7}, 10037),
        ("STREAM.MSG.GET.S", {"next_by_subj": "s.b"}, 10037),
        ("STREAM.CREATE.S", {"name": "S", "subjects": ["other"]}, 10058),
        ("STREAM.CREATE.T", {"name": "T", "subjects": ["s.a.*"]}, 10065),
        ("STREAM.CREATE.T", {"name": "T", "subjects": ["t"], "num_replicas": 3}, 10074),
        ("CONSUMER.CREATE.S.C", {"config": {"ack_wait": 7}, "action": "create"}, 10148),
        ("CONSUMER.CREATE.S.D", {"config": {"filter_subject": "s.a"}}, 10100),
        ("CONSUMER.CREATE.S.D", {"config": {"deliver_policy": "new"}}, 10101),
    ],
)
def test_what_cannot_be_is_answered_by_the_number_of_a_real_server(
    word: str, asked: dict[str, Any], number: int, keeper: Keeper
) -> None:
    keeper.stream(retention="workqueue")
    keeper.consumer(ack_wait=5)
    keeper.store()
    assert keeper.ask(word, **asked)["error"]["err_code"] == number


def test_what_nobody_knows_is_answered_as_by_nobody_and_what_wants_no_answer_by_nothing(keeper: Keeper) -> None:
    keeper.streams.take(NatsOperation("PUB", "$JS.API.STREAM.PURGE.S", reply="_I.a"), b"")
    assert keeper.statuses("_I.a") == ["NATS/1.0 503"]
    keeper.handed.clear()
    for subject in ("INFO", "CONSUMER.MSG.NEXT.S.C"):
        assert keeper.streams.take(NatsOperation("PUB", f"$JS.API.{subject}"), b"")
    assert not keeper.handed


def test_a_consumer_is_changed_by_who_does_not_insist_on_making_it(keeper: Keeper) -> None:
    keeper.stream()
    keeper.consumer(ack_wait=5)
    assert "error" not in keeper.consumer(ack_wait=5)
    assert "error" not in keeper.ask("CONSUMER.DURABLE.CREATE.S.C", config={"ack_wait": 9})
    assert keeper.ask("CONSUMER.INFO.S.C")["config"] == {"ack_wait": 9}
