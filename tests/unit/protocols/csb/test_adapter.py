"""The options of the protocol."""

from typing import Any

import pytest

from polybus.limits import Limits
from polybus.plugins.registry import resolve_url
from polybus.protocols import Csb


def test_options_of_a_url() -> None:
    adapter, _, address = resolve_url("csb+tcp://127.0.0.1:9000?side=broker-server&pool=3&server=A")
    assert adapter == Csb(side="broker-server", pool=3, server="A")
    assert address == "tcp://127.0.0.1:9000"
    assert dict(adapter.url_options) == {"side": "broker-server", "pool": "3", "server": "A"}
    assert dict(Csb().url_options) == {}


def test_what_a_websocket_shows_to_its_server_is_no_option() -> None:
    adapter, _, address = resolve_url("csb+ws://127.0.0.1:9000/game?table=7")
    assert (adapter, address) == (Csb(), "ws://127.0.0.1:9000/game?table=7")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"side": "server"}, "direct, broker-server"),
        ({"pool": "0", "side": "broker-server"}, "from 1 to 64"),
        ({"pool": "x", "side": "broker-server"}, "from 1 to 64"),
        ({"pool": "2"}, "side=broker-server"),
        ({"server": "A"}, "side=broker-server"),
        ({"server": "a\nb", "side": "broker-server"}, "control character"),
        ({"format": "json"}, "known are side, pool, server"),
    ],
)
def test_options_that_are_wrong_are_told(options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Csb.from_options(options)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"actions": {"a": 0xFFFF0000}}, "0xfffeffff"),
        ({"actions": {"a": -1}}, "0xfffeffff"),
        ({"actions": {"a": "1"}}, "0xfffeffff"),
        ({"actions": {"": 1}}, "empty"),
        ({"actions": {"a": 1, "b": 1}}, "a, b have the same number"),
        ({"encodings": {1: "xml"}}, "urlencoded"),
    ],
)
def test_tables_that_are_wrong_are_told(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Csb(**tables)


def test_equal_adapters_share_a_codec() -> None:
    limits = Limits()
    assert Csb(actions={"a": 1}).codec(limits) is Csb(actions={"a": 1}).codec(limits)
    assert Csb(actions={"a": 1}).codec(limits) is not Csb(actions={"a": 2}).codec(limits)
    assert Csb(side="broker-server", server="A").codec(limits) is Csb(side="broker-server", pool=2).codec(limits)


def test_a_pool_is_so_many_connections_of_one_instance() -> None:
    connections = Csb(side="broker-server", pool=3, server="A").connections()
    assert len(connections) == 3
    assert len({adapter.instance for adapter in connections}) == 1
    assert all(adapter.instance and adapter.pool == 1 for adapter in connections)
    one = Csb(side="broker-server")
    assert one.connections() == (one,)


def test_an_encoding_goes_by_number_and_by_name() -> None:
    codec = Csb(actions={"user.login": 7}, encodings={"user.login": "urlencoded"}).codec()
    assert codec.format_for({}, 7) is codec.format_for({}, "user.login")
    assert codec.format_for({}, 7).content_type == "application/x-www-form-urlencoded"
