"""A Python bus in the browser: polybus in Pyodide, installed by micropip from our wheel, in a frame and in a page."""

import json
import re
from typing import Any

import anyio
import pytest

from tests.integration.browser.site import ROOT, Site, play
from tests.integration.browser.test_frames import CHILD, HOST
from tests.integration.web.browser import BrowserError, Tab
from tests.loops import FULL

pytestmark = pytest.mark.timeout(200)

PATIENCE = 90
"""Seconds: Pyodide loads in four on a quiet machine and in twenty on a busy one."""

PAGE = (ROOT / "docs/how-to/browser-python.md").read_text()
IN_A_FRAME, BARE, OVER_RELOADS = re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.S)
"""The programs of the documentation: in a frame, in a page that has only npm `ubre` around it, and in a page."""
(ONLY_UBRE,) = (code for code in re.findall(r"```js\n(.*?)```", PAGE, re.S) if "new MessageChannel" in code)

# What a page does to run Python that uses polybus. micropip asks an index for what our wheel needs; this one is the site's.
PYTHON = """
const startPython = async (source) => {
  const { loadPyodide } = await import(`${base}/pyodide/pyodide.mjs`);
  const python = await loadPyodide({ indexURL: `${base}/pyodide/` });
  await python.loadPackage(`${base}/wheels/${micropip}`, { messageCallback: () => {} });
  python.globals.set('site', base);
  await python.runPythonAsync(`
import micropip
micropip.set_index_urls([f"{site}/simple/{{package_name}}/"])
await micropip.install(f"{site}/wheels/${wheel}")
`);
  python.runPython(source);
  return python;
};
"""

SERVICE = """
import sys
from collections.abc import AsyncIterator
from polybus import Bus, Context, RequestError, Code, connect
from polybus.transports.postmessage import PortTransport

bus = Bus()
heard = []

@bus.handle("double")
def double(number: int) -> int:
    return 2 * number

@bus.handle("where")
async def where(ctx: Context) -> list[str]:
    return [sys.platform, ctx.peer.address]

@bus.handle("ask back")
async def ask_back(ctx: Context) -> str:
    return await ctx.peer.request("name", returns=str)

@bus.handle("fail")
async def fail() -> None:
    raise RequestError(Code.NOT_FOUND, "no such thing")

@bus.handle("slow")
async def slow(ctx: Context) -> None:
    await ctx.bus.publish("started", True)
    import anyio
    await anyio.sleep_forever()

@bus.on("news")
async def news(body: int, ctx: Context) -> None:
    await ctx.bus.publish("read", body)

async def main(port):
    # npm ubre publishes to those alone that have told it of their subscriptions: so this end connects.
    async with connect(PortTransport(port), protocol="ubre", bus=bus):
        await bus.wait_closed()

async def through(port):
    "As a client of a server beyond the page."
    async with connect(PortTransport(port), protocol="ubre") as outer:
        said = [await outer.request("whoami"), await outer.request("double", 21)]
        said.append(await outer.request("large", "x" * 300_000))
        async with connect(outer.tunnel("plant.7"), protocol="csb") as inner:
            said.append((await inner.request(7, 20, returns=int)))
        numbers = []
        async with outer.stream("count", 5) as lines:
            async for line in lines:
                numbers.append(line)
        return [*said, numbers]
"""

FRAME = (
    PYTHON
    + """
const { connectToHost } = await import(`${base}/polybus-frames.js`);
const python = await startPython(location.search.endsWith('&again') ? documented : source);
parent.postMessage({ said: 'ready' }, '*');
python.globals.get('main')(await connectToHost({ origins: [host] }));
// When the page asks for it, the frame comes again, for the pump.
addEventListener('message', async ({ data, source }) => {
  if (data !== 'through' || source !== parent) return;
  try {
    const said = await python.globals.get('through')(await connectToHost({ origins: [host] }));
    parent.postMessage({ said: ['through', JSON.stringify(said.toJs())] }, '*');
  } catch (error) {
    parent.postMessage({ said: ['through', String(error)] }, '*');
  }
});
"""
)


def facts(server: Site) -> str:
    known = {"base": server.here, "host": server.here, "wheel": server.wheel, "micropip": server.micropip}
    known |= {"source": SERVICE, "documented": IN_A_FRAME}
    return "".join(f"const {name} = {json.dumps(value)};" for name, value in known.items())


