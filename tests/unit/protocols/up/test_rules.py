"""The rules by type: each is broken by one message, and kept by that of its type."""

import pytest
from msgspec.structs import replace

from polybus.protocols.up.attributes import Attributes, uuid_bytes
from polybus.protocols.up.rules import RULES, first_violation, violations
from polybus.protocols.up.uuris import parse_uuri
from tests.vectors import up_vectors as vectors

ID = uuid_bytes(vectors.ID.format(0))
TOPIC, METHOD, HERE = map(parse_uuri, ("//a/10AB/3/8001", "//b/CD/4/B", "//c/1/1/0"))
GOOD = {
    "publish": Attributes(ID, 1, TOPIC),
    "request": Attributes(ID, 2, HERE, METHOD, 5, 1000),
    "response": Attributes(ID, 3, METHOD, HERE, 5, 1000, reqid=ID),
    "notification": Attributes(ID, 4, TOPIC, HERE),
}
BAD = [
    ("publish", "id", {"id": b""}),
    ("publish", "id", {"id": bytes.fromhex(vectors.NO_IDS[8].replace("-", ""))}),
    ("publish", "type", {"type": 0}),
    ("publish", "type", {"type": 5}),
    ("publish", "source", {"source": None}),
    ("publish", "priority", {"priority": 8}),
    ("publish", "payload_format", {"payload_format": 9}),
    ("publish", "publish.source", {"source": METHOD}),
    ("publish", "publish.source", {"source": HERE}),
    ("publish", "publish.source", {"source": parse_uuri("//a/10AB/3/FFFF")}),
    ("publish", "publish.source", {"source": parse_uuri("//*/10AB/3/8001")}),
    ("publish", "publish.source", {"source": parse_uuri("//a/FFFF/3/8001")}),
    ("publish", "publish.sink", {"sink": HERE}),
    ("publish", "publish.sink", {"sink": parse_uuri("//*/FFFFFFFF/FF/FFFF")}),
    ("publish", "publish.sink", {"sink": parse_uuri("/FFFFFFFF/FF/FFFF")}),
    ("notification", "notification.source", {"source": METHOD}),
    ("notification", "notification.sink", {"sink": None}),
    ("notification", "notification.sink", {"sink": TOPIC}),
    ("notification", "notification.sink", {"sink": parse_uuri("//*/1/1/0")}),
    ("request", "request.source", {"source": METHOD}),
    ("request", "request.source", {"source": parse_uuri("//c/1/FF/0")}),
    ("request", "request.sink", {"sink": None}),
    ("request", "request.sink", {"sink": HERE}),
    ("request", "request.sink", {"sink": TOPIC}),
    ("request", "request.priority", {"priority": 4}),
    ("request", "request.priority", {"priority": 0}),
    ("request", "request.ttl", {"ttl": 0}),
    ("request", "request.ttl", {"ttl": None}),
    ("response", "response.source", {"source": HERE}),
    ("response", "response.sink", {"sink": TOPIC}),
    ("response", "response.reqid", {"reqid": b""}),
    ("response", "response.priority", {"priority": 2}),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_usual_message_keeps_all_rules(name: str) -> None:
    assert first_violation(GOOD[name]) is None
    assert [*violations(GOOD[name])] == []


@pytest.mark.parametrize(("name", "rule", "change"), BAD, ids=lambda value: str(value)[:40])
def test_a_message_that_breaks_a_rule_is_found_out_by_that_rule(name: str, rule: str, change: dict[str, object]) -> None:
    bad = replace(GOOD[name], **change)
    found = first_violation(bad)
    assert found is not None
    assert found.name == rule
    assert rule in [broken.name for broken in violations(bad)]


def test_each_rule_is_broken_by_one_of_these() -> None:
    assert {rule for _, rule, _ in BAD} == {rule.name for rule in RULES}


def test_a_publication_may_have_the_sink_of_a_streamer() -> None:
    assert first_violation(replace(GOOD["publish"], sink=parse_uuri("//cloud/FFFFFFFF/FF/FFFF"))) is None


def test_a_response_may_leave_its_priority_out() -> None:
    assert first_violation(replace(GOOD["response"], priority=0)) is None
