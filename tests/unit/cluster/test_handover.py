"""Clients of a node that drains, which come back to another one, in virtual time: they hear everything once."""

import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import pytest
from attrs import define, field

from polybus import Backoff, Bus, Cluster, Handshake, Identity, Limits, Message, Peer, RequestError, connect
from polybus._core.bus.bus import parts_of
from polybus.cluster.backbone import Backbone
from polybus.cluster.client_handover import ClientHandover
from polybus.events import PeerSlow
from polybus.plugins import Closed, DialOptions, Transport
from polybus.plugins.extensions import core_of
from polybus.plugins.registry import resolve_url
from polybus.testing import NatsEngine, cluster
from tests.loops import virtual_asyncio  # noqa: F401
from tests.support import eventually, next_event
from tests.unit.answering import publish_each

SOON = Backoff(initial=0.02, maximum=0.1)


def handover_of(bus: Bus) -> ClientHandover:
    found = parts_of(bus).links.resumption
    assert isinstance(found, ClientHandover)
    return found


def name_of(bus: Bus) -> str:
    found = parts_of(bus).links.mesh
    assert isinstance(found, Backbone)
    return found.own


@define(eq=False)
class Roaming:
    """A connector to whichever of several servers lets in, once it may."""

    urls: list[str]
    may: anyio.Event = field(factory=anyio.Event)
    reconnects: bool = True
    attempts: int = 0

    def __attrs_post_init__(self) -> None:
        self.may.set()

    @property
    def url(self) -> str:
        return self.urls[0].partition("+")[2]

    async def connect(self, options: DialOptions) -> Transport:
        self.attempts += 1
        await self.may.wait()
        _, transport, address = resolve_url(self.urls[0])
        connection: Transport = await transport.connector(address).connect(options)
        return connection


@define(eq=False)
class Heard:
    bus: Bus
    servers: list[str]
    roaming: Roaming
    got: dict[str, list[int]] = field(factory=dict)

    async def take(self, message: Message) -> None:
        self.got.setdefault(str(message.subject), []).append(message.body)

    async def known(self) -> None:
        """Wait until its node has read all that it has said."""
        async with self.bus.subscribe("barrier"):
            pass

    async def comes_back(self, to: int = 1) -> None:
        reconnects = self.bus.stats().reconnects
        self.roaming.urls = [self.servers[to]]
        self.roaming.may.set()
        await eventually(lambda: self.bus.stats().reconnects > reconnects)
        await self.known()

    @property
    def token(self) -> Any:
        [peer] = parts_of(self.bus).links.peers
        return peer.negotiation


@define(eq=False)
class World:
    stack: AsyncExitStack
    nodes: list[Bus]
    urls: list[str]
    published: dict[str, int] = field(factory=dict)

    async def client(self, at: int, pattern: str = "news.*", **options: Any) -> Heard:
        heard = Heard(Bus(), self.urls, Roaming([self.urls[at]]))
        protocol = self.urls[at].partition("+")[0]
        heard.bus.on(pattern, queue=100_000)(heard.take)
        connecting = connect(heard.roaming, bus=heard.bus, protocol=protocol, backoff=SOON, **options)
        await self.stack.enter_async_context(connecting)
        await heard.known()
        return heard

    async def publish(self, *by: int, times: int = 1, subject: str = "") -> None:
        for node in by:
            to = subject or f"news.{node}"
            for _ in range(times):
                number = self.published.get(to, 0)
                self.published[to] = number + 1
                await self.nodes[node].publish(to, number)

    def at_node(self, node: int) -> Peer:
        [peer] = [peer for peer in self.nodes[node].peers if not core_of(peer).link.upstream]
        return peer

    async def all_heard(self, *clients: Heard) -> None:
        """Each has heard all of each publisher once, in order."""
        expected = {subject: list(range(count)) for subject, count in self.published.items()}
        for client in clients:
            await eventually(lambda: client.got == expected)  # noqa: B023

    async def nothing_is_kept(self) -> None:
        """Nothing is charged but the subscriptions of clients that are connected, and no queue is left."""
        for bus in self.nodes:
            parts = parts_of(bus)
            runtime, handover = parts.services.running, handover_of(bus)
            await eventually(lambda: runtime.buffered == sum(peer.budget.held for peer in parts.links.peers))  # noqa: B023
            assert not handover.busy
            assert parts.pubsub.local.size == 0


