"""Recordings of connections to a NATS server: what is read from them, of what is stored too, and what must not be in them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.capture import decode
from polybus.capture.protocols import headers_only
from polybus.capture.protocols.shared import StoredFacts
from polybus.capture.record.redaction import redact_default
from polybus.capture.schema import EVENTS

from .rows import batch, row
from .test_redaction import applied

SECRETS = ("pass", "auth_token", "jwt", "sig")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("verb", [b"CONNECT", b"connect"])
def test_credentials_of_connect_are_blanked(name: str, verb: bytes) -> None:
    frame = verb + b' {"user":"ann","%b":"hunter2\\"x","name":"polybus"}\r\n' % name.encode()
    clean = redact_default("nats", frame)
    assert b"hunter2" not in clean
    assert len(clean) == len(frame)
    assert b'"user":"ann"' in clean
    assert applied("nats", [frame, b"PING\r\n"])[0] == [clean, b"PING\r\n"]


def test_headers_with_secret_names_are_blanked_and_the_payload_like_all_others() -> None:
    block = b"NATS/1.0\r\nX-Api-Key: hunter2\r\nCookie:a=hunter2\r\nX-Kind: flash\r\n\r\n"
    frame = b'HPUB a r %d %d\r\n%b{"token":"hunter2"}\r\n' % (len(block), len(block) + 19, block)
    clean = redact_default("nats", frame)
    assert b"hunter2" not in clean
    assert b"X-Kind: flash" in clean
    assert len(clean) == len(frame)


@pytest.mark.parametrize(
    ("frame", "kept"),
    [
        (b"PUB a.b r 5\r\nhello\r\n", b"PUB a.b r 0\r\n\r\n"),
        (b"MSG a 2 5\r\nhello\r\n", b"MSG a 2 0\r\n\r\n"),
        (b"HMSG a 2 20 25\r\nNATS/1.0\r\nA: b1\r\n\r\nhello\r\n", b"HMSG a 2 19 19\r\nNATS/1.0\r\nA: b1\r\n\r\n\r\n"),
        (b"SUB a q 3\r\n", b"SUB a q 3\r\n"),
        (b"-ERR 'x'\r\n", b"-ERR 'x'\r\n"),
        (b"nonsense", b"nonsense"),
        (b"HMSG a\r\n", b""),
    ],
)
def test_frames_without_their_bodies(frame: bytes, kept: bytes) -> None:
    frame = frame.replace(b"20 25", b"19 24")
    assert headers_only("nats", "{}", frame) == kept


def test_without_bodies_the_text_of_an_error_is_left_out() -> None:
    block = b"NATS/1.0\r\nNats-Service-Error: private\r\nNats-Service-Error-Code: 5\r\nPolybus-Text: private\r\n\r\n"
    kept = headers_only("nats", "{}", b"HMSG _INBOX.a.b 1 %d %d\r\n%bdetail\r\n" % (len(block), len(block) + 6, block))
    assert b"private" not in kept and b"detail" not in kept
    assert b"Nats-Service-Error-Code: 5" in kept


NODE = "abcdefghij01"
INBOX = f"shop.n.{NODE}.a.tok"
ACK = "$JS.ACK.shop-orders.billing.3.41.57.1700000000000000000.0"
DELIVERED = StoredFacts("delivery", "shop-orders", 41, "billing", 3)
LETTER = {"Polybus-Durable": "billing", "Polybus-Attempts": "3", "Polybus-Origin": "shop-orders 41", "Polybus-Death": "why"}


def _pub(line: str, payload: str = "", headers: dict[str, str] | None = None, status: str = "") -> bytes:
    """A frame; with headers or a status the verb is one that has them."""
    if headers is None and not status:
        return f"{line} {len(payload)}\r\n{payload}\r\n".encode()
    block = f"NATS/1.0{status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()) + "\r\n"
    return f"H{line} {len(block)} {len(block) + len(payload)}\r\n{block}{payload}\r\n".encode()


def _event(frame: bytes) -> dict[str, Any]:
    made = decode(batch(row(1, protocol="nats", frame=frame, options="{}")))
    events: list[dict[str, Any]] = made.events.to_pylist()
    [event] = events
    return event


def _facts(event: dict[str, Any]) -> StoredFacts | None:
    return None if event["stored"] is None else StoredFacts(*(event[name] for name in StoredFacts._fields))


STORED = '{"stream":"shop-orders","seq":41}'
NOT_STORED = '{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"shop-orders","seq":0}'


ANSWER, PUBLISHED, KEPT = f"MSG {INBOX} 1", StoredFacts("publication"), StoredFacts("publication", "shop-orders", 41)
REFUSED = KEPT._replace(store_seq=None, reason="maximum bytes exceeded")
DEAD = DELIVERED._replace(stored="dead letter", reason="why")
REPLAYED = StoredFacts("delivery", "s", 2, "replay-0123", 1)
HUGE = f"$JS.ACK.s.c.4294967296.{10**19}.3.4.5"
NEXT = "PUB $JS.API.CONSUMER.MSG.NEXT.s.c"
OWN = f"_INBOX.{'a' * 20}.j.3"
NO_SUCH = '{"type":"io.nats.jetstream.api.v1.x","error":{"code":404,"err_code":10059}}'


@pytest.mark.parametrize(
    ("frame", "kind", "correlation", "word", "facts"),
    [
        (_pub(f"PUB shop.p.orders.x {INBOX}", "1", {"Nats-Msg-Id": "7"}), "request", INBOX, None, PUBLISHED),
        (_pub(ANSWER, STORED), "response", INBOX, "OK", KEPT),
        (_pub(ANSWER, STORED[:-1] + ',"duplicate":true}'), "response", INBOX, "DUPLICATE", KEPT),
        (_pub(ANSWER, NOT_STORED), "response", INBOX, "RESOURCE_EXHAUSTED", REFUSED),
        (_pub("MSG _INBOX.a.b 1", STORED), "response", "_INBOX.a.b", "OK", KEPT),
        (_pub(f"MSG shop.p.orders.x 4 {ACK}", "1"), "request", ACK, None, DELIVERED),
        *((_pub(f"PUB {ACK}", said), "response", ACK, "OK", DELIVERED) for said in ("+ACK", "")),
        (_pub(f"PUB {ACK} _INBOX.x", "+ACK"), "response", ACK, "OK", DELIVERED),
        (_pub(f"PUB {ACK}", '-NAK {"delay": 5}'), "response", ACK, "NAK", DELIVERED),
        (_pub(f"PUB {ACK}", "+TERM"), "response", ACK, "TERM", DELIVERED),
        (_pub(f"PUB {ACK}", "+TERM it is old"), "response", ACK, "TERM", DELIVERED._replace(reason="it is old")),
        (_pub(f"PUB {ACK}", "+WPI"), "control", None, None, DELIVERED),
        (_pub(f"PUB shop.dead.billing.orders.x {INBOX}", "1", LETTER), "request", INBOX, None, DEAD),
        (_pub("MSG a 4 $JS.ACK.s.replay-0123.1.2.3.4.5", "1"), "publish", None, None, REPLAYED),
        # What a client says, or what is too large for its column, is no fact.
        (_pub(f"PUB shop.p.orders.dead.billing.x {INBOX}", "1", LETTER), "request", INBOX, None, PUBLISHED),
        (_pub(f"MSG a 4 {HUGE}", "1"), "request", HUGE, None, StoredFacts("delivery", "s", None, "c")),
        # Words that are no requests, since nobody answers them there.
        (_pub(f"MSG shop.p.orders.x 4 {INBOX}", "1"), "publish", None, None, None),
        (_pub(f"PUB shop.p.orders.x shop.n.{NODE}.p", "1"), "publish", None, None, None),
        *((_pub(f"{NEXT} {inbox}", "{}"), "control", None, None, None) for inbox in (f"shop.j.{NODE}.3", OWN)),
        (_pub(f"MSG shop.j.{NODE}.3 4", status=" 408 Request Timeout"), "control", None, None, None),
        (_pub(f"MSG {OWN} 4", status=" 100 Idle Heartbeat"), "control", None, None, None),
        (_pub(f"MSG orders.x 4 {ACK}", "1"), "request", ACK, None, DELIVERED),
        (_pub(f"PUB shop.n.{NODE}.y {INBOX}"), "heartbeat", None, None, None),
        (_pub(f"PUB shop.a shop.n.{NODE}.h", "{}"), "control", None, None, None),
        (_pub(ANSWER, status=f" 102 {NODE}"), "control", None, None, None),
        # Requests of nodes, and of the engine's own API.
        (_pub(f"PUB shop.r.user.get {INBOX}", "1"), "request", INBOX, None, None),
        (_pub(ANSWER, "1"), "response", INBOX, "OK", None),
        (_pub(ANSWER, status=" 503"), "response", INBOX, "UNIMPLEMENTED", None),
        (
            _pub(ANSWER, headers={"Nats-Service-Error-Code": "5", "Nats-Service-Error": "no"}),
            "response",
            INBOX,
            "NOT_FOUND",
            None,
        ),
        (_pub(ANSWER, NO_SUCH), "response", INBOX, "NOT_FOUND", None),
        (_pub(ANSWER, '{"stream":"s","seq":1,"mine":2}'), "response", INBOX, "OK", None),
        (_pub(f"PUB shop.r.numbers {INBOX}", "1", {"Polybus-Kind": "open stream 8 0"}), "stream", INBOX, None, None),
        *((_pub(ANSWER, said, {"Polybus-Kind": kind}), kind, INBOX, None, None) for kind, said in (("item", "1"), ("end", ""))),
    ],
)
def test_frames_of_nodes_and_of_the_engine_are_what_they_mean(
    frame: bytes, kind: str, correlation: str | None, word: str | None, facts: StoredFacts | None
) -> None:
    event = _event(frame)
    assert (event["kind"], event["correlation_id"], event["code_name"], _facts(event)) == (kind, correlation, word, facts)
    assert event["code"] == {None: None, "OK": 0, "DUPLICATE": 0, "NAK": 10, "TERM": 9}.get(word, event["code"] or None)


def test_a_word_by_which_a_delivery_is_settled_has_the_subject_of_its_consumer() -> None:
    assert _event(_pub(f"PUB {ACK}", "+ACK"))["subject"] == "$JS.ACK.shop-orders.billing"


@pytest.mark.parametrize(
    ("subject", "payload", "kept"),
    [
        (f"PUB {ACK}", "+ACK", "+ACK"),
        (f"PUB {ACK}", '-NAK {"delay": 5}', "-NAK"),
        (f"PUB {ACK}", "+TERM private", "+TERM"),
        (f"PUB {ACK}", "private", ""),
        (f"MSG {INBOX} 1", STORED, STORED),
        (f"MSG {INBOX} 1", '{"name":"private"}', ""),
        ("MSG orders.x 1", STORED, ""),
    ],
)
def test_without_bodies_the_words_of_streams_stay(subject: str, payload: str, kept: str) -> None:
    assert headers_only("nats", "{}", _pub(subject, payload)) == _pub(subject, kept)


_TOKENS = st.sampled_from([*"$JS ACK API shop n p a j dead billing 1 _INBOX replay-1 x y h".split(), NODE, "9" * 20])
_SUBJECTS = st.one_of(
    st.lists(_TOKENS, min_size=1, max_size=12).map(".".join),
    st.sampled_from([ACK, INBOX, "shop.p.orders.x", "shop.dead.billing.x"]),
)
_PAYLOADS = st.one_of(
    st.sampled_from(
        [STORED, NOT_STORED, "+ACK", "-NAK", "+TERM x", "+WPI", "{", '{"stream":1,"seq":2}', '{"error":{"err_code":1}}']
    ),
    st.text(max_size=20),
)


@given(st.sampled_from(["PUB", "MSG"]), _SUBJECTS, st.none() | _SUBJECTS, _PAYLOADS, st.sampled_from([None, LETTER]))
def test_whatever_stands_on_the_wire_is_one_event_with_columns_that_fit(
    verb: str, subject: str, reply: str | None, payload: str, headers: dict[str, str] | None
) -> None:
    names = " ".join([verb, subject, *(["4"] if verb == "MSG" else []), *([reply] if reply else [])])
    frame = _pub(names, "", headers) if headers else names.encode()
    body = payload.encode()
    if headers is None:
        frame = names.encode() + b" %d\r\n%b\r\n" % (len(body), body)
    made = decode(batch(row(1, protocol="nats", frame=frame, options="{}")))
    assert made.events.schema.equals(EVENTS)
    assert made.events.num_rows + made.quarantine.num_rows == 1
