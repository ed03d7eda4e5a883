"""`polybus bridge`: as a process, and what it says of a routes file that cannot be."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from polybus import Bus, NoHandler, connect
from tests.support import BOUND, bounded, eventually

from .support import one_line

ROUTES = """
[[route]]
source = "door.*"
target = "vehicle.door.{1}"
request = "convert:shout"

[[route]]
source = "alarm"
target = "news.alarm"
kinds = ["publish"]
reverse = true
"""
ALL = '[[route]]\nsource = "{name}"\ntarget = "{name}"\n'
CONVERT = "def shout(body, message):\n    return body.upper()\n"


@asynccontextmanager
async def bridging(folder: Path, left: str, right: str, routes: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """`polybus bridge` in a process of its own, which serves the left side; and the URL that it serves."""
    (folder / "routes.toml").write_text(routes)
    command = [sys.executable, "-m", "polybus.cli", "bridge", left, right, "--serve", "left", "--routes", "routes.toml"]
    process = subprocess.Popen(  # noqa: ASYNC220  # it does not wait
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = [(await anyio.to_thread.run_sync(process.stdout.readline)).split() for _ in range(2)]
        assert said[1] == ["right", "is", "connected", "to", right]
        yield process, said[0][2]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.anyio
@bounded
async def test_it_joins_two_sides_until_it_is_told_to_leave(tmp_path: Path) -> None:
    (tmp_path / "convert.py").write_text(CONVERT)
    vehicle = Bus()

    @vehicle.handle("vehicle.door.open")
    async def door(body: str) -> str:
        return f"{body} is open"

    async with (
        vehicle.serve("csb+tcp://127.0.0.1:0") as listener,
        bridging(tmp_path, "ubre+ws://127.0.0.1:0/bus", listener.url, ROUTES) as (process, url),
    ):
        async with connect(url) as console, console.subscribe("news.*") as news:
            assert await console.request("door.open", "left") == "LEFT is open"
            await vehicle.publish("alarm", "smoke")
            message = await anext(news)
            assert (message.subject, message.body) == ("news.alarm", "smoke")
        process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(lambda: process.wait(BOUND)) == 0


@pytest.mark.anyio
@bounded
async def test_a_signal_lets_requests_be_answered(tmp_path: Path) -> None:
    server, go = Bus(), anyio.Event()

    @server.handle("slow")
    async def slow() -> str:
        await go.wait()
        return "done"

    @server.handle("there")
    async def there() -> None: ...

    async with (
        server.serve("csb+tcp://127.0.0.1:0") as listener,
        bridging(tmp_path, "ubre+tcp://127.0.0.1:0", listener.url, ALL) as (process, url),
    ):
        async with connect(url) as console:
            reply = console.request("slow")
            await eventually(lambda: server.stats().running == 1)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(NoHandler):  # as soon as it has heard the signal
                while True:
                    await console.request("there")
            go.set()
            assert await reply == "done"
        assert await anyio.to_thread.run_sync(process.wait) == 0


@pytest.mark.anyio
@bounded
async def test_it_ends_when_a_side_will_have_it_no_more(tmp_path: Path) -> None:
    welcome = True
    server = Bus(authenticate=lambda _: "bridge" if welcome else None)
    async with (
        server.serve("csb+ws://127.0.0.1:0/bus") as listener,
        bridging(tmp_path, "ubre+tcp://127.0.0.1:0", listener.url, ALL) as (process, _),
    ):
        welcome = False
        await server.peers[0].aclose("who are you?")
        _, told = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=60))
        *logged, last = told.splitlines()
        assert process.returncode == 1 and "identify yourself" in last
        assert "is lost: who are you?" in logged[0] and all("polybus.link" in line for line in logged)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[route]\n", "routes.toml: Expected ']]'"),
        ("", "no routes; each begins with [[route]]"),
        ('[route]\nsource = "a"\ntarget = "b"\n', "no routes; each begins with [[route]], in double brackets"),
        ("route = [1, 2]\n", "no routes; each begins with [[route]]"),
        ('route = ["a"]\n', "no routes; each begins with [[route]]"),
        ("route = 5\n", "no routes; each begins with [[route]]"),
        ('[[route]]\nsource = "a"\nsource = "b"\n', "Cannot overwrite a value (at line 3"),
        ('[[route]]\nsource = true\ntarget = "b"\n', "source is a subject, text or a number, not True"),
        ('[[route]]\nsource = "a..b"\ntarget = "b"\n', "line 1 (route 1): pattern 'a..b' has an empty token"),
        ('[[route]]\nsource = "a"\ntarget = "b.*"\n', "line 1 (route 1): subject 'b.*' is a pattern"),
        ('[[route]]\nsource = -1\ntarget = "b"\n', "line 1 (route 1): pattern -1 is not an action id"),
        ('[[route]]\nsource = "a.*"\ntarget = "b.{rest"\n', "line 1 (route 1): target 'b.{rest' has a brace without its other"),
        ('[[route]]\nsource = "a.*"\ntarget = "b.{a b}"\n', "line 1 (route 1): target 'b.{a b}' has a brace"),
        ('\ufeff[[route]]\nsource = "a"\ntargte = "b"\n', "line 1 (route 1): key 'targte' is not known"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nkinds = []\n', "kinds: none at all; one or more of request"),
        (
            '[[route]]\nsource = "a"\ntarget = "b"\nrequest = "os.path"\n',
            "request: 'os.path' is not of the form module:function",
        ),
        ('[[route]]\nsource = "a"\ntarget = "b"\nrequest = "os:name"\n', "a function, request(body, message) -> body"),
        ('[[route]]\nsource = "a"\ntarget = "b"\n[route.sub]\nx = 1\n', "key 'sub' is not known"),
        ("[routes]\n", "'routes' is not known here; routes begin with [[route]]"),
        ('\n\n[[route]]\nsource = "a"\n', "line 3 (route 1): key 'target' is missing"),
        ('[[route]]\nsource = "a"\ntargte = "b"\n', "line 1 (route 1): key 'targte' is not known; one of source, target"),
        ('[[route]]\nsource = "a"\ntarget = "b"\n[[route]]\nsource = 1.5\ntarget = "b"\n', "line 4 (route 2): source is"),
        ('[[route]]\nsource = "a.*"\ntarget = "b.{x}"\n', "{x} is not in the source 'a.*', which has {1}"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nkinds = "request"\n', "kinds is a list of texts, not 'request'"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nkinds = ["reqest"]\n', "'reqest'; one or more of request"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nreverse = "no"\n', "reverse is true or false, not 'no'"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nreply = "nothing_of_that:name"\n', "reply: there is no module"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nreply = "json:nothing"\n', "reply: there is no json:nothing"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nheaders = ["ReplyTo"]\n', "is a field of some protocol"),
    ],
)
def test_what_is_wrong_with_the_file_is_told_with_line_and_key(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "routes.toml"
    path.write_text(text)
    status, told = one_line(capsys, "bridge", "ubre+memory://a", "csb+memory://b", "--routes", str(path))
    assert status == 2
    assert said in told
    assert "routes.toml" in told


def test_a_file_or_a_side_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = one_line(capsys, "bridge", "ubre+memory://a", "csb+memory://b", "--routes", str(tmp_path / "none.toml"))
    assert (status, "No such file" in told) == (2, True)
    path = tmp_path / "routes.toml"
    path.write_text('[[route]]\nsource = "a"\ntarget = "b"\n')
    status, told = one_line(capsys, "bridge", "ubre+memory://a", "csb+memory://b", "--routes", str(path), "--serve", "top")
    assert (status, told) == (2, "--serve 'top': left or right")
    status, told = one_line(capsys, "bridge", "ubre+tcp://127.0.0.1:1", "csb+memory://b", "--routes", str(path))
    assert status == 1
    assert "127.0.0.1:1" in told
