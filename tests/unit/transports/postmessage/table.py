"""Behaviour of ports: Python in one process and JavaScript in a real browser play each row.

The result of a row is the same JSON on both sides. In the scripts, `settle` waits until all posts are delivered.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from attrs import define, field, frozen

from polybus._util.event_loop import running_loop
from polybus.transports.postmessage import InMemoryPort, MessageChannel

__all__ = ["ROWS", "Row"]


@frozen
class Row:
    """One point of the table."""

    name: str
    expected: Any
    script: str
    play: Callable[[], Awaitable[Any]]


ROWS: list[Row] = []


async def settle() -> None:
    """Everything posted is delivered, and what that has posted, too."""
    for _ in range(250):
        turn = anyio.Event()
        running_loop().call_soon(turn.set)
        await turn.wait()


@define
class Ports:
    """Both ends of a channel, and what has been heard."""

    port1: InMemoryPort
    port2: InMemoryPort
    log: list[Any] = field(factory=list)


CHANNEL = "const { port1, port2 } = new MessageChannel(); const log = []; const take = ({ data }) => log.push(data); "


def row(expected: Any, script: str) -> Callable[[Callable[[Ports], Awaitable[Any]]], None]:
    """A row played on both ends of a channel; the script and the play that give no result give the log."""
    if "return" not in script:
        script += "; await settle(); return log"

    def add(play: Callable[[Ports], Awaitable[Any]]) -> None:
        async def alone() -> Any:
            channel = MessageChannel()
            ports = Ports(channel.port1, channel.port2)
            result = await play(ports)
            await settle()
            return ports.log if result is None else result

        ROWS.append(Row(getattr(play, "__name__", ""), expected, CHANNEL + script, alone))

    return add


@row(
    ["a", "after a", "b", "after b"],
    """port2.onmessage = ({ data }) => { log.push(data); queueMicrotask(() => log.push('after ' + data)) };
    port1.postMessage('a'); port1.postMessage('b')""",
)
async def one_message_a_turn(ports: Ports) -> None:
    def take(data: Any) -> None:
        ports.log.append(data)
        running_loop().call_soon(lambda: ports.log.append(f"after {data}"))

    ports.port2.on_message(take)
    ports.port1.post("a")
    ports.port1.post("b")


@row(
    ["1", "2", "3"],
    """port1.postMessage('1'); port1.postMessage('2'); await settle(); port1.postMessage('3'); port2.onmessage = take""",
)
async def what_came_before_anybody_listened_is_kept_in_order(ports: Ports) -> None:
    ports.port1.post("1")
    ports.port1.post("2")
    await settle()
    ports.port1.post("3")
    ports.port2.on_message(ports.log.append)


@row(
    [[], ["m"]],
    """port2.onmessage = take; port1.postMessage('m'); const before = [...log]; await settle(); return [before, log]""",
)
async def nothing_is_delivered_within_a_post(ports: Ports) -> Any:
    ports.port2.on_message(ports.log.append)
    ports.port1.post("m")
    return [list(ports.log), ports.log]


@row(
    ["before"],
    """port2.onclose = port2.onmessage = take; port1.postMessage('before'); port1.close(); port1.postMessage('m');
    port1.onmessage = take; port2.postMessage('m')""",
)
async def what_was_posted_before_a_close_arrives_what_comes_after_it_goes_nowhere_and_nobody_is_told(ports: Ports) -> None:
    ports.port2.on_message(ports.log.append)
    ports.port2.on_close(ports.log.append)
    ports.port1.post("before")
    ports.port1.close()
    ports.port1.post("m")
    ports.port1.on_message(ports.log.append)
    ports.port2.post("m")
