"""Servers that are not what the URL says: status 1 and one line, in time, from every command that connects."""

import http.server
import io
import os
import signal
import socket
import ssl
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import trustme

from polybus import Bus, connect
from polybus.cli.app import run
from polybus.cli.options import connecting
from polybus.events import LinkUp
from tests.support import eventually
from tests.unit.cli.support import Cli, serving, started

COMMANDS = {
    "request": ("a", "--timeout", "0.3"),
    "publish": ("a", "--timeout", "0.3"),
    "subscribe": ("a", "--timeout", "0.3"),
    "doctor": ("--timeout", "0.3"),
    "bench": ("--timeout", "0.3"),
}


def _silent(connection: socket.socket) -> None:
    """Accepts, and says nothing until the other side leaves."""
    while connection.recv(4096):
        pass


def _resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _closes(connection: socket.socket) -> None:
    """Accepts and leaves."""


@pytest.fixture(scope="module")
def pretender() -> Iterator[Callable[[str], int]]:
    """The port of a server that does what its name says to whoever connects."""
    ports, ends = dict[str, int](), list[Callable[[], object]]()

    def start(kind: str) -> int:
        if kind not in ports:
            begin = _web if kind in ("http", "tls") else _plain
            ports[kind], end = begin(kind)
            ends.append(end)
        return ports[kind]

    yield start
    for end in ends:
        end()


def _plain(kind: str) -> tuple[int, Callable[[], object]]:
    act = {"silent": _silent, "resets": _resets, "closes": _closes}[kind]
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                act(connection)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()

    def end() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    return listener.getsockname()[1], end


