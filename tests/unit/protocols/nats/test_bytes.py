"""The bytes of the operations, both directions: what each means, and that writing it gives the same bytes.

Then what holds for all messages, for all bytes and for all ways of cutting them.
"""

import itertools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polybus._util.typed_body import typed_body
from polybus.body import JSON, OCTETS, BodyFormat
from polybus.errors import Code, EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.protocols import Jrep, Nats
from polybus.protocols.csb.bodies import BASE64_FORMAT
from polybus.protocols.nats.operations import LINE, NatsCutter, NatsFraming
from tests.unit.protocols.strategies import NUMBERS, TEXT, TTLS, values

CODEC = Nats().codec()


def read(frame: bytes, codec: Any = CODEC) -> Message:
    [message] = codec.decode(frame)
    assert isinstance(message, Message)
    return message


def with_block(names: bytes, block: bytes, payload: bytes = b"") -> bytes:
    """HPUB or HMSG, with the lengths that are right."""
    return b"%b %d %d\r\n%b%b\r\n" % (names, len(block), len(block) + len(payload), block, payload)


def with_headers(names: str, lines: bytes, payload: bytes = b"") -> bytes:
    return with_block(names.encode(), b"NATS/1.0\r\n" + lines + b"\r\n\r\n", payload)


# What clients say: frame, kind, subject, id, body, headers, ttl.
CLIENTS: list[tuple[bytes, Kind, str, Any, Any, Any, Any]] = [
    (b"PUB news 0\r\n\r\n", Kind.PUBLISH, "news", None, None, None, None),
    (b'PUB news.today 9\r\n{"a":[1]}\r\n', Kind.PUBLISH, "news.today", None, {"a": [1]}, None, None),
    (b"PUB news 4\r\nnull\r\n", Kind.PUBLISH, "news", None, None, None, None),
    (b"PUB news 2\r\n\x00\xff\r\n", Kind.PUBLISH, "news", None, b"\x00\xff", None, None),
    (b"PUB news 4\r\n\r\n\r\n\r\n", Kind.PUBLISH, "news", None, b"\r\n\r\n", None, None),
    ("PUB grüße.heute 1\r\n7\r\n".encode(), Kind.PUBLISH, "grüße.heute", None, 7, None, None),
    (with_headers("HPUB news", b"X-A: b", b"7"), Kind.PUBLISH, "news", None, 7, {"X-A": "b"}, None),
    (b'PUB user.get _INBOX.ab.1 8\r\n{"id":7}\r\n', Kind.REQUEST, "user.get", "_INBOX.ab.1", {"id": 7}, None, None),
    (with_headers("HPUB a r.1", b"Polybus-Ttl: 1500"), Kind.REQUEST, "a", "r.1", None, None, 1.5),
    (b"PUB _INBOX.ab.1 1\r\n7\r\n", Kind.RESPONSE, "", "_INBOX.ab.1", 7, None, None),
]


@pytest.mark.parametrize(("frame", "kind", "subject", "id", "body", "headers", "ttl"), CLIENTS)
def test_what_clients_say_is_read_and_written(
    frame: bytes, kind: Kind, subject: str, id: Any, body: Any, headers: Any, ttl: Any
) -> None:
    message = read(frame)
    assert (message.kind, message.subject, message.id) == (kind, subject, id)
    assert (message.body, message.headers, message.ttl) == (body, headers, ttl)
    if body != b"\r\n\r\n":  # which is marked as bytes
        assert CODEC.encode([message]) == frame


