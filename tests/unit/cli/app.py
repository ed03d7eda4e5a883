"""A server for the commands: `make()` serves it in a test's process, `bus` is imported by `polybus serve app:bus`."""

from collections.abc import AsyncIterator

import anyio

from polybus import Bus, Forbidden, NotFound

NASTY = "\x1b[31mred\x1b]0;title\x07\nERROR: none\r\x00\x9b2J \u202egnp"


def make() -> Bus:
    bus = Bus()

    @bus.handle("greet")
    async def greet(name: str) -> str:
        return f"Hello, {name}"

    bus.handle("echo")(lambda body: body)
    bus.handle(0x00010001)(lambda body: {"numbered": body})
    bus.handle("7")(lambda body: {"text": body})
    bus.handle("said")(lambda: {"said": NASTY})

    @bus.handle("vault")
    async def vault() -> None:
        raise Forbidden("not you")

    @bus.handle("break")
    async def break_down() -> None:
        raise RuntimeError("a secret")

    @bus.handle("nasty")
    async def nasty() -> None:
        raise NotFound(NASTY)

    @bus.handle("count")
    async def count(most: int) -> AsyncIterator[dict[str, int]]:
        for number in range(most):
            yield {"number": number}
        if most == 2:
            raise NotFound("there is no third")

    @bus.handle("tick")
    async def tick() -> AsyncIterator[int]:
        yield 1
        await anyio.sleep_forever()

    return bus


bus = make()
