"""Bridges: what crosses and what does not, how errors and deadlines come back, and that nothing goes round in circles."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from attrs import frozen

from polybus import Bus, CallNext, Channel, Context, Kind, Message, Route, bridge, connect
from polybus._core.bus.forwarding import FrameRelay, translated
from polybus._core.peer import negotiation
from polybus.bridges._bridge import _fault
from polybus.errors import (
    BadReply,
    BadRequest,
    BusError,
    Code,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    LocalProtocolError,
    NoHandler,
    NotFound,
    QueueFull,
    RemoteError,
    ReservedSubject,
    TooLarge,
    Unavailable,
    Unsupported,
)
from polybus.events import DeadLettered
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.subjects import matches
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.answering import noting
from tests.unit.broker.raw import Closed as RawClosed
from tests.unit.broker.raw import RawPeer
from tests.unit.protocols.jrep.raw import raw as errai_page

PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")
PAIRS = list(itertools.pairwise([*PROTOCOLS, PROTOCOLS[0]]))
"""Each protocol on each side."""


@frozen
class Ground:
    """A client on each side of a bridge: `asker` -> left | right -> `server`."""

    asker: Bus
    left: Bus
    right: Bus
    server: Bus


@asynccontextmanager
async def bridged(
    *routes: Route, protocols: tuple[str, str] = ("ubre", "csb"), server: Bus | None = None, left: Bus | None = None
) -> AsyncIterator[Ground]:
    """The left bus serves the asker; the right one has opened a link to the server."""
    left, right, server = left or Bus(), Bus(), server or Bus()
    async with (
        pair(server, protocol=protocols[1], client=right),
        bridge(left, right, routes=routes),
        pair(left, protocol=protocols[0]) as asker,
    ):
        yield Ground(asker, left, right, server)


def house() -> Bus:
    bus = Bus()

    @bus.handle("vehicle.door.open")
    async def door(body: Any, ctx: Context) -> Any:
        return {"opened": body}

    @bus.handle("vehicle.door.locked")
    async def locked() -> None:
        raise NotFound("no such door", reason="gone", detail={"door": 3})

    @bus.handle("vehicle.door.stuck")
    async def stuck() -> None:
        await anyio.sleep_forever()

    return bus


DOOR = Route("door.>", "vehicle.door.{rest}")


# -- requests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocols", PAIRS, ids="-".join)
async def test_requests_publications_errors_and_deadlines_cross_between_all_protocols(protocols: tuple[str, str]) -> None:
    server = house()
    back = Route("alarm.*", "news.alarm.{1}", reverse=True)
    told: list[Any] = []

    @server.handle("vehicle.door.knock")
    async def knock(body: Any, ctx: Context) -> str:
        told.append((body, (ctx.message.headers or {}).get("traceparent")))
        return "nobody reads this"

    async with bridged(DOOR, back, protocols=protocols, server=server) as ground:
        asker = ground.asker
        await asker.notify("door.knock", {"id": 7}, headers={"traceparent": "00-1-2-00"})
        await eventually(lambda: told == [({"id": 7}, "00-1-2-00")])
        replies = [asker.request("door.open", {"id": n}) for n in range(100)]
        assert [await reply for reply in replies] == [{"opened": {"id": n}} for n in range(100)]
        with pytest.raises(NotFound) as caught:
            await asker.request("door.locked")
        assert (caught.value.text, caught.value.reason, caught.value.detail) == ("no such door", "gone", {"door": 3})
        with pytest.raises(DeadlineExceeded):
            await asker.request("door.stuck", timeout=0.1)
        await eventually(lambda: server.stats().running == 0)  # it was cancelled on the far side
        stuck = asker.request("door.stuck")
        await eventually(lambda: server.stats().running == 1)
        stuck.cancel()
        await eventually(lambda: server.stats().running == 0 and ground.right.stats().pending == 0)
        with pytest.raises(NoHandler):
            await asker.request("door.unknown")
        async with server.subscribe("vehicle.door.*") as there, asker.subscribe("news.alarm.*") as here:
            await asker.publish("door.moved", [1, 2])
            message = await anext(there)
            assert (message.subject, message.body) == ("vehicle.door.moved", [1, 2])
            await server.publish("alarm.fire", "run")
            message = await anext(here)
            assert (message.subject, message.body) == ("news.alarm.fire", "run")


async def test_the_deadline_that_crosses_is_shortened_by_the_time_spent() -> None:
    left, spent, server = list[float](), list[float](), Bus()

    @server.handle("slow")
    async def slow(ctx: Context) -> None:
        assert ctx.deadline is not None
        left.append(ctx.deadline - anyio.current_time())

    async def wait(body: Any, message: Message) -> Any:
        began = anyio.current_time()
        await anyio.sleep(0.05)  # time has to pass
        spent.append(anyio.current_time() - began)
        return body

    async with bridged(Route("slow", "slow", request=wait), server=server) as ground:
        asked = anyio.current_time()
        await ground.asker.request("slow", timeout=20.0)
        took = anyio.current_time() - asked
    assert 20.0 - took - 0.01 <= left[0] <= 20.0 - spent[0] + 0.01


async def test_what_the_wires_carry_in_one_format_crosses_undecoded() -> None:
    seen, server = list[Message](), Bus()

    @server.handle("echo")
    async def echo(message: Message) -> Any:
        seen.append(message)
        return message.body

    text = b'{"a" :  1.50}'  # as nobody would write it anew
    async with bridged(Route("echo", "echo"), protocols=("ubre", "csb"), server=server) as ground:
        core = core_of(ground.asker.peers[0])
        assert core.link.format.encode({"a": 1.5}) != text
        assert await core.pass_on(Message(Kind.REQUEST, "echo", None, text, core.link.format), 5) == {"a": 1.5}
        assert seen[0].raw == text


@pytest.mark.parametrize("protocols", [("ubre", "csb"), ("jrep", "uprotocol")], ids="-".join)
async def test_only_the_headers_that_are_named_and_traceparent_cross(protocols: tuple[str, str]) -> None:
    seen, server = list[dict[str, str] | None](), Bus()

    @server.handle("tell")
    async def tell(ctx: Context) -> None:
        seen.append(ctx.message.headers)

    routes = [Route(name, name, headers=["X-User"]) for name in ("tell", "told")]
    async with bridged(*routes, protocols=protocols, server=server) as ground:
        ground.right.handle("told")(tell)
        for headers in ({"x-user": "ann", "x-secret": "s", "traceparent": "00-1-2-00"}, None):
            for name in ("tell", "told"):
                await ground.asker.request(name, headers=headers)
            await ground.asker.notify("tell", headers=headers)
        await eventually(lambda: len(seen) == 6)
    assert seen == [{"x-user": "ann", "traceparent": "00-1-2-00"}] * 3 + [None] * 3


async def test_converters_plain_and_async_change_bodies_both_ways_and_numbers_name_subjects() -> None:
    server = Bus()

    @server.handle(0x00010001)
    async def action(body: bytes) -> bytes:
        return body[::-1]

    async def pack(body: dict[str, str], message: Message) -> bytes:
        await anyio.lowlevel.checkpoint()
        return f"{message.subject}:{body['text']}".encode()

    def unpack(body: bytes, message: Message) -> dict[str, str]:
        return {"text": body.decode()}

    async with bridged(Route("turn", 0x00010001, request=pack, reply=unpack), server=server) as ground:
        assert await ground.asker.request("turn", {"text": "abc"}) == {"text": "cba:nrut"}


async def test_a_converter_that_raises_is_internal_with_an_id_or_what_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    def broken(body: Any, message: Message) -> Any:
        raise LookupError("a secret table")

    def choosy(body: Any, message: Message) -> Any:
        raise Forbidden("not such a body")

    routes = Route("one", "vehicle.door.open", request=broken), Route("two", "vehicle.door.open", reply=broken)
    async with bridged(*routes, Route("three", "vehicle.door.open", request=choosy), server=house()) as ground:
        for subject in ("one", "two"):
            with pytest.raises(RemoteError) as caught:
                await ground.asker.request(subject, 1)
            assert caught.value.code is Code.INTERNAL
            assert "secret" not in str(caught.value)
        with pytest.raises(Forbidden, match="not such a body"):
            await ground.asker.request("three", 1)
        await ground.asker.publish("one", 1)
        await eventually(lambda: ground.left.stats().failed >= 3)
    assert "a secret table" in caplog.text


async def test_a_far_side_that_is_not_there_is_unavailable() -> None:
    left, right = Bus(), Bus()
    async with bridge(left, right, routes=[DOOR]), pair(left) as asker:
        with pytest.raises(NoHandler):
            await asker.request("door.open")
        server = house()
        async with pair(server, client=right):
            assert await asker.request("door.open", 1) == {"opened": 1}
            stuck = asker.request("door.stuck")
            await eventually(lambda: server.stats().running == 1)
            await server.peers[0].aclose("gone")
            with pytest.raises(Unavailable):
                await stuck


async def test_authorize_of_the_bus_that_is_asked_decides() -> None:
    left = Bus(authorize=lambda peer, verb, subject: subject != "door.open")
    async with bridged(DOOR, server=house(), left=left) as ground:
        with pytest.raises(Forbidden):
            await ground.asker.request("door.open")


async def test_streams_and_channels_cross_where_the_route_says_so_and_end_on_both_sides() -> None:
    server, stopped, seen = Bus(), anyio.Event(), set[tuple[str, str | int]]()

    async def note(message: Message, ctx: Context, call_next: CallNext) -> Any:
        seen.add((message.kind.value, ctx.pattern))
        return await call_next(message)

    server.handle("double")(lambda body: 2 * body)

    @server.handle("sum")
    async def total(channel: Channel[int, int]) -> None:
        await channel.send(sum([number async for number in channel]))

    @server.handle("count")
    async def count(body: int) -> AsyncIterator[int]:
        try:
            for number in range(body):
                yield number
        finally:
            stopped.set()

    async with bridged(Route("n.*", "{rest}", {"stream", "channel"}), Route("{name}", "{name}"), server=server) as ground:
        ground.left.use(note)
        assert await ground.asker.request("double", 2) == 4
        async with ground.asker.stream("n.count", 200) as numbers:
            assert [number async for number in numbers] == list(range(200))
        stopped = anyio.Event()
        async with ground.asker.stream("n.count", 10**9) as numbers:
            assert await anext(numbers) == 0
        await stopped.wait()
        async with ground.asker.channel("n.sum") as channel:
            for number in range(5):
                await channel.send(number)
            await channel.send_eof()
            assert [answer async for answer in channel] == [10]
        with pytest.raises(NoHandler):
            await ground.asker.request("n.count", 1)
    assert seen == {("request", "{name}"), ("open", "n.*")}, "a middleware sees the source of the route"


# -- peers that are no polybus -------------------------------------------------------------------------------------------


@asynccontextmanager
async def device(*, silent: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A CSB server by hand: it gives back what action 0x00010001 is asked, and knows no other, of which it may say nothing.
    Its URL, and what has come."""
    seen: list[bytes] = []

    async def attend(stream: SocketStream) -> None:
        peer = RawPeer(stream)
        async with stream:
            with suppress(RawClosed):
                while True:
                    seen.append(frame := bytes.fromhex(await peer.receive()))
                    if frame[4:8] == b"\x00\x01\x00\x01":
                        await peer.send(bytes([0x20 | frame[0] & 0x0F, 0]) + frame[2:])
                    elif not silent:
                        await peer.send(bytes([0x20, 0xC9]) + frame[2:8])  # NotFound

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, attend)
        yield f"csb+tcp://127.0.0.1:{listener.extra(SocketAttribute.local_port)}", seen
        group.cancel_scope.cancel()