def test_bytes_that_could_be_json_are_marked_and_come_back_as_bytes() -> None:
    assert [typed_body(read(b"PUB a 0\r\n\r\n"), kind) for kind in (bytes, bytes | None, Any)] == [b"", None, None]
    raws = (b"", b"7", b"null", b"[not JSON", b'"', b"\r\n", b" ")
    formats: tuple[BodyFormat, ...] = (OCTETS, BASE64_FORMAT, Jrep().codec(Limits()).formats[0])  # its own and those of bridges
    for raw, near in itertools.product(raws, formats):
        frame = CODEC.encode([Message(Kind.PUBLISH, "a", None, near.encode(raw), near)])
        assert b"Polybus-Body: bytes" in frame
        again = read(frame)
        assert (again.body, again.headers, again.format) == (raw, None, OCTETS)
    assert CODEC.encode([Message(Kind.PUBLISH, "a", None, b"\x00", OCTETS)]) == b"PUB a 1\r\n\x00\r\n"


@pytest.mark.parametrize("raw", [b"hello", b"[hello", b"{", b"\x80", b"1 2", b"NaN", b"[" * 1000 + b"]" * 1000, b'"\xff"'])
def test_what_is_no_json_is_bytes(raw: bytes) -> None:
    message = read(b"PUB a %d\r\n%b\r\n" % (len(raw), raw))
    assert (message.body, message.format) == (raw, OCTETS)


# What servers say: frame, kind, subject, id, body, attributes.
SERVERS: list[tuple[bytes, Kind, str, Any, Any, dict[str, Any]]] = [
    (b"MSG news.today 2 1\r\n7\r\n", Kind.PUBLISH, "news.today", None, 7, {"sid": "2"}),
    (b"msg news.today 2 1\r\n7\r\n", Kind.PUBLISH, "news.today", None, 7, {"sid": "2"}),
    (b"MSG\tnews  2\t0\r\n\r\n", Kind.PUBLISH, "news", None, None, {"sid": "2"}),
    (b"MSG user.get 3 r.1 2\r\n[]\r\n", Kind.REQUEST, "user.get", "r.1", [], {"sid": "3"}),
    (with_headers("HMSG news 2", b"A: b", b"7"), Kind.PUBLISH, "news", None, 7, {"sid": "2"}),
    (b"MSG _INBOX.ab.1 1 1\r\n7\r\n", Kind.RESPONSE, "", "_INBOX.ab.1", 7, {}),
    (b"PING\r\n", Kind.CONTROL, "PING", None, None, {}),
    (b"PONG\r\n", Kind.CONTROL, "PONG", None, None, {}),
    (b"+OK\r\n", Kind.CONTROL, "OK", None, None, {}),
    (b"-ERR 'Stale Connection'\r\n", Kind.CONTROL, "ERR", None, None, {"text": "Stale Connection"}),
    (b'INFO {"server_id":"x","max_payload":7}\r\n', Kind.CONTROL, "INFO", None, {"server_id": "x", "max_payload": 7}, {}),
    (b'CONNECT {"verbose":false}\r\n', Kind.CONTROL, "CONNECT", None, {"verbose": False}, {}),
    (b"SUB news.* 2\r\n", Kind.SUBSCRIBE, "news.*", None, None, {"sid": "2"}),
    (b"SUB user.get q 3\r\n", Kind.SUBSCRIBE, "user.get", None, None, {"sid": "3", "handler": True, "queue": "q"}),
    (b"UNSUB 3\r\n", Kind.UNSUBSCRIBE, "", None, None, {"sid": "3"}),
    (b"UNSUB 3 5\r\n", Kind.UNSUBSCRIBE, "", None, None, {"sid": "3", "most": 5}),
]


@pytest.mark.parametrize(("frame", "kind", "subject", "id", "body", "attributes"), SERVERS)
def test_what_servers_say_is_read(
    frame: bytes, kind: Kind, subject: str, id: Any, body: Any, attributes: dict[str, Any]
) -> None:
    message = read(frame)
    assert (message.kind, message.subject, message.id) == (kind, subject, id)
    assert (message.body, message.attributes) == (body, attributes)


