"""The rules by type, and frames whose shape is known: they are read on a short way, with the same result as on the long one."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from polybus import Limits, RemoteProtocolError
from polybus.message import Kind
from polybus.protocols.up.codec import UpReader
from polybus.protocols.up.uuris import parse_uuri
from polybus.protocols.up.wire import (
    RULES,
    Attributes,
    WireIds,
    first_violation,
    is_wire_id,
    read_uuid,
    uuid_bytes,
    violations,
    wire_ms,
    write_attributes,
    write_message,
    write_uuid,
)
from tests.unit.protocols.uprotocol.support import Clock
from tests.vectors import up_vectors as vectors

ID = uuid_bytes(vectors.ID.format(0))
TOPIC, METHOD, HERE = map(parse_uuri, ("//a/10AB/3/8001", "//b/CD/4/B", "//c/1/1/0"))
GOOD = {
    "publish": Attributes(ID, 1, TOPIC),
    "request": Attributes(ID, 2, HERE, METHOD, 5, 1000),
    "response": Attributes(ID, 3, METHOD, HERE, 5, 1000, reqid=ID),
    "notification": Attributes(ID, 4, TOPIC, HERE),
}
WILD = parse_uuri("//*/FFFFFFFF/FF/FFFF")
BROKEN: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("publish", "id"): [{"id": b""}, {"id": bytes.fromhex(vectors.NO_IDS[8].replace("-", ""))}],
    ("publish", "type"): [{"type": 0}, {"type": 5}],
    ("publish", "source"): [{"source": None}],
    ("publish", "priority"): [{"priority": 8}],
    ("publish", "payload_format"): [{"payload_format": 9}],
    ("publish", "publish.source"): [
        *({"source": METHOD}, {"source": HERE}, {"source": parse_uuri("//a/10AB/3/FFFF")}),
        *({"source": parse_uuri("//*/10AB/3/8001")}, {"source": parse_uuri("//a/FFFF/3/8001")}),
    ],
    ("publish", "publish.sink"): [{"sink": HERE}, {"sink": WILD}, {"sink": parse_uuri("/FFFFFFFF/FF/FFFF")}],
    ("notification", "notification.source"): [{"source": METHOD}],
    ("notification", "notification.sink"): [{"sink": None}, {"sink": TOPIC}, {"sink": parse_uuri("//*/1/1/0")}],
    ("request", "request.source"): [{"source": METHOD}, {"source": parse_uuri("//c/1/FF/0")}],
    ("request", "request.sink"): [{"sink": None}, {"sink": HERE}, {"sink": TOPIC}],
    ("request", "request.priority"): [{"priority": 4}, {"priority": 0}],
    ("request", "request.ttl"): [{"ttl": 0}, {"ttl": None}],
    ("response", "response.source"): [{"source": HERE}],
    ("response", "response.sink"): [{"sink": TOPIC}],
    ("response", "response.reqid"): [{"reqid": b""}],
    ("response", "response.priority"): [{"priority": 2}],
}
BAD = [(name, rule, change) for (name, rule), changes in BROKEN.items() for change in changes]


@pytest.mark.parametrize("name", GOOD)
def test_a_usual_message_keeps_all_rules(name: str) -> None:
    assert first_violation(GOOD[name]) is None
    assert [*violations(GOOD[name])] == []


@pytest.mark.parametrize(("name", "rule", "change"), BAD, ids=lambda value: str(value)[:40])
def test_a_message_that_breaks_a_rule_is_found_out_by_that_rule(name: str, rule: str, change: dict[str, object]) -> None:
    bad = replace(GOOD[name], **change)
    found = first_violation(bad)
    assert found is not None and found.name == rule
    assert rule in [broken.name for broken in violations(bad)]


def test_each_rule_is_broken_by_one_of_these() -> None:
    assert {rule for _, rule, _ in BAD} == {rule.name for rule in RULES}


def test_a_publication_may_have_the_sink_of_a_streamer_and_a_response_leave_its_priority_out() -> None:
    assert first_violation(replace(GOOD["publish"], sink=parse_uuri("//cloud/FFFFFFFF/FF/FFFF"))) is None
    assert first_violation(replace(GOOD["response"], priority=0)) is None


IDS = [uuid_bytes(f"018bcfe5-687b-7{number:03x}-8010-101010101a1a") for number in range(64)]
MORE: Any = st.fixed_dictionaries(
    {},
    optional={
        "ttl": st.integers(1, 2**32 - 1),
        "token": st.sampled_from(["t", "J\x12\t", "J\x12\t" + "x" * 17, "J\x12\t" + "\x11" * 20]),
        "permission_level": st.sampled_from([0, 7, 74]),
        "commstatus": st.sampled_from([0, 5, 74]),
        "traceparent": st.text(max_size=5),
        "payload_format": st.sampled_from([0, 3, 6, 7]),
        "reqid": st.sampled_from(IDS),
    },
)
PAYLOADS = st.none() | st.sampled_from([b"", b"{}", b"[1]", b"x" * 130])


def seen(reader: UpReader, frame: bytes) -> Any:
    try:
        message = reader.read(frame)
    except RemoteProtocolError as error:
        return error.text, error.reason, str(error.answer_id), error.reply_id
    return (message.kind, message.subject, str(message.id), message.raw, message.format, message.ttl, message.headers,
            message.code, message.attributes)  # fmt: skip


@given(st.sampled_from(sorted(GOOD)), MORE, st.sampled_from(IDS), PAYLOADS, st.data())
def test_a_second_frame_of_a_shape_is_read_like_the_first(kind: str, more: Any, id: bytes, payload: Any, data: Any) -> None:
    attributes = replace(GOOD[kind], id=id, **more)
    frame = write_message(write_attributes(attributes), payload)
    used = UpReader(Limits())
    for other in IDS[:2]:  # of the same shape
        seen(used, write_message(write_attributes(replace(attributes, id=other)), payload))
    if attributes.reqid:
        seen(used, write_message(write_attributes(replace(attributes, reqid=data.draw(st.sampled_from(IDS)))), payload))
    assert seen(used, frame) == seen(UpReader(Limits()), frame)


@given(st.data())
def test_a_damaged_frame_is_read_as_if_nothing_were_known(data: Any) -> None:
    frame = bytearray(data.draw(st.sampled_from([vectors.PUBLICATION, vectors.REQUEST])))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    used = UpReader(Limits())
    for known in (vectors.PUBLICATION, vectors.REQUEST):
        seen(used, known)
    assert seen(used, bytes(frame)) == seen(UpReader(Limits()), bytes(frame))


def test_the_id_of_a_request_that_stands_twice_is_the_last_one() -> None:
    first, last = (b"\x4a\x12" + write_uuid(id) for id in IDS[:2])
    attributes = write_attributes(replace(GOOD["response"], reqid=b""))
    for order, found in ((first + last, IDS[1]), (last + first, IDS[0])):
        for _ in range(2):
            reader = UpReader(Limits())
            seen(reader, write_message(attributes + first, None))
            assert reader.read(write_message(attributes + order, None)).id == write_uuid(found)


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.protocols.up.codec._REMEMBERED", 8)
    reader = UpReader(Limits())
    for ttl in range(1, 50):
        reader.read(write_message(write_attributes(replace(GOOD["publish"], ttl=ttl)), None))
    known = getattr(reader, "_known")  # noqa: B009
    assert len(known) <= 8
    reader.read(write_message(write_attributes(replace(GOOD["publish"], traceparent="x" * 1024)), None))
    assert max(len(before) + len(behind) for before, behind in known) < 1024


def made(ids: WireIds, count: int) -> list[bytes]:
    return [read_uuid(ids.next()) for _ in range(count)]


def test_ids_are_of_version_7_and_in_order_whatever_the_clock_does() -> None:
    clock = Clock()
    ids = WireIds(clock, random.Random(1))
    first = ids.next()
    assert (is_wire_id(first), wire_ms(first), first.endswith(ids.suffix)) == (True, clock.ms, True)
    found = made(ids, 10_000)  # more than one millisecond has
    clock.ms -= 5000
    found += made(ids, 5_000)
    clock.ms += 60_000
    found += made(ids, 3)
    assert found == sorted(set(found))
    assert all(is_wire_id(write_uuid(id)) for id in found)
    assert wire_ms(write_uuid(found[-1])) == clock.ms


def test_a_response_without_the_id_of_its_request_is_refused_whatever_came_before() -> None:
    good = replace(GOOD["response"], traceparent=None)
    frame, reader = write_message(write_attributes(good), None), UpReader(Limits())
    bad = write_message(write_attributes(replace(good, reqid=b"")), None)
    assert len(bad) == len(frame) - 20
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=r"response\.reqid"):
            reader.read(bad)
        assert reader.read(frame).kind is Kind.RESPONSE
