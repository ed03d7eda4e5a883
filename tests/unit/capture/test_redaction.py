"""Secrets never reach the disk: not in any protocol, not at any depth, not in any disguise that the wires have."""

import base64
import itertools
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.capture.decoding import decode
from polybus.capture.protocols import headers_only, nats
from polybus.capture.protocols.up import blank
from polybus.capture.record import redact_bytes, redact_search
from polybus.capture.record.redact_bytes import _NAME, _Frame, _Protobuf
from polybus.capture.record.redact_search import OF_NAMES, OF_VALUES, places, suspicious
from polybus.capture.record.redaction import Redaction, redact_default
from polybus.capture.rows import RowHeader
from polybus.capture.schema import DIRECTION_OUT, FLAG_REDACTED, FLAG_TRUNCATED
from polybus.message import Kind, Message
from polybus.plugins.registry import find_protocol
from polybus.secrets import ENDINGS, OF_QUERIES, SHORT, WORDS
from tests.vectors import up_vectors as vectors

from .rows import batch, row

SECRET = 'hunter2-Jörg&"x\\'
PLAIN = "hunter2"
WIRES: tuple[tuple[str, dict[str, str]], ...] = (
    *(("ubre", options) for options in ({}, {"format": "binary"}, {"dialect": "spec"})),
    *(("csb", {}), ("jrep", {}), ("jrep", {"values": "plain"}), ("nats", {}), ("up", {})),
    *(("uprotocol", options) for options in ({}, {"format": "protobuf"})),
)


def _shown(frame: bytes) -> Iterator[bytes]:
    """The bytes, and those of everything in them that is base64."""
    yield frame
    for text in re.findall(rb"[A-Za-z0-9+/]{8,}={0,2}", frame):
        for cut in range(4):
            yield base64.b64decode(text[cut : len(text) - (len(text) - cut) % 4])


def _hidden(frame: bytes) -> bool:
    return not any(PLAIN.encode() in shown for shown in _shown(frame))


def _frame(
    protocol: str, options: dict[str, str], body: Any, kind: Kind = Kind.REQUEST, headers: Any = None, **attributes: Any
) -> bytes:
    codec, asks = find_protocol(protocol, options).codec(), kind is Kind.REQUEST
    if protocol in ("uprotocol", "up"):
        said: dict[str, Any]
        if protocol == "uprotocol":
            said = {"id": "01890f5e-7b2c-8000-8000-000000000001", "priority": "CS4", "type": "req.v1" if asks else "pub.v1"}
            said |= {"source": "//v/cabin/1/rpc.response" if asks else "//v/body/1/door#Door"}
            said |= {"sink": "//v/body/1/rpc.Login", "ttl": 1000} if asks else {}
        else:
            said = {"id": "01890f5e-7b2c-7000-8000-000000000001", "source": "//v/1/1/0" if asks else "//v/1/1/8001"}
            said |= {"sink": "//v/2/1/7", "priority": "CS4"} if asks else {}
        said |= attributes
        subject, ttl = said.get("sink", "") if protocol == "uprotocol" else "", 1.0 if asks else None
        message = Message(kind, subject, said["id"], ttl=ttl, body=body, attributes=said, headers=headers)
        return bytes(codec.encode([message]))
    id: Any = {"csb": 7 | 0xFFFF0005 << 16, "jrep": ("user.login:1:RespondTo:RPC", None)}.get(protocol, "7")
    message = Message(kind, "user.login", id if asks else None, body=body, headers=headers)
    return bytes(codec.encode([message]))


def _read(protocol: str, options: dict[str, str], frame: bytes) -> Message:
    (message,) = find_protocol(protocol, options).codec().decode(frame)
    assert isinstance(message, Message)
    return message


@pytest.mark.parametrize(("protocol", "options"), [wire for wire in WIRES if wire[0] != "up"])  # which has no headers
def test_headers_named_like_secrets_are_blanked(protocol: str, options: dict[str, str]) -> None:
    frame = _frame(protocol, options, {"n": 1}, headers={"authorization": f"Basic {PLAIN}", "x-trace": "abc"})
    clean = redact_default(protocol, frame)
    assert _hidden(clean)
    headers = _read(protocol, options, clean).headers
    assert headers is not None
    assert (headers["x-trace"], set(headers["authorization"])) == ("abc", {"*"})


