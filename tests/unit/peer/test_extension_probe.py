"""Who is at the other end: a late answer counts, silence is no answer, and those who ask do not disturb each other."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from polybus import BadRequest, Bus, Disconnected, Limits, Message, Unsupported, connect
from polybus.body import JSON
from polybus.message import Kind
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.plugins.hello import HELLO
from polybus.plugins.registry import find_protocol
from polybus.protocols._protobuf import ANY, pack
from polybus.testing import Faults, pair
from tests.doubles.driven import Driven
from tests.doubles.numbered import Numbered
from tests.refusal import refused
from tests.support import BOUND, eventually
from tests.unit.answering import Gated


class Busy:
    """A bus that says who it is only when it is told to: what came before that waits for `authorize`."""

    def __init__(self, verb: str = "publish") -> None:
        self.bus = Bus(authorize=self.authorize)
        self.bus.handle("one")(self.one)
        self.go_on = anyio.Event()
        self._verb = verb

    async def authorize(self, peer: Any, verb: str, subject: Any) -> bool:
        if verb == self._verb and subject == "first":
            await self.go_on.wait()
        return True

    async def one(self) -> AsyncIterator[int]:
        yield 1


async def read(client: Bus) -> list[int]:
    async with client.stream("one") as items:
        return [item async for item in items]


async def unanswered(client: Bus) -> None:
    with pytest.raises(Unsupported, match="has not answered"):
        await read(client)


@pytest.mark.usefixtures("impatient")
async def test_a_peer_that_answers_late_is_known_as_ours() -> None:
    busy = Busy()
    async with pair(busy.bus) as client:
        await client.publish("first", 1)
        for _ in range(2):
            with pytest.raises(Unsupported, match=r"has not answered for \d s: it may be a bare peer, or busy"):
                await read(client)
        await refused(client.subscribe("a.*"), Unsupported, "has not answered")
        assert client.stats().pending == 0
        busy.go_on.set()
        await eventually(lambda: core_of(client.peers[0]).speaks_extensions)
        assert await read(client) == [1]
        async with client.subscribe("a.*") as heard:
            await busy.bus.publish("a.b", 2)
            assert (await anext(heard)).body == 2
        assert client.stats().late == 0


@pytest.mark.usefixtures("impatient")
async def test_patterns_are_told_to_a_peer_that_answers_late(caplog: pytest.LogCaptureFixture) -> None:
    busy, client, heard = Busy("subscribe"), Bus(), list[Any]()
    for pattern in ("first", "a.*"):
        client.on(pattern)(lambda body: heard.append(body))
    async with pair(busy.bus, client=client):
        await eventually(lambda: "gets no subscription to 'a.*' until it has said that it is a polybus peer" in caplog.text)
        assert "it may be a bare peer, or busy" in caplog.text
        busy.go_on.set()
        await eventually(lambda: {"first", "a.*"} <= set(core_of(busy.bus.peers[0]).patterns or ()))
        await busy.bus.publish("a.b", 2)
        await eventually(lambda: heard == [2])


@pytest.mark.usefixtures("impatient")
async def test_a_peer_that_cannot_be_told_of_a_pattern_does_not_keep_it_from_the_others() -> None:
    client, server, heard = Bus(), Bus(), list[Any]()
    async with pair(Bus(), client=client, faults=Faults(seed=1, drop=1.0)), pair(server, client=client):
        client.on("a.*")(lambda body: heard.append(body))
        await eventually(lambda: core_of(server.peers[0]).patterns)
        await server.publish("a.b", 1)
        await eventually(lambda: heard == [1])
        await refused(client.subscribe("b.*"), Unsupported, "has not answered")


@pytest.mark.usefixtures("impatient")
async def test_a_silent_peer_is_asked_once_at_a_time_and_again_at_the_next_use() -> None:
    async with pair(Busy().bus, faults=Faults(seed=1, drop=1.0)) as client:
        before = client.stats().sent
        for asked in range(1, 41):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(unanswered, client)
            assert client.stats().sent == before + asked
        assert core_of(client.peers[0]).speaks_extensions is None
        assert len(core_of(client.peers[0]).negotiation._late or ()) == 30  # those of which an answer would still be known


async def test_a_bus_that_serves_does_not_wait_for_a_silent_server_where_nobody_has_dialled_in_that_it_could_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polybus._core.peer.negotiation.HELLO_TIMEOUT", 10 * BOUND)
    bus = Bus()
    async with bus.serve("ubre+tcp://127.0.0.1:0"), pair(Bus(), client=bus, faults=Faults(seed=1, drop=1.0)):
        identities = bus._services.running.bus_identities
        assert [*identities.pending] == [*map(core_of, bus.peers)]
        assert not identities.held_out


async def test_who_gives_up_does_not_spoil_the_question_for_others() -> None:
    busy, got = Busy(), list[int]()
    async with pair(busy.bus) as client:
        await client.publish("first", 1)
        sent = client.stats().sent

        async def other() -> None:
            got.extend(await read(client))

        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as first:
                    first.start_soon(read, client)
                    await eventually(lambda: core_of(client.peers[0]).negotiation.probe is not None)
                    group.start_soon(other)
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
            assert client.stats().sent == sent + 1
            busy.go_on.set()
    assert got == [1]


@pytest.mark.parametrize("verb", ["stream", "channel"])
async def test_who_opens_something_while_the_link_is_down_is_told_that_it_does_not_wait(verb: str) -> None:
    async with pair(Busy().bus, reconnect=True) as client:
        peer = client.peers[0]
        assert await peer.extended()
        core_of(peer).link.abort(Closed(1006, "cut"), comes_back=True)
        says = rf"is down \(a {verb} does not wait for it to come back\); the request was never sent"
        await refused(getattr(client, verb)("one"), Disconnected, says)


async def test_all_who_wait_for_the_question_learn_that_the_link_broke() -> None:
    busy, failed = Busy(), list[Exception]()
    async with pair(busy.bus) as client:
        await client.publish("first", 1)

        async def asks() -> None:
            try:
                await read(client)
            except Exception as error:
                failed.append(error)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(asks)
            await anyio.wait_all_tasks_blocked()
            await busy.bus.peers[0].aclose()
    assert [type(error) for error in failed] == [Disconnected] * 3


BARE = ["ubre", "ubre?format=binary", "csb", "jrep", "uprotocol", "uprotocol?format=protobuf"]


class Echo:
    """A bare program of a protocol that answers each request with its body; or, of `frames`, that sends back what it gets."""

    def __init__(self, protocol: str, *, frames: bool = False) -> None:
        name, _, query = protocol.partition("?")
        self._adapter = find_protocol(name, dict(parse_qsl(query)))
        self._frames = frames
        self.heard: list[Any] = []
        """Kinds and subjects."""
        self.answers = anyio.Event()
        """Until this is set, it answers nothing but what it was asked by a test."""
        self.answers.set()

    async def serve(self, stream: SocketStream) -> None:
        reader, session = BufferedByteReceiveStream(stream), Driven(self._adapter.session("server", Limits()))
        session.start(0.0)
        async with stream:
            with suppress(anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await self._write(stream, session.frames_to_send())
                    size = int.from_bytes(await reader.receive_exactly(4), "big")
                    if size >> 24 == 0xFF:
                        return  # the client says goodbye
                    frame = await reader.receive_exactly(size) if size else b""
                    if frame and self._frames:
                        await self._write(stream, [frame])
                    elif frame:
                        await self._received(session, frame)

    async def _received(self, session: Any, frame: bytes) -> None:
        session.receive(frame, 0.0)
        for message in session.events():
            if isinstance(message, Message):
                self.heard.append((message.kind, message.subject))
                if message.kind is Kind.REQUEST:
                    if message.subject == HELLO:
                        await self.answers.wait()
                    answer = Message(Kind.RESPONSE, message.subject, message.id, message.raw, message.format)
                    answer.reply_to = message.reply_to
                    session.send(answer, 0.0)

    @staticmethod
    async def _write(stream: SocketStream, frames: Sequence[bytes]) -> None:
        for frame in frames:
            await stream.send(len(frame).to_bytes(4, "big") + frame)


@asynccontextmanager
async def echoing(echo: Echo, protocol: str, **options: Any) -> AsyncIterator[Bus]:
    name, _, query = protocol.partition("?")
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, echo.serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        url = f"{name}+tcp://127.0.0.1:{port}?{query}".rstrip("?")
        async with connect(url, **options) as client:
            yield client
        group.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", BARE)
async def test_who_answers_everything_with_what_it_was_asked_is_no_polybus(protocol: str) -> None:
    echo = Echo(protocol)
    async with echoing(echo, protocol) as client:
        for _ in range(2):
            with pytest.raises(Unsupported, match="is not a polybus peer"):
                await read(client)
        if protocol.startswith(("ubre", "jrep")):
            async with client.subscribe("news"):  # in the protocol's own words, and asked whether that was refused
                assert await client.peers[0].extended() is False
            await refused(client.subscribe("a.*"), Unsupported, "is not a polybus peer")
        assert await client.request("echo", {"a": 1}) == {"a": 1}
        assert await client.peers[0].extended() is False
        assert client.stats().malformed == 0
    assert {kind for kind, _ in echo.heard} <= {Kind.REQUEST, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE}
    assert {subject for kind, subject in echo.heard if kind is not Kind.REQUEST} <= {"news"}
    assert echo.heard.count((Kind.REQUEST, HELLO)) >= 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("protocol", BARE)
async def test_nor_does_it_become_one_when_it_answers_late(protocol: str) -> None:
    echo = Echo(protocol)
    echo.answers = anyio.Event()
    async with echoing(echo, protocol) as client:
        await unanswered(client)
        echo.answers.set()
        await eventually(lambda: core_of(client.peers[0]).speaks_extensions is False)
        with pytest.raises(Unsupported, match="is not a polybus peer"):
            await read(client)
        assert await client.request("echo", [1]) == [1]


@pytest.mark.parametrize("protocol", ["ubre", "ubre?format=binary", "csb", "uprotocol", "uprotocol?format=protobuf"])
async def test_nor_is_the_mirror_that_sends_back_every_frame(protocol: str) -> None:
    async with echoing(Echo(protocol, frames=True), protocol) as client:
        with pytest.raises(Unsupported, match="is not a polybus peer"):
            await read(client)
        assert core_of(client.peers[0]).speaks_extensions is False


async def test_requests_that_leave_the_queue_give_their_room_back_at_once() -> None:
    bus = Bus(limits=Limits(running=1, waiting=8))
    gated = Gated(bus)
    async with pair(bus) as client:
        await client.peers[0].extended()
        replies = {number: client.request("wait", number) for number in range(9)}
        await eventually(lambda: bus.stats().waiting == 8)
        for number in (3, 8, 1):
            replies.pop(number).cancel()
        await eventually(lambda: bus.stats().waiting == 5)
        replies |= {number: client.request("wait", number) for number in (9, 10, 11)}
        await eventually(lambda: bus.stats().waiting == 8)
        gated.go.set()
        assert [await reply for reply in replies.values()] == [*replies] == gated.begun == [0, 2, 4, 5, 6, 7, 9, 10, 11]
        assert core_of(bus.peers[0]).budget.held == 0


@pytest.mark.parametrize("many", [False, True])
async def test_between_the_hello_and_its_subscriptions_a_peer_misses_nothing(many: bool) -> None:
    bus, client, heard, done = Bus(), Bus(), list[int](), anyio.Event()

    async def publish() -> None:
        number = 0
        while not done.is_set():
            number += 1
            await bus.publish("a.b", number)
            await anyio.lowlevel.checkpoint()

    if many:
        client.on("elsewhere.*")(lambda: None)  # one more subscription, told when the link is up

    async with pair(bus, protocol="uprotocol", client=client), anyio.create_task_group() as group:
        group.start_soon(publish)
        async with client.subscribe("a.*", when_full="drop_newest") as news:
            async for message in news:
                heard.append(message.body)
                if len(heard) == 50:
                    break
        assert bus._pubsub.recipients.gets_all == {}  # from now on it gets what it has subscribed to
        done.set()
    assert heard == list(range(heard[0], heard[0] + 50))


async def test_a_subscription_that_is_refused_counts_as_told() -> None:
    def authorize(peer: Any, verb: str, subject: Any) -> bool:
        return verb != "subscribe" or subject == "b.*"

    bus, client, heard = Bus(authorize=authorize), Bus(), list[Any]()
    for pattern in ("a.*", "b.*"):
        client.on(pattern)(lambda body: heard.append(body))
    async with pair(bus, protocol="uprotocol", client=client):
        await eventually(lambda: bus.peers and core_of(bus.peers[0]).patterns)
        await eventually(lambda: not bus._pubsub.recipients.gets_all)
        await bus.publish("a.b", 1)
        await bus.publish("b.c", 2)
        await eventually(lambda: heard == [2])


@pytest.mark.parametrize(
    ("protocol", "body_format", "body"),
    [("uprotocol", ANY, pack("google.protobuf.Value", b"\xff")), (Numbered(), JSON, b'1,"a":2')],
    ids=["a broken value", "no JSON"],
)
async def test_a_hello_that_cannot_be_read_is_told_so_and_costs_no_link(
    protocol: Any, body_format: Any, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    bus.handle("one")(lambda: 1)
    async with pair(bus, protocol=protocol) as client:
        (peer,) = client.peers
        hello = Message(Kind.REQUEST, HELLO, None, body, body_format, checked=body)
        with pytest.raises(BadRequest, match="invalid hello"):
            await core_of(peer).pass_on(hello, BOUND)
        assert await client.request("one") == 1
        assert client.stats().reconnects == 0
    assert "could not be handled" not in caplog.text
