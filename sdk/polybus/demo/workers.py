"""Four workers serve one address and are one bus: what is said at one is heard at all, and one of them is killed."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter
from typing import TypeAlias

import anyio
from attrs import define, field

from .. import Backoff, Bus, LocalProtocolError, Reply, Subscription, Unavailable, connect
from ..cluster.engine import find_server
from .children import Child
from .crew import USER
from .play import TIMEOUT, CheckFailed, DemoRow, NotHere, RowRun, Workshop, check
from .schema import Announced, Question

WORKERS = 4
PUBLICATIONS = 25
PAGE = "ann"
_BACKOFF = Backoff(initial=0.01, maximum=0.2)

Pid: TypeAlias = int


@define
class Crew:
    """Clients of the workers, one at each, and the page of a user at one of them."""

    url: str
    process: Child
    stack: AsyncExitStack
    page: Bus
    thinking: anyio.Event = field(factory=anyio.Event)
    clients: dict[Pid, Bus] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        @self.page.handle("payment.confirm")
        async def confirm(amount: int) -> str:
            return f"{PAGE} pays {amount}"

        @self.page.handle("payment.think")
        async def think() -> None:
            self.thinking.set()
            await anyio.sleep_forever()

    async def home(self) -> Pid:
        """The worker that the page is connected to."""
        return await self.page.request("crew.worker", timeout=TIMEOUT, returns=int)

    async def one_address(self) -> str:
        """Four processes take connections at one address."""
        with anyio.move_on_after(TIMEOUT):
            while len(self.clients) < WORKERS:  # which of them takes a connection is chance
                async with AsyncExitStack() as stack:
                    client = await stack.enter_async_context(connect(self.url, backoff=_BACKOFF))
                    pid = await client.request("crew.worker", timeout=TIMEOUT, returns=int)
                    if pid not in self.clients:
                        self.clients[pid] = client
                        _ = await self.stack.enter_async_context(stack.pop_all())
        check(len(self.clients) == WORKERS, f"{len(self.clients)} workers have taken a connection")
        return f"{self.url}: pids {', '.join(map(str, sorted(self.clients)))}"

    async def publications(self) -> str:
        """Publications of the client of one worker reach the clients of all: once, and in their order."""
        async with AsyncExitStack() as stack:
            heard = [
                await stack.enter_async_context(client.subscribe("crew.news", returns=Announced))
                for client in self.clients.values()
            ]
            async with anyio.create_task_group() as group:
                for pid, client in self.clients.items():
                    group.start_soon(_announce, client, pid)
            for subscription in heard:
                await self._all_heard(subscription)
        return f"{WORKERS} x {PUBLICATIONS} publications, each heard by the clients of {WORKERS} workers, none twice"

    async def _all_heard(self, subscription: Subscription[Announced]) -> None:
        numbers: dict[Pid, list[int]] = {pid: [] for pid in self.clients}
        for _ in range(WORKERS * PUBLICATIONS):
            body = (await subscription.receive(TIMEOUT)).body
            numbers[body.publisher].append(body.number)
        wrong = [pid for pid, found in numbers.items() if found != list(range(PUBLICATIONS))]
        check(not wrong, f"of the publications at worker {wrong[:1]} came {[numbers[pid] for pid in wrong[:1]]}")

    async def user(self) -> str:
        """The page of a user is asked, wherever it is connected."""
        home = await self.home()
        for pid, client in self.clients.items():
            answer = await client.request("crew.ask", Question(PAGE, "payment.confirm", pid), timeout=TIMEOUT)
            check(answer == f"{PAGE} pays {pid}", f"asked at worker {pid} the page says {answer!r}")
        try:
            _ = await next(iter(self.clients.values())).request(
                "crew.ask", Question("bob", "payment.confirm", 1), timeout=TIMEOUT
            )
        except Unavailable as error:
            check(error.text == "bob: connected nowhere", f"of a user who is not there it is said {error.text!r}")
        else:
            raise CheckFailed("a user who is not there has answered")
        return f"{PAGE}, at worker {home}, was asked at all {WORKERS}; bob is connected nowhere"

    async def killed(self) -> str:
        """The worker with the page is killed: who had asked is told, the page comes back at another, a new worker starts."""
        home = await self.home()
        other = next(client for pid, client in self.clients.items() if pid != home)
        pending: Reply[object] = other.request("crew.ask", Question(PAGE, "payment.think"), timeout=60)
        with anyio.fail_after(TIMEOUT):
            await self.thinking.wait()
        began = perf_counter()
        os.kill(home, signal.SIGKILL)
        with anyio.fail_after(TIMEOUT):
            try:
                _ = await pending
            except Unavailable as error:
                check(error.text == f"{PAGE}: gone amid the answer", f"who had asked is told {error.text!r}")
            else:
                raise CheckFailed("a page of a killed worker has answered")
        told = perf_counter() - began
        with anyio.fail_after(TIMEOUT):
            while True:
                try:
                    answer = await other.request("crew.ask", Question(PAGE, "payment.confirm", 7), timeout=TIMEOUT)
                    break
                except Unavailable:
                    await anyio.sleep(0.01)
        check(answer == f"{PAGE} pays 7", f"after its return the page says {answer!r}")
        back = perf_counter() - began
        del self.clients[home]
        _ = await self.one_address()
        check(home not in self.clients, "the killed worker answers")
        _ = await self.publications()
        return f"who had asked was told in {told * 1000:.0f} ms, the page was back in {back * 1000:.0f}; a new worker serves"

    async def drain(self) -> str:
        """A signal to the first process: all workers drain, and the engine ends after them."""
        began = perf_counter()
        self.process.send(signal.SIGTERM)
        with anyio.fail_after(TIMEOUT):
            status = await self.process.ended()
        check(status == 0, f"the exit status is {status}")
        return f"all have ended in {(perf_counter() - began) * 1000:.0f} ms, status 0"


STEPS = {
    "one address": Crew.one_address,
    "publications of all": Crew.publications,
    "a user asked": Crew.user,
    "worker killed": Crew.killed,
    "drain of all": Crew.drain,
}


async def _announce(client: Bus, pid: Pid) -> None:
    for number in range(PUBLICATIONS):
        await client.request("crew.announce", Announced(pid, number), timeout=TIMEOUT)


async def _play(row: RowRun, workshop: Workshop) -> None:
    if os.name != "posix":
        raise NotHere("several workers need POSIX")
    try:
        _ = find_server()
    except LocalProtocolError as error:
        raise NotHere(str(error)) from None
    log = workshop.folder / "crew.log"
    async with Child("crew", "ubre+ws://127.0.0.1:0/bus", str(WORKERS), log=log) as process:
        url = (await process.start()).split()[1]
        async with (
            connect(url, bus=Bus(), headers={USER: PAGE}, backoff=_BACKOFF, record=workshop.record) as page,
            AsyncExitStack() as stack,
        ):
            crew = Crew(url, process, stack, page)
            for name, step in STEPS.items():
                await row.step(name, partial(step, crew))
            row.sent, row.received = page.stats().sent, page.stats().received


def worker_rows() -> list[DemoRow]:
    """One row: a cluster is the same, whatever its clients speak."""
    return [DemoRow("cluster", "workers", "ws", tuple(STEPS), _play)]
