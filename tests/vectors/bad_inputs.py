"""Bad inputs by wire and name: the bytes, and their effects on the peer and the bus.

Other connections are never affected, and the next valid request is answered unless the connection ends.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from attrs import field, frozen

from polybus import Code


def _messages(sent: str | bytes | tuple[bytes, ...]) -> tuple[bytes, ...]:
    if isinstance(sent, str):
        return (sent.encode(),)
    return sent if isinstance(sent, tuple) else (sent,)


def _reasons(refused: str | tuple[str, ...]) -> tuple[str, ...]:
    return (refused,) if isinstance(refused, str) else refused


@frozen
class Bad:
    """Messages of a wire, and their effect."""

    sent: tuple[bytes, ...] = field(converter=_messages)
    """Each for a frame of its own."""
    refused: tuple[str, ...] = field(default=(), converter=_reasons)
    """The reasons that the bus counts, one for each refusal."""
    told: int | str | None = None
    """The code of the answer, or a phrase of its text; without one nothing is answered."""
    closed: int | None = None
    """The code with which the connection ends."""
    at: int = 500
    """For uProtocol: milliseconds between the making of its id and its arrival."""


@frozen
class BadBytes:
    """Bytes of a stream, and how the connection ends."""

    sent: bytes
    code: int | None = None
    """None where nothing ends; of a handshake, the status of its answer."""
    says: str = ""
    """A phrase of the reason that the server sees."""
    then: Literal["", "silence", "end"] = ""
    """What follows: the server says enough is enough, or the peer leaves."""


UBRE: Final[Mapping[str, Bad]] = {
    "truncated JSON": Bad('{"a":', "malformed"),
    "null": Bad("null", "malformed"),
    "true": Bad("true", "malformed"),
    "more than one verb": Bad('{"subscribe":"a","publish":"b","request":"c","id":9}', "ambiguous"),
    "a topic that is an object": Bad('{"subscribe":{"a":1}}', "invalid_subject"),
    "an id that is a list": Bad('{"success":[1],"body":"x"}', "invalid_id"),
    "an answer to an id never sent": Bad('{"success":7}', "unknown_id"),
    "two answers, neither of our form": Bad((b'{"fail":1}', b'{"success":1,"body":"a"}'), ("unknown_id", "unknown_id")),
    "a subject that nobody serves": Bad('{"request":"nosuch","id":1}', told=Code.UNIMPLEMENTED),
    "a magic name": Bad('{"request":"__proto__","id":1}', told=Code.UNIMPLEMENTED),
    "a request without an id": Bad('{"request":"m"}', told=Code.UNIMPLEMENTED),
    "an empty id": Bad('{"request":"m","id":""}', "invalid_id"),
    "a body that is too deep": Bad('{"publish":"t","body":' + '{"a":' * 200 + "1" + "}" * 201, "too_deep"),
    "100,000 brackets": Bad("[" * 100_000, "too_deep"),
    "NaN": Bad('{"publish":"t","body":NaN}', "malformed"),
    "an infinite number": Bad('{"publish":"t","body":1e999}', "malformed"),
    "an integer of 5,000 digits": Bad('{"request":"m","id":' + "9" * 5000 + "}", "malformed"),
    "half a surrogate pair": Bad('{"subscribe":"\\ud800"}', "malformed"),
    "a line of the log in a topic": Bad('{"subscribe":"ok\\r\\n2026-11-21 ERROR admin logged in"}', "invalid_subject"),
    "a byte order mark": Bad('\ufeff{"subscribe":"t"}', "malformed"),
    "data after the message": Bad('{"subscribe":"t"} {"subscribe":"u"}', "malformed"),
    "no UTF-8": Bad(b'{"subscribe":"\xff"}', "malformed"),
}

UBRE_BINARY: Final[Mapping[str, Bad]] = {
    "an empty message": Bad(b"", "short_frame"),  # on TCP an empty frame is a keep-alive
    "less than a header": Bad(b"P", "short_frame"),
    "6 of 7 bytes of a header": Bad(bytes.fromhex("500004000000"), "short_frame"),
    "a body of 4 GiB": Bad(bytes.fromhex("500001fffffffe74"), "too_large", closed=1009),
    # -1 is the rest of the frame: here `abc`, which is no JSON.
    "a body of length -1 that is no JSON": Bad(bytes.fromhex("500001ffffffff74616263"), "malformed"),
    "0x63, read as a failure": Bad(bytes.fromhex("630001000000013178"), "unknown_id"),
    "a topic that is no UTF-8": Bad(bytes.fromhex("53000200000000fffe"), "invalid_subject"),
    "a request with an empty name": Bad(bytes.fromhex("5200000000000178"), "invalid_id"),
}

# Result codes of CSB.
_NOT_FOUND, _ENCODING, _BAD_REQUEST, _TOO_LARGE = 0xC9, 0xCB, 0xCC, 0xD1

CSB: Final[Mapping[str, Bad]] = {
    "an empty message": Bad(b"", "short_frame"),
    "kind 0x4": Bad(bytes.fromhex("4200000100000001"), "bad_kind"),
    "kind 0xC": Bad(bytes.fromhex("c200000100000001"), "bad_kind"),
    "encoding 15": Bad(bytes.fromhex("1f0000010000000178"), "bad_encoding", told=_ENCODING),
    "bad JSON": Bad(bytes.fromhex("12000002000000017b2261223a"), "bad_encoding", told=_ENCODING),
    "a string that is no UTF-8": Bad(bytes.fromhex("1100000300000001fffe"), "bad_encoding", told=_ENCODING),
    "bad base64": Bad(bytes.fromhex("140000040000000161476b3d21212121"), "bad_encoding", told=_ENCODING),
    "100,000 form fields": Bad(
        bytes.fromhex("1300000500000001") + b"".join(b"a%d=1&" % number for number in range(100_000)),
        "too_large",
        told=_TOO_LARGE,
    ),
    "an action without a handler": Bad(bytes.fromhex("10000006ffffffff"), told=_NOT_FOUND),
    "a request with a result": Bad(bytes.fromhex("1007000700000001"), "bad_code", told=_BAD_REQUEST),
}

_SUBSCRIBE: Final = '[{"ToSubject":"ServerBus","CommandType":"RemoteSubscribe",%s}]'
_CAPABILITIES: Final = '[{"ToSubject":"ServerBus","CommandType":"CapabilitiesNotice"%s}]'

JREP: Final[Mapping[str, Bad]] = {
    "items that are no objects": Bad('[null,5,"x"]', ("not_array",) * 3),
    "no ToSubject": Bad('[{"Value":1}]', "missing_field"),
    "a subject that is a number": Bad('[{"ToSubject":5}]', "invalid_subject"),
    "a reserved name in a list": Bad(
        _SUBSCRIBE % '"SubjectsList":["ok","ClientBus"]', "reserved_subject", told="the whole RemoteSubscribe was ignored"
    ),
    "a blank before a reserved name": Bad(_SUBSCRIBE % '"Subject":" ServerBus"', "reserved_subject", told="reserved"),
    "a reserved name in small letters": Bad(_SUBSCRIBE % '"Subject":"serverbus"', "reserved_subject", told="reserved"),
    "a reserved name with a zero-width space": Bad(
        _SUBSCRIBE % '"Subject":"ServerBus\\u200b"', "reserved_subject", told="reserved"
    ),
    "a reserved name in full-width letters": Bad(
        _SUBSCRIBE % '"Subject":"\\uff33erverBus"', "reserved_subject", told="reserved"
    ),
    "both Subject and SubjectsList": Bad(
        _SUBSCRIBE % '"Subject":"a","SubjectsList":["b"]', "ambiguous", told="both Subject and SubjectsList"
    ),
    "a SubjectsList that is none": Bad(_SUBSCRIBE % '"SubjectsList":"a,b"', "invalid_part", told="SubjectsList must be a list"),
    "no CapabilitiesFlags": Bad(_CAPABILITIES % "", "missing_field", told="CapabilitiesFlags is required"),
    "CapabilitiesFlags of 5,000 bytes": Bad(
        _CAPABILITIES % (',"CapabilitiesFlags":"' + "x" * 5000 + '"'), "too_large", told="CapabilitiesFlags"
    ),
    "a subject that only others serve": Bad('[{"ToSubject":"ServiceC","Value":"x"}]'),
    "100,001 messages": Bad("[" + '{"ToSubject":"a"},' * 100_000 + '{"ToSubject":"a"}]', closed=1009),
    "1,025 messages": Bad("[" + '{"ToSubject":"a"},' * 1024 + '{"ToSubject":"a"}]'),
    "a priority that is not a number": Bad('[{"ToSubject":"a","PriorityProcessing":"high"}]', "invalid_part"),
    "a class to be made of a Throwable": Bad(
        '[{"ToSubject":"ClientBusErrors","ErrorMessage":"<script>","Throwable":'
        '{"__EncodedType":"java.lang.Runtime","cmd":"id"}}]'
    ),
    "a class to be made of a Value": Bad('[{"ToSubject":"x","Value":{"__EncodedType":"os.system","__ObjectID":"1"}}]'),
    "the end of another's subscription": Bad(
        '[{"ToSubject":"ServerBus","CommandType":"RemoteUnsubscribe","Subject":"svcOfOther"}]', "not_subscribed"
    ),
    "a value nested 2,000 deep": Bad('[{"ToSubject":"echo","Value":' + "[" * 2000 + "]" * 2000 + "}]", "too_deep"),
    "200,000 brackets": Bad("[" * 200_000, "too_deep"),
    "half a message": Bad('[{"ToSubject":', "malformed"),
    "no UTF-8": Bad(b'[{"ToSubject":"\xff"}]', "malformed"),
}
"""After the handshake."""


def _event(**members: Any) -> str:
    """A request of uProtocol in JSON; a member that is None is left out."""
    event = {
        "specversion": "1.0",
        "id": "018bcfe5-6800-7000-8000-000000000001",
        "source": "up://dev.example/app/1/rpc.response",
        "sink": "up://dev.example/body.access/1/rpc.UpdateDoor",
        "type": "req.v1",
        "priority": "CS4",
        "ttl": 1000,
    }
    return json.dumps({name: value for name, value in {**event, **members}.items() if value is not None})


def _answer(source: str, **members: Any) -> str:
    sink, asked = "up://dev.example/app/1/rpc.response", "018bcfe5-6800-7000-8000-000000000001"
    return _event(source=source, sink=sink, type="res.v1", reqid=asked, **members)


_INVALID, _EXPIRED, _NOBODY = Code.INVALID_ARGUMENT, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED

UPROTOCOL: Final[Mapping[str, Bad]] = {
    "no id": Bad(_event(id=None), "missing_field"),
    "specversion 0.3": Bad(_event(specversion="0.3"), "invalid_attribute", told=_INVALID),
    "no sink": Bad(_event(sink=None), "missing_field"),
    "no ttl": Bad(_event(ttl=None), "missing_field", told=_INVALID),
    "ttl -1": Bad(_event(ttl=-1), "invalid_attribute", told=_INVALID),
    "ttl 2^32": Bad(_event(ttl=2**32), "invalid_attribute", told=_INVALID),
    "ttl true": Bad(_event(ttl=True), "invalid_attribute", told=_INVALID),
    # No mistake of the peer's, so not refused as malformed: it reaches no handler, and its asker is told.
    "a request 1 ms after its end": Bad(_event(), told=_EXPIRED, at=1_001),
    "a request 1 ms before its end": Bad(_event(), told=_NOBODY, at=999),
    "an id of a time to come": Bad(_event(), "clock_skew", told=_EXPIRED, at=-40_000),
    "an id that is not a UUID": Bad(_event(id="not-a-uuid"), "invalid_attribute"),
    "an unknown priority": Bad(_event(priority="CS9"), "invalid_attribute", told=_INVALID),
    "another scheme": Bad(_event(source="http://dev.example/app"), "invalid_uri"),
    "a path that climbs": Bad(_event(sink="up://dev.example/../admin/1/rpc.Reset"), "invalid_uri"),
    "wildcards in a message": Bad(_event(sink="up://dev.example/*/1/rpc.*"), "invalid_uri"),
    "a permission level that is text": Bad(_event(permission_level="5"), "invalid_attribute", told=_INVALID),
    "a token that is an object": Bad(_event(token={"a": 1}), "invalid_attribute", told=_INVALID),
    "an answer from another service": Bad(_answer("up://dev.example/evil/1/rpc.UpdateDoor"), "unknown_id"),
    "an answer with an unknown code": Bad(
        _answer("up://dev.example/body.access/1/rpc.UpdateDoor", commstatus=99), "unknown_id"
    ),
    "data and data_base64": Bad(_event(data="x", data_base64="eA=="), "ambiguous"),
    "an Any of 4 GiB in 6 bytes": Bad(
        _event(datacontenttype="application/protobuf", data_base64="Cv////8P"), "bad_protobuf", told=_INVALID
    ),
    "a schema that is never fetched": Bad(_event(dataschema="http://127.0.0.1:1/x"), told=_NOBODY),
    "a publication of last year": Bad(
        _event(source="up://dev.example/body.access/1/door.front_left#Door", sink=None, type="pub.v1", ttl=None),
        at=31_536_000_000,
    ),
    "200,000 brackets": Bad("[" * 200_000, "too_deep"),
    "an array of 100,000": Bad("[" + "1," * 99_999 + "1]", "too_large"),
    "no UTF-8": Bad(b'{"id":"\xff"}', "malformed"),
    "a member nested 2,000 deep": Bad('{"x":' + "[" * 2000 + "]" * 2000 + "}", "too_deep"),
    "half an event": Bad('{"specversion":', "malformed"),
    "half a megabyte of id": Bad('{"specversion":"1.0","type":"pub.v1","id":"' + "x" * 500_000 + '"}', "invalid_attribute"),
}

UPROTOCOL_PROTOBUF: Final[Mapping[str, Bad]] = {"an empty message": Bad(b"", "missing_field")}

FLOODS: Final[Mapping[str, Bad]] = {
    "20,000 subscriptions": Bad(tuple(b'{"subscribe":"topic-%d"}' % number for number in range(20_000))),
    "20,000 requests": Bad(tuple(b'{"request":"slow","id":%d}' % number for number in range(20_000))),
}
"""Of UBRE: more than a peer may have."""

LENGTHS: Final[Mapping[str, BadBytes]] = {
    "4 GiB": BadBytes(bytes.fromhex("ffffffff50"), 1009, "the limit is 1048576"),
    "2 GiB": BadBytes(bytes.fromhex("80000000"), 1009, "the limit is 1048576"),
    "a byte over the limit": BadBytes(bytes.fromhex("00100001"), 1009, "the limit is 1048576"),
    "HTTP": BadBytes(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1009, "received HTTP instead of length-prefixed frames"),
    "part of a frame": BadBytes(bytes.fromhex("00000064") + b"x" * 10, 1002, "within 10 s", "silence"),
    "part of a frame, and the end": BadBytes(bytes.fromhex("00000064") + b"x" * 10, 1006, "truncated: 10 of 100 bytes", "end"),
    "an empty frame": BadBytes(bytes.fromhex("00000000")),
}
"""On TCP."""

WEBSOCKET: Final[Mapping[str, BadBytes]] = {
    "a length with the top bit": BadBytes(bytes.fromhex("82ff800000000000000100000000"), 1009),
    "no mask": BadBytes(bytes.fromhex("8203616263"), 1002),
    "text that is no UTF-8": BadBytes(bytes.fromhex("818200000000fffe"), 1007),
    "a continuation without a start": BadBytes(bytes.fromhex("808300000000616263"), 1002),
    "a ping of 126 bytes": BadBytes(bytes.fromhex("89fe007e00000000") + b"x" * 126, 1002),
    "a fragmented ping": BadBytes(bytes.fromhex("09810000000078"), 1002),
    "half a close code": BadBytes(bytes.fromhex("88810000000003"), 1002),
    "close code 1005": BadBytes(bytes.fromhex("88820000000003ed"), 1002),
    "part of a frame": BadBytes(bytes.fromhex("8283000000"), 1002, then="silence"),
    "an empty close": BadBytes(bytes.fromhex("888000000000"), 1000),
    "5,000 empty fragments": BadBytes(bytes.fromhex("02810000000061") + bytes.fromhex("008000000000") * 5000, 1009),
    # Compression is never offered, so the first compressed frame has a reserved bit.
    "compressed frames": BadBytes(bytes.fromhex("c285000000000102030405") * 400, 1002),
}
"""After the upgrade."""

_UPGRADE: Final = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)
HANDSHAKES: Final[Mapping[str, BadBytes]] = {
    "another origin": BadBytes(_UPGRADE + b"Origin: https://evil.example\r\n\r\n", 403),
    "130 headers": BadBytes(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 130 + b"\r\n", 431),
    "half a line": BadBytes(b"GET / HTTP/1.1\r\nHost", then="silence"),
}
