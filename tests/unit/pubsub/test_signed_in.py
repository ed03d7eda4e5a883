"""Signed in is not trusted: what the log says of clients that nothing restricts, and handlers out of their reach."""

from typing import Any

import pytest

from polybus import Bus, Router, Subject
from polybus._core.bus.bus import parts_of
from polybus.asyncapi import document
from polybus.testing import pair
from tests.support import eventually

WIRES = ["ubre", "csb", "jrep", "uprotocol"]


def names(handshake: Any) -> str:
    return "ann"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "polybus.security" and one.levelname == "WARNING"]


def with_handler(heard: list[Any], **options: Any) -> Bus:
    bus = Bus(authenticate=names, **options)

    @bus.on("orders.placed")
    async def placed(order: int) -> None:
        heard.append(order)

    return bus


async def test_the_first_publication_of_a_client_to_a_handler_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    bus = with_handler(heard := list[Any]())
    async with pair(bus, identity="ann") as ann, pair(bus, identity="ben") as ben:
        await bus.publish("orders.placed", 0)
        await ann.publish("other", 1)
        await eventually(lambda: heard == [0])
        assert told(caplog) == []
        for number in range(1, 4):
            await (ann if number % 2 else ben).publish("orders.placed", number)
        await eventually(lambda: len(heard) == 4)
    [line] = told(caplog)
    assert "'orders.placed'" in line and "placed" in line and "authorize=" in line and "peers=False" in line


async def test_the_first_wildcard_of_a_client_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(Bus(authenticate=names), identity="ann") as ann:
        async with ann.subscribe("orders.placed"):
            assert told(caplog) == []
        async with ann.subscribe(">"), ann.subscribe("orders.*"):
            pass
    [line] = told(caplog)
    assert "'>'" in line and "authorize=" in line


@pytest.mark.parametrize("options", [{"authorize": lambda peer, verb, subject: True}, {"authenticate": None}])
async def test_nothing_is_warned_of_where_something_decides(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    heard, bus = list[Any](), Bus(**{"authenticate": names, **options})
    bus.on("orders.placed")(lambda order: heard.append(order))
    async with pair(bus) as ann, ann.subscribe(">"):
        await ann.publish("orders.placed", 1)
        await eventually(lambda: heard == [1])
    assert told(caplog) == []


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("how", ["bus", "router", "late"])
async def test_a_handler_with_peers_false_hears_its_bus_alone(wire: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    heard, bus, router = list[Any](), Bus(authenticate=names), Router(prefix="orders.")
    name = "//v/a/1/door#Door" if wire == "uprotocol" else "orders.placed"

    def placed(order: int) -> None:
        heard.append(order)

    bus.on(name)(lambda order: heard.append(-order))
    if how == "router" and wire != "uprotocol":
        router.on(Subject("placed", int), peers=False)(placed)
        bus.include(router)
    elif how != "late":
        bus.on(name, peers=False)(placed)
    async with pair(bus, protocol=wire, identity="ann") as ann:
        if how == "late":
            bus.on(name, peers=False)(placed)
        await ann.publish(name, 1)
        await eventually(lambda: heard == [-1])
        await bus.publish(name, 2)
        await eventually(lambda: sorted(heard) == [-2, -1, 2])
        await ann.publish(name, 3)
        await eventually(lambda: len(heard) == 4)
    assert sorted(heard) == [-3, -2, -1, 2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"peers": None}, "peers=None must be bool"),
        ({"peers": 0}, "peers=0 must be bool"),
        ({"peers": False, "group": "g"}, "group='g'"),
        ({"peers": False, "durable": "d"}, "durable='d'"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_registration(options: dict[str, Any], says: str) -> None:
    for made in (Bus(), Router()):
        with pytest.raises(TypeError if len(options) == 1 else ValueError, match=says):
            made.on("a", **options)


def hears(bus: Bus, subject: str) -> bool:
    return bool(parts_of(bus).pubsub.remote.match(subject))


async def test_peers_are_not_told_of_a_handler_that_they_cannot_reach() -> None:
    server, client = Bus(), Bus()
    client.on("news", peers=False)(lambda body: None)
    client.on("weather")(lambda body: None)
    async with pair(server, client=client):
        await eventually(lambda: hears(server, "weather"))
        assert not hears(server, "news")


def test_the_document_of_a_bus_does_not_show_what_peers_cannot_send() -> None:
    bus = Bus()
    bus.on("hidden", peers=False)(lambda body: None)
    bus.on("shown")(lambda body: None)
    text = str(document(bus, title="t", version="1"))
    assert "shown" in text and "hidden" not in text