async def test_a_device_that_is_no_polybus_is_asked_as_its_document_says_also_by_who_is_traced() -> None:
    left, right = Bus(), Bus()
    routes = [Route("door", 0x00010001, headers=["x-user"])]
    async with device() as (url, seen), connect(url, bus=right), bridge(left, right, routes=routes), pair(left) as asker:
        for number in range(3):
            traced = {"traceparent": "00-1-2-00"} if number else None
            assert await asker.request("door", {"id": number}, headers=traced) == {"id": number}
        assert [frame[4:8].hex() for frame in seen] == ["ffff0000", "00010001", "00010001", "00010001"]
        with pytest.raises(BadRequest, match="cannot carry this: this peer is not a polybus: CSB cannot carry headers"):
            await asker.request("door", headers={"x-user": "ann"})


async def test_a_device_that_says_nothing_to_what_it_does_not_know_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = Bus(), Bus()
    routes = [Route("door", 0x00010001)]
    async with (
        device(silent=True) as (url, _),
        connect(url, bus=right),
        bridge(left, right, routes=routes),
        pair(left) as asker,
    ):
        monkeypatch.setattr(negotiation, "HELLO_TIMEOUT", 0.01)
        assert await asker.request("door", 1) == 1
        monkeypatch.setattr(negotiation, "HELLO_TIMEOUT", 3600.0)
        assert [await asker.request("door", number) for number in range(3)] == [0, 1, 2]


