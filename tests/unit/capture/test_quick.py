"""What is read without a message in between is what the codec says."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from attrs import frozen

from polybus.capture.decoding.decoder import decode
from polybus.capture.decoding.frame_decoders import LIMITS, decoder_for
from polybus.capture.decoding.quick import quick_reader_for
from polybus.protocols.up.uuris import UUri, parse_uuri
from polybus.protocols.up.wire import head_of, write_message

from .generator import PROTOCOLS, traffic
from .rows import batch, read_alike, row


def _same(protocol: str, frames: list[bytes], options: str = "{}") -> None:
    read_alike(batch(*(row(seq, protocol=protocol, frame=frame, options=options) for seq, frame in enumerate(frames))))


@frozen
class Said:
    """Frames of one form: each place has values, and the first one is usual."""

    make: Callable[..., bytes]
    places: tuple[list[Any], ...]

    def each(self) -> list[bytes]:
        """What is made of each value in each place, with what is usual in the others."""
        usual = [values[0] for values in self.places]
        return [
            self.make(*usual[:place], value, *usual[place + 1 :])
            for place, values in enumerate(self.places)
            for value in values
        ]

    def some(self, chance: random.Random, count: int) -> list[bytes]:
        """What is made of values by chance: half of them are usual."""
        drawn = (
            [chance.choice(values) if chance.random() < 0.5 else values[0] for values in self.places] for _ in range(count)
        )
        return [self.make(*values) for values in drawn]


# -- JSON --------------------------------------------------------------------------------------------------------------------

_UUIDS = """
    01890f5e-7b2c-8000-b18d-3c2ad1f2f4f5 01890f5e-7b2c-8000-8123-456789abcdef 12890f5e-3c4d-8003-b123-456789abcdef
    01890f5e-7b2c-8000-b18d-3c2ad1f2f4f6 01890F5E-7b2c-8000-b18d-3c2ad1f2f4f5 01890f5e-7b2c-4000-b18d-3c2ad1f2f4f5
    01890f5e-7b2c-8000-c18d-3c2ad1f2f4f5
""".split()
"""The second is also what is put into the slots of what is remembered."""
_IDS = [*'1 a-b 7f ServerBus local a:b ö \\" \\u0041 \\u0001 :RespondTo'.split(), "", "a b", "x" * 36, "x" * 37, "x" * 300]
_BODIES = [*'{"n":1} 1 "s" null {} [1,[2]] {"ö":"ö"} {"a":"\\n"} {"a":"\\u0041"} 1,2 [3 4] " 1],[1 nan 1e999 01 { }'.split()]
_BODIES += ["", " 1", "1 ", "[ 1 ]", "9" * 400, *("[" * depth + "]" * depth for depth in (100, 127, 129, 250))]
_BODIES += """
    {"a":1}} {"body":1} {"id":"7"} {"ttl":5} {"subject":"x","body":{"y":1}} {"^EncodedType":"java.lang.Long","^NumVal":"5"}
    {"^ObjectID":"5"} "^" {"a":{"^EncodedType":"x"}}
