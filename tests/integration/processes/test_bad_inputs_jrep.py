"""The list of bad inputs for J.REP, against a real server: it survives, it goes on answering, and the declared effect holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from attrs import field, frozen

from polybus import Bus, connect

from .processes import Process, eventually, loop_of, port_of, running
from .raw import frame
from .raw_websocket import raw_websocket, websocket_frame
from .test_bad_inputs import CASES, LIMITS, Line, Witness, messages, tcp_receiver, websocket_code

pytestmark = pytest.mark.anyio

OURS = [id for id in CASES if id.startswith("jrep-")]
TCP, WS = range(2)


@frozen
class Effect:
    """What is seen from outside of one case; the connection goes on unless `closed` says otherwise."""

    reasons: tuple[str, ...] = ()
    """Of what was refused."""
    told: str = ""
    """A word of the ErrorMessage that the client's bus gets; nothing is said without one."""
    closed: int | None = None
    """The code with which the server closed the connection."""
    counted: dict[str, int] = field(factory=dict)
    greets: bool = True
    """Whether the client associates before it sends the case."""


# Where the list declares another effect than what follows from it at once, a comment says why.
EFFECTS: dict[str, Effect] = {
    "jrep-004": Effect(reasons=("malformed",) * 3),
    "jrep-005": Effect(reasons=("missing_subject",)),
    "jrep-006": Effect(reasons=("invalid_subject",)),
    "jrep-008": Effect(reasons=("reserved_subject",), told="nothing of this RemoteSubscribe was done"),
    "jrep-009": Effect(reasons=("reserved_subject",), told="reserved"),
    "jrep-010": Effect(reasons=("reserved_subject",), told="reserved"),
    "jrep-011": Effect(reasons=("reserved_subject",), told="reserved"),
    "jrep-012": Effect(reasons=("reserved_subject",), told="reserved"),
    "jrep-015": Effect(reasons=("handshake_order",), closed=1002, greets=False),
    "jrep-017": Effect(reasons=("too_large",), told="CapabilitiesFlags"),
    "jrep-018": Effect(reasons=("missing_part",), told="CapabilitiesFlags is required"),
    # Nobody here listens to ServiceC, so nothing is delivered; that another client does not get it either is shown in
    # tests/unit/protocols/jrep/test_federation.py. A publication without a listener is no mistake, and is not counted.
    "jrep-019": Effect(counted={"received": 2}),
    # The transport refuses a frame of this size, before its messages are counted: for that see `MORE`.
    "jrep-023": Effect(closed=1009),
    "jrep-024": Effect(reasons=("invalid_part",)),
    "jrep-026": Effect(),
    "jrep-027": Effect(counted={"received": 2}),
    "jrep-029": Effect(reasons=("not_subscribed",)),
    "jrep-030": Effect(reasons=("ambiguous",), told="both Subject and SubjectsList"),
    "jrep-031": Effect(reasons=("invalid_part",), told="SubjectsList is a list"),
}
WEB = {"jrep-033"}
"""A cross-site POST: test_bad_inputs_jrep_http.py, where there is HTTP."""

GREETING = b'[{"ToSubject":"ServerBus","CommandType":"Associate","RemoteServices":"ClientBus,ClientBusErrors"}]'
GOOD = b'[{"ToSubject":"echo","Value":"7","ReplyTo":"good:1:RespondTo:RPC","ErrorTo":"good:1:Errors:RPC"}]'
MORE = {
    # Each is within all limits but one.
    "nested 2,000 deep": (b'[{"ToSubject":"echo","Value":' + b"[" * 2000 + b"]" * 2000 + b"}]", Effect(reasons=("too_deep",))),
    "1,025 messages": (
        b"[" + b",".join([b'{"ToSubject":"a"}'] * 1025) + b"]",
        Effect(counted={"received": 1026}),
    ),
    "a megabyte of text": (b'[{"ToSubject":"echo","Value":"' + b"x" * 1_048_000 + b'"}]', Effect(counted={"echo": 2})),
    "200 kB of brackets": (b"[" * 200_000, Effect(reasons=("too_deep",))),
    "half a message": (b'[{"ToSubject":', Effect(reasons=("malformed",))),
    "no UTF-8": (b'[{"ToSubject":"\xff"}]', Effect(reasons=("malformed",))),
}


