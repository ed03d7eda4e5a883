"""Tunnels: who is let in, what holds them back, and what the end of either side does to the other."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Broker, Bus, Context, Handshake, Identity, Limits, Peer, TooLarge, Unauthorized, connect
from polybus.errors import ConnectFailed, Disconnected, Forbidden, LocalProtocolError, ReservedSubject
from polybus.events import LinkDown, LinkUp
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.protocols import Ubre, UProtocol
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.answering import Gated, answering

SOON = Backoff(initial=0.001, maximum=0.02)
PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")


@asynccontextmanager
async def offered(
    inner: Bus, *, outer: Bus | None = None, inside: str = "csb", **around: Any
) -> AsyncIterator[tuple[Bus, Bus]]:
    """The outer server, which leads tunnels to the inner bus, and the outer client."""
    front = outer or answering()
    front.handle_tunnels("plant.{id}", inner, protocol=inside)
    async with pair(front, **around) as out:
        yield front, out


@asynccontextmanager
async def tunnelled(
    inner: Bus, *, inside: str = "csb", client: Bus | None = None, **around: Any
) -> AsyncIterator[tuple[Bus, Bus, Bus]]:
    """The outer server, the outer client, and the client in the tunnel."""
    async with offered(inner, inside=inside, reconnect=True, **around) as (front, out):
        async with connect(out.tunnel("plant.7"), protocol=inside, bus=client, backoff=SOON) as within:
            yield front, out, within


def nothing_is_left(*buses: Bus) -> bool:
    """Of tunnels."""
    return not any(core_of(peer).channels or core_of(peer).calls for bus in buses for peer in bus.peers)


def the_channel(bus: Bus) -> Any:
    """The one channel that the bus has open."""
    (channel,) = (core_of(bus.peers[0]).channels or {}).values()
    return channel


class Heard:
    """A receiver in the place of a link, which learns only of the end: it keeps what a tunnel hands it."""

    def __init__(self, *channels: Any) -> None:
        self._links = [channel._receiver for channel in channels]
        for channel in channels:
            channel._receiver = self
        self.frames: list[bytes] = []
        self.calls = self.held = 0
        self.ends: list[Closed] = []

    def frames_received(self, given: Any) -> None:
        assert not self.ends
        self.frames.extend(given)
        self.calls += 1

    def closed(self, why: Closed) -> None:
        self.ends.append(why)
        for link in self._links:
            link.closed(why)
        self._links.clear()

    def pause_writing(self) -> None:
        self.held += 1

    def resume_writing(self) -> None:
        self.held -= 1


# -- who is let in -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "protocol", "why"),
    [
        ("valve.7", "csb", r"no tunnel listener for 'valve\.7' here"),
        ("plant.7", "jrep", r"the tunnel 'plant\.7' uses csb, not 'jrep'"),
    ],
    ids=["name", "protocol"],
)
async def test_a_tunnel_that_is_not_served_is_connect_failed_saying_why_and_costs_nothing(
    name: str, protocol: str, why: str
) -> None:
    async with offered(answering()) as (front, out):
        await refused(connect(out.tunnel(name), protocol=protocol), ConnectFailed, match=why)
        assert nothing_is_left(front, out)
        assert await out.request("echo", 1) == 1


async def test_authorize_of_the_outer_bus_is_asked_for_the_tunnel_and_no_means_forbidden() -> None:
    asked: list[Any] = []

    async def authorize(peer: Peer, verb: str, subject: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        asked.append((verb, subject))
        return bool(subject == "plant.7")

    async with offered(answering(), outer=Bus(authorize=authorize)) as (front, out):
        async with connect(out.tunnel("plant.7"), protocol="csb") as within:
            assert await within.request("echo", 1) == 1
        for name in ("plant.8", "nobody"):
            await refused(connect(out.tunnel(name), protocol="csb"), Forbidden)
        assert nothing_is_left(front, out)
    assert asked == [("tunnel", "plant.7"), ("tunnel", "plant.8"), ("tunnel", "nobody")]


async def test_without_an_inner_authenticate_the_inner_identity_is_the_outer_one() -> None:
    inner = Bus()

    @inner.handle("who")
    async def who(ctx: Context) -> Any:
        return ctx.identity

    async with tunnelled(inner, identity=Identity({"name": "Ann"}, key="42")) as (_, _, within):
        assert await within.request("who") == {"name": "Ann"}
        assert inner.peers_of("42") == inner.peers


async def test_an_inner_authenticate_sees_the_outer_peer_the_names_of_the_pattern_params_and_headers() -> None:
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> Any:
        seen.append(handshake)
        return "inner-ann" if handshake.headers.get("authorization") == "Bearer t" else None

    inner, front = answering(authenticate=authenticate), Bus()
    front.handle_tunnels("plant.{id}.line.{line}", inner, protocol="csb")
    async with pair(front, identity="outer-ann") as out:
        there = out.tunnel("plant.7.line.3", params={"shift": "night", "id": "forged"})
        async with connect(there, protocol="csb", headers={"Authorization": "Bearer t"}):
            assert [peer.identity for peer in inner.peers] == ["inner-ann"]
            assert seen[0].outer is front.peers[0]
            assert seen[0].outer.identity == "outer-ann"
            assert seen[0].params == {"shift": "night", "id": "7", "line": "3"}
            assert (seen[0].protocol, seen[0].transport, seen[0].path) == ("csb", "tunnel", "/plant.7.line.3")
        await refused(connect(there, protocol="csb"), Unauthorized)
        assert nothing_is_left(front, out)


async def test_a_server_may_open_a_tunnel_to_its_client() -> None:
    front, out = Bus(), Bus()
    out.handle_tunnels("back", answering(), protocol="jrep")
    async with pair(front, client=out), connect(front.peers[0].tunnel("back"), protocol="jrep") as within:
        assert await within.request("echo", "hi") == "hi"


async def test_the_inner_bus_runs_from_the_first_tunnel_to_the_end_of_the_outer_one_unless_somebody_runs_it() -> None:
    inner = answering()
    async with tunnelled(inner):
        assert inner.ready
    assert inner.why_not_ready
    async with inner:
        async with tunnelled(inner):
            pass
        assert not inner.why_not_ready


async def test_two_buses_that_lead_tunnels_to_each_other_end_all_the_same() -> None:
    one, two = answering(), answering()
    one.handle_tunnels("two", two, protocol="csb")
    two.handle_tunnels("one", one, protocol="csb")
    async with pair(one) as out, connect(out.tunnel("two"), protocol="csb") as within:
        async with connect(within.tunnel("one"), protocol="csb") as further:
            assert await further.request("echo", 1) == 1
    assert not one.ready
    assert not two.ready


def test_what_is_no_name_no_pattern_no_protocol_or_no_bus_is_told_at_once() -> None:
    bus = Bus()
    with pytest.raises(TypeError, match="must be str, not int"):
        bus.tunnel(7)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="pattern"):
        bus.tunnel("plant.*")
    with pytest.raises(ReservedSubject):
        bus.tunnel("_polybus.x")
    with pytest.raises(TypeError, match="a mapping of strings to strings"):
        bus.tunnel("plant", params={"id": 7})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="nothing"):
        bus.handle_tunnels("plant.*", Bus(), protocol="nothing")
    with pytest.raises(TypeError, match="inner"):
        bus.handle_tunnels("plant.*", "bus", protocol="csb")  # type: ignore[arg-type]
    bus.handle_tunnels("plant.*", Bus(), protocol="csb")
    with pytest.raises(ValueError, match="already"):
        bus.handle_tunnels("plant.*", Bus(), protocol="csb")


# -- one in the other ----------------------------------------------------------------------------------------------------


async def test_a_bus_that_leads_to_itself_is_entered_as_often_as_there_are_hops_and_no_oftener() -> None:
    bus = answering()
    bus.handle_tunnels("again", bus, protocol="ubre")
    async with AsyncExitStack() as stack:
        level = await stack.enter_async_context(pair(bus))
        for _ in range(8):
            level = await stack.enter_async_context(connect(level.tunnel("again"), protocol="ubre"))
            assert await level.request("echo", "deep") == "deep"
        with pytest.raises(ConnectFailed, match=r"tunnel number 9 .* limit is 8 \(Limits\.hops\)"):
            await stack.enter_async_context(connect(level.tunnel("again"), protocol="ubre"))
        assert await level.request("echo", "still") == "still"


async def test_the_far_end_counts_hops_itself() -> None:
    bus = answering(limits=Limits(hops=1))
    bus.handle_tunnels("again", bus, protocol="ubre")
    async with pair(bus) as out, connect(out.tunnel("again"), protocol="ubre") as first:
        await refused(connect(first.tunnel("again"), protocol="ubre"), ConnectFailed, match="limit is 1")


async def test_a_tunnel_goes_through_a_broker() -> None:
    server = answering()
    server.handle_tunnels("plant.{id}", answering(), protocol="jrep")
    async with Broker("csb+memory://tunnel-clients", "csb+memory://tunnel-servers") as broker:
        async with connect(broker.server_urls[0], bus=server):
            async with connect(broker.client_urls[0]) as out, connect(broker.client_urls[0]) as other:
                async with connect(out.tunnel("plant.1"), protocol="jrep") as one:
                    async with connect(other.tunnel("plant.2"), protocol="jrep") as two:
                        assert [await one.request("echo", 1), await two.request("echo", 2)] == [1, 2]


# -- sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", ["ubre", Ubre(format="binary"), "csb", "jrep", "uprotocol"], ids=str)
async def test_a_frame_that_the_outer_connection_does_not_take_is_too_large_naming_both_limits(outside: Any) -> None:
    inner, small = Bus(), Limits(message=8192)

    @inner.handle("size")
    async def size(body: str) -> int:
        return len(body)

    @inner.handle("large")
    async def large(body: int) -> str:
        return "x" * body

    outer: dict[str, Any] = {"outer": answering(limits=small), "protocol": outside, "client": Bus(limits=small)}
    async with offered(inner, inside="ubre", **outer) as (_, out), connect(out.tunnel("plant.7"), protocol="ubre") as within:
        assert await within.request("size", "x" * 4000) == 4000
        with pytest.raises(TooLarge, match=r"this tunnel takes \d+, because the outer connection takes 8192"):
            await within.request("size", "x" * 9000)
        with pytest.raises(TooLarge, match="8192"):
            await within.request("large", 9000)
        assert within.stats().pending == 0
        assert await within.request("large", 4000) == "x" * 4000
        assert await out.request("echo", 1) == 1


# -- what holds a tunnel back --------------------------------------------------------------------------------------------


async def test_who_reads_nothing_is_sent_no_more_than_it_granted_and_gets_all_when_it_reads_again() -> None:
    inner = answering()
    async with tunnelled(inner) as (_, out, within):
        channel = the_channel(out)
        transport: Any = core_of(inner.peers[0]).link.transport
        transport.pause_reading()
        await anyio.lowlevel.checkpoint()
        replies = [within.request("echo", number) for number in range(1000)]
        await eventually(lambda: channel._credit == 0 and transport._channel._granted == 0)
        assert 0 < channel.queued < 1_000_000
        assert len(core_of(out.peers[0]).link.outbox or ()) < 100
        assert core_of(within.peers[0]).link.paused
        assert await out.request("echo", "outer") == "outer"
        transport.resume_reading()
        assert [await reply for reply in replies] == list(range(1000))
        assert channel.queued == 0


async def test_frames_that_come_together_are_handed_on_together_and_in_order() -> None:
    async with tunnelled(answering()) as (front, out, _):
        channel, far = the_channel(out), the_channel(front)
        heard, granted = Heard(channel), channel._granted
        frames = [b"%d" % number for number in range(100)]
        for frame in frames:
            far.put(frame)
        await eventually(lambda: len(heard.frames) == 100)
        assert heard.frames == frames
        assert heard.calls < 10
        await eventually(lambda: far._credit + channel._consumed == granted)  # and room for as many was granted again


async def test_a_tunnel_that_is_not_read_for_too_long_is_cut() -> None:
    hasty = Bus(limits=Limits(write_timeout=0.05))
    async with tunnelled(answering(), client=hasty) as (front, out, within):
        events = within.events()
        the_channel(front).listen(on=False)
        await anyio.lowlevel.checkpoint()
        for number in range(1000):
            within.request("echo", number).cancel() if number % 2 else within.publish_nowait("x", number)
        event = await next_event(events, LinkDown)
        assert "no progress" in event.reason
        assert await out.request("echo", 1) == 1


async def test_whoever_publishes_without_a_pause_is_held_back_when_the_tunnel_has_ended() -> None:
    inner, heard = Bus(), 0

    @inner.on("flood")
    async def on_flood(body: bytes, ctx: Context) -> None:
        nonlocal heard
        heard += 1
        if heard == 500:
            assert ctx.peer is not None
            await ctx.peer.aclose("that is enough")

    outer, sent = Bus(), 0
    outer.handle_tunnels("plant.7", inner, protocol="csb")
    async with outer.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as out:
        async with connect(out.tunnel("plant.7"), protocol="csb", backoff=SOON) as within:
            while within.stats().reconnects == 0 and sent < 5000:
                await within.publish("flood", bytes(8000))
                sent += 1
            assert within.stats().reconnects == 1


async def test_what_nobody_has_read_when_a_tunnel_ends_is_not_charged_any_longer() -> None:
    async with tunnelled(inner := answering()) as (front, out, within):
        transport: Any = core_of(inner.peers[0]).link.transport
        transport.pause_reading()
        await anyio.lowlevel.checkpoint()
        replies = [within.request("echo", number, timeout=100) for number in range(100)]
        await eventually(lambda: core_of(front.peers[0]).budget.held > 0)
        budget = core_of(front.peers[0]).budget
        await front.peers[0].aclose("a hiccup")
        for reply in replies:
            with pytest.raises(Disconnected):
                await reply
        await eventually(lambda: out.peers and out.peers[0].connected)
        assert budget.held == 0


@pytest.mark.parametrize("reads", [False, True])
async def test_a_peer_that_sends_more_frames_than_it_was_granted_loses_its_tunnel_alone(reads: bool) -> None:
    async with tunnelled(inner := answering()) as (front, out, within):
        channel = the_channel(out)
        transport: Any = core_of(inner.peers[0]).link.transport
        if not reads:
            transport.pause_reading()
        events = within.events()
        await anyio.lowlevel.checkpoint()
        for _ in range(300):
            core_of(out.peers[0]).streams.channel_frame(channel, b"\x00" * 8, None)
        assert "credit" in (await next_event(events, LinkDown)).reason
        assert await out.request("echo", 1) == 1
        await eventually(lambda: len(core_of(front.peers[0]).channels or ()) == 1)  # the one that came back


# -- ends ----------------------------------------------------------------------------------------------------------------


async def test_leaving_the_inner_client_ends_the_tunnel_and_nothing_else() -> None:
    inner = answering()
    async with tunnelled(inner) as (front, out, within):
        assert await within.request("echo", 1) == 1
        async with connect(out.tunnel("plant.8"), protocol="csb") as other:
            assert len(inner.peers) == 2
            await other.request("echo", 2)
        await eventually(lambda: len(inner.peers) == 1)
        assert len(core_of(front.peers[0]).channels or ()) == len(core_of(out.peers[0]).channels or ()) == 1
        assert await within.request("echo", 3) == 3
        assert await out.request("echo", 4) == 4
        assert front.stats().running == 0  # a tunnel takes nobody's place


@pytest.mark.parametrize(
    ("outside", "code", "reason"),
    [("ubre", 1000, ""), ("csb", 1000, "enough for today"), ("jrep", 1001, "moving"), ("uprotocol", 4000, "own")],
)
async def test_code_and_reason_of_a_close_arrive_on_the_other_side(outside: str, code: int, reason: str) -> None:
    inner = answering()
    for here, there in (("server", "client"), ("client", "server")):
        async with tunnelled(inner, protocol=outside) as (_, _, within):
            buses = {"server": inner, "client": within}
            events = buses[there].events()
            core_of(buses[here].peers[0]).link.close(code, reason)
            event = await next_event(events, LinkDown)
            assert (event.code, event.reason) == (code, reason)


async def test_the_other_half_flows_on_when_one_has_ended() -> None:
    async with tunnelled(answering()) as (front, out, _):
        channel, far = the_channel(out), the_channel(front)
        heard = Heard(channel)
        far.listen(on=False)
        for _ in range(300):  # more than was granted: some wait here
            far.put(b"\x00" * 10)
        channel.close(Closed(1000))
        await eventually(lambda: heard.ends)
        assert (heard.frames, heard.ends[0].code) == ([b"\x00" * 10] * 300, 1000)


async def test_an_inner_link_that_is_cut_comes_back_in_a_tunnel_of_its_own() -> None:
    async with tunnelled(answering()) as (front, out, within):
        core_of(within.peers[0]).link.abort(Closed(1006, "cut"), comes_back=True)
        assert await within.request("echo", 1) == await out.request("echo", 1) == 1
        await eventually(lambda: len(core_of(front.peers[0]).channels or ()) == len(core_of(out.peers[0]).channels or ()) == 1)


async def test_while_the_outer_link_is_down_no_tunnel_is_opened() -> None:
    async with pair(answering(), reconnect=True) as out:
        core_of(out.peers[0]).link.abort(Closed(1006, "cut"), comes_back=True)
        await refused(connect(out.tunnel("plant.7"), protocol="csb"), ConnectFailed, match="the outer link to .* is down")


async def test_an_outer_link_that_breaks_ends_the_inner_one_with_the_cause_and_both_come_back() -> None:
    inner = answering()
    async with tunnelled(inner) as (front, _, within), within.subscribe("news") as news:
        events = within.events()
        pending = within.request("endless", timeout=100)
        await eventually(lambda: inner.stats().running == 1)
        await front.peers[0].aclose("maintenance")
        with pytest.raises(Disconnected, match=r"the outer connection is gone.*maintenance") as caught:
            await pending
        assert caught.value.sent
        await eventually(lambda: inner.stats().running == 0)
        await next_event(events, LinkUp)
        assert await within.request("echo", 1) == 1
        await inner.publish("news", "again")
        assert (await anext(news)).body == "again"


async def test_when_the_outer_link_is_gone_for_good_so_is_the_inner_one() -> None:
    async with offered(answering()) as (front, out):
        async with connect(out.tunnel("plant.7"), protocol="csb", backoff=SOON) as within:
            await front.peers[0].aclose("closed down")
            await eventually(lambda: not within.peers)
            with pytest.raises(Disconnected):
                await within.request("echo", 1)


@pytest.mark.parametrize("deep", [False, True])
async def test_a_draining_outer_bus_lets_inner_requests_finish_also_of_buses_that_others_run(deep: bool) -> None:
    outer, inner, innermost = Bus(), Bus(), Bus()
    gated = Gated(innermost if deep else inner)
    outer.handle_tunnels("in", inner, protocol="csb")
    inner.handle_tunnels("in", innermost, protocol="jrep")
    async with inner, innermost, pair(outer) as out, pair(inner) as elsewhere, AsyncExitStack() as stack:
        level = await stack.enter_async_context(connect(out.tunnel("in"), protocol="csb"))
        if deep:
            level = await stack.enter_async_context(connect(level.tunnel("in"), protocol="jrep"))
        events = level.events()
        reply = level.request("wait", "finished")
        await eventually(lambda: gated.inside)
        async with anyio.create_task_group() as group:
            group.start_soon(outer.drain)
            await eventually(lambda: not outer.ready)
            await anyio.wait_all_tasks_blocked()
            assert not reply.done()
            gated.go.set()
            assert await reply == "finished"
        down = await next_event(events, LinkDown)
        assert (down.code, down.reason) == (1001, "the bus is leaving")
        assert inner.ready
        assert innermost.ready
        assert elsewhere.peers[0].connected  # who came another way stays


# -- overhead ------------------------------------------------------------------------------------------------------------


OUTSIDES = (*PROTOCOLS, Ubre(format="binary"), UProtocol(format="protobuf"))


@pytest.mark.parametrize(("inside", "outside"), [*zip(itertools.cycle(PROTOCOLS), OUTSIDES, strict=False)], ids=str)
async def test_a_level_costs_a_small_request_at_most_160_bytes(inside: str, outside: Any) -> None:
    sizes: list[tuple[str, int]] = []
    async with tunnelled(answering(), inside=inside, protocol=outside) as (_, out, within):
        await within.request("echo", "who is there?")
        await within.peers[0].extended()
        for level, bus in (("inner", within), ("outer", out)):
            transport: Any = core_of(bus.peers[0]).link.transport
            metered: Any = _Metered(transport, level, sizes)
            core_of(bus.peers[0]).link.transport = metered
        assert await within.request("echo", {"id": 7}) == {"id": 7}
        frames = dict(sizes)
        assert len(frames) == len(sizes) == 2
        assert 0 < frames["outer"] - frames["inner"] <= 160, json.dumps(frames)


class _Metered:
    def __init__(self, transport: Any, level: str, sizes: list[tuple[str, int]]) -> None:
        self._transport = transport
        self._level = level
        self._sizes = sizes

    def send(self, frame: bytes) -> None:
        self._sizes.append((self._level, len(frame)))
        self._transport.send(frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
