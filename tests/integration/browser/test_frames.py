"""`polybus-frames.js` in a real page: which frame gets a port, what a reload does, and the pump to a server. Frames of the same
and of another site; in them npm `ubre`."""

from typing import Any

import anyio
import pytest

from polybus.errors import Disconnected
from tests.integration.browser.site import Site, play
from tests.integration.web.browser import BOUND, Tab
from tests.support import eventually

# The page: npm `ubre`, and a frame that is served before it loads.
HOST = """
const { default: Ubre } = await import('/ubre/ubre.js');
const { serveFrame, pump } = await import('/polybus-frames.js');
const ubre = Ubre({ open: true, send: (message, port) => port.postMessage(message) });
const ports = [], rejected = [], ends = [], heard = [];
addEventListener('message', ({ data }) => 'said' in Object(data) && heard.push(data.said));
const serve = (child, expected = origin) => serveFrame(child, {
  origin: expected,
  onreject: (hello) => rejected.push(hello),
  onport: (port, { epoch }) => {
    port.addEventListener('close', ({ code, reason }) => { port.ended = true; ends.push([epoch, code, reason]) });
    port.onmessage = ({ data }) => ubre.message(data, port);
    ports.push(port);
  },
});
const put = (program, { sandbox, at = origin } = {}) => {
  const child = document.createElement('iframe');
  if (sandbox) child.sandbox = 'allow-scripts';
  child.src = `${at}/page?module&program=${encodeURIComponent(program)}`;
  return child;
};
// Fails when the port ends: npm `ubre` knows of no end.
const ask = (port, name, body) => new Promise((resolve, reject) => {
  if (port.ended) reject('lost');
  port.addEventListener('close', () => reject('lost'));
  ubre(port).request(name, body).then(resolve, reject);
});
"""

CHILD = """
const say = (said) => parent.postMessage({ said }, '*');
const { default: Ubre } = await import(`${base}/ubre/ubre.js`);
const { connectToHost } = await import(`${base}/polybus-frames.js`);
await new Promise((resolve) => setTimeout(resolve, wait));
try {
  const port = await connectToHost({ origins: [host], timeout });
  const ubre = Ubre({ open: true, send: (message) => port.postMessage(message) });
  ubre.handle('count', (number) => (say(number), number));
  ubre.handle('slow', () => (say('slow'), new Promise(() => {})));
  ubre.handle('about', () => port.polybus);
  ubre.handle('late', (nonce) => parent.postMessage({ tag: 'polybus', type: 'hello', v: 1, nonce }, '*'));
  ubre.subscribe('news', (number) => say(['news', number]));
  port.onmessage = ({ data }) => ubre.message(data, port);
} catch (error) {
  say(String(error));
}
"""


def child(server: Site, *, host: str | None = None, wait: int = 0, timeout: int = 10_000) -> str:
    facts = f"const base = {server.here!r}, host = {host or server.here!r}, wait = {wait}, timeout = {timeout};"
    return facts + CHILD


@pytest.fixture(params=["cross-site", "sandboxed"])
def place(request: pytest.FixtureRequest, server: Site) -> dict[str, Any]:
    """Where the frame comes from, and the origin that the page expects; frames of the same origin are in the table."""
    sandbox = request.param == "sandboxed"
    return {"at": server.elsewhere, "origin": "null" if sandbox else server.elsewhere, "sandbox": sandbox}


async def run(tab: Tab, script: str, **facts: Any) -> Any:
    with anyio.fail_after(BOUND):
        return await play(tab, HOST + script, **facts)


async def test_a_page_and_a_frame_talk_both_ways(tab: Tab, server: Site, place: dict[str, Any]) -> None:
    script = """
    const child = put(program, { at, sandbox }); serve(child); document.body.append(child); await until(() => ports.length);
    const answer = await ask(ports[0], 'count', 7); await until(() => 'subscribers' && heard.length);
    const { epoch, origin: seen } = await ask(ports[0], 'about');
    ubre.publish('news', 1); await until(() => heard.length === 2); return [answer, epoch, seen, heard]
    """
    said = await run(tab, script, program=child(server), **place)
    assert said == [7, 1, server.here, [7, ["news", 1]]]


