"""The blocking twin: `polybus.sync`, and the bus of a `def` handler."""

import ast
import gc
import inspect
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, assert_type

import anyio
import pytest
from attrs import frozen

import polybus
from polybus import Channel, Identity, Subject, sync
from polybus.errors import (
    BadRequest,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    LocalProtocolError,
    NoHandler,
)
from polybus.events import LinkDown
from polybus.sync import BlockingBus, BlockingPeer
from polybus.sync.event_loop_thread import OwnedBus
from polybus.testing import pair
from tests.support import BOUND, free_port, until
from tests.unit.answering import noting

BACKENDS = ["asyncio", "trio"]
WAIT = 30.0


@frozen
class GetUser:
    id: int


@frozen
class User:
    id: int
    name: str


GET_USER = Subject("user.get", GetUser, User)


asked = threading.Event()
"""Set when somebody asks `for.ever`."""


def make_bus() -> polybus.Bus:
    bus = polybus.Bus(authenticate=lambda handshake: Identity("ann", key="ann"))
    bus.relay("news.>")

    @bus.handle(GET_USER)
    def get_user(query: GetUser) -> User:
        return User(query.id, "Ann")

    @bus.handle("who")
    def who(ctx: sync.Context) -> str:
        return str(ctx.identity)

    @bus.handle("no")
    def no() -> None:
        raise Forbidden("not you")

    @bus.handle("for.ever")
    async def for_ever() -> None:
        asked.set()
        await anyio.sleep_forever()

    @bus.handle("count")
    async def count(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @bus.handle("add")
    async def add(numbers: Channel[int, int]) -> None:
        total = 0
        async for number in numbers:
            total += number
            await numbers.send(total)

    return bus


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with sync.Bus(make_bus()) as server, server.serve("ubre+tcp://127.0.0.1:0") as listener:
        yield listener.url


@pytest.fixture(scope="module", name="bus", params=BACKENDS)
def connected(url: str, request: pytest.FixtureRequest) -> Iterator[sync.Bus]:
    with sync.connect(url, backend=request.param) as client:
        yield client


# -- every verb ----------------------------------------------------------------------------------------------------------


def test_a_request_gives_its_answer_and_a_def_handler_knows_who_asks(bus: sync.Bus) -> None:
    assert bus.request("who") == "ann"
    assert bus.request("user.get", {"id": 7}) == {"id": 7, "name": "Ann"}
    assert bus.request("user.get", {"id": 7}, returns=User) == User(7, "Ann")
    assert bus.request(GET_USER, GetUser(7)) == User(7, "Ann")


def test_publications_reach_a_for_loop(bus: sync.Bus) -> None:
    with bus.subscribe("news.*", returns=int) as news:
        bus.publish("news.a", 1)
        bus.publish_nowait("news.b", "no number")
        bus.publish("news.c", 3)
        seen = []
        for message in news:
            seen.append((message.subject, message.body))
            if len(seen) == 2:
                break
        assert seen == [("news.a", 1), ("news.c", 3)]
        assert (news.skipped, news.dropped) == (1, 0)


def test_receive_gives_up_in_time_and_loses_nothing_by_it(bus: sync.Bus) -> None:
    with bus.subscribe("news.*") as news:
        with pytest.raises(TimeoutError, match=r"nothing arrived within 0\.01 s"):
            news.receive(timeout=0.01)
        bus.publish("news.a", 1)
        assert news.receive(timeout=WAIT).body == 1
    with pytest.raises(EOFError):
        news.receive()


def test_streams_and_channels(bus: sync.Bus) -> None:
    with bus.stream("count", 100, returns=int) as numbers:
        assert list(numbers) == list(range(100))
    with bus.channel("add", sends=int, receives=int) as adding:
        adding.send(1)
        adding.send(2)
        assert [next(adding), adding.receive(timeout=WAIT)] == [1, 3]
        adding.send_eof()
        assert list(adding) == []


def test_peers_have_the_verbs_too(bus: sync.Bus) -> None:
    (peer,) = bus.peers
    assert peer == bus.peers[0] and len({peer, bus.peers[0]}) == 1
    assert (peer.protocol, peer.transport) == ("ubre", "tcp")
    assert peer.request(GET_USER, GetUser(1)) == bus.request(GET_USER, GetUser(1), to=peer)
    with peer.stream("count", 2, returns=int) as numbers:
        assert list(numbers) == [0, 1]
    with peer.channel("add") as adding:
        adding.send(5)
        assert adding.receive(WAIT) == 5
    peer.publish("news.a", 1)
    bus.publish("news.a", 1, to=[peer])
    peer.notify("user.get", {"id": 1})
    bus.notify("user.get", {"id": 1}, to=peer)
    for tell in (bus.notify, peer.notify):
        with pytest.raises(polybus.Unsupported, match="^to='//seat/1A/1': ubre has no addresses"):
            tell("user.get", to="//seat/1A/1")
    assert bus.stats().peers == 1


def test_a_server_for_threads_asks_tells_and_sends_away_who_is_there() -> None:
    app = polybus.Bus()
    heard = noting(app, "news.*")
    app.handle("ping")(lambda: "pong")
    with sync.Bus(make_bus()) as server, server.serve("ubre+tcp://127.0.0.1:0") as listener:
        with sync.connect(listener.url, bus=app, backoff=polybus.Backoff(attempts=0)) as client:
            events = client.events()
            (peer,) = listener.peers
            assert (peer.identity, peer.identity_key, peer.address[:9]) == ("ann", "ann", "127.0.0.1")
            assert server.peers_of("ann") == [peer] == server.peers
            assert peer.connected_at.tzinfo is not None and peer.id in repr(peer)
            assert peer.request("ping") == server.request("ping", to=peer) == "pong"
            server.publish("news.today", 5)
            until(lambda: heard == [5])
            with peer.subscribe("alarm.*", returns=int) as alarms:
                server.publish("alarm.own", 1)
                client.publish("alarm.pump", 3)
                message = alarms.receive(WAIT)
                assert (message.subject, message.body) == ("alarm.pump", 3)
            peer.close("enough")
            assert isinstance(events.receive(WAIT), LinkDown)
            with pytest.raises(Disconnected, match="enough"):
                client.request("ping.elsewhere")


def test_a_further_link_is_a_block(url: str) -> None:
    with sync.Bus() as bus, bus.connect(url) as first, bus.connect(url, serves=["user.>"]) as second:
        assert {first, second} == set(bus.peers)
        assert bus.request(GET_USER, GetUser(2)) == User(2, "Ann")
    with pytest.raises(LocalProtocolError, match="not running"):
        bus.stats()


def test_the_twin_has_every_verb_that_is_documented_but_those_that_register_or_only_look() -> None:
    reference = "".join(page.read_text() for page in (Path(__file__).parents[3] / "docs/reference/api").glob("*.md"))
    elsewhere = {
        *("handle", "on", "include", "implement", "publishes", "relay", "forward", "use", "dependencies", "handle_tunnels"),
        *("cluster", "as_", "ready", "why_not_ready", "leaving", "state", "aclose", "extended"),
    }
    for name, twin in {"Bus": BlockingBus, "Peer": BlockingPeer, "Listener": sync.BlockingListener}.items():
        section = reference.partition(f"::: polybus.{name}\n")[2].partition(":::")[0]
        documented = set(re.findall(r'- "?(\w+)"?$', section, re.M))
        assert len(documented) > 1
        assert documented - set(dir(twin)) <= elsewhere, name


def test_connect_takes_what_the_asynchronous_one_takes() -> None:
    twin, original = (
        {name: (parameter.kind, parameter.default) for name, parameter in inspect.signature(connect).parameters.items()}
        for connect in (sync.connect, polybus.connect)
    )
    assert twin.pop("backend") == (inspect.Parameter.KEYWORD_ONLY, "asyncio")
    assert twin == original


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tunnel_is_a_place_to_connect_to(backend: Any) -> None:
    plant, edge = polybus.Bus(), polybus.Bus()

    @plant.handle("level")
    def level(number: int, ctx: sync.Context) -> float:
        return ctx.bus.request("factor", returns=float) * number

    plant.handle("factor")(lambda: 10.5)
    edge.handle_tunnels("plant.{id}", plant, protocol="csb")
    with sync.Bus(edge) as server, server.serve("ubre+ws://127.0.0.1:0/bus") as listener:
        with sync.connect(listener.url, backend=backend) as outer:
            with sync.connect(outer.tunnel("plant.7"), protocol="csb") as inner:
                assert inner.request("level", 4, returns=float) == 42.0
                assert inner.peers[0].protocol == "csb"
            with sync.connect(outer.peers[0].tunnel("plant.8"), protocol="csb") as second:
                assert second.request("level", 2, returns=float) == 21.0
            with pytest.raises(ConnectFailed):
                sync.connect(outer.tunnel("nowhere"), protocol="csb")
            last = sync.connect(outer.tunnel("plant.9"), protocol="csb")
        with pytest.raises(LocalProtocolError):
            last.request("level", 1)
        last.close()


# -- errors --------------------------------------------------------------------------------------------------------------


def test_errors_keep_their_class_and_show_no_event_loop(bus: sync.Bus) -> None:
    for make, expected in (
        (lambda: bus.request("no"), Forbidden),
        (lambda: bus.request("nobody"), NoHandler),
        (lambda: bus.request("user.get", "x"), BadRequest),
        (lambda: bus.request("for.ever", timeout=0.01), DeadlineExceeded),
        (lambda: bus.stream("nobody").__enter__().receive(WAIT), NoHandler),
        (lambda: bus.subscribe(">.a"), LocalProtocolError),
    ):
        with pytest.raises(expected) as caught:
            make()
        files = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert len(files) <= 7, files
        assert not {"_asyncio.py", "base_events.py", "_run.py", "reply.py"} & set(files), files


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_first_connect_that_fails_leaves_no_thread(backend: Any) -> None:
    port, before = free_port(), set(threading.enumerate())  # those of earlier tests end when they like
    with pytest.raises(ConnectFailed, match=str(port)):
        sync.connect(f"ubre+tcp://127.0.0.1:{port}", backend=backend)
    # Loops of earlier tests may still start workers, and threads that close them.
    assert "polybus" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_a_wrong_url_and_a_wrong_backend_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="protocol\\+transport"):
        sync.connect("nonsense")
    with pytest.raises(ValueError, match="backend='twisted' must be one of asyncio, trio"):
        sync.Bus(backend="twisted")  # type: ignore[arg-type]  # the fault


