"""Between any two wires: what leaves is the message that was routed and authorised, whatever its body contains.

A hostile sender is one that writes its frames as we do, but puts any bytes where the body stands. Virtual time, in memory.
"""

import base64
import itertools
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import msgspec
import pytest
from attrs import frozen

from polybus import Bus, Cluster, Context, Limits, Message, Peer, Route, Store, bridge, connect
from polybus.body import JSON, OCTETS, TEXT, BodyFormat, read_body
from polybus.errors import BadRequest, BusError, Code, EncodeError, RemoteProtocolError, RequestError
from polybus.message import Kind
from polybus.plugins.extensions import core_of
from polybus.protocols import Csb, Jrep, Nats, Ubre, Up, UProtocol
from polybus.protocols._protobuf import ANY
from polybus.protocols.csb.bodies import BASE64_FORMAT, FORM_FORMAT
from polybus.protocols.uprotocol.http import from_http
from polybus.protocols.uprotocol.proto_event import cloud_event_classes
from polybus.testing import NatsEngine, World, cluster, simulated
from tests.contract.hostile_bodies import ENDING, JSON_VALUES, NO_JSON
from tests.doubles.numbered import Numbered

NEWS, ADMIN = "door.news", "admin.news"
UPDATE, RESET = "door.update", "admin.reset"


@frozen
class Wire:
    """A protocol, and the formats of bodies that a hostile sender claims."""

    make: Callable[[], Any]
    formats: tuple[BodyFormat | None, ...] = (JSON,)
    """None: the first of the codec."""


WIRES: Mapping[str, Wire] = {
    "ubre": Wire(Ubre),
    "ubre binary": Wire(lambda: Ubre(format="binary")),
    "csb": Wire(Csb, (JSON, TEXT, FORM_FORMAT, BASE64_FORMAT)),
    "jrep": Wire(Jrep, (None,)),
    "jrep plain": Wire(lambda: Jrep(values="plain")),
    "nats": Wire(Nats),
    "uprotocol": Wire(UProtocol, (ANY,)),
    "uprotocol protobuf": Wire(lambda: UProtocol(format="protobuf"), (ANY,)),
    "up": Wire(lambda: Up(names=NAMES), (JSON, TEXT, ANY)),
}
SENDERS: Mapping[str, Wire] = {**WIRES, "a plugin": Wire(Numbered)}
"""The last reads no body before it calls it JSON."""
ASKED = {name: f"ask.{number}" for number, name in enumerate(WIRES)}
"""By the wire behind the bridge: the subject that leads there."""
NAMES: Mapping[str, tuple[int, int]] = {
    name: (number, 0x8000 + number) for number, name in enumerate(("news", NEWS, ADMIN, UPDATE, RESET, *ASKED.values()), 1)
}
FRAMED = ("ubre", "jrep", "jrep plain")
"""Wires whose frames are JSON as a whole: what a hostile sender writes there may be another message, which is its right."""
RELAYED = tuple(name for name in WIRES if name != "nats")
"""Of NATS the network itself is the relay."""
TUNNELS = tuple(name for name in WIRES if name not in ("nats", "up"))
PATIENT = Limits(bad_messages=10**6)
FRAMES = (*ENDING[::4], b'{"a":1e400}', b"[1e400]", b'["\\ud800"]', b'{"a":1}', b"[" * 125 + b"]" * 125)
_places = itertools.count()
BODIES = (*JSON_VALUES, *ENDING, *NO_JSON[::5])


async def joined(stack: AsyncExitStack, name: str, server: Bus, connects: Bus | None = None) -> Bus:
    """Join a client to a server over a wire; both are clients of an engine where that is how the wire works."""
    adapter = SENDERS[name].make()
    if name == "nats":
        engine = await stack.enter_async_context(NatsEngine())
        await stack.enter_async_context(server.connect(engine.url, protocol=adapter))
        return await stack.enter_async_context(connect(engine.url, protocol=adapter, bus=connects))
    listener = await stack.enter_async_context(server.serve(f"{adapter.name}+memory://{next(_places)}", protocol=adapter))
    return await stack.enter_async_context(connect(listener.url.partition("?")[0], protocol=adapter, bus=connects))


