"""Wrong usage is status 2, a peer that is not there is status 1; both are told in one line that says what to do next."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from polybus.cli.options import parse_size
from tests.support import free_port
from tests.unit.cli.support import Cli

URL = "ubre+tcp://127.0.0.1:9"
BAD_PEM = "no certificate"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("frobnicate", "frobnicate"),
        ("capture", "Missing command. See: polybus capture --help"),
        ("request", "'URL'"),
        (f"request {URL}", "'SUBJECT'"),
        (f"request {URL} a 1 2", "polybus request --help"),
        (f"request {URL} a {{", "BODY is not JSON"),
        (f"request {URL} a {'[' * 100_000}", "nested too deeply"),
        (f"request {URL} a greeting", """a string needs its own quotes: '"like this"'"""),
        (f"request {URL} a @body.json", "to read a file, write - < body.json"),
        (f"request {URL} a --token abc", "--header 'authorization: Bearer TOKEN'"),
        (f"request {URL} a --timeout inf", "--timeout"),
        (f"request {URL} a --header nothing", "write 'name: value'"),
        (f"request {URL} a --ca missing.pem", "missing.pem"),
        ("request http://127.0.0.1:9 a", "protocol+transport://"),
        ("request ubre+tcp://127.0.0.1 a", "port"),
        ("request ubre+pigeon://127.0.0.1:9 a", "use one of "),
        ("request ubre+tcp://127.0.0.1:9?format=xml a", "json, binary"),
        ("request ubre+ws://[::1/bus a", "'ubre+ws://[::1/bus'"),
        ("request ubre+ws://ann:secret@127.0.0.1:9/bus a", "--header 'authorization: Bearer TOKEN'"),
        ("request ubre+tcp://ann:secret@127.0.0.1 a", "ann:***@127.0.0.1"),
        (f"serve app:bus {URL} --token abc", "No such option: --token (Possible"),
        (f"request {URL} temperature.set -5", "write -- before a body that begins with a minus"),
        (f"serve app {URL}", "module:bus"),
        (f"serve there_is_none:bus {URL}", "there_is_none.py"),
        (f"serve os:path {URL}", "Bus()"),
        (f"serve app.py:bus {URL}", "write app:bus"),
        (f"serve ../app:bus {URL}", "in the folder of app.py"),
        (f"doctor {URL} --body 1", "--subject"),
        ("doctor ubre+tcp://ann:secret@127.0.0.1:9 --json", "cannot send a user or password"),
        ("bench --loop twisted", "'asyncio', 'uvloop', 'trio'"),
        ("bench --protocol ubre?format=xml", "json, binary"),
        ("bench --protocol nats", "add the URL of one that runs"),
        ("bench --protocol ubre+ws", "unknown protocol 'ubre+ws'; use one of "),
        ("bench --subject a", "add its URL"),
        ("broker --clients csb+tcp://0.0.0.0:0 --servers csb+tcp://127.0.0.1:0", "--insecure"),
        ("broker --clients ubre+tcp://127.0.0.1:0 --servers csb+tcp://127.0.0.1:0", "a broker requires csb"),
        ("broker --clients csb+tcp://127.0.0.1:0 --servers csb+tcp://127.0.0.1:0 --key x", "--cert"),
        ("broker --clients csb+tcp://127.0.0.1:0 --servers csb+tcp://127.0.0.1:0 --metrics 9100", "http://127.0.0.1:9100"),
        ("inspect", "'FILE|HEX'"),
        ("inspect 00", "--protocol"),
        ("inspect ubre+ws://127.0.0.1:9000/bus", "is a URL, but inspect reads frames; polybus doctor URL checks a"),
        ("inspect 00 --protocol ubre?nothing=1", "use one of"),
        ("inspect xyz --protocol ubre", "neither a file nor"),
        (f"inspect {'00' * 5000}x --protocol ubre", "neither a file nor"),
        ("inspect tests/ --protocol ubre", "tests/"),
        ("inspect 00 --protocol ubre --frames many", "not one of 'one', 'lines', 'lengths'"),
    ],
    ids=lambda value: value[:60],
)
def test_wrong_usage_is_status_2_and_one_line(line: str, says: str, cli: Cli) -> None:
    text = cli.line(2, *line.split())
    assert says in text
    assert "secret" not in text


def test_a_size_is_a_number_of_bytes_with_or_without_a_unit() -> None:
    sizes = {"7": 7, "500M": 500 << 20, "10GiB": 10 << 30, "1.5k": 1536, "7b": 7, "2TB": 2 << 40}
    assert {text: parse_size("--max-bytes", text) for text in sizes} == sizes


@pytest.mark.parametrize(
    ("source", "says"), [("bus = 1", "is not a Bus"), ("from polybus import Bus\nother = Bus()", ":other")]
)
def test_a_name_of_no_bus_is_status_2(source: str, says: str, module: Callable[..., str], cli: Cli) -> None:
    assert says in cli.line(2, "serve", module(source) + ":bus", URL)


@pytest.fixture
def app(module: Callable[..., str]) -> str:
    return module() + ":bus"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ubre+tcp://0.0.0.0:0"], "--insecure"),
        (["ubre+tls://127.0.0.1:0"], "--cert FILE"),
        (["ubre+tls://127.0.0.1:0", "--cert", "missing.pem"], "missing.pem"),
        (["ubre+tls://127.0.0.1:0", "--key", "missing.pem"], "--cert"),
        (["ubre+tcp://127.0.0.1:0", "--relay", ">.a"], "last token"),
        (["ubre+tcp://127.0.0.1:0", "--health", "ftp://x"], "http://"),
        (["ubre+tcp://127.0.0.1:0", "--health", "http://127.0.0.1:99999"], "health='http://127.0.0.1:99999'"),
        (["ubre+tcp://127.0.0.1:0", "--drain", "inf"], "--drain"),
        (["ubre+tcp://127.0.0.1:0", "--origin", "example.org"], "https://example.org"),
        (["ubre+ws://127.0.0.1:0", "--host", "http://x"], "hosts: 'http://x' is not a host"),
        (["ubre+memory://serve", "--uvloop", "--backend", "trio"], "leave out --backend trio"),
        (["ubre+memory://serve", "--reload", "--workers", "2"], "for development one process is enough"),
    ],
)
def test_serve_says_which_option_is_wrong_or_missing(arguments: list[str], says: str, app: str, cli: Cli) -> None:
    assert says in cli.line(2, "serve", app, *arguments)


def test_a_file_that_holds_no_certificate_is_status_2(tmp_path: Path, cli: Cli) -> None:
    pem = tmp_path / "bad.pem"
    pem.write_text(BAD_PEM)
    assert "PEM" in cli.line(2, "request", "ubre+tls://127.0.0.1:9", "a", "--ca", str(pem))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--key plain.key", "--key without --cert"),
        ("--cert cert.pem", "add --key FILE"),
        ("--cert cert.pem --key missing.pem", "--key missing.pem: No such file"),
        ("--cert missing.pem --key plain.key", "--cert missing.pem: No such file"),
        ("--cert cert.pem --key other.key", "belong together"),
        ("--cert cert.pem --key secret.key", "--key secret.key: the private key is encrypted"),
    ],
)
@pytest.mark.parametrize("command", ["request ubre+tls://127.0.0.1:9 a", "serve app:bus ubre+tls://127.0.0.1:0"])
def test_a_certificate_that_cannot_be_used_is_status_2_and_says_why(
    command: str, given: str, says: str, app: str, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    made, other = (trustme.CA().issue_cert("a.example") for _ in range(2))
    made.cert_chain_pems[0].write_to_path("cert.pem")
    made.private_key_pem.write_to_path("plain.key")
    other.private_key_pem.write_to_path("other.key")
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    Path("secret.key").write_bytes(key.private_bytes(*forms))
    assert says in cli.line(2, *command.replace("app:bus", app).split(), *given.split())


def test_an_address_that_is_taken_is_status_1(app: str, cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = cli.line(1, "serve", app, f"ubre+tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert "127.0.0.1" in text


@pytest.fixture
def nobody() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("command", ["request", "publish", "subscribe"])
def test_a_peer_that_is_not_there_is_status_1(command: str, transport: str, nobody: str, cli: Cli) -> None:
    text = cli.line(1, command, f"ubre+{transport}://{nobody}", "a")
    assert nobody in text
    assert "--wait" in text


def test_a_socket_file_that_is_not_there_is_status_1(tmp_path: Path, cli: Cli) -> None:
    assert "--wait" in cli.line(1, "request", f"ubre+unix://{tmp_path}/none.sock", "a")


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_without_typer_or_rich_one_line_says_what_to_install(name: str) -> None:
    program = f"import sys; sys.modules[{name!r}] = None; from polybus.cli import main; main(['demo'])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == "polybus: the command needs typer and rich: pip install 'polybus[cli]'\n"


def test_a_command_loads_its_own_modules_alone_and_the_list_of_them_loads_none() -> None:
    program = "import sys; from polybus.cli.app import run; run([sys.argv[1]]); print(*sys.modules)"
    for argument, ours in (("request", {"client", "options", "process"}), ("--help", set()), ("--version", set())):
        loaded = set(subprocess.check_output([sys.executable, "-c", program, argument], text=True, timeout=60).split())
        assert {name for name in loaded if name.startswith("polybus.cli.")} == {
            f"polybus.cli.{name}" for name in {"app", "problems", *ours}
        }
        assert not {"polybus.analysis", "polybus.broker", "polybus.capture.record", "duckdb"} & loaded


def test_help_is_status_0_for_every_command(cli: Cli) -> None:
    listed = cli.out("--help")
    for command in ("demo", "serve", "request", "publish", "subscribe"):
        assert command in listed
        assert f"polybus {command}" in cli.out(command, "--help")
