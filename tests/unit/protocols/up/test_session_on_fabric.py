"""The session on a fabric, without one: what it wants to hear, what it takes, and its samples."""

import random
from typing import Any

import pytest
from attrs import field, frozen
from msgspec.structs import replace

from polybus import Limits, LocalProtocolError, Message, RemoteProtocolError, TooLarge, Unsupported
from polybus.body import JSON
from polybus.message import MISSING, Kind
from polybus.plugins import Ready, Refused, Sample
from polybus.protocols.up import Up
from polybus.protocols.up.names import UpNames
from polybus.protocols.up.samples import DIALECTS, MAX_ATTRIBUTES, Dialect, Filters, check_attributes
from polybus.protocols.up.uuris import UUri, parse_entity, parse_uuri
from polybus.protocols.up.wire import Attributes, MessageType, write_attributes, write_message
from tests.doubles.driven import Driven
from tests.unit.protocols.uprotocol.support import Clock

from .test_session import CAR, NAMES, PHONE, asked, frame_of, published, receive, refused, sent

TO_US = "up/*/*/*/*/*/device1/10AB/0/3/*"
NO_SINK = "{}/{}/{}/{}/{}"


class Fabric:
    """What the session wants to hear."""

    def __init__(self, limits: Limits = Limits(), **options: Any) -> None:  # noqa: B008  # it is frozen
        self.heard: list[tuple[str, ...]] = []
        given: dict[str, Any] = {"clock": Clock(), "entity": CAR, "names": NAMES}
        fabric = Up(**given | options).fabric
        self.session = Driven(fabric.session("client", limits, random.Random(1), lambda to: self.heard.append(tuple(to))))
        self.session.start(0.0)
        assert self.session.events() == [Ready()]

    @property
    def topics(self) -> list[str]:
        """The filters for publications, the last ones."""
        assert self.heard[-1][0] == TO_US
        return [*self.heard[-1][1:]]

    def subscribe(self, pattern: str | int, kind: Kind = Kind.SUBSCRIBE) -> None:
        assert self.session.send(Message(kind, pattern), 0.0) is None
        assert self.session.frames_to_send() == []


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


def test_what_is_addressed_to_this_entity_is_heard_from_the_start_and_filters_are_told_where_they_change(
    fabric: Fabric,
) -> None:
    assert fabric.heard == [(TO_US,)]
    fabric.subscribe("door.opened")
    fabric.subscribe("door.*")
    assert len(fabric.heard) == 2
    fabric.subscribe("//*/10AB/3/80CD")
    assert fabric.topics == [f"up/device1/10AB/0/3/80CD/{NO_SINK}", f"up/*/10AB/0/3/80CD/{NO_SINK}"]
    fabric.subscribe("door.opened", Kind.UNSUBSCRIBE)
    assert len(fabric.heard) == 3
    fabric.subscribe("door.*", Kind.UNSUBSCRIBE)
    fabric.subscribe("nobody.knew", Kind.UNSUBSCRIBE)
    assert fabric.topics == [f"up/*/10AB/0/3/80CD/{NO_SINK}"]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        *((it, ["device1/10AB/0/3/80CD", "device2/CD/0/4/80CD"]) for it in ("door.opened", "door.*", "door.>")),
        ("light", ["device1/10AB/0/3/80CE", "device2/CD/0/4/80CE"]),
        ("other.opened", ["device3/1/0/1/8001"]),
        ("nothing.*", []),
        # What has no name has its address as subject, and an address matches these.
        *((it, ["*/*/*/*/*"]) for it in ("*.opened", "*", ">", "{what}.opened")),
        ("//device7/30001/2/8001", ["device7/1/3/2/8001"]),
        ("up://device7/1/2/8001", ["device7/1/0/2/8001"]),
        ("//*/10AB/3/80CD", ["*/10AB/0/3/80CD"]),
        ("//device7/*/*/80CD", ["device7/*/*/*/80CD"]),
        ("//device7/10ab/3/ffff", ["device7/10AB/0/3/*"]),
        ("//device7/FFFF/FF/8001", ["device7/*/0/*/8001"]),
        ("//*/FFFF10AB/3/8001", ["*/10AB/*/3/8001"]),
        ("//device7/10AB/3/*", ["device7/10AB/0/3/*"]),
        ("//device7/>", ["device7/*/*/*/*"]),
        ("//device7/10AB/>", ["device7/10AB/0/*/*"]),
        ("//>", ["*/*/*/*/*"]),
        ("//dev*/10AB/3/80*", ["*/10AB/0/3/*"]),
        ("//device7/10AB//80CD", ["device7/10AB/0/*/80CD"]),
        ("/10AB/3/80CD", ["device1/10AB/0/3/80CD"]),
    ],
)
def test_a_pattern_becomes_the_narrowest_filters_that_let_all_its_subjects_through(pattern: str, topics: list[str]) -> None:
    names = NAMES | {"other.opened": "//device3/1/1/8001"}
    fabric = Fabric(peer=PHONE, names=names)
    fabric.subscribe(pattern)
    assert fabric.topics == [f"up/{topic}/{NO_SINK}" for topic in topics]


