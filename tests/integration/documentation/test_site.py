"""The pages that `make docs` has built, as a reader gets them; how wide they are, a browser says."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .pages import ROOT, built_site

VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})


class Page(HTMLParser):
    """What is on a page: anchors, what it points at, what it loads, and its prose."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors = {""}
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.prose: list[str] = []
        self.classes: set[str] = set()
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        self.classes.update(found.get("class", "").split())
        if tag == "a" and "href" in found:
            self.targets.append(found["href"])
        elif tag in ("img", "script", "source") and "src" in found:
            self.loaded.append(found["src"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(found["href"])
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"pre", "code", "script", "style"}.intersection(self._open):
            self.prose.append(data)


@cache
def page(path: Path) -> Page:
    return Page(path)


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return [page(path) for path in sorted(built_site().rglob("*.html")) if path.name != "404.html"]


def named(found: Page) -> str:
    return str(found.path.relative_to(ROOT / "site").parent)


def test_every_source_has_become_a_page(pages: list[Page]) -> None:
    sources = {source.relative_to(ROOT / "docs").with_suffix("") for source in (ROOT / "docs").rglob("*.md")}
    wanted = {str(source.parent if source.name == "index" else source) for source in sources}
    assert {named(found) for found in pages} == wanted


def test_no_fence_is_shown_as_prose(pages: list[Page]) -> None:
    assert [named(found) for found in pages if "```" in "".join(found.prose)] == []


def test_every_anchor_page_and_picture_is_there(pages: list[Page]) -> None:
    lost = []
    for found in pages:
        for target in found.targets + found.loaded:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (found.path.parent / unquote(parts.path)).resolve() if parts.path else found.path
            path = path / "index.html" if path.is_dir() else path
            if not path.is_file() or (parts.fragment and unquote(parts.fragment) not in page(path).anchors):
                lost.append(f"{named(found)}: {target}")
    assert lost == []


def test_nothing_is_fetched_from_elsewhere(pages: list[Page]) -> None:
    assert [(named(found), source) for found in pages for source in found.loaded if urlsplit(source).netloc] == []


def test_pages_lead_on_can_be_searched_and_turned_dark(pages: list[Page]) -> None:
    for found in pages:
        assert "md-search" in found.classes
        assert "md-header__option" in found.classes, "the button for the palette"
        assert {"md-footer__link--next", "md-footer__link--prev"} & found.classes, named(found)
