"""`polybus bridge` and `polybus broker`."""

import signal
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from polybus import Bus, NoHandler, connect
from tests.support import BOUND, eventually

from .support import Cli, next_line, serve_process, started

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


async def test_it_joins_two_sides_until_a_signal_which_lets_requests_be_answered(tmp_path: Path) -> None:
    (tmp_path / "convert.py").write_text(CONVERT)
    vehicle, go = Bus(), anyio.Event()

    @vehicle.handle("vehicle.door.open")
    async def door(body: str) -> str:
        return f"{body} is open"

    @vehicle.handle("vehicle.door.slow")
    async def slow() -> str:
        await go.wait()
        return "done"

    (tmp_path / "routes.toml").write_text(ROUTES)
    async with vehicle.serve("csb+tcp://127.0.0.1:0") as listener:
        sides = ("ubre+ws://127.0.0.1:0/bus", listener.url)
        with started("bridge", *sides, "--serve", "left", "--routes", "routes.toml", cwd=tmp_path) as process:
            left, right = await anyio.to_thread.run_sync(lambda: (next_line(process), next_line(process)))
            assert right == f"right is connected to {listener.url}"
            async with connect(left.removeprefix("left serves ")) as console, console.subscribe("news.*") as news:
                assert await console.request("door.open", "left") == "LEFT is open"
                await vehicle.publish("alarm", "smoke")
                message = await anext(news)
                assert (message.subject, message.body) == ("news.alarm", "smoke")
                reply = console.request("door.slow", "")
                await eventually(lambda: vehicle.stats().running == 1)
                process.send_signal(signal.SIGTERM)
                with pytest.raises(NoHandler):  # as soon as it has heard the signal
                    while True:
                        await console.request("door.open", "left")
                go.set()
                assert await reply == "done"
            assert await anyio.to_thread.run_sync(process.wait) == 0


def test_it_ends_when_a_side_will_have_it_no_more(tmp_path: Path, cli: Cli) -> None:
    welcome = True
    server = Bus(authenticate=lambda _: "bridge" if welcome else None)

    async def turn_away() -> None:
        nonlocal welcome
        await eventually(lambda: server.peers)
        welcome = False
        await server.peers[0].aclose("who are you?")

    (tmp_path / "routes.toml").write_text(ALL)
    with start_blocking_portal() as portal:
        listening = portal.wrap_async_context_manager(server.serve("csb+ws://127.0.0.1:0/bus"))
        with listening as listener:
            portal.start_task_soon(turn_away)
            sides = ("ubre+tcp://127.0.0.1:0", listener.url)
            told = cli.err(1, "bridge", *sides, "--serve", "left", "--routes", str(tmp_path / "routes.toml"))
    assert "pass a token or a cookie" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[route]\n", "routes.toml: Expected ']]'"),
        ("", "no routes; each starts with [[route]]"),
        ('[route]\nsource = "a"\ntarget = "b"\n', "no routes; each starts with [[route]], in double brackets"),
        ("route = 5\n", "no routes; each starts with [[route]]"),
        ('[[route]]\nsource = true\ntarget = "b"\n', "source must be a string or a number, not True"),
        ('\ufeff[[route]]\nsource = "a"\ntargte = "b"\n', "line 1 (route 1): unknown key 'targte'"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nrequest = "os.path"\n', "request: 'os.path' does not have the form module:"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nrequest = "os:name"\n', "a function, request(body, message) -> body"),
        ('[[route]]\nsource = "a"\ntarget = "b"\n[route.sub]\nx = 1\n', "unknown key 'sub'"),
        ("[routes]\n", "unknown key 'routes'; each route starts with [[route]]"),
        ('\n\n[[route]]\nsource = "a"\n', "line 3 (route 1): missing key 'target'"),
        ('[[route]]\nsource = "a"\ntarget = "b"\n[[route]]\nsource = 1.5\ntarget = "b"\n', "line 4 (route 2): source must be"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nkinds = "request"\n', "kinds must be a list of strings, not 'request'"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nreverse = "no"\n', "reverse must be true or false, not 'no'"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nreply = "nothing_of_that:name"\n', "reply: no module"),
        ('[[route]]\nsource = "a"\ntarget = "b"\nreply = "json:nothing"\n', "reply: json:nothing does not exist"),
    ],
)
def test_what_is_wrong_with_the_file_is_told_with_line_and_key(text: str, said: str, tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "routes.toml"
    path.write_text(text)
    told = cli.line(2, "bridge", "ubre+memory://a", "csb+memory://b", "--routes", str(path))
    assert said in told
    assert "routes.toml" in told


def test_a_file_or_a_side_that_is_not_there_is_told(tmp_path: Path, cli: Cli) -> None:
    assert "No such file" in cli.line(2, "bridge", "ubre+memory://a", "csb+memory://b", "--routes", str(tmp_path / "none.toml"))
    path = tmp_path / "routes.toml"
    path.write_text('[[route]]\nsource = "a"\ntarget = "b"\n')
    told = cli.line(2, "bridge", "ubre+memory://a", "csb+memory://b", "--routes", str(path), "--serve", "top")
    assert told == "--serve 'top': use left or right"
    assert "127.0.0.1:1" in cli.line(1, "bridge", "ubre+tcp://127.0.0.1:1", "csb+memory://b", "--routes", str(path))


# -- polybus broker, as a process, and polybus serve behind it -------------------------------------------------------------

BROKER = ("--clients", "csb+ws://127.0.0.1:0/game", "--servers", "csb+tcp://127.0.0.1:0")
BEHIND = """
from polybus import Bus

bus = Bus()

@bus.handle("double")
async def double(body: int) -> int:
    return 2 * body
"""


def test_it_says_where_it_is_hands_on_to_a_server_and_leaves_in_order(tmp_path: Path) -> None:
    async def use(url: str) -> None:
        async with connect(url) as client:
            assert await client.request("double", 7) == 14

    with started("broker", *BROKER, "--metrics", "http://127.0.0.1:0") as broker:
        urls = dict(next_line(broker).split() for _ in range(3))
        assert set(urls) == {"clients", "servers", "metrics"}
        with serve_process(tmp_path, url=f"{urls['servers']}&pool=2", app=BEHIND) as (url, server):
            assert url == f"{urls['servers']}&pool=2"
            anyio.run(use, urls["clients"])
            server.send_signal(signal.SIGTERM)
            _, told = server.communicate(timeout=BOUND)
            assert server.returncode == 0 and told.endswith("INFO polybus: SIGTERM, draining\n")
        broker.send_signal(signal.SIGINT)
        _, told = broker.communicate(timeout=BOUND)
        assert (broker.returncode, told) == (0, "")