@asynccontextmanager
async def several(engine: NatsEngine, count: int = 3, protocol: str = "ubre", **options: Any) -> AsyncIterator[World]:
    nodes = [Bus(cluster=Cluster(engine.url), **options) for _ in range(count)]
    urls = [f"{protocol}+memory://handover-{id(bus)}" for bus in nodes]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster(*nodes, url=engine.url))
        for bus, url in zip(nodes, urls, strict=True):
            await stack.enter_async_context(bus.serve(url))
        yield World(stack, nodes, urls)


async def leave(world: World, client: Heard, group: anyio.abc.TaskGroup) -> None:
    """Have the first node tell its client goodbye, and wait until it is between two connections."""
    client.roaming.may = anyio.Event()
    attempts = client.roaming.attempts
    group.start_soon(world.nodes[0].drain, 20)
    await eventually(lambda: client.roaming.attempts > attempts)


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep", "uprotocol"])
async def test_a_client_hears_what_was_published_before_during_and_after_its_absence(engine: NatsEngine, protocol: str) -> None:
    async with several(engine, protocol=protocol) as world, anyio.create_task_group() as group:
        client = await world.client(0)
        await world.publish(0, 1, 2, times=5)
        await leave(world, client, group)
        await world.publish(0, 1, 2, times=5)
        assert sum(map(len, client.got.values())) == 15
        before = anyio.current_time()
        await client.comes_back()
        await world.all_heard(client)
        assert anyio.current_time() - before < 1
        await world.publish(0, 1, 2, times=5)
        await world.all_heard(client)
        await world.nothing_is_kept()


async def test_a_drain_ends_as_soon_as_all_have_come_back_and_after_two_seconds_where_nobody_does(engine: NatsEngine) -> None:
    async with several(engine) as world:
        client = await world.client(0)
        client.roaming.urls = [world.urls[1]]
        before = anyio.current_time()
        await world.nodes[0].drain(20)
        assert anyio.current_time() - before < 1
        client.roaming.may = anyio.Event()
        before = anyio.current_time()
        await world.nodes[1].drain(20)
        assert 1.99 < anyio.current_time() - before < 2.5
        await world.nothing_is_kept()
        await client.comes_back(to=2)
        assert client.bus.stats().reconnects == 2
        await world.publish(2)
        await eventually(lambda: client.got == {"news.2": [0]})  # it goes on, without what it has missed
        await world.nodes[2].drain(0)  # where there is no time, nobody is waited for
        assert anyio.current_time() - before < 4


async def test_the_two_seconds_begin_anew_with_each_client_that_comes_back(engine: NatsEngine) -> None:
    async with several(engine) as world, anyio.create_task_group() as group:
        clients = [await world.client(0) for _ in range(4)]
        for client in clients:
            client.roaming.may, client.roaming.urls = anyio.Event(), [world.urls[1]]
        group.start_soon(world.nodes[0].drain, 20)
        for client in clients:
            await anyio.sleep(1.5)
            await world.publish(2)
            client.roaming.may.set()
            await world.all_heard(client)
        await world.all_heard(*clients)
        await world.nothing_is_kept()


class SlowWay:
    """One direction of a connection of the engine: in order, and each frame takes its time."""

    def __init__(self, rng: random.Random, owner: Any, name: str) -> None:
        self._rng, self._owner, self._name = rng, owner, name
        self._act: Callable[[Any], None] = getattr(owner, name)
        self._under_way: deque[Any] = deque()
        setattr(owner, name, self._under_way.append)

    async def carry(self) -> None:
        try:
            while True:
                await anyio.sleep(self._rng.choice([0.0001, 0.001, 0.003, 0.01]))
                while self._under_way and self._rng.random() < 0.8:
                    self._act(self._under_way.popleft())
        finally:
            setattr(self._owner, self._name, self._act)
            for one in self._under_way:
                self._act(one)


