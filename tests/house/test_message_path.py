"""The walks of docs/explanation/message-path.md: their steps are functions that run, in this order."""

import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

from polybus import Bus, connect
from polybus.speedups import ACTIVE

from .sources import PACKAGE

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "message-path.md"


def steps(walk: str) -> list[tuple[str, str]]:
    """Function and module of each step."""
    section = PAGE.read_text().partition(f"### {walk}\n")[2].partition("\n#")[0]
    found = re.findall(r"^\d+\. `([^`]+)`.*?\(`([^`]+)`\)", section, re.MULTILINE)
    assert len(found) == len(re.findall(r"^\d+\. ", section, re.MULTILINE)) > 0
    return found


@contextmanager
def called() -> Iterator[list[tuple[str, str]]]:
    """What is called of polybus meanwhile, in all threads that begin meanwhile."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            calls.append((frame.f_code.co_qualname, str(path.relative_to(PACKAGE).with_suffix(""))))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


async def request(server: Bus, url: str, folder: Path) -> None:
    async with connect(url) as client:
        assert await client.request("double", 21, returns=int) == 42


async def publish(server: Bus, url: str, folder: Path) -> None:
    async with connect(url) as one, connect(url) as other, one.subscribe("news.>") as mine, other.subscribe("news.>") as its:
        await server.publish("news.today", "rain")
        assert [(await each.receive()).body for each in (mine, its)] == ["rain", "rain"]


async def record(server: Bus, url: str, folder: Path) -> None:
    async with server.record(folder):
        await request(server, url, folder)


@pytest.mark.skipif(ACTIVE, reason="C takes some of the steps: make test tries them in Python, too")
@pytest.mark.parametrize(
    ("walk", "walked"),
    [("A request, UBRE over TCP", request), ("A publication to many", publish), ("A recorded frame", record)],
)
async def test_the_steps_of_a_walk_are_taken(
    walk: str, walked: Callable[[Bus, str, Path], Awaitable[None]], tmp_path: Path
) -> None:
    server = Bus()
    server.handle("double")(_double)
    async with server, server.serve("ubre+tcp://127.0.0.1:0") as listener:
        with called() as calls, anyio.fail_after(100):
            await walked(server, listener.url, tmp_path)
    rest = iter(calls)
    missed = [step for step in steps(walk) if step not in rest]
    assert missed == [], "in the page, but not called in this place"


async def _double(number: int) -> int:
    return 2 * number
