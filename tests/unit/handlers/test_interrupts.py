"""`KeyboardInterrupt` and `GeneratorExit` in the application's code: passed on, or answered; the server stays whole."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from polybus import Bus, ConnectFailed, connect
from polybus.testing import pair
from tests.support import BOUND
from tests.unit.answering import answering

pytestmark = pytest.mark.native
LOOPS = [("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})]


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Python's own for Ctrl-C: PySpark leaves another one behind, where its tests run in the same process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=["usual", "foreign"])
def handler(request: pytest.FixtureRequest) -> None:
    """Python's own, or one such as PySpark's, which the event loops leave in its place."""

    def foreign(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if request.param == "foreign":
        signal.signal(signal.SIGINT, foreign)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def stopping() -> Bus:
    bus = answering()

    @bus.handle("stop")
    async def stop() -> None:
        raise KeyboardInterrupt

    @bus.handle("stop.later")
    async def stop_later() -> None:
        await anyio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    return bus


@pytest.mark.parametrize(
    ("loop", "handler"),
    [*((loop, "usual") for loop in LOOPS), *((loop, "foreign") for loop in LOOPS[:2])],
    indirect=["handler"],
)
@pytest.mark.parametrize("subject", ["stop", "stop.later"])
def test_ctrl_c_in_a_handler_ends_the_program_and_the_bus_in_order_whatever_handles_the_signal(
    loop: Any, handler: None, subject: str
) -> None:
    bus, answered = stopping(), list[bool]()

    async def main() -> None:
        with anyio.fail_after(BOUND):
            async with pair(bus) as client:
                reply = client.request(subject)
                try:
                    await anyio.sleep_forever()
                finally:
                    answered.append(reply.done())

    with pytest.raises(KeyboardInterrupt):
        anyio.run(main, backend=loop[0], backend_options=loop[1])
    assert answered == [True]
    assert bus._services.runtime is None


@pytest.mark.parametrize("subject", ["stop", "stop.later"])
@pytest.mark.usefixtures("handler")
def test_a_loop_that_runs_again_after_ctrl_c_has_a_bus_that_serves(subject: str, loop: asyncio.AbstractEventLoop) -> None:
    bus = stopping()

    async def ask(subject: str, body: Any = None) -> Any:
        return await client.request(subject, body, timeout=BOUND)

    async def stop() -> None:
        _ = client.request(subject)
        await asyncio.sleep(BOUND)

    paired = pair(bus)
    client = loop.run_until_complete(paired.__aenter__())
    stopped = loop.create_task(stop())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(stopped)
    stopped.cancel()
    assert loop.run_until_complete(ask("echo", 1)) == 1
    assert bus.stats().running == 0
    loop.run_until_complete(paired.__aexit__(None, None, None))


@pytest.mark.usefixtures("handler")
def test_ctrl_c_in_authenticate_is_passed_on_and_the_stranger_is_told_at_once(loop: asyncio.AbstractEventLoop) -> None:
    def authenticate(handshake: Any) -> str:
        if interrupts:
            raise interrupts.pop()
        return "ann"

    interrupts = [KeyboardInterrupt()]
    bus = Bus(authenticate=authenticate)
    said: list[Exception] = []

    async def knock() -> None:
        try:
            async with connect("ubre+memory://interrupted"):
                pass
        except ConnectFailed as error:
            said.append(error)

    serving = bus.serve("ubre+memory://interrupted")
    loop.run_until_complete(serving.__aenter__())
    knocking = loop.create_task(knock())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.sleep(BOUND))
    loop.run_until_complete(asyncio.wait_for(knocking, BOUND / 2))
    assert "cannot authenticate you now" in str(said[0])
    loop.run_until_complete(knock())
    assert len(said) == 1
    loop.run_until_complete(serving.__aexit__(None, None, None))


def test_ctrl_c_in_authorize_is_passed_on_and_costs_the_link_only(loop: asyncio.AbstractEventLoop) -> None:
    def authorize(peer: Any, verb: str, subject: Any) -> bool:
        if verb == "publish" and interrupts:
            raise interrupts.pop()
        return True

    interrupts = [KeyboardInterrupt()]
    bus = Bus(authorize=authorize)

    @bus.handle("echo")
    async def echo(body: int) -> int:
        return body

    async def ask() -> int:
        return int(await client.request("echo", 1, timeout=BOUND / 2))

    async def publish() -> None:
        await client.publish("news")
        await asyncio.sleep(BOUND)

    paired = pair(bus, reconnect=True)
    client = loop.run_until_complete(paired.__aenter__())
    published = loop.create_task(publish())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(published)
    published.cancel()
    assert loop.run_until_complete(ask()) == 1
    loop.run_until_complete(paired.__aexit__(None, None, None))
