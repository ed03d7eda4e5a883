"""`polybus.js` in a real browser: the programs of the documentation as they are, and pages that are left and frozen."""

import json
import re
import runpy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

from polybus import Bus, Cluster, Handshake, Identity
from polybus.fastapi import attach
from polybus.testing import cluster
from tests.integration.interop.node_peer import require_node
from tests.integration.web.browser import Browser, Tab, browser
from tests.integration.web.support import running
from tests.support import BOUND, eventually

ROOT = Path(__file__).resolve().parents[3]
NODE = ROOT / "tests/integration/interop/node"
SCRIPT = ROOT / "sdk/polybus/javascript/polybus.js"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The browser has its own event loop."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
async def chromium(anyio_backend: Any) -> AsyncIterator[Browser]:
    async with browser(keeps_pages=True) as started:
        yield started


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs/how-to" / page).read_text(), re.M | re.S)


# -- the documentation ---------------------------------------------------------------------------------------------------


def loaded(folder: Path, program: str) -> dict[str, Any]:
    (folder / "program.py").write_text(program.removesuffix("anyio.run(main)\n"))
    return runpy.run_path(str(folder / "program.py"))


async def test_the_page_about_socketio_says_and_hears_and_a_stranger_is_not_let_in(tmp_path: Path) -> None:
    require_node("ws8")
    [chat], [script] = blocks("from-socketio.md", "python"), blocks("from-socketio.md", "js")

    async def in_node(url: str, token: str) -> list[str]:
        program = script.replace("'/polybus.js'", f"'{SCRIPT.as_uri()}'").replace("ws://127.0.0.1:8000/bus", url)
        program = program.replace("token: 't-ann'", f"token: '{token}', WebSocket") + "bus.close()\n"
        command = ["node", "--input-type=module", "-e", "import { WebSocket } from 'ws8'\n" + program]
        with anyio.fail_after(BOUND):
            done = await anyio.run_process(command, cwd=NODE, check=False)
        return (done.stdout + done.stderr).decode().splitlines()

    async with loaded(tmp_path, chat)["bus"].serve("ubre+ws://127.0.0.1:0/bus") as listener:
        url = listener.url.removeprefix("ubre+")
        said = await in_node(url, "t-ann")
        assert said == ["ann: hello", "to rooms: 1", "closed: closed; it has not run"]
        assert await in_node(url, "guessed") == ["closed: UNAUTHENTICATED: not authenticated", "not said: Unauthorized"]


async def test_the_page_about_browsers_hears_its_news(chromium: Browser, tmp_path: Path) -> None:
    chromium.problems.clear()
    [program] = blocks("browser.md", "python")
    async with running(loaded(tmp_path, program)["app"]) as server:
        tab = await chromium.tab(f"http://127.0.0.1:{server.port}/")
        await tab.until("news.textContent === 'news.today: good morning'")
        await tab.aclose()
    assert chromium.problems == []


# -- from node to node ---------------------------------------------------------------------------------------------------

GOES = """
import { WebSocket } from 'ws8'
import { connect } from 'SCRIPT'
const [here, there] = process.argv.slice(-2)
let target = here
const bus = connect(() => target, { WebSocket })
bus.addEventListener('state', ({ state }) => state === 'waiting' && (target = there))
const got = []
const news = bus.subscribe('news', (number) => {
  got.push(number)
  if (number >= 0) return
  console.log(JSON.stringify(got))
  bus.close()
})
await news.ready
console.log('ready')
"""


async def test_a_page_whose_node_drains_misses_nothing_at_the_next() -> None:
    require_node("ws8")
    nodes = [Bus(cluster=Cluster("nats+tcp://127.0.0.1:1/shop")) for _ in range(2)]
    program = GOES.replace("SCRIPT", SCRIPT.as_uri())
    async with cluster(*nodes), AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(node.serve("ubre+ws://127.0.0.1:0/bus")) for node in nodes]
        urls = [listener.url.removeprefix("ubre+") for listener in listeners]
        command = ["node", "--input-type=module", "-e", program, "--", *urls]
        page = await stack.enter_async_context(await anyio.open_process(command, cwd=NODE, stderr=None))
        assert page.stdout is not None
        lines = BufferedByteReceiveStream(page.stdout)
        drained = anyio.Event()

        async def drain() -> None:
            await nodes[0].drain(20)
            drained.set()

        with anyio.fail_after(BOUND):
            assert await lines.receive_until(b"\n", 100) == b"ready"
            count = 0
            async with anyio.create_task_group() as group:
                while not drained.is_set() or not nodes[1].peers or count < 300:
                    await nodes[1].publish("news", count)
                    count += 1
                    if count == 100:
                        group.start_soon(drain)
                    await anyio.sleep(0.005)  # 200 a second
            await nodes[1].publish("news", -1)
            got = json.loads(await lines.receive_until(b"\n", 2**20))
        assert got == [*range(count), -1]


# -- pages that are left, hidden, frozen ---------------------------------------------------------------------------------

KNOCKS: list[str] = []
PAGE = """
<!doctype html><title>page</title>
<script type="module">
  import { connect } from '/polybus.js'
  const effect = () => connect('/bus')
  effect().close() // as StrictMode does
  const bus = (window.bus = effect())
  window.heard = []
  window.states = []
  bus.addEventListener('state', ({ state, reason }) => states.push([state, reason, performance.now()]))
  addEventListener('pageshow', ({ persisted }) => (window.kept = persisted))
  bus.subscribe('n.*', (body) => heard.push(body))
</script>
"""


WORKER = """
import { connect } from '/polybus.js'
const bus = connect('/bus') // a link of its own
const page = connect(globalThis)
page.handle('ask', async (body) => [await bus.request('echo', body), await page.request('title')])
"""