def service_error(number: str, *more: str) -> bytes:
    lines = ["NATS/1.0", "Nats-Service-Error: no", f"Nats-Service-Error-Code: {number}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


ERRORS: list[tuple[bytes, bytes, Code, str | None, Any]] = [
    (b"NATS/1.0 503\r\n\r\n", b"", Code.UNIMPLEMENTED, None, None),
    (b"NATS/1.0 503 No Responders Available\r\n\r\n", b"", Code.UNIMPLEMENTED, None, None),
    (b"NATS/1.0 404 No Messages\r\n\r\n", b"", Code.NOT_FOUND, None, {"status": 404}),
    (b"NATS/1.0 408\r\n\r\n", b"", Code.DEADLINE_EXCEEDED, None, {"status": 408}),
    (b"NATS/1.0 999 strange\r\n\r\n", b"", Code.UNKNOWN, None, {"status": 999}),
    (service_error("5"), b"", Code.NOT_FOUND, None, None),
    (service_error("8", "Polybus-Reason: too_large"), b'{"a":1}', Code.RESOURCE_EXHAUSTED, "too_large", {"a": 1}),
    (service_error("5", 'Polybus-Reason: "\\"odd\\"\\nreason"'), b"", Code.NOT_FOUND, '"odd"\nreason', None),
    (service_error("400"), b"why", Code.INVALID_ARGUMENT, None, {"status": 400, "body": b"why"}),
    (service_error("404"), b'"x"', Code.NOT_FOUND, None, {"status": 404, "body": "x"}),
    (service_error("413"), b"", Code.RESOURCE_EXHAUSTED, "too_large", {"status": 413}),
    (service_error("500"), b"", Code.INTERNAL, None, {"status": 500}),
    (service_error("503"), b"", Code.UNAVAILABLE, None, {"status": 503}),
    (service_error("0"), b"", Code.UNKNOWN, None, {"status": "0"}),
    (service_error("-1"), b"", Code.UNKNOWN, None, {"status": "-1"}),
    (service_error("99999999"), b"", Code.UNKNOWN, None, {"status": "99999999"}),
    (b"NATS/1.0\r\nnats-service-error: no code\r\n\r\n", b"", Code.INTERNAL, None, {"status": 500}),
]


@pytest.mark.parametrize(("block", "payload", "code", "reason", "detail"), ERRORS)
def test_answers_that_are_errors(block: bytes, payload: bytes, code: Code, reason: str | None, detail: Any) -> None:
    message = read(with_block(b"HMSG _INBOX.a.1 1", block, payload))
    assert (message.kind, message.id, message.code) == (Kind.ERROR, "_INBOX.a.1", code)
    assert (message.attributes["reason"], message.attributes["detail"]) == (reason, detail)
    assert isinstance(message.attributes["text"], str)


BAD: dict[str, list[bytes]] = {
    "bad_length": [
        *(b"", b"PING", b"MSG a 2 5\r\nhell\r\n", b"MSG a 2 5\r\nhello!\r\n", b"MSG a 2 5\r\nhello", b"MSG a 2 5\r\nhelloxx"),
    ],
    "unknown_type": [b"\r\n", b"HELO x\r\n"],
    "too_large": [b"MSG a 2 5\r\n"],
    "malformed": [
        *(b"PING\r\nPING\r\n", b"MSG a 5\r\nhello\r\n", b"MSG a 2 r x 5\r\nhello\r\n", b"MSG a 2 -5\r\nhello\r\n"),
        *(b"MSG a 2 5x\r\nhello\r\n", b"MSG a 2. 5\r\nhello\r\n", b"HMSG a 2 9 5\r\nhello\r\n"),
        *(b"INFO\r\n", b"INFO {\r\n", b"INFO []\r\n", b"INFO " + b'{"a":' * 5000 + b"}" * 5000 + b"\r\n"),
        *(b"SUB a\r\n", b"SUB a q 1 2\r\n", b"UNSUB\r\n", b"UNSUB 1 x\r\n"),
    ],
    "invalid_subject": [
        *(b"MSG %b 2 5\r\nhello\r\n" % subject for subject in (b"a..b", b".a", b"a.", b"a\x01", b"\xff", b"a" * 1025)),
        *(b"MSG a\x0b2 3 1\r\n7\r\n", b"HMSG a\x0c2 3 12 12\r\nNATS/1.0\r\n\r\n\r\n"),
    ],
}


@pytest.mark.parametrize(("frame", "reason"), [(frame, reason) for reason, frames in BAD.items() for frame in frames])
def test_bad_frames_are_refused_with_a_reason(frame: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        CODEC.decode(frame)
    assert caught.value.reason == reason
    # Publishers choose subjects and sizes. Whatever else is wrong no server writes: the connection has lost count.
    assert caught.value.close_code == (None if reason in ("invalid_subject", "too_large") else 1002)


# Blocks of headers in which something is odd: the headers that can be read, and a word of why others are left out.
ODD: list[tuple[bytes, dict[str, str], str]] = [
    (b"hello", {}, "first line"),
    (b"NATS/1.1\r\nA: b\r\n\r\n", {}, "first line"),
    (b"NATS/1.0 503Text\r\nA: b\r\n\r\n", {}, "first line"),
    (b"NATS/1.0\r\nA: b", {"A": "b"}, ""),
    (b"NATS/1.0\r\nA: b\r\n\r\nB: c\r\n", {"A": "b", "B": "c"}, ""),
    (b"NATS/1.0\r\nA: K\xf6ln\r\nB: K\xc3\xb6ln\r\n\r\n", {"A": "Köln", "B": "Köln"}, ""),
    (b"NATS/1.0\r\nA\r\nB: c\r\n\r\n", {"B": "c"}, "not b'A'"),
    (b"NATS/1.0\r\n: b\r\nB: c\r\n\r\n", {"B": "c"}, "not b': b'"),
    (b"NATS/1.0\r\nA : b\r\nB: c\r\n\r\n", {"B": "c"}, "not b'A : b'"),
    (b"NATS/1.0\r\nMy Key: b\r\nB: c\r\n\r\n", {"B": "c"}, "not b'My Key: b'"),
    (b"NATS/1.0\r\nb\xc3\xa4d: b\r\nB: c\r\n\r\n", {"B": "c"}, "a header must be"),
    (b"NATS/1.0\r\nA: b\r\n folded: on\r\n\r\n", {"A": "b"}, "folded"),
    (b"NATS/1.0\r\nA: \x00\r\nB: c\r\n\r\n", {"B": "c"}, "NUL"),
    (b"NATS/1.0\r\nA: x\ny: z\r\nB: c\r\n\r\n", {"B": "c"}, "LF"),
    (b"NATS/1.0\r\nA: x\ry\r\nB: c\r\n\r\n", {"B": "c"}, "CR"),
    (b"NATS/1.0\r\nA: 1\r\nB: " + b"x" * 90 + b"\r\nC: 2\r\n\r\n", {"A": "1", "C": "2"}, "limit: headers"),
    (b"NATS/1.0\r\n" + b"\r\n" * 5000 + b"A: 1\r\n\r\n", {}, "lines of headers"),
    (b"NATS/1.0\r\nPolybus-Ttl: \xff\r\nNats-Msg-Id: 7\r\n\r\n", {"Nats-Msg-Id": "7"}, ""),
]


@pytest.mark.parametrize(("block", "headers", "why"), ODD)
def test_an_odd_header_costs_itself_and_never_the_message(block: bytes, headers: dict[str, str], why: str) -> None:
    message = read(with_block(b"HMSG a 2 r", block, b"7"), Nats().codec(Limits(headers=80)))
    assert (message.kind, message.body, message.headers or {}) == (Kind.REQUEST, 7, headers)
    assert why in message.attributes.get("left_out", "")
    assert bool(why) == ("left_out" in message.attributes)


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        *((Message(Kind.PUBLISH, subject), LocalProtocolError, "empty token") for subject in ("", "a..b", "a.", ".a")),
        *((Message(Kind.PUBLISH, subject), LocalProtocolError, "blank") for subject in ("a b", "a\tb", "a\r\nPUB x 0")),
        *((Message(Kind.PUBLISH, subject), LocalProtocolError, "pattern") for subject in ("a.*", "a.>")),
        (Message(Kind.PUBLISH, "a\x00"), LocalProtocolError, "control"),
        (Message(Kind.PUBLISH, "\ud800"), LocalProtocolError, "surrogate"),
        (Message(Kind.PUBLISH, "x" * 1025), LocalProtocolError, "limit: subject"),
        (Message(Kind.PUBLISH, 7), Unsupported, "number"),
        (Message(Kind.REQUEST, "a", "no inbox"), LocalProtocolError, "id of a request"),
        (Message(Kind.RESPONSE, "", None), LocalProtocolError, "id of a request"),
        (Message(Kind.SUBSCRIBE, "a"), Unsupported, "subscribe"),
        *((Message(Kind.PUBLISH, "a", headers={name: "c"}), LocalProtocolError, "header") for name in ("a b", "a:")),
        (Message(Kind.PUBLISH, "a", headers={"a": "c\r\nb: d"}), LocalProtocolError, "CR"),
        (Message(Kind.PUBLISH, "a", headers={"a": "\ud800"}), LocalProtocolError, "surrogate"),
        *((Message(Kind.PUBLISH, "a", headers={"a": value}), LocalProtocolError, "strip it") for value in (" lead", "trail\t")),
        (Message(Kind.PUBLISH, "a", headers={"polybus-ttl": "1"}), LocalProtocolError, "reserved"),
        (Message(Kind.OPEN, "a", 1), Unsupported, "streams"),
        (Message(Kind.CANCEL, "a", 1), Unsupported, "cancel"),
        (Message(Kind.CONTROL, "PING"), Unsupported, "control"),
        (Message(Kind.ERROR, "", "r", code=Code.ABORTED, attributes={"detail": object()}), EncodeError, "object"),
        (Message(Kind.PUBLISH, "a", body=object()), EncodeError, "object"),
    ],
)
def test_what_has_no_form_is_not_written(message: Message, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        CODEC.encode([message])


def test_one_operation_holds_one_message_json_as_it_is_and_no_headers_over_the_limit() -> None:
    with pytest.raises(Unsupported):
        CODEC.encode([])
    raw = b'{ "a" : 1 }'
    assert raw in CODEC.encode([Message(Kind.PUBLISH, "a", None, raw, JSON)])
    with pytest.raises(LocalProtocolError, match="limit: headers"):
        Nats().codec(Limits(headers=100)).encode([Message(Kind.PUBLISH, "a", headers={"A": "x" * 101})])


def test_the_memories_of_a_reader_are_bounded() -> None:
    codec = Nats().codec(Limits(subject=99))  # one of its own
    for number in range(5000):
        codec.decode(with_headers(f"HMSG a.{number} 2", b"A: %d" % number))
        assert len(codec.reader.headers.known) <= 512
    assert len(codec.reader._names) <= 4096


def test_headers_that_are_remembered_are_not_shared() -> None:
    frame = with_headers("HMSG a 2", b"A: b")
    first, second = read(frame), read(frame)
    assert first.headers == {"A": "b"}
    first.headers["A"] = "changed"
    assert second.headers == read(frame).headers == {"A": "b"}


def test_a_header_that_stands_twice_has_both_values_and_own_fields_any_case() -> None:
    message = read(with_headers("HMSG a 2", b"A: 1\r\nA: 2\r\npolybus-TTL:\t7 \r\nB:  two blanks \t"))
    assert (message.headers, message.ttl) == ({"A": "1, 2", "B": "two blanks"}, 0.007)


@pytest.mark.parametrize("given", ["", "x", "-1", "1.5", "9" * 17, "²"])
def test_a_deadline_that_is_no_number_is_none(given: str) -> None:
    assert read(with_headers("HMSG a 2 r", f"Polybus-Ttl: {given}".encode())).ttl is None


STREAM = [
    b'INFO {"max_payload":1048576}\r\n',
    b"PING\r\n",
    b"MSG a 2 5\r\nhello\r\n",
    b"MSG a 2 0\r\n\r\n",
    b"HMSG a 2 12 14\r\nNATS/1.0\r\n\r\n\r\n\r\n",
    b"-ERR 'x'\r\n",
    b"PUB a 4\r\n\r\n\r\n\r\n",
    b"MSG a 2 10000\r\n" + b"y" * 10_000 + b"\r\n",
    b"PONG\r\n",
]


def cutter(limit: int = 1 << 20, *, plain: bool = False) -> NatsCutter:
    return NatsCutter(limit, plain=plain)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 1000, 100_000])
