"""The options of every protocol: from a URL and back, those that are refused, and codecs that equal adapters share."""

from collections.abc import Mapping
from typing import Any

import pytest

from polybus.limits import Limits
from polybus.plugins import Codec, ProtocolAdapter, Session
from polybus.plugins.registry import join_url, resolve_url
from polybus.protocols import Csb, Jrep, Nats, Ubre, Up, UProtocol
from polybus.protocols.jrep import JavaTypes


@pytest.mark.parametrize("adapter", [Ubre(), Csb(), Jrep(), Nats(), Up(), UProtocol()], ids=lambda adapter: adapter.name)
def test_an_adapter_is_what_plugins_ask_for(adapter: ProtocolAdapter) -> None:
    codec: Codec = adapter.codec()
    session: Session = adapter.session("client")
    assert session.codec is codec
    assert dict(adapter.url_options) == {}


@pytest.mark.parametrize(
    ("options", "adapter"),
    [
        (
            {"format": "binary", "dialect": "spec", "body": "raw", "body_length": "-1"},
            Ubre(format="binary", dialect="spec", body="raw", body_length=-1),
        ),
        ({"side": "broker-server", "pool": "3", "server": "A"}, Csb(side="broker-server", pool=3, server="A")),
        (
            {"dialect": "legacy", "values": "plain", "types": "strict", "heartbeat": "2.5"},
            Jrep(dialect="legacy", values="plain", types="strict", heartbeat=2.5),
        ),
        ({"format": "protobuf"}, UProtocol(format="protobuf")),
        (
            {"mode": "lenient", "profile": "up-python-1.5", "notification": "notif.v1"},
            UProtocol(mode="lenient", profile="up-python-1.5", notification="notif.v1"),
        ),
        (
            {"entity": "//VCU.VIN/body.access/1", "peer": "/hmi.app/2.1"},
            UProtocol(entity="//VCU.VIN/body.access/1", peer="/hmi.app/2.1"),
        ),
    ],
)
def test_options_come_from_a_url_and_go_back_into_it(options: Mapping[str, str], adapter: Any) -> None:
    assert type(adapter).from_options(options) == adapter
    assert dict(adapter.url_options) == options
    again, _, address = resolve_url(join_url(adapter, "ws://127.0.0.1:8000/bus"))
    assert (again, address) == (adapter, "ws://127.0.0.1:8000/bus")


@pytest.mark.parametrize("protocol", ["csb", "jrep"])
def test_what_a_websocket_shows_to_its_server_is_no_option(protocol: str) -> None:
    assert resolve_url(f"{protocol}+ws://127.0.0.1:9000/game?table=7")[2] == "ws://127.0.0.1:9000/game?table=7"


