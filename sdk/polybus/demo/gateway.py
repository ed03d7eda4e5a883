"""Between the pages of operators and a vehicle: a process. ``python -m polybus.demo.gateway PAGES VEHICLE``

It knows nothing of doors or diagnostics but their names.
"""

from __future__ import annotations

import sys

import anyio

from .. import Backoff, Bus, Route, bridge, connect
from .children import leave_with_parent

_ROUTES = (
    Route("vehicle.>", "{rest}"),
    Route("door.*", "vehicle.door.{1}", {"publish"}, reverse=True),
    Route("diagnostics", "diagnostics", {"tunnel"}),
)
_BACKOFF = Backoff(initial=0.05, maximum=0.4)


async def _run(pages: str, vehicle: str) -> None:
    left, right = Bus(), Bus()
    async with (
        connect(vehicle, bus=right, backoff=_BACKOFF, wait=10),
        left.serve(pages) as listener,
        bridge(left, right, routes=_ROUTES),
    ):
        print("serving", listener.url, flush=True)
        await left.wait_closed()


if __name__ == "__main__":
    leave_with_parent()
    anyio.run(_run, sys.argv[1], sys.argv[2])
