"""Buses over message ports: greetings, refusals, bare peers, what holds a sender back, and what a silent end costs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, ConnectFailed, Context, Disconnected, Identity, Limits, Listener, Unauthorized, connect
from polybus.errors import LocalProtocolError, TooLarge
from polybus.events import LinkDown
from polybus.plugins import Handshake
from polybus.testing.contract.transport import FrameReceiver
from polybus.transports.postmessage import InMemoryPort, MessageChannel, PortInfo, PortTransport
from polybus.transports.postmessage.connection import PortConnection
from tests.loops import both_backends  # noqa: F401
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.transports.postmessage.table import settle


def service(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("double")
    async def double(number: int) -> int:
        return 2 * number

    @bus.handle("who")
    async def who(ctx: Context) -> Any:
        return ctx.identity

    return bus


def ports(**info: Any) -> tuple[InMemoryPort, InMemoryPort]:
    channel = MessageChannel()
    if info:
        channel.port1.info = channel.port2.info = PortInfo(**info)
    return channel.port1, channel.port2


def served(port: Any, bus: Bus | None = None) -> Any:
    """A bus serves over a port, or over what gives ports."""
    return (bus or service()).serve(PortTransport(port), protocol="ubre")


def joined(port: Any, **options: Any) -> Any:
    """A bus connects over a port, or over what gives ports."""
    return connect(PortTransport(port), protocol="ubre", **options)


class Bare:
    """The other end as a page without polybus would have it: it reads and writes what passes."""

    def __init__(self, port: InMemoryPort, answer: Callable[[str], Any] | None = None) -> None:
        self.port = port
        self.heard: list[Any] = []
        self._answer = answer
        port.on_message(self._take)

    def _take(self, data: Any) -> None:
        self.heard.append(data)
        if self._answer is not None and (answer := self._answer(data)) is not None:
            self.port.post(answer)


@asynccontextmanager
async def greeted(bus: Bus, answer: Callable[[str], Any] | None = None) -> AsyncIterator[tuple[Bare, Listener]]:
    """A bare end that has said hello to a bus, and where that serves."""
    here, there = ports()
    async with served(there, bus) as listener:
        bare = Bare(here, answer)
        here.post('\0hi {"v":1}')
        await eventually(lambda: listener.peers)
        yield bare, listener


def failing(port: InMemoryPort, taken: int) -> InMemoryPort:
    """A port that fails when it has taken so many messages, and when it is closed."""
    left, post, close = iter(range(taken)), port.post, port.close

    def counted(data: Any) -> None:
        if next(left, None) is None:
            raise RuntimeError("it was detached")
        post(data)

    def closes() -> None:
        close()
        raise RuntimeError("it was detached")

    port.post, port.close = counted, closes  # type: ignore[method-assign,assignment]
    return port


class SynchronousPort:
    """A port that delivers within `post`."""

    def __init__(self, other: SynchronousPort | None = None) -> None:
        self.info = PortInfo()
        self.other = other
        if other is not None:
            other.other = self
        self._callback: Callable[[Any], None] | None = None
        self._kept: list[Any] = []

    def post(self, data: Any) -> None:
        assert self.other is not None
        self.other.deliver(data)

    def deliver(self, data: Any) -> None:
        if self._callback is None:
            self._kept.append(data)
        else:
            self._callback(data)

    def on_message(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        for data in self._kept:
            callback(data)

    def close(self) -> None:
        self._callback = lambda data: None


def ubre(data: str) -> str | None:
    """A bare peer that doubles."""
    asked = json.loads(data)
    return json.dumps({"success": asked["id"], "body": 2 * asked["body"]}) if "request" in asked else None


async def test_two_that_connect_are_joined() -> None:
    async def run(port: InMemoryPort, number: int) -> None:
        async with service() as bus, joined(port, bus=bus):
            assert await bus.peers[0].request("double", number) == 2 * number

    async with anyio.create_task_group() as group:
        for number, port in enumerate(ports()):
            group.start_soon(run, port, number)


async def test_the_headers_of_connect_reach_authenticate_over_the_port() -> None:
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> Identity | None:
        seen.append(handshake)
        return Identity("ann") if handshake.headers.get("authorization") == "Bearer secret" else None

    server = service(authenticate=authenticate)
    here, there = ports(origin="https://frame.example", epoch=3, address="https://frame.example#3")
    async with served(there, server):
        async with joined(here, headers={"Authorization": "Bearer secret"}) as bus:
            assert await bus.request("who") == "ann"
    (shown,) = seen
    assert (shown.transport, shown.origin, shown.params) == ("port", "https://frame.example", {"epoch": "3"})
    here, there = ports()
    async with served(there, server):
        await refused(joined(here), Unauthorized)


async def test_two_that_speak_different_protocols_say_so() -> None:
    here, there = ports()
    async with service().serve(PortTransport(there), protocol="csb"):
        await refused(joined(here), ConnectFailed, match="this side uses csb, not ubre")
    for first, why in (('\0hi {"v":2}', "unsupported greeting"), ("\0ping", "'ping' before a greeting")):
        here, there = ports()
        async with served(there):
            heard = Bare(here).heard
            here.post(first)
            await eventually(heard.copy)
            assert heard[0].startswith(f"\0bye 1002 {why}")


async def test_a_bare_peer_is_asked_and_served_without_a_greeting() -> None:
    here, there = ports()
    asked = Bare(there, ubre)
    async with connect(PortTransport(here, bare=True), protocol="ubre") as bus:
        assert await bus.request("double", 4) == 8
    here, there = ports()
    async with served(there) as listener:
        answered = Bare(here)
        here.post('{"request": "double", "id": 1, "body": 4}')
        await eventually(lambda: answered.heard)
        assert len(listener.peers) == 1
    assert json.loads(answered.heard[0]) == {"success": 1, "body": 8}
    assert not any("\0" in data for data in asked.heard + answered.heard)


async def test_a_port_is_used_once() -> None:
    here, there = ports()
    transport = PortTransport(here)
    async with served(there), connect(transport, protocol="ubre"):
        await refused(connect(transport, protocol="ubre"), LocalProtocolError, match="already been used")


async def test_whoever_answers_pings_stays_and_who_has_gone_without_a_word_is_found_by_silence() -> None:
    """A browser's port has no event of its end."""
    bus = service(limits=Limits(ping_interval=0.02, ping_timeout=0.02))
    async with greeted(bus, lambda data: "\0pong" if data == "\0ping" else None) as (bare, listener):
        await eventually(lambda: bare.heard.count("\0ping") >= 3)
        assert listener.peers
        bare.port.close()
        await eventually(lambda: not listener.peers)


