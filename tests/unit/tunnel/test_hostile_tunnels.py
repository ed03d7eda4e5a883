"""Tunnels whose other side says what it should not, is slow, or leaves at a bad moment: the outer connection goes on."""

import ssl
from typing import Any

import anyio
import msgspec
import pytest

from polybus import Bus, ConnectFailed, Handshake, Limits, LocalProtocolError, RequestError, connect
from polybus._core.tunnel import WINDOW, FrameChannel
from polybus.events import LinkDown
from polybus.message import Kind
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually, let_expire, next_event
from tests.unit.answering import answering
from tests.unit.tunnel.test_tunnels import Heard, nothing_is_left, offered, the_channel, tunnelled


async def opened(bus: Bus, name: str, facts: Any, credit: int = WINDOW) -> FrameChannel:
    """A tunnel with any body in its open, let in."""
    peer = bus.peers[0]
    channel = FrameChannel(core_of(peer), name, 0, text=False)
    await core_of(peer).streams.open_channel(channel, facts, "tunnel", None, credit)
    await channel.acceptance()
    return channel


# -- opens ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([1], "an object with protocol, headers and params"),
        ("csb", "an object with protocol, headers and params"),
        ({"protocol": 7}, r"Expected `str \| null`, got `int` \(at \$.protocol\)"),
        ({"headers": ["a"]}, r"Expected `object \| null`, got `array` \(at \$.headers\)"),
        ({"headers": {"a": 1}}, r"Expected `str`, got `int` \(at \$.headers"),
        ({"params": {"id": None}}, r"Expected `str`, got `null` \(at \$.params"),
    ],
)
async def test_an_open_that_says_nonsense_is_refused_saying_what_is_wrong(facts: Any, said: str) -> None:
    async with offered(inner := answering()) as (front, out):
        with pytest.raises(RequestError, match=said):
            await opened(out, "plant.7", facts)
        assert nothing_is_left(front, out)
        assert not inner.peers
        assert await out.request("echo", 1) == 1


async def test_an_open_without_a_body_is_let_in_as_one_without_wishes() -> None:
    async with offered(inner := answering()) as (front, out):
        channel = await opened(out, "plant.7", None)
        assert len(inner.peers) == 1
        channel.cut(Closed(1000, "enough"))
        await eventually(lambda: not inner.peers)
        assert nothing_is_left(front, out)


async def test_an_inner_authenticate_sees_cookies_and_none_where_they_are_malformed() -> None:
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> Any:
        seen.append(handshake)
        return "ann"

    async with offered(answering(authenticate=authenticate)) as (_, out):
        for cookies in ("session=42; theme=dark", "a,b=1"):
            async with connect(out.tunnel("plant.7"), protocol="csb", headers={"Cookie": cookies}):
                pass
    assert [dict(handshake.cookies) for handshake in seen] == [{"session": "42", "theme": "dark"}, {}]


async def test_tls_of_its_own_is_refused_for_a_tunnel_and_a_tunnel_names_itself() -> None:
    async with pair(answering()) as out:
        there = out.tunnel("plant.7")
        assert repr(there) == "<TunnelConnector 'plant.7'>"
        outside = connect(there, protocol="csb", tls=ssl.create_default_context())
        await refused(outside, LocalProtocolError, match="as secure as its outer connection")


async def test_an_inner_bus_that_does_not_say_yes_or_no_is_given_up_or_left_and_its_authenticate_is_cancelled() -> None:
    begun, cancelled = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Handshake) -> Any:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async with offered(inner := answering(authenticate=authenticate)) as (front, out):

        async def ask(seconds: float) -> None:
            try:
                async with connect(out.tunnel("plant.7"), protocol="csb", bus=Bus(limits=Limits(connect_timeout=seconds))):
                    pass
            except ConnectFailed as error:
                raise TimeoutError from error

        late = await let_expire(ask, begun.is_set)
        assert "waiting for the other side to accept" in str(late.__cause__)
        with anyio.fail_after(1):  # long before `Limits.handshake_timeout`
            await cancelled.wait()
        await eventually(lambda: nothing_is_left(front, out))
        begun, cancelled = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(ask, 1000)
            await begun.wait()
            group.cancel_scope.cancel()
        assert not core_of(out.peers[0]).channels, "who is cancelled says so at once"
        with anyio.fail_after(1):
            await cancelled.wait()
        assert not inner.peers
        assert await out.request("echo", 1) == 1


async def test_an_outer_bus_that_is_left_while_a_tunnel_is_let_in_ends_the_attempt() -> None:
    begun = anyio.Event()

    async def authenticate(handshake: Handshake) -> Any:
        begun.set()
        await anyio.sleep_forever()

    async with offered(answering(authenticate=authenticate)) as (front, out), anyio.create_task_group() as group:
        group.start_soon(refused, connect(out.tunnel("plant.7"), protocol="csb"), ConnectFailed, "switched off")
        await begun.wait()
        await front.peers[0].aclose("switched off")