def test_the_same_operations_come_out_however_the_stream_comes_in(size: int) -> None:
    data, cuts = b"".join(STREAM), cutter()
    frames = [frame for start in range(0, len(data), size) for frame in cuts.feed(data[start : start + size])]
    assert frames == STREAM
    assert (cuts.partial, cuts.arrived, cuts.broken) == ("", 0, None)


def test_what_is_there_of_an_operation_is_told() -> None:
    cuts = cutter()
    assert cuts.feed(b"PI") == []
    assert (cuts.partial, cuts.arrived) == ("2 bytes of a line", 2)
    assert cuts.feed(b"NG\r\nMSG a 2 5\r\nhe") == [b"PING\r\n"]
    assert (cuts.partial, cuts.arrived) == ("13 of 18 bytes", 13)
    assert cuts.feed(b"llo\r\n") == [b"MSG a 2 5\r\nhello\r\n"]


@pytest.mark.parametrize("size", [1, 5, 4096, 100_000])
def test_a_payload_over_the_limit_is_left_out_and_the_rest_comes(size: int) -> None:
    cuts = cutter(1000)
    data = b"MSG a 2 3000\r\n" + b"PING\r\n" * 500 + b"\r\n" + b"MSG a 2 1000\r\n" + b"x" * 1000 + b"\r\nPING\r\n"
    frames, most = list[bytes](), 0
    for start in range(0, len(data), size):
        frames += cuts.feed(data[start : start + size])
        most = max(most, cuts.arrived)
    assert frames == [b"MSG a 2 3000\r\n", b"MSG a 2 1000\r\n" + b"x" * 1000 + b"\r\n", b"PING\r\n"]
    assert most <= 1100