@pytest.mark.parametrize(
    "frame",
    [
        b'{"publish":"a","body":{"passw\\u006frd":"hunter2"}}',
        b'{"publish":"a","body":{ "password" : "hunter2" , "n" : 1}}',
        b'{"publish":"a","body":"{\\"password\\":\\"hunter2\\",\\"n\\":1}"}',
        b'{"publish":"a","body":"{\\"b\\":\\"{\\\\\\"token\\\\\\":\\\\\\"hunter2\\\\\\"}\\"}"}',
        b'{"publish":"a","body":"Authorization: Bearer hunter2.abc"}',
        b'{"item":"1","data":"' + base64.b64encode(b'{"token":"hunter2"}') + b'"}',
        b'{"publish":"a","body":{"secret":["hunter2",["hunter2"]],"n":1}}',
        b'{"publish":"a","body":{"secret":"hunter2',
        b'{"publish":"a","body":{"secret":{"a":"hunter2","b":',
    ],
)
def test_disguises_do_not_help(frame: bytes) -> None:
    frames, flags, count = applied("ubre", [frame])
    assert _hidden(frames[0])
    assert len(frames[0]) == len(frame)
    assert (flags, count) == ([FLAG_REDACTED], 1)
    if frame.endswith(b"}"):
        json.loads(frames[0])


def applied(protocol: str, frames: list[Any], redact: Any = "default", **given: Any) -> tuple[list[Any], list[int], int]:
    end, numbers = RowHeader(DIRECTION_OUT, protocol=protocol), np.zeros(len(frames), np.int32)
    found, flags, count = Redaction(redact, bodies=True, **given).apply([end], numbers, pa.array(frames, pa.binary()))
    found.validate(full=True)
    return found.to_pylist(), [] if flags is None else flags.tolist(), count


HIDDEN = base64.b64encode(b'{"password":"hunter2"}').decode()


@pytest.mark.parametrize(
    "event",
    [
        f'{{"id":"1","data_base64":"{HIDDEN}"}}',
        f'{{"id": "1", "data_base64": "{HIDDEN}"}}',
        f'{{"id":"1","data_base64"\t:\n"{HIDDEN}"}}',
        f'{{"id":"1","data_base64":"","data_base64":"{HIDDEN}"}}',
        f'[{{"id":"1","data_base64":"AAAA"}},{{"id":"2","data_base64":"{HIDDEN}"}}]',
        f'{{"id":"1","data":{{"part_base64":"{HIDDEN}"}}}}',
        f'{{"id":"1","data":["{HIDDEN}"]}}',
        f'{{"id":"1","data": "{HIDDEN}"}}',
    ],
)
def test_the_base64_of_an_event_hides_nothing_however_it_is_written(event: str) -> None:
    other = b'{"id":"0","data_base64":"AAAA"}'
    given = [other, event.encode(), None, other]
    frames, flags, count = applied("uprotocol", given)
    assert HIDDEN.encode() not in frames[1]
    assert b"hunter2" not in b"".join(base64.b64decode(part) for part in re.findall(rb'"([A-Za-z0-9+/=]{20,})"', frames[1]))
    assert (frames[0], frames[2:]) == (other, [None, other])
    assert (flags, count) == ([0, FLAG_REDACTED, 0, 0], 1)


