"""An operator's desk, the client in `polybus demo`. It reads step names such as ``ask`` from stdin, one per line.

python -m polybus.demo.desk ubre+ws://127.0.0.1:8000/bus
"""

import signal
import sys

import anyio

from polybus import Backoff, BadRequest, Bus, Disconnected, Retry, connect
from polybus.demo.plant import Tank
from polybus.events import LinkDown, LinkUp

BACKOFF = Backoff(initial=0.05, maximum=0.5)


async def ask(bus: Bus) -> None:
    tank = await bus.request("tank.level", 7, returns=Tank, timeout=5)
    print(tank)


async def fill(bus: Bus) -> None:
    await bus.request("tank.fill", Tank(7, litres=20))


async def listen(bus: Bus) -> None:
    async with bus.subscribe("tank.*", returns=Tank) as tanks:
        print("listening")
        async for message in tanks:
            print("heard", message.subject, message.body)


async def read(bus: Bus) -> None:
    async with bus.stream("tank.log", 7, returns=float) as log:
        async for litres in log:
            if litres > 75:
                print("read up to", litres)
                break


async def mistake(bus: Bus) -> None:
    wrong = {"number": 7, "litres": "many"}
    try:
        await bus.request("tank.fill", wrong)
    except BadRequest as error:
        print(error.text)


async def wait(bus: Bus) -> None:
    try:
        print(await bus.request("tank.clean", 60, timeout=90))
    except Disconnected as error:
        print("Disconnected:", error.reason)


async def work(bus: Bus) -> None:
    cleaning = bus.request("tank.clean", 0.5)
    print("this plant:", await cleaning)
    level = bus.request("tank.level", 7, returns=Tank, retry=Retry())
    print("the next one:", await level)


async def watch(bus: Bus) -> None:
    async for event in bus.events():
        if isinstance(event, LinkDown):
            print("link down:", event.reason)
        elif isinstance(event, LinkUp) and event.again:
            print("link up again")


STEPS = {step.__name__: step for step in (ask, fill, read, mistake, wait, work)}


async def sit(bus: Bus) -> None:
    """Subscribe, and run the steps named on stdin until stdin ends."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, bus)
        tasks.start_soon(listen, bus)
        async for line in anyio.wrap_file(sys.stdin):
            if step := STEPS.get(line.strip()):
                tasks.start_soon(step, bus)
            else:
                print("steps:", *STEPS)
        tasks.cancel_scope.cancel()


async def main(url: str, record: str | None) -> None:
    async with connect(url, record=record, backoff=BACKOFF) as bus:
        await sit(bus)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit on Ctrl-C even while a thread reads stdin
    anyio.run(main, sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
