"""Behaviour of windows, frames and ports: Python in one process and JavaScript in a real browser play each row.

The result of a row is the same JSON on both sides. In the scripts, `settle` waits until all posts are delivered, `frame` adds
a frame to the page with a program given as a string, and `name` returns the name of an error that a function throws.
"""

import datetime
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
from attrs import define, field, frozen

from polybus._util.event_loop import running_loop
from polybus.testing.browser import Frame, Window
from polybus.transports.postmessage import ArrayBuffer, ClonedError, DataCloneError, InMemoryPort, MessageChannel, Unreadable

__all__ = ["ROWS", "Row"]

HOST = "https://host.example"

Scene: TypeAlias = "Callable[[str], Awaitable[Any]]"


@frozen
class Row:
    """One point of the table."""

    name: str
    expected: Any
    script: str
    play: Callable[[str], Awaitable[Any]]
    """Takes the origin of frames."""
    framed: bool = False
    """Played with frames of the same and of another site."""


ROWS: list[Row] = []


def row(expected: Any, script: str, *, framed: bool = False) -> Callable[[Callable[[str], Awaitable[Any]]], None]:
    def add(play: Callable[[str], Awaitable[Any]]) -> None:
        ROWS.append(Row(getattr(play, "__name__", ""), expected, script, play, framed))

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
        async def alone(origin: str) -> Any:
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


# -- ports ---------------------------------------------------------------------------------------------------------------


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
async def what_cannot_be_read_is_a_message_error_and_what_follows_arrives(origin: str) -> Any:
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


# -- windows and frames --------------------------------------------------------------------------------------------------


def framed(
    origin: str, program: Callable[[Window], Any], *, hear: Callable[[Any], Any] | None = None, **options: Any
) -> tuple[Window, Frame, list[Any]]:
    """A page, its frame, and what the page hears: data, or what `hear` makes of an event."""
    host = Window(HOST)
    frame, log = Frame(host, **options), list[Any]()
    host.add_listener(lambda event: log.append(event.data if hear is None else hear(event)))
    frame.load(origin, program)
    return host, frame, log


def say(window: Window, data: Any) -> None:
    """To the page around."""
    assert window.parent is not None
    window.parent.post_message(data, "*", source=window)


def echo(window: Window) -> None:
    """A page that says that it is there, and gives back what it hears."""
    window.add_listener(lambda event: say(window, event.data))
    say(window, "here")


ECHO = "onmessage = ({ data }) => parent.postMessage(data, '*'); parent.postMessage('here', '*')"
HEAR = "const log = []; onmessage = ({ data }) => log.push(data);"


@row(
    [["here"], ["here", "second"]],
    HEAR
    + f"""const child = await frame(origin, `{ECHO}`); await until(() => log.length);
    const before = [...log]; child.contentWindow.postMessage('first', 'https://wrong.example');
    child.contentWindow.postMessage('second', child.sandbox.length ? '*' : origin); await until(() => log.length > 1);
    await settle();
    return [before, log]""",
    framed=True,
)
async def a_message_for_another_origin_is_dropped_without_a_word(origin: str) -> Any:
    host, frame, log = framed(origin, echo)
    await settle()
    before = list(log)
    assert frame.content_window is not None
    frame.content_window.post_message("first", "https://wrong.example", source=host)
    frame.content_window.post_message("second", origin, source=host)
    await settle()
    assert frame.content_window.dropped == 1
    return [before, log]


@row(
    [["/", "/page?x#y", "case", "user"], ["", " ", "about:blank", "x", "http://"]],
    HEAR
    + """const mine = { '/': '/', '/page?x#y': `${location.origin}/page?x#y`, case: location.origin.toUpperCase(),
      user: location.origin.replace('//', '//me:secret@') };
    for (const [sent, target] of Object.entries(mine)) window.postMessage(sent, target);
    window.postMessage('lost', 'file:///page'); window.postMessage('lost', 'https://127.0.0.1'); await settle();
    const wrong = ['', ' ', 'about:blank', 'x', 'http://'];
    return [log, wrong.filter((target) => name(() => window.postMessage('m', target)) === 'SyntaxError')]""",
)
async def of_a_target_the_origin_is_meant(origin: str) -> Any:
    window = Window("http://host.example:8000")
    log: list[Any] = []
    window.add_listener(lambda event: log.append(event.data))
    mine = {"/": "/", "/page?x#y": f"{window.origin}/page?x#y", "case": window.origin.upper()}
    mine["user"] = window.origin.replace("//", "//me:secret@")
    for sent, target in mine.items():
        window.proxy.post_message(sent, target, source=window)
    for target in ("file:///page", "https://host.example"):
        window.proxy.post_message("lost", target, source=window)
    await settle()
    wrong = ["", " ", "about:blank", "x", "http://"]
    refused = [t for t in wrong if name(lambda: window.proxy.post_message("m", t, source=window)) == "SyntaxError"]  # noqa: B023
    return [log, refused]