@pytest.mark.parametrize(
    ("protocol", "options", "says"),
    [
        (Ubre, {"colour": "red"}, "unknown option colour; use one of format, dialect, body, body_length"),
        (Ubre, {"format": "xml"}, "format='xml' must be one of json, binary, any"),
        (Ubre, {"format": "binary", "body_length": "0"}, "body_length='0' must be one of -1"),
        (Ubre, {"body": "raw"}, "body=raw is for binary frames"),
        (Ubre, {"format": "any", "body_length": "-1"}, "set format=binary"),
        (Csb, {"side": "server"}, "direct, broker-server"),
        (Csb, {"pool": "0", "side": "broker-server"}, "from 1 to 64"),
        (Csb, {"pool": "x", "side": "broker-server"}, "from 1 to 64"),
        (Csb, {"pool": "2"}, "side=broker-server"),
        (Csb, {"server": "A"}, "side=broker-server"),
        (Csb, {"server": "a\nb", "side": "broker-server"}, "control character"),
        (Csb, {"format": "json"}, "use one of side, pool, server"),
        (Jrep, {"dialect": "v4"}, "auto, v3, legacy"),
        (Jrep, {"values": "xml"}, "errai, plain"),
        (Jrep, {"types": "any"}, "lenient, strict"),
        *((Jrep, {"heartbeat": heartbeat}, "seconds") for heartbeat in ("often", "-1", "nan")),
        (Jrep, {"java": "x"}, "unknown option java; use one of dialect"),
        (Nats, {"speed": "7"}, "unknown option speed; use one of queue"),
        (Up, {"token": "x"}, "unknown option token"),
        (UProtocol, {"format": "xml"}, "json, protobuf"),
        (UProtocol, {"colour": "red"}, "use one of entity, peer, format"),
        (UProtocol, {"entity": "body.access"}, "entity"),
        (UProtocol, {"entity": "//VCU.VIN/body.access"}, "is not an entity"),
        (UProtocol, {"entity": "//VCU.VIN/body.access/1/door#Door"}, "is not an entity"),
        (UProtocol, {"entity": "//*/body.access/1"}, "is not an entity"),
        (UProtocol, {"peer": "//VCU.VIN/body.access/1.2.3"}, "is not an entity"),
    ],
)
def test_what_is_not_known_or_means_nothing_is_named(protocol: Any, options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        protocol.from_options(options)


@pytest.mark.parametrize(
    ("protocol", "options", "says"),
    [
        (Csb, {"actions": {"a": 0xFFFF0000}}, "0xfffeffff"),
        (Csb, {"actions": {"a": -1}}, "0xfffeffff"),
        (Csb, {"actions": {"a": "1"}}, "0xfffeffff"),
        (Csb, {"actions": {"": 1}}, "empty"),
        (Csb, {"actions": {"a": 1, "b": 1}}, "a, b have the same number"),
        (Csb, {"encodings": {1: "xml"}}, "urlencoded"),
        *((Nats, {"queue": queue}, "nats: ") for queue in ("a b", "", "a..b")),
        *((Nats, {"domain": domain}, "nats: ") for domain in ("a.b", "*", "a b")),
        (Nats, {"inbox": "a.*"}, "nats: "),
        (Nats, {"tls_first": "perhaps"}, "nats: "),
        (Nats, {"user": "ann", "token": "x"}, "nats: "),
        (Nats, {"password": "x"}, "nats: "),
        (Nats, {"nkey": "S" + "A" * 57}, "nats: "),
        (Up, {"entity": "/10AB/3"}, "add an authority"),
        (Up, {"entity": "//a/1/1/1"}, "not an entity"),
        (Up, {"entity": 5}, "entity=5"),
        (Up, {"entity": None}, "entity=None"),
        (Up, {"peer": "//*/1/1"}, "wildcards"),
        (Up, {"ttl": 0}, "must be from 0.001"),
        (Up, {"priorities": {"a": "CS9"}}, "CS9"),
        (Up, {"priorities": "CS4"}, "priorities='CS4' must be a table from patterns to CS0 ... CS6"),
        (Up, {"priorities": ("door.*", "CS4")}, "must be a table from patterns to CS0 ... CS6"),
        (Up, {"permission_level": -1}, "permission_level"),
        (Up, {"per_authority": 0}, "per_authority"),
        (Up, {"max_clock_skew": -1}, "max_clock_skew"),
        (Up, {"strings": "xml"}, "one of json, text"),
        (Up, {"token": b"secret"}, "token must be a string"),
        (UProtocol, {"priorities": {"a": "CS9"}}, "priorit"),
        (UProtocol, {"permission_level": -1}, "permission_level"),
        (UProtocol, {"permission_level": "1"}, "permission_level"),
        (UProtocol, {"token": 5}, "token"),
        (UProtocol, {"token": "\ud800"}, "token"),
        (UProtocol, {"token": "a\r\nb"}, "token must be a string"),
        (UProtocol, {"schema": "not a uri"}, "schema"),
        (UProtocol, {"allowance": -1}, "allowance"),
        (UProtocol, {"allowance": "30"}, "allowance"),
        (UProtocol, {"ttl": "30"}, "ttl"),
        *((UProtocol, {"ttl": ttl}, "ttl") for ttl in (0, -1, 1e9)),
        (UProtocol, {"max_clock_skew": float("nan")}, "max_clock_skew"),
    ],
)
def test_a_wrong_value_is_named_and_a_secret_is_not_shown(protocol: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        protocol(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("adapter", [UProtocol(token="s3cret"), Nats(token="s3cret"), Nats(user="ann", password="s3cret")])
def test_a_secret_is_not_in_the_representation(adapter: object) -> None:
    assert "s3cret" not in repr(adapter)


LIMITS = Limits()


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        (Ubre(), Ubre(format="json"), Ubre(format="any")),
        (Csb(actions={"a": 1}), Csb(actions={"a": 1}), Csb(actions={"a": 2})),
        (Csb(side="broker-server", server="A"), Csb(side="broker-server", pool=2), Csb()),
        (Jrep(), Jrep(dialect="v3", heartbeat=1), Jrep(values="plain")),
        (Jrep(java=(types := JavaTypes())), Jrep(java=types), Jrep(java=JavaTypes())),
        (Nats(), Nats(user="ann", password="x"), Nats(queue="other")),
        (Up(strings="text"), Up(entity="//device1/10AB/3", strings="text"), Up()),
        (UProtocol(), UProtocol(), UProtocol(mode="lenient")),
        (UProtocol(priorities={"a": "CS1"}), UProtocol(priorities={"a": "CS1"}), UProtocol()),
    ],
)
def test_adapters_that_write_alike_share_a_codec(one: Any, equal: Any, other: Any) -> None:
    assert one.codec(LIMITS) is equal.codec(LIMITS)
    assert one.codec(LIMITS) is not other.codec(LIMITS)
    assert one.codec(LIMITS) is not one.codec(Limits(message=5))


@pytest.mark.parametrize("adapter", [Up, UProtocol])
def test_an_adapter_with_another_name_checks_its_options_too(adapter: type[Up | UProtocol]) -> None:
    class Other(adapter):  # type: ignore[misc, valid-type]  # a parameter
        name = "other"

    assert Other(ttl=1.0, permission_level=3).permission_level == 3
    with pytest.raises(ValueError, match=r"^other: ttl=-1 must be from"):
        Other(ttl=-1)
