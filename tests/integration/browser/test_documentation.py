"""Pages of the documentation in a real browser: nothing is wider than the page, on a large screen and on a telephone."""

from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from tests.integration.documentation.pages import ROOT, built_site
from tests.integration.web.browser import Browser, Tab
from tests.integration.web.support import running

CODE = """[...document.querySelectorAll('article pre > code')].filter((code) => code.scrollWidth > code.clientWidth)
.map((code) => code.textContent.split('\\n').reduce((longest, line) => line.length > longest.length ? line : longest, ''))"""
PAGE = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
async def address(anyio_backend: object) -> AsyncIterator[str]:
    files = Starlette(routes=[Mount("/", StaticFiles(directory=built_site(), html=True))])
    async with running(files, access_log=False) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
async def reader(chromium: Browser, address: str) -> AsyncIterator[Tab]:
    tab = await chromium.tab(f"{address}/")
    await tab.block("*/search/*", "*/workers/*")  # each page would read the index of all words
    yield tab
    await tab.aclose()


def paths() -> list[str]:
    sources = (source.relative_to(ROOT / "docs").with_suffix("") for source in (ROOT / "docs").rglob("*.md"))
    return sorted(str(source.parent if source.name == "index" else source) for source in sources)


@pytest.mark.parametrize("path", paths())
async def test_no_code_is_wider_than_the_page_and_no_page_is_wider_than_the_window(
    reader: Tab, address: str, path: str
) -> None:
    await reader.resize(1280, 900)
    await reader.visit(f"{address}/{path}/")
    assert await reader.run(CODE) == []
    assert await reader.run(PAGE) <= 0
    await reader.resize(390, 844)
    assert await reader.run(PAGE) <= 0, "on a telephone"


async def test_code_that_is_too_wide_is_seen(reader: Tab, address: str) -> None:
    await reader.resize(1280, 900)
    await reader.visit(f"{address}/")
    assert await reader.run(CODE) == []
    await reader.run("document.querySelector('article pre > code').append('x'.repeat(200))")
    assert len(await reader.run(CODE)) == 1
