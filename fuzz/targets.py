"""The targets: for each protocol its decoders and sessions, and frames to begin with.

A target takes any bytes. Whatever they are, a codec gives messages or `RemoteProtocolError`, a body is a value or `BadRequest`,
what was read can be written again or is refused with an error of ours, a session never raises, and what it answers can be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from polybus.errors import BadRequest, BusError, RemoteProtocolError
from polybus.message import Message
from polybus.protocols import Csb, Jrep, Ubre, UProtocol

__all__ = ["TARGETS", "Target"]

VECTORS = Path(__file__).parent.parent / "tests" / "vectors"
_ROLES: tuple[Literal["client", "server"], ...] = ("client", "server")
_CONNECTED = bytes.fromhex("00000007 d000000000000000")


@frozen
class Target:
    """What is fuzzed of one protocol.

    Attributes:
        adapters: Its variants; each sees every input.
        seeds: Frames to begin with.
        before: What a session has heard before.
    """

    adapters: tuple[Any, ...]
    seeds: Callable[[], list[bytes]]
    before: tuple[bytes, ...] = ()

    def __call__(self, data: bytes) -> None:
        """Try one input.

        Raises:
            Exception: The target is at fault.
        """
        for adapter in self.adapters:
            _decoder(adapter, data)
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


def _session(adapter: Any, role: Literal["client", "server"], given: tuple[bytes, ...]) -> None:
    session = adapter.session(role)
    session.start(0.0)
    for frame in given:
        session.receive(frame, 1.0)
    session.events()
    session.tick(100.0)
    for frame in session.frames_to_send():
        session.codec.decode(frame)
    session.connection_lost("the end")


def _bad_inputs(*protocols: str) -> list[bytes]:
    cases: list[dict[str, Any]] = json.loads((VECTORS / "bad_inputs.json").read_bytes())["cases"]
    found: list[bytes] = []
    for case in cases:
        kind, value = case["input"]["kind"], case["input"].get("value")
        if case["protocol"] not in protocols or kind not in ("hex", "text"):
            continue
        found.append(bytes.fromhex(value) if kind == "hex" else value.encode("utf-8", "surrogatepass"))
    return found


def _vectors(name: str, *members: str) -> list[bytes]:
    given: list[dict[str, Any]] = json.loads((VECTORS / f"{name}_vectors.json").read_bytes())["vectors"]
    found: list[bytes] = []
    for case in given:
        for member in members:
            value = case.get(member)
            if isinstance(value, dict):
                value = json.dumps(value)
            if isinstance(value, str):
                found.append(value.encode("utf-8", "surrogatepass"))
    return found


def _csb() -> list[bytes]:
    direct = _bad_inputs("csb", "any") + [
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
    return _bad_inputs("ubre", "ubre-binary", "any") + [
        b'{"request":"user.get","id":"a-1","body":{"id":7},"ttl":30000}',
        b'{"success":"a-1","body":[1,2.5,null]}',
        b'{"publish":"news","body":"x","headers":{"a":"b"}}',
        *(
            Ubre(format="binary").codec().encode([message])
            for message in Ubre().codec().decode(b'{"request":"user.get","id":"a-1","body":{"id":7}}')
            if isinstance(message, Message)
        ),
    ]


def _uprotocol() -> list[bytes]:
    seeds = _bad_inputs("uprotocol", "any") + _vectors("uprotocol", "input")
    codec, binary = UProtocol(mode="lenient").codec(), UProtocol(format="protobuf", mode="lenient").codec()
    for seed in list(seeds):
        try:
            seeds += [binary.encode([message]) for message in codec.decode(seed) if isinstance(message, Message)]
        except BusError:
            continue
    return seeds


TARGETS: Mapping[str, Target] = {
    "ubre": Target((Ubre(format="any"), Ubre(format="binary", body="raw"), Ubre(dialect="spec")), _ubre),
    "csb": Target((Csb(), Csb(side="broker-server")), _csb, (_CONNECTED,)),
    "jrep": Target(
        (Jrep(), Jrep(dialect="legacy"), Jrep(values="plain")),
        lambda: _bad_inputs("jrep", "any") + _vectors("jrep", "payload"),
    ),
    "uprotocol": Target((UProtocol(), UProtocol(mode="lenient"), UProtocol(format="protobuf", mode="lenient")), _uprotocol),
}
"""By the protocol's name."""