async def test_a_sender_waits_for_acknowledgements() -> None:
    here, there = ports()
    heard, sent = Bare(there).heard, 0
    client = Bus(limits=Limits(outbox=4, outbox_bytes=4 * 1024 * 1024))
    there.post('\0hi {"v":1}')

    async def publish() -> None:
        nonlocal sent
        while True:
            await client.publish("news", "x" * 10_000, timeout=60)
            sent += 1

    def frames() -> int:
        return sum(not data.startswith("\0") for data in heard)

    async with joined(here, bus=client), anyio.create_task_group() as group:
        group.start_soon(publish)
        await eventually(lambda: frames() >= 26)
        await settle()
        assert (count := frames()) <= 28, "256 KiB are under way, and no more"
        assert sent <= count + 5
        there.post(f"\0ack {count}")
        await eventually(lambda: frames() > count)
        group.cancel_scope.cancel()


async def test_a_receiver_acknowledges_what_it_has_taken() -> None:
    async with greeted(service()) as (bare, _):
        for number in range(130):
            bare.port.post(json.dumps({"request": "double", "id": number, "body": number}))
        await eventually(lambda: len(bare.heard) > 130)
        acks = [data for data in bare.heard if data.startswith("\0ack")]
        assert acks[:2] == ["\0ack 64", "\0ack 128"]
        await eventually(lambda: "\0ack 130" in bare.heard)  # the rest, once a second


async def test_text_that_begins_with_the_mark_passes() -> None:
    """No protocol of ours writes such a frame; a transport carries any."""
    here, there = ports()
    bare = Bare(there)
    async with Bus() as bus:
        runtime: Any = bus._services.running
        connection = PortConnection(here, runtime, frozenset({"text"}), "text", lambda said: None)
        connection.listen()
        connection.settled()
        connection.start(receiver := FrameReceiver(connection))
        for frame in (b"\0bye 1000", b"\0\0", b"plain", "\ud800".encode("utf-8", "surrogatepass")):
            connection.send(frame)
        await eventually(lambda: len(bare.heard) == 4)
        assert bare.heard == ["\0\0bye 1000", "\0\0\0", "plain", "\ud800"]
        for data in bare.heard:
            there.post(data)
        await eventually(lambda: len(receiver.frames) == 4)
        assert receiver.frames == [b"\0bye 1000", b"\0\0", b"plain", b"\xed\xa0\x80"]
        with pytest.raises(TooLarge):
            connection.send(b"x" * (connection.max_frame + 1))
        connection.close()


