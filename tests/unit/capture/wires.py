"""Frames of five protocols, made by hand and fast: for the generator of traffic with known truth.

A variant is a protocol with the options of a connection. Numbers become ids, and indices become subjects. Frames are alike
except an id and a number; or they vary as in applications: many shapes and sizes of bodies, many subjects, random ids, some
headers, various times to live.
"""

import json
import random
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final

from attrs import frozen

from polybus.errors import Code
from polybus.message import Kind, Message
from polybus.plugins.protobuf import field, varint
from polybus.protocols import UProtocol
from polybus.protocols.up.uuris import UUri
from polybus.protocols.up.wire import MessageType, head_of, read_uuid, uuid_text, write_message

_CSB_HEAD: Final = struct.Struct(">BBHI")
_UBRE_HEAD: Final = struct.Struct(">BHI")
_CSB_MORE: Final = struct.Struct(">HHI")
_UP_HEAD: Final = struct.Struct("<QBQ")
_UP_TIME: Final = 0x01890F5E7B2C << 16 | 7 << 12
_BODIES: Final = 2_048
_AREAS: Final = ("orders", "stock", "billing", "users", "plant", "doors", "climate", "search", "fleet", "audit")
_VERBS: Final = ("get", "put", "list", "moved", "changed", "check")


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
    error_code: int = 5
    client: str = ""
    empty: bytes | None = None
    request: Callable[[int, int, int, int], bytes]
    """``request(number, id, subject, ttl)``"""
    response: Callable[[int, int, int], bytes]
    """``response(number, id, subject)``"""
    error: Callable[[int, int], bytes]
    publish: Callable[[int, int], bytes]
    key: Callable[[int, int], str]

    BY_PROTOCOL: ClassVar[tuple[str, ...]] = ("ubre", "csb", "jrep", "uprotocol", "up")


# -- what is said ------------------------------------------------------------------------------------------------------------


