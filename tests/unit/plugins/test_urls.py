"""URLs with a slip: what was probably meant is told."""

from __future__ import annotations

import logging

import pytest

from polybus import connect
from polybus.plugins.registry import mistyped_options, resolve_url


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ubre+ws://127.0.0.1:9/bus?formt=binary", "formt: did you mean format"),
        ("ubre+ws://127.0.0.1:9/bus?Format=binary", "Format: did you mean format"),
        ("jrep+ws://127.0.0.1:9/bus?hearbeat=3&dialct=v3", "hearbeat: did you mean heartbeat; dialct: did you mean dialect"),
        ("ubre+memory://a?formt=binary", "formt: did you mean format"),
    ],
)
def test_a_member_that_is_close_to_an_option_is_warned_of(url: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    assert mistyped_options(url) == told
    connect(url)
    (record,) = [record for record in caplog.records if record.name == "polybus"]
    assert record.levelno == logging.WARNING
    assert told in record.getMessage() and "goes to the server" in record.getMessage()


@pytest.mark.parametrize(
    "url",
    [
        "ubre+ws://127.0.0.1:9/bus?format=binary",
        "ubre+ws://127.0.0.1:9/bus?token=abc&room=7",
        "ubre+tcp://127.0.0.1:9?format=binary",
        "ubre+unix:///run/app.sock",
    ],
)
def test_others_are_not(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert mistyped_options(url) == ""
    connect(url)
    assert not caplog.records


def test_the_scheme_of_a_url_may_be_in_capitals() -> None:
    adapter, _, address = resolve_url("UBRE+TCP://127.0.0.1:9")
    assert (adapter.name, address) == ("ubre", "tcp://127.0.0.1:9")


@pytest.mark.parametrize("url", [r"ubre+unix://C:\temp\x.sock", "ubre+unix://run/app.sock", "ubre+unix://app.sock:x"])
def test_a_socket_s_path_without_three_slashes_is_told_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match=r"write three slashes, for example unix:///run/app\.sock"):
        connect(url)
