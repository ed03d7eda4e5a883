"""Rules of both forms of uProtocol: ages, clocks ahead and behind, what crosses a bridge; a clock stands where it is put."""

import random
from typing import Any

import pytest
from attrs import frozen

from polybus import Code, Message
from polybus.message import Kind
from polybus.plugins import Refused, Undelivered
from polybus.protocols import Up, UProtocol
from tests.doubles.driven import Driven

NOW = 1_700_000_000_123  # the time in the ids
LATER = "018bcfe5-687b-{}005-b010-101010101a1a"
"""An id behind a bridge: its version is that of the other form."""


@frozen
class Form:
    """One form: its adapter with options, the version of its ids, a topic, who asks, and the method that is asked."""

    adapter: Any
    options: dict[str, Any]
    version: int
    topic: str
    asker: str
    method: str

    def session(self, ms: int = NOW, **options: Any) -> Any:
        made = Driven(
            self.adapter(clock=lambda: ms * 1_000_000, **self.options, **options).session("client", rng=random.Random(1))
        )
        made.start(0.0)
        made.events()
        return made

    def frame(self, kind: Kind, **facts: Any) -> bytes:
        said = {"id": LATER.format(self.version).replace("005-b", "001-b"), **facts}
        frame: bytes = self.adapter(**self.options).codec().encode([Message(kind, attributes=said)])
        return frame

    def published(self, **facts: Any) -> bytes:
        return self.frame(Kind.PUBLISH, source=self.topic, **facts)

    def asked(self) -> bytes:
        return self.frame(Kind.REQUEST, source=self.asker, sink=self.method, priority="CS4", ttl=2000)


UMESSAGE = Form(
    Up,
    {"entity": "//device1/10AB/3", "peer": "//device2/CD/4", "names": {"door": 0x80CD, "UpdateDoor": 0xB}},
    7,
    "//device2/CD/4/80CD",
    "//device2/CD/4/0",
    "//device1/10AB/3/B",
)
CLOUDEVENTS = Form(
    UProtocol,
    {"entity": "//vcu.vin/door/1", "peer": "//hu.veh7/hmi.app/1"},
    8,
    "//hu.veh7/hmi.app/1/door#Message",
    "//hu.veh7/hmi.app/1/rpc.response",
    "//vcu.vin/door/1/rpc.UpdateDoor",
)
both = pytest.mark.parametrize("form", [UMESSAGE, CLOUDEVENTS], ids=["up", "uprotocol"])


def sent(by: Any) -> list[dict[str, Any]]:
    return [by.codec.decode(frame)[0].attributes for frame in by.frames_to_send()]


def receive(to: Any, frame: bytes, now: float = 0.0) -> Any:
    to.receive(frame, now)
    (event,) = to.events()
    return event


@both
@pytest.mark.parametrize("kind", [Kind.PUBLISH, Kind.NOTIFY])
@pytest.mark.parametrize(("ttl", "written"), [(5.0, 5250), (None, 2250)])
def test_what_has_crossed_a_bridge_keeps_its_id(form: Form, kind: Kind, ttl: float | None, written: int) -> None:
    id = LATER.format(15 - form.version)
    ours = form.session(int(id[:8] + id[9:13], 16) + 250, ttl=2)
    for crossed in ({"id": id.upper(), "priority": "CS6"}, {"id": "x", "priority": 6}):
        ours.send(Message(kind, "door", body=1, ttl=ttl, attributes={"polybus-relayed": crossed}), 0.0)
    given, usual = sent(ours)
    assert (given["id"], given["priority"], given["ttl"]) == (LATER.format(form.version), "CS6", written)
    assert (usual["priority"], usual["ttl"]) == ("CS1", written - 250)


@both
def test_a_request_that_crosses_keeps_its_priority_and_has_an_id_of_this_side(form: Form) -> None:
    ours, id = form.session(priorities={"UpdateDoor": "CS5"}), LATER.format(form.version)
    for crossed in ({"id": id, "priority": "CS6"}, {"id": id, "priority": "CS1"}, {"id": id, "priority": "CS9"}, {}):
        ours.send(Message(Kind.REQUEST, "UpdateDoor", ttl=5.0, attributes={"polybus-relayed": crossed}), 0.0)
    found = sent(ours)
    assert [one["priority"] for one in found] == ["CS6", "CS4", "CS5", "CS5"]
    assert id not in [one["id"] for one in found]


@both
@pytest.mark.parametrize("said", [["CS5"], {"CS5": 1}, 5, "CS9", None])
def test_a_priority_of_another_wire_means_nothing_here(form: Form, said: object) -> None:
    ours = form.session()
    ours.send(Message(Kind.PUBLISH, "door", body=1, attributes={"priority": said, "to": said}), 0.0)
    ((given),) = sent(ours)
    assert (given["priority"], given.get("sink")) == ("CS1", None)


@both
@pytest.mark.parametrize(("age", "left"), [(0, 2.0), (500, 1.5), (2000, 0.001), (2001, None), (-30_000, 2.0)])
def test_a_publication_lives_until_its_ttl_is_over(form: Form, age: int, left: float | None) -> None:
    event = receive(form.session(NOW + age), form.published(ttl=2000), now=100.0)
    if left is None:
        assert isinstance(event, Undelivered)
        assert (event.code, event.reason) == (Code.DEADLINE_EXCEEDED, "expired")
    else:
        assert (event.ttl, event.expires) == (pytest.approx(left), pytest.approx(100.0 + left))


@both
@pytest.mark.parametrize("ttl", [{}, {"ttl": 0}])
def test_a_publication_without_ttl_never_expires(form: Form, ttl: dict[str, int]) -> None:
    message = receive(form.session(NOW + 31_536_000_000), form.published(**ttl))
    assert (message.ttl, message.expires) == (None, None)


@both
@pytest.mark.parametrize(("age", "left"), [(0, 2.0), (1999, 0.001), (2000, 0.001), (2001, 0.0), (-5, 2.0), (-30_000, 2.0)])
def test_a_request_has_what_is_left_of_its_ttl_or_no_time_left(form: Form, age: int, left: float) -> None:
    ours = form.session(NOW + age)
    assert receive(ours, form.asked()).ttl == pytest.approx(left)
    assert ours.frames_to_send() == []


@both
def test_an_allowance_lets_a_slow_clock_pass(form: Form) -> None:
    assert receive(form.session(NOW + 2500), form.asked()).ttl == 0.0
    assert receive(form.session(NOW + 2500, allowance=1.0), form.asked()).ttl == pytest.approx(0.5)


@both
@pytest.mark.parametrize("ahead", [30_001, 86_400_000])
def test_a_message_from_further_ahead_than_half_a_minute_is_refused_and_who_asks_is_told(form: Form, ahead: int) -> None:
    ours = form.session(NOW - ahead)
    event = receive(ours, form.asked())
    assert isinstance(event, Refused) and event.error.reason == "clock_skew"
    assert [one["commstatus"] for one in sent(ours)] == [Code.DEADLINE_EXCEEDED]


@both
def test_publications_live_as_long_as_the_application_says(form: Form) -> None:
    ours = form.session(ttl=10)
    for kind, ttl in ((Kind.PUBLISH, None), (Kind.NOTIFY, None), (Kind.PUBLISH, 2.0)):
        ours.send(Message(kind, "door", body=1, ttl=ttl), 0.0)
    assert [one["ttl"] for one in sent(ours)] == [10_000, 10_000, 2000]
