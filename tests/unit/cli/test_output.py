"""What a reviewer's hands have found: closed streams, passwords, other protocols, words that mislead."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polybus import Limits
from polybus.capture.schema import FLAG_GAP_BEFORE
from polybus.capture.store.segments import SegmentWriter
from polybus.cli.options import json_line
from tests.support import BOUND, free_port
from tests.unit.capture.rows import batch, row
from tests.unit.cli.app import NASTY
from tests.unit.cli.support import COMMAND, TCP, Cli


def test_nobody_behind_http_is_told_as_everywhere_else(cli: Cli) -> None:
    port = free_port()
    text = cli.line(1, "request", f"jrep+http://127.0.0.1:{port}/x", "a")
    assert "connection refused: no server listens there; is the server running? --wait S" in text


def test_a_connection_that_takes_longer_than_the_timeout_names_the_option(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ubre+ws://127.0.0.1:{silent.getsockname()[1]}/bus"
        text = cli.line(1, "request", url, "a", "--timeout", "0.05")
    assert "timed out after 0.05 s" in text
    assert text.endswith("; --timeout S waits longer, --wait S keeps trying")


@pytest.mark.parametrize("command", ["publish", "subscribe", "request"])
def test_a_silent_peer_is_status_1_whatever_the_protocol(command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def patient(**given: Any) -> Limits:
        return Limits(**given | {"connect_timeout": BOUND})  # however slow this machine is: it is silent when connected

    monkeypatch.setattr("polybus.cli.options.Limits", patient)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its backlog
        for protocol in ("ubre", "csb", "jrep", "uprotocol"):
            url = f"{protocol}+tcp://127.0.0.1:{silent.getsockname()[1]}"
            text = cli.line(1, command, url, "a", "--timeout", "0.2")
            assert "doctor" in text
            assert "connect(..." not in text  # that is for programs


def test_publish_to_a_peer_that_never_speaks_is_wanted_without_a_timeout(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert cli.err(0, "publish", f"ubre+tcp://127.0.0.1:{silent.getsockname()[1]}", "a", "--timeout", "0") == ""


@pytest.mark.parametrize(("redirect", "body", "status", "says"), [(">&-", '"Ann"', 0, ""), ("<&-", "-", 2, "stdin is closed")])
def test_a_closed_stdout_is_fine_and_a_closed_stdin_is_told(redirect: str, body: str, status: int, says: str, url: str) -> None:
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", *COMMAND, "request", url, "greet", body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_loads_nothing_before_it_runs_and_an_interrupt_meanwhile_is_quiet() -> None:
    code = (
        "import sys, polybus.cli\n"
        "assert not {'typer', 'rich'} & set(sys.modules)\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'polybus.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "polybus.cli.main([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_lifespan_that_fails_is_named(module: Callable[..., str], cli: Cli) -> None:
    failing = module(
        "from contextlib import asynccontextmanager\nfrom polybus import Bus\n"
        "@asynccontextmanager\nasync def life(bus):\n    raise ValueError('db down')\n    yield\n"
        "bus = Bus(lifespan=life)\n"
    )
    assert f"lifespan of {failing}:bus failed: ValueError: db down" in cli.line(1, "serve", f"{failing}:bus", TCP)


def test_an_engine_that_is_not_there_is_no_failure_of_the_application(module: Callable[..., str], cli: Cli) -> None:
    cluster = f'"nats+tcp://127.0.0.1:{free_port()}/shop"'
    text = cli.line(1, "serve", module(f"from polybus import Bus\nbus = Bus(cluster={cluster})\n") + ":bus", TCP)
    assert "no server listens there" in text
    assert "lifespan" not in text and "line" not in text.split()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ubre+tcp://no-such-host.invalid:0", "cannot listen on no-such-host.invalid port 0: "),
        ("ubre+unix:no/such/folder", "make its folder first"),
        ("ubre+unix:a_file", "a file there is not a socket"),
    ],
)
def test_what_cannot_be_listened_on_is_said(url: str, says: str, module: Callable[..., str], tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "a_file").write_text("mine")
    plain = module() + ":bus"
    assert says in cli.line(1, "serve", plain, url.replace("unix:", f"unix://{tmp_path}/"), "--insecure")
    assert (tmp_path / "a_file").read_text() == "mine"


def test_publishing_to_another_protocol_is_status_1_without_a_repr(url: str, cli: Cli) -> None:
    text = cli.line(1, "publish", url.replace("ubre+", "csb+"), "a", "1")
    assert "<Peer" not in text
    assert "doctor" in text


# -- what a peer says, without characters that set the title, write over lines or turn them around -------------------------

FORBIDDEN = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2028]))


@pytest.mark.parametrize(
    "arguments", [("request", "{}", "nasty"), ("doctor", "{}", "--subject", "nasty")], ids=["request", "doctor"]
)
def test_the_text_of_an_error_is_one_line_on_stderr_with_escapes(arguments: tuple[str, ...], url: str, cli: Cli) -> None:
    out, err = cli.both(1, *(argument.format(url) for argument in arguments))
    assert err.count("\n") == 1 and r"\x1b[31mred" in err and r"\u202egnp" in err
    assert not set(FORBIDDEN) & set(out + err)
    rows = [row.split()[1] for row in out.splitlines()[1:-1]]
    assert rows == (["resolve", "connect", "open", "handshake", "peer", "request"] if arguments[0] == "doctor" else [])


def test_json_has_escapes_for_such_characters_and_the_same_value(url: str, cli: Cli) -> None:
    out = cli.out("request", url, "said")
    assert not set(FORBIDDEN) & set(out)
    assert json.loads(out) == {"said": NASTY}
    assert json_line("Übel 😀") == '"Übel 😀"'  # other letters stay as they are


@pytest.mark.parametrize("command", ["info", "verify", "decode"])
def test_what_a_capture_of_somebody_else_says_reaches_the_terminal_without_them(command: str, tmp_path: Path, cli: Cli) -> None:
    writer = SegmentWriter(tmp_path, 0, {"capture_id": NASTY, "replay_of": NASTY, "source": NASTY})
    names = {"capture_id": NASTY, "conn_id": NASTY, "peer": NASTY, "protocol": NASTY, "transport": NASTY}
    gap = {"frame": None, "flags": FLAG_GAP_BEFORE, "options": json.dumps({"gap": NASTY, "frames": 1})}
    writer.write(batch(row(0, **names), row(1, **gap), row(2, protocol=None)), 0)
    writer.end(3)
    writer.seal()
    assert not set(FORBIDDEN) & set("".join(cli.both(0, "capture", command, str(tmp_path))))