NONSENSE = [
    "\0", "\0hi {", "\0hi []", '\0hi {"v": 2}', '\0hi {"protocol": 7}', '\0hi {"headers": []}', '\0hi {"headers": {"a": 1}}',
    "\0hi " + "x" * 70_000, "\0hi \ud800", '\0hi {"headers": {"a": "\ud800"}, "v": 3}',
    "\0ack 1", "\0ack -1", "\0ack x", "\0ack " + "9" * 30, "\0ping", "\0what",
    ["an object"], 7, None, b"binary where text is spoken",
]  # fmt: skip


@pytest.mark.parametrize("said_hello", [False, True])
@pytest.mark.parametrize("data", NONSENSE, ids=lambda data: repr(data)[:24])
async def test_nonsense_ends_that_connection_and_no_other(data: Any, said_hello: bool) -> None:
    here, there = ports()
    good, better = ports()
    server = service()
    async with served(there, server) as listener, served(better, server), joined(good) as bus:
        bare = Bare(here)
        if said_hello:
            here.post('\0hi {"v":1}')
            await eventually(lambda: listener.peers)
        here.post(data)
        harmless = said_hello and data == "\0ping"
        if harmless:
            await eventually(lambda: "\0pong" in bare.heard)
        else:
            await anyio.wait_all_tasks_blocked()
            here.post('{"request": "double", "id": 1, "body": 4}')
            await anyio.wait_all_tasks_blocked()
            assert not any(isinstance(said, str) and "success" in said for said in bare.heard)
            await eventually(lambda: not listener.peers)
        assert await bus.request("double", 1) == 2


@pytest.mark.parametrize("taken", range(3), ids="it fails after {}".format)
async def test_a_port_that_fails_costs_a_bus_that_serves_nothing_else(taken: int, caplog: pytest.LogCaptureFixture) -> None:
    here, there = ports()
    good, better = ports()
    server = service()
    async with served(failing(there, taken), server), served(better, server), joined(good) as bus:
        here.post('\0hi {"v":1}')
        for number in range(4):
            here.post(json.dumps({"request": "double", "id": number, "body": 4}))
        await eventually(lambda: there.closed and len(server.peers) == 1)
        assert await bus.request("double", 1) == 2
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_a_port_answers_within_its_post_is_counted() -> None:
    here = SynchronousPort()
    async with served(SynchronousPort(here)), joined(here) as bus:
        for number in range(200):
            assert await bus.request("double", number) == 2 * number


async def test_frames_that_a_port_delivers_within_an_acknowledgement_come_after_those_that_are_acknowledged() -> None:
    host: Any = SimpleNamespace(limits=Limits(), time=lambda: 0.0, call_soon=lambda function: function())
    numbers = iter(range(3000))

    class Writer(FrameReceiver):
        def resume_writing(self) -> None:
            super().resume_writing()
            write()

    here = SynchronousPort()
    ends = [
        PortConnection(port, host, frozenset({"text"}), "text", lambda said: None) for port in (here, SynchronousPort(here))
    ]
    sender, receiver = ends
    writer, reader = Writer(sender), FrameReceiver(receiver)
    for end, side in ((sender, writer), (receiver, reader)):
        end.listen()
        end.start(side)
    for end in ends:
        end.greet("ubre", {})
        end.settled()

    def write() -> None:
        while not writer.paused and (number := next(numbers, None)) is not None:
            sender.send(b"%d" % number)

    receiver.pause_reading()
    write()
    assert writer.paused and not reader.frames
    receiver.resume_reading()
    assert reader.frames == [b"%d" % number for number in range(3000)]


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


PORT_ERRORS = [
    pytest.param(ValueError("no listeners"), "the port failed: ValueError: no listeners$", id="words"),
    pytest.param(Wordless(), "the port failed: Wordless$", id="an error without words"),
    pytest.param(ValueError("x" * 1_000_000), r"the port failed: ValueError: x{100,300}$", id="a megabyte of words"),
]


