"""A handshake of several verbs, many messages in a frame, heartbeats and goodbyes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, ConnectFailed, Kind, Limits, Message, Unauthorized, connect
from polybus.events import FrameRefused, LinkRetrying, LinkUp
from polybus.plugins import CloseWanted, Ready, Refused, Role, Transport
from tests.support import BOUND

from .verbose import BAD, CONTROL, STATES, Verbose, VerboseSession, following
from .wires import Dial, End

pytestmark = pytest.mark.anyio


class Mute(VerboseSession):
    """Says its first word and falls silent."""

    def receive(self, frame: bytes, now: float) -> None: ...


class MuteVerbose(Verbose):
    def session(self, role: Role, limits: Limits = Limits(), rng: Any = None) -> Mute:  # noqa: B008  # immutable
        return Mute(self.codec(limits), role, self, rng)


async def until(true: Callable[[], bool]) -> None:
    """Let the event loop turn until something has happened; the tests bound it."""
    while not true():
        await anyio.lowlevel.checkpoint()


def hands_shaken(**options: Any) -> tuple[VerboseSession, VerboseSession]:
    """Two sessions after the handshake."""
    client, server = Verbose(**options).session("client"), Verbose(**options).session("server")
    client.start(0.0)
    server.start(0.0)
    while frames := client.frames_to_send():
        for frame in frames:
            server.receive(frame, 0.0)
        for frame in server.frames_to_send():
            client.receive(frame, 0.0)
    assert client.events() == server.events() == [Ready()]
    return client, server


def test_every_state_has_an_answer_to_every_verb() -> None:
    for state in STATES:
        for event in (*CONTROL, "message"):
            assert following(state, event) in {*STATES, BAD}


@pytest.mark.parametrize("verb", sorted({*CONTROL, "request"}))
@pytest.mark.parametrize("role", ["client", "server"])
def test_a_first_word_out_of_order_ends_the_connection(role: Any, verb: str) -> None:
    expected = {"client": {"welcome", "refused"}, "server": {"hello"}}[role]
    session = Verbose().session(role)
    session.start(0.0)
    session.receive(json.dumps([{"verb": verb, "id": "1", "subject": "a"}]).encode(), 0.0)
    closes = [event for event in session.events() if isinstance(event, CloseWanted)]
    if verb in expected - {"hello", "refused"}:
        assert closes == []
    elif verb not in expected:
        assert closes[0].code == 1002


def test_what_waits_leaves_in_one_frame_and_arrives_in_order() -> None:
    client, server = hands_shaken()
    for number in range(5):
        client.send(Message(Kind.PUBLISH, "n", None, str(number).encode()), 0.0)
    (frame,) = client.frames_to_send()
    server.receive(frame, 0.0)
    assert [event.body for event in server.events() if isinstance(event, Message)] == [0, 1, 2, 3, 4]


def test_one_bad_message_among_good_ones_is_refused_alone() -> None:
    _, server = hands_shaken()
    server.receive(b'[{"verb":"publish","subject":"a"},{"verb":"sing"},7,{"verb":"publish","subject":"b"}]', 0.0)
    events = server.events()
    assert [type(event) for event in events] == [Message, Refused, Refused, Message]


async def test_one_bad_message_among_good_ones_is_counted_and_the_link_goes_on() -> None:
    server, heard, done = Bus(), list[Any](), anyio.Event()

    @server.on("n")
    async def on_number(body: Any) -> None:
        heard.append(body)
        if body == 2:
            done.set()

    with anyio.fail_after(BOUND):
        async with server.serve("verbose+memory://bad", protocol=Verbose()):
            async with connect("verbose+memory://bad", protocol=Verbose()) as bus:
                events = server.events()
                (link,) = bus._services.running.links
                assert link.transport is not None
                link.transport.send(
                    b'[{"verb":"publish","subject":"n","body":1},{"verb":"sing"},{"verb":"publish","subject":"n","body":2}]'
                )
                await done.wait()
                async for event in events:
                    if isinstance(event, FrameRefused):
                        break
    assert heard == [1, 2]
    assert server.stats().malformed == 1


async def test_both_sides_tell_each_other_what_they_want() -> None:
    server = Bus()
    with anyio.fail_after(BOUND):
        async with server.serve("verbose+memory://tell", protocol=Verbose()):
            async with connect("verbose+memory://tell", protocol=Verbose()) as bus:
                async with server.subscribe("up.*"), bus.subscribe("down.*"):
                    await until(lambda: bool(server.peers))
                    (there,), (here,) = server.peers, bus.peers
                    await until(lambda: bool(here.patterns))
                    assert list(there.patterns or ()) == ["down.*"]
                    assert list(here.patterns or ()) == ["up.*"]


async def test_a_client_that_stops_in_the_middle_of_the_handshake_is_cut() -> None:
    limits = Limits(handshake_timeout=0.05)
    server = Bus(limits=limits)
    with anyio.fail_after(BOUND):
        async with server.serve("verbose+memory://half", protocol=Verbose()):
            with pytest.raises(ConnectFailed, match="the peer cut the connection"):
                async with connect("verbose+memory://half", protocol=MuteVerbose(), limits=Limits(handshake_timeout=60)):
                    pass
            assert server.stats().links == 0


async def test_a_server_that_stops_in_the_middle_of_the_handshake_fails_the_connect() -> None:
    class Place:
        def dial(self, options: Any) -> Transport:
            self.end = End(options.host, lambda frame: self.end.deliver(b'[{"verb":"welcome"}]'), lambda why: None)
            return self.end

    with anyio.fail_after(BOUND):
        with pytest.raises(ConnectFailed, match=r"closed|did not complete|not expected"):
            async with connect(Dial(Place().dial), protocol=Verbose(), limits=Limits(handshake_timeout=0.05)):
                pass


async def test_a_refusal_in_the_handshake_is_final() -> None:
    server = Bus()
    with anyio.fail_after(BOUND):
        async with server.serve("verbose+memory://door", protocol=Verbose(password="sesame")):
            with pytest.raises(Unauthorized, match="password"):
                async with connect("verbose+memory://door", protocol=Verbose(password="please"), wait=60):
                    pass
            async with connect("verbose+memory://door", protocol=Verbose(password="sesame")) as bus:
                assert len(bus.peers) == 1


async def test_a_refusal_after_a_loss_is_final_too() -> None:
    server = Bus()
    with anyio.fail_after(BOUND):
        async with server.serve("verbose+memory://later", protocol=Verbose()):
            async with connect("verbose+memory://later", protocol=Verbose(), backoff=Backoff(initial=0.001)) as bus:
                next(iter(server._links.gates)).adapter = Verbose(password="new")
                async with bus.subscribe("a") as news:
                    await until(lambda: bool(server.peers))
                    await server.peers[0].aclose("the password has changed")
                    with pytest.raises(Unauthorized):
                        await anext(news)
                with pytest.raises(Unauthorized):
                    await bus.request("a")


async def test_after_a_goodbye_the_client_comes_back() -> None:
    server = Bus()
    with anyio.fail_after(BOUND):
        async with server.serve("verbose+memory://again", protocol=Verbose()):
            async with connect("verbose+memory://again", protocol=Verbose(), backoff=Backoff(initial=0.001)) as bus:
                events = bus.events()
                await until(lambda: bool(server.peers))
                await server.peers[0].aclose("come back soon")
                reasons = []
                async for event in events:
                    if isinstance(event, LinkRetrying):
                        reasons.append(event.reason)
                    if isinstance(event, LinkUp):
                        assert event.again
                        break
                assert reasons == ["come back soon"]


async def test_when_the_heartbeat_stops_the_link_is_made_anew() -> None:
    server = Bus()
    with anyio.fail_after(BOUND):
        async with server.serve("verbose+memory://beat", protocol=Verbose(heartbeat=1000)):
            adapter = Verbose(heartbeat=0.01)
            limits = Limits(ping_interval=0.02)
            bound = connect("verbose+memory://beat", protocol=adapter, backoff=Backoff(initial=0.001), limits=limits)
            async with bound as bus:
                async for event in bus.events():
                    if isinstance(event, LinkUp):
                        assert event.again
                        break


def test_a_heartbeat_is_sent_when_its_time_has_come() -> None:
    client, server = hands_shaken(heartbeat=10.0)
    assert client.next_tick() == 10.0
    client.tick(10.0)
    assert client.next_tick() == 20.0
    (frame,) = client.frames_to_send()
    server.receive(frame, 29.0)
    server.tick(31.0)
    assert server.events() == []
    server.tick(60.0)
    (event,) = server.events()
    assert isinstance(event, CloseWanted)
