"""Behaviour of ports: Python in one process and JavaScript in a real browser play each row.

The result of a row is the same JSON on both sides. In the scripts, `settle` waits until all posts are delivered, `frame` adds
a frame to the page with a program given as a string, and `name` returns the name of an error that a function throws.
"""

import datetime
import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from attrs import define, field, frozen

from polybus._util.event_loop import running_loop
from polybus.transports.postmessage import ArrayBuffer, ClonedError, DataCloneError, InMemoryPort, MessageChannel, Unreadable

__all__ = ["ROWS", "Row"]


@frozen
class Row:
    """One point of the table."""

    name: str
    expected: Any
    script: str
    play: Callable[[], Awaitable[Any]]


ROWS: list[Row] = []


def row(expected: Any, script: str) -> Callable[[Callable[[], Awaitable[Any]]], None]:
    def add(play: Callable[[], Awaitable[Any]]) -> None:
        ROWS.append(Row(getattr(play, "__name__", ""), expected, script, play))

    return add


async def settle() -> None:
    """Everything posted is delivered, and what that has posted, too."""
    for _ in range(250):
        turn = anyio.Event()
        running_loop().call_soon(turn.set)
        await turn.wait()


def name(function: Callable[[], Any]) -> str:
    try:
        function()
    except DataCloneError:
        return "DataCloneError"
    except ValueError:
        return "SyntaxError"
    return "nothing"


@define
class Ports:
    """Both ends of a channel, and what has been heard."""

    port1: InMemoryPort
    port2: InMemoryPort
    log: list[Any] = field(factory=list)


CHANNEL = "const { port1, port2 } = new MessageChannel(); const log = []; const take = ({ data }) => log.push(data);"


def on_ports(expected: Any, script: str, *, listens: bool = False) -> Callable[[Callable[[Ports], Awaitable[Any]]], None]:
    """A row played on ports, of which the second may listen; the script and the play that give no result give the log."""
    if "return" not in script:
        script += "; await settle(); return log"

    def add(play: Callable[[Ports], Awaitable[Any]]) -> None:
        async def alone() -> Any:
            channel = MessageChannel()
            ports = Ports(channel.port1, channel.port2)
            if listens:
                ports.port2.on_message(ports.log.append)
            result = await play(ports)
            await settle()
            return ports.log if result is None else result

        begin = f"{CHANNEL} port2.onmessage = take; " if listens else f"{CHANNEL} "
        ROWS.append(Row(getattr(play, "__name__", ""), expected, begin + script, alone))

    return add


def listening(expected: Any, script: str) -> Callable[[Callable[[Ports], Awaitable[Any]]], None]:
    return on_ports(expected, script, listens=True)