def format_of(client: Bus, given: BodyFormat | None) -> BodyFormat:
    (peer,) = client.peers
    chosen: BodyFormat = core_of(peer).link.adapter.codec(Limits()).formats[0] if given is None else given
    return chosen


def claimed(client: Bus, kind: Kind, subject: str, body: bytes, body_format: BodyFormat | None) -> Message:
    """A message whose body is said to have been checked."""
    return Message(kind, subject, None, body, format_of(client, body_format), checked=body)


def publish(client: Bus, subject: str, body: bytes, body_format: BodyFormat | None) -> None:
    (peer,) = client.peers
    core_of(peer).link.publish(claimed(client, Kind.PUBLISH, subject, body, body_format), core_of(peer), math.inf)


def asked(client: Bus, subject: str, body: bytes, body_format: BodyFormat | None) -> Awaitable[Any]:
    (peer,) = client.peers
    reply: Awaitable[Any] = core_of(peer).pass_on(claimed(client, Kind.REQUEST, subject, body, body_format), 5)
    return reply


async def outcome(reply: Awaitable[Any]) -> Any:
    """What an asker is told: a value, or the code of an error."""
    try:
        return await reply
    except RequestError as error:
        return error.code
    except BusError as error:
        return type(error)


class Heard:
    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.messages: list[tuple[str, Any]] = []
        for subject in (NEWS, ADMIN):
            bus.on(subject)(self._hearing(subject))
        for subject in (UPDATE, RESET):
            bus.handle(subject)(self._hearing(subject))

    def _hearing(self, subject: str) -> Any:
        async def hear(body: Any) -> str:
            self.messages.append((subject, body))
            return "done"

        return hear

    @property
    def subjects(self) -> set[str]:
        return {subject for subject, _ in self.messages}


def counted(gateway: Bus) -> list[Any]:
    """What comes to a gateway as "news" and can be read."""
    came: list[Any] = []

    @gateway.on("news")
    async def count(message: Message) -> None:
        with suppress(BadRequest):
            came.append(comparable(message.body))

    return came


def comparable(body: Any) -> Any:
    """A value in the form that all wires have in common: bytes are base64 where a wire has no place for them."""
    if isinstance(body, bytes):
        return base64.b64encode(body).decode()
    return body


def well(bus: Bus) -> bool:
    """True if it has received no malformed message and lost no link."""
    return bus.stats().malformed == bus.stats().reconnects == 0


def is_part_of(some: list[Any], all_: list[Any]) -> bool:
    """True if nothing was added, altered or brought into another order."""
    left = iter(all_)
    return all(any(one == other for other in left) for one in some)


@simulated()
async def test_what_is_published_or_asked_comes_out_of_a_bridge_as_it_was_routed_or_not_at_all(world: World) -> None:
    gateway, targets, bridged, clients = Bus(limits=PATIENT), dict[str, Heard](), dict[str, Bus](), dict[str, Bus]()
    came = counted(gateway)
    async with AsyncExitStack() as stack:
        for name in WIRES:
            targets[name] = Heard(Bus())
            bridged[name] = await joined(stack, name, targets[name].bus)
            routes = [Route("news", NEWS, {"publish"}), Route(ASKED[name], UPDATE, {"request"})]
            await stack.enter_async_context(bridge(gateway, bridged[name], routes=routes))
        for name in SENDERS:
            clients[name] = await joined(stack, name, gateway)
        await anyio.sleep(1)
        for name, client in clients.items():
            for body_format in SENDERS[name].formats:
                checked = body_format is JSON and name not in (*FRAMED, "nats")  # which takes the rest for bytes
                before = len(came)
                for body in BODIES:
                    publish(client, "news", body, body_format)
                await anyio.sleep(1)
                assert not checked or len(came) - before == len(JSON_VALUES), name
                for far in WIRES:
                    replies = [asked(client, ASKED[far], body, body_format) for body in ENDING]
                    outcomes = [await outcome(reply) for reply in replies]
                    assert not checked or outcomes == [Code.INVALID_ARGUMENT] * len(ENDING), (name, far)
                    assert await client.request(ASKED[far], "fine", timeout=5) == "done", (name, far)
            await client.publish("news", name)
            await anyio.sleep(1)
            assert came[-1] == name, "who sends such things may be told off, but is heard"
        for name, target in targets.items():
            assert target.subjects == {NEWS, UPDATE}, name
            heard = [comparable(body) for subject, body in target.messages if subject == NEWS]
            assert is_part_of(heard, came), name
            assert len(heard) > 0.9 * len(came), name  # what one wire cannot carry is left out
            assert well(target.bus) and well(bridged[name]), name


