"""What a caller does wrong is told at the call, in words that name the argument, what was given and what is wanted."""

import math
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Any

import anyio
import pytest
from fastapi import FastAPI

import polybus
import polybus.sync
from polybus import Backoff, BadRequest, Bus, Context, Disconnected, Limits, Route, Router, TooManyRequests, connect
from polybus.broker import Broker
from polybus.errors import Forbidden, LocalProtocolError, NotFound, ReservedSubject, Unsupported
from polybus.events import HandlerFailed
from polybus.fastapi import attach
from polybus.plugins.extensions import core_of
from polybus.protocols import Csb, Nats, Up
from polybus.secrets import without_secrets
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually

WRONG: Any = "what type checkers would not let pass"
bus_class: Any = Bus
attached: Any = attach
connector: Any = connect
router_class: Any = Router
blocking: Any = polybus.sync


# -- times ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        *[(wrong, TypeError) for wrong in (None, "3", True, b"3")],
        *[(wrong, ValueError) for wrong in (math.nan, -1, -0.001, math.inf)],
        pytest.param(10**400, ValueError, id="larger than a float"),
        pytest.param(10**5000, ValueError, id="larger than a text of it"),
    ],
)
async def test_a_timeout_is_a_finite_number_of_seconds(seconds: Any, error: type[Exception]) -> None:
    async with pair(bus := Bus()) as client:
        peer = client.peers[0]
        for verb in (client.request, bus.request, peer.request, client.publish_nowait):
            with pytest.raises(error, match=r"^timeout="):
                verb("here", 1, timeout=seconds)
        for publish in (client.publish, peer.publish, bus.publish):
            with pytest.raises(error, match=r"^timeout="):
                await publish("news", 1, timeout=seconds)
        with pytest.raises(error, match=r"^timeout="):
            await bus.drain(seconds)
        assert bus.ready
        if seconds is not None:  # as long as the block lasts
            for opening in (client.stream, client.channel, peer.stream, peer.channel):
                with pytest.raises(error, match=r"^timeout="):
                    opening("here", timeout=seconds)


@pytest.mark.parametrize(
    ("wait", "error"), [(None, TypeError), ("1", TypeError), (True, TypeError), (math.nan, ValueError), (-1, ValueError)]
)
def test_wait_is_a_number_of_seconds(wait: Any, error: type[Exception]) -> None:
    for make in (connect, Bus().connect):
        with pytest.raises(error, match=r"^wait="):
            make("ubre+tcp://127.0.0.1:1", wait=wait)
    connect("ubre+tcp://127.0.0.1:1", wait=math.inf)


async def test_a_timeout_may_be_a_whole_number_and_zero() -> None:
    bus = Bus()
    bus.handle("here")(lambda: 7)
    async with pair(bus) as client:
        assert await client.request("here", timeout=30) == 7
        with pytest.raises(TimeoutError):
            await client.request("here", timeout=0)


# -- to= -----------------------------------------------------------------------------------------------------------------


async def test_to_is_a_peer_of_this_bus() -> None:
    server, another = Bus(), Bus()
    async with pair(server) as client, pair(another):
        verbs: list[Any] = [client.request, client.publish_nowait, client.stream, client.channel]
        awaited: list[Any] = [client.publish, client.notify]
        stranger = another.peers[0]
        with pytest.raises(Unsupported, match=r"^to='ann': ubre has no addresses behind a peer"):
            await client.notify("x", to="ann")  # where a wire has some, it may be one
        for to, error in (("ann", TypeError), (5, TypeError), (client, TypeError), (stranger, ValueError)):
            for verb in verbs:
                with pytest.raises(error, match=r"^to="):
                    verb("x", to=to)
            for waiting in awaited if to != "ann" else awaited[:1]:
                with pytest.raises(error, match=r"^to="):
                    await waiting("x", to=to)
        for several in (["ann"], [client.peers[0], stranger], {"ann": 1}):
            with pytest.raises((TypeError, ValueError), match=r"^to="):
                await client.publish("x", to=several)  # type: ignore[arg-type]
        assert client.stats().sent == 0