async def test_a_slow_child_and_a_late_host_meet(tab: Tab, server: Site, place: dict[str, Any]) -> None:
    script = """
    const child = put(slow, { at, sandbox }); serve(child); document.body.append(child); await until(() => ports.length);
    const one = await ask(ports[0], 'count', 1);
    const other = put(program, { at, sandbox }); document.body.append(other);
    await new Promise((resolve) => setTimeout(resolve, 400)); serve(other); await until(() => ports.length === 2);
    return [one, await ask(ports[1], 'count', 2)]
    """
    said = await run(tab, script, slow=child(server, wait=400), program=child(server), **place)
    assert said == [1, 2]


async def test_a_page_of_another_origin_gets_no_port(tab: Tab, server: Site) -> None:
    script = """
    const child = put(program, { at: elsewhere }); const served = serve(child); document.body.append(child);
    await until(() => heard.length); return [ports.length, rejected[0], served.rejected === rejected.length, heard]
    """
    said = await run(tab, script, program=child(server, timeout=300), origin=server.here, elsewhere=server.elsewhere)
    assert said[:3] == [0, {"origin": server.elsewhere, "reason": "origin"}, True]
    assert "answered within 300 ms" in said[3][0]


async def test_a_sandboxed_page_where_an_origin_is_named_gets_no_port_nor_the_other_way_round(tab: Tab, server: Site) -> None:
    script = """
    const boxed = put(program, { sandbox: true }), open = put(program); const one = serve(boxed), other = serve(open, 'null');
    document.body.append(boxed, open); await until(() => heard.length === 2);
    return [ports.length, [...new Set(rejected.map(({ origin, reason }) => origin + ' ' + reason))].sort(), one.rejected > 0,
      other.rejected > 0]
    """
    said = await run(tab, script, program=child(server, timeout=300), origin=server.here)
    assert said == [0, [f"{server.here} origin", "null origin"], True, True]


async def test_a_window_that_is_not_the_frame_gets_no_port(tab: Tab, server: Site) -> None:
    script = """
    const child = put(program); serve(document.createElement('iframe')); document.body.append(child);
    await until(() => heard.length); return [ports.length, rejected[0]]
    """
    said = await run(tab, script, program=child(server, timeout=300), origin=server.elsewhere)
    assert said == [0, {"origin": server.elsewhere, "reason": "source"}]


async def test_a_child_speaks_to_no_page_that_it_does_not_name(tab: Tab, server: Site) -> None:
    script = """
    const child = put(program); serve(child); document.body.append(child);
    await until(() => heard.length); return [ports.length, rejected]
    """
    program = child(server, host="https://other.example", timeout=300)
    assert await run(tab, script, program=program, origin=server.elsewhere) == [0, []]


async def test_a_reload_and_a_removal_in_mid_request_end_the_port(tab: Tab, server: Site, place: dict[str, Any]) -> None:
    script = """
    const child = put(program, { at, sandbox }); serve(child); document.body.append(child); await until(() => ports.length);
    const first = ask(ports[0], 'slow').catch((error) => error); await until(() => heard.length); child.src += '&again';
    const lost = [await first]; await until(() => ports.length === 2); const answer = await ask(ports[1], 'count', 2);
    const second = ask(ports[1], 'slow').catch((error) => error); await until(() => heard.length === 3); child.remove();
    lost.push(await second); document.body.append(child); await until(() => ports.length === 3);
    return [lost, answer, await ask(ports[2], 'count', 3), ends]
    """
    said = await run(tab, script, program=child(server), **place)
    gone = "the page is gone"
    assert said == [["lost", "lost"], 2, 3, [[1, 1001, gone], [2, 1001, gone]]]


async def test_a_late_hello_of_a_page_that_is_gone_takes_no_port_away(tab: Tab, server: Site, place: dict[str, Any]) -> None:
    script = """
    const child = put(program, { at, sandbox }); serve(child); document.body.append(child); await until(() => ports.length);
    for (let i = 0; i < 20; i++) await ask(ports[0], 'late', `late ${i}`);
    await settle(); const answer = await ask(ports[0], 'count', 1);
    child.src += '&again'; await until(() => ports.length === 2); return [answer, await ask(ports[1], 'count', 2), ends]
    """
    assert await run(tab, script, program=child(server), **place) == [1, 2, [[1, 1001, "the page is gone"]]]


async def test_a_page_that_no_longer_serves_a_frame_says_so(tab: Tab, server: Site) -> None:
    script = """
    const child = put(program); const served = serve(child); document.body.append(child); await until(() => ports.length);
    await ask(ports[0], 'count', 1); served.close(); await until(() => ends.length);
    return [ends, (served.close(), ends.length)]
    """
    said = await run(tab, script, program=child(server), origin=server.elsewhere)
    assert said == [[[1, 1001, "the host has closed the port of the frame"]], 1]


