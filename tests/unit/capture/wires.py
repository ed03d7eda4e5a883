"""The frames of five protocols, made by hand and fast: for the generator of traffic whose truth is known.

A variant is a protocol with the options of a connection. Numbers become ids, and indices become subjects.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from attrs import frozen

from polybus.errors import Code
from polybus.message import Kind, Message
from polybus.protocols import UProtocol
from polybus.protocols._protobuf.wire import varint
from polybus.protocols.up.attributes import MessageType, uuid_text
from polybus.protocols.up.uuris import UUri
from polybus.protocols.up.wire import head_of, read_uuid, write_message

SUBJECTS = 8
CSB_HEAD = struct.Struct(">BBHI")
UBRE_HEAD = struct.Struct(">BHI")
CSB_MORE = struct.Struct(">HHI")


@frozen(kw_only=True)
class Variant:
    """How one connection speaks.

    Attributes:
        ttls: What the wire can say of a request's time to live, in ms; 0 for nothing.
        junk: Frames that nobody can read, and why.
        error_code: Of `error`.
    """

    protocol: str
    options: dict[str, Any]
    subjects: tuple[str, ...]
    ttls: tuple[int, ...]
    junk: tuple[tuple[bytes, str], ...]
    error_code: int
    client: str = ""
    empty: bytes | None = None
    """A frame that says nothing, where there is one."""
    request: Callable[[int, int, int, int], bytes]
    """``request(number, id, subject, ttl)``"""
    response: Callable[[int, int, int], bytes]
    """``response(number, id, subject)``"""
    error: Callable[[int, int], bytes]
    publish: Callable[[int, int], bytes]
    key: Callable[[int, int], str]
    """The correlation id."""

    BY_PROTOCOL: ClassVar[tuple[str, ...]] = ("ubre", "csb", "jrep", "uprotocol", "up")


def _ubre_json() -> Variant:
    names = tuple(f"app.thing{index}.get" for index in range(SUBJECTS))

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b',"ttl":%d' % ttl if ttl else b""
        return b'{"request":"%s","id":"%x","body":{"n":%d,"name":"J\xc3\xb6rg"}%s}' % (
            names[subject].encode(),
            id,
            number,
            more,
        )

    return Variant(
        protocol="ubre",
        options={},
        subjects=names,
        ttls=(0, 0, 100, 500),
        junk=(
            (b"not json at all", "bad_json"),
            (b'{"request":"a","id":"', "bad_json"),
            (b'{"hello":"a"}', "unknown_type"),
            (b'{"publish":"a\xff\xfe"}', "bad_text"),
        ),
        error_code=5,
        request=request,
        response=lambda number, id, subject: b'{"success":"%x","body":{"n":%d,"ok":true}}' % (id, number),
        error=lambda id, subject: b'{"fail":"%x","body":"no such thing","code":5}' % id,
        publish=lambda number, subject: b'{"publish":"news.%d","body":{"n":%d}}' % (subject, number),
        key=lambda id, subject: f"{id:x}",
    )


def _ubre_binary() -> Variant:
    names = tuple(f"app.item{index}.get" for index in range(SUBJECTS))

    def frame(letter: bytes, name: bytes, body: bytes) -> bytes:
        return UBRE_HEAD.pack(letter[0], len(name), len(body)) + name + body

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b'\0{"ttl":%d}' % ttl if ttl else b""
        return frame(b"R", b"%x\0%s%s" % (id, names[subject].encode(), more), b'{"n":%d}' % number)

    return Variant(
        protocol="ubre",
        options={"format": "binary"},
        subjects=names,
        ttls=(0, 0, 0, 200),
        junk=(
            (b"R\0\1", "short_frame"),
            (b"P\0\1\0\0\0\7a12", "bad_length"),
            (b"q\0\1\0\0\0\0a", "unknown_type"),
            (b"P\0\1\0\0\0\1a{", "bad_json"),
        ),
        error_code=5,
        request=request,
        response=lambda number, id, subject: frame(b"s", b"%x" % id, b'{"n":%d,"ok":true}' % number),
        error=lambda id, subject: frame(b"f", b'%x\0{"code":5}' % id, b'"no"'),
        publish=lambda number, subject: frame(b"P", b"news.%d" % subject, b'{"n":%d}' % number),
        key=lambda id, subject: f"{id:x}",
    )


_ACTIONS = {f"plant.read{index}": 0x0007_0000 + index for index in range(SUBJECTS // 2)}


def _csb(ids: int, client: int | None = None) -> Variant:
    front = b"" if client is None else struct.pack(">I", client)
    numbers = [0x0007_0000 + index for index in range(SUBJECTS)]
    names = {number: name for name, number in _ACTIONS.items()}
    options: dict[str, Any] = {"actions": _ACTIONS}
    if client is not None:
        options["side"] = "broker-server"

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        return front + CSB_HEAD.pack(0x12, 0, id % ids, numbers[subject]) + b'{"n":%d}' % number

    return Variant(
        protocol="csb",
        options=options,
        subjects=tuple(names.get(number, f"0x{number:08X}") for number in numbers),
        ttls=(0,),
        junk=(
            (front + b"\x12\0\0", "short_frame"),
            (front + CSB_HEAD.pack(0x32, 0, 1, 2), "bad_kind"),
            (front + CSB_HEAD.pack(0x19, 0, 1, 2), "bad_encoding"),
            (front + CSB_HEAD.pack(0x12, 7, 1, 2), "bad_code"),
            (front + CSB_HEAD.pack(0x12, 0, 1, 2) + b'{"n":', "bad_json"),
            (front + CSB_HEAD.pack(0x11, 0, 1, 2) + b"\xff\xfe", "bad_text"),
        ),
        error_code=3,
        client="" if client is None else str(client),
        request=request,
        response=lambda number, id, subject: (
            front + CSB_HEAD.pack(0x22, 0, id % ids, numbers[subject]) + b'{"n":%d,"ok":true}' % number
        ),
        error=lambda id, subject: front + CSB_HEAD.pack(0x20, 0xCC, id % ids, numbers[subject]),
        publish=lambda number, subject: (
            front
            + CSB_HEAD.pack(0x12, 0, 0, 0xFFFF0006)
            + CSB_MORE.pack(6, 0, 0xFFFFFFFF)
            + b"news.%d" % subject
            + b"%d" % number
        ),
        key=lambda id, subject: f"{id % ids:04x}{numbers[subject]:08x}",
    )


def _csb_named(ids: int) -> Variant:
    names = tuple(f"plant.valve{index}.set" for index in range(SUBJECTS))

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        name = names[subject].encode()
        more = CSB_MORE.pack(len(name), 0, ttl or 0xFFFFFFFF)
        return CSB_HEAD.pack(0x12, 0, id % ids, 0xFFFF0005) + more + name + b'{"n":%d}' % number

    return Variant(
        protocol="csb",
        options={},
        subjects=names,
        ttls=(0, 150, 400),
        junk=((CSB_HEAD.pack(0x12, 0, 1, 0xFFFF0005) + b"\0", "bad_length"),),
        error_code=4,
        request=request,
        response=lambda number, id, subject: CSB_HEAD.pack(0x20, 0, id % ids, 0xFFFF0005) + b"\1\2%d" % number,
        error=lambda id, subject: CSB_HEAD.pack(0x20, 0xCA, id % ids, 0xFFFF0005),
        publish=lambda number, subject: (
            CSB_HEAD.pack(0x12, 0, 0, 0xFFFF0006) + CSB_MORE.pack(6, 0, 9) + b"news.%d" % subject + b"1"
        ),
        key=lambda id, subject: f"{id % ids:04x}ffff0005",
    )


def _jrep() -> Variant:
    names = tuple(f"Service{index}" for index in range(SUBJECTS))

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b',"PolybusTtl":%d' % ttl if ttl else b""
        name = names[subject].encode()
        return b'[{"ToSubject":"%s","ReplyTo":"%s:%d:RespondTo:RPC","Value":{"n":%d}%s}]' % (name, name, id, number, more)

    def response(number: int, id: int, subject: int) -> bytes:
        return b'[{"ToSubject":"%s:%d:RespondTo:RPC","Value":{"n":%d}}]' % (names[subject].encode(), id, number)

    def error(id: int, subject: int) -> bytes:
        return b'[{"ToSubject":"%s:%d:Errors:RPC","ErrorMessage":"no","PolybusCode":5}]' % (names[subject].encode(), id)

    return Variant(
        protocol="jrep",
        options={},
        subjects=names,
        ttls=(0, 0, 300),
        junk=(
            (b"[{", "bad_json"),
            (b"[7]", "not_array"),
            (b'[{"Value":1}]', "missing_field"),
            (b'[{"ToSubject":"a","PolybusVerb":"dance","PolybusId":"1"}]', "unknown_type"),
        ),
        error_code=5,
        empty=b"[]",
        request=request,
        response=response,
        error=error,
        publish=lambda number, subject: b'[{"ToSubject":"news.%d","Value":%d}]' % (subject, number),
        key=lambda id, subject: f"{names[subject]}:{id}",
    )


_ID = "ffffffff-7b2c-8fff-8fff-fffffffffff1"
_OTHER = "ffffffff-7b2c-8fff-8fff-fffffffffff2"


def _uuid(conn: int, id: int) -> bytes:
    return b"01890f5e-7b2c-8%03x-8%03x-%012x" % (conn >> 12 & 0xFFF, conn & 0xFFF, id)


def _uprotocol(format: str, conn: int) -> Variant:
    codec = UProtocol(format=format).codec()  # type: ignore[arg-type]
    app = "//vcu.vin/cabin/1/rpc.response"
    names = tuple(f"//vcu.vin/body.access/1/rpc.Door{index}" for index in range(SUBJECTS))
    ttls = (100, 500, 1000)

    def made(kind: Kind, body: Any = None, code: Code | None = None, **said: Any) -> bytes:
        message = Message(kind, said.get("source", ""), said.get("reqid", said["id"]), code=code, attributes=said)
        if body is not None:
            message = Message(kind, said.get("sink", said["source"]), said.get("reqid", said["id"]), body=body, attributes=said)
        if "ttl" in said:
            message.ttl = said["ttl"] / 1000
        return bytes(codec.encode([message]))

    asks = {
        (subject, ttl): made(
            Kind.REQUEST, {"n": 1}, id=_ID, source=app, sink=names[subject], type="req.v1", priority="CS4", ttl=ttl
        )
        for subject in range(SUBJECTS)
        for ttl in ttls
    }
    answers = [
        made(Kind.RESPONSE, {"ok": True}, id=_OTHER, source=name, sink=app, reqid=_ID, type="res.v1", priority="CS4")
        for name in names
    ]
    errors = [
        made(
            Kind.ERROR,
            code=Code.NOT_FOUND,
            id=_OTHER,
            source=name,
            sink=app,
            reqid=_ID,
            type="res.v1",
            priority="CS4",
            text="no",
        )
        for name in names
    ]
    topics = [
        made(Kind.PUBLISH, {"n": 1}, id=_ID, source=f"//vcu.vin/body.access/1/door.{index}#Door", type="pub.v1", priority="CS1")
        for index in range(SUBJECTS)
    ]
    one, other = _ID.encode(), _OTHER.encode()

    def answer(templates: list[bytes], id: int, subject: int) -> bytes:
        return templates[subject].replace(one, _uuid(conn, id)).replace(other, _uuid(conn, id | 1 << 40))

    whole = asks[0, 100]
    junk: tuple[tuple[bytes, str], ...]
    if format == "json":
        junk = (
            (b"no event", "bad_json"),
            (b"{}", "missing_field"),
            (whole.replace(b'"sink"', b'"sunk"'), "missing_field"),
            (whole.replace(b'"CS4"', b'"CS9"'), "bad_field"),
            (whole.replace(b'"data_base64":"C', b'"data_base64":"?'), "bad_encoding"),
        )
    else:
        junk = (
            (b"\xff\xff\xff", "bad_protobuf"),
            (whole[:-5], "bad_protobuf"),
            (whole.replace(b"\x1a\x031.0", b""), "missing_field"),
        )
    return Variant(
        protocol="uprotocol",
        options={} if format == "json" else {"format": format},
        subjects=names,
        ttls=ttls,
        junk=junk,
        error_code=5,
        request=lambda number, id, subject, ttl: asks[subject, ttl].replace(one, _uuid(conn, id)),
        response=lambda number, id, subject: answer(answers, id, subject),
        error=lambda id, subject: answer(errors, id, subject),
        publish=lambda number, subject: topics[subject].replace(one, _uuid(conn, number | 1 << 41)),
        key=lambda id, subject: _uuid(conn, id).decode(),
    )


UP_HEAD = struct.Struct("<QBQ")
_UP_TIME = 0x01890F5E7B2C << 16 | 7 << 12


def up_id(conn: int, id: int) -> bytes:
    """The id number `id` of a connection, as it stands on the wire: made in the millisecond of its upper bits."""
    return b"\x09" + UP_HEAD.pack(_UP_TIME + ((id >> 12) << 16 | id & 0xFFF), 0x11, 2 << 62 | conn)


def up_text(conn: int, id: int) -> str:
    """The same with hyphens."""
    return uuid_text(read_uuid(up_id(conn, id)))


def up_frame(id: bytes, head: bytes, ttl: int, reqid: bytes, more: bytes, payload: bytes | None) -> bytes:
    """A UMessage of its parts: type, addresses and priority in `head`, in `more` what stands behind the ids."""
    lives = b"\x30" + varint(ttl) if ttl else b""
    asked = b"\x4a\x12" + reqid if reqid else b""
    return write_message(b"".join((b"\x0a\x12", id, head, lives, asked, more)), payload)


def _up(conn: int) -> Variant:
    car, phone = UUri("vehicle7", 0x10AB, 3, 0), UUri("phone", 0xCD, 4, 0)
    methods = [car.with_resource(index + 1) for index in range(SUBJECTS)]
    topics = [car.with_resource(0x8000 + index) for index in range(SUBJECTS)]
    asks = [head_of(MessageType.REQUEST, phone, method, 5) for method in methods]
    answers = [head_of(MessageType.RESPONSE, method, phone, 5) for method in methods]
    says = [head_of(MessageType.PUBLISH, topic, None, 2) for topic in topics]
    json, failed = b"\x60\x03", b"\x08\x05\x12\x02no"

    def error(id: int, subject: int) -> bytes:
        asked = b"\x40\x05\x4a\x12" + up_id(conn, id)  # commstatus stands before the id of the request
        return up_frame(up_id(conn, id | 1 << 40), answers[subject], 1000, b"", asked + b"\x60\x02", failed)

    whole = up_frame(up_id(conn, 1), asks[0], 100, b"", json, b'{"n":1}')
    return Variant(
        protocol="up",
        options={},
        subjects=tuple(map(str, methods)),
        ttls=(100, 500, 1000),
        junk=(
            (b"\xff\xff\xff", "bad_protobuf"),
            (whole[:-5], "bad_protobuf"),
            (whole.replace(b"vehicle7", b"Vehicle7"), "bad_protobuf"),
            (whole.replace(b"\x28\x05", b"\x28\x02"), "bad_field"),
            (whole.replace(b'{"n":1}', b'{"\xff":1}'), "bad_text"),
        ),
        error_code=5,
        request=lambda number, id, subject, ttl: up_frame(up_id(conn, id), asks[subject], ttl, b"", json, b'{"n":%d}' % number),
        response=lambda number, id, subject: up_frame(
            up_id(conn, id | 1 << 40), answers[subject], 1000, up_id(conn, id), json, b'{"n":%d,"ok":true}' % number
        ),
        error=error,
        publish=lambda number, subject: up_frame(up_id(conn, number | 1 << 41), says[subject], 0, b"", json, b"%d" % number),
        key=lambda id, subject: up_text(conn, id),
    )


def variants(protocol: str, conn: int, ids: int) -> Variant:
    """How connection number `conn` of a protocol speaks; `ids` is how many message ids CSB has before they come again."""
    if protocol == "ubre":
        return (_ubre_json, _ubre_binary)[conn % 2]()
    if protocol == "csb":
        return _csb_named(ids) if conn % 4 == 1 else _csb(ids, 40 + conn if conn % 4 == 3 else None)
    if protocol == "jrep":
        return _jrep()
    if protocol == "up":
        return _up(conn)
    return _uprotocol(("json", "protobuf")[conn % 2], conn)


def options_text(variant: Variant) -> str:
    """As the recorder writes them."""
    return json.dumps(variant.options, separators=(",", ":"))
