"""Numbers for ids and actions, and many clients on one connection."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Context, Handshake, Kind, Message, Reply, connect
from polybus.body import JSON
from polybus.errors import Code, Disconnected
from polybus.events import BusEvent, PeerSlow
from polybus.limits import Limits
from polybus.plugins.extensions import core_of
from tests.loops import virtual_asyncio  # noqa: F401  # the fixture `anyio_backend`
from tests.support import BOUND, eventually

from .numbered import Numbered, NumberedCodec, Theirs
from .wires import Broker

CODEC = NumberedCodec(Limits(), False)


class RawClient:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.got: list[Message] = []
        self._came = anyio.Event()
        self.number = broker.enter(self._take)

    def _take(self, frame: bytes) -> None:
        (message,) = CODEC.decode(frame)
        assert isinstance(message, Message)
        self.got.append(message)
        self._came.set()
        self._came = anyio.Event()

    async def next(self) -> Message:
        while not self.got:
            await self._came.wait()
        return self.got.pop(0)

    def send(self, message: Message) -> None:
        self.broker.from_client(self.number, CODEC.encode([message]))

    def ask(self, id: int, subject: int | str, body: Any = None) -> None:
        self.send(Message(Kind.REQUEST, subject, Theirs(0, id, 0), JSON.encode(body)))

    def answer(self, question: Message, body: Any) -> None:
        self.send(Message(Kind.RESPONSE, "", question.id, JSON.encode(body)))


@asynccontextmanager
async def behind_a_broker(server: Bus) -> AsyncIterator[Broker]:
    broker = Broker()
    adapter = Numbered(side="server")
    with anyio.fail_after(BOUND):
        async with connect(broker.for_server(), protocol=adapter, bus=server, backoff=Backoff(initial=0.001)):
            yield broker


async def event_of(events: AsyncIterator[BusEvent], kind: type[BusEvent], fits: Callable[[Any], bool] = bool) -> Any:
    return await anext(event async for event in events if isinstance(event, kind) and fits(event))


async def test_an_answer_from_the_wrong_client_does_not_count() -> None:
    async with behind_a_broker(server := Bus()) as broker:
        one, two = RawClient(broker), RawClient(broker)
        reply: Reply[Any] = server.peers[0].request(7, "well?")
        question = await one.next()
        two.answer(question, "forged")
        assert server.stats().malformed == 1
        assert not reply.done()
        one.answer(question, "mine")
        assert await reply == "mine"


async def test_more_clients_than_the_limit_are_sent_away() -> None:
    async with behind_a_broker(server := Bus(limits=Limits(peers=2))) as broker:
        clients = [RawClient(broker) for _ in range(3)]
        await eventually(lambda: broker.sent_away == [clients[2].number])
        assert len(server.peers) == 2


async def test_what_strangers_say_is_bounded_in_bytes_and_charged() -> None:
    decide = anyio.Event()

    async def authenticate(handshake: Handshake) -> str:
        await decide.wait()
        return handshake.address

    server = Bus(authenticate=authenticate, limits=Limits(queue_bytes=1_600_000))

    @server.handle(7)
    async def seven(body: str) -> int:
        return len(body)

    async with behind_a_broker(server) as broker:
        loud, quiet = RawClient(broker), RawClient(broker)
        for number in range(60):
            loud.ask(number, 7, "x" * 50_000)
        quiet.ask(1, 7, "x" * 500_000)  # one message is always kept
        await anyio.wait_all_tasks_blocked()
        assert 550_000 < server._services.running.buffered < 650_000
        assert server.stats().dropped == 59
        refused = [await loud.next() for _ in range(59)]
        assert {answer.code for answer in refused} == {Code.RESOURCE_EXHAUSTED}
        decide.set()
        assert (await loud.next()).body == 50_000
        assert (await quiet.next()).body == 500_000
        loud.ask(61, 7, "y")
        await loud.next()
        assert server._services.running.buffered == 0


async def test_strangers_that_leave_take_what_they_said_with_them() -> None:
    async with behind_a_broker(server := Bus(authenticate=lambda handshake: anyio.sleep_forever())) as broker:
        for _ in range(3):
            client = RawClient(broker)
            client.ask(1, 7, "x" * 10_000)
            assert server._services.running.buffered > 10_000
            broker.leave(client.number)
            assert server._services.running.buffered == 0


async def test_who_leaves_before_it_is_let_in_lends_its_identity_to_nobody_and_a_broken_connection_takes_all_with_it() -> None:
    gates = list[anyio.Event]()

    async def authenticate(handshake: Handshake) -> str:
        gates.append(gate := anyio.Event())
        identity = f"{len(gates)} at {handshake.address}"
        await gate.wait()
        return identity

    async with behind_a_broker(server := Bus(authenticate=authenticate)) as broker:
        stays, leaves = RawClient(broker), RawClient(broker)
        await anyio.wait_all_tasks_blocked()
        broker.leave(leaves.number)
        broker.next_id = leaves.number
        RawClient(broker)
        await anyio.wait_all_tasks_blocked()
        first, third = "1 at client 100", "3 at client 101"
        for gate, identities in zip(gates, ([first], [first], [first, third]), strict=True):
            gate.set()
            await anyio.wait_all_tasks_blocked()
            assert [peer.identity for peer in server.peers] == identities
        peer = server.peers[0]
        reply = peer.request(7)
        await stays.next()
        broker.cut()
        with pytest.raises(Disconnected) as caught:
            await reply
        assert caught.value.sent and not peer.connected and server.peers == []
        await eventually(lambda: broker.server)
        RawClient(broker)
        await anyio.wait_all_tasks_blocked()
        gates[3].set()
        await eventually(lambda: [peer.identity for peer in server.peers] == ["4 at client 102"])


async def test_authenticate_runs_so_many_times_at_once_and_for_so_long() -> None:
    asked: list[str] = []

    async def authenticate(handshake: Handshake) -> str:
        asked.append(handshake.address)
        if len(asked) <= 2:
            await anyio.sleep_forever()
        return handshake.address

    server = Bus(authenticate=authenticate, limits=Limits(handshakes=2, handshake_timeout=0.5))
    async with behind_a_broker(server) as broker:
        clients = [RawClient(broker) for _ in range(5)]
        await anyio.wait_all_tasks_blocked()
        assert asked == ["client 100", "client 101"]
        await eventually(lambda: len(server.peers) == 3)
        await eventually(lambda: len(broker.sent_away) == 2)
        assert sorted(broker.sent_away) == [client.number for client in clients[:2]]


async def test_what_waits_for_a_client_that_has_gone_never_reaches_the_next_under_its_number() -> None:
    async with behind_a_broker(server := Bus()) as broker:
        old = RawClient(broker)
        (gone,) = server.peers
        broker.stop_reading()
        await server.publish("secret", 1, to=gone)
        asked = gone.request(7, "secret")
        broker.leave(old.number)
        broker.next_id = old.number
        new = RawClient(broker)
        assert new.number == old.number
        with pytest.raises(Disconnected):
            await asked
        assert server.stats().queued == 0
        broker.go_on_reading()
        with pytest.raises(Disconnected):
            server.publish_nowait("secret", 3, to=gone)
        for late in (server.publish("secret", 2, to=gone), gone.request(7, "secret"), gone.notify(7, "secret")):
            with pytest.raises(Disconnected):
                await late
        core_of(gone).link.answer(Message(Kind.UNSUBSCRIBE, "secret"), core_of(gone))
        (peer,) = server.peers
        await peer.publish("open", 4)
        assert (await new.next()).subject == "open"


async def test_a_greedy_client_pays_for_a_full_outbox_and_the_others_get_everything() -> None:
    async with behind_a_broker(server := Bus(limits=Limits(outbox=20))) as broker:
        greedy, modest = RawClient(broker), RawClient(broker)
        one, other = server.peers
        events = server.events()
        broker.stop_reading()
        for number in range(50):
            await server.publish("news", number, to=one)
        for number in range(5):
            await server.publish("news", number, to=other)
        for number in range(50, 60):
            await server.publish("news", number, to=one)
        assert (await event_of(events, PeerSlow)).peer is one
        broker.go_on_reading()
        assert [(await modest.next()).body for _ in range(5)] == list(range(5))
        assert [(await greedy.next()).body for _ in range(15)] == list(range(45, 60))


async def test_a_client_whose_answers_fill_the_outbox_is_sent_away_and_not_the_connection() -> None:
    async with behind_a_broker(server := Bus(limits=Limits(outbox=20))) as broker:
        greedy, modest = RawClient(broker), RawClient(broker)
        await eventually(lambda: len(server.peers) == 2)
        broker.stop_reading()
        for number in range(30):
            greedy.ask(number, 99)  # nobody handles it: answered at once
            if number == 10:
                modest.ask(1, 99)
        await eventually(lambda: len(server.peers) == 1)
        broker.go_on_reading()
        assert (await modest.next()).code is Code.UNIMPLEMENTED
        await eventually(lambda: broker.sent_away == [greedy.number])
        assert greedy.got == []
        assert server.stats().links == 1


async def test_places_go_round_among_clients_whose_requests_wait() -> None:
    server, order, go = Bus(limits=Limits(running=4, total_running=4)), list[str](), anyio.Event()

    @server.handle(7)
    async def seven(ctx: Context) -> None:
        assert ctx.peer is not None
        await go.wait()
        order.append(ctx.peer.address)

    async with behind_a_broker(server) as broker:
        first, *others = [RawClient(broker) for _ in range(4)]
        for number in range(40):
            first.ask(number, 7)
        for client in others:
            client.ask(1, 7)
        await anyio.wait_all_tasks_blocked()
        go.set()
        await eventually(lambda: len(order) == 43)
        assert set(order[:12]) == {f"client {client.number}" for client in [first, *others]}
        assert server.stats().running == server.stats().waiting == 0
        assert server._services.running.backlogged == {}