async def test_origins_are_exact(tab: Tab, server: Site) -> None:
    script = """
    const { connectToHost } = await import('/polybus-frames.js');
    const wrong = ['*', '', 'https://*.example', 'https://a.example/', 'a.example', undefined];
    return [wrong.map((each) => name(() => serveFrame(document.createElement('iframe'), { origin: each }))),
      wrong.map((each) => name(() => connectToHost({ origins: [each] }))), name(() => connectToHost({ origins: [] })),
      name(() => serveFrame(document.createElement('iframe'), { origin })),
      await connectToHost({ origins: [origin] }).catch(({ message }) => message)]
    """
    said = await run(tab, script, origin=server.here)
    errors = ["TypeError"] * 6
    assert said == [errors, errors, "TypeError", "TypeError", "connectToHost: there is no page around this one"]


async def test_a_frame_is_an_element_and_served_once(tab: Tab, server: Site) -> None:
    script = """
    const child = put(program), wrong = [null, undefined, 'iframe', {}, document.createElement('div')].map((each) =>
      name(() => serveFrame(each, { origin, onport: () => {} })));
    const served = serve(child), again = name(() => serve(child)); served.close(); serve(child); document.body.append(child);
    await until(() => ports.length); return [wrong, again, await ask(ports[0], 'count', 1)]
    """
    assert await run(tab, script, program=child(server), origin=server.here) == [["TypeError"] * 5, "Error", 1]


# A frame that speaks the words of the reference by itself, without our module: what it is told to say on a port of its own, and
# what it hears there, up to a goodbye or an answer.
RAW = """
const raw = () => new Promise((resolve) => {
  const nonce = crypto.randomUUID();
  addEventListener('message', function take({ data, ports: [port] }) {
    if (data.nonce !== nonce) return;
    removeEventListener('message', take);
    parent.postMessage({ tag: 'polybus', type: 'taken', v: 1, nonce }, '*');
    resolve(port);
  });
  parent.postMessage({ tag: 'polybus', type: 'hello', v: 1, nonce }, '*');
});
addEventListener('message', async ({ data: { say, until, number } }) => {
  if (!say) return;
  const port = await raw();
  port.onmessage = ({ data }) => {
    if (data.includes(until) || data.startsWith('\\0bye')) parent.postMessage({ said: [number, data] }, '*');
  };
  for (const each of say) port.postMessage(each);
});
parent.postMessage({ said: 'ready' }, '*');
"""

TELL = """
const child = put(program); document.body.append(child); serveFrame(child, { origin, onport });
await until(() => heard.length); const told = [];
for (const [number, [say, wanted]] of stories.entries()) {
  child.contentWindow.postMessage({ say, until: wanted ?? '\\0bye', number }, '*');
  await until(() => heard.some(([which]) => which === number)); told.push(heard.find(([which]) => which === number)[1]);
}
return told
"""


async def test_nonsense_on_a_port_ends_it_and_says_why(tab: Tab, server: Site) -> None:
    hello = "unsupported greeting, expected version 1: "
    stories = [
        (['\0hi {"v":2}'], f'1002 {hello}{{"v":2}}'),
        (["\0hi {"], f"1002 {hello}{{"),
        (["\0hi []"], f"1002 {hello}[]"),
        (["\0hi null"], f"1002 {hello}null"),
        (['\0hi {"protocol":7}'], f'1002 {hello}{{"protocol":7}}'),
        (['\0hi {"headers":[]}'], f'1002 {hello}{{"headers":[]}}'),
        (["\0ping"], "1002 'ping' before a greeting"),
        (["frame", "\0ack 1"], "1002 'ack' before a greeting"),
        (["\0hi", "\0what now"], "1002 'what' is no control message"),
        (["\0hi {}", "\0", "frame"], "1002 '' is no control message"),
    ]
    script = "const onport = (port) => (port.onmessage = () => {});" + TELL
    facts = {"program": RAW, "origin": server.here}
    told = await run(tab, script, stories=[[say] for say, _ in stories], **facts)
    assert told == [f"\0bye {why}" for _, why in stories]
    alive = [[["\0hi", "\0ping"], "pong"], [["frame", "\0hi"], "ack"], [["\0hi", *["frame"] * 64], "ack 64"]]
    told = await run(tab, script, stories=alive, **facts)
    assert told == ["\0pong", "\0ack 1", "\0ack 64"]


