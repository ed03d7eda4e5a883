"""Targets: decoders and sessions of each protocol, with initial frames.

A target takes any bytes. A codec must return messages or raise `RemoteProtocolError`; a body is a value or `BadRequest`;
decoded messages can be encoded again or are refused with one of our errors; a session never raises, and its answers can be
read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from fuzz.cluster import ClusterTarget
from fuzz.twins import TwinsTarget
from polybus.errors import BadRequest, BusError, Code, RemoteProtocolError
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.protocols import Csb, Jrep, Nats, Ubre, Up, UProtocol
from tests.doubles.driven import Driven
from tests.unit.protocols.uprotocol import support as events
from tests.vectors import bad_inputs
from tests.vectors import up_vectors as vectors

__all__ = ["TARGETS", "Target"]

VECTORS = Path(__file__).parent.parent / "tests" / "vectors"
_ROLES: tuple[Literal["client", "server"], ...] = ("client", "server")
_LET_IN = b'INFO {"server_id":"fuzz","headers":true,"max_payload":1048576}\r\n', b"PONG\r\n"
_CONNECTED = bytes.fromhex("00000007 d000000000000000")


@frozen
class Target:
    """Target for one protocol.

    Attributes:
        adapters: Its variants; each gets every input.
        seeds: Initial frames.
        before: Earlier input of a session.
    """

    adapters: tuple[Any, ...]
    seeds: Callable[[], list[bytes]]
    before: tuple[bytes, ...] = ()

    def __call__(self, data: bytes) -> None:
        """Try one input.

        Raises:
            Exception: The target has a fault.
        """
        for adapter in self.adapters:
            _decoder(adapter, data)
            _framing(adapter, data)
            for role in _ROLES:
                _session(adapter, role, (*self.before, data))


def _decoder(adapter: Any, data: bytes) -> None:
    codec = adapter.codec()
    if hasattr(adapter, "dissect"):
        for part in adapter.dissect(data):
            assert 0 <= part.offset <= part.offset + part.length <= len(data), part
    try:
        messages = codec.decode(data)
    except RemoteProtocolError:
        return
    for message in messages:
        if isinstance(message, Message):
            try:
                _ = message.body
            except BadRequest:
                continue
            try:
                codec.encode([message])
            except BusError:
                pass
        else:
            assert isinstance(message, RemoteProtocolError), message


def _framing(adapter: Any, data: bytes) -> None:
    """Any split of a stream yields the same frames, and nothing is kept beyond the limit."""
    framing = getattr(adapter, "framing", None)
    if framing is None:
        return
    whole, parts = framing.cutter(Limits(), "tcp"), framing.cutter(Limits(), "tcp")
    frames = list(whole.feed(data))
    size = len(data) // 3 + 1
    slices = [frame for start in range(0, len(data), size) for frame in parts.feed(data[start : start + size])]
    assert frames == slices, (frames, slices)
    assert (whole.broken is None) == (parts.broken is None)
    assert whole.arrived <= len(data)
    try:
        framing.plain_preface(data)
    except RemoteProtocolError:
        return


def _session(adapter: Any, role: Literal["client", "server"], given: tuple[bytes, ...]) -> None:
    session = Driven(adapter.session(role))
    session.start(0.0)
    for frame in given:
        session.receive(frame, 1.0)
    session.tick(100.0)
    for frame in session.frames_to_send():
        session.codec.decode(frame)
    session.connection_lost("the end")


def _bad_inputs(*tables: Mapping[str, bad_inputs.Bad]) -> list[bytes]:
    """Messages of a size that a fuzzer can grow."""
    found = [message for table in tables for bad in table.values() for message in bad.sent if len(message) < 1000]
    return found + [bad.sent for table in (bad_inputs.LENGTHS, bad_inputs.HANDSHAKES) for bad in table.values()]


def _jrep() -> list[bytes]:
    recorded: dict[str, str] = json.loads((VECTORS / "jrep_vectors.json").read_bytes())
    return _bad_inputs(bad_inputs.JREP) + [text.encode() for text in recorded.values()]


def _csb() -> list[bytes]:
    direct = _bad_inputs(bad_inputs.CSB) + [
        bytes.fromhex(text)
        for text in (
            "12000001000100017b7d",
            "130000010001000161 3d 31 26 61 3d 32",
            "1400000100010001 614763 3d",
            "22c90001000100017b22636f6465223a31327d",
            "12000001ffff0004 0001 61 5b5d",
            "12000001ffff0005 0001 0000 00000bb8 61 31",
            "12000001ffff0007 0001 0017 ffffffff 61 7b226d6f6465223a2273747265616d222c226e223a39 7d",
            "10000001ffff0008 00000007",
            "12000001ffff0009 31",
            "20000001ffff000a 00000009",
            "22d00001ffff000b 7b22636f6465223a317d",
            "10000001ffff000c ffff0004 00007530",
        )
    ]
    return direct + [_CONNECTED[:4] + frame for frame in direct]


def _ubre() -> list[bytes]:
    return _bad_inputs(bad_inputs.UBRE, bad_inputs.UBRE_BINARY) + [
        b'{"request":"user.get","id":"a-1","body":{"id":7},"ttl":30000}',
        b'{"success":"a-1","body":[1,2.5,null]}',
        b'{"publish":"news","body":"x","headers":{"a":"b"}}',
        *(
            Ubre(format="binary").codec().encode([message])
            for message in Ubre().codec().decode(b'{"request":"user.get","id":"a-1","body":{"id":7}}')
            if isinstance(message, Message)
        ),
    ]


def _ubre_json() -> list[bytes]:
    return [seed for seed in _ubre() if seed[:1] == b"{"] + [
        b'{"request":"user.get","id":"a-1","body":{"a":[1,2.5,null,"x"]}}',
        b'{"request":"","id":"7","ttl":0}',
        b'{"success":"a-1","body":"\\n"x""}',
        b'{"publish":"news","body":{"at":"2026-11-29T10:00:00+01:00","secret":"**********"}}',
        b'{"publish":"n","body":[[[[1]]],{"a":{"b":{}}}]}',
    ]


def _nats() -> list[bytes]:
    return _bad_inputs() + [
        *_LET_IN,
        b"PING\r\n",
        b"+OK\r\n",
        b"-ERR 'Authorization Violation'\r\n",
        b"-ERR 'Permissions Violation for Publish to \"a.b\"'\r\n",
        b'-ERR \'Permissions Violation for Subscription to "a.b" using queue "q"\'\r\n',
        b"MSG news.today 2 5\r\nhello\r\n",
        b'MSG user.get 2 _INBOX.x.1 8\r\n{"id":7}\r\n',
        b"HMSG _INBOX.x.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        b"HMSG a 2 r 37 41\r\nNATS/1.0\r\nPolybus-Ttl: 300\r\nA: b\r\n\r\nnull\r\n",
        b"HMSG a 1 61 61\r\nNATS/1.0\r\nNats-Service-Error: no\r\nNats-Service-Error-Code: 5\r\n\r\n\r\n",
        b"PUB a.b r.c 2\r\n[]\r\n",
        b"HPUB a.b 20 22\r\nNATS/1.0\r\nA: \xc3\xbc\r\n\r\n[]\r\n",
        b"SUB a.* q 7\r\n",
        b"UNSUB 7 3\r\n",
        b'CONNECT {"verbose":false,"user":"ann","pass":"secret"}\r\n',
        b"PUB a 3\r\nabc\r\nPING\r\nPUB b 0\r\n\r\n",
    ]


def _up() -> list[bytes]:
    codec = Up().codec()
    written = []
    for frame in (vectors.PUBLICATION, vectors.REQUEST):
        (message,) = codec.decode(frame)
        assert isinstance(message, Message)
        said = message.attributes | {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        written += [
            codec.encode([Message(message.kind, ttl=1.0, body=body, attributes=dict(said))]) for body in (None, b"", "x")
        ]
    answer = {"id": vectors.ID.format(3), "source": "//a/1/1/7", "sink": "//b/1/1/0", "priority": "CS4"}
    for kind, code in ((Kind.RESPONSE, None), (Kind.ERROR, Code.NOT_FOUND)):
        written.append(codec.encode([Message(kind, id=vectors.ID.format(1), code=code, body=[], attributes=dict(answer))]))
    return [vectors.PUBLICATION, vectors.REQUEST, vectors.REQUEST[:60], bytes.fromhex("0a0220ff"), *written]


def _uprotocol() -> list[bytes]:
    seeds = _bad_inputs(bad_inputs.UPROTOCOL) + [
        json.dumps(event).encode() for table in (events.GOOD, events.BAD) for event in table.values()
    ]
    codec, binary = UProtocol(mode="lenient").codec(), UProtocol(format="protobuf", mode="lenient").codec()
    for seed in list(seeds):
        try:
            seeds += [binary.encode([message]) for message in codec.decode(seed) if isinstance(message, Message)]
        except BusError:
            continue
    return seeds


TARGETS: Mapping[str, Target | ClusterTarget | TwinsTarget] = {
    "ubre": Target((Ubre(format="any"), Ubre(format="binary", body="raw"), Ubre(dialect="spec")), _ubre),
    "ubre-twins": TwinsTarget(_ubre_json),
    "csb": Target((Csb(), Csb(side="broker-server")), _csb, (_CONNECTED,)),
    "jrep": Target(
        (Jrep(), Jrep(dialect="legacy"), Jrep(values="plain")),
        _jrep,
        (b'[{"ToSubject":"ServerBus","CommandType":"Associate","RemoteServices":"ClientBus,ClientBusErrors"}]',),
    ),
    "nats": Target((Nats(), Nats(tls_first=True)), _nats, _LET_IN),
    "nats-cluster": ClusterTarget(_LET_IN),
    "up": Target((Up(), Up(entity="//device2/CD/4", names={"UpdateDoor": 0xB}, per_authority=1)), _up),
    "uprotocol": Target((UProtocol(), UProtocol(mode="lenient"), UProtocol(format="protobuf", mode="lenient")), _uprotocol),
}
"""By protocol and dialect."""
