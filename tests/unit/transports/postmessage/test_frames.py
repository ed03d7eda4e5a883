"""The handshake between a page and its frame, with windows in one process: strangers, and reloads in mid-request."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from attrs import define, field

from polybus import Backoff, Bus, ConnectFailed, Disconnected, connect
from polybus.events import LinkDown
from polybus.testing.browser import Frame, StrangeHello, Window, connect_to_host, serve_frame
from polybus.transports.postmessage import InMemoryPort, PortTransport
from tests.support import eventually, next_event
from tests.unit.transports.postmessage.table import settle

HOST = "https://host.example"
CHILD = "https://child.example"
BACKOFF = Backoff(initial=0.001, maximum=0.005)
HELLO = {"tag": "polybus", "type": "hello", "v": 1, "nonce": "n"}


@define
class Page:
    """What is loaded into the frame: a bus of its own, for as long as the page is there."""

    group: Any
    origins: tuple[str, ...] = (HOST,)
    shown: int = 0
    """How often it was loaded."""
    handled: list[int] = field(factory=list)

    def __call__(self, window: Window) -> None:
        self.shown += 1
        scope = anyio.CancelScope()
        window.on_pagehide(scope.cancel)
        self.group.start_soon(self._run, window, scope, self.shown)

    def bus(self, number: int) -> Bus:
        bus = Bus()

        @bus.handle("count")
        async def count(body: int) -> int:
            self.handled.append(body)
            return number

        @bus.handle("slow")
        async def slow(body: int) -> int:
            self.handled.append(body)
            await anyio.sleep_forever()
            return number

        return bus

    async def _run(self, window: Window, scope: anyio.CancelScope, number: int) -> None:
        with scope:
            await anyio.lowlevel.checkpoint()  # in a browser, nothing runs in a page that is gone already

            async def host() -> InMemoryPort:
                return await connect_to_host(window, origins=self.origins, timeout=5)

            async with self.bus(number).serve(PortTransport(host), protocol="ubre"):
                await anyio.sleep_forever()


def scene(*, sandbox: bool = False, shuffle: random.Random | None = None) -> tuple[Window, Frame]:
    host = Window(HOST, shuffle=shuffle)
    return host, Frame(host, sandbox=sandbox)


@asynccontextmanager
async def loaded(frame: Frame, origin: str = CHILD, **given: Any) -> AsyncIterator[Page]:
    """A page in the frame, which is there to the end of the block."""
    async with anyio.create_task_group() as group:
        page = Page(group, **given)
        frame.load(origin, page)
        yield page
        group.cancel_scope.cancel()


def linked(frame: Frame, origin: str = CHILD, bus: Bus | None = None, **options: Any) -> Any:
    """The host's bus, on what comes of the frame."""
    served = serve_frame(frame, origin=origin)
    return connect(PortTransport(served), protocol="ubre", bus=bus, backoff=BACKOFF, wait=5, **options)


@pytest.mark.parametrize(
    ("sandbox", "origin", "expected"),
    [(False, CHILD, CHILD), (False, HOST, HOST), (True, CHILD, "null")],
    ids=["cross-site", "same-origin", "sandboxed"],
)
async def test_a_page_asks_its_frame(sandbox: bool, origin: str, expected: str) -> None:
    _, frame = scene(sandbox=sandbox)
    async with loaded(frame, origin), linked(frame, expected) as bus:
        assert await bus.request("count", 7) == 1
        assert bus.peers[0].address == f"{expected}#1"


@pytest.mark.parametrize(
    ("named", "sandbox", "loaded", "strange"),
    [
        (CHILD, False, "https://evil.example", StrangeHello("https://evil.example", "origin")),
        (CHILD, True, CHILD, StrangeHello("null", "origin")),
        ("null", False, CHILD, StrangeHello(CHILD, "origin")),
    ],
    ids=["of another origin", "in a sandbox", "with an origin where none is named"],
)
async def test_a_page_that_is_not_the_one_that_was_named_gets_no_port_and_is_counted(
    named: str, sandbox: bool, loaded: str, strange: StrangeHello
) -> None:
    strangers: list[StrangeHello] = []
    host, frame = scene(sandbox=sandbox)
    served, another = serve_frame(frame, origin=named, on_reject=strangers.append), serve_frame(Frame(host), origin=named)
    page, offered = await bare(frame, loaded)
    for data in (HELLO, HELLO | {"type": "taken"}, {"subscribe": "t"}):
        host.proxy.post_message(data, "*", source=page)
    await settle()
    assert strangers == [strange] * 2
    assert (served.epoch, served.rejected, another.rejected, offered) == (0, 2, 0, [])