async def test_a_pump_says_what_it_cannot_pass_on_and_acknowledges_the_rest(tab: Tab, server: Site) -> None:
    ask = '{"request":"double","id":1,"body":4}'
    stories: list[Any] = [
        [['\0hi {"v":1,"headers":{"authorization":"Bearer mine"}}']],
        [['\0hi {"v":1,"protocol":"csb"}']],
        [["\0hi", "\0ack 1"]],
        [["\0hi", "\0ack x"]],
        [['\0hi {"v":1,"protocol":"ubre"}'], "\0hi"],
        [["\0hi", ask], "\0ack"],
        [["\0hi", ask], "success"],
    ]
    script = "const onport = (port) => pump(port, url, { token: 'frame-1', protocol: 'ubre' });" + TELL
    facts = {"program": RAW, "origin": server.here, "url": f"ws://127.0.0.1:{server.port}/bus"}
    told = await run(tab, script, stories=stories, **facts)
    assert told == [
        "\0bye 1008 a pump cannot pass on headers (authorization): the page gives its frame a token",
        "\0bye 1002 this side uses ubre, not csb",
        "\0bye 1002 an acknowledgement of '1' messages: between 0 and 0",
        "\0bye 1002 an acknowledgement of 'x' messages: between 0 and 0",
        '\0hi {"v":1,"protocol":"ubre"}',
        "\0ack 1",
        '{"success":1,"body":8}',
    ]


SCHEDULES = """
const random = (() => { let state = seed; return (below) => {
  state = (state * 1664525 + 1013904223) % 4294967296; return Math.floor(state / 4294967296 * below) } })();
const child = put(program, { at }); serve(child); document.body.append(child); await until(() => ports.length);
let asked = 0, loads = 1; const answered = [], lost = [];
const pause = () => new Promise((resolve) => setTimeout(resolve, random(12)));
const current = () => ports[ports.length - 1];
for (let schedule = 0; schedule < count; schedule++) {
  const pending = [];
  for (let step = random(4) + 1; step > 0; step--) {
    for (let burst = random(5); burst > 0; burst--) {
      const number = ++asked;
      pending.push(ask(current(), 'count', number).then(() => answered.push(number), () => lost.push(number)));
    }
    if (random(2)) await pause();
    switch (random(5)) {
      case 0: child.remove(); if (random(2)) await pause(); document.body.append(child); loads++; break;
      case 1: case 2: child.src = child.src.replace(/&again.*|$/, `&again${loads++}`); break;
    }
    if (random(2)) await pause();
  }
  // The last page is there: from here on nothing may be lost. Chromium sometimes drops a navigation that overtakes another.
  for (let attempt = 0, marker = ''; !heard.includes(marker); attempt++) {
    marker = `last${schedule}x${attempt}`;
    child.src = child.src.replace(/&again.*|$/, `&again-${marker}`);
    for (let wait = 0; wait < 200 && !heard.includes(marker); wait++) await new Promise((resolve) => setTimeout(resolve, 10));
  }
  await Promise.all(pending);
  const port = current(); const before = heard.length;
  for (let i = 0; i < 5; i++) if (await ask(port, 'count', -(schedule * 5 + i + 1)) >= 0) throw Error('a wrong answer');
  for (let i = 0; i < 5; i++) ubre.publish('news', schedule * 5 + i);
  await until(() => heard.filter((said) => Array.isArray(said) && said[1] >= schedule * 5).length >= 5);
}
await settle();
const numbers = heard.filter(Number.isInteger), news = heard.filter(Array.isArray).map(([, number]) => number);
return { asked, answered: answered.length, lost: lost.length, ports: ports.length, news,
  doubled: numbers.length - new Set(numbers).size, unheard: answered.filter((number) => !numbers.includes(number)).length,
  settled: numbers.filter((number) => number < 0).length };
"""


@pytest.mark.timeout(150)
async def test_random_reloads_lose_nothing_after_the_handshake_and_double_nothing(tab: Tab, server: Site) -> None:
    at = server.elsewhere
    program = child(server) + "say(/last\\d+x\\d+/.exec(location)?.[0]);"
    count = 50
    story = f"(async () => {{ {HOST} {SCHEDULES} }})().then((told) => (globalThis.told = told)); return 0"
    await play(tab, story, program=program, origin=at, at=at, seed=7, count=count)
    await tab.until("globalThis.told", seconds=100)
    said = await tab.run("told")
    assert said["answered"] + said["lost"] == said["asked"], "each request ends once"
    assert said["doubled"] == 0
    assert said["unheard"] == 0
    assert said["settled"] == 5 * count
    assert said["news"] == list(range(5 * count))
    assert said["lost"] > 10, "the schedules have torn nothing: they show nothing"
    assert said["answered"] > 50