FRAME = """
<!doctype html><title>frame</title>
<script type="module">
  import { connect } from '/polybus.js'
  import { connectToHost } from '/polybus-frames.js'
  const port = () => connectToHost({ origins: [location.origin] })
  connect(location.pathname === '/frame' ? await port() : port).handle('title', () => document.title)
</script>
"""
HOST = """
import('/polybus-frames.js').then(async ({ serveFrame, pump }) => {
  const { connect } = await import('/polybus.js')
  const frame = document.createElement('iframe')
  document.body.append(frame)
  serveFrame(frame, { origin: location.origin, onport: (port) => { ONPORT } })
  frame.src = 'SRC'
})
"""


def let_in(handshake: Handshake) -> Identity:
    KNOCKS.append(handshake.address)
    return Identity("somebody")


@pytest.fixture
async def served(chromium: Browser) -> AsyncIterator[tuple[Tab, Bus, str]]:
    chromium.problems.clear()
    chromium.lines.clear()
    KNOCKS.clear()
    app, bus = FastAPI(), Bus(authenticate=let_in)
    attach(app, bus, script="/polybus.js")
    bus.handle("echo")(lambda body: body)

    @app.get("/{name}")
    def page(name: str) -> Response:
        if name == "worker.js":
            return Response(WORKER, media_type="text/javascript")
        policy = "default-src 'none'; script-src 'self' 'unsafe-inline'; connect-src 'self'; frame-src 'self'"
        contents = {"page": PAGE, "frame": FRAME, "widget": FRAME}.get(name, "another page")
        return HTMLResponse(contents, headers={"content-security-policy": policy})

    async with running(app) as server:
        site = f"http://127.0.0.1:{server.port}"
        tab = await chromium.tab(f"{site}/page")
        await tab.until("window.bus?.state === 'open'")
        yield tab, bus, site
        await tab.aclose()
    assert chromium.problems == []


async def test_two_connects_of_one_effect_are_one_socket(chromium: Browser, served: tuple[Tab, Bus, str]) -> None:
    tab, bus, _ = served
    assert await tab.run("bus.request('echo', { text: 'ü' })") == {"text": "ü"}
    assert (len(bus.peers), len(KNOCKS)) == (1, 1)
    assert [line for line in chromium.lines if "favicon" not in line] == []


async def test_a_worker_has_a_link_of_its_own_and_is_one_for_its_page(served: tuple[Tab, Bus, str]) -> None:
    tab, bus, _ = served
    begins = "const worker = connect(new Worker('/worker.js', { type: 'module' }))"
    asks = "worker.handle('title', () => document.title); return worker.request('ask', 7)"
    both = f"import('/polybus.js').then(({{ connect }}) => {{ {begins}; {asks} }})"
    assert await tab.run(both) == [7, "page"]
    assert len(bus.peers) == 2


async def test_a_page_that_was_left_comes_back_with_its_heap_and_its_subscriptions(served: tuple[Tab, Bus, str]) -> None:
    tab, bus, site = served
    await tab.run("window.mine = 7")
    await tab.visit(f"{site}/another")
    await eventually(lambda: not bus.peers)
    await tab.back()
    await tab.until("window.mine === 7 && window.kept === true && bus.state === 'open'")
    await tab.run("bus.request('echo')")
    await bus.publish("n.1", "here again")
    await tab.until("heard.at(-1) === 'here again'")


async def test_a_frame_comes_back_with_its_page_and_still_has_its_port(served: tuple[Tab, Bus, str]) -> None:
    tab, bus, site = served
    await tab.run(HOST.replace("ONPORT", "window.child = connect(port)").replace("SRC", "/frame"))
    await tab.until("window.child !== undefined")
    assert await tab.run("child.request('title')") == "frame"
    await tab.visit(f"{site}/another")
    await eventually(lambda: not bus.peers)
    await tab.back()
    await tab.until("window.kept === true && bus.state === 'open'")
    assert await tab.run("child.request('title', null, { timeout: 5000 })") == "frame"


async def test_the_server_of_a_pump_hears_that_the_page_was_left_and_its_frame_comes_back(served: tuple[Tab, Bus, str]) -> None:
    tab, bus, site = served
    pumped = "pump(port, `ws://${location.host}/bus`, { credentials: 'page' })"
    await tab.run(HOST.replace("ONPORT", pumped).replace("SRC", "/widget"))
    await eventually(lambda: len(bus.peers) == 2)
    await tab.visit(f"{site.replace('127.0.0.1', 'localhost')}/another")
    await eventually(lambda: not bus.peers)
    await tab.back()
    await tab.until("window.kept === true")
    await eventually(lambda: len(bus.peers) == 2)


async def test_a_page_that_is_frozen_while_the_link_goes_is_back_when_it_is_shown(served: tuple[Tab, Bus, str]) -> None:
    tab, bus, _ = served
    await tab.freeze()
    for peer in bus.peers:
        await peer.aclose()
    await tab.resume()
    await tab.until("bus.state === 'open' && states.some(([state]) => state === 'waiting')")
    assert await tab.run("bus.request('echo', 1)") == 1


async def test_a_page_out_of_sight_is_back_by_itself_when_its_server_is(served: tuple[Tab, Bus, str]) -> None:
    tab, bus, _ = served
    await tab.hide()
    for peer in bus.peers:
        await peer.aclose()
    await tab.until("document.hidden && bus.state === 'open' && states.some(([state]) => state === 'waiting')")
    await tab.show()
    await bus.publish("n.1", "hello again")
    await tab.until("heard.at(-1) === 'hello again'")