@pytest.fixture(scope="module")
async def server(anyio_backend: Any) -> AsyncIterator[Process]:
    """One server for all cases: it has to survive them all."""
    urls = [f"jrep+{transport}://127.0.0.1:0" for transport in ("tcp", "ws")]
    async with running(urls=urls, limits=LIMITS, **loop_of(anyio_backend)) as process:
        yield process


@pytest.fixture(scope="module")
async def bystander(server: Process) -> AsyncIterator[Bus]:
    """A good connection that is there all the time."""
    async with connect(server.urls[TCP]) as bus:
        yield bus


@pytest.fixture
async def witness(server: Process, bystander: Bus) -> AsyncIterator[Witness]:
    witness = Witness(server, bystander)
    await witness.before()
    yield witness
    await witness.after()


async def converse(server: Process, transport: str, sent: list[bytes]) -> tuple[list[bytes], int | None]:
    """Say all of it; what was heard until the good question was answered, or the code with which the server closed."""
    if transport == "tcp":
        async with await anyio.connect_tcp("127.0.0.1", port_of(server.urls[TCP])) as stream:
            line = Line(stream, frame, await tcp_receiver(stream))
            return await _all(line, sent)
    async with raw_websocket(server.urls[WS], "jrep") as socket:
        line = Line(socket, lambda data: websocket_frame(1, data), lambda: websocket_code(socket))
        return await _all(line, sent)


async def _all(line: Line, sent: list[bytes]) -> tuple[list[bytes], int | None]:
    async with anyio.create_task_group() as group:

        async def send() -> None:
            try:
                await line.send(sent)
            except anyio.BrokenResourceError:
                pass  # it does not read on after the first offence

        group.start_soon(send)
        outcome = await line.heard()
        group.cancel_scope.cancel()
    return outcome


async def check(server: Process, witness: Witness, transport: str, effect: Effect, bad: list[bytes]) -> None:
    sent = [GREETING] * effect.greets + bad + [GOOD] * (effect.closed is None)
    heard, closed = await converse(server, transport, sent)
    assert closed == effect.closed

    async def all_counted() -> bool:
        counted = await witness.counted()
        refused = Counter({name.removeprefix("refused."): n for name, n in counted.items() if name.startswith("refused.")})
        return refused == Counter(effect.reasons) and all(counted[name] >= n for name, n in effect.counted.items())

    await eventually(all_counted)
    complaints = [
        message
        for payload in heard
        for message in json.loads(payload)
        if message["ToSubject"] == "ClientBusErrors" or message.get("CommandType") == "SessionExpired"
    ]
    assert len(complaints) == bool(effect.told)
    if effect.told:
        assert effect.told in complaints[0]["ErrorMessage"]


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("id", EFFECTS)
async def test_a_bad_message_has_its_effect_and_no_other(server: Process, witness: Witness, id: str, transport: str) -> None:
    await check(server, witness, transport, EFFECTS[id], messages(CASES[id]))


@pytest.mark.parametrize(
    ("what", "transport"),
    # A WebSocket closes by itself with 1007 on text that is no UTF-8: test_bad_inputs.py, ws-006.
    [(what, transport) for what in MORE for transport in ("tcp", "ws") if (what, transport) != ("no UTF-8", "ws")],
)
async def test_too_much_or_too_little_has_its_effect(server: Process, witness: Witness, what: str, transport: str) -> None:
    data, effect = MORE[what]
    await check(server, witness, transport, effect, [data])


def test_every_case_of_ours_has_an_effect(anyio_backend: Any) -> None:
    assert set(OURS) == {*EFFECTS, *WEB}