@pytest.mark.parametrize(
    ("encoding", "payload"),
    [
        (3, b"user=joe&pass%77ord=" + quote_plus(SECRET).encode() + b"&n=1"),
        *((4, HIDDEN.encode()), (1, b'{"password":"hunter2"}'), (0, b'\0\1{"password":"hunter2"}')),
    ],
)
@pytest.mark.parametrize("front", [b"", b"\0\0\0\7"])
def test_payload_encodings_of_csb_hide_nothing(encoding: int, payload: bytes, front: bytes) -> None:
    frame = front + bytes((0x10 | encoding, 0, 0, 7, 0, 1, 0, 1)) + payload
    frames, _, _ = applied("csb", [frame])
    assert _hidden(frames[0])
    options = '{"side": "broker-server"}' if front else "{}"
    assert decode(batch(row(0, protocol="csb", frame=frames[0], options=options))).quarantine.num_rows == 0


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.text(max_size=12), st.just(SECRET)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(_VALUES, st.sampled_from(["password", "X-Token", "COOKIE", "my_secret", "apiKey"]), st.sampled_from(WIRES))
def test_no_value_below_a_secret_name_is_ever_seen(value: Any, name: str, wire: tuple[str, dict[str, str]]) -> None:
    protocol, options = wire
    frame = _frame(protocol, options, {"a": {name: [value, SECRET]}, "z": "end"})
    clean = redact_default(protocol, frame)
    assert _hidden(clean)
    assert _read(protocol, options, clean).body["z"] == "end"


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=80), st.text(max_size=60).map(lambda text: b'{"token":' + text.encode("utf-8", "replace"))))
def test_any_bytes_can_be_looked_at(frame: bytes) -> None:
    assert {len(redact_default(protocol, frame)) for protocol in ("csb", "nats", "up")} == {len(frame)}
    for protocol in ("ubre", "csb", "jrep", "nats", "up", "uprotocol", "other"):
        headers_only(protocol, "{}", frame)
        headers_only(protocol, '{"format": "protobuf", "side": "broker-server"}', frame)


@pytest.mark.parametrize(("protocol", "options"), WIRES)
@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.PUBLISH])
def test_without_bodies_a_frame_still_says_what_it_is_for(protocol: str, options: dict[str, str], kind: Kind) -> None:
    frame, text = _frame(protocol, options, {"text": "anything at all"}, kind), json.dumps(options)
    end = RowHeader(DIRECTION_OUT, protocol=protocol, options=text)
    frames, flags, _ = Redaction(None, bodies=False).apply([end], np.zeros(1, np.int32), pa.array([frame]))
    assert flags is not None and flags.tolist() == [FLAG_REDACTED]
    without = frames[0].as_py()
    assert not any(b"anything" in shown for shown in _shown(without))
    given = {"protocol": protocol, "options": text}
    before, after = (decode(batch(row(0, frame=one, **given))).events.to_pylist()[0] for one in (frame, without))
    kept = ("kind", "subject", "correlation_id", "ttl_ms", "source", "priority")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert not after["data"]


def test_a_function_of_the_application_decides_and_its_mistakes_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def redact(protocol: str, frame: bytes) -> bytes:
        if frame == b"bad":
            raise KeyError("oh")
        if frame == b"worse":
            raise SystemExit(3)
        made: bytes = no_bytes.get(frame, frame.replace(b"joe", b"***"))
        return made

    no_bytes: dict[bytes, Any] = {b"none": None, b"text": "text", b"number": 7}
    given = [b"hello joe", *no_bytes, b"bad", b"worse", None, b"fine"]
    frames, flags, count = applied("ubre", given, redact)
    assert frames == [b"hello ***", b"", b"", b"", b"", b"", None, b"fine"]
    assert (flags, count) == ([*[FLAG_REDACTED] * 6, 0, 0], 6)
    assert caplog.text.count("redaction has failed") == 1
    assert "it must return the bytes" in caplog.text


_LONG = b'{"publish":"a","body":"%s"}' % base64.b64encode(b'{"password":"hunter2"}' + bytes(30))


@pytest.mark.parametrize(
    ("given", "longest", "redact", "flags"),
    [
        ([b"x" * 100, b"x" * 10, None], 10, None, [FLAG_TRUNCATED, 0, 0]),
        ([b'{"publish":"a","body":{"password":"hunter2 and much more"}}'], 45, "default", [FLAG_TRUNCATED | FLAG_REDACTED]),
        ([_LONG], 60, "default", [FLAG_TRUNCATED | FLAG_REDACTED]),
    ],
    ids=["no secret", "a secret that begins before the cut", "base64"],
)
def test_a_frame_that_is_too_long_is_cut_and_says_so(given: list[Any], longest: int, redact: Any, flags: list[int]) -> None:
    frames, found, count = applied("ubre", given, redact, longest=longest)
    assert [frame and len(frame) for frame in frames] == [frame and min(len(frame), longest) for frame in given]
    assert (found, count) == (flags, int(redact is not None))
    assert _hidden(frames[0])