@pytest.mark.parametrize(
    ("data", "text"),
    [
        *((b"MSG%b\r\n" % rest, "does not end with a length") for rest in (b" a 2 x", b"", b" a 2 99999999999", b" a 2 -1")),
        *((b"x" * (LINE + 1) + end, "a line of more than") for end in (b"", b"\r\n")),
    ],
)
def test_what_cannot_be_cut_breaks_the_stream_after_what_came_before(data: bytes, text: str) -> None:
    cuts = cutter()
    assert cuts.feed(b"PING\r\n" + data + b"PING\r\n") == [b"PING\r\n"]
    assert cuts.broken is not None
    assert text in cuts.broken.text
    assert cuts.broken.close_code is not None
    assert cuts.feed(b"PING\r\n") == []


def test_a_server_that_wants_tls_hears_nothing_in_plain() -> None:
    info = b'INFO {"tls_required":true}\r\n'
    plain = cutter(plain=True)
    assert plain.feed(info) == []
    assert plain.broken is not None
    assert "nats+tls://" in plain.broken.text
    assert cutter().feed(info) == [info]
    for other in (b'INFO {"tls_available":true}\r\n', b"INFO {\r\n", b"PING\r\n"):
        assert cutter(plain=True).feed(other) == [other]
    assert NatsFraming().cutter(Limits(), "tls").feed(info) == NatsFraming().cutter(Limits(), "ws").feed(info) == [info]


