"""The options: from a URL and back, and what is refused."""

from typing import Any

import pytest

from polybus import Limits
from polybus.plugins.registry import join_url, resolve_url
from polybus.protocols import UProtocol


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"format": "protobuf"},
        {"mode": "lenient", "profile": "up-python-1.5", "notification": "notif.v1"},
        {"entity": "//VCU.VIN/body.access/1", "peer": "/hmi.app/2.1"},
    ],
)
def test_options_come_from_a_url_and_stand_in_it_again(options: dict[str, str]) -> None:
    adapter = UProtocol.from_options(options)
    assert dict(adapter.url_options) == options
    again, _, address = resolve_url(join_url(adapter, "ws://127.0.0.1:8000/bus"))
    assert (again, address) == (adapter, "ws://127.0.0.1:8000/bus")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "xml"}, "json, protobuf"),
        ({"colour": "red"}, "known are entity, peer, format"),
        ({"entity": "body.access"}, "entity"),
        ({"entity": "//VCU.VIN/body.access"}, "is no entity"),
        ({"entity": "//VCU.VIN/body.access/1/door#Door"}, "is no entity"),
        ({"entity": "//*/body.access/1"}, "is no entity"),
        ({"peer": "//VCU.VIN/body.access/1.2.3"}, "is no entity"),
    ],
)
def test_what_is_no_option_is_told_with_what_is(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        UProtocol.from_options(options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"priorities": {"a": "CS9"}},
        {"permission_level": -1},
        {"token": 5},
        {"token": "\ud800"},
        {"schema": "not a uri"},
        {"allowance": -1},
        {"allowance": "30"},
        {"ttl": "30"},
        {"permission_level": "1"},
        {"max_clock_skew": float("nan")},
    ],
)
def test_a_wrong_value_is_a_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("ities")):
        UProtocol(**wrong)


def test_equal_adapters_share_a_codec_and_others_do_not() -> None:
    limits = Limits()
    assert UProtocol().codec(limits) is UProtocol().codec(limits)
    assert UProtocol(priorities={"a": "CS1"}).codec(limits) is UProtocol(priorities={"a": "CS1"}).codec(limits)
    assert UProtocol().codec(limits) is not UProtocol(mode="lenient").codec(limits)
    assert UProtocol().codec(limits) is not UProtocol().codec(Limits(message=100))


def test_a_secret_is_not_in_the_representation() -> None:
    assert "s3cret" not in repr(UProtocol(token="s3cret"))