SCRIPT = """
const child = put(program, { at, sandbox }); let pumped;
serveFrame(child, { origin, onport: (port, { epoch }) => {
  if (epoch === 2 && !again) { pumped = pump(port, url, { token: 'frame-python' }); return }
  port.addEventListener('close', ({ code, reason }) => { port.ended = true; ends.push([epoch, code, reason]) });
  port.onmessage = ({ data }) => ubre.message(data, port);
  ports.push(port);
} });
document.body.append(child);
await until(() => ports.length); const [port] = ports; const read = [];
ubre.handle('name', () => 'the page');
const where = await ask(port, 'where');
ubre(port).subscribe('read', (number) => read.push(number));
const answers = [await ask(port, 'double', 21), await ask(port, 'ask back'),
  await ask(port, 'fail').catch(JSON.stringify), await ask(port, 'nothing').catch(() => 'no handler')];
ubre.publish('news', 1); ubre.publish('news', 2); await until(() => read.length === 2);
"""


@pytest.mark.parametrize("kind", ["same-origin", "cross-site", "sandboxed"] if FULL else ["sandboxed"])
async def test_a_page_talks_with_python_in_a_frame_which_talks_with_a_server(tab: Tab, server: Site, kind: str) -> None:
    at = server.here if kind == "same-origin" else server.elsewhere
    origin = "null" if kind == "sandboxed" else at
    script = (
        SCRIPT
        + """
    child.contentWindow.postMessage('through', '*'); await until(() => heard.length === 2); child.remove();
    return [where, answers, read, ends, heard, (await pumped.closed).reason]
    """
    )
    known = {"at": at, "origin": origin, "sandbox": kind == "sandboxed", "again": False}
    known |= {"url": f"ws://127.0.0.1:{server.port}/bus", "program": facts(server) + FRAME}
    where, answers, read, ends, heard, reason = await _told(tab, script, **known)
    assert where == ["emscripten", f"{server.here}#1"]
    assert answers[:2] == [42, "the page"]
    assert "no such thing" in answers[2]
    assert answers[3] == "no handler"
    assert read == [1, 2]
    assert ends == [[1, 1001, "a newer page of the frame took over"]], "the port to the page gave way to the one to the server"
    assert heard[0] == "ready"
    assert json.loads(heard[1][1]) == ["frame-python", 42, 300_000, 60, [0, 1, 2, 3, 4]]
    assert reason == "the bus is leaving", "its goodbye reached the server through the page"


@pytest.mark.full
async def test_a_reload_in_mid_request_fails_it_and_the_next_python_answers(tab: Tab, server: Site) -> None:
    """The next one is the program of the documentation."""
    script = (
        SCRIPT
        + """
    let started = false; ubre(port).subscribe('started', () => (started = true));
    const slow = ask(port, 'slow').catch((error) => error); await until(() => started);
    child.src += '&again'; const lost = await slow; await until(() => ports.length === 2);
    return [lost, await ask(ports[1], 'double', 4), ends]
    """
    )
    known = {"at": server.elsewhere, "origin": server.elsewhere, "sandbox": False, "again": True, "url": ""}
    told = await _told(tab, script, program=facts(server) + FRAME, **known)
    assert told == ["lost", 8, [[1, 1001, "the page is gone"]]]


AROUND_BARE = """
const python = await startPython(source);
addEventListener('message', ({ data, source, ports: [port] }) => {
  if (source === parent && data === 'port') python.globals.get('main')(port);
});
parent.postMessage('ready', host);
"""


@pytest.mark.full
async def test_a_page_with_npm_ubre_alone_gives_python_a_port_of_its_own_making(tab: Tab, server: Site) -> None:
    """Both programs are those of the documentation."""
    page = ONLY_UBRE.replace("https://widgets.example", server.elsewhere).replace(
        "document.title", "(heard.push('asked'), 'it')"
    )
    script = (
        "{ const heard = [], console = { log: (value) => heard.push(value) }; const frame = document.createElement('iframe');"
        "frame.src = `${at}/page?module&program=${encodeURIComponent(program)}`;"
        + page
        + "document.body.append(frame); await until(() => heard.length); ubre.publish('reading', 4);"
        "await until(() => heard.length === 2); return heard }"
    )
    known = {"base": server.here, "host": server.here, "wheel": server.wheel, "micropip": server.micropip, "source": BARE}
    program = "".join(f"const {name} = {json.dumps(value)};" for name, value in known.items()) + PYTHON + AROUND_BARE
    assert await _told(tab, script, host="", program=program, at=server.elsewhere) == ["asked", 8]