def test_the_first_words_of_a_server_before_tls() -> None:
    preface = NatsFraming().plain_preface
    info = b'INFO {"tls_required":true}\r\n'
    assert [preface(data) for data in (b"", info[:7], info[:-1], info, info + b"more")] == [0, 0, 0, len(info), len(info)]
    assert preface(b'INFO {"tls_available":true}\r\n')
    for wrong in (b"INFO {}\r\n", b"INFO x\r\n", b"HTTP/1.1 400\r\n", b"\r\n"):
        with pytest.raises(RemoteProtocolError):
            preface(wrong)
    assert NatsFraming(tls_first=True).plain_preface(b"") is None


TOKENS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=" \x7f.*>", min_codepoint=0x21), min_size=1, max_size=12
)
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join).filter(lambda name: not name.startswith("_INBOX"))
NAMES = st.text("abcXYZ019-_", min_size=1, max_size=12)
LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x00"), max_size=30).map(
    lambda text: text.strip(" \t")
)
HEADERS = st.none() | st.dictionaries(NAMES, LINES, min_size=1, max_size=4)
VALUES = values(st.booleans() | NUMBERS | TEXT, within=st.none())
BODIES = VALUES | st.binary(min_size=1, max_size=40)
INBOXES = st.from_regex(r"_INBOX\.[A-Za-z0-9]{1,20}\.[a-z0-9]{1,12}", fullmatch=True)


