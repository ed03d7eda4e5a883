"""The example of a page with widgets in frames of another site."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.integration.browser.site import ROOT
from tests.integration.web.browser import Browser
from tests.support import eventually, free_port

pytestmark = pytest.mark.anyio

# What a frame of another process shows, the page cannot see: it is looked at from outside.
WIDGETS = "document.querySelectorAll('iframe').length"


@contextmanager
def example(name: str, port: int, **variables: str) -> Iterator[None]:
    """The process of an example, with variables of the environment."""
    environment = {**os.environ, "PORT": str(port), **variables}
    command = [sys.executable, str(ROOT / "examples" / name / "app.py")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


async def answers(site: str) -> None:
    """Wait until the server is there."""

    async def there() -> bool:
        try:
            return (await http.get(site)).is_success
        except httpx.TransportError:
            return False

    async with httpx.AsyncClient() as http:
        await eventually(there)


async def test_widgets_reach_the_server_through_the_page_and_survive_a_reload(chromium: Browser) -> None:
    chromium.problems.clear()
    port = free_port()
    with example("frames", port):
        await answers(f"http://127.0.0.1:{port}")
        tab = await chromium.tab(f"http://127.0.0.1:{port}")
        state = "document.querySelector('#state').textContent"
        await tab.until(f"{state} === 'Oslo: connected, page 1'")
        await shown(chromium, "rain in Oslo", "degrees")
        await tab.run("document.querySelector('#add').click()")
        await tab.until(f"{state} === 'Lima: connected, page 1'")
        await shown(chromium, "rain in Lima", "degrees")
        await tab.run("document.querySelector('#reload').click()")
        await tab.until(f"{state} === 'Oslo: connected, page 2' || {state}.startsWith('Oslo: ended (1001')")
        await shown(chromium, "rain in Oslo", "degrees")
        assert await tab.run(WIDGETS) == 2
        await tab.aclose()
    assert chromium.problems == []


async def shown(chromium: Browser, *texts: str) -> None:
    """Wait until some frame of another site shows these."""

    async def seen() -> bool:
        infos = (await chromium.tell("Target.getTargets"))["targetInfos"]
        said = [await text_of(chromium, info["targetId"]) for info in infos if info["type"] == "iframe"]
        return any(all(text in each for text in texts) for each in said)

    await eventually(seen)


async def text_of(chromium: Browser, target: str) -> str:
    session = (await chromium.tell("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
    answer = await chromium.tell("Runtime.evaluate", session, expression="document.body?.innerText ?? ''", returnByValue=True)
    await chromium.tell("Target.detachFromTarget", sessionId=session)
    return str(answer["result"].get("value", ""))
