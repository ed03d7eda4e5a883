"""Bad inputs on windows: what becomes of them, and that who is there already is not disturbed."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from polybus import Bus, connect
from polybus.testing.browser import Frame, ServedFrame, Window, connect_to_host, serve_frame
from polybus.transports.postmessage import PortTransport
from tests.support import bounded, eventually
from tests.unit.transports.postmessage.table import settle

pytestmark = pytest.mark.anyio

HOST = "https://host.example"
APP = "https://app.example"


class Scene:
    """A page that serves one frame of `APP`, and another frame beside it."""

    def __init__(self) -> None:
        self.host = Window(HOST)
        self.frame = Frame(self.host)
        self.served: ServedFrame = serve_frame(self.frame, origin=APP)

    async def page(self, frame: Frame, origin: str = APP) -> Window:
        """What is shown in a frame."""
        windows: list[Window] = []
        frame.load(origin, windows.append)
        await eventually(lambda: windows)
        return windows[0]

    def post(self, page: Window, data: Any) -> None:
        """To the page around."""
        self.host.proxy.post_message(data, "*", source=page)


HELLO = {"tag": "polybus", "type": "hello", "v": 1, "nonce": "n"}


@bounded
async def test_a_sandboxed_page_where_an_origin_is_named_gets_no_port_and_is_counted() -> None:
    scene = Scene()
    sandboxed = Frame(scene.host, sandbox=True)
    served = serve_frame(sandboxed, origin=APP)
    page = await scene.page(sandboxed)
    assert page.origin == "null"
    scene.post(page, HELLO)
    scene.post(page, HELLO | {"type": "taken"})
    scene.post(page, {"subscribe": "t"})
    await settle()
    assert (served.epoch, served.rejected) == (0, 2)
    assert scene.served.rejected == 0, "it is the other frame's"


@bounded
async def test_a_page_with_an_origin_where_an_opaque_one_is_named_gets_none_either() -> None:
    scene = Scene()
    frame = Frame(scene.host)
    served = serve_frame(frame, origin="null")
    scene.post(await scene.page(frame), HELLO)
    await settle()
    assert (served.epoch, served.rejected) == (0, 1)


@bounded
async def test_another_window_of_the_right_origin_answers_no_request() -> None:
    scene = Scene()
    page = await scene.page(scene.frame)
    stranger = await scene.page(Frame(scene.host))
    server, asked, go = Bus(), anyio.Event(), anyio.Event()

    @server.handle("slow")
    async def slow() -> str:
        asked.set()
        await go.wait()
        return "the answer"

    async with anyio.create_task_group() as group:

        async def frame() -> None:
            port = await connect_to_host(page, origins=[HOST])
            async with server.serve(PortTransport(port), protocol="ubre"):
                await anyio.sleep_forever()

        group.start_soon(frame)
        async with connect(PortTransport(scene.served), protocol="ubre") as bus:
            reply = bus.request("slow")
            await asked.wait()
            scene.post(stranger, {"success": 1})
            scene.post(stranger, '{"success":1}')
            scene.post(stranger, HELLO)
            scene.post(stranger, HELLO | {"type": "taken"})
            await settle()
            assert not reply.done()
            go.set()
            assert await reply == "the answer"
            assert (bus.stats().reconnects, bus.stats().late, scene.served.rejected) == (0, 0, 2)
        group.cancel_scope.cancel()


@bounded
async def test_a_wildcard_is_refused_where_it_is_written() -> None:
    scene = Scene()
    with pytest.raises(ValueError, match="exactly one"):
        serve_frame(scene.frame, origin="*")
    with pytest.raises(ValueError, match="exactly one"):
        await connect_to_host(await scene.page(scene.frame), origins=[HOST, "*"])


@bounded
async def test_what_other_libraries_post_is_theirs() -> None:
    scene = Scene()
    page = await scene.page(scene.frame)
    heard: list[Any] = []
    scene.host.add_listener(lambda event: heard.append(event.data))
    foreign = [
        "[object Object]",
        {"tag": "polybus"},
        HELLO | {"tag": "another"},
        HELLO | {"v": 2},
        7,
        None,
        [HELLO],
        b"hello",
    ]
    for data in foreign:
        scene.post(page, data)
    await settle()
    assert (scene.served.epoch, scene.served.rejected) == (0, 0)
    assert heard == foreign


@bounded
async def test_what_is_said_on_a_port_that_nobody_reads_yet_is_kept() -> None:
    scene = Scene()
    page = await scene.page(scene.frame)
    port = await connect_to_host(page, origins=[HOST])
    heard: list[str] = []
    port.on_message(heard.append)
    for number in range(100):
        port.post(json.dumps({"request": "double", "id": number, "body": number}))
    await settle()
    server = Bus()

    @server.handle("double")
    async def double(number: int) -> int:
        return 2 * number

    async with server.serve(PortTransport(scene.served), protocol="ubre"):
        await eventually(lambda: sum("success" in said for said in heard) == 100)