@simulated()
async def test_an_answer_comes_out_of_a_bridge_as_one_or_is_an_error(world: World) -> None:
    gateway, services, clients = Bus(limits=PATIENT), dict[str, Bus](), dict[str, Bus]()
    said: list[tuple[bytes, BodyFormat]] = []
    async with AsyncExitStack() as stack:
        for name in WIRES:
            service = Bus(limits=PATIENT)

            @service.handle(UPDATE)
            async def answer(ctx: Context) -> None:
                assert ctx.peer is not None
                body, chosen = said[-1]
                given = Message(Kind.RESPONSE, ctx.message.subject, ctx.message.id, body, chosen, checked=body)
                given.reply_to = ctx.message.reply_to
                core_of(ctx.peer).link.answer(given, core_of(ctx.peer))

            services[name] = await joined(stack, name, service, connects=Bus(limits=PATIENT))
            await stack.enter_async_context(bridge(gateway, services[name], routes=[Route(ASKED[name], UPDATE, {"request"})]))
            clients[name] = await joined(stack, name, gateway)
        await anyio.sleep(1)
        for far, service in services.items():
            for body_format in WIRES[far].formats:
                chosen = format_of(service, body_format)
                for name, client in clients.items():
                    for body in ENDING[::3]:
                        said.append((body, chosen))
                        await outcome(client.request(ASKED[far], 1, timeout=5))
                    assert well(client), (far, name)


@simulated()
async def test_a_relay_delivers_under_the_subject_that_was_allowed_or_not_at_all(world: World) -> None:
    delivered: set[Any] = set()

    def authorize(peer: Peer, verb: str, subject: Any) -> bool:
        if verb == "deliver":
            delivered.add(subject)
        return verb != "deliver" or subject == NEWS

    server, heard, clients = Bus(authorize=authorize, limits=PATIENT), dict[str, Heard](), dict[str, Bus]()
    server.relay(NEWS)
    async with AsyncExitStack() as stack:
        for name in RELAYED:
            heard[name] = Heard(Bus())
            await joined(stack, name, server, connects=heard[name].bus)
        for name in (*RELAYED, "a plugin"):
            clients[name] = await joined(stack, name, server)
        await anyio.sleep(1)
        for name, client in clients.items():
            for body_format in SENDERS[name].formats:
                for body in BODIES:
                    publish(client, NEWS, body, body_format)
                await anyio.sleep(1)
        assert delivered == {NEWS}
        for name, one in heard.items():
            assert one.subjects == {NEWS} and len(one.messages) > len(JSON_VALUES), name
            assert well(one.bus), name


