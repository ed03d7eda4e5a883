"""Services of proto files: their text says what protoc has made of it, and what is wrong is told with its line."""

import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from polybus import Bus
from polybus.protocols import Up
from polybus.protocols.up import Service, service_of, services_in
from polybus.testing import pair

FOLDER = Path(__file__).parents[3] / "vectors"
PROTO = FOLDER / "up_services.proto"
COMPILED = FOLDER / "up_services.binpb"
"""What protoc (of grpcio-tools 1.85.1) has made of it, and of the options."""
BODY = Service(
    "body.access", 0x10AB, 3, {"UpdateDoor": 1, "Watch": 0x7FFF, "lights": 12}, {"door.opened": 0x8001, "lights": 0x80CE}
)
SUBSCRIPTIONS = Service("Subscriptions", 0, 0, {}, {"SubscriptionChange": 0x8000})


def compiled(*, with_options: bool) -> Iterator[Any]:
    """The services, in a program that knows the options, or not."""
    files = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for known in (descriptor_pb2.DESCRIPTOR, empty_pb2.DESCRIPTOR):
        pool.AddSerializedFile(known.serialized_pb)
    for file in files.file:
        if file.name == "up_services.proto" and not with_options:
            file.dependency.remove("uprotocol/uoptions.proto")
        if with_options or file.name == "up_services.proto":
            pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName("up_services.proto").services_by_name
    return iter([found["BodyAccess"], found["Subscriptions"], found["Plain"]])


def test_the_services_of_a_file_are_those_with_options() -> None:
    text = PROTO.read_text()
    assert services_in(text) == services_in("\ufeff" + text) == [BODY, SUBSCRIPTIONS]


@pytest.mark.parametrize("with_options", [True, False])
def test_what_protoc_has_made_says_the_same(with_options: bool) -> None:
    body, subscriptions, plain = compiled(with_options=with_options)
    assert [service_of(body), service_of(subscriptions)] == [BODY, SUBSCRIPTIONS]
    text = r"^up: up_services\.proto: the service Plain has no \(uprotocol\.service_id\)"
    with pytest.raises(ValueError, match=text):
        service_of(plain)


def test_names_are_numbers_or_whole_addresses_of_a_host() -> None:
    assert BODY.names() == {"UpdateDoor": 1, "Watch": 0x7FFF, "lights": [12, 0x80CE], "door.opened": 0x8001}
    assert BODY.names("vehicle7", instance=4, prefix="body.") == {
        "body.UpdateDoor": "//vehicle7/410AB/3/1",
        "body.Watch": "//vehicle7/410AB/3/7FFF",
        "body.lights": ["//vehicle7/410AB/3/C", "//vehicle7/410AB/3/80CE"],
        "body.door.opened": "//vehicle7/410AB/3/8001",
    }
    assert (BODY.entity("vehicle7"), BODY.entity("[2001::7]", instance=1)) == ("//vehicle7/10AB/3", "//[2001::7]/110AB/3")
    Up(entity=BODY.entity("vehicle7"), names=BODY.names() | SUBSCRIPTIONS.names("vehicle8"))


@pytest.mark.parametrize(
    ("authority", "instance"), [("", 0), ("*", 0), ("Vehicle", 0), ("vehicle7:80", 0), ("a", -1), ("a", 0xFFFF), ("a", True)]
)
def test_what_is_no_host_or_instance_is_said(authority: str, instance: int) -> None:
    for make in (BODY.entity, BODY.names):
        with pytest.raises(ValueError, match=re.escape(repr(authority))):
            make(authority, instance=instance)


async def test_a_bus_speaks_by_the_names_of_a_proto_file() -> None:
    body, subscriptions = services_in(PROTO.read_text())
    bus = Bus()

    @bus.handle("UpdateDoor")
    async def update(door: int) -> int:
        await bus.publish("door.opened", door)
        return door + 1

    both = Up(entity=body.entity("vehicle7"), names=body.names() | subscriptions.names("vehicle7"))
    async with pair(bus, protocol=both) as client, client.subscribe("door.opened") as doors:
        reply = client.request("UpdateDoor", 2)
        assert await reply == 3
        assert reply.message is not None
        assert reply.message.attributes["source"] == "//vehicle7/10AB/3/1"
        assert (await anext(doors)).attributes["source"] == "//vehicle7/10AB/3/8001"