async def test_an_opener_that_is_gone_when_it_would_be_let_in_leaves_no_link_behind() -> None:
    begun, go = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Handshake) -> Any:
        begun.set()
        with anyio.CancelScope(shield=True):
            await go.wait()
        return "ann"

    inner = answering(authenticate=authenticate)
    async with offered(inner) as (front, out), anyio.create_task_group() as group:

        async def attempt() -> None:
            with pytest.raises(RequestError):
                await opened(out, "plant.7", {})

        group.start_soon(attempt)
        try:
            await begun.wait()
            the_channel(out).cut(Closed(1000, "gone"))
            await eventually(lambda: not core_of(front.peers[0]).channels)
        finally:
            go.set()
        await eventually(lambda: nothing_is_left(front, out))
        assert not inner.peers
        assert front.stats().running == 0


# -- items ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True], ids=["read", "unread"])
@pytest.mark.parametrize("item", [7, "no base64!", "YQ="], ids=str)
async def test_an_item_that_is_no_frame_ends_its_tunnel_and_nothing_else(item: Any, waits: bool) -> None:
    async with tunnelled(inner := answering()) as (_, out, within):
        transport: Any = core_of(inner.peers[0]).link.transport
        if waits:
            transport.pause_reading()
            await anyio.lowlevel.checkpoint()
        events = within.events()
        core_of(out.peers[0]).streams.channel_send(the_channel(out), Kind.ITEM, item, None, {})
        if waits:
            await out.request("echo", 0)  # so the item is there, and waits
            transport.resume_reading()
        event = await next_event(events, LinkDown)
        assert (event.code, event.reason) == (1003, "an item in the tunnel is not a frame")
        assert await out.request("echo", 1) == 1
        assert await within.request("echo", 2) == 2


@pytest.mark.parametrize("unread", [0, WINDOW + 1], ids=["both ended", "ours waits"])
async def test_items_after_the_end_of_their_half_are_no_frames_any_more(unread: int) -> None:
    async with tunnelled(answering()) as (front, out, _):
        near, far = the_channel(out), the_channel(front)
        heard = Heard(near)
        if unread:
            far.listen(on=False)
            await anyio.lowlevel.checkpoint()
        for _ in range(unread):
            near.put(b"nobody reads this")
        far.put(b"before")
        far.close(Closed(1000))
        core_of(front.peers[0]).streams.channel_frame(far, b"behind", None)
        far.put(b"refused by its own end")
        await eventually(lambda: heard.ends)
        assert await out.request("echo", 1) == 1
        assert (heard.frames, heard.ends[0].code) == ([b"before"], 1000)


# -- slow ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outbox", [8, Limits().outbox])  # full, and not full where the credit ends
async def test_an_outer_connection_that_takes_nothing_holds_the_inner_writer_and_what_waits_arrives_in_order(
    outbox: int,
) -> None:
    async with tunnelled(answering(), outer=answering(limits=Limits(outbox=outbox))) as (front, out, _):
        near, far = the_channel(out), the_channel(front)
        heard, writer = Heard(near), Heard(far)
        reader: Any = core_of(out.peers[0]).link.transport
        reader.pause_reading()
        sent = 0
        while not far.queued:
            far.put(b"%04d" % sent + bytes(8000))
            sent += 1
        assert writer.held == 1
        for _ in range(20):
            far.put(b"%04d" % sent + bytes(8000))
            sent += 1
        assert writer.held == 1  # said once
        tasks = len(anyio.get_running_tasks())
        for _ in range(3):
            far.received_credit(1)
            await anyio.wait_all_tasks_blocked()
        assert len(anyio.get_running_tasks()) == tasks  # one waits for all
        reader.resume_reading()
        await eventually(lambda: len(heard.frames) == sent)
        assert [int(frame[:4]) for frame in heard.frames] == list(range(sent))
        await eventually(lambda: writer.held == 0)


async def test_a_frame_that_the_outer_connection_refuses_after_it_waited_ends_the_tunnel_with_the_limit() -> None:
    async with tunnelled(answering()) as (front, out, _):
        near, far = the_channel(out), the_channel(front)
        writer, _reader = Heard(near), Heard(far)
        far.listen(on=False)
        await anyio.lowlevel.checkpoint()
        while not near.queued:
            near.put(b"\x00" * 10)
        near.packing = msgspec.structs.replace(near.packing, encoded=10**9)  # it cannot know all that a wire adds
        near.put(bytes(Limits().message + 1))
        far.listen(on=True)
        await eventually(lambda: writer.ends)
        assert (writer.ends[0].code, f"{Limits().message}" in writer.ends[0].reason) == (1009, True)
        assert await out.request("echo", 1) == 1


async def test_a_goodbye_behind_frames_that_nobody_takes_is_said_without_them_after_close_timeout() -> None:
    async with tunnelled(answering(), client=Bus(limits=Limits(close_timeout=0.02, write_timeout=30.0))) as (
        front,
        out,
        within,
    ):
        the_channel(front).listen(on=False)
        await anyio.lowlevel.checkpoint()
        channel = the_channel(out)
        while not channel.queued:
            channel.put(b"\x00" * 10)
        transport: Any = core_of(within.peers[0]).link.transport
        transport.close(1000, "")
        channel.watch(channel._since + 0.01, 30.0, 0.02)
        assert channel.queued
        channel.watch(channel._since + 0.03, 30.0, 0.02)
        assert not channel.queued
        assert channel._done
        assert await out.request("echo", 1) == 1
