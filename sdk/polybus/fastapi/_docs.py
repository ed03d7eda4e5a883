"""Documentation of an attached bus: a page, and its AsyncAPI document."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response

from ..asyncapi import document, page, to_text
from ..asyncapi.page import policy
from ..integrations import Operation, operations_of
from ..plugins.tools import check_type, in_own_thread, shown

if TYPE_CHECKING:
    from .. import Bus
    from ..plugins import ProtocolAdapter

_HEADERS = {"cache-control": "no-cache", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}


def add_docs(app: Any, router: Any, bus: Bus, docs: str, *, path: str, adapter: ProtocolAdapter, try_it: bool) -> None:
    """Serve the page at a path of the application, and the document at that path with ``.json``.

    Raises:
        TypeError, ValueError: If the path is invalid or in use, or the page could not talk to the bus.
    """
    check_type(docs, str, "docs", "docs='/bus/docs'")
    if not docs.startswith("/") or "?" in docs or "#" in docs or "{" in docs:
        raise ValueError(f"docs={shown(docs)}: it must be a path such as '/bus/docs'")
    here = f"{getattr(router, 'prefix', '')}{docs}"
    taken = {path, *(getattr(route, "path", None) for route in router.routes)}
    if found := taken & {here, f"{here}.json"}:
        raise ValueError(f"docs={docs!r}: {min(map(str, found))} is already in use: give the page another path")
    if try_it:
        _check_live(adapter, path)
    made = _Documents(
        bus,
        _live_address(here, path) if try_it else None,
        title=getattr(app, "title", "") or "polybus",
        version=getattr(app, "version", "") or "1.0.0",
        protocol=adapter.name,
    )

    async def show(request: Any) -> Response:
        _, html = await made.current()
        headers = {**_HEADERS, "content-security-policy": f"{policy(html)}; frame-ancestors 'none'"}
        return Response(html, media_type="text/html", headers=headers)

    async def give(request: Any) -> Response:
        text, _ = await made.current()
        return Response(text, media_type="application/json", headers=_HEADERS)

    router.add_route(here, show, methods=["GET"], name="polybus-docs", include_in_schema=False)
    router.add_route(f"{here}.json", give, methods=["GET"], name="polybus-document", include_in_schema=False)


def _check_live(adapter: ProtocolAdapter, path: str) -> None:
    if adapter.name != "ubre" or getattr(adapter, "format", "json") == "binary":
        raise ValueError(
            f"try_it=True: the page needs UBRE in JSON, but {path} serves {adapter!r}: attach the bus with UBRE too"
        )
    if "{" in path:
        raise ValueError(f"try_it=True: the page cannot fill in the parameters of {path!r}: omit try_it")


def _live_address(docs: str, path: str) -> str:
    """Return the address of the bus relative to the page, so that prefixes of proxies and mounted applications do not
    matter."""
    return posixpath.join(posixpath.relpath(posixpath.dirname(path), posixpath.dirname(docs)), posixpath.basename(path))


class _Documents:
    def __init__(self, bus: Bus, live: str | None, **info: str) -> None:
        self._bus = bus
        self._live = live
        self._info: dict[str, Any] = {**info}
        self._known: tuple[Operation, ...] | None = None
        self._made = "", ""
        self._making = anyio.Lock()

    async def current(self) -> tuple[str, str]:
        """Return the document as text, and the page. Thousands of handlers take seconds, so they are built in a thread, once
        for all requests."""
        async with self._making:
            return await in_own_thread(self._make)

    def _make(self) -> tuple[str, str]:
        known = operations_of(self._bus)
        if known != self._known:
            made = document(self._bus, **self._info)
            self._made, self._known = (to_text(made), page(made, live=self._live)), known
        return self._made