def test_frames_of_several_protocols_are_each_looked_at_in_their_own_way() -> None:
    ends = [RowHeader(DIRECTION_OUT, protocol=protocol) for protocol in ("ubre", "uprotocol", "csb")]
    secret = b'{"password":"hunter2"}'
    csb = b"\x14\0\0\1\0\1\0\1" + base64.b64encode(secret)
    given = [b'{"n":1}', b'{"data_base64":"%s"}' % HIDDEN.encode(), None, csb, secret]
    numbers = np.array([0, 1, 1, 2, 0], np.int32)
    frames, flags, count = Redaction("default", bodies=True).apply(ends, numbers, pa.array(given, pa.binary()))
    assert (flags is not None and flags.tolist(), count) == ([0, 2, 0, 2, 2], 3)
    assert frames[0].as_py() == given[0]
    assert frames[2].as_py() is None
    assert all(_hidden(frames[row].as_py()) for row in (1, 3, 4))


@pytest.mark.parametrize(
    ("before", "slashes"),  # behind others only the usual levels are told apart
    [*itertools.product([b"{", b"C:\\", b"C:\\\\\\"], [0, 1, 3, 7]), (b"{", 15), (b"{", 31)],
)
def test_a_name_is_found_at_any_level_and_behind_backslashes_of_other_text(before: bytes, slashes: int) -> None:
    quote = b"\\" * slashes + b'"'
    frame = before + quote + b"token" + quote + b":" + quote + b"hunter2" + quote + b"}"
    assert PLAIN.encode() not in redact_default("ubre", frame)


_JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.c2lnbmF0dXJlLWh1bnRlcjI"
_NAMES = """
    password Passwd passwordHash db_pass pass passphrase pass_word passcode pass-key pwd userPwd pswd pw Kennwort
    mot_de_passe senha token accessToken refresh_token cookie Set-Cookie secret clientSecret authorization
    Proxy-Authorization credentials creds session_id sessionKey apiKey api.key X-API-KEY access_key_id privateKey
    PRIVATE_KEY sshKey ssh_key encryptionKey signing_key AccountKey SharedKey authCode access_code securityCode
    verification_code recoveryCodes backup_codes oneTimeCode connectionString signature jwt idJwt bearer csrf csrfToken xsrf
    otp otp_code OTP totp totpSeed hotp pin PIN cardPin pin2 pinCode pin[0] mfa mfaCode 2fa 2faCode cvv cvv2 CVC csc sas
    sas_url psk wpaPsk hmac hmac_key card cardNumber card_number card_no creditCard iban IBAN ssn 2FA my2FACode DBPass SIMPin
""".split()
_IN_TEXT = {
    "link": f"see https://shop.example/reset?user=joe&token={PLAIN}&lang=en for more",
    **{"hash": f"https://shop.example/#access_token={PLAIN}", "relative": f"/reset?sig={PLAIN}&a=b"},
    "escaped": f"https://shop.example/?a=b&amp;auth={PLAIN}",
    "nested": f"https://shop.example/?next=https%3A%2F%2Fh%2F%3Fa%3Db%26token%3D{PLAIN}",
    "twice": f"https://shop.example/?next=%2Fa%3Fnext%3D%252Fb%253Ftoken%253D{PLAIN}",
    **{"percents": f"https://shop.example/?to%6Ben={PLAIN}", "alone": f"https://{PLAIN}@h/x"},
    **{"dsn": f"postgres://joe:{PLAIN}@db/x", "at": f"postgres://joe:a@{PLAIN}@db/x"},
    **{"signs": f"postgres://joe:a/{PLAIN}?b#c@db/x", "digits": "postgres://joe:1337@db/x"},
    **{"slashes": f"https:\\/\\/joe:{PLAIN}@h\\/x", "odbc": f"Password={PLAIN};Server=db"},
    **{"libpq": f"host=db password={PLAIN} user=joe", "note": f"{_JWT}\n{_JWT}"},
    **{"header": f"Authorization: Bearer {PLAIN}", "inside": f'{{"name": "token", "value": "{PLAIN}"}}'},
}
_PAIRS = {
    "pair": ["password", PLAIN],
    "pairs": [["a", "b"], ["password", PLAIN], ["api key", {"x": [PLAIN]}]],
    "fields": [{"name": "password", "value": PLAIN}, {"name": "a", "value": "b"}, {"Name": "sshKey", "Value": {"S": PLAIN}}],
    "before": {"value": [{"n": PLAIN}], "type": "text", "fieldName": "otp"},
    "labels": {"key": "db_pass", "type": {"of": "text"}, "stringValue": PLAIN},
    "short": {"k": "jwt", "v": PLAIN},
    "parts": {"header": "cookie", "values": [PLAIN, PLAIN]},
    "form": {"id": "pin", "label": "PIN", "content": PLAIN},
}
_DEEP: dict[str, Any] = {
    "deep": [{"api_key": SECRET, "n": 5}, {"Set-Cookie": [SECRET, {"a": SECRET}]}],
    "oldToken": {"value": SECRET, "expires": 12345.5},
}
_SECRET: dict[str, Any] = {**dict.fromkeys(_NAMES, PLAIN), **_IN_TEXT, **_PAIRS, **_DEEP}
_ORDINARY: dict[str, Any] = {
    **dict.fromkeys(
        "spinning pinned options pins hotpot opinion compass bypass passed passenger author authority key code sign status "
        "pin_count keyboard cards discard card_type cardinal processId".split(),
        "x",
    ),
    **{
        "text": "pin otp jwt pass, no bearer: 10:30@noon",
        "url": "https://h:80/a:b?page=2&sort=code",
        "at": "https://h:80/@joe",
    },
    **{"version": "eyJ.1.2", "file": "a.eyJ.b", "limit": {"name": "limit", "value": 5}, "names": ["password", "iban", "pin"]},
    "step": {"name": "How to reset a password", "value": 1},
}


