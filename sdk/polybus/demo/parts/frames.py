"""A page in a real Chromium and its frames: ports, a door behind a bridge, strangers, a reload. Played with ``--browser``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec

from attrs import frozen

from ..children import Child
from ..chromium import Tab, chromium, find_chromium
from ..play import NotHere, Row, RowRun, Workshop, check

__all__ = ["PART", "FramesPart"]


@frozen
class Scene:
    """The page, as it is seen from outside."""

    tab: Tab

    async def ports(self) -> str:
        """Each frame has found its page, though neither knew when the other would be there."""
        await self.tab.until("window.show?.epochs.panel === 1 && show.epochs.door === 1")
        return "two frames of another site have a port each"

    async def talk(self) -> str:
        """The page asks the frame, and the frame asks back."""
        title = await self.tab.run("show.panel.ask('title')")
        check(title == "a panel of the page", f"the frame answered {title!r}")
        return f"{title!r}"

    async def door(self) -> str:
        """From the frame through the page, the server and a bridge to a vehicle that speaks uProtocol, and back."""
        await self.tab.until("show.said.length >= 2")
        said = await self.tab.run("show.said")
        check(sorted(said) == [["moved", 40], ["told", 40]], f"the frame said {said}")
        return "the rear door went to 40 %; the frame was told, once"

    async def stranger(self) -> str:
        """A page of an origin that is not expected gets nothing, and no frame borrows the page's cookies."""
        await self.tab.run("show.stranger()")
        await self.tab.until("show.said.length >= 3")
        rejected, said = await self.tab.run("show.rejected"), await self.tab.run("show.said[2][0]")
        check(rejected and {hello["reason"] for hello in rejected} == {"origin"}, f"rejected: {rejected}")
        check("no page" in said, f"the stranger says {said!r}")
        borrowed = await self.tab.run("show.borrow()")
        check(borrowed == "TypeError", "a pump without a token was opened")
        return f"{len(rejected)} hellos were not answered; a pump without a token was not opened"

    async def reload(self) -> str:
        """A frame is reloaded in the middle of a request: that is lost at once, and the next page takes over."""
        lost = "show.lost = show.panel.ask('never').then(() => 'answered', (reason) => reason)"
        await self.tab.run(f"{lost}; document.getElementById('panel').src += '&again'")
        reason = await self.tab.run("show.lost")
        check(reason == "the page is gone", f"the request ended with {reason!r}")
        await self.tab.until("show.epochs.panel === 2")
        await self.talk()
        await self.tab.run("void (document.getElementById('door').src += '&again')")
        closed = await self.tab.run("show.pumps[0].closed")
        check(closed["code"] == 1001, f"the pump ended with {closed}")
        await self.tab.until("show.said.filter(([word]) => word === 'moved').length === 2")
        return f"lost with {reason!r}; both frames work again"


STEPS = {
    "ports": Scene.ports,
    "page and frame": Scene.talk,
    "door from a frame": Scene.door,
    "strangers": Scene.stranger,
    "reload": Scene.reload,
}


async def _play(row: RowRun, workshop: Workshop) -> None:
    program = find_chromium()
    if program is None:
        raise NotHere("no Chromium is installed (chromium, chromium-headless-shell)")
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise NotHere("FastAPI and uvicorn are missing: pip install 'polybus[fastapi]'")
    log = workshop.folder / "frames.log"
    async with Child("vehicle", "uprotocol+tcp://127.0.0.1:0", log=log) as car:
        vehicle = (await car.start()).split()[1]
        async with Child("site", vehicle, log=log) as site, chromium(program) as browser:
            tab = await browser.tab((await site.start()).split()[1])
            for name, step in STEPS.items():
                await row.step(name, _bound(step, Scene(tab)))
            if browser.problems:
                row.trouble = browser.problems[0][:300]


def _bound(step: Callable[[Scene], Awaitable[str]], scene: Scene) -> Callable[[], Awaitable[str]]:
    return lambda: step(scene)


class FramesPart:
    """What only a browser can show."""

    def rows(self) -> Sequence[Row]:
        """One."""
        return [Row("frames", "chromium", "port", tuple(STEPS), _play)]


PART = FramesPart()