async def test_a_notification_crosses_converted_to_the_handler_of_the_far_bus_or_over_the_next_bridge() -> None:
    left, middle, right, told = Bus(), Bus(), Bus(), list[Any]()
    right.handle("c")(lambda body: told.append(body))

    def more(body: Any, message: Message) -> Any:
        return {"more": body}

    first, second = [Route("a", "b", request=more)], [Route("b", "c", request=more)]
    async with bridge(left, middle, routes=first), bridge(middle, right, routes=second), pair(left, protocol="jrep") as asker:
        await asker.notify("a", 1)
        await eventually(lambda: told == [{"more": {"more": 1}}])
        far = house()
        async with bridged(Route("a", "vehicle.door.open", request=more), server=far, protocols=("uprotocol", "csb")) as ground:
            await ground.asker.notify("a", 1)
            await eventually(lambda: far.stats().received >= 2)  # a hello, and what it was told
        assert far.stats().failed == 0


@pytest.mark.parametrize("kinds", [{"request"}, {"publish"}, {"request", "publish"}])
async def test_what_an_errai_page_says_crosses_once_though_it_is_a_notification_and_a_publication(kinds: set[str]) -> None:
    seen, left, right = list[str](), Bus(), Bus()

    @right.handle("door")
    async def told(body: int) -> None:
        seen.append("told")

    @right.on("door")
    async def heard(body: int) -> None:
        seen.append("heard")

    @left.handle("barrier")
    async def barrier() -> None:
        await anyio.wait_all_tasks_blocked()

    async with left.serve("jrep+tcp://127.0.0.1:0") as listener, bridge(left, right, routes=[Route("door", "door", kinds)]):
        async with errai_page(listener.url) as page:
            await page.associate()
            await page.say({"ToSubject": "door", "Value": 1})
            await page.nothing_more()
    assert seen == ["heard" if "publish" in kinds else "told"]