async def test_a_child_that_no_host_answers_is_told_whom_it_named() -> None:
    host, _ = scene()
    with pytest.raises(ConnectFailed, match=rf"timed out after 0\.01 s: no page of {HOST} answered"):
        await connect_to_host(Window(CHILD, host.proxy), origins=[HOST], timeout=0.01)


def word(host: Window, page: Window, kind: str, nonce: Any) -> None:
    """A word of the handshake, from a frame's page to the page around it."""
    host.proxy.post_message(HELLO | {"type": kind, "nonce": nonce}, HOST, source=page)


async def bare(frame: Frame, origin: str = CHILD) -> tuple[Window, list[InMemoryPort]]:
    """A page that says nothing by itself, and the ports that it is offered."""
    windows: list[Window] = []
    frame.load(origin, windows.append)
    await eventually(lambda: windows)
    offered: list[InMemoryPort] = []
    windows[0].add_listener(lambda event: offered.extend(event.ports))
    return windows[0], offered


@pytest.mark.parametrize("shuffle", [None, random.Random(7)], ids=["in order", "shuffled"])
@pytest.mark.parametrize("removes", [True, False], ids=["removed and put back", "reloaded"])
async def test_a_page_that_goes_fails_what_is_pending_and_the_next_page_answers(
    removes: bool, shuffle: random.Random | None
) -> None:
    _, frame = scene(shuffle=shuffle)
    async with loaded(frame) as page, linked(frame) as bus:
        events = bus.events()
        pending = bus.request("slow", 1)
        await eventually(lambda: page.handled == [1])
        if removes:
            frame.remove()
        else:
            frame.reload()
        with pytest.raises(Disconnected) as caught:
            await pending
        assert (caught.value.sent, caught.value.reason) == (True, "the page is gone")
        assert (await next_event(events, LinkDown)).code == 1001
        if removes:
            frame.put_back()
        assert await bus.request("count", 2) == 2
        assert (bus.peers[0].address, bus.stats().reconnects) == (f"{CHILD}#2", 1)


async def test_a_page_that_crashes_without_a_goodbye_gives_way_to_the_next_hello() -> None:
    host, frame = scene()
    served = serve_frame(frame, origin=CHILD)
    ends: list[str] = []
    page, offered = await bare(frame)
    for nonce in ("first", "second"):
        for said in (
            f"not taken before the {nonce}",
            nonce,
            nonce,
            7,
            "",
        ):  # a repeated one is no other
            word(host, page, "hello", said)
        for kind, said in (("what", nonce), ("taken", "nonsense"), ("taken", nonce)):
            word(host, page, kind, said)
        (await anext(served)).on_close(ends.append)
    await settle()
    assert (served.epoch, served.rejected, len(offered)) == (4, 0, 4)
    assert ends == ["a newer page of the frame took over"]
    served.close()
    assert ends[1:] == ["the host has closed the frame's port"]
    with pytest.raises(StopAsyncIteration):
        await anext(served)


NO_ORIGINS = [
    *"* / child.example https:// https://*.example https://child.example/ https://child.example/page".split(),
    *"https://child.example? https://Child.example HTTPS://child.example https://child.example:443".split(),
    *"https://me@child.example https://child.example:port https://[::1 file:///page about:blank".split(),
    *["", " https://child.example"],
]


@pytest.mark.parametrize("origin", NO_ORIGINS)
async def test_an_origin_is_exact(origin: str) -> None:
    host, frame = scene()
    for use in (Window, lambda origin: frame.load(origin, print), lambda origin: serve_frame(frame, origin=origin)):
        with pytest.raises(ValueError, match="must be one origin"):
            use(origin)
    for origins, said in (([HOST, origin], "must be one origin"), ([], "must name the allowed origins")):
        with pytest.raises(ValueError, match=said):
            await connect_to_host(Window(CHILD, host.proxy), origins=origins)


@pytest.mark.parametrize("origin", [CHILD, "http://child.example:8080", "https://[::1]:8443", "app://shop", "null"])
async def test_what_a_browser_would_say_is_an_origin(origin: str) -> None:
    host, frame = scene()
    serve_frame(frame, origin=origin).close()
    assert Window(origin, host.proxy).origin == origin


async def test_a_page_whose_code_fails_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def program(window: Window) -> None:
        window.on_pagehide(lambda: 1 // 0)
        raise ValueError("of the page")

    _, frame = scene()
    frame.load(CHILD, program)
    await settle()
    frame.remove()
    assert caplog.text.count("a page's code has failed") == 2


async def test_a_window_that_is_no_frame_has_no_host() -> None:
    with pytest.raises(ConnectFailed, match="no surrounding page"):
        await connect_to_host(Window(HOST), origins=[HOST])
