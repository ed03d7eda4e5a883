"""The page of an attached bus in Chromium: searched, on a phone, light and dark, and sending requests as any client."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import frozen
from starlette.applications import Starlette

from polybus import Bus, Context, Identity, NotFound
from polybus.asyncapi import document, page
from polybus.fastapi import attach
from polybus.plugins import Handshake
from tests.integration.web.browser import Browser, Tab
from tests.integration.web.support import running
from tests.support import eventually
from tests.unit.asyncapi.shop import make_bus


@frozen
class GetUser:
    id: int


class Served:
    """A bus, its page, and what it has heard."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.patterns: list[str | int] = []
        self.tails = 0
        self.bus = bus = Bus(authenticate=self.authenticate, authorize=self.authorize)
        self.url = ""

        @bus.handle("user.get")
        async def get_user(query: GetUser, ctx: Context) -> dict[str, Any]:
            """Find a user."""
            if query.id == 0:
                raise NotFound("no user 0", detail={"id": 0})
            return {"id": query.id, "name": "Ann", "asked_by": ctx.identity}

        @bus.handle("log.tail")
        async def tail(first: int) -> AsyncIterator[int]:
            """Lines of a log."""
            self.tails += 1
            try:
                for number in range(first, first + 3):
                    yield number
                if first == 100:
                    await anyio.sleep_forever()
            finally:
                self.tails -= 1

        @bus.handle("vault.open")
        async def open_vault() -> None:
            """Never."""

        @bus.on("news.{day}")
        async def on_news(day: str, body: str) -> None:
            """What happens."""
            self.heard.append((day, body))

        bus.publishes("weather.{place}.>", description="The weather as it changes.")
        bus.publishes("weather.cold")

    @staticmethod
    def authenticate(handshake: Handshake) -> Identity | None:
        token = handshake.headers.get("authorization", "")
        return Identity(token.removeprefix("Bearer ") or "guest") if token or "guest" in handshake.cookies else None

    def authorize(self, peer: Any, verb: str, subject: str | int) -> bool:
        if verb == "subscribe":
            self.patterns.append(subject)
        return subject != "vault.open"


@pytest.fixture(scope="module")
async def served(anyio_backend: Any) -> AsyncIterator[Served]:
    made, app = Served(), Starlette()
    attach(app, made.bus, docs="/bus/docs", try_it=True)
    async with running(app) as server:
        made.url = f"http://127.0.0.1:{server.port}/bus/docs"
        yield made


@pytest.fixture
async def reader(chromium: Browser, served: Served) -> AsyncIterator[Tab]:
    chromium.problems.clear()
    tab = await chromium.tab(served.url)
    await tab.run("document.cookie = 'guest=1'")
    await tab.visit(served.url)
    yield tab
    await tab.aclose()
    await eventually(lambda: not served.bus.peers)


FORM = "[...document.querySelectorAll('form')].find((form) => form.dataset.subject === {subject})"


async def attempt(tab: Tab, subject: str, body: str | None = None, **parameters: str) -> str:
    """Fill in a form, send it, and give what it says when that is something."""
    form = FORM.format(subject=json.dumps(subject))
    if body is not None:
        await tab.run(f"{form}.querySelector('textarea').value = {json.dumps(body)}")
    for name, value in parameters.items():
        await tab.run(f"{form}.elements['in-{name}'].value = {json.dumps(value)}")
    await tab.run(f"{form}.querySelector('[type=submit]').click()")
    await tab.until(f"{form}.querySelector('.state') !== null")
    return str(await tab.run(f"{form}.querySelector('.answer').innerText"))


async def test_a_request_is_answered_with_the_body_that_stands_there_or_another_and_what_is_no_json_is_not_sent(
    reader: Tab, chromium: Browser, served: Served
) -> None:
    assert (await attempt(reader, "user.get", "{id")).startswith("This is not JSON")
    assert served.bus.peers == []
    await reader.visit(served.url)
    assert '"name": "Ann"' in await attempt(reader, "user.get")
    said = await attempt(reader, "user.get", '{"id": 7}')
    assert said.startswith("answered in ")
    assert json.loads(said[said.index("{") :]) == {"id": 7, "name": "Ann", "asked_by": "guest"}
    assert chromium.problems == []


async def test_a_refusal_is_shown_with_its_code_and_detail(reader: Tab) -> None:
    said = await attempt(reader, "user.get", '{"id": 0}')
    assert said.startswith("NOT_FOUND: no user 0")
    assert '"id": 0' in said
    said = await attempt(reader, "user.get", '{"id": "seven"}')
    assert said.startswith("INVALID_ARGUMENT")
    assert "$.id" in said
    assert (await attempt(reader, "vault.open")).startswith("PERMISSION_DENIED")


async def test_a_stream_gives_its_items_until_its_end(reader: Tab) -> None:
    said = await attempt(reader, "log.tail", "5")
    assert said.split()[:4] == ["5", "6", "7", "ended"]
    assert "ended after 3 items" in said


async def test_a_stream_can_be_stopped(reader: Tab, served: Served) -> None:
    form = FORM.format(subject=json.dumps("log.tail"))
    await reader.run(f"{form}.querySelector('textarea').value = '100'")
    await reader.run(f"{form}.querySelector('[type=submit]').click()")
    await reader.until(f"{form}.querySelectorAll('pre').length === 3")
    assert served.tails == 1
    await reader.run(f"{form}.querySelector('.stop').click()")
    await eventually(lambda: served.tails == 0)
    assert "ended after 3 items" in await reader.run(f"{form}.querySelector('.answer').innerText")


