"""The list of bad inputs for uProtocol, against a real server: it survives, goes on answering, and the declared effect holds.

The ids in the list are of 2023. Where a case is not about time, its ids are given the time of now, and it may take a minute in
place of the list's second to arrive.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from attrs import frozen

from polybus import Bus, connect
from polybus.message import Kind, Message
from polybus.protocols import UProtocol
from polybus.protocols._protobuf.any_body import ANY
from polybus.protocols.uprotocol import IdFactory

from .processes import Process, eventually, loop_of, port_of, running
from .raw import frame
from .test_bad_inputs import CASES, LIMITS, Witness, messages, tcp_receiver

pytestmark = pytest.mark.anyio

OURS = [id for id in CASES if id.startswith("up-")]
JSON, PROTOBUF = range(2)
HOUR = 3_600_000
INVALID, EXPIRED, NOBODY = 3, 4, 12
"""Of `Code`."""


@frozen
class Effect:
    """What is seen from outside of one case; the connection goes on."""

    reason: str = ""
    """Of what was refused."""
    commstatus: int | None = None
    """Of the answer, where the request had an address for it."""
    made: int | None = 0
    """When its id was made, in milliseconds from now; None leaves it as it stands."""
    ttl: bytes = b"60000"
    """For which it is good."""
    counted: str = ""
    """What has been counted besides."""


EFFECTS: dict[str, Effect] = {
    "up-001": Effect("missing_attribute"),
    "up-002": Effect("invalid_attribute", INVALID),
    "up-004": Effect("missing_attribute"),
    "up-005": Effect("missing_attribute", INVALID),
    "up-007": Effect("invalid_attribute", INVALID),
    "up-008": Effect("invalid_attribute", INVALID),
    "up-011": Effect("invalid_attribute", INVALID),
    # It is no mistake of the peer's, so not refused as malformed: it reaches no handler, and its asker is told.
    "up-012": Effect("", EXPIRED, made=-1500, ttl=b"1000", counted="refused"),
    # Accepted; nobody here serves it.
    "up-013": Effect("", NOBODY, made=-100),
    "up-014": Effect("clock_skew", EXPIRED, made=40_000),
    "up-016": Effect("invalid_attribute"),
    "up-019": Effect("invalid_attribute", INVALID),
    "up-021": Effect("invalid_uri"),
    "up-023": Effect("invalid_uri"),
    "up-024": Effect("invalid_uri"),
    "up-026": Effect("invalid_attribute", INVALID),
    "up-028": Effect("invalid_attribute", INVALID),
    # Nothing was asked, so no source could be the right one: that is shown in tests/unit/protocols/uprotocol/test_session.py.
    "up-031": Effect("unknown_id"),
    "up-032": Effect("unknown_id"),
    "up-035": Effect("ambiguous"),
    "up-036": Effect("malformed", INVALID),
    "up-039": Effect("", NOBODY),
    # An empty frame is a keep-alive on TCP.
    "up-043": Effect(),
    "up-044": Effect("", made=None),
}
MORE = {
    "200 kB of brackets": (b"[" * 200_000, "too_deep"),
    "an array of a hundred thousand": (b"[" + b",".join([b"1"] * 100_000) + b"]", "too_large"),
    "no UTF-8": (b'{"id":"\xff"}', "malformed"),
    "a member nested 2,000 deep": (b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}", "too_deep"),
    "half an event": (b'{"specversion":', "malformed"),
    "half a megabyte of name": (b'{"specversion":"1.0","type":"pub.v1","id":"' + b"x" * 500_000 + b'"}', "invalid_attribute"),
}


@pytest.fixture(scope="module")
async def server(anyio_backend: Any) -> AsyncIterator[Process]:
    """One server for all cases: it has to survive them all."""
    urls = [f"uprotocol+tcp://127.0.0.1:0?format={format}" for format in ("json", "protobuf")]
    async with running(urls=urls, limits={**LIMITS, "bad_messages": 100_000}, **loop_of(anyio_backend)) as process:
        yield process


@pytest.fixture(scope="module")
async def bystander(server: Process) -> AsyncIterator[Bus]:
    """A good connection that is there all the time."""
    async with connect(server.urls[JSON]) as bus:
        yield bus


@pytest.fixture
async def witness(server: Process, bystander: Bus) -> AsyncIterator[Witness]:
    witness = Witness(server, bystander)
    await witness.before()
    yield witness
    await witness.after()


def timed(data: bytes, effect: Effect) -> bytes:
    """The frame with ids of another time."""
    if effect.made is None:
        return data
    digits = f"{time.time_ns() // 1_000_000 + effect.made:012x}"
    data = data.replace(b'"ttl":1000', b'"ttl":' + effect.ttl)
    return data.replace(b"018bcfe5-6800-", f"{digits[:8]}-{digits[8:]}-".encode())


def good_request(format: Any) -> tuple[bytes, str]:
    """A request for ``echo``, and its id."""
    facts = {
        "id": IdFactory().next(),
        "source": "up://good.example/app/1/rpc.response",
        "sink": "/polybus/1/rpc.echo",
        "priority": "CS4",
        "ttl": 20_000,
    }
    message = Message(Kind.REQUEST, raw=ANY.encode("still there"), format=ANY, attributes=facts)
    return UProtocol(format=format).codec().encode([message]), str(facts["id"])


async def converse(port: int, format: Any, bad: list[bytes]) -> list[Message]:
    """Say it, ask something good, and give all answers before the good one."""
    request, id = good_request(format)
    codec = UProtocol(format=format).codec()
    answers: list[Message] = []
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        receive = await tcp_receiver(stream)
        await stream.send(b"".join(map(frame, [*bad, request])))
        while True:
            data, code = await receive()
            assert data is not None, f"closed with {code}"
            (answer,) = codec.decode(data)
            assert isinstance(answer, Message)
            if answer.id == id:
                assert answer.body == "still there"
                return answers
            answers.append(answer)


@pytest.mark.parametrize("id", EFFECTS)
async def test_a_bad_event_has_its_effect_and_no_other(server: Process, witness: Witness, id: str) -> None:
    effect, case = EFFECTS[id], CASES[id]
    format = "protobuf" if case["transport"].endswith("protobuf") else "json"
    port = port_of(server.urls[PROTOBUF if format == "protobuf" else JSON].partition("?")[0])
    answers = await converse(port, format, [timed(data, effect) for data in messages(case)])
    told = [answer.attributes["commstatus"] for answer in answers]
    assert told == ([] if effect.commstatus is None else [effect.commstatus])

    async def counted() -> bool:
        counted = await witness.counted()
        refused = {name: number for name, number in counted.items() if name.startswith("refused.") and number}
        return refused == ({f"refused.{effect.reason}": 1} if effect.reason else {}) and (
            not effect.counted or counted[effect.counted] == 1
        )

    await eventually(counted)


@pytest.mark.parametrize("what", MORE)
async def test_too_much_or_too_little_is_refused_alone(server: Process, witness: Witness, what: str) -> None:
    data, reason = MORE[what]
    assert await converse(port_of(server.urls[JSON].partition("?")[0]), "json", [data]) == []

    async def counted() -> bool:
        return (await witness.counted())[f"refused.{reason}"] == 1

    await eventually(counted)


@pytest.mark.parametrize("format", ["json", "protobuf"])
async def test_two_thousand_spoiled_events_leave_no_trace(server: Process, witness: Witness, format: str) -> None:
    chance = random.Random(11)
    whole, _ = good_request(format)
    spoiled = []
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        spoiled.append(bytes(data[: chance.randint(1, len(data))]))
    port = port_of(server.urls[PROTOBUF if format == "protobuf" else JSON].partition("?")[0])
    await converse(port, format, spoiled)


def test_every_case_of_ours_has_an_effect(anyio_backend: Any) -> None:
    assert set(OURS) == set(EFFECTS)
    assert json.loads(CASES["up-005"]["input"]["value"])["type"] == "req.v1"