def test_a_bus_that_is_not_open_says_so_and_may_be_opened_again(url: str) -> None:
    bus = sync.connect(url)
    assert bus.open() is bus
    bus.close()
    bus.close()
    with pytest.raises(LocalProtocolError, match="open it first"):
        bus.request("no")
    with bus:
        assert bus.request(GET_USER, GetUser(3)) == User(3, "Ann")


def test_a_blocking_verb_on_the_very_loop_is_refused() -> None:
    app = polybus.Bus()

    @app.handle("wrong")
    async def wrong() -> str:
        try:
            return str(bus.request("right"))
        except LocalProtocolError as error:
            return str(error)

    app.handle("right")(lambda: "right")
    with sync.Bus(app) as bus:
        assert "await" in bus.request("wrong")
        assert bus.request("right") == "right"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_def_handler_may_close_its_own_bus_and_is_answered(backend: Any) -> None:
    app, asked = polybus.Bus(), threading.Event()

    @app.handle("stop")
    def stop() -> str:
        server.close()
        asked.set()
        return "as you say"

    server = sync.Bus(app, backend=backend).open()
    assert server.request("stop", timeout=WAIT) == "as you say"
    assert asked.is_set()
    server.close()  # which waits for the end
    with pytest.raises(LocalProtocolError):
        server.request("stop")


