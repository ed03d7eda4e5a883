"""Messages of the real up-python (0.2, the generation with UMessage), both ways, and its own classes as a peer."""

import random
import string
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, Code, Context, Forbidden
from polybus.protocols import Up
from polybus.protocols.up.uuris import UUri
from polybus.protocols.up.wire import (
    Attributes,
    WireIds,
    first_violation,
    read_attributes,
    read_uuid,
    split_message,
    uuid_text,
    write_attributes,
    write_message,
)
from tests.support import BOUND

from .up_python_peer import UpPython, python_of, up_python

FOLDER = Path(__file__).parent / "umessage"
KINDS = {"publish": 1, "request": 2, "response": 3, "notification": 4}
COUNT = 200


@pytest.fixture(scope="module")
def theirs() -> Iterator[UpPython]:
    with up_python(FOLDER) as process:
        yield process


def told(given: Attributes) -> dict[str, Any]:
    """Attributes as the peer tells them."""
    found: dict[str, Any] = {"type": given.type, "priority": given.priority, "payload_format": given.payload_format}
    found |= {name: uuid_text(id) for name, id in (("id", given.id), ("reqid", given.reqid)) if id}
    for name, uri in (("source", given.source), ("sink", given.sink)):
        if uri is not None:
            found[name] = [uri.authority, uri.entity, uri.version, uri.resource]
    for name in ("ttl", "permission_level", "commstatus", "token", "traceparent"):
        if getattr(given, name) is not None:
            found[name] = getattr(given, name)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_messages_of_up_python_keep_our_rules_and_are_read_as_they_are(theirs: UpPython, kind: str) -> None:
    for frame, said, payload in theirs("make", kind=kind, count=COUNT, seed=7)["made"]:
        attributes, data = split_message(bytes.fromhex(frame))
        given = read_attributes(attributes or b"")
        assert told(given) == said
        assert (None if data is None else data.hex()) == payload
        assert first_violation(given) is None
        assert read_attributes(write_attributes(given)) == given
        Up().codec().decode(bytes.fromhex(frame))  # is a message


def _uri(rng: random.Random, first: int, last: int) -> UUri:
    name = "".join(rng.choices(string.ascii_lowercase + string.digits + "-._~", k=rng.randint(1, 128)))
    return UUri(name, rng.randint(0, 0xFFFE) << 16 | rng.randint(1, 0xFFFE), rng.randint(1, 0xFE), rng.randint(first, last))


def _random(rng: random.Random, ids: WireIds, kind: str) -> Attributes:
    topic, method, entity = _uri(rng, 0x8000, 0xFFFE), _uri(rng, 1, 0x7FFF), _uri(rng, 0, 0)
    given = Attributes(read_uuid(ids.next()), KINDS[kind], priority=rng.randint(2, 7), payload_format=rng.randint(0, 8))
    given.source = method if kind == "response" else entity if kind == "request" else topic
    given.sink = {"publish": None, "request": method}.get(kind, entity)
    given.ttl = rng.randint(1, 2**31 - 1) if kind == "request" else rng.choice([None, 0, rng.randint(1, 2**31 - 1)])
    if kind in ("request", "response"):
        given.priority = rng.randint(5, 7)
    if kind == "response":
        given.reqid, given.commstatus = read_uuid(ids.next()), rng.choice([None, rng.randint(0, 16)])
    if kind == "request":
        given.token, given.permission_level = rng.choice([None, "", "Bearer ä€"]), rng.choice([None, rng.randint(1, 2**31 - 1)])
    given.traceparent = rng.choice([None, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"])
    return given


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_messages_of_ours_are_valid_to_up_python_with_equal_attributes(theirs: UpPython, kind: str) -> None:
    rng = random.Random(7)
    ids = WireIds(time.time_ns, rng)
    made = [(_random(rng, ids, kind), rng.choice([None, rng.randbytes(rng.randint(0, 300))])) for _ in range(COUNT)]
    frames = [write_message(write_attributes(given), payload).hex() for given, payload in made]
    for (given, payload), (valid, why, said, data) in zip(made, theirs("read", frames=frames)["read"], strict=True):
        assert first_violation(given) is None
        assert valid, why
        assert said == told(given)
        assert data == (None if payload is None else payload.hex())


OURS = Up(entity="//ours/10AB/3", peer="//theirs/CD/4", names={"double": 0xB, "capitals": 0x7, "heard": 0x8001, "said": 0x8002})


async def test_the_classes_of_up_python_ask_are_asked_publish_and_notify() -> None:
    python = python_of(FOLDER)
    bus, told_us, rounds = Bus(), list[Any](), COUNT
    done = anyio.Event()

    @bus.handle("double")
    async def double(body: dict[str, int]) -> int:
        return body["n"] * 2

    @bus.handle("said")
    async def said(body: list[int], ctx: Context) -> None:
        told_us.append(body)
        if len(told_us) == rounds:
            done.set()

    async with (
        bus.serve("up+tcp://127.0.0.1:0", protocol=OURS) as listener,
        bus.subscribe("heard", queue=2 * rounds) as heard,
    ):
        port = listener.url.rpartition(":")[2].partition("?")[0]
        command = [str(python), str(FOLDER / "peer.py"), port, str(rounds)]
        async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None) as process:
            with anyio.fail_after(BOUND):
                await done.wait()
            # All answers right, and a method that nobody has is refused.
            assert told_us == [[rounds, int(Code.UNIMPLEMENTED)]] * rounds
            (peer,) = bus.peers
            texts = [f"text {number}" for number in range(rounds)]
            assert [await peer.request("capitals", text) for text in texts] == [text.upper() for text in texts]
            with pytest.raises(Forbidden):
                await peer.request("capitals", "refuse")
            for number in range(rounds):
                await peer.notify("said", number)
                await bus.publish("said", number)
            # It publishes each again, with how it came.
            bodies = [(await anext(heard)).body for _ in range(2 * rounds)]
            assert sorted(bodies) == sorted(f"{how} {number}" for how in ("told", "heard") for number in range(rounds))
            assert (bus.stats().malformed, bus.stats().dropped) == (0, 0)
            process.terminate()
            await process.wait()