@pytest.mark.parametrize("fails", ["on_message", "on_close", "post"])
@pytest.mark.parametrize(("error", "words"), PORT_ERRORS)
async def test_a_port_that_cannot_be_listened_to_or_takes_no_greeting_is_closed_and_the_error_says_why(
    error: Exception, words: str, fails: str
) -> None:
    one, bare, other = (refusing(fails, error) for _ in range(3))
    entering: list[Any] = [joined(one)]
    if fails != "post":  # which they do later, or not at all
        entering += [connect(PortTransport(bare, bare=True), protocol="ubre"), served(other)]
    for each in entering:
        await refused(each, ConnectFailed, match=words)
    assert [port.closed for port in (one, bare, other)][: len(entering)] == [True] * len(entering)


def refusing(name: str, error: Exception) -> InMemoryPort:
    """A port one of whose methods fails."""
    port, _ = ports()

    def fail(*given: Any) -> Any:
        raise error

    setattr(port, name, fail)
    return port


@pytest.mark.parametrize("name", ["post", "on_message", "close"])
def test_a_port_that_would_have_to_be_waited_for_is_none(name: str) -> None:
    async def later(*given: Any) -> None:
        pass

    port, _ = ports()
    setattr(port, name, later)
    with pytest.raises(TypeError, match=rf"InMemoryPort\.{name} is an async function"):
        PortTransport(port)


async def test_half_a_pair_of_surrogates_in_a_goodbye_can_be_printed() -> None:
    here, there = ports()
    Bare(there, lambda said: "\0bye 1008 no \ud800" if said.startswith("\0hi") else None)
    with pytest.raises(ConnectFailed) as failed:
        async with joined(here):
            pass
    assert "no ?" in str(failed.value).encode().decode()


async def test_a_frame_above_the_limit_ends_the_connection() -> None:
    async with greeted(service(limits=Limits(message=1000))) as (bare, listener):
        bare.port.post("x" * 1001)
        await eventually(lambda: not listener.peers)
        assert bare.heard[-1] == "\0bye 1009 a frame of 1001 bytes, the limit is 1000"


async def test_a_link_comes_back_by_the_next_port_with_its_subscriptions() -> None:
    server = service()
    waiting: list[InMemoryPort] = []

    def port() -> InMemoryPort:
        here, there = ports()
        waiting.append(there)
        return here

    class Doors:
        def __aiter__(self) -> Doors:
            return self

        async def __anext__(self) -> InMemoryPort:
            await eventually(lambda: waiting)
            return waiting.pop()

    backoff = Backoff(initial=0.001, maximum=0.01)
    async with served(Doors(), server) as listener, joined(port, backoff=backoff) as bus, bus.subscribe("news.*") as news:
        for number in range(3):
            assert await bus.request("double", number) == 2 * number
            await server.publish("news.today", number)
            assert (await anext(news)).body == number
            await listener.peers[0].aclose("again")
            await eventually(lambda: bus.stats().reconnects == number + 1)  # noqa: B023  # awaited here


async def test_a_page_that_goes_fails_what_is_pending_and_the_next_page_answers() -> None:
    pages: list[Bare] = []

    def answer(said: str) -> str | None:
        if said.startswith("\0hi"):
            return said
        return ubre(said) if "double" in said else None

    def load() -> InMemoryPort:
        here, there = ports()
        epoch = len(pages) + 1
        here.info = PortInfo(origin="https://frame.example", epoch=epoch, address=f"https://frame.example#{epoch}")
        pages.append(Bare(there, answer))
        return here

    async with joined(load, backoff=Backoff(initial=0.001, maximum=0.01)) as bus:
        events = bus.events()
        pending = bus.request("nothing", 1)
        await eventually(lambda: len(pages[0].heard) == 2)
        pages[0].port.post("\0bye 1001 the page is gone")
        with pytest.raises(Disconnected) as caught:
            await pending
        assert (caught.value.sent, caught.value.reason) == (True, "the page is gone")
        assert (await next_event(events, LinkDown)).code == 1001
        assert await bus.request("double", 2) == 4
        assert (bus.peers[0].address, bus.stats().reconnects) == ("https://frame.example#2", 1)