async def test_a_publication_to_an_empty_list_reaches_nobody() -> None:
    bus, heard = Bus(), []
    bus.on("x", inline=True)(lambda body: heard.append(body))
    async with pair(bus) as client:
        await client.publish("x", 1, to=[])
        client.publish_nowait("x", 2, to=())
        await client.publish("x", 3, to=iter(client.peers))
        await eventually(lambda: heard)
    assert heard == [3]


async def test_what_is_sent_to_a_peer_that_has_gone_is_disconnected_and_the_others_get_it() -> None:
    bus = Bus()
    async with bus.serve("ubre+memory://gone") as listener, connect(listener.url) as stays, stays.subscribe("x") as news:
        async with connect(listener.url):
            left = next(peer for peer in bus.peers if not core_of(peer).patterns)
        await eventually(lambda: left not in bus.peers)
        with pytest.raises(Disconnected, match="gone") as caught:
            await bus.publish("x", 1, to=left)
        assert not caught.value.sent
        with pytest.raises(Disconnected, match="gone"):
            bus.publish_nowait("x", 1, to=[left])
        for waiting in (partial(bus.notify, to=left), left.publish, partial(bus.publish, to=[left, *bus.peers])):
            with pytest.raises(Disconnected, match="gone"):
                await waiting("x", 2)
        with pytest.raises(Disconnected):
            await bus.request("x", 1, to=left)
        assert (await anext(news)).body == 2


# -- subjects and headers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", [["a"], {"a": 1}, None, 1.5, b"a"])
async def test_what_is_neither_text_nor_a_number_is_no_subject(subject: Any) -> None:
    async with pair(Bus()) as client:
        peer = client.peers[0]
        of_both = [verb for one in (client, peer) for verb in (one.request, one.stream, one.channel, one.subscribe)]
        for verb in (*of_both, client.publish_nowait, client.handle, client.on, client.relay):
            with pytest.raises(LocalProtocolError, match="must be a string or an integer"):
                verb(subject)
        for waiting in (client.publish, client.notify, peer.publish, peer.notify):
            with pytest.raises(LocalProtocolError, match="must be a string or an integer"):
                await waiting(subject)


@pytest.mark.parametrize("protocol", ["ubre", "jrep", "uprotocol"])
async def test_a_number_is_unsupported_as_a_subject_where_subjects_are_text(protocol: str) -> None:
    async with pair(Bus(), protocol=protocol) as client:
        peer = client.peers[0]
        for verb in (client.request, client.publish_nowait, peer.request):
            with pytest.raises(Unsupported, match="7 is a number"):
                verb(7)
        for waiting in (client.publish, client.notify, peer.publish, peer.notify):
            with pytest.raises(Unsupported, match="7 is a number"):
                await waiting(7)
        for opening in (client.stream(7), client.channel(7), client.subscribe(7)):
            await refused(opening, Unsupported, "7 is a number")


@pytest.mark.parametrize(
    ("headers", "error", "says"),
    [
        ([("a", "b")], TypeError, r"^headers=.*dict\(\)"),
        ("a: b", TypeError, r"^headers="),
        ({"a": 1}, LocalProtocolError, r"header 'a'.*not int"),
        ({"a": b"1"}, LocalProtocolError, r"header 'a'.*not bytes"),
        ({1: "a"}, LocalProtocolError, r"header 1.*not int"),
        ({"a b": "c"}, LocalProtocolError, "token"),
        ({"a": "b\r\nc: d"}, LocalProtocolError, "line breaks"),
        ({"polybus-via": "x"}, ReservedSubject, "polybus-via"),
    ],
)
async def test_headers_are_a_mapping_of_text_to_text(headers: Any, error: type[Exception], says: str) -> None:
    async with pair(Bus()) as client:
        with pytest.raises(error, match=says):
            _ = client.request("x", headers=headers)
        for waiting in (client.publish, client.notify):
            with pytest.raises(error, match=says):
                await waiting("x", headers=headers)


