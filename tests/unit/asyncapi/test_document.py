"""AsyncAPI documents: what is in them of a bus and of a contract, and that they are the same text again and again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

from polybus import Bus
from polybus.asyncapi import document, page, to_text
from polybus.asyncapi.document import servers_of

from .shop import Users, UsersInMemory, make_bus

ALWAYS = ["DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]


def resolved(made: dict[str, Any], reference: dict[str, str]) -> Any:
    found: Any = made
    for part in reference["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return resolved(made, found) if isinstance(found, dict) and set(found) == {"$ref"} else found


def references(part: Any) -> list[dict[str, str]]:
    if isinstance(part, dict):
        here = [part] if isinstance(part.get("$ref"), str) else []
        return here + [one for value in part.values() for one in references(value)]
    return [one for value in part for one in references(value)] if isinstance(part, list) else []


def asked(made: dict[str, Any], operation: str) -> Any:
    (message,) = (resolved(made, one) for one in made["operations"][operation]["messages"])
    return message["payload"]


def given(made: dict[str, Any], operation: str) -> Any:
    return resolved(made, made["operations"][operation]["reply"]["messages"][0])["payload"]


def refused(made: dict[str, Any], operation: str) -> list[str]:
    return [resolved(made, one)["name"] for one in made["operations"][operation]["reply"]["messages"][1:]]


def test_every_handler_and_every_listener_is_an_operation(shop: dict[str, Any]) -> None:
    received = [operation for operation in shop["operations"].values() if operation["action"] == "receive"]
    assert [(operation["title"], operation["x-polybus-style"]) for operation in received] == [
        ("65537", "request"),
        ("anything", "request"),
        ("/body.access/1/rpc.open", "request"),
        ("chat", "channel"),
        ("log.tail", "stream"),
        ("news.{day}.>", "publication"),
        ("orders.list", "request"),
        ("orders.place", "request"),
        ("user.find", "request"),
        ("user.get", "request"),
        ("user.get", "publication"),
    ]


def test_every_reference_leads_somewhere(shop: dict[str, Any]) -> None:
    found = references(shop)
    assert len(found) > 50
    for reference in found:
        assert resolved(shop, reference) is not None


@pytest.mark.parametrize(
    ("operation", "takes", "gives"),
    [
        ("user.get", "GetUser", "User"),
        ("user.find", "GetUser", "User"),  # by its typed subject
        ("log.tail", "Filter", "Line"),
        ("chat", "Line", "Point"),
    ],
)
def test_an_operation_says_what_it_takes_and_gives(operation: str, takes: str, gives: str, shop: dict[str, Any]) -> None:
    assert asked(shop, operation) == {"$ref": f"#/components/schemas/{takes}"}
    assert given(shop, operation) == {"$ref": f"#/components/schemas/{gives}"}


def test_what_takes_nothing_gives_a_list_or_is_not_annotated_says_so(shop: dict[str, Any]) -> None:
    assert given(shop, "orders.list") == {"type": "array", "items": {"$ref": "#/components/schemas/Order"}}
    assert asked(shop, "orders.list") == {"type": "null"}
    assert asked(shop, "anything") == given(shop, "anything") == {}


def test_bytes_are_no_json(shop: dict[str, Any]) -> None:
    (message,) = (resolved(shop, one) for one in shop["operations"]["65537"]["messages"])
    assert (message["contentType"], message["payload"]) == ("application/octet-stream", {"type": "string", "format": "binary"})
    assert shop["channels"]["65537"]["x-polybus-subject"] == 65537


def test_the_docstring_is_summary_description_and_errors(shop: dict[str, Any]) -> None:
    get = shop["operations"]["user.get"]
    assert get["summary"] == "Find one user."
    assert get["description"] == "Users that were removed are found for a month: see ``user.restore``."
    assert get["reply"]["x-polybus-errors"] == {
        "NOT_FOUND": "There is no such user, or it was removed long ago.",
        "FAILED_PRECONDITION": "It is being removed.",
        "ABORTED": "It is being removed.",
    }
    assert get["x-polybus-running"] == 4


def test_errors_are_replies_by_their_codes(shop: dict[str, Any]) -> None:
    named = ["NOT_FOUND", "FAILED_PRECONDITION", "ABORTED"]
    assert refused(shop, "user.get") == [*named, *sorted([*ALWAYS, "INVALID_ARGUMENT"])]
    assert refused(shop, "orders.list") == ALWAYS
    assert "reply" not in shop["operations"]["news.day.rest"]
    message = shop["components"]["messages"]["error.NOT_FOUND"]
    assert (message["title"], message["x-polybus-code"]) == ("NotFound", 5)
    assert message["payload"]["allOf"][1] == {"properties": {"code": {"const": "NOT_FOUND"}}}


def test_a_bus_that_asks_for_permission_can_forbid() -> None:
    made = document(make_bus(authorize=lambda peer, verb, subject: True))
    assert "PERMISSION_DENIED" in refused(made, "orders.list")


def test_a_pattern_has_parameters(shop: dict[str, Any]) -> None:
    channel = shop["channels"]["news.day.rest"]
    assert channel["address"] == "news.{day}.{rest}"
    assert channel["parameters"] == {"day": {"description": "As in ``monday``."}, "rest": {"description": "the rest"}}
    assert channel["x-polybus-subject"] == "news.{day}.>"
    bus = Bus()
    bus.on("a.*.b.*")(lambda body: None)
    bus.on("/doors/*/open*")(lambda body: None)
    made = document(bus)
    addresses = {channel["title"]: channel["address"] for channel in made["channels"].values()}
    assert addresses == {"a.*.b.*": "a.{1}.b.{2}", "/doors/*/open*": "/doors/{1}/{2}"}


@pytest.mark.parametrize(
    ("pattern", "address", "parameters"),
    [
        ("a.{rest}.>", "a.{rest}.{rest_}", ["rest", "rest_"]),
        ("a.b*c.*", "a.b*c.{1}", ["1"]),
        ("/doors/{x}/*", "/doors/{x}/{1}", ["1"]),
        ("//car//1/>", "//car/{1}/1/{rest}", ["1", "rest"]),
    ],
)
def test_only_wildcards_are_parameters_each_with_a_name_of_its_own(pattern: str, address: str, parameters: list[str]) -> None:
    bus = Bus()

    async def told_of_the_rest(rest: str) -> None: ...

    bus.on(pattern)(told_of_the_rest if "{rest}" in pattern else named)
    channel = next(iter(document(bus)["channels"].values()))
    assert (channel["address"], list(channel.get("parameters", {}))) == (address, parameters)


def test_subjects_whose_letters_no_key_can_have_are_told_apart() -> None:
    bus = Bus()
    for subject in ("\u65e5", "\u672c", "empty", "empty_2", "\u8a9e"):
        bus.handle(subject)(named)
    operations = document(bus)["operations"]
    assert {key: one["title"] for key, one in operations.items()} == {
        "empty": "empty",
        "empty_2": "empty_2",
        "empty_3": "\u65e5",
        "empty_4": "\u672c",
        "empty_5": "\u8a9e",
    }


def test_a_group_is_a_queue_of_nats(shop: dict[str, Any]) -> None:
    assert shop["operations"]["news.day.rest"]["bindings"] == {"nats": {"bindingVersion": "0.1.0", "queue": "printers"}}
    assert shop["operations"]["news.day.rest"]["x-polybus-group"] == "printers"


def test_a_durable_handler_says_by_what_name_its_workers_share_what_is_stored() -> None:
    bus = Bus(cluster="auto")
    bus.on("orders.placed", durable="billing")(named)
    made = document(bus, title="Shop", version="1")
    [operation] = made["operations"].values()
    assert operation["bindings"] == {"nats": {"bindingVersion": "0.1.0", "x-durable": "billing"}}
    assert operation["x-polybus-durable"] == "billing"
    assert "durable billing" in page(made)


def test_the_subject_and_its_publications_share_a_channel(shop: dict[str, Any]) -> None:
    messages = shop["channels"]["user.get"]["messages"]
    assert list(messages) == ["user.get.request", "user.get_2.publication", "user.get_3.publication"]


def test_examples_fit_what_they_are_examples_of(shop: dict[str, Any]) -> None:
    messages = shop["components"]["messages"]
    assert messages["orders.place.request"]["examples"] == [{"payload": {"article": "text"}}]
    assert messages["orders.place.answer"]["examples"] == [{"payload": {"text": "text", "state": "cooking"}}]
    assert messages["chat.reply_item"]["examples"] == [{"payload": [1, 0.0]}]


def test_the_servers_are_shown_without_their_secrets() -> None:
    urls = [
        "ubre+wss://example.org:8443/bus?token=hush",
        "nats+tcp://hush@nats.example:4222",
        "jrep+https://example.org/errai",
        "csb+tls://example.org:9000",
        "csb+tls://example.org:9001",
        "uprotocol+tcp://example.org:9002",
    ]
    made = document(make_bus(), servers=servers_of(urls))
    assert "hush" not in to_text(made)
    assert {name: (server["protocol"], server["host"]) for name, server in made["servers"].items()} == {
        "csb-tls": ("csb+tls", "example.org:9000"),
        "csb-tls-2": ("csb+tls", "example.org:9001"),
        "jrep-https": ("https", "example.org"),
        "nats-tcp": ("nats", "nats.example:4222"),
        "ubre-wss": ("wss", "example.org:8443"),
        "uprotocol-tcp": ("uprotocol+tcp", "example.org:9002"),
    }
    assert made["servers"]["ubre-wss"]["pathname"] == "/bus"
    assert made["channels"]["user.get"]["bindings"] == {"ws": {"method": "GET", "bindingVersion": "0.1.0"}}
    assert made["operations"]["user.get"]["bindings"] == {
        "nats": {"bindingVersion": "0.1.0"},
        "http": {"method": "POST", "bindingVersion": "0.3.0"},
        "x-csb": {"subject": "user.get"},
        "x-jrep": {"ToSubject": "user.get"},
        "x-ubre": {"request": "user.get"},
        "x-uprotocol": {"type": "req.v1", "resource": "rpc.user.get"},
    }
    assert made["operations"]["65537"]["bindings"]["x-csb"] == {"action": 65537}
    assert made["operations"]["log.tail"]["bindings"]["x-ubre"] == {"open": "log.tail"}
    assert made["operations"]["user.get_2"]["bindings"]["x-uprotocol"] == {"type": "pub.v1", "resource": "user.get#Message"}


def test_a_server_has_an_address_of_ipv6_in_its_brackets_and_a_name_of_its_own() -> None:
    made = document(Bus(), servers={"a b": "ubre+ws://[::1]:80/bus", "a_b": "ubre+ws://[::1]/bus"})
    assert {name: server["host"] for name, server in made["servers"].items()} == {"a_b": "[::1]:80", "a_b_2": "[::1]"}


@pytest.mark.parametrize("url", ["ubre+memory://shop", "ubre+unix:///run/shop.sock", "ubre+ws:///bus", "http://example.org"])
def test_a_server_is_a_place_that_others_reach(url: str) -> None:
    with pytest.raises(ValueError, match="no host|is not a bus URL"):
        document(Bus(), servers={"here": url})


# -- contracts ------------------------------------------------------------------------------------------------------------


def test_a_contract_is_enough() -> None:
    made = document(Users, title="Users", prefix="user")
    assert made["info"]["description"] == "The users of the shop."
    assert {key: one["x-polybus-style"] for key, one in made["operations"].items()} == {
        "user.get": "request",
        "user.touch": "notification",
        "user.watch": "stream",
    }
    assert made["operations"]["user.get"]["reply"]["x-polybus-errors"] == {"NOT_FOUND": "There is no such user."}
    assert "reply" not in made["operations"]["user.touch"]
    assert given(made, "user.watch") == {"$ref": "#/components/schemas/User"}


def test_a_contract_and_its_implementation_are_the_same_messages_with_the_words_of_either() -> None:
    bus = Bus()
    bus.implement(Users, UsersInMemory(), "user")
    alone, implemented = document(Users, prefix="user"), document(bus)
    assert alone["components"]["schemas"] == implemented["components"]["schemas"]
    assert asked(alone, "user.touch") == asked(implemented, "user.touch") == {"type": "integer"}
    operations = implemented["operations"]
    assert operations["user.get"]["summary"] == "Find one user."
    assert operations["user.watch"]["summary"] == "Users that come."
    assert operations["user.watch"]["description"] == "The words of the implementation count."


# -- the text -----------------------------------------------------------------------------------------------------------------


def test_a_document_is_the_same_text_in_every_process_and_in_whatever_order_handlers_come() -> None:
    program = (
        "from tests.unit.asyncapi.shop import make_bus\nfrom polybus.asyncapi import document, page, to_text\n"
        "print(to_text(document(make_bus())), end='')"
    )
    root = Path(__file__).parents[3]
    (text,) = {
        subprocess.check_output(
            [sys.executable, "-c", program], cwd=root, env={**os.environ, "PYTHONHASHSEED": seed}, text=True
        )
        for seed in ("1", "2")
    }
    assert text == to_text(document(make_bus()))
    assert " at 0x" not in text
    first, second = Bus(), Bus()
    for bus, names in ((first, ("a", "b")), (second, ("b", "a"))):
        for name in names:
            bus.handle(name)(named)
    assert to_text(document(first)) == to_text(document(second))


async def named(body: int) -> int:
    return body


def test_the_text_is_json_and_keeps_letters(shop: dict[str, Any]) -> None:
    assert json.loads(to_text(shop)) == shop
    assert "grüße" in to_text(document(Bus(), title="grüße"))


def test_an_empty_bus_has_an_empty_document_and_page() -> None:
    made = document(Bus())
    assert (made["channels"], made["operations"], made["components"]) == ({}, {}, {})
    assert "There are no operations." in page(made)


# -- mistakes -------------------------------------------------------------------------------------------------------------


def test_what_is_neither_bus_nor_contract_is_an_error() -> None:
    with pytest.raises(TypeError, match="'shop' is neither a Bus nor a contract, which is a Protocol class"):
        document("shop")
    with pytest.raises(TypeError, match="UsersInMemory"):
        document(UsersInMemory)
    with pytest.raises(TypeError, match="prefix='user' is only for contracts"):
        document(Bus(), prefix="user")
    with pytest.raises(TypeError, match="version="):
        document(Bus(), version=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"servers=\['ubre\+ws://h'\] must be .*servers=\{'production': "):
        document(Bus(), servers=["ubre+ws://h"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="protocol=7"):
        document(Bus(), protocol=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="smtp"):
        document(Bus(), protocol="smtp")


class Undescribed(Protocol):
    async def get(self, id: int) -> int: ...


def test_a_contract_without_words_of_its_own_has_none_of_protocol() -> None:
    assert document(Undescribed)["info"] == {"title": "polybus", "version": "1.0.0"}


@pytest.mark.parametrize("name", ["title", "version", "description"])
def test_what_a_document_says_of_itself_is_text(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}=None must be str, not NoneType; for example {name}="):
        document(Bus(), **{name: None})  # type: ignore[arg-type]