class _Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/elsewhere":  # as ASGI servers refuse what no application takes
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what this is for."""


def _web(kind: str) -> tuple[int, Callable[[], object]]:
    server = _Server(("127.0.0.1", 0), _Quiet)
    if kind == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    return server.server_address[1], end


ANOTHER = product(["silent", "resets", "closes", "http", "tls"], ["tcp", "ws", "tls"])


@pytest.mark.parametrize(("another", "command"), [*zip(ANOTHER, cycle(COMMANDS), strict=False)], ids=str)
def test_another_server_is_status_1(another: tuple[str, str], command: str, pretender: Callable[[str], int], cli: Cli) -> None:
    kind, transport = another
    url = f"ubre+{transport}://127.0.0.1:{pretender(kind)}/"
    out, err = cli.both(1, command, url, *COMMANDS[command])
    assert err.count("\n") == 1 and err.startswith("polybus: "), err
    assert "Error" not in err and "tls=" not in err and "timeout=" not in err, err
    if command == "doctor":
        assert "✗" in out and "✓" in out
    else:
        assert out == ""


def test_a_link_that_has_ended_before_anybody_looks_is_told_of_as_well(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        @asynccontextmanager
        async def connecting_and_coming_back(*args: Any, **options: Any) -> AsyncIterator[Bus]:
            async with connecting(*args, **options) as bus:
                listener.accept()[0].close()
                async for event in bus.events():
                    if isinstance(event, LinkUp) and event.again:
                        break
                yield bus

        monkeypatch.setattr("polybus.cli.client.connecting", connecting_and_coming_back)
        err = cli.err(1, "subscribe", f"ubre+tcp://127.0.0.1:{listener.getsockname()[1]}", "news")
    assert err.startswith("polybus: the connection closed immediately: ") and err.count("\n") == 1, err


def test_doctor_tells_of_a_server_that_has_left_when_the_handshake_is_over(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        @asynccontextmanager
        async def connecting_and_left(*args: Any, **options: Any) -> AsyncIterator[Bus]:
            async with connect(*args, **options) as bus:
                for _ in ("step connect", "step open"):
                    listener.accept()[0].close()
                await eventually(lambda: not bus.peers)
                yield bus

        monkeypatch.setattr("polybus.cli.doctor.connect", connecting_and_left)
        err = cli.err(1, "doctor", f"ubre+tcp://127.0.0.1:{listener.getsockname()[1]}", "--timeout", "60")
    assert err.startswith("polybus: handshake: ") and "the server closed the connection: compare" in err, err


@pytest.mark.parametrize(
    ("kind", "transport", "says"),
    [
        ("silent", "ws", "compare port and path"),
        ("silent", "tls", "does not use TLS"),
        ("silent", "tcp", "a different protocol, format or dialect"),
        ("http", "ws", "correct the path"),
        ("http", "tls", "instead of tls://"),
        ("tls", "tls", "--ca FILE"),
        ("tls", "ws", "wss"),
        ("closes", "tcp", "format="),
        ("resets", "ws", "; "),
    ],
)
def test_doctor_knows_a_remedy(kind: str, transport: str, says: str, pretender: Callable[[str], int], cli: Cli) -> None:
    # Only of a silent one it is known by the time that passes.
    seconds = "0.5" if kind == "silent" else "60"
    assert says in cli.err(1, "doctor", f"ubre+{transport}://127.0.0.1:{pretender(kind)}/", "--timeout", seconds)


def test_doctor_gives_one_piece_of_advice_for_a_web_server(pretender: Callable[[str], int], cli: Cli) -> None:
    err = cli.err(1, "doctor", f"jrep+http://127.0.0.1:{pretender('http')}/", "--timeout", "60")
    assert err.startswith("polybus: handshake: the server answered 501; the server responds, but not as a bus"), err
    assert err.count(";") == 1 and "TLS" not in err, err


def test_a_path_that_no_application_takes_is_doubted(pretender: Callable[[str], int], cli: Cli) -> None:
    text = cli.line(1, "request", f"ubre+ws://127.0.0.1:{pretender('http')}/elsewhere", "a")
    assert text.endswith("is '/elsewhere' the path of the bus?")


# -- output that nobody can take, and interruptions -----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["doctor", "--help"])
def test_a_reader_that_leaves_at_once_is_no_failure(command: str, url: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe, started(*(command, url)[: 1 + (command == "doctor")], stdout=pipe) as program:
        _, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (0, "")


@pytest.mark.parametrize("command", ["request", "bench"])
def test_ctrl_c_is_status_130_and_silent(command: str) -> None:
    # A listener that this test accepts from tells that the command is connected.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"ubre+ws://127.0.0.1:{listener.getsockname()[1]}"
        with started(command, url, *(["a"] if command == "request" else []), "--timeout", "60") as program:
            connection, _ = listener.accept()
            connection.recv(1)  # it waits for an answer: Ctrl-C while anyio connects can get lost on asyncio
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=60)
        connection.close()
    assert (program.returncode, out, err) == (130, "", "")


def test_a_terminal_gets_colours_unless_it_says_no(url: str, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in cli.out("doctor", url)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = cli.out("doctor", url)
    assert "a polybus peer" in shown and "\x1b[32m" not in shown


def test_an_output_without_the_letters_is_no_failure(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    assert run(["doctor", url]) == 0
    assert b"? " in output.getvalue() and b"a polybus peer" in output.getvalue()


# -- what goes well --------------------------------------------------------------------------------------------------------


def test_doctor_names_every_step_with_its_time(tmp_path: Path, cli: Cli) -> None:
    certificate = trustme.CA()
    certificate.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.issue_cert("127.0.0.1").configure_cert(tls)
    with serving("ubre+wss://127.0.0.1:0/bus", tls=tls) as url:
        result = cli.json("doctor", url, "--ca", str(tmp_path / "ca.pem"), "--json", "--subject", "greet", "--body", '"Ann"')
        steps = {step["name"]: step for step in result["steps"]}
        assert list(steps) == ["resolve", "connect", "tls", "upgrade", "handshake", "peer", "request"]
        assert all(step["outcome"] == "ok" and step["seconds"] >= 0 for step in steps.values())
        assert "certificate for 127.0.0.1" in steps["tls"]["detail"]
        assert "Hello, Ann" in steps["request"]["detail"]
        for subject, says in (("nothing", "spelled as in handle()"), ("vault", "this identity"), ("break", "its log")):
            assert says in cli.err(1, "doctor", url, "--ca", str(tmp_path / "ca.pem"), "--subject", subject)


def test_doctor_looks_at_a_socket_file(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "a_file").touch()
    with serving(f"ubre+unix://{tmp_path}/bus.sock") as url:
        assert "socket file" in cli.out("doctor", url)
    for path, says in ((tmp_path / "none", "is no such file"), (tmp_path / "a_file", "is not a socket")):
        assert says.removeprefix("is ") in cli.err(1, "doctor", f"ubre+unix://{path}")


def test_doctor_and_bench_over_memory_have_nobody_to_find(cli: Cli) -> None:
    text = cli.err(1, "doctor", "ubre+memory://nobody", "--timeout", "0.1")
    assert "is the server running" in text and "--wait" not in text  # an option that doctor lacks
    cli.line(1, "bench", "ubre+memory://nobody", "--timeout", "0.1")


def test_bench_measures_our_own_server_over_each_transport(cli: Cli) -> None:
    result = cli.json("bench", "--seconds", "0.02", "--json")
    assert [wire["wire"] for wire in result["wires"]] == ["memory", "unix", "tcp", "ws"]
    for wire in result["wires"]:
        assert 0 < wire["round_trip_us"] <= wire["round_trip_p99_us"]
        assert wire["requests_per_s"] > 0 and wire["publications_per_s"] > 0
        assert wire["publications_lost"] >= 0
    assert "trio" in cli.out("bench", "--seconds", "0.01", "--loop", "trio", "--protocol", "ubre?format=binary")


def test_bench_measures_a_server_that_runs(url: str, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    assert "4 in flight" in cli.out("bench", url, "--seconds", "0.02", "--in-flight", "4")
    assert run(["bench", url, "--seconds", "0.02", "--subject", "greet", "--body", '"Ann"']) == 0
    capsys.readouterr()
    assert "not you" in cli.line(1, "bench", url, "--subject", "vault")


def test_commands_and_options_are_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"_POLYBUS_COMPLETE": "complete_bash", "COMP_WORDS": "polybus do", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out.split() == ["doctor"]


@pytest.mark.parametrize(
    ("served", "dialled", "says", "not_said"),
    [
        ("ubre+ws", "jrep+ws", "the server accepts ubre: begin the URL with ubre+;", "Upgrade and Connection"),
        ("ubre+ws", "ubre+tcp", "use ws:// or http://", "want TLS"),
        ("ubre+ws", "ubre+wss", "write ws:// instead of wss://", "--ca"),
        ("ubre+tcp", "ubre+tls", "tcp:// instead of tls://", "--ca"),
    ],
)
def test_doctor_gives_the_remedy_for_the_cause(served: str, dialled: str, says: str, not_said: str, cli: Cli) -> None:
    with serving(f"{served}://127.0.0.1:0") as url:
        err = cli.err(1, "doctor", url.replace(f"{served}:", f"{dialled}:"))
    assert says in err and not_said not in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("header", "says"),
    [("origin: https://evil.example", "leave out --header origin"), ("host: evil.example", "add it with serve")],
)
def test_doctor_knows_a_refused_origin_from_a_refused_host(header: str, says: str, cli: Cli) -> None:
    with serving("ubre+ws://127.0.0.1:0") as url:
        err = cli.err(1, "doctor", url, "--header", header)
    assert says in err and "another --header" not in err


def test_an_option_with_a_slip_is_told_of_by_each_command_that_connects(cli: Cli) -> None:
    with serving("ubre+ws://127.0.0.1:0") as url:
        out, err = cli.both(0, "request", f"{url}?formt=binary", "greet", '"Ann"')
        assert out == '"Hello, Ann"\n' and err.count("\n") == 1 and "did you mean format?" in err
        assert "did you mean format?" in cli.err(0, "doctor", f"{url}?formt=binary")
