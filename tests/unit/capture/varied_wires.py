"""The same protocols as applications speak them: no two frames are alike but for an id and a number.

Bodies are of many shapes and sizes, subjects are many, ids are random, some frames carry headers, times to live vary.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any, Final

from attrs import evolve

from polybus.message import Kind, Message
from polybus.protocols import UProtocol
from polybus.protocols._protobuf.wire import field
from polybus.protocols.up.attributes import MessageType, uuid_text
from polybus.protocols.up.uuris import UUri
from polybus.protocols.up.wire import head_of, read_uuid

from .wires import CSB_HEAD, CSB_MORE, UBRE_HEAD, Variant, up_frame, up_id, variants

SUBJECTS: Final = 240
_BODIES: Final = 2_048
_AREAS = ("orders", "stock", "billing", "users", "plant", "doors", "climate", "search", "fleet", "audit")
_VERBS = ("get", "put", "list", "moved", "changed", "check")
_TTLS = tuple(range(50, 900, 7))


def varied(protocol: str, conn: int, ids: int) -> Variant:
    """As `variants`, in traffic that varies."""
    plain = variants(protocol, conn, ids)
    if protocol == "ubre":
        return _ubre_binary(plain) if plain.options else _ubre_json(plain)
    if protocol == "csb":
        return _csb_named(plain, ids) if len(plain.ttls) > 1 else _csb(plain, ids)
    if protocol == "up":
        return _up(plain, conn)
    return _jrep(plain) if protocol == "jrep" else _uprotocol(plain, conn)


@cache
def _bodies() -> tuple[dict[str, Any], ...]:
    chance = random.Random(7)
    return tuple(_body(chance, number) for number in range(_BODIES))


def _body(chance: random.Random, number: int) -> dict[str, Any]:
    word = f"{chance.getrandbits(48):012x}"
    price = round(chance.random() * 900, 2)
    match number % 6:
        case 0:
            lines = [
                {"sku": f"{word[:6]}-{line}", "count": chance.randrange(9), "price": price} for line in range(1 + number % 4)
            ]
            return {"order": word, "lines": lines, "total": price, "paid": chance.random() < 0.5}
        case 1:
            return {"name": f"Jörg {word}", "mail": f"{word}@example.org", "roles": list(_VERBS[: number % 5]), "manager": None}
        case 2:
            return {"sensor": word, "readings": [round(chance.gauss(20, 3), 3) for _ in range(number % 24)], "unit": "°C"}
        case 3:
            return {"id": chance.randrange(10**9)}
        case 4:
            return {"text": " ".join(chance.choice(_AREAS) for _ in range(number % 60)), "lang": "en", "page": number % 9}
        case _:
            return {
                "device": {"id": word, "at": {"x": price, "y": -price}, "state": {"open": number % 2 == 0, "locks": [1, 2]}}
            }


@cache
def _ends() -> tuple[bytes, ...]:
    """The bodies as JSON without their first brace."""
    return tuple(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()[1:] for body in _bodies())


def _json(number: int) -> bytes:
    return b'{"n":%d,%b' % (number, _ends()[number * 7919 % _BODIES])


def _value(number: int) -> dict[str, Any]:
    return {"n": number, **_bodies()[number * 7919 % _BODIES]}


def _names(form: str) -> tuple[str, ...]:
    return tuple(
        form.format(area=_AREAS[index % 10], verb=_VERBS[index // 10 % 6], number=index // 60) for index in range(SUBJECTS)
    )


def _id(id: int, side: int) -> str:
    word = f"{(id * 2 + side) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"
    return f"{word[:8]}-{word[8:12]}-4{word[13:16]}-a{word[17:20]}-{word[20:]}"


def _headers(number: int) -> bytes:
    return b"" if number % 4 else b',"headers":{"traceparent":"00-%032x-%016x-01"}' % (number * 7919 << 40, number * 104_729)


def _ubre_json(plain: Variant) -> Variant:
    names = _names("{area}.{verb}.{number}")

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b',"ttl":%d' % ttl if ttl else b""
        head = names[subject].encode(), _id(id, 0).encode(), _headers(number), _json(number), more
        return b'{"request":"%b","id":"%b"%b,"body":%b%b}' % head

    return evolve(
        plain,
        subjects=names,
        ttls=(0, *_TTLS),
        request=request,
        response=lambda number, id, subject: b'{"success":"%b","body":%b}' % (_id(id, 0).encode(), _json(number + 1)),
        error=lambda id, subject: b'{"fail":"%b","body":"no %x","code":5}' % (_id(id, 0).encode(), id),
        publish=lambda number, subject: (
            b'{"publish":"news.%d.%x"%b,"body":%b}' % (subject, number % 997, _headers(number), _json(number))
        ),
        key=lambda id, subject: _id(id, 0),
    )


def _ubre_binary(plain: Variant) -> Variant:
    names = _names("{area}.{verb}.{number}")

    def frame(letter: bytes, name: bytes, body: bytes) -> bytes:
        return UBRE_HEAD.pack(letter[0], len(name), len(body)) + name + body

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b'\0{"ttl":%d}' % ttl if ttl else b""
        return frame(b"R", b"%b\0%b%b" % (_id(id, 0).encode(), names[subject].encode(), more), _json(number))

    return evolve(
        plain,
        subjects=names,
        ttls=(0, *_TTLS),
        request=request,
        response=lambda number, id, subject: frame(b"s", _id(id, 0).encode(), _json(number + 1)),
        error=lambda id, subject: frame(b"f", b'%b\0{"code":5}' % _id(id, 0).encode(), b'"no %x"' % id),
        publish=lambda number, subject: frame(b"P", b"news.%d.%x" % (subject, number % 997), _json(number)),
        key=lambda id, subject: _id(id, 0),
    )


def _csb(plain: Variant, ids: int) -> Variant:
    front = int(plain.client).to_bytes(4) if plain.client else b""
    numbers = [0x0007_0000 + index for index in range(SUBJECTS)]
    names = {number: name for name, number in plain.options["actions"].items()}
    return evolve(
        plain,
        subjects=tuple(names.get(number, f"0x{number:08X}") for number in numbers),
        request=lambda number, id, subject, ttl: front + CSB_HEAD.pack(0x12, 0, id % ids, numbers[subject]) + _json(number),
        response=lambda number, id, subject: front + CSB_HEAD.pack(0x22, 0, id % ids, numbers[subject]) + _json(number + 1),
        error=lambda id, subject: front + CSB_HEAD.pack(0x20, 0xCC, id % ids, numbers[subject]),
        publish=lambda number, subject: (
            front + _told(0, 0xFFFF0006, b"news.%d.%x" % (subject, number % 997), number, number % 500)
        ),
        key=lambda id, subject: f"{id % ids:04x}{numbers[subject]:08x}",
    )


def _told(id: int, action: int, name: bytes, number: int, ttl: int) -> bytes:
    return CSB_HEAD.pack(0x12, 0, id, action) + CSB_MORE.pack(len(name), 0, ttl or 0xFFFFFFFF) + name + _json(number)


def _csb_named(plain: Variant, ids: int) -> Variant:
    names = _names("{area}.{verb}.{number}")
    return evolve(
        plain,
        subjects=names,
        ttls=(0, *_TTLS),
        request=lambda number, id, subject, ttl: _told(id % ids, 0xFFFF0005, names[subject].encode(), number, ttl),
        response=lambda number, id, subject: CSB_HEAD.pack(0x22, 0, id % ids, 0xFFFF0005) + _json(number + 1),
        error=lambda id, subject: CSB_HEAD.pack(0x20, 0xCA, id % ids, 0xFFFF0005),
        publish=lambda number, subject: _told(0, 0xFFFF0006, b"news.%d.%x" % (subject, number % 997), number, 9),
        key=lambda id, subject: f"{id % ids:04x}ffff0005",
    )


def _jrep(plain: Variant) -> Variant:
    names = _names("{area}{verb}{number}")

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b',"PolybusTtl":%d' % ttl if ttl else b""
        name = names[subject].encode()
        said = name, name, _id(id, 0).encode(), _json(number), more
        return b'[{"ToSubject":"%b","ReplyTo":"%b:%b:RespondTo:RPC","Value":%b%b}]' % said

    def reply(id: int, subject: int) -> tuple[bytes, bytes]:
        return names[subject].encode(), _id(id, 0).encode()

    return evolve(
        plain,
        subjects=names,
        ttls=(0, *_TTLS),
        request=request,
        response=lambda number, id, subject: (
            b'[{"ToSubject":"%b:%b:RespondTo:RPC","Value":%b}]' % (*reply(id, subject), _json(number + 1))
        ),
        error=lambda id, subject: (
            b'[{"ToSubject":"%b:%b:Errors:RPC","ErrorMessage":"no %x","PolybusCode":5}]' % (*reply(id, subject), id)
        ),
        publish=lambda number, subject: b'[{"ToSubject":"news.%d.%x","Value":%b}]' % (subject, number % 997, _json(number)),
        key=lambda id, subject: f"{names[subject]}:{_id(id, 0)}",
    )


def _uprotocol(plain: Variant, conn: int) -> Variant:
    codec = UProtocol(format=plain.options.get("format", "json")).codec()
    app = "//vcu.vin/cabin/1/rpc.response"
    names = _names("//vcu.vin/{area}.service/{number}/rpc.{verb}")

    def uuid(id: int, side: int) -> str:
        return f"01890f5e-7b2c-8{conn >> 12 & 0xFFF:03x}-8{conn & 0xFFF:03x}-{id | side << 40:012x}"

    def made(kind: Kind, body: Any, id: str, source: str, type: str, priority: int, **more: Any) -> bytes:
        said = {"id": id, "source": source, "type": type, "priority": f"CS{priority}", **more}
        message = Message(kind, said.get("sink", source), said.get("reqid", id), body=body, attributes=said)
        if "ttl" in said:
            message.ttl = said["ttl"] / 1000
        return bytes(codec.encode([message]))

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        # What a method wants of its callers does not change from call to call, nor the token of a client.
        more = {"token": f"token of {conn}"} if subject % 4 == 0 else {}
        said = {"sink": names[subject], "ttl": ttl, **more}
        return made(Kind.REQUEST, _value(number), uuid(id, 0), app, "req.v1", 4 + subject % 3, **said)

    def response(number: int, id: int, subject: int) -> bytes:
        said = {"sink": app, "reqid": uuid(id, 0)}
        return made(Kind.RESPONSE, _value(number + 1), uuid(id, 1), names[subject], "res.v1", 4, **said)

    def publish(number: int, subject: int) -> bytes:
        topic = f"//vcu.vin/{_AREAS[subject % 10]}.service/1/door.{subject}#Door"
        return made(Kind.PUBLISH, _value(number), uuid(number, 2), topic, "pub.v1", 1)

    error = plain.error(0, 0)
    asked, named, own = (part.encode() for part in (plain.key(0, 0), plain.subjects[0], plain.key(1 << 40, 0)))
    return evolve(
        plain,
        subjects=names,
        ttls=(100, 250, 500, 1_000, 5_000),
        request=request,
        response=response,
        error=lambda id, subject: error.replace(asked, uuid(id, 0).encode()).replace(own, uuid(id, 1).encode()),
        publish=publish,
        key=lambda id, subject: uuid(id, 0),
    )


def _up(plain: Variant, conn: int) -> Variant:
    app = UUri("phone", 0xCD, 4, 0)
    methods = [UUri("vcu.vin", 0x1000 + index % 10, 1 + index // 60, 1 + index) for index in range(SUBJECTS)]
    topics = [method.with_resource(0x8000 + index) for index, method in enumerate(methods)]
    json = b"\x60\x03"

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        # As in uProtocol: what a method wants of its callers does not change, nor the token of a client; contexts of traces do.
        more = field(b"\x52", b"token of %d" % conn) if subject % 4 == 0 else b""
        if number % 4 == 0:
            more += field(b"\x5a", b"00-%032x-%016x-01" % (number * 7919 << 40, number * 104_729))
        head = head_of(MessageType.REQUEST, app, methods[subject], 5 + subject % 3)
        return up_frame(_up_id(conn, id, 0), head, ttl, b"", more + json, _json(number))

    def response(number: int, id: int, subject: int) -> bytes:
        head = head_of(MessageType.RESPONSE, methods[subject], app, 5 + subject % 3)
        return up_frame(_up_id(conn, id, 1), head, _TTLS[id % len(_TTLS)], _up_id(conn, id, 0), json, _json(number + 1))

    def error(id: int, subject: int) -> bytes:
        head, asked = head_of(MessageType.RESPONSE, methods[subject], app, 5), b"\x40\x05\x4a\x12" + _up_id(conn, id, 0)
        return up_frame(_up_id(conn, id, 1), head, 500, b"", asked + b"\x60\x02", b"\x08\x05\x12\x05no %02x" % (id & 255))

    def publish(number: int, subject: int) -> bytes:
        head = head_of(MessageType.PUBLISH, topics[subject], None, 2)
        return up_frame(_up_id(conn, number, 2), head, number % 3 * 700, b"", json, _json(number))

    return evolve(
        plain,
        subjects=tuple(map(str, methods)),
        ttls=_TTLS,
        request=request,
        response=response,
        error=error,
        publish=publish,
        key=lambda id, subject: uuid_text(read_uuid(_up_id(conn, id, 0))),
    )


def _up_id(conn: int, id: int, side: int) -> bytes:
    """Ids of one of many programs, as each has a second half of its own."""
    return up_id(conn << 40 | side << 32 | id % 37, id)