@simulated()
async def test_the_nodes_and_the_store_of_a_cluster_get_what_was_routed_there(world: World) -> None:
    kept, heard, clients = list[Any](), list[Any](), dict[str, Bus]()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(NatsEngine())
        shop = Cluster(engine.url, name="shop", stores=[Store("door", "door.>")])
        gateway, node, other = Bus(limits=PATIENT), Bus(cluster=shop), Bus(cluster=shop)
        came = counted(gateway)

        @other.on("door.>", durable="clerk")
        async def keep(message: Message) -> None:
            kept.append((message.subject, comparable(message.body)))

        @other.on(">")
        async def hear(message: Message) -> None:
            heard.append((message.subject, comparable(message.body)))

        await stack.enter_async_context(cluster(node, other, url=engine.url))
        await stack.enter_async_context(bridge(gateway, node, routes=[Route("news", NEWS, {"publish"})]))
        for name in SENDERS:
            clients[name] = await joined(stack, name, gateway)
        await anyio.sleep(1)
        for name, client in clients.items():
            for body_format in SENDERS[name].formats:
                for body in BODIES:
                    publish(client, "news", body, body_format)
                await anyio.sleep(1)
        await anyio.sleep(10)
        for told in (heard, kept):
            assert {subject for subject, _ in told} == {NEWS}
            assert is_part_of([body for _, body in told], came) and len(told) > 0.9 * len(came)
        assert well(node) and well(other)


@simulated()
async def test_a_tunnel_hands_over_the_frames_that_were_sent_and_costs_no_outer_connection(world: World) -> None:
    inner = Bus(limits=PATIENT)
    inner.handle("hello", inline=True)(lambda body: body)
    gateway, bridged, outers, tunnels = Bus(limits=PATIENT), dict[str, Bus](), dict[str, Bus](), dict[tuple[str, str], Bus]()
    async with AsyncExitStack() as stack:
        for number, name in enumerate(TUNNELS):
            front = Bus()
            front.handle_tunnels("site.{id}", inner, protocol="ubre")
            bridged[name] = await joined(stack, name, front)
            route = Route(f"by{number}.{{id}}", "site.{id}", {"tunnel"})
            await stack.enter_async_context(bridge(gateway, bridged[name], routes=[route]))
            outers[name] = await joined(stack, name, gateway)
        for name, outer in outers.items():
            for number, far in enumerate(TUNNELS):
                tunnels[name, far] = await stack.enter_async_context(connect(outer.tunnel(f"by{number}.7"), protocol="ubre"))
        for (name, far), client in tunnels.items():
            (peer,) = client.peers
            assert core_of(peer).link.transport is not None
            before = inner.stats().malformed
            for body in FRAMES:
                core_of(peer).link.transport.send(body)
                await anyio.sleep(0.01)
            assert inner.stats().malformed - before == len(FRAMES), (name, far)
            assert await client.request("hello", name, timeout=5) == name, (name, far)
        for name in TUNNELS:
            assert well(bridged[name]) and well(outers[name]), name
        assert gateway.stats().malformed == 0


# -- the codecs alone ------------------------------------------------------------------------------------------------------

CODECS: Mapping[str, Any] = {
    **{name: wire.make().codec(Limits()) for name, wire in WIRES.items() if not name.startswith("uprotocol")},
    "ubre, document": Ubre(dialect="spec").codec(Limits()),
    "ubre binary, document": Ubre(format="binary", dialect="spec").codec(Limits()),
    "uprotocol": UProtocol(entity="//v/b/1").codec(Limits()),
    "uprotocol protobuf": UProtocol(entity="//v/b/1", format="protobuf").codec(Limits()),
}
_EVENT = "018e5c10-f548-8001-9ad1-7b068c083824"
_UUID = "018bcfe5-687b-7000-8010-101010101a1a"
_IDS = {"nats": "_INBOX.x.1", "csb": 0xFFFF0005 << 16 | 7, "up": _UUID, "uprotocol": _EVENT}
_ASKS = {Kind.REQUEST: ("source", "sink"), Kind.RESPONSE: ("sink", "source"), Kind.ERROR: ("sink", "source")}