@row(
    ["here"],
    HEAR
    + f"""const loading = frame(origin, `{ECHO}`); document.querySelector('iframe').contentWindow.postMessage('lost', '*');
    await loading; await until(() => log.length); await settle(); return log""",
    framed=True,
)
async def what_is_posted_before_the_frame_has_loaded_is_lost(origin: str) -> Any:
    host, frame, log = framed(origin, echo)
    assert frame.content_window is not None
    frame.content_window.post_message("lost", "*", source=host)
    await settle()
    return log


@row(
    ["null", "back"],
    """const log = []; onmessage = ({ origin, data }) => log.push(data === 'here' ? origin : data);
    const child = await frame(origin, `onmessage = () => parent.postMessage('back', '*');
    parent.postMessage('here', '*')`, { sandbox: true });
    await until(() => log.length); child.contentWindow.postMessage('m', '*'); child.contentWindow.postMessage('m', origin);
    await until(() => log.length > 1); await settle(); return log""",
    framed=True,
)
async def a_sandboxed_page_has_an_opaque_origin_and_no_other(origin: str) -> Any:
    def program(window: Window) -> None:
        window.add_listener(lambda event: say(window, "back"))
        say(window, "here")

    def hear(event: Any) -> Any:
        return event.origin if event.data == "here" else event.data

    host, frame, log = framed(origin, program, hear=hear, sandbox=True)
    await settle()
    assert frame.content_window is not None
    frame.content_window.post_message("m", "*", source=host)
    frame.content_window.post_message("m", origin, source=host)
    await settle()
    return log


@row(
    [True],
    """const log = []; onmessage = (event) => log.push(event.origin === location.origin);
    const child = document.createElement('iframe'); child.srcdoc = "<script>parent.postMessage('here', '*')</" + "script>";
    document.body.append(child); await until(() => log.length); return log""",
)
async def a_page_in_srcdoc_has_the_origin_of_its_host(origin: str) -> Any:
    host = Window(HOST)
    frame = Frame(host)
    log: list[Any] = []
    host.add_listener(lambda event: log.append(event.origin == host.origin))
    frame.load_srcdoc(lambda window: say(window, "here"))
    await settle()
    return log


@row(
    [["one"], "nothing", ["one"]],
    """const log = []; let port; onmessage = ({ data, ports }) => { if (!port) { port = ports[0];
    port.onmessage = (event) => log.push(event.data) } };
    const child = await frame(origin, `const { port1, port2 } = new MessageChannel();
    parent.postMessage('here', '*', [port2]);
      port1.postMessage('one'); port1.onmessage = () => port1.postMessage('more')`);
    await until(() => log.length); const before = [...log]; child.remove(); await settle();
    const said = name(() => port.postMessage('m')); await settle(); return [before, said, log]""",
    framed=True,
)
async def a_port_of_a_page_that_is_gone_is_silent(origin: str) -> Any:
    log = list[Any]()

    def hear(event: Any) -> Any:
        event.ports[0].on_message(log.append)
        return event.ports[0]

    def program(window: Window) -> None:
        channel, host = MessageChannel(), window.parent
        assert host is not None
        host.post_message("here", "*", [channel.port2], source=window)
        channel.port1.post("one")
        channel.port1.on_message(lambda data: channel.port1.post("more"))
        window.own(channel.port1)

    _, frame, ports = framed(origin, program, hear=hear)
    await settle()
    before = list(log)
    frame.remove()
    await settle()
    said = name(lambda: ports[0].post("m"))
    await settle()
    return [before, said, log]
