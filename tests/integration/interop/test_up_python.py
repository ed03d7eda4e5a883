"""Events of the real up-python (0.1.2, the generation with CloudEvents), both ways, in both formats."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from google.protobuf.wrappers_pb2 import StringValue

from polybus import Bus, Code, Forbidden, Message, Unavailable, connect
from polybus.message import Kind
from polybus.protocols import UProtocol
from polybus.protocols._protobuf import ANY
from polybus.protocols.uprotocol import id_time_ms
from tests.support import BOUND

from .up_python_peer import UpPython, up_python

FOLDER = Path(__file__).parent / "up_python"
FORMATS = ["json", "protobuf"]
ASKER, METHOD = "up://hu.veh7/hmi.app/1/rpc.response", "up://cgw.veh7/climate.seat/1/rpc.SetHeat"


@pytest.fixture(scope="module")
def theirs() -> Iterator[UpPython]:
    with up_python(FOLDER) as process:
        yield process


def codec(format: Any) -> Any:
    return UProtocol(format=format, profile="up-python-1.5").codec()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        ("request", Kind.REQUEST),
        ("response", Kind.RESPONSE),
        ("failed", Kind.ERROR),
        ("publish", Kind.PUBLISH),
        ("notification", Kind.NOTIFY),
    ],
)
def test_what_up_python_writes_is_read_strictly(theirs: UpPython, kind: str, becomes: Kind, format: str) -> None:
    reqid = theirs("make", kind="request", format=format)["id"]
    made = theirs("make", kind=kind, format=format, reqid=reqid)
    (message,) = codec(format).decode(bytes.fromhex(made["hex"]))
    assert isinstance(message, Message)
    assert message.kind is becomes
    assert message.attributes["id"] == made["id"]
    assert (message.attributes["priority"], message.attributes["ttl"]) == ("CS4", 5000)
    assert id_time_ms(made["id"]) is not None
    if kind == "failed":
        assert (message.code, message.id) == (Code.UNAVAILABLE, reqid)
    else:
        assert message.body == "hi"


def ours(kind: Kind, **more: Any) -> Message:
    source, sink = (METHOD, ASKER) if kind in (Kind.RESPONSE, Kind.ERROR) else (ASKER, METHOD)
    facts = {"id": UProtocol().session("client")._ids.next(), "source": source, "sink": sink, "priority": "CS4", "ttl": 5000}
    if kind is Kind.PUBLISH:
        facts["source"] = "up://cgw.veh7/climate.seat/1/heater.rear_left#Heater"
        del facts["sink"]
    return Message(kind, raw=ANY.encode("hi"), format=ANY, attributes={**facts, **more})


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH])
def test_what_we_write_is_valid_to_up_python_with_all_attributes(theirs: UpPython, kind: Kind, format: str) -> None:
    more = {"reqid": "018bcfe5-687b-8001-8000-000000000007"} if kind is Kind.RESPONSE else {}
    message = ours(kind, **more)
    read = theirs("read", format=format, hex=codec(format).encode([message]).hex())
    assert (read["valid"], read["expired"]) == (True, False), read["why"]
    assert read["data"] == ANY.encode("hi").hex()
    for name, value in message.attributes.items():
        assert read["attributes"][name] == value, name


@pytest.mark.parametrize("format", FORMATS)
async def test_up_python_asks_a_bus_over_tcp_and_reads_its_answers(theirs: UpPython, format: Any) -> None:
    bus = Bus()

    @bus.handle("SetHeat")
    async def set_heat(body: str) -> str:
        return body.upper()

    adapter = UProtocol(entity="//cgw.veh7/climate.seat/1", format=format, profile="up-python-1.5")
    with anyio.fail_after(BOUND):
        async with bus.serve("uprotocol+tcp://127.0.0.1:0", protocol=adapter) as listener:
            port = int(listener.url.partition("?")[0].rpartition(":")[2])
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:

                async def ask() -> dict[str, Any]:
                    made = theirs("make", kind="request", format=format, text="warm")
                    frame = bytes.fromhex(made["hex"])
                    await stream.send(len(frame).to_bytes(4, "big") + frame)
                    data = await stream.receive()
                    while len(data) < 4 + int.from_bytes(data[:4], "big"):
                        data += await stream.receive()
                    read = theirs("read", format=format, hex=data[4:].hex())
                    assert read["valid"], read["why"]
                    assert (read["attributes"]["reqid"], read["attributes"]["sink"]) == (made["id"], ASKER)
                    return read

                answer = await ask()
                assert (answer["failed"], ANY.decode(bytes.fromhex(answer["data"]))) == (False, "WARM")
                del bus._lookup.handlers["SetHeat"]
                refused = await ask()
                assert refused["failed"]
                assert refused["attributes"]["commstatus"] == Code.UNIMPLEMENTED


@asynccontextmanager
async def joined(theirs: UpPython, format: Any, answers: Callable[[bytes], str], **options: Any) -> AsyncIterator[Bus]:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            data = b""
            with suppress(anyio.EndOfStream):
                while True:
                    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                        data += await stream.receive()
                    end = 4 + int.from_bytes(data[:4], "big")
                    frame, data = data[4:end], data[end:]
                    answer = theirs("reply", format=format, hex=frame.hex(), answers=answers(frame))
                    made = bytes.fromhex(answer["hex"])
                    await stream.send(len(made).to_bytes(4, "big") + made)

    adapter = UProtocol(
        entity="//hu.veh7/hmi.app/1", peer="//cgw.veh7/climate.seat/1", format=format, profile="up-python-1.5", **options
    )
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with anyio.fail_after(BOUND):
            async with connect(f"uprotocol+tcp://127.0.0.1:{port}", protocol=adapter) as bus:
                yield bus
        group.cancel_scope.cancel()


@pytest.mark.parametrize("format", FORMATS)
async def test_a_bus_asks_a_service_of_up_python_over_tcp(theirs: UpPython, format: Any) -> None:
    tokens = 0

    def answers(frame: bytes) -> str:
        nonlocal tokens
        tokens += b"secret" in frame
        return "capitals" if b"SetHeat" in frame else "failure"

    async with joined(theirs, format, answers, token="secret") as bus:
        asked = StringValue(value="warm")
        assert [await bus.request("SetHeat", asked) for _ in range(3)] == ["WARM"] * 3
        with pytest.raises(Unavailable):
            await bus.request("SetCold", asked)
    assert tokens == 4


@pytest.mark.parametrize("format", FORMATS)
async def test_what_a_service_of_up_python_refuses_is_an_error_and_its_nothing_is_none(theirs: UpPython, format: Any) -> None:
    async with joined(theirs, format, lambda frame: "nothing" if b"Warm" in frame else "status") as bus:
        with pytest.raises(Forbidden, match="no key"):
            await bus.request("SetHeat", StringValue(value="warm"))
        assert await bus.request("Warm", StringValue(value="warm")) is None
        assert await bus.request("Warm") is None


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_is_a_payload_to_up_python(theirs: UpPython, format: Any) -> None:
    message = ours(Kind.RESPONSE, reqid="018bcfe5-687b-8001-8000-000000000007")
    message.raw = None
    read = theirs("read", format=format, hex=codec(format).encode([message]).hex())  # without the field, get_payload raises
    assert (read["valid"], read["payload"]) == (True, "")