@pytest.mark.parametrize(("protocol", "options"), WIRES)
@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.PUBLISH])
def test_all_names_texts_and_pairs_are_blanked_and_what_is_beside_them_stays(
    protocol: str, options: dict[str, str], kind: Kind
) -> None:
    frame = _frame(protocol, options, {"user": "joe", **_SECRET, "z": "end"}, kind)
    assert not _hidden(frame)
    clean = redact_default(protocol, frame)
    assert len(clean) == len(frame)
    assert applied(protocol, [frame])[0] == [clean]  # a recorder looks at suspicious frames alone
    found = _read(protocol, options, clean).body
    assert [name for name, value in found.items() if PLAIN in repr(value)] == []
    assert _hidden(clean)
    assert {name: value for name, value in found.items() if name not in _SECRET} == {"user": "joe", "z": "end"}
    assert set(found["password"]) == {"*"}
    assert found["digits"] == "postgres://joe:****@db/x"
    assert found["fields"][1] == {"name": "a", "value": "b"}
    assert found["before"]["type"] == "text" and found["form"]["label"] == "PIN"
    assert found["pairs"][0] == ["a", "b"]
    assert found["deep"][0]["n"] == 5
    assert found["oldToken"].keys() == {"value", "expires"} and found["oldToken"]["expires"] != 12345.5


def test_the_docs_name_all_that_is_blanked() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/record.md").read_text(encoding="utf-8")
    table = page[page.index("| A secret is |") :].split("\n\n")[0]
    told = set(re.findall(r"`([^`]+)`", table))
    assert {*WORDS, *SHORT, *ENDINGS, *OF_QUERIES, *OF_NAMES, *OF_VALUES} - told == set()


@pytest.mark.parametrize(("protocol", "options"), WIRES)
def test_ordinary_words_that_look_alike_stay(protocol: str, options: dict[str, str]) -> None:
    frame = _frame(protocol, options, _ORDINARY)
    assert redact_default(protocol, frame) == frame


_HARMLESS: dict[str, Any] = {
    "strings": ["y" * 50] * 400,
    "text": "the quick brown fox " * 1000,
    "rows": [{"id": n, "value": n / 7} for n in range(1000)],
    "one": "y" * 20_000,
    "ids": [f"{n:032x}" for n in range(600)],
    "links": ["https://h.example:8080/a/b?page=2#x"] * 500,
    "encoded": base64.b64encode(json.dumps([{"id": n, "speed": n / 7} for n in range(1000)]).encode()).decode(),
}


@pytest.mark.parametrize("body", _HARMLESS)
def test_where_no_name_of_a_secret_is_nothing_is_looked_at_but_by_arrow(body: str) -> None:
    frame = json.dumps({"publish": "a", "body": _HARMLESS[body]}).encode()
    assert places(frame) == []
    assert suspicious(pa.array([frame, b"{}"], pa.binary())) == []


