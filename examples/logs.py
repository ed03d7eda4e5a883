"""Logs as a stream: the last lines first, then new ones. A slow reader misses some and delays no other."""

import logging
from collections import deque
from collections.abc import AsyncIterator

import anyio
from attrs import frozen

from polybus import Bus, Context, connect

bus = Bus()
last: deque["Line"] = deque(maxlen=100)


@frozen
class Line:
    level: str
    text: str


@frozen
class Tail:
    levels: list[str]
    last: int = 10


class ToBus(logging.Handler):
    """Publishes a program's log with `publish_nowait`, since logging must not wait."""

    def emit(self, record: logging.LogRecord) -> None:
        line = Line(record.levelname, record.getMessage())
        last.append(line)
        bus.publish_nowait(f"log.{line.level.lower()}", line)


@bus.handle("log.tail")
async def tail(body: Tail, ctx: Context) -> AsyncIterator[Line]:
    async with ctx.bus.subscribe("log.*", returns=Line, queue=100, when_full="drop_oldest") as lines:
        for line in [line for line in last if line.level in body.levels][-body.last :]:
            yield line
        async for message in lines:
            if message.body.level in body.levels:
                yield message.body


async def main() -> None:
    log = logging.getLogger("plant")
    log.setLevel(logging.INFO)
    log.addHandler(ToBus())
    async with bus.serve("ubre+tcp://127.0.0.1:0") as server, connect(server.url) as client:
        log.warning("the oven is at 95 degrees")
        log.info("shift begins")
        async with client.stream("log.tail", Tail(["WARNING", "ERROR"]), returns=Line) as lines:
            print(await anext(lines))
            log.info("nobody asked for this")
            log.error("the oven is on fire")
            print(await anext(lines))


anyio.run(main)
