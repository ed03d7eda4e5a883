"""The example of a door that is opened from a frame: ports, a bridge, a stranger, a reload."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.web.browser import Browser, Tab
from tests.integration.web.support import example


@pytest.fixture
async def page(chromium: Browser) -> AsyncIterator[Tab]:
    """The page, when both of its frames have a port."""
    chromium.problems.clear()
    async with example("door") as app:
        tab = await chromium.tab(app.site)
        await tab.until("window.show?.epochs.panel === 1 && show.epochs.door === 1")
        yield tab
        await tab.aclose()
    assert chromium.problems == []


async def test_a_door_is_moved_through_the_page_and_a_page_of_an_unexpected_origin_gets_no_port(page: Tab) -> None:
    await page.until("show.said.length >= 2")
    assert sorted(await page.run("show.said")) == [["moved", 40], ["told", 40]], "the publication comes once"
    assert await page.run("show.panel.request('title')") == "a panel of the page"
    await page.run("show.stranger()")
    await page.until("show.said.length >= 3")
    rejected = await page.run("show.rejected")
    assert {hello["reason"] for hello in rejected} == {"origin"}
    assert "no page" in await page.run("show.said[2][0]")
    assert await page.run("show.borrow()") == "TypeError", "a pump without a token is not opened"


async def test_a_frame_that_is_reloaded_loses_its_request_at_once_and_works_again(page: Tab) -> None:
    await page.until("show.said.length >= 2")
    lost = "show.lost = show.panel.request('never').then(() => 'answered', ({ reason }) => reason)"
    await page.run(f"{lost}; document.getElementById('panel').src += '&again'")
    assert await page.run("show.lost") == "the page is gone"
    await page.until("show.epochs.panel === 2")
    assert await page.run("show.panel.request('title')") == "a panel of the page"
    await page.run("void (document.getElementById('door').src += '&again')")
    assert (await page.run("show.pumps[0].closed"))["code"] == 1001
    await page.until("show.said.filter(([word]) => word === 'moved').length === 2")
