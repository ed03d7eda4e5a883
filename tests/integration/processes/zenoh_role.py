"""A bus on Zenoh. Its only argument is a JSON object of options:

* ``backend``: of the event loop
* ``serve`` or ``connect``: a URL; ``entity`` and ``publishes``: names of Up; it prints its URL in a line of JSON when it is
ready
* ``then``: its action: ``stay``; ``cancel`` its task; ``crash`` with an exception;
  ``loop``: abandon the event loop with the bus in it; ``return``
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import anyio

from polybus import Bus, connect
from polybus.protocols import Up

TOPIC = "//device1/1/1/8001"


async def main(options: dict[str, Any], ready: Callable[[], None] = lambda: None) -> None:
    bus, heard = Bus(), list[int]()

    @bus.on(TOPIC)
    async def hear(body: Any) -> None:
        heard.append(len(body))

    @bus.handle(f"{options['entity']}/1")
    async def count() -> int:
        return len(heard)

    protocol = Up(entity=options["entity"])
    if "serve" in options:
        linked: Any = bus.serve(options["serve"], protocol=protocol)
    else:
        linked = connect(options["connect"], bus=bus, protocol=protocol)
    async with linked as listener:
        print(json.dumps({"urls": [getattr(listener, "url", "")]}), flush=True)
        ready()
        then = options["then"]
        if then == "crash":
            raise RuntimeError("the program has a mistake")
        if then == "cancel":
            with anyio.move_on_after(0):
                await anyio.sleep_forever()
            return
        if then == "return":
            return
        await anyio.sleep_forever()


def give_up(options: dict[str, Any]) -> None:
    """Run a loop until the bus is there, and then never again."""
    loop = asyncio.new_event_loop()
    ready = loop.create_future()
    task = loop.create_task(main(options | {"then": "stay"}, lambda: ready.set_result(None)))
    loop.run_until_complete(ready)
    sys.modules["__main__"].__dict__["kept"] = loop, task  # nobody collects it before the end
    raise RuntimeError("the loop is over")


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["then"] == "loop":
        give_up(given)
    anyio.run(main, given, backend=given["backend"])