async def test_a_notification_that_cannot_cross_is_a_dead_letter() -> None:
    left, right = Bus(), Bus()
    async with bridge(left, right, routes=[Route("a", "b")]), pair(left, protocol="jrep") as asker:
        events = left.events()
        await asker.notify("a", 1)
        seen = await next_event(events, DeadLettered)
        assert (seen.subject, seen.code) == ("a", Code.UNIMPLEMENTED)
        assert "not bridged: " in seen.reason
        assert (left.stats().failed, left.stats().dropped) == (0, 1)


# -- circles -------------------------------------------------------------------------------------------------------------


async def test_a_double_bridge_delivers_once_but_two_targets_are_two_publications() -> None:
    left, right = Bus(), Bus()
    same = [Route("a", "b")]
    async with bridge(left, right, routes=same), bridge(left, right, routes=[*same, Route("a", "c")]):
        async with pair(left) as client, right.subscribe(">") as there:
            for number in range(10):
                await client.publish("a", number)
                await left.publish("a", number)
            seen = [(message.subject, message.body) for message in [await anext(there) for _ in range(40)]]
            await right.publish("end", None)
            assert (await anext(there)).subject == "end"
    assert sorted(seen) == sorted([(name, number) for name in "bc" for number in range(10)] * 2)


async def test_what_peers_publish_is_not_a_buss_own_behind_any_number_of_bridges() -> None:
    near, middle, far = Bus(), Bus(), Bus()
    heard = [noting(bus, "in.>", peers=False) for bus in (near, middle, far)]
    routes = [Route("in.>", "in.{rest}")]
    async with bridge(near, middle, routes=routes), bridge(middle, far, routes=routes):
        async with pair(near) as client, far.subscribe("in.>") as there:
            await client.publish("in.secret", "of a peer")
            assert (await anext(there)).body == "of a peer"
            await near.publish("in.secret", "its own")
            assert (await anext(there)).body == "its own"
            await eventually(lambda: all(heard))
    assert heard == [["its own"]] * 3


# -- declaring -----------------------------------------------------------------------------------------------------------