def envelope(wire: str, kind: Kind) -> dict[str, Any]:
    """What the wires with addresses want of a message beside its body."""
    if wire == "up":
        asker, asked, topic, id = "//car/10AB/3/0", "//v/10AB/3/B", "//car/10AB/3/8001", _UUID
    elif wire.startswith("uprotocol"):
        asker, asked, topic, id = "//v/b/1/rpc.response", "//w/c/1/rpc.door", "//v/b/1/door#Door", _EVENT
    else:
        return {}
    if kind is Kind.PUBLISH:
        return {"id": id, "source": topic, "priority": "CS4"}
    from_, to = _ASKS[kind]
    return {"id": id, "priority": "CS4", "ttl": 1000, from_: asker, to: asked} | ({} if kind is Kind.REQUEST else {"reqid": id})


def written(wire: str, kind: Kind, subject: str = "door", **more: Any) -> Message:
    """A message with all that the wire wants of one."""
    id = _IDS.get(wire.partition(" ")[0].rstrip(","), "1") if kind is not Kind.PUBLISH else None
    return Message(kind, subject, id, attributes=envelope(wire, kind) | more.pop("attributes", {}), **more)


def read(wire: str, frame: bytes) -> list[Message]:
    """What a reader makes of a frame; errors are left out."""
    try:
        return [found for found in CODECS[wire].decode(frame) if isinstance(found, Message)]
    except RemoteProtocolError:
        return []


def test_what_is_no_json_does_not_become_a_frame_of_another_wire() -> None:
    crossed = 0
    for near, codec in CODECS.items():
        for body_format in WIRES[near.partition(",")[0]].formats:
            chosen = codec.formats[0] if body_format is None else body_format
            for body in (*JSON_VALUES, *NO_JSON):
                frame = codec.encode([written(near, Kind.PUBLISH, raw=body, format=chosen, checked=body)])
                for found in read(near, frame):
                    if found.format is JSON and found.raw is not None:
                        read_body(found.raw, JSON)
                    if near not in FRAMED and not near.startswith("ubre,"):
                        assert body_format is not JSON or body in JSON_VALUES or (near == "nats" and found.format is OCTETS)
                    crossed += sum(crosses(far, found) for far in CODECS)
    assert crossed > 10_000


def test_data_that_an_event_calls_json_are_one_value_in_every_form_of_an_event() -> None:
    facts: dict[str, Any] = {"id": _EVENT, "source": "//v/b/1/door#Door", "type": "pub.v1"}
    of_data = {"datacontenttype": "application/json", "dataschema": "urn:door"}
    headers = {f"ce-{name}": text for name, text in (facts | {"specversion": "1.0", "dataschema": "urn:door"}).items()}
    read_whole = 0
    for body in (*JSON_VALUES, *NO_JSON):
        event = cloud_event_classes()[0](spec_version="1.0", **facts, binary_data=body)
        for name, text in of_data.items():
            event.attributes[name].ce_string = text
        head = msgspec.json.encode({"specversion": "1.0", **facts, **of_data})[:-1]
        frames = (
            ("uprotocol", b'%b,"data":%b}' % (head, body)),
            ("uprotocol", b'%b,"data_base64":"%b"}' % (head, base64.b64encode(body))),
            ("uprotocol protobuf", event.SerializeToString()),
        )
        found = [read(wire, frame) for wire, frame in frames]
        with suppress(RemoteProtocolError):
            events = from_http(headers | {"content-type": "application/json"}, body)
            found.append([one for one in events if isinstance(one, Message)])
        for message in itertools.chain.from_iterable(found[1:]):
            assert body in JSON_VALUES or not body, body
            assert (message.raw or b"") == body
            read_whole += 1
        for message in itertools.chain.from_iterable(found):
            if message.raw is not None:
                read_body(message.raw, JSON)
            assert all(crosses(far, message) or message.body is None or type(message.body) is int for far in CODECS), body
    assert read_whole >= 3 * len(JSON_VALUES)


