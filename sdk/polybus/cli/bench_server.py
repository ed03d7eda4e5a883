"""The other side of `polybus bench`, in a process of its own: ``python -m polybus.cli.bench_server LOOP URL...``"""

from __future__ import annotations

import sys

from .. import Bus, run
from ..demo.children import leave_with_parent

ECHO = "bench.echo"
ONE_WAY = "bench.one_way"
COUNT = "bench.count"


def make_bus() -> Bus:
    """Echoes requests and counts publications."""
    bus = Bus()
    seen = 0

    @bus.handle(ECHO)
    async def echo(body: object) -> object:
        return body

    @bus.on(ONE_WAY, when_full="drop_newest", queue=100_000)
    async def count(body: object) -> None:
        nonlocal seen
        seen += 1

    @bus.handle(COUNT)
    async def counted() -> int:
        return seen

    return bus


def main(loop: str, *urls: str) -> None:
    leave_with_parent()
    run(make_bus(), *urls, drain=1, backend="trio" if loop == "trio" else "asyncio", uvloop=loop == "uvloop")


if __name__ == "__main__":
    main(*sys.argv[1:])