@frozen
class Contents:
    """What the frames of a connection say, whatever its protocol."""

    alike: bool

    @property
    def subjects(self) -> int:
        return 8 if self.alike else 240

    def names(self, form: str) -> tuple[str, ...]:
        return tuple(
            form.format(area=_AREAS[index % 10], verb=_VERBS[index // 10 % 6], number=index // 60)
            for index in range(self.subjects)
        )

    def ttls(self, *usual: int) -> tuple[int, ...]:
        return usual if self.alike else (*usual[:1], *range(50, 900, 7))

    def body(self, number: int) -> bytes:
        return b'{"n":%d,"ok":true}' % number if self.alike else b'{"n":%d,%b' % (number, _ends()[number * 7919 % _BODIES])

    def value(self, number: int) -> dict[str, Any]:
        return {"n": 1} if self.alike else {"n": number, **_bodies()[number * 7919 % _BODIES]}

    def id(self, id: int) -> str:
        if self.alike:
            return f"{id:x}"
        word = f"{id * 2 * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"
        return f"{word[:8]}-{word[8:12]}-4{word[13:16]}-a{word[17:20]}-{word[20:]}"

    def trace(self, number: int) -> bytes:
        return b"" if self.alike or number % 4 else b"00-%032x-%016x-01" % (number * 7919 << 40, number * 104_729)

    def news(self, number: int, subject: int) -> bytes:
        return b"news.%d" % subject if self.alike else b"news.%d.%x" % (subject, number % 997)


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
            state = {"open": number % 2 == 0, "locks": [1, 2]}
            return {"device": {"id": word, "at": {"x": price, "y": -price}, "state": state}}


@cache
def _ends() -> tuple[bytes, ...]:
    """The bodies as JSON without their first brace."""
    return tuple(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()[1:] for body in _bodies())


# -- how it is said ----------------------------------------------------------------------------------------------------------


def _ubre_json(say: Contents) -> Variant:
    names = say.names("{area}.{verb}.{number}")

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b',"ttl":%d' % ttl if ttl else b""
        trace = say.trace(number)
        headers = b',"headers":{"traceparent":"%b"}' % trace if trace else b""
        head = names[subject].encode(), say.id(id).encode(), headers, say.body(number), more
        return b'{"request":"%b","id":"%b"%b,"body":%b%b}' % head

    return Variant(
        protocol="ubre", options={}, subjects=names, ttls=say.ttls(0, 0, 100, 500),
        junk=(
            (b"not json at all", "bad_json"), (b'{"request":"a","id":"', "bad_json"), (b'{"hello":"a"}', "unknown_type"),
            (b'{"publish":"a\xff\xfe"}', "bad_text"),
        ),
        request=request,
        response=lambda number, id, subject: b'{"success":"%b","body":%b}' % (say.id(id).encode(), say.body(number + 1)),
        error=lambda id, subject: b'{"fail":"%b","body":"no %x","code":5}' % (say.id(id).encode(), id),
        publish=lambda number, subject: b'{"publish":"%b","body":%b}' % (say.news(number, subject), say.body(number)),
        key=lambda id, subject: say.id(id),
    )  # fmt: skip


def _ubre_binary(say: Contents) -> Variant:
    names = say.names("{area}.{verb}.{number}")

    def frame(letter: bytes, name: bytes, body: bytes) -> bytes:
        return _UBRE_HEAD.pack(letter[0], len(name), len(body)) + name + body

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b'\0{"ttl":%d}' % ttl if ttl else b""
        return frame(b"R", b"%b\0%b%b" % (say.id(id).encode(), names[subject].encode(), more), say.body(number))

    return Variant(
        protocol="ubre", options={"format": "binary"}, subjects=names, ttls=say.ttls(0, 0, 0, 200),
        junk=(
            (b"R\0\1", "short_frame"), (b"P\0\1\0\0\0\7a12", "bad_length"), (b"q\0\1\0\0\0\0a", "unknown_type"),
            (b"P\0\1\0\0\0\1a{", "bad_json"),
        ),
        request=request, response=lambda number, id, subject: frame(b"s", say.id(id).encode(), say.body(number + 1)),
        error=lambda id, subject: frame(b"f", b'%b\0{"code":5}' % say.id(id).encode(), b'"no %x"' % id),
        publish=lambda number, subject: frame(b"P", say.news(number, subject), say.body(number)),
        key=lambda id, subject: say.id(id),
    )  # fmt: skip


def _csb_told(say: Contents, id: int, action: int, name: bytes, number: int, ttl: int = 0) -> bytes:
    more = _CSB_MORE.pack(len(name), 0, ttl or 0xFFFFFFFF)
    return _CSB_HEAD.pack(0x12, 0, id, action) + more + name + say.body(number)


def _csb(say: Contents, client: int | None) -> Variant:
    front = b"" if client is None else struct.pack(">I", client)
    actions = {f"plant.read{index}": 0x0007_0000 + index for index in range(4)}
    numbers = [0x0007_0000 + index for index in range(say.subjects)]
    names = {number: name for name, number in actions.items()}

    def head(kind: int, id: int, subject: int, code: int = 0) -> bytes:
        return front + _CSB_HEAD.pack(kind, code, id & 0xFFFF, numbers[subject])

    return Variant(
        protocol="csb", options={"actions": actions, **({} if client is None else {"side": "broker-server"})},
        subjects=tuple(names.get(number, f"0x{number:08X}") for number in numbers), ttls=(0,),
        junk=(
            (front + b"\x12\0\0", "short_frame"), (front + _CSB_HEAD.pack(0x32, 0, 1, 2), "bad_kind"),
            (front + _CSB_HEAD.pack(0x19, 0, 1, 2), "bad_encoding"), (front + _CSB_HEAD.pack(0x12, 7, 1, 2), "bad_code"),
            (front + _CSB_HEAD.pack(0x12, 0, 1, 2) + b'{"n":', "bad_json"),
            (front + _CSB_HEAD.pack(0x11, 0, 1, 2) + b"\xff\xfe", "bad_text"),
        ),
        error_code=3, client="" if client is None else str(client),
        request=lambda number, id, subject, ttl: head(0x12, id, subject) + say.body(number),
        response=lambda number, id, subject: head(0x22, id, subject) + say.body(number + 1),
        error=lambda id, subject: head(0x20, id, subject, 0xCC),
        publish=lambda number, subject: front + _csb_told(say, 0, 0xFFFF0006, say.news(number, subject), number),
        key=lambda id, subject: f"{id & 0xFFFF:04x}{numbers[subject]:08x}",
    )  # fmt: skip


def _csb_named(say: Contents) -> Variant:
    names = say.names("{area}.{verb}.{number}")

    def response(number: int, id: int, subject: int) -> bytes:
        # As bytes where frames are alike, so that both are there.
        encoding, body = (0x20, b"\1\2%d" % number) if say.alike else (0x22, say.body(number + 1))
        return _CSB_HEAD.pack(encoding, 0, id & 0xFFFF, 0xFFFF0005) + body

    return Variant(
        protocol="csb", options={}, subjects=names, ttls=say.ttls(0, 150, 400),
        junk=((_CSB_HEAD.pack(0x12, 0, 1, 0xFFFF0005) + b"\0", "bad_length"),), error_code=4,
        request=lambda number, id, subject, ttl: _csb_told(say, id & 0xFFFF, 0xFFFF0005, names[subject].encode(), number, ttl),
        response=response, error=lambda id, subject: _CSB_HEAD.pack(0x20, 0xCA, id & 0xFFFF, 0xFFFF0005),
        publish=lambda number, subject: _csb_told(say, 0, 0xFFFF0006, say.news(number, subject), number, 9),
        key=lambda id, subject: f"{id & 0xFFFF:04x}ffff0005",
    )  # fmt: skip


def _jrep(say: Contents) -> Variant:
    names = say.names("{area}{verb}{number}")

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b',"PolybusTtl":%d' % ttl if ttl else b""
        name = names[subject].encode()
        said = name, name, say.id(id).encode(), say.body(number), more
        return b'[{"ToSubject":"%b","ReplyTo":"%b:%b:RespondTo:RPC","Value":%b%b}]' % said

    def reply(number: int, id: int, subject: int) -> bytes:
        said = names[subject].encode(), say.id(id).encode(), say.body(number + 1)
        return b'[{"ToSubject":"%b:%b:RespondTo:RPC","Value":%b}]' % said

    def error(id: int, subject: int) -> bytes:
        said = names[subject].encode(), say.id(id).encode(), id
        return b'[{"ToSubject":"%b:%b:Errors:RPC","ErrorMessage":"no %x","PolybusCode":5}]' % said

    return Variant(
        protocol="jrep", options={}, subjects=names, ttls=say.ttls(0, 0, 300),
        junk=(
            (b"[{", "bad_json"), (b"[7]", "not_array"), (b'[{"Value":1}]', "missing_field"),
            (b'[{"ToSubject":"a","PolybusVerb":"dance","PolybusId":"1"}]', "unknown_type"),
        ),
        empty=b"[]", request=request, response=reply, error=error,
        publish=lambda number, subject: b'[{"ToSubject":"%b","Value":%b}]' % (say.news(number, subject), say.body(number)),
        key=lambda id, subject: f"{names[subject]}:{say.id(id)}",
    )  # fmt: skip


def _uprotocol(say: Contents, format: str, conn: int) -> Variant:
    codec = UProtocol(format=format).codec()  # type: ignore[arg-type]
    app = "//vcu.vin/cabin/1/rpc.response"
    names = say.names("//vcu.vin/{area}.service/{number}/rpc.{verb}")

    def uuid(id: int, side: int = 0) -> str:
        return f"01890f5e-7b2c-8{conn >> 12 & 0xFFF:03x}-8{conn & 0xFFF:03x}-{id | side << 40:012x}"

    def made(kind: Kind, body: Any, id: str, source: str, type: str, priority: int, **more: Any) -> bytes:
        said = {"id": id, "source": source, "type": type, "priority": f"CS{priority}", **more}
        code = Code.NOT_FOUND if kind is Kind.ERROR else None
        message = Message(kind, said.get("sink", source), said.get("reqid", id), body=body, code=code, attributes=said)
        if "ttl" in said:
            message.ttl = said["ttl"] / 1000
        return bytes(codec.encode([message]))

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        # What a method wants of its callers does not change from call to call, nor the token of a client.
        more = {} if say.alike or subject % 4 else {"token": f"token of {conn}"}
        said = {"sink": names[subject], "ttl": ttl, **more}
        return made(Kind.REQUEST, say.value(number), uuid(id), app, "req.v1", 4 + subject % 3, **said)

    def response(number: int, id: int, subject: int) -> bytes:
        return made(Kind.RESPONSE, say.value(number + 1), uuid(id, 1), names[subject], "res.v1", 4, sink=app, reqid=uuid(id))

    def error(id: int, subject: int) -> bytes:
        said = {"sink": app, "reqid": uuid(id), "text": "no"}
        return made(Kind.ERROR, None, uuid(id, 1), names[subject], "res.v1", 4, **said)

    def publish(number: int, subject: int) -> bytes:
        topic = f"//vcu.vin/{_AREAS[subject % 10]}.service/1/door.{subject}#Door"
        return made(Kind.PUBLISH, say.value(number), uuid(number, 2), topic, "pub.v1", 1)

    whole = request(0, 0, 1, 100)
    junk: dict[str, tuple[tuple[bytes, str], ...]] = {
        "json": (
            (b"no event", "bad_json"),
            (b"{}", "missing_field"),
            (whole.replace(b'"sink"', b'"sunk"'), "missing_field"),
            (whole.replace(b'"CS5"', b'"CS9"'), "bad_field"),
            (whole.replace(b'"data_base64":"C', b'"data_base64":"?'), "bad_encoding"),
        ),
        "protobuf": (
            (b"\xff\xff\xff", "bad_protobuf"),
            (whole[:-5], "bad_protobuf"),
            (whole.replace(b"\x1a\x031.0", b""), "missing_field"),
        ),
    }
    return Variant(
        protocol="uprotocol", options={} if format == "json" else {"format": format}, subjects=names,
        ttls=say.ttls(100, 500, 1000), junk=junk[format], request=request, response=response, error=error, publish=publish,
        key=lambda id, subject: uuid(id),
    )  # fmt: skip


def _up_frame(id: bytes, head: bytes, ttl: int, more: bytes, payload: bytes) -> bytes:
    """A UMessage of its parts: type, addresses and priority in `head`, in `more` what stands behind the time to live."""
    lives = b"\x30" + varint(ttl) if ttl else b""
    return write_message(b"".join((b"\x0a\x12", id, head, lives, more)), payload)


def _up(say: Contents, conn: int) -> Variant:
    app = UUri("phone", 0xCD, 4, 0)
    methods = [UUri("vcu.vin", 0x1000 + index % 10, 1 + index // 60, 1 + index) for index in range(say.subjects)]
    topics = [method.with_resource(0x8000 + index) for index, method in enumerate(methods)]
    ttls = say.ttls(100, 500, 1000)
    json = b"\x60\x03"

    def id_of(id: int, side: int = 0) -> bytes:
        """Made in the millisecond of the upper bits, by one of many programs where frames vary."""
        program = conn << 40 | side << 32 | (0 if say.alike else id % 37)
        return b"\x09" + _UP_HEAD.pack(_UP_TIME + ((id >> 12) << 16 | id & 0xFFF), 0x11, 2 << 62 | program)

    def asked(id: int) -> bytes:
        return b"\x4a\x12" + id_of(id)

    def request(number: int, id: int, subject: int, ttl: int) -> bytes:
        more = b"" if say.alike or subject % 4 else field(b"\x52", b"token of %d" % conn)
        trace = say.trace(number)
        more += field(b"\x5a", trace) if trace else b""
        head = head_of(MessageType.REQUEST, app, methods[subject], 5 + subject % 3)
        return _up_frame(id_of(id), head, ttl, more + json, say.body(number))

    def response(number: int, id: int, subject: int) -> bytes:
        head = head_of(MessageType.RESPONSE, methods[subject], app, 5 + subject % 3)
        return _up_frame(id_of(id, 1), head, ttls[id % len(ttls)], asked(id) + json, say.body(number + 1))

    def error(id: int, subject: int) -> bytes:
        head, status = head_of(MessageType.RESPONSE, methods[subject], app, 5), b"\x40\x05"  # before the id of the request
        return _up_frame(id_of(id, 1), head, 500, status + asked(id) + b"\x60\x02", b"\x08\x05\x12\x05no %02x" % (id & 255))

    def publish(number: int, subject: int) -> bytes:
        head = head_of(MessageType.PUBLISH, topics[subject], None, 2)
        return _up_frame(id_of(number, 2), head, 0 if say.alike else number % 3 * 700, json, say.body(number))

    whole = _up_frame(id_of(1), head_of(MessageType.REQUEST, app, methods[0], 5), 100, json, b'{"n":1}')
    return Variant(
        protocol="up", options={}, subjects=tuple(map(str, methods)), ttls=ttls,
        junk=(
            (b"\xff\xff\xff", "bad_protobuf"), (whole[:-5], "bad_protobuf"),
            (whole.replace(b"vcu.vin", b"Vcu.vin"), "bad_protobuf"), (whole.replace(b"\x28\x05", b"\x28\x02"), "bad_field"),
            (whole.replace(b'{"n":1}', b'{"\xff":1}'), "bad_text"),
        ),
        request=request, response=response, error=error, publish=publish,
        key=lambda id, subject: uuid_text(read_uuid(id_of(id))),
    )  # fmt: skip


def variant(protocol: str, conn: int, *, alike: bool = True) -> Variant:
    say = Contents(alike)
    if protocol == "ubre":
        return (_ubre_json, _ubre_binary)[conn % 2](say)
    if protocol == "csb":
        return _csb_named(say) if conn % 4 == 1 else _csb(say, 40 + conn if conn % 4 == 3 else None)
    if protocol == "jrep":
        return _jrep(say)
    return _up(say, conn) if protocol == "up" else _uprotocol(say, ("json", "protobuf")[conn % 2], conn)


def options_text(variant: Variant) -> str:
    return json.dumps(variant.options, separators=(",", ":"))