def crosses(far: str, found: Message) -> bool:
    """True if a message becomes a frame of another wire: then that says what was in the message, and nothing else."""
    on = written(far, Kind.PUBLISH, raw=found.raw, format=found.format, checked=found.checked)
    if found.raw is None and found.has_body:
        on.decoded = found.body
    try:
        frame = CODECS[far].encode([on])
    except BusError:
        return False
    (there,) = CODECS[far].decode(frame)
    assert isinstance(there, Message)
    assert there.subject == envelope(far, Kind.PUBLISH).get("source", "door")
    assert comparable(there.body) == comparable(found.body)
    return True


def test_no_writer_takes_bytes_for_a_body_that_are_none() -> None:
    for wire, codec in CODECS.items():
        if wire == "up":
            continue  # whose codec writes what it is given, with its length: tests/unit/protocols/up/test_session.py
        for body in NO_JSON:
            for kind in (Kind.PUBLISH, Kind.REQUEST, Kind.RESPONSE):
                with pytest.raises((EncodeError, BadRequest)):
                    codec.encode([written(wire, kind, raw=body)])
            with suppress(EncodeError):  # a wire of another format writes the value, if there is one
                (found,) = codec.decode(codec.encode([written(wire, Kind.PUBLISH, raw=body, body=7)]))
                assert found.body == 7
        for body in JSON_VALUES:
            with suppress(EncodeError):  # a number that protocol buffers do not hold
                (found,) = codec.decode(codec.encode([written(wire, Kind.PUBLISH, raw=body)]))
                assert comparable(found.body) == msgspec.json.decode(body)


TEXTS = (
    *("a\r\nb", "a\nPUB admin 0\r\n\r\n", "a\0b", "a\0\0b", 'a","request":"admin', 'a"},{"ToSubject":"admin', '"', "\\"),
    *("'", "a b", "a\tb", " a", "a ", "\x7f", "\x1b[2J", "\u2028", "\x85", "\ufeffx", "\ud800", "\ufffe", "\U0010ffff", "é"),
    *("日本", "\\u0022", "%0d%0a", "a&b=c", "a;b", "a,b", "{", "}", "[", "]", ":", "a: b\r\nc: d", "NATS/1.0 503", "503", "*"),
    *("", "x" * 5000, "x" * 70000),
)


def test_a_text_in_a_message_stands_in_its_own_place_in_a_frame_or_is_refused() -> None:
    stood = 0
    for wire in CODECS:
        for text in TEXTS:
            places: list[tuple[Kind, dict[str, Any]]] = [
                (kind, {"raw": b"1", "checked": b"1", "headers": headers})
                for kind in (Kind.PUBLISH, Kind.REQUEST)
                for headers in ({"x": text}, {text: "x"}, {"traceparent": text})
            ]
            if not envelope(wire, Kind.PUBLISH):
                places += [(kind, {"subject": text}) for kind in (Kind.PUBLISH, Kind.REQUEST)]
            if text != "\ud800":  # of which the bus makes a question mark
                of_error = {"text": "t", "reason": None, "detail": None}
                places += [(Kind.ERROR, {"code": Code.NOT_FOUND, "attributes": of_error | {part: text}}) for part in of_error]
            for kind, given in places:
                stood += stands(wire, written(wire, kind, **given))
    assert stood > 3_000


def stands(wire: str, message: Message) -> bool:
    """True if a message becomes a frame: then all that it says is read there, and nothing else."""
    try:
        frame = CODECS[wire].encode([message])
    except BusError:
        return False
    (found,) = CODECS[wire].decode(frame)
    assert isinstance(found, Message), (wire, message, message.headers, found)
    assert found.kind is message.kind, (wire, message)
    if not envelope(wire, message.kind) and message.kind is not Kind.ERROR:
        assert found.subject == message.subject, wire
    assert found.headers == (None if wire == "up" else message.headers), (wire, message.headers)
    for part in ("text", "reason"):
        assert not (said := message.attributes.get(part)) or found.attributes.get(part) == said, (wire, part)
    return True
