"""What a connection that ends does to its link, to the next connection, and to those who wait."""

import traceback
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, ConnectFailed, Disconnected, Limits, LocalProtocolError, connect
from polybus._core.link.receiver import ConnectionReceiver
from polybus.errors import RemoteProtocolError, Unauthorized
from polybus.events import LinkDown
from polybus.plugins import Closed, DialOptions, Receiver, Transport
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from polybus.transports import Memory
from tests.loops import both_backends  # noqa: F401
from tests.support import BOUND, eventually, next_event
from tests.unit.answering import answering
from tests.unit.transports.support import Raw, raw_server

SOON = Backoff(initial=0.001, maximum=0.001)
LIMITS = Limits()


class Talkative:
    """Dials in memory; its connections keep their receivers, so that a test can report what has long been reported."""

    def __init__(self, name: str) -> None:
        self._inner = Memory().connector(f"memory://{name}")
        self.url = self._inner.url
        self.reconnects = True
        self.receivers: list[Receiver] = []
        self.silent = False
        """The end of a connection is not reported."""

    async def connect(self, options: DialOptions) -> Transport:
        transport: Any = await self._inner.connect(options)
        start, connector = transport.start, self

        class Started(type(transport)):  # type: ignore[misc]  # a transport with slots, of which only `start` differs
            __slots__ = ()

            def start(self, receiver: Receiver) -> None:
                connector.receivers.append(receiver)
                start(_Silent(connector, receiver))

        transport.__class__ = Started
        return transport  # type: ignore[no-any-return]


class _Silent:
    """A receiver that does not hear of the end while its connector is silent."""

    def __init__(self, connector: Talkative, receiver: Receiver) -> None:
        self._connector, self._closed = connector, receiver.closed
        self.frames_received = receiver.frames_received
        self.pause_writing, self.resume_writing = receiver.pause_writing, receiver.resume_writing

    def closed(self, why: Closed) -> None:
        if not self._connector.silent:
            self._closed(why)


async def test_a_transport_that_reports_its_end_twice_and_late_does_not_end_the_next_connection() -> None:
    server, connector = answering(), Talkative("late")
    async with server.serve("ubre+memory://late"), connect(connector, protocol="ubre", backoff=SOON) as bus:
        await server.peers[0].aclose("come again")
        await eventually(lambda: bus.stats().reconnects == 1)
        reply = bus.request("endless")
        await eventually(lambda: server.stats().running == 1)
        old = connector.receivers[0]
        old.closed(Closed(1006, "once more"))
        old.pause_writing()
        old.frames_received([b"what has been read from it last"])
        assert await bus.request("echo", "alive") == "alive"
        assert not reply.done()
        assert bus.stats().reconnects == 1
        assert bus.stats().malformed == 0


@pytest.mark.parametrize("full", [False, True], ids=["", "with_a_full_connection"])
async def test_what_is_asked_and_published_while_the_protocol_ends_a_connection_goes_to_the_next_one(full: bool) -> None:
    server, connector, limits = answering(), Talkative("asked-meanwhile"), Limits(bad_messages=3)
    async with server.serve("ubre+memory://asked-meanwhile"), server.subscribe("news") as news:
        async with connect(connector, protocol="ubre", backoff=SOON, limits=limits) as bus:
            await bus.peers[0].extended()
            first = connector.receivers[0]
            if full:
                first.pause_writing()
            first.frames_received([b"no frame of UBRE"] * 4)
            reply = bus.request("echo", "meanwhile")
            await bus.publish("news", "meanwhile")
            if full:
                first.resume_writing()
            assert await reply == "meanwhile"
            assert (await news.receive(BOUND)).body == "meanwhile"
            assert bus.stats().reconnects == 1


async def test_an_attempt_that_was_given_up_may_report_its_end_after_the_next_one_is_up() -> None:
    server, connector = answering(), Talkative("given-up")
    async with server.serve("ubre+memory://given-up"), connect(connector, protocol="ubre", backoff=SOON) as bus:
        (link,) = bus._links.opened
        connector.silent = True
        # As when the protocol's handshake takes too long: the attempt cuts its connection, and another one is made.
        transport = await connector.connect(_options(bus))
        link.attach(transport)
        transport.abort(Closed(1006, "the handshake did not complete"))
        link.attach(await connector.connect(_options(bus)))
        assert await bus.request("echo", 1) == 1
        connector.receivers[1].closed(Closed(1006, "the handshake did not complete"))
        assert await bus.request("echo", 2) == 2
        assert bus.stats().reconnects == 0
        connector.silent = False


async def test_a_connection_that_comes_after_its_link_was_left_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server, connector, dialled, go_on = answering(), Talkative("left"), anyio.Event(), anyio.Event()
    connect_at_once = connector.connect

    async def connect_late(options: DialOptions) -> Transport:
        dialled.set()
        await go_on.wait()
        return await connect_at_once(options)

    async with server.serve("ubre+memory://left"), Bus() as bus:
        async with bus.connect(connector, protocol="ubre", backoff=SOON):
            monkeypatch.setattr(connector, "connect", connect_late)
            await server.peers[0].aclose("come again")
            await dialled.wait()
        go_on.set()
        await eventually(lambda: len(connector.receivers) == 2 and not server.peers)
        assert bus.peers == [] and bus.stats().links == 0


