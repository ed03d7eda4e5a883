"""The list of bad inputs against a real server: it survives, it goes on answering, and the declared effect holds."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import field, frozen

from polybus import Bus, connect

from .processes import BOUND, MIB, Process, control, eventually, loop_of, port_of, running
from .raw import CLOSING, frame
from .raw_websocket import raw_websocket, websocket_frame

pytestmark = pytest.mark.anyio

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parents[2] / "vectors" / "bad_inputs.json").read_text())["cases"]
}
MESSAGES = [id for id in CASES if id.startswith(("ubre-", "ubreb-")) and CASES[id]["transport"] != "tcp-length-prefix"]
FRAMING = [id for id in CASES if CASES[id]["transport"] == "tcp-length-prefix"]
WEBSOCKET = [id for id in CASES if CASES[id]["transport"] == "websocket-raw"]
HANDSHAKE = [id for id in CASES if CASES[id]["transport"] == "websocket-handshake"]

LIMITS = {
    "frame_timeout": BOUND,
    "handshake_timeout": BOUND,
    "write_timeout": BOUND,
    "ping_interval": 1.0,
    "ping_timeout": BOUND,
}
"""Of servers that wait for whoever is slow, on a busy machine too."""
IMPATIENT = {"tcp-002": "frame_timeout", "ws-012": "frame_timeout", "ws-021": "handshake_timeout"}
"""Cases in which nothing comes any more, and the limit that ends them."""
JSON_TCP, BINARY_TCP, JSON_WS, BINARY_WS = range(4)


@frozen
class Effect:
    """What is seen from outside of one case."""

    reasons: tuple[str, ...] = ()
    """Of the messages that were refused, one for each; the connection goes on, and without a `code` nothing is answered."""
    code: int | None = None
    """Of the error that the request was answered with, under the id that it came with."""
    id: Any = 1
    answers: int | range = 1
    """How many such errors."""
    closed: int | None = None
    """The code with which the server closed the connection."""
    counted: dict[str, int] = field(factory=dict)
    """What else the server has counted, from its `stats` or its handlers."""


def dropped(*reasons: str) -> Effect:
    return Effect(reasons=reasons)


CONFLICT, TOO_MANY, NOBODY = 6, 8, 12
"""Of `Code`: ALREADY_EXISTS, RESOURCE_EXHAUSTED, UNIMPLEMENTED."""

# The effect of each message. Where the list declares another one, or none that could be seen, a comment says why.
MESSAGE_EFFECTS: dict[str, Effect] = {
    "ubre-002": dropped("malformed"),
    "ubre-004": dropped("malformed"),
    "ubre-006": dropped("malformed"),
    "ubre-009": dropped("ambiguous"),
    "ubre-012": dropped("invalid_subject"),
    "ubre-015": dropped("invalid_id"),
    "ubre-019": dropped("unknown_id"),
    # The list speaks of our request number 1. Our ids are text with a random part, so a bare 1 is never one of them; that
    # the second answer to a real id is late is shown in test_strangers.py.
    "ubre-020": dropped("unknown_id", "unknown_id"),
    "ubre-021": dropped("unknown_id", "unknown_id"),
    "ubre-022": Effect(("duplicate_id",), code=CONFLICT, counted={"started": 1, "malformed": 1}),
    "ubre-023": Effect(code=NOBODY, counted={"refused": 1}),
    "ubre-024": Effect(code=NOBODY, counted={"refused": 1}),
    "ubre-028": dropped("too_deep"),
    "ubre-029": dropped("malformed"),
    "ubre-030": dropped("malformed"),
    "ubre-031": dropped("malformed"),
    "ubre-033": dropped("malformed"),
    "ubre-035": dropped("invalid_subject"),
    "ubre-036": dropped("malformed"),
    "ubre-037": dropped("malformed"),
    # Declared as an answer with an error, but UBRE has no answer to a subscription: it is counted, and a peer of ours hears of
    # it from its `hello`.
    "ubre-041": Effect(counted={"refused": 20_000 - 1024}),
    # 8 run at first, up to 64 as they are seen to wait; 4096 wait.
    "ubre-042": Effect(
        code=TOO_MANY, id=None, answers=range(20_000 - 64 - 4096, 20_000 - 8 - 4096 + 1), counted={"started": 64}
    ),
    "ubre-045": Effect(counted={"started": 1, "cancelled": 1}),
    "ubre-046": Effect(code=NOBODY, id="m", counted={"refused": 1}),
    "ubre-047": dropped("invalid_id"),
    # One server is no ring of bridges: what is seen here is that the publication is taken, and not sent back.
    "ubre-050": Effect(counted={"received": 1}),
    # Over TCP a frame of no bytes is a keep-alive, so nothing is refused there.
    "ubreb-001": dropped("truncated"),
    "ubreb-002": dropped("truncated"),
    "ubreb-003": dropped("truncated"),
    "ubreb-005": Effect(reasons=("too_large",), closed=1009),
    # The body is the rest of the frame, on TCP as well (frames have an end there too): here it is `abc`, which is no JSON.
    "ubreb-006": dropped("malformed"),
    "ubreb-009": dropped("unknown_id"),
    "ubreb-011": dropped("invalid_subject"),
    "ubreb-012": dropped("invalid_id"),
}

# The same for bytes on TCP: the code of our closing frame, or None where the next good request is answered.
FRAMING_EFFECTS: dict[str, int | None] = {
    "ubreb-014": 1009,
    "ubreb-015": None,
    "tcp-002": 1002,
    # The peer has left: there is nobody to be told why. The log says how much of the frame had come.
    "tcp-003": 1006,
    "tcp-004": 1009,
    "tcp-005": 1009,
    "tcp-006": 1009,
    "tcp-008": None,
}

WEBSOCKET_EFFECTS: dict[str, int | None] = {
    "ws-001": 1009,
    "ws-003": 1002,
    "ws-006": 1007,
    "ws-007": 1002,
    "ws-008": 1002,
    "ws-009": 1002,
    "ws-010": 1002,
    "ws-011": 1002,
    # Declared as left to the pings. We have a limit for a frame that does not complete, and end the connection by it.
    "ws-012": 1002,
    "ws-013": 1000,
    "ws-014": 1009,
    # Compression is never offered, so the first such message has a reserved bit set: that is 1002, as the case's text says.
    "ws-015": 1002,
}

HANDSHAKE_EFFECTS: dict[str, int | None] = {
    "ws-016": 403,
    "ws-020": 431,
    # Cut without an answer: there was no question.
    "ws-021": None,
}


# -- the server and its witnesses ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[("asyncio", {}), ("trio", {})], ids=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Without uvloop: these tests take their time."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


URLS = [f"ubre+{transport}://127.0.0.1:0?format={kind}" for transport in ("tcp", "ws") for kind in ("json", "binary")]


@pytest.fixture(scope="module")
async def server(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[Process]:
    """One server for all cases but the impatient ones: it has to survive them all."""
    async with running(urls=URLS, limits=LIMITS, **loop_of(anyio_backend)) as process:
        yield process


@pytest.fixture(scope="module")
async def bystander(server: Process) -> AsyncIterator[Bus]:
    """A good connection that is there all the time."""
    async with connect(server.urls[JSON_TCP]) as bus:
        yield bus


class Witness:
    """Compares the server after a case with the server before it."""

    def __init__(self, server: Process, bystander: Bus) -> None:
        self._server = server
        self._bystander = bystander
        self._memory = 0
        self._before: dict[str, Any] = {}
        self._log = ""

    async def before(self) -> None:
        self._before = await control(self._bystander)
        self._memory = self._server.memory()
        self._log = self._server.log()

    async def counted(self) -> Counter[str]:
        """What has been counted since, without the questions asked for it."""
        now, before = await control(self._bystander), self._before
        counted: Counter[str] = now["counted"] - before["counted"]
        for name, number in now["stats"].items():
            if isinstance(number, int):  # and not the list of durable handlers
                counted[name] = number - before["stats"][name]
        counted["received"] -= 1
        return counted

    async def after(self) -> None:
        """Nobody has suffered."""
        assert self._server.running(), self._server.log()
        assert await self._bystander.request("echo", "still here", timeout=BOUND) == "still here"
        async with connect(self._server.urls[JSON_TCP]) as newcomer:
            assert await newcomer.request("echo", "welcome", timeout=BOUND) == "welcome"
        assert self._server.memory() - self._memory < 8 * MIB
        assert self._bystander.stats().reconnects == 0
        written = self.log()
        assert "Traceback" not in written
        assert len(written) < 20_000
        # Each line is ours: what a peer sent begins none.
        assert all(line.startswith(("INFO:", "WARNING:", "ERROR:")) for line in written.splitlines())

    def log(self) -> str:
        """What the server has written to its log since."""
        return self._server.log()[len(self._log) :]


@pytest.fixture
async def witness(server: Process, bystander: Bus) -> AsyncIterator[Witness]:
    async with watched(server, bystander) as witness:
        yield witness


@asynccontextmanager
async def watched(server: Process, bystander: Bus) -> AsyncIterator[Witness]:
    witness = Witness(server, bystander)
    await witness.before()
    yield witness
    await witness.after()


# -- messages ------------------------------------------------------------------------------------------------------------

CLOSE_NOW = b"<close>"


def messages(case: dict[str, Any]) -> list[bytes]:
    """The messages of a case, each for a frame of its own."""
    given = case["input"]
    if case["id"] == "ubre-041":
        return [b'{"subscribe":"topic-%d"}' % number for number in range(given["count"])]
    if case["id"] == "ubre-042":
        return [b'{"request":"slow","id":%d}' % number for number in range(given["count"])]
    match given["kind"]:
        case "text":
            return [given["value"].encode()]
        case "hex":
            return [bytes.fromhex(given["value"])]
        case "repeat":
            return [(given["prefix"] + given["unit"] * given["count"] + given["suffix"]).encode()]
        case _:
            return [step["send"].encode() for step in given["value"]]


def good_request(binary: bool) -> bytes:
    if binary:
        return b"R" + struct.pack("!HI", 9, 1) + b"good\0echo" + b"7"
    return b'{"request":"echo","id":"good","body":7}'


class Line:
    """A connection to the server by hand: over TCP or a WebSocket."""

    def __init__(self, stream: Any, send_frame: Any, receive: Any) -> None:
        self.stream = stream
        self._send_frame = send_frame
        self._receive = receive

    async def send(self, sent: list[bytes]) -> None:
        await self.stream.send(b"".join(map(self._send_frame, sent)))

    async def heard(self) -> tuple[list[bytes], int | None]:
        """Frames until the answer to the good request, or until the server closes: with which code."""
        got: list[bytes] = []
        while True:
            message, code = await self._receive()
            if message is None:
                return got, code
            got.append(message)
            if b"good" in message:
                return got, None

    async def listen(self, got: list[bytes]) -> None:
        """Add what comes after that, which is nothing, to what has been heard."""
        message, code = await self._receive()
        got.append(message or f"<closed: {code}>".encode())


async def tcp_receiver(stream: Any) -> Any:
    """A function that gives the next message, or the code with which the server has closed."""
    received = b""

    async def exactly(size: int) -> bytes:
        nonlocal received
        with anyio.fail_after(BOUND):
            while len(received) < size:
                received += await stream.receive()
        taken, received = received[:size], received[size:]
        return taken

    async def receive() -> tuple[bytes | None, int | None]:
        try:
            while True:
                (length,) = struct.unpack("!I", await exactly(4))
                if length == CLOSING:
                    code, size = struct.unpack("!HH", await exactly(4))
                    await exactly(size)
                    return None, code
                if length:
                    return await exactly(length), None
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return None, 1006

    return receive


async def websocket_code(socket: Any) -> tuple[bytes | None, int | None]:
    """The same for a WebSocket."""
    try:
        opcode, payload = await socket.receive()
    except anyio.EndOfStream:
        return None, 1006
    if opcode != 8:
        return payload, None
    return None, struct.unpack("!H", payload[:2])[0] if payload else 1000


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("id", MESSAGES)
async def test_a_bad_message_has_its_effect_and_no_other(server: Process, witness: Witness, id: str, transport: str) -> None:
    case, effect = CASES[id], MESSAGE_EFFECTS[id]
    binary = id.startswith("ubreb-")
    sent = messages(case)
    leave = CLOSE_NOW in sent
    sent = [message for message in sent if message != CLOSE_NOW]
    reasons = effect.reasons if transport == "ws" or sent != [b""] else ()

    async def all_counted() -> bool:
        counted = await witness.counted()
        refused = Counter({name.removeprefix("refused."): n for name, n in counted.items() if name.startswith("refused.")})
        assert refused == Counter(reasons)
        assert {name: min(counted[name], number) for name, number in effect.counted.items()} == effect.counted
        return True

    good = [] if leave else [good_request(binary)]
    if transport == "tcp":
        async with await anyio.connect_tcp("127.0.0.1", port_of(server.urls[BINARY_TCP if binary else JSON_TCP])) as stream:
            line = Line(stream, frame, await tcp_receiver(stream))
            heard, closed = await _conversation(line, sent + good, witness, leave, all_counted)
    else:
        async with raw_websocket(server.urls[BINARY_WS if binary else JSON_WS]) as socket:
            opcode = 2 if binary else 1
            line = Line(socket, lambda data: websocket_frame(opcode, data), lambda: websocket_code(socket))
            heard, closed = await _conversation(line, sent + good, witness, leave, all_counted)
    assert closed == effect.closed
    await eventually(all_counted)
    if effect.code is not None:
        errors = [json.loads(message) for message in heard if b'"fail":' in message]
        of_ours = [error for error in errors if error["code"] == effect.code and effect.id in (None, error["fail"])]
        # The good request is one too many where there are too many already.
        answers = len(of_ours) - (effect.code == TOO_MANY)
        assert answers in (effect.answers if isinstance(effect.answers, range) else (effect.answers,))
        assert len(heard) == len(of_ours) + (effect.code != TOO_MANY)
    elif closed is None and not leave:
        assert len(heard) == 1, "nothing was answered but the good request"


async def _conversation(
    line: Line, sent: list[bytes], witness: Witness, leave: bool, all_counted: Callable[[], Awaitable[bool]]
) -> tuple[list[bytes], int | None]:
    async with anyio.create_task_group() as group:
        group.start_soon(line.send, sent)
        if leave:

            async def there() -> bool:
                return bool((await witness.counted())["started"] == 1)

            await eventually(there)
            group.cancel_scope.cancel()
            return [], None
        heard, closed = await line.heard()
        if closed is None:
            # Who leaves takes with him what he has asked and what has not begun yet, so this peer stays, and answers pings.
            group.start_soon(line.listen, heard)
            await eventually(all_counted)
        group.cancel_scope.cancel()
    return heard, closed


# -- framing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [id for id in FRAMING if id not in IMPATIENT])
async def test_bad_framing_ends_the_connection_alone(server: Process, witness: Witness, id: str) -> None:
    await _frame_badly(server, witness, id)


async def _frame_badly(server: Process, witness: Witness, id: str) -> None:
    case, good = CASES[id], frame(good_request(binary=False))
    async with await anyio.connect_tcp("127.0.0.1", server.port) as stream:
        receive = await tcp_receiver(stream)
        if id == "tcp-008":
            # Slow but steady: the pauses are the input, shorter than in the list, and nothing is to come of them.
            slow = frame(good_request(binary=False).ljust(64))
            assert len(slow) == case["input"]["count"]
            for byte in slow:
                await stream.send(bytes([byte]))
                await anyio.sleep(0.002)
        else:
            (data,) = messages(case)
            await stream.send(data if FRAMING_EFFECTS[id] is not None else data + good)
        if id == "tcp-003":
            await stream.send_eof()
        message, code = await receive()
    assert code == FRAMING_EFFECTS[id]
    if code is None:
        assert message is not None
        assert json.loads(message) == {"success": "good", "body": 7}
    else:

        async def gone() -> bool:
            return (await witness.counted())["event.LinkDown"] >= 1

        await eventually(gone)
    if id == "tcp-006":
        await eventually(lambda: "looks like HTTP" in witness.log())


# -- WebSocket -----------------------------------------------------------------------------------------------------------


def websocket_bytes(case: dict[str, Any]) -> bytes:
    """What is sent after the upgrade."""
    match case["id"]:
        case "ws-014":
            return bytes.fromhex("02810000000061") + bytes.fromhex("008000000000") * int(case["input"]["count"])
        case "ws-015":
            return websocket_frame(2, b"\0" * 1041, first_bits=0xC0) * int(case["input"]["count"])
        case _:
            return bytes.fromhex(case["input"]["value"])


@pytest.mark.parametrize("id", [id for id in WEBSOCKET if id not in IMPATIENT])
async def test_a_violation_of_websocket_closes_with_its_code(server: Process, witness: Witness, id: str) -> None:
    await _violate_websocket(server, id)


async def _violate_websocket(server: Process, id: str) -> None:
    url = server.urls[JSON_WS if id == "ws-006" else BINARY_WS]
    async with raw_websocket(url) as socket, anyio.create_task_group() as group:

        async def send() -> None:
            try:
                await socket.send(websocket_bytes(CASES[id]))
            except anyio.BrokenResourceError:
                pass  # it does not read on after the first offence

        group.start_soon(send)
        _, code = await websocket_code(socket)
        group.cancel_scope.cancel()
    assert code == WEBSOCKET_EFFECTS[id]


@pytest.mark.parametrize("id", [id for id in HANDSHAKE if id not in IMPATIENT])
async def test_a_bad_handshake_is_refused_with_its_status(server: Process, witness: Witness, id: str) -> None:
    await _shake_hands_badly(server, id)


async def _shake_hands_badly(server: Process, id: str) -> None:
    (data,) = messages(CASES[id])
    async with await anyio.connect_tcp("127.0.0.1", port_of(server.urls[JSON_WS])) as stream:
        await stream.send(data)
        answer = b""
        with anyio.fail_after(BOUND):
            try:
                while True:
                    answer += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    status = HANDSHAKE_EFFECTS[id]
    assert answer.split(b" ")[1:2] == ([] if status is None else [str(status).encode()])


# -- what does not come to its end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", IMPATIENT)
async def test_what_does_not_come_to_its_end_is_not_waited_for(anyio_backend: tuple[str, dict[str, Any]], id: str) -> None:
    limits = {**LIMITS, IMPATIENT[id]: 0.5}
    async with (
        running(urls=URLS, limits=limits, **loop_of(anyio_backend)) as server,
        connect(server.urls[JSON_TCP]) as bystander,
        watched(server, bystander) as witness,
    ):
        if id in FRAMING:
            await _frame_badly(server, witness, id)
        elif id in WEBSOCKET:
            await _violate_websocket(server, id)
        else:
            await _shake_hands_badly(server, id)


def test_every_case_of_ours_has_an_effect(anyio_backend: Any) -> None:
    ours = {id for id in CASES if id.partition("-")[0] in ("ubre", "ubreb", "tcp", "ws")}
    tables = (MESSAGE_EFFECTS, FRAMING_EFFECTS, WEBSOCKET_EFFECTS, HANDSHAKE_EFFECTS)
    assert ours == {id for table in tables for id in table}
    assert ours == {*MESSAGES, *FRAMING, *WEBSOCKET, *HANDSHAKE}
