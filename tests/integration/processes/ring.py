"""A ring of servers and gateways whose connections break, and a record of what came where.

Servers that relay, over real sockets, gateways between them, and one publisher and one subscriber on each server. Servers
publish as well. Everything is in one process, and each connection but the subscribers' leads through a `Proxy`; or gateways
are processes that are killed.
What breaks when is chosen by a seed and counted in publications, not in seconds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import SocketAttribute, SocketStream

from polybus import Backoff, Bus, BusError, Message, Route, bridge, connect
from tests.support import eventually

from .processes import Process

__all__ = ["BOTH_WAYS", "SOON", "History", "Proxy", "Ring", "ring"]

SOON = Backoff(initial=0.01, maximum=0.05)
BOTH_WAYS = [Route("ring.>", "ring.{rest}"), Route("ring.>", "ring.{rest}", reverse=True)]
_GONE = (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.BusyResourceError)


class Proxy:
    """Passes bytes on between whoever connects and a port, until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._scopes: dict[anyio.CancelScope, SocketStream] = {}
        """Of each connection, with the server's half."""
        self._deaf: set[SocketStream] = set()
        """Halves that were told that nothing more comes."""
        self._flowing = anyio.Event()
        self._flowing.set()
        self.open = True
        self.port = 0

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(SocketAttribute.local_port)
        async with listener:
            task_status.started()
            await listener.serve(self._pass)

    async def _pass(self, near: SocketStream) -> None:
        async with near:
            if not self.open:
                return
            with suppress(*_GONE):
                async with await anyio.connect_tcp("127.0.0.1", self._target) as far, anyio.create_task_group() as group:
                    self._scopes[group.cancel_scope] = far
                    try:
                        group.start_soon(self._copy, near, far)
                        await self._copy(far, near)
                        group.cancel_scope.cancel()
                    finally:
                        del self._scopes[group.cancel_scope]
                        self._deaf.discard(far)

    async def _copy(self, source: SocketStream, to: SocketStream) -> None:
        with suppress(*_GONE):
            while True:
                await self._flowing.wait()
                data = await source.receive()
                await self._flowing.wait()
                if to not in self._deaf:
                    await to.send(data)
        if to not in self._deaf:
            with suppress(*_GONE):
                await to.send_eof()

    def cut(self) -> None:
        """End all connections; what is on the way is lost."""
        for scope in list(self._scopes):
            scope.cancel()

    async def half_close(self) -> None:
        """Tell the servers that nothing more comes, and go on passing their own bytes."""
        for far in set(self._scopes.values()) - self._deaf:
            self._deaf.add(far)
            with suppress(*_GONE):
                await far.send_eof()

    def stall(self) -> None:
        """Pass nothing more on until `flow`."""
        if self._flowing.is_set():
            self._flowing = anyio.Event()

    def flow(self) -> None:
        """Pass on again, and take connections."""
        self.open = True
        self._flowing.set()

    def shut(self) -> None:
        """Cut, and let nobody in until `flow`."""
        self.open = False
        self.cut()


