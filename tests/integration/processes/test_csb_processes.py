"""CSB in real processes: who is killed takes nobody along, and a thousand clients are spread evenly."""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from attrs import define, field

from polybus import Backoff, Bus, BusError, DeadlineExceeded, Disconnected, connect
from tests.support import free_port

from .processes import BOUND, MIB, Process, eventually, running

ROUNDS = int(os.environ.get("POLYBUS_KILL_ROUNDS", "2"))
"""Of each victim. POLYBUS_KILL_ROUNDS=20 is for those who have the time."""
BACKOFF = Backoff(initial=0.02, maximum=0.2)
WORKERS = 8


@define
class Traffic:
    """Clients in this process that ask all the time and look at every answer."""

    counted: Counter[str] = field(factory=Counter)
    stop: bool = False

    async def work(self, bus: Bus, worker: int) -> None:
        number = 0
        while not self.stop:
            number += 1
            body = b"%d of %d of %d" % (number, worker, id(bus))
            try:
                answer = await bus.request(7, body, timeout=BOUND)
            except Disconnected:
                self.counted["lost"] += 1
                await anyio.lowlevel.checkpoint()  # the next one waits for the link
            except DeadlineExceeded:
                self.counted["stuck"] += 1
            except BusError as error:
                self.counted[f"failed: {error}"] += 1
            else:
                self.counted["good" if answer == body else "wrong"] += 1

    async def more(self) -> None:
        """Wait until all goes well again."""
        before = self.counted["good"]
        await eventually(lambda: self.counted["good"] > before + 200)


class Installation:
    """A broker, two servers and a client as processes, each of which may be killed and started again."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.ports = free_port(), free_port(), free_port()
        self.url = f"csb+tcp://127.0.0.1:{self.ports[0]}"
        self.for_servers = f"csb+tcp://127.0.0.1:{self.ports[1]}"
        self.metrics = f"http://127.0.0.1:{self.ports[2]}"
        self.running: dict[str, Process] = {}

    async def start(self, name: str) -> None:
        options: dict[str, dict[str, Any]] = {
            "broker": {"role": "broker", "clients": self.url, "servers": self.for_servers, "metrics": self.metrics},
            "east": {"role": "server", "url": self.for_servers, "name": "east"},
            "west": {"role": "server", "url": self.for_servers, "name": "west"},
            "client": {"role": "client", "url": self.url},
        }
        self.running[name] = await self._stack.enter_async_context(running("csb_role", **options[name]))

    async def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        await process.ended()

    async def numbers(self) -> dict[str, float]:
        async with httpx.AsyncClient(trust_env=False, timeout=BOUND) as http:
            lines = (await http.get(f"{self.metrics}/metrics")).text.splitlines()
        words = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name.removeprefix("polybus_broker_"): float(value) for name, value in words}

    async def state(self, bus: Bus) -> dict[str, int]:
        """Of the server that this client is assigned to."""
        answer: dict[str, int] = await bus.request("state", timeout=BOUND)
        return answer


@asynccontextmanager
async def installed() -> AsyncIterator[Installation]:
    async with AsyncExitStack() as stack:
        made = Installation(stack)
        for name in ("broker", "east", "west", "client"):
            await made.start(name)
        yield made


@pytest.mark.timeout(600)
async def test_whoever_is_killed_takes_nobody_along() -> None:
    traffic = Traffic()
    async with installed() as made, AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(connect(made.url, backoff=BACKOFF)) for _ in range(4)]
        async with anyio.create_task_group() as group:
            for bus in buses:
                for worker in range(WORKERS):
                    group.start_soon(traffic.work, bus, worker)
            await traffic.more()
            first_files: dict[str, int] = {}
            for turn in range(ROUNDS):
                for victim in ("client", "east", "west", "broker"):
                    await made.kill(victim)
                    await made.start(victim)
                    await traffic.more()
                if turn == 0:
                    first_files = {name: process.files() for name, process in made.running.items()}
            traffic.stop = True
        counted = traffic.counted
        assert counted["lost"] > 0
        assert counted["stuck"] == counted["wrong"] == 0
        # A request that meets the moment without a server, or a server that leaves, ends too; nothing else happens to any.
        assert not [what for what in counted if what.startswith("failed")], counted
        # Nothing is left of those who are gone: neither at the broker nor at the servers. All of a server's connections come
        # back, each in its own time: traffic goes on as soon as one of them has.
        here = len(buses) + 1
        await eventually(lambda: _settled(made, here, sockets=4))
        numbers = await made.numbers()
        assert sum(value for name, value in numbers.items() if name.startswith("server_clients")) == here
        assert not [name for name in numbers if name.startswith("frames_dropped") and "late" not in name]
        for server in ("east", "west"):
            probe = await stack.enter_async_context(connect(made.url, backoff=BACKOFF))
            while await probe.request("who", timeout=BOUND) != server:  # each one more goes to whoever has fewer
                probe = await stack.enter_async_context(connect(made.url, backoff=BACKOFF))
            await eventually(partial(_nothing_waits, made, probe))
        for name, process in made.running.items():
            assert process.running(), process.log()
            assert "Traceback" not in process.log()
            assert process.files() <= first_files[name] + 16
            assert process.memory() < 200 * MIB
        print(f"{ROUNDS} rounds of each victim: {dict(counted)}")


async def _settled(made: Installation, clients: int, *, sockets: int) -> bool:
    numbers = await made.numbers()
    assert (numbers["clients"], numbers["sockets"], numbers["clients_closing"]) == (clients, sockets, 0)
    return True


async def _nothing_waits(made: Installation, probe: Bus) -> bool:
    state = await made.state(probe)
    assert state["pending"] == state["malformed"] == state["waiting"] == 0
    assert state["peers"] == state["parties"]
    return True