def test_a_bus_cannot_be_pickled_and_says_where_to_open_one(bus: sync.Bus) -> None:
    with pytest.raises(TypeError, match="open one in each process"):
        pickle.dumps(bus)


# -- threads, ends, forks ------------------------------------------------------------------------------------------------


def test_many_threads_share_one_bus(bus: sync.Bus) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda n: bus.request(GET_USER, GetUser(n)).id, range(400)))
    assert answers == list(range(400))


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_that_wait_are_told_when_the_bus_is_closed(url: str, backend: Any) -> None:
    bus = sync.connect(url, backend=backend)
    asked, ends = threading.Barrier(9), list[Any]()

    def ask() -> None:
        asked.wait()
        try:
            while True:
                bus.request(GET_USER, GetUser(1))
        except (Disconnected, LocalProtocolError) as error:
            ends.append(error)

    def listen() -> None:
        with bus.subscribe("news.*") as news:
            asked.wait()
            ends.append(list(news))  # which ends

    threads = [threading.Thread(target=ask) for _ in range(7)] + [threading.Thread(target=listen)]
    for thread in threads:
        thread.start()
    asked.wait()
    bus.close()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)
    assert len(ends) == 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lifespan_may_hold_a_task_group_and_its_state_is_there_for_def_handlers(backend: Any) -> None:
    @asynccontextmanager
    async def lifespan(bus: polybus.Bus) -> AsyncIterator[str]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield "state"
            group.cancel_scope.cancel()

    app = polybus.Bus(lifespan=lifespan)

    @app.handle("state")
    def state(ctx: sync.Context) -> str:
        return str(ctx.state)

    with sync.Bus(app, backend=backend) as bus:
        assert bus.request("state") == "state"


