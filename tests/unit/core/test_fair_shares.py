"""What waits is shared out: who floods a bus takes no more than a share, and others are served."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import Broker, Bus, Limits, TooManyRequests, connect
from polybus._core.runtime.memory_budgets import MemoryBudget, Share
from polybus._util.listening import network_of
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.support import eventually

KIB = 1024
TOTAL = 1024 * KIB


class Clerk:
    """All that accounts ask of a runtime."""

    def __init__(self) -> None:
        self.buffered = 0
        self.limits = Limits(total_bytes=TOTAL)
        self.addresses: dict[str, Any] = {}

    def link(self, address: str) -> MemoryBudget:
        share = Share()
        share.join(self.addresses, address)
        return MemoryBudget(self, share=share)


def fill(budget: MemoryBudget, size: int = 1000) -> int:
    while budget.hold(size):
        pass
    return budget.held


def test_one_link_alone_may_hold_a_third_of_the_total_and_the_links_of_one_address_three_fifths() -> None:
    clerk = Clerk()
    assert fill(clerk.link("10.0.0.1:1")) == pytest.approx(0.317 * TOTAL, abs=10_000)
    for number in range(200):
        fill(clerk.link(f"10.0.0.1:{number}"), 10)
    assert clerk.buffered == pytest.approx(0.61 * TOTAL, abs=10_000)


def test_what_this_application_holds_itself_is_bounded_by_the_total_alone() -> None:
    assert fill(MemoryBudget(Clerk())) == pytest.approx(TOTAL, abs=1000)


@pytest.mark.parametrize("count", [1, 30])
def test_however_many_links_flood_from_one_address_the_next_one_finds_room(count: int) -> None:
    clerk = Clerk()
    for number in range(count):
        fill(clerk.link(f"127.0.0.1:{number}"), 100)
    assert clerk.buffered <= TOTAL * 0.62
    assert fill(clerk.link("127.0.0.1:60000"), 1) >= TOTAL / (8 * (count + 1) ** 2)
    assert fill(clerk.link("127.0.0.2:1"), 100) >= TOTAL / 50


@pytest.mark.parametrize("count", [1, 30])
def test_however_many_addresses_flood_the_next_one_finds_room(count: int) -> None:
    clerk = Clerk()
    for number in range(count):
        for link in range(20):
            fill(clerk.link(f"10.0.0.{number}:{link}"), 10)
    assert fill(clerk.link("10.1.0.1:1"), 1) >= TOTAL / (5 * count + 5) ** 2


def test_who_comes_first_gives_back_and_then_both_have_the_same() -> None:
    clerk = Clerk()
    first, second = clerk.link("10.0.0.1:1"), clerk.link("10.0.0.2:1")
    fill(first)
    for _ in range(5_000):  # both want all they can get, and what is held goes at times
        first.release(min(1000, first.held))
        first.hold(1000)
        second.hold(1000)
        first.hold(1000)
        second.release(min(1000, second.held))
        second.hold(1000)
    assert second.held > first.held / 2


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(-1, 200_000), st.booleans()), max_size=200))
def test_sums_are_right_and_the_total_holds_whatever_is_held_and_given_back(steps: list[tuple[int, int, bool]]) -> None:
    clerk = Clerk()
    links = [clerk.link(f"10.0.{number // 4}.1:{number}") for number in range(12)]
    held: list[list[int]] = [[] for _ in links]
    for number, size, surely in steps:
        budget, kept = links[number], held[number]
        if size < 0:
            if kept:
                budget.release(kept.pop())
        elif surely and clerk.buffered + size <= TOTAL:
            budget.charge(size)
            kept.append(size)
        else:
            fits = budget.has_room(size)
            assert budget.hold(size) == fits
            if fits:
                kept.append(size)
        assert [budget.held for budget in links] == [sum(sizes) for sizes in held]
        assert clerk.buffered == sum(map(sum, held)) <= TOTAL
        assert {address.network: address.held for address in clerk.addresses.values()} == {
            f"10.0.{place}.1": sum(map(sum, held[4 * place : 4 * place + 4])) for place in range(3)
        }


def test_an_address_is_forgotten_with_its_last_link_and_with_what_is_kept_for_it() -> None:
    clerk = Clerk()
    for number in range(1_000):
        budget = clerk.link(f"10.0.{number % 250}.{number // 250}:1")
        share = budget._share
        assert share is not None
        budget.hold(100)
        share.leave(clerk.addresses)  # a handler has not stopped yet
        assert len(clerk.addresses) <= 1
        again = clerk.link(f"10.0.{number % 250}.{number // 250}:2")._share
        assert again is not None and again.address.held == 100, "who comes back has its share of before"
        again.leave(clerk.addresses)
        budget.release(100)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1:80", "127.0.0.1"),
        ("10.1.2.3:40000", "10.1.2.3"),
        ("[::1]:80", "::/64"),
        ("[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:9:9:9:9]:81", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("[::ffff:10.1.2.3]:80", "10.1.2.3"),
        ("[nonsense]:80", "[nonsense]"),
        ("/run/bus", "/run/bus"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


def serving(**limits: int) -> Bus:
    """A bus with a handler that never returns, and one that echoes."""
    limits.setdefault("total_bytes", 64 * 1024 * KIB)
    bus = Bus(limits=Limits(close_timeout=0.1, **limits))

    @bus.handle("never")
    async def never(body: Any) -> None:
        await anyio.sleep_forever()

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    bus._lookup.handlers["never"].answers.weight = 0  # it is known already that there are none
    return bus


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_good_client_is_served_while_others_of_its_address_flood(size: int) -> None:
    bus = serving()
    async with AsyncExitStack() as stack:
        flood = []
        for _ in range(12):
            flooder = await stack.enter_async_context(pair(bus))
            flood += [flooder.request("never", "x" * size) for _ in range(180)]
            flood += [flooder.request("never") for _ in range(100)]  # also the last gap is filled
        await eventually(lambda: len(flood) <= bus.stats().running + bus.stats().waiting + bus.stats().refused)
        held = bus._services.running.buffered
        good = await stack.enter_async_context(pair(bus))
        for number in range(20):
            assert await good.request("echo", f"{number:05000}") == f"{number:05000}"
        together = [good.request("echo", number) for number in range(20)]
        assert [await reply for reply in together] == list(range(20))
        async with good.subscribe("news") as news:  # which costs memory
            await bus.publish("news", "good")
            assert (await anext(news)).body == "good"
        assert bus._services.running.buffered >= held, "the flooders have not been sent away for it"


async def coming_from(bus: Bus, address: str, stack: AsyncExitStack) -> Bus:
    client = await stack.enter_async_context(pair(bus))
    share = core_of(bus.peers[-1]).link.share
    assert share is not None
    share.leave(bus._services.running.addresses)
    share.join(bus._services.running.addresses, address)
    return client


async def take(bus: Bus, client: Bus, count: int) -> list[Any]:
    """Ask for so many places, and wait until the requests have come."""
    stats = bus.stats()
    replies = [client.request("never", 1) for _ in range(count)]
    await eventually(lambda: bus.stats().running + bus.stats().waiting == stats.running + stats.waiting + count)
    return replies


@pytest.mark.parametrize(
    ("place", "expected"),
    [("10.0.0.1:{}", [39, 18, *[1] * 10]), ("10.0.0.{}:1", [39, 19, 11, 7, 4, 2, 2, 1, 1, 1, 1, 1])],
    ids=["of one address", "of others"],
)
async def test_the_fewer_places_are_free_the_fewer_may_one_peer_have(place: str, expected: list[int]) -> None:
    bus = serving(total_running=100)
    async with AsyncExitStack() as stack:
        taken: list[int] = []
        for number in range(12):
            replies = await take(bus, await coming_from(bus, place.format(number), stack), 70)
            taken.append(bus.stats().running - sum(taken))
        assert taken == expected
        for reply in replies:
            reply.cancel()
        await eventually(lambda: bus.stats().running == sum(taken) - 1)


async def test_many_links_of_one_address_leave_a_quarter_of_the_places_to_other_addresses() -> None:
    bus = serving(total_running=100)
    async with AsyncExitStack() as stack:
        flood = [await take(bus, await coming_from(bus, "10.0.0.1:1", stack), 5) for _ in range(40)]
        assert bus.stats().running == 75
        good = await coming_from(bus, "10.0.0.2:1", stack)
        assert await good.request("echo", "good") == "good"
        # Those that have no place have not been forgotten: they get theirs when others give theirs back, or come to their end.
        late = await coming_from(bus, "10.0.0.1:1", stack)
        echo = late.request("echo", "late")
        await eventually(lambda: bus.stats().waiting == 40 * 5 - 75 + 1)
        for replies in flood:
            for reply in replies:
                reply.cancel()
        assert await echo == "late"
        await eventually(lambda: bus.stats().running == bus.stats().waiting == 0)
        assert [address.running for address in bus._services.running.addresses.values()] == [0, 0]


async def test_who_floods_from_behind_a_broker_leaves_a_quarter_of_the_places_to_those_who_come_directly() -> None:
    bus = Bus(limits=Limits(total_running=100, close_timeout=0.1))

    @bus.handle(1)
    async def never(body: Any) -> None:
        await anyio.sleep_forever()

    @bus.handle(2)
    async def echo(body: Any) -> Any:
        return body

    async with (
        Broker(clients="csb+tcp://127.0.0.1:0", servers="csb+tcp://127.0.0.1:0") as broker,
        bus,
        connect(broker.server_urls[0], bus=bus),
        AsyncExitStack() as stack,
    ):
        flooders = [await stack.enter_async_context(connect(broker.client_urls[0])) for _ in range(40)]
        asked = [flooder.request(1, b"") for flooder in flooders for _ in range(5)]
        await eventually(lambda: bus.stats().running + bus.stats().waiting == len(asked))
        assert 50 < bus.stats().running <= 75
        async with pair(bus, protocol="csb") as good:
            assert await good.request(2, b"good") == b"good"


@pytest.mark.parametrize(
    ("limits", "size", "match"),
    [
        ({"running": 2, "waiting": 3}, 10, r"3 of your requests wait \(Limits.waiting\) behind 2 that run \(Limits.running\)"),
        ({"running": 2, "waiting_bytes": 9000}, 4000, r"8\d{3} bytes of yours wait \(Limits.waiting_bytes\) behind 2 that run"),
        ({"running": 5, "total_running": 4, "waiting": 1}, 10, r"1 of your req.* behind 4 that run, as .*Limits.total_running"),
        ({"total_running": 10, "running": 9, "waiting": 0}, 10, r"0 of your .* behind 4 that run, as .*Limits.total_running"),
        ({"total_bytes": 60_000, "running": 1}, 4000, r"\d bytes of yours are kept here .*the share .* \(Limits.total_bytes\)"),
        ({"total_bytes": 60_000}, 40_000, r"0 bytes of yours are kept here already, and the share .* \(Limits.total_bytes\)"),
    ],
)
async def test_a_refusal_names_the_limit_that_was_reached_and_what_to_do(limits: dict[str, int], size: int, match: str) -> None:
    async with pair(bus := serving(**limits)) as client:
        replies = [client.request("never", "x" * size) for _ in range(12)]
        await eventually(lambda: bus.stats().refused > 0 and any(reply.done() for reply in replies))
        with pytest.raises(TooManyRequests, match=match + r".*: ask again when earlier ones have been answered"):
            await next(reply for reply in replies if reply.done())
