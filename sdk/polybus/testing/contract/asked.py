"""Subscriptions that ask one peer alone."""

from __future__ import annotations

from typing import Any, ClassVar

import anyio
import pytest

from ... import Bus, Disconnected, Forbidden, Peer
from ...events import LinkUp
from ._base import Contract, eventually, needs, next_event, take


class AskedContract(Contract):
    """`Peer.subscribe`."""

    requires: ClassVar[tuple[str, ...]] = ("publish",)

    async def test_of_one_that_dialled_in_only_its_own_publications_come(self) -> None:
        news = self.subject("news.today")
        async with self.meeting(2) as (bus, [ann, bob], [first, second], settled):
            async with first.subscribe(news) as hers, second.subscribe(news) as his, bus.subscribe(news) as everybodys:
                await bus.publish(news, "the bus's own")
                for number in range(3):
                    await bob.publish(news, ["bob", number])
                    await ann.publish(news, ["ann", number])
                await ann.publish(self.subject("news.other"), "another subject")
                await settled()
                messages = [await anext(hers) for _ in range(3)]
                assert [message.body for message in messages] == [["ann", number] for number in range(3)]
                assert all(message.peer is first and message.subject == news for message in messages)
                assert await take(his, 3) == [["bob", number] for number in range(3)]
                assert len(await take(everybodys, 7)) == 7
                assert len(hers) == len(his) == len(everybodys) == 0

    async def test_a_client_that_its_server_asks_sends_nothing_twice(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (bus, [client], [peer], settled):
            async with peer.subscribe(news) as one, peer.subscribe(news) as two, bus.subscribe(news) as three:
                await settled()
                before = client.stats().sent
                await client.publish(news, 1)
                assert client.stats().sent == before + 1
                await settled()
                assert [await take(each, 1) for each in (one, two, three)] == [[1], [1], [1]]
                assert len(one) == len(two) == len(three) == 0

    @needs("extensions")
    async def test_one_that_dialled_in_is_asked_with_wildcards(self) -> None:
        async with self.meeting() as (_, [client], [peer], _), peer.subscribe(self.subject("news.*")) as news:
            for number, name in enumerate(("old.today", "news.today", "news.today.late", "news.tomorrow"), 1):
                await client.publish(self.subject(name), number)
            assert await take(news, 2) == [2, 4]

    @needs("interest")
    async def test_the_server_is_asked_too_and_told_when_nobody_wants_it_any_more(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (bus, [client], _, settled):
            (server,) = client.peers
            async with server.subscribe(news) as first, server.subscribe(news) as second:
                await client.publish(news, "the bus's own")
                await bus.publish(news, 1)
                message = await anext(first)
                assert (message.body, message.peer) == (1, server)
                assert await take(second, 1) == [1]
            await settled()
            before = client.stats().received
            await bus.publish(news, 2)
            await settled()
            assert client.stats().received == before + 1  # the answer, and nothing else

    @needs("interest")
    async def test_interest_in_one_peer_and_in_all_keep_each_other_told(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (bus, [client], _, settled):
            (server,) = client.peers
            async with client.subscribe(news) as all_of_them:
                async with server.subscribe(news) as one:
                    await bus.publish(news, 1)
                    assert await take(all_of_them, 1) == await take(one, 1) == [1]
                await settled()
                await bus.publish(news, 2)
                assert await take(all_of_them, 1) == [2]
            async with server.subscribe(news) as one:
                async with client.subscribe(news):
                    pass
                await settled()
                await bus.publish(news, 3)
                assert await take(one, 1) == [3]
            await settled()
            before = client.stats().received
            await bus.publish(news, 4)
            await settled()
            assert client.stats().received == before + 1

    async def test_an_asked_server_is_asked_again_when_the_link_comes_back(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (bus, [client], _, settled), client.peers[0].subscribe(news) as today:
            events = client.events()
            await bus.publish(news, "before")
            assert await take(today, 1) == ["before"]
            await bus.peers[0].aclose("a hiccup")
            await next_event(events, LinkUp)
            await settled()
            await bus.publish(news, "after")
            assert await take(today, 1) == ["after"]

    async def test_what_has_come_is_read_before_the_end_of_the_peer_is_told(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (_, [client], [peer], settled):
            async with peer.subscribe(news) as last_words:
                for number in range(3):
                    await client.publish(news, number)
                await settled()
                async with anyio.create_task_group() as group:
                    group.start_soon(client.aclose)
                    await eventually(lambda: peer.gone)
                    assert await take(last_words, 3) == [0, 1, 2]
                    for _ in range(2):
                        with pytest.raises(Disconnected):
                            await anext(last_words)
            with pytest.raises(Disconnected):
                async with peer.subscribe(news):
                    raise AssertionError("entered")

    async def test_who_waits_is_told_of_the_end_of_the_peer(self) -> None:
        async with self.meeting() as (_, [client], [peer], _):
            async with peer.subscribe(self.subject("news.today")) as today, anyio.create_task_group() as group:
                group.start_soon(client.aclose)
                with pytest.raises(Disconnected):
                    await anext(today)

    @needs("extensions")
    async def test_who_is_asked_decides_with_authorize(self) -> None:
        asked: list[Any] = []
        secret, news = self.subject("secret.plan"), self.subject("news.today")

        def decide(peer: Peer, verb: str, subject: Any) -> bool:
            asked.append((verb, subject))
            return bool(subject != secret)

        bus = Bus()
        async with self.joined(bus, Bus(authorize=decide)) as client:
            (peer,) = bus.peers
            with pytest.raises(Forbidden):
                async with peer.subscribe(secret):
                    raise AssertionError("entered")
            async with peer.subscribe(news) as today:
                await client.publish(news, 1)
                assert await take(today, 1) == [1]
        assert [subject for verb, subject in asked if verb == "subscribe"] == [secret, news]
