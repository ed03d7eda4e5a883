"""Numbers for ids and actions, and many clients on one connection."""

import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Context, Handshake, Identity, Kind, Message, Peer, Reply, connect
from polybus.body import JSON
from polybus.errors import Code, Disconnected, Unauthorized
from polybus.events import BusEvent, LinkDown, LinkUp, PeerSlow
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


async def test_each_client_behind_a_broker_is_a_peer_and_gets_its_own_answers() -> None:
    server = Bus()

    @server.handle(7)
    async def seven(body: str, ctx: Context) -> list[Any]:
        assert ctx.peer is not None
        return [ctx.peer.address, body]

    async with behind_a_broker(server) as broker:
        one, two = RawClient(broker), RawClient(broker)
        one.ask(5, 7, "a")
        two.ask(5, 7, "b")  # the same id, from another
        assert (await one.next()).body == [f"client {one.number}", "a"]
        assert (await two.next()).body == [f"client {two.number}", "b"]
        assert [peer.address for peer in server.peers] == [f"client {one.number}", f"client {two.number}"]


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


async def test_a_client_that_goes_fails_its_own_requests_only() -> None:
    async with behind_a_broker(server := Bus()) as broker:
        one, two = RawClient(broker), RawClient(broker)
        events = server.events()
        gone, there = server.peers
        lost, kept = gone.request(7), there.request(7)
        await one.next()
        broker.leave(one.number)
        with pytest.raises(Disconnected) as caught:
            await lost
        assert caught.value.sent
        assert (await event_of(events, LinkDown)).peer is gone
        with pytest.raises(Disconnected) as caught:
            await gone.request(7)
        assert not caught.value.sent
        assert not gone.connected
        two.answer(await two.next(), 1)
        assert await kept == 1


async def test_a_client_that_is_sent_away_is_told_to_the_broker() -> None:
    async with behind_a_broker(server := Bus()) as broker:
        client = RawClient(broker)
        (peer,) = server.peers
        for _ in range(2):
            await peer.aclose("enough")
        assert server.peers == []
        client.ask(1, 7)
        await eventually(lambda: broker.sent_away == [client.number])


async def test_clients_behind_a_broker_are_strangers_and_are_let_in_one_by_one() -> None:
    asked, decide = list[Handshake](), anyio.Event()

    async def authenticate(handshake: Handshake) -> str | None:
        asked.append(handshake)
        await decide.wait()
        return None if handshake.address == "client 100" else f"user of {handshake.address}"

    server = Bus(authenticate=authenticate)

    @server.handle("who")
    async def who(ctx: Context) -> Any:
        return ctx.identity

    async with behind_a_broker(server) as broker:
        bad, good, left = RawClient(broker), RawClient(broker), RawClient(broker)
        events = server.events()
        for client in (bad, good, left):
            client.ask(1, "who")
        broker.leave(left.number)
        await eventually(lambda: len(asked) == 2)
        assert server.peers == []
        decide.set()
        assert (await good.next()).body == "user of client 101"
        await event_of(events, LinkUp)
        await eventually(lambda: broker.sent_away == [bad.number])
        assert bad.got == left.got == []
        assert [peer.identity for peer in server.peers] == ["user of client 101"]


async def test_a_server_behind_a_broker_is_a_server_and_tells_its_clients_nothing_of_itself() -> None:
    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        return subject != "secret"

    server = Bus(authorize=authorize)

    @server.on("news")
    async def on_news(body: Any) -> None: ...

    async with behind_a_broker(server) as broker:
        client = RawClient(broker)
        for subject in ("secret", "public"):
            client.send(Message(Kind.SUBSCRIBE, subject, Theirs(0, 1, 0)))
            assert (await client.next()).kind is Kind.RESPONSE
        await server.publish("secret", 1)
        await server.publish("nobody's", 1)
        await server.publish("public", 2)
        told = await client.next()
        assert (told.kind, told.subject, told.body) == (Kind.PUBLISH, "public", 2)


async def test_when_the_connection_to_the_broker_breaks_the_clients_are_gone_and_it_comes_back() -> None:
    async with behind_a_broker(server := Bus()) as broker:
        client = RawClient(broker)
        (old,) = server.peers
        reply = old.request(7)
        await client.next()
        events = server.events()
        broker.cut()
        with pytest.raises(Disconnected):
            await reply
        assert server.peers == []
        await event_of(events, LinkUp, lambda event: event.again)
        again = RawClient(broker)
        (new,) = server.peers
        asked = new.request(7)
        again.answer(await again.next(), 3)
        assert await asked == 3
        assert not old.connected


async def test_more_clients_than_the_limit_are_sent_away() -> None:
    async with behind_a_broker(server := Bus(limits=Limits(peers=2))) as broker:
        clients = [RawClient(broker) for _ in range(3)]
        await eventually(lambda: broker.sent_away == [clients[2].number])
        assert len(server.peers) == 2


async def test_a_refusal_by_an_application_is_not_taken_for_one_by_the_broker() -> None:
    def authenticate(handshake: Handshake) -> Any:
        raise Unauthorized("not you")

    async with behind_a_broker(server := Bus(authenticate=authenticate)) as broker:
        client = RawClient(broker)
        await eventually(lambda: broker.sent_away == [client.number])
        assert server.stats().links == 1


async def test_an_identity_that_expires_ends_its_peer_and_not_the_connection() -> None:
    def authenticate(handshake: Handshake) -> Identity:
        if handshake.address != "client 100":
            return Identity("stays")
        now = datetime.datetime.now(datetime.UTC)
        return Identity("goes", expires_at=now + datetime.timedelta(seconds=0.5))

    server = Bus(authenticate=authenticate, limits=Limits(close_timeout=0.04))
    async with behind_a_broker(server) as broker:
        events = server.events()
        goes, stays = RawClient(broker), RawClient(broker)
        await eventually(lambda: len(server.peers) == 2)
        reply = next(peer for peer in server.peers if peer.identity == "goes").request(7)
        with pytest.raises(Unauthorized, match="expired"):
            await reply
        assert (await event_of(events, LinkDown)).code == 4401
        await eventually(lambda: broker.sent_away == [goes.number])
        (left,) = server.peers
        kept = left.request(7)
        stays.answer(await stays.next(), "still here")
        assert await kept == "still here"


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
