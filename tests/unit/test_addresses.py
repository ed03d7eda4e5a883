"""Addresses with characters, hosts or ports that none has: each entry point raises ValueError and says what it saw."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import polybus
from polybus import Bus, Cluster, ConnectFailed, Disconnected, connect
from polybus.cli.app import run as command
from tests.support import BOUND

INVISIBLE = ["\ud800", "\0", "\r", "\n", "\t", "\x7f", "\x85", "\u202e", "\u200b", "\xa0"]
"""Half a surrogate, controls, a change of direction, and blanks that nobody sees."""
SCHEMES = ["ubre+tcp", "ubre+ws", "jrep+http", "up+zenoh", "nats+tcp"]

MALFORMED = [
    *((f"{scheme}://a{char}b:9/x", f"U+{ord(char):04X}") for scheme in SCHEMES for char in [*INVISIBLE, " "]),
    *((f"ubre+ws://127.0.0.1:9/a{char}b", f"U+{ord(char):04X}") for char in [*INVISIBLE, " "]),
    *((f"jrep+http://127.0.0.1:9/a?b={char}", f"U+{ord(char):04X}") for char in [*INVISIBLE, " "]),
    *((f"ubre+unix:///nope{char}", f"U+{ord(char):04X}") for char in INVISIBLE),
    *((f"ubre+memory://a{char}", f"U+{ord(char):04X}") for char in INVISIBLE),
    *(
        (f"ubre+{port}", "the port must be a number from 0 to 65535")
        for port in ("tcp://h:0x50", "ws://h:+80/", "tcp://h:٣", "ws://h:1_0")
    ),
    *((f"ubre+tcp://{port}", "the port must be a number from 0 to 65535") for port in ("h:-1", "h:65536", "h:8e1")),
    *((f"{scheme}://{'ü' * 70}:9", "is not a host name") for scheme in SCHEMES),
    ("ubre+tcp://xn--ü:9", "is not a host name"),
    ("ubre+tcp://[::g]:9", "write an IPv6 address in brackets"),
    ("ubre+tcp://[fe80::1%]:9", "write an IPv6 address in brackets"),
    ("ubre+tcp://:9", "the host is missing"),
    ("ubre+ws://:9", "the host is missing"),
    ("jrep+http://:9", "the host is missing"),
]


async def connected(url: str) -> None:
    async with connect(url):
        pass


async def served(url: str) -> None:
    async with Bus().serve(url, insecure=True):
        pass


def message_of(url: str, entry: Callable[[str], Any]) -> str:
    with pytest.raises(ValueError) as caught:
        anyio.run(entry, url)
    assert not isinstance(caught.value, UnicodeError)
    return str(caught.value)


@pytest.mark.native
@pytest.mark.parametrize(("url", "says"), MALFORMED, ids=ascii)
def test_an_address_that_cannot_be_is_refused_wherever_it_is_given(
    url: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = message_of(url, connected)
    assert says in message
    assert message.isprintable()
    if not url.startswith("nats"):
        assert says in message_of(url, served)
        with pytest.raises(SystemExit) as ended:
            polybus.run(Bus(), url, insecure=True)
        assert says in str(ended.value.code)
    elif "U+" in says:
        with pytest.raises(ValueError, match="cannot contain"):
            Bus(cluster=Cluster(url))
    assert command(["doctor", url]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.native
@pytest.mark.parametrize("host", ["a" * 64, "a." * 200, "[fe80::1%25nope]", "[fe80::1%nope]", "a..b", "1.2.3.4.5", "a%00b"])
@pytest.mark.parametrize("scheme", ["ubre+tcp", "ubre+ws", "jrep+http"])
def test_a_host_that_does_not_exist_fails_as_the_network_does(scheme: str, host: str) -> None:
    url = f"{scheme}://{host}:9/"

    async def attempts() -> None:
        with anyio.fail_after(BOUND):
            with pytest.raises((ConnectFailed, Disconnected)):
                await connected(url)
            with pytest.raises(OSError, match="cannot listen on"):
                await served(url)

    anyio.run(attempts)


@pytest.mark.native
@pytest.mark.parametrize("url", ["ubre+unix:///a%00b", "ubre+unix:///a%ED%A0%80\ud800"])
def test_a_path_of_a_socket_that_no_file_can_have_is_refused(url: str) -> None:
    for entry in (connected, served):
        assert "character" in message_of(url, entry) or "U+D800" in message_of(url, entry)


def test_blanks_may_be_in_paths_of_files() -> None:
    async def main() -> None:
        async with Bus().serve("ubre+memory://a name") as server, connect(server.url):
            pass

    anyio.run(main)
