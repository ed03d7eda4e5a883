"""What reloads leave behind in a real browser: it is asked for its ports and listeners."""

from typing import Any

from tests.integration.browser.site import Site
from tests.integration.browser.test_frames import run
from tests.integration.web.browser import Tab
from tests.support import eventually


async def look(tab: Tab, expression: str, **options: Any) -> Any:
    """What an expression gives that may use the functions of the developer's console."""
    tell, session = tab._browser.tell, tab._session
    answer = await tell("Runtime.evaluate", session, expression=expression, includeCommandLineAPI=True, **options)
    assert "exceptionDetails" not in answer, answer
    return answer["result"]


async def count(tab: Tab, prototype: str) -> int:
    """How many objects of a kind there are, after the browser has collected its garbage."""
    tell, session = tab._browser.tell, tab._session
    kind = (await look(tab, prototype))["objectId"]
    found = (await tell("Runtime.queryObjects", session, prototypeObjectId=kind))["objects"]["objectId"]
    length = "function () { return this.length }"
    answer = await tell("Runtime.callFunctionOn", session, objectId=found, functionDeclaration=length, returnByValue=True)
    await tell("Runtime.releaseObject", session, objectId=found)  # or it would keep them
    number: int = answer["result"]["value"]
    return number


LEAK = """
globalThis.child = put(program); const loaded = (count) => until(() => heard.filter((said) => said === 'here').length >= count);
let newest = null, epochs = 0, loads = 0;
serveFrame(child, { origin, onport: (port, { epoch }) => { port.onmessage = () => {}; newest = port; epochs = epoch } });
document.body.append(child); await loaded(++loads);
globalThis.reload = async (count) => { for (const end = loads + count; loads < end;) {
  const before = newest; child.src = child.src.replace(/&again.*|$/, `&again${loads}`);
  await loaded(++loads); await until(() => newest !== before) } return epochs };
globalThis.again = async (count) => { const begin = epochs; child.contentWindow.postMessage({ count }, '*');
  await until(() => epochs === begin + count && heard.includes(`again ${count}`)); return epochs };
"""

AGAIN = """
const say = (said) => parent.postMessage({ said }, '*');
const { connectToHost } = await import(`${base}/polybus-frames.js`);
let port; globalThis.ports = [];
const connect = async () => {
  port = await connectToHost({ origins: [base] }); port.onmessage = () => {}; ports.push(new WeakRef(port));
};
await connect(); say('here');
addEventListener('message', async ({ data: { count } }) => {
  if (!count) return;
  for (let i = 0; i < count; i++) { port.close(); await connect() }
  say(`again ${count}`);
});
"""


async def test_twenty_reloads_and_twenty_ports_of_one_page_leave_nothing_behind(tab: Tab, server: Site) -> None:
    program = f"const base = {server.here!r};" + AGAIN
    await run(tab, LEAK, program=program, origin=server.here)

    async def alive() -> dict[str, int]:
        """Ports and listeners that the browser keeps, of the page and of its frame, after it has collected its garbage."""
        return {
            "ports of the page": await count(tab, "MessagePort.prototype"),
            "ports of the frame": await tab.run("child.contentWindow.ports.filter((port) => port.deref()).length"),
            "listeners of the page": (await look(tab, "(getEventListeners(window).message ?? []).length"))["value"],
        }

    async def is_alive(expected: dict[str, int]) -> bool:
        seen = await alive()
        assert seen == expected
        return True

    assert await tab.run("reload(2)") == 3
    assert await tab.run("again(2)") == 5
    # A port that was closed is garbage some moments later.
    expected = await alive() | {"ports of the page": 1, "ports of the frame": 1}
    await eventually(lambda: is_alive(expected))
    assert await tab.run("reload(20)") == 25
    assert await tab.run("again(20)") == 45
    await eventually(lambda: is_alive(expected))