async def test_a_transport_that_cannot_be_cut_is_given_up_and_the_bus_keeps_house(caplog: pytest.LogCaptureFixture) -> None:
    server, connector = answering(), Talkative("uncut")
    limits = Limits(close_timeout=0.04)
    async with server.serve("ubre+memory://uncut"), connect(connector, protocol="ubre", backoff=SOON, limits=limits) as bus:
        (link,) = bus._links.opened
        for times in (1, 2):
            reply = bus.request("endless")
            transport: Any = link.transport
            transport.__class__ = _failing(type(transport))
            with pytest.raises(Disconnected, match="an internal error"):
                await reply
            assert await bus.request("echo", times) == times
            assert bus.stats().reconnects == times
        await server.drain(timeout=0)  # what is endless there has not been told
    assert [record.message for record in caplog.records if "could not be cut" in record.message]
    assert not [record.message for record in caplog.records if "background task" in record.message]


def _failing(kind: Any) -> Any:
    """A transport with slots that fails whenever it is looked at, and when it is cut."""

    class Failing(kind):  # type: ignore[misc]
        __slots__ = ()

        def tick(self, now: float) -> None:
            raise RuntimeError("this transport has a fault")

        def abort(self, why: Closed) -> None:
            raise RuntimeError("and another one")

    return Failing


def _options(bus: Bus) -> DialOptions:
    return DialOptions(
        host=bus._services.running, reads=frozenset({"text"}), writes="text", subprotocol="ubre", headers={}, tls=None
    )


async def test_each_who_waits_when_a_link_dies_gets_an_error_of_its_own() -> None:
    server = answering()
    async with (
        server.serve("ubre+memory://own"),
        connect("ubre+memory://own", backoff=Backoff(attempts=1, initial=0.001)) as bus,
        bus.subscribe("x") as one,
        bus.subscribe("y") as other,
    ):
        replies = [bus.request("endless") for _ in range(20)]
        await eventually(lambda: server.stats().running == 20)
        (gate,) = server._links.gates.values()
        await gate.aclose()
        await server.peers[0].aclose("gone")
        errors: list[Disconnected] = []
        for number, reply in enumerate(replies):
            with pytest.raises(Disconnected) as caught:
                try:
                    raise KeyError(number)
                except KeyError:
                    await reply
            errors.append(caught.value)
        assert len({id(error) for error in errors}) == 20
        assert [error.__context__.args for error in errors if error.__context__ is not None] == [(n,) for n in range(20)]
        assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1
        assert all(error.sent for error in errors)
        for wait in (one.receive, other.receive, bus.request("echo").wait, bus.request("echo").wait):
            with pytest.raises(Disconnected) as caught:
                await wait()
            errors.append(caught.value)
        assert len({id(error) for error in errors}) == 24


@pytest.mark.native
async def test_who_would_bring_a_new_token_is_told_of_a_lost_connection_and_not_of_a_refusal() -> None:
    server = answering()
    async with server.serve("ubre+ws://127.0.0.1:0/") as listener, connect(listener.url, headers=dict, backoff=SOON) as bus:
        reply = bus.request("endless")
        await eventually(lambda: server.stats().running == 1)
        core_of(server.peers[0]).link.turn_away(Unauthorized("it has expired"), "it has expired")
        with pytest.raises(Disconnected, match="expired") as caught:
            await reply
        assert caught.value.sent


@pytest.mark.parametrize("transport", ["memory", "tcp", "unix", "ws"])
async def test_authenticate_has_as_much_time_as_a_handshake_on_every_transport(transport: str, tmp_path: Path) -> None:
    stopped = anyio.Event()

    async def authenticate(handshake: Any) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return "nobody"

    server = Bus(authenticate=authenticate, limits=Limits(handshake_timeout=0.2))
    address = {"memory": "memory://slow", "unix": f"unix://{tmp_path}/s"}.get(transport, f"{transport}://127.0.0.1:0")
    async with server.serve(f"ubre+{address}") as listener:
        with pytest.raises((ConnectFailed, Disconnected)):  # where the wire has no handshake, the first request tells
            async with connect(listener.url, backoff=Backoff(attempts=1)) as client:
                await client.request("anything")
        await stopped.wait()
        await eventually(lambda: server.stats().links == 0)


async def test_who_leaves_a_silent_peer_without_having_said_a_word_does_not_wait_for_it() -> None:
    async def silent(raw: Raw) -> None:
        await anyio.sleep_forever()

    async with raw_server(silent) as port:
        with anyio.fail_after(BOUND), pytest.raises(LocalProtocolError, match="wildcards"):
            async with connect(f"ubre+tcp://127.0.0.1:{port}", limits=Limits(close_timeout=600)) as bus:
                await bus.request("news.*")


