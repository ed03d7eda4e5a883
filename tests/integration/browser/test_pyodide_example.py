"""The example of Python in a frame and `polybus.js` in the page: a plain port between them."""

import pytest

from tests.integration.browser.site import MODULES, WHEELS, Site
from tests.integration.browser.test_python import PATIENCE
from tests.integration.web.browser import Browser
from tests.integration.web.support import example

pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]


async def test_a_page_and_python_in_a_frame_ask_and_tell_each_other(chromium: Browser, server: Site) -> None:
    chromium.problems.clear()
    variables = {"MODULES": str(MODULES), "NEEDED": str(WHEELS), "WHEEL": server.wheel_folder}
    async with example("pyodide", **variables) as app:
        tab = await chromium.tab(app.site)

        async def shows(id: str, text: str) -> None:
            await tab.until(f"document.querySelector('#{id}').textContent === {text!r}", seconds=PATIENCE)

        async def publish(number: float) -> None:
            await tab.run(f"document.querySelector('#number').value = {number}; document.querySelector('#send').click()")

        for _ in range(2):  # and again, when the frame was reloaded
            await shows("greeting", "Hello, Readings")
            for number, mean in ((1, 1), (2, 1.5), (6, 3)):
                await publish(number)
                await shows("mean", f"mean {mean}")
            await tab.run("document.querySelector('#ask').click()")
            await shows("median", "median 2")
            await tab.run(
                "for (const id of ['greeting', 'mean', 'median']) document.querySelector(`#${id}`).textContent = '';"
                "document.querySelector('#python').src += '?again'"
            )
        await tab.aclose()
    assert chromium.problems == []
