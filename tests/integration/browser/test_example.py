"""The example of a page with widgets in frames of another site."""

from tests.integration.web.browser import Browser
from tests.integration.web.support import example
from tests.support import eventually

# What a frame of another process shows, the page cannot see: it is looked at from outside.
WIDGETS = "document.querySelectorAll('iframe').length"


async def test_widgets_reach_the_server_through_the_page_and_survive_a_reload(chromium: Browser) -> None:
    chromium.problems.clear()
    async with example("frames") as app:
        tab = await chromium.tab(app.site)
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