class Ending:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.send = transport.send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Held:
    """What the engine would tell a node: frames that are held back until they are let go, and the others at once."""

    def __init__(self, client: Any, holds: Callable[[bytes], bool] = lambda frame: True) -> None:
        client.transport = Ending(client.transport)
        self._transport, self._send, self._holds = client.transport, client.transport.send, holds
        self.frames: list[bytes] = []
        client.transport.send = self._take

    def _take(self, frame: bytes) -> None:
        if self._holds(frame):
            self.frames.append(frame)
        else:
            self._send(frame)

    def let_go(self) -> None:
        self._transport.send = self._send
        for frame in self.frames:
            self._send(frame)


def slow_down(engine: NatsEngine, rng: random.Random, group: anyio.abc.TaskGroup) -> None:
    client: Any
    for client in engine.clients:
        client.transport = Ending(client.transport)
        for owner, name in ((client, "frames_received"), (client.transport, "send")):
            group.start_soon(SlowWay(rng, owner, name).carry)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_missing_and_nothing_comes_twice_whatever_each_way_takes(engine: NatsEngine, seed: int) -> None:
    rng = random.Random(seed)
    async with several(engine, 4) as world, anyio.create_task_group() as group:
        clients = [await world.client(0) for _ in range(5)]
        slow_down(engine, rng, group)
        stop = False

        async def publish(by: int) -> None:
            while not stop:
                await world.publish(by)
                await anyio.sleep(rng.choice([0.001, 0.002, 0.004, 0.02]))

        for by in range(4):
            group.start_soon(publish, by)
        await anyio.sleep(0.2)
        for drained in (0, 1):  # who has come to the second is sent on to the third
            for client in clients:
                client.roaming.urls = [world.urls[drained + 1 if drained else rng.choice([1, 2])]]
            await world.nodes[drained].drain(20)
        await anyio.sleep(0.2)
        stop = True
        await world.all_heard(*clients)
        assert all(client.bus.stats().reconnects > 0 for client in clients)
        await world.nothing_is_kept()
        group.cancel_scope.cancel()


async def test_publications_of_clients_are_handed_over_where_they_are_relayed_only(engine: NatsEngine) -> None:
    async with several(engine) as world, anyio.create_task_group() as group:
        for bus in world.nodes:
            bus.relay("news.relayed")
        client = await world.client(0)
        staying = await world.client(1, "nothing")
        await leave(world, client, group)
        await staying.bus.publish("news.relayed", 1)
        await staying.bus.publish("news.other", 1)
        await client.comes_back()
        await staying.bus.publish("news.relayed", 2)
        await eventually(lambda: client.got == {"news.relayed": [1, 2]})
        group.cancel_scope.cancel()


def by_path(handshake: Handshake) -> Identity:
    user = handshake.headers.get("x-user", "")
    return Identity(user, key=user or None)


