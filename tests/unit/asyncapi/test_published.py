"""Publications that an application declares: they are sent in its document, and heard on its page."""

from typing import Any

import pytest

from polybus import Bus, LocalProtocolError, ReservedSubject, Router, Subject
from polybus.asyncapi import document, page

from .shop import ORDER_PLACED, Order, Point, User, make_bus
from .test_document import asked

SERVERS = {
    "ubre": "ubre+wss://example.org/bus",
    "jrep": "jrep+https://example.org/errai",
    "nats": "nats+tls://example.org",
    "uprotocol": "uprotocol+ws://example.org/up",
}


def sent(made: dict[str, Any]) -> list[str]:
    return [operation["title"] for operation in made["operations"].values() if operation["action"] == "send"]


def test_what_is_declared_is_sent(shop: dict[str, Any]) -> None:
    assert sent(shop) == ["orders.placed", "reading.{sensor}.>", "user.get"]
    operation = shop["operations"]["orders.placed"]
    assert operation["x-polybus-style"] == "publication"
    assert "reply" not in operation
    assert asked(shop, "orders.placed") == {"$ref": "#/components/schemas/Order"}


def test_its_description_is_read_as_a_docstring(shop: dict[str, Any]) -> None:
    operation = shop["operations"]["orders.placed"]
    assert operation["summary"] == "Told for each order, after it was paid."
    assert operation["description"] == "Not for those that are cancelled within a minute."
    parameters = shop["channels"]["reading.sensor.rest"]["parameters"]
    assert parameters == {"sensor": {"description": "Its number."}, "rest": {"description": "the rest"}}


def test_one_subject_may_be_asked_heard_and_published(shop: dict[str, Any]) -> None:
    of_one = [one for one in shop["operations"].values() if one["title"] == "user.get"]
    kinds = [f"{one['action']} {one['x-polybus-style']}" for one in of_one]
    assert kinds == ["receive request", "receive publication", "send publication"]
    assert len({one["channel"]["$ref"] for one in of_one}) == 1
    assert asked(shop, "user.get_3") == {"$ref": "#/components/schemas/User"}


def test_bindings_are_those_of_publications() -> None:
    wires = document(make_bus(), servers=SERVERS)["operations"]["orders.placed"]["bindings"]
    assert wires == {
        "nats": {"bindingVersion": "0.1.0"},
        "x-ubre": {"publish": "orders.placed"},
        "x-jrep": {"ToSubject": "orders.placed"},
        "x-uprotocol": {"type": "pub.v1", "resource": "orders.placed#Message"},
    }


def test_a_declaration_gives_the_subject_to_publish_with() -> None:
    bus = Bus()
    assert bus.publishes(ORDER_PLACED) is ORDER_PLACED
    assert bus.publishes("news.today") == Subject("news.today")
    assert asked(document(bus), "news.today") == {}


def test_declarations_of_a_router_come_along_as_they_are_published() -> None:
    router, inner, bus = Router(prefix="shop."), Router(), Bus()
    inner.publishes(ORDER_PLACED, description="Told.")
    router.include(inner, prefix="inner.")
    router.publishes("shop.closed")
    bus.include(router, prefix="eu.")
    made = document(bus)
    assert sent(made) == ["orders.placed", "shop.closed"]
    assert made["operations"]["orders.placed"]["summary"] == "Told."


def test_several_modules_may_declare_the_same() -> None:
    one, other, bus = Router(), Router(), Bus()
    one.publishes(ORDER_PLACED)
    other.publishes(Subject("orders.placed", Order), description="Told.")
    one.publishes(ORDER_PLACED)
    bus.include(one)
    bus.include(other)
    bus.include(other)
    assert document(bus)["operations"]["orders.placed"]["summary"] == "Told."


def test_one_subject_has_one_type() -> None:
    bus = Bus()
    bus.publishes(ORDER_PLACED)
    says = r"bus\.publishes\('orders\.placed'\) was declared with Order before, and now with Point: .*, Order \| Point"
    with pytest.raises(TypeError, match=says):
        bus.publishes(Subject("orders.placed", Point))
    router = Router()
    router.publishes(Subject("orders.placed", Point))
    with pytest.raises(TypeError, match="declared with Order before, and now with"):
        bus.include(router)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (Subject("user.get", int, User), TypeError, r"bus\.publishes\('user\.get'\): a publication has no answer, and this"),
        (None, TypeError, r"bus\.publishes\(None\): pass a Subject, as in bus\.publishes\(Subject\('news\.today', News\)\)"),
        (Order, TypeError, r"bus\.publishes\(.*Order.*\): pass a Subject, as in"),
        ("a..b", LocalProtocolError, "empty token"),
        ("_polybus.x", ReservedSubject, "are reserved for polybus"),
    ],
)
def test_what_cannot_be_published_is_an_error(wrong: Any, error: type[Exception], says: str) -> None:
    bus = Bus()
    with pytest.raises(error, match=says):
        bus.publishes(wrong)
    assert sent(document(bus)) == []


def test_a_description_is_text() -> None:
    bus: Any = Bus()
    for wrong in (None, 7):
        with pytest.raises(TypeError, match=f"description={wrong}"):
            bus.publishes("news.today", description=wrong)


def test_the_page_says_who_publishes_and_lets_readers_listen(shop: dict[str, Any]) -> None:
    text = page(shop, live="../bus")
    article = text[text.index('<article id="op-orders.placed"') :].partition("</article>")[0]
    assert "publishes</span>" in article
    assert "<h4>Sends</h4>" in article
    assert 'data-style="listening"' in article
    assert "<textarea" not in article
    heard = text[text.index('<article id="op-news.day.rest"') :].partition("</article>")[0]
    assert "listens</span>" in heard
    assert 'data-style="publication"' in heard
