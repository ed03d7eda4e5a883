"""Protocols as a hand-written peer speaks them, each with its table of bad inputs."""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from polybus import Message
from polybus.message import Kind
from polybus.plugins import ProtocolAdapter
from polybus.protocols import Csb, Jrep, Ubre, UProtocol
from polybus.protocols._protobuf import ANY
from tests.doubles.driven import Driven
from tests.vectors import bad_inputs
from tests.vectors.bad_inputs import Bad

MADE = 1_700_000_000_000
"""When the ids of the uProtocol table were made, in milliseconds."""


@frozen
class Wire:
    """A protocol, and how a peer by hand speaks it."""

    adapter: ProtocolAdapter
    good: bytes
    """A request for ``echo``."""
    answers: bytes
    """What only its answer has."""
    told: Callable[[list[bytes]], list[Any]]
    """The codes or texts of errors in answers."""
    greeting: tuple[bytes, ...] = ()


def ubre(at: int | None = None) -> Wire:
    def told(frames: list[bytes]) -> list[Any]:
        answers = [json.loads(frame) for frame in frames]
        return [answer["code"] for answer in answers if "code" in answer]

    return Wire(Ubre(), b'{"request":"echo","id":"good"}', b"good", told)


def ubre_binary(at: int | None = None) -> Wire:
    return Wire(Ubre(format="binary"), b"R" + struct.pack("!HI", 9, 1) + b"good\0echo" + b"7", b"good", lambda frames: [])


def csb(at: int | None = None) -> Wire:
    good = bytes.fromhex("12007777ffff00040004") + b"echo7"
    return Wire(Csb(), good, bytes.fromhex("7777"), lambda frames: [frame[1] for frame in frames if frame[1]])


def jrep(at: int | None = None) -> Wire:
    def told(frames: list[bytes]) -> list[Any]:
        messages = [message for frame in frames for message in json.loads(frame)]
        return [message["ErrorMessage"] for message in messages if "ErrorMessage" in message]

    greeting = b'[{"ToSubject":"ServerBus","CommandType":"Associate","RemoteServices":"ClientBus,ClientBusErrors"}]'
    good = b'[{"ToSubject":"echo","Value":"7","ReplyTo":"good:1:RespondTo:RPC","ErrorTo":"good:1:Errors:RPC"}]'
    return Wire(Jrep(), good, b"good", told, (greeting,))


def uprotocol(at: int | None = None, format: Any = "json") -> Wire:
    adapter = UProtocol(format=format) if at is None else UProtocol(format=format, clock=lambda: (MADE + at) * 1_000_000)
    session = Driven(adapter.session("client"))
    key = session.send(Message(Kind.REQUEST, "echo", None, None, ANY, None, 20.0), 0.0)
    [good] = session.frames_to_send()

    def told(frames: list[bytes]) -> list[Any]:
        answers = [answer for frame in frames for answer in adapter.codec().decode(frame) if isinstance(answer, Message)]
        return [answer.attributes["commstatus"] for answer in answers if "commstatus" in answer.attributes]

    return Wire(adapter, good, str(key).encode(), told)


def uprotocol_protobuf(at: int | None = None) -> Wire:
    return uprotocol(at, "protobuf")


TABLES: Mapping[Callable[[int | None], Wire], Mapping[str, Bad]] = {
    ubre: bad_inputs.UBRE,
    ubre_binary: bad_inputs.UBRE_BINARY,
    csb: bad_inputs.CSB,
    jrep: bad_inputs.JREP,
    uprotocol: bad_inputs.UPROTOCOL,
    uprotocol_protobuf: bad_inputs.UPROTOCOL_PROTOBUF,
}
"""By the function that makes its wire, of which uProtocol looks at the time: as of `Bad.at`, or now."""
