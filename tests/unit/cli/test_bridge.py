"""`polybus bridge`: as a process, and what it says of a routes file that cannot be."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from polybus import Bus, NoHandler, connect
from tests.support import BOUND, eventually

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
CONVERT = "def shout(body, message):\n    return body.upper()\n"


def test_it_joins_two_sides_until_it_is_told_to_leave(tmp_path: Path) -> None:
    (tmp_path / "routes.toml").write_text(ROUTES)
    (tmp_path / "convert.py").write_text(CONVERT)
    vehicle = Bus()

    @vehicle.handle("vehicle.door.open")
    async def door(body: str) -> str:
        return f"{body} is open"

    async def use() -> None:
        async with vehicle.serve("csb+tcp://127.0.0.1:0") as listener:
            command = [sys.executable, "-m", "polybus.cli", "bridge", "ubre+ws://127.0.0.1:0/bus", listener.url]
            process = subprocess.Popen(  # noqa: ASYNC220  # it does not wait
                [*command, "--serve", "left", "--routes", "routes.toml"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            try:
                said = [(await anyio.to_thread.run_sync(process.stdout.readline)).split() for _ in range(2)]
                assert said[1] == ["right", "is", "connected", "to", listener.url]
                async with connect(said[0][2]) as console, console.subscribe("news.*") as news:
                    assert await console.request("door.open", "left") == "LEFT is open"
                    await vehicle.publish("alarm", "smoke")
                    message = await anext(news)
                    assert (message.subject, message.body) == ("news.alarm", "smoke")
                process.send_signal(signal.SIGTERM)
                assert await anyio.to_thread.run_sync(lambda: process.wait(BOUND)) == 0
            finally:
                process.kill()
                process.wait()
                process.stdout.close()

    async def bounded() -> None:
        with anyio.fail_after(BOUND):
            await use()

    anyio.run(bounded)


def test_a_signal_lets_requests_be_answered(tmp_path: Path) -> None:
    (tmp_path / "routes.toml").write_text('[[route]]\nsource = "{name}"\ntarget = "{name}"\n')

    async def use() -> None:
        server, go = Bus(), anyio.Event()

        @server.handle("slow")
        async def slow() -> str:
            await go.wait()
            return "done"

        @server.handle("there")
        async def there() -> None: ...

        with anyio.fail_after(60):
            async with server.serve("csb+tcp://127.0.0.1:0") as listener:
                command = [sys.executable, "-m", "polybus.cli", "bridge", "ubre+tcp://127.0.0.1:0", listener.url]
                process = subprocess.Popen(  # noqa: ASYNC220  # it does not wait
                    [*command, "--serve", "left", "--routes", "routes.toml"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
                )
                assert process.stdout is not None
                try:
                    url = (await anyio.to_thread.run_sync(process.stdout.readline)).split()[2]
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
                finally:
                    process.kill()
                    process.wait()
                    process.stdout.close()

    anyio.run(use)


def test_it_ends_when_a_side_will_have_it_no_more(tmp_path: Path) -> None:
    (tmp_path / "routes.toml").write_text('[[route]]\nsource = "a"\ntarget = "b"\n')
    welcome = True
    server = Bus(authenticate=lambda _: "bridge" if welcome else None)

    async def use() -> None:
        nonlocal welcome
        with anyio.fail_after(BOUND):
            async with server.serve("csb+ws://127.0.0.1:0/bus") as listener:
                command = [sys.executable, "-m", "polybus.cli", "bridge", "ubre+tcp://127.0.0.1:0", listener.url]
                process = subprocess.Popen(  # noqa: ASYNC220  # it does not wait
                    [*command, "--serve", "left", "--routes", "routes.toml"],
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                try:
                    assert process.stdout is not None
                    await anyio.to_thread.run_sync(process.stdout.readline)
                    welcome = False
                    await server.peers[0].aclose("who are you?")
                    _, told = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=60))
                    *logged, last = told.splitlines()
                    assert process.returncode == 1 and "identify yourself" in last
                    assert "is lost: who are you?" in logged[0] and all("polybus.link" in line for line in logged)
                finally:
                    process.kill()
                    process.communicate()

    anyio.run(use)


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
