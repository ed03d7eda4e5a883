"""Objects that a handler is given by annotation, and types that no body becomes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Protocol

import attrs
import pytest

from polybus import Bus, Channel, Message, Peer, Subject
from polybus.testing import pair


@attrs.frozen
class Charge:
    sum: int


@attrs.frozen
class BigCharge(Charge):
    reason: str


class Plain:
    pass


class Shape(Protocol):
    def area(self) -> float: ...


async def test_a_handler_is_given_the_bus_and_the_peer_by_annotation() -> None:
    bus, given = Bus(), list[object]()

    @bus.handle("ask")
    async def ask(n: int, on: Bus, peer: Peer | None, message: Message) -> int:
        given.extend([on, peer, message.subject])
        return n

    async with pair(bus) as client:
        assert await client.request("ask", 1) == 1
        assert given == [bus, bus.peers[0], "ask"]
        given.clear()
        assert await bus.request("ask", 2) == 2
        assert given == [bus, None, "ask"]


@pytest.mark.parametrize("kind", [Plain, asyncio.Queue, Callable, Shape, list[Plain], dict[str, Plain | None], logging.Logger])
def test_a_parameter_of_a_type_that_no_decoder_makes_is_refused_at_registration(kind: Any) -> None:
    async def take(body: Any) -> None: ...

    take.__annotations__["body"] = kind
    with pytest.raises(TypeError, match=r"take: bodies cannot be decoded as the type of parameter 'body': no decoder makes a "):
        Bus().handle("x")(take)


@pytest.mark.parametrize("kind", ["int", Plain, list[Plain]])
async def test_an_answer_of_such_a_type_is_refused_before_anything_is_sent(kind: Any) -> None:
    bus, asked = Bus(), list[int]()

    @bus.handle("ask")
    async def ask(n: int) -> int:
        asked.append(n)
        return n

    async with pair(bus) as client:
        for verb in (client.request, client.stream):
            with pytest.raises(TypeError, match="returns="):
                verb("ask", 1, returns=kind)
        with pytest.raises(TypeError, match="receives="):
            client.channel("ask", receives=kind)
        assert await client.request("ask", 2) == 2
    assert asked == [2]


CHARGE = Subject("billing.charge", Charge, int)


async def charge(body: Charge) -> int: ...  # type: ignore[empty-body]
async def charge_by_anything(body: Any) -> Any: ...
async def charge_without_words(body): ...  # type: ignore[no-untyped-def]
async def charge_or_nothing(body: Charge | None) -> bool: ...  # type: ignore[empty-body]
async def charge_annotated(body: Annotated[Charge, "checked"]) -> int: ...  # type: ignore[empty-body]
async def charges(body: Charge) -> AsyncIterator[int]:
    yield body.sum


@pytest.mark.parametrize(
    "handler", [charge, charge_by_anything, charge_without_words, charge_or_nothing, charge_annotated, charges]
)
def test_a_handler_that_agrees_with_its_subject_is_registered(handler: Any) -> None:
    Bus().handle(CHARGE)(handler)


async def charge_text(body: str) -> int: ...  # type: ignore[empty-body]
async def charge_big(body: BigCharge) -> int: ...  # type: ignore[empty-body]
async def charge_receipt(body: Charge) -> str: ...  # type: ignore[empty-body]
async def charge_maybe(body: Charge) -> int | None: ...
async def receipts(ch: Channel[Charge, str]) -> None: ...
async def many_receipts(body: Charge) -> AsyncIterator[str]:
    yield ""


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (charge_text, r"charge_text reads 'body' as str, but its Subject takes Charge: change the annotation or the Subject"),
        (charge_big, "reads 'body' as BigCharge"),
        (charge_receipt, "charge_receipt returns str, but its Subject returns int"),
        (charge_maybe, "returns int"),
        (many_receipts, "returns str"),
        (receipts, "receipts returns str, but its Subject returns int"),
    ],
)
def test_a_handler_that_contradicts_its_subject_is_refused_at_registration(handler: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        Bus().handle(CHARGE)(handler)


def test_a_subscriber_is_compared_with_what_its_subject_takes_alone() -> None:
    bus = Bus()
    bus.on(Subject("charged", Charge, None))(charge)
    with pytest.raises(TypeError, match="charge_text reads 'body' as str"):
        bus.on(Subject("charged", Charge, None))(charge_text)  # type: ignore[arg-type]


def test_a_misspelled_name_of_the_pattern_is_not_taken_for_a_second_body() -> None:
    async def see(dya: str, body: int) -> None: ...

    with pytest.raises(TypeError, match=r"has no parameter for \{day\} of the pattern 'news.\{day\}': add it, or use \*"):
        Bus().on("news.{day}")(see)
