"""What stands in a URL and belongs to nobody that polybus knows."""

from __future__ import annotations

import pytest

from polybus import Bus, Handshake, connect
from polybus.protocols import Ubre
from tests.support import bounded

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ubre+pigeon://x", r"there is no transport 'pigeon'; known are .*memory, tcp"),
        ("smoke+memory://x", r"there is no protocol 'smoke'; known are .*ubre"),
        ("memory://x", r"use the form protocol\+transport://address"),
        ("ubre+memory", r"use the form protocol\+transport://address"),
        ("ubre+tcp://127.0.0.1:99999", r"99999|[Pp]ort"),
        ("ubre+tcp://127.0.0.1:1/#top", "no fragment: leave out"),
    ],
)
def test_a_url_with_an_unknown_part_is_refused_with_a_hint(url: str, says: str) -> None:
    for use in (connect, Bus().serve):
        with pytest.raises(ValueError, match=says):
            use(url)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "unix:///run/x.sock", "tls://127.0.0.1:1"])
def test_a_member_of_the_query_that_is_no_option_is_refused_where_nobody_would_see_it(address: str) -> None:
    for use in (connect, Bus().serve):
        with pytest.raises(ValueError, match=r"unknown option tenant.*known are format, dialect"):
            use(f"ubre+{address}?tenant=7")


@pytest.mark.parametrize("address", ["memory://x", "ws://127.0.0.1:1", "tcp://127.0.0.1:1"])
def test_a_wrong_value_of_an_option_is_refused_on_every_transport(address: str) -> None:
    with pytest.raises(ValueError, match=r"format='xml' is not known; it is one of json"):
        connect(f"ubre+{address}?format=xml")


@pytest.mark.parametrize("address", ["memory://with-query", "ws://127.0.0.1:0/bus"])
@bounded
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


@bounded
async def test_the_url_of_a_listener_keeps_its_options_and_takes_members_of_clients() -> None:
    async with Bus().serve("ubre+memory://both?dialect=spec") as listener:
        assert listener.url == "ubre+memory://both?dialect=spec"
        async with connect(f"{listener.url}&room=a%26b"):
            pass