# -- the pump ------------------------------------------------------------------------------------------------------------

PUMP = """
const child = put(program, { at, sandbox }); const joined = [];
serveFrame(child, { origin, onport: (port, { epoch }) => joined.push(pump(port, url, { token: `frame-${epoch}` })) });
document.body.append(child);
"""

PUMPED = """
const { connectToHost } = await import(`${base}/polybus-frames.js`);
const { default: Ubre } = await import(`${base}/ubre/ubre.js`);
const say = (said) => parent.postMessage({ said }, '*');
const port = await connectToHost({ origins: [host] });
port.addEventListener('close', ({ code, reason }) => say(['close', code]));
const ubre = Ubre({ open: true, send: (message) => port.postMessage(message) });
port.onmessage = ({ data }) => ubre.message(data, port);
ubre.handle('who', () => 'the frame');
ubre.subscribe('news.today', (body) => say(['news', body]));
say(await ubre.request('whoami'));
say(await ubre.request('double', 21));
"""


async def test_a_frame_reaches_a_server_through_the_page(tab: Tab, server: Site, place: dict[str, Any]) -> None:
    program = f"const base = {server.here!r}, host = base;" + PUMPED
    url = f"ws://127.0.0.1:{server.port}/bus"
    script = PUMP.replace("const joined = [];", "const joined = globalThis.joined = []; globalThis.heard = heard;")
    await run(tab, script, program=program, url=url, **place)
    await tab.until("heard.length === 2")
    assert await tab.run("heard") == ["frame-1", 42]
    (peer,) = server.bus.peers_of("frame-1")
    assert await peer.request("who") == "the frame"
    await server.bus.publish("news.today", "rain")
    await tab.until("heard.length === 3")
    assert await tab.run("heard[2]") == ["news", "rain"]
    # A reload is another connection; the old one ends at once.
    slow = peer.request("who")
    await tab.run("document.querySelector('iframe').src += '&again'")
    with anyio.fail_after(BOUND):
        await eventually(lambda: not server.bus.peers_of("frame-1") and server.bus.peers_of("frame-2"))
        try:
            assert await slow == "the frame"
        except Disconnected as error:
            assert error.sent
    assert await tab.run("joined[0].closed") == {"code": 1001, "reason": "the page is gone"}
    # What the server ends, ends for the frame.
    (peer,) = server.bus.peers_of("frame-2")
    await tab.until("heard.includes('frame-2') && heard.at(-1) === 42")
    await peer.aclose("enough")
    await tab.until("heard.at(-1)[0] === 'close'")
    assert (await tab.run("joined[1].closed"))["reason"] == "enough"


async def test_a_pump_wants_a_token_or_a_word(tab: Tab, server: Site) -> None:
    script = """
    const child = put(program); serve(child); document.body.append(child); await until(() => ports.length);
    const errors = [{}, undefined, { token: '' }, { credentials: 'frame' }].map((options) => {
      try { pump(ports[0], url, options) } catch ({ message }) { return message } });
    const plain = name(() => pump(new MessageChannel().port1, url, { token: 'x' }));
    await ask(ports[0], 'count', 1);
    const used = name(() => pump(ports[0], url, { token: 'x' }));
    return [errors.every((text) => text.includes("{credentials: 'page'}")), plain, used]
    """
    said = await run(tab, script, program=child(server), origin=server.here, url=f"ws://127.0.0.1:{server.port}/bus")
    assert said == [True, "TypeError", "TypeError"]


async def test_whom_the_server_refuses_the_pump_tells(tab: Tab, server: Site) -> None:
    program = f"const base = {server.here!r}, host = base;" + PUMPED
    script = (
        PUMP.replace("`frame-${epoch}`", "'nobody'") + "await until(() => heard.length); return [heard, await joined[0].closed]"
    )
    url = f"ws://127.0.0.1:{server.port}/bus"
    said = await run(tab, script, program=program, origin=server.here, at=server.here, sandbox=False, url=url)
    assert said[0] == [["close", 1006]]
    assert said[1]["code"] == 1006
