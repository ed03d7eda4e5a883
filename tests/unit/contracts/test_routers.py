"""Routers that implement contracts, for buses that include them."""

from typing import Any, Protocol

import pytest

from polybus import Bus, Router, method
from polybus.testing import pair
from tests.support import eventually

from .users import User, Users, UsersInMemory


class Door(Protocol):
    @method(0x10001)
    async def open(self) -> None: ...


class DoorAlone(Door):
    async def open(self) -> None:
        pass


@pytest.mark.parametrize(
    ("own", "contracts", "included", "subjects"),
    [
        ("", "", "", ""),
        ("", "user", "", "user"),
        ("shop.", "user", "", "shop.user"),
        ("", "user", "eu.", "eu.user"),
        ("shop.", "user", "eu.", "eu.shop.user"),
        ("user.", "", "", "user"),
    ],
)
async def test_a_bus_answers_what_an_included_router_implements(own: str, contracts: str, included: str, subjects: str) -> None:
    router, users, bus = Router(prefix=own), UsersInMemory(), Bus()
    router.implement(Users, users, contracts)
    bus.include(router, prefix=included)
    async with pair(bus) as client:
        asked = client.client(Users, subjects)
        assert await asked.get(7) == User(7)
        assert [user.id async for user in asked.watch(2)] == [0, 1]
        await asked.touch(7)
        await eventually(lambda: users.touched == [(7, f"{subjects}.touch".lstrip("."))])


@pytest.mark.parametrize("taken", ["shop.user.touch", "shop.user.get"])
def test_a_router_registers_all_methods_or_none(taken: str) -> None:
    router: Any = Router(prefix="shop.")
    router.handle(taken.removeprefix("shop."))(lambda: None)
    with pytest.raises(TypeError, match=f"UsersInMemory.*: '{taken}' is already handled by"):
        router.implement(Users, UsersInMemory(), "user")
    with pytest.raises(TypeError, match="Users is a class|UsersInMemory is a class: pass an object"):
        router.implement(Users, UsersInMemory, "user")
    bus = Bus()
    bus.include(router)
    assert repr(bus).endswith("1 handler>")


def test_a_number_has_no_room_for_the_prefix_of_a_router() -> None:
    with pytest.raises(TypeError, match=r"DoorAlone\.open: prefix='shop\.' cannot be put before 65537"):
        Router(prefix="shop.").implement(Door, DoorAlone())
    router = Router()
    router.implement(Door, DoorAlone())
    with pytest.raises(TypeError, match=r"DoorAlone\.open: prefix='shop\.' cannot be put before 65537"):
        Bus().include(router, prefix="shop.")


def test_a_prefix_of_a_router_is_not_put_before_a_whole_uri() -> None:
    class Trunk(Protocol):
        @method("/body.access/1/rpc.open")
        async def open(self) -> None: ...

    class TrunkAlone(Trunk):
        async def open(self) -> None:
            pass

    says = r"prefix='shop\.' cannot be put before the URI '/body\.access/1/rpc\.open', which is already complete: omit"
    with pytest.raises(TypeError, match=r"TrunkAlone\.open: " + says):
        Router(prefix="shop.").implement(Trunk, TrunkAlone())
    with pytest.raises(TypeError, match="^" + says):
        Router(prefix="shop.").on("/body.access/1/rpc.open")


async def test_a_gateway_implements_a_contract_by_the_client_of_another_bus() -> None:
    users, inner, outer = UsersInMemory(), Bus(), Bus()
    inner.implement(Users, users, "user")
    async with pair(inner) as behind:
        outer.implement(Users, behind.client(Users, "user"), "user")
        async with pair(outer) as client:
            asked = client.client(Users, "user")
            assert await asked.get(7) == User(7)
            assert [user.id async for user in asked.watch(2)] == [0, 1]
            await asked.touch(7)
            await eventually(lambda: users.touched == [(7, "user.touch")])