CONVERTER = r"^request=.* must be a function, request\(body, message\) -> body"
SEVERAL = r"^routes=.* must be a list, for example routes=\[Route\('door\.>', 'vehicle\.door\.\{rest\}'\)\]"


@pytest.mark.parametrize(
    ("given", "options", "error", "says"),
    [
        (("door.*", "door.{id}"), {}, ValueError, r"\{id\} is not in the source 'door\.\*', which has \{1\}, \{rest\}"),
        (("door", "door", {"reqest"}), {}, ValueError, "{'reqest'} must be one or more of request"),
        (("door", "door", [["publish"]]), {}, ValueError, "must be one or more of request"),
        (("door..x", "door"), {}, LocalProtocolError, "empty token"),
        (("door.*", "door.*"), {}, LocalProtocolError, "pattern"),
        (("door", "_polybus.hello"), {}, ReservedSubject, "are reserved for polybus"),
        (("door", "door"), {"headers": ["ReplyTo"]}, ReservedSubject, "is a field of some protocol"),
        (("door", "door"), {"headers": "x-user"}, TypeError, "headers='x-user' must be a list of names"),
        (("door", "door", {"tunnel"}), {"request": str}, ValueError, "request= has no effect on"),
        (("door", "door", {"publish", "tunnel"}), {"reply": str}, ValueError, "reply= has no effect on"),
        (("door", "door", {"stream", "channel"}), {"headers": ["a"]}, ValueError, "headers= has no effect on"),
        (("door", "door"), {"request": "numbered"}, TypeError, CONVERTER),
        (("door", "door"), {"request": lambda body: body}, TypeError, CONVERTER),
        (("door", "door"), {"request": lambda body, message, more: body}, TypeError, CONVERTER),
    ],
)
def test_a_route_that_cannot_be_is_refused_when_it_is_declared(given: Any, options: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        Route(*given, **options)


BUS, THERE = Bus(), Route("door", "door")


@pytest.mark.parametrize(
    ("right", "routes", "error", "says"),
    [
        (BUS, [], ValueError, "are the same"),
        (Bus(), [], ValueError, "routes= is empty"),
        (Bus(), ["door"], TypeError, "not a Route"),
        (Bus(), THERE, TypeError, SEVERAL),
        (Bus(), None, TypeError, SEVERAL),
        (Bus(), 5, TypeError, SEVERAL),
        ("ubre+tcp://127.0.0.1:9000", [THERE], TypeError, r"^right='ubre\+tcp://.*' must be Bus, not str; for example right="),
    ],
)
def test_a_bridge_that_cannot_be_is_refused_when_it_is_declared(right: Any, routes: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        bridge(BUS, right, routes=routes)


@pytest.mark.parametrize(
    ("source", "target", "subject", "expected"),
    [
        ("door.>", "vehicle.door.{rest}", "door.left.open", "vehicle.door.left.open"),
        ("a.*.b.*", "{2}.{1}", "a.x.b.y", "y.x"),
        ("user.{id}.{verb}", "users.{verb}.{id}", "user.7.get", "users.get.7"),
        ("news.*", "n.{rest}", "news.today", "n.today"),
        ("user.{id}", "u.{rest}", "user.7", "u.7"),
        ("door", 7, "door", 7),
        (7, "door", 7, "door"),
        ("//v/door/1/*", "door.{1}", "//V/door/1/open", "door.open"),
        ("door.>", "//v/door/1/{rest}", "door.a.b", "//v/door/1/a/b"),
        ("//v/door/>", "//w/door/{rest}", "//v/door/1/open", "//w/door/1/open"),
        (">", "{rest}", "//v/door/1/open", "//v/door/1/open"),
        ("door.>", "a.{rest}", "door.x/y", "a.x/y"),
    ],
)
def test_names_are_rewritten(source: Any, target: Any, subject: Any, expected: Any) -> None:
    assert Route(source, target).rewritten(subject) == expected


@pytest.mark.parametrize(
    ("source", "target", "subject"),
    [
        ("door.{what}", "{what}", "door.//vehicle7/10AB/3/C"),
        ("door.>", "{rest}", "door.//vcu.vin/brakes/1/rpc.Release"),
        ("door.*", "{1}", "door./10AB/3/C"),
        ("*.*", "{2}/{1}", "x/y.up:"),
        ("{a}.>", "{rest}", "/a.//v/b/1/c"),
        ("{name}", "{name}", "//v/10AB/3/C"),
        ("door.*", "//v/{1}", "door.brakes/1/rpc"),
    ],
)
def test_what_a_wildcard_stands_for_makes_no_address(source: str, target: str, subject: str) -> None:
    assert matches(source, subject)
    with pytest.raises(LocalProtocolError, match="does not lead to such addresses"):
        Route(source, target).rewritten(subject)


async def test_what_the_far_side_cannot_carry_is_refused_when_the_bridge_is_entered() -> None:
    server, left, right = Bus(), Bus(), Bus()
    async with pair(server, protocol="ubre", client=right):
        await refused(bridge(left, right, routes=[Route("door", 7)]), Unsupported, match="ubre does not support integers")
        assert not left.ready


@pytest.mark.parametrize(
    ("route", "lacks", "says"),
    [
        (Route("door", "door", {"publish"}), "publish", "device does not support publications"),
        (Route("door", "door", {"stream", "channel"}), "extensions", "device does not support channel, stream"),
        (Route("door", "door", headers=["a", "b"]), "headers", "device does not support headers, but the route passes a, b"),
        (Route("door", "door", {"request"}), "publish", None),
    ],
    ids=["publications", "streams", "headers", "nothing"],
)
def test_what_a_protocol_cannot_carry_of_a_route_is_named(route: Route, lacks: str, says: str | None) -> None:
    capabilities = SimpleNamespace(**{"numbers": True, "publish": True, "extensions": True, "headers": True, lacks: False})
    device = SimpleNamespace(name="device", session=lambda side: SimpleNamespace(capabilities=capabilities))
    assert _fault(device, "door", route) == says


async def test_a_body_that_the_far_side_cannot_carry_is_a_bad_request_that_says_so() -> None:
    route = Route("door", "vehicle.door.open", request=lambda body, message: object())
    async with bridged(route, server=house()) as ground:
        with pytest.raises(BadRequest, match="other side of the bridge cannot carry this"):
            await ground.asker.request("door")


# -- what crosses at the edge of a bridge --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DeadlineExceeded("subject", text="the handler was cut"), Code.DEADLINE_EXCEEDED, "the handler was cut"),
        (DeadlineExceeded(), Code.DEADLINE_EXCEEDED, "no answer from the other side of the bridge in time"),
        (TimeoutError(), Code.DEADLINE_EXCEEDED, "no answer from the other side of the bridge in time"),
        (QueueFull("no room"), Code.RESOURCE_EXHAUSTED, "the other side of the bridge is slow: no room"),
        (Disconnected("gone", "", False), Code.UNAVAILABLE, "the other side of the bridge is unavailable: try again later"),
        (Unsupported("no tunnels"), Code.INVALID_ARGUMENT, "the other side of the bridge cannot carry this: no tunnels"),
        (BadReply("nonsense"), Code.INTERNAL, "the answer from the other side of the bridge is malformed"),
        (BusError("?"), Code.UNAVAILABLE, "the other side of the bridge cannot be reached now"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else "",
)
def test_each_failure_beyond_a_bridge_has_its_code_and_text_for_the_client(error: Exception, code: Code, text: str) -> None:
    made = translated(error)
    assert (made.code, made.text) == (code, text)


def test_a_relay_of_frames_passes_on_pauses_and_ends_and_cuts_what_the_other_half_cannot_carry() -> None:
    seen: list[Any] = []

    class Half:
        def put(self, frame: bytes) -> None:
            if not frame:
                raise TooLarge("more than 8 bytes")
            seen.append(frame)

        def listen(self, *, on: bool) -> None:
            seen.append(on)

        def cut(self, why: Closed) -> None:
            seen.append(("cut", why.code, "more than 8 bytes" in why.reason))

        def close(self, why: Closed) -> None:
            seen.append(("close", why.code, why.reason))

    half: Any = Half()
    relay = FrameRelay(half, lambda: seen.append("over"))
    relay.pause_writing()
    relay.resume_writing()
    relay.frames_received([b"1", b"", b"3"])
    relay.closed(Closed(4000, "bye"))
    FrameRelay(half).closed(Closed(1006, "lost"))  # which is not sent as such
    assert seen == [False, True, b"1", ("cut", 1009, True), "over", ("close", 4000, "bye"), ("close", 1011, "lost")]