@on_ports(
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


@on_ports(
    [[], [1, 2, 3]],
    """port2.addEventListener('message', take); port1.postMessage(1); port1.postMessage(2); await settle();
    port1.postMessage(3); const before = [...log]; port2.start(); await settle(); return [before, log]""",
)
async def a_listener_alone_starts_nothing_and_what_came_before_the_start_is_kept_in_order(ports: Ports) -> Any:
    ports.port2.add_listener(lambda event: ports.log.append(event.data))
    ports.port1.post(1)
    ports.port1.post(2)
    await settle()
    ports.port1.post(3)
    before = list(ports.log)
    ports.port2.start()
    return [before, ports.log]


@listening(
    [["DataCloneError"] * 4, ["later"]],
    """const wrong = [() => 1, { deep: [Symbol('s')] }, Promise.resolve(), new MessageChannel().port1];
    const names = wrong.map((data) => name(() => port1.postMessage(data))); port1.postMessage('later'); await settle();
    return [names, log]""",
)
async def what_cannot_be_cloned_is_refused_at_once_and_harms_nothing(ports: Ports) -> Any:
    wrong: list[Any] = [lambda: 1, {"deep": [object()]}, settle, MessageChannel().port1]
    names = [name(lambda: ports.port1.post(data)) for data in wrong]  # noqa: B023  # called at once
    ports.port1.post("later")
    return [names, ports.log]


@listening(
    [None, True, "text \U0001f600", 1.5, "1152921504606846977", True, True, [1, [2]], ["x"], True, 3],
    """port1.postMessage({ none: null, yes: true, text: 'text \\u{1f600}', number: 1.5, large: 2n ** 60n + 1n, nan: NaN,
      zero: -0, list: [1, [2]], set: new Set(['x']), date: new Date(0), bytes: new Uint8Array([1, 2, 3]) }); await settle();
    const got = log[0];
    return [got.none, got.yes, got.text, got.number, String(got.large), Number.isNaN(got.nan), Object.is(got.zero, -0),
      got.list, [...got.set], got.date instanceof Date && got.date.getTime() === 0, got.bytes.length]""",
)
async def values_are_kept(ports: Ports) -> Any:
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    sent = {
        "none": None, "yes": True, "text": "text \U0001f600", "number": 1.5, "large": 2**60 + 1, "nan": math.nan, "zero": -0.0,
        "list": [1, (2,)], "set": {"x"}, "date": epoch, "bytes": b"\1\2\3",
    }  # fmt: skip
    ports.port1.post(sent)
    await settle()
    got = ports.log[0]
    return [
        got["none"], got["yes"], got["text"], got["number"], str(got["large"]), math.isnan(got["nan"]),
        math.copysign(1, got["zero"]) == -1, got["list"], list(got["set"]), got["date"] == epoch, len(got["bytes"]),
    ]  # fmt: skip


@listening(
    [True, True, False],
    """const shared = [1]; const data = { one: shared, other: shared }; data.itself = data;
    port1.postMessage(data); shared.push(2); await settle(); const got = log[0];
    return [got.itself === got, got.one === got.other, got.one.length === 2]""",
)
async def cycles_and_shared_references_are_kept_in_a_copy(ports: Ports) -> Any:
    shared = [1]
    data: dict[str, Any] = {"one": shared, "other": shared}
    data["itself"] = data
    ports.port1.post(data)
    shared.append(2)
    await settle()
    got = ports.log[0]
    return [got["itself"] is got, got["one"] is got["other"], len(got["one"]) == 2]


@row(
    [["messageerror", "later"], 0],
    """const log = []; onmessage = ({ data }) => log.push(data); const { port1, port2 } = new MessageChannel();
    await frame(origin.replace('127.0.0.1', 'localhost'), `onmessage = ({ ports: [port] }) => {
      port.onmessageerror = () => parent.postMessage('messageerror', '*');
      port.onmessage = ({ data }) => parent.postMessage(data, '*'); parent.postMessage('ready', '*') }`);
    document.querySelector('iframe').contentWindow.postMessage('here', '*', [port2]); await until(() => log.length);
    // Code of WebAssembly is not given to another site.
    const code = new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])), buffer = new ArrayBuffer(8);
    port1.postMessage({ deep: [code] }, [buffer]); port1.postMessage('later'); await until(() => log.length > 2);
    return [log.slice(1), buffer.byteLength]""",
)
async def what_cannot_be_read_is_a_message_error_and_what_follows_arrives() -> Any:
    channel = MessageChannel()
    log: list[Any] = []
    channel.port2.on_message(log.append)
    channel.port2.on_message_error(lambda: log.append("messageerror"))
    buffer = ArrayBuffer(bytes(8))
    channel.port1.post({"deep": [Unreadable()]}, [buffer])
    channel.port1.post("later")
    await settle()
    return [log, len(buffer)]


@listening(
    ["TypeError", "no", True],
    """const error = new TypeError('no'); error.code = 7; port1.postMessage(error); await settle();
    return [log[0].name, log[0].message, log[0].code === undefined]""",
)
async def of_an_error_its_kind_and_text_are_kept(ports: Ports) -> Any:
    error: Any = TypeError("no")
    error.code = 7
    ports.port1.post(error)
    await settle()
    got = ports.log[0]
    assert isinstance(got, ClonedError)
    return [got.name, got.message, not hasattr(got, "code")]


@listening(
    [0, 8, "DataCloneError", "DataCloneError"],
    """const buffer = new ArrayBuffer(8); port1.postMessage({ deep: [new Set([buffer])] }, [buffer]); await settle();
    return [buffer.byteLength, [...log[0].deep[0]][0].byteLength, name(() => port1.postMessage('m', [buffer])),
    name(() => port1.postMessage(buffer))]""",
)
async def a_buffer_that_was_transferred_arrives_in_its_place_and_is_empty_here(ports: Ports) -> Any:
    buffer = ArrayBuffer(bytes(8))
    ports.port1.post({"deep": [{buffer}]}, [buffer])
    await settle()
    (inner,) = ports.log[0]["deep"][0]
    names = [name(lambda: ports.port1.post("m", [buffer])), name(lambda: ports.port1.post(buffer))]
    return [len(buffer), len(inner), *names]


@listening(
    ["DataCloneError", "DataCloneError", "DataCloneError", 8, ["later"]],
    """const other = new MessageChannel().port1; const buffer = new ArrayBuffer(8);
    const names = [name(() => port1.postMessage('m', [port1])), name(() => port1.postMessage('m', [other, other])),
      name(() => port1.postMessage(() => 1, [buffer]))];
    port1.postMessage('later', [other]); await settle(); return [...names, buffer.byteLength, log]""",
)
async def nothing_is_given_up_when_the_transfer_fails(ports: Ports) -> Any:
    other, buffer = MessageChannel().port1, ArrayBuffer(bytes(8))
    names = [
        name(lambda: ports.port1.post("m", [ports.port1])),
        name(lambda: ports.port1.post("m", [other, other])),
        name(lambda: ports.port1.post(settle, [buffer])),
    ]
    ports.port1.post("later", [other])
    return [*names, len(buffer), ports.log]


@on_ports(
    [["early", "late"], "DataCloneError", [["answer"]]],
    """const carried = new MessageChannel(); const heard = [], answers = [];
    carried.port1.onmessage = ({ data }) => answers.push([data]);
    carried.port1.postMessage('early');
    port2.onmessage = ({ ports: [port] }) => { port.onmessage = ({ data }) => heard.push(data); port.postMessage('answer') };
    port1.postMessage('here', [carried.port2]); carried.port1.postMessage('late'); await settle();
    return [heard, name(() => port1.postMessage('again', [carried.port2])), answers]""",
)
async def a_port_that_is_transferred_takes_along_what_waits_in_it(ports: Ports) -> Any:
    carried, answers = MessageChannel(), list[Any]()
    carried.port1.on_message(lambda data: answers.append([data]))
    carried.port1.post("early")

    def take(event: Any) -> None:
        (port,) = event.ports
        port.on_message(ports.log.append)
        port.post("answer")

    ports.port2.add_listener(take)
    ports.port2.start()
    ports.port1.post("here", [carried.port2])
    carried.port1.post("late")
    await settle()
    return [ports.log, name(lambda: ports.port1.post("again", [carried.port2])), answers]


@listening(
    ["nothing", "nothing", ["before"]],
    """port2.onclose = take; port1.postMessage('before'); port1.close();
    const one = name(() => port1.postMessage('m')); port1.onmessage = take;
    const other = name(() => port2.postMessage('m')); await settle(); return [one, other, log]""",
)
async def what_was_posted_before_a_close_arrives_what_comes_after_it_goes_nowhere_and_nobody_is_told(ports: Ports) -> Any:
    ports.port2.on_close(ports.log.append)
    ports.port1.post("before")
    ports.port1.close()
    one = name(lambda: ports.port1.post("m"))
    ports.port1.on_message(ports.log.append)
    return [one, name(lambda: ports.port2.post("m")), ports.log]