# Python in the page itself, npm `ubre` in the frame: the bus does by itself what the page above has to do by hand.
IN_THE_PAGE = (
    OVER_RELOADS
    + """
import gc
from polybus import Backoff, Disconnected

async def main(reload, remove):
    told = await play(reload, remove)
    with anyio.fail_after(20):
        while sum(type(each).__name__ == "JSPort" for each in gc.get_objects()):  # of three ports JavaScript keeps nothing
            gc.collect()
            await anyio.sleep(0.01)
    return told

async def play(reload, remove):
    told = []
    backoff = Backoff(initial=0.01, maximum=0.05)
    async with connect(PortTransport(ports), protocol="ubre", wait=60, backoff=backoff) as bus:
        async with bus.subscribe("tick") as ticks:
            told.append([await bus.request("count", 1), (await anext(ticks)).body])
            for end in (reload, remove):
                pending = bus.request("slow")
                await end()  # when the frame has it
                try:
                    await pending
                except Disconnected as error:
                    told.append([error.sent, error.reason])
                told.append([await bus.request("count", 2), (await anext(ticks)).body])
            large = await bus.request("count", "x" * 300_000)
            told.append([len(large), bus.stats().reconnects, bus.stats().links, len(bus.peers)])
    return told
"""
)


@pytest.mark.full
async def test_python_in_a_page_keeps_its_link_over_reloads_and_removal_of_the_frame(tab: Tab, server: Site) -> None:
    child = f"const base = {server.here!r}, host = base, wait = 0, timeout = 10000;" + CHILD.replace(
        "ubre.handle('slow'", "ubre.handle('count', (number) => (ubre.publish('tick', number), number)); ubre.handle('slow'"
    ).replace("ubre.handle('count', (number) => (say(number), number));", "")
    script = (
        PYTHON
        + """
    const python = await startPython(source); const add = python.globals.get('ports').add;
    const child = put(program, { at }); serveFrame(child, { origin, onport: (port) => add(port) });
    document.body.append(child); let loads = 0;
    const asked = async () => { await until(() => heard.includes('slow')); heard.length = 0 };
    const told = await python.globals.get('main')(async () => { await asked(); child.src += `&again${++loads}` },
      async () => { await asked(); child.remove(); document.body.append(child) });
    return told.toJs()
    """
    )
    known = {"base": server.here, "wheel": server.wheel, "micropip": server.micropip, "source": IN_THE_PAGE, "program": child}
    told = await _told(tab, script, at=server.elsewhere, origin=server.elsewhere, **known)
    gone = [True, "the page is gone"]
    assert told == [[1, 1], gone, [2, 2], gone, [2, 2], [300_000, 2, 1, 1]]


IN_A_WORKER = """
import js, sys
from polybus import Bus, connect
from polybus.transports.postmessage import PortTransport

bus = Bus()

@bus.handle("double")
async def double(number: int) -> list:
    return [2 * number, sys.platform, str(js.self.constructor.name)]

@bus.on("news")
async def news(body: int) -> None:
    await bus.publish("read", body)

async def serve(port):
    async with connect(PortTransport(port, bare=True), protocol="ubre", bus=bus):
        await bus.wait_closed()
"""


@pytest.mark.full
async def test_python_in_a_worker_speaks_over_the_port_that_the_worker_is(tab: Tab, server: Site) -> None:
    known = {"base": server.here, "wheel": server.wheel, "micropip": server.micropip, "source": IN_A_WORKER}
    facts = "".join(f"const {name} = {json.dumps(value)};" for name, value in known.items())
    program = facts + PYTHON + "const python = await startPython(source); python.globals.get('serve')(self);"
    script = """
    const blob = new Blob([program], { type: 'text/javascript' }), read = [];
    const worker = new Worker(URL.createObjectURL(blob), { type: 'module' });
    worker.onmessage = ({ data }) => ubre.message(data, worker);
    ubre(worker).subscribe('read', (number) => read.push(number));
    await new Promise((resolve) => (ubre.onSubscribe = resolve));
    ubre(worker).subscribe('read', (number) => read.push(number)); // what was said before Python listened is lost
    const answer = await ubre(worker).request('double', 21);
    ubre.publish('news', 1); ubre.publish('news', 2); await until(() => new Set(read).size === 2); worker.terminate();
    return [answer, [...new Set(read)]]
    """
    assert await _told(tab, script, program=program) == [[42, "emscripten", "DedicatedWorkerGlobalScope"], [1, 2]]


async def _told(tab: Tab, script: str, **known: Any) -> Any:
    """What a script returns that takes long; or what it throws, or how far it has come."""
    story = f"(async () => {{ {HOST} globalThis.seen = () => ({{ ports: ports.length, ends, heard }}); {script} }})()"
    keep = "(told) => (globalThis.told = [told]), (error) => (globalThis.told = String(error.stack))"
    with anyio.fail_after(PATIENCE):
        await play(tab, f"{story}.then({keep}); return 0", **known)
    try:
        await tab.until("globalThis.told", seconds=PATIENCE)
    except BrowserError as error:
        raise BrowserError(f"{error}; so far: {await tab.run('seen()')}") from None
    told = await tab.run("told")
    assert isinstance(told, list), told
    return told[0]
