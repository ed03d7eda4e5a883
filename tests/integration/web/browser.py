"""A real browser without a window, driven over the DevTools protocol, or a reason to skip the tests."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from tests.support import missing

__all__ = ["BOUND", "Browser", "Tab", "browser", "missing"]

BOUND: Final = 30.0
"""Seconds within which everything awaited must happen."""

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # as root it does not start with one
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--site-per-process",  # a headless shell would run frames of other sites in the process of the page
    "--remote-debugging-port=0",
)
_FORGETS: Final = "--disable-features=BackForwardCache"
"""A page that was left is gone, with its connections."""


class BrowserError(Exception):
    pass


class Browser:
    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._reading = anyio.Lock()
        self._contexts: set[str] = set()
        self.problems: list[str] = []
        self.lines: list[str] = []
        """What the browser itself has written into the consoles of pages."""

    async def tell(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._number = number = self._number + 1
        message = {"id": number, "method": method, "params": params}
        await self._socket.send(json.dumps(message if session is None else {**message, "sessionId": session}))
        with anyio.fail_after(BOUND):
            while number not in self._answers:
                async with self._reading:
                    if number not in self._answers:
                        self._take(json.loads(await self._socket.recv()))
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return answer["result"]

    async def close_tabs(self) -> None:
        for context in [*self._contexts]:
            await self.close(context)

    async def close(self, context: str) -> None:
        await self.tell("Target.disposeBrowserContext", browserContextId=context)
        self._contexts.discard(context)

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(message["params"]["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded":
            self.lines.append(message["params"]["entry"]["text"])

    async def tab(self, url: str) -> Tab:
        context = (await self.tell("Target.createBrowserContext"))["browserContextId"]
        self._contexts.add(context)
        target = (await self.tell("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.tell("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        tab = Tab(self, session, context)
        await self.tell("Runtime.enable", session)
        await self.tell("Page.enable", session)
        await self.tell("Log.enable", session)
        await tab.visit(url)
        return tab


class Tab:
    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context

    async def aclose(self) -> None:
        await self._browser.close(self._context)

    async def forget(self) -> None:
        await self._browser.tell("Storage.clearCookies", browserContextId=self._context)

    async def visit(self, url: str) -> None:
        await self.run("globalThis.left = true")
        await self._browser.tell("Page.navigate", self._session, url=url)
        await self.until("document.readyState === 'complete' && !globalThis.left")

    async def back(self) -> None:
        history = await self._browser.tell("Page.getNavigationHistory", self._session)
        before = history["entries"][history["currentIndex"] - 1]
        await self._browser.tell("Page.navigateToHistoryEntry", self._session, entryId=before["id"])

    async def freeze(self) -> None:
        await self._browser.tell("Page.setWebLifecycleState", self._session, state="frozen")

    async def resume(self) -> None:
        await self._browser.tell("Page.setWebLifecycleState", self._session, state="active")

    async def hide(self) -> None:
        other = await self._browser.tell("Target.createTarget", url="about:blank", browserContextId=self._context)
        await self._browser.tell("Target.activateTarget", targetId=other["targetId"])
        await self.until("document.hidden")

    async def show(self) -> None:
        await self._browser.tell("Page.bringToFront", self._session)
        await self.until("!document.hidden")

    async def block(self, *urls: str) -> None:
        """Fetch nothing of these, with `*` for anything, from now on."""
        await self._browser.tell("Network.enable", self._session)
        await self._browser.tell("Network.setBlockedURLs", self._session, urls=[*urls])

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        answer = await self._browser.tell(
            "Runtime.evaluate", self._session, expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def until(self, condition: str, seconds: float = BOUND) -> None:
        try:
            with anyio.fail_after(seconds):
                while not await self.run(condition):  # noqa: ASYNC110  # a page of another process
                    await anyio.sleep(0.02)
        except TimeoutError:
            page = await self.run("document.body.innerText")
            raise BrowserError(f"never true: {condition}; the page says: {page}; {self._browser.problems}") from None

    async def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._browser.tell("Emulation.setDeviceMetricsOverride", self._session, **size)

    async def fill(self, field: str, text: str) -> None:
        await self.run(f"document.querySelector({json.dumps(field)}).focus()")
        await self._browser.tell("Input.insertText", self._session, text=text)
        for kind in ("keyDown", "keyUp"):
            key = {"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
            await self._browser.tell("Input.dispatchKeyEvent", self._session, **key)


@asynccontextmanager
async def browser(*, keeps_pages: bool = False) -> AsyncIterator[Browser]:
    """A connection to the browser of this process, until the block is left; on asyncio. Its tabs are closed then."""
    import websockets

    program = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if program is None:
        missing("chromium is not installed: make web")
    address = await anyio.to_thread.run_sync(_started, program, keeps_pages)
    async with websockets.connect(address, max_size=None, proxy=None) as socket:
        browser = Browser(socket)
        try:
            yield browser
        finally:
            with anyio.CancelScope(shield=True):
                await browser.close_tabs()


@cache
def _started(program: str, keeps_pages: bool) -> str:
    """Start it once, for all tests of this process, with a profile of its own; where it listens."""
    folder = Path(tempfile.mkdtemp(prefix="chromium"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    process = subprocess.Popen(
        [program, *_FLAGS, *(() if keeps_pages else (_FORGETS,)), f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_end, process)
    # It writes down where it listens.
    place, end = folder / "DevToolsActivePort", time.monotonic() + BOUND
    while not place.exists() or "\n" not in place.read_text():
        if process.poll() is not None:
            raise BrowserError(f"Chromium ended at once, with status {process.returncode}")
        if time.monotonic() > end:
            raise BrowserError(f"Chromium does not listen after {BOUND:g} s")
        time.sleep(0.02)
    port, path = place.read_text().split("\n")
    return f"ws://127.0.0.1:{port}{path}"


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)  # it has children, in the session that it was given
    process.wait()
