"""WebSockets of an ASGI application that is called by hand: whom it rejects and how, and ends that few servers report."""

import logging
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from polybus.errors import Unauthorized
from polybus.plugins import Admission, Closed, Handshake, Identity, ListenOptions
from polybus.transports.asgi import AsgiWebSocket
from polybus.transports.asgi._transport import AsgiTransport
from tests.loops import virtual_time  # noqa: F401  # the fixture `anyio_backend`
from tests.unit.transports.support import Gate, Receiver, running

SCOPE: dict[str, Any] = {
    "type": "websocket",
    "scheme": "ws",
    "path": "/bus",
    "headers": [(b"Host", b"localhost")],
    "server": ("127.0.0.1", 80),
    "client": ("127.0.0.1", 5),
}
TEXT = "x" * 120
HTTP: dict[str, Any] = {"extensions": {"websocket.http.response": {}}}
FULL: dict[str, Any] = {"closed": True}
ELSEWHERE: dict[str, Any] = {"server": ("192.0.2.1", 80)}
FOREIGN: dict[str, Any] = {"headers": [(b"Host", b"localhost"), (b"Origin", b"http://evil.example")]}


def options_of(host: Any, **options: Any) -> Any:
    text: Any = {"reads": frozenset({"text"}), "writes": "text"}
    return ListenOptions(host=host, gate=Gate(host), protocol="ubre", subprotocol="ubre.polybus", **text, **options)


def answers(status: int, text: str, *more: tuple[bytes, bytes]) -> list[dict[str, Any]]:
    headers = [(b"content-length", b"%d" % (len(text) + 1)), (b"content-type", b"text/plain; charset=utf-8"), *more]
    return [
        {"type": "websocket.http.response.start", "status": status, "headers": headers},
        {"type": "websocket.http.response.body", "body": f"{text}\n".encode()},
    ]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"subprotocols": ["ubre.polybus", "polybus.closes"]}, [
            {"type": "websocket.accept", "subprotocol": "polybus.closes", "headers": []},
            {"type": "websocket.close", "code": 4401, "reason": TEXT},
        ]),
        ({"subprotocols": ["ubre.polybus"]}, [{"type": "websocket.close", "code": 1008, "reason": TEXT[:100]}]),
        ({"extensions": None, "subprotocols": None}, [{"type": "websocket.close", "code": 1008, "reason": TEXT[:100]}]),
        (HTTP, answers(401, TEXT, (b"www-authenticate", b"Bearer"))),
        (HTTP | FOREIGN, answers(403, "Origin 'http://evil.example' may not connect here: it is not in the server's origins=")),
        (HTTP | ELSEWHERE, answers(403, "this server accepts no clients: see its log")),
        (HTTP | FULL, answers(503, "this server accepts no clients: its bus has ended", (b"retry-after", b"1"))),
    ],
    ids=["as a close", "without a close", "by an old server", "with a status", "another site", "another machine", "at the end"],
)  # fmt: skip
async def test_a_rejected_client_gets_the_reason_as_far_as_its_server_can_tell_it(
    anyio_backend: Any, changed: dict[str, Any], expected: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    sent, told, received = list[Any](), list[Any](), 0

    async def receive() -> MutableMapping[str, Any]:
        nonlocal received
        received += 1
        return {"type": "websocket.connect" if received % 3 == 1 else "websocket.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async with running(anyio_backend) as host:
        options = options_of(host, private=True, turned_away=lambda *said: told.append(said))
        options.gate.refusal = Unauthorized(TEXT)
        endpoint = AsgiWebSocket("/bus")
        await endpoint.listen(options)
        if "closed" in changed:
            await endpoint.aclose()
        for _ in range(2):
            await endpoint({**SCOPE, **changed}, receive, send)
        assert sent == expected * 2
        assert received == 2 * 3  # a server reports an end twice
        assert options.gate.gone == options.gate.knocks == (0 if "closed" in changed else 2)
    assert [(address, about) for address, _, about in told] == [("127.0.0.1:5", "origin")] * (2 * ("headers" in changed))
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == ("server" in changed)  # once
    assert all("pass Bus(authenticate=...)" in error for error in errors)


async def test_a_rejected_client_whose_server_reports_no_end_is_waited_for_no_longer_than_a_second() -> None:
    connected = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal connected
        if connected:
            await anyio.sleep_forever()
        connected = True
        return {"type": "websocket.connect"}

    async def send(message: MutableMapping[str, Any]) -> None: ...

    began = anyio.current_time()
    await AsgiWebSocket("/bus")(SCOPE, receive, send)
    assert anyio.current_time() - began == pytest.approx(1.0)


@pytest.mark.parametrize("why", ["the bus has ended", "the link could not be made"])
async def test_a_connection_that_is_taken_over_for_nobody_is_cut(anyio_backend: Any, why: str) -> None:
    done: list[str] = []
    connection: Any = SimpleNamespace(abort=lambda: done.append("cut"), serve=lambda: done.append("served"))

    def fail(*of: Any) -> None:
        raise LookupError(why)

    async with running(anyio_backend) as host:
        options = options_of(host)
        endpoint = AsgiWebSocket("/bus")
        admission = Admission(Identity("ann"), Handshake(protocol="ubre", transport="ws"))
        if why == "the bus has ended":
            await endpoint._open(options, connection, "127.0.0.1:5", admission)
            assert (done, options.gate.gone) == (["cut"], 1)
        else:
            await endpoint.listen(options)
            options.gate.opened = fail
            with pytest.raises(LookupError):
                await endpoint._open(options, connection, "127.0.0.1:5", admission)
            assert (done, options.gate.gone) == (["served", "cut"], 0)


_LOST = Closed(1006, "the server lost the connection: OSError('no more')")
_SILENT = Closed(1006, "the peer closed the connection without a reason")


@pytest.mark.parametrize(("code", "end"), [(None, _LOST), (4000, Closed(4000, "enough")), (1005, _SILENT), (1006, _SILENT)])
async def test_binary_frames_go_out_as_such_and_an_end_raised_by_the_server_is_that_of_either_side(
    anyio_backend: Any, code: int | None, end: Closed
) -> None:
    sent, gone = list[Any](), anyio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await gone.wait()
        if code in (1005, 1006):  # uvicorn, hypercorn
            return {"type": "websocket.disconnect", "code": code}
        raise OSError("no more")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async with running(anyio_backend) as host, anyio.create_task_group() as group:
        transport = AsgiTransport("ws", "a", host, send, None, reads=frozenset({"binary"}), writes="binary")
        receiver = Receiver(transport)
        transport.start(receiver)
        group.start_soon(transport.run, receive)
        transport.send(b"\x00\xff")
        assert transport.write_backlog() == 2
        if code == 4000:
            transport.close(4000, "enough")
        await anyio.wait_all_tasks_blocked()
        gone.set()
        assert await receiver.end() == end
        assert sent[0] == {"type": "websocket.send", "bytes": b"\x00\xff"}
        assert transport.write_backlog() == 0
