"""A bridge between the generations of uProtocol: names and numbers, ids, priorities, times and errors cross both ways."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from attrs import frozen

from polybus import Bus, CallNext, Context, Message, Peer, Route, bridge, connect
from polybus.errors import Code, DeadlineExceeded, NoHandler, RequestError
from polybus.protocols import Up, UProtocol
from tests.support import eventually

NAMES = {"UpdateDoor": 0xB, "door.opened": 0x80CD, "lights": 0x80CE, "nobody": 0xC}
VEHICLE, PHONE = "//vehicle7/body.access/1", "//phone/CD/4"
PRIORITIES = {"UpdateDoor": "CS5", "door.opened": "CS3", "lights": "CS6"}
KINDS = {"request", "publish"}
SUBJECTS = ("UpdateDoor", "door.opened", "lights", "nobody")


@frozen
class Side:
    """A bus at one end of the gateway, and its peer there."""

    bus: Bus
    gateway: Peer


@frozen
class Ground:
    """`near` -> left | right -> `far`, of which the one is of the old generation and the other of the new."""

    near: Side
    left: Bus
    far: Side
    versions: tuple[str, str]
    """Of the ids of each."""


async def _served(stack: AsyncExitStack, name: str, left: Bus, format: Any) -> Side:
    """A bus of a generation, to which a bus of the gateway has a link."""
    bus = Bus()
    if name == "old":
        own: Any = UProtocol(format=format, entity=VEHICLE, priorities=PRIORITIES)
        gateway: Any = UProtocol(format=format, entity="//gateway/bridge/1", peer=VEHICLE)
    else:
        own = Up(entity=PHONE, peer="//gateway/10AB/3", names=NAMES, priorities=PRIORITIES)
        gateway = Up(entity="//gateway/10AB/3", peer=PHONE, names=NAMES)
    listener = await stack.enter_async_context(bus.serve(f"{own.name}+memory://{name}-{id(bus)}", protocol=own))
    await stack.enter_async_context(connect(listener.url.partition("?")[0], bus=left, protocol=gateway))
    (peer,) = bus.peers
    return Side(bus, peer)


@asynccontextmanager
async def joined(near: str, far: str, format: str = "protobuf") -> AsyncIterator[Ground]:
    left, right = Bus(), Bus()
    async with AsyncExitStack() as stack:
        sides = [await _served(stack, name, end, format) for name, end in ((near, left), (far, right))]
        await stack.enter_async_context(bridge(left, right, routes=[Route(name, name, KINDS) for name in SUBJECTS]))
        yield Ground(sides[0], left, sides[1], ("8", "7") if near == "old" else ("7", "8"))


BOTH_WAYS = pytest.mark.parametrize(("near", "far"), [("old", "new"), ("new", "old")])


@BOTH_WAYS
async def test_a_request_crosses_with_its_name_its_priority_and_the_time_that_is_left(near: str, far: str) -> None:
    seen = list[Message]()
    async with joined(near, far) as ground:

        @ground.far.bus.handle("UpdateDoor")
        async def update(body: dict[str, int], message: Message) -> list[int]:
            seen.append(message)
            return [body["door"], 7]

        assert await ground.near.gateway.request("UpdateDoor", {"door": 2}, timeout=20) == [2, 7]
    (message,) = seen
    assert message.attributes["priority"] == "CS5"
    assert 0 < message.attributes["ttl"] <= 20_000
    assert message.attributes["sink"] == (f"{PHONE}/B" if far == "new" else f"{VEHICLE}/rpc.UpdateDoor")
    # It is a request of the gateway's own: under its own id nobody else's answer can come.
    assert message.attributes["id"][14] == ground.versions[1]


@BOTH_WAYS
async def test_errors_cross_with_code_reason_text_and_detail(near: str, far: str) -> None:
    async with joined(near, far) as ground:

        @ground.far.bus.handle("UpdateDoor")
        async def update(body: int) -> None:
            code = Code(body)
            raise (
                DeadlineExceeded("late")
                if code is Code.DEADLINE_EXCEEDED
                else RequestError(code, f"no {body}", reason="no_door", detail={"door": body})
            )

        for code in Code:
            if code in (Code.OK, Code.DEADLINE_EXCEEDED):
                continue
            with pytest.raises(RequestError) as caught:
                await ground.near.gateway.request("UpdateDoor", int(code))
            error = caught.value
            assert (error.code, error.reason, error.text, error.detail) == (code, "no_door", f"no {code}", {"door": code})
        with pytest.raises(NoHandler):
            await ground.near.gateway.request("nobody")


async def test_what_the_dispatcher_of_the_new_generation_refuses_is_a_status_of_the_old() -> None:
    """Of the old generation only dispatchers say commstatus; here it is the gateway's service that has failed."""
    for near, far, status in (("old", "new", None), ("new", "old", Code.UNIMPLEMENTED)):
        async with joined(near, far) as ground:
            reply = ground.near.gateway.request("nobody")
            with pytest.raises(NoHandler):
                await reply
            assert reply.message is not None
            assert reply.message.attributes.get("commstatus") == status


@pytest.mark.parametrize("format", ["json", "protobuf"])
@BOTH_WAYS
async def test_publications_and_notifications_keep_id_and_priority(near: str, far: str, format: str) -> None:
    sent, came = dict[str, str](), dict[str, Message]()
    async with joined(near, far, format) as ground:

        @ground.left.use
        async def note(message: Message, ctx: Context, call_next: CallNext) -> Any:
            sent[str(message.subject)] = message.attributes["id"]
            return await call_next(message)

        @ground.far.bus.on("door.opened")
        @ground.far.bus.handle("lights")
        async def take(message: Message) -> None:
            came[str(message.subject)] = message

        await ground.near.gateway.publish("door.opened", {"door": 2})
        await ground.near.gateway.notify("lights", {"on": True})
        await eventually(lambda: len(came) == 2)
    messages = [came["door.opened"], came["lights"]]
    ids = [message.attributes["id"] for message in messages]
    old, new = ground.versions
    assert {id[14] for id in sent.values()} == {old}
    assert [id[:14] + new + id[15:] for id in (sent["door.opened"], sent["lights"])] == ids
    assert [message.attributes["priority"] for message in messages] == ["CS3", "CS6"]
    assert [message.body for message in messages] == [{"door": 2}, {"on": True}]
    source = messages[0].attributes["source"]
    assert source == ("//gateway/10AB/3/80CD" if far == "new" else "//gateway/bridge/1/door.opened#Message")
