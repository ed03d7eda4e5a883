"""Contract tests for publications and subscriptions over a link, including subscriptions to a single peer."""

from __future__ import annotations

from typing import Any, ClassVar

import anyio
import pytest

from ... import Bus, Disconnected, Message
from ...events import LinkUp
from ._base import Contract, eventually, needs, next_event, take


class PublicationContract(Contract):
    requires: ClassVar[tuple[str, ...]] = ("publish",)

    async def test_publications_of_a_client_reach_the_server_in_order(self) -> None:
        bus, subject = Bus(), self.subject("news.today")
        async with self.joined(bus) as client, bus.subscribe(subject) as news:
            for number in range(100):
                await client.publish(subject, number)
            assert await take(news, 100) == list(range(100))

    @needs("subscribe")
    async def test_publications_of_a_server_reach_a_subscribed_client_in_order(self) -> None:
        bus, subject, other = Bus(), self.subject("news.today"), self.subject("news.other")
        async with self.joined(bus) as client, client.subscribe(subject) as news:
            for number in range(100):
                await bus.publish(other, "not for us")
                await bus.publish(subject, number)
            assert await take(news, 100) == list(range(100))

    @needs("subscribe")
    async def test_a_publication_has_subject_body_and_peer(self) -> None:
        bus, subject = Bus(), self.subject("news.today")
        async with self.joined(bus) as client, client.subscribe(subject) as news:
            await bus.publish(subject, {"title": "ü"})
            message = await anext(news)
            assert isinstance(message, Message)
            assert (message.subject, message.body) == (subject, {"title": "ü"})
            assert message.peer is client.peers[0]

    @needs("subscribe", "headers")
    async def test_publication_headers_arrive(self) -> None:
        bus, subject = Bus(), self.subject("news.today")
        async with self.joined(bus) as client, client.subscribe(subject) as news:
            await bus.publish(subject, 1, headers={"x-kind": "flash"})
            assert (await anext(news)).headers == {"x-kind": "flash"}

    async def test_changes_to_a_publication_are_invisible_to_other_readers(self) -> None:
        bus, subject, order = Bus(), self.subject("news.today"), {"items": [1]}
        handled: list[Any] = []
        all_handled = anyio.Event()

        async def clear(body: Any, message: Message) -> None:
            handled.append([*body["items"]])
            body["items"].clear()
            message.attributes["mine"] = True
            if len(handled) == 4:
                all_handled.set()

        bus.on(subject)(clear)
        bus.on(subject)(clear)
        async with self.joined(bus) as client, bus.subscribe(subject) as one, bus.subscribe(subject, returns=dict) as two:
            for publisher in (client, bus):
                await publisher.publish(subject, order)
                for news in (one, two):
                    message = await anext(news)
                    assert message.body == order
                    assert "mine" not in message.attributes
                    message.body["items"].append(2)
            await all_handled.wait()
        assert handled == [[1]] * 4

    @needs("subscribe", "wildcards")
    async def test_wildcards_match_over_a_link(self) -> None:
        bus = Bus()
        names = ["news", "news.today", "news.today.late", "old.today"]
        matching = {
            "news.*": ["news.today"],
            "news.>": ["news.today", "news.today.late"],
            "*.today": ["news.today", "old.today"],
            "{kind}.today": ["news.today", "old.today"],
            ">": names,
        }
        async with self.joined(bus) as client:
            for pattern, wanted in matching.items():
                async with client.subscribe(self.subject(pattern)) as news:
                    for name in names:
                        await bus.publish(self.subject(name), name)
                    assert await take(news, len(wanted)) == wanted
                    await bus.publish(self.subject(wanted[0]), "last")
                    assert await take(news, 1) == ["last"]

    @needs("subscribe", "wildcards")
    async def test_overlapping_subscriptions_receive_a_publication_once_each(self) -> None:
        bus, subject = Bus(), self.subject("news.today")
        async with (
            self.joined(bus) as client,
            client.subscribe(self.subject("news.*")) as one,
            client.subscribe(self.subject("news.>")) as two,
            client.subscribe(subject) as three,
            client.subscribe(subject) as four,
        ):
            for number in range(3):
                await bus.publish(subject, number)
            for subscription in (one, two, three, four):
                assert await take(subscription, 3) == [0, 1, 2]
                assert len(subscription) == 0

    @needs("interest")
    async def test_nothing_arrives_after_the_last_of_two_equal_subscriptions_has_left(self) -> None:
        subject = self.subject("news.today")
        async with self.meeting() as (bus, [client], _, settled):
            async with client.subscribe(subject) as stays:
                async with client.subscribe(subject) as leaves:
                    await bus.publish(subject, 1)
                    assert await take(stays, 1) == await take(leaves, 1) == [1]
                await settled()
                await bus.publish(subject, 2)
                assert await take(stays, 1) == [2]
            await settled()
            before = client.stats().received
            await bus.publish(subject, 3)
            await settled()
            assert client.stats().received == before + 1  # only the answer
            async with client.subscribe(subject) as again:
                await bus.publish(subject, 4)
                assert await take(again, 1) == [4]

    @needs("subscribe")
    async def test_local_and_remote_subscriptions_receive_a_publication_once(self) -> None:
        bus, subject = Bus(), self.subject("news.today")
        async with self.joined(bus) as client, bus.subscribe(subject) as here, client.subscribe(subject) as there:
            await bus.publish(subject, 1)
            await bus.publish(subject, 2)
            assert await take(here, 2) == await take(there, 2) == [1, 2]

    async def test_local_false_excludes_the_bus_s_own_publications(self) -> None:
        bus, subject = Bus(), self.subject("news.today")
        async with self.joined(bus) as client, bus.subscribe(subject, local=False) as news:
            await bus.publish(subject, "own")
            await client.publish(subject, "theirs")
            assert await take(news, 1) == ["theirs"]

    @needs("subscribe")
    async def test_sessions_are_isolated_without_a_relay(self) -> None:
        subject = self.subject("chat.room")
        async with self.meeting(2) as (bus, [ann, bob], _, settled):
            async with bob.subscribe(subject) as room, bus.subscribe(subject) as here:
                await ann.publish(subject, "hello")
                assert await take(here, 1) == ["hello"]
                await settled()
                assert len(room) == 0

    @needs("subscribe", "extensions")
    async def test_a_relay_forwards_publications_once_to_others_and_not_back(self) -> None:
        bus, subject = Bus(), self.subject("chat.room")
        bus.relay(self.subject("chat.>"))
        async with self.meeting(2, bus) as (_, [ann, bob], _, settled):
            async with bob.subscribe(subject) as room, ann.subscribe(subject, local=False) as own:
                await ann.publish(subject, "hello")
                assert await take(room, 1) == ["hello"]
                await settled()
                assert len(own) == len(room) == 0

    @needs("subscribe")
    async def test_a_publication_to_one_peer_reaches_only_that_peer(self) -> None:
        subject = self.subject("news.today")
        async with self.meeting(2) as (bus, [ann, bob], [first, second], settled):
            async with ann.subscribe(subject) as hers, bob.subscribe(subject) as his:
                await settled()
                await bus.publish(subject, 1, to=first)
                await bus.publish(subject, 2, to=[first, second])
                await first.publish(subject, 3)
                await settled()
                assert (len(hers), len(his)) == (3, 1)
                assert (await take(hers, 3), await take(his, 1)) == ([1, 2, 3], [2])


