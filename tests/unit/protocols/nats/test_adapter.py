"""The options of NATS, its credentials, and what people are shown of a frame."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from polybus import Bus, Forbidden, LocalProtocolError
from polybus.plugins import CloseWanted
from polybus.plugins.registry import join_url, resolve_target, resolve_url
from polybus.protocols import Nats
from polybus.protocols.nats.credentials import KeyPair
from tests.doubles.driven import Driven
from tests.integration.interop.nats_keys import Key, Operator


@pytest.mark.parametrize(
    ("url", "expected", "address"),
    [
        ("nats+tcp://h:1?queue=w&inbox=_own&tls_first=true", Nats(queue="w", inbox="_own", tls_first=True), "tcp://h:1"),
        ("nats+tls://ann:p%40ss@host:4222", Nats(user="ann", password="p@ss"), "tls://host:4222"),
        ("nats+wss://to%2Fken@[::1]:4222", Nats(token="to/ken"), "wss://[::1]:4222"),
    ],
)
def test_the_user_and_the_options_of_a_url_are_the_protocol_s(url: str, expected: Nats, address: str) -> None:
    adapter, _, found = resolve_url(url)
    assert (adapter, found) == (expected, address)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("nats+tcp://host", "tcp://host:4222"),
        ("nats+tls://host/", "tls://host:4222/"),
        ("nats+tcp://host:", "tcp://host:4222"),
        ("nats+tcp://[::1]", "tcp://[::1]:4222"),
        ("nats+tcp://ann:a%3Ab@host?queue=w", "tcp://host:4222"),
        ("nats+tcp://host:7", "tcp://host:7"),
        ("nats+tcp://host:0", "tcp://host:0"),
        ("nats+tcp://", "tcp://"),
        ("nats+ws://host", "ws://host"),
        ("nats+unix:///run/nats.sock", "unix:///run/nats.sock"),
        ("nats+memory://nats", "memory://nats"),
    ],
)
def test_a_url_without_a_port_means_that_of_nats_servers_and_on_websockets_that_of_the_web(url: str, address: str) -> None:
    assert resolve_url(url)[2] == address
    assert resolve_url(url.partition("?")[0].replace("ann:a%3Ab@", ""), Nats())[2] == address


def test_a_url_of_nats_has_its_port_no_credentials_and_is_for_clients_and_others_have_no_user() -> None:
    assert resolve_target("nats+tls://host", None)[1].url == "tls://host:4222"
    with pytest.raises(ValueError, match="the port is missing"):
        resolve_target("ubre+tcp://host", None)
    with pytest.raises(ValueError, match="the host is missing"):
        resolve_target("nats+tcp://", None)
    with pytest.raises(ValueError, match="a user or password in this URL is not sent"):
        resolve_url("ubre+ws://ann:secret@host/bus")
    adapter = Nats(user="ann", password="s3cret", queue="work")
    assert join_url(adapter, "tcp://host:4222") == "nats+tcp://host:4222?queue=work"
    with pytest.raises(LocalProtocolError, match="the bus is a client of this protocol"):
        Bus().serve("nats+tcp://127.0.0.1:0")


def test_the_seed_of_a_user_gives_its_public_key_and_signs_and_no_other_or_damaged_one_will_do() -> None:
    key = Key.of("U", 9)
    pair = KeyPair.of_seed(key.seed)
    assert pair.public == key.public
    key.private.public_key().verify(pair.sign(b"nonce"), b"nonce")
    for kind in "OA":
        with pytest.raises(ValueError, match="a different kind of seed"):
            Nats(nkey=Key.of(kind, 9).seed)
    with pytest.raises(ValueError, match="checksum"):
        Nats(nkey=key.seed[:-1] + ("A" if key.seed[-1] != "A" else "B"))


INFO = b'INFO {"server_id":"S","headers":true,"nonce":"abc"}\r\n'


def connecting(adapter: Nats) -> Driven:
    session = Driven(adapter.session("client"))
    session.receive(INFO, 1.0)
    return session


def test_a_credentials_file_signs_the_nonce_with_its_jwt() -> None:
    adapter = Nats(creds="ann.creds")
    assert adapter.files == {"ann.creds": "the credentials file of creds="}
    session = connecting(adapter.with_files({"ann.creds": Operator().creds}))
    connect = json.loads(session.frames_to_send()[0].removeprefix(b"CONNECT "))
    assert connect["jwt"].count(".") == 2
    assert connect["sig"] and "nkey" not in connect
    with pytest.raises(ValueError, match="not a credentials file"):
        adapter.with_files({"ann.creds": "half writ"})


def test_a_file_with_a_seed_is_named_and_a_seed_is_none() -> None:
    key = Key.of("U", 9)
    assert Nats(nkey=key.seed).files == Nats(user="ann").files == {}
    adapter = Nats(nkey="user.nk")
    assert adapter.files == {"user.nk": "the file of nkey="}
    read = adapter.with_files({"user.nk": f"# Ann\n{key.seed}\n"})
    assert read == adapter
    assert json.loads(connecting(read).frames_to_send()[0].removeprefix(b"CONNECT "))["nkey"] == key.public
    with pytest.raises(ValueError, match="a seed"):
        adapter.with_files({"user.nk": "nothing"})


@pytest.mark.parametrize("option", ["client", "user", "token", "creds"])
def test_a_file_that_was_not_read_or_a_value_that_is_not_utf8_closes_the_connection(option: str) -> None:
    session = connecting(Nats.from_options({option: "\udcff"}))
    [closed] = session.events()
    assert isinstance(closed, CloseWanted) and isinstance(closed.error, Forbidden)
    assert re.search("has not been read" if option == "creds" else "CONNECT.*surrogates", closed.reason)
    assert session.frames_to_send() == []


def test_credentials_that_expire_end_a_connection_and_not_the_link() -> None:
    session = connecting(Nats(creds="ann.creds").with_files({"ann.creds": Operator().creds}))
    session.receive(b"PONG\r\n", 1.0)
    session.events()
    session.receive(b"-ERR 'User Authentication Expired'\r\n", 1.0)
    [closed] = session.events()
    assert isinstance(closed, CloseWanted) and closed.error is None  # the link comes back


def test_without_cryptography_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from polybus.protocols import Nats\n"
        f"for given in {{'nkey': {Key.of('U', 9).seed!r}}}, {{'creds': 'ann.creds'}}:\n"
        "    try: Nats(**given)\n"
        "    except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.count("pip install 'polybus[nats]'") == 2


def shown(frame: bytes) -> list[tuple[int, str, str, str]]:
    return [(field.offset, field.name, field.value, field.note) for field in Nats().dissect(frame)]


def test_an_operation_is_shown_part_by_part() -> None:
    found = shown(b"HMSG a.b 2 r.1 18 20\r\nNATS/1.0\r\nA: b\r\n\r\n[]\r\n")
    head = [(0, "operation", "HMSG"), (5, "subject", "a.b"), (9, "sid", "2"), (11, "reply to", "r.1")]
    rest = [(15, "headers' size", "18"), (18, "size", "20"), (22, "header", "NATS/1.0"), (32, "header", "A: b")]
    assert found == [(*field, "") for field in (*head, *rest, (40, "payload", "[]"))]
    assert shown(b"-ERR 'x'\r\n") == [(0, "operation", "-ERR", ""), (4, "text", "'x'", "")]
    assert shown(b"SUB a q 3\r\n")[2] == (6, "queue", "q", "")


@pytest.mark.parametrize(
    ("frame", "note"),
    [
        (b"MSG a 2 5\r\nhel", "cut off: 3 of 5 bytes"),
        (b"MSG a 2 0\r\n\r\nmore", "extra bytes"),
        (b"PING\r\nmore", "extra bytes"),
        (b"PIN", "cut off: the line has no end"),
        (b"SUB a\r\n", "1 parts where there are 2 or 3"),
    ],
)
def test_what_is_wrong_is_noted(frame: bytes, note: str) -> None:
    assert shown(frame)[-1][3] == note