def test_an_error_of_the_block_is_not_held_up_by_a_drain(url: str) -> None:
    asked.clear()
    with pytest.raises(ZeroDivisionError), sync.connect(url) as bus:
        thread = threading.Thread(target=lambda: pytest.raises(Disconnected, bus.request, "for.ever", timeout=60))
        thread.start()
        assert asked.wait(WAIT)
        1 / 0  # noqa: B018
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_forgotten_bus_warns_and_is_closed_all_the_same(url: str) -> None:
    gc.collect()  # what others forgot
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        bus = sync.connect(url)
        life = bus._life
        assert isinstance(life, OwnedBus)
        del bus
        gc.collect()
    assert [str(warning.category.__name__) for warning in warned] == ["ResourceWarning"]
    life.loop._thread.join(WAIT)
    assert not life.loop._thread.is_alive()


PROGRAM = """
import os, sys, threading
from polybus import sync
bus = sync.connect({url!r})
{body}
"""


def run_program(url: str, body: str) -> subprocess.Popen[str]:
    program = PROGRAM.format(url=url, body=body)
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(program: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = program.communicate(timeout=WAIT)
    except subprocess.TimeoutExpired:
        program.kill()
        out, err = program.communicate()
        raise AssertionError(f"it does not end, and has said {out!r}, {err!r}") from None
    return program.returncode, out, err


def test_what_was_published_leaves_although_nobody_closes(url: str, bus: sync.Bus) -> None:
    with bus.subscribe("news.*") as news:
        assert finish(run_program(url, "bus.publish('news.late', 1)")) == (0, "", "")
        assert news.receive(WAIT).subject == "news.late"


@pytest.mark.parametrize("line", ["bus.request('for.ever', timeout=600)", "for _ in news: pass", "news.receive()"])
def test_a_thread_that_still_waits_does_not_hold_up_the_end_and_says_nothing(line: str, url: str) -> None:
    """A traceback that a daemon thread prints while CPython leaves may end it by a signal."""
    body = f"""
waits = threading.Event()
def wait():
    with bus.subscribe("news.none") as news:
        waits.set()
        {line}
threading.Thread(target=wait, daemon=True).start()
waits.wait()
print('over')"""
    assert finish(run_program(url, body)) == (0, "over\n", "")


INTERRUPTED = """
with bus, bus.subscribe("news.none") as news:
    try:
        print("waiting", flush=True)
        {line}
    except KeyboardInterrupt:
        while bus.stats().pending:
            pass
        print("interrupted", flush=True)
        print(bus.request("user.get", {{"id": 1}})["name"])
"""


@pytest.mark.parametrize("line", ["bus.request('for.ever', timeout=600)", "next(news)"])
def test_ctrl_c_ends_what_waits_and_the_bus_goes_on(line: str, url: str) -> None:
    asked.clear()
    program = run_program(url, INTERRUPTED.format(line=line))
    assert program.stdout is not None and program.stdout.readline() == "waiting\n"
    if "for.ever" in line:
        assert asked.wait(WAIT)
    program.send_signal(signal.SIGINT)
    assert finish(program) == (0, "interrupted\nAnn\n", "")


EVERYWHERE = """
import dis
from polybus.sync import event_loop_thread

left = 0
last = {}

def interrupt(frame, event, _):
    global left
    code = frame.f_code
    if code.co_filename != event_loop_thread.__file__:
        return None
    frame.f_trace_opcodes = True
    if event == "opcode":
        before, last[frame] = last.get(frame, ""), dis.opname[code.co_code[frame.f_lasti]]
        if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):  # there the interpreter looks for signals
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
    return interrupt

with bus:
    place, came = -1, True  # a first turn without an interruption: CPython 3.12.1 reports opcodes from the second on
    while came:
        left = place
        sys.settrace(interrupt)
        try:
            bus.request("user.get", {"id": 1})
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            last.clear()
        place, came = place + 1, left < 0
    print(bus.request("user.get", {"id": 1})["name"], place > 10)
"""


def test_wherever_ctrl_c_meets_a_request_the_bus_goes_on_and_can_be_closed(url: str) -> None:
    """At each place of our own in turn. What anyio and the interpreter's futures do meanwhile is theirs."""
    assert finish(run_program(url, EVERYWHERE)) == (0, "Ann True\n", "")


def test_ctrl_c_while_the_loop_takes_the_request_cancels_it_too(bus: sync.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bus._life, OwnedBus)
    portal = bus._life.loop._portal
    start = portal.start_task_soon

    def interrupted(*args: Any) -> None:
        asked.clear()
        start(*args)
        assert asked.wait(WAIT)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(portal, "start_task_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.request("for.ever", timeout=600)
    until(lambda: bus.stats().pending == 0)  # the lambda of a plain function may block the loop that calls it


IMPATIENT = """
import anyio, polybus, polybus._core.bus.bus
polybus._core.bus.bus.Bus.drain.__defaults__ = (600.0,)
app = polybus.Bus()

@app.handle("stubborn")
async def stubborn():
    while app.ready:
        await anyio.sleep(0)
    print("drains", flush=True)
    await anyio.sleep_forever()

server = sync.Bus(app).open()
threading.Thread(target=server.notify, args=("stubborn",)).start()
try:
    server.close()
except KeyboardInterrupt:
    print("interrupted")
print(threading.active_count() - 1, "threads are left")
bus.close()
"""


def test_ctrl_c_while_a_bus_drains_ends_it_at_once(url: str) -> None:
    program = run_program(url, IMPATIENT)
    assert program.stdout is not None and program.stdout.readline() == "drains\n"
    program.send_signal(signal.SIGINT)
    status, out, err = finish(program)
    assert (status, out.splitlines()[:1], err) == (0, ["interrupted"], "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_is_told_to_open_its_own_and_ends_well(url: str) -> None:
    body = f"""
child = os.fork()
if child == 0:
    for ask in (lambda: bus.request("no"), bus.open):
        try:
            ask()
        except Exception as error:
            print(type(error).__name__, "open another one here" in str(error))
    with sync.connect({url!r}) as own:
        print(own.request("user.get", {{"id": 1}})["name"])
    bus.close()
    sys.stdout.flush()
else:
    print(os.waitpid(child, 0)[1], bus.request("user.get", {{"id": 1}})["name"])
    bus.close()
"""
    program = PROGRAM.format(url=url, body=body)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]  # Python 3.12 warns of forks beside threads
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT * 3, check=False)
    expected = ["LocalProtocolError True", "LocalProtocolError True", "Ann", "0 Ann"]
    assert (ended.returncode, ended.stdout.splitlines(), ended.stderr) == (0, expected, "")


# -- in handlers -----------------------------------------------------------------------------------------------------------


async def test_a_def_handler_asks_back_streams_and_lets_its_own_threads_do_so() -> None:
    app = polybus.Bus()

    @app.handle("outer")
    def outer(ctx: sync.Context) -> list[Any]:
        assert_type(ctx.bus, BlockingBus)
        assert ctx.peer is not None
        with ctx.bus.stream("count", 3, returns=int) as numbers, ThreadPoolExecutor(4) as threads:
            doubled = list(threads.map(lambda n: ctx.bus.request("double", n), numbers))
        with pytest.raises(NoHandler):
            ctx.peer.request("nobody")
        return [*doubled, ctx.peer.request("client"), ctx.bus.request("client", to=ctx.peer), ctx.peer in ctx.bus.peers]

    @app.handle("count")
    async def count(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    client = polybus.Bus()
    app.handle("double")(lambda number: 2 * number)
    client.handle("client")(lambda: "client")
    with anyio.fail_after(WAIT):
        async with pair(app, client=client) as bus:
            assert await bus.request("outer", to=bus.peers[0]) == [0, 2, 4, "client", "client", True]


def test_the_context_of_threads_is_for_def_handlers_only() -> None:
    async def handler(ctx: sync.Context) -> None: ...

    with pytest.raises(TypeError, match="handler runs on the event loop: annotate 'ctx' with polybus.Context"):
        polybus.Bus().handle("a")(handler)


async def test_the_twin_of_a_handler_ends_with_its_bus() -> None:
    app, kept = polybus.Bus(), list[BlockingBus]()

    @app.handle("keep")
    def keep(ctx: sync.Context) -> None:
        kept.append(ctx.bus)

    with anyio.fail_after(WAIT):
        async with pair(app) as bus:
            await bus.request("keep")
        with pytest.raises(LocalProtocolError):
            await anyio.to_thread.run_sync(kept[0].publish, "a")
        with pytest.raises(LocalProtocolError, match="event loop"):
            kept[0].publish("a")


# -- on an event loop ------------------------------------------------------------------------------------------------------


def asks(bus: sync.Bus, number: int) -> Any:
    return bus.request("user.get", {"id": number})


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_async_function_that_calls_a_blocking_verb_is_told_to_await_instead(url: str, backend: str) -> None:
    async def opens() -> None:
        sync.connect(url)

    async def requests() -> None:
        bus.request("user.get", {"id": 1})

    async def comprehends() -> None:
        [bus.request("user.get", {"id": number}) for number in (1, 2)]

    async def generates() -> None:
        any(bus.request("user.get", {"id": number}) for number in (1, 2))

    async def sorts() -> None:
        sorted((1, 2), key=lambda number: bus.request("user.get", {"id": number})["name"])

    async def iterates() -> AsyncIterator[None]:
        with bus.subscribe("news.>"):
            yield

    async def drained() -> None:
        async for _ in iterates():
            pass

    async def in_a_thread() -> None:
        assert await anyio.to_thread.run_sync(asks, bus, 1) == {"id": 1, "name": "Ann"}

    async def through_a_plain_function() -> None:  # as a callback of a widget
        assert asks(bus, 1) == {"id": 1, "name": "Ann"}

    def widget_callback() -> Any:
        return lambda: bus.request("user.get", {"id": 1})

    async def widget() -> None:  # its name begins the name of the plain function that has made the lambda
        assert widget_callback()() == {"id": 1, "name": "Ann"}

    async def leaves() -> None:
        bus.close()

    with sync.connect(url) as bus:
        for function in (opens, requests, comprehends, generates, sorts, drained):
            name = "iterates" if function is drained else function.__name__
            with pytest.raises(LocalProtocolError, match=rf"async function \S+\.{name} called .*: await polybus\.connect and"):
                anyio.run(function, backend=backend)
        for function in (in_a_thread, through_a_plain_function, widget, leaves):
            anyio.run(function, backend=backend)


async def test_a_cell_of_a_notebook_may_block_its_event_loop(url: str) -> None:
    for await_too in ("", "import asyncio\nawait asyncio.sleep(0)\n"):
        source = (
            f"{await_too}bus = sync.connect(url)\n[user] = (bus.request('user.get', {{'id': n}}) for n in (1,))\nbus.close()"
        )
        cell = {"__name__": "__main__", "sync": sync, "url": url}
        running = eval(compile(source, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), cell)
        if await_too:
            await running
        assert cell["user"] == {"id": 1, "name": "Ann"}


async def test_blocking_verbs_on_an_event_loop_that_runs_a_bus_are_told_to_wait_there(url: str) -> None:
    outside = await anyio.to_thread.run_sync(sync.connect, url)
    try:
        told, bus = list[str](), polybus.Bus()

        @bus.handle("blocks")
        async def blocks(where: str) -> None:
            for verb in (lambda: sync.connect(where), lambda: outside.request("user.get", {"id": 1})):
                with pytest.raises(LocalProtocolError) as caught:
                    verb()
                told.append(str(caught.value))

        async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, polybus.connect(listener.url) as client:
            with anyio.fail_after(BOUND):
                await client.request("blocks", listener.url)
                assert await anyio.to_thread.run_sync(outside.request, "user.get", {"id": 1}) == {"id": 1, "name": "Ann"}
        assert len(told) == 2 and all("await polybus.connect" in text for text in told)
        assert asks(outside, 2) == {"id": 2, "name": "Ann"}  # the loop has no bus any more
    finally:
        outside.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_server_that_is_closed_inside_of_its_blocks_ends_its_connections(backend: Literal["asyncio", "trio"]) -> None:
    app = polybus.Bus()
    app.handle("echo")(lambda body: body)
    server = sync.Bus(app, backend=backend).open()
    with server.serve("ubre+tcp://127.0.0.1:0") as listener, sync.connect(listener.url) as client:
        assert client.request("echo", 1) == 1
        events = client.events()
        server.close()
        assert app._services.runtime is None
        assert any(isinstance(event, LinkDown) for event in events)
    gc.collect()  # an unclosed socket is a warning, and warnings are errors


def test_what_a_with_block_gives_is_not_to_be_had_before_it_is_entered() -> None:
    with sync.Bus(make_bus()) as server:
        block: Any = server.serve("ubre+tcp://127.0.0.1:0")
        with pytest.raises(
            AttributeError, match=r"'url' is available only inside the block: .*enter it: `with bus\.serve\(url\) as"
        ):
            _ = block.url
        assert not hasattr(block, "_polybus_nothing")
        with block as listener:
            assert listener.url.startswith("ubre+tcp://127.0.0.1:")


@pytest.mark.parametrize("backend", ["curio", None, 7])
def test_a_backend_that_does_not_exist_is_named(backend: Any) -> None:
    with pytest.raises(ValueError, match="backend=.* must be one of asyncio, trio"):
        sync.Bus(backend=backend)


def test_a_blocking_bus_cannot_be_run_by_another_one() -> None:
    with pytest.raises(TypeError, match=r"sync.Bus\(\) takes a polybus.Bus, not .* of polybus.sync"):
        sync.Bus(sync.Bus())  # type: ignore[arg-type]  # the fault


def test_a_channel_is_used_inside_its_block() -> None:
    with sync.Bus() as bus:
        channel = bus.channel("chat")
        for use in (lambda: channel.send(1), channel.send_eof, channel.receive, lambda: next(channel)):
            with pytest.raises(LocalProtocolError, match="this channel was never entered: use it inside its block"):
                use()