async def test_a_publication_reaches_its_listener(reader: Tab, served: Served) -> None:
    assert (await attempt(reader, "news.{day}", '"rain"', day="monday")) == "published"
    await eventually(lambda: served.heard == [("monday", "rain")])


async def test_what_is_published_is_heard_until_it_is_stopped(reader: Tab, served: Served) -> None:
    assert await attempt(reader, "weather.*.>") == "listening"
    assert await attempt(reader, "weather.cold") == "listening"
    form, other = FORM.format(subject=json.dumps("weather.*.>")), FORM.format(subject=json.dumps("weather.cold"))
    await eventually(lambda: served.bus.stats().peers == 1)
    await eventually(lambda: len(served.patterns) == 2)
    await served.bus.publish("weather.lima.rain", {"mm": 3})
    await served.bus.publish("weather.cold", -4)
    await reader.until(f"{other}.querySelectorAll('pre').length === 1")
    await reader.until(f"{form}.querySelectorAll('pre').length === 1")
    said = await reader.run(f"{form}.querySelector('.answer').innerText")
    assert said.split() == ["listening", "weather.lima.rain", "{", '"mm":', "3", "}"]
    await reader.run(f"{form}.querySelector('.stop').click()")
    said = await reader.run(f"{form}.querySelector('.answer').innerText")
    assert said.splitlines()[-1] == "stopped after one publication"
    await served.bus.publish("weather.lima.sun")
    await served.bus.publish("weather.cold", -5)
    await reader.until(f"{other}.querySelectorAll('pre').length === 2")
    assert await reader.run(f"{form}.querySelectorAll('pre').length") == 1


async def test_a_token_is_that_of_the_connection(reader: Tab) -> None:
    await attempt(reader, "user.get", '{"id": 7}')
    await reader.run("document.querySelector('#token').value = 'sesame'")
    await reader.run("document.querySelector('#token').dispatchEvent(new Event('change'))")
    assert '"asked_by": "sesame"' in await attempt(reader, "user.get", '{"id": 7}')


async def test_who_is_not_let_in_is_told(chromium: Browser, served: Served) -> None:
    tab = await chromium.tab(served.url)
    try:
        await tab.run("document.cookie = 'guest=; max-age=0'")
        assert "No connection" in await attempt(tab, "user.get", '{"id": 7}')
    finally:
        await tab.aclose()
        chromium.problems.clear()  # the browser logs the refused handshake


@pytest.fixture
async def file(chromium: Browser, tmp_path: Path) -> AsyncIterator[Tab]:
    """A page as a file, without any server."""
    path = tmp_path / "page.html"
    path.write_text(page(document(make_bus(), title="Shop", description="What the shop can be asked.")), encoding="utf-8")
    chromium.problems.clear()
    tab = await chromium.tab(path.as_uri())
    yield tab
    await tab.aclose()


async def search(tab: Tab, words: str) -> list[str]:
    await tab.run(f"document.querySelector('.search input').value = {json.dumps(words)}")
    await tab.run("document.querySelector('.search input').dispatchEvent(new Event('input'))")
    shown: list[str] = await tab.run("[...document.querySelectorAll('article:not([hidden])')].map((one) => one.id)")
    links: list[str] = await tab.run("[...document.querySelectorAll('nav li:not([hidden]) a')].map((one) => one.hash.slice(1))")
    assert links == shown
    return shown


async def test_the_page_is_searched_without_a_server(file: Tab, chromium: Browser) -> None:
    assert len(await search(file, "")) > 15
    assert await search(file, "log lines") == ["op-log.tail"]
    assert "op-user.get" in await search(file, "NOT_FOUND user.get")
    assert await search(file, "nothing of the kind") == []
    assert await file.run("document.querySelector('.search output').innerText") == "nothing found"
    assert await file.run("[...document.querySelectorAll('main h2')].every((one) => one.checkVisibility() === false)")
    assert chromium.problems == []


async def test_the_document_is_saved_from_the_page(file: Tab) -> None:
    await file.run("document.querySelector('#save').addEventListener('click', (event) => event.preventDefault())")
    await file.run("document.querySelector('#save').click()")
    saved = await file.run(
        "fetch(document.querySelector('#save').href).then((answer) => answer.text(), (error) => String(error))"
    )
    # The policy of the page lets it fetch nothing: that it has made the file is seen by its address.
    assert "TypeError" in str(saved)
    assert str(await file.run("document.querySelector('#save').href")).startswith("blob:")


LONG = "donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunterbeamtengesellschaft"


async def test_nothing_is_wider_than_the_window_also_where_words_are_long(file: Tab, tmp_path: Path) -> None:
    bus = make_bus()

    async def handler(body: dict[str, int]) -> str:
        return ""

    handler.__doc__ = f"{LONG}\n\n``{LONG}``\n\nRaises:\n    NotFound: {LONG}"
    bus.handle(f"{LONG}.{LONG}")(handler)
    made = document(bus, title=LONG, description=LONG, protocol="ubre")
    (tmp_path / "page.html").write_text(page(made, live="bus"), encoding="utf-8")
    await file.visit((tmp_path / "page.html").as_uri())
    await file.run("document.querySelectorAll('main details').forEach((one) => (one.open = true))")
    for width in (320, 390, 768, 1280):
        await file.resize(width, 844)
        assert await file.run("document.documentElement.scrollWidth - innerWidth") <= 0, width
        await file.until(f"document.querySelector('nav details').open === {'true' if width >= 960 else 'false'}")