async def test_the_token_of_another_user_gets_nothing_of_what_is_kept(
    engine: NatsEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with several(engine, authenticate=by_path) as world, anyio.create_task_group() as group:
        ann = await world.client(0, headers={"x-user": "ann"})
        stolen = ann.token._token
        await leave(world, ann, group)
        await world.publish(2, times=3)
        bob = await world.client(2, headers={"x-user": "bob"})
        bob.token._token = stolen
        await world.nodes[2].peers_of("bob")[0].aclose()
        await eventually(lambda: bob.bus.stats().reconnects == 1)
        await bob.known()
        await world.publish(2, times=3)
        await eventually(lambda: bob.got == {"news.2": [3, 4, 5]})
        await ann.comes_back()
        await world.all_heard(ann)
        assert bob.got == {"news.2": [3, 4, 5]}
        assert "for another user: 'bob', not 'ann'" in caplog.text
        await world.nothing_is_kept()


@pytest.mark.parametrize("token", ["nonsense", ".", "x" * 199, "{bus}.", "{own}." + 32 * "0"])
async def test_a_token_for_which_nothing_is_kept_changes_nothing(engine: NatsEngine, token: str) -> None:
    async with several(engine, 2) as world:
        client = await world.client(0)
        buses = {"bus": parts_of(world.nodes[1]).services.id, "own": parts_of(world.nodes[0]).services.id}
        client.token._token = token.format(**buses)
        await world.at_node(0).aclose()
        await eventually(lambda: client.bus.stats().reconnects == 1)
        await client.known()
        await world.publish(0, 1, times=2)
        await world.all_heard(client)
        await world.nothing_is_kept()


@pytest.mark.parametrize("waits", [False, True])
async def test_what_the_other_node_does_not_authorize_is_not_handed_over_either(engine: NatsEngine, waits: bool) -> None:
    strict = False

    async def may_later(peer: Any, verb: str, subject: Any) -> bool:
        await anyio.sleep(0.01)
        return may(peer, verb, subject)

    def may(peer: Any, verb: str, subject: Any) -> bool:
        if strict and verb == "subscribe":
            return bool(subject != "secret.*")
        return not (strict and verb == "deliver" and subject == "news.1")

    async with several(engine, authorize=may_later if waits else may) as world, anyio.create_task_group() as group:
        client = await world.client(0)
        client.bus.on("secret.*")(client.take)
        await client.known()
        await leave(world, client, group)
        await world.publish(1, 2, times=2)
        await world.publish(2, times=2, subject="secret.2")
        strict = True
        await client.comes_back()
        await world.publish(1, 2, times=2)
        await world.publish(2, times=2, subject="secret.2")
        await eventually(lambda: client.got == {"news.2": [0, 1, 2, 3]})
        await world.nothing_is_kept()


async def test_publications_that_wait_for_authorize_at_the_goodbye_are_kept(engine: NatsEngine) -> None:
    answer = anyio.Event()

    async def may(peer: Any, verb: str, subject: Any) -> bool:
        if verb == "deliver":
            await answer.wait()
        return True

    async with several(engine, authorize=may) as world, anyio.create_task_group() as group:
        client = await world.client(0)
        await world.publish(2, times=3)
        await eventually(lambda: world.nodes[0].stats().received >= 3)
        await leave(world, client, group)
        await world.publish(2, times=3)
        answer.set()
        await client.comes_back()
        await world.all_heard(client)
        await world.nothing_is_kept()


@pytest.mark.parametrize(
    ("limits", "filling", "kept"), [(Limits(outbox=10), "", 10), (Limits(outbox_bytes=64 << 10), "x" * 10_000, 6)], ids=str
)
async def test_the_oldest_are_dropped_where_too_much_is_kept_and_that_is_counted_and_told(
    engine: NatsEngine, limits: Limits, filling: str, kept: int
) -> None:
    async with several(engine, limits=limits) as world, anyio.create_task_group() as group:
        client, (draining, _, third) = await world.client(0), world.nodes
        events, before = draining.events(), draining.stats().dropped
        await leave(world, client, group)
        await publish_each(third, "news.2", ([number, filling] for number in range(25)))
        await eventually(lambda: draining.stats().dropped - before == 25 - kept)
        assert parts_of(draining).services.running.buffered <= limits.outbox_bytes
        await client.comes_back()
        await third.publish("news.2", [25, filling])
        await eventually(lambda: [body[0] for body in client.got.get("news.2", [])] == list(range(25 - kept, 26)))  # type: ignore[index]
        slow = await next_event(events, PeerSlow)
        assert (slow.policy, slow.dropped) == ("drop_oldest", 1)
        await world.nothing_is_kept()


@pytest.mark.parametrize("how", ["silent", "killed"])
async def test_a_node_that_gives_no_mark_is_not_waited_for_longer_than_two_seconds(engine: NatsEngine, how: str) -> None:
    async with several(engine, 4) as world, anyio.create_task_group() as group:
        client = await world.client(0)
        third: Any = [*engine.clients][3]
        await leave(world, client, group)
        received = world.nodes[0].stats().received
        await world.publish(2, 3, times=3)
        await eventually(lambda: world.nodes[0].stats().received == received + 6)
        if how == "silent":
            silence = Held(third)
        else:
            third.transport.abort(Closed(1006, "killed"))
        before = anyio.current_time()
        await client.comes_back()
        await world.all_heard(client)
        assert anyio.current_time() - before < 2.2
        await world.publish(1, 2, times=3)
        if how == "silent":
            silence.let_go()
        await world.publish(3, times=3)
        await world.all_heard(client)
        await world.nothing_is_kept()


async def test_what_another_program_publishes_comes_at_most_once(engine: NatsEngine) -> None:
    async with several(engine) as world, anyio.create_task_group() as group, connect(engine.url) as foreign:
        client = await world.client(0)
        await leave(world, client, group)
        await publish_each(foreign, "polybus.p.news.foreign", range(5))
        await client.comes_back()
        await eventually(lambda: not handover_of(world.nodes[1]).busy)
        await publish_each(foreign, "polybus.p.news.foreign", range(5, 10))
        await eventually(lambda: client.got == {"news.foreign": list(range(10))})


LIES: list[Any] = [
    None,
    "nonsense",
    {"mark": 7, "for": 7, "node": 7, "clients": 7},
    {"mark": "m", "for": "nobody here\r\nPUB x 0\r\n", "node": "nobody", "clients": []},
    {"mark": "m", "for": "{own}", "node": "{other}", "clients": [{"token": 1}, "x", None]},
    {"mark": "m", "for": "{own}", "node": "{other}", "clients": [{"token": "x", "user": None, "name": "y"}] * 5000},
]


@pytest.mark.parametrize("question", ["claim", "mark", "marked", "hand_over"])
async def test_a_liar_among_the_nodes_gets_nothing_and_costs_no_client_anything(engine: NatsEngine, question: str) -> None:
    async with several(engine) as world, anyio.create_task_group() as group, connect(engine.url) as liar:
        own, other = (name_of(bus) for bus in world.nodes[:2])
        client = await world.client(0)
        await leave(world, client, group)
        await world.publish(2, times=3)
        subject = f"polybus.n.{own}.r.{question}"
        for body in LIES:
            if isinstance(body, dict):
                body = {name: {"{own}": own, "{other}": other}.get(str(value), value) for name, value in body.items()}
            if question != "marked":
                with suppress(RequestError):
                    assert await liar.request(subject, body, timeout=5) in ([], True)
            await liar.publish(subject, body)
        await client.comes_back()
        await world.publish(2, times=3)
        await world.all_heard(client)
        await world.nothing_is_kept()


@pytest.mark.parametrize(
    "names",
    [["same", "same"], ["", "\r\nPUB x 0\r\n"], [">", "*"], ["a.b", "x" * 5000], ["x" * 4050, "y"]],
    ids=lambda names: names[0][:9],
)
async def test_a_node_that_claims_clients_under_impossible_names_leaves_nothing(engine: NatsEngine, names: list[str]) -> None:
    async with several(engine) as world, anyio.create_task_group() as group, connect(engine.url) as liar:
        own, other = (name_of(bus) for bus in world.nodes[:2])
        clients = [await world.client(0, pattern) for pattern in ("news.*", "other")]
        secrets = [client.token._token.partition(".")[2] for client in clients]
        for client in clients:
            client.roaming.may = anyio.Event()
        group.start_soon(world.nodes[0].drain, 20)
        await eventually(lambda: all(client.roaming.attempts == 2 for client in clients))
        received = world.nodes[0].stats().received
        await world.publish(2, times=3)
        await world.publish(2, times=3, subject="other")
        await eventually(lambda: world.nodes[0].stats().received == received + 6)
        claimed = [{"token": token, "user": None, "name": name} for token, name in zip(secrets, names, strict=True)]
        subject = f"polybus.n.{own}.r."
        with suppress(RequestError):
            await liar.request(f"{subject}claim", {"mark": "m", "node": other, "clients": claimed}, timeout=5)
        with suppress(RequestError):
            await liar.request(f"{subject}hand_over", "m", timeout=5)
        await world.nothing_is_kept()
        assert world.nodes[0].stats().reconnects == 0  # the engine has taken all that was said


async def test_a_claim_that_has_nothing_to_hand_over_is_answered_as_often_as_it_is_asked(
    engine: NatsEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with several(engine) as world, anyio.create_task_group() as group, connect(engine.url) as liar:
        own, other = (name_of(bus) for bus in world.nodes[:2])
        client = await world.client(0)
        secret = client.token._token.partition(".")[2]
        await leave(world, client, group)
        claimed = [{"token": secret, "user": None, "name": "x"}]
        subject = f"polybus.n.{own}.r."
        assert await liar.request(f"{subject}claim", {"mark": "m", "node": other, "clients": claimed}, timeout=5) == ["x"]
        asked = [liar.request(f"{subject}hand_over", "m", timeout=5) for _ in range(2)]
        assert [await one for one in asked] == [True, True]
        assert "failed" not in caplog.text
        client.roaming.may.set()
        await world.nothing_is_kept()


@pytest.mark.parametrize("end", ["engine", "old", "new"])
@pytest.mark.parametrize(("at", "what"), [(0, "claim"), (2, "mark"), (0, "hand_over")])
async def test_nothing_is_kept_and_no_drain_waits_when_an_end_is_gone(engine: NatsEngine, at: int, what: str, end: str) -> None:
    async with several(engine) as world:
        client, handover = await world.client(0), handover_of(world.nodes[1])
        async with anyio.create_task_group() as draining:
            await leave(world, client, draining)
            await world.publish(2, times=3)
            Held([*engine.clients][at], lambda frame: f".r.{what} ".encode() in frame)
            client.roaming.urls = [world.urls[1]]
            client.roaming.may.set()
            await eventually(lambda: handover.busy)
            await anyio.sleep(0.1)  # it has come as far as that
            assert handover.busy
            before = anyio.current_time()
            if end == "engine":
                await engine.cut()
            else:
                await world.nodes[end == "new"].aclose()
        assert anyio.current_time() - before < 2  # nobody can claim anything any more, or does
        await eventually(lambda: not handover.busy)
        assert anyio.current_time() - before < 2
        for parts in map(parts_of, world.nodes):
            assert parts.pubsub.local.size == 0
            if parts.services.runtime is not None:
                assert parts.services.running.buffered == sum(peer.budget.held for peer in parts.links.peers)


async def test_what_a_client_subscribes_to_again_while_it_is_taken_over_it_hears(engine: NatsEngine) -> None:
    async with several(engine) as world, anyio.create_task_group() as group:
        client = await world.client(0)
        async with client.bus.subscribe("extra"):
            await leave(world, client, group)
            await world.publish(2, subject="extra")
        handed = 0

        def is_answer(frame: bytes) -> bool:
            nonlocal handed
            handed += b".d." in frame
            return bool(handed) and b".a." in frame.partition(b"\r\n")[0]

        answers = Held([*engine.clients][1], is_answer)
        await client.comes_back()
        await eventually(lambda: len(answers.frames) > 0)  # all was handed over, and the node does not know it
        assert world.nodes[1].stats().refused == 1
        async with client.bus.subscribe("extra") as extra:
            await world.publish(2, subject="extra")
            answers.let_go()
            with anyio.fail_after(5):
                assert (await anext(extra)).body == 1
        await world.nothing_is_kept()


async def test_a_bus_without_others_or_that_is_to_hand_nothing_over_ends_at_once(engine: NatsEngine) -> None:
    for count, seconds in ((1, 2.0), (2, 0.0)):
        buses = [Bus(cluster=Cluster(engine.url, handover=seconds)) for _ in range(count)]
        async with cluster(*buses, url=engine.url), buses[0].serve(f"ubre+memory://alone-{count}") as listener:
            heard = Bus()
            async with connect(listener.url, bus=heard, backoff=SOON), heard.subscribe("news"):
                before = anyio.current_time()
                await buses[0].drain(20)
                assert anyio.current_time() - before < 1


async def test_a_client_without_an_id_hears_what_was_held_a_second(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with several(engine, 2, protocol="uprotocol") as world:
        other = await world.client(0)  # for its sake the node hears of it
        monkeypatch.setattr("polybus._core.peer.negotiation.Negotiation.asked", lambda negotiation, message: None)
        heard = Heard(Bus(), world.urls, Roaming([world.urls[0]]))
        heard.bus.on("news.*")(heard.take)
        async with anyio.create_task_group() as group:

            async def connected() -> None:
                async with connect(heard.roaming, bus=heard.bus, protocol="uprotocol"):
                    await anyio.sleep_forever()

            group.start_soon(connected)
            await eventually(lambda: world.nodes[0].stats().peers == 3)
            before = anyio.current_time()
            await world.publish(0, 1, times=3)
            await world.all_heard(other)
            assert heard.got == {}
            await world.all_heard(heard)
            assert 0.5 < anyio.current_time() - before < 1.5
            await world.publish(0, 1, times=3)
            await world.all_heard(other, heard)
            await world.nothing_is_kept()
            group.cancel_scope.cancel()