async def test_headers_of_a_connection_are_a_mapping_of_text_to_text() -> None:
    bus = Bus()
    wrong: list[tuple[Any, type[Exception]]] = [({"a": 1}, LocalProtocolError), ([("a", "b")], TypeError), ("a", TypeError)]
    async with bus.serve("ubre+memory://headers") as listener:
        for headers, error in wrong:
            with pytest.raises(error, match="header"):
                connect(listener.url, headers=headers)
            await refused(connect(listener.url, headers=partial(copy, headers)), error, "header")
        async with connect(listener.url, headers=lambda: None):
            assert len(bus.peers) == 1


# -- options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: bus_class(limits=WRONG), "limits="),
        (lambda: bus_class(limits=5), "limits=5"),
        (lambda: bus_class(authenticate=5), "authenticate=5"),
        (lambda: bus_class(authorize="ann"), "authorize='ann'"),
        (lambda: bus_class(lifespan=5), "lifespan=5"),
        (lambda: bus_class().use(None), "bus.use"),
        (lambda: bus_class().include(Bus), "router="),
        (lambda: bus_class().include(Router(), prefix=5), "prefix=5"),
        (lambda: bus_class().handle(lambda: None), r"@bus.handle\('user.get'\)"),
        (lambda: bus_class().on(print), r"@bus.on\('user.get'\)"),
        (lambda: bus_class().subscribe("x", queue=WRONG), "queue="),
        (lambda: bus_class().subscribe("x", queue=True), "queue=True"),
        (lambda: bus_class().on("x", concurrency=1.5), "concurrency=1.5"),
        (lambda: bus_class().subscribe("x", group=5), "group=5"),
        (lambda: bus_class().on("x", group=b"billing"), "group=b'billing'"),
        (lambda: connector(None), "neither a URL"),
        (lambda: connector(5, protocol="ubre"), "neither a URL"),
        (lambda: connector("ubre+memory://x", limits=5), "limits=5"),
        (lambda: connector("ubre+memory://x", bus=5), "bus=5"),
        (lambda: connector("ubre+memory://x", backoff=5), "backoff=5"),
        (lambda: connector("ubre+memory://x", tls=True), "tls=True"),
        (lambda: connector("ubre+memory://x", serves=5.5), "serves=5.5"),
        (lambda: connector("ubre+memory://x", protocol=5), "protocol=5"),
        (lambda: bus_class().serve(None), "neither a URL"),
        (lambda: bus_class().serve("ubre+memory://x", origins=5), "origins=5"),
        (lambda: bus_class().serve("ubre+memory://x", hosts=[b"a"]), "hosts="),
        (lambda: bus_class().serve("ubre+memory://x", tls="cert.pem"), "tls='cert.pem'"),
        (lambda: Backoff(initial="1"), "initial"),  # type: ignore[arg-type]
        (lambda: Backoff(attempts=1.5), "attempts"),  # type: ignore[arg-type]
        (lambda: blocking.Bus(5), "bus=5"),
        (lambda: polybus.run(Bus(), health=8081), "health=8081"),  # type: ignore[arg-type]
    ],
)
def test_an_option_of_a_wrong_type_is_a_type_error_that_names_it(make: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        (("app:bus", "ubre+tcp://127.0.0.1:0"), {}, TypeError, r"^run\('app:bus'\): pass a Bus, not str"),
        ((None,), {}, TypeError, r"^run\(None\): pass a Bus, not NoneType"),
        ((Bus, "ubre+tcp://127.0.0.1:0"), {}, TypeError, r"a Bus, not type"),
        ((Bus(), 8000), {}, TypeError, r"^run\(bus, 8000\): pass URLs, for example"),
        ((Bus(),), {"drain": "20"}, TypeError, r"^drain='20' must be a number of seconds"),
        ((Bus(),), {"delay": -1}, ValueError, r"^delay=-1 must be at least 0 seconds"),
    ],
)
def test_what_is_run_is_a_bus_at_urls(arguments: Any, options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        polybus.run(*arguments, **options)


@pytest.mark.parametrize("group", ["", "a b", "a..b", ".a", "a.", "a*", "a>", "x" * 101])
def test_a_group_whose_name_cannot_be_is_refused_where_it_is_named(group: str) -> None:
    for take in (Bus().subscribe, Bus().on):
        with pytest.raises(ValueError, match=f"group={re.escape(repr(group)[:60])}.* must have 1 to 100 letters"):
            take("x", group=group)
        take("x", group="a.b-c_D.9" + "x" * 91)


def test_patterns_that_a_link_serves_and_prefixes_of_routers_are_checked() -> None:
    connect("ubre+memory://x", serves="a.>")
    connect("ubre+memory://x", serves=7)  # type: ignore[arg-type]  # one is as good as a list of one
    for serves in ([""], ["a.>.b"], [None]):
        with pytest.raises(LocalProtocolError):
            connect("ubre+memory://x", serves=serves)  # type: ignore[arg-type]
    router = Router()
    router.handle("get")(lambda: None)
    with pytest.raises(LocalProtocolError):
        Bus().include(router, prefix="*.")


# -- requests to this very bus -------------------------------------------------------------------------------------------


async def test_notify_to_a_handler_of_the_same_bus_is_no_request() -> None:
    bus, seen = Bus(), []

    @bus.handle("told")
    async def told(body: Any, ctx: Context) -> Any:
        seen.append((ctx.message.kind.value, ctx.deadline, body))
        if body == "bad":
            raise NotFound("nobody hears this")

    @bus.handle("many")
    async def many() -> Any:
        yield 1

    async with bus:
        failures = bus.events()
        for body in ("good", "bad"):
            await bus.notify("told", body)
        event = await anext(failures)
        assert isinstance(event, HandlerFailed)  # nobody is told, so it is counted
        assert isinstance(event.error, NotFound)
        assert set(seen) == {("notify", None, "good"), ("notify", None, "bad")}
        with pytest.raises(BadRequest, match="stream"):
            await bus.notify("many")
        await eventually(lambda: bus.stats().running == bus.stats().pending == 0)
        assert bus.stats().failed == 1


async def test_a_request_to_the_same_bus_inherits_the_enclosing_deadline() -> None:
    bus, deadlines = Bus(), []

    @bus.handle("x")
    async def look(ctx: Context) -> None:
        deadlines.append(ctx.deadline)

    async with bus:
        with anyio.fail_after(20) as scope:
            asked = anyio.current_time()
            await bus.request("x")
            took = anyio.current_time() - asked
        (deadline,) = deadlines
        # It is told as a time that is left, so it moves by the way there.
        assert deadline is not None and scope.deadline - 0.01 <= deadline <= scope.deadline + took + 0.01


# -- serving and running ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [({"origins": "https://app.example/"}, "is not an origin"), ({"hosts": ["app.example/x"]}, "is not a host")],
)
def test_origins_and_hosts_are_checked_at_the_call(options: dict[str, Any], text: str) -> None:
    calls: list[Any] = [
        partial(Bus().serve, "ubre+tcp://127.0.0.1:0"),
        partial(attach, FastAPI(), Bus()),
        partial(Broker, "csb+memory://clients", "csb+memory://servers"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=text):
            call(**options)


@pytest.mark.parametrize("insecure", ["no", "false", 1])
def test_insecure_is_a_bool_and_no_text_that_happens_to_be_true(insecure: Any) -> None:
    with pytest.raises(TypeError, match="insecure="):
        Bus().serve("ubre+tcp://0.0.0.0:0", insecure=insecure)
    app = FastAPI()
    with pytest.raises(TypeError, match="insecure="):
        attach(app, Bus(), insecure=insecure)
    with pytest.raises(TypeError, match="script=5"):
        attach(app, Bus(), script=5)  # type: ignore[arg-type]
    for script in ("/polybus.js?v=1", "/js/polybus-frames.js"):
        with pytest.raises(ValueError, match="script=.* must be a path"):
            attach(app, Bus(), script=script)
    attach(app, Bus())  # nothing was attached


def test_run_in_another_thread_says_what_to_use_there() -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(LocalProtocolError, match=r"main thread.*polybus\.sync\.Bus"):
        pool.submit(polybus.run, Bus(), "ubre+tcp://127.0.0.1:0").result()


PORTS = r"the port must be a number from 0 to 65535, for example ubre\+tcp://127\.0\.0\.1:9000$"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: bus_class("ubre+ws://h:1/b"), r"Bus\(\) takes no URL: .*polybus\.connect\('ubre\+ws://h:1/b'\).*bus\.serve\("),
        (lambda: bus_class(url="ubre+ws://h:1/bus"), r"Bus\(\) has no url=: a client calls polybus\.connect"),
        (lambda: bus_class(auth=print),
         r"Bus\(\) has no auth=: authenticate= identifies a peer, and authorize= decides what it may do$"),
        (lambda: connector("ubre+ws://h:1/bus", timeout=3), r"connect\(\) has no timeout=: wait= .*Limits\(connect_timeout="),
        (lambda: connector(url="ubre+ws://h:1/bus"), r"the URL is the first argument"),
        (lambda: bus_class().connect("ubre+ws://h", token="x"),
         r"bus\.connect\(\) has no token=: pass headers=\{'authorization'"),
        (lambda: bus_class().serve("ubre+ws://h", port=1), r"bus\.serve\(\) has no port=: the address is one URL"),
        (lambda: bus_class().serve("ubre+ws://h:1/", authenticate=print), r"Bus\(authenticate=...\)"),
        (lambda: bus_class().serve("ubre+ws://h", orgins=["x"]), r"bus\.serve\(\) has no orgins=: did you mean origins=\?$"),
        (lambda: connector("ubre+ws://h:1/bus", x=3), r"connect\(\) has no x=: there are bus, protocol, .*, record$"),
        (lambda: blocking.connect("ubre+ws://h:1/bus", timeout=3), r"sync\.connect\(\) has no timeout=: wait="),
        (lambda: blocking.Bus("ubre+ws://h:1/bus"), r"a client is polybus\.sync\.connect\('ubre\+ws"),
        (lambda: attached(FastAPI(), Bus(), origin="x"), r"attach\(\) has no origin=: did you mean origins=\?$"),
        (lambda: attached(FastAPI(), Bus(), url="x"), r"attach\(\) has no url=: give path='/bus' and protocol='ubre'"),
        (lambda: connector("ubre+tcp://127.0.0.1:99999"), PORTS),
        (lambda: connector("ubre+tcp://127.0.0.1:http"), PORTS),
        (lambda: connector("ubre+ws://::1:8000/bus"), r"write an IPv6 address in brackets, for example \[::1\]:8000$"),
        (lambda: connector("ubre+unix://C:\\temp\\x.sock"), r"not the path of a socket: .*on Windows use tcp://"),
        (lambda: connector(["ubre+ws://h:1/"]), r"open a link to each of several servers, with bus\.connect"),
        (lambda: connector(None), r"is a setting missing\?"),
        (lambda: Limits(mesage=1), r"^Limits\(\) has no mesage=: did you mean message=\?$"),  # type: ignore[call-arg]
        (lambda: Limits(x=1), r"^Limits\(\) has no x=: there are message, payload, .*; for example Limits\(message="),  # type: ignore[call-arg]
        (lambda: Bus().subscribe("x", returns="int"), r"the type itself, for example returns=dict, not its name as a string"),
        (lambda: Router(prefix="user"), r"^prefix='user': subjects would begin with 'userget'; write prefix='user\.'$"),
        (lambda: router_class(prefix=7), r"^prefix=7 must be str, not int"),
        (lambda: Bus().include(Router(), prefix="user"), r"write prefix='user\.'"),
        (lambda: Router(prefix="user.").handle(7), r"^prefix='user\.' cannot be put before 7: "),
    ],
)  # fmt: skip
def test_an_argument_that_users_try_is_answered_with_what_to_write_instead(call: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        call()


# -- limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "error", "says"),
    [
        ({"message": "1 MB"}, TypeError, r"^message='1 MB' must be an integer, not str$"),
        ({"message": True}, TypeError, r"^message=True must be an integer, not bool$"),
        ({"outbox": 1.5}, TypeError, r"^outbox=1\.5 must be an integer, not float$"),
        ({"running": 0}, ValueError, r"^running=0 must be at least 1$"),
        ({"hops": -1}, ValueError, r"^hops=-1 must be at least 0$"),
        ({"ping_interval": None}, TypeError, r"^ping_interval=None must be a number of seconds, not NoneType$"),
        ({"ping_timeout": 0}, ValueError, r"^ping_timeout=0 must be more than 0 seconds$"),
        ({"ping_timeout": math.nan}, ValueError, r"^ping_timeout=nan must be at least 0 seconds"),
        ({"ping_interval": math.inf}, ValueError, r"^ping_interval=inf must be a finite number of seconds"),
        ({"write_timeout": math.inf}, ValueError, r"^write_timeout=inf must be a finite number of seconds"),
    ],
)
def test_a_limit_that_cannot_be_is_told_with_its_name(limit: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Limits(**limit)


class _Loud:
    def __repr__(self) -> str:
        return "first\nsecond" + "x" * 1_000_000


class _Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(("value", "says"), [(_Loud(), r"first\nsecondx"), (_Unprintable(), "<_Unprintable>")])
@pytest.mark.parametrize(
    "take",
    [
        lambda value: Limits(message=value),
        lambda value: Bus(authorize=value),
        lambda value: Bus().subscribe("news", returns=value),
        lambda value: Route("a", value),
        lambda value: Csb(pool=value),
        lambda value: Nats(queue=value),
        lambda value: Up(per_authority=value),
    ],
)
def test_an_argument_is_shown_in_one_short_line_whatever_its_repr(take: Any, value: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        take(value)
    text = str(caught.value)
    assert says in text and "\n" not in text and len(text) < 500


def test_a_number_of_thousands_of_digits_is_not_a_subject() -> None:
    with pytest.raises(LocalProtocolError, match="subject <int> is not an action id, which is a number from 0 to 0xFFFFFFFF"):
        Bus().handle(10**5000)


async def test_times_as_long_as_one_can_say_are_no_trouble_to_links() -> None:
    long = 1e300
    limits = Limits(ping_interval=long, ping_timeout=long, write_timeout=long, frame_timeout=long, connect_timeout=long)
    bus = Bus(limits=limits)
    bus.handle("here")(lambda: 1)
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url, bus=Bus(limits=limits)) as client:
        assert await client.request("here") == 1


async def test_a_request_larger_than_total_bytes_is_told_its_size_and_the_limit() -> None:
    bus = Bus(limits=Limits(total_bytes=50_000))
    bus.handle("store")(lambda body: len(body))
    async with pair(bus) as client:
        with pytest.raises(TooManyRequests, match=r"100002 bytes.*0 of 50000 bytes wait here \(Limits\.total_bytes\)"):
            await client.request("store", "x" * 100_000)


async def test_a_subscription_that_total_bytes_refuses_is_not_told_as_one_too_many(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(Bus(limits=Limits(total_bytes=10))) as client:
        await refused(client.subscribe("news"), Forbidden)
    (line,) = [record.getMessage() for record in caplog.records if "'news'" in record.getMessage()]
    assert "Limits.total_bytes" in line
    assert "more than" not in line


# -- types of publications -----------------------------------------------------------------------------------------------


async def test_a_subscription_logs_what_it_skips_once_a_minute_and_how_often(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(bus := Bus()) as client, client.subscribe("news.*", returns=int) as news:
        for body in ("one", "two", "three", 4):
            await bus.publish("news.x", body)
        assert (await anext(news)).body == 4
        assert news.skipped == 3
    first, told_at_the_end = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "'news.x'" in first and "returns=int" in first and "Expected `int`" in first
    assert told_at_the_end.startswith("2 more within ")


# -- URLs of servers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("jrep+http://127.0.0.1:0/?channel=poll", "channel"),
        ("jrep+http://127.0.0.1:0/?heartbeat=5&frame=100", "frame"),
        ("jrep+ws://127.0.0.1:0/?dialekt=v3", "dialekt"),
        ("ubre+ws://127.0.0.1:0/bus?mode=lenient", "mode"),
        ("ubre+memory://orders?mode=lenient", "mode"),
        ("uprotocol+http://127.0.0.1:0/?mod=lenient", "mod"),
    ],
)
def test_an_option_that_a_server_does_not_have_is_named(url: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf": unknown server options {name}; use one of "):
        Bus().serve(url)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ubre+ws://ann:s3cret@host/bus", "ubre+ws://ann:***@host/bus"),
        ("at nats+tcp://s3cret@host/shop and on", "at nats+tcp://***@host/shop and on"),
        ("nats+tls://ann:s3cret@host:4222", "nats+tls://ann:***@host:4222"),
        ("nats+ws://host/?queue=q&token=s3cret&client=me", "nats+ws://host/?queue=q&token=***&client=me"),
        ("nats+tcp://host?nkey=SUs3cret", "nats+tcp://host?nkey=***"),
        ("nats+tcp://host:4222/shop", "nats+tcp://host:4222/shop"),
        ("write nats+tcp://TOKEN@HOST:4222/NAME", "write nats+tcp://TOKEN@HOST:4222/NAME"),
        ("mail ann@host about nats+tcp", "mail ann@host about nats+tcp"),
        ("at ubre+ws://host/bus?token=s3cret: refused", "at ubre+ws://host/bus?token=***: refused"),
        ("('ubre+ws://host/bus?access_token=s3cret')", "('ubre+ws://host/bus?access_token=***')"),
        ("jrep+https://host/?dialect=v4&jwt=s3cret&heartbeat=5", "jrep+https://host/?dialect=v4&jwt=***&heartbeat=5"),
        ("ubre+ws://h/?a=1&X-Api-Key=s3cret&key=s3cret#sig=s3cret", "ubre+ws://h/?a=1&X-Api-Key=***&key=***#sig=***"),
        ("ubre+ws://h/?%74oken=s3cret?s3cret;s3cret&b=2", "ubre+ws://h/?%74oken=***&b=2"),
        ("ubre+ws://h/?next=https://i/?code=s3cret&n=1", "ubre+ws://h/?next=https://i/?code=***&n=1"),
        ("ubre+ws://h/?token=a#s3cret&b=2#c=d", "ubre+ws://h/?token=***&b=2#c=d"),
        ("ubre+ws://h/bus;token=s3cret", "ubre+ws://h/bus;token=***"),
        ("ubre+ws://s3cret@h/bus", "ubre+ws://***@h/bus"),
        ("nats://s3cret@h:4222", "nats://***@h:4222"),
        ("ubre+ws://ann:s3/c#r?t@h:80/bus", "ubre+ws://ann:***@h:80/bus"),
        ("ubre+ws://h:80/bus?to=a@b and [::1]:80/x@y", "ubre+ws://h:80/bus?to=a@b and [::1]:80/x@y"),
        ("ubre+ws://h/?next=http%3A%2F%2Fann%3As3cret%40i%2F&n=1", "ubre+ws://h/?next=***&n=1"),
        ("ubre+ws://h/?next=http://ann:s3cret@i/", "ubre+ws://h/?next=***"),
        ("ubre+ws://h/?next=%2Flogin%3Ftoken%3Ds3cret&n=%2Fa%3Fb%3Dc", "ubre+ws://h/?next=***&n=%2Fa%3Fb%3Dc"),
        ("ubre+ws://h/?a=http%3A%2F%2Fi%2F%3Fb%3Dhttp%253A%252F%252Fj%252F%253Fcode%253Ds3cret", "ubre+ws://h/?a=***"),
        ("ubre+ws://h/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.s3cret/x", "ubre+ws://h/***/x"),
        ("ubre+ws://h/?PHPSESSID=s3cret&psk=s3cret&hmac=s3cret", "ubre+ws://h/?PHPSESSID=***&psk=***&hmac=***"),
        ("up+zenoh://h?link=tls&ca=a.pem&cert=b.pem&key=c.pem", "up+zenoh://h?link=tls&ca=a.pem&cert=b.pem&key=c.pem"),
        ("csb+ws://h/game?side=broker-server&token=", "csb+ws://h/game?side=broker-server&token="),
        ("nats+tcp://h?queue=q&domain=d&dead_letters=x&client=c", "nats+tcp://h?queue=q&domain=d&dead_letters=x&client=c"),
        ("uprotocol+http://h/?entity=e&peer=p&mode=lenient", "uprotocol+http://h/?entity=e&peer=p&mode=lenient"),
    ],
)
def test_no_secret_of_a_url_is_in_a_text_for_people(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.timeout(20)
def test_secrets_in_a_text_that_a_peer_chose_are_found_soon() -> None:
    long = "a" * 200_000
    assert without_secrets(f"{long} 7ubre+ws://ann:s3cret@h {long}?") == f"{long} 7ubre+ws://ann:***@h {long}?"


@pytest.mark.parametrize(
    "url",
    [
        *("h:80/bus?token=s3cret", "ubre+ws:/127.0.0.1:1/bus?token=s3cret", "ann:s3cret@h:4222"),
        *("nats://s3cret@127.0.0.1:1", "ubre+ws://127.0.0.1:1/bus#token=s3cret", "ubre+ws://127.0.0.1:1/bus#s3cret"),
        *("ubre+ws://ann:a/s3cret@127.0.0.1:1/bus", "ubre+ws://ann:a#s3cret@127.0.0.1:1/bus"),
        *("nats+tcp://a/s3cret@127.0.0.1:1", "nats+tcp://ann:a/s3cret@127.0.0.1:1"),
        "ubre+tcp://127.0.0.1:1/?token=s3cret",
    ],
)
def test_the_error_of_a_malformed_url_does_not_show_its_secret(url: str) -> None:
    for use in (connect, Bus().serve, lambda url: Bus(cluster=url)):
        try:
            use(url)
        except ValueError as error:
            assert "s3cret" not in f"{error} {error!r}"  # not each of them refuses all


# -- what to do next -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "next_step"),
    [
        (
            lambda bus: bus.request("price", "x" * 30_000),
            r"send less, or raise Limits\(message=\.\.\.\) at both ends; a stream",
        ),
        (lambda bus: bus.request("price", float("nan")), r"\(send None or a string\)"),
        (lambda bus: bus.request(7, "soup"), "subjects are strings here: write '7'"),
        (lambda bus: bus.request("broken"), r"internal error [0-9a-f]{8}; look for this id in the server's log$"),
        (lambda bus: bus.request("price", "soup", returns=str), "does returns= match the handler's return type?"),
    ],
)
async def test_a_request_that_cannot_be_says_what_to_do(ask: Callable[[Bus], Awaitable[Any]], next_step: str) -> None:
    bus = Bus(limits=Limits(message=20_000))
    bus.handle("price", inline=True)(lambda article: 7)
    bus.handle("broken", inline=True)(lambda: 1 // 0)
    async with pair(bus, client=Bus(limits=bus.limits)) as client:
        with pytest.raises(Exception, match=next_step):
            await ask(client)


@pytest.mark.native
async def test_a_server_that_refuses_what_is_brought_says_what_to_do() -> None:
    ann = {"authorization": "Bearer ann"}
    only_ann = Bus(authenticate=lambda handshake: handshake.headers.get("authorization") == ann["authorization"])
    async with only_ann.serve("ubre+ws://127.0.0.1:0/") as server:
        bob = connect(server.url, headers={"authorization": "Bearer bob"})
        await refused(bob, Exception, r"the server refused authorization: is it expired")
        csb = connect(server.url.replace("ubre", "csb"), headers=ann)
        await refused(csb, ConnectionError, r"the client offers 'csb', the server accepts ubre: begin the URL with ubre\+$")