class PeerSubscriptionContract(Contract):
    requires: ClassVar[tuple[str, ...]] = ("publish",)

    async def test_a_subscription_to_a_client_receives_only_its_publications(self) -> None:
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

    @needs("extensions")
    async def test_a_subscription_to_a_client_can_use_wildcards(self) -> None:
        async with self.meeting() as (_, [client], [peer], _), peer.subscribe(self.subject("news.*")) as news:
            for number, name in enumerate(("old.today", "news.today", "news.today.late", "news.tomorrow"), 1):
                await client.publish(self.subject(name), number)
            assert await take(news, 2) == [2, 4]

    @needs("interest")
    async def test_subscriptions_to_one_peer_and_to_all_do_not_disturb_each_other(self) -> None:
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

    async def test_a_subscription_to_the_server_is_restored_after_a_reconnect(self) -> None:
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

    async def test_messages_that_arrived_are_read_before_the_end_of_the_peer_is_raised(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (bus, [client], [peer], settled):
            async with peer.subscribe(news) as last_words:
                for number in range(3):
                    await client.publish(news, number)
                await settled()
                async with anyio.create_task_group() as group:
                    group.start_soon(client.aclose)
                    await eventually(lambda: peer not in bus.peers)
                    assert await take(last_words, 3) == [0, 1, 2]
                    for _ in range(2):
                        with pytest.raises(Disconnected):
                            await anext(last_words)
            with pytest.raises(Disconnected):
                async with peer.subscribe(news):
                    raise AssertionError("entered")
