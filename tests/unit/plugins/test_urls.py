"""URLs: slips are told with what was probably meant, and members that belong to nobody reach the server."""

import logging

import pytest

from polybus import Bus, Handshake, connect
from polybus.plugins.registry import mistyped_options, resolve_url
from polybus.protocols import Ubre


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
    assert told in record.getMessage() and "go to the server" in record.getMessage()


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


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ubre+pigeon://x", r"unknown transport 'pigeon'; use one of .*memory, tcp"),
        ("smoke+memory://x", r"unknown protocol 'smoke'; use one of .*ubre"),
        ("memory://x", r"use the form protocol\+transport://address"),
        ("ubre+memory", r"use the form protocol\+transport://address"),
        ("ubre+tcp://127.0.0.1:99999", r"99999|[Pp]ort"),
        ("ubre+tcp://127.0.0.1:1/#top", "no fragment: leave out"),
        *((f"ubre+{scheme}://127.0.0.1:9000/x", "path") for scheme in ("tcp", "tls")),
        ("ubre+tcp://ann:secret@127.0.0.1:9000", "user"),
    ],
)
def test_a_url_with_an_unknown_part_is_refused_with_a_hint(url: str, says: str) -> None:
    for use in (connect, Bus().serve):
        with pytest.raises(ValueError, match=says):
            use(url)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "unix:///run/x.sock", "tls://127.0.0.1:1"])
def test_a_member_of_the_query_that_is_no_option_is_refused_where_nobody_would_see_it(address: str) -> None:
    for use in (connect, Bus().serve):
        with pytest.raises(ValueError, match=r"unknown option tenant.*use one of format, dialect"):
            use(f"ubre+{address}?tenant=7")


@pytest.mark.parametrize(
    "url",
    [
        "nats+tcp://127.0.0.1:1?token=s%ff", "nats+tcp://u:s%ff@127.0.0.1:1", "ubre+ws://127.0.0.1:1/?token=s%ff",
        "ubre+unix:///run/%ff.sock", "ubre+memory://x?%ff=1",
    ],
)  # fmt: skip
def test_characters_that_are_not_utf_8_are_refused_and_not_replaced(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"a percent-encoded character is not UTF-8: ä, for example, is written %C3%A4$"
    ) as told:
        resolve_url(url)
    assert "s%ff" not in str(told.value)


@pytest.mark.parametrize("address", ["memory://x", "ws://127.0.0.1:1", "tcp://127.0.0.1:1"])
def test_a_wrong_value_of_an_option_is_refused_on_every_transport(address: str) -> None:
    with pytest.raises(ValueError, match=r"format='xml' must be one of json"):
        connect(f"ubre+{address}?format=xml")


@pytest.mark.parametrize("address", ["memory://with-query", "ws://127.0.0.1:0/bus"])
async def test_a_member_that_is_no_option_reaches_the_server_in_the_handshake(address: str) -> None:
    seen = list[Handshake]()

    def authenticate(handshake: Handshake) -> str:
        seen.append(handshake)
        return "somebody"

    async with Bus(authenticate=authenticate).serve(f"ubre+{address}?dialect=spec") as listener:
        assert listener.url.endswith("?dialect=spec")
        async with connect(f"{listener.url}&tenant=7&empty=") as bus:
            assert not bus.peers[0].identity
        plain = listener.url.partition("?")[0]
        async with connect(f"{plain}?tenant=8", protocol=Ubre(dialect="spec")):
            pass
    assert [dict(handshake.query) for handshake in seen] == [{"tenant": "7", "empty": ""}, {"tenant": "8"}]
