"""Links: who is there, where requests go, and what happens at the end."""

from __future__ import annotations

import anyio
import pytest

from ... import AmbiguousRoute, Bus, BusError, ConnectFailed, Disconnected, NoHandler, Unavailable
from ...events import LinkDown, LinkUp
from ._base import Contract, Endless, echo, eventually, needs, next_event


def _named(name: str, subject: str | int) -> Bus:
    """A bus whose handler tells its name."""
    bus = Bus()

    @bus.handle(subject)
    async def tell() -> str:
        return name

    return bus


class LinkContract(Contract):
    """Connecting, routing, draining, losing."""

    async def test_a_peer_knows_protocol_transport_and_address(self) -> None:
        bus = Bus()
        async with self.serving(bus) as (listener, dial), dial() as client:
            await eventually(lambda: bus.peers)
            here, there = client.peers[0], bus.peers[0]
            assert here.protocol == there.protocol == self.adapter.name
            assert here.transport == there.transport != ""
            assert here.address
            assert here.connected_at.tzinfo is not None
            assert here.id != there.id
            assert listener.peers == [there]
            assert listener.url.startswith(f"{self.adapter.name}+{here.transport}://")

    async def test_a_bus_asks_its_own_handler_first(self) -> None:
        subject = self.subject("name")
        async with self.joined(_named("server", subject), _named("client", subject)) as client:
            assert await client.request(subject) == "client"
            assert await client.request(subject, to=client.peers[0]) == "server"
            assert await client.peers[0].request(subject) == "server"

    async def test_a_peer_that_dialled_in_is_asked_only_by_name(self) -> None:
        bus, client, subject = Bus(), _named("client", self.subject("name")), self.subject("name")
        async with self.joined(bus, client):
            with pytest.raises(NoHandler):
                await bus.request(subject)
            assert await bus.request(subject, to=bus.peers[0]) == "client"
            assert await bus.peers[0].request(subject) == "client"

    async def test_several_links_need_a_choice(self) -> None:
        subject = self.subject("name")
        one, two, client = _named("one", subject), _named("two", subject), Bus()
        async with self.serving(one) as (_, dial_one), self.serving(two) as (_, dial_two):
            async with dial_one(client), dial_two(client, serves=[self.subject("vehicle.door")]):
                with pytest.raises(AmbiguousRoute):
                    _ = client.request(subject)
                with pytest.raises(NoHandler):
                    await client.request(self.subject("vehicle.door"))
                assert {await client.request(subject, to=peer) for peer in client.peers} == {"one", "two"}

    async def test_serves_chooses_the_link(self) -> None:
        subject = self.subject("name")
        one, two, client = _named("one", subject), _named("two", subject), Bus()
        async with self.serving(one) as (_, dial_one), self.serving(two) as (_, dial_two):
            async with dial_one(client), dial_two(client, serves=[subject]):
                assert await client.request(subject) == "two"

    async def test_a_draining_server_finishes_what_runs_and_refuses_what_is_new(self) -> None:
        started, go = anyio.Event(), anyio.Event()

        async def slow() -> str:
            started.set()
            await go.wait()
            return "finished"

        async with self.handling(slow) as (bus, client, subject), anyio.create_task_group() as group:
            running = client.request(subject)
            await started.wait()
            group.start_soon(bus.drain)
            await eventually(lambda: not bus.ready)
            with pytest.raises(Unavailable):
                await client.request(subject)
            go.set()
            assert await running == "finished"

    async def test_what_is_in_flight_when_the_peer_goes_away_fails_at_once(self) -> None:
        started: list[int] = []
        stopped: list[int] = []

        async def endless(body: int) -> None:
            started.append(body)
            try:
                await anyio.sleep_forever()
            finally:
                stopped.append(body)

        async with self.handling(endless) as (bus, client, subject):
            replies = [client.request(subject, number, timeout=1000) for number in range(50)]
            await eventually(lambda: len(started) == 50)
            await bus.peers[0].aclose("go away")
            for reply in replies:
                with pytest.raises(Disconnected) as caught:
                    await reply
                assert caught.value.sent
            assert client.stats().pending == 0
            await eventually(lambda: sorted(stopped) == sorted(started))
            assert bus.stats().running == 0

    async def test_leaving_with_requests_in_flight_ends_them(self) -> None:
        bus, subject = Bus(), self.subject("endless")
        bus.handle(subject)(Endless().endless)
        async with self.serving(bus) as (_, dial):
            async with dial() as client:
                reply = client.request(subject, timeout=1000)
                await eventually(lambda: bus.stats().running == 1)
            assert reply.done()
            with pytest.raises(BusError) as caught:
                await reply
            assert getattr(caught.value, "sent", True), "it runs"
            await eventually(lambda: bus.stats().running == 0)

    async def test_connecting_to_nobody_fails_at_once_with_the_address(self) -> None:
        async with self.serving(Bus()) as (listener, dial):
            url = listener.url.partition("?")[0]
        with pytest.raises(ConnectFailed) as caught:
            async with dial():
                pass
        assert url.partition("://")[2].rstrip("/") in str(caught.value)

    async def test_a_link_comes_back_and_its_subscriptions_with_it(self) -> None:
        if not self.adapter.session("client").capabilities.subscribe:
            pytest.skip("the wire has no subscriptions")
        news = self.subject("news.today")
        async with self.handling(echo) as (bus, client, subject), client.subscribe(news) as today:
            events = client.events()
            await bus.peers[0].aclose("a hiccup")
            assert type(await anext(events)) is LinkDown
            assert (await next_event(events, LinkUp)).again
            assert await client.request(subject, 1) == 1
            await bus.publish(news, "after")
            assert (await anext(today)).body == "after"
            assert client.stats().reconnects == 1

    @needs("publish")
    async def test_what_waits_for_a_link_that_is_down_is_sent_when_it_is_back(self) -> None:
        async with self.handling(echo) as (bus, client, subject), bus.subscribe(self.subject("news")) as news:
            events = client.events()
            await bus.peers[0].aclose("a hiccup")
            await next_event(events, LinkDown)
            replies = [client.request(subject, number) for number in range(10)]
            await client.publish(self.subject("news"), "kept")
            assert [await reply for reply in replies] == list(range(10))
            assert (await anext(news)).body == "kept"