SERVICE = """syntax = "proto3";
service Body {
  option (uprotocol.service_id) = 1;
  option (uprotocol.service_version_major) = 2;
  option (uprotocol.publish_topic) = { id: 0x8001 name: "opened" };
  rpc Get(A) returns (B) {
    option (uprotocol.method_id) = 1;
  }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("  option (uprotocol.service_id) = 1;\n", "", 2, r"the service Body has no \(uprotocol.service_id\)"),
        ("service_id) = 1", "service_id) = 0xFFFF", 3, "is 65535, not a number from 0 to FFFE"),
        ("service_id) = 1", "service_id) = 1.5", 3, r"is '1\.5', not a number"),
        ("service_id) = 1", "service_id) = 09", 3, "'09' is not a number"),
        ("major) = 2", "major) = 255", 4, "is 255, not a number from 0 to FE"),
        ("service_version_major) = 2;", "service_id) = 2;", 4, r"Body has \(uprotocol.service_id\) 2 times"),
        ("method_id) = 1", "method_id) = 0", 7, r"\(uprotocol.method_id\) of the method Get is 0, not a number from 1 to 7FFF"),
        ("    option (uprotocol.method_id) = 1;\n", "", 6, r"the method Get has no \(uprotocol.method_id\)"),
        ("  rpc Get", "  rpc Put(A) returns (B) {option (uprotocol.method_id) = 1;}\n  rpc Get", 7, "before it 'Put' with 1"),
        ("id: 0x8001", "id: 0x7FFF", 5, "the id of the topic 'opened' is 32767, not a number from 8000 to FFFE"),
        ('name: "opened"', "", 5, "None is not the name of a topic"),
        ('name: "opened"', 'name: "a/b"', 5, "'a/b' is not the name of a topic"),
        ('{ id: 0x8001 name: "opened" }', "7", 5, "the id of the topic None is None"),
        ('{ id: 0x8001 name: "opened" }', "{ id: 0x8001 name: }", 5, "'}' is not a value"),
        ('{ id: 0x8001 name: "opened" }', "{ id 0x8001 7: 8 }", 5, "'7' is not the name of a field"),
        ('"opened"', '"opened', 5, "a string is not closed on its line"),
        ("}\n}\n", "}\n", 9, "the file ends within a declaration"),
        ("service Body {", "service Body (", 2, r"'\(' where '{' is expected"),
        ("service Body {", "service 7 {", 2, "'7' is not the name of a service"),
        ("rpc Get", "rpc .", 6, "'.' is not the name of a method"),
        ('syntax = "proto3";', "}", 1, "'}' without '{'"),
        ('syntax = "proto3";', "/* no end", 1, "a comment is not closed"),
        ("= 1;\n  option (uprotocol.service_v", "= 1\n  option (uprotocol.service_v", 4, "'option' where ';' is expected"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_file_and_line(old: str, new: str, line: int, text: str) -> None:
    assert SERVICE.count(old) == 1
    with pytest.raises(ValueError, match=text) as caught:
        services_in(SERVICE.replace(old, new), file="body.proto")
    assert str(caught.value).startswith(f"up: body.proto, line {line}: ")


def test_a_topic_for_each_of_its_resources_has_no_number_of_its_own_and_is_passed_over() -> None:
    (service,) = services_in(SERVICE.replace("id: 0x8001", 'resources: ["Doors:*"]'))
    assert service == Service("Body", 1, 2, {"Get": 1}, {})


@pytest.mark.parametrize("deep", ["{a: ", "[", "-", "+ -"])
def test_values_that_lie_too_deep_are_refused(deep: str) -> None:
    with pytest.raises(ValueError, match="deeper than 64"):
        services_in(SERVICE.replace('"opened"', deep * 100_000))


@pytest.mark.parametrize("written", ["a", "ü", "\\n"])
def test_a_long_text_takes_few_times_its_length(written: str) -> None:
    text = SERVICE.replace('"opened"', f'"{written * 500_000}"')
    tracemalloc.start()
    try:
        (service,) = services_in(text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(name) for name in service.topics] == [500_000]
    assert most < 20 * len(text)


def test_numbers_and_names_are_told_apart_between_all_methods() -> None:
    methods = [f"rpc m{id}(A) returns (B) {{ option (uprotocol.method_id) = {id}; }}" for id in range(2, 2000)]
    (service,) = services_in(SERVICE.replace("  rpc Get", "\n".join(methods) + "\n  rpc Get"))
    assert sorted(service.methods.values()) == [*range(1, 2000)]
    for twice in ("rpc m7(A) returns (B) { option (uprotocol.method_id) = 1; }", methods[-1].replace("m", "n", 1)):
        with pytest.raises(ValueError, match="each has its own"):
            services_in(SERVICE.replace("  rpc Get", "\n".join((*methods, twice)) + "\n  rpc Get"))


def test_the_name_of_a_file_is_not_its_text() -> None:
    text = r"'body\.proto' is the name of a file: pass its text, Path\('body\.proto'\)\.read_text\(\)"
    with pytest.raises(ValueError, match=text):
        services_in("body.proto")


@given(st.text(max_size=60), st.integers(0, len(SERVICE)), st.integers(0, 40))
@example("/*", 30, 0)
def test_any_text_is_read_or_refused(text: str, place: int, left_out: int) -> None:
    for damaged in (text, SERVICE[:place] + text + SERVICE[place + left_out :]):
        try:
            found = services_in(damaged)
        except ValueError as error:
            assert str(error).startswith("up: services, line ")
        else:
            for service in found:
                Up(names=service.names(), entity=service.entity("a"))