""".split()
_NUMBERS = '1 5 250 987654321 999999999 1000000000 0 007 -1 5.0 1e3 "5" null 99999999999999999999'.split()

_UBRE = [
    '{"request":"a.b","id":"I","body":B}',
    '{"request":"a.b","id":"I","body":B,"ttl":T}',
    '{"request":"a.b","id":"I","ttl":T}',
    '{"request":"I","body":B}',
    '{"request":"a","id":"I","headers":{"id":"I"},"body":B}',
    '{"id":"I","request":"a.b","body":B}',
    '{"request":"a","body":B,"id":"I"}',
    '{"request":"a","id":"I","id":"7","body":B}',
    '{"request":"\\u0061","id":"I","body":B}',
    '{"request":"a","id":"\\I","body":B}',
    '{"success":"I","body":B}',
    '{"success":"I"}',
    '{"publish":"I","body":B}',
    '{"publish":"news.ö","body":B,"more":1}',
    '{"fail":"I","body":B,"code":5}',
    '{"fail":"I","body":B,"code":T}',
    '{"item":"I","body":B}',
    '{"publish":"a","headers":{"body":B}}',
    '{"publish":"a"body":B}',
]
_JREP = [
    '[{"ToSubject":"S","ReplyTo":"S:I:RespondTo:RPC","Value":B}]',
    '[{"ToSubject":"S","ReplyTo":"S:I:RespondTo:RPC","Value":B,"PolybusTtl":T}]',
    '[{"ToSubject":"S","ReplyTo":"I:RespondTo:RPC","ErrorTo":"S:I:Errors:RPC","Value":B}]',
    '[{"ToSubject":"S:I:RespondTo:RPC","Value":B}]',
    '[{"ToSubject":"I:RespondTo:RPC","Value":B}]',
    '[{"ToSubject":"S:I:Errors:RPC","ErrorMessage":"no","PolybusCode":5}]',
    '[{"ToSubject":"S:I:Errors:RPC","ErrorMessage":"no","Value":B,"PolybusCode":T}]',
    '[{"ToSubject":"news","Value":B}]',
    '[{"ToSubject":"I","Value":B}]',
    '[{"ToSubject":"S","ReplyTo":"S:I:RespondTo:RPC","PriorityProcessing":1,"Value":B}]',
    '[{"ToSubject":"S:RPC","CommandType":"get","ReplyTo":"S:I:RespondTo:RPC","MethodParms":[B]}]',
    '[{"ToSubject":"S","PolybusVerb":"item","PolybusId":"I","Value":B}]',
    '[{"ToSubject":"S","Value":B},{"ToSubject":"S:I:RespondTo:RPC","Value":B}]',
    '[{"ToSubject":"S","MethodParms":{"Value":B}}]',
    '[{"Value":B,"ToSubject":"S"}]',
    '[{"ToSubject":"S","Value":1,"Value":B}]',
    '[{"ToSubject":"S:I:Errors:RPC","Value":B}]',
    '[{"ToSubject":"S:RPC","ReplyTo":"I","Value":B}]',
    '[{"ToSubject":"S","ReplyTo":"r","ErrorTo":"I"}]',
    '[{"ToSubject":"local:I","Value":B}]',
    '[{"ToSubject":"I"}]',
    '[{"ToSubject":"news","Value":B,"PolybusTtl":T}]',
]
_GET, _ASKER = '"//v/b/1/rpc.Get"', '"//v/c/1/rpc.response"'
_ASKS = f'"type":"req.v1","source":{_ASKER},"sink":{_GET},"priority":"CS4","id":"I","ttl":T'
_ANSWERS = f'"type":"res.v1","source":{_GET},"sink":{_ASKER}'
_SAYS = '"type":"pub.v1","source":"//v/b/1/door#Door","id":"I"'
_EVENTS = [
    f'{{"specversion":"1.0",{members}}}'
    for members in (
        f'{_ASKS},"data_base64":"D"',
        _ASKS,
        f'{_ASKS},"token":"t","data_base64":"D"',
        f'{_ANSWERS},"priority":"CS4","id":"I","reqid":"I","data_base64":"D"',
        f'{_ANSWERS},"reqid":"I","id":"I","data_base64":"D"',
        f'{_ANSWERS},"id":"I","reqid":"I","commstatus":5',
        f'{_SAYS},"data_base64":"D"',
        f'{_SAYS},"datacontenttype":"text/plain","dataschema":"a","data_base64":"D"',
        f'{_SAYS},"datacontenttype":"application/json","dataschema":"a","data_base64":"D"',
        f'{_SAYS},"datacontenttype":"application/octet-stream","dataschema":"a","data_base64":"D"',
        f'{_SAYS},"id":"{_UUIDS[0]}","data_base64":"D"',
        f'{_SAYS},"data":B',
    )
]
_ANYS = [b"\n\x01a\x12\x01b", b"\n\x01a\x12\x02\xff\xfe", b"\n\x01\xff\x12\x01b", b"\n\x00\x12\x01b", b"\n\x01a\x12\x00", b""]
_ANYS += [b"x", b"\n\x01a\x12\x01b\x12\x01c", b'{"a":1}', b"\xff", b"\n\x01a\x12\x81\x01" + bytes(129)]
_ANYS += [b"\n%type.googleapis.com/google.rpc.Status\x12\x06\x08\x05\x12\x02no", b"\n\x12/google.rpc.Status\x12\x02\x08\x05"]
_ANYS += [b"\n\x80\x01" + b"a" * 128 + b"\x12\x01b", b"\n\x7f" + b"a" * 127 + b"\x12\x7f" + b"b" * 127]
_ANYS += [b"\n\x01a", b"\x12\x00\n\x01a", b"\n\x01a\x12\x80\x01" + bytes(128)]  # which are written otherwise than usual
_DATA = [base64.b64encode(one).decode() for one in _ANYS]
_DATA += ["C g=", *"CgFhEgFi\\n CgFhEgFi= CgFhEgF= CgFhEg== CgFhEh== ==== A=== Cg=A Cg-_ Cg ö".split()]


def _frame(template: str, *values: str) -> bytes:
    for name, value in zip("IBTD", values, strict=True):
        template = re.sub(f'(?<=[":[]){name}(?=[":,\\]}}])', value.replace("\\", r"\\"), template)
    return template.encode()


def _texts(templates: list[str], ids: list[str]) -> list[Said]:
    return [Said(partial(_frame, template), (ids, _BODIES, _NUMBERS, _DATA)) for template in templates]


# -- bytes -------------------------------------------------------------------------------------------------------------------

_NAMES = ["I\0a.b", 'I\0a.b\0{"ttl":5}', 'I\0a\0{"spec":true}', "I", "I\0", "I\0a\0", 'I\0{"code":5}', "\0I", "a\nb", "x" * 300]
_NAMES += ['a\0{"headers":{"b":"c"}}', ""]


def _ubre_binary(head: tuple[str, str], id: str, body: str, wrong: int) -> bytes:
    letter, name = head
    text, data = name.replace("I", id).encode(), body.encode()
    size = 2**32 - 1 if wrong == 0 else len(data) + (wrong == 1)
    frame = letter.encode() + len(text).to_bytes(2) + size.to_bytes(4) + text + data
    return frame[:5] if wrong == 2 else frame


def _csb(first: int, result: int, id: int, action: int, more: bytes, body: str, cut: int) -> bytes:
    named = more if action in (0xFFFF0005, 0xFFFF0006) else b""
    frame = bytes((first, result)) + id.to_bytes(2) + action.to_bytes(4) + named + body.encode()
    return frame[: 7 + cut] if cut < 12 else frame


def _csb_more(name: bytes, size: int | None, extras: bytes, ttl: int) -> bytes:
    return (len(name) if size is None else size).to_bytes(2) + len(extras).to_bytes(2) + ttl.to_bytes(4) + name + extras


_CSB_FIRST = [0x12, 0x10, 0x11, 0x13, 0x14, 0x19, 0x20, 0x22, 0x2A, 0x32, 0xD2, 0xF0]
_CSB_ACTIONS = [0x10001, 0, 1, 0xFFFEFFFF, 0xFFFF0000, 0xFFFF0004, 0xFFFF0009, 0xFFFFFFFF]
_CSB_NAMED = [0xFFFF0005, 0xFFFF0006]
_CSB_MORE = Said(
    _csb_more,
    (
        [b"a", b"", b"news.\xc3\xb6", b"\xff", b"a\nb", b"x" * 2000],
        [None, 0, 3, 0xFFFE, 0xFFFF],
        [b"", b"{}", b'{"headers":{"a":"b"}}', b"["],
        [0xFFFFFFFF, 0, 9, 0xFFFFFFFE],
    ),
).each()
_CSB = [
    Said(_csb, (_CSB_FIRST, [0, 1, 0xC9], [0, 1, 0xFFFF], [action], _CSB_MORE, _BODIES, [60, *range(12)]))
    for action in (*_CSB_ACTIONS, *_CSB_NAMED)
]


def _field(tag: int, value: bytes) -> bytes:
    size = len(value)
    return bytes((tag,)) + (bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))) + value


def _attribute(name: bytes, value: bytes, kind: int = 0x1A) -> bytes:
    return _field(0x2A, _field(10, name) + _field(0x12, _field(kind, value)))


def _kind(name: bytes, source: bytes, *attributes: bytes, version: bytes = b"1.0") -> bytes:
    said = _field(0x1A, version) if version else b""
    return _field(0x12, source) + said + _field(0x22, name) + b"".join(attributes)


_TOPIC, _LIVES = b"//v/b/1/door#Door", b"*\n\n\x03ttl\x12\x03\x10\xf4\x03"
_TO_GET, _TO_ASKER = (_attribute(b"sink", sink, 0x32) for sink in (b"//v/b/1/rpc.Get", b"//v/c/1/rpc.response"))
_KINDS = [
    _kind(b"req.v1", b"//v/c/1/rpc.response", _TO_GET, _attribute(b"priority", b"CS4"), _LIVES),
    _kind(b"res.v1", b"//v/b/1/rpc.Get", _TO_ASKER),
    _kind(b"pub.v1", _TOPIC),
    _kind(b"pub.v1", _TOPIC, version=b""),
    *(
        _kind(b"pub.v1", _TOPIC, _attribute(b"datacontenttype", content), _attribute(b"dataschema", b"a", 0x32))
        for content in (b"application/octet-stream", b"text/plain")
    ),
]


def _event(id: str, kind: bytes, reqid: str, more: bytes, tag: int, data: bytes, end: bytes) -> bytes:
    asked = _attribute(b"reqid", reqid.encode()) if reqid else b""
    return b"".join((_field(10, id.encode()), kind, asked, more, _field(tag, data) if tag else b"", end))


_PROTOBUF = [
    Said(
        _event,
        (
            _UUIDS,
            [kind],
            [_UUIDS[0] if kind == _KINDS[1] else "", *_UUIDS, ""],
            [b"", _attribute(b"token", b"t"), _field(10, _UUIDS[0].encode())],
            [0x42, 0, 0x32, 0x3A],
            _ANYS,
            [b"", b"\x42", b"x"],
        ),
    )
    for kind in _KINDS
]

_UP_IDS = [
    b"\x09" + bytes.fromhex(first) + b"\x11" + bytes.fromhex(second)
    for first in ("00707b68e5cf8b01", "05707b68e5cf8b01", "0040000000000000")
    for second in ("1a1a101010101080", "ffffffffffffffbf", "1a1a101010101000")
]
_UP_IDS += [b"\x11" + _UP_IDS[0][10:] + _UP_IDS[0][:9], _UP_IDS[0][:9], b"", b"\x09" + bytes(8) + b"\x19" + bytes(8)]
_UP_ADDRESSES = [
    *map(parse_uuri, "//car/10AB/3/0 //car/10AB/3/7 //car/10AB/3/8007 //phone/CD/4/0 /1/1/8001 //*/FFFFFFFF/FF/FFFF".split()),
    *(UUri("a" * 126, 0xFFFF_FFFE, 3, resource) for resource in (7, 0)),
]
_USUAL_HEADS = [
    head_of(2, _UP_ADDRESSES[3], _UP_ADDRESSES[1], 5),
    head_of(3, _UP_ADDRESSES[1], _UP_ADDRESSES[3], 5),
    head_of(1, _UP_ADDRESSES[2], None, 2),
    head_of(4, _UP_ADDRESSES[2], _UP_ADDRESSES[3], 0),
]
_UP_TAILS = [b"", b"\x60\x03", b"\x60\x01", b"\x60\x06", b"\x60\x07", b"\x60\x02", b"\x60\x09", b"\x60\x80\x01", b"\x60"]
_UP_TAILS += [b"\x52\x01t\x60\x03", b"\x52\x01\xff\x60\x03", b"\x60\x03\x60\x06", b"\x62\x01a\x60\x03"]
_UP_TAILS += [b"\x60\x03\x10\x01", b"\x60\x03\x30\x05", b"\x0a\x12" + _UP_IDS[1] + b"\x60\x03", b"\xf8\x01\x07\x60\x03"]
_TRACES = [b"a-b", b"", *(b"00-%b-%016x-01" % (trace * 32, span) for trace, span in ((b"1", 7), (b"0", 7), (b"1", 0)))]
_UP_TAILS += [_field(0x5A, trace) + b"\x60\x03" for trace in _TRACES]
_UP_ENDS = [b"", b"\x12", b"x", b"\x12\x01y", b"\x0a\x02\x60\x03"]
_UP_STATUS = [b"", b"", b"", b"\x38\x07", b"\x40\x00", b"\x40\x05", b"\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
_UP_TTLS = [b"\x30" + ttl for ttl in (b"\x05", b"\xe8\x07", b"\x00", b"\xff" * 4 + b"\x0f", b"\xff" * 4 + b"\x1f", b"\x80")]
_UP_PAYLOADS = [None, b"", b"1", b'{"a":1}', b'{"\xc3\xb6":1}', b'{"\xff":1}', b"[" * 300 + b"]" * 300, b"[" * 120 + b"]" * 120]
_UP_PAYLOADS += [b"\n\x01a\x12\x01b", b"\x08\x05\x12\x02no", b"x" * 200, b"\x0a", b"{"]


def _umessage(
    id: bytes, head: bytes, ttl: bytes, status: bytes, reqid: bytes, tail: bytes, payload: bytes | None, end: bytes
) -> bytes:
    asked = b"\x4a" + bytes((len(reqid),)) + reqid if reqid else b""
    attributes = b"\x0a" + bytes((len(id),)) + id + head + ttl + status + asked + tail
    return write_message(attributes, payload) + end


def _umessages(head: bytes) -> Said:
    reqids = [_UP_IDS[0], b"", *_UP_IDS[1:]] if head == _USUAL_HEADS[1] else [b"", *_UP_IDS]
    payloads, tails = [b'{"a":1}', *_UP_PAYLOADS], [b"\x60\x03", *_UP_TAILS]
    return Said(_umessage, (_UP_IDS, [head], [*_UP_TTLS, b""], _UP_STATUS, reqids, tails, payloads, _UP_ENDS))


_UP = [_umessages(head) for head in _USUAL_HEADS]
_HEADS = Said(head_of, ([*range(6)], [_UP_ADDRESSES[1], None, *_UP_ADDRESSES], [None, *_UP_ADDRESSES], [5, 0, 1, 2, 7, 8, 200]))


def _damaged(frame: bytes, chance: random.Random) -> list[bytes]:
    """It cut at some place, with another byte there, and without that byte."""
    place = chance.randrange(81)
    front, rest = frame[:place], frame[place + 1 :]
    return [front, front + chance.randbytes(1) + rest, front + rest]


# -- the same --------------------------------------------------------------------------------------------------------------

BINARY = '{"format":"binary"}'
WIRES: dict[str, tuple[str, list[Said], list[str]]] = {
    "ubre in JSON": ("ubre", _texts(_UBRE, [*_IDS, *_UUIDS]), ["{}", '{"format":"any"}']),
    "ubre in binary": (
        "ubre",
        [Said(_ubre_binary, ([*product("RsPfISUCOKEz", _NAMES)], [*_IDS, *_UUIDS[:3]], _BODIES, [3, 2, 1, 0]))],
        [BINARY, '{"format":"any"}', '{"format":"binary","body":"raw"}'],
    ),
    "csb": ("csb", _CSB, ['{"actions":{"one":65537}}', "{}"]),
    "csb of a broker": (
        "csb",
        [Said(lambda *values: b"\xff\0\0\7" + _csb(*values), one.places) for one in _CSB],
        ['{"side":"broker-server"}'],
    ),
    "jrep": ("jrep", _texts(_JREP, [*_IDS, *_UUIDS]), ["{}", '{"types":"strict"}', '{"values":"plain"}']),
    "uprotocol in JSON": ("uprotocol", _texts(_EVENTS, [*_UUIDS, "1", ""]), ["{}", '{"mode":"lenient"}', ""]),
    "uprotocol in protobuf": (
        *("uprotocol", _PROTOBUF),
        ['{"format":"protobuf"}', '{"format":"protobuf","mode":"lenient"}', ""],
    ),
    "up": ("up", [*_UP, *map(_umessages, _HEADS.some(random.Random(3), 40))], ["{}"]),
}


@pytest.mark.parametrize("wire", WIRES)
def test_each_value_in_each_place_and_any_together_are_read_as_the_codec_reads_them(wire: str) -> None:
    protocol, forms, options = WIRES[wire]
    _same(protocol, [frame for form in forms for frame in form.each()], options[0])
    chance = random.Random(wire)
    for text in options:
        for form in chance.sample(forms, min(len(forms), 12)):
            frames = form.some(chance, 12)
            _same(protocol, frames * 2, text)  # so that most of them are like one that was read before


def test_umessages_that_are_damaged_are_read_as_the_codec_reads_them() -> None:
    chance = random.Random(11)
    for form in _UP:
        _same("up", [damaged for frame in form.some(chance, 60) for damaged in (frame, *_damaged(frame, chance))])


@pytest.mark.parametrize("after", [b"", b' {"x":"%s"}'])
def test_a_name_that_is_as_long_as_a_name_may_be_is_left_to_the_codec(after: bytes) -> None:
    def frame(number: int) -> bytes:
        name = b"%d\0" % number + (after % (b"y" * 65_490) if after else b"a" * 65_501)
        return b"R" + len(name).to_bytes(2) + bytes(4) + name

    usual = b"P\0\1\0\0\0\0x"
    _same("ubre", [frame(0), frame(1), *[usual] * 20], '{"format":"any"}')


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_usual_traffic_is_read_alike_and_hardly_anything_of_it_is_left_to_the_codec(protocol: str, alike: bool) -> None:
    rows = traffic(1_500, protocols=(protocol,), alike=alike).table.combine_chunks().to_batches()[0]
    read_alike(rows.slice(0, 600))
    said = zip(rows["frame"].to_pylist(), rows["options"].to_pylist(), strict=True)
    quick = [(decoder_for(protocol, options).quick, frame) for frame, options in said if frame is not None]
    read = sum(reader is not None and reader(frame) is not None for reader, frame in quick)
    assert read > 0.93 * decode(rows).events.num_rows


def test_there_is_none_for_plugins_and_for_strict_types() -> None:
    assert quick_reader_for("mqtt", None, None, {}, LIMITS) is None
    assert decoder_for("jrep", '{"types":"strict"}').quick is None
