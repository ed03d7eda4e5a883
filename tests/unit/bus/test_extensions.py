"""What a wing adds to a bus is told of the bus's life, its links and its clients."""

from typing import Any

import anyio

from polybus import Bus, connect
from polybus._core.bus.bus import parts_of
from polybus.plugins.extensions import Extension
from tests.loops import both_backends  # noqa: F401
from tests.support import eventually


class Diary(Extension):
    def __init__(self, bus: Bus) -> None:
        self.told: list[str] = []
        parts_of(bus).links.extensions.append(self)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not callable(found):
            return found

        def noted(*facts: Any) -> Any:
            self.told.append(name)
            return found(*facts)

        return noted


async def test_an_extension_is_told_of_the_life_of_its_bus_its_link_and_its_client() -> None:
    server, client = Bus(), Bus()
    of_server, of_client = Diary(server), Diary(client)
    async with server, server.serve("ubre+memory://told"):
        async with client, connect("ubre+memory://told", bus=client):
            await eventually(lambda: "client_up" in of_server.told)
            await client.drain(5)
        await eventually(lambda: "client_gone" in of_server.told)
        await server.aclose()
    life = ["withdraw", "last_turn", "link_down", "link_gone", "finish", "leave", "give_back", "clear"]
    assert of_client.told == ["begin", "link_up", *life]
    assert of_server.told == ["begin", "client_up", "client_gone", "give_back", "clear"]


async def test_a_bus_is_not_ready_while_an_extension_says_why_and_drains_while_one_is_busy() -> None:
    class Busy(Extension):
        why, works, asked = "the index is being built", True, 0

        def why_not_ready(self) -> str:
            return self.why

        @property
        def busy(self) -> bool:
            self.asked += 1
            return self.works

    bus, busy, drained = Bus(), Busy(), anyio.Event()
    parts_of(bus).links.extensions.append(busy)

    async def drain() -> None:
        await bus.drain(60)
        drained.set()

    async with bus, anyio.create_task_group() as group:
        assert bus.why_not_ready == "the index is being built"
        busy.why = ""
        assert bus.why_not_ready == ""
        group.start_soon(drain)
        await eventually(lambda: busy.asked > 0)
        await anyio.wait_all_tasks_blocked()
        assert not drained.is_set()
        busy.works = False
        parts_of(bus).services.running.notifier.signal()
        await drained.wait()