class History:
    """What came to one place, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[tuple[str, str, int]] = []

    def take(self, subject: str, body: Any) -> None:
        self.heard.append((subject, body[0], body[1]))

    def duplicates(self) -> int:
        """Publications that came again."""
        return sum(times - 1 for times in Counter(self.heard).values())

    def reorderings(self) -> int:
        """Publications that came after a later one of their publisher on the same subject."""
        wrong, last = 0, dict[tuple[str, str], int]()
        for subject, publisher, number in self.heard:
            before = last.get((subject, publisher), -1)
            wrong += number < before
            last[subject, publisher] = max(number, before)
        return wrong


class Ring:
    """The servers and gateways, their proxies and histories."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.servers: list[Bus] = []
        self.clients: list[Bus] = []
        """One on each server, that publishes."""
        self.gateways: list[tuple[Bus, Bus]] = []
        self.processes: list[tuple[Process, list[str]]] = []
        """Gateways that live, with the URLs that they join."""
        self.started: list[Process] = []
        self.proxies: list[Proxy] = []
        self.histories: list[History] = []
        self._number = 0
        self._stopped: list[Proxy] = []

    @property
    def publishers(self) -> list[Bus]:
        """All that publish: clients, and the servers themselves."""
        return [*self.clients, *self.servers]

    async def publish(self, rounds: int, subjects: int = 1) -> None:
        """So many publications of each publisher."""
        for _ in range(rounds):
            self._number += 1
            for which, publisher in enumerate(self.publishers):
                with suppress(BusError):
                    publisher.publish_nowait(f"ring.{which}.{self._number % subjects}", [f"p{which}", self._number])
            for _ in range(10):  # so that what is published travels while the next is
                await anyio.lowlevel.checkpoint()

    async def fault(self) -> None:
        """Something breaks, or what was broken is mended."""
        proxy = self.random.choice(self.proxies)
        kind = self.random.choice(("cut", "cut", "shut", "stall", "stall", "half", "mend", "mend"))
        if kind == "cut":
            proxy.cut()
        elif kind == "half":
            await proxy.half_close()
        elif kind == "mend":
            self.mend(1)
        elif len(self._stopped) < 2:
            (proxy.shut if kind == "shut" else proxy.stall)()
            self._stopped.append(proxy)

    async def kill(self) -> None:
        """A gateway's process is killed while publications pass through it, and another one takes its place."""
        which = self.random.randrange(len(self.processes))
        process, between = self.processes[which]
        await self.publish(self.random.randint(1, 20), subjects=3)
        process.kill()
        await self.publish(self.random.randint(1, 20), subjects=3)
        self.processes[which] = await self.gateway(between)

    async def gateway(self, between: list[str]) -> tuple[Process, list[str]]:
        """A gateway in a process of its own, when it is there."""
        process = await anyio.to_thread.run_sync(Process, "ring_gateway", {"between": between})
        self.started.append(process)
        await anyio.to_thread.run_sync(process.introduce)
        return process, between

    def mend(self, count: int | None = None) -> None:
        """Let what is stopped flow again; all of it where no number is given."""
        left = self._stopped[:count] if count is not None else self._stopped
        for proxy in left:
            proxy.flow()
        self._stopped = self._stopped[len(left) :]

    async def settle(self) -> None:
        """Wait until all is connected again, and what was on its way has come."""
        self.mend()
        for proxy in self.proxies:
            proxy.flow()
        await eventually(lambda: all(self._connected(bus) for bus in self._dialling()))
        await self.drain()

    async def drain(self) -> None:
        """Wait until what is published now comes to everybody: what is on its way before that has come then."""
        for _ in range(50):
            self._number += 1
            for which, publisher in enumerate(self.publishers):
                await publisher.publish(f"ring.{which}.end", [f"p{which}", self._number])
            wanted = {(f"p{which}", self._number) for which in range(len(self.publishers))}
            with anyio.move_on_after(2.0):  # one may be lost on a connection of which nobody knows yet that it is gone
                await eventually(partial(self._have, wanted))
                return
        raise AssertionError("publications do not come to everybody any more")

    def end(self) -> None:
        """End the processes that were started."""
        for process in self.started:
            process.stop()

    def _have(self, wanted: set[tuple[str, int]]) -> bool:
        return all(wanted <= {(publisher, number) for _, publisher, number in it.heard[-50:]} for it in self.histories)

    def _dialling(self) -> list[Bus]:
        return [*self.clients, *(bus for gateway in self.gateways for bus in gateway)]

    @staticmethod
    def _connected(bus: Bus) -> bool:
        return all(peer.connected for peer in bus.peers) and bool(bus.peers)


@asynccontextmanager
async def ring(wires: tuple[str, ...], seed: int, links: int = 1, *, processes: bool = False) -> AsyncIterator[Ring]:
    """A running ring with a server on each of the wires; its gateways may be processes."""
    it = Ring(seed)
    async with anyio.create_task_group() as group, AsyncExitStack() as stack:
        stack.callback(it.end)
        enter = stack.enter_async_context
        stack.callback(group.cancel_scope.cancel)
        urls: list[str] = []
        for which, wire in enumerate(wires):
            server = Bus()
            server.relay("ring.>")
            history = History(f"server {which}")
            server.on("ring.>", inline=True, queue=100_000)(_noting(history))
            listener = await enter(server.serve(f"{wire}://127.0.0.1:0"))
            it.servers.append(server)
            it.histories.append(history)
            urls.append(listener.url)

        async def through(url: str) -> str:
            port = int(url.split("?")[0].rstrip("/").rpartition(":")[2].split("/")[0])
            proxy = Proxy(port)
            await group.start(proxy.run)
            it.proxies.append(proxy)
            return url.replace(f":{port}", f":{proxy.port}")

        for at, url in enumerate(urls):
            if processes:
                it.processes.append(await it.gateway([url, urls[(at + 1) % len(urls)]]))
            for _ in range(0 if processes else links):
                sides = Bus(), Bus()
                for side, near in zip(sides, (url, urls[(at + 1) % len(urls)]), strict=True):
                    await enter(connect(await through(near), bus=side, backoff=SOON))
                await enter(bridge(*sides, routes=BOTH_WAYS))
                it.gateways.append(sides)
        for which, url in enumerate(urls):
            publisher = Bus()
            await enter(connect(await through(url), bus=publisher, backoff=SOON))
            it.clients.append(publisher)
            subscriber = Bus()
            history = History(f"client of {which}")
            subscriber.on("ring.>", inline=True, queue=100_000)(_noting(history))
            await enter(connect(url, bus=subscriber, backoff=SOON))
            it.histories.append(history)
        yield it


def _noting(history: History) -> Callable[..., None]:
    def note(body: Any, message: Message) -> None:
        history.take(str(message.subject), body)

    return note