def test_of_a_long_frame_only_the_parts_around_secrets_are_looked_at() -> None:
    head = b'{"headers":{"authorization":"hunter2"},"body":'
    frame = head + json.dumps([_HARMLESS, ["user", "joe"]] * 5).encode() + b"}"
    assert sum(end - start for start, end in places(frame)) < 20_000 < 500_000 < len(frame)
    assert redact_default("ubre", frame) == frame.replace(b"hunter2", b"*******")


@pytest.mark.parametrize(
    "secret",
    [
        b'"password":"hunter2"',
        b'"a":"https://joe:hunter2@h/x"',
        b'"a":"https://h/?token=hunter2"',
        b'"a":["password","hunter2"]',
        b'"a":{"value":"hunter2","of":"' + b"x" * 9000 + b'","name":"password"}',
        b'"a":{"name":"password","of":"' + b"x" * 9000 + b'","value":"hunter2"}',
        b'"a":"' + base64.b64encode(b'{"x":"' + b"x" * 20_000 + b'","password":"hunter2"}') + b'"',
    ],
    ids=["member", "login", "query", "pair", "before", "behind", "base64"],
)
def test_a_secret_on_the_border_of_two_parts_is_found(secret: bytes) -> None:
    for before in range(8192 - 40, 8192 + 8, 3):
        frame = b'{"x":"' + b"a " * (before // 2) + b"a" * (before % 2) + b'",' + secret + b',"y":"' + b"a " * 9000 + b'"}'
        assert _hidden(redact_default("ubre", frame))


_BACKSLASHES = [b"\\" * 120_000, rb'\\\\\\x"' * 15_000, b'"' + b"\\" * 60_000 + b'"' + b"\\" * 60_000]
_AGAIN_AND_AGAIN = (
    *"eyJ eyJaaaaaaaa. ?token ://a: ://a:b/@ a= pin= %3D pin Pin_ ? &a=? https://".split(),
    *("bearer ", '["token",', '{"name":"token","value":', '{"name":"token","a":["', '["token","x"],'),
)


@pytest.mark.parametrize("text", [*_BACKSLASHES, *(piece.encode() * (120_000 // len(piece)) for piece in _AGAIN_AND_AGAIN)])
def test_what_looks_like_the_beginning_of_a_secret_again_and_again_is_looked_at_once(text: bytes) -> None:
    # Where each beginning is followed to the end of the frame, or each byte is looked at for each byte, these take minutes.
    clean = redact_default("ubre", b'{"token":"x"} ' + text)
    assert (clean[:14], len(clean)) == (b'{"token":"*"} ', 14 + len(text))


EXPENSIVE: dict[str, bytes] = {
    **{"names": b'{"password":1},', "pairs": b'{"name":"pin","value":"x"},', "lists": b'["password",', "form": b"password=1&"},
    **{"logins": b"https://a:b@c ", "bearers": b"Bearer x ", "maps": b"\n\x08password\x12\x02ab"},
    "base64": base64.b64encode(b'{"password":1},' * 20) + b" ",
    "one base64": base64.b64encode(b'{"password":1},'),
    "long base64": base64.b64encode(b'{"password":1},' * 50) + b" ",
    "a value": b'{"password":[' + b"~" * 50_000,
    **{"CONNECT": b'"pass":"x",', "headers": b"password: x\r\n"},
}
"""What costs most to look at, again and again."""
BEGINS = {"CONNECT": b"CONNECT {", "headers": b"HPUB a 9999999 9999999\r\n"}


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_what_a_frame_costs_does_not_grow_with_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fills their messages with such things would slow down the program that is recorded."""
    for module in (redact_search, redact_bytes, nats):
        monkeypatch.setattr(module, "MOST", 4096)
    begin, piece = BEGINS.get(kind, b""), EXPENSIVE[kind]
    calls: dict[int, list[object]] = {100_000: [], 400_000: []}
    for size, made in calls.items():
        frame = begin + piece * (size // len(piece))
        sys.setprofile(lambda *event, made=made: made.append(None))
        try:
            kept = redact_default("nats" if begin else "ubre", frame)
        finally:
            sys.setprofile(None)
        assert len(kept) < 20_000
    few, many = map(len, calls.values())
    assert many < 3 * few


class Counting(bytearray):
    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


PIECES = (b"\n", b"\x1a", b"\x05", b"\x08", b"\x7f", b"\xff", b"token", b"password", b"\x12\x02aa", b"n" * 40)


def test_a_frame_of_which_a_part_is_looked_at_is_cut_there_and_its_exchange_keeps_its_id() -> None:
    frame = json.dumps({"publish": "a", "body": [{"password": "hunter2"}] * 10_000}).encode()
    (kept,), flags, _ = applied("ubre", [frame])
    assert len(kept) < len(frame) and _hidden(kept)
    assert flags == [FLAG_REDACTED | FLAG_TRUNCATED]
    (event,) = decode(batch(row(0, frame=kept, protocol="ubre", flags=flags[0]))).events.to_pylist()
    assert event["subject"] == "a"


@pytest.mark.parametrize("secret", [b"", b'{"password":"hunter2"}'], ids=["a picture", "a secret in the middle"])
def test_long_base64_is_kept_but_for_its_secrets(secret: bytes) -> None:
    """By chance it has words that are names of secrets."""
    picture = bytearray(random.Random(7).randbytes(300_000))
    picture[150_000 : 150_000 + len(secret)] = secret
    picture[20_000:20_003] = base64.b64decode("AjwT")  # and so the text has "jwt"
    frame = b'{"publish":"a","body":"%b","authorization":"Bearer %b"}' % (base64.b64encode(picture), b"abcd" * 500)
    blanked = redact_default("ubre", frame)
    assert blanked.endswith(b'","authorization":"%b"}' % (b"*" * 2007))
    found = base64.b64decode(json.loads(blanked)["body"])
    assert found == bytes(picture).replace(b"hunter2", b"*******")


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))
def test_each_text_of_protobuf_with_a_name_in_it_is_found(frame: bytes) -> None:
    naive = set()
    for name in _NAME.finditer(frame):
        for begin in range(name.start(), 1, -1):
            if frame[begin - 2] in b"\n\x1a" and frame[begin - 1] < 128 and begin + frame[begin - 1] >= name.end() - 1:
                naive.add((frame[begin - 2], begin, begin + frame[begin - 1]))
    assert set(_Protobuf(_Frame(frame)).names([(0, len(frame))])) == naive


def test_a_frame_of_nothing_but_names_costs_a_few_looks_each() -> None:
    """Whoever does not want to be recorded would send such frames first."""
    frame = _Frame(b"")
    frame.data = data = Counting(b"\n\x05token\x12" * 1000)
    assert len(list(_Protobuf(frame).names([(0, len(data))]))) == 1000
    assert data.looks <= 2000


WITH_TOKEN = vectors.REQUEST.replace(b"\x52\x01t", b"\x52\x07hunter2").replace(b"\x0a\x43", b"\x0a\x49")


def test_the_token_of_a_umessage_is_blanked_and_all_else_stays() -> None:
    clean = WITH_TOKEN.replace(b"hunter2", b"*******")
    assert applied("up", [WITH_TOKEN, vectors.PUBLICATION])[0] == [clean, vectors.PUBLICATION]


def test_the_token_of_a_umessage_is_found_wherever_it_stands_and_without_its_end() -> None:
    attributes, rest = WITH_TOKEN[2 : 2 + 0x49], WITH_TOKEN[2 + 0x49 :]
    behind = rest + b"\x0a" + bytes((len(attributes),)) + attributes
    long_tag = b"\x12\x01x\x0a\x0c" + b"\xd2\x00\x07hunter2" + b"\x28\x05"
    twice = b"\x0a\x09\x52\x07hunter2" * 2
    for frame in (behind, long_tag, twice, WITH_TOKEN[: WITH_TOKEN.index(b"er2")]):
        clean = blank(frame)
        assert b"hunt" not in clean
        assert len(clean) == len(frame)


@pytest.mark.timeout(20)
def test_secrets_are_soon_found_in_headers_that_a_peer_made_of_one_word() -> None:
    block = b"NATS/1.0\r\n" + b"a" * 60_000 + b"\r\ntoken: hunter2\r\n\r\n"
    frame = b"HPUB x %d %d\r\n%b\r\n" % (len(block), len(block), block)
    assert nats.blank(frame) == frame.replace(b"hunter2", b"*******")