def test_what_is_no_port_is_refused() -> None:
    wrong: Any = "port"
    with pytest.raises(TypeError, match="takes a message port"):
        PortTransport(wrong)


async def test_an_async_generator_whose_port_comes_late_is_asked_on_where_it_was() -> None:
    """Cancelled when time is up it would be over, and the link could never come back."""
    gate, waits = anyio.Event(), 0

    async def late() -> AsyncGenerator[InMemoryPort, None]:
        nonlocal waits
        waits += 1
        await gate.wait()
        for number in (1, 2):
            here, there = ports(address=f"peer {number}")
            Bare(there, ubre)
            yield here

    limits = Limits(connect_timeout=0.01)
    with anyio.fail_after(5):
        async with aclosing(late()) as source, Bus(limits=limits) as bus:
            transport = PortTransport(source, bare=True)
            await refused(connect(transport, protocol="ubre", bus=bus), ConnectFailed, match="no port arrived")
            gate.set()
            async with connect(transport, protocol="ubre", bus=bus, wait=5, backoff=Backoff(initial=0.001)):
                assert await bus.request("double", 4) == 8
    assert waits == 1


async def test_two_links_over_one_source_get_a_port_each() -> None:
    bare: list[Bare] = []

    async def pages() -> AsyncGenerator[InMemoryPort, None]:
        for _ in range(2):
            here, there = ports()
            bare.append(Bare(there, ubre))
            yield here

    with anyio.fail_after(5):
        async with aclosing(pages()) as source, anyio.create_task_group() as group:
            transport = PortTransport(source, bare=True)

            async def double() -> None:
                async with connect(transport, protocol="ubre", bus=Bus()) as bus:
                    assert await bus.request("double", 4) == 8

            group.start_soon(double)
            group.start_soon(double)
    assert [len(one.heard) for one in bare] == [1, 1]


async def test_nobody_waits_where_there_will_be_no_other_port() -> None:
    async def none() -> AsyncIterator[InMemoryPort]:
        for port in list[InMemoryPort]():
            yield port

    here, _ = ports()
    with anyio.fail_after(5):
        await refused(joined(none(), wait=60), ConnectFailed, match="there are no more ports")
        silent = joined(here, wait=60, limits=Limits(handshake_timeout=0.01))
        await refused(silent, ConnectFailed, match="did not greet.*bare=True")


async def test_ports_that_nobody_uses_give_way_to_others() -> None:
    """A bus that serves frames gets one with every page, and a browser does not tell when a page has gone."""
    here, there = zip(*(ports(address=f"page {number}") for number in range(6)), strict=True)
    come, more = anyio.create_memory_object_stream[InMemoryPort](6)

    async def pages() -> AsyncGenerator[InMemoryPort, None]:
        async for port in more:
            yield port

    bus = service(limits=Limits(handshakes=3))
    async with come, more, aclosing(pages()) as source, served(source, bus) as listener:
        first, late = Bare(here[0]), Bare(here[3])
        first.port.post('{"request": "double", "id": 1, "body": 4}')
        come.send_nowait(there[0])
        await eventually(lambda: first.heard)
        for port in there[1:]:
            come.send_nowait(port)
        await eventually(lambda: there[2].closed)
        assert [port.closed for port in there] == [False, True, True, False, False, False]
        async with joined(here[5]) as client:
            assert await client.request("double", 2) == 4
        late.port.post('{"request": "double", "id": 1, "body": 5}')  # it speaks when its user does, however late that is
        await eventually(lambda: late.heard)
        assert len(listener.peers) >= 2


async def test_a_bus_that_serves_asks_again_where_a_source_or_its_port_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ports()
    deaf = refusing("on_message", ValueError("no listeners"))
    given: list[Any] = [there, deaf, None, ValueError("of the application")]

    def port() -> Any:
        if not given:
            raise ConnectFailed("port://port", "no more")
        following = given.pop()
        if isinstance(following, Exception):
            raise following
        return following

    monkeypatch.setattr("polybus.transports.postmessage._transport._PAUSE", 0.001)
    async with served(port), joined(here) as bus:
        assert await bus.request("double", 2) == 4
    assert deaf.closed
    assert caplog.text.count("it will be asked again") == 2
    assert "ValueError: of the application" in caplog.text
    assert "gave NoneType, which is not a message port" in caplog.text
