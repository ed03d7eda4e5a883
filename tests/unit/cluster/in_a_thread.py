"""A cluster in a thread, on its own port: for tests of blocking code, and of commands."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from queue import Queue
from typing import Any

from anyio.from_thread import start_blocking_portal
from attrs import field, frozen

from polybus import Bus, Context, Identity
from polybus.testing import NatsEngine, cluster, pair
from tests.support import BOUND

TOKEN = "s3cret"


@frozen
class RunningCluster:
    """Two workers, named ``one`` and ``two``, each with a client: the users ``ann`` and ``bob``."""

    url: str
    """Of the cluster ``shop``, with the token."""
    heard: Queue[tuple[str, str, Any]] = field(factory=Queue)
    """Who has heard what, and on which subject."""

    def next_heard(self, count: int) -> list[tuple[str, str, Any]]:
        return sorted(self.heard.get(timeout=BOUND) for _ in range(count))


def _worker(name: str) -> Bus:
    bus = Bus(cluster="auto")

    @bus.handle("thumbnail.make")
    async def make(picture: str, ctx: Context) -> str:
        return f"{picture}.small"

    @bus.handle(f"name.{name}")
    async def who() -> str:
        return name

    return bus


def _page(key: str, heard: Queue[tuple[str, str, Any]]) -> Bus:
    page = Bus()

    @page.on("news.*")
    async def on_news(body: object, ctx: Context) -> None:
        heard.put((key, str(ctx.message.subject), body))

    @page.on("build.done")
    async def on_build(body: object) -> None:
        heard.put((key, "build.done", body))

    @page.handle("payment.confirm")
    async def confirm(payment: dict[str, int]) -> dict[str, Any]:
        return {"by": key, "ok": payment["sum"] < 100}

    @page.handle("pages")
    async def pages() -> AsyncIterator[str]:
        yield key
        yield "again"

    return page


@asynccontextmanager
async def _running() -> AsyncIterator[RunningCluster]:
    async with NatsEngine("tcp://127.0.0.1:0", token=TOKEN, keeps=False) as engine, AsyncExitStack() as stack:
        url = engine.url.replace("://", f"://{TOKEN}@") + "/shop"
        running = RunningCluster(url)
        workers = {"ann": _worker("one"), "bob": _worker("two")}
        await stack.enter_async_context(cluster(*workers.values(), url=url))
        for key, worker in workers.items():
            page = _page(key, running.heard)
            await stack.enter_async_context(pair(worker, client=page, identity=Identity(key.title(), key=key)))
        yield running


@contextmanager
def running_cluster() -> Iterator[RunningCluster]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_running()) as running:
        yield running