def test_each_filter_is_written_once_however_many_come_after_it() -> None:
    @frozen
    class Counted(Dialect):
        written: list[UUri] = field(factory=list)

        def filter(self, source: UUri, sink: UUri | None, host: str) -> str:
            self.written.append(source)
            return super().filter(source, sink, host)

    dialect, heard = Counted("spec"), list[int]()
    own = parse_entity(CAR)
    filters = Filters(dialect, UpNames((), own, None, on_fabric=True), lambda expressions: heard.append(len(expressions)))
    filters.declare()
    for number in range(100):
        filters.add(f"//device7/1/1/{0x8000 + number:X}")
    for number in range(100):
        filters.remove(f"//device7/1/1/{0x8000 + number:X}")
    assert heard == [*range(1, 102), *range(100, 0, -1)]
    assert len(dialect.written) == 101


@pytest.mark.parametrize(
    ("pattern", "error", "text"),
    [
        ("nowhere", Unsupported, "'nowhere' has no number"),
        ("UpdateDoor", Unsupported, "'UpdateDoor' is not a topic"),
        (7, Unsupported, "7 is a number"),
        ("//device7/10AB/3/B", LocalProtocolError, "is not a topic"),
        *((f"//device7/{it}", LocalProtocolError, "each part may be") for it in ("10AB/3", "door/3/8001", "1/3/8001/7")),
        ("//DEVICE_7!/10AB/3/8001", LocalProtocolError, "each part may be"),
        ("//device7!/1/3/8001", LocalProtocolError, "'device7!' is not an authority: lower-case"),
        *((f"//device7/{it}", LocalProtocolError, "each part may be") for it in ("-1/3/8001", "0x1/3/8001", "1/0_3/8001")),
        *((f"//device7/{it}", LocalProtocolError, "each part may be") for it in ("1/3/ 8001", "123456789/3/8001")),
        *((f"//device7/{it}", LocalProtocolError, "each part may be") for it in ("1/100/8001", "1/3/18001", "1/-1/*")),
    ],
)
def test_a_pattern_without_an_address_is_refused(fabric: Fabric, pattern: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fabric.subscribe(pattern)
    fabric.subscribe("door.opened")
    assert fabric.topics == [f"up/device1/10AB/0/3/80CD/{NO_SINK}"]


@pytest.mark.parametrize("dialect", ["cpp-1.0", "rust-0.6"])
def test_filters_are_written_in_the_dialect(dialect: str) -> None:
    fabric = Fabric(dialect=dialect)
    fabric.subscribe("//*/10AB/3/80CD")
    assert fabric.heard[-1] == ("up/*/*/*/*/device1/10AB/3/*", "up/*/10AB/3/80CD/{}/{}/{}/{}")


def test_a_fabric_has_no_other_side_that_shows_itself_and_an_address_or_a_peer_says_who_is_meant(fabric: Fabric) -> None:
    (message,) = receive(fabric.session, published())
    assert message.subject == f"{PHONE}/80CD"  # not the name: it would be that of the peer
    for kind, subject in ((Kind.REQUEST, "UpdateDoor"), (Kind.NOTIFY, "door.opened")):
        with pytest.raises(Unsupported, match=r"a fabric has no single peer: set Up\(peer=\.\.\.\)"):
            fabric.session.send(Message(kind, subject, ttl=1.0, body=MISSING), 0.0)
    for subject in ("seat", "//device4/1/1/7"):
        assert fabric.session.send(Message(Kind.REQUEST, subject, ttl=1.0, body=MISSING), 0.0)
    assert [str(given.sink) for given, _ in sent(fabric.session)] == ["//device3/1/1/7", "//device4/1/1/7"]
    fabric = Fabric(peer=PHONE)
    fabric.session.send(Message(Kind.NOTIFY, "door.opened", body=MISSING), 0.0)
    fabric.session.send(Message(Kind.REQUEST, "UpdateDoor", ttl=1.0, body=MISSING), 0.0)
    assert [str(given.sink) for given, _ in sent(fabric.session)] == [f"{PHONE}/0", f"{PHONE}/B"]


@pytest.mark.parametrize(
    "frame",
    [
        asked(sink="//device9/10AB/3/B"),
        asked(sink="//device1/10AB/4/B"),
        frame_of(type=MessageType.NOTIFICATION, source=f"{PHONE}/80CD", sink="//device1/110AB/3/0"),
    ],
)
def test_what_is_addressed_to_somebody_else_is_refused_without_an_answer(fabric: Fabric, frame: bytes) -> None:
    assert refused(receive(fabric.session, frame)).reason == "wrong_sink"
    assert fabric.session.frames_to_send() == []


def test_an_address_of_this_host_is_asked_and_answered_with_its_authority(fabric: Fabric) -> None:
    for kind, subject in ((Kind.REQUEST, "/CD/4/B"), (Kind.PUBLISH, "/10AB/3/80CD")):
        fabric.session.send(Message(kind, subject, ttl=1.0, body=MISSING), 0.0)
    asked_, published_ = sent(fabric.session)
    assert (str(asked_[0].sink), str(published_[0].source)) == ("//device1/CD/4/B", f"{CAR}/80CD")


def test_a_request_whose_sink_has_no_authority_is_for_the_host_in_its_key() -> None:
    adapter, fabric = Up(entity=CAR), Fabric()
    sample = Up(entity="//device1/CD/4").fabric.sample(asked(source="/CD/4/0", sink="/10AB/3/B"))
    frame = adapter.fabric.frame(sample, Limits())
    assert frame is not None
    (request,) = receive(fabric.session, frame)
    assert (request.kind, request.subject) == (Kind.REQUEST, "UpdateDoor")
    fabric.session.send(Message(Kind.RESPONSE, "", request.id, b"1", JSON), 0.0)
    ((given, _),) = sent(fabric.session)
    assert (str(given.source), str(given.sink)) == (f"{CAR}/B", "//device1/CD/4/0")


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("change", [{}, {"ttl": 1999}])
def test_a_request_that_comes_again_is_refused(fabric: Fabric, answered: bool, change: dict[str, Any]) -> None:
    (first,) = receive(fabric.session, asked())
    if answered:
        fabric.session.send(Message(Kind.RESPONSE, "", first.id, b"1", JSON), 0.0)
        assert len(fabric.session.frames_to_send()) == 1
    assert refused(receive(fabric.session, asked(**change))).reason == "duplicate_id"
    assert fabric.session.frames_to_send() == []  # the answer is that of the first
    # An id is one of its source: whoever guesses that of another one's request stops nothing.
    (other,) = receive(fabric.session, asked(source="//other/1/1/0"))
    assert other.kind is Kind.REQUEST


def test_ids_of_answered_requests_are_forgotten_behind_so_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.protocols.up.session.SETTLED", 2)
    fabric = Fabric()
    frames = [asked(id=bytes.fromhex(f"018bcfe5687b70008010101010101a{number:02x}")) for number in range(5)]
    for frame in frames:
        (request,) = receive(fabric.session, frame)
        fabric.session.send(Message(Kind.RESPONSE, "", request.id, b"1", JSON), 0.0)
    known = [isinstance(receive(fabric.session, frame)[0], Refused) for frame in frames]
    assert known == [False, False, True, True, True]


def test_an_answer_to_another_program_with_this_entity_is_refused_and_says_so(fabric: Fabric) -> None:
    answer: dict[str, Any] = {"type": MessageType.RESPONSE, "source": f"{PHONE}/B", "sink": f"{CAR}/0", "priority": 5}
    frame = frame_of(reqid=bytes.fromhex("018bcfe5687b70008010101010101a1f"), **answer)
    error = refused(receive(fabric.session, frame))
    assert error.reason == "unknown_id"
    assert f"another program is also {CAR}, or this one sent the request before its link went down" in error.text


def test_attributes_for_which_a_sample_has_no_room_are_too_large_and_bodies_do_not_count() -> None:
    fabric = Fabric(token="t" * MAX_ATTRIBUTES, peer=PHONE)
    with pytest.raises(TooLarge, match=f"attributes of 655.. bytes: the limit on a fabric is {MAX_ATTRIBUTES}"):
        fabric.session.send(Message(Kind.REQUEST, "UpdateDoor", ttl=1.0, body=MISSING), 0.0)
    assert fabric.session.frames_to_send() == []
    trace = {"traceparent": f"cc-{'1' * 32}-{'1' * 16}-01-{'0' * MAX_ATTRIBUTES}"}  # of a later version, which may be longer
    with pytest.raises(TooLarge):
        fabric.session.send(Message(Kind.PUBLISH, "door.opened", headers=trace), 0.0)
    fabric.session.send(Message(Kind.PUBLISH, "door.opened", body=bytes(3 * MAX_ATTRIBUTES)), 0.0)
    assert len(fabric.session.frames_to_send()) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_most_attributes_that_may_leave_are_taken(dialect: Any) -> None:
    adapter = Up(entity=CAR, dialect=dialect)
    room = MAX_ATTRIBUTES - len(write_attributes(Attributes(bytes(16), 2, parse_uuri("//a/1/1/0"), token="")))
    frame = write_message(write_attributes(Attributes(bytes(16), 2, parse_uuri("//a/1/1/0"), token="t" * (room - 2))), b"")
    check_attributes(frame)
    assert adapter.fabric.frame(adapter.fabric.sample(frame), Limits()) is not None


def test_a_sample_has_the_authority_of_its_source_as_sender() -> None:
    fabric = Up(entity=CAR).fabric
    sample = fabric.sample(published())
    assert sample.key == f"up/device2/CD/0/4/80CD/{NO_SINK}"
    assert fabric.sender(sample.key) == "device2"
    assert [fabric.sender(key) for key in ("", "up", "up/", "up/a")] == ["", "", "", "a"]
    assert fabric.frame(sample, Limits()) == published()


def test_a_sample_of_the_other_dialect_with_the_same_keys_is_left_out() -> None:
    cpp, rust = Up(entity=CAR, dialect="cpp-1.0").fabric, Up(entity=CAR, dialect="rust-0.6").fabric
    assert cpp.frame(rust.sample(published()), Limits()) is None
    assert rust.frame(cpp.sample(published()), Limits()) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [({"payload": bytes(1000)}, r"1000 for both \(Limits.message\)"), ({"attachment": b"\x01\xff\xff"}, "cut off")],
)
def test_a_sample_that_is_no_message_is_refused(change: dict[str, Any], text: str) -> None:
    fabric = Up(entity=CAR).fabric
    sample: Sample = replace(fabric.sample(published()), **change)
    with pytest.raises(RemoteProtocolError, match=text):
        fabric.frame(sample, Limits(message=1000))
