"""The fields of log records: what a record is about, for formats, filters and structlog."""

import logging
from typing import Any

import pytest

from polybus import Bus, Context, Handshake, RequestError, connect
from polybus._core.bus.dialer import LinkLog
from polybus._util.logs import Warnings, log_fields
from polybus.message import Kind, Message
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually


def record_of(caplog: pytest.LogCaptureFixture, text: str) -> dict[str, Any]:
    """The attributes of the only record with that text."""
    (record,) = [record for record in caplog.records if text in record.getMessage()]
    return vars(record)


async def test_a_failed_handler_is_logged_with_peer_request_and_the_id_that_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()

    @bus.handle("divide")
    async def divide(by: int) -> int:
        return 1 // by

    async with pair(bus) as client:
        with pytest.raises(RequestError) as raised:
            await client.request("divide", 0)
        found = record_of(caplog, "handler of 'divide' failed")
        (peer,) = bus.peers
        assert (found["peer"], found["address"], found["protocol"]) == (peer.id, peer.address, "ubre")
        assert found["subject"] == "divide"
        assert found["error_id"] in raised.value.text
        assert isinstance(found["request_id"], (str, int))
        caplog.clear()
        with pytest.raises(RequestError):
            await bus.request("divide", 0)
        found = record_of(caplog, "handler of 'divide' failed")
        assert found["subject"] == "divide"
        assert not {"peer", "address", "protocol", "request_id"} & found.keys()


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep", "uprotocol"])
async def test_lines_of_handlers_have_the_fields_of_the_message(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "polybus.handlers")
    bus = Bus()

    @bus.handle("order.place")
    async def place(article: str, ctx: Context) -> None:
        ctx.log.info("an order for %s", article, extra={"article": article})

    async with pair(bus, protocol=protocol) as client:
        await client.request("order.place", "soup")
        found = record_of(caplog, "an order for soup")
        assert (found["peer"], found["protocol"]) == (bus.peers[0].id, protocol)
        assert (found["subject"], found["article"]) == ("order.place", "soup")
    async with bus:
        caplog.clear()
        await bus.request("order.place", "cake")
        assert record_of(caplog, "an order for cake")["peer"] is None


async def test_a_publication_that_is_skipped_names_its_handler(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()

    @bus.on("news.*")
    async def on_news(body: int) -> None: ...

    async with pair(bus) as client:
        await client.publish("news.today", "no number")
        await eventually(lambda: "has an invalid body for" in caplog.text)
        found = record_of(caplog, "has an invalid body for")
        assert found["subject"] == "news.today"
        assert found["handler"].endswith("on_news")
        assert found["peer"] == bus.peers[0].id


async def test_a_client_that_is_refused_has_an_address(caplog: pytest.LogCaptureFixture) -> None:
    def nobody(handshake: Handshake) -> None:
        return None

    bus = Bus(authenticate=nobody)
    async with bus.serve("ubre+memory://log-fields") as server:
        await refused(connect(server.url), RequestError)
    found = record_of(caplog, "refused ")
    assert found["protocol"] == "ubre"
    assert found["address"]
    assert "(" not in found["address"]


def test_lines_about_a_link_have_its_url_without_the_password(caplog: pytest.LogCaptureFixture) -> None:
    LinkLog("ubre+ws://user:secret@plant.example:9000/bus", lambda: 0.0).gone("bye")
    found = record_of(caplog, "is lost for good")
    assert (found["address"], found["protocol"]) == ("ubre+ws://user:***@plant.example:9000/bus", "ubre")


def test_the_line_that_counts_others_has_the_fields_of_the_last_of_them(caplog: pytest.LogCaptureFixture) -> None:
    warnings, logger = Warnings(lambda: 0.0), logging.getLogger("polybus.security")
    for number in range(5):
        warnings.warn(logger, "refused %s", number, extra=log_fields(address=f"a{number}"))
    warnings.tell()
    assert [vars(record)["address"] for record in caplog.records] == ["a0", "a1", "a2", "a4"]


@pytest.mark.parametrize(("id", "shown"), [("r-1", "r-1"), (7, 7), (b"\x01\xff", "01ff"), (object(), None), (None, None)])
def test_a_request_has_the_id_of_its_wire(id: object, shown: object) -> None:
    assert log_fields(message=Message(Kind.REQUEST, "a", id)).get("request_id") == shown


def test_texts_of_peers_stay_on_one_line_and_short_and_what_is_not_known_is_left_out() -> None:
    fields = log_fields(message=Message(Kind.REQUEST, "a\nERROR polybus: none\x1b[2J", "x" * 500))
    assert fields["subject"] == "a\\nERROR polybus: none\\x1b[2J"
    assert fields["request_id"] == "x" * 200
    assert log_fields(address="", protocol=None, subject=0) == {"subject": 0}
