"""The NATS double where it refuses, counts down or cuts: a client is spoken for by hand, and no clock is waited for."""

from typing import Any

import pytest

from polybus import LocalProtocolError
from polybus.plugins import Closed
from polybus.testing.nats_engine import EngineClient, NatsEngine


class Wire:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended: list[Any] = []
        self.backlog = 0

    def start(self, receiver: Any) -> None:
        """Nothing comes by itself."""

    def send(self, frame: bytes) -> None:
        self.sent.append(bytes(frame))

    def write_backlog(self) -> int:
        return self.backlog

    def close(self, code: int, reason: str) -> None:
        self.ended.append((code, reason))

    def abort(self, why: Closed) -> None:
        self.ended.append((why.code, why.reason))


def joined(engine: NatsEngine, connect: bytes | None = b'CONNECT {"verbose":false}\r\n') -> tuple[EngineClient, Wire]:
    """A client that has been greeted, and has introduced itself."""
    wire: Any = Wire()
    engine.opened(wire, None)  # type: ignore[arg-type]  # it does not look at it
    client = list(engine.clients)[-1]
    if connect is not None:
        client.frames_received([connect])
    wire.sent.clear()
    return client, wire


@pytest.mark.parametrize(
    ("connect", "frame", "text"),
    [
        (None, b"PING\r\n", "Authorization Violation"),
        (b'CONNECT {"auth_token":"wrong"}\r\n', None, "Authorization Violation"),
        (b'CONNECT {"auth_token":"right"}\r\n', b"PUB a 9\r\n123456789\r\n", "Maximum Payload Violation"),
        (b'CONNECT {"auth_token":"right"}\r\n', b"WHAT is this\r\n", "Unknown Protocol Operation"),
    ],
)
def test_a_client_that_may_not_is_told_the_words_of_a_real_server_and_ended(
    connect: bytes | None, frame: bytes | None, text: str
) -> None:
    engine = NatsEngine(token="right", max_payload=8)
    client, wire = joined(engine, None)
    for one in (connect, frame):
        if one is not None:
            client.frames_received([one])
    assert wire.sent[-1] == b"-ERR '%s'\r\n" % text.encode()
    assert wire.ended == [(1008, text)]


def test_a_subscription_ends_after_as_many_messages_as_unsub_says() -> None:
    engine = NatsEngine()
    client, wire = joined(engine)
    client.frames_received([b"SUB a 1\r\n", b"UNSUB 1 2\r\n", b"UNSUB 9\r\n"])
    for _ in range(3):
        client.frames_received([b"PUB a 1\r\nx\r\n"])
    assert wire.sent == [b"MSG a 1 1\r\nx\r\n"] * 2
    assert not client.subscriptions


def test_who_reads_nothing_is_cut_and_gets_nothing_more() -> None:
    engine = NatsEngine()
    client, wire = joined(engine)
    client.frames_received([b"SUB a 1\r\n"])
    wire.backlog = (16 << 20) + 1
    client.frames_received([b"PUB a 0\r\n\r\n"])
    assert (wire.sent, wire.ended) == ([], [(1013, "slow consumer")])


def test_a_server_says_errors_and_news_and_gives_a_sign_of_life() -> None:
    engine = NatsEngine()
    client, wire = joined(engine)
    engine.say("maximum connections exceeded")
    engine.inform(ldm=True)
    client.frames_received([b"PING\r\n", b"PONG\r\n"])
    assert wire.sent[0] == b"-ERR 'maximum connections exceeded'\r\n"
    assert wire.sent[1].startswith(b"INFO ")
    assert b'"ldm":true' in wire.sent[1]
    assert wire.sent[2:] == [b"PONG\r\n"]
    client.frames_received([b"SUB a 1\r\n"])
    client.closed(Closed(1006, "gone"))
    assert not engine.clients
    assert not engine.subscriptions.match("a")


async def test_an_engine_that_is_entered_twice_or_cannot_listen_says_so_and_can_be_left() -> None:
    async with NatsEngine("memory://engine-twice") as engine:
        with pytest.raises(LocalProtocolError, match="already been entered"):
            await engine.__aenter__()
        other = NatsEngine("memory://engine-twice")
        with pytest.raises(OSError, match="engine-twice"):
            await other.__aenter__()
        await other.cut()  # there is nothing to cut
