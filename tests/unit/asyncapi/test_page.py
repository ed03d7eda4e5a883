"""The page of a document: everything is in it, nothing comes from elsewhere, and nothing that is said in it is markup."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import attrs
import pytest

from polybus import Bus
from polybus.asyncapi import document, page, to_text
from polybus.asyncapi.page import policy

from .shop import Users

VOID = {"meta", "input", "br"}
EVIL = "</script><img src=x onerror=alert(1)>\"'&{title}POLICY"


class Reader(HTMLParser):
    """The elements of a page, and whether all of them are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize("live", [None, "../bus"])
def test_every_element_is_closed_and_every_link_within_the_page_leads_somewhere(shop: dict[str, Any], live: str | None) -> None:
    reader = Reader(page(shop, live=live))
    assert reader.open == []
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(one["href"]) for one in reader.of("a")]
    assert {link.removeprefix("#") for link in links if len(link) > 1} <= set(ids)


def test_nothing_comes_from_elsewhere(shop: dict[str, Any]) -> None:
    text = page(shop)
    reader = Reader(text)
    assert not [one for tag, one in reader.elements if "src" in one or tag in ("link", "img", "iframe", "base")]
    assert re.findall(r"https?://", text) == []
    assert "connect-src" not in policy(text)
    assert policy(text).startswith("default-src 'none'; style-src 'sha256-")
    text = page(shop, live="../bus")
    (meta,) = (one for one in Reader(text).of("meta") if "http-equiv" in one)
    assert meta["content"] == policy(text)
    assert "unsafe" not in policy(text)
    assert "connect-src 'self'" in policy(text)


def test_all_that_the_document_says_is_on_the_page(shop: dict[str, Any]) -> None:
    text = Reader(page(shop)).text
    for operation in shop["operations"].values():
        assert operation["title"] in text
        assert operation.get("summary", "") in text
    for name in shop["components"]["schemas"]:
        assert name == "Error" or name in text
    for words in ("There is no such user, or it was removed long ago.", "4 at once", "one of the group printers", "2.1.0"):
        assert words in text
    assert "default null" in text
    assert "at least 1, at most 99" in text


def test_the_document_is_in_the_page(shop: dict[str, Any]) -> None:
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page(shop), re.S)
    assert found is not None
    assert json.loads(found[1]) == shop
    assert found[1].replace("\\u003c", "<") == to_text(shop)


def test_only_a_live_page_has_forms(shop: dict[str, Any]) -> None:
    assert Reader(page(shop)).of("form") == []
    forms = Reader(page(shop, live="../bus")).of("form")
    styles = [one["data-style"] for one in forms]
    # No channel, and no number: the page speaks UBRE.
    assert sorted(set(map(str, styles))) == ["listening", "publication", "request", "stream"]
    assert "65537" not in [one["data-subject"] for one in forms]
    assert [one["name"] for one in Reader(page(shop, live="../bus")).of("input") if one.get("name")] == ["in-day", "in-rest"]
    assert "notification" in {one["data-style"] for one in Reader(page(document(Users), live="bus")).of("form")}


def test_words_are_no_markup() -> None:
    @attrs.frozen
    class Evil:
        field: str = EVIL

    Evil.__doc__ = EVIL
    bus = Bus()

    async def handler(body: Evil) -> Evil:
        return body

    handler.__doc__ = f"{EVIL}\n\n{EVIL}\n\nRaises:\n    NotFound: {EVIL}"
    bus.handle("<img src=x onerror=alert(1)>")(handler)
    made = document(bus, title=EVIL, version=EVIL, description=EVIL, servers={EVIL: "ubre+wss://example.org/<img>"})
    reader = Reader(page(made, live='"><img src=x>'))
    assert reader.of("img") == []
    assert reader.open == []
    assert len(reader.of("script")) == 2
    assert not [one for _, one in reader.elements if any(name.startswith("on") for name in one)]


def test_a_subject_that_begins_with_error_is_no_error() -> None:
    bus = Bus()

    async def report(body: str) -> int:
        return len(body)

    bus.handle("error.report")(report)
    bus.on("error.*")(report)
    text = Reader(page(document(bus), live="bus")).text
    assert "Body string Answer integer" in text
    assert "Unavailable UNAVAILABLE the server is shutting down" in text


def test_the_address_of_a_live_page_is_text(shop: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="live=7"):
        page(shop, live=7)  # type: ignore[arg-type]


FOREIGN: Any = {"asyncapi": "3.0.0", "info": {}, "channels": {}, "operations": {"x": {"action": "receive"}}}


@pytest.mark.parametrize("wrong", [Bus(), {}, {"asyncapi": "3.0.0"}, FOREIGN, "{}", None])
def test_a_page_is_made_of_a_document(wrong: Any) -> None:
    with pytest.raises(
        TypeError, match=r"page\(.*\): pass a document that polybus has generated, as in page\(document\(bus\)\)"
    ):
        page(wrong)