def written(kind: Kind, subject: str, id: Any, body: Any, headers: Any, ttl: Any = None) -> Message:
    message = Message(kind, subject, id, headers=headers, ttl=ttl)
    message.format = CODEC.format_for(body, subject)
    message.raw = message.format.encode(body)
    return message


def comes_back(message: Message) -> None:
    again = read(CODEC.encode([message]))
    assert (again.kind, again.subject, again.id) == (message.kind, message.subject, message.id)
    assert again.body == message.body
    assert (again.headers or None, again.ttl) == (message.headers, message.ttl)


@given(SUBJECTS, INBOXES, BODIES, HEADERS, st.none() | TTLS)
def test_publications_requests_and_responses_come_back(subject: str, inbox: str, body: Any, headers: Any, ttl: Any) -> None:
    comes_back(written(Kind.PUBLISH, subject, None, body, headers))
    comes_back(written(Kind.REQUEST, subject, inbox, body, headers, ttl))
    comes_back(written(Kind.RESPONSE, "", inbox, body, headers))


@given(INBOXES, st.sampled_from([code for code in Code if code]), TEXT, st.none() | TEXT, st.none() | VALUES)
@example("_INBOX.a.1", Code.NOT_FOUND, "two\nlines\r\n\x00", "odd\r\n", {"a": [1, None]})
@example("_INBOX.a.1", Code.INTERNAL, "ü" * 600, '"', 7)
@example("_INBOX.a.1", Code.UNKNOWN, "  blanks  ", " x\t", "text")
def test_errors_come_back(inbox: str, code: Code, text: str, reason: Any, detail: Any) -> None:
    facts = {"text": text, "reason": reason, "detail": detail}
    frame = CODEC.encode([Message(Kind.ERROR, "", inbox, code=code, attributes=facts)])
    again = read(frame)
    assert (again.kind, again.code, again.id, again.attributes) == (Kind.ERROR, code, inbox, facts)
    assert b"\r\nNats-Service-Error-Code: %d\r\n" % code in frame


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_in_any_chunks_are_cut_within_bounds(chunks: list[bytes]) -> None:
    cutter, size = NatsCutter(100, plain=True), 0
    for chunk in chunks:
        size += len(chunk)
        for frame in cutter.feed(chunk):
            assert len(frame) <= size
        assert cutter.arrived <= size
    if cutter.broken is not None:
        assert cutter.feed(b"PING\r\n") == []