async def test_who_leaves_at_once_says_goodbye_all_the_same() -> None:
    server = Bus()
    events = server.events()
    async with server.serve("ubre+tcp://127.0.0.1:0") as listener:
        for _ in range(10):
            async with connect(listener.url):
                pass
            event = await next_event(events, LinkDown)
            assert (event.code, event.reason) == (1000, "the bus is leaving")


async def test_who_waits_for_a_peer_that_breaks_the_framing_is_told_at_once() -> None:
    """And not when the connection is gone, for which a peer that reads nothing and closes nothing takes as long as it may."""
    over = anyio.Event()

    async def breaks(raw: Raw) -> None:
        await raw.stream.receive()
        await raw.send(b"\xff\xff\xff\xff")
        await over.wait()

    async with raw_server(breaks) as port:
        url, limits = f"ubre+tcp://127.0.0.1:{port}", Limits(close_timeout=600)
        async with connect(url, limits=limits, backoff=Backoff(initial=600)) as bus:
            with anyio.fail_after(BOUND), pytest.raises(Disconnected, match="frame of 4294967295 bytes") as caught:
                await bus.request("anything", timeout=600)
            assert caught.value.sent
            assert not core_of(bus.peers[0]).gone, "it is to come back"
            over.set()


async def test_a_server_that_waits_for_a_client_that_breaks_the_framing_is_told_at_once() -> None:
    server = Bus(limits=Limits(close_timeout=600))
    async with server.serve("ubre+tcp://127.0.0.1:0") as listener:
        port = int(listener.url.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await eventually(lambda: len(server.peers) == 1)
            (peer,) = server.peers
            waiting = peer.request("anything", timeout=600)
            await stream.send(b"\xff\xff\xff\xff")
            with anyio.fail_after(BOUND), pytest.raises(Disconnected, match="frame of 4294967295 bytes"):
                await waiting
            assert core_of(peer).gone
            with anyio.fail_after(BOUND), pytest.raises(Disconnected):
                await peer.request("anything more", timeout=600)


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (Closed(1006, "write stalled: the peer accepted no data for 10 s, 7 bytes are waiting", stalled=True), True),
        (Closed(1002, "a frame stalled"), True),
        (Closed(1006, "the peer closed the connection without a reason"), False),
        (Closed(1000, "bye"), False),
    ],
    ids=lambda value: str(getattr(value, "code", value)),
)
async def test_a_server_tells_of_a_connection_that_ends_for_what_its_peer_did_or_left_undone(
    why: Closed, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    async with bus.serve("ubre+memory://stalled"), connect("ubre+memory://stalled"):
        await eventually(lambda: bus.peers)
        link = core_of(bus.peers[0]).link  # another may be up before this end is looked at
        assert link.transport is not None
        link.transport.abort(why)
        await eventually(lambda: link.state.name != "UP")
    assert (why.reason in caplog.text) == told, caplog.text


@pytest.mark.parametrize(
    ("output", "said"),
    [
        *[(None, "'NoneType' object is not iterable"), ([None], "not NoneType"), ("no", "not str")],
        *[(bytearray(b"{}"), "not int"), ([{}], "not dict")],
    ],
)
async def test_a_session_of_a_plug_in_that_gives_no_output_costs_its_link_at_once_and_the_log_names_it(
    output: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(answering()) as client:
        reply = client.request("endless", timeout=600)
        core_of(client.peers[0]).link.take(output)
        with pytest.raises(Disconnected):
            await reply
    assert said in caplog.text


@pytest.mark.parametrize("error", [LookupError("a bug"), KeyboardInterrupt()], ids=["a bug", "Ctrl-C"])
@pytest.mark.parametrize("comes", ["by itself", "in a frame"])
async def test_a_bug_behind_a_session_costs_its_link_and_a_signal_is_raised_too(comes: str, error: BaseException) -> None:
    async with pair(Bus(), reconnect=True) as client:
        link, events = core_of(client.peers[0]).link, client.events()

        def broken(*of: Any) -> Any:
            raise error

        with nullcontext() if isinstance(error, Exception) else pytest.raises(KeyboardInterrupt):
            if comes == "by itself":
                link.take(map(broken, [0]))  # as a session that is a generator
            else:
                link.deferred.append(broken)
                link.frames_received([b"{}"])
        event = await next_event(events, LinkDown)
        assert (event.code, event.reason) == (1011, "an internal error")


def test_a_connection_that_is_over_reports_nothing_to_its_link() -> None:
    told: list[Any] = []
    link = SimpleNamespace(
        frames_received=told.append,
        lost=lambda count, why: told.append((count, why)),
        refused=lambda reason, text, now: told.append((reason, text, now)),
        runtime=SimpleNamespace(time=lambda: 5.0),
    )
    receiver = ConnectionReceiver(link, None, None)  # type: ignore[arg-type]  # neither is asked anything
    for _ in range(2):
        receiver.frames_received([b"x"])
        receiver.lost(3, "the disk is full")
        receiver.malformed(RemoteProtocolError("no length", reason="malformed"))
        receiver.over()
    assert told == [[b"x"], (3, "the disk is full"), ("malformed", "no length", 5.0)]
